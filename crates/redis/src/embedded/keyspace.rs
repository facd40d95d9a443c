//! The keys of an embedded Redis, and the commands that our scripts use: no others.
//!
//! Owns types, expiries and messages, as Redis 7.0 has them. What is not here is a panic and not an error reply, since a
//! script could go on after one: a command or an option that nobody needed so far.
//!
//! Expiry is by a clock that is set, and diligent: what is over is removed when the clock is set, and not when a command
//! comes by. Nobody can tell the difference but for a clock that goes back.

use leasehold_testkit::Value;
use std::collections::BTreeMap;

type Bytes = Vec<u8>;

/// All keys, the clock, and what was published.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Keyspace {
    now_us: u64,
    keys: BTreeMap<Bytes, Entry>,
    /// Channel and text, in order.
    pub(crate) messages: Vec<(String, String)>,
}

/// What stands at a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its value.
    pub(crate) content: Content,
    /// The last millisecond in which it is there, or `None` if it never expires.
    pub(crate) expires_ms: Option<u64>,
}

/// A value of one of the types that are needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    Text(Bytes),
    Hash(BTreeMap<Bytes, Bytes>),
    List(Vec<Bytes>),
    /// Members and their scores, which are whole numbers here.
    Sorted(BTreeMap<Bytes, u64>),
}

impl Content {
    /// As TYPE calls it.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "string",
            Self::Hash(_) => "hash",
            Self::List(_) => "list",
            Self::Sorted(_) => "zset",
        }
    }

    /// Its text if it is one, else its type.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Text(text) => String::from_utf8_lossy(text).into_owned(),
            other => other.kind().to_owned(),
        }
    }
}

impl Keyspace {
    /// Sets the clock.
    pub(crate) fn set_now_us(&mut self, now_us: u64) {
        self.now_us = now_us;
        let now_ms = self.now_ms();
        self.keys.retain(|_, entry| entry.expires_ms.is_none_or(|at_ms| now_ms <= at_ms));
    }

    /// What stands at a key.
    pub(crate) fn entry(&self, key: &str) -> Option<&Entry> {
        self.keys.get(key.as_bytes())
    }

    /// All keys.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&[u8], &Entry)> {
        self.keys.iter().map(|(key, entry)| (key.as_slice(), entry))
    }

    /// Executes one command.
    pub(crate) fn execute(&mut self, command: &[Bytes]) -> Value {
        let name = String::from_utf8_lossy(&command[0]).to_ascii_uppercase();
        self.reply(&name, &command[1..]).unwrap_or_else(|error| Value::Error(error.to_owned()))
    }

    /// The keys that a command touches.
    pub(super) fn keys_of(command: &[Bytes]) -> &[Bytes] {
        match command[0].to_ascii_uppercase().as_slice() {
            b"TIME" | b"PUBLISH" => &[],
            b"DEL" | b"MGET" => &command[1..],
            _ => &command[1..2],
        }
    }

    fn reply(&mut self, name: &str, args: &[Bytes]) -> Result<Value, &'static str> {
        let bulk = |bytes: Option<&Bytes>| bytes.map_or(Value::Nil, |bytes| Value::Bulk(bytes.clone()));
        Ok(match (name, args) {
            ("TIME", []) => {
                let part = |number: u64| Value::Bulk(number.to_string().into_bytes());
                Value::Array(vec![part(self.now_us / 1_000_000), part(self.now_us % 1_000_000)])
            }
            ("TYPE", [key]) => {
                Value::Status(self.keys.get(key).map_or("none", |entry| entry.content.kind()).to_owned())
            }
            ("GET", [key]) => bulk(self.text(key)?),
            ("MGET", keys) if !keys.is_empty() => {
                Value::Array(keys.iter().map(|key| bulk(self.text(key).ok().flatten())).collect())
            }
            ("HGET", [key, field]) => bulk(self.hash(key)?.and_then(|hash| hash.get(field))),
            ("HMGET", [key, fields @ ..]) if !fields.is_empty() => {
                let hash = self.hash(key)?;
                Value::Array(fields.iter().map(|field| bulk(hash.and_then(|hash| hash.get(field)))).collect())
            }
            ("HLEN", [key]) => count(self.hash(key)?.map_or(0, BTreeMap::len)),
            ("HGETALL", [key]) => Value::Array(
                self.hash(key)?
                    .into_iter()
                    .flatten()
                    .flat_map(|(field, text)| [bulk(Some(field)), bulk(Some(text))])
                    .collect(),
            ),
            ("HINCRBY", [key, field, by]) => self.hincrby(key, field, by)?,
            ("HVALS", [key]) => Value::Array(
                self.hash(key)?.into_iter().flatten().map(|(_, text)| bulk(Some(text))).collect(),
            ),
            ("PTTL", [key]) => Value::Integer(self.remaining_ms(key)),
            ("SET", [key, text]) => self.put(key, Content::Text(text.clone()), None),
            ("SET", [key, text, px, ms]) if px.eq_ignore_ascii_case(b"PX") => {
                let at_ms = self.now_ms() + lease_ms(ms, "ERR invalid expire time in 'set' command")?;
                self.put(key, Content::Text(text.clone()), Some(at_ms))
            }
            ("SET", [key, _, nx, ..]) if nx.eq_ignore_ascii_case(b"NX") && self.keys.contains_key(key) => {
                Value::Nil
            }
            ("SET", [key, text, nx, rest @ ..]) if nx.eq_ignore_ascii_case(b"NX") => {
                let command = [&[key.clone(), text.clone()], rest].concat();
                return self.reply("SET", &command);
            }
            ("RESTORE", [key, ms, payload]) => self.restore(key, ms, payload)?,
            ("RESTORE", [key, ms, payload, replace]) if replace.eq_ignore_ascii_case(b"REPLACE") => {
                // What it cannot read replaces nothing.
                let before = self.keys.remove(key);
                let restored = self.restore(key, ms, payload);
                if let (Err(_), Some(before)) = (&restored, before) {
                    self.keys.insert(key.clone(), before);
                }
                restored?
            }
            ("DEL", keys) if !keys.is_empty() => {
                count(keys.iter().filter(|key| self.keys.remove(*key).is_some()).count())
            }
            ("HSET", [key, pairs @ ..]) if !pairs.is_empty() && pairs.len() % 2 == 0 => {
                self.hset(key, pairs)?
            }
            ("HDEL", [key, fields @ ..]) if !fields.is_empty() => self.hdel(key, fields)?,
            ("ZADD", [key, score, member]) => self.zadd(key, score, member)?,
            ("ZREM", [key, member]) => self.zremove(key, |found, _| found == member)?,
            ("ZREMRANGEBYSCORE", [key, least, most]) if least == b"-inf" && most.starts_with(b"(") => {
                let below = whole(&most[1..])?;
                self.zremove(key, |_, score| score < below)?
            }
            ("LPUSH", [key, text]) if !self.keys.contains_key(key) => {
                self.put(key, Content::List(vec![text.clone()]), None);
                Value::Integer(1)
            }
            ("PEXPIRE", [key, ms]) => self.pexpire(key, ms)?,
            ("PEXPIRE", [key, ms, greater]) if greater.eq_ignore_ascii_case(b"GT") => {
                // No expiry is greater than any.
                let remaining_ms = self.remaining_ms(key);
                let raises = remaining_ms != -1 && remaining_ms < integer(ms)?;
                if raises { self.pexpire(key, ms)? } else { Value::Integer(0) }
            }
            ("PERSIST", [key]) => {
                count(self.keys.get_mut(key).and_then(|entry| entry.expires_ms.take()).iter().count())
            }
            ("PUBLISH", [channel, text]) => {
                let plain = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
                self.messages.push((plain(channel), plain(text)));
                Value::Integer(0)
            }
            _ => panic!("{name} with {} arguments is none of the commands that are known here", args.len()),
        })
    }

    fn now_ms(&self) -> u64 {
        self.now_us / 1000
    }

    fn text(&self, key: &Bytes) -> Result<Option<&Bytes>, &'static str> {
        match self.keys.get(key).map(|entry| &entry.content) {
            None => Ok(None),
            Some(Content::Text(text)) => Ok(Some(text)),
            Some(_) => Err(WRONG_TYPE),
        }
    }

    fn hash(&self, key: &Bytes) -> Result<Option<&BTreeMap<Bytes, Bytes>>, &'static str> {
        match self.keys.get(key).map(|entry| &entry.content) {
            None => Ok(None),
            Some(Content::Hash(hash)) => Ok(Some(hash)),
            Some(_) => Err(WRONG_TYPE),
        }
    }

    fn remaining_ms(&self, key: &Bytes) -> i64 {
        match self.keys.get(key).map(|entry| entry.expires_ms) {
            None => -2,
            Some(None) => -1,
            Some(Some(at_ms)) => at_ms.cast_signed() - self.now_ms().cast_signed(),
        }
    }

    fn put(&mut self, key: &Bytes, content: Content, expires_ms: Option<u64>) -> Value {
        self.keys.insert(key.clone(), Entry { content, expires_ms });
        Value::Status("OK".to_owned())
    }

    fn hset(&mut self, key: &Bytes, pairs: &[Bytes]) -> Result<Value, &'static str> {
        let empty = || Entry { content: Content::Hash(BTreeMap::new()), expires_ms: None };
        let Content::Hash(hash) = &mut self.keys.entry(key.clone()).or_insert_with(empty).content else {
            return Err(WRONG_TYPE);
        };
        let new = pairs.chunks(2).filter(|pair| hash.insert(pair[0].clone(), pair[1].clone()).is_none());
        Ok(count(new.count()))
    }

    fn hincrby(&mut self, key: &Bytes, field: &Bytes, by: &Bytes) -> Result<Value, &'static str> {
        let by = integer(by)?;
        let number = self.hash(key)?.and_then(|hash| hash.get(field)).map_or(Ok(0), |text| integer(text));
        let number = number.map_err(|_| "ERR hash value is not an integer")?;
        let number = number.checked_add(by).ok_or("ERR increment or decrement would overflow")?;
        self.hset(key, &[field.clone(), number.to_string().into_bytes()])?;
        Ok(Value::Integer(number))
    }

    fn hdel(&mut self, key: &Bytes, fields: &[Bytes]) -> Result<Value, &'static str> {
        let Some(entry) = self.keys.get_mut(key) else { return Ok(Value::Integer(0)) };
        let Content::Hash(hash) = &mut entry.content else { return Err(WRONG_TYPE) };
        let removed = fields.iter().filter(|field| hash.remove(*field).is_some()).count();
        if hash.is_empty() {
            self.keys.remove(key);
        }
        Ok(count(removed))
    }

    fn zadd(&mut self, key: &Bytes, score: &Bytes, member: &Bytes) -> Result<Value, &'static str> {
        let score = whole(score)?;
        let empty = || Entry { content: Content::Sorted(BTreeMap::new()), expires_ms: None };
        let Content::Sorted(set) = &mut self.keys.entry(key.clone()).or_insert_with(empty).content else {
            return Err(WRONG_TYPE);
        };
        Ok(count(usize::from(set.insert(member.clone(), score).is_none())))
    }

    fn zremove(&mut self, key: &Bytes, goes: impl Fn(&Bytes, u64) -> bool) -> Result<Value, &'static str> {
        let Some(entry) = self.keys.get_mut(key) else { return Ok(Value::Integer(0)) };
        let Content::Sorted(set) = &mut entry.content else { return Err(WRONG_TYPE) };
        let before = set.len();
        set.retain(|member, score| !goes(member, *score));
        let removed = before - set.len();
        if set.is_empty() {
            self.keys.remove(key);
        }
        Ok(count(removed))
    }

    fn pexpire(&mut self, key: &Bytes, ms: &Bytes) -> Result<Value, &'static str> {
        let at_ms = self.now_ms().checked_add_signed(integer(ms)?).ok_or("ERR invalid expire time")?;
        let now_ms = self.now_ms();
        let Some(entry) = self.keys.get_mut(key) else { return Ok(Value::Integer(0)) };
        entry.expires_ms = Some(at_ms);
        if at_ms <= now_ms {
            self.keys.remove(key);
        }
        Ok(Value::Integer(1))
    }

    fn restore(&mut self, key: &Bytes, ms: &Bytes, payload: &[u8]) -> Result<Value, &'static str> {
        if self.keys.contains_key(key) {
            return Err("BUSYKEY Target key name already exists.");
        }
        let ttl_ms = u64::try_from(integer(ms)?).map_err(|_| "ERR Invalid TTL value, must be >= 0")?;
        let content = undumped(payload).ok_or("ERR DUMP payload version or checksum are wrong")?;
        let expires_ms = (ttl_ms > 0).then(|| self.now_ms() + ttl_ms);
        Ok(self.put(key, content, expires_ms))
    }
}

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

fn count(number: usize) -> Value {
    Value::Integer(i64::try_from(number).expect("a count of what is in memory"))
}

fn integer(text: &[u8]) -> Result<i64, &'static str> {
    let text = std::str::from_utf8(text).ok();
    text.and_then(|text| text.parse().ok()).ok_or("ERR value is not an integer or out of range")
}

/// A score, as far as they are needed.
fn whole(text: &[u8]) -> Result<u64, &'static str> {
    u64::try_from(integer(text)?).map_err(|_| "ERR value is not a valid float")
}

fn lease_ms(text: &[u8], otherwise: &'static str) -> Result<u64, &'static str> {
    u64::try_from(integer(text)?).ok().filter(|ms| *ms > 0).ok_or(otherwise)
}

/// What DUMP gave, of the two encodings that are needed: type 4, a hash, or 5, a sorted set; a count, and strings, the
/// lengths of all of them below 64, or strings and doubles; the RDB version, and a CRC of all that.
fn undumped(payload: &[u8]) -> Option<Content> {
    let (checked, crc) = payload.split_last_chunk::<8>()?;
    let (body, version) = checked.split_last_chunk::<2>()?;
    if crc64(checked) != u64::from_le_bytes(*crc) || u16::from_le_bytes(*version) > RDB_VERSION {
        return None;
    }
    let [kind, fields @ 0..64, rest @ ..] = body else { return None };
    let mut rest = rest;
    let content = match kind {
        4 => {
            let pair = |_| Some((string(&mut rest)?, string(&mut rest)?));
            Content::Hash((0..*fields).map(pair).collect::<Option<_>>()?)
        }
        5 => {
            let pair = |_| Some((string(&mut rest)?, score(&mut rest)?));
            Content::Sorted((0..*fields).map(pair).collect::<Option<_>>()?)
        }
        _ => return None,
    };
    rest.is_empty().then_some(content)
}

fn string(rest: &mut &[u8]) -> Option<Bytes> {
    let (len, behind) = rest.split_first().filter(|(len, _)| **len < 64)?;
    let (text, behind) = behind.split_at_checked(usize::from(*len))?;
    *rest = behind;
    Some(text.to_vec())
}

fn score(rest: &mut &[u8]) -> Option<u64> {
    let (bytes, behind) = rest.split_first_chunk::<8>()?;
    *rest = behind;
    // Nobody needs another than zero, whose bytes are.
    (*bytes == [0; 8]).then_some(0)
}

/// That of Redis 7.0.
const RDB_VERSION: u16 = 10;

/// CRC-64 of Jones, as Redis computes it: reflected, from zero.
pub(crate) fn crc64(bytes: &[u8]) -> u64 {
    const POLYNOMIAL: u64 = 0xad93_d235_94c9_35a9;
    bytes.iter().fold(0_u64, |crc, byte| {
        (0..8).fold(crc ^ u64::from(*byte), |crc, _| {
            let carry = if crc & 1 == 1 { POLYNOMIAL.reverse_bits() } else { 0 };
            (crc >> 1) ^ carry
        })
    })
}
