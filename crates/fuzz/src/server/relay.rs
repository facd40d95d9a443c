//! One connection between the client and the model's server, and what the input does to it.

use super::frames;
use super::oracle::ConnectionRecord;
use crate::input::{Input, NUMBERS};
use leasehold_sim::ModelServer;
use leasehold_testkit::{FrameSplitter, arguments};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::time::sleep;

/// How much an endless reply has.
const ENDLESS: usize = 96 << 20;
/// How many messages arrive at once.
const FLOOD: usize = 20_000;

/// What happens to the replies, on all connections of a run.
#[derive(Debug, Clone)]
pub(super) struct Script(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    changes: Changes,
    /// All honest replies so far, one behind the other.
    replied: Vec<u8>,
}

#[derive(Debug)]
enum Changes {
    /// The input, and how many replies pass before it begins.
    Faults(Vec<u8>, usize, u8),
    /// What is sent in place of the replies to scripts, or of all replies; and how much of it was.
    Replies { bytes: Vec<u8>, sent: usize, all: bool },
}

/// What becomes of a reply.
enum Step {
    Send(Vec<u8>),
    Delay(Duration, Vec<u8>),
    /// The connection ends behind this.
    Close(Vec<u8>),
    /// Nothing is sent any more, and the connection stays open.
    Silence,
    /// A reply that begins like this, and has no end.
    Endless(Vec<u8>),
}

impl Script {
    /// Honest replies, changed.
    pub(super) fn faults(mut input: Input<'_>) -> Self {
        let skipped = input.byte();
        Self::new(Changes::Faults(input.rest().to_vec(), 0, skipped))
    }

    /// Other replies.
    pub(super) fn replies(mut input: Input<'_>) -> Self {
        let all = input.byte() == b'A';
        Self::new(Changes::Replies { bytes: input.rest().to_vec(), sent: 0, all })
    }

    fn new(changes: Changes) -> Self {
        Self(Arc::new(Mutex::new(State { changes, replied: Vec::new() })))
    }

    /// The first byte of such a script, and the honest replies to scripts.
    pub(super) fn replied(&self) -> Vec<u8> {
        [b"S", &*self.lock().replied].concat()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What becomes of an honest frame.
    fn step(&self, frame: Vec<u8>, is_of_script: bool, record: &ConnectionRecord) -> Step {
        let mut state = self.lock();
        if is_of_script {
            state.replied.extend_from_slice(&frame);
        }
        match &mut state.changes {
            Changes::Faults(bytes, at, skipped) => {
                if *skipped > 0 {
                    *skipped -= 1;
                    return Step::Send(frame);
                }
                let mut input = Input::new(&bytes[*at..]);
                let step = fault(frame, &mut input, record);
                *at = bytes.len() - input.rest().len();
                step
            }
            Changes::Replies { bytes, sent, all } => {
                let is_push = frame.first() == Some(&b'>');
                if *sent == bytes.len() || is_push || !(*all || is_of_script) {
                    return Step::Send(frame);
                }
                let mut splitter = FrameSplitter::replies();
                splitter.push(&bytes[*sent..]);
                let next = splitter.next_frame().ok().flatten();
                // What is no frame is sent as it is.
                let next = next.unwrap_or_else(|| bytes[*sent..].to_vec());
                *sent += next.len();
                Step::Send(next)
            }
        }
    }
}

/// The next fault.
fn fault(frame: Vec<u8>, input: &mut Input<'_>, record: &ConnectionRecord) -> Step {
    if input.is_empty() {
        return Step::Send(frame);
    }
    match input.below(20) {
        0 | 1 => Step::Send(frame),
        2..=5 => Step::Send(frames::changed(&frame, input)),
        6 => Step::Send(frames::value(input, 0)),
        7 => Step::Send(input.bytes().to_vec()),
        8 => Step::Send(Vec::new()),
        9 => Step::Send([&*frame, &frame].concat()),
        10 => Step::Send([&*message(input, record), &frame].concat()),
        11 => Step::Send([&*frame, &message(input, record)].concat()),
        12 => Step::Send([&*confirmation(input, record), &frame].concat()),
        13 => Step::Delay(Duration::from_millis(20 * u64::from(input.byte())), frame),
        14 => Step::Close(Vec::new()),
        15 => Step::Close(frame[..input.below(frame.len())].to_vec()),
        16 => Step::Silence,
        17 => Step::Endless(endless(input)),
        18 => Step::Send([&*message(input, record).repeat(FLOOD), &frame].concat()),
        _ => Step::Send([&*frames::changed(&frame, input), &frame].concat()),
    }
}

/// A message: to the mailbox of the client, or not.
fn message(input: &mut Input<'_>, record: &ConnectionRecord) -> Vec<u8> {
    let channel = match input.below(3) {
        0 => "leasehold:mailbox:AAAAAAAAAAAAAAAA".to_owned(),
        _ => record.last_channel().unwrap_or_default(),
    };
    let nonce = match input.below(3) {
        0 => "000000000000000000000001".to_owned(),
        _ => record.last_nonce().unwrap_or_default(),
    };
    let number = input.one_of(&NUMBERS);
    let text = match input.below(6) {
        0 | 1 => format!("grant {nonce} {number}"),
        2 => format!("force_released {number}"),
        3 => format!("wanted {number}"),
        4 => "free".to_owned(),
        _ => String::from_utf8_lossy(input.bytes()).into_owned(),
    };
    let kind = input.one_of(&[&b"message"[..], b"message", b"message", b"invalidate", b"pmessage", b"x"]);
    frames::push(&[kind, channel.as_bytes(), text.as_bytes()])
}

/// What confirms a change of subscriptions that was not requested.
fn confirmation(input: &mut Input<'_>, record: &ConnectionRecord) -> Vec<u8> {
    let kinds = ["subscribe", "unsubscribe", "sunsubscribe", "ssubscribe", "punsubscribe"];
    let channel = record.last_channel().unwrap_or_else(|| "channel".to_owned());
    frames::push(&[input.one_of(&kinds).as_bytes(), channel.as_bytes(), b"1"])
}

/// The start of a reply that has no end.
fn endless(input: &mut Input<'_>) -> Vec<u8> {
    let starts =
        ["$1099511627776\r\n", "+", "*2147483647\r\n", "=1099511627776\r\ntxt:", "!1099511627776\r\n", "-"];
    input.one_of(&starts).as_bytes().to_vec()
}

/// Carries one connection until one of its ends is closed.
pub(super) async fn relay(
    client: DuplexStream,
    server: ModelServer,
    script: Script,
    record: ConnectionRecord,
) {
    let (near, far) = duplex(1 << 16);
    let serve = async move { server.serve(far).await };
    let carry = carry(client, near, &script, &record);
    // Either ends the other. An error is the end of the client's side.
    tokio::select! {
        _ = serve => {}
        _ = carry => {}
    }
}

async fn carry(
    client: DuplexStream,
    server: DuplexStream,
    script: &Script,
    record: &ConnectionRecord,
) -> io::Result<()> {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let asked = Mutex::new(std::collections::VecDeque::new());
    let requests = async {
        let (mut requests, mut chunk) = (FrameSplitter::requests(), [0; 4096]);
        loop {
            let length = from_client.read(&mut chunk).await?;
            if length == 0 {
                return Ok(());
            }
            requests.push(&chunk[..length]);
            while let Some(frame) = requests.next_frame().map_err(io::Error::other)? {
                let arguments = arguments(&frame);
                let is_script = arguments.first().is_some_and(|word| word.eq_ignore_ascii_case(b"EVALSHA"));
                asked.lock().unwrap_or_else(PoisonError::into_inner).push_back(is_script);
                record.requested(&arguments);
                to_server.write_all(&frame).await?;
            }
        }
    };
    let replies = async {
        let (mut replies, mut chunk) = (FrameSplitter::replies(), [0; 4096]);
        loop {
            let length = from_server.read(&mut chunk).await?;
            if length == 0 {
                return Ok(());
            }
            replies.push(&chunk[..length]);
            while let Some(frame) = replies.next_frame().map_err(io::Error::other)? {
                let is_message = frame.starts_with(b">3\r\n$7\r\nmessage");
                let of_script = !is_message
                    && asked.lock().unwrap_or_else(PoisonError::into_inner).pop_front().unwrap_or(false);
                let bytes = match script.step(frame, of_script, record) {
                    Step::Send(bytes) => bytes,
                    Step::Delay(by, bytes) => {
                        sleep(by).await;
                        bytes
                    }
                    Step::Close(bytes) => {
                        record.sent(&bytes);
                        to_client.write_all(&bytes).await?;
                        return Ok(());
                    }
                    Step::Silence => std::future::pending().await,
                    Step::Endless(start) => {
                        to_client.write_all(&start).await?;
                        return send_endlessly(&mut to_client, &start).await;
                    }
                };
                record.sent(&bytes);
                to_client.write_all(&bytes).await?;
            }
        }
    };
    tokio::select! {
        done = requests => done,
        done = replies => done,
    }
}

/// Sends the rest of a reply without an end, and then nothing.
async fn send_endlessly(
    to_client: &mut (impl tokio::io::AsyncWrite + Unpin),
    start: &[u8],
) -> io::Result<()> {
    let chunk = if start.first() == Some(&b'*') { b":1\r\n".repeat(4096) } else { vec![b'x'; 1 << 14] };
    for _ in 0..ENDLESS / chunk.len() {
        to_client.write_all(&chunk).await?;
    }
    std::future::pending().await
}
