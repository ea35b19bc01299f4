"""What tells two values, or two spaces, apart: more than `==`, which takes 1, True and 1.0 for the same."""

import struct
from typing import Any

import numpy as np
from gymnasium import Space

# What a space makes of its other parts when it is built, and the generator that it samples from.
_DERIVED = {"_np_random", "low_repr", "high_repr", "stacked_feature_space", "batch_node_space", "batch_edge_space"}


def assert_same(actual: Any, expected: Any, where: str = "value") -> None:
    """Assert that two values are alike in every type, order, bit and shape; byte order and memory layout apart."""
    assert type(actual) is type(expected), f"{where}: {type(actual)} is not {type(expected)}"
    if isinstance(expected, float) and not isinstance(expected, np.generic):
        assert struct.pack("d", actual) == struct.pack("d", expected), f"{where}: {actual} is not {expected}"
    elif isinstance(expected, complex) and not isinstance(expected, np.generic):
        assert_same(actual.real, expected.real, f"{where}.real")
        assert_same(actual.imag, expected.imag, f"{where}.imag")
    elif isinstance(expected, np.ndarray):
        _assert_same_array(actual, expected, where)
    elif isinstance(expected, np.generic):
        assert actual.dtype == expected.dtype, f"{where}: {actual.dtype} is not {expected.dtype}"
        assert actual.tobytes() == expected.tobytes(), f"{where}: {actual!r} is not {expected!r}"
    elif isinstance(expected, dict):
        keys = f"the keys {list(actual)} are not {list(expected)}"
        assert len(actual) == len(expected), f"{where}: {keys}"
        for (key, item), (expected_key, expected_item) in zip(actual.items(), expected.items(), strict=True):
            assert_same(key, expected_key, f"{where}: {keys}")
            assert_same(item, expected_item, f"{where}[{key!r}]")
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected), f"{where}: {len(actual)} items are not {len(expected)}"
        for index, (item, expected_item) in enumerate(zip(actual, expected, strict=True)):
            assert_same(item, expected_item, f"{where}[{index}]")
    elif isinstance(expected, Space):
        assert_same_space(actual, expected, where)
    else:
        assert actual == expected, f"{where}: {actual!r} is not {expected!r}"


def assert_same_space(actual: Any, expected: Space[Any], where: str = "space") -> None:
    """Assert that two spaces are equal, of one class, printed alike, and alike in what Gymnasium's `==` leaves out."""
    assert type(actual) is type(expected), f"{where}: {type(actual)} is not {type(expected)}"
    assert actual == expected, f"{where}: {actual} is not {expected}"
    assert repr(actual) == repr(expected), where
    assert actual.shape == expected.shape, where
    assert actual.dtype == expected.dtype, where
    assert vars(actual).keys() == vars(expected).keys(), where
    for name, item in vars(expected).items():
        if name not in _DERIVED:
            assert_same(vars(actual)[name], item, f"{where}.{name}")


def _assert_same_array(actual: Any, expected: Any, where: str) -> None:
    assert actual.dtype == expected.dtype.newbyteorder("="), f"{where}: {actual.dtype} is not {expected.dtype}"
    assert actual.shape == expected.shape, f"{where}: {actual.shape} is not {expected.shape}"
    if expected.dtype == object:
        assert_same(list(actual.flat), list(expected.flat), where)
    else:
        same = actual.tobytes() == expected.astype(actual.dtype).tobytes()
        assert same, f"{where}: {actual!r} is not {expected!r}"
