"""Resources servers of NeMo Gym: what one offers, by its OpenAPI, and a session of it over HTTP."""

import asyncio
import functools
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote

from gymhost.envs.adapters.support import needed
from gymhost.envs.tools import ToolSpec

__all__ = ["Offer", "Session", "offer_of"]

# Bytes of an OpenAPI document, and seconds that it may take.
_DOCUMENT, _ASK = 16 * 2**20, 20.0
# Bytes of an answer, and how often connecting is tried again.
_ANSWER, _AGAIN = 64 * 2**20, 2
# Seconds after which an idle connection is not used again: uvicorn closes it after 5.
_IDLE = 2.0
# What is no tool, though it is posted to.
_OWN = frozenset(
    ("aggregate_metrics", "close", "close_session", "mcp", "reset", "sandbox_access", "seed_session", "step", "verify")
)


@dataclass(frozen=True, slots=True)
class Offer:
    """What a server offers.

    Attributes:
        url: Where it is, without a slash at its end.
        steps: Whether it is one that is stepped (`/reset` and `/step`), and not one with tools and a verifier.
        tools: Its tools.
        closes: Whether a session of it can be closed by its cookie alone.
    """

    url: str
    steps: bool
    tools: tuple[ToolSpec, ...]
    closes: bool


def offer_of(url: str) -> Offer:
    """Asks a server what it offers; blocks.

    Raises:
        ConnectionError: It does not answer.
        ValueError: What answers is no resources server.
    """
    url = url.rstrip("/")
    try:
        # As sessions do, past any proxy.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{url}/openapi.json", timeout=_ASK) as answer:
            document: Any = json.loads(answer.read(_DOCUMENT))
    except urllib.error.HTTPError as error:
        raise ValueError(f"{url} is no resources server of NeMo Gym: /openapi.json is answered with {error}") from error
    except OSError as error:
        raise ConnectionError(f"no resources server of NeMo Gym answers at {url}: {error}") from error
    except ValueError as error:
        raise ValueError(f"{url} is no resources server of NeMo Gym: its /openapi.json is no JSON") from error
    told = cast("dict[str, Any]", document) if isinstance(document, dict) else {}
    paths: dict[str, Any] = told.get("paths") or {}
    posted: dict[str, Any] = {
        path.removeprefix("/"): methods["post"] for path, methods in paths.items() if "post" in methods
    }
    steps = {"reset", "step"} <= posted.keys()
    if not steps and "verify" not in posted:
        raise ValueError(f"{url} is no resources server of NeMo Gym: it has neither /verify nor /reset and /step")
    components: dict[str, Any] = told.get("components") or {}
    schemas: dict[str, Any] = components.get("schemas") or {}
    tools = [
        _tool(path, operation, schemas)
        for path, operation in posted.items()
        if path not in _OWN and "/" not in path and "{" not in path
    ]
    closing = _schema(posted.get("close_session", {}), schemas)
    closes = "close_session" in posted and not closing.get("required")
    return Offer(url, steps, () if steps else tuple(tools), closes)


def _tool(path: str, operation: dict[str, Any], schemas: dict[str, Any]) -> ToolSpec:
    said = operation.get("description") or operation.get("summary") or ""
    return ToolSpec(path, said, _schema(operation, schemas))


def _schema(operation: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """Returns the JSON Schema of what an operation takes, which stands alone."""
    content: dict[str, Any] = operation.get("requestBody", {}).get("content", {})
    schema: dict[str, Any] = content.get("application/json", {}).get("schema", {})
    used: dict[str, Any] = {}
    schema = _standing(schema, schemas, used)
    if list(schema) == ["$ref"]:
        schema = dict(used[str(schema["$ref"]).rpartition("/")[2]])
    schema = {key: value for key, value in schema.items() if key != "title"}
    schema.setdefault("type", "object")
    schema.setdefault("properties", {})
    # What only the whole of it was referred to by is not needed beside it.
    inner = json.dumps([schema, *used.values()])
    needed_too = {name: part for name, part in used.items() if f'"#/$defs/{name}"' in inner}
    return schema | ({"$defs": needed_too} if needed_too else {})


def _standing(part: Any, schemas: dict[str, Any], used: dict[str, Any]) -> Any:
    """Returns a part of a schema in which what it refers to is found in `used`."""
    if isinstance(part, list):
        return [_standing(each, schemas, used) for each in cast("list[Any]", part)]
    if not isinstance(part, dict):
        return part
    fields = cast("dict[str, Any]", part)
    name = str(fields.get("$ref", "")).removeprefix("#/components/schemas/")
    if "$ref" in fields and name in schemas:
        if name not in used:
            used[name] = {}
            used[name] = _standing(schemas[name], schemas, used)
        return {"$ref": f"#/$defs/{name}"}
    return {key: _standing(value, schemas, used) for key, value in fields.items()}


class Session:
    """A session of a server: it is told by its cookies.

    Args:
        url: Where the server is.
        timeout: Seconds that an answer may take.
    """

    def __init__(self, url: str, timeout: float) -> None:
        httpx: Any = needed("nemo", "httpx")
        self._url = url
        self._timeout = timeout
        verify: Any = _certificates() if url.startswith("https:") else False
        # Connecting may be tried again, since nothing was sent then; nothing else is.
        limits = httpx.Limits(keepalive_expiry=_IDLE)
        transport = httpx.AsyncHTTPTransport(retries=_AGAIN, verify=verify, limits=limits)
        self._client: Any = httpx.AsyncClient(transport=transport, timeout=httpx.Timeout(None, connect=10.0))
        self._failures: Any = httpx.HTTPError

    async def post(self, path: str, body: Mapping[str, Any]) -> tuple[int, str]:
        """Posts, and returns the status and the text of the answer.

        Raises:
            ConnectionError: The server did not answer, or its answer says that it failed.
            TimeoutError: It took too long.
        """
        url = f"{self._url}/{quote(path, safe='')}"
        try:
            async with asyncio.timeout(self._timeout), self._client.stream("POST", url, json=body) as answer:
                data = bytearray()
                async for chunk in answer.aiter_bytes():
                    data += chunk
                    if len(data) > _ANSWER:
                        raise ConnectionError(f"{url} answers with more than {_ANSWER} bytes")
        except TimeoutError:
            raise TimeoutError(f"{url} took more than {self._timeout:g} s (timeout)") from None
        except self._failures as error:
            raise ConnectionError(f"{url} did not answer: {type(error).__name__}: {error}") from error
        text = data.decode(errors="replace")
        if answer.status_code >= 500:
            raise ConnectionError(f"{url} failed with status {answer.status_code}: {text[:2000]}")
        return answer.status_code, text

    async def ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Posts, and returns the object that the answer is.

        Raises:
            ConnectionError: As `post`, or the answer says that the request was not what it should be, or is no object.
            TimeoutError: As `post`.
        """
        status, text = await self.post(path, body)
        try:
            said: Any = json.loads(text)
        except ValueError:
            said = None
        if status >= 400 or not isinstance(said, dict):
            raise ConnectionError(f"{self._url}/{path} answers with status {status}: {text[:2000]}")
        return cast("dict[str, Any]", said)

    async def close(self) -> None:
        """Closes the connections. May be called twice."""
        await self._client.aclose()

    def __deepcopy__(self, memo: object) -> "Session":
        raise TypeError("a session of NeMo Gym can't be copied")


@functools.cache
def _certificates() -> ssl.SSLContext:
    return ssl.create_default_context()
