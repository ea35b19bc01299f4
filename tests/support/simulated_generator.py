"""A stand-in for an inference server's time: so many slots, each as fast as the next, and a line before them."""

import asyncio
import heapq
import time
from collections.abc import Callable, Iterator, Sequence

from gymhost.rollout.generators import Generation, Sampling

__all__ = ["SimulatedGenerator", "Slots"]


class Slots:
    """Slots that each sample one completion at a time. Who comes first is served first.

    How long each completion takes is known when it is asked for, so its slot and its end are too: whoever waits for it
    waits until then, and if that wait is late, the slot has gone on meanwhile, as a server would have.

    Args:
        count: How many slots.
        tokens_per_second: What each of them samples; infinity for no time at all.

    Attributes:
        spans: For each slot when it was busy, as pairs of begin and end.
        submitted: When each completion was asked for.
    """

    def __init__(self, count: int = 64, tokens_per_second: float = 50.0) -> None:
        self.spans: list[list[tuple[float, float]]] = [[] for _ in range(count)]
        self.submitted: list[float] = []
        self._tokens_per_second = tokens_per_second
        self._free = [(0.0, slot) for slot in range(count)]  # a heap: when each slot is free again

    def take(self, tokens: int, now: float) -> float:
        """Asks for a completion of so many tokens, and returns when it will be there."""
        free, slot = self._free[0]
        begin = max(now, free)
        end = begin + tokens / self._tokens_per_second
        heapq.heapreplace(self._free, (end, slot))
        self.spans[slot].append((begin, end))
        self.submitted.append(now)
        return end

    @property
    def ended(self) -> float:
        """When the last completion was there."""
        return max(end for _, end in self._busy())

    @property
    def first_full(self) -> float | None:
        """When all slots were busy for the first time; None if they never were."""
        busy = 0
        changes = [(begin, 1) for begin, _ in self._busy()] + [(end, -1) for _, end in self._busy()]
        for when, change in sorted(changes):
            busy += change
            if busy == len(self.spans):
                return when
        return None

    @property
    def share_busy(self) -> float | None:
        """The mean share of slots that were busy from when all were, until the last completion was asked for.

        None if there was no such time.
        """
        first, last = self.first_full, max(self.submitted, default=0.0)
        if first is None or first >= last:
            return None
        busy = sum(max(0.0, min(end, last) - max(begin, first)) for begin, end in self._busy())
        return busy / (last - first) / len(self.spans)

    def _busy(self) -> Iterator[tuple[float, float]]:
        return (span for spans in self.spans for span in spans)


class SimulatedGenerator:
    """A generator that samples what it is told, in the time that slots take for it.

    Args:
        slots: The slots. What is cancelled keeps its slot for as long as it would have taken.
        answer: Given the ids of a prompt, the ids of the completion.
        name: Its name, where there are several.
        policy_version: The version that generations are marked with.
    """

    def __init__(
        self,
        slots: Slots,
        answer: Callable[[Sequence[int]], Sequence[int]],
        *,
        name: str = "simulated",
        policy_version: int = 0,
    ) -> None:
        self.slots = slots
        self.name = name
        self.policy_version = policy_version
        self._answer = answer

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Generation:
        """Returns the answer when a slot would have sampled it."""
        version = self.policy_version
        answer = self._answer(prompt_ids)
        token_ids = list(answer[: sampling.max_tokens])
        await asyncio.sleep(self.slots.take(len(token_ids), time.perf_counter()) - time.perf_counter())
        return Generation(
            token_ids=token_ids,
            logprobs=[-1.0] * len(token_ids),
            finish_reason="stop" if len(token_ids) == len(answer) else "length",
            policy_version=version,
            mixed_versions=version != self.policy_version,
            generator=self.name,
        )

    async def aclose(self) -> None:
        """Does nothing: nothing is held."""
