"""`gymhost rollout` with models that tell their tokens: vLLM servers, and a model in a folder."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gymhost.rollout.store import Store
from support.command import gymhost
from support.completions_server import CompletionsServer, choice
from support.models import save_tiny_qwen3
from support.rollout_command import LIMIT, rollout
from support.server import ServerProcess
from support.tokenizers import call, encode, qwen3_tokenizer

pytestmark = pytest.mark.heavy

GUESS = "gymhost/GuessNumber-v0"
FOUR = encode(call("guess", '{"number": 4}'))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    qwen3_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save_tiny_qwen3(folder)
    return folder


def serving(answer: Any = None) -> CompletionsServer:
    fake = CompletionsServer(answer or (lambda _body: choice(FOUR)))
    fake.max_model_len = 4096
    return fake


async def test_vllm_servers_share_the_rollouts(server: ServerProcess, tokenizer: Path, tmp_path: Path) -> None:
    async with serving() as first, serving() as second:
        said = await rollout(
            GUESS,
            *("--vllm", first.url, "--vllm", second.url, "--tokenizer", str(tokenizer), "--renderer", "qwen3"),
            *("--server", server.address, "--tasks", "7", "--samples", "2", "--temperature", "0.5", "--top-k", "9"),
            *("--store", "kept", "--json"),
            cwd=tmp_path,
        )
    assert said.code == 0, said.stderr
    assert said.json["trainable"] is True
    assert said.json["settings"]["model"] == "model"
    summary = said.json["summary"]
    assert summary["reward"]["mean"] == pytest.approx(1 / 7)
    assert first.bodies
    assert second.bodies
    assert {(body["temperature"], body["top_k"]) for body in first.bodies + second.bodies} == {(0.5, 9)}
    assert summary["sampled_tokens"] == len(FOUR) * len(first.bodies + second.bodies)
    assert said.json["tokens_per_second"] > 0
    kept = Store.open(tmp_path / "kept")
    assert {sum(row.mask) % len(FOUR) for trajectory in kept for row in trajectory.rows()} == {0}
    assert {kept.pieces[token] for token in FOUR} == {qwen3_tokenizer().decode([token]) for token in FOUR}


async def test_a_server_that_dies_is_left_for_the_other(server: ServerProcess, tokenizer: Path) -> None:
    async with serving(lambda _body: 500) as dying, serving() as well:

        async def die() -> None:
            await dying.changed.wait()
            await dying.stop()

        ending = asyncio.create_task(die())
        said = await rollout(
            GUESS,
            *("--vllm", dying.url, "--vllm", well.url, "--tokenizer", str(tokenizer), "--renderer", "qwen3"),
            *("--server", server.address, "--tasks", "14", "--json"),
        )
        await ending
    assert said.code == 0, said.stderr
    assert said.json["summary"]["valid"] == 14


async def test_all_servers_must_serve_the_same_model(server: ServerProcess, tokenizer: Path) -> None:
    class Other(CompletionsServer):
        async def _answer(self, path: str, body: bytes) -> tuple[int, Any]:
            return (200, {"data": [{"id": "other"}]}) if path == "/v1/models" else await super()._answer(path, body)

    async with serving() as one, Other() as other:
        said = await rollout(GUESS, "--vllm", one.url, "--vllm", other.url, "--server", server.address, "-q")
    assert said.code == 1
    assert said.stderr == (
        f"gymhost: {one.url} serves model and {other.url} serves other: all must serve the same model\n"
    )


async def test_a_model_that_is_not_here_needs_its_tokenizer(server: ServerProcess) -> None:
    async with serving() as fake:
        said = await rollout(GUESS, "--vllm", fake.url, "--server", server.address, "-q")
    assert said.code == 1
    assert said.stderr == (
        f"gymhost: {fake.url} serves model, which is in no folder on this machine: "
        "give its tokenizer with --tokenizer FOLDER\n"
    )


def test_a_model_in_a_folder_plays_by_transformers(server: ServerProcess, model: Path, tmp_path: Path) -> None:
    said = gymhost(
        "rollout",
        GUESS,
        *("--model", str(model), "--backend", "transformers", "--renderer", "qwen3", "--model-arg", "dtype=float32"),
        *(
            "--server",
            server.address,
            "--tasks",
            "2",
            "--samples",
            "2",
            "--turn-tokens",
            "8",
            "--store",
            "kept",
            "--json",
        ),
        cwd=tmp_path,
        limit=LIMIT,
    )
    assert said.returncode == 0, said.stderr
    told = json.loads(said.stdout)
    assert told["settings"]["model"] == str(model)
    assert told["summary"]["limits"] == {"turn_tokens": 4}
    assert told["summary"]["sampled_tokens"] == 32
    for trajectory in Store.open(tmp_path / "kept"):
        [row] = trajectory.rows()
        assert sum(row.mask) == 8
        assert all(logprob < 0 for logprob in row.logprobs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--renderer", "qwen99"), "'qwen99'"),
        (("--tokenizer", "."), ". has no tokenizer that can be loaded: "),
        (("--renderer", "qwen3", "--model-arg", "dtype=nonsense"), "could not be loaded: "),
    ],
)
def test_what_can_not_be_loaded_is_one_line(
    server: ServerProcess, model: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    said = gymhost(
        "rollout",
        GUESS,
        *("--model", str(model), "--backend", "transformers", "--server", server.address, "-q", *arguments),
        *("--store", "kept"),
        cwd=tmp_path,
        limit=LIMIT,
    )
    assert said.returncode == 1, said.stderr
    assert not (tmp_path / "kept").exists()  # which would be in the way of the right command
    [line] = said.stderr.splitlines()
    assert line.startswith("gymhost: ")
    assert message in line
    if "qwen99" in arguments:
        assert "'qwen3'" in line  # the others are listed


def test_a_folder_without_a_model_is_told(tmp_path: Path) -> None:
    said = gymhost("rollout", GUESS, "--model", str(tmp_path), "-q")
    assert said.returncode == 1
    assert said.stderr.startswith(f"gymhost: {tmp_path} has no model: there is no config.json in it.")
    (tmp_path / "config.json").write_text("{")
    said = gymhost("rollout", GUESS, "--model", str(tmp_path), "-q")
    assert said.returncode == 1
    assert said.stderr.startswith(f"gymhost: {tmp_path / 'config.json'} can't be read: ")
