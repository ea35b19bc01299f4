"""Vector sessions: copies of an environment that are stepped in a loop, or the environment's own vector form."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from gymhost.envs import registration, wrapping
from gymhost.server.worker.episodes import Episodes
from gymhost.server.worker.shared_memory import SharedMemory
from gymhost.server.worker.vector_infos import Added
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors
from gymhost.wire.layout import Batch, Layout
from gymhost.wire.tensors import Array

_AUTORESET = {
    pb.AUTORESET_MODE_UNSPECIFIED: AutoresetMode.NEXT_STEP,
    pb.AUTORESET_MODE_NEXT_STEP: AutoresetMode.NEXT_STEP,
    pb.AUTORESET_MODE_SAME_STEP: AutoresetMode.SAME_STEP,
    pb.AUTORESET_MODE_DISABLED: AutoresetMode.DISABLED,
}

# What a reset within a step runs in.
Resetting = Callable[[], contextlib.AbstractContextManager[None]]
# What comes with an observation: Gymnasium's vector info as it is, or what each copy added to it.
Infos = dict[str, Any] | Added


class VectorSessionEnv(Protocol):
    """What a vector session runs."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    metadata: dict[str, Any]
    render_mode: str | None
    unwrapped: Any
    spec: EnvSpec | None
    memory: SharedMemory | None
    progress: int
    episodes: Episodes

    def reset(self, seeds: Any, mask: Array | None, options: dict[str, Any] | None) -> tuple[Any, Infos]:
        """Resets all copies, or those that the mask names."""
        ...

    def step(self, actions: Any) -> tuple[Batch, Infos]:
        """Steps all copies."""
        ...

    def render(self) -> Any:
        """Renders all copies."""
        ...

    def __len__(self) -> int:
        """How many environments `each` reaches."""
        ...

    def each(self, act: Callable[[Any, int], Any]) -> tuple[Any, ...]:
        """Does something to each environment there is, in order."""
        ...

    def close(self) -> None:
        """Closes all copies."""
        ...


def make(
    request: pb.CreateSessionRequest,
    kwargs: dict[str, Any],
    wrappers: Sequence[wrapping.Wrapping],
    resetting: Resetting,
) -> VectorSessionEnv:
    """Makes what a vector session runs.

    Args:
        request: What the client asked for.
        kwargs: Keyword arguments for the environment.
        wrappers: What to put around each copy.
        resetting: What resets within a step are to run in, each.

    Raises:
        InvalidArgument: The environment has no such form.
    """
    spec = gymnasium.spec(request.environment_id)
    wanted = request.vectorization
    if wanted == pb.VECTORIZATION_UNSPECIFIED and not wrappers:
        wanted = pb.VECTORIZATION_COPIES if spec.vector_entry_point is None else pb.VECTORIZATION_NATIVE
    if wanted == pb.VECTORIZATION_NATIVE:
        if wrappers:
            raise errors.InvalidArgument(
                f"wrappers can't be put around the copies of {spec.id}'s own vector environment: "
                "vectorization_mode='sync' makes copies that can be wrapped"
            )
        registration.check_render_mode(kwargs)
        return Native(gymnasium.make_vec(spec, request.num_envs, vectorization_mode="vector_entry_point", **kwargs))
    mode = _AUTORESET.get(request.autoreset_mode)
    if mode is None:
        raise errors.InvalidArgument(f"there is no autoreset mode {request.autoreset_mode}")
    envs: list[gymnasium.Env[Any, Any]] = []
    try:
        for _ in range(request.num_envs):
            envs.append(wrapping.wrap(registration.make(request.environment_id, **kwargs), wrappers))  # noqa: PERF401 - what was made is closed where one can't be
        return Copies(envs, mode, resetting)
    except BaseException:
        for env in envs:
            env.close()
        raise


class Copies:
    """Copies of an environment, stepped one after the other. Results are as Gymnasium's `SyncVectorEnv` gives them.

    Observations and arrays are buffers that the next call fills again; where all are arrays, they are in shared memory.

    Args:
        envs: The copies.
        autoreset_mode: When a copy that has come to the end of its episode is reset.
        resetting: What resets within a step run in, each.

    Raises:
        EnvironmentFault: The copies' spaces differ.
    """

    def __init__(
        self, envs: Sequence[gymnasium.Env[Any, Any]], autoreset_mode: AutoresetMode, resetting: Resetting
    ) -> None:
        first = envs[0]
        for env in envs:
            if env.observation_space != first.observation_space or env.action_space != first.action_space:
                raise errors.EnvironmentFault("the copies of a vector environment must have equal spaces")
        count = len(envs)
        self.envs = envs
        self.unwrapped = first.unwrapped
        self.spec = first.spec
        self.observation_space = first.observation_space
        self.action_space = first.action_space
        self.metadata = {**first.metadata, "autoreset_mode": autoreset_mode.value}
        self.render_mode = first.render_mode
        self._mode = autoreset_mode
        self._resetting = resetting
        self._batched_actions = batch_space(first.action_space, count)
        # The last observation of each copy, and the batch of them.
        self._each: list[Any] = [None] * count
        layout = Layout.of(first.observation_space, count)
        if layout is None:
            self.memory: SharedMemory | None = None
            flags = np.zeros(count), np.zeros(count, np.bool_), np.zeros(count, np.bool_)
            self._buffers = Batch(*flags, create_empty_array(first.observation_space, n=count, fn=np.zeros))
        else:
            self.memory = SharedMemory(layout.size)
            self._buffers = layout.batch(self.memory.map)
        # The copies whose episode has come to its end.
        self._done: list[bool] = [False] * count
        self.episodes = Episodes(count)
        # The copy that is being stepped or reset: whoever watches over the limits sees that there is progress.
        self.progress = 0

    def reset(self, seeds: Any, mask: Array | None, options: dict[str, Any] | None) -> tuple[Any, Added]:
        """Resets all copies, or those that the mask names; the others keep their last observation."""
        count = len(self.envs)
        if (seeds is not None and len(seeds) != count) or (mask is not None and len(mask) != count):
            raise errors.InvalidArgument(
                f"there must be as many seeds, and as long a mask, as there are copies: {count}"
            )
        added = Added(count)
        for index in range(count) if mask is None else np.flatnonzero(mask).tolist():
            self._done[index] = False
            self.progress = index
            self.episodes.reset(index)
            seed = None if seeds is None else seeds[index]
            self._each[index], info = self.envs[index].reset(seed=seed, options=options)
            if info:
                added.add(index, info)
        return self._batch().observation, added

    def step(self, actions: Any) -> tuple[Batch, Added]:
        """Steps all copies, and resets those that the mode says."""
        mode, done = self._mode, self._done
        rewards, terminations, truncations, _ = self._buffers
        observations, episodes = self._each, self.episodes
        added = Added(len(self.envs))
        if mode is AutoresetMode.DISABLED and True in done:
            ended = [index for index, each in enumerate(done) if each]
            raise errors.ResetNeeded(
                f"the episodes of copies {ended} have ended: reset them with options={{'reset_mask': ...}} before the "
                "next step (autoreset_mode is DISABLED)"
            )
        given = list(iterate(self._batched_actions, actions))
        if len(given) != len(self.envs):
            raise errors.InvalidArgument(f"{len(given)} actions for {len(self.envs)} copies")
        for index, (env, action) in enumerate(zip(self.envs, given, strict=True)):
            self.progress = index
            if done[index] and mode is AutoresetMode.NEXT_STEP:
                episodes.reset(index)
                with self._resetting():
                    observations[index], info = env.reset()
                rewards[index] = 0.0
                terminations[index] = truncations[index] = done[index] = False
            else:
                episodes.step()
                observation, reward, terminated, truncated, info = env.step(action)
                rewards[index] = reward
                terminations[index] = terminated
                truncations[index] = truncated
                episodes.stepped(index, float(reward), terminated, truncated, info)
                if terminated or truncated:
                    if mode is AutoresetMode.SAME_STEP:
                        added.add_final(index, observation, info)
                        episodes.reset(index)
                        with self._resetting():
                            observation, info = env.reset()
                    else:
                        done[index] = True
                observations[index] = observation
            if info:
                added.add(index, info)
        return self._batch(), added

    def _batch(self) -> Batch:
        """The buffers, with the last observations in them."""
        observation = concatenate(self.observation_space, self._each, self._buffers.observation)
        if self.memory is None:
            self._buffers = self._buffers._replace(observation=observation)
        return self._buffers

    def __len__(self) -> int:
        return len(self.envs)

    def render(self) -> tuple[Any, ...]:
        """What each copy rendered."""
        return tuple([env.render() for env in self.envs])

    def each(self, act: Callable[[Any, int], Any]) -> tuple[Any, ...]:
        """Does something to each copy."""
        return tuple([act(env, index) for index, env in enumerate(self.envs)])

    def close(self) -> None:
        """Closes all copies; what the first that fails raises is raised in the end."""
        self._resetting = contextlib.nullcontext  # the session's, which holds this: no cycle is left
        if self.memory is not None:
            self.memory.close()
        failed: BaseException | None = None
        for env in self.envs:
            try:
                env.close()
            except BaseException as error:  # noqa: BLE001 - the others are closed all the same
                failed = failed or error
        if failed is not None:
            raise failed


class Native:
    """A vector environment of the environment's own making.

    Args:
        env: The vector environment.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self.env = env
        self.episodes = Episodes(env.num_envs)
        self.progress = 0
        self.memory: SharedMemory | None = None
        self.unwrapped = env.unwrapped
        self.spec = env.spec
        self.observation_space = cast("gymnasium.Space[Any]", cast(Any, env).single_observation_space)
        self.action_space = cast("gymnasium.Space[Any]", cast(Any, env).single_action_space)
        self._mode = mode = env.metadata.get("autoreset_mode")
        self.metadata = {**env.metadata, "autoreset_mode": getattr(mode, "value", mode)}
        self.render_mode = env.render_mode

    def reset(self, seeds: Any, mask: Array | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        """Resets it; a mask goes to the options, where Gymnasium has it."""
        if mask is not None:
            options = {**(options or {}), "reset_mask": mask}
        self.episodes.reset_all(mask)
        return self.env.reset(seed=seeds, options=options)

    def step(self, actions: Any) -> tuple[Batch, dict[str, Any]]:
        """Steps it."""
        observation, rewards, terminations, truncations, infos = cast(Any, self.env.step(actions))
        self.episodes.stepped_all(self._mode, rewards, terminations, truncations, infos)
        return Batch(rewards, terminations, truncations, observation), infos

    def __len__(self) -> int:
        return 1

    def render(self) -> Any:
        """What it rendered."""
        return self.env.render()

    def each(self, act: Callable[[Any, int], Any]) -> tuple[Any, ...]:
        """Does something to it: it is all there is."""
        return (act(self.env, 0),)

    def close(self) -> None:
        """Closes it."""
        self.env.close()
