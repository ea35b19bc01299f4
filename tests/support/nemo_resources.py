"""Resources servers as NeMo Gym's are over HTTP: one with tools and a verifier, one that is stepped.

`counter` answers as `example_session_state_mgmt` does, `blackjack` as the one of this name, with the cards of a task.
"""

import json
import secrets
import threading
from collections.abc import Callable
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Handler = Callable[[dict[str, Any], dict[str, Any]], Any]


class Refusal(Exception):
    """An answer with a status of its own."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


class Resources:
    """A server in a thread. It keeps what it was asked, by session.

    Args:
        document: What `/openapi.json` says.
        routes: What answers at a path: it is given the session's state and the body.
    """

    def __init__(self, document: Any, routes: dict[str, Handler]) -> None:
        self.sessions: dict[str, dict[str, Any]] = {}
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        resources = self

        class Answering(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # head and body go at once, else one waits for the other's acknowledgement

            def do_GET(self) -> None:
                self._answer(200, document) if self.path == "/openapi.json" else self._answer(404, {})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                cookie = SimpleCookie(self.headers["cookie"] or "").get("resources")
                key = cookie.value if cookie else secrets.token_hex(8)
                resources.asked.append((self.path, key, body))
                route = routes.get(self.path)
                if route is None:
                    return self._answer(404, {"detail": "Not Found"}, key)
                try:
                    return self._answer(200, route(resources.sessions.setdefault(key, {}), body), key)
                except Refusal as refusal:
                    return self._answer(refusal.status, refusal.body, key)

            def _answer(self, status: int, body: Any, key: str = "") -> None:
                data = json.dumps(body, separators=(",", ":")).encode()
                self.send_response(status)
                if key:
                    self.send_header("set-cookie", f"resources={key}; path=/; httponly; samesite=lax")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def counter(document: Path) -> Resources:
    """Counts; the verifier pays where the count is the one that is expected."""

    def seed(state: dict[str, Any], body: dict[str, Any]) -> Any:
        state["count"] = body["initial_count"]
        return {}

    def increment(state: dict[str, Any], body: dict[str, Any]) -> Any:
        if not isinstance(body.get("count"), int):
            detail = {"type": "int_parsing", "loc": ["body", "count"], "msg": "Input should be a valid integer"}
            raise Refusal(422, {"detail": [detail]})
        if body["count"] == 500:
            raise Refusal(500, "Internal Server Error")
        state["count"] += body["count"]
        return {"success": True}

    def verify(state: dict[str, Any], body: dict[str, Any]) -> Any:
        masked = body["expected_count"] < 0
        reason = "the judge is not there" if masked else None
        reward = float(body["expected_count"] == state["count"])
        return {**body, "reward": reward, "mask_sample": masked, "failure_kind": None, "failure_reason": reason}

    def value(state: dict[str, Any], body: dict[str, Any]) -> Any:
        return {"count": state["count"]}

    routes = {"/seed_session": seed, "/increment_counter": increment, "/get_counter_value": value, "/verify": verify}
    return Resources(json.loads(document.read_text()), routes)


def blackjack(document: Path) -> Resources:
    """Blackjack with the cards of the task: two for the player, two for the dealer, then one for each hit."""

    def shown(state: dict[str, Any]) -> str:
        hand = state["player"]
        return (
            f"Your hand: [{', '.join(map(str, hand))}] = {sum(hand)}\nDealer shows: {state['dealer'][0]}\n"
            "Respond with <action>hit</action> or <action>stand</action>."
        )

    def reset(state: dict[str, Any], body: dict[str, Any]) -> Any:
        cards = list(body["cards"])
        state |= {"player": cards[:2], "dealer": cards[2:4], "rest": cards[4:]}
        return {"observation": shown(state), "info": {}}

    def step(state: dict[str, Any], body: dict[str, Any]) -> Any:
        items = [item for item in body["response"]["output"] if item["type"] == "message"]
        text = "".join(part["text"] for item in items for part in item["content"])
        if "cut" in text:
            return {"observation": None, "reward": 0.5, "terminated": False, "truncated": True, "info": {}}
        ended: dict[str, Any] = {"observation": None, "terminated": True, "truncated": False}
        if "hit" in text:
            state["player"].append(state["rest"].pop(0))
            if sum(state["player"]) > 21:
                return {**ended, "reward": -1.0, "info": {"result": "bust"}}
            return {**ended, "observation": shown(state), "reward": 0.0, "terminated": False, "info": {}}
        won = sum(state["player"]) > sum(state["dealer"])
        return {**ended, "reward": 1.0 if won else -1.0, "info": {"result": "win" if won else "loss"}}

    return Resources(json.loads(document.read_text()), {"/reset": reset, "/step": step})
