//! The embedded Redis is true: it does what the model does, and what a real server does, also when a script is cut off.
//!
//! A real server is stopped by a text around the script, whose `redis.call` fails from some command on.

use super::Broken;
use super::number;
use super::reach::Play;
use super::site::{MAILBOXES, Site, Spoken};
use crate::store::redis::embedded::{Content, EmbeddedRedis, Entry, Ran, WHOLE};
use leasehold_core::{Kind, SessionOp};
use leasehold_testkit::conformance::WorkloadStep;
use leasehold_testkit::{FrozenClock, RedisServer, RespConnection, Value};
use std::io;

/// Without a server these are cheap.
const SEQUENCES: u64 = 2_000;
const SEQUENCES_AT_A_SERVER: u64 = 200;
const STEPS: u64 = 20;

#[test]
fn the_embedded_redis_does_what_the_model_does() {
    for kind in Kind::ALL {
        let mut site = Site::new(kind);
        for seed in number("LEASEHOLD_SEED").map_or(0..SEQUENCES, |seed| seed..seed + 1) {
            agrees_with_the_model(&mut site, seed).unwrap_or_else(|Broken(what)| panic!("{what}"));
        }
    }
}

/// Before 7.0 no server knows its number, nor GT.
#[test]
fn without_gt_the_scripts_do_what_the_model_does() {
    let mut site = Site::edited(Kind::Mutex, &[("redis.REDIS_VERSION_NUM and 'GT'", "nil")]);
    for seed in number("LEASEHOLD_SEED").map_or(0..SEQUENCES / 4, |seed| seed..seed + 1) {
        agrees_with_the_model(&mut site, seed).unwrap_or_else(|Broken(what)| panic!("{what}"));
    }
}

/// Compares replies, keys, expiries and messages after each of some random operations, none of which is cut off.
pub(super) fn agrees_with_the_model(site: &mut Site, seed: u64) -> Result<(), Broken> {
    let mut play = Play::new(site, seed);
    play.reach(false).map_err(|Broken(what)| Broken(format!("LEASEHOLD_SEED={seed}\n{what}")))
}

#[test]
fn the_embedded_redis_does_what_a_server_does() -> io::Result<()> {
    let mut server = Server::start()?;
    Kind::ALL.into_iter().try_for_each(|kind| server.agrees(kind))
}

#[test]
fn values_become_replies_as_at_a_server() -> io::Result<()> {
    let server = RedisServer::start()?;
    let mut connection = server.connect()?;
    let embedded = EmbeddedRedis::new();
    embedded.with(|keyspace| keyspace.set_now_us(1_762_000_000_000_000));
    for text in [
        "return {1, -2.9, 3.9, 'four', true, false, {5, {}}, nil, 6}",
        "return 9007199254740991",
        "return nil",
        "return false",
        "return {ok = 'FINE'}",
        "return redis.status_reply('FINE')",
        "return redis.error_reply('-CODE of an error')",
        "return redis.error_reply('CODE of an error')",
        "return redis.error_reply('word')",
        "return {err = 'CODE of an error'}",
        "return {[1] = 1, [3] = 3}",
        "return redis.call('SET', KEYS[1], 'x')",
        "return redis.call('SET', KEYS[1], 'y', 'NX', 'PX', '1000')",
        "return redis.call('SET', KEYS[2] or KEYS[1], 'y', 'NX')",
        "return redis.call('GET', KEYS[1])",
        "return redis.call('TYPE', KEYS[1])",
        "return redis.pcall('HGET', KEYS[1], 'x').err",
        "return redis.pcall('HSET', KEYS[1], 'x', 'y')",
        "return {pcall(redis.call, 'HVALS', KEYS[1])}",
        "local _, raised = pcall(redis.call, 'HDEL', KEYS[1], 'x') return raised",
        "return redis.call('PTTL', KEYS[1])",
        "return redis.pcall('RESTORE', KEYS[1], '1', 'x').err",
        "return redis.pcall('SET', KEYS[1], 'x', 'PX', '0').err",
        "return redis.pcall('PEXPIRE', KEYS[1], 'x').err",
        "return redis.call('MGET', KEYS[1], KEYS[1])",
        "return redis.call('PEXPIRE', KEYS[1], '1000', 'GT')",
        "return redis.call('PEXPIRE', KEYS[1], '90000000', 'GT')",
        "return redis.call('PEXPIRE', KEYS[1], '-1')",
        "return redis.call('GET', KEYS[1])",
        "return redis.call('PTTL', KEYS[1])",
        "return redis.call('TYPE', KEYS[1])",
        "return redis.pcall('RESTORE', KEYS[1], '1', 'not what DUMP gives').err",
        "return redis.pcall('RESTORE', KEYS[1], '-1', 'x').err",
        "return redis.call('HSET', KEYS[1], 'a', '1', 'b', '2', 'a', '3')",
        "return redis.call('HMGET', KEYS[1], 'a', 'c', 'b')",
        "return redis.call('HLEN', KEYS[1])",
        "return redis.call('HDEL', KEYS[1], '')",
        "return redis.call('HDEL', KEYS[1], 'a', 'c')",
        "return redis.call('HGETALL', KEYS[1])",
        "return redis.call('HINCRBY', KEYS[1], 'b', '2')",
        "return redis.pcall('HINCRBY', KEYS[1], 'b', 'x').err",
        "return redis.pcall('RESTORE', KEYS[1], '1', 'x', 'REPLACE').err",
        "return redis.call('HDEL', KEYS[1], 'a', 'c', 'b')",
        "return redis.call('HGETALL', KEYS[1])",
        "return redis.call('HLEN', KEYS[1])",
        "return redis.call('TYPE', KEYS[1])",
        "return redis.sha1hex(ARGV[1])",
        "return redis.call('ZADD', KEYS[1], '1762000000123', 'a')",
        "return redis.call('ZADD', KEYS[1], '1762000000124', 'a')",
        "return redis.call('ZADD', KEYS[1], '7', 'b')",
        "return redis.pcall('HMGET', KEYS[1], 'x').err",
        "return redis.call('TYPE', KEYS[1])",
        "return redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(7')",
        "return redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(8')",
        "return redis.call('ZREM', KEYS[1], 'b')",
        "return redis.call('ZREM', KEYS[1], 'a')",
        "return redis.call('TYPE', KEYS[1])",
        "return {pcall(function() return undefined end) == false, pcall(function() undefined = 1 end) == false}",
        "return {#ARGV, ARGV[1], type(ARGV[2]), KEYS[2]}",
    ] {
        let call = ["EVAL", text, "1", "key", "a\0b", "7"];
        let expected = connection.call(&call)?;
        let [keys, args] = [&call[3..4], &call[4..]].map(bytes);
        let found = embedded.eval(text, &keys, &args, WHOLE);
        assert_eq!(found, Ran::Whole(expected), "{text}");
    }
    Ok(())
}

fn bytes(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// A real server, by a clock of ours.
struct Server {
    clock: FrozenClock,
    connection: RespConnection,
    /// Hears all messages.
    hearer: RespConnection,
    /// Last, so that it outlives its clients.
    _process: RedisServer,
}

impl Server {
    fn start() -> io::Result<Self> {
        let clock = FrozenClock::new(0)?;
        let server = RedisServer::builder().clock(&clock).start()?;
        let mut hearer = server.connect()?;
        hearer.call(&["PSUBSCRIBE", &format!("{MAILBOXES}*")])?;
        hearer.call(&["PSUBSCRIBE", "redisson_lock__channel:*"])?;
        hearer.call(&["PSUBSCRIBE", "leasehold:{*}:leader:*"])?;
        hearer.call(&["PSUBSCRIBE", "leasehold:{*}:told:*"])?;
        Ok(Self { connection: server.connect()?, hearer, clock, _process: server })
    }

    /// Compares the two over random operations on a lock of that kind.
    fn agrees(&mut self, kind: Kind) -> io::Result<()> {
        let mut site = Site::new(kind);
        let mut cuts = 0;
        for seed in number("LEASEHOLD_SEED").map_or(0..SEQUENCES_AT_A_SERVER, |seed| seed..seed + 1) {
            let mut play = Play::new(&mut site, seed);
            for step in 0..STEPS {
                let what = format!("LEASEHOLD_SEED={seed}, step {step}");
                let sessions =
                    play.site.sessions().unwrap_or_else(|Broken(broken)| panic!("{what}: {broken}"));
                let by_us = play.workload.time_us(&play.state, &sessions, play.now_us);
                play.set_now_us(play.now_us.saturating_add_signed(by_us));
                self.clock.set_us(play.now_us.cast_signed())?;
                self.compare_keys(&play, &what)?;
                match play.workload.happening(&play.state) {
                    WorkloadStep::Sent(op) | WorkloadStep::SentTwice(op) => {
                        let spoken = play.site.spoken(&op);
                        cuts += u32::from(self.compare(&mut play, &spoken, &format!("{what}: {op:?}"))?);
                    }
                    WorkloadStep::Attended(SessionOp::Beat(beat)) => {
                        let spoken = play.site.spoken_beat(&beat);
                        cuts += u32::from(self.compare(&mut play, &spoken, &format!("{what}: {beat:?}"))?);
                    }
                    WorkloadStep::Attended(SessionOp::End(session)) => {
                        play.site.end_session(session);
                        let (record, index) = (play.site.space.session(session), play.site.space.sessions());
                        self.connection.call(&["DEL", &record])?;
                        self.connection.call(&["ZREM", &index, &session.to_string()])?;
                    }
                    WorkloadStep::Attended(_) => {}
                    WorkloadStep::ForeignWrite(stranger) => {
                        play.site.meddle(stranger, &play.state);
                        for command in stranger.commands(&play.site.keys, &play.state) {
                            self.connection.call(&command)?;
                        }
                    }
                }
                self.compare_keys(&play, &what)?;
                // What is likely next is told by the state. Reading it back looks at the whole record, too.
                play.state = play.site.state().unwrap_or_else(|Broken(broken)| panic!("{what}: {broken}"));
            }
            for key in play.site.all_keys() {
                self.connection.call(&["DEL", &key])?;
            }
        }
        assert!(cuts > 0, "no script was cut off");
        Ok(())
    }

    /// Runs a script on both, now and then cut off, and compares what it answers and tells; says whether it was.
    fn compare(&mut self, play: &mut Play<'_>, spoken: &Spoken, what: &str) -> io::Result<bool> {
        let random = play.workload.random();
        let commands =
            if random.below(2) == 0 { WHOLE } else { usize::try_from(random.below(10)).unwrap_or(0) };
        let what = format!("{what} for {commands} commands");
        let found = play.site.redis.eval(&spoken.text, &spoken.keys, &spoken.args, commands);
        let expected = self.eval(spoken, commands)?;
        assert_eq!(found, expected, "{what}");
        let told = play.site.redis.with(|keyspace| std::mem::take(&mut keyspace.messages));
        assert_eq!(told, self.heard()?, "{what}");
        Ok(found == Ran::CutOff)
    }

    fn eval(&mut self, spoken: &Spoken, commands: usize) -> io::Result<Ran> {
        let number = spoken.keys.len().to_string().into_bytes();
        let mut call = vec![b"EVAL".to_vec(), cut(&spoken.text, commands).into_bytes(), number];
        call.extend(spoken.keys.iter().chain(&spoken.args).cloned());
        Ok(match self.connection.call(&call)? {
            Value::Error(error) if error.contains("cut off") => Ran::CutOff,
            value => Ran::Whole(value),
        })
    }

    /// All messages since the last call: what was published before the PING comes before its answer.
    fn heard(&mut self) -> io::Result<Vec<(String, String)>> {
        self.hearer.send(&["PING"])?;
        let mut heard = Vec::new();
        loop {
            let message = self.hearer.receive()?;
            match message.elements() {
                [kind, _, channel, text] if kind.text() == Some("pmessage") => {
                    let [channel, text] =
                        [channel, text].map(|text| text.text().unwrap_or_default().to_owned());
                    heard.push((channel, text));
                }
                _ => return Ok(heard),
            }
        }
    }

    fn compare_keys(&mut self, play: &Play<'_>, what: &str) -> io::Result<()> {
        for key in play.site.all_keys() {
            let found = play.site.redis.keyspace().entry(&key).cloned();
            assert_eq!(found, self.entry(&key, play.now_us / 1000)?, "{what}: `{key}`");
        }
        Ok(())
    }

    fn entry(&mut self, key: &str, now_ms: u64) -> io::Result<Option<Entry>> {
        let content = match self.connection.call(&["TYPE", key])?.text() {
            Some("string") => Content::Text(of_bulk(&self.connection.call(&["GET", key])?)),
            Some("hash") => {
                let fields = self.connection.call(&["HGETALL", key])?;
                let pairs = fields.elements().chunks(2);
                Content::Hash(pairs.map(|pair| (of_bulk(&pair[0]), of_bulk(&pair[1]))).collect())
            }
            Some("list") => {
                let items = self.connection.call(&["LRANGE", key, "0", "-1"])?;
                Content::List(items.elements().iter().map(of_bulk).collect())
            }
            Some("zset") => {
                let members = self.connection.call(&["ZRANGE", key, "0", "-1", "WITHSCORES"])?;
                let pairs = members.elements().chunks(2);
                let score = |score: &Value| score.text().and_then(|score| score.parse().ok());
                Content::Sorted(
                    pairs.filter_map(|pair| Some((of_bulk(&pair[0]), score(&pair[1])?))).collect(),
                )
            }
            _ => return Ok(None),
        };
        let ttl = self.connection.call(&["PTTL", key])?.integer();
        let expires_ms = ttl.and_then(|ttl| u64::try_from(ttl).ok()).map(|ttl| now_ms + ttl);
        Ok(Some(Entry { content, expires_ms }))
    }
}

fn of_bulk(value: &Value) -> Vec<u8> {
    value.bytes().unwrap_or_default().to_vec()
}

/// A script whose commands fail after so many, and which says so in the end, also where it went on without.
fn cut(text: &str, commands: usize) -> String {
    let commands = if commands == WHOLE { -1 } else { i64::try_from(commands).unwrap_or(-1) };
    format!(
        "local server, left, is_cut = redis, {commands}, false
        local function cut(command)
          return function(...)
            is_cut = is_cut or left == 0
            if is_cut then error('cut off') end
            left = left - 1
            return command(...)
          end
        end
        local redis = {{
          call = cut(server.call), pcall = cut(server.pcall), sha1hex = server.sha1hex,
          REDIS_VERSION_NUM = server.REDIS_VERSION_NUM,
        }}
        local function script()
          {text}
        end
        local reply = script()
        return is_cut and server.error_reply('cut off') or reply"
    )
}
