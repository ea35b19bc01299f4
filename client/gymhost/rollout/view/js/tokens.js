// The tokens of a rollout's rows, coloured by who put them there, how likely they were, or which policy sampled them.

/** Log-probs above each of these have one colour; the last colour is for what is below them all. */
const LIKELY = [-0.1, -0.5, -1, -2, -4];
const LIKELY_WORDS = ["above −0.1", "−0.5", "−1", "−2", "−4", "below −4"];
const VERSION_COLOURS = 6;
const BLOCK = 2000; // How many tokens are drawn at a time.

const tokenSettings = { colour: "logprob" };

/** One row with what was sent shortened spelt out: for each id who put it there, its log-prob and its version. */
function spellOut(row) {
  const count = row.ids.length;
  const facts = { ids: row.ids, prompt: row.prompt, sampled: new Uint8Array(count), logprobs: new Array(count), versions: new Array(count) };
  const versions = row.versions.flatMap(([version, length]) => new Array(length).fill(version));
  let [at, bit, next] = [row.prompt, 0, 0];
  for (const length of row.sampled) {
    for (let end = at + length; at < end; at++) {
      facts.sampled[at] = bit;
      if (!bit) continue;
      facts.logprobs[at] = row.logprobs[next];
      facts.versions[at] = versions[next++];
    }
    bit = 1 - bit;
  }
  return facts;
}

function likelihood(logprob) {
  if (logprob === null || logprob === undefined) return LIKELY.length;
  const bin = LIKELY.findIndex((least) => logprob >= least);
  return bin < 0 ? LIKELY.length : bin;
}

/**
 * The token view.
 *
 * @param {Array} rows - The rows as they were sent.
 * @param {Object} pieces - The text of each id that has one.
 * @param {Array} turns - The turns, which say where each begins.
 * @param {?number} turn - The turn to show at first.
 */
function tokensView(rows, pieces, turns, turn) {
  if (!rows.length) {
    return h("p.empty", {}, "There are no tokens: this rollout ended before its first prompt, or was sampled by an endpoint that gives no token ids.");
  }
  const view = h("div.tokens");
  const body = h("div.row-body");
  let at = turn === null ? rows.length - 1 : turns[turn]?.row ?? 0;

  const draw = (scrollTo) => {
    const row = spellOut(rows[at]);
    const sampled = row.sampled.reduce((sum, bit) => sum + bit, 0);
    fill(
      body,
      h("p.muted", {}, `${plural(row.ids.length, "token")}: ${number(row.prompt)} of the prompt, ${number(sampled)} sampled, `
        + `${number(row.ids.length - row.prompt - sampled)} of the environment and the chat template.`
        + (at > 0 ? ` The first ${number(shared(rows[at - 1].ids, row.ids))} are those of row ${at}.` : "")),
      legend(row),
      tokenText(row, pieces, turns.flatMap((one, i) => (one.row === at ? [[row.prompt + one.start, i]] : [])), scrollTo));
  };

  const colours = { logprob: "Log-prob", mask: "Mask", version: "Policy version" };
  const colourChoice = choice("Colour by", Object.entries(colours), tokenSettings.colour, (value) => {
    tokenSettings.colour = value;
    draw(null);
  });
  const rowChoice = rows.length < 2 ? null : [
    choice("Row", rows.map((row, i) => [String(i), `${i + 1}`]), String(at), (value) => {
      at = Number(value);
      draw(null);
    }),
    h("p.note", {}, `The chat template rewrote history, so this rollout has ${rows.length} rows. Each is what the model was given `
      + "at that time, and is trained on by itself."),
  ];
  view.append(h("div.controls", {}, colourChoice, rowChoice), body);
  draw(turn);
  return view;
}

/** How many ids two rows begin with alike. */
function shared(a, b) {
  const end = Math.min(a.length, b.length);
  let count = 0;
  while (count < end && a[count] === b[count]) count++;
  return count;
}

/** A row of buttons of which one is pressed. */
function choice(label, options, chosenValue, chosenAnew) {
  const buttons = options.map(([value, text]) => h("button", {
    type: "button", "data-value": value, "aria-pressed": String(value === chosenValue),
    onclick: () => {
      for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.value === value));
      chosenAnew(value);
    },
  }, text));
  return h("div.choice", { role: "group", "aria-label": label }, h("span.muted", {}, label), buttons);
}

function tokenClass(row, i) {
  if (!row.sampled[i]) return i < row.prompt ? "t prompt" : "t env";
  if (tokenSettings.colour === "mask") return "t own";
  if (tokenSettings.colour === "version") return `t v${row.versions[i] % VERSION_COLOURS}`;
  return `t p${likelihood(row.logprobs[i])}`;
}

function legend(row) {
  const entries = [["prompt", "prompt"], ["env", "environment"]];
  if (tokenSettings.colour === "mask") entries.push(["own", "sampled"]);
  else if (tokenSettings.colour === "logprob") entries.push(...LIKELY_WORDS.map((word, i) => [`p${i}`, word]));
  else {
    const versions = [...new Set(row.versions.filter((version) => version !== undefined))];
    entries.push(...versions.map((version) => [`v${version % VERSION_COLOURS}`, `version ${version}`]));
  }
  return h("div.legend", { "aria-label": "Legend" },
    entries.map(([name, word]) => h("span", {}, h(`i.t.${name}`, {}, "ab"), word)),
    h("span.muted", {}, "Point at a token, or go through them with ← and →"));
}

/** The tokens as running text, a block at a time as one scrolls down to it. */
function tokenText(row, pieces, begins, turn) {
  const marks = new Map(begins);
  const text = h("div.token-text", { lang: "" });
  const rest = h("div.rest");
  let drawn = 0;
  const grow = () => {
    const part = document.createDocumentFragment();
    for (const end = Math.min(drawn + BLOCK, row.ids.length); drawn < end; drawn++) {
      if (marks.has(drawn)) part.append(h("span.mark", { "data-turn": marks.get(drawn) }, `turn ${marks.get(drawn) + 1}`));
      part.append(tokenElement(row, pieces, drawn));
    }
    text.append(part);
    rest.hidden = drawn >= row.ids.length;
  };
  const until = begins.find(([, i]) => i === turn)?.[0];
  do grow(); while (until !== undefined && drawn <= until && drawn < row.ids.length);
  new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && !rest.hidden && grow(),
    { rootMargin: "800px" }).observe(rest);
  if (text.querySelector(".t")) text.querySelector(".t").tabIndex = 0;

  const tell = (event) => event.target.dataset.i && showTip(event.target, tokenFacts(row, pieces, Number(event.target.dataset.i)));
  text.addEventListener("mouseover", tell);
  text.addEventListener("focusin", tell);
  text.addEventListener("mouseout", hideTip);
  text.addEventListener("focusout", hideTip);
  text.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const next = step && text.querySelector(`[data-i="${Number(event.target.dataset.i) + step}"]`);
    if (!next) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  if (turn !== null && turn !== undefined) {
    requestAnimationFrame(() => text.querySelector(`[data-turn="${turn}"]`)?.scrollIntoView({ block: "start" }));
  }
  return [text, rest];
}

function tokenElement(row, pieces, i) {
  const piece = pieces[row.ids[i]];
  const element = document.createElement("span");
  element.className = tokenClass(row, i);
  element.dataset.i = i;
  element.tabIndex = -1;
  if (piece === undefined) {
    element.className += " unknown";
    element.textContent = row.ids[i];
  } else {
    // A line's end is seen, and is one.
    element.textContent = piece.replace(/\n/g, "↵\n") || "·";
  }
  return element;
}

function tokenFacts(row, pieces, i) {
  const piece = pieces[row.ids[i]];
  const facts = [["id", row.ids[i]], ["text", piece === undefined ? "not in the store" : JSON.stringify(piece)], ["place", i]];
  if (row.sampled[i]) {
    const logprob = row.logprobs[i];
    facts.push(["log-prob", logprob === null ? "none" : `${logprob}  (${percent(Math.exp(logprob))})`], ["version", row.versions[i]]);
  } else {
    facts.push(["of", i < row.prompt ? "the prompt" : "the environment"]);
  }
  return facts;
}

function percent(share) {
  return share > 0 && share < 0.001 ? "under 0.1 %" : `${(100 * share).toFixed(1)} %`;
}

/** Facts in a box beside an element, which takes no room and hides nothing of its line. */
function showTip(element, facts) {
  const tip = byId("tip");
  fill(tip, h("dl", {}, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, String(value))))));
  tip.hidden = false;
  const box = element.getClientRects()[0] ?? element.getBoundingClientRect();
  const own = tip.getBoundingClientRect();
  const below = box.bottom + 6 + own.height < window.innerHeight;
  tip.style.left = `${Math.max(8, Math.min(box.left, window.innerWidth - own.width - 8))}px`;
  tip.style.top = `${below ? box.bottom + 6 : box.top - own.height - 6}px`;
}

function hideTip() {
  byId("tip").hidden = true;
}
