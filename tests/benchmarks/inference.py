"""An inference server that is simulated, in the time of an event loop whose clock jumps: nothing is computed.

It batches continuously, as vLLM does. A step of the model gives each sequence that decodes one token, and takes the
longer the more there are and the longer they are. Prompts are computed in chunks beside them, which makes steps much
longer; what a prefix cache still holds is not computed again. Between two events all of this goes on evenly, so only
events are simulated.
"""

import asyncio
import heapq
import itertools
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gymhost.rollout.generators import Generation, Sampling

__all__ = ["Inference", "PrefixCache", "Speed"]


@dataclass(frozen=True)
class Speed:
    """How fast a server is, and how much it holds.

    Attributes:
        step: What a step takes, in seconds.
        sequence: What each sequence that decodes adds to it, in seconds.
        context: What each token that stands before what is decoded adds to it, in seconds: it is read in every step.
        prefill: What each token of a prompt that is computed adds to it, in seconds.
        chunk: How many tokens of prompts are computed in a step at most.
        sequences: How many sequences it works on at once; others wait.
        cache: How many tokens its cache holds: those of sequences that it works on, and of others while there is room.
    """

    step: float = 0.008
    sequence: float = 0.00003
    context: float = 5e-8
    prefill: float = 0.00004
    chunk: int = 2048
    sequences: int = 256
    cache: int = 448_000


class PrefixCache:
    """Blocks of tokens, each with all that stands before it. What was used longest ago is dropped first.

    Args:
        blocks: How many there is room for.
    """

    size = 16

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._used: Counter[int] = Counter()
        self._free: OrderedDict[int, None] = OrderedDict()

    @classmethod
    def chain(cls, token_ids: Sequence[int]) -> list[int]:
        """What tells the blocks of a sequence from all others, but for the last one if it is not full."""
        chain: list[int] = []
        so_far = 0
        for begin in range(0, len(token_ids) - cls.size + 1, cls.size):
            so_far = hash((so_far, *token_ids[begin : begin + cls.size]))
            chain.append(so_far)
        return chain

    def take(self, chain: Sequence[int], prompt: int) -> int | None:
        """Takes the blocks of a sequence into use.

        Args:
            chain: Its blocks, those that are to be sampled too.
            prompt: How many of them are the prompt's.

        Returns:
            How many of the prompt's blocks were there, or None if there is no room: then nothing was taken.
        """
        held = [block for block in chain if block in self._used or block in self._free]
        freed = sum(block in self._free for block in held)
        if len(self._used) + freed + len(chain) - len(held) > self._blocks:
            return None
        there = next((place for place in range(prompt) if not self._holds(chain[place])), prompt)
        for block in chain:
            self._free.pop(block, None)
            self._used[block] += 1
        while len(self._used) + len(self._free) > self._blocks:
            self._free.popitem(last=False)
        return there

    def give(self, chain: Sequence[int]) -> None:
        """Gives back what was taken; it stays while there is room, and its end goes first."""
        for block in reversed(chain):
            self._used[block] -= 1
            if not self._used[block]:
                del self._used[block]
                self._free[block] = None

    def _holds(self, block: int) -> bool:
        return block in self._used or block in self._free


@dataclass(eq=False, slots=True)
class _Sequence:
    """What was asked for."""

    chain: list[int]
    prompt: int
    tokens: int
    computed: "asyncio.Future[None]" = field(default_factory=asyncio.Future[None])

    @property
    def context(self) -> float:
        return self.prompt + self.tokens / 2


class Inference:
    """A generator that samples what it is told, in the time that a server would take for it.

    Args:
        name: Its name.
        speed: How fast it is.
        answer: Given the ids of a prompt and how to sample, the ids of the completion.

    Attributes:
        prompt_tokens: Those of all prompts.
        cached_tokens: Those of them that the cache held.
        sampled_tokens: What was sampled.
        busy_seconds: How long it had something to do.
        sequence_seconds: How long sequences were decoding, all of them summed up.
    """

    def __init__(self, name: str, speed: Speed, answer: Callable[[Sequence[int], Sampling], Sequence[int]]) -> None:
        self.name = name
        self.policy_version = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.sampled_tokens = 0
        self.busy_seconds = 0.0
        self.sequence_seconds = 0.0
        self._speed = speed
        self._answer = answer
        self._cache = PrefixCache(speed.cache // PrefixCache.size)
        self._waiting: deque[_Sequence] = deque()
        self._prompts: deque[tuple[_Sequence, float]] = deque()  # each with how many of its tokens are to be computed
        self._computed = 0.0  # of the first of these
        self._decoding: list[tuple[float, int, _Sequence]] = []  # a heap: each with the step that it ends in
        self._context = 0.0  # of all that decode; of each what it has when half of its tokens are sampled
        self._steps = 0.0
        self._at = 0.0
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Generation:
        """Returns the answer when a server would have sampled it. What is cancelled is sampled all the same."""
        answer = self._answer(prompt_ids, sampling)
        token_ids = list(answer[: sampling.max_tokens])
        chain = PrefixCache.chain([*prompt_ids, *token_ids])
        asked = _Sequence(chain, len(prompt_ids), len(token_ids))
        if len(prompt_ids) + len(token_ids) > self._speed.cache:
            raise ValueError(f"{self.name} has no room for {len(prompt_ids) + len(token_ids)} tokens")
        self._advance()
        self._waiting.append(asked)
        self._go_on()
        await asked.computed
        return Generation(
            token_ids=token_ids,
            logprobs=[-1.0] * len(token_ids),
            finish_reason="stop" if len(token_ids) == len(answer) else "length",
            policy_version=self.policy_version,
            generator=self.name,
        )

    async def aclose(self) -> None:
        """Stops the clock."""
        if self._timer is not None:
            self._timer.cancel()

    @property
    def _step_seconds(self) -> float:
        speed = self._speed
        decoding = speed.sequence * len(self._decoding) + speed.context * self._context
        return speed.step + decoding + speed.prefill * self._chunk

    @property
    def _chunk(self) -> int:
        return self._speed.chunk if self._prompts else 0

    def _advance(self) -> None:
        """Books what has gone on since the last event."""
        now = asyncio.get_running_loop().time()
        seconds, self._at = now - self._at, now
        if self._prompts or self._decoding:
            steps = seconds / self._step_seconds
            self._steps += steps
            self._computed += steps * self._chunk
            self.busy_seconds += seconds
            self.sequence_seconds += seconds * len(self._decoding)

    def _go_on(self) -> None:
        """Ends what has come to its end, begins what there is room for, and waits for what comes next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._prompts and self._computed > self._prompts[0][1] - 1e-6:
            sequence, _ = self._prompts.popleft()
            self._computed = 0.0
            self._context += sequence.context
            heapq.heappush(self._decoding, (self._steps + sequence.tokens, next(self._numbers), sequence))
        while self._decoding and self._decoding[0][0] < self._steps + 1e-6:
            _, _, sequence = heapq.heappop(self._decoding)
            self._cache.give(sequence.chain)
            self._context -= sequence.context
            self.sampled_tokens += sequence.tokens
            if not sequence.computed.done():
                sequence.computed.set_result(None)
        while self._waiting and len(self._prompts) + len(self._decoding) < self._speed.sequences:
            sequence = self._waiting[0]
            there = self._cache.take(sequence.chain, sequence.prompt // PrefixCache.size)
            if there is None:
                break
            self._waiting.popleft()
            # What a model begins to sample from is the last token's output: that is always computed.
            cached = min(there * PrefixCache.size, sequence.prompt - 1)
            self.prompt_tokens += sequence.prompt
            self.cached_tokens += cached
            self._prompts.append((sequence, sequence.prompt - cached))
        steps = math.inf
        if self._prompts:
            steps = (self._prompts[0][1] - self._computed) / self._speed.chunk
        if self._decoding:
            steps = min(steps, self._decoding[0][0] - self._steps)
        if steps < math.inf:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self._at + max(0.0, steps) * self._step_seconds, self._tick)

    def _tick(self) -> None:
        self._advance()
        self._go_on()
