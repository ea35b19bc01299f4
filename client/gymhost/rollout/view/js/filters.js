// Which rollouts are shown, and in what order.

const SORTS = {
  stored: ["as stored", (line) => line.n],
  reward: ["reward", (line) => line.reward],
  turns: ["turns", (line) => line.turns],
  tokens: ["tokens", (line) => line.tokens],
  seconds: ["time", (line) => line.seconds],
};

const filters = {
  outcomes: new Set(), limit: "", failure: "", env: "", task: "", group: "", min: null, max: null, text: "", sort: "stored",
  down: false,
};
/** The numbers of the rollouts in which the text was found, or null while none is looked for. */
let found = null;

function passes(line) {
  const { outcomes, limit, failure, env, task, group, min, max } = filters;
  return (!outcomes.size || outcomes.has(line.outcome))
    && (!limit || line.limit === limit)
    && (!failure || failures(line).includes(failure))
    && (!env || line.env === env)
    && (!task || String(line.task) === task)
    && (!group || line.group === group)
    && (min === null || (line.reward !== null && line.reward >= min))
    && (max === null || (line.reward !== null && line.reward <= max))
    && (found === null || found.has(line.n));
}

/** The kinds of failure that a rollout is one of: whose fault it was, and that with the exception's name. */
function failures(line) {
  return line.outcome === "failed" ? [line.fault, `${line.fault}: ${line.cause}`] : [];
}

/** The rollouts that pass, in order; what has no value comes last. */
function chosen() {
  const [, key] = SORTS[filters.sort];
  const sign = filters.down ? -1 : 1;
  return store.rollouts.filter(passes).sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    if (x === null || y === null) return (x === null) - (y === null) || a.n - b.n;
    return sign * (x - y) || a.n - b.n;
  });
}

/** What a text is looked for in: all that was said and called, and the names of things. */
const haystacks = new Map();
let searches = 0;

async function haystack(line) {
  if (!haystacks.has(line.n)) {
    const { messages } = await store.source.conversation(line.n);
    const words = [line.id, line.env, line.group, line.cause, line.message, JSON.stringify(messages.map(textOf))];
    // Inside JSON a quotation mark or a line's end has a backslash before it; what people type has none.
    haystacks.set(line.n, words.join("\n").replace(/\\n/g, "\n").replace(/\\(["\\])/g, "$1").toLowerCase());
  }
  return haystacks.get(line.n);
}

/** Images are thousands of letters in which any word is found. */
function textOf(message) {
  const content = Array.isArray(message.content) ? message.content.map((block) => block.text ?? "") : message.content;
  return [content, message.reasoning_content ?? message.reasoning ?? "", message.tool_calls ?? ""];
}

/** Looks for the text in all rollouts, a few at a time so that the page stays at hand; a later search ends this one. */
async function search(text, progress) {
  const mine = ++searches;
  if (!text) {
    found = null;
    return true;
  }
  const hits = new Set();
  const words = text.toLowerCase();
  for (let start = 0; start < store.rollouts.length; start += 64) {
    const some = store.rollouts.slice(start, start + 64);
    const texts = await Promise.all(some.map(haystack));
    if (mine !== searches) return false;
    some.forEach((line, i) => texts[i].includes(words) && hits.add(line.n));
    progress(start / store.rollouts.length);
  }
  found = hits;
  return true;
}

/** Marks the text that is looked for where it is shown, without touching the elements, and unfolds what hides it. */
function markFound() {
  if (!CSS.highlights) return;
  CSS.highlights.delete("found");
  const words = filters.text.toLowerCase();
  if (!words) return;
  const ranges = [];
  const texts = document.createTreeWalker(byId("reader"), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode;
    const text = node.data.toLowerCase();
    for (let at = text.indexOf(words); at >= 0; at = text.indexOf(words, at + words.length)) {
      const range = new Range();
      range.setStart(node, at);
      range.setEnd(node, Math.min(node.data.length, at + words.length));
      ranges.push(range);
      const folded = node.parentElement.closest("details");
      if (folded) folded.open = true;
    }
  }
  CSS.highlights.set("found", new Highlight(...ranges));
}

/** The form above the list. `changed` is called after each change. */
function filterForm(changed) {
  const values = (key) => [...new Set(store.rollouts.flatMap(key))].filter(Boolean).sort();
  const select = (name, label, options) => options.length < 1 ? null : h("label", {}, h("span", {}, label),
    h("select", { name, onchange: (event) => set(name, event.target.value) }, h("option", { value: "" }, "any"),
      options.map((option) => h("option", { value: option }, option))));
  const input = (name, label, kind, convert) => h("label", {}, h("span", {}, label),
    h("input", { name, type: kind, step: "any", placeholder: "any", autocomplete: "off",
      oninput: (event) => set(name, convert(event.target.value.trim())) }));
  const set = (name, value) => {
    filters[name] = value;
    changed();
  };
  const toNumber = (text) => (text === "" ? null : Number(text));
  const envs = values((line) => [line.env]);
  const chips = OUTCOMES.map((outcome) => {
    const count = store.rollouts.filter((line) => line.outcome === outcome).length;
    return count === 0 ? null : h(`button.chip.${outcome}`, {
      type: "button", "aria-pressed": "false", "data-outcome": outcome,
      onclick: (event) => {
        const pressed = event.currentTarget.getAttribute("aria-pressed") !== "true";
        event.currentTarget.setAttribute("aria-pressed", pressed);
        filters.outcomes[pressed ? "add" : "delete"](outcome);
        changed();
      },
    }, outcome, " ", h("b", {}, number(count)));
  });
  const hint = h("span.muted", { role: "status" });
  const searchBox = h("input", {
    type: "search", name: "text", id: "search", placeholder: "Search what was said  ( / )", "aria-label": "Search", autocomplete: "off",
    oninput: later(async (event) => {
      filters.text = event.target.value.trim();
      if (await search(filters.text, (share) => (hint.textContent = `searching ${Math.round(100 * share)} %`))) {
        hint.textContent = "";
        changed();
        markFound();
      }
    }, 150),
  });
  const order = h("button.order", {
    type: "button", title: "Turn the order round", "aria-label": "Turn the order round",
    onclick: () => {
      order.textContent = filters.down ? "↑" : "↓";
      set("down", !filters.down);
    },
  }, "↑");
  const form = h("form.filters", { onsubmit: (event) => event.preventDefault() },
    h("div.search", {}, searchBox, hint),
    h("div.chips", {}, chips),
    h("div.fields", {},
      select("limit", "Limit", values((line) => [line.limit])),
      select("failure", "Failure", values(failures)),
      envs.length > 1 ? select("env", "Environment", envs) : null,
      input("task", "Task", "text", String),
      input("group", "Group", "text", String),
      input("min", "Reward from", "number", toNumber),
      input("max", "to", "number", toNumber),
      h("label", {}, h("span", {}, "Order"), h("div.pair", {},
        h("select", { name: "sort", onchange: (event) => set("sort", event.target.value) },
          Object.entries(SORTS).map(([key, [label]]) => h("option", { value: key }, label))), order))));
  form.clear = () => {
    form.reset();
    searches++;
    found = null;
    Object.assign(filters, { limit: "", failure: "", env: "", task: "", group: "", min: null, max: null, text: "", sort: "stored" });
    filters.outcomes.clear();
    for (const chip of form.querySelectorAll(".chip")) chip.setAttribute("aria-pressed", "false");
    hint.textContent = "";
    changed();
    markFound();
  };
  return form;
}

/** Calls `run` once nothing has called for it for a while. */
function later(run, milliseconds) {
  let timer = 0;
  return (event) => {
    clearTimeout(timer);
    timer = setTimeout(run, milliseconds, { target: event.target });
  };
}
