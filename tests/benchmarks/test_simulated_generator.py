"""The simulated generator, whose figures the benchmarks of rollouts rest on."""

import asyncio
import time

import pytest

from gymhost.rollout.generators import Sampling
from support.simulated_generator import SimulatedGenerator, Slots


def test_who_comes_first_is_served_first_and_slots_go_on_whoever_waits() -> None:
    slots = Slots(count=2, tokens_per_second=10.0)
    # Two are served at once, the third when the first has ended, the fourth comes when a slot has long been free.
    assert [slots.take(tokens, now) for tokens, now in ((10, 0.0), (30, 0.0), (10, 0.5), (10, 9.0))] == [1, 3, 2, 10]
    assert sorted(span for spans in slots.spans for span in spans) == [(0, 1), (0, 3), (1, 2), (9, 10)]
    assert slots.ended == 10


def test_share_of_busy_slots_counts_from_the_first_full_to_the_last_submission() -> None:
    slots = Slots(count=2, tokens_per_second=10.0)
    for tokens, now in ((40, 0.0), (10, 1.0), (10, 3.0), (10, 5.0)):
        slots.take(tokens, now)
    # From 1 to 5: the first is busy until 4, the second from 1 to 2 and from 3 to 4; what begins at 5 counts no more.
    assert slots.first_full == 1
    assert slots.share_busy == pytest.approx(5 / 8)


def test_slots_that_were_never_all_busy_have_no_share() -> None:
    slots = Slots(count=2, tokens_per_second=10.0)
    slots.take(10, 0.0)
    slots.take(10, 1.0)
    assert slots.first_full is None
    assert slots.share_busy is None


async def test_generator_answers_in_the_time_that_its_slots_take() -> None:
    generator = SimulatedGenerator(Slots(count=2, tokens_per_second=100.0), lambda prompt_ids: [*prompt_ids, 7])
    begun = time.perf_counter()
    generations = await asyncio.gather(
        *(generator.generate([number], Sampling(), request_id=f"{number}/1") for number in range(4))
    )
    assert time.perf_counter() - begun >= 0.04
    assert [list(generation.token_ids) for generation in generations] == [[number, 7] for number in range(4)]
    assert all(len(generation.logprobs) == 2 and generation.finish_reason == "stop" for generation in generations)


async def test_generator_is_cut_off_by_the_length_limit() -> None:
    generator = SimulatedGenerator(Slots(), lambda _: [1, 2, 3])
    generation = await generator.generate([0], Sampling(max_tokens=2), request_id="0/1")
    assert (list(generation.token_ids), generation.finish_reason) == ([1, 2], "length")
