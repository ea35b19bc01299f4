"""`Environments` in TRL's own trainer, with a small model that is trained and a scripted one that plays."""

import copy
import math
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from renderers import Qwen3RendererConfig

from gymhost.client import RemoteServer, connect
from gymhost.envs.shelf.guess_number import GuessNumber
from gymhost.rollout import Limits, Trajectory
from gymhost.rollout.generators import ScriptedGenerator
from gymhost.rollout.loop_thread import LoopThread
from gymhost.trainers.trl import Environments
from support.completions_server import CompletionsServer, choice
from support.local_source import LocalSource
from support.models import tiny_qwen3
from support.talk import Talk, end, go_on, tool, user
from support.tokenizers import call, decode, encode, qwen3_tokenizer

pytestmark = pytest.mark.heavy

# What TRL and torch warn of is not ours to mend.
quiet = pytest.mark.filterwarnings("ignore")
GUESS_NUMBER = "gymhost/GuessNumber-v0"
RENDERER = Qwen3RendererConfig(thinking_retention="all")


@pytest.fixture(scope="module")
def trl() -> Any:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("OMP_NUM_THREADS", "1")
        torch.set_num_threads(1)
        import trl

        return trl


@pytest.fixture(scope="module")
def server() -> Iterator[RemoteServer]:
    with connect() as server:
        yield server


@pytest.fixture
def make_trainer(trl: Any, tmp_path: Path) -> Callable[..., Any]:
    """Makes a trainer the way a script does it, with batches of `tasks` times 4 rollouts."""
    from trl.chat_template_utils import qwen3_chat_template

    tokenizer = copy.deepcopy(qwen3_tokenizer())
    tokenizer.chat_template = qwen3_chat_template

    def make(environments: Environments, *, tasks: int = 2, steps: int = 1, **settings: Any) -> Any:
        config = trl.GRPOConfig(
            output_dir=str(tmp_path),
            max_steps=steps,
            per_device_train_batch_size=tasks * 4,
            num_generations=4,
            max_completion_length=256,
            learning_rate=1e-3,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            **settings,
        )
        return trl.GRPOTrainer(tiny_qwen3(), args=config, processing_class=tokenizer, **environments.trainer_kwargs())

    return make


def binary_search(prompt_ids: Any, _request_id: str) -> list[int]:
    """The player that always wins: it guesses the middle of the range that it was told last."""
    low, high = re.findall(r"from (\d+) to (\d+)", decode(list(prompt_ids)))[-1]
    return encode(call("guess", f'{{"number": {(int(low) + int(high)) // 2}}}'))


def guesses(**settings: Any) -> tuple[Environments, list[list[Trajectory]]]:
    """GuessNumber in this process, and the batches that will have been played in it."""
    batches: list[list[Trajectory]] = []
    settings = {
        "renderer": RENDERER,
        "server": LocalSource(GuessNumber),
        "num_tasks": 64,
        "generator": ScriptedGenerator(binary_search),
    } | settings
    if isinstance(settings["server"], LocalSource):
        settings = {"tasks": range(settings["num_tasks"])} | settings
    return Environments(GUESS_NUMBER, on_rollouts=batches.append, **settings), batches


def talks(answer: Callable[[Talk, Any], Any], **settings: Any) -> tuple[Environments, list[list[Trajectory]]]:
    """An environment whose every answer the test decides, with a model that says hello."""
    batches: list[list[Trajectory]] = []
    hello = ScriptedGenerator(lambda _prompt, _request: encode("Hello.<|im_end|>"))
    environments = Environments(
        "Talk-v0",
        server=LocalSource(lambda: Talk(answer)),
        tasks=range(64),
        renderer=RENDERER,
        generator=hello,
        on_rollouts=batches.append,
        **settings,
    )
    return environments, batches


def log_of(trainer: Any, step: int) -> dict[str, float]:
    return next(entry for entry in trainer.state.log_history if entry["step"] == step and "reward" in entry)


@quiet
class TestDataset:
    def test_has_the_tasks_of_a_split(self, trl: Any, server: RemoteServer) -> None:
        environments = Environments(GUESS_NUMBER, server=server)
        test = environments.dataset("test")
        assert test["task"] == list(range(500))
        assert set(test["split"]) == {"test"}
        assert len(environments.dataset("train", num_tasks=7)) == 7
        assert environments.dataset("train", tasks=[5, 3])["task"] == [5, 3]

    def test_refuses_a_split_that_is_not_there(self, trl: Any, server: RemoteServer) -> None:
        with pytest.raises(ValueError, match="no split 'dev': there are test, train"):
            Environments(GUESS_NUMBER, server=server).dataset("dev")

    def test_has_seeds_where_there_are_no_tasks(self, trl: Any, server: RemoteServer) -> None:
        environments = Environments("gymhost/Echo-v0", server=server)
        rows = list(environments.dataset("train", num_tasks=3, first_seed=40))
        assert [(row["task"], row["seed"]) for row in rows] == [(None, 40), (None, 41), (None, 42)]


@quiet
class TestTraining:
    def test_each_row_is_played_scored_and_handed_over_as_itself(self, make_trainer: Callable[..., Any]) -> None:
        environments, batches = guesses()
        trainer = make_trainer(environments, steps=3)
        asked: list[tuple[int, int]] = []
        made: list[Trajectory] = []

        def look(task: list[int], seed: list[int], trajectory: list[Trajectory], **_: Any) -> list[float]:
            asked.extend(zip(task, seed, strict=True))
            made.extend(trajectory)
            return [0.0] * len(task)

        trainer.reward_funcs.append(look)
        trainer.reward_func_names.append("look")
        trainer.reward_processing_classes.append(None)
        trainer.reward_weights = trainer.reward_weights.new_ones(2)
        trainer.train()

        assert len(batches) == 3
        assert made == [trajectory for batch in batches for trajectory in batch]
        assert [(trajectory.task, trajectory.seed) for trajectory in made] == asked
        for batch in batches:  # two tasks, each of them played by a group of four
            assert [trajectory.task for trajectory in batch] == [batch[0].task] * 4 + [batch[4].task] * 4
            assert [trajectory.index for trajectory in batch] == [0, 1, 2, 3] * 2
            assert len({trajectory.group for trajectory in batch}) == 2
        assert log_of(trainer, 3)["rewards/total/mean"] == 1.0

    def test_what_is_trained_on_is_what_was_sampled(self, make_trainer: Callable[..., Any]) -> None:
        environments, batches = guesses()
        trainer = make_trainer(environments)
        output = trainer.rollout_func
        kept: list[dict[str, Any]] = []
        trainer.rollout_func = lambda prompts, trainer: kept.append(output(prompts, trainer)) or kept[-1]
        trainer.train()
        (batch,) = batches
        for i, trajectory in enumerate(batch):
            row = {name: column[i] for name, column in kept[0].items()}
            assert row["prompt_ids"] == trajectory.prompt_ids
            assert row["completion_ids"] == trajectory.completion_ids
            assert len(row["completion_ids"]) == len(row["env_mask"]) == len(row["logprobs"])
            assert row["env_mask"][-1] == 1  # a row ends with its last sampled token
            sampled = [token for token, own in zip(row["completion_ids"], row["env_mask"], strict=True) if own]
            assert decode(sampled).count("<|im_end|>") == len(trajectory.turns)
            assert "Too" not in decode(sampled)

    def test_a_turn_that_the_user_answers_is_trained_on_too(self, make_trainer: Callable[..., Any]) -> None:
        environments, batches = talks(lambda env, _: end() if len(env.said) == 3 else go_on(user("Go on.")))
        make_trainer(environments).train()
        for trajectory in batches[0]:
            assert not trajectory.rewritten
            assert sum(trajectory.mask) == trajectory.sampled_tokens == 3 * len(encode("Hello.<|im_end|>"))

    def test_rubrics_can_be_reward_functions_of_their_own(self, make_trainer: Callable[..., Any]) -> None:
        environments, _ = guesses(rewards=["win", "format"])
        trainer = make_trainer(environments, reward_weights=[1.0, 0.1])
        trainer.train()
        log = log_of(trainer, 1)
        assert (log["rewards/win/mean"], log["rewards/format/mean"]) == (1.0, 0.0)
        assert log["reward"] == 1.0

    def test_the_log_tells_of_the_rollouts(self, make_trainer: Callable[..., Any]) -> None:
        environments, batches = guesses(limits=Limits(turns=2))
        trainer = make_trainer(environments)
        trainer.train()
        (batch,) = batches
        log = log_of(trainer, 1)
        assert log["rollouts/failed"] == 0.0
        assert log["rollouts/truncated"] == pytest.approx(sum(t.outcome.limit == "turns" for t in batch) / 8)
        assert log["rollouts/turns"] == pytest.approx(sum(len(t.turns) for t in batch) / 8)

    def test_tokens_know_the_step_of_the_policy_that_sampled_them(self, make_trainer: Callable[..., Any]) -> None:
        batches: list[list[Trajectory]] = []
        environments = Environments(
            GUESS_NUMBER,
            server=LocalSource(GuessNumber),
            tasks=range(8),
            renderer=RENDERER,
            limits=Limits(turn_tokens=8, turns=1),
            on_rollouts=batches.append,
        )
        make_trainer(environments, steps=3).train()
        assert [{turn.policy_version for t in batch for turn in t.turns} for batch in batches] == [{0}, {1}, {2}]

    def test_evaluation_plays_its_own_split(self, make_trainer: Callable[..., Any]) -> None:
        environments, batches = guesses()
        trainer = make_trainer(environments, per_device_eval_batch_size=4)
        metrics = trainer.evaluate(environments.dataset("test", tasks=range(3)))
        assert {(t.split, t.task) for batch in batches for t in batch} == {("test", 0), ("test", 1), ("test", 2)}
        assert metrics["eval_rewards/total/mean"] == 1.0


@quiet
class TestFailures:
    def test_what_failed_is_no_zero_and_moves_nothing(self, make_trainer: Callable[..., Any]) -> None:
        """S08: rewards 1.0 and 0.0, a scorer that raises and one that returns NaN, in each group of four."""
        begun = iter(range(64))
        answers = [
            lambda: end(reward=1.0),
            lambda: end(reward=0.0),
            lambda: 1 / 0,
            lambda: end(reward=math.nan),
        ]
        environments, batches = talks(lambda _env, _message: answers[next(begun) % 4]())
        trainer = make_trainer(environments, tasks=1)
        trainer.train()
        (batch,) = batches
        rewards = [trajectory.reward for trajectory in batch]
        assert sorted(map(str, rewards)) == ["0.0", "1.0", "None", "None"]
        advantages = dict(zip(map(str, rewards), trainer._logs["advantages"], strict=True))
        assert advantages["None"] == 0.0
        assert advantages["1.0"] == pytest.approx(-advantages["0.0"])
        assert advantages["1.0"] > 0.5  # the mean of two, not of four
        log = log_of(trainer, 1)
        assert log["reward"] == 0.5
        assert log["rollouts/failed"] == 0.25
        assert math.isfinite(log["loss"])

    def test_a_failed_rollout_gives_one_masked_token(self, make_trainer: Callable[..., Any]) -> None:
        failing = iter([True] + [False] * 7)
        environments, _ = talks(lambda _env, _message: 1 / 0 if next(failing) else end())
        trainer = make_trainer(environments)
        output = trainer.rollout_func
        kept: list[dict[str, Any]] = []
        trainer.rollout_func = lambda prompts, trainer: kept.append(output(prompts, trainer)) or kept[-1]
        trainer.train()
        eos = trainer.processing_class.eos_token_id
        rows = list(zip(*(kept[0][name] for name in ("completion_ids", "env_mask", "logprobs")), strict=True))
        assert rows.count(([eos], [0], [0.0])) == 1

    def test_training_ends_once_batches_have_only_failures(self, make_trainer: Callable[..., Any]) -> None:
        environments, batches = talks(lambda _env, _message: 1 / 0)
        with pytest.raises(RuntimeError, match=r"3 batches in a row.*ZeroDivisionError"):
            make_trainer(environments, steps=10).train()
        assert len(batches) == 3

    def test_a_model_that_rambles_is_cut_off_with_what_it_earned(self, make_trainer: Callable[..., Any]) -> None:
        environments, batches = talks(
            lambda env, _message: go_on(tool("Go on."), reward=0.25), limits=Limits(completion_tokens=40)
        )
        trainer = make_trainer(environments)
        trainer.train()
        assert {t.outcome.limit for t in batches[0]} == {"completion_tokens"}
        assert all(t.reward == 0.25 * len(t.turns) > 0 for t in batches[0])
        assert log_of(trainer, 1)["rollouts/truncated"] == 1.0


@quiet
class TestTools:
    """S04: nothing of an environment's life cycle is a tool."""

    def test_the_trainer_presents_none_and_the_model_sees_those_of_the_server(
        self, make_trainer: Callable[..., Any], server: RemoteServer
    ) -> None:
        environments, batches = guesses(server=server, num_tasks=8)
        trainer = make_trainer(environments)
        assert trainer.tools == []
        trainer.train()
        (trajectory, *_) = batches[0]
        assert [item["name"] for item in trajectory.tools] == ["guess"]
        prompt = decode(trajectory.prompt_ids)
        (shown,) = re.findall(r"<tools>\n(.*?)\n</tools>", prompt, re.DOTALL)
        assert shown.count('"type": "function"') == 1
        assert not re.search(r'"name": "(close|reset|render|seed|step)"', shown)

    def test_a_call_of_close_is_answered_and_the_session_lives_on(
        self, make_trainer: Callable[..., Any], server: RemoteServer
    ) -> None:
        def closes_first(prompt_ids: Any, request_id: str) -> list[int]:
            return encode(call("close", "{}")) if request_id.endswith("/1") else binary_search(prompt_ids, request_id)

        environments, batches = guesses(
            server=server, num_tasks=8, generator=ScriptedGenerator(closes_first), guesses=5
        )
        make_trainer(environments).train()
        for trajectory in batches[0]:
            _opening, asked, answer, *_ = trajectory.messages
            assert asked["tool_calls"][0]["function"]["name"] == "close"
            assert answer["role"] == "tool"
            assert "close" in answer["content"]
            assert "guess" in answer["content"]
            assert trajectory.outcome.kind == "terminated"
            assert trajectory.rewards["win"] == 1.0


@quiet
class TestSettings:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"repetition_penalty": 1.1}, "repetition_penalty"),
            ({"generation_kwargs": {"best_of": 2, "top_p": 0.9, "seed": 1}}, "generation_kwargs best_of, seed:"),
        ],
    )
    def test_what_rollouts_do_not_know_is_refused(
        self, make_trainer: Callable[..., Any], settings: dict[str, Any], message: str
    ) -> None:
        environments, batches = guesses()
        with pytest.raises(ValueError, match=message):
            make_trainer(environments, **settings).train()
        assert batches == []

    def test_the_renderer_is_known_by_the_model_s_name(self, make_trainer: Callable[..., Any]) -> None:
        environments, batches = guesses(renderer=None)
        trainer = make_trainer(environments)
        trainer.processing_class.name_or_path = "Qwen/Qwen3-0.6B"
        trainer.train()
        assert [trajectory.reward for trajectory in batches[0]] == [1.0] * 8

    def test_a_model_of_unknown_name_needs_a_renderer(self, make_trainer: Callable[..., Any]) -> None:
        environments, _ = guesses(renderer=None)
        trainer = make_trainer(environments)
        trainer.processing_class.name_or_path = "models/mine"
        with pytest.raises(ValueError, match=r"'models/mine'.*renderer=Qwen3RendererConfig"):
            trainer.train()

    def test_server_mode_asks_the_server_of_the_config_and_probes_it_once(
        self, make_trainer: Callable[..., Any]
    ) -> None:
        environments, batches = guesses(generator=None)
        vllm = CompletionsServer(lambda body: choice(binary_search(body["prompt"], "")))
        vllm.max_model_len = 1024
        thread = LoopThread("vllm")
        try:
            thread.run(vllm.start(0))
            trainer = make_trainer(environments, steps=3, vllm_server_base_url=vllm.url, top_k=5, temperature=0.5)
            # As if it had been made with use_vllm=True, but for what then needs a GPU.
            trainer.use_vllm, trainer.vllm_mode, trainer.vllm_importance_sampling_correction = True, "server", False
            trainer.vllm_generation = SimpleNamespace(sync_weights=lambda: None)
            trainer._last_loaded_step = -1
            trainer.train()
        finally:
            thread.run(vllm.stop())
            thread.close()
        assert [[trajectory.reward for trajectory in batch] for batch in batches] == [[1.0] * 8] * 3
        assert [{turn.policy_version for t in batch for turn in t.turns} for batch in batches] == [{0}, {1}, {2}]
        assert {(body["top_k"], body["temperature"]) for body in vllm.bodies} == {(5, 0.5)}
        assert vllm.probes == 1

    def test_colocated_tensor_parallelism_is_refused(self, make_trainer: Callable[..., Any]) -> None:
        environments, _ = guesses(generator=None)
        trainer = make_trainer(environments)
        trainer.use_vllm, trainer.vllm_mode, trainer.vllm_tensor_parallel_size = True, "colocate", 2
        trainer.vllm_generation = SimpleNamespace(sync_weights=lambda: None)
        trainer._last_loaded_step = -1
        with pytest.raises(ValueError, match="vllm_tensor_parallel_size=1"):
            trainer.train()
