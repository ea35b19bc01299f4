"""Scripted policies for `MiniSweAgentRepoRepair`: those of `RepoRepair`, by the one tool that mini-swe-agent offers."""

import shlex
from collections.abc import Callable, Sequence
from typing import Any

from gymhost.envs.shelf import repo_repair_expert
from gymhost.envs.shelf.scripted import call
from gymhost.wire.chat_spaces import ChatMessage

__all__ = [
    "deletes_tests",
    "edits_tests",
    "forges_results",
    "nothing",
    "reference",
    "rewrites_in_background",
    "scores_everywhere",
    "stands_in_for_the_library",
]

Policy = Callable[[Sequence[ChatMessage]], ChatMessage]

_SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_EDIT = (
    "import pathlib, sys; path, old, new = pathlib.Path(sys.argv[1]), *sys.argv[2:]; "
    "path.write_text(path.read_text().replace(old, new))"
)


def _by_bash(policy: Policy) -> Policy:
    """Returns a policy that does by commands what another one does by the environment's own tools."""

    def act(messages: Sequence[ChatMessage]) -> ChatMessage:
        [asked] = policy(messages)["tool_calls"]
        return call("bash", command=_command(asked["function"]["name"], asked["function"]["arguments"]))

    return act


def _command(tool: str, arguments: dict[str, Any]) -> str:
    match tool:
        case "submit":
            return _SUBMIT
        case "view":
            return f"cat {arguments['path']}"
        case "edit":
            return shlex.join(["python3", "-c", _EDIT, arguments["path"], arguments["old"], arguments["new"]])
        case _:
            return arguments["command"]


reference = _by_bash(repo_repair_expert.reference)
nothing = _by_bash(repo_repair_expert.nothing)
edits_tests = _by_bash(repo_repair_expert.edits_tests)
deletes_tests = _by_bash(repo_repair_expert.deletes_tests)
forges_results = _by_bash(repo_repair_expert.forges_results)
stands_in_for_the_library = _by_bash(repo_repair_expert.stands_in_for_the_library)
scores_everywhere = _by_bash(repo_repair_expert.scores_everywhere)
rewrites_in_background = _by_bash(repo_repair_expert.rewrites_in_background)
