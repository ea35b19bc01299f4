"""The simulated server, whose figures the benchmarks of routing and stages rest on."""

import asyncio
from collections.abc import Sequence

import pytest

from benchmarks.inference import Inference, PrefixCache, Speed
from gymhost.rollout.generators import Sampling
from support.virtual_time import now, simulated

SIZE = PrefixCache.size
# A step of 1 s for one sequence; 2 s for two; 10 s more if there is a prompt to compute.
SLOW = Speed(step=0.0, sequence=1.0, context=0.0, prefill=0.1, chunk=100, sequences=2, cache=64 * SIZE)


def asked(server: Inference, *prompts: Sequence[int], after: Sequence[float] | None = None) -> list[float]:
    """When each of several prompts was answered, which were all asked for at once, or after so many seconds."""

    async def ask(prompt: Sequence[int], seconds: float) -> float:
        await asyncio.sleep(seconds)
        await server.generate(prompt, Sampling(), request_id="0/1")
        return now()

    async def main() -> list[float]:
        delays = after or [0.0] * len(prompts)
        return await asyncio.gather(*map(ask, prompts, delays))

    return simulated(main())


def server(answer: Sequence[int], speed: Speed = SLOW) -> Inference:
    return Inference("server", speed, lambda _prompt, _sampling: answer)


def test_prompt_is_computed_and_then_decoded() -> None:
    # Half a chunk is computed in half of a step of 10 s; then there are five steps of 1 s.
    assert asked(server([7] * 5), [1] * 50) == [pytest.approx(5 + 5)]


def test_sequences_slow_each_other_down_and_a_prompt_slows_all() -> None:
    # The second prompt is computed in a whole step of 1 s + 10 s, in which the first gets one of its ten tokens. Then
    # both decode, in steps of 2 s, until the first has ended.
    served = server([7] * 10)
    first, second = asked(served, [1] * 10, [2] * 100, after=[0.0, 1.0])
    assert (first, second) == (pytest.approx(1 + 11 + 9 * 2), pytest.approx(1 + 11 + 9 * 2 + 1))
    assert served.sampled_tokens == 20
    assert served.busy_seconds == pytest.approx(second)
    assert served.sequence_seconds == pytest.approx(11 + 9 * 2 * 2 + 1)


def test_context_slows_decoding() -> None:
    read = Speed(step=1.0, sequence=0.0, context=0.01, prefill=0.0, chunk=10**9)
    # In the middle of it there are 99 + 1 tokens.
    assert asked(server([7, 7], read), [1] * 99) == [pytest.approx(2 * (1 + 1), rel=1e-3)]


def test_what_there_is_no_place_for_waits() -> None:
    served = server([7] * 2)
    # Two at once, of 10 tokens each: 1 s for each prompt, in the second of which the first has already decoded.
    first, second, third = asked(served, [1] * 10, [2] * 10, [3] * 10)
    assert first < second < third
    assert third > first + 1 + 1


def test_prefix_that_is_cached_is_not_computed_again() -> None:
    served = server([7] * SIZE)
    prompt = [1] * 2 * SIZE
    [first] = asked(served, prompt)
    longer = [*prompt, *[7] * SIZE, *[2] * SIZE]
    [second] = asked(served, longer)
    assert served.prompt_tokens == 6 * SIZE
    assert served.cached_tokens == 3 * SIZE
    # The same time for decoding, and for a quarter of the prompt half of what the first took.
    assert first - second == pytest.approx(0.1 * SIZE)


def test_what_was_used_longest_ago_is_dropped_first() -> None:
    cache = PrefixCache(4)
    first, second, third = (PrefixCache.chain([number] * 2 * SIZE) for number in (1, 2, 3))
    for chain in (first, second, first):
        assert cache.take(chain, 0) == 0
        cache.give(chain)
    assert cache.take(third, 2) == 0
    cache.give(third)
    assert cache.take(first, 2) == 2
    assert cache.take(third, 2) == 2
    # Nothing is left that could be dropped.
    assert cache.take(second, 2) is None
    cache.give(first)
    assert cache.take(second, 2) == 0


def test_another_beginning_makes_another_block() -> None:
    one, other = PrefixCache.chain([1] + [0] * 31), PrefixCache.chain([2] + [0] * 31)
    assert len(one) == len(other) == 2
    assert not set(one) & set(other)


def test_too_much_is_refused() -> None:
    with pytest.raises(ValueError, match="has no room for 1025 tokens"):
        asked(server([7]), [1] * 64 * SIZE)
