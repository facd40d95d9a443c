"""Speaks the protocol of ../README.md for redis-py's asyncio `Lock`."""

import asyncio
import sys
import time

import redis
from redis.asyncio import Redis

# No lock lasts for ever; the library's default is that it does.
LEASE_S = 30


class Driver:
    def __init__(self, url):
        self.redis = Redis.from_url(url)
        self.locks = {}

    def lock(self, name):
        return self.redis.lock(name, timeout=LEASE_S)

    async def take(self, name):
        lock, asked_ns = self.lock(name), time.monotonic_ns()
        await lock.acquire()
        got_ns = time.monotonic_ns()
        self.locks[name] = lock
        return f"got {asked_ns} {got_ns}"

    async def give(self, name, pause_us):
        await asyncio.sleep(int(pause_us) / 1e6)
        gave_ns = time.monotonic_ns()
        await self.locks.pop(name).release()
        return f"gave {gave_ns}"

    async def herd(self, name, tasks, ms):
        turns = await self.sections(name, int(tasks), int(ms))
        handovers = sum(before != after for (_, before), (_, after) in zip(turns, turns[1:]))
        return f"herd {len(turns)} {handovers} {len({task for _, task in turns})}"

    async def turns(self, name, tasks, ms):
        turns = await self.sections(name, int(tasks), int(ms))
        return " ".join(["turns", *(f"{task}@{got_ns}" for got_ns, task in turns)])

    async def sections(self, name, tasks, ms):
        until_ns = time.monotonic_ns() + ms * 1_000_000
        herd = (self.contend(name, task, until_ns) for task in range(tasks))
        return sorted(turn for turns in await asyncio.gather(*herd) for turn in turns)

    async def contend(self, name, task, until_ns):
        lock, turns = self.lock(name), []
        while time.monotonic_ns() < until_ns:
            await lock.acquire()
            got_ns = time.monotonic_ns()
            await lock.release()
            if got_ns < until_ns:
                turns.append((got_ns, task))
        return turns


def main():
    loop = asyncio.new_event_loop()
    driver = Driver(sys.argv[1])
    loop.run_until_complete(driver.redis.ping())
    requests = {"take": driver.take, "give": driver.give, "herd": driver.herd, "turns": driver.turns}
    print(f"ready redis-py {redis.__version__} {time.monotonic_ns()}", flush=True)
    for line in sys.stdin:
        request, *arguments = line.split()
        if request == "stop":
            break
        try:
            answer = loop.run_until_complete(requests[request](*arguments))
        except Exception as error:  # Whatever it is, the other side is told.
            answer = f"error {error!r}"
        print(answer, flush=True)


main()
