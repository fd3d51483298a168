// Indexing: folders, jobs, and a search.

import { h, replace, keyed } from "./dom.js";
import { post, remove, part } from "./api.js";
import { number, ago, span, rate, to } from "./words.js";
import { head, panel, table, cell, empty, badge, meter, action, ask, flag, drawFacts, found, searching } from "./widgets.js";

export async function show(view) {
  const tiles = h("dl.tiles");
  const folders = table("Folders", ["Folder", "Collection", ["Files", "number"], ["Chunks", "number"], "Indexed", ""]);
  const noFolder = h("div");
  const jobs = table("Indexing jobs", ["Folder", "State", "Progress", "Enqueued", ""]);
  const noJob = h("div");
  await view.every(2, async () => {
    const [status, found, page] = await Promise.all([view.get("/health/status"), view.get("/index/folders"), view.get("/index/jobs", { limit: 20 })]);
    const running = await Promise.all(page.jobs.filter((job) => job.status === "running").map((job) => view.get(`/index/jobs/${part(job.id)}`)));
    const details = new Map(running.map((job) => [job.id, job.progress]));
    drawTiles(tiles, status, page);
    keyed(folders.rows, found.folders, (one) => `${one.collection} ${one.folder_path}`, (one) => folderRow(view, one));
    folders.hidden = !found.folders.length;
    replace(noFolder, !found.folders.length && empty("No indexed folders", "Index one to search it."));
    keyed(jobs.rows, page.jobs.map((job) => ({ ...job, detail: details.get(job.id) || null })), (job) => job.id, (job) => jobRow(view, job));
    jobs.hidden = !page.jobs.length;
    replace(noJob, !page.jobs.length && empty("No indexing jobs yet"));
  });
  replace(view.root, head("Indexing", view.can("publish") && action("Index a folder…", () => indexFolder(view), ".main")), tiles, search(),
    panel("Folders and collections", h("div", {}, folders, noFolder)), panel("Jobs", h("div", {}, jobs, noJob)));
}

function drawTiles(tiles, status, page) {
  const shown = [["Documents", number(status.total_documents), `${number(status.total_chunks)} chunks`], ["Running", number(page.running), `${number(page.pending)} waiting`],
    ["Failed", number(page.failed), `${number(page.completed)} done`], ["Watched folders", number(status.file_watcher.watched_folders), status.file_watcher.running ? "the watcher runs" : "the watcher does not run"]];
  drawFacts(tiles, shown);
}

function folderRow(view, one) {
  const again = action("Index again", async () => { await post("/index", { folder_path: one.folder_path, collection: one.collection }); view.again(); return `Indexing ${one.folder_path}.`; }, ".small");
  const drop = action("Remove…", async () => {
    if (!(await ask({ title: "Remove from the index?", text: `${one.folder_path}: ${number(one.chunk_count)} chunks. Its files are not touched.`, button: "Remove", danger: true }))) return null;
    const answer = await remove("/index/folders", { folder_path: one.folder_path, collection: one.collection });
    view.again();
    return `${answer.message}.`;
  }, ".small.danger");
  return h("tr.pick", {}, cell("", "wide", h("strong", {}, one.folder_path), " ", one.watch_mode === "auto" && flag("watched", "done")), cell("Collection", "", one.collection), cell("Files", "number", number(one.file_count)),
    cell("Chunks", "number", number(one.chunk_count)), cell("Indexed", "", ago(one.last_indexed)), cell("", "number.wide", h("span.actions", {}, view.can("publish") && again, view.can("admin") && drop)));
}

function jobRow(view, job) {
  const stop = action("Cancel", async () => { const answer = await remove(`/index/jobs/${part(job.id)}`); view.again(); return `${answer.message}`; }, ".small");
  const { detail } = job;
  const words = detail ? [`${number(detail.files_processed)} of ${number(detail.files_total)} files`, detail.rate && rate(detail.rate).replace("/", " files/"), detail.seconds_left !== null && `${span(detail.seconds_left)} left`].filter(Boolean).join(" · ") : "";
  return h("tr.pick", {}, cell("", "wide", h("a", { href: to(`/jobs/${job.id.replace("job_", "")}`) }, h("strong", {}, job.folder_path)), h("span.sub", {}, `${job.operation} · ${job.collection}`)), cell("State", "", badge(job.status)),
    cell("Progress", "", meter(job.progress_percent / 100, `Progress of ${job.id}`, ".flow"), h("span.sub", {}, words || job.error || `${job.progress_percent} %`)), cell("Enqueued", "nowrap", ago(job.enqueued_at)),
    cell("", "number", view.can("publish") && ["pending", "running"].includes(job.status) && stop));
}

async function indexFolder(view) {
  const wanted = await ask({ title: "Index a folder", text: "A path on the server, below the project's root.", button: "Index", fields: [
    { name: "folder_path", label: "Folder", required: true }, { name: "collection", label: "Collection", value: "default", pattern: "[A-Za-z0-9_\\-]{1,64}" },
    { name: "include_code", label: "Include source code", type: "checkbox" }, { name: "watch", label: "Watch for changes", type: "checkbox" }] });
  if (!wanted) return null;
  const answer = await post("/index", { folder_path: wanted.folder_path, collection: wanted.collection || "default", include_code: wanted.include_code, ...(wanted.watch ? { watch_mode: "auto" } : {}) });
  view.again();
  return `${answer.message}`;
}

function search() {
  const mode = h("select", { id: "mode" }, [["hybrid", "meaning and words"], ["vector", "meaning"], ["bm25", "words"]].map(([value, name]) => h("option", { value }, name)));
  const collection = h("input", { id: "collection", value: "default" });
  return searching("how are jobs retried?", [["By", mode], ["Collection", collection]], async (query) => {
    const answer = await post("/query", { query, mode: mode.value, collection: collection.value || "default", top_k: 10 });
    return answer.results.map((one) => found(one.source, [["score", one.score], ["meaning", one.vector_score], ["words", one.bm25_score]], one.text));
  });
}
