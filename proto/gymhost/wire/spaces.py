"""Gymnasium's spaces, and gymhost's own, to and from ``Space``.

The decoded space equals the original and prints, checks and, under the same seed, samples alike. The state of its
random generator does not travel. A class of space that is neither Gymnasium's nor gymhost's is refused, subclasses of
those included.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from google.protobuf.message import DecodeError as ParseError
from gymnasium import Space, spaces

from gymhost.v1 import values_pb2
from gymhost.wire import values
from gymhost.wire.chat_spaces import FreeText, Message, Messages
from gymhost.wire.errors import DecodeError, EncodeError
from gymhost.wire.limits import MAX_DEPTH
from gymhost.wire.paths import Refused, item_step, too_deep, with_article
from gymhost.wire.tensors import Array, decode_array, decode_scalar, encode_array, encode_scalar

# Bounds that are all equal travel as one number, so a few bytes could ask for any amount of memory. The boxes of a
# message may take this many bytes in all that way; those beyond travel with every bound.
_MAX_COMPACT = 1 << 28
# Stacking copies the space within, so that the work doubles with each level of it.
_MAX_STACKED = 4
# Older versions of Gymnasium always sort the keys of a plain dict.
_KNOWS_SORT_KEYS = "sort_keys" in inspect.signature(spaces.Dict).parameters
_MAX_UINT64 = (1 << 64) - 1


def encode(space: Space[Any], into: values_pb2.Space | None = None, *, name: str = "space") -> values_pb2.Space:
    """Encodes a space.

    Args:
        space: The space.
        into: An empty message to fill; a new one by default.
        name: What the space is called in errors.

    Raises:
        EncodeError: The space, or one within it, can't travel; the message has its path.
    """
    message = values_pb2.Space() if into is None else into
    try:
        _Encoder().encode(space, message, 0)
    except Refused as refused:
        raise EncodeError(refused.message(name)) from None
    return message


def decode(message: values_pb2.Space) -> Space[Any]:
    """Decodes a space.

    Raises:
        DecodeError: The message is malformed, or says nothing that the installed Gymnasium accepts as a space.
    """
    return _Decoder().decode(message, 0)


def dumps(space: Space[Any], *, name: str = "space") -> bytes:
    """Encodes a space to the bytes of a ``Space``.

    Raises:
        EncodeError: The space, or one within it, can't travel.
    """
    return encode(space, name=name).SerializeToString()


def loads(data: bytes) -> Space[Any]:
    """Decodes the bytes of a ``Space``.

    Raises:
        DecodeError: The bytes are malformed.
    """
    try:
        message = values_pb2.Space.FromString(data)
    except ParseError as error:
        raise DecodeError(f"not a space: {error}") from None
    return decode(message)


class _Encoder:
    """The encoding of one space with all within it."""

    def __init__(self) -> None:
        self._compact = 0
        self._stacked = 0

    def encode(self, space: Space[Any], message: values_pb2.Space, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise too_deep()
        kind = type(space)
        method = self._METHODS.get(kind)
        if method is None:
            what = with_article(kind.__name__)
            if not isinstance(cast(object, space), Space):
                raise Refused(f"{what} is no space")
            known = next((base for base in kind.__mro__ if base in self._METHODS), None)
            if known is not None:
                raise Refused(f"{what} can't travel, as it would come back as a plain {known.__name__}")
            raise Refused(f"{what} can't travel; the spaces of Gymnasium and of gymhost can")
        method(self, space, message, depth)

    def _box(self, space: spaces.Box, message: values_pb2.Space, depth: int) -> None:
        box = message.box
        box.dtype = space.dtype.str[1:]
        if box.dtype not in _BOX_DTYPES:
            raise Refused(f"a Box of dtype {space.dtype} can't travel, as machines differ in its layout; use float64")
        box.shape.extend(space.shape)
        low, high = _bounds(space)
        size = _memory(space.shape, space.dtype) << self._stacked
        if self._compact + size <= _MAX_COMPACT and _is_uniform(low) and _is_uniform(high):
            self._compact += size
            low, high = low.reshape(-1)[0], high.reshape(-1)[0]
        encode_array(np.asarray(low), box.low)
        encode_array(np.asarray(high), box.high)

    def _discrete(self, space: spaces.Discrete, message: values_pb2.Space, depth: int) -> None:
        encode_scalar(space.dtype.type(space.n), message.discrete.n)
        encode_scalar(space.dtype.type(space.start), message.discrete.start)

    def _multi_binary(self, space: spaces.MultiBinary, message: values_pb2.Space, depth: int) -> None:
        message.multi_binary.SetInParent()
        message.multi_binary.shape.extend(space.shape)
        message.multi_binary.scalar_n = isinstance(space.n, int)

    def _multi_discrete(self, space: spaces.MultiDiscrete, message: values_pb2.Space, depth: int) -> None:
        encode_array(space.nvec, message.multi_discrete.nvec)
        encode_array(space.start, message.multi_discrete.start)

    def _text(self, space: spaces.Text, message: values_pb2.Space, depth: int) -> None:
        text = message.text
        text.SetInParent()
        if space.max_length > _MAX_UINT64:
            raise Refused(f"a Text of up to {space.max_length} characters can't travel; up to 2**64 - 1 can")
        text.min_length = space.min_length
        text.max_length = space.max_length
        try:
            text.charset = "".join(space.character_list)
        except UnicodeEncodeError:
            raise Refused("a Text whose charset has lone surrogates can't travel") from None
        if len(text.charset) != len(space.character_list):
            raise Refused("a Text whose charset has elements that are not one character can't travel")

    def _tuple(self, space: spaces.Tuple[Any], message: values_pb2.Space, depth: int) -> None:
        message.tuple.SetInParent()
        self._sequence_of(space.spaces, message.tuple.spaces.add, depth)

    def _one_of(self, space: spaces.OneOf[Any], message: values_pb2.Space, depth: int) -> None:
        message.one_of.SetInParent()
        self._sequence_of(space.spaces, message.one_of.spaces.add, depth)

    def _sequence_of(self, subspaces: Sequence[Space[Any]], add: Callable[[], values_pb2.Space], depth: int) -> None:
        for index, subspace in enumerate(subspaces):
            self._part(subspace, add(), depth, f"[{index}]")

    def _dict(self, space: spaces.Dict, message: values_pb2.Space, depth: int) -> None:
        target = message.dict
        target.unsorted = not getattr(space, "sort_keys", True)
        target.SetInParent()
        for key, subspace in space.spaces.items():
            try:
                values.fill(key, target.keys.add(), depth + 1)
            except Refused as refused:
                raise Refused(f"the key {item_step(key)[1:-1]} can't travel: {refused.reason}") from None
            self._part(subspace, target.spaces.add(), depth, item_step(key))

    def _sequence(self, space: spaces.Sequence, message: values_pb2.Space, depth: int) -> None:
        stack = bool(space.stack)
        message.sequence.stack = stack
        self._stack(stack)
        self._part(space.feature_space, message.sequence.feature_space, depth, ".feature_space")
        self._stacked -= stack

    def _graph(self, space: spaces.Graph, message: values_pb2.Space, depth: int) -> None:
        self._stack(1)
        self._part(space.node_space, message.graph.node_space, depth, ".node_space")
        if space.edge_space is not None:
            self._part(space.edge_space, message.graph.edge_space, depth, ".edge_space")
        self._stacked -= 1

    def _free_text(self, space: FreeText, message: values_pb2.Space, depth: int) -> None:
        message.free_text.SetInParent()
        message.free_text.max_length = space.max_length or 0

    def _message(self, space: Message, message: values_pb2.Space, depth: int) -> None:
        message.message.SetInParent()
        message.message.roles.extend(space.roles or ())

    def _messages(self, space: Messages, message: values_pb2.Space, depth: int) -> None:
        message.messages.SetInParent()
        message.messages.roles.extend(space.roles or ())

    def _stack(self, levels: int) -> None:
        self._stacked += levels
        if self._stacked > _MAX_STACKED:
            raise Refused(f"Graph and stacked Sequence spaces nested more than {_MAX_STACKED} deep can't travel")

    def _part(self, space: Space[Any], message: values_pb2.Space, depth: int, step: str) -> None:
        try:
            self.encode(space, message, depth + 1)
        except Refused as refused:
            raise refused.within(step) from None

    _METHODS: dict[type, Callable[[_Encoder, Any, values_pb2.Space, int], None]] = {
        spaces.Box: _box,
        spaces.Discrete: _discrete,
        spaces.MultiBinary: _multi_binary,
        spaces.MultiDiscrete: _multi_discrete,
        spaces.Text: _text,
        spaces.Tuple: _tuple,
        spaces.Dict: _dict,
        spaces.Sequence: _sequence,
        spaces.Graph: _graph,
        spaces.OneOf: _one_of,
        FreeText: _free_text,
        Message: _message,
        Messages: _messages,
    }


class _Decoder:
    """The decoding of one message with all within it."""

    def __init__(self) -> None:
        self._compact = 0
        self._stacked = 0

    def decode(self, message: values_pb2.Space, depth: int) -> Space[Any]:
        if depth > MAX_DEPTH:
            raise DecodeError(f"a space nested more than {MAX_DEPTH} deep")
        kind = message.WhichOneof("kind")
        if kind is None:
            raise DecodeError("a space of no kind that this version knows")
        try:
            return self._METHODS[kind](self, message, depth)
        except DecodeError:
            raise
        except Exception as error:  # the constructors of Gymnasium raise what they like, assertions included
            raise DecodeError(f"not a valid {kind} space: {error}") from error

    def _box(self, message: values_pb2.Space, depth: int) -> Space[Any]:
        box = message.box
        if box.dtype not in _BOX_DTYPES:
            raise DecodeError(f"unknown dtype of a box: {box.dtype!r}")
        dtype = np.dtype(f"<{box.dtype}")
        shape = tuple(box.shape)
        if min(shape, default=0) < 0:
            raise DecodeError(f"a box of shape {shape}")
        low, high = (self._bound(tensor, shape, dtype) for tensor in (box.low, box.high))
        if not (box.low.shape and box.high.shape):
            self._compact += _memory(shape, dtype) << self._stacked
            if self._compact > _MAX_COMPACT:
                raise DecodeError(f"boxes larger than {_MAX_COMPACT} bytes without each of their bounds")
        with np.errstate(all="ignore"):  # bounds that the dtype can't hold are refused or cut, without a word
            return spaces.Box(low, high, shape, cast("Any", dtype))

    def _bound(self, tensor: values_pb2.Tensor, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """A bound as the constructor of Box takes it: an array of the shape, or one number."""
        bound = decode_array(tensor)
        if bound.dtype != dtype and not (bound.dtype == np.float64 and dtype.kind == "i"):
            raise DecodeError(f"bounds of type {tensor.dtype} in a box of dtype {dtype}")
        if bound.ndim:
            return bound
        number = bound.item()
        return int(number) if isinstance(number, bool) else number

    def _discrete(self, message: values_pb2.Space, depth: int) -> Space[Any]:
        n, start = decode_scalar(message.discrete.n), decode_scalar(message.discrete.start)
        if n.dtype != start.dtype:
            raise DecodeError(f"a Discrete with n of dtype {n.dtype} and start of dtype {start.dtype}")
        if n.dtype == np.int64:  # all that older versions of Gymnasium know
            return spaces.Discrete(cast("Any", n), start=cast("Any", start))
        return spaces.Discrete(cast("Any", n), start=cast("Any", start), dtype=cast("Any", n.dtype))

    def _multi_binary(self, message: values_pb2.Space, depth: int) -> Space[Any]:
        shape = tuple(message.multi_binary.shape)
        if not message.multi_binary.scalar_n:
            return spaces.MultiBinary(shape)
        (n,) = shape
        return spaces.MultiBinary(n)

    def _multi_discrete(self, message: values_pb2.Space, depth: int) -> Space[Any]:
        nvec, start = decode_array(message.multi_discrete.nvec), decode_array(message.multi_discrete.start)
        if nvec.dtype != start.dtype:
            raise DecodeError(f"a MultiDiscrete with nvec of dtype {nvec.dtype} and start of dtype {start.dtype}")
        return spaces.MultiDiscrete(nvec, dtype=cast("Any", nvec.dtype), start=start)

    def _text(self, message: values_pb2.Space, depth: int) -> Space[Any]:
        text = message.text
        if len(set(text.charset)) != len(text.charset):
            raise DecodeError("a charset with a repeated character")
        return spaces.Text(text.max_length, min_length=text.min_length, charset=text.charset)

    def _tuple(self, message: values_pb2.Space, depth: int) -> Space[Any]:
        return spaces.Tuple([self.decode(space, depth + 1) for space in message.tuple.spaces])

    def _one_of(self, message: values_pb2.Space, depth: int) -> Space[Any]:
        return spaces.OneOf([self.decode(space, depth + 1) for space in message.one_of.spaces])

    def _dict(self, message: values_pb2.Space, depth: int) -> Space[Any]:
        keys = [values.extract(key, depth + 1) for key in message.dict.keys]
        pairs = list(zip(keys, (self.decode(space, depth + 1) for space in message.dict.spaces), strict=True))
        if len(dict(pairs)) != len(pairs):
            raise DecodeError("a Dict with a repeated key")
        # Pairs are taken in their order, where a dict is sorted.
        if message.dict.unsorted and _KNOWS_SORT_KEYS:
            return spaces.Dict(pairs, sort_keys=False)
        return spaces.Dict(pairs)

    def _sequence(self, message: values_pb2.Space, depth: int) -> Space[Any]:
        stack = message.sequence.stack
        self._stack(stack)
        feature_space = self.decode(message.sequence.feature_space, depth + 1)
        self._stacked -= stack
        return spaces.Sequence(feature_space, stack=stack)

    def _graph(self, message: values_pb2.Space, depth: int) -> Space[Any]:
        graph = message.graph
        self._stack(1)
        node_space = self.decode(graph.node_space, depth + 1)
        edge_space = self.decode(graph.edge_space, depth + 1) if graph.HasField("edge_space") else None
        self._stacked -= 1
        return spaces.Graph(node_space, edge_space)

    def _free_text(self, message: values_pb2.Space, depth: int) -> Space[Any]:
        return FreeText(message.free_text.max_length or None)

    def _message(self, message: values_pb2.Space, depth: int) -> Space[Any]:
        return Message(message.message.roles or None)

    def _messages(self, message: values_pb2.Space, depth: int) -> Space[Any]:
        return Messages(message.messages.roles or None)

    def _stack(self, levels: int) -> None:
        self._stacked += levels
        if self._stacked > _MAX_STACKED:
            raise DecodeError(f"Graph and stacked Sequence spaces nested more than {_MAX_STACKED} deep")

    _METHODS: dict[str, Callable[[_Decoder, values_pb2.Space, int], Space[Any]]] = {
        "box": _box,
        "discrete": _discrete,
        "multi_binary": _multi_binary,
        "multi_discrete": _multi_discrete,
        "text": _text,
        "tuple": _tuple,
        "dict": _dict,
        "sequence": _sequence,
        "graph": _graph,
        "one_of": _one_of,
        "free_text": _free_text,
        "message": _message,
        "messages": _messages,
    }


_BOX_DTYPES = frozenset(("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"))


def _bounds(space: spaces.Box) -> tuple[Array, Array]:
    """The bounds with infinity where there is none: a Box of integers stores the limit of its dtype in that place."""
    low: Array = space.low
    high: Array = space.high
    if space.dtype.kind == "i":
        # Only infinities in an array of floats, or one for all, make an integer unbounded, so nothing is rounded.
        if not np.all(space.bounded_below):
            low = np.where(space.bounded_below, low, -np.inf)
        if not np.all(space.bounded_above):
            high = np.where(space.bounded_above, high, np.inf)
    return low, high


def _is_uniform(bounds: Array) -> bool:
    """Whether all elements are the same to the bit."""
    bits = np.ascontiguousarray(bounds).reshape(-1).view(f"u{bounds.itemsize}")
    return bool(bits.size and (bits == bits[0]).all())


def _memory(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """The bytes that a Box takes: two bounds, and whether each is one."""
    return math.prod(shape) * 2 * (dtype.itemsize + 1)
