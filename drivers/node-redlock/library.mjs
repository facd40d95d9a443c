// What both roles need of the library, over ioredis.

import { readFileSync } from "node:fs";
import { ExecutionError, ResourceLockedError } from "redlock";

// The version that is installed.
export function version() {
  const lockFile = JSON.parse(readFileSync(new URL("package-lock.json", import.meta.url)));
  return lockFile.packages["node_modules/redlock"].version;
}

// Returns if an operation failed since another client holds the lock, and throws every other error again.
export async function rethrowUnlessTaken(error) {
  if (!(error instanceof ExecutionError)) throw error;
  for (const { votesAgainst } of await Promise.all(error.attempts)) {
    for (const reason of votesAgainst.values()) {
      if (!(reason instanceof ResourceLockedError)) throw reason;
    }
  }
}

// Answers one request after the other, each with a line.
export async function answerAll(lines, requests) {
  for await (const line of lines) {
    const [request, ...words] = line.split(" ");
    if (request === "stop") return;
    let answer;
    try {
      answer = await requests[request](...words);
    } catch (error) {
      answer = `error ${String(error).replaceAll("\n", "; ")}`;
    }
    console.log(answer);
  }
}
