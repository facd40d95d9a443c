//! The random operations of a sequence, and the record of the cases that occurred.

use crate::fixture::WITHIN;
use crate::sequence::Sequence;
use leasehold_core::model::LockState;
use leasehold_core::{
    Acquired, Ended, Evicted, Extend, Extended, ForceReleased, HeartbeatReply, HoldStatus, LockMode,
    Proclaimed, Refused, Release, ReleaseAction, Released, Resized, TokenBlock,
};
use leasehold_store::{Notification, Op, Outcome, Reply, SessionOp, SessionReply, Store};
use leasehold_testkit::conformance::{ForeignWrite, WorkloadStep};

/// Random operations.
impl Sequence<'_> {
    pub(crate) fn random_step(&mut self) {
        let by_us = self.workload.time_us(&self.state, &self.sessions, self.fixture.now_us);
        self.step_us(by_us);
        match self.workload.next_step(&self.state) {
            WorkloadStep::Sent(op) => drop(self.check(&op)),
            WorkloadStep::SentTwice(op) => {
                self.check(&op);
                self.check(&op);
            }
            WorkloadStep::SentSession(op) => drop(self.execute_session(&op)),
            WorkloadStep::ForeignWrite(write) => self.write_as_foreigner(write),
        }
    }

    pub(crate) fn write_as_foreigner(&mut self, write: ForeignWrite) {
        // The server expires a key when it is read, and the clock may move back after that.
        self.dump();
        self.note(&format!("foreign write {write:?}"));
        for command in write.commands(&self.keys, &self.state) {
            self.raw(&command);
        }
        self.has_index &= write != ForeignWrite::RemovesExpiry;
        let before = self.state.value.clone();
        write.apply(&mut self.state, self.fixture.now_us);
        let what = match write {
            ForeignWrite::RedissonAcquires(..) if self.state.value != before => "a foreign client entered",
            ForeignWrite::RedissonReleases(_) if self.state.value != before => "a foreign client left",
            ForeignWrite::SetsOtherKind(_) => "another string",
            _ => return,
        };
        *self.fixture.seen.entry(what).or_default() += 1;
    }

    /// Replaces the record by an unreadable one: every operation that needs it fails with that error, and changes
    /// nothing.
    pub(crate) fn spoil_record(&mut self) {
        let record = self.keys.record().to_owned();
        let spoilt = *self.workload.random().pick(&["list", "string", "2"]);
        self.raw(&["DEL", &record]);
        match spoilt {
            "list" => self.raw(&["LPUSH", &record, "x"]),
            "string" => self.raw(&["SET", &record, "x"]),
            format => self.raw(&["HSET", &record, "format", format]),
        };
        let before = self.dump();
        for _ in 0..2 {
            let op = self.workload.op(&self.state);
            // The hold is compared first; without a hold the record is not read.
            if matches!(op, Op::Extend(_) | Op::RaiseFence(_) | Op::Proclaim(_)) {
                continue;
            }
            self.note(&format!("{op:?}, with a damaged record"));
            let outcome = self.fixture.runtime.block_on(self.fixture.store.execute(&self.lock, &op, WITHIN));
            let Outcome::Done(Reply::Refused(Refused::Format { found })) = outcome else {
                panic!("{outcome:?}\n{}", self.trace)
            };
            assert_eq!(found, spoilt, "{}", self.trace);
            assert_eq!(self.dump(), before, "{}", self.trace);
            assert_eq!(self.take_messages(), []);
        }
    }

    pub(crate) fn count(&mut self, reply: &Reply, notifications: &[Notification]) {
        let mut seen = |what| *self.fixture.seen.entry(what).or_default() += 1;
        for notification in notifications {
            seen(match notification {
                Notification::ForceReleased { .. } => "warned",
                Notification::Wanted { .. } => "notified: waiter",
                _ => "woken",
            });
        }
        if let Reply::Acquire(Acquired::Taken { predecessor: Some(ahead), .. }) = reply {
            seen(if ahead.alive_ms.is_some() { "predecessor and its liveness" } else { "ahead" });
        }
        match reply {
            Reply::Refused(Refused::WrongKind { found }) if found == "string" => seen("other kind"),
            Reply::Acquire(Acquired::Taken { holder: Some(holder), .. })
                if holder.is_foreign() && holder.remaining_ms == Some(2_000) =>
            {
                seen("adopted");
            }
            Reply::Acquire(Acquired::Granted { .. }) => seen("granted"),
            Reply::Acquire(Acquired::Taken { .. }) => seen("taken"),
            Reply::Acquire(Acquired::AlreadyEnded(_)) => seen("already ended"),
            Reply::Proclaim(Proclaimed::Done) => seen("proclaimed"),
            Reply::Proclaim(Proclaimed::Changed { .. }) => seen("proclaims another value"),
            Reply::Proclaim(Proclaimed::NotHeld) => seen("does not lead"),
            Reply::Extend(Extended::Extended) => seen("extended"),
            Reply::Extend(Extended::NotHeld) => seen("not held"),
            Reply::Extend(Extended::Reserved { block, others_wait }) => {
                seen(match block.remaining() {
                    TokenBlock::MAX_LEN => "a whole block",
                    1 => "one token reserved",
                    _ => "some tokens reserved",
                });
                if *others_wait {
                    seen("reserved while others wait");
                }
            }
            Reply::Release(released) => {
                seen(match released.status {
                    HoldStatus::Held => "held",
                    HoldStatus::Queued => "queued",
                    HoldStatus::Ended(Ended::Evicted) => "found evicted",
                    HoldStatus::Ended(Ended::ForceReleased) => "found force released",
                    HoldStatus::Ended(_) => "released",
                    HoldStatus::Vanished => "vanished",
                    HoldStatus::Superseded => "superseded",
                    HoldStatus::Forgotten => "forgotten",
                });
                match &released.next {
                    Some(Ok(Acquired::Granted { .. })) => seen("next granted"),
                    Some(Ok(Acquired::Taken { .. })) => seen("next taken"),
                    _ => {}
                }
            }
            Reply::Evict(Evicted::Alive) => seen("not evicted"),
            Reply::Evict(Evicted::Removed { fence: None, was_queued: false }) => seen("nothing to evict"),
            Reply::Evict(Evicted::Removed { fence, was_queued }) => {
                if fence.is_some() {
                    seen("evicted a hold");
                }
                if *was_queued {
                    seen("evicted a queue entry");
                }
            }
            Reply::ForceRelease(ForceReleased::Released) => seen("force released"),
            Reply::ForceRelease(ForceReleased::Changed { .. }) => seen("not force released"),
            Reply::Inspect(found) => {
                if found.foreign_fingerprint.is_some() {
                    seen("foreign fingerprint");
                }
                if !found.audit.is_empty() {
                    seen("audit");
                }
                if !found.history.is_empty() {
                    seen("history");
                }
            }
            Reply::Refused(_) => seen("wrong kind"),
            _ => {}
        }
    }

    /// Counts reservations of tokens that are not in the reply.
    pub(crate) fn count_reserved(&mut self, before: &LockState, op: &Op, reply: &Reply) {
        let known = |state: &LockState| {
            state.record.as_ref().and_then(|record| Some((record.last_fence?, record.reserved?)))
        };
        let what = match (op, reply) {
            (Op::Extend(Extend { reserve: Some(_), .. }), Reply::Extend(Extended::Extended)) => {
                "nothing reserved"
            }
            _ => match (known(before), known(&self.state)) {
                // A holder that was granted the lock would also have received a token of the block.
                (Some((old, reserved)), Some((new, _)))
                    if old != new
                        && old < reserved.last_fence
                        && reserved.last_fence.as_u64() >= self.fixture.now_us =>
                {
                    "given beyond a block"
                }
                _ => return,
            },
        };
        *self.fixture.seen.entry(what).or_default() += 1;
    }

    /// Counts cooldowns.
    pub(crate) fn count_cooldowns(&mut self, reply: &Reply) {
        let stands = self.state.value.as_ref().and_then(|value| value.content.token());
        let in_cooldown = stands.is_some_and(|token| token.contains("cooldown\n"));
        let what = match reply {
            Reply::Release(Released { status: HoldStatus::Held, .. }) if in_cooldown => "left in cooldown",
            Reply::Acquire(Acquired::Taken { holder: Some(holder), .. }) if holder.in_cooldown => {
                "found in cooldown"
            }
            _ => return,
        };
        *self.fixture.seen.entry(what).or_default() += 1;
    }

    /// Counts cases that only a ReentrantMutex has.
    pub(crate) fn count_entries(&mut self, before: &LockState, op: &Op, reply: &Reply) {
        let now_ms = self.fixture.now_us / 1000;
        let entries = |state: &LockState| state.value.as_ref()?.content.reentrant_holds().cloned();
        let (before, after) = (entries(before), entries(&self.state));
        let held = before.as_ref().map_or(0, |entries| entries.holds.len());
        let mut seen = |what| *self.fixture.seen.entry(what).or_default() += 1;
        if let Some(entries) = &before {
            let over = entries.holds.iter().filter(|entry| entry.until_ms < now_ms).count();
            if over > 0 && before == after {
                seen("entries that are over");
            } else if over > 0 {
                seen("dropped entries that are over");
            }
            if entries.count < held as u64 {
                seen("fewer than ours");
            }
        }
        match (op, reply) {
            (Op::Acquire(ask), Reply::Acquire(Acquired::Granted { owner_holds: Some(entered), .. })) => {
                if entered.count > 1 && before != after {
                    seen(if held > 0 { "entered again" } else { "entered after a foreign client" });
                }
                let others = before.iter().flat_map(|entries| &entries.holds);
                if others.into_iter().any(|entry| entry.hold.session() != ask.claim.hold.session()) {
                    seen("a fork's hold");
                }
            }
            (Op::Extend(_), Reply::Extend(Extended::Extended)) if held > 1 => seen("extended one of several"),
            (Op::Release(_), Reply::Release(released)) if released.remaining_holds > 0 => {
                seen("released, and held yet");
            }
            (Op::Evict(_), Reply::Evict(Evicted::Removed { fence: Some(_), .. }))
                if after.is_some() && held > 1 =>
            {
                seen("evicted one of several");
            }
            (Op::ForceRelease(_), Reply::ForceRelease(ForceReleased::Released)) if held > 1 => {
                seen("warned several");
            }
            _ => {}
        }
    }

    /// Counts cases that only locks with several holders have.
    pub(crate) fn count_parts(
        &mut self,
        before: &LockState,
        op: &Op,
        reply: &Reply,
        notifications: &[Notification],
    ) {
        let now_ms = self.fixture.now_us / 1000;
        let parts = |state: &LockState| state.value.as_ref()?.content.shared_holders().cloned();
        let (before_parts, after) = (parts(before), parts(&self.state));
        let held = after.as_ref().map_or(0, |parts| parts.holds.len());
        let mut seen = |what| *self.fixture.seen.entry(what).or_default() += 1;
        if let Some(parts) = &before_parts {
            let over = parts.holds.iter().filter(|part| part.until_ms < now_ms).count();
            if over > 0 {
                seen(if before_parts == after {
                    "parts that are over"
                } else {
                    "dropped parts that are over"
                });
            }
        }
        let grants = notifications
            .iter()
            .filter(|notification| matches!(notification, Notification::Grant { .. }))
            .count();
        if grants > 1 {
            seen("several woken");
        }
        let (mode, refused) = match (op, reply) {
            (Op::Acquire(ask), Reply::Acquire(Acquired::Granted { .. })) => {
                if held > 1 && before_parts != after {
                    seen("shared");
                }
                let writes = |mode| matches!(mode, LockMode::Write | LockMode::Upgrade);
                let wrote = before_parts
                    .as_ref()
                    .is_some_and(|parts| parts.holds.iter().any(|part| writes(part.mode)));
                if wrote && ask.mode == LockMode::Write && before_parts != after {
                    seen("written again");
                }
                let awaited = before.record.as_ref().is_some_and(|record| !record.tickets.is_empty());
                if awaited && before_parts != after {
                    seen("let in while others wait");
                    if wrote && ask.mode == LockMode::Write {
                        seen("written again past a waiter");
                    }
                }
                (Some(ask.mode), None)
            }
            (Op::Acquire(ask), Reply::Acquire(Acquired::Taken { other_holders, position, .. })) => {
                if !other_holders.is_empty() {
                    seen("others to watch");
                }
                let entries = self.state.record.as_ref().map_or(0, |record| record.entries.len());
                if ask.mode == LockMode::Upgrade && *position == Some(0) && entries > 1 {
                    seen("before the first");
                }
                (None, None)
            }
            (Op::Acquire(_), Reply::Refused(refused)) => (None, Some(refused)),
            (
                Op::Release(Release { action: ReleaseAction::KeepPermits { .. }, .. }),
                Reply::Release(Released { status: HoldStatus::Held, .. }),
            ) => {
                seen(returned_permits(grants, before_parts != after));
                (None, None)
            }
            (Op::Release(_), Reply::Release(released)) => {
                (None, released.next.as_ref().and_then(|next| next.as_ref().err()))
            }
            (Op::Extend(_), Reply::Extend(Extended::Extended)) if held > 1 => {
                seen("extended one of several");
                (None, None)
            }
            (Op::Evict(_), Reply::Evict(Evicted::Removed { fence: Some(_), .. })) if held > 0 => {
                seen("evicted one of several");
                (None, None)
            }
            (Op::Resize(_), reply) => {
                seen(match reply {
                    Reply::Resize(Resized::Done) if grants > 0 => "resized, and let in",
                    Reply::Resize(Resized::Done) => "resized",
                    Reply::Resize(Resized::Changed { .. }) => "not resized",
                    _ => "not resized at all",
                });
                (None, None)
            }
            _ => (None, None),
        };
        match mode {
            Some(LockMode::Write) => seen("written"),
            Some(LockMode::Upgrade) => seen("upgraded"),
            Some(LockMode::Upgradable) => seen("read upgradably"),
            Some(LockMode::CountDown { .. }) => seen("arrived"),
            Some(LockMode::LatchWait { .. }) => seen("passed"),
            _ => {}
        }
        match refused {
            Some(Refused::OutOfRange { .. }) => seen("out of range"),
            Some(Refused::Disagreement { .. }) => seen("disagreed"),
            Some(Refused::WouldDeadlock) => seen("would deadlock"),
            Some(Refused::NothingToUpgrade) => seen("nothing to upgrade"),
            _ => {}
        }
    }

    pub(crate) fn count_session(&mut self, op: &SessionOp, reply: &SessionReply) {
        let mut seen = |what| *self.fixture.seen.entry(what).or_default() += 1;
        match (op, reply) {
            (SessionOp::Heartbeat(_), SessionReply::Heartbeat(HeartbeatReply::Lapsed)) => seen("lapsed"),
            (SessionOp::Heartbeat(heartbeat), _) => {
                seen(if heartbeat.begin.is_some() { "begun" } else { "beaten" });
            }
            (SessionOp::End(_), _) => seen("ended"),
            (_, SessionReply::List(list)) => {
                for entry in &list.entries {
                    seen(if entry.alive_ms.is_some() { "listed alive" } else { "listed dead" });
                    if !entry.held.is_empty() {
                        seen("listed a lock");
                    }
                }
            }
            _ => {}
        }
    }
}

/// What came of a request to return permits.
const fn returned_permits(grants: usize, changed: bool) -> &'static str {
    match (grants, changed) {
        (0, false) => "kept all permits",
        (0, true) => "gave permits back",
        _ => "gave permits back, and let in",
    }
}
