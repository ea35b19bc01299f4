"""Fork: copies begin with the files of a moment, and are nobody else's from then on."""

import time

from gymhost.envs.sandbox.check.trial import Family, Trial, shown

__all__ = ["FAMILY"]

FAMILY = Family("fork")

_MAKE = """
echo first >changed; echo first >deleted; echo first >{tmp}/other; mkdir -p folder/gone; echo x >folder/gone/file
printf '#!/bin/sh\\necho ran' >script; chmod 751 script; ln -s changed link; head -c 100000 /dev/urandom >data
chmod 600 deleted; touch -d 2001-02-03T04:05:06Z old; echo 'é' >'naïve name'
"""
_STATE = """
cat changed {tmp}/other link; ./script; stat -c '%n %a %Y' script old; readlink link; md5sum <data; cat 'naïve name'
"""


@FAMILY.case("copies begin with the files of the moment")
async def _same(trial: Trial) -> None:
    async with trial.sandbox() as parent:
        tmp = _tmp(trial)
        await parent.run(_MAKE.replace("{tmp}", tmp))
        state = _STATE.replace("{tmp}", tmp)
        before = await parent.run(state)
        trial.expect(before.ok, f"files could not be made: {shown(before)}")
        copies = await parent.fork(2)
        try:
            await parent.run(f"echo later >changed; echo later >{tmp}/other; rm data; echo later >new")
            for copy in copies:
                result = await copy.run(state)
                trial.expect(result.stdout == before.stdout, f"a copy has {result.stdout!r}, not {before.stdout!r}")
                result = await copy.run("ls new")
                trial.expect(not result.ok, "a copy has a file that was made after it")
                result = await copy.run("rm -rf folder data; echo more >>changed && [ ! -e data ] && echo own")
                trial.expect(result.stdout == "own\n", f"a copy can't change its files: {shown(result)}")
        finally:
            await trial.destroy(*copies)
        result = await parent.run("cat changed new && ls folder/gone/file")
        trial.expect(result.ok, f"the parent does not go on with its files: {shown(result)}")


@FAMILY.case("copies are independent")
async def _independent(trial: Trial) -> None:
    tmp = _tmp(trial)
    async with trial.sandbox() as parent:
        await parent.run(_MAKE.replace("{tmp}", tmp))
        copies = await parent.fork(3)
        try:
            for number, copy in enumerate(copies):
                await copy.run(
                    f"echo {number} >changed; echo {number} >own{number}; echo {number} >{tmp}/other; rm deleted"
                )
            await parent.run(f"echo parent >changed; echo parent >{tmp}/other")
            for number, copy in enumerate(copies):
                result = await copy.run(f"cat changed {tmp}/other; ls -d own* deleted 2>/dev/null")
                expected = f"{number}\n{number}\nown{number}\n"
                trial.expect(result.stdout == expected, f"a copy has {result.stdout!r}, not its own {expected!r}")
            result = await parent.run(f"cat changed {tmp}/other deleted; ls -d own*")
            trial.expect(result.stdout == "parent\nparent\nfirst\n", f"the parent has {result.stdout!r} of its copies")
            await trial.destroy(copies[0])
            await trial.usable(copies[1])
        finally:
            await trial.destroy(*copies)
        await trial.usable(parent)


@FAMILY.case("what was deleted stays deleted")
async def _deleted(trial: Trial) -> None:
    tmp = _tmp(trial)
    look = f"ls -A . folder; cat again; cd {tmp}; ls -d other*"
    async with trial.sandbox() as parent:
        await parent.run(_MAKE.replace("{tmp}", tmp))
        await parent.run(f"mkdir {tmp}/others; echo x >{tmp}/others/file; echo 1 >again; echo 1 >{tmp}/other2")
        (child,) = await parent.fork()
        try:
            await child.run(
                f"rm -r deleted folder/gone {tmp}/others {tmp}/other2 again; mkdir again; rmdir again; echo 2 >again"
            )
            before = await child.run(look)
            (grandchild,) = await child.fork()
            try:
                result = await grandchild.run(look)
                trial.expect(
                    result.stdout == before.stdout, f"a copy of a copy has {result.stdout!r}, not {before.stdout!r}"
                )
                result = await grandchild.run(f"cat deleted folder/gone/file {tmp}/others/file {tmp}/other2")
                trial.expect(not result.stdout, f"what was deleted is back: {shown(result)}")
                result = await grandchild.run(
                    "mkdir -p folder/gone && ls -A folder/gone && echo 3 >deleted && cat deleted"
                )
                trial.expect(result.stdout == "3\n", f"what was deleted can't be made anew: {shown(result)}")
            finally:
                await trial.destroy(grandchild)
        finally:
            await trial.destroy(child)


@FAMILY.case("a snapshot outlives its sandbox")
async def _snapshot(trial: Trial) -> None:
    parent = await trial.create()
    try:
        await parent.run("echo first >file")
        snapshot = await parent.snapshot()
        await parent.run("echo later >file")
    finally:
        await trial.destroy(parent)
    try:
        for _ in range(2):
            child = await trial.create(snapshot)
            try:
                result = await child.run("cat file; echo child >file")
                trial.expect(result.stdout == "first\n", f"a sandbox made from a snapshot has {shown(result)}")
            finally:
                await trial.destroy(child)
    finally:
        await snapshot.discard()
        await snapshot.discard()


@FAMILY.case("what is no file")
async def _processes(trial: Trial) -> None:
    async with trial.sandbox() as parent:
        shell = await parent.shell()
        await shell.run("cd /tmp; kept=value; sleep 60 >/dev/null 2>&1 &")
        started = time.monotonic()
        (child,) = await parent.fork()
        trial.note(f"A copy took {1000 * (time.monotonic() - started):.0f} ms")
        try:
            after = await shell.run('echo "$kept $PWD"')
            trial.expect(after.stdout == "value /tmp\n", f"fork disturbs the parent's shell: {shown(after)}")
            other = await child.shell()
            result = await other.run("echo \"$kept$PWD\"; cat /proc/[0-9]*/comm | grep -c '^sleep$'")
            expected = f"{child.spec.workdir}\n0\n"
            if trial.backend.isolates:
                trial.expect(result.stdout == expected, f"a copy does not begin anew: {shown(result)}")
        finally:
            await trial.destroy(child)


def _tmp(trial: Trial) -> str:
    """The folder beside the working folder that is written to; where /tmp is the host's, it is left alone."""
    return "/tmp" if trial.backend.isolates else "$HOME"
