//! Changes of a history that make it a wrong one.

use crate::random::Random;
use leasehold_history::{Answer, Event, History, What};

/// Changes a history at a place that a seed decides. None if it has no such place.
type Change = fn(&History, u64) -> Option<History>;

/// What is changed, and the check that must find it.
pub(crate) const CHANGES: [(&str, Change, &str); 7] = [
    ("two tokens are swapped", swapped_tokens, "tokens"),
    ("a token is given again", repeated_token, "tokens"),
    ("a belief lasts into the next", extended_belief, "exclusion"),
    ("an update is lost", lost_update, "counter"),
    ("a valid write is refused", refused_write, "counter"),
    ("a release has no answer", dropped_release, "answers"),
    ("a call has no answer", dropped_answer, "answers"),
];

/// A hold of the history, as far as a change needs to know it.
struct Hold {
    call: u64,
    process: u32,
    fence: u64,
    granted_us: u64,
    /// The last valid check.
    valid_us: u64,
    /// Whether it was valid when its release was asked.
    is_released: bool,
}

/// The holds that were believed, in the order of their grants.
fn holds(history: &History) -> Vec<Hold> {
    let mut holds: Vec<Hold> = Vec::new();
    for event in history.events() {
        match event.what {
            What::Answered { call, answer: Answer::Granted { fence: Some(fence) } } => holds.push(Hold {
                call,
                process: event.process,
                fence,
                granted_us: event.at_us,
                valid_us: 0,
                is_released: false,
            }),
            What::Checked { call, since_us, valid: true } => {
                holds.iter_mut().filter(|hold| hold.call == call).for_each(|hold| hold.valid_us = since_us);
            }
            What::Released { call, .. } => {
                holds.iter_mut().filter(|hold| hold.call == call).for_each(|hold| hold.is_released = true);
            }
            _ => {}
        }
    }
    holds.retain(|hold| hold.valid_us > hold.granted_us && hold.is_released);
    holds
}

fn asked_us(history: &History, wanted: u64) -> u64 {
    let asked = |event: &&Event| matches!(event.what, What::Asked { call, .. } if call == wanted);
    history.events().iter().find(asked).map_or(0, |event| event.at_us)
}

/// One of the places at which a change is possible.
fn choose<T>(mut places: Vec<T>, seed: u64) -> Option<T> {
    let count = u64::try_from(places.len()).ok().filter(|&count| count > 0)?;
    let place = usize::try_from(Random::new(seed).between(0, count)).ok()?;
    Some(places.swap_remove(place))
}

fn changed(history: &History, change: impl FnMut(&mut Event)) -> Option<History> {
    let mut events = history.events().to_vec();
    events.iter_mut().for_each(change);
    History::from_events(events).ok()
}

fn without(history: &History, is_dropped: impl Fn(&What) -> bool) -> Option<History> {
    let mut events = history.events().to_vec();
    events.retain(|event| !is_dropped(&event.what));
    History::from_events(events).ok()
}

/// Two holds, the second of which was asked when the first had been granted.
fn one_after_the_other(history: &History, seed: u64) -> Option<(Hold, Hold)> {
    let mut pairs = Vec::new();
    let mut holds = holds(history).into_iter().peekable();
    while let (Some(first), Some(_)) = (holds.next(), holds.peek()) {
        let is_after = |second: &Hold| asked_us(history, second.call) > first.granted_us;
        if let Some(second) = holds.next_if(is_after) {
            pairs.push((first, second));
        }
    }
    choose(pairs, seed)
}

fn with_token(what: &mut What, wanted: u64, token: u64) {
    match what {
        What::Answered { call, answer: Answer::Granted { fence } } if *call == wanted => *fence = Some(token),
        What::Wrote { call, fence, .. } if *call == wanted => *fence = token,
        _ => {}
    }
}

fn swapped_tokens(history: &History, seed: u64) -> Option<History> {
    let (first, second) = one_after_the_other(history, seed)?;
    changed(history, |event| {
        with_token(&mut event.what, first.call, second.fence);
        if !matches!(event.what, What::Answered { call, .. } if call == first.call) {
            with_token(&mut event.what, second.call, first.fence);
        }
    })
}

fn repeated_token(history: &History, seed: u64) -> Option<History> {
    let (first, second) = one_after_the_other(history, seed)?;
    changed(history, |event| with_token(&mut event.what, second.call, first.fence))
}

fn extended_belief(history: &History, seed: u64) -> Option<History> {
    let holds = holds(history);
    let pairs: Vec<(&Hold, &Hold)> = holds.iter().zip(holds.iter().skip(1)).collect();
    let (first, second) = choose(pairs, seed)?;
    let since_us = u64::midpoint(second.granted_us, second.valid_us + 1);
    let ends = |what: &What| match what {
        What::ReleaseAsked { call } | What::Released { call, .. } | What::Lost { call, .. } => {
            *call == first.call
        }
        _ => false,
    };
    let mut events = without(history, ends)?.events().to_vec();
    let what = What::Checked { call: first.call, since_us, valid: true };
    events.push(Event { at_us: since_us, process: first.process, what });
    History::from_events(events).ok()
}

/// The places of writes of holds that were believed when they arrived, that were accepted, and that followed another change.
fn valid_writes(history: &History) -> Vec<usize> {
    let holds = holds(history);
    let is_valid = |event: &Event, wanted: u64| {
        holds.iter().any(|it| it.call == wanted && it.granted_us <= event.at_us && event.at_us <= it.valid_us)
    };
    let places = history.events().iter().enumerate();
    places
        .filter(|(_, event)| match event.what {
            What::Wrote { call, read, found, fenced: true, .. } => {
                read == found && read > 0 && is_valid(event, call)
            }
            _ => false,
        })
        .map(|(place, _)| place)
        .collect()
}

fn lost_update(history: &History, seed: u64) -> Option<History> {
    let writes = valid_writes(history);
    // The write before is of a valid hold, too, so that no late write explains it.
    let places = writes.windows(2).filter(|pair| {
        !history.events()[pair[0] + 1..pair[1]].iter().any(|event| matches!(event.what, What::Wrote { .. }))
    });
    let place = choose(places.map(|pair| pair[1]).collect(), seed)?;
    let mut events = history.events().to_vec();
    if let What::Wrote { read, .. } = &mut events[place].what {
        *read -= 1;
    }
    History::from_events(events).ok()
}

fn refused_write(history: &History, seed: u64) -> Option<History> {
    let place = choose(valid_writes(history), seed)?;
    let mut events = history.events().to_vec();
    if let What::Wrote { fenced, .. } = &mut events[place].what {
        *fenced = false;
    }
    History::from_events(events).ok()
}

fn dropped_release(history: &History, seed: u64) -> Option<History> {
    // Far enough from the end, and of a process that lives.
    let dead = dead(history);
    let end_us = history.last_us().saturating_sub(12_000_000);
    let places =
        holds(history).into_iter().filter(|hold| hold.valid_us < end_us && !dead.contains(&hold.process));
    let hold = choose(places.collect(), seed)?;
    without(history, |what| matches!(what, What::Released { call, .. } if *call == hold.call))
}

fn dropped_answer(history: &History, seed: u64) -> Option<History> {
    let dead = dead(history);
    let end_us = history.last_us().saturating_sub(18_000_000);
    let places = history.events().iter().filter_map(|event| match event.what {
        What::Asked { call, limit_ms: Some(_), .. }
            if event.at_us < end_us && !dead.contains(&event.process) =>
        {
            Some(call)
        }
        _ => None,
    });
    let wanted = choose(places.collect(), seed)?;
    without(history, |what| match what {
        What::Answered { call, .. }
        | What::Checked { call, .. }
        | What::Lost { call, .. }
        | What::ReleaseAsked { call }
        | What::Released { call, .. } => *call == wanted,
        _ => false,
    })
}

fn dead(history: &History) -> Vec<u32> {
    let exited = |event: &Event| match event.what {
        What::Exited { worker, .. } => Some(worker),
        _ => None,
    };
    history.events().iter().filter_map(exited).collect()
}
