"""The README shows what is in `examples/`, to the letter."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("example", ["ten_lines.py", "my_environment.py", "roll_out.py"])
def test_readme_shows_the_example_as_it_is(example: str):
    shown = f"```python\n{(ROOT / 'examples' / example).read_text().strip()}\n```"
    assert shown in (ROOT / "README.md").read_text()


def test_everything_that_the_readme_links_to_is_there():
    text = (ROOT / "README.md").read_text()
    links = [part.split(")")[0] for part in text.split("](")[1:]]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
