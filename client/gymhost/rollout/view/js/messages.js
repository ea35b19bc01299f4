// What was said: messages by role, reasoning folded, calls with their arguments, images.

/**
 * The turn in which each message was sampled, or undefined. Assistant messages that an environment opened with were not
 * sampled, so turns are counted from the end; the last turn has no message if it failed before there was one.
 */
function turnsOf(messages, turns) {
  const spoken = messages.flatMap((message, i) => (message.role === "assistant" ? [i] : []));
  const sampled = spoken.slice(Math.max(0, spoken.length - turns.length));
  return new Map(sampled.map((position, turn) => [position, turn]));
}

/** All messages of a rollout. `jump(turn)` shows the tokens of a turn. */
function messagesView(conversation, jump) {
  const { messages, turns, outcome } = conversation;
  const turnOf = turnsOf(messages, turns);
  const shown = messages.map((message, i) => messageView(message, turns[turnOf.get(i)], turnOf.get(i), jump));
  for (let turn = turnOf.size; turn < turns.length; turn++) {
    shown.push(h("article.message", {}, h("header", {}, h("b", {}, "no message"), turnFacts(turns[turn], turn, null)),
      h("div.text.muted", {}, "This turn ended before the model had said anything that is kept.")));
  }
  if (!shown.length) shown.push(h("p.empty", {}, `Nothing was said: the rollout ended before its first message (${outcome.kind}).`));
  return h("div.messages", {}, shown);
}

function messageView(message, turn, number, jump) {
  const role = String(message.role ?? "no role");
  const reasoning = message.reasoning_content ?? message.reasoning;
  return h("article.message", { "data-role": role },
    h("header", {}, h("b", {}, role), message.name ? h("code", {}, String(message.name)) : null,
      turn ? turnFacts(turn, number, jump) : null),
    reasoning ? h("details.reasoning", {}, h("summary", {}, `Reasoning, ${plural(String(reasoning).length, "character")}`),
      longText(String(reasoning))) : null,
    contentView(message.content),
    (message.tool_calls ?? []).map(callView));
}

/** What a turn cost and brought. */
function turnFacts(turn, i, jump) {
  const facts = [
    plural(turn.tokens, "token"),
    turn.calls > 1 ? plural(turn.calls, "call") : null,
    `generated in ${seconds(turn.generation_seconds)}`,
    `environment ${seconds(turn.environment_seconds)}`,
    `policy ${turn.policy_version}${turn.mixed_versions ? " (mixed)" : ""}`,
    turn.generator || null,
    turn.finish_reason && turn.finish_reason !== "stop" ? `ended by ${turn.finish_reason}` : null,
  ];
  return [
    h("span.turn", {}, `turn ${i + 1}`),
    turn.reward === 0 ? null : h(`b.paid${turn.reward < 0 ? ".negative" : ""}`, {},
      turn.reward === null ? "reward not known" : `reward ${turn.reward > 0 ? "+" : ""}${number(turn.reward)}`),
    h("span.muted", {}, facts.filter(Boolean).join(" · ")),
    jump ? h("button.link", { type: "button", onclick: () => jump(i), title: "Show the tokens of this turn" }, "tokens") : null,
  ];
}

function contentView(content) {
  if (content === null || content === undefined || content === "") return null;
  if (typeof content === "string") return longText(content);
  return (Array.isArray(content) ? content : [content]).map(blockView);
}

/** A part of a message's content: text, an image, or else its JSON. */
function blockView(block) {
  if (typeof block === "string") return longText(block);
  if (typeof block?.text === "string") return longText(block.text);
  const url = block?.image_url?.url ?? block?.image_url ?? block?.image ?? block?.url;
  if (typeof url === "string") return imageView(url);
  if (typeof block?.data === "string" && block.mimeType) return imageView(`data:${block.mimeType};base64,${block.data}`);
  return longText(pretty(block), "pre");
}

function imageView(url) {
  if (!/^data:image\/[\w.+-]+;base64,[A-Za-z0-9+/=\s]+$/.test(url)) {
    return h("div.text.muted", {}, `An image that is elsewhere, so not shown: ${url.slice(0, 300)}`);
  }
  const image = h("img", { src: url, alt: "An image of this message", loading: "lazy" });
  image.addEventListener("error", () => image.replaceWith(h("div.text.muted", {}, "An image that this browser can't show.")));
  return image;
}

/** A call: its name and each argument. Arguments that are no object are shown as what was written. */
function callView(call) {
  const called = call?.function ?? call ?? {};
  let given = called.arguments ?? {};
  if (typeof given === "string") {
    try {
      given = JSON.parse(given);
    } catch { /* it is shown as it is */ }
  }
  const whole = called.name && given !== null && typeof given === "object" && !Array.isArray(given);
  return h("div.call", {},
    h("header", {}, h("code", {}, String(called.name || "no name")), whole ? null : h("span.flag", {}, "malformed call")),
    whole ? h("dl", {}, Object.entries(given).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, longText(pretty(value), "pre")))))
      : longText(pretty(given), "pre"));
}
