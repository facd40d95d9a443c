"""redis-py's `Lock` beside Leasehold's Mutex."""

import random
import sys
import time

import redis
from redis.exceptions import LockNotOwnedError

# How long a section of `count` may wait for the lock.
WAIT_LIMIT_MS = 60_000


class Driver:
    def __init__(self, url):
        self.redis = redis.Redis.from_url(url)
        self.lock = None

    def hello(self):
        return f"hello redis-py {redis.__version__}"

    def try_once(self, name, lease_ms):
        return self.acquire_by(name, lease_ms, blocking=False)

    def acquire(self, name, lease_ms, wait_ms):
        return self.acquire_by(name, lease_ms, blocking_timeout=int(wait_ms) / 1000)

    def acquire_by(self, name, lease_ms, **how):
        lock = self.redis.lock(name, timeout=int(lease_ms) / 1000 or None)
        if not lock.acquire(**how):
            return "taken"
        self.lock = lock
        return "got"

    def extend(self, lease_ms):
        try:
            # Without `replace_ttl` the time is added to the remaining lease.
            self.lock.extend(int(lease_ms) / 1000, replace_ttl=True)
        except LockNotOwnedError:
            return "lost"
        return "ok"

    def release(self):
        lock, self.lock = self.lock, None
        try:
            lock.release()
        except LockNotOwnedError:
            return "lost"
        return "ok"

    def count(self, name, key, times, lease_ms):
        seen, longest = [], 0
        for _ in range(int(times)):
            called = time.monotonic()
            if self.acquire(name, lease_ms, WAIT_LIMIT_MS) != "got":
                return "error timed out waiting for the lock"
            longest = max(longest, time.monotonic() - called)
            number = int(self.redis.get(key) or 0)
            time.sleep(0.001)
            self.redis.set(key, number + 1)
            if self.release() == "lost":
                return "error lost the lock while counting"
            seen.append(str(number))
            time.sleep(random.uniform(0, 0.040))
        return f"counted {round(longest * 1000)} {' '.join(seen)}"


def serve(url):
    driver = Driver(url)
    requests = {
        "hello": driver.hello,
        "try": driver.try_once,
        "acquire": driver.acquire,
        "extend": driver.extend,
        "release": driver.release,
        "count": driver.count,
    }
    for line in sys.stdin:
        request, *arguments = line.split()
        try:
            answer = requests[request](*arguments)
        except Exception as error:  # Every error is an answer.
            answer = f"error {error!r}"
        print(answer, flush=True)
