// Charts and graphs, drawn here.

import { h, svg, replace } from "./dom.js";
import { shape } from "./widgets.js";

const W = 380, H = 140, LEFT = 58, BOTTOM = 20, TOP = 10;

/** A round number at or above the largest value. */
function ceiling(value) {
  if (value <= 0) return 1;
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((n) => n * size).find((n) => n >= value * 0.999);
}

const chosen = new Map(); // the selected step of each chart, by the chart's label: charts are redrawn

/**
 * Values over time: `series` have a name, a class and values (null: none), as lines or as bars.
 * A text describes the whole, for screen readers. The exact values of a step are shown at the
 * pointer, on a touch, or with the arrow keys.
 */
export function chart(label, times, series, { say, sayTime, exact = say, sayStep = sayTime }) {
  const most = ceiling(Math.max(0, ...series.flatMap((one) => one.values.filter((v) => v !== null))));
  const x = (n) => LEFT + (n + 0.5) * ((W - LEFT) / times.length);
  const y = (value) => TOP + (1 - value / most) * (H - TOP - BOTTOM);
  const parts = [0, 0.5, 1].map((share) => [
    svg("line.axis", { x1: LEFT, x2: W, y1: y(share * most), y2: y(share * most) }),
    svg("text", { x: LEFT - 6, y: y(share * most) + 4, "text-anchor": "end" }, say(share * most)),
  ]);
  const every = Math.max(1, Math.ceil(times.length / 5));
  times.forEach((time, n) => {
    if (n % every === 0) parts.push(svg("text", { x: x(n), y: H - 4, "text-anchor": "middle" }, sayTime(time)));
  });
  for (const one of series) parts.push(one.bars ? bars(one, x, y, times.length) : line(one, x, y, y(0)));
  const text = series.map((one) => `${one.name}: ${say(Math.max(0, ...one.values.map((v) => v || 0)))} at most, ${say(one.values[one.values.length - 1] || 0)} now`).join("; ");
  const mark = svg("line.mark", { y1: TOP, y2: H - BOTTOM, x1: 0, x2: 0 });
  const tip = h("div.tip", { role: "status" });
  const picture = svg("svg.chart", { viewBox: `0 0 ${W} ${H}`, role: "img", tabindex: "0", "data-chart": label, "aria-label": `${label}. ${text}. Arrow keys show the values of each step` }, parts, mark);
  const show = (n) => {
    if (n === null) chosen.delete(label);
    else chosen.set(label, times[n].getTime());
    mark.classList.toggle("shown", n !== null);
    tip.classList.toggle("shown", n !== null);
    if (n === null) return replace(tip);
    mark.setAttribute("x1", x(n));
    mark.setAttribute("x2", x(n));
    const share = (x(n) / W) * 100;
    tip.style.left = share > 60 ? "auto" : `${share}%`;
    tip.style.right = share > 60 ? `${100 - share}%` : "auto";
    return replace(tip, h("strong", {}, sayStep(times[n])), series.map((one) => h("span", {}, `${one.name}: ${one.values[n] === null ? "none" : exact(one.values[n])}`)));
  };
  const now = () => times.findIndex((time) => time.getTime() === chosen.get(label));
  const under = (event) => {
    const box = picture.getBoundingClientRect();
    const n = Math.floor((((event.clientX - box.left) / box.width) * W - LEFT) / ((W - LEFT) / times.length));
    return n >= 0 && n < times.length ? n : null;
  };
  picture.addEventListener("pointermove", (event) => show(under(event)));
  picture.addEventListener("pointerdown", (event) => show(under(event)));
  picture.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") show(null); });
  picture.addEventListener("blur", () => show(null));
  picture.addEventListener("keydown", (event) => {
    const last = times.length - 1;
    const n = now();
    const next = { ArrowLeft: n < 0 ? last : Math.max(0, n - 1), ArrowRight: n < 0 ? last : Math.min(last, n + 1), Home: 0, End: last, Escape: null }[event.key];
    if (next === undefined || (next === null && n < 0)) return;
    event.preventDefault();
    event.stopPropagation();
    show(next);
  });
  if (now() >= 0) show(now());
  return h("figure", { class: "figure" },
    h("div.plot", {}, picture, tip),
    h("figcaption.legend", {}, series.map((one, n) => h("span", {}, svg("svg", { viewBox: "0 0 18 8", "aria-hidden": "true" },
      one.bars ? svg(`rect.${one.kind}`, { x: 4, y: 0, width: 8, height: 8 }) : svg(`path.${one.kind}`, { d: "M0 4h18", "stroke-width": 2.5, "stroke-dasharray": n ? "5 3" : null })), one.name))));
}

/** Draw charts anew; one that has the focus keeps it. */
export function redraw(parent, draw) {
  const focused = parent.contains(document.activeElement) && document.activeElement.dataset.chart;
  const before = new Map(chosen);
  draw();
  for (const [label, time] of before) chosen.set(label, time);
  const again = focused && [...parent.querySelectorAll("[data-chart]")].find((one) => one.dataset.chart === focused);
  if (again) again.focus({ preventScroll: true });
}

function line(one, x, y, floor) {
  let path = "", area = "", open = null;
  one.values.forEach((value, n) => {
    if (value === null) {
      if (open !== null) area += `L${x(n - 1)} ${floor}Z`;
      open = null;
      return;
    }
    path += `${open === null ? "M" : "L"}${x(n)} ${y(value)}`;
    area += open === null ? `M${x(n)} ${floor}L${x(n)} ${y(value)}` : `L${x(n)} ${y(value)}`;
    open = n;
  });
  if (open !== null) area += `L${x(open)} ${floor}Z`;
  const alone = one.values.map((value, n) => value !== null && (one.values[n - 1] ?? null) === null && (one.values[n + 1] ?? null) === null
    && svg(`circle.${one.kind}`, { cx: x(n), cy: y(value), r: 2.5 }));
  return [alone, svg(`path.area.${one.kind}`, { d: area }), svg(`path.stroke.${one.kind}${one.second ? ".second" : ""}`, { d: path })];
}

function bars(one, x, y, n) {
  const wide = Math.max(1.5, ((W - LEFT) / n) * 0.6);
  return one.values.map((value, i) => value ? svg(`rect.${one.kind}`, { x: x(i) - wide / 2, y: y(value), width: wide, height: Math.max(1, y(0) - y(value)) }) : null);
}

const BOX = 168, TALL = 44, GAP = 64, ROW = 56;

/** Jobs and who waits for whom, from left to right; `levels` are columns of nodes. */
export function graph(levels, edges, self) {
  const places = new Map();
  const height = Math.max(...levels.map((level) => level.length)) * ROW;
  levels.forEach((level, column) => level.forEach((node, row) =>
    places.set(node.id, { x: column * (BOX + GAP) + 2, y: (height - level.length * ROW) / 2 + row * ROW + 6, node })));
  const width = levels.length * (BOX + GAP) - GAP + 4;
  const lines = edges.filter(([from, to]) => places.has(from) && places.has(to)).map(([from, to]) => {
    const a = places.get(from), b = places.get(to);
    const x1 = a.x + BOX, y1 = a.y + TALL / 2, x2 = b.x, y2 = b.y + TALL / 2, middle = (x1 + x2) / 2;
    return svg("path.edge", { d: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2 - 6} ${y2}m-5 -4l5 4l-5 4` });
  });
  const boxes = [...places.values()].map(({ x, y, node }) => {
    const mark = shape(node.state);
    for (const [name, value] of Object.entries({ x: x + 10, y: y + 8, width: 12, height: 12, class: node.state })) mark.setAttribute(name, value);
    return svg(`a${node.id === self ? ".self" : ""}`, { href: `#/jobs/${node.id}`, "aria-label": `Job ${node.id}, ${node.task}, ${node.state}` },
      svg("rect", { x, y, width: BOX, height: TALL, rx: 8 }), mark,
      svg("text", { x: x + 28, y: y + 18 }, `#${node.id} ${node.state}`),
      svg("text.dim", { x: x + 10, y: y + 35 }, node.task.length > 24 ? `${node.task.slice(0, 23)}…` : node.task));
  });
  const picture = svg("svg.graph", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": "Dependencies" }, lines, boxes);
  return h("div.scroll", { tabindex: "0", role: "group", "aria-label": "Scrollable graph" }, picture);
}

/** The life of a job as a band: where it waited, and where it ran. */
export function track(parts, label) {
  const total = parts.reduce((sum, part) => sum + part.seconds, 0) || 1;
  let x = 0;
  const rects = parts.map((part) => {
    const width = Math.max(3, (part.seconds / total) * 600);
    const one = svg(`rect.${part.state}`, { x, y: 0, width, height: 14, rx: 2 }, svg("title", {}, part.text));
    x += width + 2;
    return one;
  });
  return svg("svg.chart.track", { viewBox: `0 0 ${Math.max(600, x)} 14`, role: "img", "aria-label": label, preserveAspectRatio: "none" }, rects);
}
