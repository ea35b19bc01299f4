"""bubblewrap for an ordinary user. A root session plays one."""

import json
import os
import subprocess
import sys
from collections.abc import Generator

import pytest

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
