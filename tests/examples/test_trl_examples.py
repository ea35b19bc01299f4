"""TRL's own examples of environments, on a server: each script as a process, with a tiny model that can call tools.

What is played is what the model samples; whether rewards are right is computed once more out of what was said.
"""

import dataclasses
import importlib.util
import json
import math
import random
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gymhost.envs.shelf.scripted import call
from support.command import environment, serving

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(240)]  # a busy machine takes long to import TRL

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "trl"
STEPS = 2
GAMES = 24

# The tools of TRL's examples with the JSON types of their arguments. That of Wordle is called `guess` there.
INCREMENT = {"increment": {"step": "integer"}}
ECHO = {"echo": {"message": "string"}}
WORDLE = {"guess": {"word": "string"}}
SUDOKU = {"place": {"row": "integer", "col": "integer", "number": "integer"}}
CATCH = {"move": {"direction": "string"}, "stay": {}}
BIOGRID = {"query_biogrid": {"sql_command": "string"}}
TOOLS = {
    "increment": [INCREMENT],
    "echo": [ECHO],
    "wordle": [WORDLE],
    "sudoku": [SUDOKU],
    "catch": [CATCH],
    "multi_env": [CATCH, WORDLE],
    "sql_agent": [BIOGRID],
}

# Runs a script, and writes down what the model was shown, what it said, and what came of it.
LOOK = textwrap.dedent(
    """
    import json, pathlib, runpy, sys

    from trl.trainer.grpo_trainer import GRPOTrainer

    said, script, *sys.argv[1:] = sys.argv[1:]
    sys.argv[0] = script
    shown = []
    sample, train = GRPOTrainer._generate_single_turn, GRPOTrainer.train

    def look_at_prompts(trainer, prompt_ids, *args, **kwargs):
        shown.extend(trainer.processing_class.batch_decode(prompt_ids))
        return sample(trainer, prompt_ids, *args, **kwargs)

    def look_at_training(trainer, *args, **kwargs):
        result = train(trainer, *args, **kwargs)
        logs = trainer._logs
        seen = {"shown": shown, "log": trainer.state.log_history, "step": trainer.state.global_step}
        seen |= {name: list(logs[name]) for name in ("prompt", "completion")}
        seen["rewards"] = {name: list(values) for name, values in logs["rewards"].items()}
        pathlib.Path(said).write_text(json.dumps(seen))
        return result

    GRPOTrainer._generate_single_turn, GRPOTrainer.train = look_at_prompts, look_at_training
    runpy.run_path(script, run_name="__main__")
    """
)
SMALL = {
    "max_steps": STEPS,
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_completion_length": 600,
    "max_tool_calling_iterations": 9,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "bf16": False,
    "gradient_checkpointing": False,
    "disable_tqdm": True,
    "use_cpu": True,
    "shuffle_dataset": False,  # so that both environments of a mix are in each batch
}
# So that luck is enough for some of what is paid for.
MORE: dict[str, dict[str, Any]] = {
    "increment": {"max_tool_calling_iterations": 1},
    "sudoku": {"game": "Sudoku-v0-medium"},
}


# What Qwen3's template puts between a call and the next turn.
ANSWER = "\n<|im_start|>user\n<tool_response>\n{}\n</tool_response><|im_end|>\n<|im_start|>assistant\n{}"
UNTHOUGHT = "<think>\n\n</think>\n\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learned, in some seconds and from clumsy play, how each tool is called."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a model is slower with more, on a busy machine much slower
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        from examples.demo.games import Game
        from examples.demo.model import build_model, build_tokenizer, save

    games = [Game(messages, tools, won=False) for messages, tools in played()]
    tokenizer = build_tokenizer(games)
    model: Any = build_model(tokenizer, seed=0)
    rows = [row(game, tokenizer) for game in games]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    luck = random.Random(0)
    for _ in range(60):
        some = [luck.choice(rows[start : start + GAMES]) for start in range(0, len(rows), GAMES)]  # one of each
        ids, labels = (
            torch.nn.utils.rnn.pad_sequence(
                [torch.tensor(each) for each in column], batch_first=True, padding_value=padding
            )
            for column, padding in zip(zip(*some, strict=True), (0, -100), strict=True)
        )
        loss = model(ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.set_num_threads(threads)
    folder = tmp_path_factory.mktemp("model")
    save(model, tokenizer, folder)
    return folder


def row(game: Any, tokenizer: Any) -> tuple[list[int], list[int]]:
    """A game as ids and labels, in the words in which TRL's loop shows it; calls alone are learned."""
    shown = tokenizer.apply_chat_template(
        game.messages[:1], tools=game.tools, add_generation_prompt=True, enable_thinking=False, tokenize=False
    )
    parts = [(shown, False)]
    for message in game.messages[1:]:
        if message["role"] == "assistant":
            said = json.dumps(message["tool_calls"][0]["function"])
            parts.append((f"<tool_call>\n{said}\n</tool_call><|im_end|>", True))
        else:
            parts.append((ANSWER.format(message["content"], UNTHOUGHT), False))
    encoded = [(tokenizer.encode(text, add_special_tokens=False), learned) for text, learned in parts]
    ids = [token for tokens, _ in encoded for token in tokens]
    return ids, [token if learned else -100 for tokens, learned in encoded for token in tokens]


def played() -> Iterator[tuple[list[Any], list[Any]]]:
    """The messages and the tools of some games of each environment, a few turns long."""
    from gymhost.envs import make

    spec = importlib.util.spec_from_file_location("trl_environments", EXAMPLES / "environments.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    luck = random.Random(0)
    moves = [call("move", direction="left"), call("move", direction="right"), call("stay")]
    queries = [f"SELECT {what} FROM interactions WHERE gene_a = 'JNKK'" for what in ("*", "gene_b")]
    clumsy: dict[str, Callable[[], Any]] = {
        "examples/Increment-v0": lambda: call("increment", step=luck.randint(1, 6)),
        "examples/Echo-v0": lambda: call("echo", message=luck.choice(["good morning", "good night", "gymnasium"])),
        "gymhost/Wordle-v0": lambda: call("guess", word=luck.choice(["crane", "slate", "mouth"])),
        "examples/Sudoku-v0": lambda: call("place", **{name: luck.randint(1, 9) for name in ("row", "col", "number")}),
        "examples/Catch-v0": lambda: luck.choice(moves),
        "examples/Interactions-v0": lambda: call("query_biogrid", sql_command=luck.choice(queries)),
    }
    for env_id, player in clumsy.items():
        env: Any = make(env_id, **MORE["sudoku"]) if env_id == "examples/Sudoku-v0" else make(env_id)
        for seed in range(GAMES):
            observation, _ = env.reset(seed=seed)
            messages = list(observation)
            for _ in range(9 if env_id == "examples/Catch-v0" else 2):
                action = player()
                observation, _, terminated, truncated, _ = env.step(action)
                messages += [action, *observation]
                if terminated or truncated:
                    break
            yield messages, [{"type": "function", "function": dataclasses.asdict(tool)} for tool in env.unwrapped.tools]
        env.close()


@pytest.fixture(scope="module")
def runs(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[dict[str, Any]]]]:
    """What comes of each script; two run at a time, in this order."""
    folder = tmp_path_factory.mktemp("runs")
    variables = environment(OMP_NUM_THREADS="1", TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_OFFLINE="1")

    def run(name: str, address: str) -> dict[str, Any]:
        given = (
            {"server": address, "model_name_or_path": model, "output_dir": folder / name} | SMALL | MORE.get(name, {})
        )
        arguments = [word for option, value in given.items() for word in (f"--{option}", str(value))]
        seen = folder / f"{name}.json"
        result = subprocess.run(
            [sys.executable, "-c", LOOK, str(seen), str(EXAMPLES / f"{name}.py"), *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=200,
            env=variables,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return json.loads(seen.read_text())

    with serving("environments", "--app-dir", str(EXAMPLES)) as server, ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(run, name, server.address) for name in TOOLS}
        pool.shutdown(cancel_futures=True)


def tools_shown(text: str) -> dict[str, dict[str, str]]:
    [shown] = re.findall(r"<tools>\n(.*?)\n</tools>", text, re.DOTALL)
    tools = [json.loads(line)["function"] for line in shown.splitlines()]
    return {
        tool["name"]: {name: schema["type"] for name, schema in tool["parameters"]["properties"].items()}
        for tool in tools
    }


@pytest.mark.parametrize("name", TOOLS)
def test_a_script_trains_with_the_tools_of_trl_s(runs: dict[str, Future[dict[str, Any]]], name: str) -> None:
    run = runs[name].result()
    assert run["step"] == STEPS
    steps = [entry for entry in run["log"] if "reward" in entry]
    assert [entry["step"] for entry in steps] == list(range(1, STEPS + 1))
    for entry in steps:
        assert entry["tools/call_frequency"] > 0.5
        # Groups whose rollouts were not all paid alike are learned from.
        assert (entry["grad_norm"] > 0) == (entry["frac_reward_zero_std"] < 1)
    shown = [tools_shown(text) for text in run["shown"]]
    assert all(tools in TOOLS[name] for tools in shown)
    assert all(tools in shown for tools in TOOLS[name])


# ----------------------------------------------------------------------------------------------------------------------
# Rewards


def answered(completion: list[dict[str, Any]]) -> list[tuple[dict[str, Any], str]]:
    """The calls of a rollout that came to the environment, each as its arguments and the answer."""
    calls = [item["function"] for message in completion for item in message.get("tool_calls") or []]
    answers = [message["content"] for message in completion if message["role"] == "tool"]
    return [
        (function["arguments"], answer.partition("\n\nThe episode is over.")[0])
        for function, answer in zip(calls, answers, strict=False)
        if not answer.startswith(("Error: invalid arguments", "{'error'"))
    ]


def of_increment(prompt: str, calls: list[Any]) -> float:
    target = re.findall(r"Bring it to (\d)", prompt)[-1]
    return float(bool(calls) and calls[-1][1] == target)


def of_echo(_: str, calls: list[Any]) -> float:
    return 0.1 * min(100, len(calls[-1][1])) if calls else 0.0


def of_wordle(_: str, calls: list[Any]) -> float:
    return float(any("GGGGG" in answer for _, answer in calls))


def of_catch(_: str, calls: list[Any]) -> float:
    return float(any("row 10" in answer and "above" in answer for _, answer in calls))


def of_sudoku(prompt: str, calls: list[Any]) -> float:
    if not calls:
        return 0.0
    empty = sum(row.count(".") for row in re.findall(r"^R\d(.*)$", prompt, re.MULTILINE))
    valid = sum("invalid move" not in answer.lower() for _, answer in calls)
    different = len({tuple(arguments.values()) for arguments, _ in calls})
    return valid / len(calls) + valid / empty + (different - len(calls)) / len(calls) + (valid == empty)


def of_biogrid(_: str, calls: list[Any]) -> float:
    queries = [arguments["sql_command"].lower() for arguments, _ in calls]
    fine = 1 <= len(queries) <= 3 and not any(answer.startswith("Error:") for _, answer in calls)
    return float(fine and all(" where " in query and "limit 1" not in query for query in queries))


REWARDS = {
    "increment": {"Increment": of_increment},
    "echo": {"Echo": of_echo},
    "wordle": {"Wordle": of_wordle},
    "sudoku": {"Sudoku": of_sudoku},
    "catch": {"Catch": of_catch},
    "multi_env": {"Wordle": of_wordle, "Catch": of_catch},
    "sql_agent": {"Interactions": of_biogrid},
}


@pytest.mark.parametrize("name", TOOLS)
def test_the_environment_s_rubrics_pay(runs: dict[str, Future[dict[str, Any]]], name: str) -> None:
    run = runs[name].result()
    paid: list[float] = []
    for place, (prompt, completion) in enumerate(zip(run["prompt"], run["completion"], strict=True)):
        opening = "".join(message["content"] for message in prompt if message["role"] == "user")
        mine = {column: values[place] for column, values in run["rewards"].items() if column in REWARDS[name]}
        # In a mix each rollout has a reward in the column of its own environment.
        [(column, reward)] = [(column, value) for column, value in mine.items() if not math.isnan(value)]
        assert reward == pytest.approx(REWARDS[name][column](opening, answered(completion)), abs=1e-5)
        paid.append(reward)
    assert len(paid) == SMALL["per_device_train_batch_size"]
    if name == "sql_agent":
        assert set(run["rewards"]["correct"]) <= {0.6, -0.5, -1.0}
    if name in ("echo", "sql_agent"):  # the others take some luck
        assert any(paid)
