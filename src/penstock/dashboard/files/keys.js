// Keys: who holds one, and who waits behind.

import { h, replace, keyed } from "/dashboard/dom.js";
import { part } from "/dashboard/api.js";
import { to, plural, ago } from "/dashboard/words.js";
import { head, panel, table, cell, empty, badge } from "/dashboard/widgets.js";

export async function show(view) {
  const { key } = view.params;
  const input = h("input", { type: "search", id: "key", name: "key", placeholder: "the whole key", value: key || "", "data-first": true });
  const search = h("form.panel", { role: "search", "aria-label": "Find a key", onsubmit: (event) => { event.preventDefault(); view.go({ key: input.value.trim() }); } },
    h("div.body", {}, h("div.fields", {}, h("label", {}, "Key", input), h("button", {}, "Show its line"))));
  if (key) return showLine(view, key, search);
  const held = table("Keys that are held", ["Key", "Held by", "Queue", "Worker", "Since"]);
  const none = h("div");
  await view.every(3, async () => {
    const { workers } = await view.get("/api/v1/workers");
    const leases = workers.flatMap((one) => one.leases.map((lease) => ({ ...lease, worker: one.name }))).filter((lease) => lease.key !== null);
    keyed(held.rows, leases, (lease) => lease.job_id, (lease) => h("tr.pick", {},
      cell("", "wide", h("a", { href: to("/keys", { key: lease.key }) }, h("strong", {}, lease.key))),
      cell("Held by", "", h("a", { href: to(`/jobs/${lease.job_id}`) }, `${lease.task} #${lease.job_id}`)), cell("Queue", "", lease.queue), cell("Worker", "", lease.worker), cell("Since", "", ago(lease.started_at))));
    held.hidden = !leases.length;
    replace(none, !leases.length && empty("No key is held by a running job", "Jobs of one key run one at a time, in their order. Look up the line of any key above."));
  });
  replace(view.root, head("Keys"), search, panel("Held by running jobs", h("div", {}, held, none)));
  return null;
}

async function showLine(view, key, search) {
  const line = table(`The line of ${key}`, [["Place", "number"], "Job", "State", "Queue", "Worker"]);
  const none = h("div");
  const more = h("div");
  await view.every(3, async () => {
    const found = await view.get(`/api/v1/keys/${part(key)}`);
    const jobs = [found.holder, ...found.waiting].filter(Boolean);
    keyed(line.rows, jobs.map((job, place) => ({ ...job, place })), (job) => job.id, (job) => h("tr.pick", {},
      cell("Place", "number", job.place ? String(job.place) : "holds it"),
      cell("", "", h("a", { href: to(`/jobs/${job.id}`) }, h("strong", {}, job.task)), ` #${job.id}`), cell("State", "", badge(job.state)), cell("Queue", "", job.queue), cell("Worker", "", job.worker || "")));
    line.hidden = !jobs.length;
    replace(none, !jobs.length && empty("Nobody holds this key", "No unfinished job has it."));
    replace(more, found.after && h("p.pages", {}, h("span", {}, `The first ${plural(jobs.length, "job")} of the line.`), h("a", { href: to("/jobs", { key, state: "pending,running" }) }, "All of them")));
  });
  replace(view.root, head(["Key", h("span.dim", {}, key)], h("a.button", { href: to("/jobs", { key }) }, "All jobs of this key")), search, panel("Who holds it and who waits behind", h("div", {}, line, none, more)));
}
