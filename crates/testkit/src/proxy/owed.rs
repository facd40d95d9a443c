//! The replies that the server owes, matched with what arrives.
//!
//! 1. Every command is owed one reply, in order; a subscription is owed its confirmations, or one error.
//! 2. Other messages owe nothing and pay nothing.

use std::collections::VecDeque;

use super::hold::Held;
use super::rules::ReplyFate;
use crate::frame::first_text;

/// The replies that the server owes, in order.
#[derive(Debug, Default)]
pub(super) struct Owed {
    queue: VecDeque<Debt>,
    protocol: Protocol,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Protocol {
    /// There are no messages.
    #[default]
    Resp2,
    /// Messages are arrays, and differ from replies by their first word.
    Resp2Subscribed,
    /// Messages are a type of their own.
    Resp3,
}

#[derive(Debug)]
struct Debt {
    payment: Payment,
    fate: ReplyFate,
    /// The last reply settles it.
    _held: Option<Held>,
    timing: Timing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Timing {
    Ordinary,
    Late,
}

#[derive(Debug)]
enum Payment {
    /// One reply.
    Reply,
    /// A number of confirmations that name the command in lower case, or one error.
    Confirmations { of: Vec<u8>, left: usize },
}

impl Owed {
    /// Records what the server owes for a command about to be sent.
    pub(super) fn enter(
        &mut self,
        arguments: &[Vec<u8>],
        copies: usize,
        reply: ReplyFate,
        held: Option<Held>,
    ) {
        let name = arguments.first().map(|name| name.to_ascii_lowercase()).unwrap_or_default();
        if name == b"hello" {
            let wanted = arguments.get(1).map(Vec::as_slice);
            self.protocol = if wanted == Some(b"3") { Protocol::Resp3 } else { Protocol::Resp2 };
        }
        if is_subscription(&name) && self.protocol == Protocol::Resp2 {
            self.protocol = Protocol::Resp2Subscribed;
        }
        let timing = if held.is_some() { Timing::Late } else { Timing::Ordinary };
        for _ in 1..copies {
            let payment = Payment::of(&name, arguments);
            self.queue.push_back(Debt { payment, fate: ReplyFate::Dropped, _held: None, timing });
        }
        let payment = Payment::of(&name, arguments);
        self.queue.push_back(Debt { payment, fate: reply, _held: held, timing });
    }

    /// Settles one frame of the server. Returns what to do with it.
    pub(super) fn settle(&mut self, frame: &[u8]) -> ReplyFate {
        let message = self.message_kind(frame);
        let Some(debt) = self.queue.front_mut() else { return ReplyFate::Passed };
        let fate = debt.fate;
        match (&mut debt.payment, message) {
            (Payment::Confirmations { of, left }, Some(kind)) if of == kind => {
                *left -= 1;
                if *left > 0 {
                    return fate;
                }
            }
            (_, Some(_)) => return ReplyFate::Passed,
            (_, None) => {}
        }
        self.queue.pop_front();
        fate
    }

    /// Whether a command that was held is not answered yet.
    pub(super) fn is_late(&self) -> bool {
        self.queue.iter().any(|debt| debt.timing == Timing::Late)
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

impl Payment {
    fn of(name: &[u8], arguments: &[Vec<u8>]) -> Self {
        if !is_subscription(name) {
            return Self::Reply;
        }
        // Without channels, one for each subscribed channel and at least one. Further ones confirm nothing owed, and
        // are forwarded.
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
    use crate::proxy::rules::Then;

    fn owed(requests: &[(&str, usize, ReplyFate)]) -> Owed {
        let mut owed = Owed::default();
        for &(line, copies, reply) in requests {
            let arguments: Vec<_> = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
            owed.enter(&arguments, copies, reply, None);
        }
        owed
    }

    const LOST: ReplyFate = ReplyFate::Swallowed(Then::Cut);

    #[test]
    fn the_second_of_two_replies_is_the_clients() {
        let mut owed = owed(&[("SET k v", 2, ReplyFate::Passed), ("GET k", 1, LOST)]);
        assert_eq!(owed.settle(b"+OK\r\n"), ReplyFate::Dropped);
        assert_eq!(owed.settle(b"+OK\r\n"), ReplyFate::Passed);
        assert_eq!(owed.settle(b"$1\r\nv\r\n"), LOST);
    }

    #[test]
    fn messages_pay_for_no_command() {
        for (first, reply, message) in [
            ("HELLO 3", &b"%0\r\n"[..], &b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n"[..]),
            (
                "SUBSCRIBE c",
                b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n",
                b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n",
            ),
        ] {
            let mut owed = owed(&[(first, 1, ReplyFate::Passed), ("PING", 1, LOST)]);
            assert_eq!(owed.settle(reply), ReplyFate::Passed);
            assert_eq!(owed.settle(message), ReplyFate::Passed);
            assert_eq!(owed.settle(b"+PONG\r\n"), LOST);
        }
    }

    #[test]
    fn a_subscription_is_paid_by_its_confirmations_or_by_an_error() {
        let requests = [("SUBSCRIBE a b", 1, ReplyFate::Passed), ("PING", 1, LOST)];
        let mut confirmed = owed(&requests);
        confirmed.settle(b">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n");
        confirmed.settle(b">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nx\r\n");
        confirmed.settle(b">3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:2\r\n");
        assert_eq!(confirmed.settle(b"+PONG\r\n"), LOST);

        let mut refused = owed(&requests);
        refused.settle(b"-NOPERM no\r\n");
        assert_eq!(refused.settle(b"+PONG\r\n"), LOST);
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
