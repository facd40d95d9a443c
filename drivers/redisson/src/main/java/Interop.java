import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * RLock beside Leasehold's ReentrantMutex: reads the requests, and passes each to the thread that it names. An RLock belongs
 * to a thread, so each name stands for the same thread until the end.
 */
final class Interop {
    private static final PrintStream ANSWERS = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    private final RedissonClient redisson;
    private final Map<String, ExecutorService> threads = new HashMap<>();
    private final Map<String, Holder> holders = new HashMap<>();

    private Interop(RedissonClient redisson) {
        this.redisson = redisson;
    }

    static void serve(String address, long watchdogMs) throws IOException {
        var config = new Config();
        config.setLockWatchdogTimeout(watchdogMs);
        // Few threads and connections: there are few locks, and other drivers run beside this one.
        config.setThreads(4).setNettyThreads(4);
        config.useSingleServer()
                .setAddress(address)
                .setConnectionMinimumIdleSize(2)
                .setSubscriptionConnectionMinimumIdleSize(1);
        var interop = new Interop(Redisson.create(config));
        var requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = requests.readLine()) != null;) {
            interop.pass(line.split(" "));
        }
    }

    /** Passes a request to its thread. The answer begins with `as THREAD` if the request does. */
    private void pass(String[] words) {
        var named = words[0].equals("as");
        var thread = named ? words[1] : "main";
        var request = named ? Arrays.copyOfRange(words, 2, words.length) : words;
        var holder = holders.computeIfAbsent(thread, name -> new Holder(redisson));
        threads.computeIfAbsent(thread, name -> Executors.newSingleThreadExecutor(run -> new Thread(run, name)))
                .execute(() -> {
                    var answer = answer(holder, request);
                    ANSWERS.println(named ? "as " + thread + " " + answer : answer);
                });
    }

    private static String answer(Holder holder, String[] request) {
        try {
            return holder.answer(request);
        } catch (Exception | LinkageError error) { // Every error is an answer.
            return Driver.error(error);
        }
    }
}
