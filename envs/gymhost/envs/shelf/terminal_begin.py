"""Sandboxes of task folders: of an image where the backend has images, else as a Dockerfile says."""

import dataclasses

from gymhost.envs.sandbox import Sandbox, SandboxSpec, build, builds_images, create
from gymhost.envs.sandbox.snapshots import TarSnapshot
from gymhost.envs.shelf.dockerfile import Dockerfile

__all__ = ["begin"]

_MARGIN = 16 * 2**20
# The working folder of a sandbox that only shows what an image has in another one.
_ELSEWHERE = "/gymhost"


async def begin(
    name: str,
    spec: SandboxSpec,
    image: str | None,
    dockerfile: Dockerfile | None,
    build_seconds: float,
    *,
    plain: bool = False,
) -> Sandbox:
    """Makes a sandbox of a task folder.

    Args:
        name: What it is for, in messages.
        spec: What it is like.
        image: Its image, where there are images; None means the Dockerfile's.
        dockerfile: The Dockerfile; None for none.
        build_seconds: How long each command of the Dockerfile may take, where there are no images.
        plain: Whether it has the system that the backend has by itself, whatever the image.

    Raises:
        ValueError: The Dockerfile needs an image, and the backend has none.
        SandboxUnavailable: The image could not be built, or the sandbox not be made.
    """
    if plain:
        pass
    elif builds_images():
        if image is None and dockerfile is not None:
            image = await build(dockerfile.path.parent)
        if image is not None:
            return await _of_image(spec, image)
    elif image is not None and dockerfile is None:
        raise ValueError(f"{name} needs the image {image} (environment.docker_image): serve it with `--sandbox docker`")
    sandbox = await create(spec)
    try:
        if dockerfile is not None:
            await dockerfile.follow(sandbox, build_seconds)
    except BaseException:
        await sandbox.destroy()
        raise
    return sandbox


async def _of_image(spec: SandboxSpec, image: str) -> Sandbox:
    """Makes a sandbox of an image: the working folder, which is its own, begins with what the image has there."""
    spec = dataclasses.replace(spec, image=image)
    async with await create(dataclasses.replace(spec, workdir=_ELSEWHERE)) as shown:
        try:
            files = await TarSnapshot.take(shown.run, [spec.workdir], limit=spec.limits.disk + _MARGIN)
        except FileNotFoundError:
            return await create(spec)
    try:
        return await create(spec, snapshot=files)
    finally:
        await files.discard()
