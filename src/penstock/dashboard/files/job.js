// A job: what it is, what became of it, and why it is not running.

import { h, replace } from "./dom.js";
import { post, remove, clock } from "./api.js";
import { number, ago, span, moment, to, pretty, headline, rate } from "./words.js";
import { panel, body, head, facts, badge, stateOf, table, cell, meter, action, ask, empty, STATES } from "./widgets.js";
import { graph, track } from "./charts.js";

const FINAL = ["done", "failed", "cancelled", "superseded"];

export async function show(view, id) {
  let open = new Set();
  let seen = "";
  const load = async () => {
    const [job, around] = await Promise.all([view.get(`/api/v1/jobs/${id}`), view.get(`/api/v1/jobs/${id}/graph`)]);
    const batch = job.correlation ? await view.get(`/api/v1/batches/${encodeURIComponent(job.correlation)}`) : null;
    const mark = JSON.stringify([job, around, batch]);
    if (mark === seen) return;
    seen = mark;
    open = new Set([...view.root.querySelectorAll("details[open]")].map((one) => one.dataset.name));
    const focused = document.activeElement && document.activeElement.closest("main") ? document.activeElement.textContent : null;
    replace(view.root, draw(view, job, around, batch, load));
    for (const one of view.root.querySelectorAll("details")) if (open.has(one.dataset.name)) one.open = true;
    if (focused) { const same = [...view.root.querySelectorAll("button, a, summary, h1")].find((one) => one.textContent === focused); if (same) same.focus({ preventScroll: true }); }
  };
  await view.every(3, load);
  view.live((events) => { if (events.some(({ entry }) => entry.job_id === id)) view.again(); });
}

function draw(view, job, around, batch, load) {
  return [
    head([job.task, h("span.dim", {}, `#${job.id}`), stateOf(job)], view.can("admin") ? actions(view, job, load) : null),
    why(job), job.progress && progress(job),
    h("div.grid", {}, panel("Job", body(about(job))), panel("Timeline", body(timeline(job), attempts(job)))),
    (around.edges.length > 0 || batch || Object.values(job.children).some(Boolean)) && panel("Relations", body(family(job, around, batch))),
    h("div.grid", {}, panel("Arguments", body(h("pre", {}, pretty(job.args)))),
      panel(job.error && job.state !== "done" ? "Error" : "Result", body(job.error && job.state !== "done" ? h("pre", {}, job.error) : job.result === null ? h("p.dim", {}, FINAL.includes(job.state) ? "The job returned nothing." : "No result yet.") : h("pre", {}, pretty(job.result))))),
    job.lines.length > 0 && panel("Log lines", body(h("pre", {}, job.lines.map((line) => `${moment(line.at)}  ${line.level.padEnd(8)} ${line.text}`).join("\n")))),
    panel("Audit log", trail(job)),
  ];
}

function why(job) {
  const { reason, text, blocked_by } = job.explanation;
  const kind = reason === "finished" ? "ended" : reason;
  const links = [];
  if (blocked_by) links.push(h("a", { href: to(`/jobs/${blocked_by}`) }, `Job ${blocked_by}`));
  if (reason === "blocked" && job.key) links.push(h("a", { href: to("/keys", { key: job.key }) }, "Jobs with the same key"));
  if (reason === "held") links.push(h("a", { href: to("/") }, `Queue ${job.queue}`));
  if (reason === "ready") links.push(h("a", { href: to("/workers") }, "Workers"));
  const title = FINAL.includes(job.state) ? "How it ended" : job.state === "running" ? "Running" : "Why is it not running?";
  return h(`section.why.${kind}`, { "aria-label": title }, h("h2", {}, title), h("p", {}, sentence(text)), links.length > 0 && h("p.dim", {}, links.flatMap((link, n) => (n ? [" · ", link] : [link]))));
}

const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}${text.endsWith(".") ? "" : "."}`;

function progress(job) {
  const { done, total, note, fraction, left, at, started_at, start } = job.progress;
  const seconds = (Date.parse(at) - Date.parse(started_at)) / 1000;
  const speed = seconds > 0 ? (done - start) / seconds : null;
  const words = [total ? `${number(done)} of ${number(total)}` : number(done), fraction !== null && `${Math.round(fraction * 100)} %`, speed && rate(speed), left !== null && job.state === "running" && `${span(left)} left`, note].filter(Boolean);
  return panel("Progress", body(fraction !== null && meter(fraction, "Progress of the job", ".tall"), h("p", {}, words.join(" · "))), h("span.dim", {}, ago(at)));
}

function about(job) {
  const link = (name, value) => value && h("a", { href: to("/jobs", { [name]: value }) }, value);
  return facts([
    ["Queue", link("queue", job.queue)], ["Task", link("task", job.task)], ["Priority", String(job.priority)],
    ["Enqueued", h("span", {}, moment(job.enqueued_at), " (", ago(job.enqueued_at), ")")], ["Due", job.state === "pending" ? h("span", {}, moment(job.run_at), " (", ago(job.run_at), ")") : null],
    ["Attempt", `${job.attempt} of ${number(job.retry.attempts)}`],
    ["Lease", job.state === "running" && job.worker ? h("span", {}, h("a", { href: to("/workers") }, job.worker), `, token ${job.token}, deadline `, ago(job.expires_at)) : null],
    ["Finished", job.finished_at ? h("span", {}, moment(job.finished_at), " (", ago(job.finished_at), ")") : null],
    ["Key", job.key && h("a", { href: to("/keys", { key: job.key }) }, job.key)], ["Dedupe", job.dedupe], ["Tenant", link("tenant", job.tenant)],
    ["Tags", job.tags.length ? h("span.chips", {}, job.tags.map((tag) => h("a.chip", { href: to("/jobs", { tags: tag }) }, tag))) : null],
    ["Throttle", job.throttle], ["Parent", job.parent && h("a", { href: to(`/jobs/${job.parent}`) }, `#${job.parent}`)],
    ["Timeout", job.timeout ? span(job.timeout) : null], ["Trace", job.trace && h("code", {}, job.trace)],
  ]);
}

/** Where the time went: waiting and running, from the log. */
function timeline(job) {
  const end = job.finished_at ? Date.parse(job.finished_at) : clock();
  const parts = [];
  let at = Date.parse(job.enqueued_at);
  const add = (state, until, text) => { if (until > at) parts.push({ state, seconds: (until - at) / 1000, text: `${text}: ${span((until - at) / 1000)}` }); at = Math.max(at, until); };
  for (const one of job.attempts) {
    add("pending", Date.parse(one.began_at), "waited");
    const kind = !one.outcome ? "running" : one.outcome === "done" ? "done" : ["failed", "expired"].includes(one.outcome) ? "failed" : "cancelled";
    add(kind, one.ended_at ? Date.parse(one.ended_at) : end, `ran, ${one.outcome || "still running"}`);
  }
  if (!FINAL.includes(job.state) && job.state !== "running") add("pending", end, "waits");
  const waited = parts.filter((part) => part.state === "pending").reduce((sum, part) => sum + part.seconds, 0);
  const ran = parts.filter((part) => part.state !== "pending").reduce((sum, part) => sum + part.seconds, 0);
  const text = `Waited ${span(waited)}, ran ${span(ran)}`;
  return h("div", {}, track(parts, `${text}: ${parts.map((part) => part.text).join(", ")}`), h("p.dim", {}, text));
}

function attempts(job) {
  if (!job.attempts.length) return h("p.dim", {}, "The job has not been claimed yet.");
  const from = job.attempts.length;
  return h("ol.steps", { reversed: true }, [...job.attempts].reverse().map((one, n) => h("li", {},
    h("div.what", {}, h("strong", {}, `Run ${from - n}`), badge(outcomeState(one), one.outcome || "running"), h("span.dim", {}, moment(one.began_at)), one.ended_at && h("span", {}, span(one.duration ?? (Date.parse(one.ended_at) - Date.parse(one.began_at)) / 1000)), h("span.dim", {}, `${one.worker}, token ${one.token}`)),
    one.error && h("details", { "data-name": `run-${from - n}` }, h("summary", {}, headline(one.error)), h("pre", {}, one.error)))));
}

const outcomeState = (one) => ({ done: "done", failed: "failed", expired: "failed", cancelled: "cancelled", superseded: "superseded" })[one.outcome] || (one.outcome ? "pending" : "running");

function family(job, around, batch) {
  const nodes = new Map(around.jobs.map((one) => [one.id, one]));
  const before = around.edges.filter((edge) => edge.job === job.id).map((edge) => edge.needs);
  const after = around.edges.filter((edge) => edge.needs === job.id).map((edge) => edge.job);
  const known = (ids) => [...new Set(ids)].filter((one) => nodes.has(one)).map((one) => nodes.get(one));
  const levels = [known(before), [nodes.get(job.id) || job], known(after)].filter((level) => level.length);
  const children = STATES.filter((state) => job.children[state]);
  return [
    around.edges.length > 0 && graph(levels, around.edges.map((edge) => [edge.needs, edge.job]), job.id),
    around.more && h("p.dim", {}, "Not all jobs are shown."),
    batch && h("p", {}, "Batch ", h("a", { href: to("/jobs", { correlation: job.correlation }) }, job.correlation), ` is ${batch.status}: `, STATES.filter((state) => batch.states[state]).map((state) => [badge(state, `${number(batch.states[state])} ${state}`), " "])),
    children.length > 0 && h("p", {}, h("a", { href: to("/jobs", { parent: job.id }) }, "Children"), ": ", children.map((state) => [badge(state, `${number(job.children[state])} ${state}`), " "])),
  ];
}

function trail(job) {
  const rows = [...job.log].reverse().map((entry) => h("tr", {},
    cell("When", "nowrap", moment(entry.at)), cell("What", "", entry.event.replaceAll("_", " ")), cell("State", "", badge(entry.state)), cell("Who", "", entry.actor),
    cell("Token", "number", entry.token === null ? "" : String(entry.token)), cell("Took", "number", entry.duration === null ? "" : span(entry.duration)),
    cell("Why", "clip.wide", entry.reason || headline(entry.error))));
  return rows.length ? table("Audit log, newest first", ["When", "What", "State", "Who", ["Token", "number"], ["Took", "number"], "Why"], rows) : empty("Nothing yet");
}

function actions(view, job, load) {
  const path = `/api/v1/jobs/${job.id}`;
  const reason = [{ name: "reason", label: "Reason, for the audit log", maxlength: 1000 }];
  const act = (name, verb, said, question, danger) => action(`${name}…`, async () => {
    const wanted = await ask({ title: `${name}: job ${job.id}?`, text: question, button: name, danger, fields: reason });
    if (!wanted) return null;
    await post(`${path}/${verb}`, undefined, { reason: wanted.reason });
    await load();
    return said;
  }, danger ? ".danger" : "");
  const buttons = [];
  if (["failed", "cancelled"].includes(job.state) || (job.state === "pending" && job.waiting === "scheduled")) buttons.push(act("Retry", "retry", `Job ${job.id} runs again.`, "It runs now, with all its attempts."));
  if (job.state === "pending") buttons.push(priority(view, job, load));
  if (job.state === "running") buttons.push(act("Take from worker", "reset", `Job ${job.id} was taken from its worker.`, `${job.worker} is refused from now on, and the job runs again.`, true));
  if (["pending", "running"].includes(job.state) && !job.cancel_requested) buttons.push(act("Cancel", "cancel", job.state === "running" ? `Job ${job.id} was asked to stop.` : `Cancelled job ${job.id}.`, job.state === "running" ? "Its worker is asked to stop it." : "It will not run.", true));
  if (FINAL.includes(job.state)) buttons.push(action("Delete…", async () => {
    if (!(await ask({ title: `Delete job ${job.id}?`, text: "The job and its log are removed. This cannot be undone.", button: "Delete", danger: true }))) return null;
    await remove(path);
    location.hash = "#/jobs";
    return `Deleted job ${job.id}.`;
  }, ".danger"));
  return buttons;
}

function priority(view, job, load) {
  return action("Priority…", async () => {
    const wanted = await ask({ title: `Priority of job ${job.id}`, text: "From 0 to 10; higher is claimed first.", button: "Set", fields: [{ name: "priority", label: "Priority", type: "number", min: 0, max: 10, value: String(job.priority), required: true }] });
    if (!wanted) return null;
    await post(`/api/v1/jobs/${job.id}/reprioritise`, undefined, { priority: wanted.priority });
    await load();
    return `Job ${job.id} has priority ${wanted.priority}.`;
  });
}

