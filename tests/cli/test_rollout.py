"""`gymhost rollout`: a chat endpoint plays real environments, in a process as people run it."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gymhost.rollout.store import Store
from support.chat_server import ChatServer
from support.command import COMMAND, called, environment, gymhost
from support.rollout_command import begun, ended, rollout
from support.server import PATIENCE, ServerProcess

GUESS = "gymhost/GuessNumber-v0"

SUMS = """
from gymhost.envs import ToolEnv, register, rubric, tool

class Sum(ToolEnv):
    def __init__(self, first: int, second: int = 1):
        super().__init__()
        self.first, self.second = first, second

    def prompt(self, task):
        return f"{self.first} + {self.second}?"

    @tool
    def guess(self, number: int) -> str:
        '''Answers.'''
        self.answer = number
        self.finish()
        return "Thank you."

    @rubric
    def right(self) -> float:
        return float(self.answer == self.first + self.second)

register("test/Sum-v0", Sum)
"""


def guess(number: int) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": "guess", "arguments": f'{{"number": {number}}}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {"choices": [{"message": message}], "usage": {"prompt_tokens": 100, "completion_tokens": 10}}


def halve(body: dict[str, Any]) -> dict[str, Any]:
    """Guesses in the middle of what is left: three guesses find one of seven numbers."""
    said = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    low, high = map(int, re.findall(r"\d+", said[-1])) if said else (1, 7)
    return guess((low + high) // 2)


def failing_first(failures: int, answer: Callable[[dict[str, Any]], Any] = halve) -> Callable[[dict[str, Any]], Any]:
    """Refuses the first requests, and answers the others."""
    left = iter(range(failures))
    return lambda body: answer(body) if next(left, None) is None else 400


def by(endpoint: ChatServer, server: ServerProcess | None = None) -> list[str]:
    """The options that say who plays where."""
    where = ["--server", server.address] if server is not None else []
    return ["--endpoint", endpoint.url, "--endpoint-model", "tutor", *where]


async def test_a_chat_endpoint_plays_and_is_summed_up_as_json(server: ServerProcess) -> None:
    async with ChatServer(halve) as endpoint:
        said = await rollout(
            GUESS,
            *by(endpoint, server),
            *("--split", "test", "--tasks", "7", "--samples", "2", "--temperature", "0.5", "--turn-tokens", "99"),
            *("--endpoint-arg", "user=me", "--api-key-env", "TUTOR_KEY", "--json"),
            TUTOR_KEY="open sesame",
        )
    assert said.code == 0, said.stderr
    told = said.json
    assert (told["wanted"], told["played"], told["resumed"], told["interrupted"]) == (14, 14, 0, False)
    assert told["trainable"] is False
    assert told["settings"]["tasks"] == "0-6"
    assert told["settings"]["sampling"]["temperature"] == 0.5
    summary = told["summary"]
    assert (summary["rollouts"], summary["valid"], summary["tasks"]) == (14, 14, 7)
    assert summary["reward"] == {"mean": 1.0, "low": None, "high": None, "tasks": 7}
    assert list(summary["pass_at"]) == ["1", "2"]
    assert summary["pass_at"]["2"]["mean"] == 1.0
    assert summary["pass_at"]["2"]["low"] == pytest.approx(0.646, abs=1e-3)
    assert {name: mean["mean"] for name, mean in summary["rubrics"].items()} == {"win": 1.0, "format": 0.0}
    assert summary["outcomes"] == {"terminated": 14}
    assert summary["sampled_tokens"] == 10 * len(endpoint.bodies)
    assert 1 <= summary["turns"]["mean"] <= summary["turns"]["most"] == 3
    assert {header["authorization"] for header in endpoint.headers} == {"Bearer open sesame"}
    sent = [{name: body[name] for name in ("model", "temperature", "max_tokens", "user")} for body in endpoint.bodies]
    assert sent == [{"model": "tutor", "temperature": 0.5, "max_tokens": 99, "user": "me"}] * len(sent)
    assert "open sesame" not in said.stdout + said.stderr


async def test_people_get_a_table_and_progress_in_lines(server: ServerProcess) -> None:
    async with ChatServer(lambda _body: guess(4)) as endpoint:
        said = await rollout(GUESS, *by(endpoint, server), "--tasks", "7", "--samples", "4", "--turns", "2")
    assert said.code == 0, said.stderr
    lines = [line.rstrip() for line in said.stdout.splitlines()]
    assert lines[0] == f"{GUESS}, split train, played by tutor ({endpoint.url})"
    rows = {line[:6].strip(): line.split()[1:] for line in lines if line.startswith(("reward", "pass@"))}
    assert rows["reward"] == ["0.143", "-0.207", "to", "0.492", "7"]  # one of seven numbers is a 4
    assert [rows[f"pass@{k}"][0] for k in (1, 2, 4)] == ["0.143"] * 3
    text = " ".join(said.stdout.split())
    assert "rollouts 28 of 7 tasks" in text
    assert "outcomes 24 truncated, 4 terminated (24 by turns)" in text
    assert "this is an evaluation, nothing to train on" in text
    assert max(map(len, said.stdout.splitlines())) <= 80
    assert re.search(r"^ +[\d.]+ s  28/28 done; .* tokens/s; reward 0.143$", said.stderr, re.MULTILINE)


async def test_quiet_says_nothing_but_the_summary(server: ServerProcess) -> None:
    async with ChatServer(failing_first(9)) as endpoint:
        said = await rollout(GUESS, *by(endpoint, server), "--tasks", "10", "--retries", "0", "--quiet")
    assert said.code == 0
    assert said.stderr == ""
    assert "outcomes  9 failed, 1 terminated" in said.stdout


async def test_tasks_are_chosen_by_index_and_played_with_their_own_seeds(server: ServerProcess, tmp_path: Path) -> None:
    chosen = ("--task", "7", "--task", "1-3", "--task", "3", "--seed", "100")
    async with ChatServer(halve) as endpoint:
        said = await rollout(GUESS, *by(endpoint, server), *chosen, "--samples", "2", "--store", "kept", cwd=tmp_path)
    assert said.code == 0, said.stderr
    kept = Store.open(tmp_path / "kept")
    assert kept.settings["tasks"] == "7,1-3"
    played = sorted((item.task, item.seed, item.group, item.index) for item in kept)
    assert played == [(task, 100 + task, str(task), index) for task in (1, 2, 3, 7) for index in (0, 1)]


async def test_an_embedded_server_finds_modules_here_and_passes_arguments_on(tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text(SUMS)
    how = ("-m", "sums", "--kwargs", "first=2", "--kwargs", '{"second": 3}', "--tasks", "3", "--json")
    async with ChatServer(lambda _body: guess(5)) as endpoint:
        said = await rollout("test/Sum-v0", *by(endpoint), *how, cwd=tmp_path)
    assert said.code == 0, said.stderr
    assert said.json["settings"]["kwargs"] == {"first": 2, "second": 3}
    assert said.json["settings"]["split"] is None
    assert (said.json["summary"]["reward"]["mean"], said.json["summary"]["tasks"]) == (1.0, 3)
    assert "2 + 3?" in json.dumps(endpoint.bodies[0]["messages"])


async def test_an_environment_of_plain_texts_is_played(server: ServerProcess) -> None:
    async with ChatServer(lambda _body: "abab") as endpoint:
        said = await rollout(
            "gymhost/Echo-v0", *by(endpoint, server), "--kwargs", "length=2", "--tasks", "2", "--pass-at", "2", "--json"
        )
    assert said.code == 0, said.stderr
    summary = said.json["summary"]
    assert (summary["reward"]["mean"], summary["pass_at"]["1"]["mean"], summary["threshold"]) == (2.0, 1.0, 2.0)


@pytest.mark.timeout(180)  # several runs, one after another
async def test_what_failed_is_left_out_and_played_again_when_resumed(server: ServerProcess, tmp_path: Path) -> None:
    how = [GUESS, "--tasks", "3", "--samples", "2", "--retries", "0", "--store", "kept", "--json"]
    async with ChatServer(failing_first(2)) as endpoint:
        first = await rollout(*how, *by(endpoint, server), cwd=tmp_path)
        assert first.code == 0, first.stderr
        summary = first.json["summary"]
        assert (summary["rollouts"], summary["valid"], summary["left_out"]) == (6, 4, 2)
        assert summary["reward"]["mean"] == 1.0
        [failure] = summary["failures"]
        assert (failure["count"], failure["fault"], failure["cause"]) == (2, "generator", "GeneratorError")
        assert "400" in failure["message"]

        second = await rollout(*how, *by(endpoint, server), "--resume", cwd=tmp_path)
        assert second.code == 0, second.stderr
        assert (second.json["resumed"], second.json["played"]) == (4, 2)
        assert (second.json["summary"]["rollouts"], second.json["summary"]["valid"]) == (6, 6)

        asked = len(endpoint.bodies)
        third = await rollout(*how, *by(endpoint, server), "--resume", cwd=tmp_path)
        assert third.code == 0, third.stderr
        assert (third.json["resumed"], third.json["played"]) == (6, 0)
        assert third.json["summary"]["reward"] == second.json["summary"]["reward"]
        assert len(endpoint.bodies) == asked
    assert len(Store.open(tmp_path / "kept")) == 8


@pytest.mark.timeout(180)  # several runs, one after another
async def test_a_store_is_resumed_with_its_own_settings_alone(server: ServerProcess, tmp_path: Path) -> None:
    async with ChatServer(halve) as endpoint:
        how = [GUESS, *by(endpoint, server), "--store", "kept", "-q"]
        assert (await rollout(*how, "--tasks", "1", cwd=tmp_path)).code == 0
        again = await rollout(*how, "--tasks", "1", cwd=tmp_path)
        assert again.code == 1
        assert "kept holds a store already" in again.stderr
        assert "--resume goes on" in again.stderr
        other = await rollout(*how, "--tasks", "2", "--temperature", "0", "--turns", "3", "--resume", cwd=tmp_path)
        assert other.code == 1
        assert other.stderr == (
            "gymhost: kept was made with other settings, so it can't be resumed: tasks was 0, and is 0-1; "
            "temperature was 1.0, and is 0.0; turns was None, and is 3\n"
        )
        # Who hosts the environment, how fast it goes and what passes does not matter.
        same = await rollout(
            *how, "--tasks", "1", "--concurrency", "3", "--retries", "9", "--pass-at", "0.5", "--resume", cwd=tmp_path
        )
        assert same.code == 0, same.stderr


async def test_resume_begins_a_store_that_is_not_there(server: ServerProcess, tmp_path: Path) -> None:
    async with ChatServer(halve) as endpoint:
        said = await rollout(
            GUESS, *by(endpoint, server), "--tasks", "2", "--store", "new", "--resume", "--json", cwd=tmp_path
        )
    assert said.code == 0, said.stderr
    assert (said.json["resumed"], said.json["played"]) == (0, 2)


def test_a_store_that_another_run_writes_is_left_alone(server: ServerProcess, tmp_path: Path) -> None:
    who = ("--endpoint", "http://127.0.0.1:1/v1", "--endpoint-model", "x", "--server", server.address, "-q")
    with Store.create(tmp_path / "kept"):
        said = gymhost("rollout", GUESS, *who, "--store", "kept", "--resume", cwd=tmp_path)
    assert (said.returncode, said.stderr.count("\n")) == (1, 1)
    assert said.stderr == f"gymhost: kept is being written by another run (process {os.getpid()})\n"


async def test_a_store_that_can_not_be_written_ends_the_run(server: ServerProcess, tmp_path: Path) -> None:
    """A limit on the size of files stands for a disk that is full: the third rollout has no room."""
    who = [*COMMAND, "rollout", GUESS, "--tasks", "9", "--concurrency", "1", "--store", "kept", "-q"]
    async with ChatServer(halve) as endpoint:
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-c",
            'ulimit -f 8; trap "" XFSZ; exec "$@"',
            "bash",
            *who,
            *by(endpoint, server),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            env=environment(),
        )
        said = await ended(process)
    assert said.code == 1, said.stderr
    assert "gymhost: a rollout could not be kept; those before it are, in kept: " in said.stderr
    assert "File too large" in said.stderr
    assert "Traceback" not in said.stderr
    assert 0 < len(list(Store.open(tmp_path / "kept"))) < 9


async def test_none_could_be_played(server: ServerProcess) -> None:
    async with ChatServer(lambda _body: 404) as endpoint:
        said = await rollout(GUESS, *by(endpoint, server), "--tasks", "4", "--retries", "0")
    assert said.code == 1
    assert said.stderr.splitlines()[-1].startswith("gymhost: none of 4 rollouts could be played, most often: Generator")
    assert "404" in said.stderr.splitlines()[-1]
    assert "reward  not known" in said.stdout
    assert "4 without a known reward" in said.stdout


class Stalling:
    """Answers the first so many requests, and leaves the others hanging; tells when so many have come."""

    def __init__(self, answers: int, requests: int) -> None:
        self._answers = answers
        self._requests = requests
        self._seen = 0
        self.all_came = asyncio.Event()

    def __call__(self, body: dict[str, Any]) -> Any:
        self._seen += 1
        if self._seen >= self._requests:
            self.all_came.set()
        return guess(1) if self._seen <= self._answers else ChatServer.HANG


@pytest.mark.timeout(120)  # two runs
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_ctrl_c_keeps_what_has_ended_and_says_how_to_go_on(
    server: ServerProcess, tmp_path: Path, number: int, code: int
) -> None:
    how = [GUESS, "--tasks", "8", "--turns", "1", "--store", "kept", "--json"]
    stalling = Stalling(answers=3, requests=8)
    async with ChatServer(stalling) as endpoint:
        async with begun(*how, *by(endpoint, server), cwd=tmp_path) as process, asyncio.timeout(PATIENCE):
            await stalling.all_came.wait()
            while len(Store.open(tmp_path / "kept")) < 3:  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.02)
            process.send_signal(number)
            said = await ended(process)
        assert said.code == code, said.stderr
        told = said.json
        assert (told["interrupted"], told["wanted"], told["played"]) == (True, 8, 3)
        assert told["summary"]["rollouts"] == 3
        assert "ending the rollouts in flight; Ctrl-C again ends at once" in said.stderr
        assert said.stderr.splitlines()[-1] == (
            "gymhost: ended after 3 of 8 rollouts; the same command with --resume goes on from there"
        )
    async with ChatServer(lambda _body: guess(1)) as endpoint:
        # Another address is no other setting.
        again = await rollout(*how, *by(endpoint, server), "--resume", cwd=tmp_path)
    assert again.code == 0, again.stderr
    assert (again.json["resumed"], again.json["played"], len(endpoint.bodies)) == (3, 5, 5)


async def test_without_a_store_it_is_said_that_nothing_is_kept(server: ServerProcess) -> None:
    stalling = Stalling(answers=0, requests=2)
    async with (
        ChatServer(stalling) as endpoint,
        begun(GUESS, *by(endpoint, server), "--tasks", "2") as process,
        asyncio.timeout(PATIENCE),
    ):
        await stalling.all_came.wait()
        process.send_signal(signal.SIGINT)
        said = await ended(process)
    assert said.code == 130
    assert "No rollout has ended." in said.stdout
    assert said.stderr.endswith("ended after 0 of 2 rollouts; nothing is kept, since no --store was named\n")


async def test_a_second_ctrl_c_ends_at_once(start_server: Callable[..., ServerProcess]) -> None:
    """The server stands still, so that sessions can't be closed, which would take a minute."""
    own = start_server()
    stalling = Stalling(answers=0, requests=2)
    async with (
        ChatServer(stalling) as endpoint,
        begun(GUESS, *by(endpoint, own), "--tasks", "2") as process,
        asyncio.timeout(PATIENCE),
    ):
        assert process.stderr is not None
        await stalling.all_came.wait()
        stopped = [own.pid, *own.workers]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            process.send_signal(signal.SIGINT)
            while b"Ctrl-C again ends at once" not in await process.stderr.readline():
                pass
            process.send_signal(signal.SIGINT)
            said = await ended(process)
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
    assert said.code == 130
    assert said.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "say who plays: --model FOLDER, --vllm URL or --endpoint URL"),
        (("--model", ".", "--vllm", "http://a"), "--model and --vllm don't go together"),
        (("--vllm", "http://a", "--backend", "vllm"), "--backend goes with --model, not with --vllm"),
        (("--model", ".", "--endpoint-model", "x"), "--endpoint-model goes with --endpoint, not with --model"),
        (("--endpoint", "http://a"), "--endpoint needs --endpoint-model"),
        (("--endpoint", "http://a", "--endpoint-model", "x", "--renderer", "qwen3"), "--renderer goes with --model or"),
        (("--vllm", "http://a", "--api-key-env", "NO_SUCH_KEY"), "the environment variable NO_SUCH_KEY is not set"),
        (("--vllm", "http://a", "--tasks", "3", "--task", "1"), "--tasks and --task don't go together"),
        (("--vllm", "http://a", "--task", "9-1"), "'9-1' ends before it begins"),
        (("--vllm", "http://a", "--task", "x"), "'x' is no index such as 3, and no range such as 0-9"),
        (("--vllm", "http://a", "--resume"), "--resume needs --store"),
        (("--vllm", "http://a", "--samples", "0"), "Invalid value for '--samples'"),
        (("--vllm", "http://a", "--server", "a:1", "-m", "x"), "leave --server out"),
        (
            ("--model", "no_such_folder"),
            "Directory 'no_such_folder' does not exist. A model of the Hub is brought by: hf",
        ),
    ],
)
def test_a_wrong_call_ends_with_2(arguments: tuple[str, ...], message: str) -> None:
    assert message in " ".join(called("rollout", GUESS, *arguments).split())


@pytest.mark.parametrize(
    ("env", "arguments", "message"),
    [
        ("nope/X-v0", (), "no environment 'nope/X-v0' on this server"),
        ("CartPole-v1", (), "a language model can't play CartPole-v1, whose actions are no messages: Discrete(2)"),
        (GUESS, ("--split", "dev"), f"{GUESS} has no split 'dev': it has train, test"),
        (GUESS, ("--split", "test", "--task", "499-500"), "has 500 tasks, 0 to 499: there is no task 500"),
        (GUESS, ("--split", "test", "--tasks", "501"), "has 500 tasks, 0 to 499: there is no task 500"),
        ("gymhost/Echo-v0", ("--task", "1"), "gymhost/Echo-v0 has no tasks: leave --task out"),
    ],
)
def test_what_can_not_be_played_is_one_line(
    server: ServerProcess, env: str, arguments: tuple[str, ...], message: str
) -> None:
    who = ("--endpoint", "http://127.0.0.1:1/v1", "--endpoint-model", "x")
    said = gymhost("rollout", env, *who, "--server", server.address, "--quiet", *arguments)
    assert said.returncode == 1, said.stderr
    assert said.stdout == ""
    [line] = said.stderr.splitlines()
    assert line.startswith("gymhost: ")
    assert message in line


def test_an_embedded_server_asks_for_the_module() -> None:
    said = gymhost("rollout", "nope/X-v0", "--endpoint", "http://127.0.0.1:1/v1", "--endpoint-model", "x", "-q")
    assert said.returncode == 1
    assert said.stderr.startswith("gymhost: no environment 'nope/X-v0' is registered here: name the module")


def test_no_server_and_no_vllm_are_one_line() -> None:
    said = gymhost("rollout", GUESS, "--vllm", "http://127.0.0.1:1", "-q")
    assert (said.returncode, said.stderr.count("\n")) == (1, 1)
    assert said.stderr.startswith("gymhost: no vLLM server answers at http://127.0.0.1:1: ")
    who = ("--endpoint", "http://127.0.0.1:1/v1", "--endpoint-model", "x")
    said = gymhost("rollout", GUESS, *who, "--server", "127.0.0.1:1", "-q")
    assert (said.returncode, said.stderr.count("\n")) == (1, 1)
    assert said.stderr.startswith("gymhost: can't reach a gymhost server at 127.0.0.1:1")


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("rich", "gymhost rollout needs the extra 'rollout': pip install 'gymhost[rollout]'  ("),
        ("httpx", "httpx is needed here: pip install 'gymhost[rollout]'"),
    ],
)
def test_a_missing_extra_is_named(server: ServerProcess, missing: str, message: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from gymhost.cli import main; main()"
    who = ("--endpoint", "http://127.0.0.1:1/v1", "--endpoint-model", "x", "--server", server.address, "-q")
    said = subprocess.run(
        [sys.executable, "-c", code, "rollout", GUESS, *who],
        check=False,
        capture_output=True,
        text=True,
        env=environment(),
        timeout=PATIENCE,
    )
    assert (said.returncode, said.stderr.count("\n")) == (1, 1)
    assert said.stderr.startswith(f"gymhost: {message}")
