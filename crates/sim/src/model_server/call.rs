//! The call of a script, parsed into an operation.
//!
//! The heads of the scripts define the formats.

use super::reply::Failure;
use super::script::{KindSource, Script};
use leasehold_core::{
    Acquire, Claim, Enqueue, Evict, Extend, ForceRelease, Heartbeat, HoldId, Inspect, Kind, Label, Liveness,
    Lock, LockMode, LockName, ObservedHolder, Op, OwnValue, Proclaim, RaiseFence, Release, ReleaseAction,
    Reserve, Resize,
};
use std::str::FromStr;

/// A parsed call.
#[allow(clippy::large_enum_variant, reason = "nearly all calls are of the largest kind, and none is stored")]
pub(super) enum Call {
    /// An operation on a lock.
    Lock(Box<LockCall>),
    /// Several extends, one for each lock.
    Extends(Vec<LockCall>),
    /// Several inspections without details, one for each lock.
    Inspections(Vec<LockCall>),
    /// Several acquires and releases, each with a reply of its own.
    Batch(Vec<LockCall>),
    /// An acquire of all of several Mutexes, by their keys.
    AcquireAll(Vec<(String, Acquire)>),
    /// A heartbeat, and the index of the sessions.
    Heartbeat(Heartbeat, String),
    /// The sessions of an index.
    SessionList(String),
    /// The records of sessions, by their keys.
    SessionRead(Vec<String>),
    /// Trials of what scripts rely on, all of which the model passes.
    Trials,
}

/// The call of an operation on a lock.
pub(super) struct LockCall {
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

/// The remaining arguments.
struct Arguments<'a>(std::slice::Iter<'a, Vec<u8>>);

type CallResult<T> = Result<T, Failure>;

impl Call {
    /// Parses the arguments after the script's name.
    pub(super) fn parse(script: Script, kind: KindSource, arguments: &[Vec<u8>]) -> CallResult<Self> {
        let mut arguments = Arguments(arguments.iter());
        let keys = (0..arguments.number()?).map(|_| arguments.text()).collect::<CallResult<Vec<_>>>()?;
        if script == Script::Heartbeat {
            // The index comes second, if at all; the key of a record begins with it.
            let ([record] | [record, _]) = keys[..] else { return Err(malformed()) };
            let (index, _) = record.rsplit_once(':').ok_or_else(malformed)?;
            let heartbeat = Heartbeat { renew_listing: keys.len() == 2, ..arguments.heartbeat()? };
            return Ok(Self::Heartbeat(heartbeat, index.to_owned()));
        }
        if let (Script::SessionList, [index]) = (script, &keys[..]) {
            return Ok(Self::SessionList((*index).to_owned()));
        }
        if script == Script::Trials {
            return Ok(Self::Trials);
        }
        if script == Script::SessionRead {
            return Ok(Self::SessionRead(keys.into_iter().map(str::to_owned).collect()));
        }
        if script == Script::Extend {
            let extends = keys.into_iter().map(|key| arguments.extend(key)).collect::<CallResult<_>>()?;
            return if arguments.is_empty() { Ok(Self::Extends(extends)) } else { Err(malformed()) };
        }
        if script == Script::Batch {
            return arguments.batch(&keys).map(Self::Batch);
        }
        if script == Script::AcquireAll {
            return arguments.acquire_all(&keys).map(Self::AcquireAll);
        }
        let kind = match kind {
            KindSource::Script(kind) => kind,
            KindSource::LastArgument => {
                let kind = Kind::parse(arguments.last()?).filter(|kind| kind.is_shared());
                kind.ok_or_else(malformed)?
            }
        };
        if script == Script::Inspect && arguments.end_with("each") {
            return arguments.inspections(kind, &keys).map(Self::Inspections);
        }
        LockCall::parse(script, kind, &keys, arguments).map(|call| Self::Lock(Box::new(call)))
    }
}

/// The keys of a release without that of the history, which comes last.
fn without_history<'k, 'a>(keys: &'k [&'a str]) -> &'k [&'a str] {
    match keys {
        [keys @ .., history] if history.contains(":history:") => keys,
        keys => keys,
    }
}

/// What a release does with the lock.
fn release_action(text: &str) -> CallResult<ReleaseAction> {
    Ok(match text {
        "grant" => ReleaseAction::Grant,
        "free" => ReleaseAction::Free,
        "publish" => ReleaseAction::FreeAndPublish,
        _ => match text.strip_prefix("keep ") {
            Some(count) => ReleaseAction::KeepPermits { count: parsed(count)? },
            None => ReleaseAction::Cooldown { for_ms: parsed(text)? },
        },
    })
}

impl LockCall {
    fn parse(script: Script, kind: Kind, keys: &[&str], mut arguments: Arguments<'_>) -> CallResult<Self> {
        let mut released = String::new();
        let mut kind = kind;
        // Whether there are subscribers: Redisson clients, or observers of an Election.
        let has_subscribers = matches!(kind, Kind::Reentrant | Kind::Election);
        if has_subscribers && !matches!(script, Script::ExtendOne | Script::Inspect | Script::RaiseFence) {
            arguments.last()?.clone_into(&mut released);
        }
        let key = (*keys.first().ok_or_else(malformed)?).to_owned();
        let keys = if script == Script::Release { without_history(keys) } else { keys };
        // The record follows the lock's key, then the watermark, and the index of a shared lock; those of a session and
        // the audit only where needed.
        let details = script == Script::Inspect && keys.len() >= 3;
        let session = match keys.get(3..).unwrap_or_default() {
            _ if script == Script::Inspect => None,
            [index, session, _] if index.contains(":ends:") => session.rsplit_once(':'),
            [session, _] if !session.contains(":ends:") => session.rsplit_once(':'),
            _ => None,
        };
        let sessions = session.map_or("", |(index, _)| index).to_owned();
        let mut mailboxes = String::new();
        let claim = match script {
            Script::Evict => None,
            _ => arguments.claim()?,
        };
        let op = match script {
            Script::Inspect => Op::Inspect(Inspect { claim, details }),
            Script::Evict => {
                let session = parsed(arguments.text()?)?;
                arguments.text()?;
                arguments.text()?.clone_into(&mut mailboxes);
                Op::Evict(Evict { session, actor: arguments.label()? })
            }
            Script::ForceRelease => {
                arguments.text()?.clone_into(&mut mailboxes);
                let actor = arguments.label()?;
                let observed = match (arguments.text()?, arguments.text()?) {
                    ("hold", fence) => ObservedHolder::Hold(parsed(fence)?),
                    ("foreign", fingerprint) => ObservedHolder::Foreign(parsed(fingerprint)?),
                    _ => return Err(malformed()),
                };
                Op::ForceRelease(ForceRelease { observed, actor })
            }
            Script::ExtendOne => {
                let (extend, kind_of_token) = arguments.extend_one(claim, kind)?;
                kind = kind_of_token;
                Op::Extend(extend)
            }
            Script::Acquire => {
                arguments.text()?.clone_into(&mut mailboxes);
                let mut acquire = arguments.acquire(claim)?;
                if session.is_some() {
                    acquire.predecessor = Some(parsed(arguments.text()?)?);
                }
                acquire.mode = arguments.mode(kind)?;
                Op::Acquire(acquire)
            }
            Script::Resize => {
                arguments.text()?.clone_into(&mut mailboxes);
                let observed = match arguments.text()? {
                    "" => None,
                    observed => Some(parsed(observed)?),
                };
                let limit = parsed(arguments.text()?)?;
                Op::Resize(Resize { observed, limit, agreed: arguments.text()? == "1" })
            }
            Script::RaiseFence => Op::RaiseFence(arguments.raise_fence(claim)?),
            Script::Proclaim => Op::Proclaim(arguments.proclaim(claim)?),
            Script::Heartbeat
            | Script::SessionList
            | Script::SessionRead
            | Script::Trials
            | Script::Extend
            | Script::AcquireAll
            | Script::Batch => {
                return Err(malformed());
            }
            Script::Release => {
                arguments.text()?.clone_into(&mut mailboxes);
                let action = arguments.text()?;
                let (action, history) = match action.split_once(" history ") {
                    Some((action, history)) => (action, parsed(history)?),
                    None => (action, 0),
                };
                let action = release_action(action)?;
                if action == ReleaseAction::FreeAndPublish {
                    arguments.last()?.clone_into(&mut released);
                }
                let next = if arguments.is_empty() {
                    None
                } else {
                    let claim = arguments.claim()?;
                    let mut next = arguments.acquire(claim)?;
                    next.mode = arguments.mode(kind)?;
                    Some(next)
                };
                Op::Release(Release { claim: claim.ok_or_else(malformed)?, action, next, history })
            }
        };
        if arguments.is_empty() {
            Ok(Self { key, kind, op, mailboxes, released, sessions })
        } else {
            Err(malformed())
        }
    }
}

impl<'a> Arguments<'a> {
    fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    fn text(&mut self) -> CallResult<&'a str> {
        let bytes = self.0.next().ok_or_else(malformed)?;
        std::str::from_utf8(bytes).map_err(|_| malformed())
    }

    /// The last of the remaining arguments.
    fn last(&mut self) -> CallResult<&'a str> {
        let bytes = self.0.next_back().ok_or_else(malformed)?;
        std::str::from_utf8(bytes).map_err(|_| malformed())
    }

    fn number(&mut self) -> CallResult<u64> {
        parsed(self.text()?)
    }

    /// A hold and the user's own value; `None` if the hold is empty.
    fn claim(&mut self) -> CallResult<Option<Claim>> {
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

    /// The arguments of an extend of one hold, and the kind of its lock.
    fn extend_one(&mut self, claim: Option<Claim>, kind: Kind) -> CallResult<(Extend, Kind)> {
        let (claim, lease_ms) = (claim.ok_or_else(malformed)?, self.number()?);
        let keep_record = !self.text()?.is_empty();
        let fence = match self.text()? {
            "" => None,
            fence => Some(parsed(fence)?),
        };
        let kind = if kind == Kind::Mutex { kind_of_mark(self.text()?)? } else { kind };
        let reserve = if self.is_empty() { None } else { Some(self.reserve()?) };
        Ok((Extend { claim, lease_ms, keep_record, reserve, fence }, kind))
    }

    /// The arguments of an extend that reserves fencing tokens.
    fn reserve(&mut self) -> CallResult<Reserve> {
        let (tokens, notify) = (parsed(self.text()?)?, self.text()?);
        match notify {
            "" | "1" => Ok(Reserve { tokens, notify_wanted: notify == "1" }),
            _ => Err(malformed()),
        }
    }

    fn end_with(&self, word: &str) -> bool {
        self.0.clone().next_back().is_some_and(|last| last == word.as_bytes())
    }

    /// Inspections of several locks, with two keys each. No hold is named.
    fn inspections(&mut self, kind: Kind, keys: &[&str]) -> CallResult<Vec<LockCall>> {
        if self.claim()?.is_some()
            || self.text()? != "each"
            || !self.is_empty()
            || !keys.len().is_multiple_of(2)
        {
            return Err(malformed());
        }
        let call = |key: &&str| LockCall {
            key: (*key).to_owned(),
            kind,
            op: Op::Inspect(Inspect { claim: None, details: false }),
            mailboxes: String::new(),
            released: String::new(),
            sessions: String::new(),
        };
        Ok(keys.iter().step_by(2).map(call).collect())
    }

    /// The arguments of an extend of one of several locks.
    fn extend(&mut self, key: &str) -> CallResult<LockCall> {
        let token = self.text()?;
        let kind = if Kind::Election.matches_token(token) { Kind::Election } else { Kind::Mutex };
        let hold = token.strip_prefix(kind.token_prefix()).ok_or_else(malformed)?;
        let hold = HoldId::from_token(hold).map_err(|_| malformed())?;
        let extend = Extend {
            claim: Claim::new(hold),
            lease_ms: self.number()?,
            keep_record: false,
            reserve: None,
            fence: None,
        };
        let (mailboxes, released, sessions) = (String::new(), String::new(), String::new());
        let key = key.to_owned();
        Ok(LockCall { key, kind, op: Op::Extend(extend), mailboxes, released, sessions })
    }

    /// The arguments of acquires, and then of releases, with two keys each.
    fn batch(mut self, keys: &[&str]) -> CallResult<Vec<LockCall>> {
        let (mailboxes, acquires) = (self.text()?.to_owned(), self.number()?);
        let (_watermark, keys) = keys.split_first().ok_or_else(malformed)?;
        let locks = (0..).zip(keys.chunks(2)).map(|(at, keys)| {
            let [lock, _record] = keys else { return Err(malformed()) };
            let op = if at < acquires { self.batched_acquire() } else { self.batched_release() };
            Ok(LockCall {
                key: (*lock).to_owned(),
                kind: Kind::Mutex,
                op: op?,
                mailboxes: mailboxes.clone(),
                released: String::new(),
                sessions: String::new(),
            })
        });
        let calls = locks.collect::<CallResult<Vec<_>>>()?;
        if self.is_empty() { Ok(calls) } else { Err(malformed()) }
    }

    fn batched_acquire(&mut self) -> CallResult<Op> {
        let (claim, lease_ms) = (self.batched_claim()?, self.number()?);
        let (liveness, label) = self.text()?.split_once("\n\n").ok_or_else(malformed)?;
        let parts: Vec<_> = self.text()?.split('\n').collect();
        let [nonce, kept_ms, expire_foreign_ms] = parts[..] else { return Err(malformed()) };
        let queue = if nonce.is_empty() {
            None
        } else {
            Some(Enqueue { nonce: parsed(nonce)?, ttl_ms: parsed(kept_ms)? })
        };
        let expire_foreign_ms =
            if expire_foreign_ms.is_empty() { None } else { Some(parsed(expire_foreign_ms)?) };
        Ok(Op::Acquire(Acquire {
            claim,
            lease_ms,
            label: Label::new(label).map_err(|_| malformed())?,
            queue,
            expire_foreign_ms,
            liveness: liveness_of(liveness)?,
            predecessor: None,
            mode: LockMode::Exclusive,
        }))
    }

    fn batched_release(&mut self) -> CallResult<Op> {
        let claim = self.batched_claim()?;
        Ok(Op::Release(Release { claim, action: ReleaseAction::Grant, next: None, history: 0 }))
    }

    fn batched_claim(&mut self) -> CallResult<Claim> {
        HoldId::from_token(self.text()?).map(Claim::new).map_err(|_| malformed())
    }

    /// The arguments of an acquire after its claim.
    fn acquire(&mut self, claim: Option<Claim>) -> CallResult<Acquire> {
        let claim = claim.ok_or_else(malformed)?;
        let lease_ms = self.number()?;
        let label = self.label()?;
        let queue = match (self.text()?, self.text()?) {
            ("", "") => None,
            (nonce, kept_ms) => Some(Enqueue { nonce: parsed(nonce)?, ttl_ms: parsed(kept_ms)? }),
        };
        let expire_foreign_ms = match self.text()? {
            "" => None,
            expire_foreign_ms => Some(parsed(expire_foreign_ms)?),
        };
        let liveness = self.liveness()?;
        Ok(Acquire {
            claim,
            lease_ms,
            label,
            queue,
            expire_foreign_ms,
            liveness,
            predecessor: None,
            mode: LockMode::Exclusive,
        })
    }

    /// The lock mode, of a kind that has modes.
    fn mode(&mut self, kind: Kind) -> CallResult<LockMode> {
        if kind.is_shared() {
            LockMode::parse(self.text()?).ok_or_else(malformed)
        } else {
            Ok(LockMode::Exclusive)
        }
    }

    /// The arguments of an acquire of several locks, with two keys each.
    fn acquire_all(mut self, keys: &[&str]) -> CallResult<Vec<(String, Acquire)>> {
        let (label, liveness) = (self.label()?, self.liveness()?);
        let (_watermark, keys) = keys.split_last().ok_or_else(malformed)?;
        let locks = keys.chunks(2).map(|keys| match keys {
            [lock, _record] => {
                let (claim, lease_ms) = (self.claim()?.ok_or_else(malformed)?, self.number()?);
                let label = label.clone();
                let acquire = Acquire {
                    claim,
                    lease_ms,
                    label,
                    queue: None,
                    expire_foreign_ms: None,
                    liveness,
                    predecessor: None,
                    mode: LockMode::Exclusive,
                };
                Ok(((*lock).to_owned(), acquire))
            }
            _ => Err(malformed()),
        });
        let asks = locks.collect::<CallResult<_>>()?;
        if self.is_empty() { Ok(asks) } else { Err(malformed()) }
    }

    fn liveness(&mut self) -> CallResult<Liveness> {
        liveness_of(self.text()?)
    }

    fn raise_fence(&mut self, claim: Option<Claim>) -> CallResult<RaiseFence> {
        let claim = claim.ok_or_else(malformed)?;
        Ok(RaiseFence { claim, fence: parsed(self.text()?)?, exact: self.text()? == "1" })
    }

    fn proclaim(&mut self, claim: Option<Claim>) -> CallResult<Proclaim> {
        let claim = claim.ok_or_else(malformed)?;
        let fence = parsed(self.text()?)?;
        Ok(Proclaim { claim, fence, observed: self.label()?, value: self.label()? })
    }

    fn label(&mut self) -> CallResult<Label> {
        Label::new(self.text()?).map_err(|_| malformed())
    }

    /// The arguments of a heartbeat.
    fn heartbeat(&mut self) -> CallResult<Heartbeat> {
        let (session, alive_ms) = (parsed(self.text()?)?, self.number()?);
        // Derived from the above.
        self.number()?;
        let begin = match (self.text()?, self.text()?) {
            ("", "") => None,
            ("1", about) => Some(about.to_owned()),
            _ => return Err(malformed()),
        };
        let activity = match self.text()? {
            "" => None,
            text => Some(text.strip_prefix('=').ok_or_else(malformed)?.to_owned()),
        };
        let held = (0..self.number()?).map(|_| self.lock()).collect::<CallResult<_>>()?;
        let mut left = Vec::new();
        while !self.is_empty() {
            left.push(self.lock()?);
        }
        Ok(Heartbeat {
            session,
            alive_ms,
            begin,
            acquired: held,
            released: left,
            renew_listing: false,
            activity,
        })
    }

    /// A lock, as a session's record names it.
    fn lock(&mut self) -> CallResult<Lock> {
        let lock = self.text()?.strip_prefix("l:").and_then(|lock| {
            let (kind, name) = lock.split_once(':')?;
            Some(Lock { kind: Kind::parse(kind)?, name: LockName::new(name).ok()? })
        });
        lock.ok_or_else(malformed)
    }
}

fn liveness_of(text: &str) -> CallResult<Liveness> {
    match text {
        text if text.starts_with('s') => Ok(Liveness::Session { alive_ms: parsed(&text[1..])? }),
        "l" => Ok(Liveness::Lease),
        _ => Err(malformed()),
    }
}

/// The kind of a string lock, by the prefix of its token.
fn kind_of_mark(mark: &str) -> CallResult<Kind> {
    [Kind::Mutex, Kind::Election].into_iter().find(|kind| kind.token_prefix() == mark).ok_or_else(malformed)
}

fn parsed<T: FromStr>(text: &str) -> CallResult<T> {
    text.parse().map_err(|_| malformed())
}

fn malformed() -> Failure {
    Failure::new("ERR this is not a call of that script")
}
