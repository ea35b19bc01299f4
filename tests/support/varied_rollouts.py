"""Rollouts of all kinds without a model: what a viewer must be able to show."""

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gymhost.rollout.store import Store
from gymhost.rollout.trajectory import Outcome, Row, Timings, Trajectory, Turn

PICTURE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAABAAAAAQCAIAAACQkWg2AAAAFklEQVR4nGP4z8BAEmIY1TCqYfhqAABkP/4BNOFGMwAAAABJRU5ErkJg"
    "gg=="
)
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\u2028<!--"


class WordTokenizer:
    """Has an id for each word, line break and sign, in the order in which they come up."""

    added_tokens_decoder: dict[int, str] = {}

    def __init__(self) -> None:
        self._words: list[str] = []
        self._ids: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        words = re.findall(r"<\|\w+\|>| ?\w+|\s|[^\w\s]", text)
        for word in words:
            if word not in self._ids:
                self._ids[word] = 100 + len(self._words)
                self._words.append(word)
        return [self._ids[word] for word in words]

    def convert_ids_to_tokens(self, token_id: int) -> str:
        return self._words[token_id - 100]

    def decode(self, token_ids: Sequence[int], **_: Any) -> str:
        return "".join(self._words[token_id - 100] for token_id in token_ids)


def guess(tokenizer: WordTokenizer, task: int, index: int, *, words: int = 12) -> Trajectory:
    """A game of guessing whose course its task and index decide."""
    chance = random.Random(f"{task}/{index}")
    fact = random.Random(f"{task}")
    secret, count = fact.randint(1, 100), chance.randint(1, 8)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You play a game of guessing numbers. Call the tool `guess` once a turn."},
        {"role": "user", "content": f"I think of a number from 1 to 100 (task {task}). You have 8 guesses."},
    ]
    row = Row(
        prompt_ids=tokenizer.encode("".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages))
    )
    turns: list[Turn] = []
    timings = Timings(queue=chance.uniform(0, 0.4), init=chance.uniform(0.2, 1.5), eval=chance.uniform(0.05, 0.4))
    now, low, high = timings.queue + timings.init, 1, 100
    version = 40 + task // 4
    for turn in range(count):
        number = (
            secret
            if turn == count - 1 and index % 2 == 0
            else (low + high) // 2 + (chance.randint(-3, 3) if turn > 1 else 0)
        )
        thought = (
            f"Between {low} and {high}; "
            + "halving what is left is best, " * chance.randint(1, words)
            + f"so {number}."
        )
        text = "I go on." if turn else "The middle first."
        sampled = tokenizer.encode(
            f"<think>{thought}</think>\n{text}\n<tool_call>guess({number})</tool_call><|im_end|>"
        )
        start = len(row.completion_ids)
        switch = len(sampled) // 2 if (task, index, turn) == (1, 1, 1) else len(sampled)
        row.append_sampled(
            sampled,
            [-(chance.paretovariate(0.9) - 1) * 0.4 for _ in sampled],
            [version] * switch + [version + 1] * (len(sampled) - switch),
        )
        said = "Correct!" if number == secret else f"{number} is too {'low' if number < secret else 'high'}."
        low, high = (number + 1, high) if number < secret else (low, number - 1)
        messages.append(
            {
                "role": "assistant",
                "reasoning_content": thought,
                "content": text,
                "tool_calls": [
                    {
                        "id": f"call_{turn}",
                        "type": "function",
                        "function": {"name": "guess", "arguments": {"number": number}},
                    }
                ],
            }
        )
        messages.append({"role": "tool", "tool_call_id": f"call_{turn}", "name": "guess", "content": said})
        if turn < count - 1:
            row.append_environment(tokenizer.encode(f"\n<|im_start|>tool\n{said}<|im_end|>\n<|im_start|>assistant\n"))
        generation, environment = len(sampled) / 50, chance.lognormvariate(-1, 1)
        turns.append(
            Turn(
                row=0,
                start=start,
                tokens=len(sampled),
                policy_version=version,
                mixed_versions=switch < len(sampled),
                finish_reason="stop",
                reward=1.0 if number == secret else 0.0,
                calls=1,
                generator=f"vllm-{index % 2}",
                begun=now,
                generation_seconds=generation,
                environment_seconds=environment,
            )
        )
        now += generation + environment
    timings.run = now - timings.queue - timings.init
    timings.generation = sum(turn.generation_seconds for turn in turns)
    timings.environment = sum(turn.environment_seconds for turn in turns)
    won = turns[-1].reward == 1.0
    return Trajectory(
        env_id="gymhost/GuessNumber-v0",
        id=f"guess-{task}-{index}",
        task=task,
        seed=7,
        split="train",
        group=f"g{task}",
        index=index,
        messages=messages,
        tools=[{"name": "guess", "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}}}],
        token_rows=[row],
        turns=turns,
        reward=1.0 if won else 0.0,
        rewards={"solved": float(won), "economy": round(1 - count / 10, 2)},
        outcome=Outcome(kind="terminated", turn=count) if won else Outcome(kind="truncated", limit="turns", turn=count),
        timings=timings,
        created=1_790_000_000 + 10 * task + index,
        labels={"batch": task // 4},
        info={"secret": secret},
    )


def oddities(tokenizer: WordTokenizer) -> Iterator[Trajectory]:
    """What is rare: failures, pictures, rewritten history, malformed calls, hostile text, next to nothing."""
    failed = guess(tokenizer, 90, 0)
    yield failed.model_copy(
        update={
            "id": "failed",
            "env_id": "gymhost/Code-v0",
            "reward": None,
            "rewards": {},
            "outcome": Outcome(
                kind="failed",
                fault="environment",
                cause="ToolError",
                message="the sandbox said:\nno space left",
                turn=2,
            ),
        }
    )
    yield Trajectory(
        env_id="gymhost/Code-v0",
        id="never-begun",
        task=3,
        outcome=Outcome(kind="failed", fault="infrastructure", cause="Unavailable", message="no worker answered"),
        attempts=3,
    )
    yield Trajectory(env_id="gymhost/Code-v0", id="cancelled", task=4, outcome=Outcome(kind="cancelled"))
    rewritten = guess(tokenizer, 91, 1)
    whole = rewritten.token_rows[0]
    first = Row(prompt_ids=whole.prompt_ids)
    said = rewritten.turns[0].tokens
    first.append_sampled(whole.completion_ids[:said], whole.logprobs[:said], whole.policy_versions[:said])
    again = Row(prompt_ids=whole.ids[: len(whole.prompt_ids) + 3] + whole.ids[len(whole.prompt_ids) + 9 :])
    again.append_sampled(whole.completion_ids[:9], whole.logprobs[:9], whole.policy_versions[:9])
    turns = [rewritten.turns[0], Turn(row=1, start=0, tokens=9, policy_version=62, finish_reason="stop", calls=0)]
    yield rewritten.model_copy(update={"id": "rewritten", "token_rows": [first, again], "turns": turns})
    messages: list[dict[str, Any]] = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": PICTURE}},
            ],
        },
        {
            "role": "assistant",
            "content": "I look closer, in two ways.",
            "tool_calls": [
                {
                    "function": {
                        "name": "run_python",
                        "arguments": {
                            "code": "import sys\n\nfor line in sys.stdin:\n    print(line.strip())",
                            "limits": {"seconds": 5},
                        },
                    }
                },
                {"function": {"name": "look", "arguments": '{"at": "the left'}},
            ],
        },
        {"role": "tool", "name": "run_python", "content": "\n".join(f"line {number}" for number in range(300))},
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "https://example.invalid/picture.png"}}],
        },
    ]
    yield Trajectory(
        env_id="gymhost/Look-v0",
        id="picture",
        messages=messages,
        turns=[Turn(row=0, start=0, tokens=3, reward=-0.5, finish_reason="length", calls=2)],
        reward=-0.5,
        rewards={"right": None, "manners": -0.5},
        outcome=Outcome(kind="truncated", limit="turn_tokens", turn=1),
        timings=Timings(init=0.1, run=150.0, generation=140.0, environment=10.0),
    )
    hostile = Row(prompt_ids=tokenizer.encode(HOSTILE))
    hostile.append_sampled(tokenizer.encode(HOSTILE), [-0.5] * len(hostile.prompt_ids), [1] * len(hostile.prompt_ids))
    calls = [{"name": HOSTILE, "arguments": {HOSTILE: HOSTILE}}, {"name": "", "arguments": HOSTILE}]
    picture = {"type": "image_url", "image_url": {"url": f'data:image/png;base64,"{HOSTILE}'}}
    messages = [
        {"role": HOSTILE, "name": HOSTILE, "content": HOSTILE},
        {
            "role": "assistant",
            "reasoning_content": HOSTILE,
            "content": f"<|im_end|>{HOSTILE}",
            "tool_calls": [{"function": call} for call in calls],
        },
        {"role": "user", "content": [picture, {"type": HOSTILE}]},
    ]
    yield Trajectory(
        env_id=f"evil/{HOSTILE}",
        id=f"hostile {HOSTILE}",
        group=HOSTILE,
        messages=messages,
        token_rows=[hostile],
        turns=[Turn(row=0, start=0, tokens=len(hostile.prompt_ids), generator=HOSTILE, finish_reason=HOSTILE)],
        rewards={HOSTILE: 1.0},
        reward=0.25,
        labels={HOSTILE: HOSTILE},
        info={HOSTILE: HOSTILE},
        tools=[{"name": HOSTILE}],
        outcome=Outcome(kind="truncated", limit=HOSTILE, message=HOSTILE, cause=HOSTILE),
    )


def varied_store(path: Path, *, tasks: int = 6, size: int = 4, words: int = 12) -> Store:
    """A store of groups of guessing games, and of oddities."""
    tokenizer = WordTokenizer()
    settings = {
        "env": "gymhost/GuessNumber-v0",
        "model": "models/small",
        "samples": size,
        "temperature": 1.0,
        "note": HOSTILE,
    }
    with Store.create(path, settings) as store:
        games = (guess(tokenizer, task, index, words=words) for task in range(tasks) for index in range(size))
        for trajectory in itertools.chain(games, oddities(tokenizer)):
            store.append(trajectory, tokenizer)
    return Store.open(path)
