//! Pending replies, and their match with the frames that arrive.
//!
//! 1. Every command has one reply, in order; a subscription has its confirmations, or one error.
//! 2. Other messages answer no command.

use std::collections::VecDeque;

use super::faults::ReplyAction;
use super::paused::PausedRequest;
use crate::frame::first_text;

/// The pending replies, in order.
#[derive(Debug, Default)]
pub(super) struct PendingReplies {
    queue: VecDeque<PendingReply>,
    protocol: Protocol,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Protocol {
    /// There are no push messages.
    #[default]
    Resp2,
    /// Push messages are arrays, and differ from replies by their first element.
    Resp2Subscribed,
    /// Push messages have their own type.
    Resp3,
}

#[derive(Debug)]
struct PendingReply {
    expected: Expected,
    action: ReplyAction,
    /// Whether its command was paused before.
    is_resumed: bool,
    /// Dropped with the last reply to a resumed command, which marks it as done.
    _request: Option<PausedRequest>,
}

#[derive(Debug)]
enum Expected {
    /// One reply.
    Reply,
    /// A number of confirmations that contain the command in lower case, or one error.
    Confirmations { of: Vec<u8>, left: usize },
}

impl PendingReplies {
    /// Records the replies to a command that is about to be sent.
    pub(super) fn push(
        &mut self,
        arguments: &[Vec<u8>],
        copies: usize,
        action: ReplyAction,
        resumed: Option<PausedRequest>,
    ) {
        let name = arguments.first().map(|name| name.to_ascii_lowercase()).unwrap_or_default();
        if name == b"hello" {
            let wanted = arguments.get(1).map(Vec::as_slice);
            self.protocol = if wanted == Some(b"3") { Protocol::Resp3 } else { Protocol::Resp2 };
        }
        if is_subscription(&name) && self.protocol == Protocol::Resp2 {
            self.protocol = Protocol::Resp2Subscribed;
        }
        let is_resumed = resumed.is_some();
        for _ in 1..copies {
            let expected = Expected::of(&name, arguments);
            let action = ReplyAction::Discard;
            self.queue.push_back(PendingReply { expected, action, is_resumed, _request: None });
        }
        let expected = Expected::of(&name, arguments);
        self.queue.push_back(PendingReply { expected, action, is_resumed, _request: resumed });
    }

    /// Matches one frame of the server. Returns what to do with it.
    pub(super) fn receive(&mut self, frame: &[u8]) -> ReplyAction {
        let message = self.message_kind(frame);
        let Some(pending) = self.queue.front_mut() else { return ReplyAction::Forward };
        let action = pending.action;
        match (&mut pending.expected, message) {
            (Expected::Confirmations { of, left }, Some(kind)) if of == kind => {
                *left -= 1;
                if *left > 0 {
                    return action;
                }
            }
            (_, Some(_)) => return ReplyAction::Forward,
            (_, None) => {}
        }
        self.queue.pop_front();
        action
    }

    /// Whether a resumed command is not answered yet.
    pub(super) fn has_resumed(&self) -> bool {
        self.queue.iter().any(|pending| pending.is_resumed)
    }

    /// The kind of a message that answers no command, or confirms a subscription; `None` for a reply.
    fn message_kind<'a>(&self, frame: &'a [u8]) -> Option<&'a [u8]> {
        match (frame.first()?, &self.protocol) {
            (b'>', _) => first_text(frame).or(Some(b"")),
            (b'*', Protocol::Resp2Subscribed) => first_text(frame).filter(|kind| is_message_kind(kind)),
            _ => None,
        }
    }
}

impl Expected {
    fn of(name: &[u8], arguments: &[Vec<u8>]) -> Self {
        if !is_subscription(name) {
            return Self::Reply;
        }
        // Without channels there is one for each subscribed channel, and at least one. Only the first is matched; the
        // others are forwarded.
        Self::Confirmations { of: name.to_vec(), left: arguments.len().saturating_sub(1).max(1) }
    }
}

fn is_subscription(name: &[u8]) -> bool {
    let verb = name
        .strip_prefix(b"p")
        .or_else(|| name.strip_prefix(b"s").filter(|_| name != b"subscribe"))
        .unwrap_or(name);
    verb == b"subscribe" || verb == b"unsubscribe"
}

fn is_message_kind(kind: &[u8]) -> bool {
    matches!(kind, b"message" | b"pmessage" | b"smessage") || is_subscription(kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::faults::AfterDrop;

    fn pending(requests: &[(&str, usize, ReplyAction)]) -> PendingReplies {
        let mut pending = PendingReplies::default();
        for &(line, copies, action) in requests {
            let arguments: Vec<_> = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
            pending.push(&arguments, copies, action, None);
        }
        pending
    }

    const DROPPED: ReplyAction = ReplyAction::Drop(AfterDrop::Disconnect);

    #[test]
    fn the_client_receives_the_second_of_two_replies() {
        let mut pending = pending(&[("SET k v", 2, ReplyAction::Forward), ("GET k", 1, DROPPED)]);
        assert_eq!(pending.receive(b"+OK\r\n"), ReplyAction::Discard);
        assert_eq!(pending.receive(b"+OK\r\n"), ReplyAction::Forward);
        assert_eq!(pending.receive(b"$1\r\nv\r\n"), DROPPED);
    }

    #[test]
    fn push_messages_answer_no_command() {
        for (first, reply, message) in [
            ("HELLO 3", &b"%0\r\n"[..], &b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n"[..]),
            (
                "SUBSCRIBE c",
                b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n",
                b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n",
            ),
        ] {
            let mut pending = pending(&[(first, 1, ReplyAction::Forward), ("PING", 1, DROPPED)]);
            assert_eq!(pending.receive(reply), ReplyAction::Forward);
            assert_eq!(pending.receive(message), ReplyAction::Forward);
            assert_eq!(pending.receive(b"+PONG\r\n"), DROPPED);
        }
    }

    #[test]
    fn a_subscription_is_answered_by_its_confirmations_or_by_an_error() {
        let requests = [("SUBSCRIBE a b", 1, ReplyAction::Forward), ("PING", 1, DROPPED)];
        let mut confirmed = pending(&requests);
        confirmed.receive(b">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n");
        confirmed.receive(b">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nx\r\n");
        confirmed.receive(b">3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:2\r\n");
        assert_eq!(confirmed.receive(b"+PONG\r\n"), DROPPED);

        let mut refused = pending(&requests);
        refused.receive(b"-NOPERM no\r\n");
        assert_eq!(refused.receive(b"+PONG\r\n"), DROPPED);
    }

    #[test]
    fn subscriptions_are_known_by_name() {
        let subscriptions =
            ["subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe"];
        for name in subscriptions {
            assert!(is_subscription(name.as_bytes()), "{name}");
        }
        for name in ["set", "publish", "spublish", "ubscribe", "pubsub"] {
            assert!(!is_subscription(name.as_bytes()), "{name}");
        }
    }
}
