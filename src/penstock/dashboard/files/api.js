// The HTTP API, as it is documented, and its live stream.

// The server may be mounted under a prefix: this file is in its folder `dashboard`.
const ROOT = new URL("..", import.meta.url).pathname.replace(/\/$/, "");

let skew = 0; // how far the server's clock is ahead of ours, in milliseconds

/** The server's time. */
export const clock = () => Date.now() + skew;

export class ApiError extends Error {
  constructor(status, detail, field) {
    super(detail);
    this.status = status; // 0: there was no answer
    this.field = field;
  }
}

const listeners = new Set();

/** Call back with every answer's status; 0 where there was none. */
export const onAnswer = (listener) => listeners.add(listener);

async function request(method, path, { params, body, file, signal } = {}) {
  const given = Object.entries(params || {}).filter(([, v]) => v !== undefined && v !== null && v !== "");
  const query = new URLSearchParams(given).toString();
  const headers = { "X-Requested-With": "penstock" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (file) headers["Content-Type"] = "application/octet-stream";
  let answer;
  try {
    answer = await fetch(`${ROOT}${path}${query ? `?${query}` : ""}`, {
      method, headers, signal, body: file || (body === undefined ? undefined : JSON.stringify(body)),
      credentials: "same-origin", cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    tell(0);
    throw new ApiError(0, "the server does not answer");
  }
  const date = Date.parse(answer.headers.get("date"));
  if (date && Math.abs(date - Date.now()) > 3000) skew = date - Date.now();
  else if (date) skew = 0;
  tell(answer.status);
  const text = await answer.text();
  let value = null;
  try {
    value = text ? JSON.parse(text) : null;
  } catch {
    value = { detail: text };
  }
  if (!answer.ok) throw new ApiError(answer.status, (value && value.detail) || answer.statusText, value && value.field);
  return value;
}

function tell(status) {
  for (const listener of listeners) listener(status);
}

export const get = (path, params, signal) => request("GET", path, { params, signal });
export const post = (path, body, params) => request("POST", path, { body, params });
export const send = (path, file, params) => request("POST", path, { file, params });
export const remove = (path, body, params) => request("DELETE", path, { body, params });

/** A part of a path. */
export const part = encodeURIComponent;

const FLUSH = 700;
const MOST = 2000; // of what comes at once, so many are looked at; the rest is counted
const FORGET = 60000;

/**
 * The log, live. It goes on by the id of the last entry, so that no entry is missed when the
 * connection breaks; while the page is hidden there is none.
 */
export class Live {
  constructor() {
    this.state = "connecting";
    this.onstate = () => {};
    this.readers = new Set();
    this.waiting = [];
    this.left = 0;
    this.last = null;
    document.addEventListener("visibilitychange", () => this.seen());
  }

  start() {
    this.stop();
    const after = this.last ? `?after=${this.last}` : "";
    const source = new EventSource(`${ROOT}/api/v1/stream${after}`);
    this.source = source;
    source.onopen = () => this.become("live");
    source.onerror = () => {
      this.become("broken");
      if (source.readyState === EventSource.CLOSED) {
        this.source = null;
        this.again = setTimeout(() => this.start(), 1500);
      }
    };
    source.addEventListener("transition", (event) => {
      this.last = event.lastEventId;
      if (this.waiting.length < MOST) this.waiting.push(event.data);
      else this.left += 1;
      if (!this.timer) this.timer = setTimeout(() => this.flush(), FLUSH);
    });
  }

  stop() {
    clearTimeout(this.again);
    if (this.source) this.source.close();
    this.source = null;
  }

  flush() {
    this.timer = null;
    const events = this.waiting.map((text) => JSON.parse(text));
    const left = this.left;
    this.waiting = [];
    this.left = 0;
    for (const reader of [...this.readers]) reader(events, left);
  }

  seen() {
    if (document.hidden) {
      this.hiddenAt = Date.now();
      this.stop();
    } else if (this.hiddenAt && this.state !== "off") {
      if (Date.now() - this.hiddenAt > FORGET) this.last = null; // too much to catch up with
      this.hiddenAt = null;
      this.start();
    }
  }

  become(state) {
    const before = this.state;
    this.state = state;
    if (before !== state) this.onstate(state, before);
  }
}
