"""Words in messages."""

__all__ = ["counted"]


def counted(number: int, noun: str) -> str:
    """A number of things, such as `1 session` and `2 sessions`.

    Args:
        number: How many.
        noun: What one of them is called; the plural is the same with an `s`.
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
