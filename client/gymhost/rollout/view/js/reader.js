// One rollout: its facts, and one of four views of it.

const VIEWS = { messages: "Messages", tokens: "Tokens", group: "Group", record: "Record" };

/** Counts what is shown, so that data which come late are not shown over something newer. */
let showing = 0;

/** Shows a rollout in a view. `turn` is the turn to go to in the token view. */
async function showRollout(line, view, turn, go) {
  const mine = ++showing;
  const reader = byId("reader");
  let conversation, content;
  try {
    conversation = await store.source.conversation(line.n);
    content = await viewOf(line, conversation, view, turn, go);
  } catch (error) {
    content = h("p.empty.error", {}, `This rollout can't be shown: ${error.message}`);
  }
  if (mine !== showing) return;
  hideTip();
  const focused = reader.contains(document.activeElement) ? document.activeElement.dataset.view : null;
  const same = reader.dataset.id === line.id && reader.dataset.view === view;
  reader.dataset.id = line.id;
  reader.dataset.view = view;
  fill(reader, conversation ? rolloutHead(line, conversation, view, go) : null, h("div.content", {}, content));
  if (!same) reader.scrollTop = 0;
  markFound();
  // The button that was pressed was replaced with the rest.
  if (focused) reader.querySelector(`.views [data-view="${view}"]`)?.focus();
}

async function viewOf(line, conversation, view, turn, go) {
  if (view === "messages") return messagesView(conversation, line.rows ? (at) => go(line, "tokens", at) : null);
  if (view === "group") return groupView(line, (other) => go(other, "messages"));
  if (view === "record") return recordView(line, conversation);
  const [rows, pieces] = await Promise.all([store.source.tokens(line.n), store.source.pieces()]);
  return tokensView(rows, pieces, conversation.turns, turn);
}

function rolloutHead(line, conversation, view, go) {
  const { outcome, rewards } = conversation;
  const place = [
    line.split, line.task === null ? null : `task ${line.task}`, line.seed === null ? null : `seed ${line.seed}`,
    line.group === null ? null : `group ${line.group}, number ${line.index}`,
  ];
  const { oldest, newest } = line;
  const facts = [
    ["turns", number(line.turns)],
    ["sampled", plural(line.tokens, "token")],
    ["time", seconds(line.seconds)],
    ["policy", oldest === null ? "–" : oldest === newest ? number(oldest) : `${number(oldest)} to ${number(newest)}`],
    line.rows > 1 ? ["rows", `${line.rows}, history was rewritten`] : null,
    line.attempts > 1 ? ["attempts", number(line.attempts)] : null,
  ];
  const size = store.groups.get(groupKey(line)).length;
  return [
    h("div.title", {},
      h("button.back", { type: "button", onclick: () => go(null) }, "‹ List"),
      h("h2", {}, line.env), h("span.muted", {}, place.filter(Boolean).join(" · ")),
      h("span.spring"), badge(line, true), h("span.score", {}, "reward ", h("b", {}, reward(line.reward)))),
    outcome.message || outcome.cause ? h("p.note", { class: `note ${outcome.kind}` }, outcomeWords(outcome)) : null,
    h("div.summary", {},
      h("dl.facts", {}, facts.filter(Boolean).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
      rubrics(rewards)),
    timeline(conversation),
    h("nav.views", { "aria-label": "Views" }, Object.entries(VIEWS).map(([key, label]) => h("button", {
      type: "button", "data-view": key, "aria-pressed": String(key === view), onclick: () => go(line, key),
    }, label, key === "group" && size > 1 ? h("span.count", {}, number(size)) : null))),
  ];
}

/** How a rollout ended: in which turn, whose fault it was, what was said. */
function outcomeWords(outcome) {
  const where = outcome.turn ? `in turn ${outcome.turn}` : "before the first turn";
  const who = outcome.kind === "failed" ? `Failed ${where}, by the ${outcome.fault}. ` : "";
  return `${who}${[outcome.cause, outcome.message].filter(Boolean).join(": ")}`;
}

/** All the rest, as it was recorded. */
function recordView(line, conversation) {
  const { outcome, timings, labels, info, tools, turns, created } = conversation;
  const begun = new Date(1000 * created).toISOString().replace("T", " ").slice(0, 19);
  const parts = {
    "What it is": { id: line.id, begun: `${begun} UTC`, attempts: line.attempts },
    Outcome: outcome, Labels: labels, "Last info": info, Seconds: timings, Turns: turns, Tools: tools,
  };
  return h("div.record", {}, Object.entries(parts).map(([name, value]) => [h("h3", {}, name), longText(pretty(value), "pre")]));
}
