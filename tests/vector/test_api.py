"""What remote vectors offer beside `reset` and `step`, and what they say when something is wrong."""

import pickle
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from gymhost.client import EnvironmentFault, InvalidArgument, RemoteVectorEnv, ResetNeeded, SessionClosed
from support.compare import assert_same
from support.vectors import MODULES, Remote, Twins, local_vector

ID = "test/SpacesPositionAndGoal-v0"
COPIES = 5


@pytest.fixture
def twins(remote: Remote) -> Iterator[Twins]:
    with Twins(remote.make_vec(ID, COPIES), local_vector(ID, COPIES)) as both:
        yield both


@pytest.fixture
def fragile(remote: Remote) -> Iterator[RemoteVectorEnv]:
    env = remote.make_vec("test/Fragile-v0", COPIES)
    yield env
    env.close()


def raising(*copies: int) -> NDArray[np.int64]:
    """Actions of which some raise."""
    actions = np.zeros(COPIES, np.int64)
    actions[list(copies)] = 1
    return actions


# -- attributes --------------------------------------------------------------------------------------------------------


def test_attributes_are_read_set_and_called(twins: Twins):
    both = (twins.remote, twins.local)
    twins.reset(0)
    assert_same(twins.remote.get_attr("level"), twins.local.get_attr("level"))
    for env in both:
        env.set_attr("level", [0.0, 1.5, 2.5, 3.5, 4.5])
    assert_same(twins.remote.get_attr("level"), twins.local.get_attr("level"))
    assert_same(twins.remote.call("scaled", 2.0, plus=0.25), twins.local.call("scaled", 2.0, plus=0.25))
    for env in both:
        env.set_attr("level", 7.0)
    assert_same(twins.remote.call("level"), twins.local.call("level"))
    assert twins.remote.call("scaled", 2.0) == (14.0,) * COPIES


def test_the_generators_of_the_copies(twins: Twins):
    twins.reset(3)
    assert_same(twins.remote.np_random_seed, twins.local.np_random_seed)
    there, here = [[each.bit_generator.state for each in env.np_random] for env in (twins.remote, twins.local)]
    assert_same(there, here)


def test_a_value_for_each_copy_or_one_for_all(twins: Twins):
    with pytest.raises(ValueError, match="3"):
        twins.remote.set_attr("level", [1.0, 2.0, 3.0])


def test_an_attribute_that_is_not_there(twins: Twins):
    with pytest.raises(AttributeError, match="colour"):
        twins.remote.get_attr("colour")


# -- resets ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 0, 2**40, [4, 3, 2, 1, 0]], ids=str)
def test_seeds(twins: Twins, seed: Any):
    twins.reset(1)
    twins.reset(seed)
    twins.compare_kept()


def test_a_copy_without_a_seed_goes_on_with_its_generator(twins: Twins):
    twins.reset(1)
    twins.reset([None, 5, None, 6, None])


@pytest.mark.parametrize("options", [{}, {"level": 3, "deep": {"array": np.arange(3)}, 4: None}], ids=str)
def test_options(twins: Twins, options: dict[Any, Any]):
    twins.reset(0, options)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_some_copies_are_reset(remote: Remote, mode: AutoresetMode):
    with Twins(remote.make_vec(ID, COPIES, autoreset_mode=mode), local_vector(ID, COPIES, mode)) as twins:
        twins.reset(0)
        for mask in ([True] * 5, [False, True, False, False, True], [True, False, False, False, False]):
            twins.reset(options={"reset_mask": np.array(mask), "level": 2})
            twins.reset([9, None, 7, 6, None], {"reset_mask": np.array(mask)})
        twins.compare_kept()


@pytest.mark.parametrize(
    "mask",
    [[True, False, False, False, True], np.zeros(COPIES, np.bool_), np.ones(3, np.bool_), np.ones(COPIES, np.int64)],
    ids=["list", "none", "short", "integers"],
)
def test_a_mask_that_is_none(twins: Twins, mask: Any):
    twins.reset(0)
    with pytest.raises((TypeError, ValueError), match="reset_mask"):
        twins.remote.reset(options={"reset_mask": mask})
    twins.reset(1)


def test_too_few_seeds(twins: Twins):
    with pytest.raises(ValueError, match="5"):
        twins.remote.reset(seed=[1, 2, 3])
    twins.reset(1)


# -- steps -------------------------------------------------------------------------------------------------------------


def test_steps_in_two_parts(twins: Twins):
    twins.reset(0)
    twins.local.action_space.seed(0)
    for number in range(5):
        actions = twins.local.action_space.sample()
        twins.remote.step_async(actions)
        assert_same(twins.remote.step_wait(), twins.local.step(actions), f"step {number}")


def test_waiting_for_a_step_that_was_not_begun(fragile: RemoteVectorEnv):
    fragile.reset(seed=0)
    with pytest.raises((InvalidArgument, gymnasium.error.NoAsyncCallError)):
        fragile.step_wait()


@pytest.mark.parametrize("actions", [np.zeros(3, np.int64), [0] * 6, None, 0], ids=str)
def test_actions_for_another_number_of_copies(fragile: RemoteVectorEnv, actions: Any):
    fragile.reset(seed=0)
    with pytest.raises((ValueError, TypeError)):
        fragile.step(actions)
    assert_same(fragile.step(raising())[0], np.ones(COPIES, np.int64))


def test_actions_in_a_list(remote: Remote):
    with Twins(remote.make_vec("CartPole-v1", 3), local_vector("CartPole-v1", 3)) as twins:
        twins.reset(0)
        twins.step([0, 1, 0])
        twins.step((1, 1, 0))
        twins.step(np.array([1, 0, 1], np.uint8))


def test_a_step_before_the_first_reset(fragile: RemoteVectorEnv):
    with pytest.raises((ResetNeeded, gymnasium.error.ResetNeeded)):
        fragile.step(raising())
    fragile.reset(seed=0)
    fragile.step(raising())


def test_a_step_after_the_end_where_nothing_is_reset(remote: Remote):
    env = remote.make_vec("test/Reuses-v0", COPIES, autoreset_mode=AutoresetMode.DISABLED)
    env.reset(seed=0)
    for _ in range(3):
        env.step(raising())
    with pytest.raises(ResetNeeded, match="reset_mask"):
        env.step(raising())
    env.reset(options={"reset_mask": np.ones(COPIES, np.bool_)})
    env.step(raising())
    env.close()


# -- faults ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copies", [[0], [4], [0, 1, 2, 3, 4]], ids=str)
def test_a_copy_that_raises(fragile: RemoteVectorEnv, copies: list[int]):
    fragile.reset(seed=0)
    fragile.step(raising())
    with pytest.raises(EnvironmentFault, match="this step was told to raise") as caught:
        fragile.step(raising(*copies))
    assert "in step\n    raise ValueError" in str(caught.value)
    observations, infos = fragile.reset(seed=0)
    assert_same(observations, np.zeros(COPIES, np.int64))
    assert infos == {}
    assert_same(fragile.step(raising())[0], np.ones(COPIES, np.int64))


def test_a_reset_that_raises(fragile: RemoteVectorEnv):
    with pytest.raises(EnvironmentFault, match="this reset was told to raise"):
        fragile.reset(options={"raise": True})
    fragile.reset()
    fragile.step(raising())


def test_a_method_that_raises(twins: Twins):
    with pytest.raises(EnvironmentFault, match="scaled"):
        twins.remote.call("scaled")
    assert twins.remote.call("scaled", 2.0) == (1.0,) * COPIES


def test_an_environment_that_cannot_be_made(remote: Remote):
    with pytest.raises(EnvironmentFault, match="colour"):
        remote.make_vec("CartPole-v1", COPIES, colour="red")


# -- the end -----------------------------------------------------------------------------------------------------------


def test_closing_twice(fragile: RemoteVectorEnv):
    fragile.reset(seed=0)
    fragile.close()
    assert fragile.closed
    fragile.close()
    for use in (fragile.reset, lambda: fragile.step(raising()), fragile.render, lambda: fragile.get_attr("spec")):
        with pytest.raises((SessionClosed, gymnasium.error.ClosedEnvironmentError)):
            use()


def test_closing_in_the_middle_of_a_step(fragile: RemoteVectorEnv):
    fragile.reset(seed=0)
    fragile.step_async(raising())
    fragile.close()
    assert fragile.closed


@pytest.mark.parametrize("id", ["CartPole-v1", "FrozenLake-v1", "ALE/Pong-v5", "test/Random-v0"])
def test_its_spec(remote: Remote, id: str):
    with Twins(remote.make_vec(id, COPIES), local_vector(id, COPIES)) as twins:
        twins.compare_descriptions()
        there, here = twins.remote.spec, twins.local.spec
        assert_same(there.max_episode_steps, here.max_episode_steps)
        with Twins(gymnasium.make_vec(there), gymnasium.make_vec(here)) as again:
            again.compare_descriptions()
            again.play(5)
            assert_same(again.remote.spec.max_episode_steps, here.max_episode_steps)


def test_it_is_made_through_gymnasium(remote: Remote):
    there = gymnasium.make_vec(
        "gymhost.client:gymhost/Remote-v0",
        COPIES,
        environment_id=ID,
        modules=MODULES,
        direct=remote.direct,
        shards=2,
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    with Twins(there, local_vector(ID, COPIES, AutoresetMode.SAME_STEP)) as twins:
        assert isinstance(there, RemoteVectorEnv)
        assert twins.play(20) >= COPIES


def test_a_pickled_one_makes_another(twins: Twins):
    twins.reset(1)
    with Twins(pickle.loads(pickle.dumps(twins.remote)), local_vector(ID, COPIES)) as others:
        others.compare_descriptions()
        others.play(5)
    twins.reset(2)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_autoreset_modes_have_names(remote: Remote, mode: AutoresetMode):
    with Twins(remote.make_vec(ID, 1, shards=1, autoreset_mode=mode.value), local_vector(ID, 1, mode)) as twins:
        twins.compare_descriptions()
        assert twins.play(20) >= 3


@pytest.mark.parametrize(
    "wrong",
    [{"autoreset_mode": "Sometimes"}, {"vectorization_mode": "async"}, {"shards": 0}, {"shards": 6}, {"num_envs": 0}],
    ids=str,
)
def test_what_cannot_be_made(remote: Remote, wrong: dict[str, Any]):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        remote.make_vec(ID, **({"num_envs": COPIES} | wrong))


def test_it_tells_what_it_is(fragile: RemoteVectorEnv):
    text = str(fragile)
    assert "test/Fragile-v0" in text
    assert str(COPIES) in text


def test_each_samples_by_itself(remote: Remote):
    one, other = [remote.make_vec("Pendulum-v1", 3) for _ in range(2)]
    for space in ("action_space", "single_action_space", "observation_space"):
        assert not np.array_equal(getattr(one, space).sample(), getattr(other, space).sample())
    one.close()
    other.close()
