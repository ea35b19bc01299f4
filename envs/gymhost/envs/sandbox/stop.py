"""Ends the processes of a command, and none besides, by a script that runs in the container out of band."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from gymhost.envs.sandbox.backend import Container
from gymhost.envs.sandbox.turns import Turns
from gymhost.wire.errors import SandboxUnavailable

__all__ = ["Place", "Processes"]

# Ticks that two clocks may be apart: what is as old as the command within this is taken for a part of it.
SLACK = 2

# Only what is built into bash: a sandbox that is full of processes can start no other. A process is a part of the
# command where its parents lead to the process that runs it, or where it lost its parents, and it is not older than the
# command. Processes of ours, and what belongs to older ones or to those of other calls, are left alone.
_SCRIPT = r"""
set -f
spared=" $spared $$ " new=() parent=() session=() born=() state=() verdict=()
scan() {
    local pid
    local -a pids
    [[ $1 == all ]] && new=() parent=() session=() born=() state=() verdict=()
    found=()
    set +f; pids=(/proc/[0-9]*); set -f
    for pid in "${pids[@]#/proc/}"; do
        [[ ${parent[pid]} ]] || look "$pid"
    done
    for pid in "${new[@]}"; do
        judge "$pid"
        [[ ${verdict[pid]} == 1 && ${state[pid]} != [ZX] ]] && found+=("$pid")
    done
    new=()
}
look() {
    local pid=$1 line=
    IFS= read -r -d '' line <"/proc/$pid/stat"
    [[ $line ]] || return
    set -- ${line##*) }
    state[pid]=$1 parent[pid]=$2 session[pid]=$4 born[pid]=${20}
    new+=("$pid")
}
judge() {
    local up=${parent[$1]}
    [[ ${verdict[$1]} ]] && return
    verdict[$1]=0
    [[ -z $up || $spared == *" $1 "* ]] && return
    (( born[$1] < since )) && return
    if (( up == root || up == init )); then
        [[ $sessions == *" ${session[$1]} "* ]] && return
        (( up == root || orphans )) && verdict[$1]=1
    elif [[ $spared != *" $up "* ]]; then
        judge "$up"
        verdict[$1]=${verdict[$up]}
    fi
}
now() { read -r up _ </proc/uptime; ticks=$(( 10#${up/./} )); }
now
begun=$ticks
if (( patience )); then
    # A shell breaks off where what it waits for is ended by SIGINT too: so it is stopped until both have theirs, and
    # its own children come first, before they end by themselves.
    kill -STOP "$root"
    read -r children <"/proc/$root/task/$root/children"
    for pid in $children; do look "$pid"; judge "$pid"; [[ ${verdict[pid]} == 1 ]] && kill -INT "$pid"; done
    kill -INT "$root"
    kill -CONT "$root"
    scan all
    kill -INT "${found[@]}"
    kill -CONT "${found[@]}"
    until now; scan all; (( ${#found[@]} == 0 || ticks - begun > patience )); do :; done
fi
# Where there is no room for another process, bash sleeps for seconds and tries again, unless there comes a signal.
(( wake )) && kill -USR1 "$root"
[[ $condemned ]] && kill -STOP $condemned
while scan all; now; (( ${#found[@]} && ticks - begun <= limit )); do
    # What is stopped starts nothing more. Only what is new is looked at, to be faster than those who start others.
    while (( ${#found[@]} && ticks - begun <= limit )); do
        kill -STOP "${found[@]}"
        scan new
        now
    done
    scan all
    kill -KILL "${found[@]}"
done
[[ $condemned ]] && kill -KILL $condemned
echo "${#found[@]}"
"""
# Ticks that a command has to end by itself after SIGINT.
PATIENCE = 15


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process stands among the others of its container.

    Attributes:
        pid: Its process id inside.
        session: Its session's.
        clock: What is added to this process's monotonic clock to have the container's, in ticks; at most so much.
    """

    pid: int
    session: int
    clock: float

    @classmethod
    def read(cls, said: bytes) -> "Place":
        """Reads what `where` made.

        Raises:
            SandboxUnavailable: It makes no sense.
        """
        try:
            pid, up, _, _, _, session, *_ = said.split()
            return cls(int(pid), int(session), int(float(up) * 100) - time.monotonic() * 100)
        except (ValueError, OverflowError):
            raise SandboxUnavailable("the sandbox has no /proc to look into, or its bash is none") from None


class Processes:
    """The processes of a container: which are ours, and which belong to a command.

    Attributes:
        turn: Held while processes of ours are started, since they are spared by no stop before they are known.
    """

    def __init__(self, container: Container) -> None:
        self._container = container
        self._ours: dict[int, Place] = {}
        self._clock = float("-inf")
        self.turn = Turns(1)

    def add(self, *places: Place) -> None:
        """Takes a process for one of ours: no command that is stopped has a part in it."""
        for place in places:
            self._ours[place.pid] = place
            # The greatest is the nearest to the truth: each was late by the time that its news was under way.
            self._clock = max(self._clock, place.clock)

    def discard(self, *places: Place) -> None:
        """Takes a process for one that is not ours any more."""
        for place in places:
            if self._ours.get(place.pid) is place:
                del self._ours[place.pid]

    async def stop(
        self,
        root: Place,
        since: float,
        *,
        interrupt: bool = False,
        wake: bool = False,
        orphans: bool = True,
        condemned: tuple[Place, ...] = (),
        limit: float = 3.0,
    ) -> int:
        """Ends what belongs to a command.

        Args:
            root: The process that runs it, which itself is spared.
            since: When it began, by `time.monotonic`.
            interrupt: Whether it is asked first by SIGINT, and the process that runs it too.
            wake: Whether the process that runs it is a shell of ours, which a signal does nothing to but wake it.
            orphans: Whether what lost its parents is taken for a part of it.
            condemned: Processes of ours that are ended too.
            limit: Seconds after which no more is tried.

        Returns:
            How many are left.

        Raises:
            SandboxLost: The container is gone.
        """
        sessions = {place.session for place in self._ours.values()} - {root.session}
        settings = {
            "init": self._container.init,
            "root": root.pid,
            "since": max(0, int(since * 100 + self._clock) - SLACK),
            "orphans": int(orphans),
            "patience": PATIENCE if interrupt else 0,
            "wake": int(wake),
            "limit": int(limit * 100),
            "spared": f"'{_words({*self._ours, root.pid, self._container.init})}'",
            "sessions": f"' {_words(sessions)} '",
            "condemned": f"'{_words(place.pid for place in condemned)}'",
        }
        script = "".join(f"{name}={value}\n" for name, value in settings.items()) + _SCRIPT
        async with self.turn:
            said = await self._container.control(script, timeout=limit + 10)
        # Programs of the sandbox's user may have written there too.
        return int(said) if said.strip().isdigit() and len(said) < 10 else 1

    async def halt(self, main: Place) -> None:
        """Ends all processes, ours too, but the one that takes commands first of all.

        Raises:
            SandboxLost: The container is gone.
        """
        self.discard(*(place for place in tuple(self._ours.values()) if place is not main))
        if self._container.init == 1:
            await self._container.control("kill -KILL -1")
        else:
            await self.stop(main, 0.0, wake=True)

    async def stop_all(self) -> None:
        """Ends all processes but the first: those of other commands and of ours too.

        Raises:
            SandboxLost: The container is gone.
        """
        if self._container.init == 1:
            await self._container.control("kill -KILL -1")


def _words(pids: Iterable[int]) -> str:
    return " ".join(map(str, pids))
