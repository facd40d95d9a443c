import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** RLock, measured: the main thread acquires and releases, the tasks that contend are threads. */
final class Bench {
    private final RedissonClient redisson;

    /** One acquisition: the task, and when. */
    private record Section(int task, long acquiredNs) {}

    private Bench(RedissonClient redisson) {
        this.redisson = redisson;
    }

    static void serve(String address) throws IOException {
        var config = new Config();
        config.useSingleServer().setAddress(address);
        var bench = new Bench(Redisson.create(config));
        var answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        var version = Redisson.class.getPackage().getImplementationVersion();
        answers.println("ready redisson " + version + " " + System.nanoTime());
        var requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = requests.readLine()) != null && !line.equals("stop");) {
            answers.println(bench.answer(line.split(" ")));
        }
    }

    private String answer(String[] request) {
        try {
            switch (request[0]) {
                case "acquire":
                    return acquire(request[1]);
                case "release":
                    return release(request[1], number(request[2]));
                case "contend":
                    return contend(sections(request[1], (int) number(request[2]), number(request[3])));
                case "trace":
                    return trace(sections(request[1], (int) number(request[2]), number(request[3])));
                default:
                    throw new IllegalArgumentException("there is no such request");
            }
        } catch (Exception | LinkageError error) { // Every error is an answer.
            return Driver.error(error);
        }
    }

    private String acquire(String name) {
        var calledNs = System.nanoTime();
        redisson.getLock(name).lock();
        return "acquired " + calledNs + " " + System.nanoTime();
    }

    private String release(String name, long pauseUs) throws InterruptedException {
        TimeUnit.MICROSECONDS.sleep(pauseUs);
        var calledNs = System.nanoTime();
        redisson.getLock(name).unlock();
        return "released " + calledNs;
    }

    private static String contend(List<Section> all) {
        var handovers = IntStream.range(1, all.size())
                .filter(at -> all.get(at).task() != all.get(at - 1).task())
                .count();
        var served = all.stream().map(Section::task).distinct().count();
        return "contended " + all.size() + " " + handovers + " " + served;
    }

    private static String trace(List<Section> all) {
        return "trace" + all.stream().map(it -> " " + it.task() + "@" + it.acquiredNs()).collect(Collectors.joining());
    }

    /** The acquisitions of all tasks, in the order of time. */
    private List<Section> sections(String name, int tasks, long ms) throws Exception {
        var untilNs = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(ms);
        var threads = Executors.newFixedThreadPool(tasks);
        try {
            var calls = IntStream.range(0, tasks)
                    .<Callable<List<Section>>>mapToObj(task -> () -> runTask(name, task, untilNs))
                    .collect(Collectors.toList());
            var all = new ArrayList<Section>();
            for (var seen : threads.invokeAll(calls)) {
                all.addAll(seen.get());
            }
            all.sort(Comparator.comparingLong(Section::acquiredNs));
            return all;
        } finally {
            threads.shutdown();
        }
    }

    private List<Section> runTask(String name, int task, long untilNs) {
        var lock = redisson.getLock(name);
        var seen = new ArrayList<Section>();
        while (System.nanoTime() < untilNs) {
            lock.lock();
            var acquiredNs = System.nanoTime();
            lock.unlock();
            if (acquiredNs < untilNs) {
                seen.add(new Section(task, acquiredNs));
            }
        }
        return seen;
    }

    private static long number(String word) {
        return Long.parseLong(word);
    }
}
