// Publish an event from JavaScript: Node 18 or later, no packages.
//
//     penstock serve                          # in another terminal
//     node examples/http/publisher.mjs
//
// PENSTOCK_URL is the server's address, PENSTOCK_TOKEN a token with the scope publish.

import { randomUUID } from "node:crypto";

const url = process.env.PENSTOCK_URL ?? "http://127.0.0.1:8000";
const headers = { "Content-Type": "application/json" };
if (process.env.PENSTOCK_TOKEN) headers.Authorization = `Bearer ${process.env.PENSTOCK_TOKEN}`;

// Under its dedupe key the call can be repeated: while the event is unfinished there is no second.
const body = JSON.stringify({
  title: "Send a welcome",
  tags: ["email"],
  payload: { to: "ada@example.com" },
  dedupe: randomUUID(),
});

async function publish() {
  for (let attempt = 1; ; attempt++) {
    try {
      const answer = await fetch(`${url}/events`, { method: "POST", headers, body });
      if (answer.ok) return await answer.json();
      const { detail } = await answer.json();
      if (![429, 503].includes(answer.status) || attempt === 5) throw new RangeError(detail);
    } catch (error) {
      if (error instanceof RangeError || attempt === 5) throw error;
    }
    await new Promise((wake) => setTimeout(wake, 200 * 2 ** attempt));
  }
}

const event = await publish();
console.log(`event ${event.id} is ${event.status}`);
