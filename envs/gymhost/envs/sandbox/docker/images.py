"""Images: pulled, built, and the default one, which is made of this machine's own system."""

import hashlib
import io
import os
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gymhost.envs.sandbox.docker.engine import Engine
from gymhost.envs.sandbox.docker.leftovers import IMAGE_LABEL
from gymhost.envs.sandbox.spec import Mount
from gymhost.wire.errors import InvalidArgument, SandboxUnavailable

__all__ = ["Progress", "build", "host_image", "host_mounts", "pull", "volumes"]

# Takes a line on what is done now, such as "4f4fb700ef54: Downloading 12 MB of 30 MB".
Progress = Callable[[str], None]

# No registry has names of this kind.
_NAME = "localhost/gymhost-host"

# Where programs and their libraries are. Where one is a link into another, as on most systems, the image has it too.
_SYSTEM = ("bin", "lib", "lib32", "lib64", "libx32", "sbin", "usr")
# The little of /etc that programs need, where there is such a thing.
_SETTINGS = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl/certs")
_FILES = {
    "etc/group": "root:x:0:\nsandbox:x:1000:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "etc/passwd": (
        "root:x:0:0:root:/root:/usr/sbin/nologin\nsandbox:x:1000:1000:sandbox:/workspace:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    ),
}
_FOLDERS = ("dev", "etc", "proc", "sys", "tmp", "var", "var/tmp")


def host_mounts() -> list[Mount]:
    """Returns what of this machine is seen in a container of the default image: its programs, read-only."""
    system = [f"/{name}" for name in _SYSTEM if Path(f"/{name}").is_dir() and not Path(f"/{name}").is_symlink()]
    return [Mount(path) for path in (*system, *(path for path in _SETTINGS if Path(path).exists()))]


def host_image(engine: Engine) -> str:
    """Returns the name of the default image, and makes it where it is not there yet; blocks.

    It holds next to nothing: the links and files that a system has outside of /usr. So it needs no registry.
    """
    data = _tree()
    name = f"{_NAME}-{hashlib.sha256(data).hexdigest()[:12]}"
    api = engine.api()
    if not api.images(name):
        api.import_image_from_data(data, repository=name, tag="latest", changes=[f"LABEL {IMAGE_LABEL}=host"])
    return name


def _tree() -> bytes:
    """Returns the default image's files as a tar, the same for the same system."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name in (*_FOLDERS, *_SYSTEM):
            path = Path(f"/{name}")
            entry = tarfile.TarInfo(name)
            if path.is_symlink():
                entry.type, entry.linkname = tarfile.SYMTYPE, os.fspath(path.readlink())
            elif path.is_dir():
                entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name.endswith("tmp") else 0o755
            else:
                continue
            tar.addfile(entry)
        for name, text in _FILES.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return made.getvalue()


def volumes(engine: Engine, image: str) -> list[str]:
    """Returns the folders for which an image asks for volumes; blocks.

    Raises:
        NotFound: The engine has no such image.
    """
    config: Mapping[str, Any] = engine.api().inspect_image(image)["Config"] or {}
    return list(config.get("Volumes") or ())


def pull(engine: Engine, image: str, timeout: float, progress: Progress | None) -> None:
    """Fetches an image from its registry; blocks.

    Raises:
        InvalidArgument: The registry has no such image, or does not give it away.
        SandboxUnavailable: It could not be fetched, or not in time.
    """
    name, _, digest = image.partition("@")
    name, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        name, tag = image.partition("@")[0], "latest"
    with engine.client(timeout) as api:
        try:
            events = api.pull(name, tag=digest or tag, stream=True, decode=True)
            _follow(engine, events, f"the pull of {image}", timeout, progress)
        except engine.errors.APIError as error:
            said = f"can't fetch the image {image}: {error.explanation}"
            # Engines give one status or another to what registries say.
            if error.status_code < 500 or any(word in said for word in ("manifest unknown", "unauthorized", "denied")):
                raise InvalidArgument(said) from error
            raise SandboxUnavailable(said) from error


def build(
    engine: Engine,
    folder: Path,
    tag: str | None,
    network: str | None,
    timeout: float,
    progress: Progress | None,
) -> str:
    """Builds the image that a folder's Dockerfile describes, and returns its id; blocks.

    Raises:
        InvalidArgument: The folder has no Dockerfile.
        SandboxUnavailable: It could not be built, or not in time; the message ends with what was said last.
    """
    if not (folder / "Dockerfile").is_file():
        raise InvalidArgument(f"{folder} has no Dockerfile")
    with engine.client(timeout) as api:
        events = api.build(
            path=os.fspath(folder),
            tag=tag,
            rm=True,
            forcerm=True,
            decode=True,
            network_mode=network,
            labels={IMAGE_LABEL: "built"},
        )
        said = _follow(engine, events, f"the build of {folder}", timeout, progress)
    for event in reversed(said):
        if "ID" in (event.get("aux") or {}):
            return str(event["aux"]["ID"])
    raise SandboxUnavailable(f"the build of {folder} did not say which image it made")


def _follow(
    engine: Engine, events: Iterable[Mapping[str, Any]], what: str, timeout: float, progress: Progress | None
) -> list[Mapping[str, Any]]:
    """Follows what the engine says of something long, up to its end, and returns the last of it."""
    deadline = time.monotonic() + timeout
    said: list[Mapping[str, Any]] = []
    for event in events:
        said = [*said[-19:], event]
        if progress is not None and (line := _line(event)):
            progress(line)
        if time.monotonic() > deadline:
            raise SandboxUnavailable(f"{what} was not done within {timeout:g} s (setting: image_timeout)")
        if engine.closing.is_set():
            raise SandboxUnavailable(f"{what} was broken off: the Docker backend was closed")
    # An error is the last that is said; it is read to the end, so that the connection is closed.
    if said and "error" in said[-1]:
        raise SandboxUnavailable("\n".join([f"{what} failed: {said[-1]['error']}", *filter(None, map(_line, said))]))
    return said


def _line(event: Mapping[str, Any]) -> str:
    if "stream" in event:
        return str(event["stream"]).rstrip()
    parts = (event.get("id"), event.get("status"), event.get("progress"))
    return " ".join(str(part) for part in parts if part)
