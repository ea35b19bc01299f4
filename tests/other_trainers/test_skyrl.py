# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""SkyRL's batches through the generator and back, a tiny model in place of SkyRL's inference engines."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from renderers import Qwen3RendererConfig
from skyrl.train.generators.base import GeneratorInterface
from skyrl.train.generators.utils import prepare_generator_input
from skyrl.train.utils.trainer_utils import validate_generator_output

from gymhost.envs import make
from gymhost.rollout import Limits, Sampling
from gymhost.trainers.skyrl import GymhostGenerator
from support.local_source import LocalSource
from support.models import logprobs_of, player
from support.server import ServerProcess
from support.tokenizers import decode, qwen3_tokenizer

GAME = "gymhost/GuessNumber-v0"


class Engines:
    """What SkyRL's client of its inference engines does, by a model in this process."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self.sessions: list[Any] = []

    async def generate(self, input_batch: dict[str, Any]) -> dict[str, Any]:
        [prompt_ids], [session] = input_batch["prompt_token_ids"], input_batch["session_ids"]
        self.sessions.append(session)
        parameters = input_batch["sampling_params"]
        assert parameters["logprobs"] == 0
        stop = tuple(parameters["stop_token_ids"])
        sampling = Sampling(parameters["temperature"], max_tokens=parameters["max_tokens"], stop_token_ids=stop)
        sampled = await self._sampler.generate(prompt_ids, sampling, request_id=session)
        return {
            "responses": [decode(list(sampled.token_ids))],
            "response_ids": [list(sampled.token_ids)],
            "stop_reasons": [sampled.finish_reason],
            "response_logprobs": [list(sampled.logprobs)],
        }


class Failing:
    """GuessNumber, whose task 1 never begins, and whose task 2 does not for the first that plays it."""

    def __init__(self) -> None:
        self._env: Any = make(GAME, guesses=3)
        self.tools = self._env.tools

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        task = (options or {}).get("task")
        if task == 1 or (task == 2 and 2 not in FAILED):
            FAILED.append(task)
            raise RuntimeError("it does not begin")
        return self._env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        return self._env.step(action)

    def close(self) -> None:
        self._env.close()


FAILED: list[int] = []


def asked(tasks: list[int], samples: int, **sampling: Any) -> Any:
    """A batch as SkyRL makes it of rows of its dataset."""
    rows = [
        {"prompt": [{"role": "user", "content": "unseen"}], "env_class": GAME, "env_extras": extras, "uid": str(place)}
        for place, task in enumerate(tasks)
        for extras in [{"task": task, "split": "train", "kwargs": {"guesses": 3}, "data_source": "game"}]
    ]
    batch, _ = prepare_generator_input(rows, samples, {"temperature": 1.0} | sampling, GAME, "train", 7)
    return batch


def generator(sampler: Any, server: Any) -> Any:
    limits = Limits(turn_tokens=48, completion_tokens=400)
    return GymhostGenerator(
        Engines(sampler), qwen3_tokenizer(), server=server, renderer=Qwen3RendererConfig(), limits=limits
    )


async def test_skyrl_gets_what_was_sampled(server: ServerProcess, sampler: Any) -> None:
    async with aclosing(generator(sampler, server.address)) as plays:
        assert isinstance(plays, GeneratorInterface)
        given = await plays.generate(asked([0, 3], samples=2, max_tokens=40, top_k=-1))
    validate_generator_output(4, given)
    for prompt, response, mask, logprobs in zip(
        given["prompt_token_ids"], given["response_ids"], given["loss_masks"], given["rollout_logprobs"], strict=True
    ):
        assert "Guess the number from 1 to 7. You have 3 guesses." in decode(prompt)
        expected = logprobs_of(player(), prompt, response)
        pairs = zip(logprobs, expected, mask, strict=True)
        assert all(abs(own - there) < 1e-3 for own, there, sampled in pairs if sampled)
        assert any(mask)
    assert any("Too " in decode(response) for response in given["response_ids"])
    assert all(set(scores) == {"win", "format"} for scores in given["env_metrics"])
    expected = [scores["win"] + 0.5 * scores["format"] for scores in given["env_metrics"]]
    assert given["rewards"] == pytest.approx(expected)


async def test_a_failure_changes_nothing_for_the_others(sampler: Any) -> None:
    FAILED.clear()
    async with aclosing(generator(sampler, LocalSource(failing))) as plays:
        given = await plays.generate(asked([0, 1, 2], samples=4))
    validate_generator_output(12, given)
    assert given["rollout_metrics"]["rollouts/failed"] == pytest.approx(5 / 12)
    masked = [not any(mask) for mask in given["loss_masks"]]
    assert masked[:8] == [False] * 4 + [True] * 4
    assert sum(masked[8:]) == 1
    rewards = given["rewards"]
    known = [reward for reward, failed in zip(rewards[8:], masked[8:], strict=True) if not failed]
    assert sum(rewards[8:]) / 4 == pytest.approx(sum(known) / 3)  # the mean of a group is that of those that played
    assert len(set(rewards[4:8])) == 1


async def test_without_any_reward_it_raises(sampler: Any) -> None:
    FAILED.clear()
    async with aclosing(generator(sampler, LocalSource(failing))) as plays:
        with pytest.raises(RuntimeError, match="it does not begin"):
            await plays.generate(asked([1], samples=2))


async def test_what_is_set_wrongly_is_said(sampler: Any) -> None:
    plays = generator(sampler, LocalSource(failing))
    for wrong in ({"stop": ["</answer>"]}, {"repetition_penalty": 1.2}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            await asyncio.wait_for(plays.generate(asked([0], samples=1, **wrong)), 30)


def failing(**_: Any) -> Failing:
    return Failing()
