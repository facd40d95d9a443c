//! Rows of a SQLite store, as another program, another version or a damaged disk may have left them.
//!
//! The store answers every operation, with a reply or an error, and goes on to answer.

use crate::input::{Input, NUMBERS};
use leasehold::store::{Outcome, SqliteStore, Store};
use leasehold_core::{
    Acquire, Claim, Enqueue, Evict, Extend, FencingToken, ForceRelease, Heartbeat, HoldId, Inspect, Kind,
    Label, Liveness, Lock, LockMode, LockName, Nonce, ObservedHolder, Op, OwnValue, Partition, Proclaim,
    RaiseFence, Release, ReleaseAction, Reserve, Resize, SessionId, SessionOp,
};
use rusqlite::{Connection, params};
use std::cell::RefCell;
use std::fmt::Debug;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// What states of locks are made of.
pub(crate) const WORDS: &[&str] = &[
    "\"kind\":\"mutex\"",
    "\"kind\":\"semaphore\"",
    "\"value\":null",
    "\"content\":{\"Token\":",
    "\"expires_ms\":",
    "\"record\":{",
    "\"last_fence\":",
    "\"reserved\":{",
    "\"last_holder\":{",
    "\"ended\":",
    "\"limit\":",
    "\"agreed\":",
    "\"next_ticket\":",
    "\"tickets\":{",
    "\"entries\":{",
    "\"audit\":{",
    "\"count\":",
    "\"fence\":",
    "\"lease_ms\":",
    "\"holds\":[",
    "\"until_ms\":",
    "\"since_ms\":",
    "18446744073709551615",
    "9223372036854775807",
    "-9223372036854775808",
    "9007199254740991",
    "4294967295",
    "null",
    "{",
    "}",
    "[",
    "]",
    ",",
    "-1",
    "0",
];

/// The limit of one operation.
const WITHIN: Duration = Duration::from_secs(10);
/// How many inputs a file is used for.
const INPUTS_PER_FILE: u32 = 5_000;
/// Where Linux has files in memory.
const IN_MEMORY: &str = "/dev/shm";
const NAME: &str = "job";
/// The secret half of the hold ids in the corpus.
const SECRET: &str = "CQkJCQkJCQkJCQkJCQkJCQ";

/// A store, and the connection that damages it.
struct Damaged {
    runtime: Runtime,
    store: SqliteStore,
    connection: Connection,
    dir: TempDir,
    inputs: u32,
}

thread_local! {
    static STORE: RefCell<Option<Damaged>> = const { RefCell::new(None) };
}

pub(crate) fn run(input: &[u8]) {
    STORE.with_borrow_mut(|store| {
        // After a panic, the next input begins with another one.
        let mut damaged = store.take().unwrap_or_else(Damaged::open);
        damaged.run(Input::new(input));
        damaged.inputs += 1;
        *store = Some(damaged).filter(|damaged| damaged.inputs < INPUTS_PER_FILE);
    });
}

impl Damaged {
    fn open() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.expect("a runtime without a driver can be built");
        let at =
            if Path::new(IN_MEMORY).is_dir() { Path::new(IN_MEMORY).into() } else { std::env::temp_dir() };
        let dir = tempfile::tempdir_in(at).expect("there is room for a file");
        let path = dir.path().join("locks.db");
        let store = runtime.block_on(SqliteStore::open(&path)).expect("an empty directory");
        let connection = Connection::open(&path).expect("the store has made it");
        connection.execute_batch("PRAGMA synchronous = OFF").expect("it is set for this connection");
        Self { runtime, store, connection, dir, inputs: 0 }
    }

    /// Writes rows, executes operations on them, and removes them.
    fn run(&mut self, mut input: Input<'_>) {
        let (place, reopens) = (input.byte(), input.byte() % 16 == 15);
        let choices: Vec<u8> = (0..8).map(|_| input.byte()).collect();
        let kind = Kind::ALL[usize::from(place) % Kind::ALL.len()];
        let text = String::from_utf8_lossy(input.rest()).into_owned();
        let base = self.meta();
        self.damage(place, kind, &text, &choices);
        if reopens {
            self.set("UPDATE meta SET boot = ?1", &["another boot"]);
            let again = self.runtime.block_on(SqliteStore::open(self.dir.path().join("locks.db")));
            drop(again.map_err(|fault| fault.to_string()));
        }
        let mut choices = Input::new(&choices);
        for _ in 0..4 {
            let op = op(&mut choices, kind);
            let lock = Lock { kind, name: LockName::new(NAME).expect("a good name") };
            let outcome = self.runtime.block_on(self.store.execute(&lock, &op, WITHIN));
            check_shown(&outcome);
        }
        for op in [SessionOp::List, SessionOp::ListStatistics, heartbeat()] {
            let outcome = self.runtime.block_on(self.store.execute_session(Partition::ONLY, &op, WITHIN));
            check_shown(&outcome);
        }
        self.restore(&base);
        let check = Op::Inspect(Inspect { claim: None, details: true });
        let lock = Lock { kind, name: LockName::new(NAME).expect("a good name") };
        let outcome = self.runtime.block_on(self.store.execute(&lock, &check, WITHIN));
        assert!(matches!(outcome, Outcome::Done(_)), "the store no longer answers: {outcome:?}");
    }

    fn damage(&self, place: u8, kind: Kind, text: &str, choices: &[u8]) {
        let number = |at: usize| NUMBERS[usize::from(choices[at]) % NUMBERS.len()].parse().unwrap_or(0_i64);
        match place {
            0..128 => {
                let write = "INSERT OR REPLACE INTO locks (kind, name, state, ended_ms, over_ms) VALUES (?1, ?2, ?3, ?4, ?5)";
                let row = params![kind.as_str(), NAME, text, number(6), i64::MAX];
                drop(self.connection.execute(write, row));
            }
            128..176 => {
                let (session, rest) = text.split_once('\n').unwrap_or(("AAAAAAAAAAAAAAAA", text));
                let (metadata, activity) = rest.split_once('\n').unwrap_or((rest, rest));
                self.set(
                    "INSERT OR REPLACE INTO sessions (session, metadata, activity) VALUES (?1, ?2, ?3)",
                    &[session, metadata, activity],
                );
                drop(
                    self.connection
                        .execute("INSERT OR REPLACE INTO dead VALUES (?1, ?2)", params![session, number(6)]),
                );
            }
            176..216 => self.set("INSERT OR REPLACE INTO statistics (id, state) VALUES (1, ?1)", &[text]),
            _ => drop(
                self.connection
                    .execute("UPDATE meta SET base_us = ?1, latest_us = ?2", params![number(6), number(7)]),
            ),
        }
    }

    fn set(&self, sql: &str, values: &[&str]) {
        // A text that SQLite refuses damages nothing.
        drop(self.connection.execute(sql, rusqlite::params_from_iter(values)));
    }

    fn meta(&self) -> (String, i64, i64) {
        let read = "SELECT boot, base_us, latest_us FROM meta";
        self.connection
            .query_row(read, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .expect("the store has one row there")
    }

    fn restore(&self, (boot, base_us, latest_us): &(String, i64, i64)) {
        let rows = "DELETE FROM locks; DELETE FROM sessions; DELETE FROM dead; DELETE FROM statistics";
        self.connection.execute_batch(rows).expect("the tables are there");
        let meta = "UPDATE meta SET boot = ?1, base_us = ?2, latest_us = ?3";
        self.connection.execute(meta, params![boot, base_us, latest_us]).expect("the row is there");
    }
}

/// A hold id of a row is shown by no error.
fn check_shown<T: Debug>(outcome: &Outcome<T>) {
    if let Outcome::Failed(_, fault) = outcome {
        let shown = format!("{fault} {fault:?}");
        assert!(!shown.contains(SECRET), "a hold id is shown: {shown}");
    }
}

fn session(of: u8) -> SessionId {
    SessionId::from_random([of % 3; 12])
}

fn claim(of: u8, kind: Kind) -> Claim {
    let value =
        matches!(kind, Kind::Reentrant | Kind::RwLock).then(|| OwnValue::new("owner").expect("a value"));
    Claim { hold: HoldId::from_random(session(of), [of % 5; 16]), value }
}

fn heartbeat() -> SessionOp {
    SessionOp::Heartbeat(Heartbeat {
        session: session(0),
        alive_ms: 10_000,
        begin: None,
        acquired: Vec::new(),
        released: Vec::new(),
        activity: None,
        renew_listing: false,
    })
}

fn mode(kind: Kind, of: u8) -> LockMode {
    match kind {
        Kind::Semaphore => LockMode::Permits { count: 1 + u32::from(of % 3), total: 3 },
        Kind::RwLock => {
            [LockMode::Read, LockMode::Write, LockMode::Upgradable, LockMode::Upgrade][usize::from(of) % 4]
        }
        Kind::Latch if of.is_multiple_of(2) => LockMode::LatchWait { total: 2 },
        Kind::Latch => LockMode::CountDown { count: 1, total: 2 },
        Kind::Barrier => LockMode::BarrierWait { total: 2 },
        _ => LockMode::Exclusive,
    }
}

fn acquire(of: u8, kind: Kind) -> Acquire {
    Acquire {
        claim: claim(of, kind),
        lease_ms: 3_000,
        label: Label::new("a client").expect("a label"),
        queue: (of > 100).then(|| Enqueue { nonce: Nonce::new(0, u64::from(of)), ttl_ms: 3_000 }),
        expire_foreign_ms: of.is_multiple_of(3).then_some(1_000),
        liveness: if of.is_multiple_of(2) { Liveness::Lease } else { Liveness::Session { alive_ms: 10_000 } },
        predecessor: (of > 200).then(|| session(of)),
        mode: mode(kind, of),
    }
}

fn op(choices: &mut Input<'_>, kind: Kind) -> Op {
    let (what, of) = (choices.below(9), choices.byte());
    let (claim, actor) = (claim(of, kind), Label::new("an operator").expect("a label"));
    match what {
        0 | 1 => Op::Acquire(acquire(of, kind)),
        2 => Op::Extend(Extend {
            claim,
            lease_ms: 30_000,
            keep_record: of.is_multiple_of(2),
            reserve: (of > 128).then_some(Reserve { tokens: 32, notify_wanted: true }),
            fence: None,
        }),
        3 => {
            let action =
                if of > 200 { ReleaseAction::Cooldown { for_ms: 100 } } else { ReleaseAction::Grant };
            let next = (of < 64).then(|| Acquire { predecessor: None, ..acquire(of, kind) });
            Op::Release(Release { claim, action, next, history: u16::from(of) })
        }
        4 => Op::Inspect(Inspect { claim: Some(claim), details: true }),
        5 => Op::Evict(Evict { session: session(of), actor }),
        6 => Op::ForceRelease(ForceRelease {
            observed: ObservedHolder::Hold(FencingToken::new(u64::from(of))),
            actor,
        }),
        7 if kind == Kind::Semaphore => {
            Op::Resize(Resize { observed: Some(3), limit: u32::from(of), agreed: of > 128 })
        }
        7 if kind == Kind::Election => Op::Proclaim(Proclaim {
            claim,
            fence: FencingToken::new(u64::from(of)),
            observed: actor.clone(),
            value: actor,
        }),
        _ => Op::RaiseFence(RaiseFence { claim, fence: FencingToken::new(u64::from(of)), exact: of > 128 }),
    }
}
