//! The active faults, and their effect on one command.

use std::fmt;
use std::time::Duration;

/// What happens to a connection after a loss. It cannot simply continue: the client would match the next reply with
/// the wrong command, which no network causes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// The connection breaks: the client learns at once that it does not know.
    Cut,
    /// No more data passes in that direction, and the connection stays open: the client times out.
    Stall,
}

/// Matches commands by name, in any case: `command("EVALSHA")`.
pub fn command(name: &str) -> impl Fn(&[Vec<u8>]) -> bool + Send + Sync + 'static {
    let name = name.to_owned();
    move |arguments| arguments.first().is_some_and(|first| first.eq_ignore_ascii_case(name.as_bytes()))
}

/// Matches every command.
pub fn any_command() -> impl Fn(&[Vec<u8>]) -> bool + Send + Sync + 'static {
    |_| true
}

/// The faults that are on.
#[derive(Debug, Default)]
pub(super) struct Rules {
    /// Set if new connections are closed at once.
    pub(super) refuse: bool,
    /// How much later a command reaches the server.
    pub(super) delay_requests: Duration,
    /// How much later a reply reaches the client.
    pub(super) delay_replies: Duration,
    /// Which commands wait to be released.
    pub(super) hold: Option<Counted>,
    /// Which commands never reach the server.
    pub(super) swallow_requests: Option<(Counted, Then)>,
    /// Commands whose replies never reach the client.
    pub(super) swallow_replies: Option<(Counted, Then)>,
    /// Which commands are sent twice.
    pub(super) double_requests: Option<Counted>,
}

/// Whether a command, as its arguments, is meant.
type Predicate = Box<dyn Fn(&[Vec<u8>]) -> bool + Send>;

/// Commands that match, as long as the count lasts.
pub(super) struct Counted {
    left: usize,
    matches: Predicate,
}

/// What to do with one command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is lost.
    Swallowed(Then),
    /// It is sent, now or later.
    Sent { holding: Holding, copies: usize, reply: ReplyFate },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holding {
    Passes,
    Held,
}

/// What to do with one reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplyFate {
    /// Forward it to the client.
    Passed,
    /// It belongs to a copy that the client did not send.
    Dropped,
    /// It is lost.
    Swallowed(Then),
}

impl Rules {
    /// Decides on a command, and counts it against the rules that it meets.
    pub(super) fn fate(&mut self, arguments: &[Vec<u8>]) -> Fate {
        if let Some(then) = take_then(&mut self.swallow_requests, arguments) {
            return Fate::Swallowed(then);
        }
        let holding = if take(&mut self.hold, arguments) { Holding::Held } else { Holding::Passes };
        let copies = if take(&mut self.double_requests, arguments) { 2 } else { 1 };
        let reply =
            take_then(&mut self.swallow_replies, arguments).map_or(ReplyFate::Passed, ReplyFate::Swallowed);
        Fate::Sent { holding, copies, reply }
    }
}

fn take(rule: &mut Option<Counted>, arguments: &[Vec<u8>]) -> bool {
    rule.as_mut().is_some_and(|rule| rule.take(arguments))
}

fn take_then(rule: &mut Option<(Counted, Then)>, arguments: &[Vec<u8>]) -> Option<Then> {
    rule.as_mut().and_then(|(rule, then)| rule.take(arguments).then_some(*then))
}

impl Counted {
    pub(super) fn new(left: usize, matches: impl Fn(&[Vec<u8>]) -> bool + Send + 'static) -> Self {
        Self { left, matches: Box::new(matches) }
    }

    fn take(&mut self, arguments: &[Vec<u8>]) -> bool {
        let taken = self.left > 0 && (self.matches)(arguments);
        // `usize::MAX` stands for all, and is not counted down.
        if taken && self.left != usize::MAX {
            self.left -= 1;
        }
        taken
    }
}

impl fmt::Debug for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counted").field("left", &self.left).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<Vec<u8>> {
        line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
    }

    #[test]
    fn a_rule_is_used_up_by_what_it_matches_only() {
        let mut rules = Rules {
            swallow_requests: Some((Counted::new(1, command("SET")), Then::Cut)),
            ..Rules::default()
        };
        let sent = Fate::Sent { holding: Holding::Passes, copies: 1, reply: ReplyFate::Passed };
        assert_eq!(rules.fate(&words("GET k")), sent);
        assert_eq!(rules.fate(&words("set k v")), Fate::Swallowed(Then::Cut));
        assert_eq!(rules.fate(&words("set k v")), sent);
    }

    #[test]
    fn rules_add_up() {
        let mut rules = Rules {
            hold: Some(Counted::new(1, any_command())),
            double_requests: Some(Counted::new(usize::MAX, any_command())),
            swallow_replies: Some((Counted::new(1, any_command()), Then::Stall)),
            ..Rules::default()
        };
        let reply = ReplyFate::Swallowed(Then::Stall);
        assert_eq!(rules.fate(&words("PING")), Fate::Sent { holding: Holding::Held, copies: 2, reply });
        let reply = ReplyFate::Passed;
        assert_eq!(rules.fate(&words("PING")), Fate::Sent { holding: Holding::Passes, copies: 2, reply });
    }
}
