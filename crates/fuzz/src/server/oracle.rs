//! What the server has said of which lock.
//!
//! The bytes of each connection are parsed as the client parses them, and each reply is matched with its request by its
//! place, as the protocol does. A message that only claims to confirm a subscription is no reply to another request.
//! A frame counts as a grant if any part of it could be one: an oracle that is too generous misses a defect, one that
//! is too strict reports one that is none.

use super::frames;
use leasehold_core::{FencingToken, Notification, SessionId};
use redis::{PushKind, Value};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Parts of the arguments that carry a nonce are at least as long.
const NONCE_LEN: usize = 24;

/// All connections of a run.
#[derive(Debug, Clone, Default)]
pub(super) struct Oracle(Arc<Mutex<Vec<Arc<Mutex<Connection>>>>>);

/// What one connection has carried.
#[derive(Debug, Default)]
struct Connection {
    requests: Vec<Request>,
    sent: Vec<u8>,
}

#[derive(Debug, Clone)]
struct Request {
    command: String,
    arguments: Vec<String>,
    /// How much the server had sent by then.
    sent_before: usize,
}

impl Request {
    /// Whether messages confirm it.
    fn confirmed(&self) -> bool {
        self.command.ends_with("SUBSCRIBE")
    }

    /// How many replies it has.
    fn replies(&self) -> usize {
        if self.confirmed() { self.arguments.len() } else { 1 }
    }
}

/// One connection.
#[derive(Debug, Clone)]
pub(super) struct ConnectionRecord(Arc<Mutex<Connection>>);

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ConnectionRecord {
    /// The client has sent a request.
    pub(super) fn requested(&self, arguments: &[Vec<u8>]) {
        let mut words = arguments.iter().map(|word| String::from_utf8_lossy(word).into_owned());
        let command = words.next().unwrap_or_default().to_ascii_uppercase();
        let mut connection = lock(&self.0);
        let sent_before = connection.sent.len();
        connection.requests.push(Request { command, arguments: words.collect(), sent_before });
    }

    /// The server sends bytes.
    pub(super) fn sent(&self, bytes: &[u8]) {
        lock(&self.0).sent.extend_from_slice(bytes);
    }

    /// A nonce that the client has sent on this connection: the last one.
    pub(super) fn last_nonce(&self) -> Option<String> {
        let connection = lock(&self.0);
        let mut words = connection.requests.iter().rev().flat_map(|request| &request.arguments);
        words
            .find_map(|word| {
                word.split('\n')
                    .find(|part| part.len() == NONCE_LEN && part.parse::<leasehold_core::Nonce>().is_ok())
            })
            .map(str::to_owned)
    }

    /// A channel to which the client has subscribed on this connection: the last one.
    pub(super) fn last_channel(&self) -> Option<String> {
        let connection = lock(&self.0);
        let subscribed = connection.requests.iter().rev().find(|request| request.command == "SUBSCRIBE");
        subscribed.and_then(|request| request.arguments.last().cloned())
    }
}

impl Oracle {
    /// Adds a connection.
    pub(super) fn connection(&self) -> ConnectionRecord {
        let connection = Arc::<Mutex<Connection>>::default();
        lock(&self.0).push(Arc::clone(&connection));
        ConnectionRecord(connection)
    }

    /// What was said so far, for people.
    pub(super) fn transcript(&self) -> String {
        let connections: Vec<_> = lock(&self.0)
            .iter()
            .map(|connection| {
                let connection = lock(connection);
                transcript(&connection.requests, &connection.sent)
            })
            .collect();
        connections.join("\n")
    }

    /// Panics unless the server has said that the lock is held by that token.
    pub(super) fn check(&self, name: &str, fence: FencingToken) {
        let connections: Vec<_> = lock(&self.0)
            .iter()
            .map(|connection| {
                let connection = lock(connection);
                (connection.requests.clone(), connection.sent.clone())
            })
            .collect();
        let asked: Vec<&Request> = connections.iter().flat_map(|(requests, _)| requests).collect();
        let mut is_granted = false;
        for (requests, sent) in &connections {
            for_each_said(requests, sent, |said| {
                is_granted |= match said {
                    Said::Reply(requests, value) => {
                        requests.iter().any(|request| is_about(request, name))
                            && tokens(&value).contains(&fence)
                    }
                    Said::Message(text) => is_grant(&asked, &text, name, fence),
                };
            });
        }
        if !is_granted {
            let said: Vec<_> =
                connections.iter().map(|(requests, sent)| transcript(requests, sent)).collect();
            panic!(
                "the client believes that it holds `{name}` by {fence}, which the server never said:
{}",
                said.join(
                    "
"
                )
            );
        }
    }
}

/// One thing that the server has said.
enum Said<'a> {
    /// A reply, and the requests that it may answer.
    Reply(&'a [&'a Request], Value),
    Message(Vec<u8>),
}

/// What was said on a connection, up to what no client can parse, with the place of each reply among the requests.
///
/// The client drops a reply if it waits for none. Whether it does at that moment is not known for a request that was on its way,
/// so after such a reply each of the next ones may answer any later request of the connection.
fn for_each_said(requests: &[Request], sent: &[u8], mut each: impl FnMut(Said<'_>)) {
    // A request for several channels is answered by as many messages.
    let places: Vec<&Request> =
        requests.iter().flat_map(|of| std::iter::repeat_n(of, of.replies())).collect();
    let (mut at, mut place, mut dropped, mut confirmed) = (0, 0, 0, 0);
    while let Some(length) = frames::length(&sent[at..]) {
        let Ok(value) = redis::parse_redis_value(&sent[at..at + length]) else { return };
        let is_confirmation = match &value {
            Value::Push { kind: PushKind::Message, data } => {
                if let [_, Value::BulkString(text)] = data.as_slice() {
                    each(Said::Message(text.clone()));
                }
                at += length;
                continue;
            }
            Value::Push { kind: PushKind::Subscribe | PushKind::Unsubscribe, .. } => true,
            Value::Push { .. } => {
                at += length;
                continue;
            }
            _ => false,
        };
        let waiting = places.get(place).filter(|request| request.sent_before <= at);
        if is_confirmation {
            let requested = places.iter().filter(|of| of.confirmed() && of.sent_before <= at).count();
            let is_requested = confirmed < requested;
            confirmed += usize::from(is_requested);
            if !waiting.is_some_and(|request| request.confirmed()) {
                // The client takes it for the reply that is due, but not one that it has not requested.
                dropped += usize::from(is_requested);
                at += length;
                continue;
            }
        }
        let end = if dropped == 0 { (place + 1).min(places.len()) } else { places.len() };
        each(Said::Reply(places.get(place..end).unwrap_or_default(), value));
        if waiting.is_some() {
            place += 1;
        } else {
            dropped += 1;
        }
        at += length;
    }
}

/// What was said on a connection, for people.
fn transcript(requests: &[Request], sent: &[u8]) -> String {
    let mut lines = vec![format!("a connection with {} requests", requests.len())];
    for_each_said(requests, sent, |said| {
        lines.push(match said {
            Said::Reply(requests, value) => {
                let to = |request: &&Request| {
                    let lock = request.arguments.iter().find(|word| word.starts_with("job"));
                    format!("{} {}", request.command, lock.map_or("", String::as_str))
                };
                let value = format!("{value:?}").chars().take(160).collect::<String>();
                format!("  {}: {value}", requests.iter().map(to).collect::<Vec<_>>().join(" or "))
            }
            Said::Message(text) => format!("  message: {}", text.escape_ascii()),
        });
    });
    lines.join("\n")
}

fn is_about(request: &Request, name: &str) -> bool {
    request.arguments.iter().any(|word| word == name)
}

/// Whether a message grants the lock to a request that the client has sent for it.
fn is_grant(asked: &[&Request], text: &[u8], name: &str, fence: FencingToken) -> bool {
    let to = SessionId::from_random([0; 12]);
    let Ok(Notification::Grant { nonce, fence: granted, .. }) = Notification::parse(to, text) else {
        return false;
    };
    let nonce = nonce.to_string();
    let has_nonce = |request: &&Request| request.arguments.iter().any(|word| word.contains(&nonce));
    granted == fence && asked.iter().any(|request| is_about(request, name) && has_nonce(request))
}

/// All fencing tokens that a reply could grant or reserve.
fn tokens(value: &Value) -> BTreeSet<FencingToken> {
    let mut found = BTreeSet::new();
    collect(value, &mut found);
    found
}

fn collect(value: &Value, found: &mut BTreeSet<FencingToken>) {
    match value {
        Value::BulkString(text) => found.extend(std::str::from_utf8(text).ok().and_then(token)),
        Value::SimpleString(text) => found.extend(token(text)),
        Value::Array(values) => {
            match values.as_slice() {
                [word, Value::Int(fence), ..] if is_word(word, b"granted") => {
                    found.extend(u64::try_from(*fence).map(FencingToken::new));
                }
                // Tokens that are reserved for the tasks of a process.
                [Value::Int(first), Value::Int(count), Value::Int(_)] => {
                    let (first, count) =
                        (u64::try_from(*first).unwrap_or(0), u64::try_from(*count).unwrap_or(0));
                    found.extend((0..count.min(1024)).map(|at| FencingToken::new(first.saturating_add(at))));
                }
                _ => {}
            }
            for value in values {
                collect(value, found);
            }
        }
        _ => {}
    }
}

fn token(text: &str) -> Option<FencingToken> {
    text.parse().ok().map(FencingToken::new)
}

fn is_word(value: &Value, word: &[u8]) -> bool {
    match value {
        Value::BulkString(text) => text == word,
        Value::SimpleString(text) => text.as_bytes() == word,
        _ => false,
    }
}
