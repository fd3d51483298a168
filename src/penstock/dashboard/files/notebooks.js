// Notebooks: what waits for a commit, the last commits with their diff, the watcher.

import { h, replace, keyed } from "./dom.js";
import { post, part } from "./api.js";
import { number, ago, bytes, to, plural } from "./words.js";
import { head, panel, body, table, cell, empty, badge, flag, action, drawFacts, unavailable } from "./widgets.js";

const STATES = { pending: "pending", processing: "running", completed: "done", failed: "failed" };

export async function show(view) {
  if (view.params.file) return showFile(view, view.params.notebook, view.params.file);
  if (view.params.notebook) return showNotebook(view, view.params.notebook);
  const tiles = h("dl.tiles");
  const list = table("Notebooks", ["Notebook", "History", "Watcher", ["Paths to commit", "number"], ""]);
  const waiting = table("Operations pending or running", ["Path", "Operation", "State", "Enqueued"]);
  const none = h("div");
  const idle = h("div");
  try {
    await view.every(3, async () => {
      const [{ notebooks }, metrics, jobs] = await Promise.all([view.get("/api/v1/notebooks"), view.get("/api/v1/events/metrics"), view.get("/api/v1/jobs", { queue: "notebooks", state: "pending,running", limit: 50 })]);
      drawFacts(tiles, Object.keys(STATES).map((one) => [one, number(metrics[one]), "operations"]));
      keyed(list.rows, notebooks.map((one) => ({ ...one, waiting: metrics.uncommitted[one.name] ?? metrics.uncommitted[one.id] ?? 0 })), (one) => one.id, (one) => notebookRow(view, one));
      list.hidden = !notebooks.length;
      replace(none, !notebooks.length && empty("No notebooks registered"));
      const names = new Map(notebooks.map((one) => [one.id, one.name]));
      keyed(waiting.rows, jobs.jobs.map((job) => ({ ...job, path: pathOf(job, names) })), (job) => job.id, (job) => h("tr.pick", {}, cell("", "wide", h("a", { href: to(`/jobs/${job.id}`) }, h("strong", {}, job.path))), cell("Operation", "", job.task), cell("State", "", badge(job.state)), cell("Enqueued", "nowrap", ago(job.enqueued_at))));
      waiting.hidden = !jobs.jobs.length;
      replace(idle, !jobs.jobs.length && empty("No pending operations"));
    });
  } catch (error) {
    return replace(view.root, unavailable(error, "Notebooks"));
  }
  return replace(view.root, head("Notebooks", view.can("publish") && commit(view, null, "Commit all now")), tiles, panel("Notebooks", h("div", {}, list, none)), panel("Pending by path", h("div", {}, waiting, idle)));
}

/** What an operation is about: its path, the first of those to look at, or all of its notebook. */
function pathOf(job, names) {
  const asked = (job.args && (job.args.operation || job.args)) || {};
  if (asked.path) return asked.to ? `${asked.path} → ${asked.to}` : asked.path;
  const [first, ...more] = (asked.changes || []).map(([path]) => path);
  if (first) return more.length ? `${first} and ${number(more.length)} more` : first;
  return `all of ${names.get(asked.notebook) || `notebook ${asked.notebook}`}`;
}

const commit = (view, name, title) => action(title, async () => {
  const answer = await post("/api/v1/events/commit", name ? { notebook: name } : {});
  view.again();
  return answer.events.length ? `${plural(answer.events.length, "commit")} asked for.` : "There was nothing to commit.";
}, name ? ".small" : ".main");

/** Where the history is, and what is not in it: never "git" where there is no repository. */
function historyOf(one) {
  const joined = one.repository && one.repository.kind === "joined";
  const kind = one.git ? (joined ? ["git", h("span.sub", {}, `joined ${one.repository.path}`)] : ["git"]) : ["none"];
  if (one.git_problem) kind.push(flag("not committed", "failed"), h("span.sub", {}, one.git_problem));
  if (one.held_count) {
    const reasons = one.held.map(({ path, reason }) => `${path}: ${reason}`).join("\n");
    kind.push(h("span.sub", { title: reasons }, `${plural(one.held_count, "path")} left out, such as ${one.held[0].path}: ${one.held[0].reason}`));
  }
  return kind;
}

function notebookRow(view, one) {
  return h("tr.pick", {}, cell("", "wide", h("a", { href: to("/notebooks", { notebook: one.name }) }, h("strong", {}, one.name)), h("span.sub", {}, one.path)), cell("History", "", historyOf(one)),
    cell("Watcher", "", one.watch_problem ? [flag("not watched", "failed"), h("span.sub", {}, one.watch_problem)] : one.watched ? flag("watched", "done") : "off"), cell("Paths to commit", "number", number(one.waiting)), cell("", "number", view.can("publish") && one.git && commit(view, one.name, "Commit now")));
}

async function showNotebook(view, name) {
  const files = table(`Files of ${name}`, ["File", ["Size", "number"], ["Version", "number"], "Changed"]);
  const page = await view.get(`/api/v1/notebooks/${part(name)}/files`, { limit: 200, after: view.params.after });
  keyed(files.rows, page.files, (one) => one.id, (one) => h("tr.pick", {}, cell("", "wide", h("a", { href: to("/notebooks", { notebook: name, file: one.id }) }, h("strong", {}, one.path)), one.title && h("span.sub", {}, one.title)),
    cell("Size", "number", bytes(one.size)), cell("Version", "number", number(one.version)), cell("Changed", "nowrap", ago(one.updated_at))));
  return replace(view.root, head(["Notebook", h("span.dim", {}, name)], h("a.button", { href: to("/notebooks") }, "All notebooks"), view.can("publish") && commit(view, name, "Commit now")),
    panel("Files and their last commits", h("div", {}, page.files.length ? files : empty("No file"), page.next && h("div.pages", {}, h("span"), h("a.button", { "data-next": "", href: to("/notebooks", { notebook: name, after: page.next }) }, "More")))));
}

async function showFile(view, name, id) {
  const path = `/api/v1/notebooks/${part(name)}/files/${part(id)}`;
  const [file, history] = await Promise.all([view.get(path), view.get(`${path}/history`, { limit: 20 }).catch(() => ({ commits: [] }))]);
  const rows = history.commits.map((one, n) => {
    const shown = h("pre.diff");
    const before = history.commits[n + 1];
    const load = async () => {
      if (shown.childElementCount) return;
      try {
        drawDiff(shown, await view.get(`${path}/diff`, n === 0 && !before ? {} : { since: before && before.commit, until: one.commit }));
      } catch (error) { shown.textContent = error.message; }
    };
    return h("li", {}, h("div.what", {}, h("strong", {}, one.message.split("\n")[0]), h("code", {}, one.commit.slice(0, 10)), h("span.dim", {}, `${one.author}, `, ago(one.at))), h("details", { ontoggle: load }, h("summary", {}, "What changed"), shown));
  });
  return replace(view.root, head([file.path, h("span.dim", {}, name)], h("a.button", { href: to("/notebooks", { notebook: name }) }, "All files")), panel("Last commits", rows.length ? body(h("ol.steps", {}, rows)) : empty("No commit yet")));
}

function drawDiff(shown, answer) {
  const kind = (line) => (line.startsWith("@@") ? "at" : line.startsWith("+") ? "add" : line.startsWith("-") ? "del" : null);
  replace(shown, answer.diff.split("\n").map((line) => h("span", { class: kind(line) }, `${line}\n`)), !answer.whole && h("span.dim", {}, "The rest is too long to show."));
}
