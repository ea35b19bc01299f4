"""mini-swe-agent, as it is on PyPI, on the shelf's repositories."""

from gymhost.envs.harness import Harness, HarnessEnv
from gymhost.envs.sandbox import Limits
from gymhost.envs.shelf.repo_repair import RepoRepair

__all__ = ["MINI_SWE_AGENT", "MiniSweAgentRepoRepair"]

# It commits to each command itself, counts no costs, and asks nobody: there is no terminal.
_SETTINGS = ("mini.yaml", "model.cost_tracking=ignore_errors", "environment.timeout=60")

MINI_SWE_AGENT = Harness(
    command=(
        *("{python}", "-m", "minisweagent", "--yolo", "--exit-immediately", "--cost-limit", "0"),
        *("--model", "openai/{model}", "--task", "{prompt}"),
        *(word for setting in _SETTINGS for word in ("--config", setting)),
    ),
    packages=("mini-swe-agent",),
    install="gymhost[mini-swe-agent]",
    env={
        "MSWEA_CONFIGURED": "true",
        "MSWEA_GLOBAL_CONFIG_DIR": "{folder}",
        "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "3",
        "MSWEA_SILENT_STARTUP": "1",
        # LiteLLM would load its list of models from elsewhere, and wait for that.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    },
    first_seconds=240.0,
    turn_seconds=600.0,
    # It says so to the model where that has called nothing, or not as it should.
    statuses=(0,),
    limits=Limits(memory=768 * 2**20, processes=128, disk=64 * 2**20),
)


class MiniSweAgentRepoRepair(HarnessEnv, RepoRepair):
    """`RepoRepair`, played by mini-swe-agent in its sandbox: an episode has the agent's own prompt, tool and end."""

    harness = MINI_SWE_AGENT
    expert = "gymhost.envs.shelf.mini_swe_agent_expert:reference"
    cheats = tuple(place.replace("repo_repair_expert", "mini_swe_agent_expert") for place in RepoRepair.cheats)
