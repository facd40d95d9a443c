//! Observing an election's leader: the only loop that does.
//!
//! It only reads, so dropping its future leaves nothing behind. The observed state stays for the next call.

use super::Engine;
use crate::store::{Fault, Subscription};
use leasehold_core::machine::observe::{LeaderChange, LeaderObserver};
use leasehold_core::{Inspect, Lock, Moment, Op, Reply};
use leasehold_store::jitter;
use std::sync::Arc;
use std::time::Duration;

/// The shortest pause between a failed subscription and the next attempt.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// An observer of one lock.
#[derive(Debug)]
pub(crate) struct LeaderWatch {
    engine: Arc<Engine>,
    lock: Lock,
    observer: LeaderObserver,
    subscription: ChangeSubscription,
}

/// Whether it is subscribed to changes.
#[derive(Debug)]
enum ChangeSubscription {
    /// Not subscribed; the next attempt is due at this moment.
    DueAt(Moment),
    /// Subscribed.
    Subscribed(Subscription),
    /// This store publishes no changes.
    Unavailable,
}

impl LeaderWatch {
    pub(crate) fn new(engine: Arc<Engine>, lock: Lock) -> Self {
        Self {
            engine,
            lock,
            observer: LeaderObserver::new(),
            subscription: ChangeSubscription::DueAt(Moment::ZERO),
        }
    }

    /// Waits for a change. Fails if a read is not answered; the next call reads again after a pause.
    pub(crate) async fn next_change(&mut self) -> Result<LeaderChange, Fault> {
        loop {
            self.sleep().await;
            self.subscribe_if_due().await;
            let engine = &*self.engine;
            let op = Op::Inspect(Inspect { claim: None, details: false });
            let reply = engine.call(&self.lock, &op, engine.timings.call).await;
            let (now, random) = (engine.environment.now(), engine.environment.random());
            match reply {
                Ok(Reply::Inspect(seen)) => {
                    if let Some(change) = self.observer.handle_holder(seen.holder.as_ref(), now, random) {
                        return Ok(change);
                    }
                }
                Ok(other) => {
                    self.observer.handle_fault(now, random);
                    return Err(Fault::unexpected_reply(other));
                }
                Err(failed) => {
                    self.observer.handle_fault(now, random);
                    return Err(failed.fault);
                }
            }
        }
    }

    /// Sleeps until the next read is due.
    async fn sleep(&mut self) {
        let environment = &self.engine.environment;
        while self.observer.poll_at() > environment.now() {
            let until = environment.sleep_until(self.observer.poll_at());
            let ChangeSubscription::Subscribed(subscription) = &mut self.subscription else {
                return until.await;
            };
            tokio::select! {
                biased;
                () = subscription.notified() => self.observer.handle_notification(environment.now()),
                () = until => {}
            }
        }
    }

    /// Subscribes before the read that follows, which covers everything published earlier.
    async fn subscribe_if_due(&mut self) {
        let engine = &*self.engine;
        let ChangeSubscription::DueAt(at) = self.subscription else { return };
        if at > engine.environment.now() {
            return;
        }
        self.subscription = match engine.store.subscribe(&self.lock, engine.timings.call).await {
            Ok(Some(subscription)) => ChangeSubscription::Subscribed(subscription),
            Ok(None) => ChangeSubscription::Unavailable,
            Err(fault) => {
                tracing::debug!(lock = %self.lock, %fault, "cannot subscribe to leader changes; polling often");
                ChangeSubscription::DueAt(
                    engine.environment.now() + RETRY_INTERVAL + jitter(&*engine.environment, RETRY_INTERVAL),
                )
            }
        };
        self.observer.set_subscribed(matches!(self.subscription, ChangeSubscription::Subscribed(_)));
    }
}
