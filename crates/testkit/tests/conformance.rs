//! The conformance suite itself: an honest store passes, also the cases that need keys to meddle with;
//! and a store with one flaw fails the case that is about it.

use futures_util::future::{BoxFuture, ready};
use leasehold::store::{Fault, Outcome, Postbox, SessionKeeping, Store};
use leasehold_core::model::{Alive, Content, Entries, LockState, PlaceId, Sessions, Value, Vital, everybody};
use leasehold_core::{
    Acquire, Acquired, Extended, Fate, FencingToken, Inspect, KeyError, KeySpace, Kind, Life, Lock, LockName,
    Op, OwnValue, Pass, Reply, Seen, SessionId, SessionOp, SessionReply, Share, Wake,
};
use leasehold_testkit::conformance::{self, Scene, Subject, cases};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What is wrong with a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// Forgets which hold was ended last.
    ForgetsEnded,
    /// A release ends whatever hold there is.
    ReleasesAnybody,
    /// An extend sets the end, nearer or not.
    ExtendShortens,
    /// An extend that finds nothing says that it did.
    ExtendsNothing,
    /// Cuts leases to whole seconds.
    WholeSeconds,
    /// Gives every hold the same token.
    OneToken,
    /// Gives a free lock to whoever tries.
    Barges,
    /// Posts every grant to everybody.
    PostsToAll,
    /// Goes on posting to closed mailboxes.
    PostsToClosed,
    /// A release grants, whatever it was asked.
    AlwaysGrants,
    /// A look starts the lease anew.
    LooksExtend,
    /// A look moves the place to the end.
    LooksLoseThePlace,
    /// Trims names.
    TrimsNames,
    /// Compares values, not holds.
    ValuesAlone,
    /// The outcomes of many come in another order.
    MixesUp,
    /// Takes its time.
    Dawdles,
    /// Gives strangers' locks an end without being asked.
    AdoptsUnasked,
    /// Takes everybody for dead.
    EvictsTheLiving,
    /// Takes nobody for dead.
    SparesTheDead,
    /// Takes from the dead also what has no session.
    EvictsDetached,
    /// Revives who has lapsed.
    Revives,
    /// Frees the lock whoever has it by now.
    FreesUnseen,
    /// Does not write down what was taken.
    ForgetsAudit,
    /// An acquire that is sent again counts again.
    CountsTwice,
    /// An entry sets the ends of all holds to its own, nearer or not.
    EntryShortens,
    /// An entry lengthens also what nobody knows of.
    EntryKeepsGhosts,
    /// An owner is whoever looks like him.
    MixesOwners,
    /// What is over goes, and its count stays.
    GhostsCount,
    /// The release of any hold frees the lock.
    InnerReleaseFrees,
    /// Every entry has a token of its own.
    EntryHasItsToken,
    /// A release does not say what is left.
    LeavesUntold,
    /// Takes from an owner all that he has when one of his processes is dead.
    EvictsTheOwner,
    /// Kinds of locks do not see each other.
    MixesKinds,
    /// Who enters again has to queue as everybody else.
    EntriesQueue,
    /// A release that acquires in the same step frees the lock before.
    NextStartsAnew,
    /// Force tells one of the processes that an owner has it in.
    TellsOne,
    /// The end of the longest hold is the end of all.
    EndsTogether,
    /// What is left after a release lasts as long as what was released.
    ReleaseLeavesItsEnd,
    /// Of several locks it takes those that it can.
    TakesSome,
    /// Of several locks it takes also those that others have.
    TakesAll,
    /// Several locks that are asked for once more are taken anew.
    TakesAnew,
    /// One token for all of several locks.
    OneTokenForAll,
    /// One lease for all of several locks.
    OneLeaseForAll,
}

/// The model as a store: what a store is at least, with a clock and keys for the test to meddle with.
#[derive(Clone)]
struct Model {
    flaw: Flaw,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    now_us: u64,
    locks: HashMap<Lock, LockState>,
    mailboxes: HashMap<SessionId, Arc<dyn Postbox>>,
    sessions: Sessions,
}

impl Model {
    fn new(flaw: Flaw) -> Self {
        let shared = Shared { now_us: 1_762_000_000_000_000, ..Shared::default() };
        Self { flaw, shared: Arc::new(Mutex::new(shared)) }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn meddle(&self, lock: &Lock, content: Option<Content>, expiry: Option<Duration>) {
        let mut shared = self.shared();
        let expires_ms = expiry.map(|expiry| shared.now_us / 1000 + millis(expiry));
        let value = content.map(|content| Value { content, expires_ms });
        let state = shared.locks.entry(lock.clone());
        state.or_insert_with(|| LockState::new(lock.kind)).value = value;
    }

    fn apply(&self, lock: &Lock, op: &Op) -> Reply {
        let (mut lock, mut op) = (lock.clone(), op.clone());
        if self.flaw == Flaw::TrimsNames {
            lock.name = LockName::new(lock.name.as_str().trim()).unwrap_or(lock.name);
        }
        let mut shared = self.shared();
        let Shared { now_us, locks, mailboxes, sessions } = &mut *shared;
        let now_us = *now_us;
        let other = Kind::ALL.into_iter().filter(|kind| *kind != lock.kind && self.flaw != Flaw::MixesKinds);
        let mut other = other.map(|kind| Lock { kind, name: lock.name.clone() });
        let other = other.find_map(|other| locks.get_mut(&other)?.stands(now_us).cloned());
        let state = locks.entry(lock.clone()).or_insert_with(|| LockState::new(lock.kind));
        state.is_over(now_us);
        spoil_operation(self.flaw, state, &mut op);
        spoil_state(self.flaw, state, now_us / 1000, &op);
        spoil_entries(self.flaw, state, now_us / 1000, &op);
        let alive: Alive<'_> = match self.flaw {
            Flaw::EvictsTheLiving => &|_| Vital::Lapsed,
            Flaw::SparesTheDead => &|_| Vital::Alive(1_000),
            _ => &|session| sessions.vital(now_us / 1000, session),
        };
        let (mut reply, wakes) = match other {
            None => state.apply(now_us, &op, alive),
            Some(other) => state.apply_beside(&other, now_us, &op, alive),
        };
        if self.flaw == Flaw::ForgetsAudit {
            state.audit = None;
        }
        spoil_reply(self.flaw, &mut reply);
        for wake in wakes {
            let everybody = self.flaw == Flaw::PostsToAll;
            let posts = mailboxes.iter().filter(|(to, _)| everybody || **to == wake.to());
            posts.for_each(|(to, post)| match wake {
                Wake::Grant { nonce, fence, .. } => post.deliver(Wake::Grant { to: *to, nonce, fence }),
                other => post.deliver(other),
            });
        }
        reply
    }
}

fn spoil_operation(flaw: Flaw, state: &LockState, op: &mut Op) {
    let tenant = state.record.as_ref().and_then(|record| record.tenant.as_ref());
    let holder = tenant.map(|tenant| &tenant.claim).filter(|_| state.value.is_some());
    match (flaw, op) {
        (Flaw::ReleasesAnybody, Op::Release(release)) => {
            release.claim = holder.unwrap_or(&release.claim).clone();
        }
        (Flaw::ValuesAlone, Op::Release(release)) if release.claim.value.is_some() => {
            let same = holder.filter(|holder| holder.value == release.claim.value);
            release.claim = same.unwrap_or(&release.claim).clone();
        }
        (Flaw::AlwaysGrants, Op::Release(release)) => release.pass = Pass::Grant,
        (Flaw::WholeSeconds, Op::Acquire(ask)) => ask.lease_ms = ask.lease_ms / 1000 * 1000,
        (Flaw::EvictsDetached, Op::Acquire(ask)) => ask.life = Life::Session { alive_ms: 1 },
        (Flaw::FreesUnseen, Op::Free(free)) => {
            let last = state.record.as_ref().and_then(|record| record.last);
            free.seen = last.map_or(free.seen, Seen::Hold);
        }
        (Flaw::AdoptsUnasked, Op::Acquire(ask)) => {
            ask.adopt_ms.get_or_insert(1000);
        }
        _ => {}
    }
}

fn spoil_state(flaw: Flaw, state: &mut LockState, now_ms: u64, op: &Op) {
    let LockState { value: Some(value), record: Some(record), .. } = state else {
        if let (Flaw::ForgetsEnded | Flaw::Barges, Some(record)) = (flaw, &mut state.record) {
            if flaw == Flaw::ForgetsEnded {
                record.ended.kept.clear();
            }
            if let (Flaw::Barges, Op::Acquire(_)) = (flaw, op) {
                record.tickets.clear();
                record.places.clear();
            }
        }
        return;
    };
    match (flaw, op) {
        (Flaw::ForgetsEnded, _) => record.ended.kept.clear(),
        (Flaw::ExtendShortens, Op::Extend(extend))
            if value.content.token() == Some(&*extend.claim.token()) =>
        {
            value.expires_ms = Some(now_ms + extend.lease_ms);
        }
        (Flaw::LooksExtend, Op::Acquire(ask)) if value.content.token() == Some(&*ask.claim.token()) => {
            value.expires_ms = Some(now_ms + ask.lease_ms);
        }
        (Flaw::LooksLoseThePlace, Op::Acquire(ask)) => {
            if let Some(place) = record.places.remove(&PlaceId::of(state.kind, &ask.claim.hold)) {
                record.tickets.remove(&place.ticket);
            }
        }
        _ => {}
    }
}

/// What only a ReentrantMutex can have wrong.
fn spoil_entries(flaw: Flaw, state: &mut LockState, now_ms: u64, op: &Op) {
    let Some(Value { content: Content::Entries(entries), expires_ms }) = &mut state.value else { return };
    match (flaw, op) {
        (Flaw::CountsTwice, Op::Acquire(ask)) if entries.entry(&ask.claim.hold).is_some() => {
            entries.count += 1;
        }
        (Flaw::EntryShortens, Op::Acquire(ask)) if enters(entries, ask) => {
            let until_ms = now_ms + ask.lease_ms;
            entries.holds.iter_mut().for_each(|entry| entry.until_ms = until_ms);
            *expires_ms = Some(until_ms);
        }
        (Flaw::EntryKeepsGhosts, Op::Acquire(ask)) if enters(entries, ask) => {
            let until_ms = now_ms + entries.lease_ms;
            entries.holds.iter_mut().for_each(|entry| entry.until_ms = entry.until_ms.max(until_ms));
        }
        (Flaw::MixesOwners, Op::Acquire(ask)) => {
            let alike = |owner: &str| owner.chars().next().map(|first| first.to_ascii_lowercase());
            let mine = ask.claim.value.as_ref().map(OwnValue::as_str).unwrap_or_default();
            if alike(mine) == alike(entries.owner.as_str()) {
                entries.owner = ask.claim.value.clone().unwrap_or_else(|| entries.owner.clone());
            }
        }
        (Flaw::GhostsCount, _) => {
            let lie = entries.holds.len();
            entries.holds.retain(|entry| entry.until_ms >= now_ms);
            if lie > entries.holds.len() && !entries.holds.is_empty() {
                *expires_ms = Some(now_ms + 1_000_000_000);
            }
        }
        (Flaw::InnerReleaseFrees, Op::Release(release)) if entries.entry(&release.claim.hold).is_some() => {
            entries.holds.retain(|entry| entry.hold == release.claim.hold);
            entries.count = 1;
        }
        (Flaw::EntryHasItsToken, Op::Acquire(ask)) if enters(entries, ask) => {
            entries.fence = entries.fence.map(|fence| FencingToken::new(fence.as_u64() + 1));
        }
        (Flaw::EntriesQueue, Op::Acquire(ask)) if enters(entries, ask) => {
            // Nobody can be him, so that nobody enters.
            entries.owner = OwnValue::new("nobody").unwrap_or_else(|_| entries.owner.clone());
        }
        (Flaw::NextStartsAnew, Op::Release(release)) if release.next.is_some() => {
            entries.holds.retain(|entry| entry.hold == release.claim.hold);
            entries.count = entries.holds.len() as u64;
        }
        (Flaw::TellsOne, Op::Free(_)) => entries.holds.truncate(1),
        (Flaw::EndsTogether, _) | (Flaw::ReleaseLeavesItsEnd, Op::Release(_)) => {
            let last_ms = entries.holds.iter().map(|entry| entry.until_ms).max().unwrap_or(now_ms);
            entries.holds.iter_mut().for_each(|entry| entry.until_ms = last_ms);
        }
        (Flaw::EvictsTheOwner, Op::Evict(evict)) => {
            let dead = entries.holds.iter().any(|entry| entry.hold.session() == evict.dead);
            if dead {
                entries.holds.retain(|entry| entry.hold.session() == evict.dead);
                entries.count = entries.holds.len() as u64;
            }
        }
        _ => {}
    }
}

/// Whether an acquire is an entry of somebody who has the lock already.
fn enters(entries: &Entries, ask: &Acquire) -> bool {
    ask.claim.value.as_ref() == Some(&entries.owner) && entries.entry(&ask.claim.hold).is_none()
}

/// What only a store can have wrong that takes several locks in one step.
fn spoil_share(flaw: Flaw, state: &mut LockState, now_us: u64, ask: &Acquire) {
    let inspect = Op::Inspect(Inspect { claim: Some(ask.claim.clone()), in_full: false });
    let reply = state.clone().apply(now_us, &inspect, &everybody).0;
    let held = matches!(reply, Reply::Inspect(seen) if seen.fate == Some(Fate::Held));
    match flaw {
        Flaw::TakesAll if !held => state.value = None,
        Flaw::TakesAnew if held => state.value = None,
        _ => {}
    }
}

fn spoil_reply(flaw: Flaw, reply: &mut Reply) {
    match (flaw, reply) {
        (Flaw::ExtendsNothing, Reply::Extend(extended)) => *extended = Extended::Extended,
        (Flaw::LeavesUntold, Reply::Release(released)) => released.left = 0,
        (Flaw::OneToken, Reply::Acquire(Acquired::Granted { fence, .. })) => *fence = FencingToken::new(7),
        (Flaw::OneToken, Reply::Inspect(inspection)) => {
            if let Some(holder) = &mut inspection.holder {
                holder.fence = Some(FencingToken::new(7));
            }
        }
        _ => {}
    }
}

impl Model {
    /// Takes all of several locks, or none of them.
    fn take_all(&self, asks: &[(Lock, Acquire)]) -> Vec<Share> {
        let mut shared = self.shared();
        let Shared { now_us, locks, .. } = &mut *shared;
        let now_us = *now_us;
        let longest_ms = asks.iter().map(|(_, ask)| ask.lease_ms).max().unwrap_or_default();
        let mut together = Vec::new();
        for (lock, ask) in asks {
            let mut ask = ask.clone();
            let mut state = locks.remove(lock).unwrap_or_else(|| LockState::new(lock.kind));
            state.is_over(now_us);
            let other =
                Kind::ALL.into_iter().filter(|kind| *kind != lock.kind && self.flaw != Flaw::MixesKinds);
            let mut other = other.map(|kind| Lock { kind, name: lock.name.clone() });
            let other = other.find_map(|other| locks.get_mut(&other)?.stands(now_us).cloned());
            if let Some(other) = &other {
                state.value = Some(other.to_others());
            }
            if self.flaw == Flaw::OneLeaseForAll {
                ask.lease_ms = longest_ms;
            }
            spoil_operation(self.flaw, &state, &mut Op::Acquire(ask.clone()));
            spoil_state(self.flaw, &mut state, now_us / 1000, &Op::Acquire(ask.clone()));
            spoil_share(self.flaw, &mut state, now_us, &ask);
            together.push((state, ask, other.is_some()));
        }
        let mut pairs: Vec<_> = together.iter_mut().map(|(state, ask, _)| (state, &*ask)).collect();
        let mut shares = LockState::take_all(&mut pairs, now_us);
        if self.flaw == Flaw::TakesSome {
            let alone = |pair: (&mut LockState, &Acquire)| LockState::take_all(&mut [pair], now_us).remove(0);
            shares = pairs.into_iter().map(alone).collect();
        }
        for ((mut state, _, beside_another), (lock, _)) in together.into_iter().zip(asks) {
            state.value = state.value.filter(|_| !beside_another);
            locks.insert(lock.clone(), state);
        }
        if self.flaw == Flaw::MixesUp {
            shares.reverse();
        }
        if self.flaw == Flaw::OneTokenForAll {
            let tokens = shares.iter_mut().filter_map(|share| match share {
                Share::Had(Acquired::Granted { fence, .. }) => Some(fence),
                _ => None,
            });
            tokens.reduce(|first, fence| {
                *fence = *first;
                first
            });
        }
        shares
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Model({:?})", self.flaw)
    }
}

impl Store for Model {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, _within: Duration) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            if self.flaw == Flaw::Dawdles {
                tokio::time::sleep(Duration::from_secs(3)).await;
            }
            Outcome::Done(self.apply(lock, op))
        })
    }

    fn execute_all<'a>(&'a self, ops: &'a [(Lock, Op)], _within: Duration) -> BoxFuture<'a, Vec<Outcome>> {
        let mut outcomes: Vec<_> = ops.iter().map(|(lock, op)| Outcome::Done(self.apply(lock, op))).collect();
        if self.flaw == Flaw::MixesUp {
            outcomes.reverse();
        }
        Box::pin(ready(outcomes))
    }

    fn acquire_all<'a>(
        &'a self,
        asks: &'a [(Lock, Acquire)],
        _within: Duration,
    ) -> BoxFuture<'a, Option<Outcome<Vec<Share>>>> {
        Box::pin(ready(Some(Outcome::Done(self.take_all(asks)))))
    }

    fn open_mailbox(
        &self,
        session: SessionId,
        post: Arc<dyn Postbox>,
        _within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        self.shared().mailboxes.insert(session, post);
        Box::pin(ready(Ok(())))
    }

    fn close_mailbox(&self, session: SessionId) {
        if self.flaw != Flaw::PostsToClosed {
            self.shared().mailboxes.remove(&session);
        }
    }

    fn sessions(&self) -> SessionKeeping {
        SessionKeeping::ByBeat
    }

    fn attend<'a>(&'a self, op: &'a SessionOp, _within: Duration) -> BoxFuture<'a, Outcome<SessionReply>> {
        let mut shared = self.shared();
        let now_ms = shared.now_us / 1000;
        if let (Flaw::Revives, SessionOp::Beat(beat)) = (self.flaw, op)
            && shared.sessions.alive_ms(now_ms, beat.session).is_none()
        {
            shared.sessions.records.remove(&beat.session);
        }
        Box::pin(ready(Outcome::Done(shared.sessions.apply(now_ms, op))))
    }

    fn sibling(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        KeySpace::default().lock(lock).map(drop)
    }
}

impl Subject for Model {
    fn store(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        Box::pin(ready(Arc::new(self.clone()) as Arc<dyn Store>))
    }

    fn advance(&self, by: Duration) -> Option<BoxFuture<'_, ()>> {
        self.shared().now_us += millis(by) * 1000;
        Some(Box::pin(ready(())))
    }

    fn delete_key<'a>(&'a self, lock: &'a Lock) -> Option<BoxFuture<'a, ()>> {
        Some(Box::pin(async { self.meddle(lock, None, None) }))
    }

    fn put_foreign<'a>(
        &'a self,
        lock: &'a Lock,
        value: &'a str,
        expiry: Option<Duration>,
    ) -> Option<BoxFuture<'a, ()>> {
        let content = match (lock.kind, OwnValue::new(value)) {
            (Kind::Reentrant, Ok(owner)) => {
                Content::Entries(Entries { owner, count: 1, fence: None, lease_ms: 0, holds: Vec::new() })
            }
            _ => Content::Token(value.to_owned()),
        };
        Some(Box::pin(async move { self.meddle(lock, Some(content), expiry) }))
    }

    fn put_other_type<'a>(&'a self, lock: &'a Lock) -> Option<BoxFuture<'a, String>> {
        Some(Box::pin(async {
            self.meddle(lock, Some(Content::Other("list".into())), None);
            "list".into()
        }))
    }

    fn refused_names(&self) -> Vec<(LockName, KeyError)> {
        let name = |text| LockName::new(text).expect("a good name");
        vec![(name("a}b"), KeyError::Brace), (name("leasehold:{x}:record:mutex:x"), KeyError::Reserved)]
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).expect("a test does not last for ages")
}

mod an_honest_store {
    use super::{Flaw, Model, conformance};

    conformance::suite!(Model::new(Flaw::None));
}

fn fails(flaw: Flaw, case: impl AsyncFnOnce(&Scene)) {
    fails_of(Kind::Mutex, flaw, case);
}

fn fails_of(kind: Kind, flaw: Flaw, case: impl AsyncFnOnce(&Scene)) {
    let played = || conformance::play(kind, async { Model::new(flaw) }, case);
    assert!(catch_unwind(AssertUnwindSafe(played)).is_err(), "the suite did not see the flaw: {flaw:?}");
}

/// A suite that passes everything is worth nothing.
#[test]
fn a_flaw_fails_its_case() {
    fails(Flaw::ForgetsEnded, cases::a_spent_hold_cannot_be_acquired_again);
    fails(Flaw::ForgetsEnded, cases::a_resent_release_says_released);
    fails(Flaw::ReleasesAnybody, cases::a_late_release_leaves_the_successor_alone);
    fails(Flaw::ReleasesAnybody, cases::a_release_by_another_hold_changes_nothing);
    fails(Flaw::ExtendShortens, cases::an_extend_only_raises);
    fails(Flaw::ExtendsNothing, cases::a_hold_that_is_gone_cannot_be_extended);
    fails(Flaw::WholeSeconds, cases::any_lease_from_a_millisecond_to_a_month);
    fails(Flaw::OneToken, cases::fencing_tokens_grow);
    fails(Flaw::Barges, cases::a_try_does_not_barge);
    fails(Flaw::PostsToAll, cases::a_grant_wakes_one_and_nobody_else);
    fails(Flaw::PostsToClosed, cases::a_closed_mailbox_gets_nothing);
    fails(Flaw::AlwaysGrants, cases::a_lock_left_free_keeps_its_queue);
    fails(Flaw::LooksExtend, cases::a_resent_acquire_is_one_acquire);
    fails(Flaw::LooksLoseThePlace, cases::a_look_keeps_the_place);
    fails(Flaw::TrimsNames, cases::any_name_is_literal);
    fails(Flaw::ValuesAlone, cases::equal_values_exclude_each_other);
    fails(Flaw::MixesUp, cases::outcomes_come_in_the_order_of_operations);
    fails(Flaw::Dawdles, cases::a_call_ends_by_its_deadline);
    fails(Flaw::AdoptsUnasked, cases::a_lock_without_expiry_is_adopted_if_asked);
    fails(Flaw::EvictsTheLiving, cases::the_living_are_not_evicted);
    fails(Flaw::SparesTheDead, cases::a_look_takes_the_lock_from_the_dead_ahead);
    fails(Flaw::SparesTheDead, cases::a_row_of_the_dead_is_cleared_from_behind);
    fails(Flaw::SparesTheDead, cases::a_dead_session_is_evicted_by_whoever_asks);
    fails(Flaw::EvictsDetached, cases::a_hold_without_a_session_is_not_evicted);
    fails(Flaw::Revives, cases::a_session_lives_as_long_as_it_beats);
    fails(Flaw::FreesUnseen, cases::a_forced_release_that_comes_too_late_takes_nothing);
    fails(Flaw::ForgetsAudit, cases::what_was_taken_is_written_down);
    fails(Flaw::ForgetsAudit, cases::an_evicted_hold_is_told_its_fate);
}

/// The case waits in vain for the end of a ghost, so that this is a test of its own.
#[test]
fn a_ghost_that_is_kept_alive_fails_its_case() {
    fails_of(Kind::Reentrant, Flaw::EntryKeepsGhosts, cases::a_ghost_leaves_no_count);
}

/// So is this.
#[test]
fn a_ghost_that_counts_fails_its_case() {
    fails_of(Kind::Reentrant, Flaw::GhostsCount, cases::a_ghost_leaves_no_count);
}

/// The same for what only a ReentrantMutex can have wrong.
#[test]
fn a_flaw_of_an_entry_fails_its_case() {
    let kind = Kind::Reentrant;
    fails_of(kind, Flaw::CountsTwice, cases::a_resent_entry_counts_once);
    fails_of(kind, Flaw::EntryShortens, cases::an_entry_shortens_nothing);
    fails_of(kind, Flaw::MixesOwners, cases::the_same_owner_enters_at_once);
    fails_of(kind, Flaw::InnerReleaseFrees, cases::a_release_tells_what_is_left);
    fails_of(kind, Flaw::InnerReleaseFrees, cases::many_entries_at_once_are_counted);
    fails_of(kind, Flaw::ReleasesAnybody, cases::a_release_by_none_of_the_holds_takes_none);
    fails_of(kind, Flaw::ReleasesAnybody, cases::a_release_by_another_hold_changes_nothing);
    fails_of(kind, Flaw::EntryHasItsToken, cases::one_tenure_has_one_token);
    fails_of(kind, Flaw::LeavesUntold, cases::a_release_tells_what_is_left);
    fails_of(kind, Flaw::LeavesUntold, cases::a_stranger_of_the_same_owner_counts);
    fails_of(kind, Flaw::ReleaseLeavesItsEnd, cases::a_ghost_alone_does_not_keep_the_lock);
    fails_of(kind, Flaw::EntriesQueue, cases::only_an_entry_passes_the_queue);
    fails_of(kind, Flaw::NextStartsAnew, cases::a_release_that_acquires_enters_again);
    fails_of(kind, Flaw::EvictsTheOwner, cases::a_dead_process_loses_its_part);
    fails_of(kind, Flaw::MixesKinds, cases::another_kind_of_lock_is_refused);
    fails_of(kind, Flaw::ForgetsEnded, cases::a_resent_release_says_released);
    fails_of(kind, Flaw::Barges, cases::a_try_does_not_barge);
}

/// And so are these.
#[test]
fn holds_that_end_together_fail_their_case() {
    fails_of(Kind::Reentrant, Flaw::EndsTogether, cases::each_hold_ends_by_itself);
}

#[test]
fn a_process_that_is_not_told_fails_its_case() {
    fails_of(Kind::Reentrant, Flaw::TellsOne, cases::a_forced_release_ends_all_of_an_owner);
}

/// The same for several locks in one step.
#[test]
fn a_flaw_of_a_set_fails_its_case() {
    for kind in [Kind::Mutex, Kind::Reentrant] {
        fails_of(kind, Flaw::TakesSome, cases::all_of_a_set_are_taken_or_none);
        fails_of(kind, Flaw::TakesAnew, cases::a_set_that_is_asked_for_again_is_one);
        fails_of(kind, Flaw::TakesAnew, cases::what_is_there_of_a_set_is_told);
        fails_of(kind, Flaw::TakesAll, cases::another_hold_of_the_asker_is_in_the_way_of_a_set);
        fails_of(kind, Flaw::ForgetsEnded, cases::a_set_that_was_given_back_is_spent);
        fails_of(kind, Flaw::OneTokenForAll, cases::each_of_a_set_has_its_own_token);
        fails_of(kind, Flaw::Barges, cases::a_set_passes_nobody);
        fails_of(kind, Flaw::OneLeaseForAll, cases::each_of_a_set_ends_by_itself);
        fails_of(kind, Flaw::MixesKinds, cases::another_kind_of_lock_keeps_a_set_from_all);
        fails_of(kind, Flaw::TakesAll, cases::another_type_of_key_keeps_a_set_from_all);
        fails_of(kind, Flaw::TakesAll, cases::a_foreign_lock_keeps_a_set_from_all);
        fails_of(kind, Flaw::MixesUp, cases::the_shares_come_in_the_order_of_the_asks);
        fails_of(kind, Flaw::SparesTheDead, cases::the_dead_lose_each_of_a_set);
        fails_of(kind, Flaw::TakesAll, cases::sets_at_once_exclude_each_other);
    }
}

/// A case that no wrong store fails may well test nothing.
#[test]
fn every_case_of_entries_and_sets_is_failed_by_some_store() {
    let this = include_str!("conformance.rs");
    let cases = [
        include_str!("../src/conformance/cases/entering.rs"),
        include_str!("../src/conformance/cases/together.rs"),
    ];
    let names = cases.iter().flat_map(|cases| cases.split("pub async fn ").skip(1));
    let names = names.filter_map(|case| case.split('(').next());
    let never: Vec<_> = names.filter(|name| !this.contains(&format!(", cases::{name});"))).collect();
    assert_eq!(never, Vec::<&str>::new());
}

/// The random operations see every flaw that shows in replies and letters.
#[test]
fn a_flaw_disagrees_with_the_model() {
    for flaw in [
        Flaw::ForgetsEnded,
        Flaw::ReleasesAnybody,
        Flaw::ExtendShortens,
        Flaw::ExtendsNothing,
        Flaw::OneToken,
        Flaw::Barges,
        Flaw::PostsToAll,
        Flaw::AlwaysGrants,
        Flaw::LooksExtend,
        Flaw::LooksLoseThePlace,
        Flaw::AdoptsUnasked,
    ] {
        fails(flaw, cases::a_thousand_operations_agree_with_the_model);
    }
    for flaw in [
        Flaw::CountsTwice,
        Flaw::EntryShortens,
        Flaw::EntryKeepsGhosts,
        Flaw::InnerReleaseFrees,
        Flaw::EntryHasItsToken,
        Flaw::LeavesUntold,
        Flaw::ReleasesAnybody,
        Flaw::ForgetsEnded,
    ] {
        fails_of(Kind::Reentrant, flaw, cases::a_thousand_operations_agree_with_the_model);
    }
}
