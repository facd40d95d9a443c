// node-redlock beside Leasehold's Mutex.

import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis";
import Redlock from "redlock";
import { answerAll, rethrowUnlessTaken, version } from "./library.mjs";

// How long a section of `count` may wait for the lock.
const WAIT_LIMIT_MS = 60_000;
// node-redlock's pause between two tries, on average.
const RETRY_DELAY_MS = 200;

export async function serve(url) {
  const redis = new Redis(url);
  const redlock = new Redlock([redis]);
  let lock;

  async function acquireBy(name, leaseMs, retryCount) {
    return (await succeeded(() => redlock.acquire([name], Number(leaseMs), { retryCount }))) ? "got" : "taken";
  }

  function acquire(name, leaseMs, waitMs) {
    return acquireBy(name, leaseMs, Math.ceil(Number(waitMs) / RETRY_DELAY_MS));
  }

  async function extend(leaseMs) {
    return (await succeeded(() => lock.extend(Number(leaseMs)))) ? "ok" : "lost";
  }

  async function release() {
    const released = lock;
    return (await succeeded(() => released.release().then(() => undefined))) ? "ok" : "lost";
  }

  // Whether an operation on the lock succeeded. It resolves to the lock, if there is one afterwards.
  async function succeeded(operation) {
    try {
      lock = await operation();
      return true;
    } catch (error) {
      await rethrowUnlessTaken(error);
      return false;
    }
  }

  async function count(name, key, times, leaseMs) {
    const seen = [];
    let longest = 0;
    for (let i = 0; i < Number(times); i++) {
      const called = performance.now();
      if ((await acquire(name, leaseMs, WAIT_LIMIT_MS)) !== "got") return "error timed out waiting for the lock";
      longest = Math.max(longest, performance.now() - called);
      const number = Number(await redis.get(key));
      await sleep(1);
      await redis.set(key, number + 1);
      if ((await release()) === "lost") return "error lost the lock while counting";
      seen.push(number);
      await sleep(Math.random() * 40);
    }
    return `counted ${Math.round(longest)} ${seen.join(" ")}`;
  }

  await answerAll(createInterface({ input: process.stdin }), {
    hello: () => `hello node-redlock ${version()}`,
    try: (name, leaseMs) => acquireBy(name, leaseMs, 0),
    acquire,
    extend,
    release,
    count,
  });
  redis.disconnect();
}
