// What environments say and see: messages as the viewer of trajectories shows them, other values in short.
"use strict";

/** Whether a value is a message, as conversational environments have them. */
function isMessage(value) {
  return value !== null && typeof value === "object" && typeof value.role === "string" && ("content" in value || "tool_calls" in value);
}

function valueView(value) {
  if (value === undefined) return h("span.muted", {}, "–");
  if (isMessage(value)) return messageView(value);
  if (Array.isArray(value) && value.length && value.every(isMessage)) return h("div.messages", {}, value.map((message) => messageView(message)));
  if (value?.$picture) return pictureView(value);
  if (value?.$array) return h("code", {}, arrayWords(value));
  if (typeof value === "string") return longText(value);
  if (value === null || typeof value !== "object") return h("code", {}, String(value));
  if (!Array.isArray(value) && Object.values(value).some((item) => item?.$picture || item?.$array)) {
    return h("dl.parts", {}, Object.entries(value).map(([name, item]) => h("div", {}, h("dt", {}, name), h("dd", {}, valueView(item)))));
  }
  return longText(JSON.stringify(value, null, JSON.stringify(value).length > 100 ? 2 : 0), "pre");
}

function arrayWords({ $array, dtype, values, min, max, mean }) {
  const kind = `${dtype}[${$array.join("×")}]`;
  if (values !== undefined) return `${kind} ${JSON.stringify(values, (key, value) => (typeof value === "number" && !Number.isInteger(value) ? Number(value.toPrecision(4)) : value))}`;
  return min === undefined ? kind : `${kind} ${digits(min)} … ${digits(max)}, mean ${digits(mean)}`;
}

function pictureView({ $picture: [height, width, channels = 1], data }) {
  const canvas = h("canvas.picture", { width, height, role: "img", "aria-label": `A picture, ${width}×${height}` });
  const from = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
  const image = new ImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = from[channels * i + (channels > 2 ? c : 0)];
    image.data[4 * i + 3] = channels === 4 ? from[4 * i + 3] : 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** One command of a session that is followed, with its reply. */
function turnView(turn) {
  const failed = turn.code !== "OK";
  const talk = isMessage(turn.action) || (Array.isArray(turn.observation) && turn.observation.some(isMessage));
  const said = "action" in turn && !(turn.action && typeof turn.action === "object" && !Object.keys(turn.action).length);
  return h("article.turn", { "data-command": turn.command, class: `turn${talk ? " talk" : ""}${failed ? " failed" : ""}` },
    h("header", {}, h("b", {}, `${turn.sequence}`), h("span.command", {}, turn.command),
      turn.reward !== null && turn.command !== "reset"
        ? h(`b.paid${turn.reward < 0 ? ".negative" : ""}${turn.reward === 0 ? ".nothing" : ""}`, {}, `reward ${turn.reward > 0 ? "+" : ""}${number(turn.reward)}`) : null,
      turn.terminated ? h("span.badge.terminated", {}, "terminated") : null, turn.truncated ? h("span.badge.truncated", {}, "truncated") : null,
      failed ? h("span.badge.failed", {}, turn.code) : null,
      h("span.spring"), h("span.muted", {}, span(turn.seconds)), h("span.muted", {}, clock(turn.time))),
    failed ? h("p.failure-message", {}, turn.message) : null,
    failed && turn.traceback ? h("details", {}, h("summary", {}, "Traceback"), h("pre.traceback", {}, turn.traceback)) : null,
    turn.left_out ? h("p.muted", {}, "The action or the observation is too large to be shown.") : null,
    h("div.sides", {},
      said ? h("div.side", {}, h("h3", {}, turn.command === "reset" ? "Options" : "Action"), valueView(turn.action)) : null,
      "observation" in turn ? h("div.side", {}, h("h3", {}, "Observation"), valueView(turn.observation)) : null),
    turn.info && Object.keys(turn.info).length ? h("details.info", {}, h("summary", {}, "Info"), valueView(turn.info)) : null);
}
