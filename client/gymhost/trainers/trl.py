"""Environments for TRL: all that a `GRPOTrainer` needs, from one object.

    environments = Environments("gymhost/GuessNumber-v0", server="cpu7:50051")
    GRPOTrainer(model, args=config, **environments.trainer_kwargs()).train()

The rollouts are those of `gymhost.rollout`, driven with whatever the trainer generates with: colocated vLLM, a vLLM
server or the trained model itself. TRL sees a dataset of tasks, a `rollout_func` and reward functions. Its
`environment_factory` is only the way on which a row of the dataset reaches the rollout function, so that resets and
tools of a batch all run at once.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from gymhost.client.tls import TlsLike
from gymhost.rollout import Chat, Concurrency, Generator, Limits, RolloutEngine, RolloutRequest, Trajectory
from gymhost.rollout.service import RolloutClient
from gymhost.trainers.connection import Connection
from gymhost.trainers.trl_generation import generator_of, sampling_of, tokenizer_of
from gymhost.trainers.trl_metrics import Lookout, Measures
from gymhost.trainers.trl_player import Player, numbered
from gymhost.trainers.trl_policy import refuse_colocated
from gymhost.trainers.trl_rewards import Learnable, reward_functions, training_row
from gymhost.trainers.trl_rows import Env, check_size, completed, envs_of, mixed, one_after_another, options_of
from gymhost.trainers.trl_service import Service
from gymhost.trainers.trl_store import Keeper
from gymhost.trainers.vllm_cpu import use_vllm_on_cpu

__all__ = ["Env", "Environments"]

_FIRST_EVAL_SEED = 1_000_000
"""Beyond those of training, so that environments without tasks are evaluated on what they were not trained on."""


class Slot:
    """What TRL takes for an environment: holds the row of the dataset that a rollout is to play, and has no tools."""

    row: Mapping[str, Any]

    def reset(self, **row: Any) -> None:
        """Takes the row."""
        self.row = row


class Environments:
    """The environments of a trainer: where they are, which tasks they play and what their rewards are.

        Environments("gymhost/GuessNumber-v0", server="cpu7:50051")                      # one environment
        Environments({"gymhost/GuessNumber-v0": 3, "gymhost/Wordle-v0": 1})              # several, 3 to 1
        Environments([Env("my/Shop-v0", num_tasks=500), Env("my/Shop-v0", name="hard", kwargs={"level": 9})])
        Environments("my/Shop-v0", server=["cpu7:50051", "cpu8:50051"], eval_split="test", eval_tasks=100)
        Environments("my/Quiz-v0", dataset=load_dataset("my/questions", split="train"))  # your own rows

    Tasks. The trainer's dataset has a row for each task, with the columns `environment`, `task`, `split` and `seed`,
    and a `prompt` that names them: the real prompt is the environment's to write. Several environments are mixed by
    their weights, always in the same way, until each has been through its tasks; what has fewer begins anew, with other
    seeds. Unless `num_tasks` asks for more, there are at most 100,000 rows. Where there is no fixed number of tasks and
    none is asked for there are 10,000, each with a seed of its own; `GRPOConfig.max_steps` ends the training earlier.

    Your own dataset. Of its columns `environment` (needed with several), `task`, `split` and `seed` mean what they mean
    above, `prompt` is only for the eye, and all others are options of the environment's reset. Without seeds a row's
    place is its seed.

    Servers. With a list of them a session is opened where the fewest of ours are. One that is gone is left for half a
    minute and tried again after that; rollouts that it took with it are begun again on another.

    A service. With `service=` (`gymhost serve --rollouts`) there are no environments, agents or sessions here, and no
    connection to their servers: each batch is a job of the service. Sampling is as the trainer is set up, the renderer
    and how many rollouts run at once are the service's, and so are `limits` unless some are given. When the weights
    have changed they are written into a folder, which the generators load; with TRL's vLLM server mode (`use_vllm`,
    `vllm_mode="server"`) TRL sends them, and the service, which then has that one server, is told. A trainer that loses
    the service for less than five minutes goes on when it is back; one that is started again from its last checkpoint
    gets the job that it had. Policy versions are the service's, which go on from one training to the next.

    Rewards. What failed gives the trainer nothing to learn from: its reward is None, never 0.0, its tokens are masked,
    and the mean of its group is that of the others. With `rewards=` each of these rubrics is a column of its own, None
    for environments that have no such rubric; where one that it has could not be computed, all are None, since TRL adds
    up what is there. Reward functions of your own, if they come after these, are given the real messages as `prompts`
    and `completions` (as plain text), and each `trajectory`; they should return None where that has no reward.

    The log. Beside TRL's own metrics there are means over the rollouts of a batch:

    - `rollouts/turns`, `rollouts/tool_calls`, `rollouts/sampled_tokens`;
    - `rollouts/failed`, and of these `rollouts/failed/environment`, `.../infrastructure` and `.../generator` by whose
      fault it was; `rollouts/begun_again` after a fault that passed;
    - `rollouts/truncated`, and `rollouts/truncated/LIMIT` by what ended them; `rollouts/mixed_versions`;
    - `rollouts/queue_seconds`, `init_seconds`, `run_seconds`, `eval_seconds` by stage, and of `run` what the model took
      (`generation_seconds`) and what the environment did (`environment_seconds`);
    - `rubrics/NAME`; and with several environments `environments/NAME/reward`, `.../turns`, `.../failed`,
      `.../truncated` and `.../rubrics/RUBRIC` of each.

    `GRPOConfig(log_completions=True)` shows the conversations, and how each ended. `store=` keeps everything:
    `gymhost view FOLDER` shows it, also while the training goes on.

    Failures. Faults of servers and generators are tried again (`Limits.retries`); every wait is bounded by `Limits`.
    The log says what failed and why, and the training goes on. It ends once three batches in a row had nothing to learn
    from, and at once where pictures are shown, since generators take token ids alone: those are for
    `gymhost.trainers.trl_factory.remote_environment`.

    No session outlives the call of the rollout function that opened it. The connection is closed when this object is
    collected or the process ends; nobody has to close anything.

    Args:
        env: The environment, such as "gymhost/GuessNumber-v0"; or several: a dict of their weights, or a list of ids
            and `Env`, which has settings for each.
        server: The address of a server ("host:port"), a list of addresses, or an open connection of
            `gymhost.client.connect`. Without one an embedded server is started.
        service: A rollout service ("host:port", or a client of it), which plays instead of this process: see above.
        token: The token of the servers, or of the service.
        tls: How TLS is spoken with them, as for `gymhost.client.connect`.
        split: The split of the tasks to train on.
        tasks: The indices of the tasks to train on, in this order; without them all tasks of the split.
        num_tasks: Only so many of them, from the first. With several environments, how many rows there are in all.
        dataset: What to train on instead: a `datasets.Dataset` or `datasets.IterableDataset`.
        eval_split: The split that `trainer_kwargs` makes an `eval_dataset` of: each of its tasks once, those of one
            environment after those of the other. Seeds are others than in training. Without one there is none.
        eval_tasks: Only so many of them, from the first; or their indices. Needed where there is no fixed number.
        rewards: The rubrics that become reward functions of their own, to be weighted by `GRPOConfig.reward_weights`.
            Without them one function, `total`, gives the reward as the environment weights it.
        renderer: A configuration of the `renderers` package, such as `Qwen3RendererConfig(thinking_retention="all")`.
            Without one the renderer is chosen by the model's name; a model in a local folder needs one. TRL trains one
            row of tokens a rollout, so it should keep history ("all"), as the renderer that is chosen does.
        limits: What ends a rollout. Tokens are bounded by `GRPOConfig.max_completion_length` too.
        concurrency: How many rollouts at once.
        generator: Samples instead of what the trainer is set up with. To keep its weights in step is then up to you. It
            is used in one event loop as long as this object is there.
        mixed_versions: What is learned of a rollout that more than one version of the weights sampled, as it can be
            where a `generator` is updated meanwhile. "keep": the same as of others; each token has the log-prob of the
            version that sampled it, by which TRL corrects where the config says `use_vllm`. "drop": nothing, as of one
            that failed. Reward functions of your own see `trajectory.mixed_versions`, and the version of each turn.
        on_rollouts: Called with the trajectories of every batch, in order: to follow the training.
        store: A folder that every trajectory is appended to, those of evaluations too. One that is there already is
            gone on with. With several ranks each has a folder of its own in it, `rank-0` and so on.
        weights: With a `service`: a folder that its generators see under the same path, where weights are written for
            them. Without one it is `weights` in the trainer's `output_dir`.
        **env_kwargs: Keyword arguments of the environment, if it is a single one.

    Raises:
        ValueError: There is no environment, two are called the same, `tasks` or keyword arguments are given for
            several, settings that go together with no `service`, or `mixed_versions` is neither of the two.
    """

    def __init__(
        self,
        env: str | Env | Mapping[str, float] | Iterable[str | Env],
        *,
        server: Any = None,
        service: str | RolloutClient | None = None,
        token: str | None = None,
        tls: TlsLike = None,
        split: str | None = "train",
        tasks: Iterable[int] | None = None,
        num_tasks: int | None = None,
        dataset: Any = None,
        eval_split: str | None = None,
        eval_tasks: int | Iterable[int] | None = None,
        rewards: Sequence[str] | None = None,
        renderer: Any = None,
        limits: Limits | None = None,
        concurrency: Concurrency | None = None,
        generator: Generator | None = None,
        mixed_versions: Literal["keep", "drop"] = "keep",
        on_rollouts: Callable[[list[Trajectory]], object] | None = None,
        store: str | Path | None = None,
        weights: str | Path | None = None,
        **env_kwargs: Any,
    ) -> None:
        if service is None:
            _refuse("it needs a service=", weights=weights)
        else:
            own = {"server": server, "renderer": renderer, "generator": generator, "concurrency": concurrency}
            _refuse("with service= that is the service's: leave it out", **own)
        self.envs = envs_of(env, tasks=None if tasks is None else list(tasks), kwargs=env_kwargs)
        self.split = split
        self._num_tasks = num_tasks
        self._dataset = dataset
        self._eval_split = eval_split
        self._eval_tasks = eval_tasks if eval_tasks is None or isinstance(eval_tasks, int) else list(eval_tasks)
        self._rewards = list(rewards) if rewards else None
        self._renderer = renderer
        self._given_limits = limits
        self._limits = limits or Limits()
        self._concurrency = concurrency
        self._generator = generator
        self._on_rollouts = on_rollouts
        self._keeper = None if store is None else Keeper(Path(store), list(self.envs))
        self._service: Service | None = None
        self._connection: Connection | Service
        if service is None:
            self._connection = Connection(server, token, tls)
        else:
            folder = None if weights is None else Path(weights)
            self._connection = self._service = Service(service, token, tls, folder)
        self._player = Player()
        if mixed_versions not in ("keep", "drop"):
            raise ValueError(f"mixed_versions must be 'keep' or 'drop', not {mixed_versions!r}")
        self._learnable = Learnable(self._rewards, mixed_versions == "keep")
        self._lookout = Lookout(self._learnable)
        self._measures = Measures(self.envs, self._limits)

    def trainer_kwargs(self, config: Any = None) -> dict[str, Any]:
        """Everything that a `GRPOTrainer` needs of the environments, as its keyword arguments.

        On a machine without a GPU TRL's vLLM generation is repaired on the way; see `gymhost.trainers.vllm_cpu`.

        Args:
            config: The trainer's `GRPOConfig`, to find out whether the dataset is large enough for it: TRL leaves out
                rows that do not fill a batch of rollouts, and ends at step 0 where that is all of them.

        Raises:
            ValueError: An environment has no such split, or the dataset does not fit or is too small.
            TypeError: The dataset is none.
            ServerUnavailable: No server could be reached.
        """
        if self._service is not None and config is not None and config.use_vllm and config.vllm_mode != "server":
            refuse_colocated()
        use_vllm_on_cpu()
        own = self._dataset
        chosen: dict[str, Any] = {
            "train_dataset": self.dataset(self.split) if own is None else completed(own, self.envs),
            "rollout_func": self._rollout_func,
            "environment_factory": Slot,
            "reward_funcs": reward_functions(self._learnable, self._measures),
        }
        if config is not None:
            check_size(chosen["train_dataset"], config)
        if self._eval_split is not None:
            chosen["eval_dataset"] = self._eval_dataset(self._eval_split)
        return chosen

    def dataset(
        self,
        split: str | None,
        *,
        tasks: Iterable[int] | None = None,
        num_tasks: int | None = None,
        first_seed: int = 0,
    ) -> Any:
        """Makes a dataset of tasks for the trainer, as that which it trains on is made.

        Args:
            split: The split of the tasks, unless an `Env` says its own; ignored by environments without tasks.
            tasks: The indices of the tasks, for a single environment; without them those of `Environments`.
            num_tasks: How many rows there are to be.
            first_seed: The seed of the first row; the rows after it count on from there.

        Raises:
            ValueError: An environment has no such split, or `tasks` is given for several.
        """
        envs = self.envs if tasks is None else self._with_tasks(list(tasks))
        total = self._num_tasks if num_tasks is None else num_tasks
        if len(envs) == 1:
            (env,) = envs.values()
            envs = {env.label: replace(env, num_tasks=env.num_tasks if total is None else total)}
            total = None
        return _dataset(mixed(self._described(envs, split), total=total, first_seed=first_seed))

    def _with_tasks(self, tasks: list[int]) -> dict[str, Env]:
        if len(self.envs) > 1:
            raise ValueError("tasks of several environments are given for each of them: Env(env_id, tasks=...)")
        return {label: replace(env, tasks=tasks) for label, env in self.envs.items()}

    def _eval_dataset(self, split: str) -> Any:
        asked = self._eval_tasks
        tasks, count = (None, asked) if asked is None or isinstance(asked, int) else (asked, None)
        envs = {label: replace(env, split=split, tasks=tasks, num_tasks=count) for label, env in self.envs.items()}
        return _dataset(one_after_another(self._described(envs, split), first_seed=_FIRST_EVAL_SEED))

    def _described(
        self, envs: Mapping[str, Env], split: str | None
    ) -> list[tuple[Env, str | None, Mapping[str, int | None]]]:
        """Environments, with the splits that they have; not asked for where it is said which tasks to play."""
        return [
            (
                env,
                split if env.split is None else env.split,
                {} if env.tasks is not None else self._connection.splits(env.env_id, dict(env.kwargs)),
            )
            for env in envs.values()
        ]

    # ------------------------------------------------------------------------------------------------------------------
    # Rollouts

    def rollout(self, trainer: Any, rows: Sequence[Mapping[str, Any]]) -> list[Trajectory]:
        """Plays one rollout for each row with the trainer's present weights, and returns them in the rows' order.

        This is what the trainer's rollout function does; scripts may call it to evaluate. With several
        ranks each of them has to call it.

        Args:
            trainer: A `GRPOTrainer`.
            rows: Rows of a `dataset`.

        Raises:
            ValueError: A row names no environment of these, or the trainer is set to what rollouts do not know.
        """
        requests = self._requests(rows, trainer)
        if self._service is not None:
            return self._service.play(requests, trainer, sampling_of(trainer), self._limits_said(trainer))
        if self._generator is not None:
            return self._play(requests, trainer, self._generator)
        with generator_of(trainer, trainer.state.global_step, self._player) as generator:
            return self._play(requests, trainer, generator)

    def _requests(self, rows: Sequence[Mapping[str, Any]], trainer: Any) -> list[RolloutRequest]:
        """What is to be played: rows that are alike are a group."""
        step = trainer.state.global_step
        requests: list[RolloutRequest] = []
        for row in rows:
            env = self._env_of(row)
            options, task, seed, split = options_of(row), row.get("task"), row.get("seed"), row.get("split")
            if split is None and task is not None:
                split = self.split if env.split is None else env.split
            group = f"step {step}, {env.label}, {split} {task}, seed {seed}"
            if options:
                group += f", {zlib.crc32(repr(sorted(options.items())).encode()):08x}"
            requests.append(
                RolloutRequest(
                    env.env_id,
                    task,
                    seed,
                    split,
                    kwargs=env.kwargs,
                    options=options,
                    group=group,
                    labels={"environment": env.label, "step": step},
                )
            )
        return numbered(requests, trainer.accelerator)

    def _env_of(self, row: Mapping[str, Any]) -> Env:
        label = row.get("environment")
        if label is None and len(self.envs) == 1:
            return next(iter(self.envs.values()))
        if label not in self.envs:
            raise ValueError(f"a row is for the environment {label!r}, but given are {', '.join(self.envs)}")
        return self.envs[label]

    def _play(self, requests: list[RolloutRequest], trainer: Any, generator: Generator) -> list[Trajectory]:
        assert isinstance(self._connection, Connection)
        source, chat = self._connection.source, self._chat_of(trainer)
        how: dict[str, Any] = {"sampling": sampling_of(trainer), "limits": self._limits_of(trainer)}
        return self._player.play(
            lambda: RolloutEngine(source, chat, generator, concurrency=self._concurrency, **how), requests
        )

    def _chat_of(self, trainer: Any) -> Chat:
        tokenizer = tokenizer_of(trainer)
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

    def _limits_said(self, trainer: Any) -> dict[str, Any]:
        """The limits that a service is told: without any of the user's, those that it is set up with hold."""
        limits = self._limits_of(trainer)
        said = {"completion_tokens": limits.completion_tokens}
        if self._given_limits is not None:
            said = asdict(limits)
            if limits.retries == Limits().retries:  # how much patience faults are worth is for the service to say
                del said["retries"]
        return said

    def _rollout_func(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        trajectories = self.rollout(trainer, [slot.row for slot in trainer.environments])
        if self._keeper is not None:
            self._keeper.keep(trajectories, trainer)
        if self._on_rollouts is not None:
            self._on_rollouts(trajectories)
        self._lookout.look(trajectories)
        eos = trainer.eos_token_ids[0]
        rows = [training_row(trajectory, self._learnable, eos) for trajectory in trajectories]
        prompt_ids, completion_ids, mask, logprobs = (list(column) for column in zip(*rows, strict=True))
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": completion_ids,
            "env_mask": mask,
            "logprobs": logprobs,
            "trajectory": trajectories,
        }


def _refuse(why: str, **settings: Any) -> None:
    """Refuses settings that go with nothing else that was given.

    Raises:
        ValueError: There is one.
    """
    for name, value in settings.items():
        if value is not None:
            raise ValueError(f"Environments({name}=...): {why}")


def _dataset(rows: list[dict[str, Any]]) -> Any:
    from datasets import Dataset

    return Dataset.from_list(rows)  # pyright: ignore[reportUnknownMemberType]
