// What is hosted, and how each of it fares.
"use strict";

function environmentsPage(root) {
  const table = dataTable({
    label: "Environments", sort: "sessions", down: true, key: (row) => row.environment_id,
    open: (row) => { location.hash = address("environments", row.environment_id); }, empty: "",
    columns: [
      { name: "id", title: "Environment", text: true, value: (row) => row.environment_id },
      { name: "sessions", title: "Sessions", value: sessionsOf },
      { name: "running", title: "Running", value: (row) => row.running },
      { name: "created", title: "Made", about: "Sessions that were made", value: (row) => row.created, cell: (row) => short(row.created) },
      { name: "steps", title: "Steps", value: (row) => row.steps, cell: (row) => short(row.steps) },
      { name: "p50", title: "Step p50", value: (row) => (row.stages.step?.count ? row.stages.step.p50 : null), cell: (row) => span(row.stages.step?.count ? row.stages.step.p50 : null) },
      { name: "p99", title: "Step p99", value: (row) => (row.stages.step?.count ? row.stages.step.p99 : null), cell: (row) => span(row.stages.step?.count ? row.stages.step.p99 : null) },
      { name: "reward", title: "Reward", about: "The mean of episodes that ended", value: meanOf, cell: (row) => short(meanOf(row)) },
      { name: "failures", title: "Failed", about: "Commands that failed", value: failuresOf, cell: (row) => failedCell(failuresOf(row)) },
      { name: "lost", title: "Lost", about: "Sessions that were lost", value: (row) => row.lost, cell: (row) => failedCell(row.lost) },
    ],
  });
  const form = filters({ placeholder: "Filter environments", changed: () => draw(), choices: [{ name: "which", label: "Which", all: "all" }] });
  form.offer("which", ["failing", "used"]);
  fill(root, h("div.page", {}, h("h1", {}, "Environments"), form, table, problems()));

  function draw() {
    const all = environmentServer()?.environments ?? [];
    const which = form.value("which");
    const rows = all.filter((row) => row.environment_id.toLowerCase().includes(form.text()))
      .filter((row) => which === "" || (which === "failing" ? failuresOf(row) + row.lost > 0 : row.created > 0));
    form.count(rows.length === all.length ? plural(all.length, "environment") : `${rows.length} of ${all.length}`);
    table.say(all.length ? "No environment is like this." : "No environment has been used since the server was started. A client makes a session by gymhost.client.connect(...).session(...).");
    table.show(rows);
  }
  return draw;
}

const meanOf = (row) => (row.rewarded ? row.rewards / row.rewarded : null);

function problems() {
  const said = environmentServer()?.problems ?? [];
  return said.length ? h("section", {}, h("h2", {}, "What could not be loaded"), h("pre.traceback", { tabindex: "0" }, said.join("\n\n"))) : null;
}

function environmentPage(root, id) {
  const facts = h("dl.facts"), stages = h("tbody"), codes = h("div.codes");
  const stack = h("div.stacks"), legend = h("p.legend", {}, SESSION_STAGES.map(([name, kind]) => h("span", {}, h(`i.${kind}`), name)));
  fill(root, h("div.page", {},
    h("h1", {}, h("a", { href: "#/environments" }, "Environments"), " / ", h("code", {}, id)),
    h("p", {}, h("a", { href: `#/sessions?environment=${encodeURIComponent(id)}` }, "Its sessions")), facts,
    h("div.columns", {},
      h("section.panel", {}, h("header", {}, h("h2", {}, "Stages")), h("div.table", {}, h("table.stages", {}, h("thead", {}, h("tr", {}, ["Stage", "Count", "Total", "Mean", "p50", "p99"].map((title, i) => h("th", { scope: "col", class: i ? null : "words" }, title)))), stages)), stack, legend),
      h("section.panel", {}, h("header", {}, h("h2", {}, "Failures")), codes, failureList(id, 20)))));
  return () => {
    const row = environmentServer()?.environments.find((one) => one.environment_id === id);
    if (!row) return fill(facts, h("p.empty", {}, environmentServer() ? "Nothing of this environment has run since the server was started." : ""));
    const spread = row.rewarded > 1 ? Math.sqrt(Math.max(0, row.rewards_squared / row.rewarded - meanOf(row) ** 2)) : null;
    fill(facts, [
      ["Sessions now", `${sessionsOf(row)} (${row.making} being made, ${row.running} run, ${row.waiting} wait, ${row.closing} being closed)`],
      ["Made", short(row.created)], ["Closed", short(row.closed)], ["Expired", short(row.expired)], ["Lost", short(row.lost)],
      ["Steps", short(row.steps)], ["Resets", short(row.resets)], ["Episodes", `${short(row.terminated)} terminated, ${short(row.truncated)} truncated`],
      ["Mean reward", row.rewarded ? `${short(meanOf(row))}${spread === null ? "" : ` ± ${short(spread)}`}` : "–"],
      ["Received", bytes(row.received_bytes)], ["Sent", bytes(row.sent_bytes)],
    ].map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
    fill(stages, SESSION_STAGES.map(([name]) => [name, row.stages[name]]).filter(([, took]) => took?.count).map(([name, took]) => h("tr", {},
      h("td.words", {}, name), [short(took.count), span(took.sum), span(took.sum / took.count), span(took.p50), span(took.p99)].map((text) => h("td", {}, text)))));
    const parts = SESSION_STAGES.map(([name, kind]) => ({ label: name, kind, value: row.stages[name]?.sum ?? 0, words: span(row.stages[name]?.sum ?? 0) }));
    fill(stack, stackedBar(parts));
    fill(codes, Object.entries(row.failures).filter(([, count]) => count).sort((a, b) => b[1] - a[1]).map(([code, count]) => h("span.chip", {}, h("b.bad", {}, short(count)), " ", code)));
  };
}
