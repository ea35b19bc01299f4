"""bubblewrap for an ordinary user. A root session plays one."""

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Generator

import pytest

from support.arena import marked
from support.ordinary_user import ROOT, OrdinaryUser, ordinary_user
from support.server import until

_WHO = """
import json, os, sys
import gymhost.envs
groups, home, folder = os.getgroups(), os.environ["HOME"], os.getcwd()
with open(os.path.join(home, "mine"), "w") as mine:
    print(json.dumps([os.getresuid(), os.getresgid(), groups, home, folder, sys.prefix]))
"""


@pytest.fixture
def user() -> Generator[OrdinaryUser]:
    with ordinary_user() as user:
        yield user


def test_a_user_without_rights_can_use_the_checkout_and_the_virtual_environment(user: OrdinaryUser):
    said = user.run("-c", _WHO)
    assert said.returncode == 0, said.stderr
    uids, gids, groups, home, folder, prefix = json.loads(said.stdout)
    assert uids == [user.uid] * 3
    assert (user.home / "mine").stat().st_uid == user.uid
    assert [home, folder, prefix] == [str(user.home), str(ROOT), sys.prefix]
    if os.geteuid() == 0:
        assert user.uid > 0
        assert gids == [user.uid] * 3
        assert groups == []


async def test_a_command_that_takes_too_long_is_killed_with_what_it_started(user: OrdinaryUser):
    script = "import subprocess; subprocess.run(['sleep', '1000'])"
    with pytest.raises(subprocess.TimeoutExpired):
        user.run("-c", script, timeout=0.5)
    if user.uid != os.geteuid():
        await until(lambda: not user.processes())


_OPERATIONS = """
import asyncio, json, os
from gymhost.envs.sandbox import Limits, SandboxSpec, create

async def main():
    said = {}
    sandbox = await create(SandboxSpec(limits=Limits(memory=64 * 2**20, processes=32, disk=16 * 2**20)))
    said["id"] = (await sandbox.run("id -u; id -g; pwd")).stdout.split()
    shell = await sandbox.shell()
    await shell.run("cd /tmp; x=kept")
    said["shell"] = (await shell.run('echo "$x $PWD"')).stdout
    python = await sandbox.python()
    await python.run("y = 20")
    said["python"] = (await python.run("y + 1")).value
    await sandbox.write("file", b"before")
    [copy] = await sandbox.fork(1)
    await sandbox.write("file", b"after")
    said["files"] = [(await each.read("file")).decode() for each in (copy, sandbox)]
    said["home"] = (await sandbox.run(["ls", os.environ["HOME"]])).exit_status
    said["limit"] = (await sandbox.run("setsid sleep 1000 & sleep 1000", timeout=0.5)).limit
    said["left"] = (await sandbox.run("cat /proc/[0-9]*/comm")).stdout.count("sleep")
    full = await sandbox.run("head -c 64M /dev/zero >full; wc -c <full; rm full")
    said["written"] = int(full.stdout)
    said["in force"] = dict(sandbox.limits_in_force)
    await copy.destroy()
    await sandbox.destroy()
    print(json.dumps(said))

asyncio.run(main())
"""


async def test_what_sandboxes_are_there_for(user: OrdinaryUser):
    ended = user.run("-W", "error", "-c", _OPERATIONS)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    said = json.loads(ended.stdout)
    in_force = said.pop("in force")
    written = said.pop("written")
    assert said == {
        "id": ["1000", "1000", "/workspace"],
        "shell": "kept /tmp\n",
        "python": "21",
        "files": ["before", "after"],
        "home": 2,
        "limit": "time",
        "left": 0,
    }
    # Which limits hold depends on what of the machine's control groups is the user's; but it is said.
    assert in_force["seccomp"]
    assert in_force["network"]
    assert in_force["processes"]
    assert written <= 16 * 2**20 or not in_force["disk"]
    if user.uid != os.geteuid():
        await until(lambda: not user.processes())


async def test_a_killed_process_leaves_nothing(user: OrdinaryUser):
    mark = f"1000.{uuid.uuid4().int}"
    script = (
        "import asyncio, os\nfrom gymhost.envs.sandbox import create\n"
        "async def main():\n"
        "    sandbox = await create()\n"
        f"    await sandbox.run('setsid sleep {mark} & sleep {mark}')\n"
        "asyncio.run(main())"
    )
    process = await asyncio.create_subprocess_exec(*user.command("-c", script), env=user.environment, cwd=ROOT)
    await until(lambda: len(marked(mark)) > 2)
    process.kill()
    await process.wait()
    await until(lambda: not marked(mark))


@pytest.mark.timeout(200)
def test_the_self_check_finds_nothing(user: OrdinaryUser):
    said = user.run("-m", "gymhost.cli", "check", "sandbox", "bubblewrap", timeout=180.0)
    assert said.returncode == 0, said.stdout + said.stderr
