// Sessions one by one, and one of them turn by turn.
"use strict";

/** Turns that are kept on the page. */
const TURNS = 400;

function endSession(name, done) {
  return { title: `End session ${name}?`, words: "Its client is told, as if it had closed the session itself. What its environment has is lost.", verb: "End it",
    path: `/api/sessions/${encodeURIComponent(name)}/end`, reason: true, done };
}

function sessionsPage(root, _, query) {
  const table = dataTable({
    label: "Sessions", sort: "state_seconds", down: true, key: (row) => row.name,
    open: (row) => { location.hash = address("sessions", row.name); }, empty: "",
    columns: [
      { name: "name", title: "Session", text: true, value: (row) => row.name },
      { name: "environment_id", title: "Environment", text: true, value: (row) => row.environment_id },
      { name: "identity", title: "Whose", text: true, value: (row) => row.identity },
      { name: "label", title: "Label", text: true, value: (row) => row.label },
      { name: "state", title: "State", text: true, value: (row) => row.state, cell: (row) => h(`span.state.${row.state}`, {}, row.command ? `${row.state}: ${row.command}` : row.state) },
      { name: "state_seconds", title: "For", value: (row) => row.state_seconds, cell: (row) => span(row.state_seconds) },
      { name: "commands", title: "Commands", value: (row) => row.commands, cell: (row) => short(row.commands) },
      { name: "age_seconds", title: "Age", value: (row) => row.age_seconds, cell: (row) => span(row.age_seconds) },
      { name: "num_envs", title: "Copies", value: (row) => row.num_envs || 1 },
      { name: "worker", title: "Worker", value: (row) => row.worker },
      { name: "act", title: "", value: () => "", cell: (row) => actCell("End", mayAct(), () => endSession(row.name)) },
    ],
  });
  const form = filters({ placeholder: "Filter by name, label or identity", changed: () => again(), choices: [
    { name: "environment", label: "Environment", all: "all environments" }, { name: "state", label: "State", all: "all states" }] });
  form.offer("state", ["making", "running", "waiting", "closing"]);
  form.set("environment", query.get("environment") ?? "");
  fill(root, h("div.page", {}, h("h1", {}, "Sessions"), form, table));

  async function again() {
    const asked = new URLSearchParams({ environment: form.value("environment"), state: form.value("state"), limit: "500" });
    try {
      const { sessions, total } = await ask(`/api/sessions?${asked}`);
      const rows = sessions.filter((row) => `${row.name} ${row.label} ${row.identity} ${row.environment_id}`.toLowerCase().includes(form.text()));
      form.count(rows.length === total ? plural(total, "session") : `${number(rows.length)} of ${number(total)}`);
      table.say(total || form.value("environment") || form.value("state") ? "No session is like this."
        : mayRun() ? "No sessions: a client makes some by gymhost.client.connect(\"HOST:PORT\").session(\"CartPole-v1\")."
          : "You have no sessions here; those of others are for the role admin.");
      table.show(rows);
    } catch (error) {
      form.count("");
      table.say(`Sessions can't be listed: ${error.message}.`);
      table.show([]);
    }
  }
  repeat(table, again);
  return () => form.offer("environment", (environmentServer()?.environments ?? []).filter((row) => sessionsOf(row)).map((row) => row.environment_id));
}

function sessionPage(root, name) {
  const facts = h("dl.facts"), turns = h("div.turns", { role: "log", "aria-label": "Turns", tabindex: "0" }), stand = h("span.stand.muted", { role: "status" }, "connecting …");
  const acts = h("div.acts"), keep = h("input", { type: "checkbox", id: "keep-up", checked: true });
  const none = h("p.empty", {}, "Turns are shown from now on, as they come: its client has sent nothing since.");
  fill(root, h("div.page.session", {},
    h("header.page-head", {}, h("h1", {}, h("a", { href: "#/sessions" }, "Sessions"), " / ", h("code", {}, name)), stand, h("span.spring"),
      h("label", { for: "keep-up" }, keep, " keep up"), acts),
    facts, none, turns));
  let count = 0, missed = 0, over = false, source = null, tries = 0;

  function draw() {
    if (over) fill(acts);
    else if (!acts.childElementCount) fill(acts, actButton("End session", mayAct(), () => endSession(name)));
  }

  function say(words, tone = "") {
    stand.textContent = words;
    stand.dataset.tone = tone;
  }

  function introduce(session) {
    fill(facts, [
      ["Environment", h("a", { href: address("environments", session.environment_id) }, session.environment_id)], ["Whose", session.identity], ["Label", session.label],
      ["Commands before", number(session.commands)], ["Age", span(session.age_seconds)], ["Worker", session.worker], ["Copies", session.num_envs || null],
    ].filter(([, value]) => value || value === 0).map(([title, value]) => h("div", {}, h("dt", {}, title), h("dd", {}, value))));
  }

  function take(said) {
    if (said.session) introduce(said.session);
    if (said.missed) {
      missed += said.missed;
      turns.append(h("p.missed", {}, `${plural(said.missed, "turn")} came faster than they could be shown.`));
    }
    if (said.turns.length) {
      none.hidden = true;
      count += said.turns.length;
      turns.append(...said.turns.slice(-TURNS).map(turnView));
      while (turns.childElementCount > TURNS) turns.firstElementChild.remove();
    }
    if (said.ended || said.lost) {
      over = true;
      source.close();
      none.hidden = true;
      turns.append(h("p.ended", {}, said.ended ? `The session has ended: ${said.ended}` : `It is no longer followed: ${said.lost}`));
      say(said.ended ? "ended" : "lost", "bad");
      draw();
    } else say(`live · ${plural(count, "turn")}${missed ? `, ${number(missed)} missed` : ""}`, "good");
    if (keep.checked) turns.scrollTop = turns.scrollHeight;
  }

  function follow() {
    source = new EventSource(`/api/sessions/${encodeURIComponent(name)}/follow`);
    source.onmessage = (event) => {
      tries = 0;
      take(JSON.parse(event.data));
    };
    source.onerror = async () => {
      if (over || !root.contains(turns)) return source.close();
      source.close();
      // A stream does not say why it was refused; a request does.
      const response = await fetch(`/api/sessions/${encodeURIComponent(name)}/follow`, { headers: { accept: "text/event-stream" } }).catch(() => null);
      const why = response && !response.ok ? (await response.json().catch(() => ({}))).error : null;
      response?.body?.cancel().catch(() => {});
      if (!root.contains(turns)) return;
      if (why && response.status < 500 && response.status !== 429) {
        over = true;
        none.textContent = count ? "" : `It can't be followed: ${why}`;
        return say(count ? "ended" : "not followed", "bad");
      }
      say(`not followed: ${why ?? "the dashboard can't be reached"}; trying again`, "bad");
      setTimeout(() => root.contains(turns) && follow(), Math.min(1000 * 2 ** tries++, 15000));
    };
  }
  turns.addEventListener("wheel", (event) => { if (event.deltaY < 0) keep.checked = false; }, { passive: true });
  follow();
  draw.leave = () => {
    over = true;
    source.close();
  };
  return draw;
}
