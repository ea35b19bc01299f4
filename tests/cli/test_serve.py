"""`gymhost serve`: it starts, says so, lets in whom it should, and leaves nothing behind."""

import asyncio
import re
import signal
import socket
from pathlib import Path
from typing import Any

import mcp
import pytest
from click.testing import CliRunner

from gymhost.cli.app import gymhost as command
from gymhost.client import ServerUnavailable, SessionLost, connect, make
from gymhost.server import serving as all_of_it
from gymhost.server.config import ServerConfig
from gymhost.server.tokens import hash_of
from support.certificates import Authority
from support.command import gymhost, serving
from support.openenv_client import OpenEnvSocket
from support.server import alive, until

STUCK = """
import time

import gymnasium

from gymhost.envs import register
from gymhost.wire.chat_spaces import FreeText


class Stuck(gymnasium.Env):
    observation_space = action_space = FreeText()

    def reset(self, *, seed=None, options=None):
        return "", {}

    def step(self, action):
        print("the step has begun")
        time.sleep(600)


register("test/Stuck-v0", Stuck)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_nothing_is_left(number: int, tmp_path: Path):
    path = tmp_path / "socket"
    with serving(address=f"unix:{path}") as running:
        env = make("CartPole-v1", server=running.address)
        env.reset(seed=0)
        env.step(0)
        env.close()
        assert path.is_socket()
        assert running.workers
        assert running.end(number) == 0
        assert [pid for pid in running.workers if alive(pid)] == []
        assert not path.exists()
        assert "Traceback" not in running.stderr.read()


def test_a_signal_frees_the_port():
    with serving() as running:
        assert running.end(signal.SIGTERM) == 0
        host, _, port = running.address.rpartition(":")
        with socket.create_server((host, int(port))):
            pass


async def test_a_client_that_is_connected_does_not_hold_it_up():
    with serving("--drain", "0") as running:
        async with connect(running.address, reconnect_timeout=1.0) as host, host.session("CartPole-v1") as session:
            await session.reset(seed=0)
            assert await asyncio.to_thread(running.end, signal.SIGTERM) == 0
            with pytest.raises(SessionLost, match="the server was stopped"):
                await session.step(0)
        assert [pid for pid in running.workers if alive(pid)] == []


async def test_a_second_ctrl_c_ends_it_at_once(tmp_path: Path):
    (tmp_path / "stuck.py").write_text(STUCK)
    with serving("stuck", "--grace", "600", cwd=tmp_path) as running:
        async with connect(running.address, reconnect_timeout=1.0) as host, host.session("test/Stuck-v0") as session:
            await session.reset()
            step = asyncio.create_task(session.step(""))
            await asyncio.to_thread(read_until, running.stderr, "the step has begun")
            running.process.send_signal(signal.SIGINT)
            await asyncio.to_thread(read_until, running.stderr, "stopping")
            assert running.process.poll() is None
            assert running.end(signal.SIGINT) == 128 + signal.SIGINT
            await until(lambda: not any(alive(pid) for pid in running.workers))
            assert "Traceback" not in running.stderr.read()
            with pytest.raises(ServerUnavailable):
                await step


def test_it_says_how_to_connect():
    with serving() as running:
        assert "1 worker;" in running.line
        assert "no token is needed" in running.line
        assert f'gymhost.client.connect("{running.address}")' in running.line


def test_it_says_that_local_sandboxes_contain_nothing():
    with serving("--sandbox", "local") as running:
        read_until(running.stderr, "warning: --sandbox local contains nothing")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("docker", "--sandbox-option", "size=3"),
            "'docker' can't be made so: .*; its options: base_url, runtime, image, ",
        ),
        (("bubblewrap", "--sandbox-option", "runtime=runsc"), "'bubblewrap' can't be made so: "),
        (("not_there:Jail",), "can't import the sandbox backend 'not_there:Jail'"),
    ],
)
def test_a_wrong_sandbox_backend_keeps_it_from_starting(arguments: tuple[str, ...], message: str):
    result = gymhost("serve", "--workers", "1", "--address", "127.0.0.1:0", "--sandbox", *arguments)
    assert result.returncode == 1
    assert re.search(message, result.stderr), result.stderr
    assert "(--sandbox, --sandbox-option)" in result.stderr


def test_it_says_at_its_start_that_an_engine_is_not_there():
    with serving("--sandbox", "docker", "--sandbox-option", "base_url=unix:///not/there") as running:
        read_until(running.stderr, "sandboxes can't be made: can't reach Docker at unix:///not/there")


def test_modules_are_found_in_the_current_folder_first_then_in_app_dirs(tmp_path: Path):
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "of_both.py").write_text(
            f"from gymhost.envs import register\nregister('test/{folder}-v0', 'gymhost.envs.shelf.echo:Echo')\n"
        )
    (tmp_path / "there" / "of_there.py").write_text(
        "from gymhost.envs import register\nregister('test/more-v0', 'gymhost.envs.shelf.echo:Echo')\n"
    )
    with serving("of_both", "of_there", "--app-dir", "../there", cwd=tmp_path / "here") as running:
        listed = gymhost("envs", "test/", "--server", running.address).stdout
    assert "test/here-v0" in listed
    assert "test/there-v0" not in listed
    assert "test/more-v0" in listed


# -- settings ----------------------------------------------------------------------------------------------------------

OPTIONS = """
some_module other_module --address 127.0.0.1:7000 --workers 3 --app-dir there --token-file tokens --insecure
--tls-cert cert.pem --tls-key key.pem --tls-client-ca ca.pem
--capacity 10 --queue-timeout 1.5 --lease 50 --heartbeat 7 --max-payload 2MiB --grace 4 --drain 3 --worker-liveness 9
--worker-max-age 3600 --worker-max-memory 4GiB --worker-max-sessions 500 --quarantine-deaths 5 --quarantine-window 60
--log-level debug --attributes CartPole-*=gravity,length --attributes test/Knobs-v0=* --attributes CartPole-*=dt
--wrapper some_module:Noise --wrapper other_module:Rest
--sandbox docker --sandbox-option runtime=runsc --sandbox-option base_url=unix:///run/docker.sock
--sandbox-creations 3 --sandbox-spares 2
"""
FILE = """
modules = ["some_module", "other_module"]
address = "127.0.0.1:7000"
workers = 3
paths = ["there"]
token_file = "tokens"
tls_cert = "cert.pem"
tls_key = "key.pem"
tls_client_ca = "ca.pem"
insecure = true
capacity = 10
queue_timeout = 1.5
lease = 50
heartbeat = 7
max_payload = "2MiB"
grace = 4
drain = 3
worker_liveness = 9
worker_max_age = 3600
worker_max_memory = "4GiB"
worker_max_sessions = 500
quarantine_deaths = 5
quarantine_window = 60
log_level = "debug"
wrappers = ["some_module:Noise", "other_module:Rest"]
sandbox = "docker"
sandbox_creations = 3
sandbox_spares = 2

[sandbox_options]
runtime = "runsc"
base_url = "unix:///run/docker.sock"

[attributes]
"CartPole-*" = ["gravity", "length", "dt"]
"test/Knobs-v0" = ["*"]
"""


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Returns a function that tells the configuration that `gymhost serve` would run with, in a folder with files."""
    (tmp_path / "there").mkdir()
    (tmp_path / "server.toml").write_text(FILE)
    for name in ("tokens", "cert.pem", "key.pem", "ca.pem"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GYMHOST_TOKEN", raising=False)
    ran: list[ServerConfig] = []
    monkeypatch.setattr(all_of_it, "serve", lambda config, *_, **__: ran.append(config))

    def configuration(*arguments: str) -> ServerConfig:
        result = CliRunner().invoke(command, ["serve", *arguments])
        assert result.exit_code == 0, result.output
        return ran.pop()

    return configuration


def test_a_file_says_the_same_as_options(configure: Any, tmp_path: Path):
    from_file = configure("--config", "server.toml")
    assert from_file == configure(*OPTIONS.split())
    assert from_file == ServerConfig(
        address="127.0.0.1:7000",
        workers=3,
        modules=("some_module", "other_module"),
        paths=(str(tmp_path), str(tmp_path / "there")),
        token_file=str(tmp_path / "tokens"),
        tls_cert=str(tmp_path / "cert.pem"),
        tls_key=str(tmp_path / "key.pem"),
        tls_client_ca=str(tmp_path / "ca.pem"),
        insecure=True,
        capacity=10,
        queue_timeout=1.5,
        lease=50.0,
        heartbeat=7.0,
        max_payload=2 * 2**20,
        grace=4.0,
        drain=3.0,
        worker_liveness=9.0,
        worker_max_age=3600.0,
        worker_max_memory=4 * 2**30,
        worker_max_sessions=500,
        quarantine_deaths=5,
        quarantine_window=60.0,
        log_level="debug",
        attributes={"CartPole-*": ("gravity", "length", "dt"), "test/Knobs-v0": ("*",)},
        wrappers=("some_module:Noise", "other_module:Rest"),
        sandbox="docker",
        sandbox_options={"runtime": "runsc", "base_url": "unix:///run/docker.sock"},
        sandbox_creations=3,
        sandbox_spares=2,
    )


def test_options_win_over_the_file(configure: Any):
    both = configure("third", "--config", "server.toml", "--workers", "0", "--max-payload", "64MiB")
    assert (both.modules, both.workers, both.max_payload) == (("third",), 0, 64 * 2**20)
    assert (both.capacity, both.log_level) == (10, "debug")


def test_folders_of_a_file_are_counted_from_the_file(configure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path / "there")
    paths = configure("--config", "../server.toml").paths
    assert paths == (str(tmp_path / "there"), str(tmp_path / "there"))


def test_the_variable_gives_a_token(configure: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GYMHOST_TOKEN", "secret")
    assert configure().tokens == {hash_of("secret"): "default"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("wrokers = 2", "no setting 'wrokers'; there are address,"),
        ("workers = '2'", "workers must be a whole number, not '2'"),
        ("modules = [1]", "modules must be a list of texts, not"),
        ("tokens = ['a']", "tokens must be a table of texts"),
        ("tokens = {a = 'alice'}", 'number 1 of tokens must be given as its hash, "sha256:HEX" = "NAME [ROLE]"'),
        ("tls_cert = 'cert.pem'", "TLS wants both --tls-cert and --tls-key"),
        ("capacity = 0", "capacity must be above 0, not 0"),
        ("attributes = ['gravity']", "attributes must be a table of lists of names, by patterns of ids, not"),
        ("attributes = {'CartPole-v1' = 'gravity'}", "attributes must be a table of lists of names"),
        ("attributes = {'CartPole-v1' = ['_state']}", "attributes of 'CartPole-v1' must be public names, not '_state'"),
        ("wrappers = 'a:B'", "wrappers must be a list of texts"),
        ("wrappers = ['TimeLimit']", "a wrapper is MODULE:CLASS, not 'TimeLimit' (--wrapper)"),
        (
            "sandbox = 'jail'",
            "sandbox must be one of bubblewrap, docker, local, or MODULE:CLASS, not 'jail' (--sandbox)",
        ),
        ("sandbox_options = {runtime = 1}", "sandbox_options must be a table of texts"),
        ("sandbox_creations = 0", "sandbox_creations must be above 0, not 0"),
        ("sandbox_spares = -1", "sandbox_spares must not be negative, not -1"),
        ("lease = 20", "lease (20 s) must be at least twice heartbeat (15 s)"),
        ("address = 'everywhere'", "an address is HOST:PORT or unix:PATH, not 'everywhere'"),
        ("log_level = 'loud'", "log_level must be one of debug, info, warning, error"),
        ("workers =", "can't read"),
    ],
)
def test_a_wrong_setting_is_named(text: str, message: str, tmp_path: Path):
    (tmp_path / "server.toml").write_text(text)
    result = CliRunner().invoke(command, ["serve", "--config", str(tmp_path / "server.toml")])
    assert result.exit_code == 1
    assert result.output.startswith("gymhost: ")
    assert message in result.output


def test_debug_shows_the_traceback():
    for said in (gymhost("--debug", "serve", "--lease", "1"), gymhost("serve", "--lease", "1", GYMHOST_DEBUG="1")):
        assert said.returncode == 1
        assert "Traceback" in said.stderr


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_a_token_is_asked_for(tmp_path: Path):
    first, second = (gymhost("token", "alice", "--file", "tokens", cwd=tmp_path).stdout.strip() for _ in range(2))
    with serving("--token-file", "tokens", cwd=tmp_path, GYMHOST_TOKEN="third") as running:
        assert "a token is needed" in running.line
        ask = ("envs", "gymhost/", "--server", running.address)
        for refused in (gymhost(*ask), gymhost(*ask, "--token", "alice")):
            assert refused.returncode == 1
            assert "token" in refused.stderr
            assert refused.stdout == ""
        for let_in in (gymhost(*ask, "--token", first), gymhost(*ask, "--token", second)):
            assert "gymhost/Echo-v0" in let_in.stdout
        assert "gymhost/Echo-v0" in gymhost(*ask, GYMHOST_TOKEN="third").stdout


def test_a_new_token_is_told_once_and_lets_in():
    with serving("--new-token") as running:
        word, token = running.stderr.readline().split()
        assert word == "token:"
        assert token not in running.line
        ask = ("envs", "gymhost/", "--server", running.address)
        assert gymhost(*ask).returncode == 1
        assert "gymhost/Echo-v0" in gymhost(*ask, "--token", token).stdout


async def test_it_speaks_other_protocols_beside(tmp_path: Path):
    guess = "gymhost/GuessNumber-v0"
    (tmp_path / "server.toml").write_text('mcp = "127.0.0.1:0"\nopenenv = "127.0.0.1:1"\n')
    at = ("--config", str(tmp_path / "server.toml"), "--openenv", f"127.0.0.1:0/{guess}")
    with serving(*at, GYMHOST_TOKEN="secret") as running:
        assert running.process.stdout is not None
        lines = [running.process.stdout.readline() for _ in range(2)]
        openenv, mcp_url = (re.search(r" on (http://[\d.:]+)/env/ID", line) for line in lines)
        assert openenv is not None, lines
        assert mcp_url is not None, lines
        with OpenEnvSocket(openenv[1]) as client:
            assert "show a token of the server" in client.next()["data"]["message"]
        for url in (openenv[1], f"{openenv[1]}/env/{guess}"):
            with OpenEnvSocket(url, query="?token=secret") as client:
                told = client.ask("reset", {"task": 5})
                assert told["observation"]["text"].startswith("Guess the number")
        async with asyncio.timeout(40), mcp.Client(f"{mcp_url[1]}/env/{guess}/mcp?token=secret") as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["guess", "reset", "evaluate"]
        assert running.end(signal.SIGTERM) == 0
    for url in (openenv[1], mcp_url[1]):
        host, _, port = url.removeprefix("http://").rpartition(":")
        with socket.create_server((host, int(port))):
            pass


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--openenv", "here"), "not 'here' (--openenv)"),
        (("--mcp", "unix:/run/mcp"), "clients find MCP at HOST:PORT"),
        (("--openenv", "0.0.0.0:8000"), "0.0.0.0:8000 can be reached from other machines (--openenv): set a token"),
        (
            ("--openenv", "127.0.0.1:0", "--rollouts", "--environments", "127.0.0.1:1", "--tokenizer", "x"),
            "--openenv is for a server that hosts environments",
        ),
    ],
)
def test_gateways_that_can_not_be(arguments: tuple[str, ...], message: str):
    result = CliRunner().invoke(command, ["serve", "--no-dashboard", *arguments])
    assert result.exit_code != 0
    assert message in " ".join(result.output.split())


def test_a_wrong_token_file_is_refused(tmp_path: Path):
    (tmp_path / "tokens").write_text("alice=a-secret\n")
    said = gymhost("serve", "--token-file", "tokens", cwd=tmp_path)
    assert said.returncode == 1
    assert "/tokens: line 1 is not NAME [ROLE] sha256:HEX" in said.stderr
    assert "`gymhost token NAME` makes a token and its line" in said.stderr
    assert "a-secret" not in said.stderr


# -- TLS ---------------------------------------------------------------------------------------------------------------


def test_commands_speak_tls(tmp_path: Path):
    authority = Authority(tmp_path / "ours")
    files = authority.server()
    own = authority.client("alice")
    assert own.ca
    assert own.cert
    assert own.key
    options = ("--tls-cert", files["tls_cert"], "--tls-key", files["tls_key"], "--tls-client-ca", authority.ca)
    with serving(*options) as running:
        assert "with 1 worker; a certificate is needed." in running.line
        assert "tls=Tls(ca=..., cert=..., key=...)" in running.line
        ask = ("envs", "gymhost/Echo", "--server", running.address)
        given = ("--tls-ca", own.ca, "--tls-cert", own.cert, "--tls-key", own.key)
        assert "gymhost/Echo-v0" in gymhost(*ask, *given).stdout
        named = gymhost(*ask, GYMHOST_TLS_CA=own.ca, GYMHOST_TLS_CERT=own.cert, GYMHOST_TLS_KEY=own.key)
        assert "gymhost/Echo-v0" in named.stdout
        for arguments, words in (
            (ask, "speaks TLS"),
            ((*ask, "--tls-ca", own.ca), "wants a certificate of its clients"),
            ((*ask, "--tls-cert", own.cert), "go together"),
        ):
            refused = gymhost(*arguments)
            assert refused.returncode == 1
            assert words in refused.stderr
        looked = gymhost("doctor", "--server", running.address, "--tls-ca", own.ca)
        assert looked.returncode == 1
        assert "give the client's certificate: --tls-cert and --tls-key" in looked.stdout


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "example.org:50051"])
def test_without_a_token_it_listens_on_loopback_only(address: str):
    said = gymhost("serve", "--address", address)
    assert said.returncode == 1
    assert "can be reached from other machines: set a token" in said.stderr
    assert "--insecure" in said.stderr


# -- what keeps it from starting ---------------------------------------------------------------------------------------


def test_a_taken_port_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = gymhost("serve", "--address", address)
    assert said.returncode == 1
    assert said.stderr == f"gymhost: can't listen on {address}: Address already in use (--address)\n"


def test_a_unix_socket_is_never_taken_from_a_server_that_lives(tmp_path: Path):
    address = f"unix:{tmp_path / 'socket'}"
    with serving(address=address):
        said = gymhost("serve", "--address", address)
        assert said.returncode == 1
        assert f"can't listen on {address}: another server listens there" in said.stderr
        assert "gymhost/Echo-v0" in gymhost("envs", "--server", address).stdout


def test_a_unix_socket_that_was_left_behind_is_taken_over(tmp_path: Path):
    address = f"unix:{tmp_path / 'socket'}"
    with serving(address=address) as killed:
        killed.end(signal.SIGKILL)
        assert (tmp_path / "socket").exists()
        with serving(address=address):
            assert "gymhost/Echo-v0" in gymhost("envs", "--server", address).stdout


def test_a_module_that_fails_is_shown_with_its_own_traceback(tmp_path: Path):
    (tmp_path / "broken.py").write_text("def helper():\n    return 1 / 0\n\n\nhelper()\n")
    said = gymhost("serve", "broken", "--address", "127.0.0.1:0", cwd=tmp_path)
    assert said.returncode == 1
    assert "can't import the environments of 'broken': ZeroDivisionError" in said.stderr
    assert said.stderr.count("return 1 / 0") == 1
    assert said.stderr.count('File "') == 2, "the lines of the module, and none of gymhost"


def test_a_module_that_is_not_there_is_named():
    said = gymhost("serve", "not_there", "--address", "127.0.0.1:0")
    assert said.returncode == 1
    assert "No module named 'not_there'" in said.stderr
    assert "Traceback" not in said.stderr


def test_a_path_is_answered_with_what_to_write_instead(tmp_path: Path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "shop.py").write_text("")
    said = gymhost("serve", "own/shop.py", "--address", "127.0.0.1:0", cwd=tmp_path)
    assert said.returncode == 1
    assert "'own/shop.py'" in said.stderr
    assert "a module's name, not a path; --app-dir adds a folder" in said.stderr
    assert "Traceback" not in said.stderr


def test_what_a_module_lacks_is_not_taken_for_the_module(tmp_path: Path):
    (tmp_path / "wants.py").write_text("import not_installed\n")
    said = gymhost("serve", "wants", "--address", "127.0.0.1:0", cwd=tmp_path)
    assert "No module named 'not_installed'" in said.stderr
    assert "--app-dir" not in said.stderr


def read_until(stream: Any, words: str) -> None:
    """Reads lines until one has the words; pytest's time limit bounds it."""
    for line in stream:
        if words in line:
            return
    raise AssertionError(f"the output ended without {words!r}")
