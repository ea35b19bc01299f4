"""Task folders in Harbor's layout, hosted: what their solutions get, and what nobody sees."""

import shutil
from pathlib import Path
from typing import Any

import docker
import pytest

from gymhost.client import RemoteEnv
from gymhost.envs.adapters import load
from gymhost.envs.registration import catalog
from gymhost.envs.shelf.scripted import call
from gymhost.wire.errors import EnvironmentFault
from support.adapters import Host, Make
from support.docker_engine import DockerEngine, docker_engine
from support.harbor_tasks import apart
from support.images import PROGRAMS, copy_programs
from support.server import ServerProcess

__all__ = ["docker_engine"]

DATA = Path(__file__).parent / "data/harbor"


@pytest.fixture(scope="module")
def server(host: Host) -> ServerProcess:
    return host(f"harbor:{DATA}?image=none", f"harbor:{DATA / 'tally'}?max_turns=3")


def solution(name: str) -> str:
    return (DATA / name / "solution/solve.sh").read_text()


def play(env: RemoteEnv, *commands: str, task: int = 0) -> tuple[list[str], float, dict[str, Any]]:
    """Runs commands, and hands in; returns what they said, the reward and the last info."""
    observation, _ = env.reset(options={"task": task})
    said = [observation[-1]["content"]]
    for command in commands:
        observation, *_ = env.step(call("bash", command=command))
        said.append(observation[0]["content"])
    _, reward, terminated, _, info = env.step(call("submit"))
    assert terminated
    return said, float(reward), info


def test_a_dataset_is_its_tasks(server: ServerProcess, remote: Make) -> None:
    env = remote(server, "harbor/harbor")
    said, reward, info = play(env, solution("tally"), task=1)
    assert said[0] == (DATA / "tally/instruction.md").read_text().strip()
    assert (reward, info["verifier"]) == (1.0, {"reward": 1.0, "found": 1.0, "least": 2.0})
    assert info["rewards"] == {"right": 1.0}
    *_, reward, info = play(env, solution("tally") + 'sort -o "$TALLY" "$TALLY"', task=1)
    assert (reward, info["verifier"]["found"]) == (0.5, 1.0)
    *_, reward, info = play(env, task=1)
    assert (reward, "reward_invalid" in info) == (0.0, False)


def test_rewards_are_what_they_are(server: ServerProcess, remote: Make) -> None:
    env = remote(server, "harbor/harbor")
    *_, reward, _ = play(env, "echo 'awk \"{s+=\\$1}END{print s}\"' >sum.sh; cat sum.sh", task=0)
    assert reward == pytest.approx(10 - 0.1 * len('awk "{s+=\\$1}END{print s}"\n'), abs=0.11)
    assert play(env, task=0)[1] == -10.0


def test_nothing_of_the_tests_or_the_solution_is_seen(server: ServerProcess, remote: Make) -> None:
    env = remote(server, "harbor/tally")
    observation, _ = env.reset()
    look = "ls -d /tests /solution /logs; pwd; echo $TALLY; find / -name solve.sh -o -name expected.txt 2>/dev/null"
    observation, *_ = env.step(call("bash", command=look))
    said = observation[0]["content"]
    assert said.split("\n")[:2] == ["/app/work", "/app/work/tally.txt"]
    assert said.count("No such file") == 3
    assert not {"solve.sh", "expected.txt"} & set(said.replace("\n", "/").split("/"))
    # A path that is none is the model's mistake, and no fault.
    [told], *_ = env.step(call("write", path="", content="x"))
    assert "can't be a path" in told["content"]
    # What is left running when the turns are spent sees the tests no more.
    late = "(while :; do cp /tests/expected.txt $TALLY 2>/dev/null; done) >/dev/null 2>&1 &"
    _, reward, terminated, truncated, info = env.step(call("bash", command=late))
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert (info["limit"], info["verifier"]["found"]) == ("max_turns", 0.0)


def test_a_verifier_apart_sees_what_it_is_to_see(host: Host, remote: Make, tmp_path: Path) -> None:
    """Once in an environment like the agent's, once in one of its own."""
    like, own = (apart(DATA / "tally", tmp_path / name) for name in ("like", "own"))
    (own / "tests/Dockerfile").write_text("FROM python:3.12-slim\nWORKDIR /app/work\nCOPY . /tests/\n")
    server = host(f"harbor:{like}", f"harbor:{own}?image=none")
    for name, words in (("like", 7), ("own", 0)):
        *_, info = play(remote(server, f"harbor/{name}"), solution("tally") + "echo more >>words.txt")
        assert info["verifier"] == {"reward": 1.0, "words": words, "lines": 8}
    *_, reward, info = play(remote(server, "harbor/like"), "mkdir tally.txt; mkfifo tally.txt/x")
    assert (reward, info["verifier"]["reward"]) == (0.0, 0.0)


def test_a_verifier_with_an_image_needs_images(host: Host, remote: Make, tmp_path: Path) -> None:
    task = shutil.copytree(DATA / "tally", tmp_path / "task")
    (task / "task.toml").write_text("[verifier]\nenvironment_mode = 'separate'")
    (task / "tests/Dockerfile").write_text("FROM python:3.12-slim\n")
    env = remote(host(f"harbor:{task}"), "harbor/task")
    with pytest.raises(EnvironmentFault, match=r"tests/Dockerfile.*--sandbox docker.*image=none"):
        env.reset()


@pytest.mark.docker
def test_images_of_a_task_and_of_its_verifier(docker_engine: DockerEngine, remote: Make, tmp_path: Path) -> None:
    copy_programs(tmp_path / "root", (*PROGRAMS, "awk", "uniq", "paste"))
    shutil.make_archive(str(tmp_path / "root"), "tar", tmp_path / "root")
    api: Any = docker.APIClient(docker_engine.base_url)
    api.import_image(str(tmp_path / "root.tar"), repository="debian", tag="bookworm-slim")
    api.close()
    own = apart(DATA / "tally", tmp_path / "own")
    (own / "tests/Dockerfile").write_text("FROM debian:bookworm-slim\nWORKDIR /app/work\nCOPY . /tests/\n")
    options = {"base_url": docker_engine.base_url}
    modules = [f"harbor:{own}", f"harbor:{DATA / 'golf'}"]
    with ServerProcess(modules=modules, workers=1, sandbox="docker", sandbox_options=options) as server:
        *_, info = play(remote(server, "harbor/own"), solution("tally") + "echo more >>words.txt")
        assert info.get("verifier") == {"reward": 1.0, "words": 0.0, "lines": 8.0}, info
        assert play(remote(server, "harbor/golf"), solution("golf"))[1] > 0.0


def test_what_it_comes_from_is_told() -> None:
    assert load(f"harbor:{DATA / 'tally'}") == ["harbor/tally"]
    assert catalog()["harbor/tally"].source == "gymhost/tally 1.2.0"
    assert load(f"harbor:{DATA}?image=none") == ["harbor/harbor"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("[[steps]]\nname = 'one'\n", r"steps can't be had here"),
        ("[environment]\nos = 'Windows'", r"environment.os"),
        ("[environment]\ngpus = 1", r"environment.gpus"),
        ("[environment]\ntpu = {type = 'v4', topology = '2x2x1'}", r"environment.tpu"),
        ("[environment]\nmcp_servers = [{name = 'x', url = 'http://x'}]", r"environment.mcp_servers"),
        ("[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['a.b']", r"environment.network_mode"),
        ("[environment.healthcheck]\ncommand = 'true'", r"environment.healthcheck"),
        (
            "[verifier]\nenvironment_mode = 'separate'\n[[verifier.collect]]\ncommand = 'true'\nservice = 'db'",
            r"service",
        ),
        ("[verifier]\nuser = 'root'", r"verifier.user = 'root'"),
        ("[agent]\nuser = 0", r"agent.user = 0"),
        ("[environment.env]\nX = '${GYMHOST_NOT_SET}'", r"GYMHOST_NOT_SET, which is not set"),
    ],
)
def test_what_of_a_task_is_not_supported_is_named(change: str, why: str, tmp_path: Path) -> None:
    task = shutil.copytree(DATA / "tally", tmp_path / "task")
    (task / "task.toml").write_text(change)
    with pytest.raises(ValueError, match=why):
        load(f"harbor:{task}")


@pytest.mark.parametrize(("name", "why"), [("/nowhere", "no folder"), (f"{DATA}?imag=x", "no option 'imag'")])
def test_what_is_no_folder_of_tasks(name: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        load(f"harbor:{name}")
