"""The session API in this process, over plain Gymnasium environments: what rollout tests play in."""

import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any


class LocalSession:
    """One environment, with the async session API of `gymhost.client`; `labels` gets those of its episodes."""

    def __init__(self, env: Any, labels: list[str]) -> None:
        self.env = env
        self._labels = labels

    @property
    def tools(self) -> list[dict[str, Any]]:
        return [
            tool if isinstance(tool, dict) else {k: getattr(tool, k) for k in ("name", "description", "parameters")}
            for tool in getattr(self.env, "tools", ())
        ]

    async def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
        timeout: float | None = None,
        label: str = "",
    ) -> tuple[Any, dict[str, Any]]:
        self._labels.append(label)
        return await _result(getattr(self.env, "areset", self.env.reset)(seed=seed, options=options))

    async def step(self, action: Any, *, timeout: float | None = None) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return await _result(getattr(self.env, "astep", self.env.step)(action))

    @property
    def evaluates(self) -> bool:
        return hasattr(self.env, "aevaluate")

    async def evaluate(
        self, limit: str | None = None, *, timeout: float | None = None
    ) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return await self.env.aevaluate(limit)


class LocalSource:
    """Opens sessions; counts those that are open and those that there were, and has the labels of their episodes.

    Args:
        make: Makes an environment for the keyword arguments of a session.
    """

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self.open = 0
        self.opened = 0
        self.most = 0
        self.labels: list[str] = []

    @asynccontextmanager
    async def session(
        self, env_id: str, /, *, task: int | None = None, split: str | None = None, **kwargs: Any
    ) -> AsyncGenerator[LocalSession]:
        env = self._make(**kwargs)
        self.open += 1
        self.opened += 1
        self.most = max(self.most, self.open)
        try:
            yield LocalSession(env, self.labels)
        finally:
            self.open -= 1
            await _result(getattr(env, "aclose", env.close)())


async def _result(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
