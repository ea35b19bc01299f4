"""Attributes of environments: which names can be reached from elsewhere at all, and how random generators travel.

A generator of NumPy's travels as a map with one key and the state of its bit generator, and arrives as one.
"""

from typing import Any, cast

import numpy as np

from gymhost.wire.errors import DecodeError

# What stands for all public names.
EVERY = "*"

_KEY = "random_generator"
_BIT_GENERATORS = {
    kind.__name__: kind
    for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
}


def is_public(name: object) -> bool:
    """Whether it can be the name of an attribute that is reached from elsewhere, or stands for all of them."""
    return isinstance(name, str) and (name == EVERY or (name.isidentifier() and not name.startswith("_")))


def pack(value: Any) -> Any:
    """Returns what an attribute's value travels as."""
    return {_KEY: state_of(value)} if isinstance(value, np.random.Generator) else value


def unpack(value: Any) -> Any:
    """Returns what `pack` was given.

    Raises:
        DecodeError: It is the state of no generator.
    """
    fields = cast(dict[Any, Any], value)
    if type(cast(object, value)) is not dict or fields.keys() != {_KEY}:
        return value
    state = fields[_KEY]
    try:
        _check_position(state)
        bit_generator = _BIT_GENERATORS[state["bit_generator"]](0)
        bit_generator.state = state
    except (LookupError, OverflowError, TypeError, ValueError) as error:
        raise DecodeError(f"not the state of a random generator: {error!r}") from None
    return np.random.Generator(bit_generator)


def _check_position(state: Any) -> None:
    # NumPy takes any, and reads memory that is not its own from there on.
    position, size = 0, 0
    if state["bit_generator"] == "MT19937":
        position, size = state["state"]["pos"], 624
    elif state["bit_generator"] == "Philox":
        position, size = state["buffer_pos"], 4
    if not 0 <= position <= size:
        raise ValueError(f"the position {position} is none")


def state_of(generator: np.random.Generator) -> Any:
    """The state of a generator, which can be set on another one of its kind."""
    return generator.bit_generator.state
