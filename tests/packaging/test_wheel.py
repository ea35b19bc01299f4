import json
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEAVES = ["cli", "client", "envs", "rollout", "server", "trainers", "v1", "wire"]

# Installing takes as long as the package index takes.
pytestmark = pytest.mark.timeout(300)

# The floors are one set, Python's own among them: older wheels do not exist for newer Pythons.
VERSIONS = ["newest", "floors"] if sys.version_info[:2] == (3, 11) else ["newest"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution, which must therefore be whole too."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT))
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module", params=VERSIONS)
def bare(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an environment that holds the wheel and its base dependencies alone."""
    folder = tmp_path_factory.mktemp("bare")
    constraints = folder / "constraints.txt"
    floors = run(sys.executable, str(ROOT / "tools/floors.py"))
    constraints.write_text(floors if request.param == "floors" else "")
    venv.create(folder / "venv", with_pip=True)
    commands = folder / "venv/bin"
    run(str(commands / "python"), "-m", "pip", "install", "--quiet", "--constraint", str(constraints), str(wheel))
    return commands


def test_wheel_holds_the_package_and_nothing_else(wheel: Path):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert names >= {f"gymhost/rollout/view/{file}" for file in ("page.html", "page.css", "js/app.js")}
    assert names >= {f"gymhost/server/dashboard/pages/{file}" for file in ("index.html", "page.css", "app.js")}
    assert names >= {f"gymhost/{leaf}/{file}" for leaf in LEAVES for file in ("__init__.py", "py.typed")}
    assert names >= {f"gymhost/v1/{path.name}" for path in (ROOT / "proto/gymhost/v1").glob("*.proto")}
    assert names >= {f"gymhost/v1/{path.name}" for path in (ROOT / "proto/gymhost/v1").glob("*_pb2*.pyi")}
    assert {name.split("/")[0] for name in names} == {"gymhost", "gymhost-0.1.0.dist-info"}
    assert {name.split("/")[1] for name in names if name.startswith("gymhost/")} == set(LEAVES)
    template = {name for name in names if name.startswith("gymhost/cli/template/")}
    assert "gymhost/cli/template/tests/test_environment.py.txt" in template
    assert [name for name in names - template if "test" in name or "__pycache__" in name] == []


def test_client_works_with_the_base_dependencies_alone(bare: Path):
    code = """
import json, sys
import gymhost.client, gymhost.wire.spaces, gymhost.wire.values
assert all(hasattr(gymhost.client, name) for name in gymhost.client.__all__)
assert gymhost.wire.values.loads(gymhost.wire.values.dumps({"a": [1, 2.5]})) == {"a": [1, 2.5]}
print(json.dumps(list(sys.modules)))
"""
    loaded: list[str] = json.loads(run(str(bare / "python"), "-W", "error", "-c", code))
    assert [name for name in loaded if name.startswith(("gymhost.envs", "gymhost.server"))] == []


def test_base_dependencies_bring_no_others(bare: Path):
    listing: list[dict[str, str]] = json.loads(run(str(bare / "python"), "-m", "pip", "list", "--format=json"))
    installed = {entry["name"].lower() for entry in listing}
    allowed = {"click", "cloudpickle", "farama-notifications", "grpcio", "gymhost", "gymnasium", "numpy", "protobuf"}
    assert installed <= allowed | {"pip", "setuptools", "typing-extensions", "typing_extensions"}


def test_command_works_with_the_base_dependencies_alone(bare: Path):
    assert "Usage: gymhost" in run(str(bare / "gymhost"), "--help")


def test_command_names_a_missing_extra(bare: Path):
    result = subprocess.run([str(bare / "gymhost"), "serve"], check=False, capture_output=True, text=True)
    assert result.returncode != 0
    assert "gymhost[server]" in result.stderr
    assert "Traceback" not in result.stderr


def run(*command: str) -> str:
    result = subprocess.run(command, check=False, capture_output=True, text=True, cwd=Path(command[0]).parent)
    assert result.returncode == 0, f"{' '.join(command)}\n{result.stdout}{result.stderr}"
    return result.stdout
