// Schedules: periodic tasks, their last and next run.

import { h, replace, keyed } from "./dom.js";
import { post, part } from "./api.js";
import { to, ago } from "./words.js";
import { head, panel, table, cell, empty, flag, action } from "./widgets.js";

export async function show(view) {
  const list = table("Schedules", ["Schedule", "When", "Last run", "Next run", ""]);
  const none = h("div");
  await view.every(5, async () => {
    const { schedules } = await view.get("/api/v1/schedules");
    keyed(list.rows, schedules, (one) => one.name, (one) => row(view, one));
    list.hidden = !schedules.length;
    replace(none, !schedules.length && empty("No schedule", "Schedules appear here when a program declares or adds them."));
  });
  replace(view.root, head("Schedules"), panel("Periodic tasks", h("div", {}, list, none)));
}

function row(view, one) {
  const path = `/api/v1/schedules/${part(one.name)}`;
  const act = (verb, said) => async () => { const answer = await post(`${path}/${verb}`); view.again(); return said(answer); };
  return h("tr.pick", {},
    cell("", "wide", h("strong", {}, one.name), " ", one.paused && flag("paused"), h("span.sub", {}, `${one.task} in `, h("a", { href: to("/jobs", { queue: one.queue, task: one.task }) }, one.queue))),
    cell("When", "", one.spec, h("span.sub", {}, one.cron ? `${one.cron} ${one.timezone}` : "")),
    cell("Last run", "", one.last ? [ago(one.last), " ", one.last_job && h("a", { href: to(`/jobs/${one.last_job}`) }, `#${one.last_job}`)] : "never"),
    cell("Next run", "", one.paused ? "paused" : ago(one.next)),
    cell("", "number.wide", view.can("admin") && h("span.actions", {},
      action("Run now", act("run", (job) => (job.duplicate ? `Job ${job.id} of ${one.name} is unfinished; no further job was enqueued.` : `Enqueued job ${job.id} of ${one.name}.`)), ".small"),
      one.paused ? action("Resume", act("resume", () => `Resumed ${one.name}.`), ".small") : action("Pause", act("pause", () => `Paused ${one.name}.`), ".small"))));
}
