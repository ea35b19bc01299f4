// The page as a whole: its head, its keys, and the address, which says what is shown: #ROLLOUT or #ROLLOUT/VIEW.

const KEYS = [
  ["j  k", "the next rollout, the previous one"],
  ["/", "search"],
  ["m  t  g  r", "messages, tokens, group, record"],
  ["← →", "from token to token, once one is chosen"],
  ["d", "dark or light"],
  ["Esc", "leave the search; back to the list"],
  ["?", "this help"],
];

async function start() {
  try {
    await openStore(embedded());
  } catch (error) {
    byId("side").hidden = true;
    fill(byId("reader"), h("p.empty.error", {}, `The page's data can't be read: ${error.message}. Write the page anew with gymhost view.`));
    return;
  }
  keepTheme();
  const help = dialog("Keys", h("dl.keys", {}, KEYS.map(([keys, words]) => h("div", {}, h("dt", {}, keys), h("dd", {}, words)))));
  const settings = dialog("Settings of the run", h("pre", {}, pretty(store.index.settings)));
  fill(byId("head"), pageHead(help, settings));
  document.body.append(help, settings);

  const list = rolloutList((line) => go(line, current().view));
  const summary = h("div.found", { role: "status" });
  const form = filterForm(() => apply());
  const apply = () => {
    const lines = chosen();
    const all = lines.length === store.rollouts.length;
    fill(
      summary,
      h("span", {}, all ? `all ${number(lines.length)}` : `${number(lines.length)} of ${number(store.rollouts.length)}`),
      h("span.muted", {}, meanReward(lines)),
      all ? null : h("button.link", { type: "button", onclick: form.clear }, "clear filters"));
    list.show(lines);
  };
  fill(byId("side"), form, summary, list);
  apply();

  const route = () => {
    const { line, view, turn } = current();
    document.body.dataset.screen = line ? "reader" : "list";
    list.select(line?.n ?? null);
    if (line) showRollout(line, view, turn, go);
    else emptyReader();
  };
  window.addEventListener("hashchange", route);
  document.addEventListener("keydown", (event) => pressed(event, list, help));
  // Beside the list there is room for a rollout; on a phone the list comes first.
  if (!location.hash && store.rollouts.length && window.innerWidth > 760) location.replace(address(chosen()[0], "messages"));
  route();
}

/** What the address says is shown. */
function current() {
  const [id, view, turn] = location.hash.slice(1).split("/").map(decodeURIComponent);
  return {
    line: store.rollouts.find((one) => one.id === id) ?? null,
    view: view in VIEWS ? view : "messages",
    turn: turn ? Number(turn) : null,
  };
}

function address(line, view, turn = null) {
  const parts = [line.id, view, ...(turn === null ? [] : [turn])];
  return `#${parts.map((part) => encodeURIComponent(part)).join("/")}`;
}

/** Goes to a view of a rollout, or to the list. */
function go(line, view = "messages", turn = null) {
  location.hash = line ? address(line, view, turn) : "";
}

function emptyReader() {
  showing++;
  fill(byId("reader"), h("p.empty", {}, store.rollouts.length
    ? "Choose a rollout from the list."
    : "There is no rollout in this page: the store is empty, or what was asked for left all of them out."));
}

function pageHead(help, settings) {
  const { title, leftOut } = store.index;
  const left = [
    leftOut.tooMany ? `${number(leftOut.tooMany)} more are beyond the limit that was asked for` : null,
    leftOut.tooLarge ? `${number(leftOut.tooLarge)} more did not fit into the page` : null,
  ].filter(Boolean);
  return [
    h("h1", {}, title || "Rollouts"),
    h("b", {}, plural(store.rollouts.length, "rollout")), h("span", { title: "The mean and its standard error" }, meanReward(store.rollouts)),
    store.rollouts.length ? outcomeBar(store.rollouts) : null,
    left.length ? h("span.left-out", {}, `${left.join(", ")}: filter when you write the page (gymhost view --help).`) : null,
    h("span.spring"),
    Object.keys(store.index.settings).length ? h("button", { type: "button", onclick: () => settings.showModal() }, "Settings") : null,
    h("button", { type: "button", id: "theme", title: "Dark or light", onclick: turnTheme }, "Theme"),
    h("button", { type: "button", "aria-label": "Keys", onclick: () => help.showModal() }, "?"),
  ];
}

function dialog(title, content) {
  const box = h("dialog", { "aria-label": title, onclick: (event) => event.target === box && box.close() },
    h("header", {}, h("h2", {}, title), h("span.spring"), h("button", { type: "button", onclick: () => box.close() }, "Close")), content);
  return box;
}

/** Takes the theme that was chosen last; until one is chosen it is the system's. */
function keepTheme() {
  try {
    const theme = localStorage.getItem("gymhost-theme");
    if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
  } catch { /* a browser may refuse to keep anything for a file */ }
}

function turnTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("gymhost-theme", root.dataset.theme);
  } catch { /* as above */ }
}

function pressed(event, list, help) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const { line, view } = current();
  const typing = /^(input|select|textarea)$/i.test(event.target.tagName ?? "") && event.target.type !== "checkbox";
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    else if (line) go(null);
    return;
  }
  if (typing) return;
  const inList = document.activeElement === list;
  const step = { j: 1, k: -1, ArrowDown: inList && 1, ArrowUp: inList && -1 }[event.key];
  const chosenView = { m: "messages", t: "tokens", g: "group", r: "record" }[event.key];
  if (step) {
    const next = list.beside(step);
    if (next && next !== line) {
      list.select(next.n); // Now, so that a key that is held down goes on from here.
      location.replace(address(next, view));
    }
  } else if (chosenView) {
    // The same key again goes back to the messages.
    if (line) go(line, view === chosenView ? "messages" : chosenView);
  } else if (event.key === "/") byId("search").focus();
  else if (event.key === "d") turnTheme();
  else if (event.key === "?") help.showModal();
  else return;
  event.preventDefault();
}

start();
