"""The process that makes a worker's bubblewrap sandboxes: `python -I -S keeper.py DESCRIPTOR SETTINGS`.

It is small, since it forks for each sandbox, and it is the first process of a process namespace: when it ends, in
whatever way, nothing that it started is left. It ends when the other end of its socket closes. Standard library alone.

It is told what to do by packets of JSON with descriptors, and answers each. The process that was started stays above it
and ends with it, so that whoever started that one can wait for both.
"""

import contextlib
import dataclasses
import json
import os
import select
import signal
import socket
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

if __name__ == "__main__":
    # The modules beside this one, without running the packages above it, which import what a keeper must not carry.
    _folder = os.path.dirname(os.path.abspath(__file__))
    _names = ("gymhost", "envs", "sandbox", "bubblewrap")
    for _depth in range(1, len(_names) + 1):
        _package = types.ModuleType(".".join(_names[:_depth]))
        _package.__path__ = [_folder] if _depth == len(_names) else []
        sys.modules[_package.__name__] = _package

from gymhost.envs.sandbox.bubblewrap import children, layers, root, syscalls
from gymhost.envs.sandbox.bubblewrap.cgroups import Group, Groups, remove_all
from gymhost.envs.sandbox.bubblewrap.stacks import Stacks
from gymhost.envs.sandbox.bubblewrap.stillness import stand_still
from gymhost.envs.sandbox.bubblewrap.terms import BOX, PACKET

# Seconds that all processes together get to end when the keeper ends; the kernel ends what is left.
END_LIMIT = 5.0

# What a control script and what it starts may use, so that it is not bound by the sandbox's own limits.
CONTROL: Mapping[str, Any] = {"memory": 64 * 2**20, "processes": 32, "cpus": None}

# Answers a request; only the first answer counts.
Answer = Callable[..., None]


@dataclasses.dataclass(eq=False)
class Box:
    """A sandbox.

    Attributes:
        name: Its name.
        plan: What was asked for.
        outer: The process id of bubblewrap, which ends when all in the sandbox has ended.
        network: Its network, which says what is filtered.
        stack: The layers that it began with, the topmost first.
        group: Its control group.
        control: The control group of scripts that run in it out of band.
        init: The process id of its first process, once that is there.
        pidfd: That process.
        opened: Further processes that were started in it.
        controls: Those of them that run out of band.
        waiting: Who waits for its end.
    """

    name: str
    plan: children.Plan
    outer: int
    network: str
    stack: list[str]
    group: Group | None
    control: Group | None = None
    init: int = 0
    pidfd: int = -1
    opened: set[int] = dataclasses.field(default_factory=set[int])
    controls: set[int] = dataclasses.field(default_factory=set[int])
    waiting: list[Answer] = dataclasses.field(default_factory=list[Answer])


@dataclasses.dataclass(eq=False)
class Joining:
    """A process that is being started in a sandbox.

    Attributes:
        box: The sandbox.
        control: Whether it runs out of band.
        told: Where its process id is told, and what went wrong; it closes when it is another program.
        answer: Answers whoever wanted it.
        pid: Its process id, once that was told.
        failure: The number and the text of what went wrong.
        over: Whether nothing more will be told.
    """

    box: Box
    control: bool
    told: int
    answer: Answer
    pid: int = 0
    failure: tuple[int | None, str] = (None, "")
    over: bool = False


class Keeper:
    """Makes and ends sandboxes."""

    def __init__(self, channel: socket.socket, settings: Mapping[str, Any], groups: Groups) -> None:
        self._channel = channel
        self._bwrap: str = settings["bwrap"]
        self._groups = groups
        self._filters: dict[str, bytes] = {}
        self._boxes: dict[str, Box] = {}
        # What is done when a descriptor has something to read, and when a process has ended.
        self._readable: dict[int, Callable[[], None]] = {}
        self._ended: dict[int, Callable[[int], None]] = {}
        self._poll = select.poll()
        self._stacks = Stacks()
        self._going = True

    def serve(self) -> None:
        """Does what it is told until nobody is there to tell."""
        wake, woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, _wake)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        self._watch(wake, lambda: self._reap(wake))
        self._watch(self._channel.fileno(), self._receive)
        while self._going:
            for descriptor, _ in self._poll.poll():
                if (action := self._readable.get(descriptor)) is not None:
                    action()
        for box in list(self._boxes.values()):
            self._end(box)
        until = time.monotonic() + END_LIMIT
        while self._boxes and time.monotonic() < until:
            self._poll.poll(100)
            self._reap(wake)
        for folder in self._groups.folders.values():
            remove_all(folder)

    def _watch(self, descriptor: int, action: Callable[[], None]) -> None:
        self._readable[descriptor] = action
        self._poll.register(descriptor, select.POLLIN)

    def _unwatch(self, descriptor: int) -> None:
        del self._readable[descriptor]
        self._poll.unregister(descriptor)
        os.close(descriptor)

    def _reap(self, wake: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(wake, 65536)
        ended: list[tuple[int, int]] = []
        with contextlib.suppress(ChildProcessError):
            while (one := os.waitpid(-1, os.WNOHANG))[0] != 0:
                ended.append(one)
        # What joined a sandbox is known once the child is that started it, which ended no later.
        for pid, status in sorted(ended, key=lambda one: one[0] not in self._ended):
            if (action := self._ended.pop(pid, None)) is not None:
                action(os.waitstatus_to_exitcode(status))

    def _receive(self) -> None:
        try:
            data, descriptors, flags, _ = socket.recv_fds(self._channel, PACKET, 8)
        except OSError:
            data, descriptors, flags = b"", [], 0
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        if not data:
            self._going = False
            self._readable.pop(self._channel.fileno(), None)
            return
        request: dict[str, Any] = json.loads(data)
        number: int = request.pop("number")
        answered = False

        def answer(**words: Any) -> None:
            nonlocal answered
            if not answered:
                answered = True
                self._send({"number": number, **words})

        try:
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise OSError("a request was cut off")
            operation: str = request.pop("operation")
            getattr(self, f"_do_{operation}")(answer, descriptors, **request)
        except KeyError:
            answer(lost=True)
        except OSError as error:
            answer(error=str(error), errno=error.errno)
        except Exception as error:  # noqa: BLE001 - the other sandboxes go on
            answer(error=f"{type(error).__name__}: {error}")
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _send(self, words: Mapping[str, Any]) -> None:
        try:
            self._channel.send(json.dumps(words).encode())
        except OSError:
            self._going = False

    def _do_filter(self, answer: Answer, descriptors: Sequence[int], network: str) -> None:
        """Keeps a filter of system calls for sandboxes with a kind of network."""
        with os.fdopen(os.dup(descriptors[0]), "rb") as file:
            file.seek(0)
            self._filters[network] = file.read()
        answer()

    def _do_etc(self, answer: Answer, _: Sequence[int], name: str, texts: dict[str, str], copies: list[str]) -> None:
        answer(folder=root.make_etc(name, texts, copies))

    def _do_create(
        self,
        answer: Answer,
        descriptors: Sequence[int],
        name: str,
        network: str,
        plan: dict[str, Any],
        group: dict[str, Any] | None,
        snapshot: str | None,
    ) -> None:
        """Starts bubblewrap; the answer comes when its child is there, which may still fail."""
        stack = [] if snapshot is None else self._stacks.of(snapshot)
        wanted = children.Plan(**plan)
        # One for all: the processes have descriptors of their own of it, but its offset would be shared.
        options = children.in_memory(os.fsencode("\0".join([*wanted.options, ""])))
        program = children.in_memory(self._filters[network])
        told, tells = os.pipe2(os.O_CLOEXEC)
        own_group: Group | None = None
        try:
            if group is not None:
                own_group = self._groups.make(name, **group)
            overlays = not stack or self._stacks.can_overlay()
            extra = (options, program, tells)
            outer = children.run(
                lambda: children.become_bwrap(wanted, self._bwrap, own_group, stack, overlays, descriptors, extra)
            )
        except OSError:
            os.close(told)
            if own_group is not None:
                own_group.remove()
            raise
        finally:
            for descriptor in (options, program, tells):
                os.close(descriptor)
        box = Box(name, wanted, outer, network, stack if overlays else [], own_group)
        self._stacks.hold(box.stack)
        self._boxes[name] = box
        self._ended[outer] = lambda status: self._gone(box, status, answer)
        words = bytearray()
        self._watch(told, lambda: self._started(box, told, words, answer))

    def _started(self, box: Box, told: int, words: bytearray, answer: Answer) -> None:
        """Bubblewrap tells of its child, or is gone."""
        data = os.read(told, 4096)
        words += data
        if data and not words.rstrip().endswith(b"}"):
            return
        self._unwatch(told)
        if not data:
            return
        box.init = json.loads(words)["child-pid"]
        with contextlib.suppress(OSError):  # it is gone already, which bubblewrap's end will tell
            box.pidfd = os.pidfd_open(box.init)
            answer()

    def _gone(self, box: Box, status: int, answer: Answer) -> None:
        """All of a sandbox has ended."""
        del self._boxes[box.name]
        if box.pidfd >= 0:
            os.close(box.pidfd)
        for group in (box.group, box.control):
            if group is not None:
                group.remove()
        self._stacks.release(box.stack)
        answer(ended=status)
        for waiting in box.waiting:
            waiting()
        self._send({"number": 0, "ended": box.name, "status": status})

    def _do_open(
        self, answer: Answer, descriptors: Sequence[int], name: str, argv: list[str], env: dict[str, str], control: bool
    ) -> None:
        """Starts a process in a sandbox."""
        box = self._boxes[name]
        if box.pidfd < 0:
            raise KeyError(name)
        group = box.group
        if control and group is not None:
            if box.control is None:
                box.control = self._groups.make(f"{name}.control", **CONTROL)
            group = box.control
        plan = box.plan if not control else _without_limits(box.plan)
        told, tells = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(told, False)
        try:
            starter = children.run(
                lambda: children.join(plan, box.pidfd, group, self._filters[box.network], argv, env, descriptors, tells)
            )
        except OSError:
            os.close(told)
            raise
        finally:
            os.close(tells)
        joining = Joining(box, control, told, answer)
        self._ended[starter] = lambda _: self._hear(joining)
        self._watch(told, lambda: self._joined(joining))

    def _hear(self, joining: Joining) -> None:
        """Takes what is told of a process that is being started."""
        while not joining.over:
            try:
                data = os.read(joining.told, 4096)
            except BlockingIOError:
                return
            joining.over = not data
            for word in map(json.loads, data.splitlines()):
                if isinstance(word, int):
                    joining.pid = word
                    joining.box.opened.add(word)
                    if joining.control:
                        joining.box.controls.add(word)
                    self._ended[word] = lambda _: self._left(joining)
                else:
                    joining.failure = word

    def _joined(self, joining: Joining) -> None:
        """The process is another program now, or could not be."""
        self._hear(joining)
        if not joining.over:
            return
        self._unwatch(joining.told)
        code, reason = joining.failure
        if joining.box.name not in self._boxes or (reason and _has_ended(joining.box.pidfd)):
            joining.answer(lost=True)
        elif reason:
            joining.answer(error=reason, errno=code)
        else:
            joining.answer(pid=joining.pid)

    def _left(self, joining: Joining) -> None:
        """A process that was started in a sandbox has ended."""
        box = joining.box
        box.opened.discard(joining.pid)
        if joining.control and box.control is not None:
            # Its limits are wider, so that nobody inside may stay where it was by getting into its memory.
            box.controls.discard(joining.pid)
            box.control.end_all(box.controls)

    def _do_stop(self, answer: Answer, _: Sequence[int], name: str, pid: int) -> None:
        """Kills a process that was started in a sandbox, where it is still there."""
        if pid in self._boxes[name].opened:
            os.kill(pid, signal.SIGKILL)
        answer()

    def _do_destroy(self, answer: Answer, _: Sequence[int], name: str) -> None:
        """Ends a sandbox; the answer comes when all of it has ended."""
        box = self._boxes[name]
        box.waiting.append(answer)
        self._end(box)

    def _end(self, box: Box) -> None:
        if box.group is not None:
            box.group.thaw()
        try:
            # When its first process ends, so do all others, and bubblewrap with them.
            if box.pidfd >= 0:
                signal.pidfd_send_signal(box.pidfd, signal.SIGKILL)
            else:
                os.kill(box.outer, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def _do_usage(self, answer: Answer, _: Sequence[int], name: str) -> None:
        status = os.statvfs(self._inside(self._boxes[name], BOX))
        answer(disk=(status.f_blocks - status.f_bfree) * status.f_frsize)

    def _inside(self, box: Box, path: str) -> str:
        """Returns where bubblewrap sees a path of what the sandbox writes to."""
        return f"/proc/{box.outer}/root{path}"

    def _do_snapshot(self, answer: Answer, _: Sequence[int], name: str) -> None:
        """Copies what a sandbox has written to a new layer, while all in it stands still."""
        box = self._boxes[name]
        layer = self._stacks.new_layer()
        source = self._inside(box, f"{BOX}/up" if box.stack else BOX)
        self._stacks.hold(box.stack)
        go_on = stand_still(box.group, {box.init, *box.opened})

        def copied(status: int) -> None:
            go_on()
            reason = failure()
            if status == 0:
                self._stacks.keep(layer, box.stack)
                answer(snapshot=layer)
            else:
                self._stacks.throw_away(layer)
                answer(error=reason or f"copying files took longer than {children.COPY_LIMIT} s", errno=status)
            self._stacks.release(box.stack)

        try:
            pid, failure = children.copying(lambda: layers.make(layer, source, box.stack))
        except OSError:
            go_on()
            self._stacks.release(box.stack)
            raise
        self._ended[pid] = copied

    def _do_discard(self, answer: Answer, _: Sequence[int], snapshot: str) -> None:
        self._stacks.discard(snapshot)
        answer()


def _wake(signal_number: int, frame: types.FrameType | None) -> None:
    """Does nothing: that there is a handler has the descriptor written to."""


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _without_limits(plan: children.Plan) -> children.Plan:
    return dataclasses.replace(plan, rlimits={"CORE": 0, "NOFILE": 256}, processes=None)


def main() -> None:
    """Becomes the keeper, or says why it can't be."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    settings: dict[str, Any] = json.loads(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # For a moment its children are seen in sandboxes, where nobody needs to know of the host's folders.
    syscalls.rename("gymhost sandboxes")
    syscalls.many_files()
    step = "namespaces"
    try:
        is_root = root.own_namespaces()
        child = os.fork()
        if child != 0:
            channel.close()
            os.waitpid(child, 0)
            return
        syscalls.die_with_parent()
        groups = Groups()
        step = "mounts"
        root.enter(settings["files"])
    except OSError as error:
        channel.send(json.dumps({"number": 0, "failed": step, "error": str(error)}).encode())
        return
    held = [limit for limit in ("memory", "processes", "cpus") if groups.holds(limit)]
    told = {"root": is_root, "version": groups.version, "folders": groups.folders, "holds": held}
    channel.send(json.dumps({"number": 0, "ready": told}).encode())
    Keeper(channel, settings, groups).serve()
    os._exit(0)


if __name__ == "__main__":
    main()
