import java.util.ArrayList;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;

/** The locks of one thread, which alone calls this. */
final class Holder {
    /** How long a section of `count` may wait for the lock. */
    private static final long WAIT_LIMIT_MS = 60_000;
    /** Redisson's value for no lease: its watchdog renews the lock. */
    private static final long NO_LEASE = -1;

    private final RedissonClient redisson;
    private RLock lock;

    Holder(RedissonClient redisson) {
        this.redisson = redisson;
    }

    String answer(String[] request) throws InterruptedException {
        switch (request[0]) {
            case "hello":
                return "hello redisson " + Redisson.class.getPackage().getImplementationVersion();
            case "owner":
                return "owner " + redisson.getId() + ":" + Thread.currentThread().getId();
            case "try":
                return tryLock(request[1], 0, number(request[2])) ? "got" : "taken";
            case "acquire":
                return tryLock(request[1], number(request[3]), number(request[2])) ? "got" : "taken";
            case "lock":
                return lock(request[1], number(request[2]));
            case "release":
                return release(request.length > 1 ? redisson.getLock(request[1]) : lock);
            case "free":
                return redisson.getLock(request[1]).forceUnlock() ? "ok" : "lost";
            case "state":
                return state(redisson.getLock(request[1]));
            case "held-by":
                return redisson.getLock(request[1]).isHeldByThread(number(request[2])) ? "yes" : "no";
            case "count":
                return count(request[1], request[2], number(request[3]), number(request[4]));
            default:
                throw new IllegalArgumentException("there is no such request");
        }
    }

    private boolean tryLock(String name, long waitMs, long leaseMs) throws InterruptedException {
        var wanted = redisson.getLock(name);
        var got = wanted.tryLock(waitMs, leaseMs == 0 ? NO_LEASE : leaseMs, TimeUnit.MILLISECONDS);
        if (got) {
            lock = wanted;
        }
        return got;
    }

    private String lock(String name, long leaseMs) {
        var wanted = redisson.getLock(name);
        if (leaseMs == 0) {
            wanted.lock();
        } else {
            wanted.lock(leaseMs, TimeUnit.MILLISECONDS);
        }
        lock = wanted;
        return "got";
    }

    private static String release(RLock lock) {
        try {
            lock.unlock();
        } catch (IllegalMonitorStateException error) {
            return "lost";
        }
        return "ok";
    }

    private static String state(RLock lock) {
        return "state " + lock.getHoldCount() + " " + (lock.isLocked() ? "locked" : "free") + " "
                + (lock.isHeldByCurrentThread() ? "mine" : "not-mine") + " " + lock.remainTimeToLive();
    }

    private String count(String name, String key, long times, long leaseMs) throws InterruptedException {
        var seen = new ArrayList<String>();
        var number = redisson.<String>getBucket(key, StringCodec.INSTANCE);
        var longest = 0L;
        for (var i = 0L; i < times; i++) {
            var called = System.nanoTime();
            if (!tryLock(name, WAIT_LIMIT_MS, leaseMs)) {
                return "error timed out waiting for the lock";
            }
            longest = Math.max(longest, System.nanoTime() - called);
            var text = number.get();
            var now = text == null ? 0 : Long.parseLong(text);
            Thread.sleep(1);
            number.set(Long.toString(now + 1));
            if (release(lock).equals("lost")) {
                return "error lost the lock while counting";
            }
            seen.add(Long.toString(now));
            TimeUnit.MICROSECONDS.sleep(ThreadLocalRandom.current().nextLong(40_000));
        }
        return "counted " + TimeUnit.NANOSECONDS.toMillis(longest) + " " + String.join(" ", seen);
    }

    private static long number(String word) {
        return Long.parseLong(word);
    }
}
