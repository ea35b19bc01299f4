// What the page knows, and how it gets it: the state of the servers every two seconds, and their history.
"use strict";

const EVERY = 2000;
// While the page is not looked at.
const HIDDEN = 15000;
const HOUR = 3600;

class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Asks the dashboard for something, or has it do something if there is a body. */
async function ask(path, body) {
  const how = body === undefined ? {} : {
    method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json", "x-gymhost-act": "1" },
  };
  let response;
  try {
    response = await fetch(path, { ...how, signal: AbortSignal.timeout(20000), cache: "no-store" });
  } catch (error) {
    throw new Refused(0, error.name === "TimeoutError" ? "the dashboard took more than 20 s to answer" : "the dashboard can't be reached");
  }
  const said = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(response.status, said.error ?? `the dashboard answered ${response.status}`);
  return said;
}

/** What is known. `state` is null until the first answer; `last` is what each server said when it last answered. */
const known = {
  state: null, problem: null, since: null, last: { environments: null, rollouts: null },
  history: { environments: { series: [], points: [] }, rollouts: { series: [], points: [] } },
};

const environmentServer = () => known.last.environments;
const rolloutService = () => known.last.rollouts;
const role = () => known.state?.who.role ?? "";
const mayRun = () => role() === "admin";
const mayAct = () => role() === "admin" || role() === "user";
const now = () => known.state?.time ?? Date.now() / 1000;

/** Points of a figure: [time, value] of those that there are. */
function figure(server, name) {
  const { series, points } = known.history[server];
  const at = series.indexOf(name);
  return at < 0 ? [] : points.map((point) => [point.time, point.values[at]]);
}

/** The last value of a figure. */
const lastly = (server, name) => figure(server, name).at(-1)?.[1] ?? null;

/** Seconds that charts go back: as far as there is something, in steps that are rare. */
function reach() {
  const first = Math.min(...Object.values(known.history).map(({ points }) => points[0]?.time ?? Infinity));
  return [120, 300, 600, 1200, 1800].find((seconds) => now() - first <= seconds) ?? HOUR;
}

async function look() {
  const after = Object.entries(known.history).map(([name, { points }]) => `${name}=${points.at(-1)?.time ?? 0}`).join("&");
  try {
    const [state, history] = await Promise.all([ask("/api/state"), ask(`/api/history?${after}`)]);
    known.state = state;
    known.problem = known.since = null;
    for (const name of ["environments", "rollouts"]) if (!state[name]?.gone) known.last[name] = state[name]?.without ? null : state[name];
    for (const [name, fresh] of Object.entries(history)) if (fresh?.series) keep(known.history[name], fresh);
  } catch (error) {
    known.problem = error;
    known.since ??= Date.now() / 1000;
  }
}

function keep(kept, { series, points }) {
  // A server that was started again may have other figures, and its times begin anew.
  if (kept.series.join() !== series.join()) kept.points = [];
  kept.series = series;
  kept.points.push(...points);
  const begin = (kept.points.at(-1)?.time ?? 0) - HOUR;
  const first = kept.points.findIndex((point) => point.time >= begin);
  if (first > 0) kept.points.splice(0, first);
}

/** Does something each two seconds while an element is in the page, and at once. */
function repeat(element, work) {
  let ended = false;
  const again = async () => {
    if (ended || !element.isConnected) return;
    await work();
    setTimeout(again, document.hidden ? HIDDEN : EVERY);
  };
  queueMicrotask(again);
  return () => { ended = true; };
}
