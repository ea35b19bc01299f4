"""`remote_environment` in TRL's own trainer: S04, S11, and what goes wrong on the way."""

import asyncio
import copy
import gc
import inspect
import json
import os
import pickle
import re
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import get_json_schema

from gymhost.client import RemoteServer, connect
from gymhost.rollout import Limits
from gymhost.rollout.loop_thread import LoopThread
from gymhost.trainers.trl_factory import EnvironmentFactory, remote_environment
from gymhost.trainers.trl_tools import typed_method
from gymhost.wire import errors
from support.completions_server import CompletionsServer, choice
from support.local_source import LocalSource
from support.models import tiny_qwen3
from support.server import TESTS, ServerProcess
from support.talk import Talk, end
from support.tokenizers import call, decode, encode, qwen3_tokenizer

pytestmark = pytest.mark.heavy

# What TRL and torch warn of is not ours to mend.
quiet = pytest.mark.filterwarnings("ignore")
GUESS_NUMBER = "gymhost/GuessNumber-v0"
SHOP = "test/Shop-v0"

Says = Callable[[str, int], str]


@pytest.fixture(scope="module")
def trl() -> Any:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("OMP_NUM_THREADS", "1")
        import trl

        # Imported on the way of a test, they would keep what that test holds: some module keeps a traceback.
        assert trl.GRPOConfig  # pyright: ignore[reportPrivateImportUsage]
        assert trl.GRPOTrainer  # pyright: ignore[reportPrivateImportUsage]
        return trl


@pytest.fixture(scope="module")
def process() -> Iterator[ServerProcess]:
    with ServerProcess(modules=["support.factory_environments"], workers=1) as process:
        yield process


@pytest.fixture
def server(process: ServerProcess) -> Iterator[RemoteServer]:
    """A connection of this test's own identity; afterwards nothing may be left of it."""
    with connect(process.address) as server:
        yield server
        gc.collect()
        assert sessions_after(server) == 0


def sessions_after(server: RemoteServer, seconds: float = 10) -> int:
    """How many sessions there are once there are none, or after a time."""
    give_up = time.monotonic() + seconds
    while (count := len(asyncio.run(server.sessions()))) and time.monotonic() < give_up:
        time.sleep(0.02)
    return count


@pytest.fixture
def make_trainer(trl: Any, tmp_path: Path) -> Callable[..., Any]:
    """Makes a trainer the way a script does it, but for its model's words, which the test decides."""
    from datasets import Dataset
    from trl.chat_template_utils import qwen3_chat_template

    tokenizer = copy.deepcopy(qwen3_tokenizer())
    tokenizer.chat_template = qwen3_chat_template

    def make(factory: Any, says: Says, rows: list[dict[str, Any]] | None = None, **settings: Any) -> Any:
        rows = rows or [{"task": task, "seed": task} for task in range(2)]
        dataset = Dataset.from_list([{"prompt": [{"role": "user", "content": ""}]} | row for row in rows])
        config = trl.GRPOConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=4 * len(rows),
            num_generations=4,
            max_completion_length=1000,
            learning_rate=1e-3,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            **{"max_steps": 1} | settings,
        )
        trainer = trl.GRPOTrainer(
            tiny_qwen3(), args=config, processing_class=tokenizer, train_dataset=dataset, environment_factory=factory
        )
        shown: list[str] = trainer.__dict__.setdefault("shown", [])

        def generate(prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
            texts = [decode(ids) for ids in prompt_ids]
            shown.extend(texts)
            words = [says(text, text.count("<|im_start|>assistant") - 1) for text in texts]
            return [encode(text) for text in words], None

        trainer._generate_single_turn = generate
        return trainer

    return make


def binary_search(text: str, turn: int) -> str:
    """The player that always wins, and then is silent."""
    if "is over" in text:
        return "Done.<|im_end|>"
    low, high = re.findall(r"from (\d+) to (\d+)", text)[-1]
    return call("guess", f'{{"number": {(int(low) + int(high)) // 2}}}')


def shopping(*calls: tuple[str, dict[str, Any]]) -> Says:
    """Says some calls, one a turn, and then nothing."""
    return lambda _text, turn: (
        call(calls[turn][0], json.dumps(calls[turn][1])) if turn < len(calls) else "Done.<|im_end|>"
    )


def log_of(trainer: Any, step: int = 1) -> dict[str, float]:
    return next(entry for entry in trainer.state.log_history if entry["step"] == step and "reward" in entry)


def tools_shown(text: str) -> list[dict[str, Any]]:
    (shown,) = re.findall(r"<tools>\n(.*?)\n</tools>", text, re.DOTALL)
    return [json.loads(line) for line in shown.splitlines()]


def declared(server: RemoteServer, env_id: str) -> list[dict[str, Any]]:
    description = asyncio.run(server.describe(env_id))
    return [{"type": "function", "function": tool} for tool in description.tools]


@quiet
class TestTools:
    """S04: the tools, all of them as they were declared, and nothing else."""

    def test_the_trainer_offers_what_the_server_declares(
        self, make_trainer: Callable[..., Any], server: RemoteServer
    ) -> None:
        trainer = make_trainer(remote_environment(SHOP, server=server), shopping(("leave", {})))
        trainer.train()
        wanted = declared(server, SHOP)
        assert [tool["function"]["name"] for tool in wanted] == ["buy", "leave", "look"]
        assert trainer.tools == sorted(wanted, key=lambda tool: tool["function"]["name"])
        for text in trainer.shown:
            assert tools_shown(text) == trainer.tools

    def test_a_call_of_close_is_answered_and_the_session_lives_on(
        self, make_trainer: Callable[..., Any], server: RemoteServer
    ) -> None:
        says = shopping(
            ("buy", {"items": [{"name": "tea"}]}),
            *((name, {}) for name in ("close", "_close", "reset", "get_reward", "render", "seed")),
            ("buy", {"items": [{"name": "tea", "count": 2}], "how": "cash"}),
        )
        trainer = make_trainer(remote_environment(SHOP, server=server), says)
        trainer.train()
        for text in trainer.shown[-8:]:
            answers = re.findall(r"<tool_response>\n(.*?)\n</tool_response>", text, re.DOTALL)
            assert [answer.replace('"', "'") for answer in answers[1:7]] == [
                f"{{'error': 'Tool {name} not found.'}}"
                for name in ("close", "_close", "reset", "get_reward", "render", "seed")
            ]
            assert answers[7] == "You have tea, tea, tea, paid by cash."
        assert log_of(trainer)["rewards/Shop/mean"] == 3.0
        assert log_of(trainer)["tools/failure_frequency"] == pytest.approx(6 / 8)

    def test_methods_have_types_and_docstrings(self, server: RemoteServer) -> None:
        environment: Any = remote_environment(SHOP, server=server)()
        public = [name for name, _ in inspect.getmembers(type(environment), inspect.isfunction) if name[0] != "_"]
        assert public == ["buy", "get_reward", "leave", "look", "reset"]
        schema = get_json_schema(type(environment).buy)["function"]
        assert schema == get_json_schema(environment.buy)["function"]
        assert schema["name"] == "buy"
        assert schema["description"] == "Buys some things.\n\nThere may be several of each."
        assert schema["parameters"] == {
            "type": "object",
            "properties": {
                "items": {"type": "array", "items": {"type": "object"}, "description": "What is bought."},
                "how": {"type": "string", "enum": ["card", "cash"], "description": "How it is paid: either way."},
                "limit": {"type": "number", "nullable": True, "description": "The most that may be paid."},
                "notes": {
                    "type": "object",
                    "additionalProperties": {"type": "integer"},
                    "nullable": True,
                    "description": "Whatever is to be noted.",
                },
                "code": {"type": ["integer", "string"], "description": "A voucher."},
                "gift": {"type": "boolean", "description": ""},
            },
            "required": ["items"],
        }
        signature = inspect.signature(environment.buy)
        assert signature.parameters["how"].default == "card"
        assert get_json_schema(environment.leave)["function"]["parameters"] == {"type": "object", "properties": {}}

    def test_what_python_has_no_parameter_for_can_be_called_with(self) -> None:
        schema = {"type": "object", "properties": {name: {"type": "string"} for name in ("from", "self", "a-b")}}
        got: list[dict[str, Any]] = []
        method = typed_method({"name": "move", "parameters": schema}, lambda _self, **given: got.append(given))
        method(None, **{"from": "a", "self": "b", "a-b": "c"})
        assert got == [{"from": "a", "self": "b", "a-b": "c"}]
        assert method.__doc__ is not None
        assert "from: " in method.__doc__

    def test_a_type_that_holds_itself_has_an_end(self) -> None:
        node = {"type": "array", "items": {"$ref": "#/$defs/Node"}}
        schema = {"type": "object", "properties": {"tree": {"$ref": "#/$defs/Node"}}, "$defs": {"Node": node}}
        method = typed_method({"name": "grow", "parameters": schema}, lambda _self, **_: None)
        assert method.__annotations__ == {"tree": list[Any]}

    @pytest.mark.parametrize(
        ("env_id", "message"), [("gymhost/Echo-v0", "has no tools"), ("test/Hidden-v0", "tool '_hidden'")]
    )
    def test_what_can_t_be_offered_is_refused(self, server: RemoteServer, env_id: str, message: str) -> None:
        with pytest.raises(ValueError, match=f"{message}.*Environments"):
            remote_environment(env_id, server=server)()


@quiet
class TestTraining:
    def test_episodes_are_played_and_scored(self, make_trainer: Callable[..., Any], server: RemoteServer) -> None:
        trainer = make_trainer(remote_environment(GUESS_NUMBER, server=server), binary_search, max_steps=2)
        trainer.train()
        for step in (1, 2):
            assert log_of(trainer, step)["rewards/GuessNumber/mean"] == 1.0
            assert log_of(trainer, step)["tools/failure_frequency"] == 0.0
        assert len(asyncio.run(server.sessions())) == 8  # one for each place of the batch, kept from step to step

    def test_a_row_says_what_is_played(self, make_trainer: Callable[..., Any], server: RemoteServer) -> None:
        rows = [{"task": 3, "seed": 5, "split": None}, {"task": 0, "seed": 6, "split": "test"}]
        trainer = make_trainer(remote_environment(SHOP, server=server, split="train"), shopping(), rows)
        trainer.train()
        openings = sorted(re.findall(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", "".join(trainer.shown), re.DOTALL))
        assert (
            openings == ["You are a customer.\n\nTask 3, seed 5."] * 4 + ["You are a customer.\n\nTask 7, seed 6."] * 4
        )

    def test_columns_of_no_special_meaning_are_options(self) -> None:
        made: list[Talk] = []

        def make() -> Talk:
            made.append(Talk(lambda _env, _message: end()))
            return made[-1]

        environment: Any = remote_environment("Talk-v0", server=LocalSource(make))()
        environment.reset(prompt=[], task=3, images=[object()], answer="42", hint=None)
        assert made[-1].options == {"task": 3, "answer": "42"}
        environment._close()

    def test_sessions_are_opened_before_the_first_reset(self, server: RemoteServer) -> None:
        """TRL makes all environments of a batch first, and then resets one after another."""
        environments = [remote_environment(SHOP, server=server)() for _ in range(8)]
        give_up = time.monotonic() + 10
        while len(asyncio.run(server.sessions())) < 8:
            assert time.monotonic() < give_up
            time.sleep(0.02)
        for environment in environments:
            environment.reset(task=0)
        assert len(asyncio.run(server.sessions())) == 8

    def test_after_its_end_an_episode_stands_still(
        self, make_trainer: Callable[..., Any], server: RemoteServer
    ) -> None:
        tea = {"items": [{"name": "tea"}]}
        trainer = make_trainer(
            remote_environment(SHOP, server=server), shopping(("buy", tea), ("leave", {}), ("buy", tea))
        )
        trainer.train()
        for text in trainer.shown[-8:]:
            answers = re.findall(r"<tool_response>\n(.*?)\n</tool_response>", text, re.DOTALL)
            assert answers[1] == "Good bye.\n\nThe episode is over."
            assert "the episode is over: call no more tools" in answers[2]
        assert log_of(trainer)["rewards/Shop/mean"] == 1.0

    def test_several_environments_are_told_apart(self, make_trainer: Callable[..., Any], server: RemoteServer) -> None:
        factories = {
            "guess": remote_environment(GUESS_NUMBER, server=server),
            "shop": remote_environment(SHOP, server=server),
        }
        rows = [{"environment": "guess", "task": 3}, {"environment": "shop", "task": 3}]
        buy = shopping(("buy", {"items": [{"name": "tea", "count": 5}]}))
        trainer = make_trainer(
            factories, lambda text, turn: (buy if "customer" in text else binary_search)(text, turn), rows
        )
        trainer.train()
        log = log_of(trainer)
        assert (log["rewards/GuessNumber/mean"], log["rewards/Shop/mean"]) == (1.0, 5.0)
        assert {tuple(tool["function"]["name"] for tool in tools_shown(text)) for text in trainer.shown} == {
            ("guess",),
            ("buy", "leave", "look"),
        }

    def test_pictures_are_those_of_pillow(self, server: RemoteServer) -> None:
        environment: Any = remote_environment(SHOP, server=server)()
        environment.reset(task=0)
        text, picture = environment.look()
        assert text == {"type": "text", "text": "This is what you see:"}
        assert picture["type"] == "image"
        assert picture["image"].size == (2, 3)
        assert picture["image"].getpixel((0, 0)) == (255, 0, 0)


@quiet
class TestFailures:
    """A failure is no zero, and no end of the training."""

    @pytest.mark.parametrize(
        "trouble",
        [
            {"hang": "reset"},
            {"fail": "reset"},
            {"hang": "tool"},
            {"fail": "tool"},
            {"hang": "score"},
            {"fail": "score"},
        ],
        ids=lambda trouble: " ".join(*trouble.items()),
    )
    def test_training_goes_on(
        self, make_trainer: Callable[..., Any], server: RemoteServer, trouble: dict[str, Any]
    ) -> None:
        limits = Limits(init_seconds=0.5, step_seconds=0.5, eval_seconds=0.5, retries=0)
        factory = remote_environment(SHOP, server=server, limits=limits, **trouble)
        trainer = make_trainer(factory, shopping(("buy", {"items": [{"name": "tea"}]}), ("leave", {})), max_steps=2)
        trainer.train()
        for step in (1, 2):
            assert log_of(trainer, step)["rewards/Shop/mean"] == 1.0  # that of the four of task 0
        rewards = trainer._logs["rewards"]["Shop"]
        assert sorted(map(str, list(rewards)[-8:])) == ["1.0"] * 4 + ["nan"] * 4

    def test_what_went_wrong_is_not_shown_to_the_model(self, server: RemoteServer) -> None:
        environment: Any = remote_environment(SHOP, server=server, fail="tool")()
        environment.reset(task=1)
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"^the environment failed, and the episode is over: call no more"):
                environment.buy(items=[])
        assert environment.get_reward() is None
        environment.reset(task=0)  # in a session of its own
        assert environment.buy(items=[{"name": "tea"}]) == "You have tea, paid by card."

    def test_the_log_says_why_there_is_no_reward(self, server: RemoteServer, caplog: pytest.LogCaptureFixture) -> None:
        environment: Any = remote_environment(SHOP, server=server, fail="score")()
        environment.reset(task=1)
        assert environment.get_reward() is None
        [said] = [record.getMessage() for record in caplog.records if record.name == "gymhost.trainers.trl_factory"]
        assert said.startswith("an episode of test/Shop-v0 has no valid reward: ")
        assert "this was to be" in said

    def test_a_wrong_argument_is_the_model_s_to_mend(self, server: RemoteServer) -> None:
        environment: Any = remote_environment(SHOP, server=server)()
        environment.reset(task=0)
        assert environment.buy(items="tea").startswith("Error: invalid arguments for buy: items")
        assert environment.buy(items=[{"name": "tea"}], how="no").startswith("Error: invalid arguments for buy: how")
        assert environment.buy(items=[{"name": "tea"}]) == "You have tea, paid by card."

    def test_resets_that_all_fail_end_the_training(self, server: RemoteServer) -> None:
        limits = Limits(retries=0)
        environment: Any = remote_environment(SHOP, server=server, limits=limits, fail="reset")()
        for _ in range(31):
            assert environment.reset(task=1) is None
        with pytest.raises(RuntimeError, match=r"32 resets of test/Shop-v0 in a row.*this was to be"):
            environment.reset(task=1)

    def test_a_server_without_the_environment_ends_the_training_at_once(self, server: RemoteServer) -> None:
        with pytest.raises(errors.UnknownEnvironment):
            remote_environment("test/None-v0", server=server)()

    def test_a_session_that_idled_away_is_opened_anew(self, server: RemoteServer) -> None:
        environment: Any = remote_environment(GUESS_NUMBER, server=server, idle_seconds=0.2)()
        environment.reset(task=1)
        assert sessions_after(server) == 0
        assert environment.reset(task=1) == "Guess the number from 1 to 7. You have 3 guesses."
        assert environment.guess(number=4)


class TestFactory:
    def test_is_one_for_the_same_arguments(self) -> None:
        factory = remote_environment(SHOP, server="localhost:1", fail="tool", split="test")
        assert factory is remote_environment(SHOP, server="localhost:1", split="test", fail="tool")
        assert factory is not remote_environment(SHOP, server="localhost:1", split="test", fail="reset")
        assert factory is not remote_environment(SHOP, server="localhost:1", fail="tool")

    def test_all_that_it_makes_is_of_one_class(self, process: ServerProcess) -> None:
        first, second = (remote_environment(SHOP, server=process.address)() for _ in range(2))
        assert type(first) is type(second)
        assert type(first).__name__ == "Shop"

    def test_can_be_pickled_with_sessions_open(self, process: ServerProcess) -> None:
        factory = remote_environment(SHOP, server=process.address, late=0.5)
        environment = factory()
        environment.reset(task=0)
        again = pickle.loads(pickle.dumps(factory))
        assert isinstance(again, EnvironmentFactory)
        assert type(again()) is type(environment)

    def test_with_an_open_connection_can_t_be_pickled(self, server: RemoteServer) -> None:
        with pytest.raises(TypeError, match="give remote_environment the server's address"):
            pickle.dumps(remote_environment(SHOP, server=server))


@quiet
class TestAsynchronousTraining:
    @pytest.mark.timeout(240)  # TRL starts a process that imports torch, TRL and vLLM
    def test_a_process_of_its_own_plays(self, trl: Any, process: ServerProcess, server: RemoteServer) -> None:
        """TRL's own worker for AsyncGRPO, with a stand-in for vLLM."""
        from accelerate import PartialState
        from datasets import Dataset
        from trl.chat_template_utils import qwen3_chat_template
        from trl.experimental.async_grpo.async_rollout_worker import AsyncRolloutWorker

        def says(body: dict[str, Any]) -> dict[str, Any]:
            return choice(encode(binary_search(decode(body["prompt"]), 0)))

        PartialState()  # as the trainer does, before it makes its worker
        tokenizer = copy.deepcopy(qwen3_tokenizer())
        tokenizer.chat_template = qwen3_chat_template
        vllm, thread = CompletionsServer(says), LoopThread("vllm")
        thread.run(vllm.start(0))
        worker = AsyncRolloutWorker(
            model_name="model",
            dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": ""}], "task": 3, "seed": 1}]),
            reward_funcs=[],
            processing_class=tokenizer,
            eos_token_ids=[tokenizer.eos_token_id],
            environment_factory=remote_environment(GUESS_NUMBER, server=process.address),
            num_generations=4,
            max_inflight_tasks=4,
            vllm_server_url=vllm.url,
        )
        try:
            worker.start()
            samples = [worker.rollout_buffer.get(timeout=60) for _ in range(8)]
            assert len(asyncio.run(server.sessions())) == 4
        finally:
            worker.stop()
            thread.run(vllm.stop())
            thread.close()
        for sample in samples:
            assert sample.prompt[0]["content"] == "Guess the number from 1 to 7. You have 3 guesses."
            assert sample.metrics["rewards/GuessNumber"] == 1.0
            assert sample.metrics["tools/failure_frequency"] == 0.0
        assert tools_shown(decode(samples[0].input_ids.tolist())) == declared(server, GUESS_NUMBER)
        assert sessions_after(server) == 0


STUB = textwrap.dedent(
    """
    import pickle, sys
    from gymhost.trainers.trl_factory import remote_environment

    # As AsyncGRPO does, which has rollouts in a process of its own.
    factory = pickle.loads(pickle.dumps(remote_environment("test/Shop-v0", server=sys.argv[1])))
    environments = [factory() for _ in range(8)]
    environments[0]._close()
    environments[0]._close()
    for round in range(2):
        for environment in environments:
            environment.reset(task=round)
            environment.buy(items=[{"name": "tea"}])
        print("played", flush=True)
        sys.stdin.readline()
        if round == 1 and len(sys.argv) > 2:
            raise RuntimeError("this stub was told to die")
    """
)


class TestNothingIsLeft:
    """S11: nobody calls close."""

    @pytest.mark.parametrize("dies", [False, True])
    def test_of_eight_environments_after_two_resets_each(self, server: RemoteServer, dies: bool) -> None:
        with subprocess.Popen(
            [sys.executable, "-c", STUB, server.address, *(["die"] if dies else [])],
            env=os.environ | {"PYTHONPATH": str(TESTS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as stub:
            assert stub.stdin is not None
            assert stub.stdout is not None
            assert stub.stderr is not None
            for _ in range(2):
                assert stub.stdout.readline() == "played\n"
                assert len(asyncio.run(server.sessions())) == 8
                stub.stdin.write("\n")
                stub.stdin.flush()
            said = stub.stderr.read()
            assert stub.wait(20) == int(dies), said
            assert ("told to die" in said) == dies
        assert sessions_after(server) == 0

    def test_of_an_environment_that_is_dropped(self, server: RemoteServer) -> None:
        environment: Any = remote_environment(SHOP, server=server)()
        environment.reset(task=0)
        assert len(asyncio.run(server.sessions())) == 1
        del environment
        assert sessions_after(server) == 0

    def test_of_one_that_is_closed_before_its_first_reset(self, server: RemoteServer) -> None:
        environment: Any = remote_environment(SHOP, server=server)()
        environment._close()
        environment._close()
        assert sessions_after(server) == 0
        assert environment.get_reward() is None
        with pytest.raises(RuntimeError, match="the episode has not begun"):
            environment.leave()
        assert environment.reset(task=0)
