"""Agents' harnesses, unmodified, in the sandboxes of environments: see `HarnessEnv`."""

from gymhost.envs.harness.environment import HarnessEnv
from gymhost.envs.harness.harness import Harness

__all__ = ["Harness", "HarnessEnv"]
