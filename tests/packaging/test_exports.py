import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PINNED = Path(__file__).parent / "exports.txt"


def test_public_names_are_the_pinned_ones():
    listing = subprocess.run(
        [sys.executable, str(ROOT / "tools/exports.py")], check=True, capture_output=True, text=True
    )
    names, pinned = set(listing.stdout.split()), set(PINNED.read_text().split())
    assert names == pinned, "if this is meant: python tools/exports.py > tests/packaging/exports.txt"
