// Elements, and numbers in words. Whatever comes from a trajectory becomes text here, and never markup.

/**
 * Makes an element.
 *
 * @param {string} tag - Its name, with classes after dots: "p.empty".
 * @param {Object} attributes - Attributes; functions are listeners ("onclick"), null and false leave an attribute out.
 * @param {...(Node|string|number|null|Array)} children - What is in it; strings become text.
 */
function h(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  return fill(element, ...children);
}

/** Puts children into an element in place of those that it has; null and false are none. */
function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const byId = (id) => document.getElementById(id);

/** A number with at most four significant digits after the point, or thousands apart. */
function number(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  return String(Number(value.toPrecision(4)));
}

function reward(value) {
  return value === null || value === undefined ? "not known" : number(value);
}

function seconds(value) {
  if (value >= 120) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  if (value > 0 && value < 0.1) return `${Number((1000 * value).toPrecision(2))} ms`;
  return `${value >= 10 ? value.toFixed(1) : value.toFixed(2)} s`;
}

function plural(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

/** A value as JSON that people read; a string that holds JSON is taken for what it holds. */
function pretty(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

const LONG_CHARACTERS = 4000;
const LONG_LINES = 60;

/** A text as it is, in full at once or, if it is long, when that is asked for. */
function longText(text, tag = "div.text") {
  const lines = text.split("\n");
  if (text.length <= LONG_CHARACTERS && lines.length <= LONG_LINES) return h(tag, {}, text);
  const element = h(tag, {}, `${lines.slice(0, LONG_LINES).join("\n").slice(0, LONG_CHARACTERS)} …`);
  const more = h("button.more", {
    onclick: () => {
      element.textContent = text;
      more.remove();
    },
  }, `Show all ${number(text.length)} characters`);
  return h("div", {}, element, more);
}
