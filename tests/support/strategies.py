"""Hypothesis strategies for what travels: `values`, `spaces` and the parts that they are made of."""

import inspect
from typing import Any

import numpy as np
from gymnasium import spaces as gs
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gymhost.wire.chat_spaces import ROLES, FreeText, Message, Messages

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")
NUMBERS = ("bool", *INTEGERS, *FLOATS, "complex64", "complex128")
OTHERS = ("U1", "U5", "S1", "S5", "M8[ns]", "M8[D]", "M8[25s]", "m8[us]", "m8[Y]")
BIG_ENDIAN = (">i4", ">u8", ">f2", ">f8", ">c16", ">U3", ">M8[s]")

# What Gymnasium gained after the oldest version that is supported.
_DISCRETE_DTYPES = INTEGERS if "dtype" in inspect.signature(gs.Discrete).parameters else ("int64",)
_SORT_KEYS = "sort_keys" in inspect.signature(gs.Dict).parameters


def texts(max_size: int | None = 8) -> st.SearchStrategy[str]:
    """Any text, lone surrogates included."""
    return st.text(st.characters(), max_size=max_size)


def dtypes() -> st.SearchStrategy[np.dtype[Any]]:
    return st.sampled_from(NUMBERS + OTHERS + BIG_ENDIAN).map(np.dtype)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Arrays of any dtype that travels, any rank and any layout in memory."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    array = draw(hnp.arrays(draw(dtypes()), shape))
    match draw(st.integers(0, 3)):
        case 0:
            return array.T
        case 1 if array.ndim:
            return array[::-1]
        case 2 if array.ndim:
            return array.repeat(2, axis=-1)[..., ::2]
        case _:
            return array


def scalars() -> st.SearchStrategy[np.generic]:
    """NumPy scalars of any dtype that travels."""
    numbers = dtypes().flatmap(lambda dtype: hnp.arrays(dtype, (1,))).map(lambda array: array[0])
    return numbers | texts().map(np.str_) | st.binary(max_size=5).map(np.bytes_)


def leaves() -> st.SearchStrategy[Any]:
    integers = (
        st.integers() | st.integers(-(2**200), 2**200) | st.sampled_from((2**63 - 1, 2**63, -(2**63), -(2**63) - 1))
    )
    plain = st.none() | st.booleans() | integers | st.floats() | st.complex_numbers() | texts() | st.binary(max_size=8)
    return plain | scalars() | arrays()


def keys() -> st.SearchStrategy[Any]:
    """Whatever can be the key of a dict and travel."""
    plain = (
        st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers() | texts() | st.binary(max_size=4)
    )
    return st.recursive(plain | scalars(), lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=3)


def values(max_leaves: int = 8) -> st.SearchStrategy[Any]:
    """Whatever can travel."""
    return st.recursive(leaves(), _containers, max_leaves=max_leaves)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    items = st.lists(inner, max_size=4)
    return (
        items
        | items.map(tuple)
        | st.dictionaries(texts(), inner, max_size=4)
        | st.dictionaries(keys(), inner, max_size=4)
        | items.map(_object_array)
        | st.builds(gs.GraphInstance, inner, inner, inner)
    )


def _object_array(items: list[Any]) -> np.ndarray[Any, Any]:
    array = np.empty(len(items), dtype=object)
    for index, item in enumerate(items):
        array[index] = item
    return array if len(items) % 2 or not items else array.reshape(2, -1)


@st.composite
def boxes(draw: st.DrawFn) -> Any:
    """Boxes of any dtype, with bounds for all or for each or none; small enough to be sampled exactly."""
    dtype: Any = np.dtype(draw(st.sampled_from(("bool", *INTEGERS, *FLOATS))))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    each = shape != () and draw(st.booleans())
    if dtype.kind == "b":
        low, high = (0, 1) if not each else (np.zeros(shape, bool), draw(hnp.arrays(bool, shape)))
        return gs.Box(low, high, shape, dtype.type)
    bounds = st.integers(0, 50) if dtype.kind == "u" else st.integers(-50, 50)
    sizes = st.integers(0, 50)
    if dtype.kind == "f":
        bounds, sizes = bounds.map(lambda n: n / 4), sizes.map(lambda n: n / 8)
    if not each:
        low = draw(bounds)
        high = low + draw(sizes)
        if dtype.kind != "u":
            low, high = draw(st.sampled_from(((low, high), (-np.inf, high), (low, np.inf), (-np.inf, np.inf))))
        return gs.Box(low, high, shape, dtype.type)
    low = draw(hnp.arrays(np.float64, shape, elements=bounds))
    high = low + draw(hnp.arrays(np.float64, shape, elements=sizes))
    if dtype.kind != "u" and dtype.itemsize < 8:  # with wider integers Gymnasium itself fails at single infinities
        low = np.where(draw(hnp.arrays(bool, shape)), low, -np.inf)
        high = np.where(draw(hnp.arrays(bool, shape)), high, np.inf)
    if dtype.kind != "i":
        low, high = low.astype(dtype), high.astype(dtype)
    return gs.Box(low, high, shape, dtype.type)


@st.composite
def discretes(draw: st.DrawFn) -> gs.Space[Any]:
    dtype = np.dtype(draw(st.sampled_from(_DISCRETE_DTYPES)))
    start = draw(st.integers(0 if dtype.kind == "u" else -20, 20))
    more: Any = {} if dtype == np.int64 else {"dtype": dtype.type}
    return gs.Discrete(draw(st.integers(1, 50)), start=start, **more)


@st.composite
def multi_discretes(draw: st.DrawFn) -> gs.Space[Any]:
    dtype = np.dtype(draw(st.sampled_from(INTEGERS)))
    shape = draw(hnp.array_shapes(max_dims=2, max_side=3))
    nvec = draw(hnp.arrays(dtype, shape, elements=st.integers(1, 20)))
    start = draw(hnp.arrays(dtype, shape, elements=st.integers(0 if dtype.kind == "u" else -20, 20)))
    return gs.MultiDiscrete(nvec, dtype=dtype.type, start=start)


@st.composite
def text_spaces(draw: st.DrawFn) -> gs.Text:
    charset = draw(st.text(min_size=1, max_size=8).map(lambda text: "".join(dict.fromkeys(text))))
    shortest = draw(st.integers(0, 4))
    return gs.Text(shortest + draw(st.integers(0, 8)), min_length=shortest, charset=charset)


def chat_spaces() -> st.SearchStrategy[gs.Space[Any]]:
    roles = st.none() | st.lists(st.sampled_from(ROLES), min_size=1, max_size=4, unique=True)
    return st.builds(FreeText, st.none() | st.integers(1, 100)) | st.builds(Message, roles) | st.builds(Messages, roles)


def array_spaces() -> st.SearchStrategy[gs.Space[Any]]:
    """Spaces whose samples are arrays or numbers."""
    multi_binaries = st.builds(gs.MultiBinary, st.integers(1, 4) | st.lists(st.integers(1, 3), min_size=1, max_size=3))
    return boxes() | discretes() | multi_discretes() | multi_binaries


@st.composite
def graphs(draw: st.DrawFn) -> gs.Graph:
    # What Gymnasium samples wrongly as nodes is left out: unbounded wide integers, and (older versions) a start.
    narrow = boxes().filter(lambda box: box.dtype.itemsize < 8 or box.is_bounded())
    parts = narrow | st.builds(gs.Discrete, st.integers(1, 20))
    return gs.Graph(draw(parts), draw(st.none() | parts))


@st.composite
def dict_spaces(draw: st.DrawFn, inner: st.SearchStrategy[gs.Space[Any]]) -> gs.Dict:
    names = draw(st.lists(texts() | st.integers() | st.tuples(st.booleans(), texts()), max_size=3, unique=True))
    pairs: Any = {name: draw(inner) for name in names}
    if _SORT_KEYS:
        return gs.Dict(pairs, sort_keys=draw(st.booleans()))
    return gs.Dict(pairs)


def spaces(depth: int = 3) -> st.SearchStrategy[gs.Space[Any]]:
    """Any space that travels, nested so many levels deep at most."""
    flat = (
        array_spaces()
        | text_spaces()
        | chat_spaces()
        | graphs()
        | st.builds(gs.Sequence, array_spaces(), stack=st.just(True))
    )
    if depth == 1:
        return flat
    inner = spaces(depth - 1)
    several = st.lists(inner, min_size=1, max_size=3)
    return flat | several.map(gs.Tuple) | several.map(gs.OneOf) | dict_spaces(inner) | st.builds(gs.Sequence, inner)
