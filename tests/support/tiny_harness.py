"""A harness as small as one can be, in several forms: a program that runs in sandboxes, with the library alone.

It is told the form and the task. It asks the model what to do, does it with bash, and says what came of it, until it is
answered without a call.
"""

import http.client
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

URL = urllib.parse.urlsplit(os.environ.get("OPENAI_BASE_URL", ""))
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TOOL = {"name": "bash", "description": "Runs a command.", "parameters": PARAMETERS}
SYSTEM = {"role": "system", "content": "You are small."}


def post(path: str, body: Any, timeout: float | None = None, headers: Any = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(URL.netloc, timeout=timeout)
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", **(headers or {})}
    try:
        connection.request("POST", URL.path + path, data, headers, encode_chunked="Transfer-Encoding" in headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def chat(messages: list[Any], **more: Any) -> Any:
    """Asks, and returns the message that is answered as harnesses keep it: changed a little."""
    status, body = post("/chat/completions", {"model": "policy", "messages": messages, **more})
    if status != 200:
        raise RuntimeError(body)
    message = json.loads(body)["choices"][0]["message"]
    message.pop("reasoning_content", None)
    for call in message.get("tool_calls") or ():
        arguments = json.loads(call["function"]["arguments"])
        call["function"]["arguments"] = json.dumps(arguments, indent=1)
    return {**message, "content": message["content"] or None, "audio": None, "annotations": []}


def run(command: str) -> str:
    words = ["bash", "-c", f"exec 2>&1; {command}"]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    return f"{done.returncode}: {done.stdout}"


def results(message: Any) -> list[Any]:
    """Does what a message asks for."""
    return [
        {"role": "tool", "tool_call_id": call["id"], "content": run(command_of(call["function"]["arguments"]))}
        for call in message.get("tool_calls") or ()
    ]


def command_of(arguments: str) -> str:
    return json.loads(arguments)["command"]


def plain(task: str, messages: Any = None, **more: Any) -> None:
    tools = [{"type": "function", "function": TOOL}]
    messages = messages or [SYSTEM, {"role": "user", "content": [{"type": "text", "text": task}]}]
    while True:
        message = chat(messages, tools=tools, **more)
        done = results(message)
        messages += [message, *done]
        if not done:
            return


def streaming(task: str) -> None:
    """Puts together what comes in pieces."""
    messages: list[Any] = [{"role": "user", "content": task}]
    while True:
        asked = {"model": "m", "messages": messages, "stream": True, "tools": [{"type": "function", "function": TOOL}]}
        _, body = post("/chat/completions", asked)
        events = [line[6:] for line in body.decode().splitlines() if line.startswith("data: ")]
        assert events.pop() == "[DONE]"
        text, calls = "", {}
        for event in events:
            delta = json.loads(event)["choices"][0]["delta"]
            text += delta.get("content") or ""
            for piece in delta.get("tool_calls", ()):
                function = {"name": "", "arguments": ""}
                call = calls.setdefault(
                    piece["index"], {"id": piece.get("id"), "type": "function", "function": function}
                )
                for key, value in piece["function"].items():
                    call["function"][key] += value
        message = {"role": "assistant", "content": text, "tool_calls": list(calls.values())}
        messages += [message, *results(message)]
        if not calls:
            return


def responses(task: str) -> None:
    """Names what was answered before instead of saying it again, and takes a stream now and then."""
    given: Any = task
    previous = None
    for turn in range(10):
        stream = turn % 2 == 1
        tools = [{"type": "function", **TOOL}]
        asked = {"model": "m", "input": given, "previous_response_id": previous, "tools": tools, "stream": stream}
        _, body = post("/responses", asked)
        if stream:
            body = body.decode().strip().splitlines()[-1].removeprefix("data: ").encode()
        answer = json.loads(body)
        answer = answer.get("response", answer)
        previous = answer["id"]
        given = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": run(command_of(item["arguments"]))}
            for item in answer["output"]
            if item["type"] == "function_call"
        ]
        if not given:
            return


def forgetful(task: str) -> None:
    """Sums up what was said before, and drops it."""
    messages = [SYSTEM, {"role": "user", "content": task}]
    first = chat(messages)
    messages += [first, {"role": "user", "content": "And?"}]
    second = chat(messages)
    chat([SYSTEM, {"role": "user", "content": f"So far: {first['content']}, {second['content']}"}])


def impatient(task: str) -> None:
    """Does not wait for the first answer, and asks the same again."""
    messages = [{"role": "user", "content": task}]
    try:
        post("/chat/completions", {"messages": messages}, timeout=0.3)
    except TimeoutError:
        run("touch gave_up")
        answer = chat(messages)
        chat([*messages, answer, {"role": "user", "content": "And?"}])


def several(task: str) -> None:
    """Has two agents ask at once, two times each."""

    def ask(name: str) -> None:
        messages = [{"role": "user", "content": f"{task} {name}"}]
        messages += [chat(messages), {"role": "user", "content": "And?"}]
        chat(messages)

    agents = [threading.Thread(target=ask, args=(name,)) for name in "ab"]
    for agent in agents:
        agent.start()
    for agent in agents:
        agent.join()


def refused(task: str) -> None:
    """Asks for what can't be had, and says what it was told."""
    told = [
        post("/chat/completions", b"no JSON"),
        post("/chat/completions", {"messages": []}),
        post("/chat/completions", {"messages": [SYSTEM], "n": 2}),
        post("/embeddings", {}),
        post("/responses", {"input": "x", "previous_response_id": "resp_0"}),
        post("/chat/completions", b"{" + b" " * 17 * 2**20 + b"}"),
        post("/chat/completions", b"x", headers={"Content-Encoding": "gzip"}),
        post("/chat/completions", iter([b'{"mess', b'ages": []}']), headers={"Transfer-Encoding": "chunked"}),
    ]
    with urllib.request.urlopen(f"{URL.geturl()}/models") as listed:
        names = [model["id"] for model in json.load(listed)["data"]]
    statuses = [status for status, _ in told]
    errors = [json.loads(body)["error"]["message"] for _, body in told]
    chat([{"role": "user", "content": json.dumps([names, statuses, errors])}])


def looks(task: str) -> None:
    """Tells what there is around it."""
    home = Path(os.environ["HOME"])
    outside: list[str] = []
    seen = {
        "environment": dict(os.environ),
        "argv": sys.argv[1:],
        "files": sorted(path.name for path in home.iterdir()),
        "prompt": (home / "prompt.txt").read_text(),
        "interfaces": [name for _, name in socket.if_nameindex()],
        "outside": outside,
    }
    for address in ("1.1.1.1", "10.0.0.1", "169.254.169.254"):
        try:
            socket.create_connection((address, 80), 0.5).close()
            outside.append(address)
        except OSError:
            pass
    chat([{"role": "user", "content": json.dumps(seen)}])


def imports(task: str) -> None:
    """Tells which modules it finds, and which what it runs does."""
    names = ("pytest", "pluggy", "hypothesis")
    seen = [bool(importlib.util.find_spec(name)) for name in names]
    by_others = run(f'python3 -c "import importlib.util as u; print([bool(u.find_spec(name)) for name in {names}])"')
    chat([{"role": "user", "content": json.dumps([seen, list(sys.version_info[:2]), by_others])}])


def fails(task: str) -> None:
    print("about to fail")
    raise SystemExit("the harness has a bug")


def fails_later(task: str) -> None:
    chat([{"role": "user", "content": task}])
    fails(task)


def silent(task: str) -> None:
    time.sleep(600)


def slow(task: str) -> None:
    chat([{"role": "user", "content": task}])
    run("sleep 600")


def ends_itself(task: str) -> None:
    chat([{"role": "user", "content": task}])
    os.kill(os.getpid(), signal.SIGKILL)


def asks_nonsense(task: str) -> None:
    while True:
        post("/chat/completions", {})


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
