"""Other ways than `GeneratorPool`'s to choose among generators, behind the same interface."""

import itertools
from collections.abc import Iterable, Sequence

from gymhost.rollout.generators import Generation, Generator, Sampling

__all__ = ["Counter", "Requests", "Rollouts"]


class _Balancer:
    """Several generators as one.

    Args:
        generators: Those that are there from the beginning.
    """

    name = "balancer"
    policy_version = 0

    def __init__(self, generators: Iterable[Generator]) -> None:
        self._homes: dict[str, Generator] = {}
        self._generators: list[Generator] = []
        for generator in generators:
            self.add(generator)

    def add(self, generator: Generator) -> None:
        self._generators.append(generator)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Generation:
        rollout = request_id.rpartition("/")[0]
        home = self._homes.get(rollout)
        if home is None:
            home = self._homes[rollout] = self.choose()
        return await home.generate(prompt_ids, sampling, request_id=request_id)

    async def aclose(self) -> None:
        for generator in self._generators:
            await generator.aclose()

    def choose(self) -> Generator:
        """Chooses where the next rollout is sampled."""
        raise NotImplementedError


class Rollouts(_Balancer):
    """Round robin: each rollout at the next generator, where it stays."""

    def __init__(self, generators: Iterable[Generator]) -> None:
        super().__init__(generators)
        self._turns = itertools.count()

    def choose(self) -> Generator:
        return self._generators[next(self._turns) % len(self._generators)]


class Requests(Rollouts):
    """Round robin: each request at the next generator, whatever was there before."""

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Generation:
        return await self.choose().generate(prompt_ids, sampling, request_id=request_id)


class Counter(_Balancer):
    """Each rollout where the fewest have begun since the generator came, and it stays there. No count is ever lowered.

    Args:
        generators: Those that are there from the beginning.
        before: How many rollouts each of these was given before.
    """

    def __init__(self, generators: Iterable[Generator], before: int = 0) -> None:
        self._begun: dict[Generator, int] = {}
        super().__init__(generators)
        self._begun = dict.fromkeys(self._generators, before)

    def add(self, generator: Generator) -> None:
        super().add(generator)
        self._begun[generator] = 0

    def choose(self) -> Generator:
        chosen = min(self._generators, key=self._begun.__getitem__)
        self._begun[chosen] += 1
        return chosen
