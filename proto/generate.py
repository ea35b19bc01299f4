"""Generates the modules of proto/gymhost/v1 from its .proto files: `make proto`.

The tools are the ones that pyproject.toml pins in its group `proto`. They want another protobuf than vLLM does, so they
live in a virtual environment of their own (.venv-proto), which is made when it is missing or its versions are others.
"""

import argparse
import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "proto"
TOOLS = ROOT / ".venv-proto"
PACKAGE = Path("gymhost/v1")

_FREEZE = """
from importlib.metadata import distributions
for found in distributions():
    print(f"{found.name}=={found.version}")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=SOURCES, help="where to write (default: beside the .proto files)")
    out = parser.parse_args().out.resolve()
    generate(_tools(), out)


def generate(tools: Path, out: Path) -> None:
    """Write the generated modules under `out`; those that no .proto file stands for any longer are removed."""
    files = sorted(path.relative_to(SOURCES) for path in (SOURCES / PACKAGE).glob("*.proto"))
    services = [path for path in files if re.search(r"^service ", (SOURCES / path).read_text(), re.MULTILINE)]
    (out / PACKAGE).mkdir(parents=True, exist_ok=True)
    _protoc(tools, files, f"--python_out={out}", f"--mypy_out=quiet:{out}")
    _protoc(tools, services, f"--grpc_python_out={out}", f"--mypy_grpc_out=quiet:{out}")
    wanted = {f"{path.stem}_pb2{end}" for path in files for end in (".py", ".pyi")}
    wanted |= {f"{path.stem}_pb2_grpc{end}" for path in services for end in (".py", ".pyi")}
    for path in (out / PACKAGE).glob("*_pb2*.py*"):
        if path.name not in wanted:
            path.unlink()


def _protoc(tools: Path, files: list[Path], *outputs: str) -> None:
    environment = os.environ | {"PATH": os.pathsep.join([str(tools.parent), os.environ.get("PATH", "")])}
    command = [str(tools), "-W", "ignore", "-m", "grpc_tools.protoc", f"-I{SOURCES}", *outputs, *map(str, files)]
    subprocess.run(command, check=True, env=environment)


def _tools() -> Path:
    """Return the Python of the tools' environment, which holds exactly the pinned versions."""
    python = TOOLS / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    pins: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["proto"]
    if not _holds(python, pins):
        print(f"Installing {', '.join(pins)} in {TOOLS.name}", flush=True)
        venv.create(TOOLS, with_pip=True, clear=True)
        subprocess.run([str(python), "-m", "pip", "-qq", "install", *pins], check=True)
        if not _holds(python, pins):
            sys.exit(f"{TOOLS.name} does not hold {', '.join(pins)}: remove it and try again.")
    return python


def _holds(python: Path, pins: list[str]) -> bool:
    if not python.exists():
        return False
    freeze = subprocess.run([str(python), "-c", _FREEZE], check=False, capture_output=True, text=True)
    installed = {line.replace("_", "-") for line in freeze.stdout.splitlines()}
    return installed >= {pin for pin in pins if "==" in pin}


if __name__ == "__main__":
    main()
