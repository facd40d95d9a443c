//! Replacing the text that observers of an Election see for its leader.

use super::Guard;
use crate::error::ProclaimError;
use crate::store::Fault;
use leasehold_core::{Label, Op, Proclaim, Proclaimed, Reply};

/// How often the text is compared anew if it is another one than the caller has last seen. A leader is the only client that
/// changes it, so more than one repetition means that its own late requests are still being executed.
const MAX_COMPARISONS: u32 = 3;

impl Guard {
    /// Replaces the text `published`, as far as this client knows it, by `value`.
    pub(crate) async fn proclaim(&self, published: &mut Label, value: &Label) -> Result<(), ProclaimError> {
        let engine = &self.engine;
        for _ in 0..MAX_COMPARISONS {
            self.check_with_reason().await?;
            let proclaim = Proclaim {
                claim: self.hold.claim.clone(),
                fence: self.fencing_token(),
                observed: published.clone(),
                value: value.clone(),
            };
            let within = engine.timings.call.min(self.remaining());
            let op = Op::Proclaim(proclaim);
            let reply = engine.unless_shut(engine.call(&self.hold.lock, &op, within)).await;
            match reply {
                None => return Err(self.shut_down().await.into()),
                Some(Ok(Reply::Proclaim(Proclaimed::Done))) => {
                    published.clone_from(value);
                    return Ok(self.check_with_reason().await?);
                }
                // The reply to an earlier call was lost, and it was executed.
                Some(Ok(Reply::Proclaim(Proclaimed::Changed { value: present }))) => *published = present,
                Some(Ok(Reply::Proclaim(Proclaimed::NotHeld))) => {
                    return Err(self.report_gone().await.into());
                }
                Some(Ok(other)) => return Err(ProclaimError::Store(Fault::unexpected_reply(other))),
                Some(Err(failed)) => return Err(ProclaimError::Store(failed.fault)),
            }
        }
        let changed = Proclaimed::Changed { value: published.clone() };
        Err(ProclaimError::Store(Fault::unexpected_reply(Reply::Proclaim(changed))))
    }
}
