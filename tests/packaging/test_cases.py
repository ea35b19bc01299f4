"""The table of the 38 cases has all of them, and tests that are there."""

from support.named_tests import TESTS, missing, named

CASES = 38


def test_each_case_has_its_tests():
    rows = [line for line in (TESTS / "cases.md").read_text().splitlines() if line.startswith("| S")]
    assert [row[2:5] for row in rows] == [f"S{number:02}" for number in range(1, CASES + 1)]
    for row in rows:
        assert any(test for _, test in named(row)), row
        assert missing(row) == []


def test_a_test_that_is_not_there_is_noticed():
    there = "packaging/test_cases.py::test_each_case_has_its_tests"
    assert missing(f"`{there}` `tests/{there}` `packaging/test_cases.py`") == []
    wrong = ["packaging/test_cases.py::test_nothing", "packaging/test_not_there.py::", f"{there}::test_it"]
    text = "`packaging/test_cases.py::test_nothing` and `packaging/test_not_there.py`, " + f"`{there}::test_it`"
    assert missing(text) == wrong
