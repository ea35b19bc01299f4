"""What the codec says about something that can't be encoded, and where it stands."""

from __future__ import annotations

from gymhost.wire.limits import MAX_DEPTH


class Refused(Exception):
    """Raised inside the codec where something can't travel; each container it passes adds its step to the path."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self._steps: list[str] = []

    def within(self, step: str) -> Refused:
        """Notes, from the inside out, where in its container the refused thing stands."""
        self._steps.append(step)
        return self

    def message(self, root: str) -> str:
        """Says what was refused, with its path from the root, such as ``info['a'][3]: a set can't travel``."""
        return f"{root}{''.join(reversed(self._steps))}: {self.reason}"


def too_deep() -> Refused:
    """The refusal of a container that stands too deep, as one does that holds itself."""
    return Refused(f"nested more than {MAX_DEPTH} deep (or it holds itself)")


def item_step(key: object) -> str:
    """The step into a list or a dict, kept short enough for a message."""
    try:
        text = repr(key)
    except Exception:  # noqa: BLE001 - a foreign object's repr may fail in any way, and it is only to explain
        text = f"<{type(key).__name__}>"
    return f"[{text if len(text) <= 80 else text[:77] + '...'}]"


def with_article(name: str) -> str:
    """A type's name as a sentence has it: ``a set``, ``an Action``."""
    return f"{'an' if name[:1] in 'aeiouAEIOU' else 'a'} {name}"
