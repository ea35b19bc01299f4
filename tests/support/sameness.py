"""What a round trip has to keep: more than `==`, which takes 1, True and 1.0 for the same."""

import struct
from typing import Any

import numpy as np


def assert_same(actual: Any, expected: Any, path: str = "value") -> None:
    """Assert that two values are alike in every type, order, bit and shape; byte order and memory layout apart."""
    assert type(actual) is type(expected), f"{path}: {type(actual)} is not {type(expected)}"
    if isinstance(expected, float) and not isinstance(expected, np.generic):
        assert struct.pack("d", actual) == struct.pack("d", expected), path
    elif isinstance(expected, complex) and not isinstance(expected, np.generic):
        assert_same(actual.real, expected.real, f"{path}.real")
        assert_same(actual.imag, expected.imag, f"{path}.imag")
    elif isinstance(expected, np.ndarray):
        _assert_same_array(actual, expected, path)
    elif isinstance(expected, np.generic):
        assert actual.dtype == expected.dtype, path
        assert actual.tobytes() == expected.tobytes(), path
    elif isinstance(expected, dict):
        assert len(actual) == len(expected), path
        for (key, item), (expected_key, expected_item) in zip(actual.items(), expected.items(), strict=True):
            assert_same(key, expected_key, f"{path} key")
            assert_same(item, expected_item, f"{path}[{key!r}]")
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected), path
        for index, (item, expected_item) in enumerate(zip(actual, expected, strict=True)):
            assert_same(item, expected_item, f"{path}[{index}]")
    else:
        assert actual == expected, path


def _assert_same_array(actual: Any, expected: Any, path: str) -> None:
    assert actual.dtype == expected.dtype.newbyteorder("="), path
    assert actual.shape == expected.shape, path
    if expected.dtype == object:
        assert_same(list(actual.flat), list(expected.flat), path)
    else:
        assert actual.tobytes() == expected.astype(actual.dtype).tobytes(), path
