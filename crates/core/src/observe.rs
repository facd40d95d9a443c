//! Watching who leads: when to look, and what is news.
//!
//! A pure machine: it is told of hints and of what was seen, and says when to look next. Sending and sleeping are the engine's.
//!
//! 1. A hint says that something was said, not what, so it brings a look nearer and nothing else: a forged one costs a look, a
//!    lost one a delay.
//! 2. It looks on its own as well: at the instant at which the leader is over unless he goes on, and every so often. Looks
//!    are never closer together than [`CLOSEST`], however many hints come.
//! 3. Each leader is told once, in the order of the tokens; whoever came and went between two looks is not told.

use crate::{FencingToken, Holder, Moment};
use std::time::Duration;

/// How close two looks may be to each other.
pub const CLOSEST: Duration = Duration::from_millis(50);
/// How often one looks who hears of nothing: between the two.
const UNHEARD: (Duration, Duration) = (Duration::from_millis(250), Duration::from_millis(500));
/// The same of one who is told of changes.
const HEARD: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(10));
/// How much later one looks at most than the leader is over: observers are not to look all at once.
const AFTER: Duration = Duration::from_millis(50);

/// What an observer has learnt.
///
/// [`Onlooker`] shows it in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// Somebody leads who did not before.
    Leader(Holder),
    /// Nobody leads any more, or as yet.
    Nobody,
}

/// One who wants to know who leads.
///
/// ```
/// use leasehold_core::observe::{News, Onlooker};
/// use leasehold_core::{FencingToken, Holder, Label, Moment, Portion};
/// use std::time::Duration;
///
/// let leader = Holder {
///     label: Some(Label::new("web-3")?), owner: None, count: 1, remaining_ms: Some(2_000),
///     fence: Some(FencingToken::new(17)), since_ms: Some(1), session: None, rests: false,
///     portion: Portion::Whole,
/// };
/// let (mut onlooker, now, random) = (Onlooker::new(), Moment::ZERO, u64::MAX / 2);
/// onlooker.hears(true);
/// assert_eq!(onlooker.look_at(), now, "at once");
/// assert_eq!(onlooker.handle_seen(Some(&leader), now, random), Some(News::Leader(leader.clone())));
/// assert_eq!(onlooker.handle_seen(Some(&leader), now, random), None, "it is told once");
/// assert!(onlooker.look_at() > now + Duration::from_secs(2), "when he may be over");
///
/// onlooker.handle_hint(now + Duration::from_secs(1));
/// assert_eq!(onlooker.look_at(), now + Duration::from_secs(1));
/// assert_eq!(onlooker.handle_seen(None, onlooker.look_at(), random), Some(News::Nobody));
/// # Ok::<(), leasehold_core::LabelError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Onlooker {
    /// Set while somebody tells it of changes.
    hears: bool,
    /// What was told last; nothing before the first look.
    told: Option<Told>,
    /// The greatest token of a leader that was told.
    greatest: Option<FencingToken>,
    /// When to look next.
    look_at: Moment,
    /// When it may look at the earliest.
    not_before: Moment,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Leader(FencingToken),
    Nobody,
}

impl Default for Onlooker {
    fn default() -> Self {
        Self::new()
    }
}

impl Onlooker {
    /// One who has seen nothing yet, and looks at once.
    pub const fn new() -> Self {
        Self { hears: false, told: None, greatest: None, look_at: Moment::ZERO, not_before: Moment::ZERO }
    }

    /// From now on it is told of changes, or is not any more.
    pub const fn hears(&mut self, hears: bool) {
        self.hears = hears;
    }

    /// When to look next.
    pub const fn look_at(&self) -> Moment {
        self.look_at
    }

    /// Something was said, or may have been (1).
    pub fn handle_hint(&mut self, now: Moment) {
        self.look_at = self.look_at.min(now.max(self.not_before));
    }

    /// A look had no answer: the next one is no sooner than where nothing is heard.
    pub fn handle_failure(&mut self, now: Moment, random: u64) {
        self.rest_until(now + between(UNHEARD, random), now);
    }

    /// Takes in who holds the Election, and gives what is news of it (3).
    pub fn handle_seen(&mut self, holder: Option<&Holder>, now: Moment, random: u64) -> Option<News> {
        let pause = between(if self.hears { HEARD } else { UNHEARD }, random);
        let over = holder
            .and_then(|holder| holder.remaining_ms)
            .map(|ms| Duration::from_millis(ms.saturating_add(1)) + between((Duration::ZERO, AFTER), random));
        self.rest_until(now + over.map_or(pause, |over| over.min(pause)), now);
        // Who rests leads no more; and of a stranger nobody knows that he leads.
        let leader = holder.filter(|holder| !holder.rests);
        let Some((leader, fence)) = leader.and_then(|leader| Some((leader, leader.fence?))) else {
            let news = self.told != Some(Told::Nobody);
            self.told = Some(Told::Nobody);
            return news.then_some(News::Nobody);
        };
        match self.greatest {
            Some(greatest) if fence == greatest => return None,
            // Of a server that has lost what it knew: he leads, but whoever was told last does not.
            Some(greatest) if fence < greatest => {
                let news = self.told != Some(Told::Nobody);
                self.told = Some(Told::Nobody);
                return news.then_some(News::Nobody);
            }
            _ => {}
        }
        self.greatest = Some(fence);
        self.told = Some(Told::Leader(fence));
        Some(News::Leader(leader.clone()))
    }

    fn rest_until(&mut self, at: Moment, now: Moment) {
        self.not_before = now + CLOSEST;
        self.look_at = at.max(self.not_before);
    }
}

fn between((least, most): (Duration, Duration), random: u64) -> Duration {
    #[allow(clippy::cast_precision_loss, reason = "a jitter needs no more than the leading bits")]
    let share = random as f64 / u64::MAX as f64;
    least + most.saturating_sub(least).mul_f64(share)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Label, Portion};
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
            rests: false,
            portion: Portion::Whole,
        }
    }

    #[test]
    fn who_rests_leads_no_more_and_a_stranger_is_nobody() {
        let mut onlooker = Onlooker::new();
        assert!(matches!(onlooker.handle_seen(Some(&leader(1)), at(0), 0), Some(News::Leader(_))));
        let rests = Holder { rests: true, ..leader(1) };
        assert_eq!(onlooker.handle_seen(Some(&rests), at(1), 0), Some(News::Nobody));
        let stranger = Holder { label: None, fence: None, ..leader(1) };
        assert_eq!(onlooker.handle_seen(Some(&stranger), at(2), 0), None, "that was told");
    }

    #[test]
    fn whoever_has_a_smaller_token_is_nobody() {
        let mut onlooker = Onlooker::new();
        onlooker.handle_seen(Some(&leader(7)), at(0), 0);
        assert_eq!(onlooker.handle_seen(Some(&leader(5)), at(1), 0), Some(News::Nobody));
        assert_eq!(onlooker.handle_seen(Some(&leader(5)), at(1), 0), None);
        assert!(matches!(onlooker.handle_seen(Some(&leader(8)), at(2), 0), Some(News::Leader(_))));
    }

    #[test]
    fn whoever_hears_nothing_looks_often_and_others_seldom() {
        let mut onlooker = Onlooker::new();
        onlooker.handle_seen(Some(&leader(1)), at(0), 0);
        assert_eq!(onlooker.look_at(), at(250));
        onlooker.hears(true);
        onlooker.handle_seen(Some(&leader(1)), at(0), 0);
        assert_eq!(onlooker.look_at(), at(5_000));
        onlooker.handle_seen(Some(&Holder { remaining_ms: Some(700), ..leader(1) }), at(0), 0);
        assert_eq!(onlooker.look_at(), at(701));
        onlooker.handle_failure(at(1_000), u64::MAX);
        assert_eq!(onlooker.look_at(), at(1_500));
    }

    proptest! {
        #[test]
        fn looks_are_bounded_and_each_leader_is_told_once_in_order(
            steps in proptest::collection::vec((0..4_u8, 0..6_u64, 0..20_000_u64, any::<u64>()), 1..80),
            hears in any::<bool>(),
        ) {
            let (mut onlooker, mut now_ms, mut told, mut looked) = (Onlooker::new(), 0, Vec::new(), None);
            onlooker.hears(hears);
            for (what, fence, pass, random) in steps {
                now_ms += pass;
                let now = at(now_ms);
                match what {
                    0 => onlooker.handle_hint(now),
                    1 => onlooker.handle_failure(now, random),
                    _ => {
                        let holder = (what == 2).then(|| leader(fence));
                        told.extend(onlooker.handle_seen(holder.as_ref(), now, random));
                        looked = Some(now);
                    }
                }
                if let Some(looked) = looked {
                    prop_assert!(onlooker.look_at() >= looked + CLOSEST);
                }
                prop_assert!(onlooker.look_at() <= now + HEARD.1);
            }
            let fences: Vec<_> = told.iter().filter_map(|news| match news {
                News::Leader(leader) => leader.fence,
                News::Nobody => None,
            }).collect();
            prop_assert!(fences.windows(2).all(|pair| pair[0] < pair[1]), "{fences:?}");
            let twice = told.windows(2).any(|pair| pair == [News::Nobody, News::Nobody]);
            prop_assert!(!twice, "{told:?}");
        }
    }
}
