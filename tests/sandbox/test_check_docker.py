"""The self-check on a real Docker engine, as anybody runs it."""

import asyncio
import json

import pytest

from support.command import gymhost
from support.docker_engine import DockerEngine

pytestmark = [pytest.mark.docker, pytest.mark.timeout(400)]


async def test_docker_is_fit(docker_engine: DockerEngine) -> None:
    said = await asyncio.to_thread(
        gymhost, "check", "sandbox", "docker", "--option", f"base_url={docker_engine.base_url}", "--json", limit=300.0
    )
    report = json.loads(said.stdout)
    faults = [finding for finding in report["findings"] if finding["level"] == "error"]
    assert faults == []
    assert said.returncode == 0
