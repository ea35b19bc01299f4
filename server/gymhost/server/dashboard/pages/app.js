// The page as a whole: its head, its address (#/PAGE or #/PAGE/THING), its keys, and who reads.
"use strict";

const PAGES = {
  "": { title: "Overview", key: "o", show: overviewPage, of: "any" },
  environments: { title: "Environments", key: "e", show: environmentsPage, one: environmentPage, of: "environments" },
  sessions: { title: "Sessions", key: "s", show: sessionsPage, one: sessionPage, of: "environments" },
  workers: { title: "Workers", key: "w", show: workersPage, of: "environments" },
  rollouts: { title: "Rollouts", key: "r", show: rolloutsPage, of: "rollouts" },
  failures: { title: "Failures", key: "f", show: failuresPage, of: "environments" },
  jobs: { title: "Rollouts", one: jobPage, show: rolloutsPage, of: "rollouts", beside: "rollouts" },
};

/** What draws the page that is shown, and its address; null before. */
let drawing = null;
let shownAt = null;
let headFor = null;
let pending = false;

const there = (page) => page.of === "any" || Boolean(known.state?.[page.of]);

/** What the address says is to be shown: a page, and a thing of it. */
function current() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, thing] = path.split("/").map(decodeURIComponent);
  return { name: name in PAGES ? name : "", thing: thing || null, query: new URLSearchParams(query) };
}

function head() {
  const { name } = current();
  const on = PAGES[name].beside ?? name;
  const who = known.state?.who;
  const draining = environmentServer()?.draining;
  const kind = JSON.stringify([on, who, draining, Boolean(known.state?.environments), Boolean(known.state?.rollouts)]);
  if (kind !== headFor) {
    headFor = kind;
    fill(byId("head"),
      h("a.brand", { href: "#/" }, h("img", { src: "/static/icon.svg", alt: "", width: 22, height: 22 }), h("span", {}, "gymhost")),
      who ? h("nav", { "aria-label": "Pages" }, Object.entries(PAGES).filter(([, page]) => page.key && there(page))
        .map(([path, page]) => h("a", { href: `#/${path}`, "aria-current": path === on ? "page" : null, title: `g ${page.key}` }, page.title))) : null,
      h("span.spring"),
      h("span", { id: "stand", role: "status" }),
      who && environmentServer() ? actButton(draining ? "Resume" : "Drain", mayRun(), () => (draining
        ? { title: "Have the server take new sessions again?", words: "It was told to take none.", verb: "Resume", path: "/api/server/drain", body: { resume: true } }
        : { title: "Drain the server?", words: "It takes no new sessions, goes on with those that it has, and does not stop. Resume undoes it.", verb: "Drain", path: "/api/server/drain", body: { resume: false } })) : null,
      h("button", { type: "button", id: "theme", title: "Dark or light (d)", "aria-label": "Dark or light", onclick: turnTheme }, "◐"),
      h("button", { type: "button", id: "keys", title: "Keys (?)", "aria-label": "Keys", onclick: showKeys }, "?"),
      who?.token ? h("button", { type: "button", id: "logout", onclick: logOut }, "Log out") : null);
  }
  stand();
}

/** How the servers stand, in a word; and above the page what is wrong, in a sentence. */
function stand() {
  const state = known.state, wrong = [];
  if (known.problem) wrong.push(`This page shows what was known at ${clock(known.since)}: ${known.problem.message}. It tries again every few seconds.`);
  for (const server of [state?.environments, state?.rollouts]) {
    if (server?.gone) wrong.push(`Since ${clock(server.since)} ${server.gone}: what was known then is shown, and it is asked again every few seconds.`);
    if (server?.without) wrong.push(server.without);
  }
  if (environmentServer()?.draining) wrong.push("The server takes no new sessions: it was told to drain, or is about to stop.");
  const notice = byId("notice");
  notice.hidden = !wrong.length;
  if (notice.textContent !== wrong.join(" ")) notice.textContent = wrong.join(" ");
  notice.title = [state?.environments?.why, state?.rollouts?.why].filter(Boolean).join("\n");
  const bad = known.problem || [state?.environments, state?.rollouts].some((server) => server?.gone);
  const said = byId("stand");
  if (!said) return;
  said.dataset.tone = bad ? "bad" : environmentServer()?.draining ? "warn" : "good";
  const server = environmentServer() ?? rolloutService();
  said.textContent = bad ? "no answer" : `${state.who.host} · ${environmentServer()?.draining ? "draining" : "live"} · up ${span(server?.uptime_seconds ?? server?.uptime ?? 0)}${state.who.role ? ` · ${state.who.role}` : ""}`;
}

/** Shows what the address says, anew where that is another than before. */
function route() {
  if (!known.state) return;
  head();
  const { name, thing, query } = current();
  const page = PAGES[name];
  if (location.hash !== shownAt) {
    drawing?.leave?.();
    shownAt = location.hash;
    const main = byId("main");
    main.scrollTop = 0;
    document.title = `${thing ?? page.title} · gymhost`;
    main.dataset.page = name || "overview";
    drawing = there(page) ? (thing && page.one ? page.one : page.show)(main, thing, query)
      : (fill(main, h("p.empty", {}, page.of === "rollouts" ? "There is no rollout service here: gymhost serve --rollouts runs one." : "There is no environment server here, but a rollout service alone.")), () => {});
  }
  drawing();
}

async function refresh() {
  if (pending) return;
  pending = true;
  await look();
  pending = false;
  if (known.problem?.status === 401) return logIn(known.problem.message);
  if (!known.state) {
    fill(byId("main"), h("p.empty.error", {}, `Nothing can be shown: ${known.problem.message}. It is tried again every few seconds.`));
    return;
  }
  if (byId("login")) shownAt = null;
  route();
}

function forget() {
  drawing?.leave?.();
  known.state = known.problem = known.since = null;
  known.last = { environments: null, rollouts: null };
  for (const kept of Object.values(known.history)) Object.assign(kept, { series: [], points: [] });
  drawing = shownAt = headFor = null;
  byId("notice").hidden = true;
}

function logIn(why) {
  if (byId("login")) return;
  const known_ = known.state !== null;
  forget();
  fill(byId("head"), h("span.brand", {}, h("img", { src: "/static/icon.svg", alt: "", width: 22, height: 22 }), h("span", {}, "gymhost")), h("span.spring"),
    h("button", { type: "button", id: "theme", "aria-label": "Dark or light", onclick: turnTheme }, "◐"));
  const token = h("input", { type: "password", id: "token", autocomplete: "current-password", required: true, "aria-describedby": "login-said", spellcheck: "false" });
  const said = h("p", { id: "login-said", role: "alert" }, known_ ? why : "");
  const form = h("form", { id: "login", onsubmit: async (event) => {
    event.preventDefault();
    said.textContent = "";
    try {
      await ask("/login", { token: token.value });
      form.remove();
      shownAt = null;
      refresh();
    } catch (error) {
      said.textContent = error.status === 401 ? "This token is not valid on this server, or was revoked." : error.message;
      token.select();
    }
  } }, h("h1", {}, "Log in"), h("p.muted", {}, "With a token of this server. You see what it lets you see."),
    h("input", { type: "text", autocomplete: "username", value: "gymhost", hidden: true }), h("label", { for: "token" }, "Token"), token, said, h("button.primary", {}, "Log in"));
  fill(byId("main"), form);
  token.focus();
}

async function logOut() {
  await ask("/logout", {}).catch(() => {});
  forget();
  logIn("");
}

/** The first key of two, such as g; forgotten after a second. */
let first = null;

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = event.target.matches?.("input:not([type=checkbox]), select, textarea");
  if (event.key === "Escape") {
    const { name, thing } = current();
    if (typing) event.target.blur();
    else if (thing) location.hash = `#/${PAGES[name].beside ?? name}`;
    return;
  }
  if (typing || !known.state) return;
  if (first === "g") {
    first = null;
    const found = Object.entries(PAGES).find(([, page]) => page.key === event.key && there(page));
    if (found) {
      location.hash = `#/${found[0]}`;
      event.preventDefault();
    }
    return;
  }
  if (event.key === "g") {
    first = "g";
    setTimeout(() => { first = null; }, 1000);
  } else if (event.key === "/") (byId("filter") ?? { focus() {} }).focus();
  else if (event.key === "?") showKeys();
  else if (event.key === "d") turnTheme();
  else if (["ArrowDown", "ArrowUp", "j", "k"].includes(event.key) && !event.target.closest("tr, .turns, pre")) document.querySelector("#main .table")?.first?.();
  else return;
  event.preventDefault();
});

window.addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });

async function watch() {
  await refresh();
  setTimeout(watch, document.hidden ? HIDDEN : EVERY);
}

watch();
