"""Environments for SkyRL: a generator that plays on gymhost servers.

    class Experiment(BasePPOExp):
        def get_generator(self, cfg, tokenizer, inference_engine_client):
            limits = Limits(turns=8, completion_tokens=cfg.generator.sampling_params.max_generate_length)
            return GymhostGenerator(inference_engine_client, tokenizer, server="cpu7:50051", limits=limits)

A row of the dataset says what is played: its `env_class` is the environment's id, and `task`, `split`, `seed` and
`kwargs` are columns. Its `prompt` is not shown to the model, whose prompt is the environment's.

What SkyRL gets is one sequence a rollout, exactly as it was sampled. It has no place for a rollout without a reward:
one that failed is a masked token with the mean of its group's rewards, so that nothing is learned from it, and no other
one is judged by it.

This is written for SkyRL 0.4 and tested with its classes, a tiny model in place of its inference engines. No training
with it was run: SkyRL needs a GPU.
"""

import importlib
import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from gymhost.client.tls import TlsLike
from gymhost.rollout import Chat, Concurrency, Generation, GeneratorError, Limits, RolloutEngine, Sampling, Trajectory
from gymhost.rollout.sessions import Source
from gymhost.trainers.connection import Connection
from gymhost.trainers.vocabulary import parameters_of, request_of, sampling_of, was_scored

__all__ = ["GymhostGenerator"]

logger = logging.getLogger(__name__)

_Base: Any = importlib.import_module("skyrl.train.generators.base").GeneratorInterface


class GymhostGenerator(_Base):
    """Plays a batch of rollouts, all at once.

    Args:
        inference_engine_client: SkyRL's client of its inference engines.
        tokenizer: The model's tokenizer.
        server: The environments' server, a list of them, None for one of its own, or what opens sessions itself.
        token: The server's token; without one that of the environment variable GYMHOST_TOKEN.
        tls: How TLS is spoken with it, as for `gymhost.client.connect`.
        renderer: A configuration of the `renderers` package, such as `Qwen3RendererConfig(thinking_retention="all")`;
            without one by the model's name. If the template rewrites history the last row of a rollout is taken.
        limits: What ends a rollout.
        concurrency: How many at once.
    """

    def __init__(
        self,
        inference_engine_client: Any,
        tokenizer: Any,
        *,
        server: str | Sequence[str] | Source | None = None,
        token: str | None = None,
        tls: TlsLike = None,
        renderer: Any = None,
        limits: Limits | None = None,
        concurrency: Concurrency | None = None,
    ) -> None:
        self._connection = Connection(server, token, tls)
        self._generator = _Engines(inference_engine_client)
        self._engine = RolloutEngine(
            self._connection.source,
            Chat(tokenizer, renderer),
            self._generator,
            limits=limits,
            concurrency=concurrency,
        )
        self._filler = tokenizer.eos_token_id

    async def generate(self, input_batch: Any, **_: Any) -> dict[str, Any]:
        """Plays a batch.

        Args:
            input_batch: A `GeneratorInput`.

        Returns:
            A `GeneratorOutput`, in the order of the input.

        Raises:
            ValueError: SkyRL is told to sample in a way that rollouts do not know.
            RuntimeError: No rollout of the batch has a reward.
        """
        parameters: Mapping[str, Any] = input_batch.get("sampling_params") or {}
        sampling = sampling_of(parameters, max_tokens=self._engine.limits.turn_tokens)
        nothing: Mapping[str, Any] = {}
        extras: Sequence[Mapping[str, Any]] = input_batch.get("env_extras") or [nothing] * len(input_batch["prompts"])
        ids: Sequence[Any] = input_batch.get("trajectory_ids") or [None] * len(extras)
        batch = input_batch.get("batch_metadata")
        if batch is not None and batch.training_phase == "train":
            self._generator.policy_version = batch.global_step
        trajectories = await self._engine.collect(
            request_of(
                extra,
                str(env_id),
                sampling=sampling,
                group=None if id is None else str(id.instance_id),
                index=0 if id is None else int(id.repetition_id),
            )
            for extra, env_id, id in zip(extras, input_batch["env_classes"], ids, strict=True)
        )
        failures = Counter(str(trajectory.outcome) for trajectory in trajectories if not was_scored(trajectory))
        for cause, count in failures.most_common(3):
            logger.warning("%d of %d rollouts %s", count, len(trajectories), cause)
        rows = [self._row(trajectory) for trajectory in trajectories]
        prompts, responses, masks, logprobs = (list(column) for column in zip(*rows, strict=True))
        return {
            "prompt_token_ids": prompts,
            "response_ids": responses,
            "rewards": _rewards(trajectories),
            "loss_masks": masks,
            "stop_reasons": ["stop" if t.outcome.kind == "terminated" else "length" for t in trajectories],
            "rollout_logprobs": logprobs,
            "rollout_metrics": _metrics(trajectories),
            "trajectory_ids": None,
            "trajectory_generation_times": [t.timings.init + t.timings.run + t.timings.eval for t in trajectories],
            "trajectory_time_splits": {
                "llm": [t.timings.generation for t in trajectories],
                "env": [t.timings.environment for t in trajectories],
            },
            "rollout_expert_indices": None,
            "is_last_step": None,
            "env_metrics": [{k: v for k, v in t.rewards.items() if v is not None} for t in trajectories],
        }

    async def aclose(self) -> None:
        """Closes the sessions. SkyRL does not call this: when its process ends the server does."""
        await self._engine.aclose()

    def _row(self, trajectory: Trajectory) -> tuple[list[int], list[int], list[int], list[float]]:
        if not was_scored(trajectory):
            return trajectory.prompt_ids or [self._filler], [self._filler], [0], [0.0]
        row = trajectory.rows()[-1]
        return row.prompt_ids, row.completion_ids, row.mask, row.logprobs


def _rewards(trajectories: Sequence[Trajectory]) -> list[float]:
    """The rewards; a rollout without one gets the mean of its group, or of the batch if that has none either."""
    known: dict[Any, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        if was_scored(trajectory) and trajectory.reward is not None:
            known[trajectory.group].append(trajectory.reward)
    if not known:
        raise RuntimeError(f"no rollout of the batch has a reward; the last one {trajectories[-1].outcome}")
    of_all = fmean(fmean(rewards) for rewards in known.values())
    means = {group: fmean(rewards) for group, rewards in known.items()}
    return [t.reward if was_scored(t) and t.reward is not None else means.get(t.group, of_all) for t in trajectories]


def _metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    count = len(trajectories)
    return {
        "rollouts/failed": sum(not was_scored(t) for t in trajectories) / count,
        "rollouts/truncated": sum(t.outcome.kind == "truncated" for t in trajectories) / count,
        "rollouts/turns": fmean(len(t.turns) for t in trajectories),
        "rollouts/generation_seconds": fmean(t.timings.generation for t in trajectories),
        "rollouts/environment_seconds": fmean(t.timings.environment for t in trajectories),
    }


class _Engines:
    """SkyRL's inference engines as a generator: its client chooses one by the rollout, where the prefix is cached."""

    name = "skyrl"

    def __init__(self, client: Any) -> None:
        self._client = client
        self.policy_version = 0

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Generation:
        version = self.policy_version
        try:
            output = await self._client.generate(
                {
                    "prompts": None,
                    "prompt_token_ids": [list(prompt_ids)],
                    # 0: of the token that was sampled, and of no other.
                    "sampling_params": parameters_of(sampling) | {"logprobs": 0},
                    "session_ids": [request_id.rpartition("/")[0]],
                    "mm_features": None,
                }
            )
        except Exception as error:
            raise GeneratorError(f"SkyRL's inference engine failed: {type(error).__name__}: {error}") from error
        [token_ids], logprobs, [reason] = output["response_ids"], output["response_logprobs"], output["stop_reasons"]
        if not logprobs or len(logprobs[0]) != len(token_ids):
            raise GeneratorError("SkyRL's inference engine returned no log-prob for each token")
        ended = {"stop": "stop", "length": "length"}.get(reason, "cut")
        return Generation(list(token_ids), list(logprobs[0]), ended, version, generator=self.name)

    async def aclose(self) -> None:
        """The inference engines are SkyRL's to close."""
