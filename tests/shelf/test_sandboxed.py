"""The environments of the shelf that work in sandboxes, over a real server: expert, idlers and cheats."""

import shutil
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from gymhost.client import RemoteServer, connect
from gymhost.envs import make
from gymhost.envs.shelf.repo_repair_bugs import BUGS, repair
from gymhost.envs.shelf.scripted import call, said
from gymhost.envs.shelf.terminal_chores import KINDS, chore
from gymhost.envs.trials import load_policy
from gymhost.wire.errors import EnvironmentFault
from support.docker_engine import DockerEngine
from support.episodes import Played, play_all, play_one, policies_of, talk
from support.images import copy_programs
from support.server import ServerProcess

# Many episodes, one of them after the other where the machine has few processors.
pytestmark = pytest.mark.timeout(300)

ENVIRONMENTS = ("gymhost/Terminal-v0", "gymhost/RepoRepair-v0", "gymhost/PythonCode-v0", "gymhost/Sql-v0")
HELD_OUT, FEWER, FEWEST = 50, 16, 6
HARBOR_TASK = Path(__file__).parent / "harbor_task"

CHEATS = [(env, cheat) for env in ENVIRONMENTS for cheat in policies_of(env)[1]]


@pytest.fixture(scope="module")
def bubblewrap() -> Iterator[ServerProcess]:
    with ServerProcess(modules=[], sandbox_creations=4) as server:
        yield server


@pytest.fixture
async def remote(bubblewrap: ServerProcess) -> AsyncGenerator[RemoteServer]:
    async with connect(bubblewrap.address) as remote:
        yield remote


@pytest.fixture
async def remote_docker(docker_engine: DockerEngine) -> AsyncGenerator[RemoteServer]:
    options = {"base_url": docker_engine.base_url}
    with ServerProcess(modules=[], workers=1, sandbox="docker", sandbox_options=options) as server:
        async with connect(server.address) as remote:
            yield remote


def assert_all(played: list[Played], reward: float) -> None:
    wrong = [one for one in played if one.reward != reward or one.info.get("reward_invalid")]
    assert not wrong, f"{len(wrong)} of {len(played)}, the first: {wrong[0]}"


def mean(played: list[Played]) -> float:
    assert not any(one.info.get("reward_invalid") for one in played)
    return sum(one.reward for one in played) / len(played)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
async def test_the_expert_solves_all(environment: str, remote: RemoteServer) -> None:
    expert, _ = policies_of(environment)
    assert_all(await play_all(remote, environment, load_policy(expert), HELD_OUT), 1.0)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
async def test_one_that_only_talks_gets_nothing(environment: str, remote: RemoteServer) -> None:
    assert mean(await play_all(remote, environment, talk, FEWER)) < 0.2


@pytest.mark.parametrize(("environment", "cheat"), CHEATS)
async def test_cheats_get_nothing(environment: str, cheat: str, remote: RemoteServer) -> None:
    assert_all(await play_all(remote, environment, load_policy(cheat), FEWER), 0.0)


@pytest.mark.docker
@pytest.mark.parametrize("environment", ENVIRONMENTS[:2])
async def test_in_docker_too(environment: str, remote_docker: RemoteServer) -> None:
    expert, cheats = policies_of(environment)
    assert_all(await play_all(remote_docker, environment, load_policy(expert), FEWEST), 1.0)
    for cheat in (cheats[0], cheats[-1]):
        assert_all(await play_all(remote_docker, environment, load_policy(cheat), 2), 0.0)


def test_held_out_tasks_are_of_all_kinds_and_none_is_to_train_on() -> None:
    chores = {split: [chore(f"{split} {index}") for index in range(500)] for split in ("train", "test")}
    assert {each.kind.name for each in chores["test"][:HELD_OUT]} == {kind.name for kind in KINDS}
    texts = {split: {(each.text, str(each.start.files)) for each in of} for split, of in chores.items()}
    # A FIFO that listens is told by its text alone.
    assert len(texts["test"] & texts["train"]) < 25
    repairs = [repair(f"test {index}") for index in range(200)]
    assert {each.bug.kind for each in repairs} == {bug.kind for bug in BUGS}
    for each in repairs:
        path = f"{each.package}/{each.bug.module}.py"
        assert each.files != each.repaired
        assert {**each.files, path: each.repaired[path]} == each.repaired


async def test_the_tests_that_anybody_sees_pass_before_and_after(remote: RemoteServer) -> None:
    def policy(messages: Any) -> Any:
        if not said(messages, "tool"):
            return call("run", command="python3 -m unittest")
        return load_policy(policies_of("gymhost/RepoRepair-v0")[0])(
            [message for message in messages if message is not first(messages)]
        )

    def first(messages: Any) -> Any:
        return next(message for message in messages if message["role"] == "tool")

    for one in await play_all(remote, "gymhost/RepoRepair-v0", policy, FEWER):
        told = said(one.messages, "tool")
        assert all("\nOK\n[exit status 0]" in text for text in (told[0], told[-2])), told
        assert one.reward == 1.0


async def test_the_shell_lasts_and_names_limits(remote: RemoteServer) -> None:
    async with remote.session("gymhost/Terminal-v0") as session:
        await session.reset(options={"task": 0})

        async def bash(command: str, **more: Any) -> str:
            [message], *_ = await session.call_tool("bash", {"command": command, **more})
            return message["content"]

        assert await bash("cd /tmp; x=1") == "[exit status 0]"
        assert await bash("echo $x $PWD; false") == "1 /tmp\n[exit status 1]"
        assert (await bash("sleep 50", timeout=0.5)).endswith("[ended by its limit of time]")
        assert await bash("echo $x") == "1\n[exit status 0]"
        assert await bash("exit 3") == "[exit status 3; the shell was started anew]"
        [message], *_ = await session.call_tool("write", {"path": "a/b", "content": "here"})
        assert message["content"] == "a/b has 4 bytes now."
        assert await bash("cat /workspace/a/b") == "here\n[exit status 0]"
        [message], *_ = await session.call_tool("write", {"path": "/usr/x", "content": ""})
        assert message["content"].startswith("Error: ")


async def test_what_edit_and_view_refuse(remote: RemoteServer) -> None:
    async with remote.session("gymhost/RepoRepair-v0") as session:
        await session.reset(options={"task": 0})

        async def use(tool: str, **arguments: Any) -> str:
            [message], *_ = await session.call_tool(tool, arguments)
            return message["content"]

        assert "tests/" in await use("view", path=".")
        assert (await use("view", path="README.md", start=1, end=1)).startswith("    1  # ")
        assert "No such file" in await use("view", path="nothing")
        assert await use("edit", path="new.py", old="", new="one\none\n") == "new.py is changed."
        assert "is there" in await use("edit", path="new.py", old="", new="x")
        assert "2 times" in await use("edit", path="new.py", old="one", new="x")
        assert await use("edit", path="new.py", old="one\none", new="two") == "new.py is changed."
        assert await use("run", command="cat new.py; exit 4") == "two\n[exit status 4]"


def solution(messages: Any) -> Any:
    """Runs the task folder's own solution."""
    script = (HARBOR_TASK / "solution/solve.sh").read_text()
    return call("submit") if said(messages, "tool") else call("bash", command=script)


def half(messages: Any) -> Any:
    """Does what is asked, and what is asked not to be done."""
    script = (HARBOR_TASK / "solution/solve.sh").read_text() + "echo 'bolt;1' >>/app/data/east.csv"
    return call("submit") if said(messages, "tool") else call("bash", command=script)


async def harbor(remote: RemoteServer, policy: Any, folder: Path = HARBOR_TASK) -> Played:
    return await play_one(remote, "gymhost/Terminal-v0", policy, split="tasks", tasks=str(folder))


async def test_a_harbor_task_folder_runs_as_it_is(remote: RemoteServer) -> None:
    played = await harbor(remote, solution)
    assert played.reward == 1.0, played
    assert said(played.messages, "user")[0] == (HARBOR_TASK / "instruction.md").read_text().strip()
    assert (await harbor(remote, half)).reward == 0.5
    idle = await harbor(remote, lambda _: call("submit"))
    assert (idle.reward, idle.info.get("reward_invalid")) == (0.0, None)


@pytest.mark.docker
async def test_a_harbor_task_folder_runs_in_docker(
    remote_docker: RemoteServer, docker_engine: DockerEngine, tmp_path: Path
) -> None:
    copy_programs(tmp_path / "root")
    shutil.make_archive(str(tmp_path / "root"), "tar", tmp_path / "root")
    api: Any = docker.APIClient(docker_engine.base_url)
    api.import_image(str(tmp_path / "root.tar"), repository="debian", tag="bookworm-slim")
    api.close()
    played = await harbor(remote_docker, solution)
    assert played.reward == 1.0, played
    assert (await harbor(remote_docker, half)).reward == 0.5
    assert (await harbor(remote_docker, lambda _: call("submit"))).reward == 0.0


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A copy of the task folder, to change."""
    return Path(shutil.copytree(HARBOR_TASK, tmp_path / "task"))


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 1e9 >/logs/verifier/reward.txt", "no number from 0 to 1"),
        ("echo nan >/logs/verifier/reward.txt", "which is no number"),
        ("echo -0.5 >/logs/verifier/reward.txt", "no number from 0 to 1"),
        ("""echo '{"reward": true}' >/logs/verifier/reward.json""", "which is no number"),
        ("""echo '{"reward": ' >/logs/verifier/reward.json""", "no JSON"),
        ("mkdir /logs/verifier/reward.txt", "can't be read"),
        ("mkfifo /logs/verifier/reward.txt", "can't be read"),
        ("head -c 200000 /dev/zero >/logs/verifier/reward.txt", "can't be read"),
        ("echo so much for that; exit 3", "wrote no reward .exit status 3.; it said: so much for that"),
    ],
)
async def test_a_verifier_without_a_proper_reward_makes_it_invalid(
    script: str, why: str, task: Path, remote: RemoteServer
) -> None:
    (task / "tests/test.sh").write_text(script)
    played = await harbor(remote, solution, task)
    assert played.reward == 0.0
    assert played.info["reward_invalid"]
    with pytest.raises(ValueError, match=why):
        raise ValueError(played.info["rewards_errors"]["right"])


async def test_a_reward_as_json(task: Path, remote: RemoteServer) -> None:
    (task / "tests/test.sh").write_text("""echo '{"reward": 0.25, "speed": 9}' >/logs/verifier/reward.json""")
    assert (await harbor(remote, solution, task)).reward == 0.25


async def test_time_limits_of_a_task_folder(task: Path, remote: RemoteServer) -> None:
    settings = (task / "task.toml").read_text()
    (task / "task.toml").write_text(
        settings.replace("120.0", "1.0").replace("timeout_sec = 60.0", "timeout_sec = 1", 1)
    )
    played = await harbor(remote, lambda _: call("bash", command="sleep 30"), task)
    assert played.info["limit"] == "agent_timeout"
    assert said(played.messages, "tool")[-1] == "[ended by its limit of time]"
    (task / "tests/test.sh").write_text("sleep 50")
    played = await harbor(remote, lambda _: call("submit"), task)
    assert "limit of time" in played.info["rewards_errors"]["right"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("RUN apt-get update", "RUN apt-get update"),
        ("COPY --from=builder /x /x", "only files of its own folder"),
        ("COPY count.sh /etc/count.sh", "Read-only file system"),
        ("COPY nothing /app/", "there is no such file"),
        ("VOLUME /data", "not known here"),
    ],
)
async def test_what_a_dockerfile_needs_an_image_for(line: str, why: str, task: Path, remote: RemoteServer) -> None:
    with (task / "environment/Dockerfile").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(EnvironmentFault, match=r"--sandbox docker") as raised:
        await harbor(remote, solution, task)
    assert why in str(raised.value)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda task: (task / "tests/test.sh").unlink(), "it has no tests/test.sh"),
        (lambda task: (task / "task.toml").write_text("agent ="), "task.toml: "),
        (lambda task: (task / "task.toml").write_text("[agent]\ntimeout_sec = 'x'"), "timeout_sec is a number"),
        (lambda task: (task / "task.toml").write_text("[environment]\nmemory = 'x'"), "memory is a size"),
        (lambda task: (task / "task.toml").write_text("[environment]\ngpus = 1"), "without GPUs"),
        (lambda task: (task / "environment/docker-compose.yaml").touch(), "several containers"),
        (lambda task: (task / "task.toml").rename(task / "task.yaml"), "harbor tasks migrate"),
        (shutil.rmtree, "there is no folder"),
    ],
)
def test_what_is_no_task_folder(change: Any, why: str, task: Path) -> None:
    change(task)
    with pytest.raises(ValueError, match=why):
        make("gymhost/Terminal-v0", tasks=str(task))


def test_a_folder_of_task_folders(task: Path) -> None:
    shutil.copytree(task, task.parent / "another")
    (task.parent / "notes").mkdir()
    usual: Any = make("gymhost/Terminal-v0").unwrapped
    assert list(usual.splits) == ["train", "test"]
    env: Any = make("gymhost/Terminal-v0", tasks=task.parent).unwrapped
    assert [each["name"] for each in env.splits["tasks"]] == ["another", "task"]


def test_tasks_are_loaded_from_folders_that_are_named_alone(task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERMINAL_TASK_FOLDERS", f"/srv/nothing:{task.parent}")
    assert make("gymhost/Terminal-v0", tasks=str(task)).unwrapped
    (task.parent / "link").symlink_to(HARBOR_TASK)
    for folder in (HARBOR_TASK, task.parent / "link", task.parent / ".." / ".."):
        with pytest.raises(ValueError, match="TERMINAL_TASK_FOLDERS"):
            make("gymhost/Terminal-v0", tasks=str(folder))
    monkeypatch.delenv("TERMINAL_TASK_FOLDERS")
    with pytest.raises(ValueError, match="TERMINAL_TASK_FOLDERS"):
        make("gymhost/Terminal-v0", tasks=str(task))
