// The health of the store.

import { h, replace, keyed } from "./dom.js";
import { number, bytes, span } from "./words.js";
import { head, panel, body, facts, table, cell, drawFacts } from "./widgets.js";

const LARGE_WAL = 64e6;

export async function show(view) {
  const tiles = h("dl.tiles");
  const about = h("div");
  const calls = table("Calls to the store", ["Call", ["Mean", "number"], ["Recent mean", "number"], ["Calls", "number"], ["Failed", "number"]]);
  let before = new Map();
  await view.every(5, async () => {
    const [store, ready] = await Promise.all([view.get("/api/v1/store"), view.get("/health/ready").catch((error) => ({ status: "not ready", detail: error.message }))]);
    const rows = store.calls.filter((one) => one.calls).map((one) => ({ ...one, mean: one.seconds / one.calls, lately: lately(one, before.get(one.verb)) }));
    before = new Map(store.calls.map((one) => [one.verb, one]));
    drawTiles(tiles, store, ready, rows.filter((one) => one.writes));
    replace(about, facts([["Kind", store.kind], ["Address", h("code", {}, store.url)], ["Log entries", number(store.newest_log)]]));
    keyed(calls.rows, rows, (one) => one.verb, (one) => h("tr", {}, cell("", "wide", one.verb, one.writes ? h("span.sub", {}, "writes") : ""),
      cell("Mean", "number", span(one.mean)), cell("Recent mean", "number", one.lately === null ? "–" : span(one.lately)), cell("Calls", "number", number(one.calls)), cell("Failed", `number${one.errors ? ".failed" : ""}`, number(one.errors))));
  });
  replace(view.root, head("Store"), tiles, panel("Store", body(about)), panel("Calls by this server process", calls));
}

function lately(now, before) {
  return before && now.calls > before.calls ? (now.seconds - before.seconds) / (now.calls - before.calls) : null;
}

function drawTiles(tiles, store, ready, writes) {
  const n = writes.reduce((sum, one) => sum + one.calls, 0);
  const mean = n ? writes.reduce((sum, one) => sum + one.seconds, 0) / n : null;
  const shown = [
    ["Store", ready.status === "ready" ? "answers" : "does not answer", ready.detail || (ready.store_seconds ? `in ${span(ready.store_seconds)}` : "")],
    ["Size", bytes(store.bytes), "on disk"],
    store.wal_bytes !== null && ["Write-ahead log", bytes(store.wal_bytes), store.wal_bytes > LARGE_WAL ? "large: a reader may hold it open" : "kept small by checkpoints"],
    store.dead_rows !== null && ["Dead rows", number(store.dead_rows), "until the next vacuum"],
    ["Write latency", mean === null ? "–" : span(mean), "mean of this process"],
    ["Stale writes refused", number(store.refused), "of workers that had lost their lease"],
    ["Leases expired", number(store.expired), "workers that stopped responding"],
  ].filter(Boolean);
  drawFacts(tiles, shown);
}
