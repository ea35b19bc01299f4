"""How weights get from a trainer into vLLM servers."""

import asyncio
import contextlib
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from gymhost.rollout.extras import require
from gymhost.rollout.generators.base import GeneratorError
from gymhost.rollout.generators.updates import WeightsRefused
from gymhost.rollout.generators.weights import named_tensors, refuse_tied, weights_folder, write_folder

__all__ = ["DiskWeights", "ServerControl", "TransferWeights", "WeightSync"]


class ServerControl(Protocol):
    """What a way for weights may ask of a vLLM server; the server needs VLLM_SERVER_DEV_MODE=1."""

    @property
    def url(self) -> str:
        """Where the server is."""
        ...

    async def ask(self, path: str) -> Any:
        """Gets what a control endpoint says.

        Raises:
            WeightsRefused: The server has no such endpoint.
            GeneratorError: The server answered with an error, not in time, or not at all.
        """
        ...

    async def control(self, path: str, body: Any = None, *, seconds: float = 60.0) -> Any:
        """Posts to a control endpoint and returns what it says.

        Raises:
            WeightsRefused: The server has no such endpoint.
            GeneratorError: The server answered with an error, not in time, or not at all.
        """
        ...


class WeightSync(Protocol):
    """A way for weights into vLLM servers. One object may serve all servers of a pool."""

    async def prepare(self, weights: Any, version: int) -> Any:
        """Gets weights ready, once for all servers and while these still sample; `load` is given what it returns.

        What it returned may be given to it again, and is returned as it is.

        Raises:
            WeightsRefused: Nobody can load such weights.
        """
        ...

    async def load(self, server: ServerControl, ready: Any, version: int) -> None:
        """Loads what `prepare` returned into a server that is paused.

        Raises:
            WeightsRefused: The server was not touched.
            GeneratorError: The server's weights are unknown now.
        """
        ...

    async def again(self, server: ServerControl, version: int) -> bool:
        """Loads the weights of a version again into a server that has come back without them.

        Returns:
            False if there are no such weights any more; then the server was not touched.

        Raises:
            GeneratorError: The weights could not be loaded.
        """
        ...


class DiskWeights:
    """Through a folder that the servers see too: weights are written as safetensors, and the servers reload them.

    This works on every device. Each version has a folder of its own, which is there as a whole or not at all; once a
    server has loaded it, older ones are deleted.

    Args:
        folder: Where to write. Without one only weights that are in a folder already can be loaded.
        seconds: How long a server may take to load.
    """

    def __init__(self, folder: str | Path | None = None, *, seconds: float = 600.0) -> None:
        self._folder = None if folder is None else Path(folder).absolute()
        self._seconds = seconds
        self._latest: tuple[int, Path] | None = None

    def keep(self, version: int, folder: str | Path) -> None:
        """Says where the latest weights are, which servers that come back without them load, as `load` says it."""
        self._latest = version, Path(folder)

    async def prepare(self, weights: Any, version: int) -> Path:
        """Writes the weights; those that are in a folder already stay where they are.

        Raises:
            WeightsRefused: The weights are of a shape that nobody knows, or there is no folder to write to.
            OSError: The disk is full or can't be written.
        """
        if (path := weights_folder(weights)) is not None:
            return path
        if self._folder is None:
            raise WeightsRefused(
                "weights in memory need a folder to go through: give the generator sync=DiskWeights(folder), with a"
                " folder that the vLLM server sees too"
            )
        path = self._folder / f"version-{version}"
        await asyncio.to_thread(write_folder, weights, path)
        return path

    async def load(self, server: ServerControl, ready: Path, version: int) -> None:
        """Has a server reload the folder.

        Raises:
            WeightsRefused: The server would load these weights wrongly, or has no control endpoints.
            GeneratorError: The server failed.
        """
        if _is_cpu_float32(await _config(server)):
            await asyncio.to_thread(refuse_tied, ready)
        arguments = {"method": "reload_weights", "kwargs": {"weights_path": str(ready)}}
        await server.control("/collective_rpc", arguments, seconds=self._seconds)
        self._latest = version, ready
        if ready.parent == self._folder:
            await asyncio.to_thread(self._drop_others, ready)

    async def again(self, server: ServerControl, version: int) -> bool:
        """Has a server reload the latest folder, if that is of the version.

        Raises:
            GeneratorError: The server failed.
        """
        if self._latest is None or self._latest[0] != version:
            return False
        await self.load(server, self._latest[1], version)
        return True

    def _drop_others(self, kept: Path) -> None:
        for path in kept.parent.glob("version-*"):
            if path != kept:
                shutil.rmtree(path, ignore_errors=True)


async def _config(server: ServerControl) -> dict[str, Any]:
    return (await server.ask("/server_info?config_format=json"))["vllm_config"]


def _is_cpu_float32(config: dict[str, Any]) -> bool:
    device, model = config["device_config"], config["model_config"]
    return str(device["device"]).startswith("cpu") and str(model["dtype"]).endswith("float32")


class TransferWeights:
    """From GPU to GPU by vLLM's own NCCL weight transfer, one group of trainer and workers a server.

    The servers are started with `--weight-transfer-config '{"backend": "nccl"}'`. This is written from the interface of
    vLLM 0.31 and tested as far as a CPU goes, without a single tensor sent: NCCL needs CUDA devices. A transfer that
    hangs can't be ended from here: after `seconds` its server is out of use, and a thread may stay behind. Servers that
    come back need the next update, since what they were sent is not kept.

    Args:
        address: This machine as the servers see it; without one what its name resolves to.
        seconds: How long a transfer may take.
    """

    def __init__(self, *, address: str | None = None, seconds: float = 600.0) -> None:
        self._address = address
        self._seconds = seconds
        self._senders: dict[str, tuple[Any, Any]] = {}
        self._sending = asyncio.Lock()  # groups that share a device must not wait for one another

    async def prepare(self, weights: Any, version: int) -> dict[str, Any]:
        """Takes the tensors as they are.

        Raises:
            WeightsRefused: These are no tensors on a CUDA device.
        """
        if weights_folder(weights) is not None:
            raise WeightsRefused("weights in a folder are not transferred but reloaded: give sync=DiskWeights()")
        tensors = named_tensors(weights)
        if any(tensor.device.type != "cuda" for tensor in tensors.values()):
            raise WeightsRefused("NCCL sends tensors of CUDA devices only: on a CPU give sync=DiskWeights(folder)")
        return tensors

    async def load(self, server: ServerControl, ready: dict[str, Any], version: int) -> None:
        """Sends the tensors to the workers of a server.

        Raises:
            WeightsRefused: The server has no transfer engine, or this vLLM no sender for one.
            GeneratorError: The transfer failed.
        """
        if (await _config(server)).get("weight_transfer_config") is None:
            raise WeightsRefused(
                f"{server.url} has no weight transfer engine: start it with"
                """ --weight-transfer-config '{"backend": "nccl"}'"""
            )
        try:
            async with self._sending, asyncio.timeout(self._seconds):
                await self._send(server, ready)
        except WeightsRefused:
            raise
        except Exception as error:
            self._senders.pop(server.url, None)  # a group that has failed is of no more use
            raise GeneratorError(f"{server.url} did not get its weights: {type(error).__name__}: {error}") from error
        except BaseException:
            self._senders.pop(server.url, None)
            raise

    async def again(self, server: ServerControl, version: int) -> bool:
        """Forgets the group of a server that was away, and returns False."""
        self._senders.pop(server.url, None)
        return False

    async def _send(self, server: ServerControl, tensors: dict[str, Any]) -> None:
        if server.url not in self._senders:
            workers = (await server.ask("/get_world_size"))["world_size"]
            self._senders[server.url] = await asyncio.to_thread(self._connect, server.url, workers, tensors)
        source, sender = self._senders[server.url]
        source.tensors = tensors
        try:
            await asyncio.to_thread(_on_device_of, tensors, sender.send_weights)
        finally:
            source.tensors = {}

    def _connect(self, url: str, workers: int, tensors: dict[str, Any]) -> tuple[Any, Any]:
        try:
            engines: Any = require("vllm.distributed.weight_transfer.nccl_engine", "vllm")
            base: Any = require("vllm.distributed.weight_transfer.base", "vllm")
            clients: Any = require("vllm.distributed.weight_transfer.clients", "vllm")
            info_class: Any = engines.NCCLTrainerInitInfo
        except (ImportError, AttributeError) as error:
            raise WeightsRefused("this vLLM can't send weights: TransferWeights needs vLLM 0.31") from error

        class Source(base.WeightSource):
            """The tensors of one update."""

            def __init__(self) -> None:
                self.tensors = tensors

            def metadata(self) -> list[Any]:
                return [base.ParamMeta(name, item.dtype, tuple(item.shape)) for name, item in self.tensors.items()]

            def __iter__(self) -> Iterator[tuple[str, Any]]:
                return iter(self.tensors.items())

        source = Source()
        info = info_class(
            rank=0,
            master_address=self._address or socket.gethostbyname(socket.gethostname()),
            master_port=_free_port(),
            world_size=workers + 1,
        )
        client = clients.HTTPVLLMWeightSyncClient(url, timeout=self._seconds)
        connect = engines.NCCLTrainerWeightTransferEngine.trainer_init
        return source, _on_device_of(tensors, lambda: connect(info, client=client, source=source))


def _on_device_of(tensors: dict[str, Any], call: Callable[[], Any]) -> Any:
    """Calls with the tensors' device as the current one, which is a thread's own affair."""
    with require("torch", "trl").cuda.device(next(iter(tensors.values())).device):
        return call()


def _free_port() -> int:
    with contextlib.closing(socket.socket()) as free:
        free.bind(("", 0))
        return free.getsockname()[1]
