// Entries: how many are embedded, which failed and why, import and search.

import { h, replace, keyed } from "./dom.js";
import { post, send, part } from "./api.js";
import { number, plural, ago, pretty, headline } from "./words.js";
import { head, panel, body, table, cell, empty, badge, meter, action, ask, flag, drawFacts, found, searching, unavailable } from "./widgets.js";

const STATES = { pending: "pending", processing: "running", embedded: "done", failed: "failed" };

export async function show(view) {
  const tiles = h("dl.tiles");
  const counts = table("Entries by type and status", ["Type", ...Object.keys(STATES).map((one) => [one, "number"])]);
  const failed = table("Entries that failed", ["Entry", "Error", ["Attempts", "number"], "Changed"]);
  const none = h("div");
  const imports = h("div");
  const title = h("div");
  try {
    await view.every(3, async () => {
      const list = (status) => post("/api/v1/entries/list", { embedding_status: status, limit: 50 });
      const [page, status] = await Promise.all([list("failed"), view.can("admin") ? view.get("/admin/queue/status") : null]);
      if (status) drawCounts(tiles, counts, status);
      counts.hidden = !status;
      replace(title, head(["Entries", status && status.queue.paused && flag("paused")], view.can("admin") && buttons(view, status, imports)));
      keyed(failed.rows, page.entries, (one) => one.id, failedRow);
      failed.hidden = !page.entries.length;
      replace(none, !page.entries.length && empty("No entry has failed"));
    });
  } catch (error) {
    return replace(view.root, unavailable(error, "Entries"));
  }
  return replace(view.root, title, tiles, imports, search(), view.can("admin") && panel("By type and status", counts), panel("Failed", h("div", {}, failed, none)));
}

function drawCounts(tiles, counts, { queue, workers }) {
  drawFacts(tiles, [...Object.keys(STATES).map((one) => [one, number(queue[one].total), one === "failed" ? "with their error below" : "entries"]), ["Workers", number(workers.running), `${number(workers.total_jobs_processed)} jobs so far`]]);
  const types = [...new Set(Object.keys(STATES).flatMap((one) => Object.keys(queue[one])))].filter((type) => type !== "total");
  keyed(counts.rows, types.map((type) => [type, ...Object.keys(STATES).map((one) => queue[one][type] || 0)]), ([type]) => type, ([type, ...n]) =>
    h("tr", {}, cell("", "wide", h("strong", {}, type)), n.map((count, i) => cell(Object.keys(STATES)[i], "number", number(count)))));
}

function failedRow(one) {
  return h("tr.pick", {}, cell("", "wide", h("strong", {}, one.id), " ", badge(STATES[one.embedding_status], one.embedding_status), h("span.sub", {}, `${one.entity_type} · ${one.category_code}`)),
    cell("Error", "wide", one.embedding_error && h("details", {}, h("summary", {}, headline(one.embedding_error)), h("pre", {}, one.embedding_error))), cell("Attempts", "number", number(one.embedding_attempts)), cell("Changed", "nowrap", ago(one.updated_at)));
}

function buttons(view, status, imports) {
  const n = status.queue.failed.total;
  return [
    n > 0 && action("Retry failed…", async () => {
      if (!(await ask({ title: "Embed failed entries again?", button: "Retry", what: ["entry", "entries"], count: Promise.resolve(n) }))) return null;
      const answer = await post("/admin/queue/retry-failed");
      view.again();
      return `Retried ${plural(answer.retried.total, "entry", "entries")}.`;
    }),
    status.queue.paused ? action("Resume", async () => { await post("/admin/queue/resume"); view.again(); return "Embedding is resumed."; })
      : action("Pause", async () => { await post("/admin/queue/pause", undefined, { timeout: 30 }); view.again(); return "Embedding is paused."; }),
    action("Import…", () => importFile(view, imports), ".main"),
  ];
}

async function importFile(view, imports) {
  const wanted = await ask({ title: "Import entries", text: "A CSV, JSON lines or XLSX file. It is imported completely or not at all.", button: "Import", fields: [
    { name: "file", label: "File", type: "file", accept: ".csv,.jsonl,.xlsx", required: true }, { name: "entity_type", label: "Type of records without one" }, { name: "category_code", label: "Category of records without one" },
    { name: "dry_run", label: "Only count", type: "checkbox" }, { name: "skip_bad", label: "Skip invalid records", type: "checkbox" }] });
  if (!wanted || !wanted.file) return null;
  const format = wanted.file.name.split(".").pop().toLowerCase();
  const params = { format, entity_type: wanted.entity_type, category_code: wanted.category_code, ...(wanted.dry_run ? { dry_run: true } : {}), ...(wanted.skip_bad ? { skip_bad: true } : {}) };
  const started = await send("/api/v1/entries/import", wanted.file, params);
  follow(view, started.job_id, imports);
  return "The import has started.";
}

async function follow(view, id, imports) {
  const job = await view.get(`/api/v1/operations/jobs/${part(id)}`);
  const over = ["succeeded", "failed", "cancelled"].includes(job.status);
  const state = { queued: "pending", running: "running", succeeded: "done" }[job.status] || job.status;
  replace(imports, panel("Import", body(h("p", {}, badge(state, job.status), " ", job.note || ""), job.total ? meter((job.progress || 0) / job.total, "Progress of the import", ".tall") : null,
    job.error && h("pre.failed", {}, job.error), job.result && h("pre", {}, pretty(job.result)))));
  if (!over && !view.signal.aborted) view.timers.push(setTimeout(() => follow(view, id, imports), 1000));
  else view.again();
}

function search() {
  const mode = h("select", { id: "mode" }, [["vector", "meaning"], ["hybrid", "meaning and words"], ["bm25", "words"]].map(([value, name]) => h("option", { value }, name)));
  const type = h("input", { id: "type", placeholder: "any" });
  return searching("words or a question", [["By", mode], ["Type", type]], async (query) => {
    const answer = await post("/api/v1/entries/search", { query, mode: mode.value, ...(type.value ? { entity_type: type.value } : {}) });
    return answer.results.map((one) => found(`${one.entry_id} · ${one.entry.entity_type} · ${one.entry.category_code}`, [["score", one.score]], pretty(one.entry.data)));
  });
}
