// The jobs: find them, page through them, steer many at once.

import { h, replace, keyed } from "./dom.js";
import { post } from "./api.js";
import { number, ago, headline, to, plural, moment } from "./words.js";
import { head, table, cell, empty, badge, stateOf, action, ask, progress, toast, STATES } from "./widgets.js";

const LIMIT = 50;
const FIELDS = [
  ["text", "Text", "anywhere, or #id"], ["queue", "Queue", "any"], ["task", "Task", "any"], ["tags", "Tags", "any of a, b"], ["tenant", "Tenant", "any"], ["key", "Key", "any"],
  ["correlation", "Batch", "any"], ["error", "Error", "a text in it"], ["since", "Since", ""], ["before", "Before", ""],
];
const TIMES = ["since", "before"];
const HINTS = { text: "In the task, key, tags, tenant, arguments or error; #7 opens job 7", since: "Ended at this time or later; for unfinished jobs, enqueued", before: "Ended before this time; for unfinished jobs, enqueued" };
const PATIENCE = 4000; // for so long a search goes on by itself
const NAMES = [...FIELDS.map(([name]) => name), "state", "parent"];

let shown = null; // the page shown last

export async function show(view) {
  const page = { view, asked: filterOf(view.params), after: view.params.after, jobs: [], turn: 0, news: new Set(), gone: new Map() };
  page.bar = h("div");
  page.list = table("Jobs", ["Job", "State", "Queue", "Key, tags, tenant", ["Attempt", "number"], "Enqueued", "Error"]);
  page.foot = h("div.pages");
  page.none = h("div");
  await load(page);
  const title = head("Jobs", view.can("admin") ? bulkButtons(page) : null);
  const list = h("section.panel", { "aria-label": "Jobs" }, page.bar, page.list, page.none, page.foot);
  const [before, form, old] = view.root.children;
  if (form && form.show) { // somebody may be typing into it
    before.replaceWith(title);
    old.replaceWith(list);
  } else replace(view.root, title, filters(), list);
  view.root.children[1].show(view);
  shown = page;
  view.live((events) => follow(page, events));
  view.turns = [() => refresh(page)];
}

/** The filter that the parameters of an address ask for. */
function filterOf(params) {
  const filter = Object.fromEntries(NAMES.filter((name) => params[name]).map((name) => [name, params[name]]));
  for (const name of TIMES.filter((one) => filter[one])) {
    const at = new Date(filter[name]);
    if (Number.isNaN(at.getTime())) delete filter[name];
    else filter[name] = at.toISOString();
  }
  return filter;
}

async function load(page) {
  page.turn += 1;
  page.jobs = [];
  page.next = page.after;
  page.searching = true;
  await step(page);
  searchOn(page);
}

async function step(page) {
  const { turn } = page;
  const found = await page.view.get("/api/v1/jobs", { ...page.asked, after: page.next, limit: LIMIT - page.jobs.length, timeout: 1 });
  if (turn !== page.turn) return; // it has begun anew meanwhile
  page.jobs = [...page.jobs, ...found.jobs];
  page.next = found.after;
  draw(page);
}

/** The server has looked at many jobs and few fitted: go on behind them, for a while. */
async function searchOn(page) {
  const { turn } = page;
  const end = Date.now() + PATIENCE;
  page.searching = true;
  try {
    while (turn === page.turn && isShort(page) && Date.now() < end) await step(page);
  } catch (error) {
    if (error.name !== "AbortError") toast(error.message, true);
  }
  if (turn !== page.turn) return;
  page.searching = false;
  draw(page);
}

const isShort = (page) => Boolean(page.next) && page.jobs.length < LIMIT;

function draw(page) {
  const rows = page.jobs.map((job) => ({ ...job, args: null, result: null, moved: page.gone.get(job.id) || null }));
  keyed(page.list.rows, rows, (job) => job.id, jobRow);
  page.list.hidden = !page.jobs.length;
  const filtered = Object.keys(page.asked).length > 0;
  const short = isShort(page);
  replace(page.none, !page.jobs.length && !short && empty(filtered ? "No matching jobs" : "No jobs yet", filtered ? "Change or clear the filter." : "Jobs appear here as they are enqueued."));
  replace(page.bar, page.news.size > 0 && h("button.fresh", { type: "button", onclick: () => newest(page) }, `${plural(page.news.size, "new job")} · show`));
  const { view } = page;
  const shown = page.jobs.length ? `Jobs ${number(page.jobs[0].id)} to ${number(page.jobs[page.jobs.length - 1].id)}` : "No matching job so far";
  replace(page.foot, h("span", { role: "status" }, page.jobs.length || short ? shown : "", short && `. ${page.searching ? "Searching" : "Searched"} back to job ${number(page.next)}${page.searching ? "…" : "."}`),
    page.after && h("button", { type: "button", onclick: () => view.go({ ...view.params, after: "" }) }, "Newest"),
    short && !page.searching && h("button", { type: "button", "data-next": "", onclick: () => searchOn(page) }, "Continue searching"),
    page.next && !short && h("button", { type: "button", "data-next": "", onclick: () => view.go({ ...view.params, after: page.next }) }, "Older"));
}

export function jobRow(job) {
  const state = job.moved && job.moved !== job.state ? badge(job.moved) : stateOf(job);
  return h(`tr.pick${job.moved ? ".moved" : ""}`, {},
    cell("", "wide", h("a", { href: to(`/jobs/${job.id}`) }, h("strong", {}, job.task)), " ", h("span.dim", {}, `#${job.id}`)),
    cell("State", "", state), cell("Queue", "", job.queue),
    cell("Key, tags, tenant", "clip", h("span.chips", {}, job.key && h("a.chip", { href: to("/keys", { key: job.key }), title: "Key" }, `key ${job.key}`), job.tags.map((tag) => h("a.chip", { href: to("/jobs", { tags: tag }) }, tag)), job.tenant && h("a.chip", { href: to("/jobs", { tenant: job.tenant }), title: "Tenant" }, `tenant ${job.tenant}`))),
    cell("Attempt", "number", `${job.attempt} of ${number(job.retry.attempts)}`),
    cell("Enqueued", "nowrap", ago(job.enqueued_at)),
    cell("", "clip.wide", job.error && h("span.line.dim", { title: headline(job.error) }, headline(job.error))));
}

// What happens meanwhile

function follow(page, events) {
  const shown = new Set(page.jobs.map((job) => job.id));
  let touched = false;
  for (const { entry, job } of events) {
    if (shown.has(entry.job_id)) {
      touched = true;
      page.gone.set(entry.job_id, job.state);
    } else if (!page.after && couldFit(page.asked, entry, job)) page.news.add(entry.job_id);
  }
  if (touched) refresh(page);
  else draw(page);
}

function couldFit(asked, entry, job) {
  if (asked.state ? !asked.state.split(",").includes(job.state) : entry.event !== "enqueued") return false;
  if (asked.tags && !asked.tags.split(",").some((tag) => job.tags.includes(tag.trim()))) return false;
  if (["tenant", "key", "correlation", "parent", "error", "text", "before"].some((name) => asked[name])) return false; // the entry does not say
  return (!asked.queue || asked.queue === job.queue) && (!asked.task || asked.task === job.task);
}

/** Bring the rows up to date where they are: none comes, none goes, none moves. */
async function refresh(page) {
  page.stale = true;
  if (page.busy || page.view.signal.aborted) return;
  page.busy = true;
  page.stale = false;
  const began = Date.now();
  try {
    const first = page.jobs[0];
    const found = await page.view.get("/api/v1/jobs", { ...page.asked, after: first ? first.id + 1 : page.after, limit: LIMIT });
    const fresh = new Map(found.jobs.map((job) => [job.id, job]));
    if (!page.jobs.length) page.jobs = found.jobs;
    page.jobs = page.jobs.map((job) => fresh.get(job.id) || job);
    for (const id of fresh.keys()) page.gone.delete(id);
    draw(page);
  } finally {
    setTimeout(() => { // what takes long is not done again and again
      page.busy = false;
      if (page.stale) refresh(page);
    }, 4 * (Date.now() - began));
  }
}

async function newest(page) {
  page.news.clear();
  page.gone.clear();
  await load(page);
}

// Filters, which stand in the address

function filters() {
  let view = null;
  const chosen = new Set();
  const states = STATES.map((state) => h("button.choice", { type: "button", value: state, onclick: () => {
    if (!chosen.delete(state)) chosen.add(state);
    view.go({ ...view.params, state: [...chosen].join(","), after: "" });
  } }, badge(state)));
  const inputs = FIELDS.map(([name, , hint], n) => h("input", { id: `filter-${name}`, name, type: TIMES.includes(name) ? "datetime-local" : "search", placeholder: hint, "data-first": n === 0, onchange: submit }));
  const parent = h("span.chip");
  const clear = h("button", { type: "button", onclick: () => { inputs.forEach((input) => { input.value = ""; }); view.go({}); } }, "Clear");
  function submit() {
    const given = Object.fromEntries(inputs.map((input) => [input.name, input.value.trim()]));
    if (/^#\d+$/.test(given.text)) { location.hash = `#/jobs/${given.text.slice(1)}`; return; }
    view.go({ ...view.params, ...given, after: "" });
  }
  const fold = h("button.fold", { type: "button", "aria-expanded": "false", onclick: () => fold.setAttribute("aria-expanded", String(!form.classList.toggle("folded"))) }, "All filters");
  const form = h("form.panel.folded", { role: "search", "aria-label": "Filter", onsubmit: (event) => { event.preventDefault(); submit(); } },
    h("div.body", {}, h("div.chips", { role: "group", "aria-label": "States" }, states),
      h("div.fields", {}, inputs.map((input, n) => h(input.name === "text" ? "label.grow" : "label", { title: HINTS[input.name] }, FIELDS[n][1], input)), parent, h("button.hidden", { tabindex: "-1" }, "Apply"), fold, clear)));
  form.show = (now) => {
    view = now;
    chosen.clear();
    for (const state of (view.params.state || "").split(",").filter(Boolean)) chosen.add(state);
    for (const button of states) button.setAttribute("aria-pressed", String(chosen.has(button.value)));
    for (const input of inputs) if (input !== document.activeElement) input.value = view.params[input.name] || "";
    if (FIELDS.slice(1).some(([name]) => view.params[name]) && form.classList.contains("folded")) fold.click(); // nothing that counts is hidden
    parent.hidden = !view.params.parent;
    parent.textContent = `children of #${view.params.parent}`;
    clear.hidden = !Object.keys(view.params).length;
  };
  return form;
}

// Many at once

// Of which states an action is, and what it does to them, in words; `unless` is what it means without a filter of states.
const ACTIONS = {
  retry: { name: "Retry", done: "Retried", doing: "Retrying", states: ["failed", "cancelled", "pending"], unless: ["failed"], text: "The jobs run again, with all their attempts." },
  cancel: { name: "Cancel", done: "Cancelled", doing: "Cancelling", states: ["pending", "running"], unless: ["pending", "running"], danger: true, text: "Pending jobs end as cancelled; running jobs are asked to stop." },
  delete: { name: "Delete", done: "Deleted", doing: "Deleting", states: ["done", "failed", "cancelled", "superseded"], unless: ["done", "failed", "cancelled", "superseded"], danger: true, text: "The jobs and their logs are removed. This cannot be undone." },
};
const LABELS = Object.fromEntries([...FIELDS.map(([name, label]) => [name, label]), ["text", "Text"], ["parent", "Children of"]]);

function bulkButtons(page) {
  return Object.keys(ACTIONS).map((verb) => action(`${ACTIONS[verb].name} all…`, () => bulk(page, verb), ACTIONS[verb].danger ? ".danger" : ""));
}

/** Act on what the address asks for: somebody who changes the filter may click before the page shows it. */
async function bulk(page, verb) {
  const { name, done, doing, danger, text, ...about } = ACTIONS[verb];
  const given = filterOf(page.view.latest());
  const filter = { ...given };
  if (filter.state) filter.state = filter.state.split(",");
  if (filter.tags) filter.tags = filter.tags.split(",").map((tag) => tag.trim()).filter(Boolean);
  if (filter.parent) filter.parent = Number(filter.parent);
  const whole = !Object.keys(filter).length;
  const call = (more) => post(`/api/v1/jobs/bulk/${verb}`, { filter, ...more, ...(whole ? { all: true } : {}) });
  const states = filter.state ? about.states.filter((state) => filter.state.includes(state)) : about.unless;
  const counted = call({ dry_run: true });
  const wanted = await ask({
    title: `${name} all ${states.join(" and ")} jobs ${filter.queue ? `of queue ${filter.queue}` : "of all queues"}${others(given) ? " that match the filter" : ""}?`,
    text, danger, button: name, count: counted.then((answer) => answer.matched),
    about: [["States", states.join(", ")], ["Queue", filter.queue || "all queues"], ...inWords(given)],
  });
  if (!wanted) return null;
  const { matched: total, up_to } = await counted;
  const sum = await progress({ title: `${doing} ${plural(total, "job")}`, done, total, part: (limit, after) => call({ dry_run: false, limit, up_to, ...(after === null ? {} : { after }) }) });
  if (!shown.view.signal.aborted) await newest(shown); // else another page is on its way
  if (sum.ended !== "done") return null;
  return `${done} ${plural(sum.changed, "job")}${sum.skipped ? `, ${number(sum.skipped)} skipped` : ""}.`;
}

const others = (asked) => Object.keys(asked).some((name) => name !== "state" && name !== "queue");

/** What a filter says besides states and queue, as pairs. */
function inWords(asked) {
  return Object.entries(asked).filter(([name]) => name !== "state" && name !== "queue").map(([name, value]) => [LABELS[name], TIMES.includes(name) ? moment(value) : name === "parent" ? `#${value}` : value]);
}
