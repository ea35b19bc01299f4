"""Who plays in `gymhost rollout`: a local model, vLLM servers or a chat endpoint."""

import importlib.util
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gymhost.cli.app import Failure
from gymhost.rollout import Chat
from gymhost.rollout.extras import require

__all__ = ["Endpoint", "LocalModel", "Player", "VllmServers"]

_PROBE_SECONDS = 10.0


@dataclass(frozen=True)
class Player:
    """What plays.

    Attributes:
        generator: Samples, or for a chat endpoint answers.
        chat: Turns messages into ids and back; None for a chat endpoint.
    """

    generator: Any
    chat: Chat | None

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the ids that are sampled; None for a chat endpoint."""
        return None if self.chat is None else self.chat.tokenizer


@dataclass(frozen=True)
class LocalModel:
    """A model in a folder, run in this process.

    Args:
        folder: The folder.
        backend: `vllm`, `transformers`, or `auto`: vLLM where it is installed.
        arguments: More keyword arguments of `vllm.LLM` or `from_pretrained`.
        tokenizer: Another folder with its tokenizer.
        renderer: The name of the renderer.
        seed: Seeds the sampling.
    """

    folder: Path
    backend: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    tokenizer: Path | None = None
    renderer: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check_model(self.folder)
        _config(self.renderer)

    @property
    def name(self) -> str:
        """What it is called."""
        return self.folder.resolve().name

    @property
    def title(self) -> str:
        """What plays, for people."""
        return f"{self.name} ({'vLLM' if self._runs_in_vllm else 'transformers'}, in this process)"

    @property
    def settings(self) -> dict[str, Any]:
        """What a run can't be resumed without."""
        return {"model": str(self.folder.resolve()), "renderer": self.renderer}

    @property
    def _runs_in_vllm(self) -> bool:
        return self.backend == "vllm" or (self.backend == "auto" and importlib.util.find_spec("vllm") is not None)

    def load(self) -> Player:
        """Loads the model.

        Raises:
            Failure: It can't be loaded, or what loads it is not installed.
        """
        chat = _chat(self.tokenizer or self.folder, self.renderer)
        try:
            generator = self._vllm() if self._runs_in_vllm else self._transformers()
        except ImportError as error:
            other = "" if self._runs_in_vllm else ", or take another --backend"
            raise Failure(f"{error}{other}") from error
        except Exception as error:
            raise Failure(f"the model in {self.folder} could not be loaded: {_one_line(error)}") from error
        return Player(generator, chat)

    def _vllm(self) -> Any:
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        from gymhost.rollout.generators import VllmEngineGenerator

        torch = require("torch", "vllm")
        settings: dict[str, Any] = {"seed": self.seed, "tokenizer": str(self.tokenizer or self.folder)}
        if not torch.cuda.is_available():
            settings["enforce_eager"] = True  # compiling is of no use on a CPU
        return VllmEngineGenerator.load(str(self.folder), **settings | self.arguments)

    def _transformers(self) -> Any:
        from gymhost.rollout.generators import TransformersGenerator

        torch = require("torch", "trl")
        transformers = require("transformers", "rollout")
        transformers.utils.logging.disable_progress_bar()
        settings = {"dtype": "auto", "local_files_only": True} | self.arguments
        model = transformers.AutoModelForCausalLM.from_pretrained(str(self.folder), **settings)
        if torch.cuda.is_available() and "device_map" not in self.arguments:
            model = model.to("cuda")
        return TransformersGenerator(model.eval(), seed=self.seed)


class VllmServers:
    """A model that vLLM servers serve, all of them the same.

    Args:
        urls: The servers.
        api_key: The servers' key.
        tokenizer: A folder with the model's tokenizer; without one, the model's own folder, if it is here too.
        renderer: The name of the renderer.

    Attributes:
        name: The name under which the model is served.

    Raises:
        Failure: One does not answer, or they serve different models.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        api_key: str | None = None,
        tokenizer: Path | None = None,
        renderer: str | None = None,
    ) -> None:
        self.urls = list(dict.fromkeys(url.rstrip("/") for url in urls))
        self._api_key = api_key
        self._tokenizer = tokenizer
        self._renderer = renderer
        _config(renderer)
        served = [_served(url, api_key) for url in self.urls]
        self.name, self._root = served[0]
        for url, (other, _) in zip(self.urls, served, strict=True):
            if other != self.name:
                raise Failure(
                    f"{self.urls[0]} serves {self.name} and {url} serves {other}: all must serve the same model"
                )

    @property
    def title(self) -> str:
        """What plays, for people."""
        model = Path(self.name).name
        return f"{model} ({self.urls[0] if len(self.urls) == 1 else f'{len(self.urls)} vLLM servers'})"

    @property
    def settings(self) -> dict[str, Any]:
        """What a run can't be resumed without."""
        return {"model": self.name, "renderer": self._renderer}

    def load(self) -> Player:
        """Makes the generator.

        Raises:
            Failure: There is no tokenizer.
        """
        from gymhost.rollout.generators.pool import GeneratorPool
        from gymhost.rollout.generators.vllm_server import VllmServerGenerator

        folder = self._tokenizer or next(filter(_has_tokenizer, map(Path, (self._root, self.name))), None)
        if folder is None:
            raise Failure(
                f"{self.urls[0]} serves {self.name}, which is in no folder on this machine: "
                "give its tokenizer with --tokenizer FOLDER"
            )
        chat = _chat(folder, self._renderer)
        servers = [VllmServerGenerator(url, model=self.name, api_key=self._api_key) for url in self.urls]
        return Player(GeneratorPool(servers), chat)


@dataclass(frozen=True)
class Endpoint:
    """A model behind a chat endpoint, which tells no token ids.

    Args:
        url: The endpoint's base, such as `http://gpu3:8000/v1`.
        name: The model's name there.
        api_key: Its key.
        arguments: What else goes into each request.
    """

    url: str
    name: str
    api_key: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def title(self) -> str:
        """What plays, for people."""
        return f"{self.name} ({self.url})"

    @property
    def settings(self) -> dict[str, Any]:
        """What a run can't be resumed without."""
        return {"model": self.name, "renderer": None, "endpoint_arguments": self.arguments}

    def load(self) -> Player:
        """Makes the generator."""
        from gymhost.rollout.generators.chat_endpoint import ChatEndpointGenerator

        generator = ChatEndpointGenerator(self.url, model=self.name, api_key=self.api_key, extra=self.arguments)
        return Player(generator, None)


def _check_model(folder: Path) -> None:
    config = folder / "config.json"
    if not config.is_file():
        raise Failure(
            f"{folder} has no model: there is no config.json in it. "
            "A model of the Hub is brought by: hf download NAME --local-dir FOLDER"
        )
    try:
        json.loads(config.read_text(encoding="utf-8"))
    except ValueError as error:
        raise Failure(f"{config} can't be read: {error}") from None


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json"))


def _chat(folder: Path, renderer: str | None) -> Chat:
    """The chat of a model's tokenizer.

    Raises:
        Failure: There is none, or no way to render its conversations.
    """
    config = _config(renderer)
    transformers = require("transformers", "rollout")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:
        raise Failure(f"{folder} has no tokenizer that can be loaded: {_one_line(error)}") from error
    try:
        return Chat(tokenizer, config)
    except Exception as error:
        raise Failure(
            f"it is not known how conversations are rendered for the tokenizer in {folder}: {_one_line(error)}; "
            "name a renderer with --renderer"
        ) from error


def _config(renderer: str | None) -> Any:
    """A renderer's configuration by its name."""
    if renderer is None:
        return None
    try:
        return require("renderers", "rollout").config_from_name(renderer)
    except ValueError as error:  # it lists those that there are
        raise Failure(str(error)) from None


def _served(url: str, api_key: str | None) -> tuple[str, str]:
    """The name of the model that a server serves, and where it has it from."""
    httpx = require("httpx", "rollout")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        answer = httpx.get(f"{url.rstrip('/')}/v1/models", headers=headers, timeout=_PROBE_SECONDS, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Failure(f"no vLLM server answers at {url}: {_one_line(error)}") from None
    if answer.status_code in (401, 403):
        raise Failure(f"the vLLM server at {url} wants a key: name the variable that has it with --api-key-env")
    try:
        model = answer.raise_for_status().json()["data"][0]
        return str(model["id"]), str(model.get("root") or "")
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        raise Failure(f"what answers at {url} is no vLLM server: {answer.status_code} for /v1/models") from None


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".:")
