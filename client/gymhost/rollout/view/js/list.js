// The list of rollouts. It may have thousands of lines; those in sight exist.

const LINE = 54; // The height of a line in pixels; page.css has it too.

/** A list whose `show(lines)` says what is in it, and `select(n)` which line is the one that is read. */
function rolloutList(open) {
  const lines = h("div.lines");
  const list = h("div.list", { role: "listbox", tabindex: "0", "aria-label": "Rollouts", onscroll: () => draw() }, lines);
  let shown = [];
  let current = null;

  const draw = () => {
    const first = Math.max(0, Math.floor(list.scrollTop / LINE) - 4);
    const last = Math.min(shown.length, Math.ceil((list.scrollTop + list.clientHeight) / LINE) + 4);
    lines.style.height = `${shown.length * LINE}px`;
    fill(lines, shown.slice(first, last).map((line, i) => {
      const element = rolloutLine(line, line.n === current);
      element.style.top = `${(first + i) * LINE}px`;
      element.setAttribute("aria-posinset", first + i + 1);
      element.setAttribute("aria-setsize", shown.length);
      element.addEventListener("click", () => open(line));
      return element;
    }));
    if (!shown.length) fill(lines, h("p.empty", {}, "No rollout is like this. Take a filter away."));
  };
  new ResizeObserver(draw).observe(list);

  list.show = (found) => {
    shown = found;
    list.scrollTop = 0;
    draw();
  };
  list.select = (n) => {
    current = n;
    list.setAttribute("aria-activedescendant", `line-${n}`);
    const at = shown.findIndex((line) => line.n === n);
    const top = at * LINE;
    if (at >= 0 && (top < list.scrollTop || top + LINE > list.scrollTop + list.clientHeight)) {
      list.scrollTop = Math.max(0, top - list.clientHeight / 2);
    }
    draw();
  };
  /** The line that is `step` lines from the current one, or the first. */
  list.beside = (step) => {
    const at = shown.findIndex((line) => line.n === current);
    return shown[at < 0 ? 0 : Math.min(shown.length - 1, Math.max(0, at + step))];
  };
  return list;
}

function rolloutLine(line, selected) {
  const facts = [plural(line.turns, "turn"), plural(line.tokens, "token"), seconds(line.seconds)];
  if (line.group !== null) facts.push(`${line.group} #${line.index}`);
  const flags = [];
  if (line.rows > 1) flags.push(["rows", `${line.rows} rows: the chat template rewrote history`]);
  if (line.mixed) flags.push(["mixed", "several policy versions sampled it"]);
  if (line.attempts > 1) flags.push([`try ${line.attempts}`, `started ${line.attempts} times`]);
  return h("div.line", { role: "option", id: `line-${line.n}`, "aria-selected": selected ? "true" : "false", "data-n": line.n },
    h("div", {},
      h("b.reward", {}, line.reward === null ? "?" : number(line.reward)),
      h("span.what", { title: line.env }, line.env.split("/").pop()), line.task === null ? null : h("span", {}, `task ${line.task}`),
      badge(line)),
    h("div.muted", {}, h("span.facts", {}, line.outcome === "failed" && line.message ? line.message : facts.join(" · ")),
      flags.map(([word, title]) => h("span.flag", { title }, word))));
}
