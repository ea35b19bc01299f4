"""NumPy arrays and scalars to and from ``Tensor``."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from gymhost.v1 import values_pb2
from gymhost.wire.errors import DecodeError
from gymhost.wire.paths import Refused

Array = npt.NDArray[Any]
DType = np.dtype[Any]

# Character codes rather than names, so that C types of one size (long, long long) are all known.
_FIXED = [np.dtype(code) for code in "?bhilqBHILQefdFD"]
_NAMES: dict[DType, str] = {dtype: dtype.str[1:] for dtype in _FIXED}
_DTYPES: dict[str, DType] = {name: np.dtype(f"<{name}") for name in _NAMES.values()}
_SIZED = re.compile(r"[US]\d{1,9}|[Mm]8(\[([1-9]\d{0,8})?(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?")
# Sized types are remembered too, but never more than this: peers choose them.
_REMEMBERED = 512

SCALAR_NAMES: dict[type[np.generic], str] = {dtype.type: dtype.str[1:] for dtype in _FIXED}


def encode_array(array: Array, tensor: values_pb2.Tensor) -> None:
    """Fills an empty tensor with an array of any layout and byte order.

    Raises:
        Refused: The array's dtype can't travel.
    """
    name = _NAMES.get(array.dtype)
    if name is None:
        array, name = _normalised(array)
    tensor.dtype = name
    tensor.shape.extend(array.shape)
    tensor.data = array.tobytes()


def encode_scalar(scalar: np.generic, tensor: values_pb2.Tensor) -> None:
    """Fills an empty tensor with a NumPy scalar.

    Raises:
        Refused: The scalar's dtype can't travel.
    """
    name = SCALAR_NAMES.get(type(scalar))
    if name is not None:
        tensor.dtype = name
        tensor.data = scalar.tobytes()
    elif isinstance(scalar, np.str_):
        # Not through an array, which would cut NULs off the end.
        tensor.dtype = f"U{len(scalar)}"
        tensor.data = scalar.encode("utf-32-le", "surrogatepass")
    elif isinstance(scalar, np.bytes_):
        tensor.dtype = f"S{len(scalar)}"
        tensor.data = bytes(scalar)
    else:
        encode_array(np.asarray(scalar), tensor)


def decode_array(tensor: values_pb2.Tensor) -> Array:
    """The array of a tensor, writable and in memory of its own.

    Raises:
        DecodeError: The tensor is malformed.
    """
    name = tensor.dtype
    dtype = _DTYPES.get(name)
    if dtype is None:
        dtype = _sized_dtype(name)
    data = tensor.data
    shape = tuple(tensor.shape[:])
    if not dtype.itemsize:  # NumPy may divide by it, which ends the process
        raise DecodeError(f"an array of type {name} has elements of no bytes")
    try:
        # A view of the bytes that came, so that nothing is allocated that they do not fill.
        view: Array = np.ndarray(shape, dtype, data)
    except (TypeError, ValueError, MemoryError) as error:
        raise DecodeError(f"{len(data)} bytes are no array of type {name} and shape {shape}: {error}") from None
    # NumPy makes a single dimension of -1 as long as the bytes allow.
    if view.nbytes != len(data) or view.shape != shape:
        raise DecodeError(f"{len(data)} bytes are no array of type {name} and shape {shape}")
    if name == "b1":
        _check_range(view.view(np.uint8), 1, "booleans")
    elif name[0] == "U":
        _check_range(np.frombuffer(data, "<u4"), 0x10FFFF, "characters")
    return view.copy()


def decode_scalar(tensor: values_pb2.Tensor) -> np.generic:
    """The NumPy scalar of a tensor without dimensions.

    Raises:
        DecodeError: The tensor is malformed.
    """
    name = tensor.dtype
    dtype = _DTYPES.get(name)
    if dtype is None:
        dtype = _sized_dtype(name)
    data = tensor.data
    if tensor.shape or len(data) != dtype.itemsize:
        raise DecodeError(f"{len(data)} bytes of shape {tuple(tensor.shape)} are no scalar of type {name}")
    kind = name[0]
    if kind == "U":
        try:
            return np.str_(data.decode("utf-32-le", "surrogatepass"))
        except UnicodeDecodeError as error:
            raise DecodeError(f"a scalar of type {name} holds no text: {error}") from None
    if kind == "S":
        return np.bytes_(data)
    if kind == "b" and data[0] > 1:
        raise DecodeError(f"a boolean is 0 or 1, not {data[0]}")
    return np.frombuffer(data, dtype)[0]


def _check_range(codes: Array, highest: int, what: str) -> None:
    """NumPy takes such bytes unseen and misbehaves when they are read."""
    if codes.size and codes.max() > highest:
        raise DecodeError(f"an array of {what} holds {codes.max()}, above {highest}")


def _normalised(array: Array) -> tuple[Array, str]:
    """The array in a dtype that can travel, little-endian, with that dtype's name."""
    dtype = array.dtype
    if dtype.kind not in "biufcUSMm" or dtype.char in "gG":
        raise Refused(_why_not(dtype))
    if not dtype.itemsize:
        dtype = np.dtype(f"{dtype.kind}1")
    little = dtype.newbyteorder("<")
    name = little.str[1:]
    if little == array.dtype and len(_NAMES) < _REMEMBERED:
        _NAMES[little] = name
    return array.astype(little, copy=False), name


def _why_not(dtype: DType) -> str:
    if dtype.char in "gG":
        return f"dtype {dtype} can't travel, as machines differ in its layout; convert it to float64 or complex128"
    if dtype.names is not None:
        return f"a structured dtype can't travel ({dtype}); send a dict with one array a field"
    return f"dtype {dtype} can't travel; numbers, booleans, fixed-length strings and dates can"


def _sized_dtype(name: str) -> DType:
    """The dtype of a name that is not of a fixed set; anything but strings and dates is refused."""
    if _SIZED.fullmatch(name) is None:
        raise DecodeError(f"unknown dtype {name!r}")
    try:
        dtype: DType = np.dtype(f"<{name}")
    except (TypeError, ValueError, OverflowError) as error:
        raise DecodeError(f"unknown dtype {name!r}: {error}") from None
    if len(_DTYPES) < _REMEMBERED:
        _DTYPES[name] = dtype
    return dtype
