//! The short form: each target replays its corpus, and runs random changes of it for a moment. And the proof that the rig finds
//! what it looks for.
//!
//! `LEASEHOLD_FUZZ_SECONDS` sets how long the changes of each target run, `LEASEHOLD_SEED` which ones they are.

use futures_util::future::BoxFuture;
use leasehold_core::{
    Acquired, Claim, FencingToken, KeyError, Lock, Op, Partition, Reply, SessionId, SessionOp, SessionReply,
};
use leasehold_fuzz::mutate::{self, Finding, read_corpus};
use leasehold_fuzz::{Target, server};
use leasehold_redis::RedisStore;
use leasehold_store::{Capabilities, Fault, NotificationSink, Outcome, Store};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How long the changes of each target run.
const TIME: Duration = Duration::from_secs(2);
/// Within how many inputs a planted defect must be found.
const FOUND_WITHIN: Duration = Duration::from_secs(60);

/// A number from the environment.
fn setting(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text}")))
}

fn fuzz(name: &str) {
    let target = Target::named(name).expect("a target");
    let corpus = read_corpus(&target.corpus()).expect("each target has a corpus");
    assert!(corpus.len() >= 3, "{name} has a corpus of {} inputs", corpus.len());
    let time = setting("LEASEHOLD_FUZZ_SECONDS").map_or(TIME, Duration::from_secs);
    let report = mutate::run(target, &corpus, setting("LEASEHOLD_SEED").unwrap_or(1), time);
    println!("{name}: {} inputs", report.runs);
    if let Some(Finding { input, message }) = report.finding {
        let path = write(name, &input);
        panic!("{message}\nrepeat it with: cargo xtask fuzz {name} --repeat {}", path.display());
    }
}

/// Writes an input to a file.
fn write(name: &str, input: &[u8]) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{name}"));
    std::fs::write(&path, input).expect("the directory is there");
    path
}

macro_rules! short {
    ($($name:ident)+) => { $(
        #[test]
        fn $name() {
            fuzz(stringify!($name));
        }
    )+ };
}

short! { urls names durations detached owners statistics sqlite replies server }

#[test]
fn every_target_runs_here() {
    let names: Vec<_> = leasehold_fuzz::TARGETS.iter().map(|target| target.name).collect();
    let here =
        ["urls", "names", "durations", "detached", "owners", "statistics", "sqlite", "replies", "server"];
    assert_eq!(names, here);
}

/// A target of the rig's own.
const fn planted(run: fn(&[u8])) -> Target {
    Target { name: "planted", run, max_memory: 256 << 20, max_len: 512, words: &["take", "%"] }
}

/// What the random engine finds in a target with a planted defect.
fn found(target: &Target, corpus: &[Vec<u8>]) -> Finding {
    let report = mutate::run(target, corpus, 1, FOUND_WITHIN);
    report.finding.unwrap_or_else(|| panic!("not found within {} inputs", report.runs))
}

#[test]
fn a_parser_that_panics_is_found_and_the_input_repeats_it() {
    fn parse(input: &[u8]) {
        // `%` is followed by two digits.
        if let Some(at) = input.windows(2).position(|pair| pair == b"%4") {
            let _ = input[at + 2];
        }
    }
    let target = planted(parse);
    let Finding { input, message } = found(&target, &[b"a%41".to_vec()]);
    assert!(message.contains("out of bounds"), "{message}");
    let written = std::fs::read(write("planted", &input)).expect("it was written");
    assert!(mutate::failure(&target, &written).is_some_and(|again| again == message));
}

#[test]
fn a_parser_that_believes_a_length_is_found() {
    fn parse(input: &[u8]) {
        let length = input.first().copied().map_or(0, u32::from) << 22;
        let bytes = vec![1_u8; usize::try_from(length).unwrap_or(0)];
        assert!(bytes.len() <= 1 << 30);
    }
    let Finding { message, .. } = found(&planted(parse), &[vec![1, 2]]);
    assert!(message.contains("memory grew"), "{message}");
}

#[test]
fn a_panic_of_a_task_is_found() {
    fn parse(input: &[u8]) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let first = input.first().copied().unwrap_or(0);
        let task = runtime.spawn(async move { assert_ne!(first, 7) });
        // The panic is the task's.
        let _ = runtime.block_on(task);
    }
    found(&planted(parse), &[vec![1, 2]]);
}

/// A store that takes each outcome of an acquire for a grant.
#[derive(Debug)]
struct Credulous(Arc<dyn Store>);

impl Store for Credulous {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            match (op, self.0.execute(lock, op, within).await) {
                (_, granted @ Outcome::Done(Reply::Acquire(Acquired::Granted { .. }))) => granted,
                (Op::Acquire(request), _) => Outcome::Done(Reply::Acquire(Acquired::Granted {
                    fence: FencingToken::new(4711),
                    remaining_ms: request.lease_ms,
                    others_wait: false,
                    owner_holds: None,
                })),
                (_, outcome) => outcome,
            }
        })
    }

    fn open_mailbox(
        &self,
        partition: Partition,
        session: SessionId,
        sink: Arc<dyn NotificationSink>,
        within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        self.0.open_mailbox(partition, session, sink, within)
    }

    fn close_mailbox(&self, partition: Partition, session: SessionId) {
        self.0.close_mailbox(partition, session);
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn execute_session<'a>(
        &'a self,
        partition: Partition,
        op: &'a SessionOp,
        within: Duration,
    ) -> BoxFuture<'a, Outcome<SessionReply>> {
        self.0.execute_session(partition, op, within)
    }

    fn confirm<'a>(
        &'a self,
        lock: &'a Lock,
        claim: &'a Claim,
        fence: FencingToken,
        within: Duration,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        self.0.confirm(lock, claim, fence, within)
    }

    fn fork(&self) -> Arc<dyn Store> {
        Arc::new(Self(self.0.fork()))
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        self.0.check(lock)
    }
}

#[test]
fn a_client_that_takes_any_reply_for_a_grant_is_found() {
    fn parse(input: &[u8]) {
        server::faults_with(input, |store: RedisStore| Credulous(Arc::new(store)));
    }
    let corpus = read_corpus(&Target::named("server").expect("a target").corpus()).expect("a corpus");
    let Finding { message, input } = found(&planted(parse), &corpus);
    assert!(message.contains("which the server never said"), "{message}\n{input:?}");
}

/// Runs the input in the file that `LEASEHOLD_FUZZ_FILE` names, in the target that `LEASEHOLD_FUZZ_TARGET` names, without the
/// other build.
#[test]
#[ignore = "repeats a finding"]
fn repeat() {
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
    let input = std::fs::read(variable("LEASEHOLD_FUZZ_FILE")).expect("the file can be read");
    let target = Target::named(&variable("LEASEHOLD_FUZZ_TARGET")).expect("a target");
    target.check(&input);
}

/// Writes what honest servers send to a new client, as inputs of `replies`. Those that libFuzzer finds are added by its merge.
#[test]
#[ignore = "writes the corpus"]
fn write_the_honest_replies() {
    let directory = Target::named("replies").expect("a target").corpus();
    std::fs::create_dir_all(&directory).expect("it can be made");
    for kind in 0..16_u8 {
        let actions = [[1, 2, 3, 4, 5], [6, 11, 12, 13, 14]][usize::from(kind % 2)];
        let plan = [kind, actions[0], actions[1], actions[2], actions[3], actions[4]];
        let input = server::honest_replies(&plan);
        std::fs::write(directory.join(format!("honest-{kind:02}")), input).expect("it can be written");
    }
}
