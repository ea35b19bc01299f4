"""Python values to and from ``Value``: what observations, actions, infos and options are made of.

What can travel comes back as it was, type and order included: None, bool, int of any size, float, complex, str, bytes,
NumPy scalars and arrays, list, tuple, dict with any key that can travel itself, and Gymnasium's ``GraphInstance``. A
few types come back as the plain type that they equal: ``OrderedDict`` and ``defaultdict`` as dict, members of int and
str enums as int and str, ``np.memmap`` as array. Anything else is refused, with its path. Nothing is ever pickled.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from enum import Enum
from typing import Any, cast

import numpy as np
from google.protobuf.message import DecodeError as ParseError
from gymnasium.spaces import GraphInstance

from gymhost.v1 import values_pb2
from gymhost.wire.errors import DecodeError, EncodeError
from gymhost.wire.limits import MAX_DEPTH
from gymhost.wire.paths import Refused, item_step, too_deep, with_article
from gymhost.wire.tensors import SCALAR_NAMES, Array, decode_array, decode_scalar, encode_array, encode_scalar

Value = values_pb2.Value
_Encoder = Callable[[Any, Value, int], None]
_Decoder = Callable[[Value, int], Any]

_TRAVELLERS = "None, bool, numbers, str, bytes, NumPy scalars and arrays, list, tuple, dict and GraphInstance can"
_TOO_DEEP = f"nested more than {MAX_DEPTH} deep"


def encode(obj: Any, into: Value | None = None, *, name: str = "value") -> Value:
    """Encodes a Python value.

    Args:
        obj: The value.
        into: An empty message to fill, such as a field of a larger one; a new message by default.
        name: What the value is called in errors.

    Returns:
        The message that was filled.

    Raises:
        EncodeError: Something in the value can't travel; the message has its path. ``into`` is then half filled.
    """
    value = Value() if into is None else into
    try:
        _ENCODERS[type(obj)](obj, value, 0)
    except Refused as refused:
        raise EncodeError(refused.message(name)) from None
    return value


def decode(value: Value) -> Any:
    """Decodes a Python value; arrays are writable and in memory of their own.

    Raises:
        DecodeError: The message is malformed.
    """
    return _DECODERS[value.WhichOneof("kind")](value, 0)


def dumps(obj: Any, *, name: str = "value") -> bytes:
    """Encodes a Python value to the bytes of a ``Value``.

    Raises:
        EncodeError: Something in the value can't travel.
    """
    return encode(obj, name=name).SerializeToString()


def loads(data: bytes) -> Any:
    """Decodes the bytes of a ``Value``.

    Raises:
        DecodeError: The bytes are malformed.
    """
    try:
        value = Value.FromString(data)
    except ParseError as error:
        raise DecodeError(f"not a value: {error}") from None
    return decode(value)


def fill(obj: Any, value: Value, depth: int) -> None:
    """Encodes a value that stands so many levels deep in something else.

    Raises:
        Refused: Something in the value can't travel.
    """
    _ENCODERS[type(obj)](obj, value, depth)


def extract(value: Value, depth: int) -> Any:
    """Decodes a value that stands so many levels deep in something else.

    Raises:
        DecodeError: The message is malformed.
    """
    return _DECODERS[value.WhichOneof("kind")](value, depth)


# ---------------------------------------------------------------------------------------------------------------------
# Encoding


def _encode_none(obj: None, value: Value, depth: int) -> None:
    pass


def _encode_bool(obj: bool, value: Value, depth: int) -> None:
    value.boolean = obj


def _encode_int(obj: int, value: Value, depth: int) -> None:
    try:
        value.integer = obj
    except ValueError:
        value.big_integer = obj.to_bytes(obj.bit_length() // 8 + 1, "little", signed=True)


def _encode_float(obj: float, value: Value, depth: int) -> None:
    value.float = obj


def _encode_complex(obj: complex, value: Value, depth: int) -> None:
    number = value.complex
    number.SetInParent()
    number.real = obj.real
    number.imag = obj.imag


def _encode_str(obj: str, value: Value, depth: int) -> None:
    try:
        value.text = obj
    except UnicodeEncodeError:
        value.surrogate_text = obj.encode("utf-8", "surrogatepass")


def _encode_bytes(obj: bytes, value: Value, depth: int) -> None:
    value.data = obj


def _encode_scalar(obj: np.generic, value: Value, depth: int) -> None:
    encode_scalar(obj, value.scalar)


def _encode_array(obj: Array, value: Value, depth: int) -> None:
    if obj.dtype.kind == "O":
        _encode_object_array(obj, value, depth)
    else:
        encode_array(obj, value.tensor)


def _encode_object_array(obj: Array, value: Value, depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise too_deep()
    array = value.object_array
    array.SetInParent()
    array.shape.extend(obj.shape)
    index = 0
    try:
        for index, item in enumerate(obj.flat):  # noqa: B007 - the last one is told by a refusal
            _ENCODERS[type(item)](item, array.items.add(), depth + 1)
    except Refused as refused:
        position = [int(i) for i in np.unravel_index(index, obj.shape)]
        raise refused.within(str(position or [()])) from None


def _encode_list(obj: list[Any], value: Value, depth: int) -> None:
    _encode_items(obj, value.list, depth)


def _encode_tuple(obj: tuple[Any, ...], value: Value, depth: int) -> None:
    _encode_items(obj, value.tuple, depth)


def _encode_items(obj: list[Any] | tuple[Any, ...], target: values_pb2.ListValue, depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise too_deep()
    if not obj:
        target.SetInParent()
        return
    depth += 1
    index = 0
    add = target.items.add
    try:
        for item in obj:
            _ENCODERS[type(item)](item, add(), depth)
            index += 1
    except Refused as refused:
        raise refused.within(f"[{index}]") from None


def _encode_dict(obj: dict[Any, Any], value: Value, depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise too_deep()
    target = value.map
    if not obj:
        target.SetInParent()
        return
    depth += 1
    key = None
    try:
        for key in obj:
            if type(key) is not str:
                _encode_keys(obj, target, depth)
                break
        else:
            try:
                target.names.extend(obj)
            except UnicodeEncodeError:
                target.ClearField("names")
                _encode_keys(obj, target, depth)
        add = target.values.add
        for key, item in obj.items():  # noqa: B007 - the last one is told by a refusal
            _ENCODERS[type(item)](item, add(), depth)
    except Refused as refused:
        raise refused.within(item_step(key)) from None


def _encode_keys(obj: dict[Any, Any], target: values_pb2.MapValue, depth: int) -> None:
    for key in obj:
        try:
            _ENCODERS[type(key)](key, target.keys.add(), depth)
        except Refused as refused:
            raise Refused(f"the key {item_step(key)[1:-1]} can't travel: {refused.reason}") from None


def _encode_graph(obj: GraphInstance, value: Value, depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise too_deep()
    graph = value.graph
    graph.SetInParent()
    for field, item, target in zip(obj._fields, obj, (graph.nodes, graph.edges, graph.edge_links), strict=True):
        try:
            _ENCODERS[type(item)](item, target, depth + 1)
        except Refused as refused:
            raise refused.within(f".{field}") from None


def _encode_other(obj: object, value: Value, depth: int) -> None:
    """Encodes what equals a plain value, and says of anything else why it can't travel."""
    if isinstance(obj, Enum) and isinstance(obj, int):
        return _encode_int(int(obj), value, depth)
    if isinstance(obj, Enum) and isinstance(obj, str):
        return _encode_str(str.__str__(obj), value, depth)
    kind = cast("type", type(obj))
    for base in kind.__mro__[1:]:
        if base in _ENCODERS:
            raise Refused(
                f"{with_article(kind.__name__)} can't travel, as it would come back as a plain {base.__name__}; "
                f"convert it first"
            )
    raise Refused(f"{with_article(kind.__name__)} can't travel; {_TRAVELLERS}")


class _Encoders(dict[type, _Encoder]):
    def __missing__(self, kind: type) -> _Encoder:
        return _encode_other


_ENCODERS = _Encoders(
    {
        type(None): _encode_none,
        bool: _encode_bool,
        int: _encode_int,
        float: _encode_float,
        complex: _encode_complex,
        str: _encode_str,
        bytes: _encode_bytes,
        list: _encode_list,
        tuple: _encode_tuple,
        dict: _encode_dict,
        OrderedDict: _encode_dict,
        defaultdict: _encode_dict,
        np.ndarray: _encode_array,
        np.memmap: _encode_array,
        GraphInstance: _encode_graph,
        **dict.fromkeys(SCALAR_NAMES, _encode_scalar),
        # The last three are known only to be refused with a reason of their own.
        **dict.fromkeys(
            (np.str_, np.bytes_, np.datetime64, np.timedelta64, np.longdouble, np.clongdouble, np.void), _encode_scalar
        ),
    }
)


# ---------------------------------------------------------------------------------------------------------------------
# Decoding
#
# This runs for every step, and most of what it meets is text in lists and dicts. Two things pay there (measured, with
# protobuf's upb): a slice of a repeated field is made in half the time that iterating over it takes, and the text of a
# value, which is empty where it is of another kind, is read at half the cost of asking for the kind.


def _decode_none(value: Value, depth: int) -> None:
    if value.ByteSize():
        raise DecodeError("a kind of value that this version does not know")


def _decode_boolean(value: Value, depth: int) -> bool:
    return value.boolean


def _decode_integer(value: Value, depth: int) -> int:
    return value.integer


def _decode_big_integer(value: Value, depth: int) -> int:
    return int.from_bytes(value.big_integer, "little", signed=True)


def _decode_float(value: Value, depth: int) -> float:
    return value.float


def _decode_complex(value: Value, depth: int) -> complex:
    return complex(value.complex.real, value.complex.imag)


def _decode_text(value: Value, depth: int) -> str:
    return value.text


def _decode_surrogate_text(value: Value, depth: int) -> str:
    try:
        return value.surrogate_text.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise DecodeError(f"not text: {error}") from None


def _decode_data(value: Value, depth: int) -> bytes:
    return value.data


def _decode_scalar(value: Value, depth: int) -> np.generic:
    return decode_scalar(value.scalar)


def _decode_tensor(value: Value, depth: int) -> Array:
    return decode_array(value.tensor)


def _decode_list(value: Value, depth: int) -> list[Any]:
    if depth >= MAX_DEPTH:
        raise DecodeError(_TOO_DEEP)
    depth += 1
    return [item.text or _DECODERS[item.WhichOneof("kind")](item, depth) for item in value.list.items[:]]


def _decode_tuple(value: Value, depth: int) -> tuple[Any, ...]:
    if depth >= MAX_DEPTH:
        raise DecodeError(_TOO_DEEP)
    depth += 1
    return tuple([item.text or _DECODERS[item.WhichOneof("kind")](item, depth) for item in value.tuple.items[:]])


def _decode_map(value: Value, depth: int) -> dict[Any, Any]:
    if depth >= MAX_DEPTH:
        raise DecodeError(_TOO_DEEP)
    depth += 1
    source = value.map
    items = [item.text or _DECODERS[item.WhichOneof("kind")](item, depth) for item in source.values[:]]
    keys: list[Any] = source.names[:]
    if len(keys) != len(items):
        if keys or len(source.keys) != len(items):
            raise DecodeError(f"a map of {len(keys) + len(source.keys)} keys and {len(items)} values")
        keys = [_DECODERS[key.WhichOneof("kind")](key, depth) for key in source.keys[:]]
    try:
        result = dict(zip(keys, items, strict=True))
    except TypeError as error:
        raise DecodeError(f"a key of a map can't be one: {error}") from None
    if len(result) != len(items):
        raise DecodeError("a map with a repeated key")
    return result


def _decode_object_array(value: Value, depth: int) -> Array:
    if depth >= MAX_DEPTH:
        raise DecodeError(_TOO_DEEP)
    depth += 1
    source = value.object_array
    shape = tuple(source.shape)
    items = [_DECODERS[item.WhichOneof("kind")](item, depth) for item in source.items[:]]
    # Not np.array(items), which would look into lists and arrays.
    array: Array = np.empty(len(items), dtype=object)
    for index, item in enumerate(items):
        array[index] = item
    try:
        if min(shape, default=0) < 0:
            raise ValueError("a negative dimension")
        return array.reshape(shape).copy()
    except (ValueError, OverflowError) as error:
        raise DecodeError(f"{len(items)} objects are no array of shape {shape}: {error}") from None


def _decode_graph(value: Value, depth: int) -> GraphInstance:
    if depth >= MAX_DEPTH:
        raise DecodeError(_TOO_DEEP)
    depth += 1
    graph = value.graph
    return GraphInstance(extract(graph.nodes, depth), extract(graph.edges, depth), extract(graph.edge_links, depth))


_DECODERS: dict[str | None, _Decoder] = {
    None: _decode_none,
    "boolean": _decode_boolean,
    "integer": _decode_integer,
    "big_integer": _decode_big_integer,
    "float": _decode_float,
    "complex": _decode_complex,
    "text": _decode_text,
    "surrogate_text": _decode_surrogate_text,
    "data": _decode_data,
    "scalar": _decode_scalar,
    "tensor": _decode_tensor,
    "list": _decode_list,
    "tuple": _decode_tuple,
    "map": _decode_map,
    "object_array": _decode_object_array,
    "graph": _decode_graph,
}
