// node-redlock, measured: the tasks are promises.

import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis";
import Redlock from "redlock";
import { answerAll, rethrowUnlessTaken, version } from "./library.mjs";

// The library has no default.
const LEASE_MS = 30_000;

const now = () => process.hrtime.bigint();

export async function serve(url) {
  const redis = new Redis(url);
  const redlock = new Redlock([redis]);
  const locks = new Map();

  // The library gives up after some tries; this tries again.
  async function acquireLock(name) {
    for (;;) {
      try {
        return await redlock.acquire([name], LEASE_MS);
      } catch (error) {
        await rethrowUnlessTaken(error);
      }
    }
  }

  async function acquire(name) {
    const calledNs = now();
    const lock = await acquireLock(name);
    const returnedNs = now();
    locks.set(name, lock);
    return `acquired ${calledNs} ${returnedNs}`;
  }

  async function release(name, pauseUs) {
    await sleep(Number(pauseUs) / 1000);
    const calledNs = now();
    await locks.get(name).release();
    return `released ${calledNs}`;
  }

  async function contend(name, tasks, ms) {
    const all = await sections(name, Number(tasks), ms);
    const handovers = all.filter(({ task }, at) => at > 0 && task !== all[at - 1].task);
    return `contended ${all.length} ${handovers.length} ${new Set(all.map(({ task }) => task)).size}`;
  }

  async function trace(name, tasks, ms) {
    const all = await sections(name, Number(tasks), ms);
    return ["trace", ...all.map(({ task, acquiredNs }) => `${task}@${acquiredNs}`)].join(" ");
  }

  async function sections(name, tasks, ms) {
    const untilNs = now() + BigInt(ms) * 1_000_000n;
    const all = await Promise.all(Array.from({ length: tasks }, (_, task) => runTask(name, task, untilNs)));
    return all.flat().sort((one, other) => (one.acquiredNs < other.acquiredNs ? -1 : 1));
  }

  async function runTask(name, task, untilNs) {
    const seen = [];
    while (now() < untilNs) {
      const lock = await acquireLock(name);
      const acquiredNs = now();
      await lock.release();
      if (acquiredNs < untilNs) seen.push({ task, acquiredNs });
    }
    return seen;
  }

  await redis.ping();
  console.log(`ready node-redlock ${version()} ${now()}`);
  await answerAll(createInterface({ input: process.stdin }), { acquire, release, contend, trace });
  process.exit();
}
