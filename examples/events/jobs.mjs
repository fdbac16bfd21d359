// Submit, watch and stop jobs by events: node jobs.mjs submit FILE | watch JOB | stop JOB. Needs npm's `nats` alone.

import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { connect, headers } from "nats";

const SOURCE = "/examples/events/javascript";
const OVER = ["Succeeded", "Failed", "Stopped"];
const WAIT_MS = 60_000;

// An id as one token of a subject.
const token = (text) =>
  encodeURIComponent(text).replace(/[.~!'()*]/g, (letter) => "%" + letter.charCodeAt(0).toString(16).toUpperCase());

const eventOf = (message) => message.subject.split(".").slice(3, 5).join(".");
const entityOf = (message) => decodeURIComponent(message.headers.get("ce-subject"));

// Publishes a command to jobmaster and gives its id, once JetStream has stored it.
async function send(client, event, entity, data) {
  const id = randomUUID();
  const given = headers();
  given.set("ce-specversion", "1.0");
  given.set("ce-id", id);
  given.set("ce-source", SOURCE);
  given.set("ce-type", `dev.recmesh.${event}.v1`);
  given.set("ce-subject", encodeURIComponent(entity));
  given.set("content-type", "application/json");
  given.set("Nats-Msg-Id", `${SOURCE}/${id}`);
  await client.jetstream().publish(`recmesh.v1.jobmaster.${event}.${token(entity)}`, JSON.stringify(data), { headers: given });
  return id;
}

// What jobmaster tells from now on is given to `take` until that returns an exit code.
async function answered(client, events, take, ask) {
  const done = new Promise((resolve) => {
    for (const event of events) {
      client.subscribe(`recmesh.v1.jobmaster.${event}.*`, {
        callback: (error, message) => {
          const code = error ? 1 : take(eventOf(message), entityOf(message), message.json());
          if (code !== undefined) resolve(code);
        },
      });
    }
  });
  await client.flush();
  await ask();
  const late = new Promise((resolve) => setTimeout(() => resolve(1), WAIT_MS).unref());
  return Promise.race([done, late]);
}

function refused(data) {
  console.error(`refused: ${data.reason}: ${data.message}`);
  for (const wrong of data.violations) console.error(`  ${wrong.path}: ${wrong.reason}`);
  return 1;
}

async function submit(client, file) {
  const spec = JSON.parse(readFileSync(file, "utf8"));
  const request = randomUUID();
  return answered(
    client,
    ["job.submitted", "job.refused"],
    (event, entity, data) => {
      if (event === "job.refused") return data.request_id === request ? refused(data) : undefined;
      if (data.request_id !== request) return undefined;
      console.log(entity);
      return 0;
    },
    () => send(client, "job.submit", spec.name, { spec, request_id: request }),
  );
}

async function watch(client, job) {
  const filter = `recmesh.v1.*.*.*.${token(job)}`;
  const consumer = await client.jetstream().consumers.get("RECMESH", { filterSubjects: filter });
  for await (const message of await consumer.consume()) {
    const data = message.json();
    console.log(eventOf(message), JSON.stringify(data));
    if (eventOf(message) === "job.transitioned" && OVER.includes(data.to_phase)) {
      return data.to_phase === "Succeeded" ? 0 : 2;
    }
  }
  return 1;
}

async function stop(client, job) {
  const request = randomUUID();
  return answered(
    client,
    ["job.transitioned", "job.refused"],
    (event, entity, data) => {
      if (event === "job.refused") return data.request_id === request ? refused(data) : undefined;
      if (entity !== job || !OVER.includes(data.to_phase)) return undefined;
      console.log(data.to_phase);
      return 0;
    },
    () => send(client, "job.stop", job, { reason: "by events", request_id: request }),
  );
}

const verbs = { submit, watch, stop };
const [verb, what] = process.argv.slice(2);
if (!verbs[verb] || !what) {
  console.error("node jobs.mjs submit FILE | watch JOB | stop JOB");
  process.exit(64);
}
const client = await connect({
  servers: process.env.NATS_URL ?? "nats://127.0.0.1:4222",
  token: process.env.NATS_TOKEN || undefined,
});
const code = await verbs[verb](client, what);
await client.close();
process.exit(code);
