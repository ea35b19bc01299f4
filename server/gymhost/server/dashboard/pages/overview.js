// All of it at a glance.
"use strict";

/** Where the time of rollouts goes, in the colours of the viewer; and of sessions, where no rollouts are played here. */
const ROLLOUT_STAGES = [["queue", "queue"], ["init", "init"], ["generation", "generation"], ["environment", "environment"], ["eval", "eval"]];
const SESSION_STAGES = [["queue", "queue"], ["make", "init"], ["reset", "reset"], ["step", "environment"], ["evaluate", "eval"], ["close", "close"]];

const LATENCY = { title: "Step latency", words: span, lines: [
  { server: "environments", name: "step_p50_seconds", label: "p50", kind: "k1" }, { server: "environments", name: "step_p99_seconds", label: "p99", kind: "k3" }] };
const STEPS = { title: "Steps a second", words: short, lines: [{ server: "environments", name: "steps_per_second", label: "", kind: "k1" }] };
const SESSIONS = { title: "Sessions", words: short, lines: [
  { server: "environments", name: "sessions", label: "all", kind: "k2" }, { server: "environments", name: "running", label: "running", kind: "k1" },
  { server: "environments", name: "queued", label: "queued", kind: "k3" }] };
const STAGES = { title: "Rollouts by stage", words: short, lines: [
  { server: "rollouts", name: "run", label: "run", kind: "k1" }, { server: "rollouts", name: "init", label: "init", kind: "k2" },
  { server: "rollouts", name: "eval", label: "eval", kind: "k4" }, { server: "rollouts", name: "queued", label: "queued", kind: "k3" }] };
const TOKENS = { title: "Tokens sampled a second", words: short, lines: [{ server: "rollouts", name: "tokens_per_second", label: "", kind: "k1" }] };
const REWARD = { title: "Mean reward", words: short, lines: [{ server: "rollouts", name: "reward", label: "", kind: "k2" }] };

const sessionsOf = (environment) => environment.making + environment.running + environment.waiting + environment.closing;
const failuresOf = (environment) => sum(Object.values(environment.failures));
const over = (name) => sum((environmentServer()?.environments ?? []).map((environment) => environment[name]));

function overviewPage(root) {
  const environments = Boolean(known.state.environments), rollouts = Boolean(known.state.rollouts);
  const tiles = environments ? environmentTiles() : rolloutTiles();
  const charts = [...(environments ? [SESSIONS, STEPS, LATENCY] : []), ...(rollouts ? [STAGES, TOKENS, REWARD] : [])].map(lineChart);
  const panels = [stagesPanel(), environments ? slowPanel() : null, environments ? failuresPanel() : null,
    rollouts ? jobsPanel() : null, rollouts ? generatorsPanel() : null, environments ? workersPanel() : null].filter(Boolean);
  fill(root, h("div.overview", {}, h("section.tiles", { "aria-label": "Figures" }, tiles), h("section.charts", { "aria-label": "The last hour" }, charts),
    h("section.panels", {}, panels)));
  return () => {
    for (const part of [...tiles, ...charts, ...panels]) part.draw();
  };
}

function environmentTiles() {
  const drawing = (element, draw) => Object.assign(element, { draw });
  const from = (name) => ({ server: "environments", name });
  const sessions = tile("Sessions", from("sessions")), queue = tile("Queue", { ...from("queued"), kind: "k3" });
  const steps = tile("Steps / s", from("steps_per_second")), latency = tile("Step p50", from("step_p50_seconds"));
  const failed = tile("Failures / s", { ...from("failures_per_second"), kind: "k5" }), cpu = tile("CPU", { ...from("cpu"), kind: "k2" });
  const memory = tile("Memory", { ...from("memory_bytes"), kind: "k2" }), sandboxes = tile("Sandboxes", { ...from("sandboxes"), kind: "k4" });
  const server = () => environmentServer();
  return [
    drawing(sessions, () => sessions.say(short(server() && over("making") + over("running") + over("waiting") + over("closing")), `${short(over("running"))} run, ${short(over("waiting"))} wait`)),
    drawing(queue, () => queue.say(short(server()?.queued ?? null), server() ? `${short(server().taken)} of ${short(server().capacity)} places` : "", server()?.queued ? "warn" : "")),
    drawing(steps, () => steps.say(short(lastly("environments", "steps_per_second")), `${short(over("steps"))} so far`)),
    drawing(latency, () => latency.say(span(lastly("environments", "step_p50_seconds")), `p99 ${span(lastly("environments", "step_p99_seconds"))}`)),
    drawing(failed, () => failed.say(short(lastly("environments", "failures_per_second")), `${short(sum((server()?.environments ?? []).map(failuresOf)))} so far`,
      lastly("environments", "failures_per_second") ? "bad" : "")),
    drawing(cpu, () => cpu.say(short(lastly("environments", "cpu")), `cores, ${plural(server()?.workers.length ?? 0, "worker")}`)),
    drawing(memory, () => memory.say(bytes(server() ? server().memory_bytes + sum(server().workers.map((worker) => worker.memory_bytes)) : null),
      `${server()?.worker_deaths ? plural(server().worker_deaths, "worker") : "no worker"} died`)),
    drawing(sandboxes, () => {
      const all = (server()?.workers ?? []).flatMap((worker) => worker.sandboxes);
      sandboxes.say(short(sum(all.map((each) => each.live))), `${short(sum(all.map((each) => each.making)))} being made`);
    }),
  ];
}

function rolloutTiles() {
  const drawing = (element, draw) => Object.assign(element, { draw });
  const from = (name) => ({ server: "rollouts", name });
  const service = () => rolloutService();
  const running = tile("Rollouts", from("run")), queue = tile("Queue", { ...from("queued"), kind: "k3" });
  const tokens = tile("Tokens / s", from("tokens_per_second")), reward = tile("Mean reward", { ...from("reward"), kind: "k2" });
  const ended = tile("Ended / s", from("ended_per_second")), failed = tile("Failed / s", { ...from("failed_per_second"), kind: "k5" });
  const hits = tile("Prefix hits", { ...from("prefix_hits"), kind: "k4" }), policy = tile("Policy version");
  return [
    drawing(running, () => running.say(short(service()?.run ?? null), service() ? `${short(service().generating)} sampling` : "")),
    drawing(queue, () => queue.say(short(service()?.queued ?? null), service() ? plural(service().jobs, "job") : "")),
    drawing(tokens, () => tokens.say(short(lastly("rollouts", "tokens_per_second")), `${short(service()?.sampled_tokens ?? null)} so far`)),
    drawing(reward, () => reward.say(short(lastly("rollouts", "reward")))),
    drawing(ended, () => ended.say(short(lastly("rollouts", "ended_per_second")), `${short(service()?.ended ?? null)} so far`)),
    drawing(failed, () => failed.say(short(lastly("rollouts", "failed_per_second")), service() ? plural(service().retries, "retry", "retries") : "", lastly("rollouts", "failed_per_second") ? "bad" : "")),
    drawing(hits, () => hits.say(percent(lastly("rollouts", "prefix_hits")), "of prompt tokens")),
    drawing(policy, () => policy.say(short(service()?.policy_version ?? null), service() ? plural(service().generators.length, "generator") : "")),
  ];
}

function panel(title, where, content) {
  return h("section.panel", { "aria-label": title }, h("header", {}, h("h2", {}, title), h("span.spring"), where ? h("a", { href: where }, "All") : null), content);
}

function stagesPanel() {
  const list = h("div.stacks"), legend = h("p.legend");
  const element = panel("Where the time goes", null, [list, legend]);
  element.draw = () => {
    const of = rolloutService()?.environments?.length ? rolloutService().environments : environmentServer()?.environments ?? [];
    const stages = of === rolloutService()?.environments ? ROLLOUT_STAGES : SESSION_STAGES;
    const rows = of.map((environment) => ({
      id: environment.environment_id ?? environment.env_id,
      parts: stages.map(([name, kind]) => ({ label: name, kind, value: environment.stages[name]?.sum ?? 0, words: span(environment.stages[name]?.sum ?? 0) })),
    })).map((row) => ({ ...row, whole: sum(row.parts.map(({ value }) => value)) })).filter(({ whole }) => whole > 0)
      .sort((a, b) => b.whole - a.whole).slice(0, 7);
    if (!rows.length) return fill(list, h("p.empty", {}, "Nothing has taken any time yet."));
    fill(list, rows.map(({ id, parts, whole }) => h("div.row", {}, h("a", { href: address("environments", id), title: id }, id), stackedBar(parts), h("span", {}, span(whole)))));
    fill(legend, stages.map(([name, kind]) => h("span", {}, h(`i.${kind}`), name)));
  };
  return element;
}

function slowPanel() {
  const table = dataTable({
    label: "Slowest and failing environments", sort: "p99", down: true, key: (row) => row.environment_id,
    open: (row) => { location.hash = address("environments", row.environment_id); },
    empty: "No environment has run yet: a client makes a session by gymhost.client.connect(...).session(...).",
    columns: [
      { name: "id", title: "Environment", text: true, value: (row) => row.environment_id },
      { name: "p50", title: "p50", about: "Half of the steps took no longer", value: (row) => row.stages.step?.p50 ?? null, cell: (row) => span(row.stages.step?.count ? row.stages.step.p50 : null) },
      { name: "p99", title: "p99", value: (row) => (row.stages.step?.count ? row.stages.step.p99 : null), cell: (row) => span(row.stages.step?.count ? row.stages.step.p99 : null) },
      { name: "failures", title: "Failed", value: failuresOf, cell: (row) => failedCell(failuresOf(row)) },
    ],
  });
  const element = panel("Slowest and failing environments", "#/environments", table);
  element.draw = () => table.show((environmentServer()?.environments ?? []).filter((row) => row.created || row.steps)
    .sort((a, b) => failuresOf(b) - failuresOf(a) || (b.stages.step?.p99 ?? 0) - (a.stages.step?.p99 ?? 0)).slice(0, 7));
  return element;
}

const failedCell = (count) => h(count ? "span.bad" : "span", {}, short(count));

/** What failed, in a line. */
function failureWords({ exception, message }) {
  const first = message.split("\n")[0];
  return exception && !first.startsWith(exception) ? `${exception}: ${first}` : first;
}

function failureLine(failure) {
  return h("button.failure", { type: "button", onclick: () => showFailure(failure) },
    h("span.when", {}, clock(failure.time)), h("span.what", {}, h("b", {}, failure.environment_id), " ", h("span.muted", {}, failure.command)),
    h("span.why", {}, failureWords(failure)), failure.repeated ? h("span.flag", {}, `+${short(failure.repeated)}`) : null);
}

/** The last failures, asked for while the element is shown. */
function failureList(environment, most) {
  const list = h("div.failures");
  let shown = null;
  repeat(list, async () => {
    try {
      const { failures } = await ask(`/api/failures?environment=${encodeURIComponent(environment)}`);
      const text = JSON.stringify(failures);
      if (text === shown) return;
      shown = text;
      fill(list, failures.length ? failures.slice(0, most).map(failureLine) : h("p.empty", {}, mayRun() ? "Nothing has failed." : "Nothing of yours has failed; what is of others is for the role admin."));
    } catch (error) {
      shown = null;
      fill(list, h("p.empty", {}, `Failures can't be listed: ${error.message}.`));
    }
  });
  return list;
}

function failuresPanel() {
  const element = panel("Last failures", "#/failures", failureList("", 8));
  element.draw = () => {};
  return element;
}

function jobsPanel() {
  const table = jobsTable(true);
  const element = panel("Jobs", "#/rollouts", table);
  element.draw = () => table.show((rolloutService()?.listed ?? []).slice(0, 7));
  return element;
}

function generatorsPanel() {
  const table = generatorsTable(false);
  const element = panel("Generators", "#/rollouts", table);
  element.draw = () => table.show(rolloutService()?.generators ?? []);
  return element;
}

function workersPanel() {
  const table = workersTable(true);
  const element = panel("Workers", "#/workers", table);
  element.draw = () => table.show(environmentServer()?.workers ?? []);
  return element;
}

function failuresPage(root) {
  fill(root, h("div.page", {}, h("h1", {}, "Failures"), h("p.muted", {}, "The last 200, and of each environment the last 20. One opens with its traceback."), h("section.sheet", {}, failureList("", 200))));
  return () => {};
}
