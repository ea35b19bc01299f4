// Numbers, times and sizes in words, each as wide as its kind, so that nothing moves as they change.
"use strict";

/** A figure of any size with three digits: 0.042, 7.31, 512, 12.4k. */
function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return `${digits(value / 1e9)}G`;
  if (size >= 1e6) return `${digits(value / 1e6)}M`;
  if (size >= 1e4) return `${digits(value / 1e3)}k`;
  return Number.isInteger(value) ? value.toLocaleString("en-US") : digits(value);
}

function digits(value) {
  const size = Math.abs(value);
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  if (size >= 1 || size === 0) return value.toFixed(2);
  return String(Number(value.toPrecision(2)));
}

/** A time: 340 µs, 12 ms, 3.4 s, 5 min, 2.1 h. */
function span(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0 s";
  if (value < 1e-3) return `${(1e6 * value).toFixed(0)} µs`;
  if (value < 1) return `${digits(1e3 * value)} ms`;
  if (value < 120) return `${digits(value)} s`;
  if (value < 7200) return `${(value / 60).toFixed(0)} min`;
  if (value < 172800) return `${(value / 3600).toFixed(1)} h`;
  return `${(value / 86400).toFixed(1)} d`;
}

function bytes(value) {
  if (value === null || value === undefined) return "–";
  for (const [unit, size] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (value >= size) return `${digits(value / size)} ${unit}`;
  }
  return `${value} B`;
}

function percent(value) {
  return value === null || value === undefined ? "–" : `${(100 * value).toFixed(value < 0.0995 ? 1 : 0)} %`;
}

/** The time of day of a moment in seconds since 1970. */
function clock(time) {
  return new Date(1000 * time).toLocaleTimeString("en-GB");
}

function ago(time, now) {
  const passed = Math.max(0, now - time);
  return passed < 2 ? "now" : `${span(Math.round(passed))} ago`;
}

const sum = (values) => values.reduce((total, value) => total + value, 0);
const lastLine = (text) => (text || "").trim().split("\n").at(-1) ?? "";
/** The words of an address, each in a form in which it can stand there. */
const address = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;
