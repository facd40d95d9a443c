//! Operations that are sent together on one connection (databases call it group commit).
//!
//! An operation that begins while no other is on its way, in its partition, is sent alone. The others wait until the
//! tasks that are ready have run, and then go in one call. Operations do not wait for company.
//!
//! 1. Each operation has its own reply, deadline and cancellation. One that is dropped before its call is sent is not
//!    sent.
//! 2. The server executes a call as a whole, while all others wait, so calls are limited: to some 55 kB, because names and
//!    labels are limited, too.
//! 3. Of many operations, two thirds are on their way at most, in calls of a third: then the server executes one call while
//!    the client handles the replies to another, and neither waits for the other. If replies take long, this would cost more
//!    than it saves, and all are sent.
//! 4. An operation goes alone after all if the server has certainly not executed it in the call, or if sending it again
//!    has the same effect.

use super::lent::{Carrier, CarrierRef, LentError};
use crate::error_map::{classify, goes_elsewhere, is_unknown_script};
use crate::script::Call;
use crate::script::batch::BatchedOp;
use futures_util::future::maybe_done;
use futures_util::poll;
use leasehold_core::LockKeys;
use leasehold_store::Executed;
use redis::{RedisError, Value};
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

/// How many operations one call has at most (2).
const MAX_OPS: usize = 32;
/// So many operations do not wait for the reply to others, and are not divided (3).
const MIN_OPS: usize = 8;
/// Round trip from which on no operation waits for the reply to others (3).
const LONG_ROUND_TRIP: Duration = Duration::from_millis(1);

/// The operations on one connection.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By partition.
    lanes: HashMap<u16, Lane>,
    /// The last round trip of a call.
    round_trip: Duration,
    /// Set when the connection is given up.
    is_closed: bool,
}

#[derive(Debug, Default)]
struct Lane {
    /// How many operations are on their way alone.
    alone: usize,
    /// How many are on their way with others.
    together: usize,
    /// What is sent next.
    pending: VecDeque<Pending>,
    /// Whether a task is about to send it.
    is_scheduled: bool,
}

#[derive(Debug)]
struct Pending {
    op: BatchedOp,
    deadline: Instant,
    reply: oneshot::Sender<BatchReply>,
}

impl Lane {
    fn is_idle(&self) -> bool {
        self.alone + self.together + self.pending.len() == 0 && !self.is_scheduled
    }

    /// How many operations the next call can carry, if `answered` have just got their replies.
    fn max_ops(&self, answered: usize) -> usize {
        (self.unanswered() + answered).div_ceil(3).clamp(MIN_OPS, MAX_OPS)
    }

    fn unanswered(&self) -> usize {
        self.together + self.pending.len()
    }

    /// Whether the next call may be sent (3).
    fn may_send(&self, answered: usize, round_trip: Duration) -> bool {
        let next = self.pending.len().min(self.max_ops(answered));
        let window = MIN_OPS.max((self.unanswered() + answered).div_ceil(3) * 2);
        next > 0 && (round_trip > LONG_ROUND_TRIP || self.together + next <= window)
    }

    /// What one call can carry: operations on different locks, within the limits (2). An engine sends one operation on a lock
    /// at a time, so a repeated name is rare, and ends the call.
    fn take(&mut self, answered: usize) -> Vec<Pending> {
        let mut seen = HashSet::with_capacity(self.pending.len().min(MAX_OPS));
        let names = self.pending.iter().take(self.max_ops(answered)).map(|one| one.op.keys().name());
        let fits = names.take_while(|name| seen.insert(*name)).count();
        let batch: Vec<_> = self.pending.drain(..fits).collect();
        self.together += batch.len();
        batch
    }
}

/// How an operation is sent.
pub(crate) enum Sending {
    /// By its caller, which gets its keys back, and keeps the other value, if any, until the reply arrives.
    Alone(LockKeys, Option<InFlight>),
    /// In a call with others.
    Together(PendingReply),
}

/// What becomes of an operation that was to be sent with others.
#[derive(Debug)]
pub(crate) enum BatchReply {
    /// The server's reply.
    Reply(Value),
    /// The caller should send it alone (4).
    GoAlone,
    /// The connection broke.
    Lost(RedisError),
    /// There is no reply, and its time is over.
    TooLate,
}

/// The reply to an operation that is sent with others.
pub(crate) struct PendingReply(oneshot::Receiver<BatchReply>);

impl PendingReply {
    /// Waits for the reply.
    ///
    /// Cancel safety: an operation whose call was not sent yet is not sent.
    pub(crate) async fn receive(self) -> BatchReply {
        // A task that sent a call has ended with its runtime.
        self.0.await.unwrap_or_else(|_| BatchReply::Lost(io::Error::from(io::ErrorKind::BrokenPipe).into()))
    }
}

/// What the operations of one partition share.
#[derive(Debug, Clone)]
pub(crate) struct SharedParts {
    pub(crate) watermark: String,
    pub(crate) mailboxes: String,
}

impl Batches {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides how an operation on these keys, in this partition, is sent. `op` and `shared` are called only if it goes with
    /// others.
    pub(crate) fn join(
        self: &Arc<Self>,
        slot: u16,
        conn: CarrierRef<'_>,
        deadline: Instant,
        keys: LockKeys,
        op: impl FnOnce(LockKeys) -> BatchedOp,
        shared: impl FnOnce(&LockKeys) -> SharedParts,
    ) -> Sending {
        let mut state = self.state();
        let State { lanes, round_trip, is_closed } = &mut *state;
        let lane = lanes.entry(slot).or_default();
        if lane.is_idle() || *is_closed {
            lane.alone += 1;
            return Sending::Alone(keys, Some(InFlight(LaneRef { batches: Arc::clone(self), slot })));
        }
        let (sender, receiver) = oneshot::channel();
        lane.pending.push_back(Pending { op: op(keys), deadline, reply: sender });
        if !lane.is_scheduled
            && lane.may_send(0, *round_trip)
            && let Some(last) = lane.pending.back()
        {
            let sender = BatchSender { conn: conn.to_carrier(), shared: Arc::new(shared(last.op.keys())) };
            lane.is_scheduled = true;
            drop(state);
            let scheduled = Scheduled(Some(LaneRef { batches: Arc::clone(self), slot }));
            tokio::spawn(scheduled.run(sender));
        }
        Sending::Together(PendingReply(receiver))
    }

    /// Lets all that waits go on another connection, because this one is given up.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        let pending: Vec<_> = state.lanes.values_mut().flat_map(|lane| lane.pending.drain(..)).collect();
        drop(state);
        Replies::GoAlone.answer(pending);
    }
}

/// The lane of one partition.
#[derive(Debug, Clone)]
struct LaneRef {
    batches: Arc<Batches>,
    slot: u16,
}

impl LaneRef {
    /// Changes the lane, and takes the next call if it may be sent now. `answered` operations have just got their replies.
    fn next(&self, answered: usize, change: impl FnOnce(&mut Lane)) -> Option<Batch> {
        let mut state = self.batches.state();
        let State { lanes, round_trip, .. } = &mut *state;
        let lane = lanes.get_mut(&self.slot)?;
        change(lane);
        let next = lane.may_send(answered, *round_trip).then(|| lane.take(answered));
        if lane.is_idle() {
            lanes.remove(&self.slot);
        }
        next.map(|ops| Batch { counted: ops.len(), lane: self.clone(), ops })
    }

    /// Changes the lane when a task ends that would have sent what is pending. If no other is left to do so, it goes alone.
    fn abandon(&self, change: impl FnOnce(&mut Lane)) {
        let mut state = self.batches.state();
        let Some(lane) = state.lanes.get_mut(&self.slot) else { return };
        change(lane);
        let is_stuck = lane.together == 0 && !lane.is_scheduled;
        let stuck: Vec<_> = if is_stuck { lane.pending.drain(..).collect() } else { Vec::new() };
        if lane.is_idle() {
            state.lanes.remove(&self.slot);
        }
        drop(state);
        Replies::GoAlone.answer(stuck);
    }
}

/// Counts an operation that is sent alone, until it is dropped.
pub(crate) struct InFlight(LaneRef);

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.0.batches.state();
        if let Some(lane) = state.lanes.get_mut(&self.0.slot) {
            lane.alone -= 1;
            if lane.is_idle() {
                state.lanes.remove(&self.0.slot);
            }
        }
    }
}

/// A task that is about to send what is pending. `None` once it has done so.
struct Scheduled(Option<LaneRef>);

impl Scheduled {
    async fn run(mut self, sender: BatchSender) {
        // The tasks that are ready run first.
        tokio::task::yield_now().await;
        let Some(lane) = self.0.take() else { return };
        let Some(first) = lane.next(0, |lane| lane.is_scheduled = false) else { return };
        while let Some(batch) = lane.next(0, |_| ()) {
            tokio::spawn(sender.clone().send(batch));
        }
        sender.send(first).await;
    }
}

impl Drop for Scheduled {
    fn drop(&mut self) {
        if let Some(lane) = &self.0 {
            lane.abandon(|lane| lane.is_scheduled = false);
        }
    }
}

/// Operations that are sent in one call. Counts them until it is dropped.
struct Batch {
    lane: LaneRef,
    ops: Vec<Pending>,
    counted: usize,
}

impl Batch {
    /// The operations, which have their replies, and what is sent next.
    fn finish(mut self) -> (Vec<Pending>, Option<Self>) {
        let counted = std::mem::take(&mut self.counted);
        let next = self.lane.next(counted, |lane| lane.together -= counted);
        (std::mem::take(&mut self.ops), next)
    }

    /// Leaves out the operations whose callers are gone (1). Returns whether several are left.
    fn is_wanted(&mut self) -> bool {
        self.ops.retain(|one| !one.reply.is_closed());
        self.ops.len() > 1
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // Nothing is left to count if it has finished.
        if self.counted > 0 {
            self.lane.abandon(|lane| lane.together -= self.counted);
        }
    }
}

/// Sends calls one after the other.
#[derive(Clone)]
struct BatchSender {
    conn: Carrier,
    shared: Arc<SharedParts>,
}

impl BatchSender {
    async fn send(self, batch: Batch) {
        let mut sending = Box::pin(maybe_done(self.clone().call(batch)));
        loop {
            sending.as_mut().await;
            let Some((batch, replies)) = sending.as_mut().take_output() else { return };
            // What is lent for each call may work at the next one.
            if matches!(replies, Replies::Lost(_)) && self.conn.multiplexed().is_some() {
                batch.lane.batches.close();
            }
            let (ops, next) = batch.finish();
            let Some(next) = next else { return replies.answer(ops) };
            // It is on its way before the tasks run that wait for these replies (3).
            sending = Box::pin(maybe_done(self.clone().call(next)));
            let _ = poll!(sending.as_mut());
            replies.answer(ops);
        }
    }

    async fn call(mut self, mut batch: Batch) -> (Batch, Replies) {
        // The second time, if the server does not know the script: then the script is loaded.
        for loads in [false, true] {
            if !batch.is_wanted() {
                return (batch, Replies::GoAlone);
            }
            let SharedParts { watermark, mailboxes } = &*self.shared;
            let call = Call::batch(watermark, mailboxes, &mut batch.ops, |one| &one.op);
            let begun = Instant::now();
            let deadline = batch.ops.iter().map(|one| one.deadline).max().unwrap_or(begun);
            let value = match timeout_at(deadline, send(&mut self.conn, &call, loads)).await {
                Ok(Ok(value)) => value,
                Ok(Err(LentError::NotSent(_))) => return (batch, Replies::GoAlone),
                // The application may have set a timeout on the connection.
                Ok(Err(LentError::NoReply(error))) if !error.is_timeout() => {
                    return (batch, Replies::Lost(error));
                }
                Ok(Err(_)) | Err(_) => return (batch, Replies::TooLate),
            };
            match value {
                Value::Array(values) if values.len() == batch.ops.len() => {
                    if !loads {
                        batch.lane.batches.state().round_trip = begun.elapsed();
                    }
                    return (batch, Replies::Each(values.into_iter()));
                }
                value if is_unknown_script(&value) && !loads => {}
                Value::ServerError(error)
                    if goes_elsewhere(&error) || classify(&error).executed == Executed::No =>
                {
                    return (batch, Replies::GoAlone);
                }
                value => return (batch, Replies::Same(value)),
            }
        }
        (batch, Replies::GoAlone)
    }
}

/// Sends a call, and returns its reply.
async fn send(conn: &mut Carrier, call: &Call, loads: bool) -> Result<Value, LentError> {
    if !loads {
        return conn.call(call.cmd()).await;
    }
    let loading = call.with_load();
    let values = conn.call_all(&loading).await?;
    Ok(values.into_iter().next_back().unwrap_or_default())
}

/// The replies to the operations of a call.
enum Replies {
    /// One for each; nil for an operation that should go alone.
    Each(std::vec::IntoIter<Value>),
    /// All should go alone (4).
    GoAlone,
    /// The same for all.
    Same(Value),
    /// The connection broke.
    Lost(RedisError),
    /// All deadlines are over.
    TooLate,
}

impl Replies {
    fn answer(mut self, ops: Vec<Pending>) {
        for one in ops {
            let reply = match &mut self {
                Self::Each(values) => match values.next() {
                    None | Some(Value::Nil) => BatchReply::GoAlone,
                    Some(value) => BatchReply::Reply(value),
                },
                Self::GoAlone => BatchReply::GoAlone,
                Self::Same(value) => BatchReply::Reply(value.clone()),
                Self::Lost(error) => BatchReply::Lost(error.clone()),
                Self::TooLate => BatchReply::TooLate,
            };
            // A caller that is gone needs no reply.
            let _ = one.reply.send(reply);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::batch::Batchable;
    use leasehold_core::{HoldId, KeySpace, Lock, SessionId};
    use oneshot::error::TryRecvError;

    type Receiver = oneshot::Receiver<BatchReply>;

    fn pending(name: &str) -> (Pending, Receiver) {
        let (reply, receiver) = oneshot::channel();
        let lock = Lock::mutex(name.parse().unwrap_or_else(|_| panic!("a bad name")));
        let keys = KeySpace::default().lock(&lock).unwrap_or_else(|_| panic!("a bad name"));
        let hold = HoldId::from_random(SessionId::from_random([7; 12]), [9; 16]);
        let op = BatchedOp::new(keys, Batchable::Release(hold));
        (Pending { op, deadline: Instant::now(), reply }, receiver)
    }

    fn add(lane: &mut Lane, names: impl IntoIterator<Item = String>) -> Vec<Receiver> {
        let each = names.into_iter().map(|name| {
            let (pending, receiver) = pending(&name);
            lane.pending.push_back(pending);
            receiver
        });
        each.collect()
    }

    fn many(count: usize) -> impl Iterator<Item = String> {
        (0..count).map(|n| format!("job/{n}"))
    }

    /// The sizes of the calls that are sent before any reply.
    fn sent(lane: &mut Lane, round_trip: Duration) -> Vec<usize> {
        let mut sizes = Vec::new();
        while lane.may_send(0, round_trip) {
            sizes.push(lane.take(0).len());
        }
        sizes
    }

    #[test]
    fn a_third_of_many_operations_waits_for_replies() {
        for (count, expected) in [
            (1, vec![1]),
            (8, vec![8]),
            (9, vec![8]),
            (64, vec![22, 22]),
            (96, vec![32, 32]),
            (300, vec![32, 32, 32, 32, 32, 32]),
        ] {
            let mut lane = Lane::default();
            let _receivers = add(&mut lane, many(count));
            assert_eq!(sent(&mut lane, Duration::ZERO), expected, "{count}");
            assert_eq!(lane.together, expected.iter().sum::<usize>());
            // When the first reply comes, more are sent.
            lane.together -= expected[0];
            assert_eq!(lane.may_send(expected[0], Duration::ZERO), !lane.pending.is_empty());
        }
    }

    #[test]
    fn no_operation_waits_for_replies_that_take_long() {
        let mut lane = Lane::default();
        let _receivers = add(&mut lane, many(70));
        assert_eq!(sent(&mut lane, LONG_ROUND_TRIP * 2), [24, 24, 22]);
    }

    #[test]
    fn a_call_has_each_lock_once() {
        let mut lane = Lane::default();
        let _receivers = add(&mut lane, ["a", "b", "a", "c"].map(str::to_owned));
        assert_eq!(sent(&mut lane, Duration::ZERO), [2, 2]);
    }

    #[test]
    fn what_is_pending_goes_alone_when_the_connection_is_given_up() {
        let batches = Arc::new(Batches::default());
        let mut receivers = add(batches.state().lanes.entry(0).or_default(), many(3));
        batches.close();
        for receiver in &mut receivers {
            assert!(matches!(receiver.try_recv(), Ok(BatchReply::GoAlone)));
        }
    }

    #[test]
    fn what_is_pending_goes_alone_when_no_task_is_left_to_send_it() {
        let batches = Arc::new(Batches::default());
        let of = LaneRef { batches: Arc::clone(&batches), slot: 0 };
        let mut receivers = {
            let mut state = batches.state();
            let lane = state.lanes.entry(0).or_default();
            lane.is_scheduled = true;
            add(lane, many(10))
        };
        let batch = of.next(0, |_| ()).unwrap_or_else(|| panic!("it may be sent"));
        drop(Scheduled(Some(of)));
        // The task with the call sends the rest.
        let (last, sent) = (receivers.split_off(8), receivers);
        let mut all: Vec<_> = last.into_iter().chain(sent).collect();
        assert!(all.iter_mut().all(|receiver| matches!(receiver.try_recv(), Err(TryRecvError::Empty))));
        drop(batch);
        assert!(
            all.iter_mut().take(2).all(|receiver| matches!(receiver.try_recv(), Ok(BatchReply::GoAlone)))
        );
        assert!(
            all.iter_mut().skip(2).all(|receiver| matches!(receiver.try_recv(), Err(TryRecvError::Closed)))
        );
        assert!(batches.state().lanes.is_empty());
    }
}
