"""The page of trajectories in a real browser, without a window and without a network."""

import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from gymhost.rollout.store import Store
from gymhost.rollout.trajectory import Outcome, Row, Trajectory, Turn
from gymhost.rollout.view import write_page
from support.browser import Browser, chromium
from support.varied_rollouts import HOSTILE, varied_store

pytestmark = pytest.mark.browser

LINES = "document.querySelectorAll('.line').length"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return varied_store(tmp_path_factory.mktemp("runs") / "first")


@pytest.fixture(scope="module")
def written(store: Store) -> Path:
    path = store.path / "view.html"
    return write_page(path, store, title="first", settings=store.settings, pieces=store.pieces).path


@pytest.fixture
def page(browser: Browser, written: Path) -> Iterator[Browser]:
    """The page of a varied store; whatever a test does there, the browser has nothing to complain of."""
    browser.show()
    browser.complaints()
    yield browser.open(written)
    assert browser.complaints() == []


def shown(page: Browser) -> str:
    return page.run("return document.querySelector('#reader').dataset.id")


def go(page: Browser, id: str, view: str) -> None:
    page.run("location.hash = arguments[0]", f"{urllib.parse.quote(id, safe='')}/{view}")
    page.wait(f"document.querySelector('#reader').dataset.id === {id!r}")
    page.wait(f"document.querySelector('#reader').dataset.view === '{view}'")


def found(page: Browser, words: str) -> None:
    page.wait(f"document.querySelector('.found').innerText.startsWith({words!r})")


def choose(page: Browser, name: str, value: str) -> None:
    page.run(
        "const e = document.querySelector(`select[name=${arguments[0]}]`); e.value = arguments[1];"
        "e.dispatchEvent(new Event('change'))",
        name,
        value,
    )


def test_it_opens_without_asking_for_anything(page: Browser, written: Path):
    page.requests()
    page.open(written)
    page.wait("document.querySelector('.message')")
    assert set(page.requests()) <= {"about:blank", written.as_uri()}
    assert page.text("#head").startswith("first\n30 rollouts\nmean reward 0.")
    assert "14 truncated" in page.text("#head")
    assert page.text("[data-view=messages][aria-pressed=true]") == "Messages"
    page.click("#head button")
    assert '"temperature": 1' in page.text("dialog[open]")


def test_filters(page: Browser, store: Store):
    trajectories = list(store)
    page.click("[data-outcome=failed]")
    assert page.text(".found").startswith("2 of 30")
    assert page.texts(".line .badge") == ["failed", "failed"]
    assert "the sandbox said:" in page.texts(".line")[0]
    page.click("[data-outcome=terminated]")
    won = sum(one.outcome.kind == "terminated" for one in trajectories)
    assert page.text(".found").startswith(f"{won + 2} of 30")
    page.click(".found .link")
    assert page.text(".found").startswith("all 30")

    choose(page, "limit", "turn_tokens")
    assert page.texts(".line .reward") == ["-0.5"]
    choose(page, "limit", "")
    choose(page, "failure", "infrastructure: Unavailable")
    assert page.texts(".line .flag") == ["try 3"]
    choose(page, "failure", "")
    choose(page, "env", "gymhost/Code-v0")
    assert page.text(".found").startswith("3 of 30")
    page.click(".found .link")

    page.write("[name=task]", "5")
    page.write("[name=group]", "g5")
    assert page.text(".found").startswith("4 of 30")
    page.click(".found .link")

    page.write("[name=min]", "0.1")
    page.write("[name=max]", "0.9")
    assert page.texts(".line .reward") == ["0.25"], "and none whose reward is not known"
    page.write("[name=min]", "7")
    assert page.text(".lines") == "No rollout is like this. Take a filter away."


def test_order(page: Browser, store: Store):
    def first() -> str:
        return page.run("return JSON.parse(document.getElementById('index').textContent).rollouts"
                        "[document.querySelector('.line').dataset.n].id")  # fmt: skip

    tokens = {one.id: one.sampled_tokens for one in store}
    choose(page, "sort", "tokens")
    assert tokens[first()] == 0
    page.click(".order")
    assert tokens[first()] == max(tokens.values())
    choose(page, "sort", "reward")
    rewards = [float(text) for text in page.texts(".line .reward")]
    assert rewards == sorted(rewards, reverse=True)
    page.click(".order")
    assert page.texts(".line .reward")[0] == "-0.5"
    page.run("document.querySelector('.list').scrollTop = 1e6")
    page.wait("[...document.querySelectorAll('.line .reward')].at(-1).innerText === '?'")


def test_search(page: Browser):
    page.press("/")
    page.write("#search", "PRINT(line.strip")
    found(page, "1 of 30")
    assert "Look-v0" in page.text(".line")
    marked = "CSS.highlights.has('found') ? [...CSS.highlights.get('found')].map(String) : []"
    page.click(".line")
    page.wait("document.querySelector('#reader').dataset.id === 'picture'")
    assert page.run(f"return {marked}") == ["print(line.strip"]
    page.write("#search", "halving what is left")
    go(page, "guess-0-0", "messages")
    page.wait(f"({marked}).length > 2")
    assert page.run("return document.querySelector('.reasoning').open"), "what was found is unfolded"
    page.write("#search", "No Worker answered")
    found(page, "1 of 30")
    page.write("#search", 'onerror="document')
    found(page, "1 of 30")
    page.press("Escape")
    assert page.run("return document.activeElement.id") != "search"


def test_a_rollout_is_read(page: Browser, store: Store):
    page.click(".line:nth-child(6)")
    page.wait("document.querySelector('#reader').dataset.id === 'guess-1-1'")
    trajectory = next(one for one in store if one.id == "guess-1-1")
    assert page.texts(".message > header > b:first-child") == [message["role"] for message in trajectory.messages]
    head = page.text(".title")
    assert "gymhost/GuessNumber-v0" in head
    assert "train · task 1 · seed 7 · group g1, number 1" in head
    assert "truncated: turns" in head
    assert page.texts(".rubrics dt") == ["solved", "economy"]
    first, second = page.texts("[data-role=assistant]")[:2]
    assert "turn 1" in first
    assert f"{trajectory.turns[0].tokens} tokens · generated in" in first
    assert "policy 40 · vllm-1" in first
    assert "policy 40 (mixed)" in second
    assert page.text("[data-role=assistant] .call").split() == ["guess", "number", "50"]
    assert not page.run("return document.querySelector('.reasoning').open")
    page.click(".reasoning summary")
    assert trajectory.messages[2]["reasoning_content"] in page.text(".reasoning")
    parts = page.run("return [...document.querySelectorAll('.timeline span')].map(e => e.title)")
    assert [part.split(":")[0] for part in parts][:4] == ["queue", "init", "turn 1, generation", "turn 1, environment"]
    assert parts[-1] == f"eval: {1000 * trajectory.timings.eval:.2g} ms"
    page.click("[data-view=record]")
    page.wait("document.querySelector('.record')")
    assert '"secret"' in page.text(".record")


def test_what_is_rare(page: Browser):
    go(page, "failed", "messages")
    assert page.text(".note.failed").startswith("Failed in turn 2, by the environment. ToolError: the sandbox said:")
    assert "reward not known" in page.text(".title")
    go(page, "never-begun", "messages")
    assert "Nothing was said" in page.text(".content")
    go(page, "never-begun", "tokens")
    assert "There are no tokens" in page.text(".content")
    go(page, "cancelled", "group")
    assert "This rollout is alone" in page.text(".content")
    go(page, "picture", "messages")
    assert page.run("return document.querySelector('.message img').naturalWidth") == 16
    assert "not shown: https://example.invalid/picture.png" in page.texts("[data-role=user]")[1]
    code, look = page.texts(".call")
    assert "for line in sys.stdin:\n    print(line.strip())" in code
    assert look.split("\n") == ["look", "malformed call", '{"at": "the left']
    assert "line 299" not in page.text("[data-role=tool]")
    page.click(".more")
    assert "line 299" in page.text("[data-role=tool]")


def test_tokens_have_their_colours_and_facts(browser: Browser, tmp_path: Path):
    row = Row(prompt_ids=[1, 2])
    row.append_sampled([3, 4, 5], [-0.01, -1.5, -9.0], [7, 7, 8])
    row.append_environment([6])
    row.append_sampled([4], [float("-inf")], [8])
    turns = [Turn(row=0, start=0, tokens=3, policy_version=7), Turn(row=0, start=4, tokens=1, policy_version=8)]
    pieces = {1: "<s>", 2: "Go", 3: " on", 4: "\n", 6: '"'}
    trajectory = Trajectory(
        env_id="A-v0", id="known", token_rows=[row], turns=turns, outcome=Outcome(kind="terminated"), reward=1.0
    )
    browser.show()
    browser.open(write_page(tmp_path / "page.html", [trajectory], pieces=pieces).path, "#known/tokens")
    browser.wait("document.querySelector('.token-text .t')")

    def classes() -> list[str]:
        return browser.run("return [...document.querySelectorAll('.token-text .t')].map(e => e.className.slice(2))")

    def facts() -> dict[str, str]:
        assert not browser.run("return document.querySelector('#tip').hidden")
        return dict(zip(browser.texts("#tip dt"), browser.texts("#tip dd"), strict=True))

    assert classes() == ["prompt", "prompt", "p0", "p3", "p5 unknown", "env", "p5"]
    assert browser.texts(".token-text .t") == ["<s>", "Go", " on", "↵\n", "5", '"', "↵\n"]
    assert browser.texts(".mark") == ["turn 1", "turn 2"]
    assert "7 tokens: 2 of the prompt, 4 sampled, 1 of the environment" in browser.text(".row-body")
    own, certain = browser.colour(".token-text .p5"), browser.colour(".token-text .p0")
    assert own == browser.colour(".legend .p5") != certain == browser.colour(".legend .p0")
    browser.hover("[data-i='3']")
    assert facts() == {"id": "4", "text": '"\\n"', "place": "3", "log-prob": "-1.5  (22.3 %)", "version": "7"}
    browser.hover("[data-i='5']")
    assert facts() == {"id": "6", "text": '"\\""', "place": "5", "of": "the environment"}
    browser.click("[data-i='1']")
    assert facts()["of"] == "the prompt"
    browser.press("ArrowRight", "ArrowRight", "ArrowRight")
    assert facts() == {
        "id": "5",
        "text": "not in the store",
        "place": "4",
        "log-prob": "-9  (under 0.1 %)",
        "version": "8",
    }
    browser.press("ArrowRight", "ArrowRight")
    assert facts()["log-prob"] == "none"
    browser.click("[data-value=mask]")
    assert classes() == ["prompt", "prompt", "own", "own", "own unknown", "env", "own"]
    browser.click("[data-value=version]")
    assert classes() == ["prompt", "prompt", "v1", "v1", "v2 unknown", "env", "v2"]
    assert browser.texts(".row-body .legend span")[2:4] == ["ab\nversion 7", "ab\nversion 8"]
    assert browser.complaints() == []


def test_a_turn_s_tokens_and_rewritten_history(page: Browser):
    go(page, "guess-0-1", "messages")
    page.click("[data-role=assistant]:nth-of-type(7) .link")
    page.wait("document.querySelector('.mark') && document.querySelector('#reader').scrollTop > 0")
    assert page.run("return document.querySelector('[data-turn=\"2\"]').getBoundingClientRect().top") < 300
    go(page, "rewritten", "tokens")
    assert "this rollout has 2 rows" in page.text(".controls")
    assert "The first 52 are those of row 1." in page.text(".row-body")
    assert page.texts(".mark") == ["turn 2"]
    page.click("[aria-label=Row] [data-value='0']")
    assert page.texts(".mark") == ["turn 1"]


def test_thousands_of_rollouts_and_tokens_are_drawn_as_they_come_into_sight(browser: Browser, tmp_path: Path):
    row = Row(prompt_ids=[1])
    row.append_sampled([2] * 9000, [-0.5] * 9000, [0] * 9000)
    long = Trajectory(env_id="A-v0", id="long", token_rows=[row], turns=[Turn(row=0, start=0, tokens=9000)])
    many = [long, *(Trajectory(env_id="A-v0", task=task) for task in range(2000))]
    browser.show()
    browser.open(write_page(tmp_path / "page.html", many, pieces={2: "word "}).path, "#long/tokens")
    browser.wait("document.querySelector('.token-text')")
    assert browser.run(f"return {LINES}") < 30
    browser.run("document.querySelector('.list').scrollTop = 1500 * 54")
    browser.wait("[...document.querySelectorAll('.line')].some(e => e.innerText.includes('task 1500'))")
    assert browser.run(f"return {LINES}") < 30
    drawn = "document.querySelectorAll('.token-text .t').length"
    assert browser.run(f"return {drawn}") < 9001
    for _ in range(5):
        browser.run("const reader = document.querySelector('#reader'); reader.scrollTop = reader.scrollHeight")
        browser.run("return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
    browser.wait(f"{drawn} === 9001")


def test_a_group_side_by_side(page: Browser, store: Store):
    go(page, "guess-1-1", "group")
    members = [one for one in store if one.group == "g1"]
    rows = [row.split("\t") for row in page.texts(".group tbody tr")]
    assert [row[2:4] for row in rows] == [
        ["truncated: turns" if one.reward == 0 else "terminated", f"{one.reward:g}"] for one in members
    ]
    assert [int(row[6]) for row in rows] == [len(one.turns) for one in members]
    assert [row[-1] for row in rows] == ["in turn 1", "\u2013", "in turn 1", "in turn 1"]
    assert page.text(".common summary") == "The first 2 messages are the same in all; they part in turn 1."
    assert page.texts(".cell.title")[0].startswith("#0 terminated reward 1")
    assert len(page.texts(".cell.title")) == 4
    page.click("tbody tr:nth-child(1) input")
    assert len(page.texts(".cell.title")) == 3
    page.click("tbody tr:nth-child(3) .link")
    page.wait("document.querySelector('#reader').dataset.id === 'guess-1-2'")


def test_hostile_text_is_text(page: Browser):
    go(page, f"hostile {HOSTILE}", "messages")
    assert HOSTILE.replace("\u2028", "") in page.text(".message").replace("\u2028", "").replace("\n", "")
    for view in ("tokens", "group", "record"):
        go(page, f"hostile {HOSTILE}", view)
    page.click("#head button")
    assert page.run("return document.title") == "first · gymhost view"
    assert page.run("return document.querySelectorAll('img, [onerror]').length") == 0
    assert "that this browser can't show" not in page.text("body")


def test_the_policy_stops_a_script_that_gets_in_all_the_same(page: Browser):
    page.run(
        "const script = document.createElement('script'); script.textContent = 'document.title = \"owned\"';"
        "document.body.append(script);"
        "const image = new Image(); image.setAttribute('onerror', 'document.title = \"owned\"');"
        "image.src = 'file:///nowhere.png'; document.body.append(image)"
    )
    page.wait("document.images[0].complete")
    assert page.run("return document.title") == "first · gymhost view"
    assert len([said for said in page.complaints() if "Content Security Policy" in said]) >= 2


def test_dark_and_light(page: Browser, written: Path):
    def light() -> float:
        return page.run("return Number(getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/)[0])")

    page.run("localStorage.clear()")
    assert light() > 200
    page.show(dark=True)
    assert light() < 50
    page.click("#theme")
    assert light() > 200
    page.press("d")
    assert light() < 50
    page.show(dark=False)
    page.open(written)
    assert light() < 50, "what was chosen is remembered"
    page.run("localStorage.clear()")


def test_keys(page: Browser):
    page.wait("document.querySelector('#reader').dataset.id === 'guess-0-0'")
    page.press("j", "j", "k")
    page.wait("document.querySelector('#reader').dataset.id === 'guess-0-1'")
    assert page.run("return document.querySelector('[aria-selected=true]').dataset.n") == "1"
    for key, view in (("t", "tokens"), ("g", "group"), ("r", "record"), ("m", "messages"), ("t", "tokens")):
        page.press(key)
        page.wait(f"document.querySelector('#reader').dataset.view === '{view}'")
    page.press("j")
    page.wait("document.querySelector('#reader').dataset.id === 'guess-0-2'")
    assert page.run("return document.querySelector('#reader').dataset.view") == "tokens", "the view stays"
    page.press("?")
    assert "the next rollout" in page.text("dialog[open]")
    page.press("Escape")
    page.press("Escape")
    page.wait("document.querySelector('#reader').innerText === 'Choose a rollout from the list.'")
    page.press("/", "j")
    assert page.run("return document.querySelector('#search').value") == "j", "keys are letters in a field"


def test_a_phone_shows_one_thing_at_a_time(browser: Browser, written: Path):
    browser.show(width=390, height=844, phone=True)
    browser.open(written)
    visible = "return document.querySelector(arguments[0]).offsetWidth > 0"
    assert browser.run(visible, "#side")
    assert not browser.run(visible, "#reader")
    browser.click(".line:nth-child(2)")
    browser.wait("document.querySelector('.message')")
    assert browser.run(visible, "#reader")
    assert not browser.run(visible, "#side")
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    browser.click(".back")
    browser.wait("document.body.dataset.screen === 'list'")
    assert browser.complaints() == []


def test_integers_are_what_they_were(browser: Browser, tmp_path: Path):
    seed = 2**63 + 1
    trajectory = Trajectory(env_id="A-v0", id="a", seed=seed, info={"state": seed}, outcome=Outcome(kind="terminated"))
    browser.show()
    browser.open(write_page(tmp_path / "page.html", [trajectory]).path, "#a/record")
    browser.wait("document.querySelector('.record')")
    assert f"seed {seed}" in browser.text(".title")
    assert f'"state": "{seed}"' in browser.text(".record")


def test_an_empty_store_and_a_page_that_was_cut_off(browser: Browser, tmp_path: Path):
    browser.show()
    path = write_page(tmp_path / "page.html", []).path
    assert "There is no rollout in this page" in browser.open(path).text("#reader")
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"rollouts":[]', '"rollouts":['), encoding="utf-8")
    assert "The page's data can't be read" in browser.open(path).text("#reader")
    one = write_page(tmp_path / "page.html", [Trajectory(env_id="A-v0", id="a")], max_bytes=10**6).path
    text = one.read_text(encoding="utf-8")
    one.write_text(text.replace('id="conversation-0">', 'id="conversation-0">A'), encoding="utf-8")
    assert "This rollout can't be shown" in browser.open(one, "#a/messages").text("#reader")


def test_what_was_left_out_is_said_in_the_page(browser: Browser, store: Store, tmp_path: Path):
    browser.show()
    browser.open(write_page(tmp_path / "page.html", store, limit=4).path)
    assert "26 more are beyond the limit that was asked for" in browser.text(".left-out")
