//! The model as a store, with one of the defects.

use crate::defects::exclusive::{mutate_operation, mutate_reply, mutate_state};
use crate::defects::multi::mutate_multi_reply;
use crate::defects::reentrant::mutate_entries;
use crate::defects::reservation::{mutate_notifications, mutate_reservation};
use crate::defects::shared::{mutate_request, mutate_result, mutate_shared_holders};
use crate::mutant::StoreMutant;
use futures_util::future::{BoxFuture, ready};
use leasehold_core::model::{
    Content, LockState, ReentrantHolds, SessionLookup, SessionStatus, Sessions, Value,
};
use leasehold_core::{
    Acquire, Acquired, KeyError, KeySpace, Kind, Lock, LockName, MultiAcquired, Notification, Op, OwnValue,
    Partition, Reply, SessionId, SessionOp, SessionReply,
};
use leasehold_store::{Capabilities, Fault, NotificationSink, Outcome, SessionTracking, Store};
use leasehold_testkit::conformance::StoreUnderTest;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The model as a minimal store, with a clock and keys that the test can change.
#[derive(Clone)]
pub(crate) struct Model {
    mutant: StoreMutant,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    now_us: u64,
    locks: HashMap<Lock, LockState>,
    mailboxes: HashMap<SessionId, Arc<dyn NotificationSink>>,
    sessions: Sessions,
}

impl Model {
    pub(crate) fn new(mutant: StoreMutant) -> Self {
        let shared = Shared { now_us: 1_762_000_000_000_000, ..Shared::default() };
        Self { mutant, shared: Arc::new(Mutex::new(shared)) }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_content(&self, lock: &Lock, content: Option<Content>, expiry: Option<Duration>) {
        let mut shared = self.shared();
        let expires_ms = expiry.map(|expiry| shared.now_us / 1000 + millis(expiry));
        let value = content.map(|content| Value { content, expires_ms });
        let state = shared.locks.entry(lock.clone());
        state.or_insert_with(|| LockState::new(lock.kind)).value = value;
    }

    fn apply(&self, lock: &Lock, op: &Op) -> Reply {
        let (mut lock, mut op) = (lock.clone(), op.clone());
        if self.mutant == StoreMutant::TrimsNames {
            lock.name = LockName::new(lock.name.as_str().trim()).unwrap_or(lock.name);
        }
        let mut shared = self.shared();
        let Shared { now_us, locks, mailboxes, sessions } = &mut *shared;
        let now_us = *now_us;
        let other =
            Kind::ALL.into_iter().filter(|kind| *kind != lock.kind && self.mutant != StoreMutant::MixesKinds);
        let mut other = other.map(|kind| Lock { kind, name: lock.name.clone() });
        let other = other.find_map(|other| locks.get_mut(&other)?.value_at(now_us).cloned());
        let state = locks.entry(lock.clone()).or_insert_with(|| LockState::new(lock.kind));
        state.is_empty_at(now_us);
        mutate_operation(self.mutant, state, &mut op);
        mutate_state(self.mutant, state, now_us / 1000, &op);
        mutate_entries(self.mutant, state, now_us / 1000, &op);
        mutate_request(self.mutant, state, &mut op);
        mutate_shared_holders(self.mutant, state, now_us / 1000, &op);
        mutate_reservation(self.mutant, state, &mut op);
        let before = state.clone();
        let alive: SessionLookup<'_> = match self.mutant {
            StoreMutant::EvictsLiveSessions => &|_| SessionStatus::Lapsed,
            StoreMutant::EvictsNoSession => &|_| SessionStatus::Alive(1_000),
            _ => &|session| sessions.status(now_us / 1000, session),
        };
        let (mut reply, mut notifications) = match other {
            None => state.apply(now_us, &op, alive),
            Some(other) => state.apply_to_occupied_key(&other, now_us, &op, alive),
        };
        if self.mutant == StoreMutant::ForgetsAudit {
            state.audit = None;
        }
        mutate_reply(self.mutant, &mut reply);
        mutate_result(self.mutant, &before, state, &op, &mut reply);
        mutate_notifications(self.mutant, state, &op, &reply, &mut notifications);
        let most = if self.mutant == StoreMutant::PublishesOne { 1 } else { usize::MAX };
        let most = match op {
            Op::Resize(_) if self.mutant == StoreMutant::ResizeGrantsNothing => 0,
            _ => most,
        };
        for notification in notifications.into_iter().take(most) {
            let to_all = self.mutant == StoreMutant::PublishesToAll;
            let posts = mailboxes.iter().filter(|(to, _)| to_all || **to == notification.to());
            posts.for_each(|(to, post)| match notification {
                Notification::Grant { nonce, fence, .. } => {
                    post.deliver(Notification::Grant { to: *to, nonce, fence });
                }
                other => post.deliver(other),
            });
        }
        reply
    }
}

impl Model {
    /// Takes all of several locks, or none of them.
    fn take_all(&self, requests: &[(Lock, Acquire)]) -> Vec<MultiAcquired> {
        let mut shared = self.shared();
        let Shared { now_us, locks, .. } = &mut *shared;
        let now_us = *now_us;
        let longest_ms = requests.iter().map(|(_, request)| request.lease_ms).max().unwrap_or_default();
        let mut together = Vec::new();
        for (lock, request) in requests {
            let mut request = request.clone();
            let mut state = locks.remove(lock).unwrap_or_else(|| LockState::new(lock.kind));
            state.is_empty_at(now_us);
            let other = Kind::ALL
                .into_iter()
                .filter(|kind| *kind != lock.kind && self.mutant != StoreMutant::MixesKinds);
            let mut other = other.map(|kind| Lock { kind, name: lock.name.clone() });
            let other = other.find_map(|other| locks.get_mut(&other)?.value_at(now_us).cloned());
            if let Some(other) = &other {
                state.value = Some(other.type_only());
            }
            if self.mutant == StoreMutant::OneLeaseForAll {
                request.lease_ms = longest_ms;
            }
            mutate_operation(self.mutant, &state, &mut Op::Acquire(request.clone()));
            mutate_state(self.mutant, &mut state, now_us / 1000, &Op::Acquire(request.clone()));
            mutate_multi_reply(self.mutant, &mut state, now_us, &request);
            together.push((state, request, other.is_some()));
        }
        let mut pairs: Vec<_> = together.iter_mut().map(|(state, request, _)| (state, &*request)).collect();
        let mut shares = LockState::acquire_all(&mut pairs, now_us);
        if self.mutant == StoreMutant::AcquiresSome {
            let alone =
                |pair: (&mut LockState, &Acquire)| LockState::acquire_all(&mut [pair], now_us).remove(0);
            shares = pairs.into_iter().map(alone).collect();
        }
        for ((mut state, _, beside_another), (lock, _)) in together.into_iter().zip(requests) {
            state.value = state.value.filter(|_| !beside_another);
            locks.insert(lock.clone(), state);
        }
        if self.mutant == StoreMutant::MixesUp {
            shares.reverse();
        }
        if self.mutant == StoreMutant::SharesInSets {
            shares.fill(MultiAcquired::Available);
        }
        if self.mutant == StoreMutant::OneTokenForAll {
            let tokens = shares.iter_mut().filter_map(|share| match share {
                MultiAcquired::Acquired(Acquired::Granted { fence, .. }) => Some(fence),
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
        write!(f, "Model({:?})", self.mutant)
    }
}

impl Store for Model {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, _within: Duration) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            if self.mutant == StoreMutant::ExceedsTimeLimits {
                tokio::time::sleep(Duration::from_secs(3)).await;
            }
            Outcome::Done(self.apply(lock, op))
        })
    }

    fn execute_all<'a>(&'a self, ops: &'a [(Lock, Op)], _within: Duration) -> BoxFuture<'a, Vec<Outcome>> {
        let mut outcomes: Vec<_> = ops.iter().map(|(lock, op)| Outcome::Done(self.apply(lock, op))).collect();
        if self.mutant == StoreMutant::MixesUp {
            outcomes.reverse();
        }
        Box::pin(ready(outcomes))
    }

    fn acquire_all<'a>(
        &'a self,
        requests: &'a [(Lock, Acquire)],
        _within: Duration,
    ) -> BoxFuture<'a, Option<Outcome<Vec<MultiAcquired>>>> {
        Box::pin(ready(Some(Outcome::Done(self.take_all(requests)))))
    }

    fn open_mailbox(
        &self,
        _place: Partition,
        session: SessionId,
        post: Arc<dyn NotificationSink>,
        _within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        self.shared().mailboxes.insert(session, post);
        Box::pin(ready(Ok(())))
    }

    fn close_mailbox(&self, _place: Partition, session: SessionId) {
        if self.mutant != StoreMutant::PublishesToClosed {
            self.shared().mailboxes.remove(&session);
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().sessions(SessionTracking::ByHeartbeat)
    }

    fn execute_session<'a>(
        &'a self,
        _place: Partition,
        op: &'a SessionOp,
        _within: Duration,
    ) -> BoxFuture<'a, Outcome<SessionReply>> {
        let mut shared = self.shared();
        let now_ms = shared.now_us / 1000;
        if let (StoreMutant::Revives, SessionOp::Heartbeat(beat)) = (self.mutant, op)
            && shared.sessions.alive_ms(now_ms, beat.session).is_none()
        {
            shared.sessions.records.remove(&beat.session);
        }
        Box::pin(ready(Outcome::Done(shared.sessions.apply(now_ms, op))))
    }

    fn fork(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        KeySpace::default().lock(lock).map(drop)
    }
}

impl StoreUnderTest for Model {
    fn store(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        Box::pin(ready(Arc::new(self.clone()) as Arc<dyn Store>))
    }

    fn advance(&self, by: Duration) -> Option<BoxFuture<'_, ()>> {
        self.shared().now_us += millis(by) * 1000;
        Some(Box::pin(ready(())))
    }

    fn delete_key<'a>(&'a self, lock: &'a Lock) -> Option<BoxFuture<'a, ()>> {
        Some(Box::pin(async { self.set_content(lock, None, None) }))
    }

    fn put_foreign<'a>(
        &'a self,
        lock: &'a Lock,
        value: &'a str,
        expiry: Option<Duration>,
    ) -> Option<BoxFuture<'a, ()>> {
        let content = match (lock.kind, OwnValue::new(value)) {
            (Kind::Reentrant, Ok(owner)) => Content::ReentrantHolds(ReentrantHolds {
                owner,
                count: 1,
                fence: None,
                lease_ms: 0,
                holds: Vec::new(),
            }),
            (kind, _) => Content::Token([kind.token_prefix(), value].concat()),
        };
        Some(Box::pin(async move { self.set_content(lock, Some(content), expiry) }))
    }

    fn put_other_type<'a>(&'a self, lock: &'a Lock) -> Option<BoxFuture<'a, String>> {
        Some(Box::pin(async {
            self.set_content(lock, Some(Content::Other("list".into())), None);
            "list".into()
        }))
    }

    fn refused_names(&self) -> Vec<(LockName, KeyError)> {
        let name = |text| LockName::new(text).expect("a good name");
        vec![(name("a}b"), KeyError::Brace), (name("leasehold:{x}:record:mutex:x"), KeyError::Reserved)]
    }
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).expect("a test does not last for ages")
}
