"""Rollouts that are played by loops of one's own: `python agents.py MODEL_FOLDER URL`, the URL being vLLM's.

One is a class that plans in a conversation of its own before it acts. The other is a harness that knows nothing of
gymhost: it speaks to an OpenAI-compatible endpoint over HTTP. What the model says is recorded in both token by token.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from renderers import Qwen3RendererConfig
from transformers import AutoTokenizer

from gymhost.client import connect
from gymhost.rollout import Chat, Limits, RolloutEngine, RolloutRequest, Seat
from gymhost.rollout.generators import VllmServerGenerator


class PlanThenAct:
    """Asks for a plan, without tools, and has the model play with the plan at hand: two conversations, two rows."""

    async def run(self, seat: Seat) -> None:
        """Plays one rollout."""
        task = seat.observation
        plan = await seat.say([*task, {"role": "user", "content": "How would you go about it?"}], tools=())
        messages = [*task, {"role": "user", "content": f"Go about it like this: {plan['content']}"}]
        while True:
            said = await seat.say(messages)
            observation, _, terminated, truncated, _ = await seat.step(said)
            if terminated or truncated:
                return
            messages = [*messages, said, *observation]


async def harness(
    url: str, key: str, messages: list[Any], tools: list[Any], act: Callable[[Any], Awaitable[list[Any] | None]]
) -> None:
    """A loop as others write them: it asks whatever model there is at the URL, and acts on what it says."""
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=600) as client:
        while True:
            body = {"model": "any", "messages": messages, "tools": tools, "temperature": 0.2}
            answer = await client.post("/chat/completions", json=body)
            answer.raise_for_status()
            said = answer.json()["choices"][0]["message"]
            for call in said.get("tool_calls") or ():
                call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=1)
            results = await act(said)
            if results is None:
                return
            messages = [*messages, said, *results]


class Harnessed:
    """Lends the harness a model, and takes its actions to the environment."""

    async def run(self, seat: Seat) -> None:
        """Plays one rollout."""

        async def act(said: Any) -> list[Any] | None:
            calls = [
                call | {"function": call["function"] | {"arguments": json.loads(call["function"]["arguments"])}}
                for call in said.get("tool_calls") or ()
            ]
            action = {"role": "assistant", "content": said["content"] or "", "tool_calls": calls}
            observation, _, terminated, truncated, _ = await seat.step(action)
            return None if terminated or truncated else observation

        tools = [{"type": "function", "function": tool} for tool in seat.tools]
        async with seat.endpoint() as endpoint:
            await harness(endpoint.base_url, endpoint.api_key, seat.observation, tools, act)


async def main(model: str, url: str) -> None:
    """Plays some games of each."""
    # History is never rewritten, so that a conversation is one row.
    chat = Chat(AutoTokenizer.from_pretrained(model), Qwen3RendererConfig(thinking_retention="all"))
    names = ("plan-then-act", "harnessed")
    requests = [RolloutRequest("gymhost/GuessNumber-v0", task=task, agent=name) for name in names for task in range(2)]
    agents = {"plan-then-act": PlanThenAct, "harnessed": Harnessed}
    limits = Limits(turns=12, turn_tokens=256)
    async with (
        contextlib.aclosing(VllmServerGenerator(url)) as generator,
        connect() as server,
        RolloutEngine(server, chat, generator, limits=limits, agents=agents) as engine,
        contextlib.aclosing(engine.run(requests, ordered=True)) as trajectories,
    ):
        for request in requests:
            trajectory = await anext(trajectories)
            rows = [f"{sum(row.mask)} of {len(row)}" for row in trajectory.rows()]
            print(f"{request.agent}, task {request.task}: {trajectory.outcome}, reward {trajectory.reward:g},", end=" ")
            print(f"tokens sampled by row: {', '.join(rows)}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
