//! `leasehold advise`: how long locks are held and waited for, and the lease that fits.

use crate::advice::{Advice, Sizing, Times};
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log::{self, LogArgs};
use crate::output::printable::printable;
use crate::output::report::{json_line, millis, print};
use crate::output::times::spoken;
use crate::output::timestamp::rfc3339;
use crate::store::args::StoreArgs;
use crate::store::client::ClientConfig;
use clap::Args;
use leasehold::error::InspectError;
use leasehold::inspect::LockStatistics;
use leasehold::telemetry::class_of;
use serde::Serialize;
use std::time::Duration;

/// Advise on leases, from how long locks were held and waited for
///
/// Reads what all clients of the store have counted within the last 7 days at most, by class of lock. A class is the name of a lock
/// with `*` in place of numbers and ids, or given by the program. Says which lease fits, what the crash of a holder then costs,
/// whether holds can have a cap, and whether a lock should be split; and on how many holds that is based.
#[derive(Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct AdviseArgs {
    /// A class, or the name of a lock [default: all classes]
    #[arg(value_name = "CLASS")]
    class: Option<String>,

    /// Print one line of JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    pub(super) log: LogArgs,
}

/// Prints the advice.
pub(crate) async fn advise(args: &AdviseArgs) -> Result<Exit, Failure> {
    let client = ClientConfig::from_args(&args.store)?.without_session().connect().await?;
    let failed = |error: InspectError| {
        Failure::unavailable(anyhow::Error::new(error).context("failed to read the statistics"))
    };
    let found = client.lock_statistics().await.map_err(failed)?;
    if !found.skipped.is_empty() {
        log::warning(&format!("the statistics are incomplete: {}", found.skipped));
    }
    let skipped = found.skipped.count;
    let mut classes = found.items;
    let known = classes.len();
    if let Some(wanted) = &args.class {
        let is_class = classes.iter().any(|class| class.class == *wanted);
        let wanted = if is_class { wanted.clone() } else { class_of(wanted) };
        classes.retain(|class| class.class == wanted);
    }
    classes.sort_by_key(|class| std::cmp::Reverse(class.holds.count()));
    let advised: Vec<_> = classes.iter().map(|class| (class, Advice::of(class))).collect();
    print(&if args.json {
        let classes = advised.iter().map(|(class, advice)| ClassReport::new(class, advice)).collect();
        json_line(&AdviceReport { classes, skipped })
    } else if advised.is_empty() {
        nothing(args.class.as_deref(), known)
    } else {
        let texts: Vec<_> = advised.iter().map(|(class, advice)| text(class, advice)).collect();
        texts.join("\n")
    })?;
    Ok(Exit::SUCCESS)
}

/// What to say without statistics of a class, where so many classes have some.
fn nothing(class: Option<&str>, known: usize) -> String {
    let of = class.map(|class| format!(" of `{}`", printable(class))).unwrap_or_default();
    if known > 0 {
        return format!(
            "no statistics{of}. Classes that have some: {known} (`leasehold advise` lists them). Its program may give the lock a \
             class of its own, or have so many that it counts as `other`\n"
        );
    }
    format!(
        "no statistics{of}: clients count the locks that they hold, and merge that every minute and when they are shut down, unless \
         LEASEHOLD_STATISTICS=off\n"
    )
}

/// The advice on a class, as lines.
fn text(class: &LockStatistics, advice: &Advice) -> String {
    let mut text = String::new();
    let mut push = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    let (holds, losses) = (counted(advice.holds, "hold"), counted(advice.losses, "loss"));
    let span = spoken(class.span());
    push(format!(
        "`{}`: {holds} in {span} ({:.0} an hour), {losses}",
        printable(&class.class),
        advice.holds_per_hour
    ));
    let times = |what: &str, times: Option<Times>| match times {
        Some(Times { p50, p99, longest }) => {
            format!("  {what:<9} p50 {}, p99 {}, longest {}", short(p50), short(p99), short(longest))
        }
        None => format!("  {what:<9} nothing has ended yet"),
    };
    push(times("held", advice.hold_times));
    push(times("waited", advice.wait_times));
    if let Some(Sizing { lease, factor, crash_wait, cap }) = advice.sizing {
        let why = match factor {
            Some(factor) => format!("{factor} times the usual hold"),
            None => "the shortest that survives a lost packet".to_owned(),
        };
        push(format!("  lease     {}: {why}", short(lease)));
        push(format!("  crash     costs the next waiter up to {}", short(crash_wait)));
        push(match (cap, advice.hold_times) {
            (Some(cap), _) => {
                format!(
                    "  cap       {}: 99 of 100 holds end within the lease, so a longer one hangs",
                    short(cap)
                )
            }
            (None, Some(Times { p50, p99, .. })) => format!(
                "  watchdog  without a cap: 1 of 100 holds lasts for {} times the usual one or more, and is renewed",
                (p99.as_secs_f64() / p50.as_secs_f64().max(1e-4)).round()
            ),
            (None, None) => String::new(),
        });
    }
    let (share, waiting) = (advice.share_taken * 100.0, advice.waiting);
    let verdict = if advice.split { "yes: one lock for each part of the work" } else { "no" };
    push(format!(
        "  split     {verdict} ({share:.0} % of the acquires found it taken, {waiting:.1} wait while it is held)"
    ));
    if !advice.is_enough {
        push(format!("  based on {holds} only: with fewer than 100, the p99 is the longest one"));
    }
    text
}

fn counted(count: u64, what: &str) -> String {
    match (count, what) {
        (1, _) => format!("1 {what}"),
        (count, "loss") => format!("{count} losses"),
        (count, _) => format!("{count} {what}s"),
    }
}

/// A time in its greatest unit.
fn short(time: Duration) -> String {
    match time {
        time if time < Duration::from_millis(1) => "<1ms".to_owned(),
        time if time < Duration::from_secs(1) => format!("{}ms", time.as_millis()),
        time => spoken(time),
    }
}

/// The advice. The fields of its JSON are stable.
#[derive(Debug, Serialize)]
struct AdviceReport<'a> {
    classes: Vec<ClassReport<'a>>,
    skipped: u64,
}

#[derive(Debug, Serialize)]
struct ClassReport<'a> {
    class: &'a str,
    holds: u64,
    holds_per_hour: f64,
    losses: u64,
    from: String,
    to: String,
    hold_ms: Option<TimesReport>,
    wait_ms: Option<TimesReport>,
    share_taken: f64,
    waiting: f64,
    lease_ms: Option<u64>,
    crash_wait_ms: Option<u64>,
    renewal: Option<&'static str>,
    cap_ms: Option<u64>,
    split: bool,
    enough: bool,
}

#[derive(Debug, Serialize)]
struct TimesReport {
    p50: f64,
    p99: f64,
    longest: f64,
}

impl TimesReport {
    fn new(Times { p50, p99, longest }: Times) -> Self {
        let [p50, p99, longest] = [p50, p99, longest].map(|time| to_digits(time.as_secs_f64() * 1e3, 1e3));
        Self { p50, p99, longest }
    }
}

/// Rounded to a part of one.
fn to_digits(number: f64, parts: f64) -> f64 {
    (number * parts).round() / parts
}

impl<'a> ClassReport<'a> {
    fn new(class: &'a LockStatistics, advice: &Advice) -> Self {
        let sizing = advice.sizing;
        let cap = sizing.and_then(|sizing| sizing.cap);
        Self {
            class: &class.class,
            holds: advice.holds,
            holds_per_hour: to_digits(advice.holds_per_hour, 10.0),
            losses: advice.losses,
            from: rfc3339(class.from),
            to: rfc3339(class.to),
            hold_ms: advice.hold_times.map(TimesReport::new),
            wait_ms: advice.wait_times.map(TimesReport::new),
            share_taken: to_digits(advice.share_taken, 1e3),
            waiting: to_digits(advice.waiting, 1e3),
            lease_ms: sizing.map(|sizing| millis(sizing.lease)),
            crash_wait_ms: sizing.map(|sizing| millis(sizing.crash_wait)),
            renewal: sizing.map(|_| if cap.is_some() { "cap" } else { "watchdog" }),
            cap_ms: cap.map(millis),
            split: advice.split,
            enough: advice.is_enough,
        }
    }
}

const AFTER_HELP: &str = "\
JSON (--json), one line; later versions may add fields:
  classes: an array of classes, the one with most holds first, each with
    class, holds, holds_per_hour, losses, from, to,
    hold_ms and wait_ms: {p50, p99, longest}, or null if nothing has ended,
    share_taken: the part of the acquires that found the lock taken,
    waiting: how many wait on average while a lock is held,
    lease_ms, crash_wait_ms, renewal: cap or watchdog, cap_ms,
    split: whether one lock should become several,
    enough: whether there are enough holds (100) for a p99
  skipped: how many entries cannot be read

Exit status:
    0  the statistics were read, also if there are none
    2  the URL or another setting cannot be used
   69  the store cannot be reached, keeps no statistics, or refuses the request

Examples:
  leasehold advise
  leasehold advise orders/42
  leasehold advise --json | jq '.classes[] | {class, lease_ms}'";
