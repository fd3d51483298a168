// Workers: who works, on what, and until when.

import { h, replace, keyed } from "./dom.js";
import { post, part } from "./api.js";
import { to, ago, span, number, plural } from "./words.js";
import { head, table, cell, empty, badge, flag, meter, action, ask } from "./widgets.js";

export async function show(view) {
  const list = h("div.grid");
  const none = h("div");
  const waiting = h("div");
  await view.every(3, async () => {
    const { workers, waiting_tasks: tasks } = await view.get("/api/v1/workers");
    replace(waiting, tasks.length > 0 && waitingTasks(tasks));
    keyed(list, workers, (one) => one.name, (one) => card(view, one));
    replace(none, !workers.length && empty("No worker", "Start one with: penstock worker app:app"));
  });
  replace(view.root, head("Workers"), waiting, list, none);
}

/** The server counts so many of each task. */
const mostCounted = 10000;

function waitingTasks(tasks) {
  return h("section.panel", { "aria-label": "Tasks without a worker" },
    h("header", {}, h("h2", {}, "Tasks without a worker")),
    table("Tasks without a worker", ["Task", ["Jobs", "number"], "Waiting since"], tasks.map((one) => h("tr", {},
      cell("", "wide", h("strong", {}, one.task), h("span.sub", {}, one.text)),
      cell("Jobs", "number", number(one.jobs) + (one.jobs < mostCounted ? "" : "+")), cell("Waiting since", "nowrap", ago(one.oldest))))));
}

function card(view, one) {
  const status = one.silent ? badge("failed", "silent") : one.running ? badge("running", "working") : badge("pending", "idle");
  const drain = view.can("admin") && one.host && !one.draining && action("Drain…", () => drainOne(view, one), ".small");
  const about = [one.host && `${one.host}, process ${one.pid}`, one.queues ? `queues ${one.queues.join(", ")}` : "all queues", one.tags.length && `tags ${one.tags.join(", ")}`].filter(Boolean).join(" · ");
  const leases = table(`Leases of ${one.name}`, ["Job", ["Token", "number"], "Began", "Lease ends"], one.leases.map((lease) => h("tr.pick", {},
    cell("", "wide", h("a", { href: to(`/jobs/${lease.job_id}`) }, h("strong", {}, lease.task)), ` #${lease.job_id} `, lease.cancel_requested && flag("stopping"), h("span.sub", {}, lease.queue)),
    cell("Token", "number", String(lease.token)), cell("Began", "nowrap", ago(lease.started_at)), cell("Lease ends", "nowrap", ago(lease.expires_at)))));
  return h("section.panel", { "aria-label": `Worker ${one.name}` },
    h("header", {}, h("h2", {}, one.name), one.draining && flag("draining"), status, drain),
    h("div.body", {}, h("p.dim", {}, about),
      one.concurrency && h("div", {}, meter(one.running / one.concurrency, `${one.running} of ${one.concurrency} slots`), h("span.dim", {}, `${one.running} of ${one.concurrency} slots`)),
      h("p", { class: one.silent ? "warn" : "dim" }, "Last heartbeat ", ago(one.seen_at), one.silent && `: silent for ${span(one.heartbeat_age)}, probably dead`)),
    one.leases.length > 0 && leases);
}

async function drainOne(view, one) {
  const wanted = await ask({ title: `Drain ${one.name}?`, text: `The worker claims no more jobs, finishes ${plural(one.running, "job")}, and stops. It receives the request within ten seconds.`, button: "Drain", danger: true });
  if (!wanted) return null;
  await post(`/api/v1/workers/${part(one.name)}/drain`);
  view.again();
  return `${one.name} was asked to drain.`;
}
