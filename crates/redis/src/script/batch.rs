//! The call for several acquires and releases of Mutexes.

use super::{Call, LivenessText, SCRIPTS, Shown};
use leasehold_core::{Acquire, HoldId, Kind, Lock, LockKeys, Op, Release, ReleaseAction};
use std::fmt;

/// An operation that can share a call: on a Mutex, with none of the rare keys and arguments.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Batchable<'a> {
    Acquire(&'a Acquire),
    Release(HoldId),
}

impl<'a> Batchable<'a> {
    /// The operation, if it can share a call.
    pub(crate) fn of(lock: &Lock, op: &'a Op) -> Option<Self> {
        match op {
            _ if lock.kind != Kind::Mutex => None,
            Op::Acquire(request) => (request.claim.value.is_none() && request.predecessor.is_none())
                .then_some(Self::Acquire(request)),
            Op::Release(Release { claim, action: ReleaseAction::Grant, next: None, history: 0 }) => {
                claim.value.is_none().then_some(Self::Release(claim.hold))
            }
            _ => None,
        }
    }
}

/// Such an operation, and the keys of its lock.
#[derive(Debug)]
pub(crate) struct BatchedOp {
    keys: LockKeys,
    what: What,
}

#[derive(Debug)]
enum What {
    Acquire(Acquire),
    Release(HoldId),
}

impl BatchedOp {
    pub(crate) fn new(keys: LockKeys, op: Batchable<'_>) -> Self {
        let what = match op {
            Batchable::Acquire(request) => What::Acquire(request.clone()),
            Batchable::Release(hold) => What::Release(hold),
        };
        Self { keys, what }
    }

    pub(crate) fn keys(&self) -> &LockKeys {
        &self.keys
    }

    fn is_acquire(&self) -> bool {
        matches!(self.what, What::Acquire(_))
    }
}

impl Call {
    /// The call for several operations, on different locks of one partition with this watermark and this prefix of mailbox
    /// channels. Sorts the operations in the order of the replies.
    pub(crate) fn batch<T>(
        watermark: &str,
        mailboxes: &str,
        ops: &mut [T],
        op_of: impl Fn(&T) -> &BatchedOp,
    ) -> Self {
        ops.sort_by_key(|of| !op_of(of).is_acquire());
        let locks = ops.iter().flat_map(|of| {
            let keys = op_of(of).keys();
            [keys.name(), keys.record()]
        });
        let mut call = Self::of(&SCRIPTS.batch, [watermark].into_iter().chain(locks));
        call.may_acquire = true;
        let cmd = &mut call.cmd;
        cmd.arg(mailboxes).arg(ops.iter().filter(|of| op_of(of).is_acquire()).count());
        for of in &*ops {
            match &op_of(of).what {
                What::Acquire(request) => {
                    cmd.arg(&request.claim.hold.token_bytes()[..]).arg(request.lease_ms);
                    let label = request.label.as_str();
                    cmd.arg(Shown(format_args!("{}\n\n{label}", LivenessText(request.liveness))));
                    cmd.arg(Shown(WaitText(request)));
                }
                What::Release(hold) => {
                    cmd.arg(&hold.token_bytes()[..]);
                }
            }
        }
        call
    }
}

/// How an acquire waits, and the expiry of a foreign lock, as the script of a batch reads them.
struct WaitText<'a>(&'a Acquire);

impl fmt::Display for WaitText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(queue) = &self.0.queue {
            write!(f, "{}\n{}", queue.nonce, queue.ttl_ms)?;
        } else {
            f.write_str("\n")?;
        }
        f.write_str("\n")?;
        self.0.expire_foreign_ms.map_or(Ok(()), |expire_ms| write!(f, "{expire_ms}"))
    }
}
