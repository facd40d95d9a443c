//! The call of a script, read back into the operation that it is.
//!
//! The formats are those that the heads of the scripts give.

use super::reply::Failure;
use super::script::{For, Script};
use leasehold_core::{
    Acquire, Claim, Enqueue, Evict, Extend, ForceRelease, Heartbeat, HoldId, Inspect, Kind, Label, Liveness,
    Lock, LockMode, LockName, ObservedHolder, Op, OwnValue, RaiseFence, Release, ReleaseAction, Reserve,
    Resize,
};
use std::str::FromStr;

/// A call, understood.
#[allow(clippy::large_enum_variant, reason = "nearly all calls are of the largest kind, and none is kept")]
pub(super) enum Call {
    /// Of an operation on a lock.
    OnLock(Box<OnLock>),
    /// Several extends, one for each lock.
    Extends(Vec<OnLock>),
    /// Of acquires of all of several Mutexes, or none: by their keys.
    AcquireAll(Vec<(String, Acquire)>),
    /// Of a beat, and the index of the sessions.
    Heartbeat(Heartbeat, String),
}

/// The call of an operation on a lock.
pub(super) struct OnLock {
    /// The lock's key.
    pub(super) key: String,
    pub(super) kind: Kind,
    pub(super) op: Op,
    /// The prefix of the mailboxes' channels; empty if the call publishes to none.
    pub(super) mailboxes: String,
    /// The channel of release notifications: for Redisson clients, observers of an Election, or waiters without a
    /// queue. Empty if the call publishes none.
    pub(super) released: String,
    /// The index of sessions; empty if the call reads none.
    pub(super) sessions: String,
}

/// The arguments that are left.
struct Rest<'a>(std::slice::Iter<'a, Vec<u8>>);

type Read<T> = Result<T, Failure>;

impl Call {
    /// Parses the arguments after the script's name.
    pub(super) fn read(script: Script, of: For, arguments: &[Vec<u8>]) -> Read<Self> {
        let mut rest = Rest(arguments.iter());
        let keys = (0..rest.number()?).map(|_| rest.text()).collect::<Read<Vec<_>>>()?;
        if script == Script::Heartbeat {
            let [_, index] = keys[..] else { return Err(malformed()) };
            return Ok(Self::Heartbeat(rest.beat()?, index.to_owned()));
        }
        if script == Script::Extend {
            let extends = keys.into_iter().map(|key| rest.extend(key)).collect::<Read<_>>()?;
            return if rest.is_empty() { Ok(Self::Extends(extends)) } else { Err(malformed()) };
        }
        if script == Script::AcquireAll {
            return rest.acquire_all(&keys).map(Self::AcquireAll);
        }
        let kind = match of {
            For::Kind(kind) => kind,
            For::Named => {
                let kind = Kind::parse(rest.last()?).filter(|kind| kind.is_shared());
                kind.ok_or_else(malformed)?
            }
        };
        OnLock::read(script, kind, &keys, rest).map(|call| Self::OnLock(Box::new(call)))
    }
}

impl OnLock {
    fn read(script: Script, kind: Kind, keys: &[&str], mut rest: Rest<'_>) -> Read<Self> {
        let mut released = String::new();
        let mut kind = kind;
        // Whether there are subscribers: Redisson clients, or observers of an Election.
        let is_heard = matches!(kind, Kind::Reentrant | Kind::Election);
        if is_heard && !matches!(script, Script::ExtendOne | Script::Inspect | Script::RaiseFence) {
            rest.last()?.clone_into(&mut released);
        }
        let key = (*keys.first().ok_or_else(malformed)?).to_owned();
        // Release keys follow the lock's; those of a session and the audit only where needed.
        let (details, with_session) = (keys.len() == 3, keys.len() == 4);
        let session = keys.get(2).filter(|_| with_session).and_then(|key| key.rsplit_once(':'));
        let sessions = session.map_or("", |(index, _)| index).to_owned();
        let mut mailboxes = String::new();
        let claim = match script {
            Script::Evict => None,
            _ => rest.claim()?,
        };
        let op = match script {
            Script::Inspect => Op::Inspect(Inspect { claim, details }),
            Script::Evict => {
                let dead = parsed(rest.text()?)?;
                rest.text()?;
                rest.text()?.clone_into(&mut mailboxes);
                Op::Evict(Evict { session: dead, actor: rest.label()? })
            }
            Script::Free => {
                rest.text()?.clone_into(&mut mailboxes);
                let actor = rest.label()?;
                let observed = match (rest.text()?, rest.text()?) {
                    ("hold", fence) => ObservedHolder::Hold(parsed(fence)?),
                    ("stranger", fingerprint) => ObservedHolder::Foreign(parsed(fingerprint)?),
                    _ => return Err(malformed()),
                };
                Op::ForceRelease(ForceRelease { observed, actor })
            }
            Script::ExtendOne => {
                let (claim, lease_ms) = (claim.ok_or_else(malformed)?, rest.number()?);
                let keep_record = !rest.text()?.is_empty();
                if kind == Kind::Mutex {
                    kind = kind_of_mark(rest.text()?)?;
                }
                let reserve = if rest.is_empty() { None } else { Some(rest.reserve()?) };
                Op::Extend(Extend { claim, lease_ms, keep_record, reserve })
            }
            Script::Acquire => {
                rest.text()?.clone_into(&mut mailboxes);
                let mut ask = rest.acquire(claim)?;
                if with_session {
                    ask.predecessor = Some(parsed(rest.text()?)?);
                }
                ask.mode = rest.mode(kind)?;
                Op::Acquire(ask)
            }
            Script::Resize => {
                rest.text()?.clone_into(&mut mailboxes);
                let observed = match rest.text()? {
                    "" => None,
                    observed => Some(parsed(observed)?),
                };
                Op::Resize(Resize { observed, limit: parsed(rest.text()?)? })
            }
            Script::RaiseFence => Op::RaiseFence(RaiseFence {
                claim: claim.ok_or_else(malformed)?,
                fence: parsed(rest.text()?)?,
            }),
            Script::Heartbeat | Script::Extend | Script::AcquireAll => return Err(malformed()),
            Script::Release => {
                rest.text()?.clone_into(&mut mailboxes);
                let action = match rest.text()? {
                    "grant" => ReleaseAction::Grant,
                    "free" => ReleaseAction::Free,
                    "tell" => {
                        rest.last()?.clone_into(&mut released);
                        ReleaseAction::FreeAndPublish
                    }
                    for_ms => ReleaseAction::Cooldown { for_ms: parsed(for_ms)? },
                };
                let next = if rest.is_empty() {
                    None
                } else {
                    let claim = rest.claim()?;
                    let mut next = rest.acquire(claim)?;
                    next.mode = rest.mode(kind)?;
                    Some(next)
                };
                Op::Release(Release { claim: claim.ok_or_else(malformed)?, action, next })
            }
        };
        if rest.is_empty() {
            Ok(Self { key, kind, op, mailboxes, released, sessions })
        } else {
            Err(malformed())
        }
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

    /// The argument behind all others.
    fn last(&mut self) -> Read<&'a str> {
        let bytes = self.0.next_back().ok_or_else(malformed)?;
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

    /// The arguments of an extend that reserves fencing tokens.
    fn reserve(&mut self) -> Read<Reserve> {
        let (tokens, tell) = (parsed(self.text()?)?, self.text()?);
        match tell {
            "" | "1" => Ok(Reserve { tokens, notify_wanted: tell == "1" }),
            _ => Err(malformed()),
        }
    }

    /// The arguments for one of several locks to extend.
    fn extend(&mut self, key: &str) -> Read<OnLock> {
        let token = self.text()?;
        let kind = if Kind::Election.matches_token(token) { Kind::Election } else { Kind::Mutex };
        let hold = token.strip_prefix(kind.token_prefix()).ok_or_else(malformed)?;
        let hold = HoldId::from_token(hold).map_err(|_| malformed())?;
        let extend =
            Extend { claim: Claim::new(hold), lease_ms: self.number()?, keep_record: false, reserve: None };
        let (mailboxes, released, sessions) = (String::new(), String::new(), String::new());
        let key = key.to_owned();
        Ok(OnLock { key, kind, op: Op::Extend(extend), mailboxes, released, sessions })
    }

    /// The arguments of an acquire after its claim.
    fn acquire(&mut self, claim: Option<Claim>) -> Read<Acquire> {
        let claim = claim.ok_or_else(malformed)?;
        let lease_ms = self.number()?;
        let label = self.label()?;
        let queue = match (self.text()?, self.text()?) {
            ("", "") => None,
            (nonce, kept_ms) => Some(Enqueue { nonce: parsed(nonce)?, ttl_ms: parsed(kept_ms)? }),
        };
        let adopt_ms = match self.text()? {
            "" => None,
            adopt_ms => Some(parsed(adopt_ms)?),
        };
        let liveness = self.life()?;
        Ok(Acquire {
            claim,
            lease_ms,
            label,
            queue,
            adopt_ms,
            liveness,
            predecessor: None,
            mode: LockMode::Exclusive,
        })
    }

    /// The lock mode, of a kind that has modes.
    fn mode(&mut self, kind: Kind) -> Read<LockMode> {
        if kind.is_shared() {
            LockMode::parse(self.text()?).ok_or_else(malformed)
        } else {
            Ok(LockMode::Exclusive)
        }
    }

    /// The arguments of an acquire of several locks, with two keys each.
    fn acquire_all(mut self, keys: &[&str]) -> Read<Vec<(String, Acquire)>> {
        let (label, liveness) = (self.label()?, self.life()?);
        let locks = keys.chunks(2).map(|keys| match keys {
            [lock, _record] => {
                let (claim, lease_ms) = (self.claim()?.ok_or_else(malformed)?, self.number()?);
                let label = label.clone();
                let ask = Acquire {
                    claim,
                    lease_ms,
                    label,
                    queue: None,
                    adopt_ms: None,
                    liveness,
                    predecessor: None,
                    mode: LockMode::Exclusive,
                };
                Ok(((*lock).to_owned(), ask))
            }
            _ => Err(malformed()),
        });
        let asks = locks.collect::<Read<_>>()?;
        if self.is_empty() { Ok(asks) } else { Err(malformed()) }
    }

    fn life(&mut self) -> Read<Liveness> {
        match self.text()? {
            life if life.starts_with('s') => Ok(Liveness::Session { alive_ms: parsed(&life[1..])? }),
            "l" => Ok(Liveness::Lease),
            _ => Err(malformed()),
        }
    }

    fn label(&mut self) -> Read<Label> {
        Label::new(self.text()?).map_err(|_| malformed())
    }

    /// The arguments of a heartbeat.
    fn beat(&mut self) -> Read<Heartbeat> {
        let (session, alive_ms) = (parsed(self.text()?)?, self.number()?);
        // Derived from the above.
        self.number()?;
        let begin = match (self.text()?, self.text()?) {
            ("", "") => None,
            ("1", about) => Some(about.to_owned()),
            _ => return Err(malformed()),
        };
        let held = (0..self.number()?).map(|_| self.lock()).collect::<Read<_>>()?;
        let mut left = Vec::new();
        while !self.is_empty() {
            left.push(self.lock()?);
        }
        Ok(Heartbeat { session, alive_ms, begin, acquired: held, released: left })
    }

    /// A lock, as a session's record calls it.
    fn lock(&mut self) -> Read<Lock> {
        let lock = self.text()?.strip_prefix("l:").and_then(|lock| {
            let (kind, name) = lock.split_once(':')?;
            Some(Lock { kind: Kind::parse(kind)?, name: LockName::new(name).ok()? })
        });
        lock.ok_or_else(malformed)
    }
}

/// The kind of a string lock, by the prefix of its token.
fn kind_of_mark(mark: &str) -> Read<Kind> {
    [Kind::Mutex, Kind::Election].into_iter().find(|kind| kind.token_prefix() == mark).ok_or_else(malformed)
}

fn parsed<T: FromStr>(text: &str) -> Read<T> {
    text.parse().map_err(|_| malformed())
}

fn malformed() -> Failure {
    Failure::new("ERR this is no call of that script")
}
