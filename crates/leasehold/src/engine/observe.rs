//! Watching who leads: the one loop that does.
//!
//! It holds nothing and asks for nothing but looks, so nothing is left behind wherever its future is dropped; what was
//! learnt so far stays with it for the next call.

use super::Engine;
use crate::store::{Fault, Listening};
use leasehold_core::observe::{News, Onlooker};
use leasehold_core::{Inspect, Lock, Moment, Op, Reply};
use leasehold_store::jitter;
use std::sync::Arc;
use std::time::Duration;

/// How long after a subscription that failed the next one is tried at the earliest.
const AGAIN: Duration = Duration::from_secs(5);

/// One who watches a lock.
#[derive(Debug)]
pub(crate) struct Watching {
    engine: Arc<Engine>,
    lock: Lock,
    onlooker: Onlooker,
    hearing: Hearing,
}

/// Whether it is told of changes.
#[derive(Debug)]
enum Hearing {
    /// Not yet, or not any more, and it is tried at this moment.
    From(Moment),
    /// It is.
    Since(Listening),
    /// Nobody says anything in this store.
    Never,
}

impl Watching {
    pub(crate) fn new(engine: Arc<Engine>, lock: Lock) -> Self {
        Self { engine, lock, onlooker: Onlooker::new(), hearing: Hearing::From(Moment::ZERO) }
    }

    /// Waits for news. Fails if a look is not answered; the next call looks again, a while later.
    pub(crate) async fn news(&mut self) -> Result<News, Fault> {
        loop {
            self.rest().await;
            self.listen().await;
            let engine = &*self.engine;
            let op = Op::Inspect(Inspect { claim: None, in_full: false });
            let reply = engine.call(&self.lock, &op, engine.timings.call).await;
            let (now, random) = (engine.world.now(), engine.world.random());
            match reply {
                Ok(Reply::Inspect(seen)) => {
                    if let Some(news) = self.onlooker.handle_seen(seen.holder.as_ref(), now, random) {
                        return Ok(news);
                    }
                }
                Ok(odd) => {
                    self.onlooker.handle_failure(now, random);
                    return Err(Fault::odd_reply(odd));
                }
                Err(failed) => {
                    self.onlooker.handle_failure(now, random);
                    return Err(failed.fault);
                }
            }
        }
    }

    /// Rests until it is time to look.
    async fn rest(&mut self) {
        let world = &self.engine.world;
        while self.onlooker.look_at() > world.now() {
            let until = world.sleep_until(self.onlooker.look_at());
            let Hearing::Since(listening) = &mut self.hearing else { return until.await };
            tokio::select! {
                biased;
                () = listening.heard() => self.onlooker.handle_hint(world.now()),
                () = until => {}
            }
        }
    }

    /// Has itself told of changes from now on, before the look that follows: what was said before is seen by it.
    async fn listen(&mut self) {
        let engine = &*self.engine;
        let Hearing::From(at) = self.hearing else { return };
        if at > engine.world.now() {
            return;
        }
        self.hearing = match engine.store.listen(&self.lock, engine.timings.call).await {
            Ok(Some(listening)) => Hearing::Since(listening),
            Ok(None) => Hearing::Never,
            Err(fault) => {
                tracing::debug!(lock = %self.lock, %fault, "not told who leads: looking often");
                Hearing::From(engine.world.now() + AGAIN + jitter(&*engine.world, AGAIN))
            }
        };
        self.onlooker.hears(matches!(self.hearing, Hearing::Since(_)));
    }
}
