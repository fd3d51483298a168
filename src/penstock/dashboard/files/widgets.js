// What the screens are made of.

import { h, svg, replace, keyed } from "./dom.js";
import { number, plural, span } from "./words.js";

const SHAPES = {
  pending: [["circle", { cx: 8, cy: 8, r: 5.5, fill: "none", stroke: "currentColor", "stroke-width": 2 }]],
  running: [["path", { d: "M4 2.5l9.5 5.5L4 13.5z", fill: "currentColor" }]],
  done: [["path", { d: "M2.5 8.5l3.8 4L13.5 4", fill: "none", stroke: "currentColor", "stroke-width": 2.4 }]],
  failed: [["path", { d: "M3.5 3.5l9 9m0-9l-9 9", fill: "none", stroke: "currentColor", "stroke-width": 2.4 }]],
  cancelled: [["circle", { cx: 8, cy: 8, r: 5.5, fill: "none", stroke: "currentColor", "stroke-width": 2 }], ["path", { d: "M4 12L12 4", stroke: "currentColor", "stroke-width": 2 }]],
  superseded: [["path", { d: "M2 8h10m-4-4l4 4-4 4", fill: "none", stroke: "currentColor", "stroke-width": 2.2 }]],
};
SHAPES.unknown = SHAPES.pending;

export const STATES = ["pending", "running", "done", "failed", "cancelled", "superseded"];

export function shape(state) {
  const parts = SHAPES[state] || SHAPES.unknown;
  return svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, parts.map(([tag, attributes]) => svg(tag, attributes)));
}

/** A state: its shape, its colour and its word. */
export function badge(state, word = state) {
  const known = STATES.includes(state) ? state : "pending";
  return h(`span.state.${known}`, {}, shape(state), word);
}

/** A job's state, with what a pending one waits for. */
export function stateOf(job) {
  if (job.state === "pending" && job.waiting && job.waiting !== "ready") return badge("pending", job.waiting);
  if (job.state === "running" && job.cancel_requested) return badge("running", "stopping");
  return badge(job.state);
}

export const flag = (word, kind = "warn") => h(`span.flag.${kind}`, {}, word);

export function panel(title, body, ...tools) {
  return h("section.panel", { "aria-label": title }, h("header", {}, h("h2", {}, title), tools), body);
}

export const body = (...children) => h("div.body", {}, children);

export function head(title, ...tools) {
  return h("div.head", {}, h("h1", { tabindex: "-1" }, title), h("div.actions", {}, tools));
}

export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return h("dl.facts", {}, shown.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

/** A table; a heading is a name, or [name, class]. On a phone each row is a card. */
export function table(label, headings, rows = []) {
  const names = headings.map((one) => (Array.isArray(one) ? one : [one, ""]));
  const tbody = h("tbody", {}, rows);
  const wide = names.map(([name, kind]) => h(kind ? `th.${kind}` : "th", { scope: "col" }, name || h("span.hidden", {}, "Actions")));
  const element = h("div.scroll", { tabindex: "0", role: "group", "aria-label": label }, h("table.cards", {}, h("thead", {}, h("tr", {}, wide)), tbody));
  element.rows = tbody;
  return element;
}

export const cell = (name, kind, ...children) => h(kind ? `td.${kind}` : "td", name ? { "data-name": name } : {}, children);

export const empty = (title, ...more) => h("div.empty", {}, h("strong", {}, title), more);

export const skeleton = () => h("div.skeleton", { role: "status", "aria-label": "Loading" }, h("i"), h("i"));

export function meter(part, label, kind = "") {
  const percent = Math.max(0, Math.min(100, 100 * part));
  const inner = h("i");
  inner.style.width = `${percent}%`;
  return h(`div.bar${kind || (part >= 1 ? ".full" : "")}`, { role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.round(percent) }, inner);
}

export function switcher(label, options, chosen, choose) {
  return h("div.switch", { role: "group", "aria-label": label }, options.map(([value, name]) =>
    h("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => choose(value) }, name)));
}

/** Say what was done; a mistake stays longer. */
export function toast(text, bad = false) {
  const element = h(`div.toast${bad ? ".bad" : ""}`, {}, h("span", {}, text),
    h("button", { type: "button", "aria-label": "Dismiss", onclick: () => element.remove() }, "×"));
  document.getElementById("toasts").append(element);
  setTimeout(() => element.remove(), bad ? 12000 : 6000);
}

/**
 * Ask before something is done. `about` are pairs that say what it touches. `count` is a promise of
 * how many it is about; the button waits for it. Answers with the values of the fields, or null.
 */
export function ask({ title, text, about = [], count, what = ["job"], button, danger, fields = [] }) {
  return new Promise((resolve) => {
    const confirm = h(`button.main${danger ? ".danger" : ""}`, { value: "yes", disabled: Boolean(count) }, button);
    const counted = count && h("p.count", { role: "status" }, "Counting…");
    const inputs = fields.map(({ name, label, ...rest }) => {
      const input = h("input", { name, ...rest });
      return rest.type === "checkbox" ? h("label.row", {}, input, label) : h("label", {}, label, input);
    });
    const form = h("form", { method: "dialog" }, h("h2", { id: "asked" }, title), text && h("p", {}, text), about.length > 0 && facts(about), counted, inputs,
      h("div.actions", {}, h("button", { value: "no", type: "button", onclick: () => dialog.close("no") }, "Keep"), confirm));
    const dialog = h("dialog", { "aria-labelledby": "asked" }, form);
    dialog.addEventListener("close", () => {
      const values = Object.fromEntries([...form.querySelectorAll("input")].map((one) => [one.name, one.type === "checkbox" ? one.checked : one.type === "file" ? one.files[0] : one.value]));
      dialog.remove();
      resolve(dialog.returnValue === "yes" ? values : null);
    });
    document.body.append(dialog);
    dialog.showModal();
    if (!count) return;
    count.then((n) => {
      counted.textContent = n ? plural(n, ...what) : `No matching ${what[1] || `${what[0]}s`}`;
      confirm.disabled = !n;
      if (n) replace(confirm, `${button} ${plural(n, ...what)}`);
    }, (error) => { counted.textContent = error.message; });
  });
}

const TURN = 700; // milliseconds that a part of long work should take

/**
 * Do long work in parts, with a live count and a button that stops it. `part(limit, after)` does the
 * next part, and answers with what it did: {matched, changed, skipped, after}, `after` null at the
 * end. Answers with the sums, `ended` ("done", "stopped" or "failed") and, if it failed, the error;
 * before that a dialog says what was done and what was not, unless all was.
 */
export function progress({ title, done, total, what = ["job"], part }) {
  return new Promise((resolve) => {
    const sum = { matched: 0, changed: 0, skipped: 0, ended: null };
    const bar = h("progress", { max: Math.max(1, total), "aria-label": title });
    const count = h("p.count", { role: "status" });
    const more = h("p.dim");
    const stop = h("button", { type: "button" }, "Stop");
    const dialog = h("dialog", { "aria-labelledby": "working" }, h("form", { method: "dialog" }, h("h2", { id: "working" }, title), bar, count, more, h("div.actions", {}, stop)));
    let stopping = false;
    const draw = () => {
      bar.value = sum.matched;
      count.textContent = `${number(sum.matched)} of ${plural(total, ...what)}`;
      more.textContent = stopping && !sum.ended ? "Stopping after this portion…" : sum.skipped ? `${number(sum.changed)} changed, ${number(sum.skipped)} skipped` : "";
    };
    const leave = () => { dialog.close(); dialog.remove(); resolve(sum); };
    const halt = () => { if (sum.ended) leave(); else { stopping = true; draw(); } };
    stop.addEventListener("click", halt);
    dialog.addEventListener("cancel", (event) => { event.preventDefault(); halt(); });
    document.body.append(dialog);
    draw();
    dialog.showModal();
    work();
    async function work() {
      let after = null, limit = 500;
      try {
        do {
          const began = performance.now();
          const answer = await part(limit, after);
          after = answer.after;
          for (const name of ["matched", "changed", "skipped"]) sum[name] += answer[name];
          limit = Math.max(300, Math.min(20000, Math.round(limit * Math.min(4, TURN / Math.max(1, performance.now() - began)))));
          draw();
        } while (after !== null && !stopping);
        sum.ended = after === null ? "done" : "stopped";
      } catch (error) {
        sum.ended = "failed";
        sum.error = error;
      }
      if (sum.ended === "done") { leave(); return; }
      draw();
      const failed = sum.ended === "failed"; // its last part may have been done, wholly or not
      replace(count, `${done} ${failed ? "at least " : ""}${plural(sum.changed, ...what)} of ${number(total)}${sum.skipped ? `, ${number(sum.skipped)} skipped` : ""}`);
      replace(more, `${failed ? `Failed: ${sum.error.message}.` : "Stopped."} What was done stays done, all else is as it was. The same action does the rest.`);
      replace(stop, "Close");
      stop.focus();
    }
  });
}

/** A button that does something once at a time, and says how it went. */
export function action(name, act, kind = "") {
  const element = h(`button${kind}`, { type: "button" }, name);
  element.addEventListener("click", async (event) => {
    event.stopPropagation();
    if (element.ariaBusy === "true") return;
    element.ariaBusy = "true"; // not disabled: it keeps the focus while a dialog asks
    try {
      const said = await act();
      if (said) toast(said);
    } catch (error) {
      toast(`${name}: ${error.message}`, true);
    } finally {
      element.ariaBusy = null;
    }
  });
  return element;
}

export function problem(error, again) {
  const text = error.status === 403 ? `No permission: ${error.message}.` : `${error.message || error}`;
  return h("div.problem", { role: "alert" }, h("span", {}, text), again && error.status !== 403 && h("button", { type: "button", onclick: again }, "Try again"));
}


/** Figures side by side, in a `dl.tiles`: a name, a large word, and a small one. */
export function drawFacts(tiles, shown) {
  keyed(tiles, shown, ([name]) => name, ([name, big, sub]) => h("div.tile", {}, h("dt", {}, name), h("dd", {}, h("span.big", {}, big), h("span.sub", {}, sub))));
}

/** A search box; `find` answers with what was found, drawn. */
export function searching(hint, fields, find) {
  const input = h("input", { type: "search", id: "query", placeholder: hint, "data-first": true, required: true });
  const results = h("div", { role: "status" });
  const form = h("form", { role: "search", "aria-label": "Search", onsubmit: async (event) => {
    event.preventDefault();
    replace(results, h("p.dim", {}, "Searching…"));
    const began = performance.now();
    try {
      const list = await find(input.value);
      replace(results, h("p.dim", {}, `${plural(list.length, "result")} in ${span((performance.now() - began) / 1000)}`), h("ol.steps", {}, list));
    } catch (error) {
      replace(results, h("p.failed", {}, error.message));
    }
  } }, h("div.fields", {}, h("label.grow", {}, "Search", input), fields.map(([name, field]) => h("label", {}, name, field)), h("button.main", {}, "Search")));
  return panel("Search", body(form, results));
}

export function found(source, scores, text) {
  const known = scores.filter(([, score]) => score !== null && score !== undefined);
  return h("li", {}, h("div.what", {}, h("strong", {}, source), known.map(([name, score]) => h("span.chip", {}, `${name} ${score.toFixed(3)}`))), h("pre", {}, text.slice(0, 600)));
}

/** What kept an application from answering, in place of its screen; everything else is raised. */
export function unavailable(error, title) {
  if (error.status !== 501 && error.status !== 503) throw error;
  return [head(title), empty(`${title} cannot be used on this server`, `${error.message}.`)];
}
