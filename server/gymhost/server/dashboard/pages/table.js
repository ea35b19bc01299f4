// A table that is sorted by its heads and gone through with the arrows. Its lines stay the elements that they are.
"use strict";

/**
 * columns: [{ name, title, value(row), cell?(row), text?, wide? }]: what is sorted by, and what is shown (else the value).
 * key(row): what tells rows apart. open?(row): what Enter and a click do. empty: what is said where there is none.
 */
function dataTable({ label, columns, key, open = null, empty, sort = columns[0].name, down = false, link = null }) {
  let order = { name: sort, down };
  let rows = [];
  const kept = new Map();
  const heads = columns.map((column) => h("th", { scope: "col", class: column.text ? "words" : null, title: column.about ?? null },
    h("button.sort", { type: "button", onclick: () => turn(column) }, column.title)));
  const body = h("tbody");
  const none = h("p.empty", { hidden: true }, empty);
  const element = h("div.table", { role: "region", "aria-label": label, tabindex: "-1" },
    h("table", {}, h("thead", {}, h("tr", {}, heads)), body), none);

  function turn(column) {
    order = { name: column.name, down: order.name === column.name ? !order.down : !column.text };
    draw();
  }

  function sorted() {
    const by = columns.find((column) => column.name === order.name);
    if (!by) return rows; // as they come
    const compare = (a, b) => {
      const [x, y] = [by.value(a), by.value(b)];
      if (x === y) return 0;
      if (x === null || x === undefined) return 1;
      if (y === null || y === undefined) return -1;
      const less = typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y;
      return order.down ? -less : less;
    };
    return [...rows].sort((a, b) => compare(a, b) || String(key(a)).localeCompare(String(key(b)), "en", { numeric: true }));
  }

  function draw() {
    heads.forEach((head, i) => head.setAttribute("aria-sort", columns[i].name !== order.name ? "none" : order.down ? "descending" : "ascending"));
    const focused = body.contains(document.activeElement) ? document.activeElement : null;
    const list = sorted();
    const wanted = list.map((row) => {
      const id = String(key(row));
      let line = kept.get(id);
      if (!line) {
        line = h("tr", { tabindex: "-1", "data-key": id }, columns.map((column) => h("td", { class: column.text ? "words" : null })));
        kept.set(id, line);
      }
      line.row = row;
      columns.forEach((column, i) => put(line.children[i], (column.cell ?? column.value)(row)));
      return line;
    });
    const still = new Set(wanted);
    for (const [id, line] of kept) if (!still.has(line)) kept.delete(id);
    if (wanted.length !== body.children.length || wanted.some((line, i) => body.children[i] !== line)) body.replaceChildren(...wanted);
    if (focused && focused.isConnected) focused.focus({ preventScroll: true });
    if (!body.querySelector("tr[tabindex='0']")) wanted[0]?.setAttribute("tabindex", "0");
    none.hidden = list.length > 0;
  }

  function put(cell, content) {
    const shown = content === null || content === undefined ? "–" : content;
    if (shown instanceof Node) {
      if (!cell.firstChild?.isEqualNode?.(shown)) fill(cell, shown);
    } else if (cell.textContent !== String(shown)) cell.textContent = shown;
  }

  function go(line) {
    if (!line) return;
    body.querySelector("tr[tabindex='0']")?.setAttribute("tabindex", "-1");
    line.setAttribute("tabindex", "0");
    line.focus();
  }

  body.addEventListener("keydown", (event) => {
    const line = event.target.closest("tr");
    if (event.target !== line) return;
    const next = {
      ArrowDown: line.nextElementSibling, ArrowUp: line.previousElementSibling, Home: body.firstElementChild, End: body.lastElementChild,
      j: line.nextElementSibling, k: line.previousElementSibling,
    };
    if (event.key in next && !event.ctrlKey && !event.metaKey) {
      go(next[event.key]);
      event.preventDefault();
    } else if (event.key === "Enter" && open) open(line.row);
  });
  if (open) {
    element.classList.add("opens");
    body.addEventListener("click", (event) => {
      const line = event.target.closest("tr");
      if (line && !event.target.closest("button, a, input")) open(line.row);
    });
  }
  element.show = (fresh) => {
    rows = fresh;
    draw();
  };
  element.first = () => go(body.querySelector("tr[tabindex='0']") ?? body.firstElementChild);
  element.say = (words) => { none.textContent = words; };
  return element;
}

/** Fields above a table: a text to look for, and choices. `changed()` is called when one changes. */
function filters({ placeholder, choices = [], changed }) {
  const text = h("input", { type: "search", id: "filter", placeholder, "aria-label": placeholder, oninput: changed, autocomplete: "off", spellcheck: "false" });
  const selects = choices.map(({ name, label, all }) => h("label", {}, h("span.visually-hidden", {}, label),
    h("select", { name, onchange: changed }, h("option", { value: "" }, all))));
  const count = h("span.muted", { role: "status" });
  const element = h("div.filters", {}, text, selects, count);
  element.text = () => text.value.trim().toLowerCase();
  element.value = (name) => element.querySelector(`select[name=${name}]`).value;
  element.set = (name, value) => {
    const select = element.querySelector(`select[name=${name}]`);
    if (value && ![...select.options].some((option) => option.value === value)) select.append(h("option", { value }, value));
    select.value = value;
  };
  element.offer = (name, values) => {
    const select = element.querySelector(`select[name=${name}]`), chosen = select.value;
    const wanted = [...new Set([...values, ...(chosen ? [chosen] : [])])].sort();
    if (wanted.join("\n") === [...select.options].slice(1).map((option) => option.value).join("\n")) return;
    select.replaceChildren(select.options[0], ...wanted.map((value) => h("option", { value }, value)));
    select.value = chosen;
  };
  element.count = (words) => { if (count.textContent !== words) count.textContent = words; };
  return element;
}
