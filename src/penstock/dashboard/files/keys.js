// Keys: who holds one, and who waits behind.

import { h, replace, keyed } from "./dom.js";
import { part } from "./api.js";
import { to, plural, number } from "./words.js";
import { head, panel, table, cell, empty, badge } from "./widgets.js";

export async function show(view) {
  const { key } = view.params;
  const input = h("input", { type: "search", id: "key", name: "key", placeholder: "the whole key", value: key || "", "data-first": true });
  const search = h("form.panel", { role: "search", "aria-label": "Find a key", onsubmit: (event) => { event.preventDefault(); view.go({ key: input.value.trim() }); } },
    h("div.body", {}, h("div.fields", {}, h("label", {}, "Key", input), h("button", {}, "Show its jobs"))));
  if (key) return showLine(view, key, search);
  const list = table("Keys", ["Key", "Running or next", "State", ["Waiting behind", "number"], "Queue", "Worker"]);
  const none = h("div");
  const more = h("div");
  await view.every(3, async () => {
    const { keys, after } = await view.get("/api/v1/keys", { after: view.params.after, limit: 100 });
    keyed(list.rows, keys, (one) => one.key, ({ key: name, holder, waiting }) => h("tr.pick", {},
      cell("", "wide", h("a", { href: to("/keys", { key: name }) }, h("strong", {}, name))),
      cell("Running or next", "", h("a", { href: to(`/jobs/${holder.id}`) }, `${holder.task} #${holder.id}`)), cell("State", "", badge(holder.state)),
      cell("Waiting behind", "number", waiting < 999 ? number(waiting) : "999 or more"), cell("Queue", "", holder.queue), cell("Worker", "", holder.worker || "")));
    list.hidden = !keys.length;
    replace(none, !keys.length && empty("No keys in use", "Jobs with the same key run one at a time, in order. A key appears here while it has an unfinished job."));
    replace(more, (after || view.params.after) && h("div.pages", {}, h("span", {}, "By name."), view.params.after && h("a.button", { href: to("/keys") }, "First"), after && h("a.button", { "data-next": "", href: to("/keys", { after }) }, "More")));
  });
  replace(view.root, head("Keys"), search, panel("Keys of unfinished jobs", h("div", {}, list, none, more)));
  return null;
}

async function showLine(view, key, search) {
  const line = table(`Jobs with key ${key}`, [["Place", "number"], "Job", "State", "Queue", "Worker"]);
  const none = h("div");
  const more = h("div");
  await view.every(3, async () => {
    const found = await view.get(`/api/v1/keys/${part(key)}`);
    const jobs = [found.holder, ...found.waiting].filter(Boolean);
    keyed(line.rows, jobs.map((job, place) => ({ ...job, place })), (job) => job.id, (job) => h("tr.pick", {},
      cell("Place", "number", job.place ? String(job.place) : job.state === "running" ? "holds it" : "next"),
      cell("", "", h("a", { href: to(`/jobs/${job.id}`) }, h("strong", {}, job.task)), ` #${job.id}`), cell("State", "", badge(job.state)), cell("Queue", "", job.queue), cell("Worker", "", job.worker || "")));
    line.hidden = !jobs.length;
    replace(none, !jobs.length && empty("This key is not in use", "No unfinished job has this key."));
    replace(more, found.after && h("p.pages", {}, h("span", {}, `The first ${plural(jobs.length, "job")}.`), h("a", { href: to("/jobs", { key, state: "pending,running" }) }, "All of them")));
  });
  replace(view.root, head(["Key", h("span.dim", {}, key)], h("a.button", { href: to("/jobs", { key }) }, "All jobs with this key")), search, panel("Running and waiting jobs, in order", h("div", {}, line, none, more)));
}
