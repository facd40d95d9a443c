//! What was covered, and whether it suffices: a generator that reaches few states would find nothing.

use crate::invariants::Left;
use leasehold_core::{Kind, Op};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// The lines of each script at which it was cut off.
pub(crate) type Cuts = BTreeMap<Arc<str>, BTreeSet<usize>>;

/// The kinds of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum OpKind {
    Acquire,
    /// An acquire that names the session ahead.
    AcquireAhead,
    Extend,
    /// An extend that reserves fencing tokens, of a Mutex.
    Reserve,
    Release,
    ReleaseAndAcquire,
    Inspect,
    Evict,
    ForceRelease,
    Resize,
    RaiseFence,
    Proclaim,
}

/// The operations on a kind of lock.
pub(crate) fn op_kinds(kind: Kind) -> impl Iterator<Item = OpKind> {
    OP_KINDS.into_iter().filter(move |op| match op {
        OpKind::Resize => kind == Kind::Semaphore,
        OpKind::Reserve => kind == Kind::Mutex,
        OpKind::RaiseFence => kind.supports_quorum(),
        OpKind::Proclaim => kind == Kind::Election,
        _ => true,
    })
}

const OP_KINDS: [OpKind; 12] = [
    OpKind::Acquire,
    OpKind::AcquireAhead,
    OpKind::Extend,
    OpKind::Reserve,
    OpKind::Release,
    OpKind::ReleaseAndAcquire,
    OpKind::Inspect,
    OpKind::Evict,
    OpKind::ForceRelease,
    OpKind::Resize,
    OpKind::RaiseFence,
    OpKind::Proclaim,
];

impl OpKind {
    pub(crate) fn of(op: &Op) -> Option<Self> {
        match op {
            Op::Acquire(ask) if ask.predecessor.is_some() => Some(Self::AcquireAhead),
            Op::Acquire(_) => Some(Self::Acquire),
            Op::Extend(extend) if extend.reserve.is_some() => Some(Self::Reserve),
            Op::Extend(_) => Some(Self::Extend),
            Op::Release(release) if release.next.is_some() => Some(Self::ReleaseAndAcquire),
            Op::Release(_) => Some(Self::Release),
            Op::Inspect(_) => Some(Self::Inspect),
            Op::Evict(_) => Some(Self::Evict),
            Op::ForceRelease(_) => Some(Self::ForceRelease),
            Op::Resize(_) => Some(Self::Resize),
            Op::RaiseFence(_) => Some(Self::RaiseFence),
            Op::Proclaim(_) => Some(Self::Proclaim),
            _ => None,
        }
    }
}

/// What was covered.
#[derive(Default)]
pub(crate) struct Coverage {
    /// How often a partial operation left each state.
    left: BTreeMap<(OpKind, Left), u64>,
    cuts: Cuts,
}

impl Coverage {
    pub(crate) fn left(&mut self, kind: OpKind, left: Left) {
        *self.left.entry((kind, left)).or_insert(0) += 1;
    }

    pub(crate) fn cut_at(&mut self, cuts: Cuts) {
        for (script, lines) in cuts {
            self.cuts.entry(script).or_default().extend(lines);
        }
    }

    pub(crate) fn with(mut self, other: Self) -> Self {
        for (what, times) in other.left {
            *self.left.entry(what).or_insert(0) += times;
        }
        self.cut_at(other.cuts);
        self
    }

    /// Fails unless every operation left each state that it can leave, at least this often, and every script was stopped at
    /// every command. `is_whole` unless this process runs a share of the states.
    pub(crate) fn check(&self, kinds: &[Kind], times_at_least: u64, is_whole: bool) {
        let of_these_kinds = match kinds[0] {
            Kind::Reentrant => &[
                (OpKind::Acquire, Left::Lasting),
                (OpKind::Extend, Left::Lasting),
                (OpKind::RaiseFence, Left::Done),
            ][..],
            // Free, but with the record of the hold before; and extended, before tokens are reserved.
            Kind::Mutex => &[
                (OpKind::Acquire, Left::Unwritten),
                (OpKind::AcquireAhead, Left::Unwritten),
                (OpKind::Release, Left::Lasting),
                (OpKind::Reserve, Left::Untouched),
                (OpKind::Reserve, Left::Lasting),
                (OpKind::Reserve, Left::Done),
                (OpKind::RaiseFence, Left::Done),
            ],
            Kind::Election => &[(OpKind::Release, Left::Lasting), (OpKind::Proclaim, Left::Done)],
            Kind::Semaphore => &[
                (OpKind::Resize, Left::Untouched),
                (OpKind::Resize, Left::Entered),
                (OpKind::Resize, Left::Done),
            ][..],
            _ => &[],
        };
        for what in [
            (OpKind::Acquire, Left::Untouched),
            (OpKind::Acquire, Left::Entered),
            (OpKind::Acquire, Left::Done),
            (OpKind::Extend, Left::Untouched),
            (OpKind::Extend, Left::Done),
            (OpKind::Release, Left::Untouched),
            (OpKind::Release, Left::ForceReleased),
            (OpKind::Release, Left::Entered),
            (OpKind::Release, Left::Done),
            (OpKind::ReleaseAndAcquire, Left::ForceReleased),
            (OpKind::ReleaseAndAcquire, Left::Entered),
            (OpKind::ReleaseAndAcquire, Left::Done),
            (OpKind::AcquireAhead, Left::ForceReleased),
            (OpKind::AcquireAhead, Left::Entered),
            (OpKind::AcquireAhead, Left::Unnoted),
            (OpKind::AcquireAhead, Left::Done),
            (OpKind::Evict, Left::Untouched),
            (OpKind::Evict, Left::ForceReleased),
            (OpKind::Evict, Left::Entered),
            (OpKind::Evict, Left::Unnoted),
            (OpKind::Evict, Left::Done),
            (OpKind::ForceRelease, Left::Untouched),
            (OpKind::ForceRelease, Left::ForceReleased),
            (OpKind::ForceRelease, Left::Entered),
            (OpKind::ForceRelease, Left::Unnoted),
            (OpKind::ForceRelease, Left::Done),
        ]
        .iter()
        .chain(of_these_kinds)
        {
            let times = self.left.get(what).copied().unwrap_or(0);
            assert!(times >= times_at_least, "{what:?} came {times} times only");
        }
        // A Mutex has scripts for an extend by its token, for other extends, for a cooldown, and for several operations; an Election has one for extends and one for its text;
        // a Semaphore has one for its size; and the kinds that a quorum supports have one for the token. A release with
        // a history has a script, and so has a heartbeat.
        let scripts = match kinds[0] {
            Kind::Mutex => 12,
            Kind::Election => 10,
            Kind::Reentrant | Kind::Semaphore => 9,
            _ => 8,
        };
        assert_eq!(self.cuts.len(), scripts, "so many scripts there are");
        let mut uncovered = self.uncovered();
        // The script of a Mutex extends an Election, too. Only for a Mutex it reserves tokens, and only a quorum raises them.
        uncovered.retain(|text| kinds[0].supports_quorum() || !text.starts_with("written="));
        // Only a Mutex has a line of waiters.
        uncovered.retain(|text| kinds[0] == Kind::Mutex || !text.contains("list_line("));
        // A cluster alone publishes this, in place of a PUBLISH: here are no channels of slots.
        uncovered.retain(|text| !text.contains("receivers"));
        // The expiry of a new key is not cut off from it: see prelude.lua.
        uncovered.retain(|text| !text.starts_with("if index_ttl_ms==-2"));
        // A shared lock serves its queue before a request joins it: then it knows the first entry, and reads the last one alone.
        let reads_two_entries = |text: &str| text.contains("'w:' .. a,'w:' .. b");
        uncovered.retain(|text| !kinds[0].is_shared() || !reads_two_entries(text));
        // Too rare for a share of the states: `cargo xtask verify cutoffs` cuts off there.
        let is_rare = |text: &str| text.starts_with("local link=lock.fields['p:' .. id]");
        uncovered.retain(|text| is_whole || !kinds[0].is_shared() || !is_rare(text));
        assert_eq!(uncovered, [""; 0], "never cut off there");
    }

    /// The commands at which no script was stopped. Scripts share texts; what each operation can leave is checked above.
    fn uncovered(&self) -> Vec<&str> {
        let commands = self.cuts.iter().flat_map(|(script, cut_at)| {
            let commands = (1..).zip(script.lines()).filter(|(_, text)| is_command(text));
            commands.map(move |(line, text)| (text.trim(), cut_at.contains(&line)))
        });
        let mut stopped = BTreeMap::new();
        for (text, cut) in commands {
            *stopped.entry(text).or_insert(false) |= cut;
        }
        stopped.into_iter().filter_map(|(text, cut)| (!cut).then_some(text)).collect()
    }
}

fn is_command(line: &str) -> bool {
    line.contains("redis.call(") || line.contains("redis.pcall(")
}

impl fmt::Debug for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cut-offs: {:?}", self.left.values().sum::<u64>(), self.left)
    }
}
