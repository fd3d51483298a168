// The frame: which screen is shown, who looks at it, and what the keyboard does.

import { h, replace } from "./dom.js";
import { get, post, remove, onAnswer, Live } from "./api.js";
import { moment } from "./words.js";
import { shape, skeleton, problem, toast, empty } from "./widgets.js";

const SCREENS = [
  ["/", "Overview", "overview"], ["/jobs", "Jobs", "jobs"], ["/keys", "Keys", "keys"], ["/workers", "Workers", "workers"],
  ["/schedules", "Schedules", "schedules"], ["/store", "Store", "store"],
];
const APPLICATIONS = [["notebooks", "Notebooks"], ["indexing", "Indexing"], ["entries", "Entries"], ["ingest", "Ingest"]];

const main = document.getElementById("main");
const live = new Live();
let session = { signed_in: false, open: false, scopes: [], applications: [] };
let current = null;
let heard = Date.now();

/** What a screen gets: its parameters, who looks, and what ends when it is left. */
class View {
  constructor(path, params) {
    this.path = path;
    this.params = params;
    this.root = main;
    this.keys = {};
    this.ending = new AbortController();
    this.signal = this.ending.signal;
    this.timers = [];
    this.readers = [];
  }

  can(scope) { return session.scopes.includes(scope); }

  has(application) { return session.applications.includes(application); }

  get(path, params) { return get(path, params, this.signal); }

  /** Do something now and every so many seconds, and at once when the server is back. */
  async every(seconds, act) {
    const turn = async () => {
      if (this.signal.aborted || document.hidden) return;
      try {
        await act();
      } catch (error) {
        if (error.name !== "AbortError" && error.status !== 0 && error.status !== 503) console.warn(error.message);
      }
    };
    this.turns = [...(this.turns || []), turn];
    await act();
    if (!this.signal.aborted) this.timers.push(setInterval(turn, seconds * 1000));
  }

  again() { for (const turn of this.turns || []) turn(); }

  /** Hear what happens, in portions: entries with their jobs, and how many more there were. */
  live(reader) {
    this.readers.push(reader);
    live.readers.add(reader);
  }

  /** Change the parameters in the address; the screen is shown anew. */
  go(params, path = this.path) {
    const given = Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== "");
    const query = new URLSearchParams(given).toString();
    location.hash = `#${path}${query ? `?${query}` : ""}`;
  }

  /** The parameters in the address now: newer than `params` until the screen for them is shown. */
  latest() {
    return address()[1];
  }

  end() {
    this.ending.abort();
    this.timers.forEach(clearInterval);
    this.readers.forEach((reader) => live.readers.delete(reader));
  }
}

function address() {
  const [path, query] = (location.hash.slice(1) || "/").split("?");
  return [path || "/", Object.fromEntries(new URLSearchParams(query))];
}

async function show() {
  const [path, params] = address();
  if (!path.startsWith("/")) return; // the link that skips to the content
  const view = new View(path, params);
  const moved = current && current.path !== view.path;
  if (current) current.end();
  current = view;
  drawFrame();
  if (!session.open && !session.signed_in) return showSignIn();
  if (!session.scopes.includes("read")) {
    document.title = "No permission · Penstock";
    replace(main, empty("No permission", session.external ? `${session.name} does not have the scope read.` : `The token ${session.name} may not read. Sign in with one that has the scope read.`));
    return finish(view, moved);
  }
  const [module, title, argument] = moduleOf(view.path);
  document.title = `${title} · Penstock`;
  const loaded = main.dataset.path === view.path && main.childElementCount ? null : skeleton();
  if (loaded) replace(main, loaded);
  main.dataset.path = view.path;
  main.setAttribute("aria-busy", "true");
  try {
    const screen = await import(`./${module}.js`);
    if (view.signal.aborted) return;
    await screen.show(view, argument);
  } catch (error) {
    if (error.name === "AbortError" || view.signal.aborted) return;
    if (error.status === 404) replace(main, empty("Not found", error.message));
    else if (error.status !== 401) replace(main, problem(error, show));
    if (!error.status && error.status !== 0) console.error(error);
    view.failed = true;
  }
  finish(view, moved);
}

function finish(view, moved) {
  if (view.signal.aborted) return;
  main.setAttribute("aria-busy", "false");
  if (moved) {
    const title = main.querySelector("h1");
    if (title) title.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

function moduleOf(path) {
  const job = /^\/jobs\/(\d+)$/.exec(path);
  if (job) return ["job", `Job ${job[1]}`, Number(job[1])];
  const known = SCREENS.find(([place]) => place === path);
  if (known) return [known[2], known[1]];
  const application = APPLICATIONS.find(([name]) => path === `/${name}` && session.applications.includes(name));
  if (application) return application;
  return ["missing", "Not found"];
}

// The frame

function drawFrame() {
  const link = ([place, name]) => {
    const here = place === "/" ? current.path === "/" : current.path.startsWith(place);
    return h("a", { href: `#${place}`, "aria-current": here ? "page" : null }, name);
  };
  const mounted = APPLICATIONS.filter(([name]) => session.applications.includes(name)).map(([name, title]) => [`/${name}`, title]);
  const inside = session.open || session.signed_in;
  replace(document.getElementById("nav"), inside && SCREENS.map(link), inside && mounted.length > 0 && h("span.rule"), inside && mounted.map(link));
  const here = document.querySelector("nav [aria-current]");
  if (here && here.parentElement.scrollWidth > here.parentElement.clientWidth) here.parentElement.scrollLeft = here.offsetLeft - here.parentElement.offsetLeft - 40;
  drawTools();
}

function drawTools() {
  const dark = themeNow() === "dark";
  replace(document.getElementById("tools"),
    (session.open || session.signed_in) && liveBadge(),
    session.signed_in && !session.scopes.includes("admin") && h("span.flag.warn", { title: `${session.name} does not have the scope admin` }, "read-only"),
    h("button.small", { type: "button", onclick: toggleTheme, "aria-label": dark ? "Use light colours" : "Use dark colours" }, dark ? "Light" : "Dark"),
    h("button.small", { type: "button", onclick: showHelp, "aria-label": "Keyboard shortcuts" }, "?"),
    session.signed_in && session.external && h("span.dim", {}, session.name),
    session.signed_in && !session.external && h("button.small", { type: "button", onclick: signOut, title: `Signed in as ${session.name}` }, "Sign out"));
}

function liveBadge() {
  const words = { live: "live", broken: "reconnecting", connecting: "connecting" };
  const state = { live: "running", broken: "failed", connecting: "pending" }[live.state];
  return h("span.live", { "data-state": live.state, role: "status" }, shape(state), words[live.state]);
}

const themeNow = () => document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

function toggleTheme() {
  const next = themeNow() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("theme", next);
  drawTools();
  document.querySelector("#tools [aria-label^=Use]").focus();
}

live.onstate = (state, before) => {
  drawTools();
  const notice = document.getElementById("notice");
  if (state === "broken") {
    clearTimeout(live.warning);
    live.warning = setTimeout(() => replace(notice, h("div.banner", {}, `The server does not answer. The page shows the state of ${moment(new Date(heard))}; retrying.`)), 800);
    check();
  } else if (state === "live") {
    clearTimeout(live.warning);
    replace(notice);
    if (before === "broken" && current) {
      if (current.failed) show();
      else current.again();
    }
  }
};

onAnswer((status) => {
  if (status) heard = Date.now();
  if (status === 401) check();
});

// Who looks

let checking = null;
let turns = 0; // sign-ins and sign-outs: an answer from before the last of them says nothing

function check() {
  checking = checking || learn().finally(() => { checking = null; });
  return checking;
}

async function learn() {
  const turn = turns;
  try {
    const found = await get("/api/v1/session");
    if (turn !== turns) return;
    const before = JSON.stringify(session);
    session = found;
    if (JSON.stringify(found) !== before && current) show();
  } catch (error) {
    if (error.status !== 0) toast(error.message, true);
  }
}

function showSignIn() {
  live.stop();
  live.state = "connecting";
  document.title = "Sign in · Penstock";
  if (session.external) {
    delete main.dataset.path;
    replace(main, empty("Signed out", "Sign in to the application that this page belongs to, and load the page again."));
    main.setAttribute("aria-busy", "false");
    return;
  }
  const secret = h("input", { type: "password", name: "token", autocomplete: "current-password", required: true, id: "token" });
  const wrong = h("p.failed", { role: "alert" });
  const form = h("form", { onsubmit: async (event) => {
    event.preventDefault();
    try {
      session = await post("/api/v1/session", { token: secret.value.trim() });
      turns += 1;
      if (!session.open && !session.signed_in) throw new Error("the token is not known");
      live.start();
      show();
    } catch (error) {
      wrong.textContent = error.status === 422 ? "The token is not valid." : `${error.message}.`;
      secret.focus();
    }
  } }, h("h1", { tabindex: "-1" }, "Sign in"), h("p.dim", {}, "This server requires an access token. Create one with ", h("code", {}, "penstock token create NAME --scope read --scope admin"), "."),
  h("label", {}, "Token", secret), wrong, h("button.main", {}, "Sign in"));
  delete main.dataset.path;
  replace(main, h("div.panel.signin", {}, form));
  main.setAttribute("aria-busy", "false");
  secret.focus();
}

async function signOut() {
  session = await remove("/api/v1/session");
  turns += 1;
  location.hash = "#/";
  await show();
  toast("Signed out.");
}

// The keyboard

function showHelp() {
  const lines = [["j", "next row"], ["k", "row before"], ["Enter", "open the row"], ["/", "to the filter"], ["n", "next page"], ["g then o, j, k, w, s", "overview, jobs, keys, workers, schedules"], ["Esc", "close, or leave a field"], ["?", "this help"]];
  const dialog = h("dialog", { "aria-labelledby": "help" }, h("form", { method: "dialog" }, h("h2", { id: "help" }, "Keyboard"),
    h("dl.facts", {}, lines.map(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)])), h("div.actions", {}, h("button.main", {}, "Close"))));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

let went = 0;
const PLACES = { o: "/", j: "/jobs", k: "/keys", w: "/workers", s: "/schedules" };

function move(step) {
  const rows = [...main.querySelectorAll("tr.pick")];
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.classList.contains("at"));
  rows.forEach((row) => row.classList.remove("at"));
  const next = rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? 0 : at + step))];
  next.classList.add("at");
  const link = next.querySelector("a");
  if (link) link.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = event.target.matches("input, select, textarea");
  if (event.key === "Escape" && typing) return event.target.blur();
  if (typing) return;
  if (Date.now() - went < 1200 && PLACES[event.key]) {
    went = 0;
    location.hash = `#${PLACES[event.key]}`;
    return;
  }
  const act = {
    j: () => move(1), k: () => move(-1), "?": showHelp, g: () => { went = Date.now(); },
    "/": () => { const field = main.querySelector("[data-first]"); if (field) { field.focus(); event.preventDefault(); } },
    n: () => { const next = main.querySelector("[data-next]"); if (next) next.click(); },
    Enter: () => { const row = main.querySelector("tr.at a"); if (row && !event.target.matches("a, button, summary")) row.click(); },
  }[event.key];
  if (act) act();
});

addEventListener("hashchange", show);

await learn();
if (session.open || session.signed_in) live.start();
show();
