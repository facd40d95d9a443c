"""redis-py's asyncio `Lock`, measured: the tasks are tasks of asyncio."""

import asyncio
import sys
import time

import redis
from redis.asyncio import Redis

# The library's default is a lock without an expiry.
LEASE_S = 30


class Driver:
    def __init__(self, url):
        self.redis = Redis.from_url(url)
        self.locks = {}

    def lock(self, name):
        return self.redis.lock(name, timeout=LEASE_S)

    async def acquire(self, name):
        lock, called_ns = self.lock(name), time.monotonic_ns()
        await lock.acquire()
        returned_ns = time.monotonic_ns()
        self.locks[name] = lock
        return f"acquired {called_ns} {returned_ns}"

    async def release(self, name, pause_us):
        await asyncio.sleep(int(pause_us) / 1e6)
        called_ns = time.monotonic_ns()
        await self.locks.pop(name).release()
        return f"released {called_ns}"

    async def contend(self, name, tasks, ms):
        sections = await self.sections(name, int(tasks), int(ms))
        handovers = sum(before != after for (_, before), (_, after) in zip(sections, sections[1:]))
        return f"contended {len(sections)} {handovers} {len({task for _, task in sections})}"

    async def trace(self, name, tasks, ms):
        sections = await self.sections(name, int(tasks), int(ms))
        return " ".join(["trace", *(f"{task}@{acquired_ns}" for acquired_ns, task in sections)])

    async def sections(self, name, tasks, ms):
        until_ns = time.monotonic_ns() + ms * 1_000_000
        all_tasks = (self.run_task(name, task, until_ns) for task in range(tasks))
        return sorted(section for sections in await asyncio.gather(*all_tasks) for section in sections)

    async def run_task(self, name, task, until_ns):
        lock, sections = self.lock(name), []
        while time.monotonic_ns() < until_ns:
            await lock.acquire()
            acquired_ns = time.monotonic_ns()
            await lock.release()
            if acquired_ns < until_ns:
                sections.append((acquired_ns, task))
        return sections


def serve(url):
    loop = asyncio.new_event_loop()
    driver = Driver(url)
    loop.run_until_complete(driver.redis.ping())
    requests = {
        "acquire": driver.acquire,
        "release": driver.release,
        "contend": driver.contend,
        "trace": driver.trace,
    }
    print(f"ready redis-py {redis.__version__} {time.monotonic_ns()}", flush=True)
    for line in sys.stdin:
        request, *arguments = line.split()
        if request == "stop":
            break
        try:
            answer = loop.run_until_complete(requests[request](*arguments))
        except Exception as error:  # Every error is an answer.
            answer = f"error {error!r}"
        print(answer, flush=True)
