//! The call of a script, read back into the operation that it is.
//!
//! The formats are those that the heads of the scripts give.

use super::reply::Failure;
use super::script::Script;
use leasehold_core::{
    Acquire, Claim, Enqueue, Extend, HoldId, Inspect, Label, Life, Op, OwnValue, Pass, Release,
};
use std::str::FromStr;

/// A call, understood.
pub(super) struct Call {
    /// The lock's key.
    pub(super) key: String,
    pub(super) op: Op,
    /// What the channels of all mailboxes begin with; empty for what tells nobody.
    pub(super) mailboxes: String,
}

/// The arguments that are left.
struct Rest<'a>(std::slice::Iter<'a, Vec<u8>>);

type Read<T> = Result<T, Failure>;

impl Call {
    /// Reads what stands behind `EVALSHA` and the script's name.
    pub(super) fn read(script: Script, arguments: &[Vec<u8>]) -> Read<Self> {
        let mut rest = Rest(arguments.iter());
        let keys = rest.number()?;
        let key = rest.text()?.to_owned();
        // The record's key, which goes with the lock's.
        for _ in 1..keys {
            rest.text()?;
        }
        let claim = rest.claim()?;
        let mut mailboxes = String::new();
        let op = match script {
            Script::Inspect => Op::Inspect(Inspect { claim, in_full: false }),
            Script::Extend => {
                let (claim, lease_ms) = (claim.ok_or_else(malformed)?, rest.number()?);
                let keep_record = !rest.text()?.is_empty();
                Op::Extend(Extend { claim, lease_ms, keep_record })
            }
            Script::Acquire => {
                rest.text()?.clone_into(&mut mailboxes);
                Op::Acquire(rest.acquire(claim)?)
            }
            Script::Release => {
                rest.text()?.clone_into(&mut mailboxes);
                let pass = match rest.text()? {
                    "grant" => Pass::Grant,
                    "free" => Pass::Free,
                    _ => return Err(malformed()),
                };
                let next = if rest.is_empty() {
                    None
                } else {
                    let claim = rest.claim()?;
                    Some(rest.acquire(claim)?)
                };
                Op::Release(Release { claim: claim.ok_or_else(malformed)?, pass, next })
            }
        };
        if rest.is_empty() { Ok(Self { key, op, mailboxes }) } else { Err(malformed()) }
    }
}

impl<'a> Rest<'a> {
    fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    fn text(&mut self) -> Read<&'a str> {
        let bytes = self.0.next().ok_or_else(malformed)?;
        std::str::from_utf8(bytes).map_err(|_| malformed())
    }

    fn number(&mut self) -> Read<u64> {
        parsed(self.text()?)
    }

    /// A hold and the user's own value; `None` where no hold stands there.
    fn claim(&mut self) -> Read<Option<Claim>> {
        let (hold, own) = (self.text()?, self.text()?);
        if hold.is_empty() {
            return Ok(None);
        }
        let hold = HoldId::from_token(hold).map_err(|_| malformed())?;
        let value = match own {
            "" => None,
            own => Some(OwnValue::new(own).map_err(|_| malformed())?),
        };
        Ok(Some(Claim { hold, value }))
    }

    /// What an acquire says behind its claim.
    fn acquire(&mut self, claim: Option<Claim>) -> Read<Acquire> {
        let claim = claim.ok_or_else(malformed)?;
        let lease_ms = self.number()?;
        let label = Label::new(self.text()?).map_err(|_| malformed())?;
        let queue = match (self.text()?, self.text()?) {
            ("", "") => None,
            (nonce, kept_ms) => Some(Enqueue { nonce: parsed(nonce)?, kept_ms: parsed(kept_ms)? }),
        };
        let adopt_ms = match self.text()? {
            "" => None,
            adopt_ms => Some(parsed(adopt_ms)?),
        };
        Ok(Acquire { claim, lease_ms, label, queue, adopt_ms, life: Life::Session, ahead: None })
    }
}

fn parsed<T: FromStr>(text: &str) -> Read<T> {
    text.parse().map_err(|_| malformed())
}

fn malformed() -> Failure {
    Failure::new("ERR this is no call of that script")
}
