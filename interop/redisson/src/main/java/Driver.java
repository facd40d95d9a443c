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
 * Speaks the protocol of ../README.md for Redisson's RLock: reads the requests, and gives each to the thread that it is
 * for. An RLock belongs to a thread, so each name of one stands for the same thread until the end.
 */
public final class Driver {
    private static final PrintStream ANSWERS = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    private final RedissonClient redisson;
    private final Map<String, ExecutorService> threads = new HashMap<>();
    private final Map<String, Holder> holders = new HashMap<>();

    private Driver(RedissonClient redisson) {
        this.redisson = redisson;
    }

    public static void main(String[] arguments) throws IOException {
        var config = new Config();
        if (arguments.length > 1) {
            config.setLockWatchdogTimeout(Long.parseLong(arguments[1]));
        }
        // Few threads and connections: there are few locks, and the machine is shared.
        config.setThreads(4).setNettyThreads(4);
        config.useSingleServer()
                .setAddress(arguments[0].replaceAll("/$", ""))
                .setConnectionMinimumIdleSize(2)
                .setSubscriptionConnectionMinimumIdleSize(1);
        var driver = new Driver(Redisson.create(config));
        var requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = requests.readLine()) != null;) {
            driver.pass(line.split(" "));
        }
        // The threads may still wait for locks, which nobody wants any more.
        Runtime.getRuntime().halt(0);
    }

    /** Has the right thread do a request. Its answer begins with `as THREAD` if the request did. */
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
        } catch (Exception | LinkageError error) { // Whatever it is, the other side is told.
            return "error " + error.toString().replaceAll("\\s+", " ");
        }
    }
}
