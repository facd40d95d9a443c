import java.util.ArrayList;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;

/** What one thread does. It is asked by that thread alone. */
final class Holder {
    /** How long a section of `count` may wait for the lock. */
    private static final long PATIENCE_MS = 60_000;
    /** What Redisson takes for "no lease is given", upon which its watchdog renews. */
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
                return take(request[1], 0, number(request[2])) ? "got" : "taken";
            case "acquire":
                return take(request[1], number(request[3]), number(request[2])) ? "got" : "taken";
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

    private boolean take(String name, long waitMs, long leaseMs) throws InterruptedException {
        var asked = redisson.getLock(name);
        var got = asked.tryLock(waitMs, leaseMs == 0 ? NO_LEASE : leaseMs, TimeUnit.MILLISECONDS);
        if (got) {
            lock = asked;
        }
        return got;
    }

    private String lock(String name, long leaseMs) {
        var asked = redisson.getLock(name);
        if (leaseMs == 0) {
            asked.lock();
        } else {
            asked.lock(leaseMs, TimeUnit.MILLISECONDS);
        }
        lock = asked;
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
            var asked = System.nanoTime();
            if (!take(name, PATIENCE_MS, leaseMs)) {
                return "error waited in vain";
            }
            longest = Math.max(longest, System.nanoTime() - asked);
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
