"""SmolLM2-135M plays: a model, a tokenizer and a chat template that nobody made up for a test."""

import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from gymhost.client import connect
from gymhost.rollout import Chat, Limits, RolloutEngine, RolloutRequest, Row, Sampling, Trajectory
from gymhost.rollout.generators import VllmEngineGenerator
from support.models import smollm2
from support.recompute import check_rows
from support.vllm_process import ENVIRONMENT

pytestmark = pytest.mark.heavy

# vLLM warns of much that is not ours. Half a gigabyte is read, converted, written and read once more.
slow = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

TURN_TOKENS = 32


@pytest.fixture(scope="module")
def smollm() -> tuple[Any, Any]:
    """The model as transformers has it, and its tokenizer."""
    return smollm2()


@pytest.fixture(scope="module")
def llm(smollm: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A vLLM engine in this process with the same weights."""
    model, tokenizer = smollm
    folder = tmp_path_factory.mktemp("smollm2")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        import vllm

        yield vllm.LLM(
            str(folder),
            dtype="float32",
            enforce_eager=True,
            logprobs_mode="processed_logprobs",
            max_model_len=1024,
            max_num_seqs=8,
        )
    shutil.rmtree(folder)  # pytest would keep it, and those of the runs before


class TestSmolLM2:
    pytestmark = slow

    async def test_it_answers_and_ends_its_turn_by_itself(self, smollm: tuple[Any, Any], llm: Any) -> None:
        chat = Chat(smollm[1])
        prompt = chat.prompt([{"role": "user", "content": "What is the capital of France?"}], None, {})
        generator = VllmEngineGenerator(llm)
        sampling = Sampling(temperature=0.0, max_tokens=32, stop_token_ids=chat.stop_token_ids)
        answer = await generator.generate(prompt, sampling, request_id="a/1")
        await generator.aclose()
        assert smollm[1].decode(answer.token_ids) == "The capital of France is Paris.<|im_end|>"
        assert answer.finish_reason == "stop"
        message = chat.parse(list(answer.token_ids), prompt, None, 0)
        assert message == {"role": "assistant", "content": "The capital of France is Paris."}

    async def test_it_speaks_with_an_environment_of_plain_text(self, smollm: tuple[Any, Any], llm: Any) -> None:
        await self.play(smollm, llm, "gymhost/Echo-v0", length=3)

    async def test_it_plays_a_game_whose_tool_its_template_has_no_words_for(
        self, smollm: tuple[Any, Any], llm: Any
    ) -> None:
        """It is told of the tool all the same, calls none, and is asked to each time."""
        trajectories = await self.play(smollm, llm, "gymhost/GuessNumber-v0")
        assert '"name": "guess"' in smollm[1].decode(trajectories[0].prompt_ids)

    async def play(self, smollm: tuple[Any, Any], llm: Any, env_id: str, **settings: Any) -> list[Trajectory]:
        """Plays with turns that a full stop ends too, so that there are several and the template closes them."""
        model, tokenizer = smollm
        chat = Chat(tokenizer)
        generator = VllmEngineGenerator(llm)
        sampling = Sampling(temperature=0.9, top_p=0.95, stop_token_ids=tuple(tokenizer.encode(".")))
        requests = [RolloutRequest(env_id, seed=place, group="all", index=place, kwargs=settings) for place in range(4)]
        async with (
            connect() as server,
            RolloutEngine(
                server,
                chat,
                generator,
                sampling=sampling,
                limits=Limits(turn_tokens=TURN_TOKENS, context_tokens=1024, retries=0),
            ) as engine,
        ):
            trajectories = await engine.collect(requests)
        await generator.aclose()

        assert {str(item.outcome) for item in trajectories} <= {"terminated", "truncated by turn_tokens"}
        assert max(len(item.turns) for item in trajectories) > 1
        assert all(item.reward is not None for item in trajectories)
        assert len({tuple(item.completion_ids) for item in trajectories}) > 1
        assert [tokenizer.decode([stop]) for stop in chat.stop_token_ids] == ["<|im_end|>"]
        for item in trajectories:
            [row] = item.rows()  # the template appends, and rewrites nothing
            turns_are_what_the_messages_say(item, row, tokenizer, {*chat.stop_token_ids, *sampling.stop_token_ids})
            row_is_what_the_template_writes(item, row, tokenizer)
        check_rows(trajectories, {0: model}, sampling)
        return trajectories


def turns_are_what_the_messages_say(item: Trajectory, row: Row, tokenizer: Any, stops: set[int]) -> None:
    said = [message for message in item.messages if message["role"] == "assistant"]
    assert len(said) == len(item.turns)
    for turn, message in zip(item.turns, said, strict=True):
        ids = row.completion_ids[turn.start : turn.start + turn.tokens]
        assert 0 < len(ids) <= TURN_TOKENS
        assert not stops.intersection(ids[:-1])
        if turn.finish_reason == "stop":
            assert ids[-1] in stops
        else:
            assert ids[-1] not in stops
            assert len(ids) == TURN_TOKENS
            assert turn is item.turns[-1]
        if "tool_calls" not in message:
            assert message["content"].strip() == tokenizer.decode(ids, skip_special_tokens=True).strip()


def row_is_what_the_template_writes(item: Trajectory, row: Row, tokenizer: Any) -> None:
    """Everything after what the system says, which for a template without tools tells of them."""
    if any("tool_calls" in message for message in item.messages):
        return  # the template has no word for them: they stay the text that was sampled
    written = tokenizer.apply_chat_template(item.messages, tokenize=False)
    read, expected = (
        re.sub(r"\s+", " ", text[text.index("<|im_start|>user") :]) for text in (tokenizer.decode(row.ids), written)
    )
    assert expected.startswith(read.removesuffix(" "))
