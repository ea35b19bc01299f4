"""What a session was told since its last seeded reset: what it is made from again when it is lost."""

import secrets
from typing import NamedTuple

from google.protobuf.message import DecodeError as ProtobufDecodeError

from gymhost.client.pending import Pending
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors

__all__ = ["Entry", "Journal", "digest", "is_seeded_reset"]

# A session that was told more than this since its last seeded reset can't be recovered.
MOST_COMMANDS = 10_000
MOST_BYTES = 2**20

_RESET, _STEP = pb.COMMAND_KIND_RESET, pb.COMMAND_KIND_STEP
_GET, _SET, _CALL = pb.COMMAND_KIND_GET_ATTR, pb.COMMAND_KIND_SET_ATTR, pb.COMMAND_KIND_CALL

# What the environment's own state decides; any other code tells of the time that something took, or of the machine.
_DECIDED = frozenset(
    {
        pb.REPLY_CODE_OK_UNSPECIFIED,
        pb.REPLY_CODE_ENVIRONMENT_FAULT,
        pb.REPLY_CODE_INVALID_ARGUMENT,
        pb.REPLY_CODE_PERMISSION_DENIED,
        pb.REPLY_CODE_RESET_NEEDED,
        pb.REPLY_CODE_TOO_LARGE,
        pb.REPLY_CODE_UNIMPLEMENTED,
    }
)
# Attributes that a seeded reset makes anew.
_GENERATOR = frozenset({"_np_random", "_np_random_seed", "np_random", "np_random_seed"})
# What is called and changes nothing, by Gymnasium's and the trainers' convention.
_READ = _GENERATOR | {"action_masks", "get_action_meanings", "metadata", "render", "render_mode", "spec"}


class Entry(NamedTuple):
    """A command that was answered.

    Attributes:
        kind: Its kind.
        payload: Its payload.
        digest: Eight bytes that tell its reply from others, in this process.
    """

    kind: int
    payload: bytes
    digest: int


class Journal:
    """The commands of one session since its last seeded reset, and before it those that may outlast a reset.

    A command is entered when the next one begins: it has been answered then, whoever waited for it or did not.

    Attributes:
        why_not: Why the session could not be made again from this; None while it could. A seeded reset mends it.
    """

    __slots__ = ("_bytes", "_entries", "_has_seed", "_last", "_overfull", "why_not")

    def __init__(self) -> None:
        self.why_not: str | None = None
        self._entries: list[Entry] = []
        self._bytes = 0
        # The command that was begun last, and is not entered yet.
        self._last: Pending | None = None
        # Whether the environment's generator was seeded, or drawn from: before that it would seed itself.
        self._has_seed = False
        # Whether even the commands that outlast resets are too many.
        self._overfull = False

    # -- writing; by whoever makes the command -------------------------------------------------------------------------

    def begin(self, pending: Pending) -> None:
        """Enters the command before this one, which has been answered; this one is the last from now on."""
        last = self._last
        if last is not None:
            if last.kind == _STEP and not last.code and self.why_not is None:
                # What `_enter` does, without a call more on the way of most steps.
                payload = last.payload
                self._entries.append(Entry(_STEP, payload, hash((0, last.reply))))
                self._bytes += len(payload)
                if len(self._entries) > MOST_COMMANDS or self._bytes > MOST_BYTES:
                    self._bound()
            else:
                self._enter(last)
        self._last = pending

    def copy(self) -> "Journal":
        """The journal of a fork, while the FORK is the last command, which is no part of either."""
        twin = Journal()
        twin.why_not, twin._entries, twin._bytes = self.why_not, self._entries.copy(), self._bytes
        twin._has_seed, twin._overfull = self._has_seed, self._overfull
        return twin

    def drop(self, pending: Pending) -> None:
        """Leaves out a command that was lost with the session, and that nobody waits for."""
        if self._last is pending:
            self._last = None

    def first_seed(self) -> int | None:
        """A seed for a reset that has none, as long as the environment would draw one itself; else None."""
        last = self._last
        if self._has_seed or (last is not None and last.kind == _RESET and not last.code):
            return None
        return secrets.randbits(31)

    def _enter(self, last: Pending) -> None:
        kind, code, payload = last.kind, last.code, last.payload
        if last.error is not None or kind == pb.COMMAND_KIND_FORK or self._overfull:
            return
        if code not in _DECIDED:
            what = errors.BY_CODE.get(code, errors.ServerFault).__name__
            self._break(f"a {_name(kind)} ended in {what}, and what it had done by then can't be repeated")
            return
        if kind == _RESET and not code:
            self._has_seed = True
            if is_seeded_reset(kind, payload):
                self._keep_lasting()
                self.why_not = None
        elif not self._has_seed and kind in (_GET, _SET, _CALL) and _attribute(payload) in _GENERATOR:
            self._has_seed = True
            if kind != _SET:
                self._break("its random generator was asked for before there was a seed")
                return
        if self.why_not is None or kind in (_SET, _CALL):
            self._entries.append(Entry(kind, payload, digest(code, last.reply)))
            self._bytes += len(payload)
            self._bound()

    def _bound(self) -> None:
        if len(self._entries) > MOST_COMMANDS:
            self._break(f"it was told more than {MOST_COMMANDS:,} commands since its last seeded reset")
        elif self._bytes > MOST_BYTES:
            self._break(f"the commands since its last seeded reset have more than {MOST_BYTES >> 20} MiB")
        else:
            return
        if len(self._entries) > MOST_COMMANDS or self._bytes > MOST_BYTES:
            self._overfull = True
            self._entries = []

    def _break(self, why: str) -> None:
        self.why_not = why
        self._keep_lasting()

    def _keep_lasting(self) -> None:
        self._entries = _lasting(self._entries)
        self._bytes = sum([len(entry.payload) for entry in self._entries])

    # -- reading; by whoever makes the session again, while a command waits for that ---------------------------------

    def entries(self) -> list[Entry]:
        """All that is to be repeated."""
        return self._entries.copy()

    def before(self, pending: Pending) -> list[Entry] | None:
        """What is to be repeated before a command; None where that is not known any more.

        Before a seeded reset it is less, as if that were certain to go well.
        """
        if is_seeded_reset(pending.kind, pending.payload):
            return None if self._overfull else _lasting(self._entries)
        return self._entries.copy() if self.why_not is None else None


def digest(code: int, reply: bytes) -> int:
    """What tells a reply from others.

    Of a failure the traceback does not count: it may tell of what was imported when.
    """
    if code:
        try:
            error = pb.Error.FromString(reply)
        except ProtobufDecodeError:
            return hash((code, reply))
        return hash((code, error.exception, error.message))
    return hash((code, reply))


def is_seeded_reset(kind: int, payload: bytes) -> bool:
    """Whether a command is a reset with a seed."""
    return kind == _RESET and pb.ResetCommand.FromString(payload).HasField("seed")


def _lasting(entries: list[Entry]) -> list[Entry]:
    """The commands whose effect a reset may leave: attributes that were set, and calls."""
    kept: list[Entry | None] = []
    # Where each name was last set, since the last call: what was set before that did nothing.
    places: dict[str, int] = {}
    for entry in entries:
        if entry.kind not in (_SET, _CALL):
            continue
        name = _attribute(entry.payload)
        if entry.kind == _CALL:
            if name in _READ:
                continue
            places.clear()
        elif name in _GENERATOR:
            continue
        else:
            if name in places:
                kept[places[name]] = None
            places[name] = len(kept)
        kept.append(entry)
    return [entry for entry in kept if entry is not None]


def _attribute(payload: bytes) -> str:
    return pb.AttributeCommand.FromString(payload).name


def _name(kind: int) -> str:
    return pb.CommandKind.Name(kind).removeprefix("COMMAND_KIND_")  # pyright: ignore[reportArgumentType]
