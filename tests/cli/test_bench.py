"""`gymhost bench`: figures that can be true, of all that an environment can be run as; not how fast it is."""

import json
import signal
from typing import Any

import pytest

from support.command import COMMAND, environment, gymhost, serving
from support.server import PATIENCE, alive, children, running

SHORT = ("--rounds", "1", "--seconds", "0.1", "--num-envs", "4", "--sessions", "3")


def figures(*arguments: str) -> dict[str, Any]:
    said = gymhost("bench", *arguments, *SHORT, "--json")
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


def test_runs_cartpole_in_all_ways_and_beside_this_process():
    told = figures()
    assert told["environment"] == "CartPole-v1"
    assert told["server"] == "embedded"
    assert told["path"] == "straight to the workers"
    assert told["not_local"] is None
    assert [(one["mode"], one["hosted"], one["copies"]) for one in told["results"]] == [
        ("env", False, 1),
        ("env", True, 1),
        ("sessions", True, 3),
        ("vector", False, 4),
        ("vector", True, 4),
        ("native", False, 4),
        ("native", True, 4),
    ]
    for one in told["results"]:
        for run in one["runs"]:
            assert 0 < run["p50"] <= run["p99"]
            assert run["steps_per_second"] > 0
            assert 0 < run["ready"] < PATIENCE
            # CPU seconds in a second, of which this machine has no more than it has cores; with room for coarse clocks.
            assert 0 < run["client_cpu"] * run["steps_per_second"] < 64
            if one["hosted"]:
                assert 0 < run["server_cpu"] * run["steps_per_second"] < 64
                assert run["memory"] >= 0
                assert 0 < run["start"] < PATIENCE
            else:
                assert run["server_cpu"] is run["memory"] is run["start"] is None


def test_the_table_can_be_pasted():
    kwargs = ("--kwargs", "sutton_barto_reward=true")
    said = gymhost("bench", "CartPole-v1", "--modes", "vector", *kwargs, *SHORT, "--rounds", "2")
    assert said.returncode == 0, said.stderr
    head, empty, titles, rule, local, hosted, *_ = said.stdout.splitlines()
    assert head.startswith('**CartPole-v1** with {"sutton_barto_reward": true} on an embedded server')
    assert "gymnasium 1." in head
    assert empty == ""
    assert {line.count("|") for line in (titles, rule, local, hosted)} == {11}
    assert local.startswith("| `SyncVectorEnv`, in this process | 4 |")
    assert hosted.startswith("| `make_vec`, copies | 4 |")
    assert "The embedded server started in" in said.stdout
    assert "round 2 of 2: `make_vec`, copies x 4" in said.stderr


def test_conversations_are_run_as_sessions():
    told = figures("gymhost/GuessNumber-v0")
    assert [one["mode"] for one in told["results"]] == ["sessions"]


@pytest.mark.heavy  # EnvPool is installed where torch is
def test_what_has_only_a_vector_form_is_run_as_that():
    told = figures("envpool/CartPole-v1", "--module", "gymhost.envs.envpool")
    assert [(one["mode"], one["hosted"]) for one in told["results"]] == [("native", False), ("native", True)]


def test_on_a_server_that_runs_elsewhere():
    with serving() as server:
        told = figures("CartPole-v1", "--server", server.address, "--grpc", "--modes", "env,sessions", "--no-local")
    assert told["server"] == server.address
    assert told["workers"] == 1
    assert told["path"] == "through gRPC"
    assert told["not_local"] == "--no-local was given"
    assert [(one["mode"], one["hosted"]) for one in told["results"]] == [("env", True), ("sessions", True)]
    for one in told["results"]:
        for run in one["runs"]:
            # What the server uses is its own machine's business.
            assert run["server_cpu"] is run["memory"] is run["start"] is None


def test_an_environment_that_is_not_here_is_run_all_the_same():
    with serving("support.environments", "--app-dir", "tests") as server:
        told = figures("test/Counter-v0", "--server", server.address, "--modes", "env")
    assert [(one["mode"], one["hosted"]) for one in told["results"]] == [("env", True)]
    assert told["not_local"].startswith("it can't be made here: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("test/None-v0",), "no environment 'test/None-v0'"),
        (("CartPole-v1", "--modes", "env,walk"), "'walk' is none of env, sessions, vector, native"),
        (("gymhost/GuessNumber-v0", "--modes", "vector"), "can't be run as vector: its actions are messages"),
        (("Blackjack-v1", "--modes", "native"), "can't be run as native: it has no vector form of its own"),
    ],
)
def test_what_can_not_be_run_is_told(arguments: tuple[str, ...], message: str):
    said = gymhost("bench", *arguments)
    assert said.returncode != 0
    assert message in said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize("mode", ["sessions", "vector"])
def test_ctrl_c_leaves_nothing_behind(mode: str):
    command = [*COMMAND, "bench", "--modes", mode, "--no-local", "--seconds", "60"]
    with running(command, env=environment(), start_new_session=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "round 1" in line:
                break
        # The server is one child, its workers are its own.
        while not (started := [one for server in children(process.pid) for one in (server, *children(server))][1:]):
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 1
        assert "Traceback" not in process.stderr.read()
        assert not [pid for pid in started if alive(pid)]
