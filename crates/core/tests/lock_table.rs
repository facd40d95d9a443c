//! The meaning of each kind of lock as a page to read: `mutex_table.txt` and so on, with steps and replies,
//! scenario by scenario.
//!
//! The test plays every step on the model and compares the whole page. `LEASEHOLD_BLESS=1` rewrites the
//! pages; review them before committing.
//!
//! An empty line ends a scenario. A step is `<ms> <client> <verb> … -> <reply>`: what happens at that
//! millisecond of the store's clock. A hold (`a1`) belongs to the client that first names it. Fencing tokens
//! are numbered in the order of their size (`#1`, `#2`); messages are written `grants to <client>: <nonce>
//! #<token>`, `notifies <client>: force-released #<token>` and `notifies <client>: wanted
//! #<token>`.
//!
//! An extend of a Mutex may reserve fencing tokens, `reserving <number>`, and subscribe to requests of other
//! sessions, `notified`. The reply shows the first and the last token of the block.
//!
//! Every client is alive until it `dies`, and again once it `is back`. `after <client>` names the
//! predecessor; the reply names the predecessor, and says whether it is alive if the request named it.
//!
//! Every client is the owner of a ReentrantMutex by its own name, or by the name that it acquires `as`. A
//! client of another library (`--`) that `enters` and `leaves` does so as Redisson does.
//!
//! A client of a Semaphore `takes <hold> 2 of 5`. A client of an RwLock, which is an owner likewise, `reads`,
//! `upgradably reads`, `upgrades` or `writes`. A client of a Latch `arrives <hold> 1 of 3` or `awaits <hold>
//! 3`; at a Barrier it `meets <hold> 3`. The brackets after a holder show its mode.

use leasehold_core::model::{Content, LockState, ReentrantHolds, SessionStatus, Value};
use leasehold_core::{
    Acquire, Acquired, AuditEntry, Claim, Ended, Enqueue, Evict, Evicted, Extend, Extended, FencingToken,
    Fingerprint, ForceRelease, ForceReleased, HoldId, HoldStatus, Holder, Inspect, Inspection, Kind, Label,
    Liveness, LockMode, Nonce, Notification, ObservedHolder, Op, OwnValue, OwnerHolds, Release,
    ReleaseAction, Released, Reply, Reserve, Resize, Resized, SessionId, TokenBlock,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::iter::Peekable;
use std::str::SplitWhitespace;

/// The store's time at millisecond 0.
const START_MS: u64 = 1_762_000_000_000;

#[test]
fn the_mutex_table_is_true() {
    check(Kind::Mutex, "mutex_table.txt", include_str!("mutex_table.txt"));
}

#[test]
fn the_reentrant_table_is_true() {
    check(Kind::Reentrant, "reentrant_table.txt", include_str!("reentrant_table.txt"));
}

#[test]
fn the_election_table_is_true() {
    check(Kind::Election, "election_table.txt", include_str!("election_table.txt"));
}

#[test]
fn the_semaphore_table_is_true() {
    check(Kind::Semaphore, "semaphore_table.txt", include_str!("semaphore_table.txt"));
}

#[test]
fn the_rwlock_table_is_true() {
    check(Kind::RwLock, "rwlock_table.txt", include_str!("rwlock_table.txt"));
}

#[test]
fn the_latch_table_is_true() {
    check(Kind::Latch, "latch_table.txt", include_str!("latch_table.txt"));
}

#[test]
fn the_barrier_table_is_true() {
    check(Kind::Barrier, "barrier_table.txt", include_str!("barrier_table.txt"));
}

fn check(kind: Kind, name: &str, page: &str) {
    let mut played = String::new();
    let mut scenario = Scenario::new(kind);
    for line in page.lines() {
        let Some((step, _)) = line.split_once("->") else {
            if line.is_empty() {
                scenario = Scenario::new(kind);
            }
            writeln!(played, "{line}").expect("a string takes everything");
            continue;
        };
        let reply = scenario.play(step);
        writeln!(played, "{step}-> {reply}").expect("a string takes everything");
    }
    if std::env::var_os("LEASEHOLD_BLESS").is_some() {
        let path = format!("{}/tests/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::write(path, &played).expect("the page can be written");
        return;
    }
    for (number, (written, found)) in page.lines().zip(played.lines()).enumerate() {
        assert_eq!(written, found, "line {} of {name}", number + 1);
    }
}

/// One lock, and its clients.
#[derive(Default)]
struct Scenario {
    state: LockState,
    people: Vec<String>,
    claims: BTreeMap<String, Claim>,
    nonces: Vec<String>,
    tokens: Vec<FencingToken>,
    dead: BTreeSet<SessionId>,
}

type Words<'a> = Peekable<SplitWhitespace<'a>>;

impl Scenario {
    fn new(kind: Kind) -> Self {
        Self { state: LockState::new(kind), ..Self::default() }
    }

    fn play(&mut self, step: &str) -> String {
        let mut words = step.split_whitespace().peekable();
        let at_ms = number(&mut words);
        let who = words.next().expect("a client").to_owned();
        let now_ms = START_MS + at_ms;
        if who == "--" {
            return self.act_as_foreign_client(now_ms, words);
        }
        let session = self.session(&who);
        if taken("dies", &mut words) {
            self.dead.insert(session);
            return "done".into();
        }
        if taken("is", &mut words) {
            assert!(taken("back", &mut words) && self.dead.remove(&session), "{step}");
            return "done".into();
        }
        let op = self.op(&who, &mut words);
        assert_eq!(words.next(), None, "{step}");
        let alive = |session| {
            if self.dead.contains(&session) { SessionStatus::Lapsed } else { SessionStatus::Alive(10_000) }
        };
        let (reply, notifications) = self.state.apply(now_ms * 1000, &op, &alive);
        // Several waiters may be admitted at once, and the client of this request may be the last of them.
        let mut tokens: Vec<_> = notifications.iter().map(Notification::fence).collect();
        if let Reply::Acquire(Acquired::Granted { fence, .. }) = reply {
            tokens.push(fence);
        }
        tokens.sort_unstable();
        for token in tokens {
            self.token(token);
        }
        let mut text = self.reply(&reply);
        for notification in notifications {
            text += &self.notification(notification);
        }
        text
    }

    /// An action of a client of another library.
    fn act_as_foreign_client(&mut self, now_ms: u64, mut words: Words<'_>) -> String {
        // An expired value is gone for it as well.
        self.state.is_empty_at(now_ms * 1000);
        self.state.value = match words.next() {
            Some("sets") => {
                let content = words.next().expect("a value");
                let kind = if taken("elected", &mut words) { Kind::Election } else { Kind::Mutex };
                let content = [kind.token_prefix(), content].concat();
                let expires_ms = after("for", &mut words).map(|ms| now_ms + ms);
                Some(Value { content: Content::Token(content), expires_ms })
            }
            Some("pushes") => Some(Value { content: Content::Other("list".into()), expires_ms: None }),
            Some("deletes") => None,
            Some("enters") => {
                let owner = words.next().expect("an owner").to_owned();
                return self.enter(now_ms, &owner, after("for", &mut words));
            }
            Some("leaves") => return self.leave(words.next().expect("an owner")),
            other => panic!("unknown action of a client of another library: {other:?}"),
        };
        "done".into()
    }

    /// How Redisson acquires.
    fn enter(&mut self, now_ms: u64, owner: &str, lease_ms: Option<u64>) -> String {
        let of_owner = OwnValue::new(owner).expect("a plain text");
        let none = ReentrantHolds { owner: of_owner, count: 0, fence: None, lease_ms: 0, holds: Vec::new() };
        let free = || Value { content: Content::ReentrantHolds(none), expires_ms: None };
        let value = self.state.value.get_or_insert_with(free);
        let Content::ReentrantHolds(entries) = &mut value.content else { panic!("not a hash: {value:?}") };
        if entries.owner.as_str() != owner {
            return "taken".into();
        }
        entries.count += 1;
        value.expires_ms = lease_ms.map(|lease_ms| now_ms + lease_ms);
        format!("has it {}", times(entries.count))
    }

    /// How Redisson releases, except that it sets the expiry anew where something is left.
    fn leave(&mut self, owner: &str) -> String {
        let entries = self.state.value.as_mut().and_then(|value| match &mut value.content {
            Content::ReentrantHolds(entries) if entries.owner.as_str() == owner => Some(entries),
            _ => None,
        });
        let Some(entries) = entries else { return "not held".into() };
        entries.count -= 1;
        let left = entries.count;
        self.state.value.take_if(|_| left == 0);
        format!("has it {}", times(left))
    }

    fn op(&mut self, who: &str, words: &mut Words<'_>) -> Op {
        match words.next() {
            Some("acquires") => Op::Acquire(self.request(who, words)),
            Some("upgradably") => {
                assert!(taken("reads", words), "only `reads` can follow `upgradably`");
                Op::Acquire(self.request_for("upgradably", who, words))
            }
            Some(verb @ ("takes" | "reads" | "upgrades" | "writes" | "arrives" | "awaits" | "meets")) => {
                Op::Acquire(self.request_for(verb, who, words))
            }
            Some("resizes") => {
                let observed = after("from", words).map(count);
                let limit = count(after("to", words).expect("to how many"));
                Op::Resize(Resize { observed, limit, agreed: taken("agreed", words) })
            }
            Some("extends") => {
                let claim = self.claim(who, words);
                let lease_ms = after("for", words).expect("how long");
                let reserve = after("reserving", words)
                    .map(|tokens| Reserve { tokens: count(tokens), notify_wanted: taken("notified", words) });
                Op::Extend(Extend { claim, lease_ms, keep_record: false, reserve, fence: None })
            }
            Some("releases") => {
                let claim = self.claim(who, words);
                let action = match after("cooldown", words) {
                    Some(for_ms) => ReleaseAction::Cooldown { for_ms },
                    None if taken("freely", words) => ReleaseAction::Free,
                    None => ReleaseAction::Grant,
                };
                let next = taken("then", words).then(|| self.request(who, words));
                Op::Release(Release { claim, action, next, history: 0 })
            }
            Some("inspects") => {
                let details = taken("all", words);
                let claim = words.peek().is_some().then(|| self.claim(who, words));
                Op::Inspect(Inspect { claim, details })
            }
            Some("evicts") => {
                let dead = words.next().expect("a client").to_owned();
                Op::Evict(Evict {
                    session: self.session(&dead),
                    actor: Label::new(who).expect("a plain text"),
                })
            }
            Some("force-releases") => {
                let observed = match words.next().and_then(|word| word.strip_prefix('#')) {
                    Some(number) => {
                        let at: usize = number.parse().expect("the number of a token");
                        ObservedHolder::Hold(self.tokens[at - 1])
                    }
                    None => ObservedHolder::Foreign(Fingerprint::of(
                        words.next().expect("the value that was seen"),
                    )),
                };
                Op::ForceRelease(ForceRelease { observed, actor: Label::new(who).expect("a plain text") })
            }
            other => panic!("no such verb: {other:?}"),
        }
    }

    fn request(&mut self, who: &str, words: &mut Words<'_>) -> Acquire {
        let claim = self.claim(who, words);
        self.request_by(claim, LockMode::Exclusive, who, words)
    }

    fn request_by(&mut self, mut claim: Claim, mode: LockMode, who: &str, words: &mut Words<'_>) -> Acquire {
        if taken("with", words) || taken("as", words) {
            let value = words.next().expect("a value, or an owner");
            claim.value = Some(OwnValue::new(value).expect("a plain text"));
            self.claims
                .values_mut()
                .filter(|known| known.hold == claim.hold)
                .for_each(|known| *known = claim.clone());
        }
        let lease_ms = after("for", words).expect("how long");
        let queue = taken("waiting", words).then(|| {
            let nonce = words.next().expect("a nonce").to_owned();
            let ttl_ms = after("for", words).expect("how long the entry is kept");
            Enqueue { nonce: Nonce::new(0, index(&mut self.nonces, &nonce) as u64), ttl_ms }
        });
        let expire_foreign_ms = after("expiring", words);
        let liveness =
            if taken("detached", words) { Liveness::Lease } else { Liveness::Session { alive_ms: 10_000 } };
        let predecessor = taken("after", words).then(|| words.next().expect("a client").to_owned());
        let predecessor = predecessor.map(|predecessor| self.session(&predecessor));
        let label = Label::new(who).expect("a plain text");
        Acquire { claim, lease_ms, label, queue, expire_foreign_ms, liveness, predecessor, mode }
    }

    /// An acquire of a shared lock.
    fn request_for(&mut self, verb: &str, who: &str, words: &mut Words<'_>) -> Acquire {
        let claim = self.claim(who, words);
        let mut numbers = || count(number(words));
        let mode = match verb {
            "takes" | "arrives" => {
                let count = numbers();
                assert!(taken("of", words), "of how many?");
                let total = self::count(number(words));
                if verb == "takes" {
                    LockMode::Permits { count, total }
                } else {
                    LockMode::CountDown { count, total }
                }
            }
            "awaits" => LockMode::LatchWait { total: numbers() },
            "meets" => LockMode::BarrierWait { total: numbers() },
            "reads" => LockMode::Read,
            "upgradably" => LockMode::Upgradable,
            "upgrades" => LockMode::Upgrade,
            _ => LockMode::Write,
        };
        self.request_by(claim, mode, who, words)
    }

    fn session(&mut self, who: &str) -> SessionId {
        let n = u8::try_from(index(&mut self.people, who)).expect("a few people");
        SessionId::from_random([n; 12])
    }

    fn claim(&mut self, who: &str, words: &mut Words<'_>) -> Claim {
        let name = words.next().expect("a hold");
        let session = self.session(who);
        let hold = u8::try_from(self.claims.len()).expect("a few holds");
        let value = match self.state.kind {
            kind if kind.has_owners() => OwnValue::new(who).ok(),
            _ => None,
        };
        let fresh = || Claim { hold: HoldId::from_random(session, [hold; 16]), value };
        self.claims.entry(name.to_owned()).or_insert_with(fresh).clone()
    }

    fn reply(&mut self, reply: &Reply) -> String {
        match reply {
            Reply::Acquire(acquired) => self.acquired(acquired),
            Reply::Extend(Extended::Extended) => "extended".into(),
            Reply::Extend(Extended::NotHeld) => "not held".into(),
            Reply::Extend(Extended::Reserved { block, others_wait }) => self.reserved(*block, *others_wait),
            Reply::Release(released) => self.released(released),
            Reply::Inspect(inspection) => self.inspection(inspection),
            Reply::Refused(refused) => format!("refused: {refused}"),
            Reply::Evict(Evicted::Alive) => "alive".into(),
            Reply::Evict(Evicted::Removed { fence: hold, was_queued }) => {
                let hold = hold.map(|fence| format!(", had {}", self.token(fence))).unwrap_or_default();
                format!("gone{hold}{}", if *was_queued { ", had a place" } else { "" })
            }
            Reply::ForceRelease(ForceReleased::Released) => "force-released".into(),
            Reply::ForceRelease(ForceReleased::Changed { holder }) => {
                format!("not as it was seen: held by {}", self.holder(holder.as_ref()))
            }
            Reply::Resize(Resized::Done) => "done".into(),
            Reply::Resize(Resized::Changed { limit }) => {
                let limit = limit.map_or("none are known".to_owned(), |limit| format!("there are {limit}"));
                format!("not as it was seen: {limit}")
            }
            other => panic!("no words for {other:?}"),
        }
    }

    fn acquired(&mut self, acquired: &Acquired) -> String {
        match acquired {
            Acquired::Granted { fence, remaining_ms, others_wait, owner_holds } => {
                let other_holders = if *others_wait { ", others wait" } else { "" };
                let owner_holds = owner_holds.map(|OwnerHolds { count, lease_ms }| {
                    format!(", has it {}, longest lease {lease_ms}", times(count))
                });
                let owner_holds = owner_holds.unwrap_or_default();
                format!("granted {}, {remaining_ms} left{owner_holds}{other_holders}", self.token(*fence))
            }
            Acquired::Taken { holder, position, predecessor, other_holders } => {
                let entry = position.map(|entry| format!(", place {entry}")).unwrap_or_default();
                let predecessor = predecessor.map(|predecessor| {
                    let known =
                        predecessor.alive_ms.map(|ms| format!(", alive for {ms}")).unwrap_or_default();
                    format!(", after {}{known}", self.person(predecessor.session))
                });
                let other_holders: Vec<_> =
                    other_holders.iter().map(|session| self.person(*session)).collect();
                let other_holders = if other_holders.is_empty() {
                    String::new()
                } else {
                    format!(" and {}", other_holders.join(", "))
                };
                let predecessor = predecessor.unwrap_or_default() + &other_holders;
                format!("taken by {}{entry}{predecessor}", self.holder(holder.as_ref()))
            }
            Acquired::AlreadyEnded(how) => format!("ended already: {}", hold_status(HoldStatus::Ended(*how))),
        }
    }

    fn reserved(&mut self, mut block: TokenBlock, others_wait: bool) -> String {
        let count = block.remaining();
        let tokens: Vec<_> = std::iter::from_fn(|| block.pop_first()).collect();
        let tokens = match tokens[..] {
            [only] => format!("{} is reserved", self.token(only)),
            [first, .., last] => {
                format!("{} to {} are reserved, {count}", self.token(first), self.token(last))
            }
            [] => panic!("a block has one at least"),
        };
        format!("extended, {tokens}{}", if others_wait { ", others wait" } else { "" })
    }

    fn released(&mut self, released: &Released) -> String {
        let mut text = match released.status {
            HoldStatus::Held => "released".into(),
            HoldStatus::Queued => "left the queue".into(),
            other => format!("nothing to release: {}", hold_status(other)),
        };
        if let Some(holder) = &released.holder {
            write!(text, " by {}", self.holder(Some(holder))).expect("a string takes everything");
        }
        if released.remaining_holds > 0 {
            write!(text, ", still has it {}", times(released.remaining_holds))
                .expect("a string takes everything");
        }
        match &released.next {
            Some(Ok(next)) => text + ", then " + &self.acquired(next),
            Some(Err(refused)) => format!("{text}, then refused: {refused}"),
            None => text,
        }
    }

    fn inspection(&mut self, inspection: &Inspection) -> String {
        let Inspection {
            holder,
            waiters,
            // Compared in the model's tests.
            queue: _,
            hold_status: asked,
            foreign_fingerprint: _,
            audit,
            history: _,
            shared_holders,
            limit,
            agreed,
            // Only of a quorum.
            votes: _,
            blocked_ms: _,
            // The model reads no text.
            skipped: _,
        } = inspection;
        let asked = asked.map(|asked| format!("; that hold: {}", hold_status(asked))).unwrap_or_default();
        let holders: Vec<_> =
            if shared_holders.is_empty() { holder.iter().collect() } else { shared_holders.iter().collect() };
        let holders: Vec<_> = holders.into_iter().map(|holder| self.holder(Some(holder))).collect();
        let held = (!holders.is_empty()).then(|| format!("held by {}", holders.join("; ")));
        let waiters = format!(
            "{waiters} waiting{}",
            limit.map(|limit| format!(", {limit} in all")).unwrap_or_default()
        );
        let waiters = match agreed {
            None => waiters,
            Some(0) => format!("{waiters}, not asked for yet"),
            Some(agreed) => format!("{waiters}, {agreed} asked for"),
        };
        let audit: Vec<_> = audit.iter().map(|entry| self.entry(entry)).collect();
        let audit = if audit.is_empty() { String::new() } else { format!("; {}", audit.join(", ")) };
        format!("{}, {waiters}{asked}{audit}", held.unwrap_or_else(|| "free".into()))
    }

    fn entry(&mut self, entry: &AuditEntry) -> String {
        let whose = entry.holder.as_ref().map_or("a foreign client".to_owned(), ToString::to_string);
        let fence = entry.fence.map(|fence| format!(" {}", self.token(fence))).unwrap_or_default();
        let how = match entry.ended {
            Ended::Evicted => "evicted",
            Ended::ForceReleased => "force-released",
            other => panic!("not taken from its holder: {other:?}"),
        };
        format!("at {} {} {how} {whose}{fence}", entry.at_ms - START_MS, entry.actor)
    }

    fn person(&self, session: SessionId) -> &str {
        let of =
            |person: &usize| u8::try_from(*person).map(|n| SessionId::from_random([n; 12])) == Ok(session);
        &self.people[(0..self.people.len()).find(of).expect("a known client")]
    }

    fn holder(&mut self, holder: Option<&Holder>) -> String {
        let Some(holder) = holder else { return "none".into() };
        let who = match (&holder.label, holder.fence) {
            (Some(label), Some(fence)) => format!("{label} {}", self.token(fence)),
            (None, None) => "a foreign client".into(),
            other => panic!("a label goes with a token: {other:?}"),
        };
        let label = holder.label.as_ref().map(ToString::to_string);
        let owner =
            holder.owner.as_ref().map(OwnValue::as_str).filter(|owner| Some(*owner) != label.as_deref());
        let owner = owner.map(|owner| format!(" as {owner}")).unwrap_or_default();
        let count = if holder.count == 1 { String::new() } else { format!(" {}", times(holder.count)) };
        let cooldown = if holder.in_cooldown { ", in cooldown" } else { "" };
        let part = part(holder.mode).map(|part| format!(" ({part})")).unwrap_or_default();
        let who = who + &owner + &count + &part + cooldown;
        match holder.remaining_ms {
            Some(remaining_ms) => format!("{who}, {remaining_ms} left"),
            None => format!("{who}, for ever"),
        }
    }

    fn notification(&mut self, notification: Notification) -> String {
        let token = self.token(notification.fence());
        let person = self.person(notification.to());
        let nonce = match notification {
            Notification::Grant { nonce, .. } => nonce,
            Notification::ForceReleased { .. } => {
                return format!("; notifies {person}: force-released {token}");
            }
            Notification::Wanted { .. } => return format!("; notifies {person}: wanted {token}"),
            other => panic!("no words for {other:?}"),
        };
        let known = |n: &usize| Nonce::new(0, *n as u64) == nonce;
        let nonce = (0..self.nonces.len()).find(known).expect("a nonce that was sent");
        format!("; grants to {person}: {} {token}", self.nonces[nonce])
    }

    /// The number of a token. Tokens first appear in the order of their size; otherwise the page would be
    /// wrong.
    fn token(&mut self, token: FencingToken) -> String {
        if !self.tokens.contains(&token) {
            self.tokens.push(token);
        }
        assert!(self.tokens.is_sorted(), "tokens grow");
        let at = self.tokens.iter().position(|known| *known == token).map_or(0, |at| at + 1);
        format!("#{at}")
    }
}

fn hold_status(hold_status: HoldStatus) -> &'static str {
    match hold_status {
        HoldStatus::Held => "held",
        HoldStatus::Queued => "queued",
        HoldStatus::Ended(Ended::Released) => "released before",
        HoldStatus::Ended(Ended::Evicted) => "evicted",
        HoldStatus::Ended(Ended::ForceReleased) => "force-released",
        HoldStatus::Ended(other) => panic!("no words for {other:?}"),
        HoldStatus::Vanished => "vanished",
        HoldStatus::Superseded => "superseded",
        HoldStatus::Forgotten => "forgotten",
    }
}

fn part(mode: LockMode) -> Option<String> {
    Some(match mode {
        LockMode::Exclusive => return None,
        LockMode::Permits { count, total } => format!("{count} of {total}"),
        LockMode::CountDown { count, total } => format!("arrived, {count} of {total}"),
        LockMode::LatchWait { total } => format!("awaits {total}"),
        LockMode::BarrierWait { total } => format!("met, {total}"),
        LockMode::Read => "reads".to_owned(),
        LockMode::Upgradable => "upgradably reads".to_owned(),
        LockMode::Upgrade => "upgraded".to_owned(),
        LockMode::Write => "writes".to_owned(),
        other => panic!("no words for {other:?}"),
    })
}

fn times(count: u64) -> String {
    match count {
        0 => "no more".into(),
        1 => "once".into(),
        _ => format!("{count} times"),
    }
}

fn index(of: &mut Vec<String>, name: &str) -> usize {
    of.iter().position(|known| known == name).unwrap_or_else(|| {
        of.push(name.to_owned());
        of.len() - 1
    })
}

fn taken(word: &str, words: &mut Words<'_>) -> bool {
    words.next_if(|next| *next == word).is_some()
}

fn after(word: &str, words: &mut Words<'_>) -> Option<u64> {
    taken(word, words).then(|| number(words))
}

fn count(number: u64) -> u32 {
    u32::try_from(number).expect("a small number")
}

fn number(words: &mut Words<'_>) -> u64 {
    let word = words.next().expect("a number");
    word.parse().unwrap_or_else(|_| panic!("not a number: {word}"))
}
