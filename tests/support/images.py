"""Images for Docker's engine of this machine's own programs: no registry is needed."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

# What a sandbox needs, and what is done with files there.
PROGRAMS = (
    *("bash", "cat", "chmod", "cp", "env", "find", "grep", "gzip", "head", "id", "ls", "mkdir", "mv", "readlink", "rm"),
    *("sleep", "sort", "stat", "tail", "tar", "test", "tr", "wc"),
)


def copy_programs(folder: Path, programs: Sequence[str] = PROGRAMS) -> None:
    """Puts programs, and the libraries that they need, into a folder that is to become an image's root."""
    for program in programs:
        path = shutil.which(program)
        assert path is not None, program
        listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
        libraries = [word for line in listed.splitlines() for word in line.split() if word.startswith("/")]
        for source, target in [(path, f"bin/{program}"), *((library, library[1:]) for library in libraries)]:
            (folder / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, folder / target)
    (folder / "tmp").mkdir()
    shutil.copy(folder / "bin/bash", folder / "bin/sh")
