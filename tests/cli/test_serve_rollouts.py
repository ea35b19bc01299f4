"""How `gymhost serve` sets up the rollout service: by options and by a file."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gymhost.cli import serve
from gymhost.cli.app import gymhost as command
from gymhost.server.config import ServerConfig
from gymhost.server.rollouts.config import RolloutsConfig
from gymhost.server.tokens import hash_of
from support.command import gymhost

Configured = tuple[ServerConfig | None, RolloutsConfig | None]

OPTIONS = """
--rollouts --rollouts-address 127.0.0.1:7001 --environments cpu7:50051 --environments cpu8:50051
--environments-ca ca.pem --environments-cert cert.pem --environments-key key.pem
--tokenizer model --renderer qwen3 --generator http://gpu3:8000 --generator http://gpu4:8000 --jobs-file kept/jobs
--agent mini=my_agents:Mini --agent-address 0.0.0.0:7002 --agent-url https://here/v1 --app-dir there
--rollouts-init 3 --rollouts-run 40 --rollouts-eval 5 --rollouts-ahead 6 --attempts 4 --max-unacknowledged 99
--quota-jobs 7 --quota-rollouts 8 --quota-bytes 2MiB --retention 60 --keep-ended 30
--rollout-limit turns=8 --rollout-limit completion_tokens=4000 --sampling temperature=0.7
--token-file tokens --insecure --drain 5 --max-payload 2MiB --log-level debug
"""
FILE = """
token_file = "tokens"
insecure = true
drain = 5
max_payload = "2MiB"
log_level = "debug"
paths = ["there"]

[rollouts]
address = "127.0.0.1:7001"
environments = ["cpu7:50051", "cpu8:50051"]
environments_ca = "ca.pem"
environments_cert = "cert.pem"
environments_key = "key.pem"
tokenizer = "model"
renderer = "qwen3"
generators = ["http://gpu3:8000", "http://gpu4:8000"]
store = "kept/jobs"
agents = {mini = "my_agents:Mini"}
agent_address = "0.0.0.0:7002"
agent_url = "https://here/v1"
init = 3
run = 40
eval = 5
ahead = 6
attempts = 4
max_unacknowledged = 99
quota_jobs = 7
quota_rollouts = 8
quota_bytes = "2MiB"
retention = 60
keep_ended = 30

[rollouts.limits]
turns = 8
completion_tokens = 4000

[rollouts.sampling]
temperature = 0.7
"""
# Settings that are said otherwise on the command line, or in the file alone.
OTHERWISE = {
    "address": "--rollouts-address",
    "generators": "--generator",
    "store": "--jobs-file",
    "agents": "--agent",
    "paths": "--app-dir",
    "limits": "--rollout-limit",
    "tokens": "[tokens]",
    "quotas": "[rollouts.quotas.alice]",
    **{name: f"--rollouts-{name}" for name in ("init", "run", "eval", "ahead")},
}


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Configured]:
    """Returns a function that tells what `gymhost serve` would run with, in a folder with files."""
    for folder in ("there", "model", "kept"):
        (tmp_path / folder).mkdir()
    (tmp_path / "server.toml").write_text(FILE)
    for name in ("tokens", "cert.pem", "key.pem", "ca.pem"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    for name in ("GYMHOST_TOKEN", "GYMHOST_ENVIRONMENTS_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    ran: list[Configured] = []
    monkeypatch.setattr(serve, "_serve", lambda config, rollouts, *_: ran.append((config, rollouts)))
    monkeypatch.setattr(serve, "_serve_rollouts", lambda rollouts, dashboard: ran.append((None, rollouts)))

    def configured(*arguments: str) -> Configured:
        result = CliRunner().invoke(command, ["serve", *arguments])
        assert result.exit_code == 0, result.output
        return ran.pop()

    return configured


def test_a_file_says_the_same_as_options(configure: Any, tmp_path: Path):
    from_file, from_options = configure("--config", "server.toml"), configure(*OPTIONS.split())
    # Either way it may be the name of a model.
    assert from_options[1].tokenizer == "model"
    assert from_file == (None, dataclasses.replace(from_options[1], tokenizer=str(tmp_path / "model")))
    assert from_file[1] == RolloutsConfig(
        address="127.0.0.1:7001",
        token_file=str(tmp_path / "tokens"),
        insecure=True,
        log_level="debug",
        environments=("cpu7:50051", "cpu8:50051"),
        environments_ca=str(tmp_path / "ca.pem"),
        environments_cert=str(tmp_path / "cert.pem"),
        environments_key=str(tmp_path / "key.pem"),
        tokenizer=str(tmp_path / "model"),
        renderer="qwen3",
        generators=("http://gpu3:8000", "http://gpu4:8000"),
        store=str(tmp_path / "kept" / "jobs"),
        agents={"mini": "my_agents:Mini"},
        paths=(str(tmp_path), str(tmp_path / "there")),
        agent_address="0.0.0.0:7002",
        agent_url="https://here/v1",
        init=3,
        run=40,
        eval=5,
        ahead=6,
        limits={"turns": 8, "completion_tokens": 4000},
        sampling={"temperature": 0.7},
        attempts=4,
        retention=60.0,
        keep_ended=30.0,
        quota_jobs=7,
        quota_rollouts=8,
        quota_bytes=2 * 2**20,
        max_unacknowledged=99,
        max_payload=2 * 2**20,
        drain=5.0,
    )


def test_what_crosses_to_another_process_is_the_same(configure: Any):
    config = configure(*OPTIONS.split())[1]
    assert RolloutsConfig.from_dict(config.to_dict()) == config


def test_it_runs_beside_a_server_on_the_next_port_with_the_servers_callers(
    configure: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("GYMHOST_TOKEN", "secret")
    config, rollouts = configure("some_module", "--rollouts", "--address", "127.0.0.1:7000")
    assert config.modules == ("some_module",)
    assert (rollouts.address, rollouts.tokens) == ("127.0.0.1:7001", {hash_of("secret"): "default"})
    assert rollouts.store == str(tmp_path / "rollouts.sqlite")
    assert configure("--rollouts", "--address", "127.0.0.1:0")[1].address == "127.0.0.1:0"
    assert configure("--rollouts", "--address", "unix:/run/g")[1].address == "unix:/run/g-rollouts"
    assert configure("some_module")[1] is None


def test_the_token_of_environment_servers_is_one_of_its_own(configure: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GYMHOST_TOKEN", "for callers")
    monkeypatch.setenv("GYMHOST_ENVIRONMENTS_TOKEN", "for servers")
    elsewhere = ("--rollouts", "--environments", "cpu7:50051")
    assert configure(*elsewhere)[1].environments_token == "for servers"
    assert configure(*elsewhere, "--environments-token", "said")[1].environments_token == "said"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tokenizer", "model"), "--tokenizer is for the rollout service: --rollouts runs it"),
        (("--rollouts-run", "4"), "--rollouts-run is for the rollout service"),
        (
            ("a_module", "--rollouts", "--environments", "cpu7:50051"),
            "modules is for an environment server, and --environments says that it runs elsewhere",
        ),
        (("--rollouts", "--agent", "mini"), "'mini' is not NAME=MODULE:CLASS"),
        (("--rollouts", "--agent", "mini=my_agents"), "an agent is NAME=MODULE:CLASS, not mini=my_agents (--agent)"),
        (("--rollouts", "--generator", "gpu3:8000"), "a generator is the URL of a vLLM server"),
        (("--rollouts", "--rollouts-run", "0"), "run is a number of places, not 0"),
        (("--rollouts", "--rollouts-address", "0.0.0.0:7001"), "0.0.0.0:7001 can be reached from other machines"),
        (("--rollouts", "--environments", "a:1", "--environments", "a:1"), "an environment server is named twice"),
        (("--rollouts", "--environments", "cpu7"), "not 'cpu7' (--environments)"),
        (("--rollouts", "--rollouts-address", "here"), "not 'here' (--rollouts-address)"),
    ],
)
def test_what_does_not_go_together_is_named(arguments: tuple[str, ...], message: str):
    result = CliRunner().invoke(command, ["serve", *arguments])
    assert result.exit_code in (1, 2)
    assert message in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rollouts = 1", "rollouts must be a table, not 1"),
        ("[rollouts]\ntoken_file = 'x'", "token_file is said for the environments and the rollout service at once"),
        ("[rollouts]\nrun = 'many'", "run must be a whole number, not 'many'"),
        ("[rollouts]\nlimits = 8", "limits must be a table, not 8"),
        ("[rollouts.limits]\nretries = 8", "is said by attempts, not by retries of limits"),
        ("[rollouts.quotas.alice]\nsessions = 8", "the quotas of 'alice' are jobs, rollouts, bytes"),
        ("[rollouts]\ngenerator = []", "no setting 'generator'; there are"),
    ],
)
def test_a_wrong_setting_is_named(text: str, message: str, tmp_path: Path):
    (tmp_path / "server.toml").write_text(text)
    result = CliRunner().invoke(command, ["serve", "--config", str(tmp_path / "server.toml")])
    assert result.exit_code == 1
    assert message in result.output


def test_every_setting_of_the_service_is_an_option_with_its_default():
    text = " ".join(gymhost("serve", "--help").stdout.split())
    for field in dataclasses.fields(RolloutsConfig):
        assert OTHERWISE.get(field.name, f"--{field.name.replace('_', '-')}") in text, field.name
    for name in ("init", "run", "eval", "ahead", "attempts", "max_unacknowledged", "quota_jobs", "retention"):
        assert f"[default: {getattr(RolloutsConfig, name)}]" in text
