import java.io.IOException;

/** The driver of Redisson: `Driver interop URL WATCHDOG_MS` or `Driver bench URL`. The protocols are in ../README.md. */
public final class Driver {
    private Driver() {}

    public static void main(String[] arguments) throws IOException {
        var address = arguments[1].replaceAll("/$", "");
        switch (arguments[0]) {
            case "interop":
                Interop.serve(address, Long.parseLong(arguments[2]));
                break;
            case "bench":
                Bench.serve(address);
                break;
            default:
                throw new IllegalArgumentException("there is no role " + arguments[0] + ": there are interop, bench");
        }
        // Threads of the library, or ones that still wait for locks, would keep the process alive.
        Runtime.getRuntime().halt(0);
    }

    /** The answer that an error is. */
    static String error(Throwable error) {
        return "error " + error.toString().replaceAll("\\s+", " ");
    }
}
