import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = Path("gymhost/v1")


@pytest.mark.timeout(300)  # The first time, the tools are installed.
def test_generated_modules_match_the_proto_files(tmp_path: Path):
    subprocess.run([sys.executable, str(ROOT / "proto/generate.py"), "--out", str(tmp_path)], check=True)
    fresh, checked_in = read_generated(tmp_path), read_generated(ROOT / "proto")
    assert fresh.keys() == checked_in.keys(), "run `make proto`"
    assert [name for name in fresh if fresh[name] != checked_in[name]] == [], "run `make proto`"


def read_generated(root: Path) -> dict[str, str]:
    files = {path.name: path.read_text() for path in (root / PACKAGE).glob("*_pb2*.py*")}
    assert files, f"no generated module in {root / PACKAGE}"
    return files
