"""What the command says of itself, and how it ends when it was called wrongly."""

import dataclasses
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import click
import pytest

from gymhost.cli.app import COMMANDS
from gymhost.cli.app import gymhost as command
from gymhost.server.config import ServerConfig
from support.command import called, environment, gymhost

# Settings that are no option of their own name.
OTHERWISE = {
    "modules": "[MODULES]",
    "paths": "--app-dir",
    "sandbox_options": "--sandbox-option ",
    "tokens": "[tokens]",
    "quotas": "[quotas.alice]",
    "wrappers": "--wrapper ",
}


def test_help_lists_every_command_with_the_words_of_its_own_help():
    said = gymhost("--help")
    assert said.returncode == 0
    with click.Context(command) as context:
        for name in COMMANDS:
            found = command.get_command(context, name)
            assert found is not None
            assert f"  {name} " in said.stdout
            assert COMMANDS[name][1].split(":")[0].split(".")[0] in f"{found.help} {said.stdout}"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained(name: str):
    text = " ".join(called(name, "--help").split())
    with click.Context(command) as context:
        found = command.get_command(context, name)
        assert found is not None
        for option in found.params:
            if isinstance(option, click.Option):
                assert option.help
                assert option.opts[0] in text
                assert option.help in text


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ((), ["gymhost serve  ", "gymhost envs  ", "gymhost check gymhost/GuessNumber-v0  "]),
        (("serve",), ["gymhost serve", "gymhost serve my_environments --workers 8", "[tokens]"]),
        (("envs",), ["gymhost envs  ", "gymhost envs --module my_environments", "gymhost envs --server cpu7:50051  "]),
        (("check",), ["gymhost check gymhost/GuessNumber-v0", "gymhost check my/Maze-v0 --module my_environments "]),
        (
            ("rollout",),
            [
                "gymhost rollout gymhost/GuessNumber-v0 --model ./Qwen3-4B",
                "gymhost rollout ... --store runs/1 --resume",
            ],
        ),
    ],
)
def test_each_example_has_a_line_of_its_own(arguments: tuple[str, ...], lines: list[str]):
    said = called(*arguments, "--help")
    assert "\\b" not in said
    shown = [line.strip() for line in said.splitlines()]
    for line in lines:
        assert [one for one in shown if one == line or (line.endswith(" ") and one.startswith(line))], said


def test_every_setting_of_the_server_is_an_option_with_its_default():
    text = " ".join(called("serve", "--help").split())
    for field in dataclasses.fields(ServerConfig):
        assert OTHERWISE.get(field.name, f"--{field.name.replace('_', '-')} ") in text, field.name
    for default in ("127.0.0.1:50051", "32768", "64MiB", "120", "15", "10", "60", "30", "info"):
        assert f"[default: {default}" in text


def test_version():
    version = importlib.metadata.version("gymhost")
    assert gymhost("--version").stdout == f"gymhost {version}\n"
    lines = gymhost("version").stdout.splitlines()
    assert lines[0] == f"gymhost {version}"
    assert f"grpcio {importlib.metadata.version('grpcio')}" in lines


def test_the_installed_command_is_the_same():
    installed = Path(sys.executable).parent / "gymhost"
    said = subprocess.run([installed, "--help"], check=True, capture_output=True, text=True, env=environment())
    assert said.stdout == gymhost("--help").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nonsense",), "No such command 'nonsense'"),
        (("serve", "--nonsense"), "No such option"),
        (("serve", "--max-payload", "much"), "'much' is no size: write 64MiB"),
        (("serve", "--workers", "some"), "'some' is not a valid integer"),
        (("serve", "--sandbox-option", "runtime"), "'runtime' is not NAME=VALUE"),
        (("serve", "--config", "not_there.toml"), "does not exist"),
        (("check", "some/Env-v0", "--kwargs", "size"), "neither a JSON object nor KEY=VALUE"),
        (("check", "some/Env-v0", "--kwargs", "{size"), "no JSON object"),
        (("envs", "--server", "127.0.0.1:1", "--module", "m"), "leave --server out"),
    ],
)
def test_a_wrong_call_ends_with_2_and_says_what_is_wrong(arguments: tuple[str, ...], message: str):
    assert message in called(*arguments)


def test_a_wrong_call_is_told_on_standard_error_alone():
    said = gymhost("nonsense")
    assert said.returncode == 2
    assert said.stdout == ""
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize("arguments", [("serve",), ("envs",), ("check", "gymhost/Echo-v0")])
def test_a_missing_extra_is_named(arguments: tuple[str, ...]):
    code = "import sys; sys.modules['grpc_reflection'] = None; from gymhost.cli import main; main()"
    said = subprocess.run(
        [sys.executable, "-c", code, *arguments], check=False, capture_output=True, text=True, env=environment()
    )
    assert said.returncode == 1
    assert f"gymhost: gymhost {arguments[0]} " in said.stderr
    assert "needs the extra 'server': pip install 'gymhost[server]'" in said.stderr
    assert "Traceback" not in said.stderr
