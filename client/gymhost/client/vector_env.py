"""Many copies of an environment on a server as one Gymnasium vector environment."""

import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from gymhost.client import batches
from gymhost.client import vector_arguments as arguments
from gymhost.client.api import RemoteServer, connect
from gymhost.client.attributes import decode_attribute, encode_call, encode_set, missing_as_usual
from gymhost.client.session import SessionOptions, decode_render, encode_step
from gymhost.client.shards import Replied, Shard, Shards
from gymhost.client.vector_results import Results, StepResult
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors, spaces, values
from gymhost.wire.attributes import pack, unpack
from gymhost.wire.tensors import Array

__all__ = ["RemoteVectorEnv"]

_AUTORESET: dict[AutoresetMode, Any] = {
    AutoresetMode.NEXT_STEP: pb.AUTORESET_MODE_NEXT_STEP,
    AutoresetMode.SAME_STEP: pb.AUTORESET_MODE_SAME_STEP,
    AutoresetMode.DISABLED: pb.AUTORESET_MODE_DISABLED,
}
_VECTORIZATION: dict[str, Any] = {"sync": pb.VECTORIZATION_COPIES, "vector_entry_point": pb.VECTORIZATION_NATIVE}


class RemoteVectorEnv(VectorEnv[Any, Any, Any]):
    """Copies of an environment on a server behind Gymnasium's vector API; for one thread at a time.

    The copies live in shards: sessions that step theirs in a loop, each on a worker of its own while there are enough.
    What `reset` and `step` return equals what `gymnasium.vector.SyncVectorEnv` returns, and every array is the
    caller's own. It pickles as how it was made: the copy makes sessions of its own.

    Where steps take unequal time, `send` and `recv` work on the copies that have finished, as EnvPool has it: make
    it with a `batch_size` below the number of copies.

    Args:
        server: The server; the environment holds it open until it is closed.
        options: What to make.
        num_envs: The number of copies.
        vectorization_mode: `sync` for copies, `vector_entry_point` for the environment's own vector form; None for the
            latter where there is one, and neither wrappers nor an autoreset mode are asked for.
        autoreset_mode: When a copy is reset that has come to the end of its episode; None for NEXT_STEP, or what the
            environment's own vector form has.
        shards: The number of shards; None for one a worker, or one a copy where `batch_size` is given.
        batch_size: How many copies `recv` waits for; None for all.
        on_lost: What is done when copies are lost with their worker: `raise` or `truncate`, see `make_vec`.
        create_timeout: Seconds to wait for places on a full server; None for the server's default.
    """

    def __init__(
        self,
        server: RemoteServer,
        options: SessionOptions,
        num_envs: int,
        *,
        vectorization_mode: str | None = None,
        autoreset_mode: AutoresetMode | str | None = None,
        shards: int | None = None,
        batch_size: int | None = None,
        on_lost: str = "raise",
        create_timeout: float | None = None,
    ) -> None:
        if on_lost not in ("raise", "truncate"):
            raise errors.InvalidArgument(f"on_lost is 'raise' or 'truncate', not {on_lost!r}")
        wanted = None if autoreset_mode is None else arguments.mode(autoreset_mode)
        mode = wanted or AutoresetMode.NEXT_STEP
        self._how: dict[str, Any] = {
            "vectorization_mode": vectorization_mode,
            "autoreset_mode": None if wanted is None else mode.value,
            "shards": shards,
            "batch_size": batch_size,
            "on_lost": on_lost,
            "create_timeout": create_timeout,
        }
        self._server = server
        self._options = options
        connection = server.open().connection
        try:
            vectorization_mode = getattr(vectorization_mode, "value", vectorization_mode)
            if vectorization_mode is None and (options.wrappers or wanted is not None):
                vectorization_mode = "sync"
            native = _is_native(server, options, vectorization_mode)
            if native and shards not in (None, 1):
                raise errors.InvalidArgument(
                    f"{options.environment_id}'s own vector form can't be cut into {shards} shards: "
                    "vectorization_mode='sync' makes copies, which can"
                )
            shards = 1 if native else shards
            sizes = arguments.sizes(num_envs, shards, batch_size, connection.welcome.workers)
            vector: dict[str, Any] = {
                "vectorization": pb.VECTORIZATION_NATIVE if native else pb.VECTORIZATION_COPIES,
                "autoreset_mode": _AUTORESET[mode],
            }
            self._shards = Shards(connection, options, vector, sizes, create_timeout=create_timeout)
            has = self._shards.made.metadata.get("autoreset_mode")
            if wanted is not None and has != wanted.value:
                self._shards.close()
                raise errors.InvalidArgument(
                    f"{options.environment_id}'s own vector form has the autoreset mode {has!r}, not {wanted.value!r}: "
                    "vectorization_mode='sync' makes copies, which have any"
                )
        except BaseException:
            server.close()
            raise
        self._release = weakref.finalize(self, _release, self._shards, server)
        self._release.atexit = False  # at exit the connection itself is closed
        made = self._shards.made
        self.num_envs = num_envs
        self.batch_size = batch_size or num_envs
        self.render_mode = made.render_mode
        self.metadata = {**made.metadata, "autoreset_mode": arguments.mode(made.metadata.get("autoreset_mode") or mode)}
        # Not those that sessions share: each environment samples by itself, as local ones do.
        response = self._shards.response
        observations, actions = spaces.decode(response.observation_space), spaces.decode(response.action_space)
        self.single_observation_space = observations
        self.single_action_space = actions
        self._native = native
        if native:
            self.observation_space = spaces.decode(response.batched_observation_space)
            self.action_space = spaces.decode(response.batched_action_space)
        else:
            self.observation_space = batch_space(observations, num_envs)
            self.action_space = batch_space(actions, num_envs)
        self.spec = self._make_spec()
        self._single_action_space = made.action_space
        if on_lost == "truncate":
            self._shards.replacing = self.metadata["autoreset_mode"]
        self._results = Results(made.observation_space, keep=on_lost == "truncate")
        # Held by whoever makes a command and waits for it: other threads take turns.
        self._turn = threading.RLock()
        # What is under way: `step`, `receive`, or nothing.
        self._waiting_for = ""
        # The copies of the last batch, for a `send` that does not say which it is for.
        self._received: Array = np.arange(num_envs)

    # -- Gymnasium's API -----------------------------------------------------------------------------------------------

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,  # pyright: ignore[reportIncompatibleMethodOverride]
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Starts episodes, as in Gymnasium.

        Args:
            seed: A seed, which the copies count on from, or a list with one a copy.
            options: For each copy; with `reset_mask`, an array of booleans, only the copies that it names are reset.

        Raises:
            EnvironmentFault: An environment raised; the remote traceback is part of the message.
            SessionError: A session has ended; its subclass says how.
        """
        payloads = self._reset_payloads(seed, options)
        with self._turn:
            if self._waiting_for == "receive" and self._shards.under_way < self.batch_size:
                self._shards.drain()  # after a failure there is no batch to receive any more: it starts over
                self._waiting_for = ""
            self._must_be_free()
            self._shards.begin(pb.COMMAND_KIND_RESET, payloads)
            replies = self._shards.finish()
        self._received = np.arange(self.num_envs)
        return self._results.reset(replies)

    def step(self, actions: Any) -> StepResult:
        """Steps all copies, as in Gymnasium.

        Raises:
            EnvironmentFault: An environment raised; the remote traceback is part of the message. Reset before the next.
            SessionError: A session has ended; its subclass says how.
        """
        with self._turn:
            try:
                self.step_async(actions)
                return self.step_wait()
            except Exception:
                raise
            except BaseException:  # such as KeyboardInterrupt
                self._shards.cancel()
                self._waiting_for = ""
                raise

    def step_async(self, actions: Any) -> None:
        """Sends actions to all copies, without waiting.

        Raises:
            AlreadyPendingCallError: What was sent before was not waited for.
        """
        self._must_be_free()
        self._shards.begin(pb.COMMAND_KIND_STEP, self._step_payloads(actions, self._shards.all))
        self._waiting_for = "step"

    def step_wait(self) -> StepResult:
        """Waits for what `step_async` began.

        Raises:
            NoAsyncCallError: It began nothing.
            EnvironmentFault: An environment raised; the remote traceback is part of the message. Reset before the next.
            SessionError: A session has ended; its subclass says how.
        """
        if self._waiting_for != "step":
            raise NoAsyncCallError("step_wait waits for what step_async began, which was not called", "step")
        self._waiting_for = ""
        return self._results.step(self._shards.finish())

    def render(self) -> tuple[Any, ...] | None:
        """What each copy renders."""
        frames = [decode_render(reply) for reply in self._command(pb.COMMAND_KIND_RENDER, b"")]
        return frames[0] if self._native else sum(frames, ())

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of each copy; of an attribute that can't be called, gives its value.

        Raises:
            PermissionDenied: The environment does not declare it.
            AttributeError: There is none of this name.
        """
        with missing_as_usual():
            replies = self._command(pb.COMMAND_KIND_CALL, encode_call(name, args, kwargs))
        return tuple([unpack(value) for reply in replies for value in decode_attribute(reply)[0]])

    def call_some(self, copies: Iterable[int], name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of some copies, as `call` does of all.

        Args:
            copies: Their numbers.
            name: The method.
            *args: Its arguments.
            **kwargs: The same, by name.

        Returns:
            What it returned, in the order of `copies`.

        Raises:
            InvalidArgument: The environment's own vector form has no copies to choose from.
            PermissionDenied: The environment does not declare it.
            AttributeError: There is none of this name.
        """
        if self._native:
            raise errors.InvalidArgument(f"{self} is called as a whole: vectorization_mode='sync' makes copies")
        self._must_be_free()
        numbers = [range(self.num_envs)[number] for number in copies]
        mask = np.zeros(self.num_envs, np.bool_)
        mask[numbers] = True
        parts = [(shard, mask[shard.first : shard.first + shard.size]) for shard in self._shards.all]
        parts = [(shard, part) for shard, part in parts if part.any()]
        with missing_as_usual():
            payloads = [encode_call(name, args, kwargs, part.tobytes()) for _, part in parts]
            self._shards.begin(pb.COMMAND_KIND_CALL, payloads, [shard for shard, _ in parts])
            replies = self._shards.finish()
        returned: dict[int, Any] = {}
        for reply in replies:
            returned.update(enumerate(map(unpack, decode_attribute(reply.payload)[0]), reply.shard.first))
        return tuple([returned[number] for number in numbers])

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of each copy."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute of each copy.

        Args:
            name: Its name.
            values: A list or tuple with a value a copy, or one value for all.

        Raises:
            PermissionDenied: The environment does not declare it.
        """
        given = list(cast(Any, values)) if isinstance(values, (list, tuple)) else [values] * self.num_envs
        if len(given) != self.num_envs:
            raise ValueError(f"set_attr takes one value for all or one a copy: {len(given)} for {self.num_envs} copies")
        self._must_be_free()
        if self._native:
            given = given[:1]
        parts = [given[shard.first : shard.first + shard.size] for shard in self._shards.all]
        with missing_as_usual(), self._turn:
            self._shards.command(pb.COMMAND_KIND_SET_ATTR, [encode_set(name, list(map(pack, part))) for part in parts])

    @property
    def np_random(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] - Gymnasium's own have no setter either
        """The random generator of each copy, in its present state; of a native vector environment its own."""
        found = self.get_attr("np_random")
        return found[0] if self._native else found

    @property
    def np_random_seed(self) -> Any:
        """The seed of each copy's random generator; of a native vector environment its own."""
        found = self.get_attr("np_random_seed")
        return found[0] if self._native else found

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the sessions and lets go of the server."""
        if self._release.detach() is None:
            return
        try:
            self._shards.close()
        finally:
            self._server.close()

    def __del__(self) -> None:
        pass  # the finalizer does it; Gymnasium's would wait for the server in the midst of a collection

    # -- the first to finish -------------------------------------------------------------------------------------------

    def async_reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Begins to reset all copies: `recv` gives those that are ready first.

        Raises:
            AlreadyPendingCallError: What was sent before was not received.
        """
        self._must_be_free()
        self._shards.begin(pb.COMMAND_KIND_RESET, self._reset_payloads(seed, options), together=False)
        self._waiting_for = "receive"

    def send(self, actions: Any, env_ids: Any = None) -> None:
        """Sends actions to some copies, without waiting.

        Args:
            actions: A batch of actions, one for each of `env_ids`.
            env_ids: The copies; None for those that `recv` gave last.

        Raises:
            InvalidArgument: They are no whole shards.
            AlreadyPendingCallError: One of them has not finished what it was sent before.
        """
        if self._waiting_for == "step":
            self._must_be_free()
        shards = self._shards_of(self._received if env_ids is None else np.asarray(env_ids))
        if not all(self._shards.is_free(shard) for shard in shards):
            raise AlreadyPendingCallError("a copy has to be received before it is sent another action", "send")
        payloads = self._step_payloads(actions, shards)
        self._shards.begin(pb.COMMAND_KIND_STEP, payloads, shards, together=False)
        self._waiting_for = "receive"

    def recv(self) -> StepResult:
        """Waits for the first `batch_size` copies to finish.

        Returns:
            What `step` returns, of these copies; `infos["env_id"]` says which they are. Of a copy that was reset by
            `async_reset` the reward is 0.0.

        Raises:
            NoAsyncCallError: Fewer copies than that have something to do.
            EnvironmentFault: An environment raised; the remote traceback is part of the message.
        """
        busy = self._shards.under_way
        if self._waiting_for != "receive" or busy < self.batch_size:
            why = f"recv waits for {self.batch_size} copies, and {busy} have something to do: send them actions first"
            raise NoAsyncCallError(why, "recv")
        try:
            finished: list[Replied] = self._shards.first_finished(self.batch_size)
        finally:
            if not self._shards.under_way:
                self._waiting_for = ""
        shards = [reply.shard for reply in finished]
        self._received = np.concatenate([np.arange(each.first, each.first + each.size) for each in shards])
        observations, rewards, terminations, truncations, infos = self._results.step(finished)
        infos["env_id"] = self._received
        return observations, rewards, terminations, truncations, infos

    # -- commands ------------------------------------------------------------------------------------------------------

    def _must_be_free(self) -> None:
        if self._waiting_for:
            wait = "step_wait" if self._waiting_for == "step" else "recv"
            raise AlreadyPendingCallError(f"copies have something to do: call {wait} first", self._waiting_for)

    def _command(self, kind: int, payload: bytes) -> list[bytes]:
        with self._turn:
            self._must_be_free()
            return self._shards.command(kind, [payload] * len(self._shards.all))

    def _step_payloads(self, actions: Any, shards: Sequence[Shard]) -> list[bytes]:
        if self._native:
            return [encode_step(actions)]
        parts = batches.split(self._single_action_space, actions, [shard.size for shard in shards])
        return [encode_step(part, shard.kept) for part, shard in zip(parts, shards, strict=True)]

    def _reset_payloads(self, seed: int | Sequence[int | None] | None, options: dict[str, Any] | None) -> list[bytes]:
        options, mask = arguments.reset_mask(options, self.num_envs)
        seeds = seed if self._native else arguments.seeds(seed, self.num_envs)
        payloads: list[bytes] = []
        for shard in self._shards.all:
            copies = slice(shard.first, shard.first + shard.size)
            command = pb.ResetCommand(kept=shard.kept)
            if seeds is not None:
                values.encode(seeds if isinstance(seeds, int) else list(seeds[copies]), command.seeds, name="seed")
            if options is not None:
                values.encode(options, command.options, name="options")
            if mask is not None:
                command.mask = mask[copies].tobytes()
            payloads.append(command.SerializeToString())
        return payloads

    def _shards_of(self, env_ids: Array) -> list[Shard]:
        """The shards that copies are, in their order."""
        if env_ids.ndim != 1 or env_ids.dtype.kind not in "iu" or len(np.unique(env_ids)) < len(env_ids):
            raise errors.InvalidArgument(f"env_ids must be numbers of copies, each once, not {env_ids.tolist()}")
        shards: list[Shard] = []
        position = 0
        while position < len(env_ids):
            shard = self._shards.of(int(env_ids[position]))
            size = 0 if shard is None else shard.size
            if shard is None or not np.array_equal(
                env_ids[position : position + size], np.arange(shard.first, shard.first + size)
            ):
                raise errors.InvalidArgument(
                    f"env_ids must be copies from 0 to {self.num_envs - 1}, each shard's together and in order "
                    "(shards=num_envs makes one of each)"
                )
            shards.append(shard)
            position += size
        return shards

    # -- itself --------------------------------------------------------------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteVectorEnv.made_from, (self._server.arguments, vars(self._options), self.num_envs, self._how)

    @classmethod
    def made_from(
        cls, server: dict[str, Any], options: dict[str, Any], num_envs: int, how: dict[str, Any]
    ) -> "RemoteVectorEnv":
        """Makes one from what another was made from."""
        return cls(connect(**server), SessionOptions(**options), num_envs, **how)

    def __str__(self) -> str:
        return f"RemoteVectorEnv({self._options.environment_id}, num_envs={self.num_envs})"

    __repr__ = __str__

    def _make_spec(self) -> EnvSpec:
        # Specs are printed and written to files: a token of the process's environment stays out of them.
        remote = {
            "server": self._server.arguments | self._server.given,
            "options": {name: value for name, value in vars(self._options).items() if name != "kwargs"},
            "how": self._how,
        }
        kwargs = {**self._options.kwargs, "remote": remote, "num_envs": self.num_envs}
        kwargs["vectorization_mode"] = "vector_entry_point"
        made = self._shards.made
        return EnvSpec(
            id=self._options.environment_id,
            vector_entry_point="gymhost.client.vector:remake",
            kwargs=kwargs,
            max_episode_steps=made.max_episode_steps,
            reward_threshold=made.reward_threshold,
            nondeterministic=made.nondeterministic,
        )


def _release(shards: Shards, server: RemoteServer) -> None:
    """What happens to an environment that is garbage-collected: its sessions are closed."""
    shards.release()
    # The collector may run anywhere, a lock of the connection's held or not: closing is left to another thread.
    threading.Thread(target=server.close, daemon=True).start()


def _is_native(server: RemoteServer, options: SessionOptions, mode: str | None) -> bool:
    """Whether the environment's own vector form is to be made."""
    if mode is None:
        return server.has_vector_form(options.environment_id)
    if mode not in _VECTORIZATION:
        raise errors.InvalidArgument(f"vectorization_mode is 'sync', 'vector_entry_point' or None, not {mode!r}")
    return mode == "vector_entry_point"
