//! Random operations on the store and on the model, which must agree.

use crate::Random;
use crate::conformance::GrantMessage;
use crate::conformance::client::{TestClient, millis};
use crate::conformance::fixture::Fixture;
use leasehold_core::model::{Content, LockState, ReentrantHolds, Value, all_alive};
use leasehold_core::{
    Acquire, Acquired, Claim, Extend, Extended, FencingToken, Holder, Inspect, Kind, Lock, LockMode,
    Notification, Op, OwnValue, Predecessor, Release, ReleaseAction, Reply, Reserve, Resize, SessionId,
    TokenBlock,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// By how much the times of store and model may differ, since they use two clocks.
const SKEW_MS: u64 = 30_000;
/// Leases and clock steps in seconds, chosen so that nothing ends near the time of an operation, where the two clocks would
/// not agree.
const LEASES_S: [u64; 4] = [1_500, 2_500, 5_500, 86_500];
const STEPS_S: [u64; 4] = [1_000, 2_000, 4_000, 100_000];
const FOREIGN: [&str; 2] = ["their-token", "shared"];
/// How many notifications may be under way to one session. A store may lose some if too many are, and one operation sends
/// a few.
const MAX_UNDER_WAY: usize = 3;

/// A thousand random operations of several sessions have the same replies and notifications in the store and in the
/// model. Times may differ within a range, and tokens are in the same order.
pub async fn a_thousand_operations_agree_with_the_model(fixture: &Fixture) {
    // A quorum has no single model state, since one server may lag.
    fixture.client().await.require_queue().await;
    for _ in 0..4 {
        let clients = fixture.clients::<4>().await.map(|client| client.at(&fixture.lock));
        let mut comparison = ModelComparison::new(fixture, clients);
        for step in 0..250 {
            comparison.step(step).await;
        }
        comparison.compare_grants().await;
    }
}

/// One lock, in the store and in the model.
struct ModelComparison<'a> {
    fixture: &'a Fixture,
    lock: Lock,
    clients: [TestClient; 4],
    claims: Vec<(usize, Claim)>,
    /// The mode that each claim requested, so that a poll requests the same.
    modes: Vec<LockMode>,
    model: LockState,
    start: Instant,
    /// How far the clock was moved.
    moved: Duration,
    /// Each token of the model, and the store's.
    tokens: BTreeMap<FencingToken, FencingToken>,
    /// The grants that the model published, by session.
    published: BTreeMap<usize, Vec<GrantMessage>>,
    /// The notifications of waiters that the model published, by session.
    wanted: BTreeMap<usize, Vec<FencingToken>>,
}

impl<'a> ModelComparison<'a> {
    fn new(fixture: &'a Fixture, clients: [TestClient; 4]) -> Self {
        let lock = fixture.another_lock();
        let clients = clients.map(|client| client.at(&lock));
        let claims = clients.iter().enumerate().flat_map(|(client_index, client)| {
            // Where there are owners, the second claim has the first one's owner, and the third a shared one.
            let first = client.claim();
            [
                (client_index, client.same_owner_claim(&first)),
                (client_index, first),
                (client_index, client.claim_with_value("shared")),
            ]
        });
        let claims: Vec<_> = claims.collect();
        let modes = claims.iter().map(|_| any_mode(lock.kind, &fixture.random)).collect();
        let model = LockState::new(lock.kind);
        Self {
            fixture,
            lock,
            clients,
            claims,
            modes,
            model,
            start: Instant::now(),
            moved: Duration::ZERO,
            tokens: BTreeMap::new(),
            published: BTreeMap::new(),
            wanted: BTreeMap::new(),
        }
    }

    async fn step(&mut self, step: u32) {
        let random = self.fixture.random.clone();
        match random.below(24) {
            0 => self.action(Duration::from_secs(*random.pick(&STEPS_S))).await,
            1 => self.delete().await,
            2 if !self.lock.kind.is_shared() => self.put_foreign(&random).await,
            _ => self.compare(step, &random).await,
        }
        // Some claims have ended, but most are fresh.
        if random.below(3) == 0 {
            let index = usize::try_from(random.below(self.claims.len() as u64)).unwrap_or(0);
            let (client_index, claim) = &mut self.claims[index];
            let hold = self.clients[*client_index].claim().hold;
            *claim = Claim { hold, value: claim.value.clone() };
            self.modes[index] = any_mode(self.lock.kind, &random);
        }
    }

    fn now_us(&self) -> u64 {
        let since = self.start.elapsed() + self.moved;
        1_762_000_000_000_000 + u64::try_from(since.as_micros()).unwrap_or(0)
    }

    async fn action(&mut self, by: Duration) {
        if self.fixture.controls_clock() {
            self.fixture.advance(by).await;
            self.moved += by;
        }
    }

    async fn delete(&mut self) {
        if let Some(deleted) = self.fixture.subject.delete_key(&self.lock) {
            deleted.await;
            self.model.value = None;
        }
    }

    async fn put_foreign(&mut self, random: &Random) {
        let value = *random.pick(&FOREIGN);
        let expiry = (random.below(2) == 0).then(|| Duration::from_secs(*random.pick(&LEASES_S)));
        if let Some(put) = self.fixture.subject.put_foreign(&self.lock, value, expiry) {
            put.await;
            let expires_ms = expiry.map(|expiry| self.now_us() / 1000 + millis(expiry));
            self.model.value = Some(Value { content: foreign(self.lock.kind, value), expires_ms });
        }
    }

    async fn compare(&mut self, step: u32, random: &Random) {
        let (client_index, op) = self.any_op(random);
        let (expected, notifications) = self.model.apply(self.now_us(), &op, &all_alive);
        for notification in notifications {
            let to = self
                .clients
                .iter()
                .position(|client| client.session == notification.to())
                .expect("one of the clients");
            match notification {
                Notification::Grant { to: session, nonce, fence } => {
                    self.published.entry(to).or_default().push(GrantMessage { to: session, nonce, fence });
                }
                Notification::Wanted { fence, .. } => self.wanted.entry(to).or_default().push(fence),
                _ => {}
            }
        }
        let found = self.clients[client_index].execute(&op).await;
        assert!(
            self.same_reply(&expected, &found),
            "step {step}: {op:#?}\nmodel: {expected:#?}\nstore: {found:#?}"
        );
        self.wait_for_notifications().await;
    }

    /// Waits for the notifications of a session of which too many are under way. Until then they may be delayed.
    async fn wait_for_notifications(&self) {
        for (client_index, client) in self.clients.iter().enumerate() {
            let published = self.published.get(&client_index).map_or(0, Vec::len)
                + self.wanted.get(&client_index).map_or(0, Vec::len);
            if client.store.capabilities().notifications
                && published > client.inbox.unread_count() + MAX_UNDER_WAY
            {
                let arrived = async || client.inbox.unread_count() >= published;
                self.fixture.wait_until("the published notifications arrive", arrived).await;
            }
        }
    }

    /// Notifications may be delayed. All that the model published must arrive, and nothing else.
    async fn compare_grants(&mut self) {
        for client_index in 0..self.clients.len() {
            let found = self.fixture.grants_so_far(&self.clients[client_index]).await;
            let expected = self.published.remove(&client_index).unwrap_or_default();
            let nonces = |notifications: &[GrantMessage]| {
                notifications.iter().map(|notification| notification.nonce).collect::<Vec<_>>()
            };
            assert_eq!(nonces(&found), nonces(&expected), "the grants to client {client_index}");
            for (expected, found) in expected.iter().zip(&found) {
                assert!(self.same_token(expected.fence, found.fence), "{found:?}, model: {expected:?}");
            }
            // These use the same channel, and precede the last grant.
            let found = self.clients[client_index].inbox.take_wanted();
            let expected = self.wanted.remove(&client_index).unwrap_or_default();
            assert_eq!(
                found.len(),
                expected.len(),
                "the notifications of waiters to client {client_index}: {found:?}, model: {expected:?}"
            );
            for (expected, found) in expected.into_iter().zip(found) {
                assert!(self.same_token(expected, found), "a notification: {found:?}, model: {expected:?}");
            }
        }
    }

    fn any_op(&self, random: &Random) -> (usize, Op) {
        let (client_index, claim) = random.pick(&self.claims).clone();
        if self.lock.kind == Kind::Semaphore && random.below(12) == 0 {
            let number = || u32::try_from(random.below(4)).unwrap_or(0) + 1;
            let known = self.model.record.as_ref().and_then(|record| record.limit);
            let observed = if random.below(4) == 0 { Some(number()) } else { known };
            return (
                client_index,
                Op::Resize(Resize { observed, limit: number(), agreed: random.below(2) == 0 }),
            );
        }
        if self.lock.kind == Kind::Mutex && random.below(8) == 0 {
            let reserve = Some(Reserve { tokens: TokenBlock::MAX_LEN, notify_wanted: random.below(2) == 0 });
            // Usually the holder; otherwise nearly nothing would be reserved.
            let holder = self.model.record.as_ref().and_then(|record| record.last_holder.as_ref());
            let holder =
                self.claims.iter().find(|(_, known)| holder.is_some_and(|held| held.claim == *known));
            let (client_index, claim) =
                holder.filter(|_| random.below(4) > 0).cloned().unwrap_or((client_index, claim));
            let lease_ms = 1000 * random.pick(&LEASES_S);
            return (
                client_index,
                Op::Extend(Extend {
                    claim,
                    lease_ms,
                    keep_record: random.below(2) == 0,
                    reserve,
                    fence: None,
                }),
            );
        }
        let op = match random.below(10) {
            0..4 => Op::Acquire(self.any_request(client_index, &claim, random)),
            4..5 => {
                let lease_ms = 1000 * random.pick(&LEASES_S);
                Op::Extend(Extend {
                    claim,
                    lease_ms,
                    keep_record: random.below(2) == 0,
                    reserve: None,
                    fence: None,
                })
            }
            5..9 => {
                let action = match random.below(8) {
                    0 | 1 => ReleaseAction::Free,
                    2 if self.lock.kind.is_plain_string() => {
                        ReleaseAction::Cooldown { for_ms: 1000 * random.pick(&LEASES_S) }
                    }
                    _ => ReleaseAction::Grant,
                };
                let other_holders =
                    self.claims.iter().filter(|(of, other)| *of == client_index && *other != claim);
                let other_holders: Vec<_> = other_holders.collect();
                let next = (random.below(3) == 0)
                    .then(|| self.any_request(client_index, &random.pick(&other_holders).1, random));
                Op::Release(Release { claim, action, next, history: 0 })
            }
            _ => Op::Inspect(Inspect { claim: (random.below(4) > 0).then_some(claim), details: false }),
        };
        (client_index, op)
    }

    fn any_request(&self, client_index: usize, claim: &Claim, random: &Random) -> Acquire {
        let lease = || Duration::from_secs(*random.pick(&LEASES_S));
        let client = &self.clients[client_index];
        let at = self.claims.iter().position(|(_, known)| known == claim);
        let mode = self.modes[at.unwrap_or(0)];
        let mut request = Acquire { mode, ..client.queued_request(claim, lease(), lease()) };
        if random.below(4) == 0 {
            request.queue = None;
        }
        request.expire_foreign_ms = (random.below(4) == 0).then(|| millis(lease()));
        request
    }

    fn same_reply(&mut self, expected: &Reply, found: &Reply) -> bool {
        match (expected, found) {
            (Reply::Acquire(a), Reply::Acquire(b)) => self.same_acquired(a, b),
            (Reply::Release(a), Reply::Release(b)) => {
                let next = match (&a.next, &b.next) {
                    (Some(Ok(a)), Some(Ok(b))) => self.same_acquired(a, b),
                    (a, b) => a == b,
                };
                next && (a.status, a.remaining_holds) == (b.status, b.remaining_holds)
                    && self.same_holder(a.holder.as_ref(), b.holder.as_ref())
            }
            (Reply::Extend(a), Reply::Extend(b)) => self.same_extended(a, b),
            (Reply::Inspect(a), Reply::Inspect(b)) => {
                let holder = self.same_holder(a.holder.as_ref(), b.holder.as_ref());
                let counts = (a.waiters, a.hold_status, a.limit) == (b.waiters, b.hold_status, b.limit);
                let mut sharers = a.shared_holders.iter().zip(&b.shared_holders);
                let sharers = a.shared_holders.len() == b.shared_holders.len()
                    && sharers.all(|(a, b)| self.same_holder(Some(a), Some(b)));
                holder && counts && sharers
            }
            (a, b) => a == b,
        }
    }

    /// The number of tokens depends on how far the clock has advanced since the previous block.
    fn same_extended(&mut self, a: &Extended, b: &Extended) -> bool {
        let (
            Extended::Reserved { mut block, others_wait },
            Extended::Reserved { block: mut b_block, others_wait: b_others_wait },
        ) = (*a, *b)
        else {
            return a == b;
        };
        let tokens: Vec<_> = std::iter::from_fn(|| block.pop_first()).collect();
        let b_tokens: Vec<_> = std::iter::from_fn(|| b_block.pop_first()).collect();
        let (Some(first), Some(b_first)) = (tokens.first(), b_tokens.first()) else { return false };
        let last = match (&tokens[..], &b_tokens[..]) {
            ([_, .., last], [_, .., b_last]) => Some((*last, *b_last)),
            _ => None,
        };
        (1..=TokenBlock::MAX_LEN as usize).contains(&b_tokens.len())
            && others_wait == b_others_wait
            && self.same_token(*first, *b_first)
            && last.is_none_or(|(last, b_last)| self.same_token(last, b_last))
    }

    fn same_acquired(&mut self, a: &Acquired, b: &Acquired) -> bool {
        match (a, b) {
            (
                Acquired::Granted { fence, remaining_ms, others_wait, owner_holds },
                Acquired::Granted {
                    fence: b_fence,
                    remaining_ms: b_remaining_ms,
                    others_wait: b_others_wait,
                    owner_holds: b_entered,
                },
            ) => {
                let same = same_time(*remaining_ms, *b_remaining_ms)
                    && (others_wait, owner_holds) == (b_others_wait, b_entered);
                same && self.same_token(*fence, *b_fence)
            }
            (
                Acquired::Taken { holder, position, predecessor, other_holders },
                Acquired::Taken {
                    holder: b_holder,
                    position: b_position,
                    predecessor: b_predecessor,
                    other_holders: b_others,
                },
            ) => {
                if !self.lock.kind.is_shared() {
                    return position == b_position && self.same_holder(holder.as_ref(), b_holder.as_ref());
                }
                // Holds that end in nearly the same millisecond may come in either order: which of them is described
                // does not matter here, and an inspection compares all.
                let first_ends = match (holder, b_holder) {
                    (Some(a), Some(b)) => same_time(a.remaining_ms.unwrap_or(0), b.remaining_ms.unwrap_or(0)),
                    (a, b) => a.is_none() && b.is_none(),
                };
                let watched = |first: Option<Predecessor>, others: &[SessionId]| {
                    let first = first.map(|predecessor| predecessor.session);
                    first.into_iter().chain(others.iter().copied()).collect::<BTreeSet<_>>()
                };
                let same_watched = watched(*predecessor, other_holders) == watched(*b_predecessor, b_others);
                first_ends && same_watched && position == b_position
            }
            (a, b) => a == b,
        }
    }

    fn same_holder(&mut self, a: Option<&Holder>, b: Option<&Holder>) -> bool {
        let (Some(a), Some(b)) = (a, b) else { return a.is_none() && b.is_none() };
        let tokens = match (a.fence, b.fence) {
            (Some(a), Some(b)) => self.same_token(a, b),
            (a, b) => a.is_none() && b.is_none(),
        };
        let remaining = match (a.remaining_ms, b.remaining_ms) {
            (Some(a), Some(b)) => same_time(a, b),
            (a, b) => a == b,
        };
        let client_index = (&a.label, &a.owner, a.count, a.in_cooldown, a.mode)
            == (&b.label, &b.owner, b.count, b.in_cooldown, b.mode);
        tokens && remaining && client_index && a.since_ms.is_some() == b.since_ms.is_some()
    }

    /// Tokens agree if they are in the same order.
    fn same_token(&mut self, model: FencingToken, store: FencingToken) -> bool {
        let known = *self.tokens.entry(model).or_insert(store);
        let before = self.tokens.range(..model).next_back().is_none_or(|(_, before)| *before < store);
        let after = self.tokens.range(model..).nth(1).is_none_or(|(_, after)| *after > store);
        known == store && before && after
    }
}

/// A mode of that kind.
fn any_mode(kind: Kind, random: &Random) -> LockMode {
    let one_to = |most| u32::try_from(random.below(most)).unwrap_or(0) + 1;
    match kind {
        Kind::Semaphore => LockMode::Permits { count: one_to(3), total: 3 },
        Kind::RwLock => {
            let modes = [LockMode::Read, LockMode::Upgradable, LockMode::Write, LockMode::Upgrade];
            *random.pick(&modes)
        }
        Kind::Latch if random.below(2) == 0 => LockMode::LatchWait { total: one_to(2) + 1 },
        Kind::Latch => LockMode::CountDown { count: one_to(2), total: one_to(2) + 1 },
        Kind::Barrier => LockMode::BarrierWait { total: one_to(3) },
        _ => LockMode::Exclusive,
    }
}

/// A value as another library writes it.
fn foreign(kind: Kind, value: &str) -> Content {
    match (kind, OwnValue::new(value)) {
        (Kind::Reentrant, Ok(owner)) => Content::ReentrantHolds(ReentrantHolds {
            owner,
            count: 1,
            fence: None,
            lease_ms: 0,
            holds: Vec::new(),
        }),
        _ => Content::Token([kind.token_prefix(), value].concat()),
    }
}

fn same_time(a_ms: u64, b_ms: u64) -> bool {
    a_ms.abs_diff(b_ms) <= SKEW_MS
}
