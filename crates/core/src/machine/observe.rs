//! Observing the leader: when to poll, and what has changed.
//!
//! A pure state machine: it receives notifications and the current holder, and returns when to poll next. The engine sends
//! and sleeps.
//!
//! 1. The content of a notification does not count. A notification brings the next poll closer and has no other effect: a
//!    forged one costs a poll, a lost one a delay.
//! 2. The observer also polls without notifications: when the leader's lease ends unless it is extended, and at regular
//!    intervals. Two polls are never closer together than [`MIN_POLL_INTERVAL`], however many notifications arrive.
//! 3. Each leader is reported once, in the order of the tokens, and again with each other value that it proclaims. What came
//!    and went between two polls is not reported.

use crate::machine::jitter::Jitter;
use crate::{FencingToken, Holder, Label, Moment};
use std::time::Duration;

/// The minimum interval between two polls.
pub const MIN_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The shortest and the longest interval between two polls without a subscription.
const UNSUBSCRIBED_POLL: Jitter = Jitter::new(Duration::from_millis(250), Duration::from_millis(500));
/// The same with a subscription.
const SUBSCRIBED_POLL: Jitter = Jitter::new(Duration::from_secs(5), Duration::from_secs(10));
/// How long after the end of the leader's lease an observer polls at most: observers should not poll all at once.
const EXPIRY_JITTER: Duration = Duration::from_millis(50);

/// A change of leader.
///
/// See [`LeaderObserver`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaderChange {
    /// A new leader, or the same with another value.
    Leader(Holder),
    /// There is no leader, or no longer one.
    NoLeader,
}

/// One observer of an Election.
///
/// ```
/// use leasehold_core::machine::observe::{LeaderChange, LeaderObserver};
/// use leasehold_core::{FencingToken, Holder, Label, Moment, LockMode};
/// use std::time::Duration;
///
/// let leader = Holder {
///     label: Some(Label::new("web-3")?), owner: None, count: 1, remaining_ms: Some(2_000),
///     fence: Some(FencingToken::new(17)), since_ms: Some(1), session: None, in_cooldown: false,
///     mode: LockMode::Exclusive,
/// };
/// let (mut observer, now, random) = (LeaderObserver::new(), Moment::ZERO, u64::MAX / 2);
/// observer.set_subscribed(true);
/// assert_eq!(observer.poll_at(), now, "at once");
/// assert_eq!(observer.handle_holder(Some(&leader), now, random), Some(LeaderChange::Leader(leader.clone())));
/// assert_eq!(observer.handle_holder(Some(&leader), now, random), None, "it is reported once");
/// assert!(observer.poll_at() > now + Duration::from_secs(2), "when its lease may have ended");
///
/// observer.handle_notification(now + Duration::from_secs(1));
/// assert_eq!(observer.poll_at(), now + Duration::from_secs(1));
/// assert_eq!(observer.handle_holder(None, observer.poll_at(), random), Some(LeaderChange::NoLeader));
/// # Ok::<(), leasehold_core::LabelError>(())
/// ```
#[derive(Debug, Clone)]
pub struct LeaderObserver {
    /// Set while it receives messages about changes.
    subscribed: bool,
    /// What was last reported; `None` before the first poll.
    reported: Option<Reported>,
    /// The greatest token of a reported leader.
    greatest_fence: Option<FencingToken>,
    /// When to poll next.
    poll_at: Moment,
    /// When it may poll at the earliest.
    not_before: Moment,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Reported {
    /// With its value.
    Leader(Option<Label>),
    NoLeader,
}

impl Default for LeaderObserver {
    fn default() -> Self {
        Self::new()
    }
}

impl LeaderObserver {
    /// An observer that has seen nothing yet, and polls at once.
    pub const fn new() -> Self {
        Self {
            subscribed: false,
            reported: None,
            greatest_fence: None,
            poll_at: Moment::ZERO,
            not_before: Moment::ZERO,
        }
    }

    /// Sets whether it receives messages about changes.
    pub const fn set_subscribed(&mut self, subscribed: bool) {
        self.subscribed = subscribed;
    }

    /// When to poll next.
    pub const fn poll_at(&self) -> Moment {
        self.poll_at
    }

    /// A notification was published, or may have been (1).
    pub fn handle_notification(&mut self, now: Moment) {
        self.poll_at = self.poll_at.min(now.max(self.not_before));
    }

    /// A poll had no reply: the next poll follows as if there were no subscription.
    pub fn handle_fault(&mut self, now: Moment, random: u64) {
        self.schedule_poll(now + UNSUBSCRIBED_POLL.pick(random), now);
    }

    /// Handles the holder of the Election, and returns the change, if any (3).
    pub fn handle_holder(
        &mut self,
        holder: Option<&Holder>,
        now: Moment,
        random: u64,
    ) -> Option<LeaderChange> {
        let pause = (if self.subscribed { SUBSCRIBED_POLL } else { UNSUBSCRIBED_POLL }).pick(random);
        let over = holder.and_then(|holder| holder.remaining_ms).map(|ms| {
            Duration::from_millis(ms.saturating_add(1))
                + Jitter::new(Duration::ZERO, EXPIRY_JITTER).pick(random)
        });
        self.schedule_poll(now + over.map_or(pause, |over| over.min(pause)), now);
        // A holder in its cooldown leads no more, and a client of another library is not known to lead.
        let leader = holder.filter(|holder| !holder.in_cooldown);
        let Some((leader, fence)) = leader.and_then(|leader| Some((leader, leader.fence?))) else {
            let changed = self.reported != Some(Reported::NoLeader);
            self.reported = Some(Reported::NoLeader);
            return changed.then_some(LeaderChange::NoLeader);
        };
        match self.greatest_fence {
            Some(greatest_fence) if fence == greatest_fence => {
                // A leader that was reported as gone is not reported again.
                match &self.reported {
                    Some(Reported::Leader(value)) if *value != leader.label => {}
                    _ => return None,
                }
            }
            // The server has lost its data: this holder leads, but the last reported leader does not.
            Some(greatest_fence) if fence < greatest_fence => {
                let changed = self.reported != Some(Reported::NoLeader);
                self.reported = Some(Reported::NoLeader);
                return changed.then_some(LeaderChange::NoLeader);
            }
            _ => {}
        }
        self.greatest_fence = Some(fence);
        self.reported = Some(Reported::Leader(leader.label.clone()));
        Some(LeaderChange::Leader(leader.clone()))
    }

    fn schedule_poll(&mut self, at: Moment, now: Moment) {
        self.not_before = now + MIN_POLL_INTERVAL;
        self.poll_at = at.max(self.not_before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LockMode;
    use proptest::prelude::*;

    fn at(ms: u64) -> Moment {
        Moment::from_micros(ms * 1000)
    }

    fn leader(fence: u64) -> Holder {
        Holder {
            label: Label::new("web").ok(),
            owner: None,
            count: 1,
            remaining_ms: Some(30_000),
            fence: Some(FencingToken::new(fence)),
            since_ms: Some(1),
            session: None,
            in_cooldown: false,
            mode: LockMode::Exclusive,
        }
    }

    #[test]
    fn a_holder_in_cooldown_and_a_foreign_holder_do_not_lead() {
        let mut observer = LeaderObserver::new();
        assert!(matches!(observer.handle_holder(Some(&leader(1)), at(0), 0), Some(LeaderChange::Leader(_))));
        let in_cooldown = Holder { in_cooldown: true, ..leader(1) };
        assert_eq!(observer.handle_holder(Some(&in_cooldown), at(1), 0), Some(LeaderChange::NoLeader));
        let foreign = Holder { label: None, fence: None, ..leader(1) };
        assert_eq!(observer.handle_holder(Some(&foreign), at(2), 0), None, "already reported");
    }

    #[test]
    fn a_holder_with_a_smaller_token_does_not_lead() {
        let mut observer = LeaderObserver::new();
        observer.handle_holder(Some(&leader(7)), at(0), 0);
        assert_eq!(observer.handle_holder(Some(&leader(5)), at(1), 0), Some(LeaderChange::NoLeader));
        assert_eq!(observer.handle_holder(Some(&leader(5)), at(1), 0), None);
        assert!(matches!(observer.handle_holder(Some(&leader(8)), at(2), 0), Some(LeaderChange::Leader(_))));
    }

    #[test]
    fn another_value_of_the_same_leader_is_reported_once() {
        let mut observer = LeaderObserver::new();
        let with = |value: &str| Holder { label: Label::new(value).ok(), ..leader(7) };
        for value in ["web", "ready", "web"] {
            let change = observer.handle_holder(Some(&with(value)), at(0), 0);
            assert_eq!(change, Some(LeaderChange::Leader(with(value))));
            assert_eq!(observer.handle_holder(Some(&with(value)), at(1), 0), None);
        }
        assert_eq!(observer.handle_holder(None, at(2), 0), Some(LeaderChange::NoLeader));
        assert_eq!(observer.handle_holder(Some(&with("again")), at(3), 0), None, "it was reported as gone");
    }

    #[test]
    fn without_a_subscription_it_polls_often_and_with_one_seldom() {
        let mut observer = LeaderObserver::new();
        observer.handle_holder(Some(&leader(1)), at(0), 0);
        assert_eq!(observer.poll_at(), at(250));
        observer.set_subscribed(true);
        observer.handle_holder(Some(&leader(1)), at(0), 0);
        assert_eq!(observer.poll_at(), at(5_000));
        observer.handle_holder(Some(&Holder { remaining_ms: Some(700), ..leader(1) }), at(0), 0);
        assert_eq!(observer.poll_at(), at(701));
        observer.handle_fault(at(1_000), u64::MAX);
        assert_eq!(observer.poll_at(), at(1_500));
    }

    proptest! {
        #[test]
        fn polls_are_bounded_and_each_leader_is_reported_once_in_order(
            steps in proptest::collection::vec((0..4_u8, 0..6_u64, 0..20_000_u64, any::<u64>()), 1..80),
            subscribed in any::<bool>(),
        ) {
            let (mut observer, mut now_ms, mut reported, mut polled) = (LeaderObserver::new(), 0, Vec::new(), None);
            observer.set_subscribed(subscribed);
            for (what, fence, action, random) in steps {
                now_ms += action;
                let now = at(now_ms);
                match what {
                    0 => observer.handle_notification(now),
                    1 => observer.handle_fault(now, random),
                    _ => {
                        let holder = (what == 2).then(|| leader(fence));
                        reported.extend(observer.handle_holder(holder.as_ref(), now, random));
                        polled = Some(now);
                    }
                }
                if let Some(polled) = polled {
                    prop_assert!(observer.poll_at() >= polled + MIN_POLL_INTERVAL);
                }
                prop_assert!(observer.poll_at() <= now + SUBSCRIBED_POLL.max);
            }
            let fences: Vec<_> = reported.iter().filter_map(|changed| match changed {
                LeaderChange::Leader(leader) => leader.fence,
                LeaderChange::NoLeader => None,
            }).collect();
            prop_assert!(fences.windows(2).all(|pair| pair[0] < pair[1]), "{fences:?}");
            let twice = reported.windows(2).any(|pair| pair == [LeaderChange::NoLeader, LeaderChange::NoLeader]);
            prop_assert!(!twice, "{reported:?}");
        }
    }
}
