"""The dashboard in a real browser, beside a server under real load: figures, sessions, trajectories, acts, roles."""

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gymhost.client import Session, connect
from gymhost.rollout import RolloutRequest
from gymhost.rollout.service import RolloutClient
from gymhost.wire.errors import SessionClosed
from support.browser import Browser, chromium
from support.command import COMMAND, environment
from support.rollouts_process import tokenizer_folder
from support.sampler import Sampler
from support.server import running
from support.watched import TOKENS, Watched, called_tool, play, watched

pytestmark = [pytest.mark.heavy, pytest.mark.browser, pytest.mark.timeout(180)]

ENVIRONMENTS = {"CartPole-v1": 3, "test/Counter-v0": 2, "test/Raises-v0": 1}


@pytest.fixture(scope="module")
def sampler() -> Iterator[Sampler]:
    with Sampler() as running:
        yield running


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory, sampler: Sampler) -> Iterator[Watched]:
    with watched(tmp_path_factory.mktemp("served"), tokens=TOKENS, generator=sampler.url) as running:
        yield running


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture
def page(browser: Browser, board: Watched) -> Iterator[Browser]:
    """The dashboard, read by an admin; whatever a test does there, nothing is loaded from elsewhere."""
    browser.show()
    log_in(browser, board, "boss")
    browser.complaints()
    browser.requests()
    yield browser
    assert browser.complaints() == []
    assert {url.split("/")[2] for url in browser.requests() if url.startswith("http")} <= {board.url.split("/")[2]}


def log_in(browser: Browser, board: Watched, token: str) -> None:
    browser.visit(f"{board.url}/healthz")
    browser.run("return fetch('/logout', {method: 'POST', headers: {'x-gymhost-act': '1'}}).then(r => r.status)")
    browser.visit(f"{board.url}/")
    browser.wait("document.querySelector('#token')")
    browser.write("#token", token)
    browser.click("#login button")
    browser.wait("document.querySelector('.tiles')")


def go(page: Browser, path: str) -> None:
    page.run("location.hash = arguments[0]", path)


def lines(page: Browser) -> dict[str, list[str]]:
    """The lines of the first table, by what tells them apart."""
    script = (
        "return [...document.querySelector('#main .table').querySelectorAll('tbody tr')]"
        ".map(row => [row.dataset.key, [...row.children].map(cell => cell.innerText)])"
    )
    return dict(page.run(script))


def heads(page: Browser) -> list[str]:
    return [head.rstrip("▲▼") for head in page.texts("#main .table th")]


def get(board: Watched, path: str, token: str = "boss") -> httpx.Response:
    return httpx.get(board.url + path, headers={"authorization": f"Bearer {token}"}, trust_env=False)


def act(board: Watched, path: str, token: str, **body: Any) -> httpx.Response:
    return httpx.post(board.url + path, headers={"authorization": f"Bearer {token}"}, json=body, trust_env=False)


def metrics(board: Watched) -> dict[tuple[str, str], float]:
    """The sums of samples over all other labels, by name and environment."""
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(get(board, "/metrics", "look").text):
        for sample in family.samples:
            key = sample.name, sample.labels.get("environment", "")
            found[key] = found.get(key, 0.0) + sample.value
    return found


async def test_figures_agree_with_metrics_and_with_what_clients_have_counted(page: Browser, board: Watched):
    counted = await play(board.address, "work", ENVIRONMENTS, steps=60)
    go(page, "#/environments")
    page.wait("[...document.querySelectorAll('tbody tr')].some(row => row.dataset.key === 'test/Raises-v0')")
    told = metrics(board)
    titles = heads(page)
    for name, sessions in ENVIRONMENTS.items():
        page.wait(f"document.querySelector('tr[data-key=\"{name}\"]').children[1].innerText === '0'")
        line = dict(zip(titles, lines(page)[name], strict=True))
        failed = counted[f"failed {name}"]
        # A step that failed was one.
        assert line["Steps"] == f"{told['gymhost_steps_total', name]:.0f}" == f"{counted[name] + failed}"
        assert line["Failed"] == f"{failed}" == f"{told.get(('gymhost_failures_total', name), 0):.0f}"
        assert line["Made"] == f"{sessions}" == f"{told['gymhost_sessions_created_total', name]:.0f}"
        assert told["gymhost_resets_total", name] == counted[f"reset {name}"]

    page.write("#filter", "raises")
    page.wait("document.querySelectorAll('tbody tr').length === 1")
    page.press("Escape", "j", "Enter")
    page.wait("document.querySelector('.failure')")
    assert page.text(".stages tbody").split()[0] in ("queue", "make")
    page.click(".failure")
    assert "ValueError: this step was told to raise" in page.text("dialog .traceback")
    assert "Traceback (most recent call last)" in page.text("dialog .traceback")
    page.press("Escape")
    page.wait("!document.querySelector('dialog')")


async def test_a_session_is_followed_and_ended(page: Browser, board: Watched):
    async with (
        connect(board.address, token="work") as remote,
        remote.session("gymhost/GuessNumber-v0") as session,
        remote.session("test/Picture-v0") as other,
    ):
        await session.reset(options={"task": 3}, label="rollout-17")
        await other.reset()
        go(page, "#/sessions?environment=gymhost%2FGuessNumber-v0")
        page.wait("document.querySelectorAll('tbody tr').length === 1")
        [(name, line)] = lines(page).items()
        assert line[:5] == [name, "gymhost/GuessNumber-v0", "bob", "rollout-17", "waiting"]
        page.press("ArrowDown", "Enter")
        page.wait("document.querySelector('.stand').innerText.startsWith('live')")

        await session.step(called_tool("guess", number=4))
        page.wait("document.querySelectorAll('.turn').length === 1")
        assert page.texts(".turn .message b")[:2] == ["assistant", "tool"]
        assert page.text(".turn .call").split() == ["guess", "number", "4"]
        await session.reset(options={"task": 4})
        page.wait("document.querySelectorAll('.turn').length === 2")
        assert "user" in page.texts(".turn:nth-of-type(2) .message b")

        page.click(".acts button")
        page.write("#reason", "it <b>waits</b> too long")
        page.click("#confirm")
        page.wait("document.querySelector('.ended')")
        assert "it <b>waits</b> too long" in page.text(".ended"), "what is said stays text"
        assert page.texts(".acts button") == []
        with pytest.raises(SessionClosed, match="waits</b> too long"):
            await session.step(called_tool("guess", number=5))
        page.press("Escape")
        page.wait("document.querySelector('tr[data-key]')")
        assert name not in lines(page)
        [name] = lines(page)
        await followed_picture(page, other, name)


async def followed_picture(page: Browser, session: Session, name: str) -> None:
    """What is no message is shown in short, and a picture as one."""
    go(page, f"#/sessions/{name}")
    page.wait("document.querySelector('.stand').innerText.startsWith('live')")
    await session.step(0)
    page.wait("document.querySelector('.turn')")
    assert page.text(".turn h3").lower() == "action"
    assert page.run("return document.querySelector('.turn canvas, .turn code') !== null")


async def test_trajectories_are_opened_and_a_job_is_cancelled(page: Browser, board: Watched, sampler: Sampler):
    requests = [RolloutRequest("gymhost/GuessNumber-v0", task=task) for task in range(3)]
    async with RolloutClient(board.rollouts, token="work") as client:
        job = await client.submit(requests, samples=2, key="shown", label="run 3, step 17")
        go(page, "#/rollouts")
        page.wait("[...document.querySelectorAll('tbody tr')].some(row => row.innerText.includes('finished'))")
        assert {"run 3, step 17", "gymhost/GuessNumber-v0", "bob", "finished"} <= set(lines(page)[job.id])
        status = await job.status()
        assert lines(page)[job.id][heads(page).index("Reward")] in (
            f"{status.mean_reward:.2f}",
            f"{status.mean_reward:g}",
        )
        page.run("document.querySelector('tr[data-key]').focus()")
        page.press("Enter")
        page.wait("document.querySelector('#open-trajectories')")
        assert page.text("#open-trajectories") == "Open 6 trajectories"
        page.click("#open-trajectories")
        page.wait("document.querySelectorAll('.line').length === 6 && document.querySelector('.message')")
        assert page.text("#head").startswith("run 3, step 17")
        page.press("g")  # the group, whose rollouts are compared
        page.wait("document.querySelector('#reader').dataset.view === 'group'")
        assert (await job.status()).unacknowledged == 6, "reading takes nothing away"
        assert len(await job.collect()) == 6

        sampler.hold(True)
        try:
            held = await client.submit(requests, key="held")
            page.visit(f"{board.url}/#/jobs/{held.id}")
            page.wait("document.querySelectorAll('tr[data-key]').length === 3")
            page.wait("[...document.querySelectorAll('.acts button')].some(each => each.innerText === 'Cancel job')")
            page.click(".acts button:last-child")
            page.click("#confirm")
            page.wait("document.querySelector('.toast')?.innerText.startsWith('The job was cancelled')")
            page.wait("document.querySelector('.facts').innerText.includes('cancelled')")
            assert (await held.status()).state == "cancelled"
        finally:
            sampler.hold(False)
        assert {each.outcome.kind for each in await held.collect()} == {"cancelled"}
    told = metrics(board)
    assert told["gymhost_rollouts_ended_total", "gymhost/GuessNumber-v0"] >= 6
    assert told["gymhost_generator_up", ""] == 1


async def test_who_may_not_is_offered_nothing_and_sees_nothing_of_others(browser: Browser, board: Watched):
    async with connect(board.address, token="work") as remote, remote.session("test/Counter-v0") as session:
        await session.reset()
        [own] = [each["name"] for each in get(board, "/api/sessions", "work").json()["sessions"]]
        assert get(board, "/api/sessions", "look").json()["sessions"] == []
        assert get(board, f"/api/sessions/{own}/follow", "look").status_code == 404
        for path in (f"/api/sessions/{own}/end", "/api/server/drain", "/api/generators/drain"):
            refused = act(board, path, "look")
            assert (refused.status_code, "is for the role" in refused.text) == (403, True), refused.text
        assert act(board, "/api/server/drain", "work").status_code == 403
        assert [each["name"] for each in get(board, "/api/sessions", "work").json()["sessions"]] == [own]
        log_in(browser, board, "look")
        for at in ("#/", "#/sessions", "#/rollouts", "#/workers"):
            go(browser, at)
            browser.wait("document.querySelector('.tiles, .filters, .table')")
            assert browser.texts("button.act") == []
        assert "read-only" in browser.text("#stand")


async def test_draining_keys_themes_and_no_jumps(page: Browser, board: Watched):
    page.press("g", "w")
    page.wait("document.title.startsWith('Workers')")
    page.press("g", "o")
    page.wait("document.querySelector('.tile')")
    page.press("?")
    page.wait("document.querySelector('dialog[open] .keys')")
    page.press("Escape")
    page.wait("!document.querySelector('dialog')")
    light = page.colour("body")
    page.press("d")
    assert page.colour("body") != light
    page.press("d")
    page.show(dark=True)
    page.run("localStorage.clear(); delete document.documentElement.dataset.theme")
    dark = page.colour("body")
    assert dark != light
    go(page, "#/sessions")
    page.press("g", "s", "/")
    assert page.run("return document.activeElement.id") == "filter"
    page.press("Escape")
    assert page.run("return document.activeElement.id") != "filter"

    go(page, "#/")
    page.wait("document.querySelector('.chart path.line')")
    places = (
        "return [...document.querySelectorAll('.tile, .chart, .panel')]"
        ".map(e => JSON.stringify(e.getBoundingClientRect()))"
    )
    before = page.run(places)
    await play(board.address, "work", {"CartPole-v1": 2, "test/Counter-v0": 1}, steps=200)
    drawn = page.run("return known.state.time")
    page.wait(f"known.state.time > {drawn} + 3")
    assert page.run(places) == before
    unnamed = (
        "return [...document.querySelectorAll('button, a, input, select')].filter(e => !(e.innerText.trim() || "
        "e.ariaLabel || e.labels?.length)).map(e => e.outerHTML)"
    )
    assert page.run(unnamed) == []
    for width, phone in ((400, True), (1280, False), (3840, False)):
        page.show(width=width, height=800 if width < 3000 else 2160, phone=phone)
        page.wait("true")
        assert page.run("return document.documentElement.scrollWidth <= innerWidth"), f"it fits {width} px"
    page.show()

    page.click("#head .act")
    page.click("#confirm")
    page.wait("document.querySelector('#notice').innerText.includes('takes no new sessions')")
    assert get(board, "/api/state").json()["environments"]["draining"] is True
    page.wait("document.querySelector('#head .act').innerText === 'Resume'")
    page.click("#head .act")
    page.click("#confirm")
    page.wait("document.querySelector('#notice').hidden")
    assert (await play(board.address, "work", {"test/Counter-v0": 1}, steps=3))["test/Counter-v0"] == 3


def test_a_bad_token_gets_nothing(browser: Browser, board: Watched):
    figures = re.compile(r"gymhost_|\"steps\"|CartPole|capacity|uptime")
    open_to_all = ("/", "/static/app.js", "/healthz")
    paths = ("/metrics", "/api/state", "/api/history", "/api/sessions", "/api/failures", "/trajectories/x")
    with httpx.Client(base_url=board.url, trust_env=False) as http:
        for path in paths:
            answer = http.get(path)
            assert (answer.status_code, figures.search(answer.text)) == (401, None), path
        for path in open_to_all:
            assert http.get(path).status_code == 200, path
        assert not figures.search(http.get("/").text)
        browser.visit(f"{board.url}/healthz")
        browser.run("return fetch('/logout', {method: 'POST', headers: {'x-gymhost-act': '1'}}).then(r => r.status)")
        browser.visit(f"{board.url}/#/sessions")
        browser.wait("document.querySelector('#token')")
        browser.write("#token", "wrong")
        browser.click("#login button")
        browser.wait("document.querySelector('#login-said').innerText")
        assert browser.text("#login-said") == "This token is not valid on this server, or was revoked."
        assert browser.texts(".tiles, .table, nav") == []
        for path in paths[:4]:
            answer = http.get(path, headers={"authorization": "Bearer wrong"})
            assert answer.status_code in (401, 429)
            assert not figures.search(answer.text)
        # Whoever goes on guessing waits, with the right one too.
        answers = [http.get("/api/state", headers={"authorization": f"Bearer wrong{n}"}).status_code for n in range(4)]
        assert answers[-1] == 429
        waiting = http.get("/metrics", headers={"authorization": "Bearer boss"})
        assert waiting.status_code == 429
        assert int(waiting.headers["retry-after"]) >= 1
        assert "CartPole" not in json.dumps(dict(waiting.headers)) + waiting.text
    browser.complaints()  # of the 401s


def test_a_rollout_service_alone_has_one_too(browser: Browser, board: Watched, sampler: Sampler, tmp_path: Path):
    options = ("--rollouts", "--rollouts-address", "127.0.0.1:0", "--dashboard", "127.0.0.1:0")
    options += ("--generator", sampler.url)
    options += ("--tokenizer", tokenizer_folder(), "--renderer", "qwen3", "--environments", board.address)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    variables = environment(GYMHOST_ENVIRONMENTS_TOKEN="work", TMPDIR=str(scratch))
    with running([*COMMAND, "serve", *options], cwd=tmp_path, env=variables, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert "takes rollout jobs on" in process.stdout.readline()
        shown = re.search(r"shows all of it on (\S+)/\n", process.stdout.readline())
        assert shown
        [side] = scratch.glob("gymhost-side-*")
        assert side.stat().st_mode & 0o077 == 0
        browser.show()
        browser.visit(f"{shown[1]}/")
        browser.wait("document.querySelector('.tiles')")
        assert browser.texts("nav a") == ["Overview", "Rollouts"]
        assert browser.texts(".tile h2")[0] == "Rollouts"
        browser.wait("document.querySelector('.panel tbody tr .state.healthy')")
        assert httpx.get(f"{shown[1]}/api/state", trust_env=False).json()["environments"] is None
        assert "gymhost_generator_up" in httpx.get(f"{shown[1]}/metrics", trust_env=False).text
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert not side.exists()
    browser.complaints()


async def test_it_says_since_when_a_server_is_away(browser: Browser, tmp_path: Path):
    with watched(tmp_path) as alone:
        browser.show()
        browser.visit(f"{alone.url}/")
        browser.wait("document.querySelector('.tiles')")
        assert "No environment has run yet" in browser.text("#main")
        assert browser.texts("#logout") == []
        server = alone.serving.process
        server.send_signal(signal.SIGSTOP)
        try:
            browser.wait(
                "document.querySelector('#notice').innerText.includes('the environment server does not answer')"
            )
            assert re.match(r"Since \d\d:\d\d:\d\d the", browser.text("#notice"))
            assert browser.text("#stand") == "no answer"
        finally:
            server.send_signal(signal.SIGCONT)
        browser.wait("document.querySelector('#notice').hidden")
        server.kill()
        browser.wait("document.querySelector('#notice').innerText.includes(\"can't be reached\")")
        assert browser.text("#stand") == "no answer"
        assert browser.texts(".tile"), "what was known stays"
    browser.complaints()
