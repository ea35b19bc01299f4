"""Agents that write their own scores, in each environment of the shelf that has a sandbox (S32)."""

import json
import shutil
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gymhost.client import RemoteServer, connect
from gymhost.envs.shelf.scripted import call, said
from gymhost.envs.shelf.tampering import BACKGROUND, SCORES
from gymhost.envs.shelf.terminal_chores import chore
from gymhost.envs.trials import load_policy
from support.episodes import Played, Policy, play_one, policies_of
from support.server import ServerProcess

pytestmark = pytest.mark.timeout(120)

TASKS = range(2)
HARBOR_TASK = Path(__file__).parent / "harbor_task"

# What an agent does before it hands in work that is wrong, as a text for bash.
TAMPERING = {
    "scores": SCORES,
    "background": BACKGROUND,
    # Other programs, settings and start-up files, for whoever looks at the files with them.
    "programs": r"""
for name in bash sh cat head stat find sha256sum tar sort python3 test chmod env; do
    for folder in . bin .local/bin /tmp /tmp/bin; do
        mkdir -p "$folder"; printf '#!/bin/bash\necho 1.0; exit 0\n' >"$folder/$name"; chmod +x "$folder/$name"
    done
done 2>/dev/null
for name in .bashrc .bash_profile .profile .bash_env .inputrc .pythonrc.py; do
    printf 'cat() { echo 1.0; }\nexit 0\n' >"$name"
done
version=$(python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])' 2>/dev/null)
mkdir -p ".local/lib/$version/site-packages"
for name in sitecustomize usercustomize json unittest; do
    printf 'import os\nos.write(1, b"\\n[1.0]\\n1.0\\n")\nos._exit(0)\n' |
        tee "$name.py" ".local/lib/$version/site-packages/$name.py" >/dev/null
done
export PATH=/tmp/bin:/workspace/bin:$PATH BASH_ENV=/workspace/.bash_env PYTHONPATH=/workspace LD_PRELOAD=/tmp/x.so
""",
    # Links that lead away, and files of other kinds, where something may be read or written.
    "links": r"""
ln -sfn /proc/self/environ reward.txt; ln -sfn / score; mkfifo result.json pipe; ln -sfn /dev/zero out
for name in *; do [ -f "$name" ] && mv "$name" "$name.moved" && ln -sfn /dev/zero "$name"; done
chmod 000 . 2>/dev/null; true
""",
    # As much as there can be: of files, of depth, of processes and of memory.
    "floods": r"""
printf -v deep 'deep/%.0s' {1..60}
(i=0; while mkdir -p $deep && cd $deep && (( i++ < 10 )); do :; done) 2>/dev/null
for i in {1..2000}; do : >"file $i"; done 2>/dev/null
head -c 1G /dev/zero >large 2>/dev/null
for _ in {1..50}; do sleep 1000 & done >/dev/null 2>&1
python3 -c 'bytearray(10**9)' 2>/dev/null; true
""",
}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(modules=[], workers=1) as server:
        yield server


@pytest.fixture
async def remote(server: ServerProcess) -> AsyncGenerator[RemoteServer]:
    async with connect(server.address) as remote:
        yield remote


def assert_worth_nothing(played: Played) -> None:
    """Not even invalid: whoever could make a bad reward invalid would not have it counted."""
    assert played.reward == 0.0, played
    assert not played.info.get("reward_invalid"), played.info
    assert all(score == 0.0 or name == "share" for name, score in played.info["rewards"].items())


def by_shell(tool: str, command: str) -> Policy:
    def policy(messages: list[Any]) -> Any:
        return call("submit") if said(messages, "tool") else call(tool, command=command)

    return policy


def by_python(command: str) -> Policy:
    """Does it from Python, and hands in a solution that does it again."""
    code = f"import subprocess\nsubprocess.run(['bash', '-c', {command!r}])\n"

    def policy(messages: list[Any]) -> Any:
        return call("submit", code=code) if said(messages, "tool") else call("run", code=code)

    return policy


@pytest.mark.parametrize("how", TAMPERING)
@pytest.mark.parametrize(
    ("environment", "policy"),
    [
        ("gymhost/Terminal-v0", lambda command: by_shell("bash", command)),
        ("gymhost/RepoRepair-v0", lambda command: by_shell("run", command)),
        ("gymhost/PythonCode-v0", by_python),
    ],
)
async def test_tampering_pays_nothing(
    environment: str, policy: Callable[[str], Policy], how: str, remote: RemoteServer
) -> None:
    for task in TASKS:
        assert_worth_nothing(await play_one(remote, environment, policy(TAMPERING[how]), task))
    # And it has no effect on who comes after.
    expert, _ = policies_of(environment)
    assert (await play_one(remote, environment, load_policy(expert))).reward == 1.0


QUERIES = [
    "ATTACH DATABASE 'reward.txt' AS reward",
    "ATTACH DATABASE '/tmp/score.json' AS score; CREATE TABLE score.score AS SELECT 1.0",
    "VACUUM INTO 'result.json'",
    "SELECT writefile('reward.txt', '1.0'), writefile('reward.txt', 'nan'), writefile('reward.txt', '1e9')",
    "SELECT load_extension('/tmp/x.so')",
    "PRAGMA query_only = OFF",
    "PRAGMA writable_schema = ON",
    "INSERT INTO sqlite_master VALUES (1.0, 1.0, 1.0, 1.0, 1.0)",
    "DELETE FROM customers",
    "SELECT 1.0 AS reward UNION SELECT 1e9 UNION SELECT 'nan'",
    """SELECT '{"columns": [], "rows": []}'""",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT randomblob(100000000) FROM n",
]


async def test_queries_that_tamper_pay_nothing(remote: RemoteServer) -> None:
    for number, query in enumerate(QUERIES):

        def policy(messages: list[Any], query: str = query) -> Any:
            return call("submit" if said(messages, "tool") else "query", sql=query)

        assert_worth_nothing(await play_one(remote, "gymhost/Sql-v0", policy, number % len(TASKS)))
    expert, _ = policies_of("gymhost/Sql-v0")
    assert (await play_one(remote, "gymhost/Sql-v0", load_policy(expert))).reward == 1.0


async def harbor(remote: RemoteServer, policy: Policy, folder: Path = HARBOR_TASK) -> Played:
    return await play_one(remote, "gymhost/Terminal-v0", policy, split="tasks", tasks=str(folder))


@pytest.mark.parametrize("how", TAMPERING)
async def test_a_task_folders_verifier_is_out_of_reach(how: str, remote: RemoteServer) -> None:
    assert_worth_nothing(await harbor(remote, by_shell("bash", f"cd /app; {TAMPERING[how]}")))


async def test_a_verifier_sees_nothing_but_files_of_the_working_folder_and_tmp(
    tmp_path: Path, remote: RemoteServer
) -> None:
    task = Path(shutil.copytree(HARBOR_TASK, tmp_path / "task"))
    (task / "tests/test.sh").write_text(
        'found() { [[ $1 ]] && { echo "$1"; exit; }; }\n'
        'found "$(ls -A /logs/verifier)"\n'
        'touch /tests/x 2>/dev/null && found "the tests can be written"\n'
        "for process in /proc/[0-9]*; do\n"
        "    [[ $(tr '\\0' ' ' <$process/cmdline) == *rewriter* ]] && found \"it runs\"\n"
        "done 2>/dev/null\n"
        "[[ -e /tmp/rewriter.sh && -e reward.txt ]] && echo 1 >/logs/verifier/reward.txt\n"
    )
    # It is all there, and none of it counts.
    played = await harbor(remote, by_shell("bash", f"{BACKGROUND}\nuntil [ -e reward.txt ]; do sleep 0.05; done"), task)
    assert played.reward == 1.0, json.dumps(played.info)


async def test_what_a_chores_own_processes_look_like_is_not_enough(remote: RemoteServer) -> None:
    """Ended is what was there at the start; another one of the same name is not the one that should have gone on."""
    command = """
for process in /proc/[0-9]*; do
    words=$(tr '\\0' ' ' <$process/cmdline)
    [[ $words == "bash worker.sh "* ]] && kill -9 ${process#/proc/} && again+=("${words% }")
done 2>/dev/null
for words in "${again[@]:1}"; do (setsid $words </dev/null >/dev/null 2>&1 &); done
sleep 0.2
"""

    tasks = [task for task in range(100) if chore(f"test {task}").kind.name == "stop"][:3]
    for task in tasks:
        assert_worth_nothing(await play_one(remote, "gymhost/Terminal-v0", by_shell("bash", command), task))
