"""A stand-in for a vLLM server that samples a plan's turns: `... ADDRESS FOLDER`.

What it samples, and how fast, it is told by a plan that is posted to `/plan`. It writes the tokenizer to the folder.
"""

import asyncio
import json
import sys
import time
from typing import Any

from tests.benchmarks.rollout_plan import Model, Plan
from tests.support.simulated_generator import Slots
from tests.support.tokenizers import encode, qwen3_tokenizer


class Completions:
    """Answers over HTTP as vLLM does, in the time that a plan's slots take."""

    def __init__(self) -> None:
        self._follow(Plan(1, 1, 1))

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the requests of a connection, one after another."""
        try:
            while line := await reader.readline():
                length = 0
                while (header := await reader.readline()).strip():
                    name, _, value = header.partition(b":")
                    if name.lower() == b"content-length":
                        length = int(value)
                body = await self._answer(line.split()[1].decode(), await reader.readexactly(length))
                head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # it was hung up
        finally:
            writer.close()

    def _follow(self, plan: Plan) -> None:
        self._model = Model(plan, encode)
        self._slots = Slots(plan.slots, plan.tokens_per_second)
        self._answers: dict[int, bytes] = {}

    async def _answer(self, path: str, body: bytes) -> bytes:
        if path == "/plan":
            self._follow(Plan.read(body.decode()))
        if path == "/v1/models":
            return json.dumps({"data": [{"id": "model"}]}).encode()
        if path != "/v1/completions":
            return b"{}"
        token_ids = self._model.answer(json.loads(body)["prompt"])
        now = time.perf_counter()
        await asyncio.sleep(self._slots.take(len(token_ids), now) - now)
        answer = self._answers.get(id(token_ids))  # there are two
        if answer is None:
            choice: dict[str, Any] = {"token_ids": token_ids, "finish_reason": "stop"}
            choice["logprobs"] = {"token_logprobs": [-1.0] * len(token_ids)}
            answer = self._answers[id(token_ids)] = json.dumps({"choices": [choice]}).encode()
        return answer


async def main(address: str, folder: str) -> None:
    qwen3_tokenizer().save_pretrained(folder)
    host, _, port = address.rpartition(":")
    async with await asyncio.start_server(Completions().connected, host, int(port), backlog=1024) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
