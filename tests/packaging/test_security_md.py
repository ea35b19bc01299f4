"""SECURITY.md: what it says is guarded is guarded by tests that are there."""

from pathlib import Path

from support.named_tests import missing, named

TEXT = (Path(__file__).parents[2] / "SECURITY.md").read_text()


def test_each_guard_names_its_test():
    guards = [line for line in TEXT.splitlines() if line.startswith("| ") and line.count(" | ") == 2]
    guards = [line for line in guards[guards.index("| what | by what | tests |") :] if not line.startswith("| what |")]
    assert len(guards) > 25
    for guard in guards:
        assert guard.startswith("| :--") or any(test for _, test in named(guard)), guard
    assert missing(TEXT) == []


def test_each_of_those_who_may_be_against_it_has_a_section():
    for who in ("trainer", "model", "author", "network", "users of the same machine"):
        assert any(line.startswith("## ") and who in line for line in TEXT.splitlines()), who
