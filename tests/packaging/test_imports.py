"""What an import brings with it: import-linter reads the sources, the second half looks at what was really loaded."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BEYOND_THE_BASE = ["httpx", "pydantic", "renderers", "rich", "torch", "transformers", "trl", "uvloop", "vllm"]
SERVER_SIDE = ["gymhost.envs", "gymhost.server"]


def test_imports_go_one_way():
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    result = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_extra_that_authoring_needs_is_named():
    code = "import sys; sys.modules['pydantic'] = None; import gymhost.envs"
    result = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    last = result.stderr.splitlines()[-1]
    assert last == "ModuleNotFoundError: gymhost.envs needs the extra 'envs': pip install 'gymhost[envs]'"
    assert "During handling" not in result.stderr


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        (
            "gymhost.cli",
            [*SERVER_SIDE, *BEYOND_THE_BASE, "gymhost.client", "gymhost.rollout", "gymhost.trainers", "grpc"],
        ),
        ("gymhost.client", [*SERVER_SIDE, *BEYOND_THE_BASE]),
        ("gymhost.envs", ["grpc", "gymhost.client", "gymhost.server", "torch", "uvloop"]),
        ("gymhost.rollout", [*SERVER_SIDE, "torch", "trl", "vllm"]),
        ("gymhost.server.front", ["gymhost.client", "gymhost.envs", "gymhost.server.worker", "pydantic"]),
        ("gymhost.server.worker", ["grpc", "gymhost.client", "gymhost.server.front"]),
        ("gymhost.wire", ["grpc", *SERVER_SIDE, *BEYOND_THE_BASE]),
    ],
)
def test_import_loads_no_more_than_it_may(module: str, unwanted: list[str]):
    code = f"import json, sys, {module}; print(json.dumps(list(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert set(unwanted) & set(json.loads(result.stdout)) == set()
