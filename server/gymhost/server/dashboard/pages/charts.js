// Charts of the last hour, in SVG. Each has a fixed height, and the room for its numbers is always there.
"use strict";

function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) if (value !== null && value !== undefined) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** The smallest of 1, 2, 2.5, 5 times a power of ten that is not below a value. */
function roundedUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 2.5, 5, 10].find((step) => step * power >= value * 0.9999);
}

/** Points as the d of a path; gaps where there is no value. At most one point a pixel: the largest of those that fall on it. */
function traced(points, x, y) {
  const parts = [];
  let pen = false, column = null, best = null;
  const put = () => {
    if (best === null) return;
    parts.push(`${pen ? "L" : "M"}${column} ${y(best).toFixed(1)}`);
    pen = true;
    best = null;
  };
  for (const [time, value] of points) {
    const at = Math.round(x(time));
    if (at !== column || value === null) {
      put();
      column = at;
    }
    if (value === null) pen = false;
    else best = best === null ? value : Math.max(best, value);
  }
  put();
  return parts.join("");
}

/**
 * A chart of lines over the last hour.
 *
 * title: What it shows. words: how a value is said. lines: [{ server, name, label, kind }], kind being a class of colours.
 * least: what the scale reaches at least.
 */
function lineChart({ title, words, lines, least = 0 }) {
  const values = lines.map(() => h("b", {}, "–"));
  const plot = s("svg", { class: "plot", "aria-hidden": "true" });
  const words_ = h("p.visually-hidden", {});
  const element = h("figure.chart", {},
    h("figcaption", {}, h("h2", {}, title),
      lines.map(({ label, kind }, i) => h("span.series", {}, h(`i.${kind}`), label ? h("span", {}, label) : null, values[i]))),
    h("div.plot-frame", {}, plot), words_);
  let pointed = null;
  plot.addEventListener("pointermove", (event) => { pointed = event.offsetX; draw(); });
  plot.addEventListener("pointerleave", () => { pointed = null; draw(); });

  function draw() {
    const width = plot.clientWidth, height = plot.clientHeight;
    if (!width || !height) return;
    const unit = parseFloat(getComputedStyle(plot).fontSize);
    const left = 4.1 * unit, right = width - 0.4 * unit, top = 0.6 * unit, bottom = height - 1.5 * unit;
    const data = lines.map(({ server, name }) => figure(server, name));
    const whole = reach(), end = now(), begin = end - whole;
    const most = roundedUp(Math.max(least, ...data.flatMap((points) => points.map(([, value]) => value ?? 0))));
    const x = (time) => left + ((time - begin) / whole) * (right - left);
    const y = (value) => bottom - (value / most) * (bottom - top);
    const parts = [];
    for (const part of [0, 0.5, 1]) {
      parts.push(s("line", { class: "grid", x1: left, x2: right, y1: y(part * most), y2: y(part * most) }));
      parts.push(s("text", { x: left - 0.5 * unit, y: y(part * most) + 0.32 * unit, "text-anchor": "end" }, words(part * most)));
    }
    for (const [part, label, anchor] of [[1, `${whole / 60} min ago`, "start"], [0.5, `${whole / 120}`, "middle"], [0, "now", "end"]]) {
      parts.push(s("text", { x: x(end - part * whole), y: height - 0.2 * unit, "text-anchor": anchor }, label));
    }
    data.forEach((points, i) => {
      const d = traced(points.filter(([time]) => time >= begin), x, y);
      const first = /^M([\d.-]+)/.exec(d), last = /([\d.-]+) [\d.-]+$/.exec(d);
      if (i === 0 && d && !d.includes("M", 1)) parts.push(s("path", { class: `area ${lines[i].kind}`, d: `${d}L${last[1]} ${bottom}L${first[1]} ${bottom}Z` }));
      parts.push(s("path", { class: `line ${lines[i].kind}`, d }));
    });
    const at = pointed === null ? null : begin + ((pointed - left) / (right - left)) * whole;
    data.forEach((points, i) => {
      const point = at === null ? points.at(-1) : nearest(points, at);
      values[i].textContent = words(point?.[1] ?? null);
    });
    if (at !== null && pointed >= left && pointed <= right) {
      parts.push(s("line", { class: "pointed", x1: pointed, x2: pointed, y1: top, y2: bottom }));
      parts.push(s("text", { class: "pointed", x: pointed, y: height - 0.2 * unit, "text-anchor": pointed > width / 2 ? "end" : "start" }, clock(at)));
    }
    if (data.every((points) => points.filter(([, value]) => value !== null).length < 2)) {
      const why = data.some((points) => points.length > 1) ? "Nothing was there to measure." : "History begins some seconds after the server does.";
      parts.push(s("text", { class: "none", x: (left + right) / 2, y: (top + bottom) / 2, "text-anchor": "middle" }, why));
    }
    plot.replaceChildren(...parts);
    words_.textContent = lines.map(({ label }, i) => `${label || title}: ${values[i].textContent}`).join(", ");
  }

  new ResizeObserver(draw).observe(plot);
  element.draw = draw;
  return element;
}

function nearest(points, time) {
  let best = null;
  for (const point of points) if (best === null || Math.abs(point[0] - time) < Math.abs(best[0] - time)) best = point;
  return best;
}

/** A small line without numbers. */
function sparkline(server, name, kind) {
  const plot = s("svg", { class: "spark", "aria-hidden": "true" });
  plot.draw = () => {
    const width = plot.clientWidth, height = plot.clientHeight;
    const points = figure(server, name);
    if (!width || points.length < 2) return plot.replaceChildren();
    const whole = reach(), end = now(), most = Math.max(...points.map(([, value]) => value ?? 0)) || 1;
    const d = traced(points, (time) => width - 1 - ((end - time) / whole) * (width - 2), (value) => height - 1.5 - (value / most) * (height - 4));
    plot.replaceChildren(s("path", { class: `line ${kind}`, d }));
  };
  return plot;
}

/** A figure with what it means, and a small line. */
function tile(title, { server = null, name = null, kind = "k1" } = {}) {
  const value = h("b", {}, "–"), more = h("span.more", {}, "\u00a0");
  const spark = name ? sparkline(server, name, kind) : null;
  const element = h("div.tile", {}, h("h2", {}, title), value, more, spark);
  element.say = (text, below = "", tone = "") => {
    value.textContent = text;
    more.textContent = below || "\u00a0";
    more.title = below;
    element.dataset.tone = tone;
    spark?.draw();
  };
  return element;
}

/** A bar whose parts are as long as their share of the whole. */
function stackedBar(parts, most) {
  const bar = h("div.stack", { role: "img", "aria-label": parts.map(({ label, words }) => `${label} ${words}`).join(", ") });
  const whole = most ?? sum(parts.map(({ value }) => value));
  for (const { value, kind, label, words } of parts) {
    if (!(value > 0)) continue;
    const part = h(`span.${kind}`, { title: `${label}: ${words}` });
    part.style.width = `${(100 * value) / whole}%`;
    bar.append(part);
  }
  return bar;
}
