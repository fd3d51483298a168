// Ingest: items by type, tenant and collection, children of a folder, dead items with their reason.

import { h, replace, keyed } from "./dom.js";
import { post, part } from "./api.js";
import { number, ago, to, plural, headline } from "./words.js";
import { head, panel, table, cell, empty, badge, action, ask, switcher, drawFacts, found, searching, unavailable } from "./widgets.js";

const STATES = { pending: "pending", in_progress: "running", done: "done", failed: "failed" };
const WAYS = [["by_type", "type", "item_type"], ["by_tenant", "tenant", "tenant_id"], ["by_collection", "collection", "collection"]];
const FILTERS = ["status", "item_type", "tenant_id", "collection", "parent"];

export async function show(view) {
  const way = WAYS.find(([name]) => name === view.params.by) || WAYS[0];
  const asked = Object.fromEntries(FILTERS.filter((name) => view.params[name]).map((name) => [name, view.params[name]]));
  const tiles = h("dl.tiles");
  const sums = table("Totals", [way[1], ...Object.keys(STATES).map((one) => [one.replace("_", " "), "number"])]);
  const items = table("Items", ["Item", "Status", "Tenant, collection", "Error", "Changed", ""]);
  const none = h("div");
  const foot = h("div.pages");
  try {
    await view.every(3, async () => {
      const [stats, page] = await Promise.all([view.get("/api/v1/queue/items/stats"), view.get("/api/v1/queue/items", { ...asked, before: view.params.before, limit: 50 })]);
      drawFacts(tiles, Object.keys(STATES).map((one) => [one.replace("_", " "), number(stats.total[one] || 0), "items"]));
      keyed(sums.rows, Object.entries(stats[way[0]]), ([name]) => name, ([name, n]) => h("tr.pick", {}, cell("", "wide", h("a", { href: to("/ingest", { ...view.params, before: "", [way[2]]: name }) }, h("strong", {}, name))),
        Object.keys(STATES).map((one) => cell(one.replace("_", " "), "number", one === "failed" && n[one] ? h("a.failed", { href: to("/ingest", { by: way[0], [way[2]]: name, status: "failed" }) }, number(n[one])) : number(n[one] || 0)))));
      keyed(items.rows, page.items, (one) => one.queue_id, (one) => itemRow(view, one));
      items.hidden = !page.items.length;
      replace(none, !page.items.length && empty("No matching items"));
      replace(foot, h("span", {}, plural(page.items.length, "item")), view.params.before && h("a.button", { href: to("/ingest", { ...view.params, before: "" }) }, "Newest"),
        page.next && h("a.button", { "data-next": "", href: to("/ingest", { ...view.params, before: page.next }) }, "Older"));
    });
  } catch (error) {
    return replace(view.root, unavailable(error, "Ingest"));
  }
  const chosen = Object.entries(asked).map(([name, value]) => h("a.chip", { href: to("/ingest", { ...view.params, [name]: "", before: "" }), "aria-label": `Without ${name} ${value}` }, `${name} ${value} ×`));
  const states = switcher("Status", [["", "all"], ...Object.keys(STATES).map((one) => [one, one.replace("_", " ")])], asked.status || "", (status) => view.go({ ...view.params, status, before: "" }));
  return replace(view.root, head("Ingest", view.can("publish") && action("Ingest a path…", () => ingestPath(view), ".main")), tiles, search(),
    panel(`By ${way[1]}`, sums, switcher("Totals by", WAYS.map(([name, title]) => [name, title]), way[0], (by) => view.go({ ...view.params, by }))),
    panel("Items", h("div", {}, items, none, foot), chosen, states));
}

function itemRow(view, one) {
  const path = `/api/v1/queue/items/${part(one.queue_id)}`;
  const act = (name, verb, said) => action(name, async () => { await post(`${path}/${verb}`); view.again(); return said; }, ".small");
  const named = one.payload && (one.payload.file_path || one.payload.folder_path || one.payload.path || one.payload.document_id || one.payload.library);
  return h("tr.pick", {}, cell("", "wide", h("a", { href: to(`/jobs/${one.job_id}`) }, h("strong", {}, `${one.item_type} ${one.op}`)), h("span.sub", {}, typeof named === "string" ? named : one.queue_id)),
    cell("Status", "", badge(STATES[one.status] || one.status, one.status.replace("_", " "))), cell("Tenant, collection", "", `${one.tenant_id} · ${one.collection}`),
    cell("Error", "clip.wide", one.error_message && h("details", {}, h("summary", {}, headline(one.error_message)), h("pre", {}, one.error_message))), cell("Changed", "nowrap", ago(one.updated_at)),
    cell("", "number.wide", h("span.actions", {}, one.item_type === "folder" && h("a.button", { href: to("/ingest", { parent: one.queue_id }) }, "Children"),
      view.can("publish") && one.status === "failed" && act("Retry", "retry", "The item runs again."), view.can("publish") && ["pending", "in_progress"].includes(one.status) && act("Cancel", "cancel", "The item was cancelled."))));
}

async function ingestPath(view) {
  const wanted = await ask({ title: "Ingest a file or a folder", button: "Ingest", fields: [{ name: "path", label: "Path on the server", required: true }, { name: "tenant_id", label: "Tenant", value: "default" }, { name: "collection", label: "Collection", value: "default" }] });
  if (!wanted) return null;
  await post("/api/v1/ingest", wanted);
  view.again();
  return `${wanted.path} was enqueued.`;
}

function search() {
  const tenant = h("input", { id: "tenant", value: "default" });
  const collection = h("input", { id: "collection", value: "default" });
  return searching("words or a question", [["Tenant", tenant], ["Collection", collection]], async (query) => {
    const answer = await post("/api/v1/ingest/search", { query, tenant_id: tenant.value, collection: collection.value, top_k: 10 });
    return answer.results.map((one) => found(one.path, [["score", one.score]], one.text));
  });
}
