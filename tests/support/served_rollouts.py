"""A rollout service with all that it needs: an environment server, and a stand-in for a generator."""

import contextlib
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import NamedTuple

from gymhost.server.tokens import hash_of
from support.rollout_service import RolloutServiceProcess
from support.sampler import Sampler
from support.server import ServerProcess
from support.tokenizers import qwen3_tokenizer

__all__ = ["ServedRollouts", "served_rollouts"]


class ServedRollouts(NamedTuple):
    """The processes, and what stands in for one.

    Attributes:
        service: The rollout service.
        environments: What it plays on.
        sampler: What it samples with.
    """

    service: RolloutServiceProcess
    environments: ServerProcess
    sampler: Sampler

    @property
    def address(self) -> str:
        """Where the service listens."""
        return self.service.address


@contextlib.contextmanager
def served_rollouts(
    folder: Path, *options: str, tokens: Mapping[str, str] | None = None
) -> Generator[ServedRollouts, None, None]:
    """Runs a rollout service on which `gymhost/GuessNumber-v0` can be played.

    Args:
        folder: An empty folder.
        *options: More options of its command.
        tokens: Whom it lets in: a name and a role, such as "alice admin", for each token; None for everybody.
    """
    qwen3_tokenizer().save_pretrained(folder / "tokenizer")
    options = ("--renderer", "qwen3", *options)
    if tokens is not None:
        lines = [f"{owner} {hash_of(token)}\n" for token, owner in tokens.items()]
        (folder / "tokens").write_text("".join(lines))
        options += ("--token-file", str(folder / "tokens"))
    with ServerProcess(workers=1, modules=[]) as environments, Sampler() as sampler:
        at = environments.address, folder / "tokenizer", folder / "jobs.sqlite"
        with RolloutServiceProcess(*at, "--generator", sampler.url, *options) as service:
            yield ServedRollouts(service, environments, sampler)
