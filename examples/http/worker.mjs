// Process events from JavaScript, until Ctrl-C: Node 18 or later, no packages.
//
//     penstock serve                          # in another terminal
//     node examples/http/worker.mjs
//
// PENSTOCK_URL is the server's address, PENSTOCK_TOKEN a token with the scope work.

import { hostname } from "node:os";

const url = process.env.PENSTOCK_URL ?? "http://127.0.0.1:8000";
const worker_id = `${hostname()}:${process.pid}`;
const headers = { "Content-Type": "application/json" };
if (process.env.PENSTOCK_TOKEN) headers.Authorization = `Bearer ${process.env.PENSTOCK_TOKEN}`;

const stopping = new AbortController();
process.once("SIGINT", () => stopping.abort());
process.once("SIGTERM", () => stopping.abort());

const pause = (ms) => new Promise((wake) => setTimeout(wake, ms));

function post(path, body, signal) {
  return fetch(url + path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

/** An event, as soon as there is one; undefined if there is none for a while. */
async function subscribe() {
  const answer = await post("/events/subscribe", { tags: ["email"], worker_id, wait: 30 }, stopping.signal);
  if (answer.status === 204) return undefined;
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.detail);
  return body;
}

/** Say what came of an event, until the server has heard it; the token makes repeating safe. */
async function report(event, verb, more) {
  for (let wait = 100; ; wait = Math.min(wait * 2, 5000)) {
    try {
      const answer = await post(`/events/${event.id}/${verb}`, { worker_id, token: event.token, ...more });
      if (answer.status === 409) console.error(`event ${event.id} is lost to others`);
      if (answer.status < 500 && answer.status !== 429) return;
    } catch (error) {
      console.error(`the server cannot be reached: ${error.message}`);
    }
    await pause(wait);
  }
}

async function work(event) {
  console.log(`working on event ${event.id}: ${event.title} to ${event.payload.to}`);
}

while (!stopping.signal.aborted) {
  let event;
  try {
    event = await subscribe();
  } catch (error) {
    if (stopping.signal.aborted) break;
    console.error(`no events just now: ${error.message}`);
    await pause(1000);
    continue;
  }
  if (!event) continue;
  // The hold on the event is prolonged while the work goes on.
  const beats = setInterval(() => {
    post(`/events/${event.id}/heartbeat`, { worker_id, token: event.token }).catch(() => {});
  }, 10_000);
  try {
    await work(event);
    await report(event, "complete", {});
  } catch (error) {
    await report(event, "fail", { error_message: String(error) });
  } finally {
    clearInterval(beats);
  }
}
console.log("stopped");
