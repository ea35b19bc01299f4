// What is known of a rollout or of many, in figures: outcome, rewards by rubric, where the time went.

const OUTCOMES = ["terminated", "truncated", "failed", "cancelled"];

/** How a rollout ended, in a word with a colour; in detail, truncations and failures say by what. */
function badge(line, detailed = false) {
  const why = line.outcome === "truncated" ? line.limit : line.fault;
  const whole = why ? `${line.outcome}: ${why}` : line.outcome;
  return h(`span.badge.${line.outcome}`, { title: whole }, detailed ? whole : line.outcome);
}

/** Mean and standard error of what is known. */
function mean(values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  if (!known.length) return null;
  const average = known.reduce((sum, value) => sum + value, 0) / known.length;
  const variance = known.reduce((sum, value) => sum + (value - average) ** 2, 0) / Math.max(1, known.length - 1);
  return { average, error: Math.sqrt(variance / known.length), count: known.length };
}

function meanReward(lines) {
  const found = mean(lines.map((line) => line.reward));
  if (!found) return "no reward known";
  return `mean reward ${number(Number(found.average.toPrecision(3)))}${found.count > 1 ? ` ± ${number(Number(found.error.toPrecision(2)))}` : ""}`;
}

/** The shares of the outcomes, as one bar. */
function outcomeBar(lines) {
  const bar = h("div.bar.outcomes", { role: "img" });
  const said = [];
  for (const outcome of OUTCOMES) {
    const count = lines.filter((line) => line.outcome === outcome).length;
    if (!count) continue;
    const part = h(`span.${outcome}`, { title: `${outcome}: ${number(count)}` });
    part.style.flexGrow = count;
    bar.append(part);
    said.push(`${number(count)} ${outcome}`);
  }
  bar.setAttribute("aria-label", said.join(", "));
  return [bar, h("span.muted", {}, said.join(" · "))];
}

/** The rewards by rubric, each beside a bar whose length is its share of the largest. */
function rubrics(rewards) {
  const entries = Object.entries(rewards);
  if (!entries.length) return null;
  const largest = Math.max(1e-9, ...entries.map(([, value]) => Math.abs(value ?? 0)));
  return h("dl.rubrics", {}, entries.map(([name, value]) => {
    const bar = h(value < 0 ? "i.negative" : "i");
    bar.style.width = `${(100 * Math.abs(value ?? 0)) / largest}%`;
    return h("div", {}, h("dt", {}, name), h("dd", {}, h("span.meter", {}, bar), h("b", {}, reward(value))));
  }));
}

/** What happened when, as bars on one line from the beginning of the rollout to its end. */
function timeline(conversation) {
  const times = conversation.timings;
  const parts = [["queue", 0, times.queue], ["init", times.queue, times.init]];
  let now = times.queue + times.init;
  conversation.turns.forEach((turn, i) => {
    now = Math.max(now, turn.begun);
    parts.push(["generation", now, turn.generation_seconds, i + 1]);
    now += turn.generation_seconds;
    parts.push(["environment", now, turn.environment_seconds, i + 1]);
    now += turn.environment_seconds;
  });
  now = Math.max(now, times.queue + times.init + times.run);
  parts.push(["eval", now, times.eval]);
  const end = now + times.eval;
  if (!(end > 0)) return null;
  const bar = h("div.timeline", { role: "img", "aria-label": `${seconds(end)} in all` });
  for (const [name, start, length, turn] of parts) {
    if (!(length > 0)) continue;
    const part = h(`span.${name}`, { title: `${turn ? `turn ${turn}, ` : ""}${name}: ${seconds(length)}` });
    part.style.left = `${(100 * start) / end}%`;
    part.style.width = `${(100 * length) / end}%`;
    bar.append(part);
  }
  const sums = ["queue", "init", "generation", "environment", "eval"].map((name) => [name, times[name]]);
  return h("div.times", {}, bar, h("div.legend", {},
    sums.map(([name, sum]) => h("span", {}, h(`i.${name}`), `${name} ${seconds(sum)}`)),
    h("span.muted", {}, `${seconds(end)} in all`)));
}
