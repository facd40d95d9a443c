// Speaks the protocol of ../README.md for node-redlock, over ioredis.

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis";
import Redlock, { ExecutionError, ResourceLockedError } from "redlock";

// It has no default.
const LEASE_MS = 30_000;

const redis = new Redis(process.argv[2]);
const redlock = new Redlock([redis]);
const locks = new Map();

const now = () => process.hrtime.bigint();

// It gives up after some tries, and then tries again.
async function acquire(name) {
  for (;;) {
    try {
      return await redlock.acquire([name], LEASE_MS);
    } catch (error) {
      await rethrowUnlessTaken(error);
    }
  }
}

async function rethrowUnlessTaken(error) {
  if (!(error instanceof ExecutionError)) throw error;
  for (const { votesAgainst } of await Promise.all(error.attempts)) {
    for (const reason of votesAgainst.values()) {
      if (!(reason instanceof ResourceLockedError)) throw reason;
    }
  }
}

async function take(name) {
  const askedNs = now();
  const lock = await acquire(name);
  const gotNs = now();
  locks.set(name, lock);
  return `got ${askedNs} ${gotNs}`;
}

async function give(name, pauseUs) {
  await sleep(Number(pauseUs) / 1000);
  const gaveNs = now();
  await locks.get(name).release();
  return `gave ${gaveNs}`;
}

async function herd(name, tasks, ms) {
  const all = await sections(name, Number(tasks), ms);
  const handovers = all.filter(({ task }, at) => at > 0 && task !== all[at - 1].task);
  return `herd ${all.length} ${handovers.length} ${new Set(all.map(({ task }) => task)).size}`;
}

async function turns(name, tasks, ms) {
  const all = await sections(name, Number(tasks), ms);
  return ["turns", ...all.map(({ task, gotNs }) => `${task}@${gotNs}`)].join(" ");
}

async function sections(name, tasks, ms) {
  const untilNs = now() + BigInt(ms) * 1_000_000n;
  const all = await Promise.all(Array.from({ length: tasks }, (_, task) => contend(name, task, untilNs)));
  return all.flat().sort((one, other) => (one.gotNs < other.gotNs ? -1 : 1));
}

async function contend(name, task, untilNs) {
  const seen = [];
  while (now() < untilNs) {
    const lock = await acquire(name);
    const gotNs = now();
    await lock.release();
    if (gotNs < untilNs) seen.push({ task, gotNs });
  }
  return seen;
}

const requests = { take, give, herd, turns };

await redis.ping();
const lockFile = JSON.parse(readFileSync(new URL("package-lock.json", import.meta.url)));
console.log(`ready node-redlock ${lockFile.packages["node_modules/redlock"].version} ${now()}`);
for await (const line of createInterface({ input: process.stdin })) {
  const [request, ...words] = line.split(" ");
  if (request === "stop") break;
  let answer;
  try {
    answer = await requests[request](...words);
  } catch (error) {
    answer = `error ${String(error).replaceAll("\n", "; ")}`;
  }
  console.log(answer);
}
process.exit();
