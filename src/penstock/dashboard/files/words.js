// How numbers, times and states are said.

import { h } from "./dom.js";
import { clock } from "./api.js";

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const number = (n) => (n === null || n === undefined ? "–" : whole.format(n));

/** A number for a narrow place: 12,345 or 1.2M. */
export const compact = (n) => (n < 100000 ? whole.format(n) : short.format(n));

export const plural = (n, one, many = `${one}s`) => `${number(n)} ${n === 1 ? one : many}`;

const PER = { s: 1, min: 60, h: 3600 };

/** The unit in which to show all of these rates, so that they can be compared: s, min or h. */
export function rateUnit(perSecond) {
  const most = Math.max(0, ...perSecond);
  return most >= 1 || most === 0 ? "s" : most >= 1 / 60 ? "min" : "h";
}

/** So many a second, or a minute where that is easier to imagine; in a column, in its unit. */
export function rate(perSecond, unit = rateUnit([perSecond])) {
  const n = (perSecond || 0) * PER[unit];
  if (!n) return `0/${unit}`;
  if (n < 0.01) return `<0.01/${unit}`;
  return `${n >= 100 ? number(Math.round(n)) : n >= 0.1 ? n.toFixed(1) : n.toFixed(2)}/${unit}`;
}

/** A duration in seconds as it was measured, for where `span` is too short. */
export const exactly = (seconds) => (seconds < 1 ? `${(seconds * 1000).toFixed(3)} ms` : `${whole.format(Math.floor(seconds))}${(seconds % 1).toFixed(3).slice(1)} s`);

/** A duration in seconds, in two units at most. */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0) return `-${span(-seconds)}`;
  if (seconds === 0) return "0 s";
  if (seconds < 0.0009995) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 0.01) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = units.findIndex(([size]) => seconds >= size);
  const [size, unit] = units[first];
  const n = Math.floor(seconds / size);
  const [below, smaller] = units[first + 1];
  const rest = Math.floor((seconds - n * size) / below);
  return rest && n < 10 ? `${n} ${unit} ${rest} ${smaller}` : `${n} ${unit}`;
}

export function bytes(n) {
  if (n === null || n === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (n >= 1000 && unit < units.length - 1) {
    n /= 1000;
    unit += 1;
  }
  return `${n >= 100 || !unit ? Math.round(n) : n.toFixed(1)} ${units[unit]}`;
}

const two = (n) => String(n).padStart(2, "0");

/** An instant on this machine's clock: 2030-01-01 12:00:00. */
export function moment(iso) {
  if (!iso) return "–";
  const at = new Date(iso);
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

function distance(iso) {
  const seconds = (clock() - Date.parse(iso)) / 1000;
  if (Math.abs(seconds) < 1) return "now";
  const size = Math.abs(seconds) < 10 ? Math.floor(Math.abs(seconds)) : Math.abs(seconds);
  return seconds > 0 ? `${span(size || 1)} ago`.replace(".0", "") : `in ${span(size)}`.replace(".0", "");
}

/** An instant as a distance from now, which goes on by itself. */
export function ago(iso) {
  if (!iso) return "–";
  return h("time", { datetime: iso, title: moment(iso), "data-ago": "" }, distance(iso));
}

setInterval(() => {
  for (const element of document.querySelectorAll("time[data-ago]")) {
    const text = distance(element.dateTime);
    if (element.textContent !== text) element.textContent = text;
  }
}, 1000);

/** The first line of an error that says something: the last of a traceback. */
export function headline(error) {
  if (!error) return "";
  const lines = error.trim().split("\n");
  return lines[0].startsWith("Traceback") ? lines[lines.length - 1] : lines[0];
}

/** JSON with indents; what is no object stays on its line. */
export const pretty = (value) => JSON.stringify(value, null, 2);

/** A link inside the dashboard: the parts of the path, and parameters that are not empty. */
export function to(path, params = {}) {
  const given = Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const query = new URLSearchParams(given).toString();
  return `#${path}${query ? `?${query}` : ""}`;
}
