"""OpenAI-compatible endpoints, one for each rollout that asks for one, so that any harness can play it."""

from gymhost.rollout.endpoint.server import Endpoint, Endpoints

__all__ = ["Endpoint", "Endpoints"]
