//! Locks spread over independent servers: a name always maps to the same one.
//!
//! The server is chosen by rendezvous hashing (D. Thaler and C. V. Ravishankar, "Using name-based mappings to
//! increase hit rates", IEEE/ACM Transactions on Networking 6, 1998): every shard has a weight for the name, and the
//! greatest weight wins. So adding or removing a shard moves only the names that map to it, and the order in which
//! shards are listed does not matter.
//!
//! 1. A failure of one shard does not affect holds on the others: each is a [`Partition`] with a session of its own.
//! 2. Names with the same [hash tag](leasehold_core::LockName::hash_tag) map to the same shard, as they map to the
//!    same slot of a cluster.
//! 3. The mapping depends only on the names of the shards, so it is the same for all clients.

use crate::capabilities::{Capabilities, SessionTracking};
use crate::diagnosis::Diagnosis;
use crate::fault::{Fault, FaultKind, Phase};
use crate::finding::ServerFinding;
use crate::hold_watcher::HoldWatcher;
use crate::name_scan::NameScan;
use crate::notification_sink::NotificationSink;
use crate::outcome::Outcome;
use crate::store::Store;
use crate::subscription::Subscription;
use futures_util::future::{BoxFuture, FutureExt, join_all, ready};
use leasehold_core::{
    Acquire, Claim, Executed, FencingToken, KeyError, Kind, Lock, MultiAcquired, Op, Partition, SessionId,
    SessionList, SessionOp, SessionReply,
};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Locks on several independent stores, where the name of a lock selects its store.
///
/// For users that already route keys to independent servers themselves; servers that belong together form a cluster
/// or a quorum. Locks of different names may map to different shards, so several of them are acquired one after the
/// other. A shard that fails affects only its own locks.
///
/// Cheap to clone; clones share the stores.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::Client;
/// use leasehold::store::{MemoryStore, Shards, Store};
/// use std::sync::Arc;
///
/// let shard = |name: &str| (name.to_owned(), Arc::new(MemoryStore::new()) as Arc<dyn Store>);
/// let shards = Shards::new(["a", "b", "c"].map(shard))?;
/// let client = Client::with_store(shards).connect().await?;
/// client.mutex("orders/42")?.acquire().await?.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Shards {
    shards: Arc<[Shard]>,
}

struct Shard {
    name: String,
    /// The hash of its name: the start of its weight for a lock name.
    seed: u64,
    store: Arc<dyn Store>,
}

/// Why shards cannot be created.
///
/// ```
/// use leasehold::store::{Shards, ShardsError};
///
/// assert_eq!(Shards::new([]).unwrap_err(), ShardsError::None);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardsError {
    /// No shard was given.
    #[error("there is no shard: at least one is needed")]
    None,
    /// Two shards have the same name.
    #[error("two shards are named `{0}`: names must be unique, since they select the shard of a lock")]
    Twice(String),
    /// There are more than [`Shards::MAX_SHARDS`].
    #[error("there are {0} shards, and at most 1024 are allowed")]
    TooMany(usize),
}

impl Shards {
    /// The largest number of shards.
    pub const MAX_SHARDS: usize = 1024;

    /// Creates a store from stores and their names. All clients must give each store the same name, in any order; a
    /// shard with another name than before has other locks.
    pub fn new(shards: impl IntoIterator<Item = (String, Arc<dyn Store>)>) -> Result<Self, ShardsError> {
        let shard = |(name, store): (String, _)| Shard { seed: hash(SEED, name.as_bytes()), name, store };
        let mut shards: Vec<_> = shards.into_iter().map(shard).collect();
        if shards.is_empty() {
            return Err(ShardsError::None);
        }
        if shards.len() > Self::MAX_SHARDS {
            return Err(ShardsError::TooMany(shards.len()));
        }
        shards.sort_by(|a, b| a.name.cmp(&b.name));
        match shards.windows(2).find(|two| two[0].name == two[1].name) {
            Some(two) => Err(ShardsError::Twice(two[0].name.clone())),
            None => Ok(Self { shards: shards.into() }),
        }
    }

    /// The name of the shard that a lock maps to.
    pub fn shard_of(&self, lock: &Lock) -> &str {
        &self.shard(self.partition(lock)).name
    }

    fn shard(&self, partition: Partition) -> &Shard {
        // There is at least one shard, and partitions are created here.
        &self.shards[usize::from(partition.as_u16()) % self.shards.len()]
    }

    fn of(&self, lock: &Lock) -> &dyn Store {
        &*self.shard(self.partition(lock)).store
    }

    /// The shard that all of these locks map to, if it is the same.
    fn of_all<'a>(&self, mut locks: impl Iterator<Item = &'a Lock>) -> Option<&dyn Store> {
        let partition = self.partition(locks.next()?);
        locks.all(|lock| self.partition(lock) == partition).then(|| &*self.shard(partition).store)
    }

    async fn list(&self, within: Duration) -> Outcome<SessionReply> {
        let all = self
            .shards
            .iter()
            .map(|shard| shard.store.execute_session(Partition::ONLY, &SessionOp::List, within));
        let mut sessions = SessionList::default();
        let mut missing = None;
        for outcome in join_all(all).await {
            match outcome {
                Outcome::Done(SessionReply::List(some)) => {
                    sessions.entries.extend(some.entries);
                    sessions.skipped.merge(some.skipped);
                }
                Outcome::Done(_) => {
                    let text = "its reply does not match the request".to_owned();
                    missing = Some(Fault::new(FaultKind::Failed(text), Phase::Reply, "a shard"));
                }
                Outcome::Failed(_, fault) => missing = Some(fault),
            }
        }
        // A caller could not tell an incomplete list from a complete one.
        missing.map_or(Outcome::Done(SessionReply::List(sessions)), |fault| {
            Outcome::Failed(Executed::Unknown, fault)
        })
    }

    /// The reports of one shard, or that it does not answer.
    async fn diagnose_shard(shard: &Shard, within: Duration) -> Vec<Diagnosis> {
        let found = shard.store.diagnose(within).await;
        found.unwrap_or_else(|fault| vec![Diagnosis::unreachable(&shard.name, &fault)])
    }
}

/// The offset basis of FNV-1a.
const SEED: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a with 64 bits (G. Fowler, L. C. Noll, K.-P. Vo), continued from `state`. It must never change: names would
/// move.
fn hash(state: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(state, |state, byte| (state ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// The weight of a shard for a name. FNV alone leaves the high bits of short names similar, so they are mixed as in
/// the last step of `SplitMix64` (G. L. Steele, D. Lea, C. H. Flood, "Fast splittable pseudorandom number
/// generators", 2014).
fn weight(seed: u64, name: &str) -> u64 {
    let mut mixed = hash(hash(seed, &[0]), name.as_bytes());
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl fmt::Debug for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.shards.iter().map(|shard| &shard.name)).finish()
    }
}

impl Store for Shards {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome> {
        self.of(lock).execute(lock, op, within)
    }

    fn execute_all<'a>(&'a self, ops: &'a [(Lock, Op)], within: Duration) -> BoxFuture<'a, Vec<Outcome>> {
        if let Some(store) = self.of_all(ops.iter().map(|(lock, _)| lock)) {
            return store.execute_all(ops, within);
        }
        Box::pin(async move {
            // One batch per shard, in the order of the operations.
            let mut batches: BTreeMap<Partition, Vec<usize>> = BTreeMap::new();
            for (at, (lock, _)) in ops.iter().enumerate() {
                batches.entry(self.partition(lock)).or_default().push(at);
            }
            let sent = batches.into_iter().map(async |(partition, positions)| {
                let batch: Vec<_> = positions.iter().map(|at| ops[*at].clone()).collect();
                let outcomes = self.shard(partition).store.execute_all(&batch, within).await;
                positions.into_iter().zip(outcomes).collect::<Vec<_>>()
            });
            let mut outcomes: Vec<_> = join_all(sent).await.into_iter().flatten().collect();
            outcomes.sort_by_key(|(at, _)| *at);
            outcomes.into_iter().map(|(_, outcome)| outcome).collect()
        })
    }

    fn acquire_all<'a>(
        &'a self,
        requests: &'a [(Lock, Acquire)],
        within: Duration,
    ) -> BoxFuture<'a, Option<Outcome<Vec<MultiAcquired>>>> {
        match self.of_all(requests.iter().map(|(lock, _)| lock)) {
            Some(store) => store.acquire_all(requests, within),
            None => Box::pin(ready(None)),
        }
    }

    fn capabilities(&self) -> Capabilities {
        let all = || self.shards.iter().map(|shard| shard.store.capabilities());
        // All have the same type: a capability that one lacks is not used.
        let sessions = all().map(|shard| shard.sessions);
        let sessions = sessions.reduce(|all, one| if all == one { all } else { SessionTracking::Never });
        Capabilities::default()
            .partitioned(true)
            .notifications(all().all(|shard| shard.notifications))
            .queue(all().all(|shard| shard.queue))
            .max_lease(all().filter_map(|shard| shard.max_lease).min())
            .sessions(sessions.unwrap_or(SessionTracking::Never))
            .confirmation(all().any(|shard| shard.confirmation))
    }

    fn partition(&self, lock: &Lock) -> Partition {
        let weighed = self.shards.iter().enumerate();
        let heaviest =
            weighed.max_by_key(|(_, shard)| (weight(shard.seed, lock.name.hash_tag()), &shard.name));
        heaviest.and_then(|(at, _)| u16::try_from(at).ok()).map_or(Partition::ONLY, Partition::new)
    }

    fn open_mailbox(
        &self,
        partition: Partition,
        session: SessionId,
        sink: Arc<dyn NotificationSink>,
        within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        self.shard(partition).store.open_mailbox(Partition::ONLY, session, sink, within)
    }

    fn close_mailbox(&self, partition: Partition, session: SessionId) {
        self.shard(partition).store.close_mailbox(Partition::ONLY, session);
    }

    fn subscribe<'a>(
        &'a self,
        lock: &'a Lock,
        within: Duration,
    ) -> BoxFuture<'a, Result<Option<Subscription>, Fault>> {
        self.of(lock).subscribe(lock, within)
    }

    fn watch_holds(&self, watcher: Arc<dyn HoldWatcher>) -> bool {
        let watching = self.shards.iter().filter(|shard| shard.store.watch_holds(Arc::clone(&watcher)));
        watching.count() > 0
    }

    fn execute_session<'a>(
        &'a self,
        partition: Partition,
        op: &'a SessionOp,
        within: Duration,
    ) -> BoxFuture<'a, Outcome<SessionReply>> {
        match op {
            SessionOp::List => Box::pin(self.list(within)),
            op => self.shard(partition).store.execute_session(Partition::ONLY, op, within),
        }
    }

    /// One shard after the other.
    fn scan_names<'a>(
        &'a self,
        kind: Kind,
        start: &'a str,
        within: Duration,
    ) -> BoxFuture<'a, Result<NameScan, Fault>> {
        let share = within / u32::try_from(self.shards.len()).unwrap_or(u32::MAX);
        Box::pin(async move {
            let mut found = NameScan::new(Vec::new(), true);
            for shard in &*self.shards {
                found.merge(shard.store.scan_names(kind, start, share).await?);
            }
            Ok(found)
        })
    }

    fn confirm<'a>(
        &'a self,
        lock: &'a Lock,
        claim: &'a Claim,
        fence: FencingToken,
        within: Duration,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        self.of(lock).confirm(lock, claim, fence, within)
    }

    fn diagnose(&self, within: Duration) -> BoxFuture<'_, Result<Vec<Diagnosis>, Fault>> {
        Box::pin(async move {
            let all = self.shards.iter().map(|shard| Self::diagnose_shard(shard, within));
            Ok(join_all(all).await.into_iter().flatten().collect())
        })
    }

    fn findings(&self) -> Vec<ServerFinding> {
        self.shards.iter().flat_map(|shard| shard.store.findings()).collect()
    }

    fn flush(&self) -> BoxFuture<'_, ()> {
        Box::pin(join_all(self.shards.iter().map(|shard| shard.store.flush())).map(drop))
    }

    fn fork(&self) -> Arc<dyn Store> {
        let fork = |Shard { name, seed, store }: &Shard| Shard {
            name: name.clone(),
            seed: *seed,
            store: store.fork(),
        };
        Arc::new(Self { shards: self.shards.iter().map(fork).collect() })
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        self.of(lock).check(lock)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::memory::MemoryStore;
    use leasehold_core::{ClassStatistics, MergeStatistics};

    fn shards(names: &[&str]) -> Shards {
        let shard = |name: &&str| ((*name).to_owned(), Arc::new(MemoryStore::new()) as Arc<dyn Store>);
        Shards::new(names.iter().map(shard)).expect("good shards")
    }

    fn lock(n: u32) -> Lock {
        Lock::mutex(format!("orders/{n}").parse().expect("a good name"))
    }

    /// Locks held before an upgrade must be found after it.
    #[test]
    fn names_map_to_the_same_shards_as_before() {
        let all = shards(&["a:6379", "b:6379", "c:6379"]);
        let found: Vec<_> = (0..8).map(|n| all.shard_of(&lock(n))).collect();
        assert_eq!(found, ["b:6379", "b:6379", "b:6379", "c:6379", "a:6379", "b:6379", "b:6379", "b:6379"]);
    }

    #[test]
    fn names_with_one_hash_tag_share_a_shard() {
        let all = shards(&["a:6379", "b:6379", "c:6379"]);
        let tagged = |n: u32| Lock::mutex(format!("{{orders}}/{n}").parse().expect("a good name"));
        assert!((1..100).all(|n| all.partition(&tagged(n)) == all.partition(&tagged(0))));
    }

    #[test]
    fn names_are_spread_evenly_whatever_the_order_of_the_shards() {
        let names = ["a:6379", "b:6379", "c:6379", "d:6379"];
        let (all, turned) = (shards(&names), shards(&["c:6379", "a:6379", "d:6379", "b:6379"]));
        let mut counts = std::collections::BTreeMap::<_, u32>::new();
        for n in 0..8000 {
            assert_eq!(all.shard_of(&lock(n)), turned.shard_of(&lock(n)));
            *counts.entry(all.shard_of(&lock(n))).or_default() += 1;
        }
        // An even spread is 2000 each; the standard deviation is 39.
        assert!(names.iter().all(|name| (1800..2200).contains(&counts[name])), "{counts:?}");
    }

    #[test]
    fn another_shard_takes_names_from_all_and_moves_no_others() {
        let (three, four) = (shards(&["a", "b", "c"]), shards(&["a", "b", "c", "d"]));
        let mut moved = 0;
        for n in 0..4000 {
            let (before, after) = (three.shard_of(&lock(n)), four.shard_of(&lock(n)));
            if before != after {
                assert_eq!(after, "d");
                moved += 1;
            }
        }
        assert!((800..1200).contains(&moved), "{moved}");
    }

    #[test]
    fn statistics_are_on_the_first_shard() {
        let all = shards(&["b", "a"]);
        let within = Duration::from_secs(1);
        let run = |store: &dyn Store, op: &SessionOp| {
            futures_util::future::FutureExt::now_or_never(store.execute_session(Partition::ONLY, op, within))
        };
        let counted = ClassStatistics { losses: 1, ..ClassStatistics::default() };
        let merge = MergeStatistics { classes: vec![("jobs".into(), 0, counted)] };
        let merged = run(&all, &SessionOp::MergeStatistics(merge));
        assert!(matches!(merged, Some(Outcome::Done(SessionReply::MergeStatistics))));
        let count = |store: &dyn Store| match run(store, &SessionOp::ListStatistics) {
            Some(Outcome::Done(SessionReply::Statistics(list))) => list.classes.len(),
            other => panic!("{other:?}"),
        };
        assert_eq!((count(&all), count(&*all.shards[0].store), count(&*all.shards[1].store)), (1, 1, 0));
    }

    #[test]
    fn invalid_shards_are_refused() {
        let shard = |name: &str| (name.to_owned(), Arc::new(MemoryStore::new()) as Arc<dyn Store>);
        assert_eq!(Shards::new([]).expect_err("these shards are refused"), ShardsError::None);
        assert_eq!(
            Shards::new([shard("a"), shard("a")]).expect_err("these shards are refused"),
            ShardsError::Twice("a".into())
        );
        let many = (0..=Shards::MAX_SHARDS).map(|n| shard(&n.to_string()));
        assert_eq!(Shards::new(many).expect_err("these shards are refused"), ShardsError::TooMany(1025));
    }
}
