//! Observing an election's leader: the only loop that does.
//!
//! It only reads, so dropping its future leaves nothing behind. What it has learnt stays for the next call.

use super::Engine;
use crate::store::{Fault, Subscription};
use leasehold_core::machine::observe::{LeaderChange, LeaderObserver};
use leasehold_core::{Inspect, Lock, Moment, Op, Reply};
use leasehold_store::jitter;
use std::sync::Arc;
use std::time::Duration;

/// The shortest pause between a failed subscription and the next attempt.
const AGAIN: Duration = Duration::from_secs(5);

/// An observer of one lock.
#[derive(Debug)]
pub(crate) struct Watching {
    engine: Arc<Engine>,
    lock: Lock,
    onlooker: LeaderObserver,
    hearing: ReleaseSubscription,
}

/// Whether it is subscribed to changes.
#[derive(Debug)]
enum ReleaseSubscription {
    /// Not subscribed; the next attempt is due at this moment.
    From(Moment),
    /// Subscribed.
    Since(Subscription),
    /// This store publishes no changes.
    Never,
}

impl Watching {
    pub(crate) fn new(engine: Arc<Engine>, lock: Lock) -> Self {
        Self {
            engine,
            lock,
            onlooker: LeaderObserver::new(),
            hearing: ReleaseSubscription::From(Moment::ZERO),
        }
    }

    /// Waits for a change. Fails if a read is not answered; the next call reads again after a pause.
    pub(crate) async fn news(&mut self) -> Result<LeaderChange, Fault> {
        loop {
            self.rest().await;
            self.listen().await;
            let engine = &*self.engine;
            let op = Op::Inspect(Inspect { claim: None, details: false });
            let reply = engine.call(&self.lock, &op, engine.timings.call).await;
            let (now, random) = (engine.environment.now(), engine.environment.random());
            match reply {
                Ok(Reply::Inspect(seen)) => {
                    if let Some(news) = self.onlooker.handle_holder(seen.holder.as_ref(), now, random) {
                        return Ok(news);
                    }
                }
                Ok(odd) => {
                    self.onlooker.handle_fault(now, random);
                    return Err(Fault::unexpected_reply(odd));
                }
                Err(failed) => {
                    self.onlooker.handle_fault(now, random);
                    return Err(failed.fault);
                }
            }
        }
    }

    /// Sleeps until the next read is due.
    async fn rest(&mut self) {
        let environment = &self.engine.environment;
        while self.onlooker.poll_at() > environment.now() {
            let until = environment.sleep_until(self.onlooker.poll_at());
            let ReleaseSubscription::Since(listening) = &mut self.hearing else { return until.await };
            tokio::select! {
                biased;
                () = listening.notified() => self.onlooker.handle_hint(environment.now()),
                () = until => {}
            }
        }
    }

    /// Subscribes before the read that follows, which covers everything published earlier.
    async fn listen(&mut self) {
        let engine = &*self.engine;
        let ReleaseSubscription::From(at) = self.hearing else { return };
        if at > engine.environment.now() {
            return;
        }
        self.hearing = match engine.store.subscribe(&self.lock, engine.timings.call).await {
            Ok(Some(listening)) => ReleaseSubscription::Since(listening),
            Ok(None) => ReleaseSubscription::Never,
            Err(fault) => {
                tracing::debug!(lock = %self.lock, %fault, "cannot subscribe to leader changes; polling often");
                ReleaseSubscription::From(
                    engine.environment.now() + AGAIN + jitter(&*engine.environment, AGAIN),
                )
            }
        };
        self.onlooker.set_subscribed(matches!(self.hearing, ReleaseSubscription::Since(_)));
    }
}
