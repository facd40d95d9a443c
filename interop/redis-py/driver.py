"""Speaks the protocol of ../README.md for redis-py's `Lock`."""

import random
import sys
import time

import redis
from redis.exceptions import LockNotOwnedError

# How long a section of `count` may wait for the lock.
PATIENCE_MS = 60_000


class Driver:
    def __init__(self, url):
        self.redis = redis.Redis.from_url(url)
        self.lock = None

    def hello(self):
        return f"hello redis-py {redis.__version__}"

    def try_once(self, name, lease_ms):
        return self.take(name, lease_ms, blocking=False)

    def acquire(self, name, lease_ms, wait_ms):
        return self.take(name, lease_ms, blocking_timeout=int(wait_ms) / 1000)

    def take(self, name, lease_ms, **how):
        lock = self.redis.lock(name, timeout=int(lease_ms) / 1000 or None)
        if not lock.acquire(**how):
            return "taken"
        self.lock = lock
        return "got"

    def extend(self, lease_ms):
        try:
            # Without `replace_ttl` the time is added to what is left.
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
            asked = time.monotonic()
            if self.acquire(name, lease_ms, PATIENCE_MS) != "got":
                return "error waited in vain"
            longest = max(longest, time.monotonic() - asked)
            number = int(self.redis.get(key) or 0)
            time.sleep(0.001)
            self.redis.set(key, number + 1)
            if self.release() == "lost":
                return "error lost the lock while counting"
            seen.append(str(number))
            time.sleep(random.uniform(0, 0.040))
        return f"counted {round(longest * 1000)} {' '.join(seen)}"


def main():
    driver = Driver(sys.argv[1])
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
        except Exception as error:  # Whatever it is, the other side is told.
            answer = f"error {error!r}"
        print(answer, flush=True)


main()
