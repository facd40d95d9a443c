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

/** Speaks the protocol of ../README.md for Redisson's RLock: the main thread takes and gives, a herd is threads. */
public final class Driver {
    private final RedissonClient redisson;

    /** Who had the lock, and since when. */
    private record Section(int task, long gotNs) {}

    private Driver(RedissonClient redisson) {
        this.redisson = redisson;
    }

    public static void main(String[] arguments) throws IOException {
        var config = new Config();
        config.useSingleServer().setAddress(arguments[0].replaceAll("/$", ""));
        var driver = new Driver(Redisson.create(config));
        var answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        var version = Redisson.class.getPackage().getImplementationVersion();
        answers.println("ready redisson " + version + " " + System.nanoTime());
        var requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = requests.readLine()) != null && !line.equals("stop");) {
            answers.println(driver.answer(line.split(" ")));
        }
        // Its threads would keep the process alive.
        Runtime.getRuntime().halt(0);
    }

    private String answer(String[] request) {
        try {
            switch (request[0]) {
                case "take":
                    return take(request[1]);
                case "give":
                    return give(request[1], number(request[2]));
                case "herd":
                    return herd(sections(request[1], (int) number(request[2]), number(request[3])));
                case "turns":
                    return turns(sections(request[1], (int) number(request[2]), number(request[3])));
                default:
                    throw new IllegalArgumentException("there is no such request");
            }
        } catch (Exception | LinkageError error) { // Whatever it is, the other side is told.
            return "error " + error.toString().replaceAll("\\s+", " ");
        }
    }

    private String take(String name) {
        var askedNs = System.nanoTime();
        redisson.getLock(name).lock();
        return "got " + askedNs + " " + System.nanoTime();
    }

    private String give(String name, long pauseUs) throws InterruptedException {
        TimeUnit.MICROSECONDS.sleep(pauseUs);
        var gaveNs = System.nanoTime();
        redisson.getLock(name).unlock();
        return "gave " + gaveNs;
    }

    private static String herd(List<Section> all) {
        var handovers = IntStream.range(1, all.size())
                .filter(at -> all.get(at).task() != all.get(at - 1).task())
                .count();
        var served = all.stream().map(Section::task).distinct().count();
        return "herd " + all.size() + " " + handovers + " " + served;
    }

    private static String turns(List<Section> all) {
        return "turns" + all.stream().map(had -> " " + had.task() + "@" + had.gotNs()).collect(Collectors.joining());
    }

    /** What all tasks had, in the order of time. */
    private List<Section> sections(String name, int tasks, long ms) throws Exception {
        var untilNs = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(ms);
        var threads = Executors.newFixedThreadPool(tasks);
        try {
            var herd = IntStream.range(0, tasks)
                    .<Callable<List<Section>>>mapToObj(task -> () -> contend(name, task, untilNs))
                    .collect(Collectors.toList());
            var all = new ArrayList<Section>();
            for (var seen : threads.invokeAll(herd)) {
                all.addAll(seen.get());
            }
            all.sort(Comparator.comparingLong(Section::gotNs));
            return all;
        } finally {
            threads.shutdown();
        }
    }

    private List<Section> contend(String name, int task, long untilNs) {
        var lock = redisson.getLock(name);
        var seen = new ArrayList<Section>();
        while (System.nanoTime() < untilNs) {
            lock.lock();
            var gotNs = System.nanoTime();
            lock.unlock();
            if (gotNs < untilNs) {
                seen.add(new Section(task, gotNs));
            }
        }
        return seen;
    }

    private static long number(String word) {
        return Long.parseLong(word);
    }
}
