// The overview: how the queues fare.

import { h, replace, keyed } from "./dom.js";
import { post, part, clock } from "./api.js";
import { number, compact, rate, rateUnit, exactly, moment, span, to, plural } from "./words.js";
import { panel, head, table, cell, empty, flag, meter, switcher, action, ask, body } from "./widgets.js";
import { chart, redraw } from "./charts.js";

// How long a step is, and how many are shown.
const STEPS = { minute: [60, 60], hour: [3600, 48], day: [86400, 8] };
const RECENT = 300;
const PAGE = 50;

export async function show(view) {
  const by = STEPS[view.params.by] ? view.params.by : "minute";
  const only = view.params.queue;
  const tiles = h("div.tiles");
  const charts = h("div.grid.three");
  const queues = table("Queues", ["Queue", ["Waiting jobs", "number"], ["Running jobs", "number"], ["Oldest waiting", "number"], ["Jobs in", "number"], ["Attempts ended", "number"], "Utilisation", ["Time to empty", "number"], ["Failed jobs", "number"], ""]);
  const none = h("div");
  const more = h("div");
  // Which page of the queues: their history is asked for in the same way.
  const page = { name: view.params.name, after: view.params.after, limit: PAGE };
  const input = h("input", { type: "search", id: "queue-name", name: "name", placeholder: "a part of the name", value: page.name || "", "data-first": true });
  const find = h("div");
  const search = h("form.panel", { role: "search", "aria-label": "Find a queue", onsubmit: (event) => { event.preventDefault(); view.go({ ...view.params, name: input.value.trim(), after: "" }); } },
    h("div.body", {}, h("div.fields", {}, h("label", {}, "Name", input), h("button", {}, "Find"))));
  const choose = switcher("Charts by", Object.keys(STEPS).map((one) => [one, one]), by, (value) => view.go({ ...view.params, by: value === "minute" ? "" : value }));
  const title = head("Overview", only && h("span.chip", {}, `charts of ${only}`), only && h("a.button", { href: to("/", { ...view.params, queue: "" }) }, "All queues"), h("span.dim", {}, "Charts by"), choose);
  await view.every(3, async () => {
    const lately = { since: new Date(clock() - RECENT * 1000).toISOString(), step: 60 };
    const [found, workers, recent, all, summary] = await Promise.all([
      view.get("/api/v1/queues", page), view.get("/api/v1/workers"),
      view.get("/api/v1/history", { ...lately, ...page }), view.get("/api/v1/history", { ...lately, together: true }), view.get("/api/v1/summary"),
    ]);
    const rates = recentRates(recent);
    drawTiles(tiles, summary, workers.workers, recentRates(all)[null] || [0, 0]);
    const rows = found.queues.map((queue) => ({ queue, rates: rates[queue.name] || [0, 0], slots: slotsOf(queue, workers.workers) }));
    const unit = rateUnit(rows.flatMap((row) => row.rates)); // one for all, so that rows can be compared
    for (const row of rows) row.unit = unit;
    keyed(queues.rows, rows, (row) => row.queue.name, (row) => queueRow(view, row));
    queues.hidden = !rows.length;
    replace(none, !rows.length && (page.name || page.after ? empty("No matching queues", "Names are case-sensitive.") : empty("No queues yet", "A queue appears when its first job is enqueued.")));
    if (!find.hasChildNodes() && (page.name || page.after || found.after)) replace(find, search); // once: it may have the focus
    replace(more, (found.after || page.after) && h("div.pages", {}, h("span", {}, page.name ? `Queues with “${page.name}” in their name.` : `${number(rows.length)} of ${plural(summary.queues, "queue")}, by name.`),
      page.after && h("a.button", { href: to("/", { ...view.params, after: "" }) }, "First"), found.after && h("a.button", { "data-next": "", href: to("/", { ...view.params, after: found.after }) }, "More")));
  });
  replace(view.root, title, tiles, find, panel("Queues", h("div", {}, queues, none, more)), charts);
  await view.every(10, async () => {
    const [step, n] = STEPS[by];
    const since = new Date((Math.floor(clock() / 1000 / step) - n + 1) * step * 1000);
    const time = { since: since.toISOString(), step };
    const [drawn, each] = await Promise.all([
      view.get("/api/v1/history", only ? { ...time, queue: only } : { ...time, together: true }), view.get("/api/v1/history", { ...time, ...page }),
    ]);
    drawCharts(view, charts, drawn, each, since, step, n);
  });
}

/** Per queue: how many a second came in and went out lately. */
function recentRates(history) {
  const sums = {};
  for (const one of history.intervals) {
    const sum = (sums[one.queue] = sums[one.queue] || [0, 0]);
    sum[0] += one.counts.enqueued || 0;
    sum[1] += one.run.count;
  }
  const begun = history.intervals.length ? Math.min(...history.intervals.map((one) => Date.parse(one.at))) : clock();
  const seconds = Math.max(30, Math.min(RECENT, (clock() - begun) / 1000));
  for (const sum of Object.values(sums)) sum.forEach((n, i) => { sum[i] = n / seconds; });
  return sums;
}

function slotsOf(queue, workers) {
  const own = ["events", "indexing", "entries", "entries-operations", "ingest", "notebooks"].includes(queue.name);
  const taking = workers.filter((one) => !one.silent && (one.queues ? one.queues.includes(queue.name) : !own));
  const slots = taking.reduce((sum, one) => sum + (one.concurrency || 0), 0);
  return { workers: taking.length, slots: queue.concurrency ? Math.min(queue.concurrency, slots || queue.concurrency) : slots };
}

function drawTiles(tiles, { states, waiting, oldest_ready_age: oldest }, workers, all) {
  const silent = workers.filter((one) => one.silent).length;
  const unit = rateUnit(all);
  const shown = [
    ["Waiting jobs", compact(states.pending), `${compact(waiting.ready)} ready, ${compact(waiting.scheduled)} scheduled, ${compact(waiting.blocked)} blocked`, to("/jobs", { state: "pending" })],
    ["Running jobs", compact(states.running), "right now", to("/jobs", { state: "running" })],
    ["Oldest waiting", oldest === null ? "–" : span(oldest), "ready, not started", to("/jobs", { state: "pending" })],
    ["Attempts ended", rate(all[1], unit), `${rate(all[0], unit)} jobs in`, to("/store")],
    ["Failed jobs", compact(states.failed), "kept until retried or removed", to("/jobs", { state: "failed" })],
    ["Workers", number(workers.length - silent), silent ? `${silent} silent` : "all alive", to("/workers")],
  ];
  keyed(tiles, shown, ([name]) => name, ([name, big, sub, href]) => h("a.tile", { href }, h("span.name", {}, name), h("span.big", {}, big), h("span.sub", {}, sub)));
}

function queueRow(view, { queue, rates, slots, unit }) {
  const { name, states, waiting } = queue;
  const full = queue.max_pending !== null && states.pending >= queue.max_pending;
  const [into, out] = rates;
  const used = slots.slots ? states.running / slots.slots : 0;
  const toggle = queue.paused
    ? action("Resume", async () => { await post(`/api/v1/queues/${part(name)}/resume`); view.again(); return `Resumed ${name}.`; }, ".small")
    : action("Pause", () => pause(view, queue), ".small");
  return h("tr.pick", {},
    cell("", "wide", h("a", { href: to("/jobs", { queue: name }) }, h("strong", {}, name)), " ", queue.paused && flag("paused"), " ", full && flag("full"),
      limits(queue) && h("span.sub", {}, limits(queue))),
    cell("Waiting jobs", "number", number(states.pending), h("span.sub", {}, [waiting.scheduled && `${number(waiting.scheduled)} scheduled`, waiting.blocked && `${number(waiting.blocked)} blocked`].filter(Boolean).join(", "))),
    cell("Running jobs", "number", number(states.running)),
    cell("Oldest waiting", "number", span(queue.oldest_ready_age)),
    cell("Jobs in", "number", rate(into, unit)), cell("Attempts ended", "number", rate(out, unit)),
    cell("Utilisation", "", slots.slots ? [meter(used, `${states.running} of ${slots.slots} slots of ${name}`), h("span.sub", {}, `${states.running} of ${slots.slots}`)]
      : states.running ? h("span.dim", {}, "workers without a known limit")
        : h("span", { class: states.pending ? "warn" : "dim" }, "no worker")),
    cell("Time to empty", "number", toEmpty(queue, into, out)),
    cell("Failed jobs", "number", states.failed ? h("a.failed", { href: to("/jobs", { queue: name, state: "failed" }) }, number(states.failed)) : "0"),
    cell("", "number", view.can("admin") && toggle));
}

function limits(queue) {
  return [queue.max_pending !== null && `at most ${number(queue.max_pending)} waiting`, queue.concurrency && `${number(queue.concurrency)} at a time`,
    queue.rate && `${number(queue.rate.count)} per ${span(queue.rate.seconds)}`].filter(Boolean).join(" · ");
}

function toEmpty(queue, into, out) {
  if (!queue.waiting.ready && !queue.states.running) return "empty";
  if (queue.paused) return "paused";
  if (out <= into) return out ? "growing" : "–";
  return span((queue.waiting.ready + queue.states.running) / (out - into));
}

async function pause(view, queue) {
  const wanted = await ask({ title: `Pause ${queue.name}?`, text: `No process starts a job of this queue until it is resumed. ${plural(queue.states.running, "running job")} will continue.`, button: "Pause" });
  if (!wanted) return null;
  await post(`/api/v1/queues/${part(queue.name)}/pause`);
  view.again();
  return `Paused ${queue.name}.`;
}

// Charts

function drawCharts(view, parent, history, each, since, step, n) {
  const times = Array.from({ length: n }, (_, i) => new Date(since.getTime() + i * step * 1000));
  const at = (iso) => Math.round((Date.parse(iso) - since.getTime()) / 1000 / step);
  const zeros = () => new Array(n).fill(0);
  const into = zeros(), done = zeros(), bad = zeros();
  const waits = times.map(() => null), runs = times.map(() => null);
  const spreads = new Map();
  for (const one of each.intervals) {
    const spread = spreads.get(one.queue) || {};
    spreads.set(one.queue, { wait: added(spread.wait, one.wait.buckets), run: added(spread.run, one.run.buckets) });
  }
  for (const one of history.intervals) {
    const i = at(one.at);
    if (i < 0 || i >= n) continue;
    into[i] += one.counts.enqueued || 0;
    done[i] += one.counts.done || 0;
    bad[i] += (one.counts.failed || 0) + (one.counts.expired || 0);
    waits[i] = added(waits[i], one.wait.buckets);
    runs[i] = added(runs[i], one.run.buckets);
  }
  const sayTime = (time) => step >= 86400 ? `${time.getMonth() + 1}/${time.getDate()}` : `${String(time.getHours()).padStart(2, "0")}:${String(time.getMinutes()).padStart(2, "0")}`;
  const sayStep = (time) => `${moment(time).slice(0, 16)} to ${moment(time.getTime() + step * 1000).slice(step >= 86400 ? 0 : 11, 16)}`;
  const say = { say: (v) => compact(Math.round(v * 10) / 10), sayTime, exact: number, sayStep };
  const p95 = (list) => list.map((buckets) => (buckets ? quantile(buckets, history.bounds, 0.95) : null));
  const unit = { 60: "minute", 3600: "hour", 86400: "day" }[step];
  const whole = panel("Wait and run time of attempts by queue", percentiles(view, spreads, history));
  whole.classList.add("whole");
  redraw(parent, () => replace(parent,
    panel(`Jobs per ${unit}`, body(chart("Jobs enqueued and done", times, [{ name: "jobs enqueued", kind: "c-in", values: into }, { name: "jobs done", kind: "c-out", values: done, second: true }], say))),
    panel(`Failed attempts per ${unit}`, body(chart("Attempts that failed or lost their lease", times, [{ name: "attempts failed or expired", kind: "c-bad", values: bad, bars: true }], say))),
    panel("Wait and run time of attempts, 95th percentile", body(chart("Wait and run time of attempts", times, [{ name: "wait", kind: "c-one", values: p95(waits) }, { name: "run", kind: "c-two", values: p95(runs), second: true }], { say: span, sayTime, exact: exactly, sayStep }))),
    whole));
}

const PARTS = [0.5, 0.95, 0.99];

/** A row for all queues and one for each of the page; the name of a queue leads to its charts. */
function percentiles(view, spreads, { bounds, intervals }) {
  const total = { wait: null, run: null };
  for (const one of intervals) for (const kind of ["wait", "run"]) total[kind] = added(total[kind], one[kind].buckets);
  const cells = (kind, buckets) => PARTS.map((p) => cell(`${kind} p${p * 100}`, "number", buckets && buckets.some(Boolean) ? span(quantile(buckets, bounds, p)) : "–"));
  const row = (name, { wait, run }) => h("tr", {}, cell("", "wide", name), cells("Wait", wait), cells("Run", run), cell("Attempts", "number", number((run || []).reduce((a, b) => a + b, 0))));
  const link = (name) => h("a", { href: to("/", { ...view.params, queue: name }), "aria-current": name === view.params.queue ? "true" : null, title: `Charts of ${name}` }, name);
  const headings = ["wait", "run"].flatMap((kind) => PARTS.map((p) => [`${kind} p${p * 100}`, "number"]));
  return table("Percentiles of wait and run time by queue", ["Queue", ...headings, ["Attempts", "number"]],
    [!view.params.queue && row("All", total), ...[...spreads].sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, spread]) => row(link(name), spread))]);
}

function added(sum, buckets) {
  if (!buckets) return sum;
  return sum ? sum.map((n, i) => n + buckets[i]) : [...buckets];
}

/** As the server estimates it: exact to the bucket, and evenly inside of it. */
export function quantile(buckets, bounds, p) {
  if (!buckets.some(Boolean)) return null; // a minute in which runs ended and none began
  const rank = p * buckets.reduce((a, b) => a + b, 0);
  let below = 0;
  for (let i = 0; i < bounds.length; i += 1) {
    const lower = i ? bounds[i - 1] : 0;
    if (buckets[i] && below + buckets[i] >= rank) return lower + (bounds[i] - lower) * ((rank - below) / buckets[i]);
    below += buckets[i];
  }
  return bounds[bounds.length - 1];
}
