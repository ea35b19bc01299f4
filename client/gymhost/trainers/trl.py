"""Environments for TRL: all that a `GRPOTrainer` needs, from one object.

    environments = Environments("gymhost/GuessNumber-v0", server="cpu7:50051")
    GRPOTrainer(model, args=config, **environments.trainer_kwargs()).train()

The rollouts are those of `gymhost.rollout`, driven with whatever the trainer generates with: colocated vLLM, a vLLM
server or the trained model itself. TRL sees a dataset of tasks, a `rollout_func` and reward functions. Its
`environment_factory` is only the way on which a row of the dataset reaches the rollout function, so that resets and
tools of a batch all run at once.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from gymhost.rollout import Chat, Concurrency, Generator, Limits, RolloutEngine, RolloutRequest, Trajectory
from gymhost.trainers.connection import Connection
from gymhost.trainers.trl_generation import generator_of, sampling_of
from gymhost.trainers.vllm_cpu import use_vllm_on_cpu

__all__ = ["Environments"]

logger = logging.getLogger(__name__)

_FRUITLESS_BATCHES = 3
"""So many batches in a row without one rollout to learn from end the training: something is broken for good."""

RewardFunction = Callable[..., list[float | None]]


class Slot:
    """What TRL takes for an environment: holds the row of the dataset that a rollout is to play, and has no tools."""

    row: Mapping[str, Any]

    def reset(self, **row: Any) -> None:
        """Takes the row."""
        self.row = row


class Environments:
    """The environments of a trainer: where they are, which tasks they play and what their rewards are.

    A rollout that failed gives the trainer nothing to learn from: its reward is None, never 0.0, and its tokens are
    masked. No session outlives the call of the rollout function that opened it. The connection is closed when this
    object is collected or the process ends; nobody has to close anything.

    Args:
        env_id: The environment, such as "gymhost/GuessNumber-v0".
        server: The address of a server ("host:port"), or an open connection of `gymhost.client.connect`. Without one an
            embedded server is started.
        token: The server's token.
        split: The split that `trainer_kwargs` makes a dataset of.
        tasks: The indices of the tasks to train on, in this order; without them all tasks of the split.
        num_tasks: Only so many of them, from the first. Needed if the environment has tasks without end, or none.
        rewards: The rubrics that become reward functions of their own, to be weighted by `GRPOConfig.reward_weights`.
            Without them one function, `total`, gives the reward as the environment weights it.
        renderer: A configuration of the `renderers` package, such as `Qwen3RendererConfig(thinking_retention="all")`.
            Without one the renderer is chosen by the model's name; a model in a local folder needs one. TRL trains one
            row of tokens a rollout, so it should keep history ("all"), as the renderer that is chosen does.
        limits: What ends a rollout. Tokens are bounded by `GRPOConfig.max_completion_length` too.
        concurrency: How many rollouts at once.
        generator: Samples instead of what the trainer is set up with. To keep its weights in step is then up to you.
        on_rollouts: Called with the trajectories of every batch, in order: to keep them, or to follow the training.
        **env_kwargs: Keyword arguments of the environment.
    """

    def __init__(
        self,
        env_id: str,
        *,
        server: Any = None,
        token: str | None = None,
        split: str | None = "train",
        tasks: Iterable[int] | None = None,
        num_tasks: int | None = None,
        rewards: Sequence[str] | None = None,
        renderer: Any = None,
        limits: Limits | None = None,
        concurrency: Concurrency | None = None,
        generator: Generator | None = None,
        on_rollouts: Callable[[list[Trajectory]], object] | None = None,
        **env_kwargs: Any,
    ) -> None:
        self.env_id = env_id
        self.split = split
        self._tasks = None if tasks is None else list(tasks)
        self._num_tasks = num_tasks
        self._rewards = None if rewards is None else list(rewards)
        self._renderer = renderer
        self._limits = limits or Limits()
        self._concurrency = concurrency
        self._generator = generator
        self._on_rollouts = on_rollouts
        self._env_kwargs = env_kwargs
        self._connection = Connection(server, token)
        self._fruitless = 0
        self._warned_of_rewriting = False

    def trainer_kwargs(self) -> dict[str, Any]:
        """Everything that a `GRPOTrainer` needs of the environments, as its keyword arguments.

        On a machine without a GPU TRL's colocated vLLM is repaired on the way; see `gymhost.trainers.vllm_cpu`.
        """
        use_vllm_on_cpu()
        return {
            "train_dataset": self.dataset(self.split, tasks=self._tasks, num_tasks=self._num_tasks),
            "rollout_func": self._rollout_func,
            "environment_factory": Slot,
            "reward_funcs": self._reward_functions(),
        }

    def dataset(
        self,
        split: str | None,
        *,
        tasks: Iterable[int] | None = None,
        num_tasks: int | None = None,
        first_seed: int = 0,
    ) -> Any:
        """Makes a dataset of tasks for the trainer, such as its `eval_dataset`.

        Each row has the columns `task`, `split` and `seed`, and a `prompt` that names them: the real prompt is the
        environment's to write, and is different for each environment.

        Args:
            split: The split of the tasks; ignored by environments without tasks.
            tasks: The indices of the tasks; without them all of the split.
            num_tasks: Only so many of them, from the first.
            first_seed: The seed of the first row; the rows after it count on from there.

        Raises:
            ValueError: The environment has no such split, or it is not said how many tasks there are to be.
        """
        from datasets import Dataset

        chosen = self._tasks_of(split, num_tasks) if tasks is None else list(tasks)[:num_tasks]
        rows = [
            {"prompt": _label(self.env_id, split, task), "task": task, "split": split, "seed": first_seed + place}
            for place, task in enumerate(chosen)
        ]
        return Dataset.from_list(rows)  # pyright: ignore[reportUnknownMemberType]

    def _tasks_of(self, split: str | None, num_tasks: int | None) -> Sequence[int | None]:
        splits = self._connection.splits(self.env_id, self._env_kwargs)
        if splits and split not in splits:
            raise ValueError(f"{self.env_id} has no split {split!r}: there are {', '.join(sorted(splits))}")
        count = splits[split] if splits and split is not None else None
        if count is None and num_tasks is None:
            raise ValueError(f"{self.env_id} has no fixed number of tasks: say how many are to be played (num_tasks=)")
        if not splits:
            return [None] * (num_tasks or 0)
        if count is None:
            return list(range(num_tasks or 0))
        return list(range(count if num_tasks is None else min(count, num_tasks)))

    # ------------------------------------------------------------------------------------------------------------------
    # Rollouts

    def rollout(self, trainer: Any, rows: Sequence[Mapping[str, Any]]) -> list[Trajectory]:
        """Plays one rollout for each row with the trainer's present weights, and returns them in the rows' order.

        This is what the trainer's rollout function does; scripts may call it to evaluate. After a step of the optimizer
        a trainer with vLLM must have synchronized the weights before.

        Args:
            trainer: A `GRPOTrainer`.
            rows: Rows of a `dataset`.
        """
        requests = self._requests(rows)
        if self._generator is not None:
            return self._collect(requests, trainer, self._generator)
        with generator_of(trainer, trainer.state.global_step) as generator:
            return self._collect(requests, trainer, generator, then_close=True)

    def _requests(self, rows: Sequence[Mapping[str, Any]]) -> list[RolloutRequest]:
        """What is to be played: rows of the same task and seed are a group."""
        requests: list[RolloutRequest] = []
        sizes: Counter[str] = Counter()
        for row in rows:
            task, split, seed = row.get("task"), row.get("split"), row.get("seed")
            group = f"{split} {task} {seed}"
            index, sizes[group] = sizes[group], sizes[group] + 1
            requests.append(
                RolloutRequest(self.env_id, task, seed, split, kwargs=self._env_kwargs, group=group, index=index)
            )
        return requests

    def _collect(
        self, requests: list[RolloutRequest], trainer: Any, generator: Generator, *, then_close: bool = False
    ) -> list[Trajectory]:
        engine = RolloutEngine(
            self._connection.source,
            self._chat_of(trainer),
            generator,
            sampling=sampling_of(trainer),
            limits=self._limits_of(trainer),
            concurrency=self._concurrency,
        )
        try:
            return engine.collect_sync(requests)
        finally:
            if then_close:
                engine.call_sync(generator.aclose())
            engine.close_sync()

    def _chat_of(self, trainer: Any) -> Chat:
        tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        if self._renderer is not None:
            return Chat(tokenizer, self._renderer)
        from renderers import AutoRendererConfig

        try:
            return Chat(tokenizer, AutoRendererConfig(thinking_retention="all"))
        except NotImplementedError:
            raise ValueError(
                f"no renderer is known for {tokenizer.name_or_path!r}: give Environments that of the model's family,"
                " such as renderer=Qwen3RendererConfig(thinking_retention='all')"
            ) from None

    def _limits_of(self, trainer: Any) -> Limits:
        tokens = [trainer.max_completion_length]
        if self._limits.completion_tokens is not None:
            tokens.append(self._limits.completion_tokens)
        return replace(self._limits, completion_tokens=min(tokens))

    def _rollout_func(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        trajectories = self.rollout(trainer, [slot.row for slot in trainer.environments])
        if self._on_rollouts is not None:
            self._on_rollouts(trajectories)
        self._look_over(trajectories)
        eos = trainer.eos_token_ids[0]
        rows = [_training_row(trajectory, eos) for trajectory in trajectories]
        prompt_ids, completion_ids, mask, logprobs = (list(column) for column in zip(*rows, strict=True))
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": completion_ids,
            "env_mask": mask,
            "logprobs": logprobs,
            "trajectory": trajectories,
        }

    def _look_over(self, trajectories: Sequence[Trajectory]) -> None:
        """Tells of failures, and ends the training if there are only such."""
        failures = Counter(str(t.outcome) for t in trajectories if t.outcome.kind == "failed")
        for cause, count in failures.most_common(3):
            logger.warning("%d of %d rollouts %s", count, len(trajectories), cause)
        fruitful = any(_was_played(t) and _was_scored(t) for t in trajectories)
        self._fruitless = 0 if fruitful else self._fruitless + 1
        if self._fruitless >= _FRUITLESS_BATCHES:
            raise RuntimeError(
                f"{_FRUITLESS_BATCHES} batches in a row had no rollout to learn from; the last one"
                f" {trajectories[-1].outcome}"
            )
        if not self._warned_of_rewriting and any(t.rewritten for t in trajectories):
            self._warned_of_rewriting = True
            logger.warning(
                "the chat template rewrote history, so that a rollout is several rows of tokens; TRL takes one, the"
                " last. Give the renderer's configuration thinking_retention='all'"
            )

    # ------------------------------------------------------------------------------------------------------------------
    # Rewards

    def _reward_functions(self) -> list[RewardFunction]:
        if self._rewards is None:
            functions = [_reward_function("total", lambda trajectory: trajectory.reward)]
        else:
            functions = [_reward_function(name, lambda t, name=name: t.rewards.get(name)) for name in self._rewards]
        functions[0] = _with_metrics(functions[0])
        return functions


def _label(env_id: str, split: str | None, task: int | None) -> list[dict[str, str]]:
    parts = [env_id, *([] if split is None else [split]), *([] if task is None else [f"task {task}"])]
    return [{"role": "user", "content": ", ".join(parts)}]


def _was_played(trajectory: Trajectory) -> bool:
    """Whether there is anything to learn from: a rollout that did not fail, in which the model said something."""
    return trajectory.outcome.kind in ("terminated", "truncated") and bool(trajectory.rows())


def _was_scored(trajectory: Trajectory) -> bool:
    return trajectory.valid or any(score is not None for score in trajectory.rewards.values())


def _training_row(trajectory: Trajectory, eos: int) -> tuple[list[int], list[int], list[int], list[float]]:
    """Prompt, completion, mask and log-probs as TRL takes them: it can't do without a token.

    So a rollout that was not played is one end-of-sequence token that is masked.
    """
    if not _was_played(trajectory):
        return trajectory.prompt_ids or [eos], [eos], [0], [0.0]
    row = trajectory.rows()[-1]
    return row.prompt_ids, row.completion_ids, row.mask, row.logprobs


def _reward_function(name: str, reward: Callable[[Trajectory], float | None]) -> RewardFunction:
    def function(trajectory: Sequence[Trajectory], **_: Any) -> list[float | None]:
        return [reward(t) if _was_played(t) else None for t in trajectory]

    function.__name__ = name
    return function


def _with_metrics(function: RewardFunction) -> RewardFunction:
    """Has a reward function log the metrics of the rollouts too: TRL puts the means of all ranks into its log."""

    def logging_function(
        trajectory: Sequence[Trajectory], log_metric: Callable[[str, float], None], **rest: Any
    ) -> list[float | None]:
        for name, value in _metrics(trajectory).items():
            log_metric(name, value)
        return function(trajectory=trajectory, **rest)

    logging_function.__name__ = function.__name__
    return logging_function


def _metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    count = len(trajectories)
    metrics = {
        "rollouts/failed": sum(t.outcome.kind == "failed" for t in trajectories) / count,
        "rollouts/truncated": sum(t.outcome.kind == "truncated" for t in trajectories) / count,
        "rollouts/turns": fmean(len(t.turns) for t in trajectories),
        "rollouts/generation_seconds": fmean(t.timings.generation for t in trajectories),
        "rollouts/environment_seconds": fmean(t.timings.environment for t in trajectories),
    }
    scores: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, score in trajectory.rewards.items():
            if score is not None:
                scores.setdefault(name, []).append(score)
    return metrics | {f"rubrics/{name}": fmean(values) for name, values in scores.items()}
