"""`Environments` of several environments and servers, of the user's rows, and what the trainer's log tells of them."""

import itertools
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset, IterableDataset
from trl.trainer.grpo_config import GRPOConfig

from gymhost.envs import Task, ToolEnv, rubric
from gymhost.envs.shelf.guess_number import GuessNumber
from gymhost.rollout import Limits, Store, Trajectory
from gymhost.rollout.generators import ScriptedGenerator
from gymhost.trainers.trl import Env, Environments
from support.local_source import LocalSource
from support.talk import Talk, end, go_on, tool, user
from support.tokenizers import call, decode, encode
from support.trl_trainers import RENDERER, grpo_trainer

# What TRL and torch warn of is not ours to mend.
pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore")]

GUESS = "gymhost/GuessNumber-v0"
GREET = "test/Greet-v0"
SAY_HELLO = encode("Hello.<|im_end|>")
PICTURE = {
    "role": "user",
    "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    """Several wait for one another more than they compute, in models as small as these."""
    torch.set_num_threads(1)


class Greet(ToolEnv):
    """Wants to be greeted; has another rubric than GuessNumber.

    Args:
        politely: Whether whoever scores the greeting is able to.
    """

    tasks = {"train": [{"name": name} for name in ("Ann", "Bob", "Cid")], "test": [{"name": "Dan"}]}

    def __init__(self, *, politely: bool = True) -> None:
        super().__init__()
        self._politely = politely

    def prompt(self, task: Task) -> str:
        return f"Say hello to {task['name']}."

    def on_text(self, text: str) -> None:
        self.finish()

    @rubric
    def polite(self) -> float:
        """1 for any greeting."""
        if not self._politely:
            raise RuntimeError("nobody is here to judge")
        return 1.0

    @rubric(weight=0.5)
    def short(self) -> float:
        """1 for any greeting."""
        return 1.0


class Here:
    """Environments in this process by their ids, which a server would describe by these splits."""

    def __init__(self, **made: tuple[Callable[..., Any], Mapping[str, int | None]]) -> None:
        self.sources = {name: LocalSource(make) for name, (make, _) in made.items()}
        self.splits = {name: splits for name, (_, splits) in made.items()}

    def session(self, env_id: str, /, **how: Any) -> AbstractAsyncContextManager[Any]:
        return self.sources[env_id].session(env_id, **how)

    async def describe(self, env_id: str, /, **_: Any) -> Any:
        return SimpleNamespace(splits=self.splits[env_id])


def here() -> Here:
    return Here(
        **{
            GUESS: (GuessNumber, {"train": 40, "test": 5}),
            GREET: (Greet, {"train": 3, "test": 1}),
            "Free-v0": (lambda: Talk(lambda *_: end()), {}),
            "Endless-v0": (lambda: Talk(lambda *_: end()), {"train": None}),
        }
    )


def plays_both(prompt_ids: Any, _request_id: str) -> list[int]:
    """Greets whom it is to greet, and else guesses the middle of the range that it was told last."""
    text = decode(list(prompt_ids))
    if "Say hello" in text:
        return SAY_HELLO
    low, high = re.findall(r"from (\d+) to (\d+)", text)[-1]
    return encode(call("guess", f'{{"number": {(int(low) + int(high)) // 2}}}'))


def of(env: Any, **settings: Any) -> tuple[Environments, list[list[Trajectory]]]:
    """Environments in this process, and the batches that will have been played in them."""
    batches: list[list[Trajectory]] = []
    settings = {"server": here(), "renderer": RENDERER, "generator": ScriptedGenerator(plays_both)} | settings
    return Environments(env, on_rollouts=batches.append, **settings), batches


def talks(answer: Callable[[Talk, Any], Any], **settings: Any) -> tuple[Environments, list[list[Trajectory]]]:
    """An environment whose every answer the test decides, with a model that says hello."""
    hello = ScriptedGenerator(lambda *_: SAY_HELLO)
    settings = {"server": LocalSource(lambda: Talk(answer)), "tasks": range(64), "generator": hello} | settings
    return of("Talk-v0", **settings)


def rows_of(dataset: Any) -> list[tuple[str, int | None, int]]:
    return [(row["environment"], row["task"], row["seed"]) for row in dataset]


def train(environments: Environments, folder: Path, *, tasks: int = 2, steps: int = 1, **settings: Any) -> Any:
    settings = {"max_completion_length": 256, "max_steps": steps, "per_device_train_batch_size": 4 * tasks} | settings
    trainer = grpo_trainer(environments, folder, **settings)
    trainer.train()
    return trainer


def logged(trainer: Any, step: int = 1) -> dict[str, float]:
    return next(entry for entry in trainer.state.log_history if entry["step"] == step and "reward" in entry)


class TestRows:
    def test_are_mixed_by_weight_until_each_task_was_there(self) -> None:
        environments, _ = of({GUESS: 3, GREET: 1})
        rows = rows_of(environments.dataset("train"))
        assert [env for env, _, _ in rows[:8]] == [GUESS, GUESS, GUESS, GREET] * 2
        assert [seed for _, _, seed in rows] == list(range(len(rows)))
        assert [task for env, task, _ in rows if env == GUESS][:40] == list(range(40))
        assert [task for env, task, _ in rows if env == GREET] == [0, 1, 2] * 4 + [0]
        assert rows == rows_of(of({GUESS: 3, GREET: 1})[0].dataset("train"))

    def test_are_as_many_as_are_asked_for(self) -> None:
        environments, _ = of([Env(GUESS, weight=1), Env(GREET, weight=2)], num_tasks=9)
        assert Counter(env for env, _, _ in rows_of(environments.dataset("train"))) == {GUESS: 3, GREET: 6}

    def test_of_each_environment_can_be_chosen(self) -> None:
        easy = Env(GUESS, tasks=[7, 5], kwargs={"high": 3}, name="easy")
        hard = Env(GUESS, split="test", num_tasks=2, name="hard")
        environments, _ = of([easy, hard])
        rows = list(environments.dataset("train"))
        assert [(row["environment"], row["split"], row["task"]) for row in rows] == [
            ("easy", "train", 7),
            ("hard", "test", 0),
            ("easy", "train", 5),
            ("hard", "test", 1),
        ]
        assert rows[1]["prompt"] == [{"role": "user", "content": "hard, test, task 0"}]

    @pytest.mark.parametrize(("env", "tasks"), [("Free-v0", [None] * 10_000), ("Endless-v0", list(range(10_000)))])
    def test_go_on_where_nothing_says_how_many(
        self, env: str, tasks: list[int | None], caplog: pytest.LogCaptureFixture
    ) -> None:
        rows = rows_of(of(env)[0].dataset("train"))
        assert [task for _, task, _ in rows] == tasks
        assert len({seed for _, _, seed in rows}) == 10_000
        assert f"{env} has no fixed number of tasks: the dataset has 10000 rows" in caplog.text

    def test_of_an_evaluation_are_each_task_once_with_other_seeds(self) -> None:
        environments, _ = of({GUESS: 3, GREET: 1}, eval_split="test", eval_tasks=4)
        made = environments.trainer_kwargs()
        rows = rows_of(made["eval_dataset"])
        assert [(env, task) for env, task, _ in rows] == [*((GUESS, task) for task in range(4)), (GREET, 0)]
        assert not {seed for _, _, seed in rows} & {seed for _, _, seed in rows_of(made["train_dataset"])}
        assert "eval_dataset" not in of(GUESS)[0].trainer_kwargs()
        with pytest.raises(ValueError, match=r"Free-v0 has no fixed number of tasks.*eval_tasks="):
            of("Free-v0", eval_split="test")[0].trainer_kwargs()

    @pytest.mark.parametrize(
        ("env", "settings", "message"),
        [
            ({}, {}, "no environment"),
            ({GUESS: 0}, {}, "weight of gymhost/GuessNumber-v0 must be above 0, not 0"),
            ([GUESS, Env(GUESS)], {}, "is there twice: give each a name"),
            ([GUESS, GREET], {"tasks": [1]}, "tasks must be given for each"),
            ([GUESS, GREET], {"high": 9}, "kwargs must be given for each"),
        ],
    )
    def test_refuse_what_makes_no_sense(self, env: Any, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            of(env, **settings)

    def test_are_of_splits_that_there_are(self) -> None:
        with pytest.raises(ValueError, match="test/Greet-v0 has no split 'dev': there are test, train"):
            of([GUESS, Env(GREET, split="dev")])[0].dataset("train")
        with pytest.raises(ValueError, match="no task of"):
            of(GUESS, num_tasks=0)[0].dataset("train")

    def test_must_fill_a_batch(self, tmp_path: Path) -> None:
        """TRL would end at step 0, without an error."""
        environments, batches = of(GUESS, num_tasks=3)
        config = GRPOConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=8,
            num_generations=4,
            gradient_accumulation_steps=2,
            bf16=False,
        )
        with pytest.raises(ValueError, match=r"has 3 rows.* of 4 rows here \(generation_batch_size=16 .*num_tasks="):
            environments.trainer_kwargs(config)
        assert len(of(GUESS, num_tasks=4)[0].trainer_kwargs(config)["train_dataset"]) == 4
        stream = IterableDataset.from_generator(lambda: iter(()))
        assert of(GUESS, dataset=stream)[0].trainer_kwargs(config)
        with pytest.raises(ValueError, match="so that it would train 0 steps"):
            train(environments, tmp_path, tasks=4)
        assert batches == []


class TestSeveral:
    def test_environments_train_together_each_with_its_rubrics(self, tmp_path: Path) -> None:
        environments, batches = of({GUESS: 1, GREET: 1}, rewards=["win", "polite"])
        trainer = train(environments, tmp_path, steps=2, shuffle_dataset=False)
        for batch in batches:
            assert [t.env_id for t in batch] == [GUESS] * 4 + [GREET] * 4
            assert [t.reward for t in batch] == [1.0] * 4 + [1.5] * 4
        log = logged(trainer, 1)
        assert (log["rewards/win/mean"], log["rewards/polite/mean"], log["reward"]) == (1.0, 1.0, 1.0)
        assert [math.isnan(value) for value in trainer._logs["rewards"]["win"]][-8:] == [False] * 4 + [True] * 4
        assert [math.isnan(value) for value in trainer._logs["rewards"]["polite"]][-8:] == [True] * 4 + [False] * 4
        assert log["environments/Greet-v0/turns"] == 1.0
        assert log["environments/GuessNumber-v0/turns"] == len(batches[0][0].turns) > 1
        assert log["environments/GuessNumber-v0/reward"] == 1.0
        assert log["environments/Greet-v0/reward"] == 1.5
        assert log["environments/Greet-v0/rubrics/short"] == log["rubrics/short"] == 1.0
        assert log["environments/Greet-v0/failed"] == 0.0

    def test_an_environment_of_other_settings_is_another_one(self, tmp_path: Path) -> None:
        envs = [Env(GUESS, kwargs={"high": 1}, name="easy"), Env(GUESS, kwargs={"low": 5, "high": 7}, name="hard")]
        environments, batches = of(envs)
        train(environments, tmp_path, shuffle_dataset=False)
        openings = [(t.labels["environment"], t.messages[0]["content"]) for t in batches[0]]
        assert openings[0] == ("easy", "Guess the number from 1 to 1. You have 3 guesses.")
        assert openings[4] == ("hard", "Guess the number from 5 to 7. You have 3 guesses.")


class TestOwnDataset:
    ROWS: tuple[dict[str, Any], ...] = ({"question": "a", "hint": None}, {"question": "b", "hint": "h"})

    def test_has_options_for_the_reset(self, tmp_path: Path) -> None:
        told: list[tuple[int | None, dict[str, Any]]] = []

        def answer(env: Talk, _message: Any) -> Any:
            told.append((env.seed, env.options))
            return end()

        environments, batches = talks(answer, tasks=None, dataset=Dataset.from_list(list(self.ROWS)))
        train(environments, tmp_path, shuffle_dataset=False)
        assert sorted(told, key=str) == [(0, {"question": "a"})] * 4 + [(1, {"question": "b", "hint": "h"})] * 4
        assert [t.index for t in batches[0]] == [0, 1, 2, 3] * 2

    def test_may_name_environment_task_split_and_seed(self, tmp_path: Path) -> None:
        rows = [
            {"environment": GREET, "task": 0, "split": "test", "seed": 40, "prompt": "Dan it is"},
            {"environment": GUESS, "task": 9, "split": None, "seed": 41, "prompt": "the ninth"},
        ]
        environments, batches = of([GUESS, GREET], dataset=Dataset.from_list(rows))
        train(environments, tmp_path, shuffle_dataset=False)
        assert [(t.env_id, t.task, t.split, t.seed) for t in batches[0][::4]] == [
            (GREET, 0, "test", 40),
            (GUESS, 9, "train", 41),
        ]
        assert batches[0][0].messages[0]["content"] == "Say hello to Dan."

    def test_may_be_a_stream(self, tmp_path: Path) -> None:
        stream = IterableDataset.from_generator(lambda: iter({"question": str(n)} for n in itertools.count()))
        environments, batches = talks(lambda env, _: end(asked=env.options), tasks=None, dataset=stream)
        train(environments, tmp_path, steps=2, shuffle_dataset=False)
        assert [t.info["asked"]["question"] for batch in batches for t in batch[::4]] == ["0", "1", "2", "3"]
        assert [t.seed for batch in batches for t in batch[::4]] == [0, 1, 2, 3]

    def test_must_say_which_environment(self) -> None:
        with pytest.raises(ValueError, match="needs a column `environment`"):
            of([GUESS, GREET], dataset=Dataset.from_list(list(self.ROWS)))[0].trainer_kwargs()
        with pytest.raises(ValueError, match="not given: 'Wordle'; given: gymhost/GuessNumber-v0"):
            of(GUESS, dataset=Dataset.from_list([{"environment": "Wordle"}]))[0].trainer_kwargs()
        with pytest.raises(TypeError, match=r"dataset must be a datasets\.Dataset"):
            of(GUESS, dataset=list(self.ROWS))[0].trainer_kwargs()


class TestRewards:
    def test_a_rubric_that_could_not_be_computed_leaves_no_sum_of_the_others(self, tmp_path: Path) -> None:
        """S08: of the four of a group one has no `polite`, and would have 1.0 for `short` alone."""
        begun = itertools.count()
        source = Here(**{GREET: (lambda: Greet(politely=next(begun) % 4 != 0), {"train": 3})})
        environments, batches = of(GREET, server=source, rewards=["polite", "short"])
        trainer = train(environments, tmp_path, tasks=1, log_completions=True)
        scores = [t.rewards["polite"] for t in batches[0]]
        assert sorted(map(str, scores)) == ["1.0", "1.0", "1.0", "None"]
        assert [t.rewards["short"] for t in batches[0]] == [1.0] * 4
        assert list(trainer._logs["advantages"]) == [0.0] * 4
        assert logged(trainer)["reward"] == 2.0

    def test_what_has_no_reward_does_not_move_the_weights(self, tmp_path: Path) -> None:
        """Neither by its advantage nor by an entropy bonus or the distance to the reference model."""
        environments, _ = talks(lambda *_: end(reward=math.nan))
        trainer = grpo_trainer(environments, tmp_path, max_steps=1, entropy_coef=0.1, max_completion_length=256)
        before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
        trainer.train()
        assert all(weight.equal(before[name]) for name, weight in trainer.model.named_parameters())

    def test_rubrics_that_are_not_there_are_named(self, tmp_path: Path) -> None:
        environments, _ = of(GREET, rewards=["win"])
        with pytest.raises(ValueError, match=r"test/Greet-v0 has none of the rubrics .*'win'.*: it has polite, short"):
            train(environments, tmp_path)


class TestWiring:
    def test_each_rollout_gets_the_words_that_were_for_it(self, tmp_path: Path) -> None:
        """S03: each tool result has a mark of its own, two rollouts end at once, and the model echoes what it sees."""
        marks = itertools.count()

        def answer(env: Talk, message: Any) -> Any:
            env.options.setdefault("mark", f"R{next(marks)}")
            over = len(env.said) == 3 or (len(env.said) == 1 and env.options["mark"] in ("R2", "R5"))
            return end(mark=env.options["mark"]) if over else go_on(tool(f"mark {env.options['mark']}."))

        def echo(prompt_ids: Any, _request_id: str) -> list[int]:
            seen = re.findall(r"mark (R\d)\.", decode(list(prompt_ids)))
            return encode(call("echo", f'{{"text": "{seen[-1] if seen else "none"}"}}'))

        environments, batches = talks(answer, generator=ScriptedGenerator(echo))
        seen: list[tuple[str, str]] = []

        def look(trajectory: list[Trajectory], completion_ids: list[list[int]], **_: Any) -> list[float]:
            seen.extend((t.info["mark"], decode(ids)) for t, ids in zip(trajectory, completion_ids, strict=True))
            return [0.0] * len(trajectory)

        trainer = grpo_trainer(environments, tmp_path, max_steps=1, max_completion_length=512)
        trainer.reward_funcs.append(look)
        trainer.reward_func_names.append("look")
        trainer.reward_processing_classes.append(None)
        trainer.reward_weights = trainer.reward_weights.new_ones(2)
        trainer.train()
        assert sorted(mark for mark, _ in seen) == [f"R{i}" for i in range(8)]
        for mark, text in seen:
            short = mark in ("R2", "R5")
            assert set(re.findall(r"R\d", text)) == (set() if short else {mark})
            assert text.count("<tool_call>") == (1 if short else 3)
        assert Counter(len(t.turns) for t in batches[0]) == {1: 2, 3: 6}


class TestLog:
    def test_tells_turns_calls_limits_and_times(self, tmp_path: Path) -> None:
        environments, batches = of(GUESS, limits=Limits(turns=2))
        log = logged(train(environments, tmp_path))
        (batch,) = batches
        cut = sum(t.outcome.limit == "turns" for t in batch) / 8
        assert log["rollouts/truncated"] == log["rollouts/truncated/turns"] == pytest.approx(cut)
        assert 0 < cut < 1
        assert log["rollouts/truncated/completion_tokens"] == 0.0
        assert (
            log["rollouts/tool_calls"] == log["rollouts/turns"] == pytest.approx(sum(len(t.turns) for t in batch) / 8)
        )
        for stage in ("queue", "init", "run", "eval", "generation", "environment"):
            assert log[f"rollouts/{stage}_seconds"] >= 0.0
        assert log["rollouts/run_seconds"] > 0.0
        assert log["rubrics/format"] == 0.0
        assert not any(name.startswith("environments/") for name in log)

    def test_tells_failures_by_whose_fault_they_are(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        begun = itertools.count()

        def answer(_env: Talk, _message: Any) -> Any:
            match next(begun) % 4:
                case 0:
                    raise KeyError("lost")
                case 1:
                    raise ConnectionResetError("the line broke")
                case _:
                    return end()

        environments, _ = talks(answer, limits=Limits(retries=0))
        log = logged(train(environments, tmp_path))
        assert log["rollouts/failed"] == 0.5
        assert log["rollouts/failed/environment"] == log["rollouts/failed/infrastructure"] == 0.25
        assert log["rollouts/failed/generator"] == log["rollouts/begun_again"] == 0.0
        assert "2 of 8 rollouts, of Talk-v0, failed in turn 1 (environment: KeyError: 'lost')" in caplog.text
        assert "(infrastructure: ConnectionResetError: the line broke)" in caplog.text

    def test_tells_of_pictures_that_no_generator_is_shown(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Some are shown after a step: what else there is, is learned from."""
        begun = itertools.count()
        environments, batches = talks(lambda *_: go_on(PICTURE) if next(begun) % 2 else end())
        train(environments, tmp_path, steps=2)
        assert [sorted(str(t.reward) for t in batch) for batch in batches] == [["1.0"] * 4 + ["None"] * 4] * 2
        assert re.search(r"4 of 8 rollouts.*CannotRender: a message of the role 'user' holds image_url", caplog.text)

    def test_ends_where_there_are_only_pictures(self, tmp_path: Path) -> None:
        source = LocalSource(lambda: Talk(lambda *_: end(), [user("Look."), PICTURE]))
        environments, batches = talks(lambda *_: end(), server=source)
        with pytest.raises(ValueError, match=r"Talk-v0 can't be played.*holds image_url.*remote_environment"):
            train(environments, tmp_path, steps=9)
        assert len(batches) == 1

    def test_shows_the_conversations(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import pandas

        monkeypatch.setenv("COLUMNS", "400")
        environments, batches = of(GUESS)
        train(environments, tmp_path, log_completions=True)
        (file,) = (tmp_path / "completions").glob("*.parquet")
        table = pandas.read_parquet(file).to_dict("records")
        for row, t in zip(table, batches[0], strict=True):
            assert [m["content"] for m in row["prompt"]] == ["Guess the number from 1 to 7. You have 3 guesses."]
            said = [(m["role"], m["content"]) for m in row["completion"]]
            assert said[0] == ("assistant", "-> guess(number=4)")
            assert [role for role, _ in said] == ["assistant", "tool"] * len(t.turns)
            assert said[-1][1] == "Correct."
            assert row["environment"] == f"{GUESS}, task {t.task}, seed {t.seed}"
            assert (row["outcome"], row["total"]) == ("terminated", 1.0)
        shown = capsys.readouterr().out
        assert "guess(number=4)" in shown
        assert "Correct." in shown

    def test_is_a_store_too(self, tmp_path: Path) -> None:
        folder = tmp_path / "rollouts"
        settings: dict[str, Any] = {"store": folder, "eval_split": "test", "eval_tasks": 2}
        environments, batches = of(GUESS, **settings)
        train(environments, tmp_path, steps=2).evaluate()
        with Store.open(folder) as store:
            kept = list(store)
            assert [t.id for t in kept] == [t.id for batch in batches for t in batch]
            assert [t.labels["step"] for t in kept] == [0] * 8 + [1] * 8 + [2] * 8
            assert {t.split for t in kept[16:]} == {"test"}
            assert "Guess" in "".join(store.pieces.values())
        view = [sys.executable, "-m", "gymhost.cli", "view", str(folder), "--out", str(tmp_path / "view.html")]
        subprocess.run(view, check=True, capture_output=True)  # while the training could go on
        assert kept[0].id in (tmp_path / "view.html").read_text()
        train(of(GUESS, **settings)[0], tmp_path)  # another training goes on with it
        assert len(Store.open(folder)) == 32
