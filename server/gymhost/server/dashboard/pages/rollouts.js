// Jobs, what they have played, and the generators that sample for them.
"use strict";

const OUTCOMES = ["terminated", "truncated", "failed", "cancelled"];
const OVER = ["finished", "cancelled", "expired"];
const doneOf = (job) => sum(OUTCOMES.map((outcome) => job[outcome]));
const totalOf = (job) => job.queued + job.in_flight + doneOf(job) + job.dropped;

function progress(job) {
  const parts = [
    ...OUTCOMES.map((outcome) => ({ label: outcome, kind: outcome, value: job[outcome], words: number(job[outcome]) })),
    { label: "dropped", kind: "dropped", value: job.dropped, words: number(job.dropped) },
    { label: "in flight", kind: "generation", value: job.in_flight, words: number(job.in_flight) },
    { label: "queued", kind: "queue", value: job.queued, words: number(job.queued) }];
  return h("div.progress", {}, stackedBar(parts, totalOf(job) || 1), h("span", {}, `${short(doneOf(job))} of ${short(totalOf(job))}`));
}

function cancelJob({ id }) {
  const job = rolloutService().listed.find((one) => one.id === id); // as it is when the button is pressed
  return { title: `Cancel job ${job.label || job.key}?`, words: `${plural(job.in_flight, "rollout")} in flight end, with results that say so; ${number(job.queued)} never begin.`,
    verb: "Cancel it", path: `/api/jobs/${encodeURIComponent(job.id)}/cancel` };
}

function jobsTable(brief) {
  const columns = [
    { name: "created", title: "Submitted", text: true, value: (row) => row.created, cell: (row) => clock(row.created) },
    { name: "name", title: "Job", text: true, value: (row) => row.label || row.key },
    { name: "state", title: "State", text: true, value: (row) => row.state, cell: (row) => h(`span.state.${row.state}`, { title: row.waits_for || null }, row.state) },
    { name: "done", title: "Rollouts", text: true, value: (row) => (totalOf(row) ? doneOf(row) / totalOf(row) : 0), cell: progress },
    { name: "reward", title: "Reward", value: (row) => row.mean_reward, cell: (row) => short(row.mean_reward) },
  ];
  if (brief) columns.shift();
  else {
    columns.splice(2, 0, { name: "env", title: "Environment", text: true, value: (row) => row.env_id }, { name: "identity", title: "Whose", text: true, value: (row) => row.identity });
    columns.push(
      { name: "tokens", title: "Tokens", value: (row) => row.sampled_tokens, cell: (row) => short(row.sampled_tokens) },
      { name: "results", title: "Results kept", about: "Results that wait to be acknowledged", value: (row) => row.unacknowledged },
      { name: "retries", title: "Retries", value: (row) => row.retries, cell: (row) => h("span", { title: row.last_fault || null }, short(row.retries)) },
      { name: "act", title: "", value: () => "", cell: (row) => actCell("Cancel", mayAct() && !OVER.includes(row.state), () => cancelJob(row)) });
  }
  return dataTable({ label: "Jobs", columns, sort: "created", down: true, key: (row) => row.id, open: (row) => { location.hash = address("jobs", row.id); },
    empty: "No jobs: a trainer submits some by RolloutClient(\"HOST:PORT\").run(...)." });
}

function generatorsTable(acts) {
  const columns = [
    { name: "name", title: "Generator", text: true, value: (row) => row.name },
    { name: "state", title: "State", text: true, value: generatorState, cell: (row) => h(`span.state.${generatorState(row)}`, { title: row.why || null }, generatorState(row)) },
    { name: "load", title: "Load", about: "Tokens in flight: prompts, and what may still be sampled", value: (row) => row.load, cell: (row) => short(row.load) },
    { name: "rate", title: "Tokens / s", value: (row) => row.tokens_per_second ?? null, cell: (row) => short(row.tokens_per_second ?? null) },
    { name: "hits", title: "Prefix hits", about: "The part of prompt tokens that it had in its cache", value: hitsOf, cell: (row) => percent(hitsOf(row)) },
  ];
  if (acts) {
    columns.splice(2, 0, { name: "requests", title: "Requests", value: (row) => row.requests });
    columns.push({ name: "policy", title: "Policy", value: (row) => row.policy_version }, { name: "url", title: "URL", text: true, value: (row) => row.url }, { name: "why", title: "Why not used", text: true, value: (row) => row.why },
      { name: "act", title: "", value: () => "", cell: (row) => actCell("Drain", mayRun() && !row.draining, () => ({
        title: `Drain generator ${row.name}?`, words: "It is sent nothing more; what is in flight there has 300 s, and goes on elsewhere then. Adding it again undoes this.",
        verb: "Drain it", path: "/api/generators/drain", body: { name: row.name } })) });
  }
  return dataTable({ label: "Generators", columns, key: (row) => row.name, empty: "No generators: jobs wait until there is one (--generator URL, or RolloutClient.add_generator)." });
}

const generatorState = (row) => (row.draining ? "draining" : !row.healthy ? "unhealthy" : !row.current ? "stale" : "healthy");
const hitsOf = (row) => (row.prompt_tokens ? row.cached_prompt_tokens / row.prompt_tokens : null);

function rolloutsPage(root) {
  const tiles = rolloutTiles(), charts = [STAGES, TOKENS, REWARD].map(lineChart), jobs = jobsTable(false), generators = generatorsTable(true);
  const waits = h("p.warn", { hidden: true });
  const form = filters({ placeholder: "Filter jobs", changed: () => draw(), choices: [{ name: "state", label: "State", all: "all states" }] });
  form.offer("state", ["queued", "running", "paused", "waiting", ...OVER]);
  fill(root, h("div.page", {}, h("h1", {}, "Rollouts"), waits, h("section.tiles", {}, tiles), h("section.charts", {}, charts),
    h("h1", {}, "Jobs"), form, jobs, h("h1", {}, "Generators"), generators));
  function draw() {
    const service = rolloutService();
    for (const part of [...tiles, ...charts]) part.draw();
    const all = service?.listed ?? [], state = form.value("state");
    const rows = all.filter((job) => (!state || job.state === state) && `${job.key} ${job.label} ${job.env_id} ${job.identity}`.toLowerCase().includes(form.text()));
    form.count(rows.length === all.length ? plural(all.length, "job") : `${rows.length} of ${all.length}`);
    jobs.show(rows);
    generators.show(service?.generators ?? []);
    waits.hidden = !service?.waits_for;
    waits.textContent = service?.waits_for ? `Nothing goes on: it waits for ${service.waits_for}` : "";
  }
  return draw;
}

function jobPage(root, id) {
  const facts = h("dl.facts"), bar = h("div.wide-progress"), acts = h("div.acts"), title = h("code", {}, id.slice(0, 8)), kept = h("p");
  let acted = null;
  const flights = dataTable({
    label: "Rollouts that have not ended", sort: "seconds", down: true, key: (row) => row.id, empty: "None of its rollouts is in flight or waits.",
    columns: [
      { name: "id", title: "Rollout", text: true, value: (row) => row.id }, { name: "group", title: "Group", text: true, value: (row) => row.group },
      { name: "stage", title: "Stage", text: true, value: (row) => row.stage, cell: (row) => h(`span.state.${row.stage}`, {}, row.stage) },
      { name: "turns", title: "Turns", value: (row) => row.turns }, { name: "tokens", title: "Tokens", value: (row) => row.sampled_tokens, cell: (row) => short(row.sampled_tokens) },
      { name: "attempts", title: "Attempts", value: (row) => row.attempts }, { name: "seconds", title: "For", value: (row) => row.seconds, cell: (row) => span(row.seconds) },
      { name: "act", title: "", value: () => "", cell: (row) => actCell("Cancel", mayAct(), () => ({ title: `Cancel rollout ${row.id}?`, words: "It ends, with a result that says so.", verb: "Cancel it", path: "/api/rollouts/cancel", body: { ids: [row.id] } })) },
    ],
  });
  fill(root, h("div.page", {}, h("header.page-head", {}, h("h1", {}, h("a", { href: "#/rollouts" }, "Rollouts"), " / ", title), h("span.spring"), acts), bar, facts, kept,
    h("h1", {}, "In flight and waiting"), flights));
  repeat(flights, async () => {
    try {
      flights.show((await ask(`/api/jobs/${encodeURIComponent(id)}/rollouts`)).rollouts);
    } catch (error) {
      flights.say(`They can't be listed: ${error.message}.`);
      flights.show([]);
    }
  });
  return () => {
    const job = rolloutService()?.listed.find((one) => one.id === id);
    if (!job) return rolloutService() ? fill(facts, h("p.empty", {}, "There is no such job, or none any more.")) : null;
    title.textContent = job.label || job.key;
    fill(bar, progress(job));
    fill(facts, [
      ["State", job.waits_for ? `${job.state}: waits for ${job.waits_for}` : job.state], ["Environment", job.env_id], ["Whose", job.identity], ["Key", job.key],
      ["Submitted", `${clock(job.created)} (${ago(job.created, now())})`], ["Samples of each task", job.samples], ["Groups wanted", job.target],
      ...OUTCOMES.map((outcome) => [outcome, number(job[outcome])]), ["Mean reward", job.mean_reward === null ? "–" : short(job.mean_reward)], ["Tokens sampled", short(job.sampled_tokens)],
      ["Retries", job.retries ? `${job.retries}: ${job.last_fault}` : "0"],
    ].filter(([, value]) => value !== null).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
    fill(kept, job.unacknowledged
      ? [h("a.button", { href: `/trajectories/${encodeURIComponent(id)}`, id: "open-trajectories" }, `Open ${plural(Math.min(job.unacknowledged, 512), "trajectory", "trajectories")}`),
        h("span.muted", {}, " as the trainer will get them; reading them here takes none away.")]
      : h("span.muted", {}, doneOf(job) ? "Its trainer has all its trajectories, and has acknowledged them: they are no longer kept here." : "Its trajectories can be opened here as they end."));
    const state = `${job.state} ${role()}`;
    if (state === acted) return;
    acted = state;
    const going = !OVER.includes(job.state);
    fill(acts,
      actButton("Pause", mayAct() && going && job.state !== "paused", () => ({ title: "Pause the job?", words: "It begins no more rollouts; those that have begun go on.", verb: "Pause it", path: `/api/jobs/${encodeURIComponent(id)}/pause` })),
      actButton("Resume", mayAct() && job.state === "paused", () => ({ title: "Have the job go on?", words: "It begins rollouts again.", verb: "Resume it", path: `/api/jobs/${encodeURIComponent(id)}/resume` })),
      actButton("Cancel job", mayAct() && going, () => cancelJob(job)));
  };
}
