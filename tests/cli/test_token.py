"""`gymhost token`: it is printed once, and its line goes where a server finds it."""

import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gymhost.cli.app import gymhost as command
from gymhost.server.tokens import Owner, Role, hash_of, read_tokens
from support.command import gymhost, serving


def token(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["token", *arguments])


def test_the_token_is_printed_and_its_line_beside_it():
    said = token("alice")
    assert said.exit_code == 0
    [made] = said.stdout.splitlines()
    assert said.stderr.splitlines()[-1] == f"alice {hash_of(made)}"
    said = token("root", "--role", "admin")
    [made] = said.stdout.splitlines()
    assert read_tokens(said.stderr.splitlines()[-1]) == {hash_of(made): Owner("root", Role.ADMIN)}
    assert token("alice").stdout != token("alice").stdout


def test_a_file_gets_the_line_and_no_token(tmp_path: Path):
    path = tmp_path / "tokens"
    expected: dict[str, Owner] = {}
    for arguments, owner in (
        (("alice",), Owner("alice")),
        (("alice", "--role", "user"), Owner("alice")),
        (("watcher", "--role", "read-only"), Owner("watcher", Role.READ_ONLY)),
        (("root", "--role", "admin"), Owner("root", Role.ADMIN)),
    ):
        said = token(*arguments, "--file", str(path))
        assert (said.exit_code, said.stderr) == (0, "")
        [made] = said.stdout.splitlines()
        assert made not in path.read_text()
        expected[hash_of(made)] = owner
        assert read_tokens(path.read_text()) == expected
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o644)  # the next one sets it right
        path.write_text(path.read_text().rstrip())
    assert [each.name for each in tmp_path.iterdir()] == ["tokens"]


@pytest.mark.parametrize("name", ["", "a b", "alice admin", "#alice", "alice\nbob", "a=b"])
def test_a_name_that_is_none_is_refused(name: str):
    said = token(name)
    assert (said.exit_code, said.stdout) == (2, "")
    assert "a name has letters, digits" in said.stderr


def test_a_file_that_is_another_is_left_alone(tmp_path: Path):
    path = tmp_path / "notes"
    path.write_text("these are notes\n")
    said = token("alice", "--file", str(path))
    assert (said.exit_code, said.stdout) == (1, "")
    assert "line 1 is not NAME [ROLE] sha256:HEX" in said.stderr
    assert path.read_text() == "these are notes\n"
    said = token("alice", "--file", str(tmp_path / "not" / "there"))
    assert (said.exit_code, said.stdout) == (1, "")
    assert "can't add to" in said.stderr


def test_a_server_that_runs_takes_it(tmp_path: Path):
    (tmp_path / "tokens").touch(0o600)
    with serving("--token-file", "tokens", cwd=tmp_path) as running:
        assert "the token file has no token" in running.stderr.readline()
        made = gymhost("token", "alice", "--file", "tokens", cwd=tmp_path).stdout.strip()
        assert "the token file was read again" in running.stderr.readline()
        assert (
            "gymhost/Echo-v0" in gymhost("envs", "gymhost/Echo", "--server", running.address, GYMHOST_TOKEN=made).stdout
        )
