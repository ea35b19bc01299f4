"""Runs a harness beside an HTTP server that passes its requests on: a program that is sent into a sandbox.

It is never imported here, and needs Python 3.8 and its standard library alone. What it takes from standard input and
writes to standard output are frames: a line of JSON, and as many bytes after it as its `length` says.

The first frame says what to run, with limits of requests and of what is kept of what the harness writes:

    > {"limit": BYTES, "output": BYTES, "length": BYTES}, and {"command": [], "env": {}, "values": {}, "models": ""}

Names in braces in the words of the command, and in what the variables hold, stand for values; that of `{url}` is where
the server is, `http://127.0.0.1:PORT/v1`. Then come answers, and what the program itself tells are requests, those
whose asker has gone, and the end, which can be asked for:

    < {"id": 1, "path": "/v1/chat/completions", "length": BYTES}
    > {"id": 1, "status": 200, "type": "application/json", "length": BYTES}
    < {"gone": 1, "length": 0}
    < {"exit": STATUS, "length": BYTES}, with the end of what the harness wrote
    < {"got": true, "length": 0}, for each frame that was read
    > {"stop": true, "length": 0}

Where the harness ends, or standard input does, its process group is ended and then this program. Whoever runs code in
the sandbox can do all that this program does: nothing that it tells is to be trusted.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO, cast
else:

    def cast(_: object, value: object) -> object:
        """Is what it is for the checker of types alone."""
        return value


# Requests that may wait at once, and bytes that are dropped at once.
AT_ONCE, CHUNK = 64, 65536


class Relay(ThreadingHTTPServer):
    """The server, which is also what the requests that wait are in."""

    daemon_threads = True
    request_queue_size = AT_ONCE

    def __init__(self, limit: int, output: int, models: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.limit = limit
        self.output = output
        self.models = models
        self.waiting: dict[int, Handler] = {}
        self.count = 0
        self.lock = threading.Lock()
        self.writing = threading.Lock()

    def tell(self, head: dict[str, Any], body: bytes = b"") -> None:
        """Writes a frame."""
        line = json.dumps({**head, "length": len(body)}).encode() + b"\n"
        with self.writing:
            left = memoryview(line + body)
            while left:
                left = left[os.write(1, left) :]

    def enter(self, handler: Handler) -> int:
        """Takes a request; 0 where there are too many."""
        with self.lock:
            if len(self.waiting) >= AT_ONCE:
                return 0
            self.count += 1
            self.waiting[self.count] = handler
            return self.count

    def leave(self, number: int) -> Handler | None:
        """Takes a request out; None where it is not in any more."""
        with self.lock:
            return self.waiting.pop(number, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of connections that broke off."""


class Handler(BaseHTTPRequestHandler):
    """One connection of the harness's."""

    protocol_version = "HTTP/1.1"
    # An answer is one piece, which is not to wait for more.
    wbufsize = -1

    @property
    def relay(self) -> Relay:
        """The server."""
        return cast("Relay", self.server)

    def do_GET(self) -> None:
        """Lists the models: there is one."""
        if self.path.rstrip("/").endswith("/models"):
            self.answer(200, "application/json", self.relay.models)
        else:
            self.refuse(404, f"there is no {self.path}")

    def do_POST(self) -> None:
        """Passes a request on, and gives the answer."""
        body = self.body()
        if body is None:
            return
        self.here, there = socket.socketpair()
        with self.here, there:
            self.told = (0, "", b"")
            number = self.relay.enter(self)
            if not number:
                self.refuse(503, f"{AT_ONCE} requests are waiting")
                return
            self.relay.tell({"id": number, "path": self.path}, body)
            if not self.wait(there):
                self.close_connection = True
                self.relay.leave(number)
                self.relay.tell({"gone": number})
                return
        try:
            self.answer(*self.told)
        except OSError:
            self.close_connection = True
            self.relay.tell({"gone": number})

    def wait(self, there: socket.socket) -> bool:
        """Waits for the answer; whether the one who asked is still there then."""
        watched = [self.connection, there]
        while True:
            ready, _, _ = select.select(watched, [], [])
            if there in ready:
                return True
            if not self.connection.recv(1, socket.MSG_PEEK):
                return False
            # What was sent ahead is for later.
            watched = [there]

    def settle(self, status: int, kind: str, body: bytes) -> None:
        """Gives it the answer, from another thread."""
        self.told = (status, kind, body)
        try:
            self.here.send(b".")
        except OSError:
            pass  # the one who asked has gone just now, and is told of

    def body(self) -> bytes | None:
        """Reads what was sent; None where it was refused."""
        limit = self.relay.limit
        if self.headers.get("Content-Encoding", "identity") != "identity":
            return self.refuse(415, "bodies are to be sent as they are, without a Content-Encoding")
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts: list[bytes] = []
            size = 0
            while True:
                length = int(self.rfile.readline(64).split(b";")[0], 16)
                size += length
                if size > limit:
                    return self.refuse(413, f"a body may have {limit} bytes")
                part = self.rfile.read(length)
                self.rfile.readline(64)
                if not length:
                    return b"".join(parts)
                parts.append(part)
        length = self.headers.get("Content-Length", "")
        if not length.isdigit():
            return self.refuse(411, "a request needs a Content-Length")
        if int(length) > limit:
            # Who is still sending would not hear why.
            for _ in range(min(int(length), 8 * limit) // CHUNK):
                self.rfile.read(CHUNK)
            return self.refuse(413, f"a body may have {limit} bytes, not {length}")
        return self.rfile.read(int(length))

    def refuse(self, status: int, why: str) -> None:
        """Answers that it can't be done."""
        self.close_connection = True
        error = {"message": why, "type": "invalid_request_error", "param": None, "code": None}
        self.answer(status, "application/json", json.dumps({"error": error}).encode())

    def answer(self, status: int, kind: str, body: bytes) -> None:
        """Sends an answer."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Keeps no log."""


def frame(file: BinaryIO) -> tuple[Any, bytes]:
    """Reads a frame.

    Raises:
        EOFError: There is no more.
    """
    line = file.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    head = json.loads(line)
    body = file.read(head["length"])
    if len(body) < head["length"]:
        raise EOFError
    return head, body


class Harness:
    """The program that asks."""

    def __init__(self, relay: Relay, command: list[str], env: dict[str, str]) -> None:
        self.relay = relay
        self.tail = b""
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        threading.Thread(target=self.watch, daemon=True).start()

    def read(self) -> None:
        """Keeps the end of what it writes."""
        assert self.process.stdout is not None
        while more := os.read(self.process.stdout.fileno(), 65536):
            self.tail = (self.tail + more)[-self.relay.output :]

    def watch(self) -> None:
        """Tells of its end."""
        status = self.process.wait()
        self.kill()
        # What it left running may hold the other end of the pipe.
        self.reader.join(0.5)
        self.relay.tell({"exit": status}, self.tail)
        os._exit(0)

    def kill(self) -> None:
        """Ends its process group."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except OSError:
            pass


def main() -> None:
    """Serves until the harness or standard input ends."""
    stdin = sys.stdin.buffer
    limits, body = frame(stdin)
    asked = json.loads(body)
    relay = Relay(limits["limit"], limits["output"], asked["models"].encode())
    relay.tell({"got": True})
    values = {**asked["values"], "url": f"http://127.0.0.1:{relay.server_address[1]}/v1"}

    def filled(text: str) -> str:
        # All at once, since what one stands for may look like another one.
        return re.sub(r"\{(\w+)\}", lambda name: values.get(name[1], name[0]), text)

    command = [filled(word) for word in asked["command"]]
    env = {name: filled(value) for name, value in asked["env"].items()}
    threading.Thread(target=relay.serve_forever, daemon=True).start()
    try:
        harness = Harness(relay, command, env)
    except OSError as error:
        relay.tell({"exit": 127}, f"{command[0]}: {error}".encode())
        return
    try:
        while True:
            head, body = frame(stdin)
            relay.tell({"got": True})
            if "stop" in head:
                harness.kill()
            elif (waiting := relay.leave(head["id"])) is not None:
                waiting.settle(head["status"], head["type"], body)
    except EOFError:
        harness.kill()


if __name__ == "__main__":
    main()
