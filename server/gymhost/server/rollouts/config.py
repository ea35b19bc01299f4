"""How the rollout service is set up: the table `rollouts` of the TOML file and the options of `gymhost serve`."""

import dataclasses
import math
import re
from typing import TYPE_CHECKING, Any, ClassVar, cast

from gymhost.server.settings import DoorSettings, check_address, tables_of_numbers
from gymhost.wire import limits as bounds
from gymhost.wire.errors import InvalidArgument

if TYPE_CHECKING:
    from gymhost.rollout.generators.base import Sampling
    from gymhost.rollout.requests import Concurrency, Limits

__all__ = ["RolloutsConfig"]

DAY = 86_400.0
# What an identity may have a quota of.
QUOTAS = ("jobs", "rollouts", "bytes")


@dataclasses.dataclass(frozen=True)
class RolloutsConfig(DoorSettings):
    """The settings of a rollout service, beside those of its door. Times are in seconds, sizes in bytes.

    Attributes:
        environments: Addresses of the environment servers that it plays on, at least one when it starts.
        environments_token: Their token.
        environments_ca: The authorities of their certificates, in PEM: TLS is spoken with them.
        environments_cert: The certificate that they are shown, if they ask for one, in PEM.
        environments_key: Its key, in PEM and without a password.
        tokenizer: The model's tokenizer: a folder, or the name of a model that is in the local cache.
        renderer: What turns messages into tokens, such as `qwen3`; empty: chosen by the tokenizer and its template.
        keep_thoughts: Whether the model is shown what it thought in earlier turns. Many templates leave that out, by
            which a rollout becomes several rows of tokens, and trainers that take one row lose what is in the others.
        generators: The URLs of vLLM servers that are there from the start, beside those that were added later.
        store: The SQLite file with jobs, results, generators and the policy version.
        agents: Classes of agents that jobs may name, as `module:Class`.
        paths: Folders to look for their modules in.
        agent_address: Where harnesses find their OpenAI-compatible endpoints: `HOST:PORT` (port 0: a free one).
        agent_url: How they get there, where that is not `http://HOST:PORT/v1`.
        init: Sessions that are being opened and reset at once.
        run: Rollouts that take turns at once.
        eval: Sessions that are being evaluated, and given back or closed, at once.
        ahead: Rollouts that may be begun before there is a place for them to take turns.
        limits: What ends a rollout, where its job says nothing else: fields of `gymhost.rollout.Limits`.
        sampling: How to sample, where a job says nothing else: fields of `gymhost.rollout.Sampling`.
        attempts: How often a rollout is begun at most, where its job says nothing else.
        retention: How long results that nobody acknowledges are kept.
        keep_ended: How long a job is kept that has ended and has no results left.
        quota_jobs: The most jobs of one identity that have not ended. 0 means no quota, here and below.
        quota_rollouts: The most rollouts of one identity that have not begun.
        quota_bytes: The most bytes of results of one identity that wait to be acknowledged.
        quotas: Quotas of single identities in place of these: for each the names `jobs`, `rollouts` and `bytes`.
        max_unacknowledged: The most results of one job that wait to be acknowledged; beyond it the job begins nothing.
        max_payload: The largest message.
        drain: How long rollouts in flight go on after SIGTERM, while no more are begun.
    """

    SIZES: ClassVar[tuple[str, ...]] = ("max_payload", "quota_bytes")
    ADDRESS_OPTION: ClassVar[str] = "--rollouts-address"

    address: str = "127.0.0.1:50052"
    environments: tuple[str, ...] = ()
    environments_token: str = ""
    environments_ca: str = ""
    environments_cert: str = ""
    environments_key: str = ""
    tokenizer: str = ""
    renderer: str = ""
    keep_thoughts: bool = True
    generators: tuple[str, ...] = ()
    store: str = "rollouts.sqlite"
    agents: dict[str, str] = dataclasses.field(default_factory=dict[str, str])
    paths: tuple[str, ...] = ()
    agent_address: str = "127.0.0.1:0"
    agent_url: str = ""
    init: int = 32
    run: int = 256
    eval: int = 64
    ahead: int = 32
    limits: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    sampling: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    attempts: int = 8
    retention: float = 7 * DAY
    keep_ended: float = 3 * DAY
    quota_jobs: int = 1000
    quota_rollouts: int = 100_000
    quota_bytes: int = 4 * 2**30
    quotas: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict[str, dict[str, int]])
    max_unacknowledged: int = 4096
    max_payload: int = bounds.MAX_PAYLOAD
    drain: float = 20.0

    def __post_init__(self) -> None:
        """Checks the settings.

        Raises:
            InvalidArgument: One is out of range; the message names it.
        """
        self.check_door()
        for name in ("attempts", "retention", "keep_ended", "max_unacknowledged", "max_payload"):
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidArgument(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("drain", *(f"quota_{name}" for name in QUOTAS)):
            if not 0 <= getattr(self, name) < math.inf:
                raise InvalidArgument(f"{name} must not be negative, not {getattr(self, name)}")
        if not self.store:
            raise InvalidArgument("store must name the file that jobs and results are kept in (--jobs-file)")
        for address in self.environments:
            check_address(address, "--environments")
        check_address(self.agent_address, "--agent-address")
        if self.agent_address.startswith("unix:"):
            raise InvalidArgument("harnesses find their endpoints at HOST:PORT (--agent-address)")
        if len(set(self.environments)) < len(self.environments):
            raise InvalidArgument("an environment server is named twice (--environments)")
        if bool(self.environments_cert) != bool(self.environments_key):
            raise InvalidArgument("a certificate and its key go together: environments_cert and environments_key")
        for url in self.generators:
            if not re.match(r"https?://[^/]", url):
                raise InvalidArgument(f"a generator is the URL of a vLLM server, such as http://gpu3:8000, not {url!r}")
        for name, place in self.agents.items():
            if not name or not re.fullmatch(r"[\w.]+:[\w.]+", place):
                raise InvalidArgument(f"an agent is NAME=MODULE:CLASS, not {name}={place} (--agent)")
        for identity, given in self.quotas.items():
            for name, most in given.items():
                if name not in QUOTAS or most < 0:
                    raise InvalidArgument(
                        f"the quotas of {identity!r} are {', '.join(QUOTAS)}, each a number from 0, not {name} = {most}"
                    )
        for name in ("init", "run", "eval", "ahead"):
            if getattr(self, name) < (0 if name == "ahead" else 1):
                raise InvalidArgument(f"{name} is a number of places, not {getattr(self, name)}")

    # What follows is imported where it is used: the command shows its help where no rollout can be played too.

    @property
    def default_limits(self) -> "Limits":
        """What ends a rollout, where its job says nothing else.

        Raises:
            InvalidArgument: `limits` has what is none.
        """
        from gymhost.rollout.requests import Limits

        return _made("limits", Limits, {**self.limits, "retries": self.attempts - 1})

    @property
    def default_sampling(self) -> "Sampling":
        """How to sample, where a job says nothing else.

        Raises:
            InvalidArgument: `sampling` has what makes no sense.
        """
        from gymhost.rollout.generators.base import Sampling

        ids = {"stop_token_ids": tuple(self.sampling["stop_token_ids"])} if "stop_token_ids" in self.sampling else {}
        return _made("sampling", Sampling, self.sampling | ids)

    @property
    def concurrency(self) -> "Concurrency":
        """How many rollouts may be in each stage at once."""
        from gymhost.rollout.requests import Concurrency

        return Concurrency(init=self.init, run=self.run, eval=self.eval, ahead=self.ahead)

    def quota(self, name: str, identity: str) -> int:
        """A quota of an identity, `jobs`, `rollouts` or `bytes`; 0 where there is none."""
        general: int = getattr(self, f"quota_{name}")
        return self.quotas.get(identity, {}).get(name, general)

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON can hold them, for `from_dict`."""
        return dataclasses.asdict(self)

    @classmethod
    def is_table(cls, key: str) -> bool:
        """Whether a setting is a table of other things than texts."""
        return key in ("limits", "sampling", "quotas")

    @classmethod
    def read_table(cls, key: str, value: Any) -> Any:
        """Reads such a table.

        Raises:
            InvalidArgument: It is of the wrong type.
        """
        if key == "quotas":
            return tables_of_numbers(key, value, sizes=("bytes",))
        if not isinstance(value, dict):
            raise InvalidArgument(f"{key} must be a table, not {value!r}")
        if "retries" in value:
            raise InvalidArgument("how often a rollout is begun is said by attempts, not by retries of limits")
        return cast(dict[str, Any], value)


def _made(key: str, kind: Any, table: dict[str, Any]) -> Any:
    try:
        return kind(**table)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{key}: {error}") from None
