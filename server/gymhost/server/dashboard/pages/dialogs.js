// What asks before it does something, says what came of it, and shows a traceback.
"use strict";

function dialog(title, content, ...buttons) {
  const box = h("dialog", { "aria-label": title, onclick: (event) => event.target === box && box.close(), onclose: () => box.remove() },
    h("header", {}, h("h2", {}, title), h("span.spring"), h("button", { type: "button", onclick: () => box.close() }, "Close")),
    h("div.inside", {}, content), buttons.length ? h("footer", {}, buttons) : null);
  document.body.append(box);
  box.showModal();
  return box;
}

function toast(words, bad = false) {
  const note = h(`p.toast${bad ? ".bad" : ""}`, {}, words);
  byId("toasts").append(note);
  setTimeout(() => note.remove(), bad ? 12000 : 6000);
}

/** Asks whether something is to be done, does it, and says what came of it. */
function act({ title, words, verb, path, body = {}, reason = false, done = () => {} }) {
  const why = reason ? h("input", { type: "text", id: "reason", placeholder: "Why? Its client is told (optional)", "aria-label": "Why", maxlength: 300 }) : null;
  const go = h("button.danger", { type: "button", id: "confirm", onclick: async () => {
    go.disabled = true;
    try {
      const { said } = await ask(path, why ? { ...body, reason: why.value } : body);
      box.close();
      toast(said);
      done();
      refresh();
    } catch (error) {
      go.disabled = false;
      box.close();
      toast(`It was not done: ${error.message}`, true);
    }
  } }, verb);
  why?.addEventListener("keydown", (event) => event.key === "Enter" && go.click());
  const box = dialog(title, [h("p", {}, words), why], go);
  (why ?? go).focus();
}

/** A button for an act, where the reader may do it. */
function actButton(label, may, how) {
  return may ? h("button.act", { type: "button", onclick: (event) => { event.stopPropagation(); act(how()); } }, label) : null;
}

/** The same in a cell of a table, which is empty where the reader may not. */
const actCell = (label, may, how) => actButton(label, may, how) ?? "";

function failureFacts(failure) {
  const facts = [
    ["when", `${clock(failure.time)} (${ago(failure.time, now())})`], ["environment", failure.environment_id], ["command", failure.command],
    ["code", failure.code], ["session", failure.session], ["label", failure.label],
    ["like it", failure.repeated ? `${number(failure.repeated)} more before` : ""],
  ];
  return h("dl.facts", {}, facts.filter(([, value]) => value).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

function showFailure(failure) {
  dialog(failure.exception || failure.code, [
    failureFacts(failure), h("p.failure-message", {}, failure.message),
    failure.traceback ? h("pre.traceback", { tabindex: "0" }, failure.traceback) : h("p.muted", {}, "There is no traceback of it."),
  ]);
}

const KEYS = [
  ["g o", "overview"], ["g e", "environments"], ["g s", "sessions"], ["g w", "workers and sandboxes"], ["g r", "rollouts"], ["g f", "failures"],
  ["/", "filter"], ["↓ ↑  j k", "from line to line of a table"], ["Enter", "open the line"], ["Esc", "leave the filter; back to the list"],
  ["d", "dark or light"], ["?", "this help"],
];

function showKeys() {
  dialog("Keys", h("dl.keys", {}, KEYS.map(([keys, words]) => h("div", {}, h("dt", {}, keys), h("dd", {}, words)))));
}
