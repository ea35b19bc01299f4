"""The generators of the service, vLLM servers that come and go, and the policy version: remembered across restarts."""

import asyncio
import contextlib
import json
import logging
import math
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from gymhost.rollout.generators.base import GeneratorError, PrefixCache
from gymhost.rollout.generators.members import Member
from gymhost.rollout.generators.pool import GeneratorPool
from gymhost.rollout.generators.updates import WeightsRefused
from gymhost.rollout.generators.vllm_server import VllmServerGenerator
from gymhost.rollout.generators.weight_sync import DiskWeights
from gymhost.v1 import rollouts_pb2 as pb
from gymhost.wire.errors import InvalidArgument, ServerUnavailable

__all__ = ["Generators"]

log = logging.getLogger("gymhost.server")

# Under which names the store keeps things.
GENERATORS, POLICY = "generators", "policy"
# Seconds for which a drain or an update waits where nothing else is said.
PATIENCE = 300.0
# Seconds for a generator to take note of what its weights are.
LABEL = 10.0
# Seconds for a generator to tell of its cache.
READ = 2.0
# Over how many readings it is told how fast generators sample: generations end in waves.
READINGS = 4
# Seconds between looks at whether there is a generator to sample with, though nothing was heard.
LOOK = 1.0
# Seconds without a generator after which the log says so: as the service starts none has answered yet.
WARN = 5.0

_IN_FLIGHT: dict[int, Literal["wait", "cut", "keep"]] = {
    pb.IN_FLIGHT_UNSPECIFIED: "wait",
    pb.IN_FLIGHT_WAIT: "wait",
    pb.IN_FLIGHT_CUT: "cut",
    pb.IN_FLIGHT_KEEP: "keep",
}


class Memory(Protocol):
    """What keeps settings across restarts."""

    async def remember(self, name: str, value: bytes | None) -> None:
        """Keeps something under a name, or with None nothing any more; it is on disk when this returns."""
        ...

    def recall(self, name: str) -> bytes | None:
        """Returns what was kept last under a name."""
        ...


@dataclass
class Known:
    """A generator as it is remembered; not so where the settings name it, which may be others the next time."""

    name: str
    url: str
    model: str = ""
    api_key: str = ""
    draining: bool = False
    of_settings: bool = False


class Generators:
    """The pool of the service's generators. To be made in its event loop.

    Args:
        memory: What they and the policy version are kept in.
        urls: Generators that are there from the start, beside those that are remembered.
        patience: Seconds for which a generation waits while none can be used.

    Attributes:
        pool: What samples.
        policy_changed: Called with the version when it has changed.
    """

    def __init__(self, memory: Memory, urls: tuple[str, ...], patience: float) -> None:
        self.policy_changed: Callable[[int], object] = lambda version: None
        self._memory = memory
        self._weights = ""
        version = 0
        if kept := memory.recall(POLICY):
            policy = json.loads(kept)
            version, self._weights = policy["version"], policy["weights"]
        self._sync = DiskWeights()
        if self._weights:
            self._sync.keep(version, self._weights)
        self.pool = GeneratorPool(policy_version=version, patience=patience, name="the service", watchful=True)
        self._known: dict[str, Known] = {}
        self._servers: dict[str, VllmServerGenerator] = {}
        for each in json.loads(memory.recall(GENERATORS) or b"[]"):
            self._take(Known(**each))
        for url in urls:
            if self._at(url) is None:
                self._take(Known(url, url, of_settings=True))
        self._caches: dict[str, PrefixCache] = {}
        self._hits = math.nan
        # At each reading, what each generator had sampled, and the seconds since the one before.
        self._readings: deque[tuple[float, dict[str, int]]] = deque([(0.0, {})], maxlen=READINGS)
        self._announcing = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def obstacle(self) -> str:
        """Why nothing can be sampled; empty where it can."""
        members = self.pool.members()
        if any(_usable(member) for member in members):
            return ""
        if not members:
            return "a generator: there is none (gymhost serve --generator URL, or AddGenerator)"
        return f"a generator: {'; '.join(f'{member.name}: {member.why}' for member in members)}"

    async def watch(self, tell: Callable[[bool], None]) -> None:
        """Tells whether there is a generator to sample with, at first and whenever that changes; for ever."""
        told: bool | None = None
        loop = asyncio.get_running_loop()
        warn_at = loop.time() + WARN
        while True:
            obstacle = self.obstacle
            if told is not (there := not obstacle):
                told = there
                warn_at = loop.time() + WARN
                tell(there)
            if obstacle and loop.time() >= warn_at:
                log.warning("nothing can be sampled, and rollouts wait for %s", obstacle)
                warn_at = math.inf
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await self.pool.changed()

    # -- what comes and goes -------------------------------------------------------------------------------------------

    async def add(self, request: pb.AddGeneratorRequest) -> pb.Generator:
        """Takes in a generator.

        Raises:
            InvalidArgument: Its URL is none, its name or its URL is another one's, or it is there with another model or
                key.
        """
        if not request.url.startswith(("http://", "https://")):
            raise InvalidArgument(f"url is that of a vLLM server, such as http://gpu3:8000, not {request.url!r}")
        name = request.name or request.url
        before = self._known.get(name)
        if before is not None and before.url != request.url:
            raise InvalidArgument(
                f"the generator {name!r} is at {before.url}: remove it first, or give this one another name"
            )
        if before is not None and any(
            given not in ("", known)
            for given, known in ((request.model, before.model), (request.api_key, before.api_key))
        ):
            raise InvalidArgument(f"the generator {name!r} is there with another model or api_key: remove it first")
        if before is None and (same := self._at(request.url)) is not None:
            raise InvalidArgument(f"what is at {request.url} is there already, as {same.name!r}")
        if before is None:
            self._take(Known(name, request.url, request.model, request.api_key))
        else:
            before.of_settings = False
        await self._remember()
        return self._one(name)

    async def drain(self, request: pb.DrainGeneratorRequest) -> pb.Generator:
        """Sends a generator nothing more, and waits until it has nothing in flight.

        Raises:
            InvalidArgument: There is no such generator, or the patience is below 0.
        """
        if request.patience < 0:
            raise InvalidArgument("patience must not be below 0")
        self._find(request.name).draining = True
        self.pool.start_draining(request.name)
        await self._remember()
        with contextlib.suppress(KeyError):  # it was removed while this waited
            await self.pool.drain(request.name, patience=request.patience or PATIENCE)
        return self._one(request.name)

    async def remove(self, name: str) -> None:
        """Takes a generator out. One that is not there is no error."""
        if self._known.pop(name, None) is None:
            return
        self.pool.remove(name)
        self._caches.pop(name, None)
        try:
            await self._remember()
        finally:
            await self._servers.pop(name).aclose()

    def infos(self) -> list[pb.Generator]:
        """How each generator does at present."""
        first, *later = self._readings
        seconds = sum(passed for passed, _ in later)

        def speed(name: str) -> float:
            before, now = first[1].get(name, 0), self._readings[-1][1].get(name, 0)
            return max(0, now - before) / seconds if seconds else 0.0

        return [
            _message(
                self._known[member.name],
                member,
                self._caches.get(member.name, PrefixCache()),
                speed(member.name),
            )
            for member in self.pool.members()
        ]

    # -- figures -------------------------------------------------------------------------------------------------------

    @property
    def prefix_hits(self) -> float:
        """The part of prompt tokens that generators had in their caches, between the last two readings.

        NaN where they had no prompts, or tell nothing.
        """
        return self._hits

    async def read(self, seconds: float) -> None:
        """Takes note of how generators do, and asks those that are well what they tell of their caches.

        Args:
            seconds: The time since this was done last.
        """
        members = self.pool.members()
        self._readings.append((seconds, {member.name: member.sampled_tokens for member in members}))
        servers = {member.name: self._servers[member.name] for member in members if member.healthy}
        told = await asyncio.gather(*(_cache_of(server) for server in servers.values()))
        prompts = cached = 0
        for (name, server), now in zip(servers.items(), told, strict=True):
            if now is None or self._servers.get(name) is not server:
                continue
            before = self._caches.get(name, now)
            self._caches[name] = now
            if now.prompt_tokens >= before.prompt_tokens:  # else it was started anew
                prompts += now.prompt_tokens - before.prompt_tokens
                cached += now.cached_tokens - before.cached_tokens
        self._hits = cached / prompts if prompts else math.nan

    # -- weights -------------------------------------------------------------------------------------------------------

    async def announce(self, request: pb.AnnouncePolicyRequest) -> pb.AnnouncePolicyResponse:
        """Has the generators load weights, or takes note that they have them; once it has begun it goes on to its end.

        Raises:
            InvalidArgument: The version is below the last one, or that one with other weights; or the weights are none.
            ServerUnavailable: No generator could load them.
        """
        return await asyncio.shield(self._run(self._announce(request)))

    async def _announce(self, request: pb.AnnouncePolicyRequest) -> pb.AnnouncePolicyResponse:
        async with self._announcing:
            version, weights, last = request.version, request.weights, self.pool.policy_version
            if version < last:
                raise InvalidArgument(f"version {version} is older than that of the service, which is {last}")
            if request.patience < 0 or request.in_flight not in _IN_FLIGHT:
                raise InvalidArgument("patience must not be below 0, and in_flight one of those that there are")
            again = version == last
            if again and weights and weights != self._weights:
                raise InvalidArgument(f"version {version} has other weights already: announce a higher one")
            if weights and not again:
                await self._load(request)
            elif not (weights or (again and self._weights)):
                self._weights = ""
                self.pool.policy_version = version
                await self._label(version)
            if not again:
                policy = {"version": version, "weights": self._weights}
                await self._memory.remember(POLICY, json.dumps(policy).encode())
                self.policy_changed(version)
            have = [member.name for member in self.pool.members() if member.current]
            return pb.AnnouncePolicyResponse(version=version, generators=have)

    async def _load(self, request: pb.AnnouncePolicyRequest) -> None:
        version, weights = request.version, request.weights
        try:
            folder = await self._sync.prepare(weights, version)
            if any(member.healthy for member in self.pool.members()):
                how = _IN_FLIGHT[request.in_flight]
                await self.pool.update(folder, version, in_flight=how, patience=request.patience or PATIENCE)
            else:
                self.pool.policy_version = version  # those that come load it
        except WeightsRefused as error:
            raise InvalidArgument(f"weights: {error}") from None
        except GeneratorError as error:
            raise ServerUnavailable(f"no generator has loaded version {version}: {error}") from None
        self._weights = weights
        self._sync.keep(version, weights)

    async def _label(self, version: int) -> None:
        """Has generators know what weights somebody else has given them, so that they can tell when asked."""

        async def label(name: str) -> None:
            with contextlib.suppress(GeneratorError):  # one that can't be told will not tell
                body = {"new_version": str(version)}
                await self._servers[name].control("/update_weight_version", body, seconds=LABEL)

        await asyncio.gather(*(label(member.name) for member in self.pool.members() if member.current))

    async def aclose(self) -> None:
        """Closes all of them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.pool.aclose()

    # ------------------------------------------------------------------------------------------------------------------

    def _take(self, known: Known) -> None:
        generator = VllmServerGenerator(
            known.url, model=known.model or None, api_key=known.api_key or None, name=known.name, sync=self._sync
        )
        self._known[known.name] = known
        self._servers[known.name] = generator
        self.pool.add(generator, known=False)
        if known.draining:
            self.pool.start_draining(known.name)

    async def _remember(self) -> None:
        kept = [asdict(each) for each in self._known.values() if not each.of_settings]
        await self._memory.remember(GENERATORS, json.dumps(kept).encode())

    def _at(self, url: str) -> Known | None:
        return next((each for each in self._known.values() if each.url == url), None)

    def _find(self, name: str) -> Known:
        if name not in self._known:
            there = ", ".join(self._known) or "none"
            raise InvalidArgument(f"no generator is named {name!r}; there are: {there}")
        return self._known[name]

    def _one(self, name: str) -> pb.Generator:
        self._find(name)
        return next(generator for generator in self.infos() if generator.name == name)

    def _run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("%s", error)


def _usable(member: Member) -> bool:
    return member.healthy and member.current and not member.draining


async def _cache_of(server: VllmServerGenerator) -> PrefixCache | None:
    try:
        async with asyncio.timeout(READ):
            return await server.prefix_cache()
    except TimeoutError:
        return None


def _message(known: Known, member: Member, cache: PrefixCache, speed: float) -> pb.Generator:
    return pb.Generator(
        name=member.name,
        url=known.url,
        load=member.load,
        requests=member.requests,
        healthy=member.healthy,
        current=member.current,
        draining=member.draining,
        policy_version=member.policy_version,
        why=member.why,
        sampled_tokens=member.sampled_tokens,
        prompt_tokens=cache.prompt_tokens,
        cached_prompt_tokens=cache.cached_tokens,
        tokens_per_second=speed,
        generations=member.generations,
    )
