//! The active faults, and their effect on one command.

use std::fmt;
use std::time::Duration;

/// What happens to a connection after a dropped message. It cannot simply continue: the client would match the next
/// reply with the wrong command, which no network causes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterDrop {
    /// The connection closes. The client learns at once that the outcome is unknown.
    Disconnect,
    /// The connection stays open, but forwards nothing more in that direction. The client times out.
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

/// The active faults.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// Set if new connections are closed at once.
    pub(super) refuse_connections: bool,
    /// The delay of commands.
    pub(super) delay_requests: Duration,
    /// The delay of replies.
    pub(super) delay_replies: Duration,
    /// Commands that are paused.
    pub(super) pause_requests: Option<Rule>,
    /// Commands that never reach the server.
    pub(super) drop_requests: Option<(Rule, AfterDrop)>,
    /// Commands whose replies never reach the client.
    pub(super) drop_replies: Option<(Rule, AfterDrop)>,
    /// Commands that are sent twice.
    pub(super) duplicate_requests: Option<Rule>,
}

/// Whether a fault applies to a command with these arguments.
type Predicate = Box<dyn Fn(&[Vec<u8>]) -> bool + Send>;

/// The next `left` commands that match.
pub(super) struct Rule {
    left: usize,
    predicate: Predicate,
}

/// What happens to one command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestAction {
    /// It is dropped.
    Drop(AfterDrop),
    /// It is sent, perhaps after a pause.
    Forward { is_paused: bool, copies: usize, reply: ReplyAction },
}

/// What happens to one reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplyAction {
    /// The client receives it.
    Forward,
    /// It is discarded, because it answers a duplicate of the command.
    Discard,
    /// It is dropped.
    Drop(AfterDrop),
}

impl Faults {
    /// Decides on a command, and counts it in the rules that it matches.
    pub(super) fn action(&mut self, arguments: &[Vec<u8>]) -> RequestAction {
        if let Some(then) = matches_then(&mut self.drop_requests, arguments) {
            return RequestAction::Drop(then);
        }
        let is_paused = matches(&mut self.pause_requests, arguments);
        let copies = if matches(&mut self.duplicate_requests, arguments) { 2 } else { 1 };
        let reply =
            matches_then(&mut self.drop_replies, arguments).map_or(ReplyAction::Forward, ReplyAction::Drop);
        RequestAction::Forward { is_paused, copies, reply }
    }
}

fn matches(rule: &mut Option<Rule>, arguments: &[Vec<u8>]) -> bool {
    rule.as_mut().is_some_and(|rule| rule.matches(arguments))
}

fn matches_then(rule: &mut Option<(Rule, AfterDrop)>, arguments: &[Vec<u8>]) -> Option<AfterDrop> {
    rule.as_mut().and_then(|(rule, then)| rule.matches(arguments).then_some(*then))
}

impl Rule {
    pub(super) fn new(left: usize, predicate: impl Fn(&[Vec<u8>]) -> bool + Send + 'static) -> Self {
        Self { left, predicate: Box::new(predicate) }
    }

    fn matches(&mut self, arguments: &[Vec<u8>]) -> bool {
        let is_match = self.left > 0 && (self.predicate)(arguments);
        // `usize::MAX` means all commands, and is not counted down.
        if is_match && self.left != usize::MAX {
            self.left -= 1;
        }
        is_match
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule").field("left", &self.left).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<Vec<u8>> {
        line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
    }

    #[test]
    fn a_rule_counts_only_the_commands_that_match() {
        let mut faults = Faults {
            drop_requests: Some((Rule::new(1, command("SET")), AfterDrop::Disconnect)),
            ..Faults::default()
        };
        let forward = RequestAction::Forward { is_paused: false, copies: 1, reply: ReplyAction::Forward };
        assert_eq!(faults.action(&words("GET k")), forward);
        assert_eq!(faults.action(&words("set k v")), RequestAction::Drop(AfterDrop::Disconnect));
        assert_eq!(faults.action(&words("set k v")), forward);
    }

    #[test]
    fn several_faults_apply_to_one_command() {
        let mut faults = Faults {
            pause_requests: Some(Rule::new(1, any_command())),
            duplicate_requests: Some(Rule::new(usize::MAX, any_command())),
            drop_replies: Some((Rule::new(1, any_command()), AfterDrop::Stall)),
            ..Faults::default()
        };
        let reply = ReplyAction::Drop(AfterDrop::Stall);
        assert_eq!(
            faults.action(&words("PING")),
            RequestAction::Forward { is_paused: true, copies: 2, reply }
        );
        let reply = ReplyAction::Forward;
        assert_eq!(
            faults.action(&words("PING")),
            RequestAction::Forward { is_paused: false, copies: 2, reply }
        );
    }
}
