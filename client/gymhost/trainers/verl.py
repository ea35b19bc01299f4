"""Environments for verl: an agent loop that plays on gymhost servers.

A file says how it plays, and verl is told of it by `actor_rollout_ref.rollout.agent.agent_loop_config_path`:

    - name: gymhost
      _target_: gymhost.trainers.verl.GymhostAgentLoop
      server: cpu7:50051
      renderer: qwen3
      limits: {turns: 8, turn_tokens: 256}

The dataset says what is played; see `rows`. Prompts, tokens and rewards are those of the environments, whatever
`actor_rollout_ref.rollout.multi_turn` says, and no reward function is asked.

What verl gets is one sequence a rollout, exactly as it was sampled. It has no place for a rollout without a reward: one
that failed is played again, and a step fails if all its tries do.

This is written for verl 0.9 and tested with its classes, a tiny model in place of its servers. No training with it was
run: verl needs a GPU.
"""

import asyncio
import importlib
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gymhost.rollout import Chat, Concurrency, Generation, GeneratorError, Limits, RolloutEngine, Sampling, Trajectory
from gymhost.trainers.connection import Connection
from gymhost.trainers.vocabulary import parameters_of, request_of, sampling_of, was_scored

__all__ = ["GymhostAgentLoop", "rows"]

_verl: Any = importlib.import_module("verl.experimental.agent_loop.agent_loop")
_Base: Any = _verl.AgentLoopBase


class GymhostAgentLoop(_Base):
    """Plays one rollout a call; all calls in an event loop share an engine, so that sessions are used again.

    Args:
        server: The environments' server, or a list of them; without one each worker of verl starts one of its own.
        token: Its token; without one that of the environment variable GYMHOST_TOKEN.
        tls: Fields of `gymhost.client.Tls`, if TLS is spoken with it.
        renderer: How the model's messages become tokens, such as "qwen3"; without one by the model's name. Where it
            keeps a model's reasoning or not is its own affair: if the template rewrites history the last row is taken.
        limits: Fields of `Limits`. The tokens after the prompt are never more than verl's `response_length`.
        concurrency: Fields of `Concurrency`, for each worker of verl.
        tries: How often a rollout is played that fails.
        **given: What verl gives.
    """

    def __init__(
        self,
        *,
        server: str | Sequence[str] | None = None,
        token: str | None = None,
        tls: Mapping[str, str | None] | None = None,
        renderer: str | None = None,
        limits: Mapping[str, Any] | None = None,
        concurrency: Mapping[str, Any] | None = None,
        tries: int = 3,
        tools: Any = None,
        **given: Any,
    ) -> None:
        super().__init__(**given)  # pyright: ignore[reportUnknownMemberType]
        del tools  # the environments have their own
        if tries < 1:
            raise ValueError(f"tries is at least 1, not {tries}")
        self._tries = tries
        self._response_length = int(self.rollout_config.response_length)
        self._prompt_length = int(self.rollout_config.prompt_length)
        servers = server if server is None or isinstance(server, str) else tuple(server)
        self._settings = (servers, token, tls, renderer, dict(limits or {}), dict(concurrency or {}))

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        """Plays what a row of the dataset asks for.

        Args:
            sampling_params: How to sample.
            **row: The row; its `extra_info` is as `rows` makes it.

        Returns:
            An `AgentLoopOutput` with its reward.

        Raises:
            ValueError: The row names no environment, the prompt is longer than verl's `prompt_length`, or verl is told
                to sample in a way that rollouts do not know.
            RuntimeError: The rollout failed in all its tries; the message says how.
        """
        asked = dict(row.get("extra_info") or {})
        if not asked.get("env_id"):
            raise ValueError("a row's extra_info has no env_id: make the dataset with gymhost.trainers.verl.rows")
        engine = self._engine()
        sampling = sampling_of(sampling_params, max_tokens=engine.limits.turn_tokens)
        request = request_of(asked, str(asked["env_id"]), sampling=sampling)
        outcome = None
        for _ in range(self._tries):
            [trajectory] = await engine.collect([request])
            if was_scored(trajectory):
                return self._output(trajectory, with_logprobs=bool(sampling_params.get("logprobs")))
            outcome = trajectory.outcome
        raise RuntimeError(f"{request.env_id}, task {request.task}, had no reward in {self._tries} tries: {outcome}")

    def _engine(self) -> RolloutEngine:
        server, token, tls, renderer, limits, concurrency = self._settings
        key = (id(self.server_manager), server, token, repr(tls), renderer, repr(limits), repr(concurrency))
        engines = _ENGINES.setdefault(asyncio.get_running_loop(), {})
        if key not in engines:
            from renderers import config_from_name

            most = min(self._response_length, int(limits.get("completion_tokens") or self._response_length))
            connection = Connection(server, token, tls)
            engine = RolloutEngine(
                connection.source,
                Chat(self.tokenizer, config_from_name(renderer) if renderer else None),
                _Servers(self.server_manager),
                limits=Limits(**limits | {"completion_tokens": most}),
                concurrency=Concurrency(**concurrency),
            )
            engines[key] = engine, connection  # which is closed when nobody holds it
        return engines[key][0]

    def _output(self, trajectory: Trajectory, *, with_logprobs: bool) -> Any:
        played = trajectory.rows()[-1]
        if len(played.prompt_ids) > self._prompt_length:
            raise ValueError(
                f"the prompt of {trajectory.env_id} has {len(played.prompt_ids)} tokens, more than"
                f" {self._prompt_length}: raise actor_rollout_ref.rollout.prompt_length"
            )
        return _verl.AgentLoopOutput(
            prompt_ids=played.prompt_ids,
            response_ids=played.completion_ids,
            response_mask=played.mask,
            response_logprobs=played.logprobs if with_logprobs else None,
            reward_score=trajectory.reward,
            num_turns=len(trajectory.messages),
            metrics=_verl.AgentLoopMetrics(
                generate_sequences=trajectory.timings.generation,
                tool_calls=trajectory.timings.environment,
                compute_score=trajectory.timings.eval,
            ),
            extra_fields={
                "turn_scores": [turn.reward for turn in trajectory.turns],
                "tool_rewards": [],
                "rubrics": dict(trajectory.rewards),
                "outcome": str(trajectory.outcome),
            },
        )


def rows(
    env_id: str,
    tasks: Iterable[int],
    *,
    split: str = "train",
    kwargs: Mapping[str, Any] | None = None,
    agent_name: str = "gymhost",
) -> list[dict[str, Any]]:
    """Rows of a dataset for verl, to be kept as Parquet: `datasets.Dataset.from_list(rows).to_parquet(path)`.

    Args:
        env_id: The environment.
        tasks: Indices of tasks; each is a row.
        split: Their split.
        kwargs: Keyword arguments of the environment.
        agent_name: The name of the agent loop in its file.

    Returns:
        Rows whose prompt says what is played. The model does not see it: its prompt is the environment's.
    """
    return [
        {
            "agent_name": agent_name,
            "data_source": env_id,
            "prompt": [{"role": "user", "content": f"{env_id}, {split}, task {task}"}],
            "reward_model": {"style": "environment", "ground_truth": ""},
            "extra_info": {
                "index": task,
                "env_id": env_id,
                "task": task,
                "split": split,
                "kwargs": dict(kwargs) if kwargs else None,
            },
        }
        for task in tasks
    ]


_Shared = dict[Any, tuple[RolloutEngine, Connection]]
_ENGINES: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = weakref.WeakKeyDictionary()


class _Servers:
    """verl's servers as a generator: its client chooses one by the rollout, where the prefix is cached."""

    name = "verl"

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self.policy_version = 0

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Generation:
        try:
            output = await self._manager.generate(
                request_id=request_id.rpartition("/")[0],
                prompt_ids=list(prompt_ids),
                sampling_params=parameters_of(sampling) | {"logprobs": True},
            )
        except Exception as error:
            raise GeneratorError(f"verl's server failed: {type(error).__name__}: {error}") from error
        token_ids = list(output.token_ids)
        if output.stop_reason == "aborted":
            reason = "cut"
        else:
            reason = "stop" if token_ids and token_ids[-1] in sampling.stop_token_ids else "length"
        if token_ids and not output.log_probs:
            raise GeneratorError("verl's server returned no log-probs")
        fields: Mapping[str, Any] = output.extra_fields
        first, last = fields.get("min_global_steps"), fields.get("max_global_steps", fields.get("global_steps"))
        self.policy_version = int(last or 0)
        version = self.policy_version if first is None else int(first)
        mixed = version != self.policy_version
        return Generation(token_ids, list(output.log_probs or []), reason, version, mixed, None, self.name)

    async def aclose(self) -> None:
        """The servers are verl's to close."""
