//! The requests that clients send, by kind, as MONITOR shows them.
//!
//! `INFO commandstats` counts commands inside scripts too, and does not say which script a call ran. MONITOR does both,
//! but slows the server down: nothing is timed while it runs.
//!
//! A call of a script is classified by its keys, which the layout of the keys fixes: those of a session, those of a lock and
//! its record, or those of locks alone.

use anyhow::{Context, Result, bail};
use leasehold_testkit::{RedisServer, RespConnection};
use serde::Serialize;
use std::io::ErrorKind;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// How long the lines before a mark may take.
const MARK_TIMEOUT: Duration = Duration::from_secs(120);
/// The message of an ECHO that separates what was counted from what comes next.
const MARK: &str = "end of the counted requests";
/// Commands of the benchmark.
const IGNORED: [&str; 7] = ["info", "echo", "scan", "memory", "monitor", "dbsize", "config"];

/// How many requests of each kind clients have sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct RequestCounts {
    /// Scripts that acquire or release a lock.
    pub(crate) lock: u64,
    /// Scripts that extend locks.
    pub(crate) renewal: u64,
    /// Scripts that begin a session, in a slot of a cluster.
    pub(crate) session: u64,
    /// Scripts that keep a session alive.
    pub(crate) heartbeat: u64,
    /// Commands that subscribe or unsubscribe.
    pub(crate) subscribe: u64,
    /// Everything else.
    pub(crate) other: u64,
}

/// Reads the requests of several servers until it is dropped.
pub(crate) struct Monitor<'a> {
    /// The counts up to the next mark, server by server.
    counting: Vec<(&'a RedisServer, Receiver<Result<RequestCounts>>)>,
}

impl<'a> Monitor<'a> {
    /// Starts to count.
    pub(crate) fn start(servers: &[&'a RedisServer]) -> Result<Self> {
        let start = |server: &&'a RedisServer| {
            let mut monitor = server.connect()?;
            monitor.call(&["MONITOR"])?.ok()?;
            let (sender, counts) = channel();
            // It ends with the server, or when nothing receives its counts.
            thread::spawn(move || while sender.send(count_to_mark(&mut monitor)).is_ok() {});
            Ok((*server, counts))
        };
        Ok(Self { counting: servers.iter().map(start).collect::<Result<_>>()? })
    }

    /// The requests since the start, or since the last call.
    pub(crate) fn take(&mut self) -> Result<RequestCounts> {
        let mut sum = RequestCounts::default();
        for (server, counts) in &self.counting {
            server.cli(&["ECHO", MARK])?.ok()?;
            sum.add(counts.recv_timeout(MARK_TIMEOUT).context("MONITOR did not show a mark")??);
        }
        Ok(sum)
    }
}

impl RequestCounts {
    pub(crate) fn total(self) -> u64 {
        let Self { lock, renewal, session, heartbeat, subscribe, other } = self;
        lock + renewal + session + heartbeat + subscribe + other
    }

    fn add(&mut self, others: Self) {
        self.lock += others.lock;
        self.renewal += others.renewal;
        self.session += others.session;
        self.heartbeat += others.heartbeat;
        self.subscribe += others.subscribe;
        self.other += others.other;
    }

    /// Counts a command that a client has sent.
    fn count(&mut self, command: &[String]) {
        let Some(name) = command.first().map(|name| name.to_ascii_lowercase()) else { return };
        match name.as_str() {
            name if IGNORED.contains(&name) => {}
            "evalsha" | "eval" => *self.of_script(command) += 1,
            "subscribe" | "unsubscribe" | "ssubscribe" | "sunsubscribe" => self.subscribe += 1,
            _ => self.other += 1,
        }
    }

    /// The count of a script's kind.
    fn of_script(&mut self, command: &[String]) -> &mut u64 {
        let count = command.get(2).and_then(|count| count.parse().ok()).unwrap_or(0);
        let (keys, arguments) =
            command.get(3..).unwrap_or_default().split_at_checked(count).unwrap_or_default();
        let is_session = |key: &String| key.contains("leasehold:{sessions}") || key.contains("}:session:");
        match keys.first() {
            Some(first) if is_session(first) => {
                // The fourth argument tells a session's first heartbeat.
                let is_first = arguments.get(3).is_some_and(|begin| begin == "1");
                if is_first { &mut self.session } else { &mut self.heartbeat }
            }
            Some(_) if !keys.iter().any(|key| key.contains("leasehold:{")) => &mut self.renewal,
            Some(_) => &mut self.lock,
            None => &mut self.other,
        }
    }
}

/// Counts the requests up to the next mark.
fn count_to_mark(monitor: &mut RespConnection) -> Result<RequestCounts> {
    let mut counts = RequestCounts::default();
    loop {
        let line = match monitor.receive() {
            Ok(line) => line,
            // A silent server.
            Err(error) if error.kind() == ErrorKind::TimedOut => continue,
            Err(error) => return Err(error.into()),
        };
        let Some(line) = line.text() else { bail!("no line of MONITOR: {line:?}") };
        let Some(command) = sent_command(line) else { continue };
        if command.get(1).is_some_and(|text| text == MARK) {
            return Ok(counts);
        }
        counts.count(&command);
    }
}

/// The command in a line of MONITOR, if a client has sent it. Commands of scripts are marked as such.
pub(crate) fn sent_command(line: &str) -> Option<Vec<String>> {
    let (source, command) = line.split_once("] ")?;
    (!source.ends_with(" lua")).then(|| arguments(command))
}

/// The arguments of a command as MONITOR shows it: in quotes, with backslashes.
fn arguments(command: &str) -> Vec<String> {
    let mut arguments = Vec::new();
    let mut chars = command.chars();
    while chars.by_ref().any(|c| c == '"') {
        let mut argument = String::new();
        while let Some(c) = chars.next().filter(|c| *c != '"') {
            argument.push(if c == '\\' { chars.next().unwrap_or(c) } else { c });
        }
        arguments.push(argument);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_monitor_is_parsed() {
        let sent = r#"1762000000.123456 [0 127.0.0.1:4711] "EVALSHA" "sha" "1" "a \"b\"" "" "back\\slash""#;
        let command = ["EVALSHA", "sha", "1", "a \"b\"", "", "back\\slash"];
        assert_eq!(sent_command(sent).expect("a client has sent it"), command);
        assert_eq!(sent_command(r#"1762000000.123456 [0 lua] "TIME""#), None);
    }

    #[test]
    fn requests_are_counted_by_kind() {
        let mut counts = RequestCounts::default();
        for command in [
            "EVALSHA sha 2 orders/1 leasehold:{orders/1}:record:mutex:orders/1 token",
            "EVALSHA sha 2 orders/1 orders/2 token 30000 token 30000",
            "EVALSHA sha 2 leasehold:{sessions}:id leasehold:{sessions} id 10000 25000 1 {} 0",
            "EVALSHA sha 2 leasehold:{3560}:session:id leasehold:{3560}:sessions id 10000 25000 - - 0",
            "SSUBSCRIBE leasehold:{3560}:mailbox:id",
            "PING",
            "INFO commandstats",
        ] {
            counts.count(&command.split(' ').map(str::to_owned).collect::<Vec<_>>());
        }
        let wanted = RequestCounts { lock: 1, renewal: 1, session: 1, heartbeat: 1, subscribe: 1, other: 1 };
        assert_eq!((counts, counts.total()), (wanted, 6));
    }
}
