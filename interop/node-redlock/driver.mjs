// Speaks the protocol of ../README.md for node-redlock, over ioredis.

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis";
import Redlock, { ExecutionError, ResourceLockedError } from "redlock";

// How long a section of `count` may wait for the lock.
const PATIENCE_MS = 60_000;
// What node-redlock leaves between two tries, on average.
const RETRY_DELAY_MS = 200;

const redis = new Redis(process.argv[2]);
const redlock = new Redlock([redis]);
let lock;

function hello() {
  const lockFile = JSON.parse(readFileSync(new URL("package-lock.json", import.meta.url)));
  return `hello node-redlock ${lockFile.packages["node_modules/redlock"].version}`;
}

async function take(name, leaseMs, retryCount) {
  return (await held(() => redlock.acquire([name], Number(leaseMs), { retryCount }))) ? "got" : "taken";
}

function acquire(name, leaseMs, waitMs) {
  return take(name, leaseMs, Math.ceil(Number(waitMs) / RETRY_DELAY_MS));
}

async function extend(leaseMs) {
  return (await held(() => lock.extend(Number(leaseMs)))) ? "ok" : "lost";
}

async function release() {
  const released = lock;
  return (await held(() => released.release().then(() => undefined))) ? "ok" : "lost";
}

// Whether an operation on the lock was done. It gives the lock, where there is one afterwards. An error other than that
// somebody else has the lock is thrown on.
async function held(operation) {
  try {
    lock = await operation();
    return true;
  } catch (error) {
    if (!(error instanceof ExecutionError)) throw error;
    for (const { votesAgainst } of await Promise.all(error.attempts)) {
      for (const reason of votesAgainst.values()) {
        if (!(reason instanceof ResourceLockedError)) throw reason;
      }
    }
    return false;
  }
}

async function count(name, key, times, leaseMs) {
  const seen = [];
  let longest = 0;
  for (let i = 0; i < Number(times); i++) {
    const asked = performance.now();
    if ((await acquire(name, leaseMs, PATIENCE_MS)) !== "got") return "error waited in vain";
    longest = Math.max(longest, performance.now() - asked);
    const number = Number(await redis.get(key));
    await sleep(1);
    await redis.set(key, number + 1);
    if ((await release()) === "lost") return "error lost the lock while counting";
    seen.push(number);
    await sleep(Math.random() * 40);
  }
  return `counted ${Math.round(longest)} ${seen.join(" ")}`;
}

const requests = {
  hello,
  try: (name, leaseMs) => take(name, leaseMs, 0),
  acquire,
  extend,
  release,
  count,
};

for await (const line of createInterface({ input: process.stdin })) {
  const [request, ...words] = line.split(" ");
  let answer;
  try {
    answer = await requests[request](...words);
  } catch (error) {
    answer = `error ${String(error).replaceAll("\n", "; ")}`;
  }
  console.log(answer);
}
redis.disconnect();
