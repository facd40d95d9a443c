//! Scripts that are cut off after each of their commands: Redis does not roll back what they have done.
//!
//! Failure row 18: no key is without an expiry then. And whoever comes next finds a state that he can go on from: all
//! who wait get the lock, one after the other, with growing tokens, and the queue is empty in the end.

use super::script::Call;
use leasehold_core::{
    Acquire, Claim, Enqueue, Extend, HoldId, KeySpace, Label, Lock, LockKeys, Nonce, Op, OwnValue, Pass,
    Release, SessionId,
};
use leasehold_testkit::{RedisServer, RespConnection, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

/// More than any script has.
const COMMANDS: u32 = 40;
const LEASE_MS: u64 = 30_000;
const KEPT_MS: u64 = 60_000;

#[test]
fn a_script_that_is_cut_off_leaves_expiries_and_a_way_on() -> io::Result<()> {
    let server = RedisServer::start()?;
    let mut lock = CutLock::new(server.connect()?);
    let mut cuts = 0;
    for (name, before, op) in scenes() {
        for after in 0..COMMANDS {
            lock.connection.call(&["FLUSHALL"])?;
            for op in &before {
                lock.run(op, None)?;
            }
            // The places of the doomed are over after that.
            std::thread::sleep(Duration::from_millis(3));
            let scene = format!("{name}, cut off after {after} commands");
            let whole = lock.run(&op, Some(after))?;
            lock.check_expiries(&scene)?;
            lock.check_places(&scene)?;
            // Sending it again, whole, must do as well as if nothing had been; so must going on without.
            if after % 2 == 0 {
                lock.run(&op, None)?;
            }
            lock.serve_all(&scene)?;
            lock.check_expiries(&scene)?;
            cuts += u32::from(!whole);
            if whole {
                break;
            }
        }
    }
    assert!(cuts > 60, "only {cuts} cuts");
    Ok(())
}

/// What was done before, and what is cut off.
fn scenes() -> Vec<(&'static str, Vec<Op>, Op)> {
    let queue = || vec![take(1), take(2), take(3)];
    let mut own = take(1);
    if let Op::Acquire(ask) = &mut own {
        ask.claim.value = OwnValue::new("own").ok();
    }
    let then = |n| match take(n) {
        Op::Acquire(ask) => Some(ask),
        _ => None,
    };
    let free = Op::Release(Release { claim: claim(1), pass: Pass::Free, next: None });
    vec![
        ("an acquire of a new lock", vec![], take(1)),
        ("an acquire with an own value", vec![], own),
        ("an acquire of a known lock", vec![take(1), give(1, None)], take(2)),
        ("an enqueue", vec![take(1)], take(2)),
        ("an enqueue behind others", queue(), take(4)),
        ("a look", queue(), take(3)),
        ("an acquire that grants another", [queue(), vec![free.clone()]].concat(), take(4)),
        ("an acquire of the head", [queue(), vec![free]].concat(), take(2)),
        ("a release of a lone lock", vec![take(1)], give(1, None)),
        ("a release that grants", queue(), give(1, None)),
        ("a release that grants and queues again", queue(), give(1, then(5))),
        ("a release that passes over the dead", vec![take(1), doomed(2), doomed(3), take(4)], give(1, None)),
        ("a release with nobody alive", vec![take(1), doomed(2), doomed(3)], give(1, then(5))),
        ("a release of one who waits", queue(), give(2, None)),
        ("a release that acquires again", vec![take(1)], give(1, then(5))),
        (
            "an extend",
            vec![take(1)],
            Op::Extend(Extend { claim: claim(1), lease_ms: 90_000_000, keep_record: true }),
        ),
    ]
}

/// One lock, and what is known of it.
struct CutLock {
    connection: RespConnection,
    keys: LockKeys,
}

impl CutLock {
    fn new(connection: RespConnection) -> Self {
        let lock = Lock::mutex("job".parse().expect("a good name"));
        Self { connection, keys: KeySpace::default().lock(&lock).expect("a good name") }
    }

    /// Runs an operation, cut off after so many commands; says whether it ran as a whole.
    fn run(&mut self, op: &Op, cut_after: Option<u32>) -> io::Result<bool> {
        Ok(!matches!(self.reply(op, cut_after)?, Value::Error(_)))
    }

    fn reply(&mut self, op: &Op, cut_after: Option<u32>) -> io::Result<Value> {
        let call = Call::new(op, &self.keys, "mailbox:").expect("each of these has a script");
        let text = cut(call.text(), cut_after.unwrap_or(u32::MAX));
        let args = call.cmd().args_iter().filter_map(|arg| match arg {
            redis::Arg::Simple(bytes) => Some(bytes.to_vec()),
            _ => None,
        });
        let args: Vec<_> = [b"EVAL".to_vec(), text.into_bytes()].into_iter().chain(args.skip(2)).collect();
        self.connection.call(&args)
    }

    fn check_expiries(&mut self, scene: &str) -> io::Result<()> {
        for key in self.connection.call(&["KEYS", "*"])?.elements() {
            let key = key.text().unwrap_or_default();
            let ttl = self.connection.call(&["PTTL", key])?.integer();
            assert!(ttl > Some(0), "`{key}` expires in {ttl:?} ms: {scene}");
        }
        Ok(())
    }

    /// No place is left that no link leads to, where no grant would ever find it, and none is linked that is not there.
    fn check_places(&mut self, scene: &str) -> io::Result<()> {
        let fields = self.fields()?;
        let field = |name: &str| fields.get(name).map(String::as_str).unwrap_or_default();
        let places = fields.iter().filter(|(field, place)| field.starts_with("w:") && !place.is_empty());
        let places: BTreeSet<_> = places.map(|(field, _)| field[2..].to_owned()).collect();
        let queue: Vec<_> = field("queue").split(' ').collect();
        let [_, _, first, last] = queue[..] else {
            assert!(places.is_empty(), "{places:?} without a queue: {scene}");
            return Ok(());
        };
        let mut linked = BTreeSet::new();
        let mut at = first;
        while !at.is_empty() && linked.insert(at.to_owned()) && at != last {
            at = field(&format!("n:{at}"));
        }
        assert_eq!(linked, places, "{scene}");
        assert_eq!(linked.len().to_string(), queue[0], "counted: {scene}");
        Ok(())
    }

    fn fields(&mut self) -> io::Result<BTreeMap<String, String>> {
        let fields = self.connection.call(&["HGETALL", &self.keys.record.clone()])?;
        let texts: Vec<_> = fields.elements().iter().filter_map(Value::text).map(str::to_owned).collect();
        Ok(texts.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())
    }

    /// Lets all sessions look and release until each has had the lock.
    fn serve_all(&mut self, scene: &str) -> io::Result<()> {
        let mut left: BTreeSet<u8> = (1..=5).collect();
        let mut last = 0;
        for round in 0..12 {
            for n in left.clone() {
                let mut ask = take(n);
                if let Op::Acquire(ask) = &mut ask
                    && scene.contains("own value")
                    && n == 1
                {
                    ask.claim.value = OwnValue::new("own").ok();
                }
                match self.acquired(&ask)? {
                    Some(fence) => {
                        assert!(fence > last, "token {fence} after {last}: {scene}");
                        last = fence;
                        let Op::Acquire(Acquire { claim, .. }) = ask else { continue };
                        self.run(&Op::Release(Release { claim, pass: Pass::Grant, next: None }), None)?;
                        left.remove(&n);
                    }
                    None if self.is_spent(n)? => drop(left.remove(&n)),
                    None => {}
                }
            }
            if left.is_empty() {
                break;
            }
            assert!(round < 11, "sessions {left:?} never get it: {scene}");
        }
        // An empty place may be left by a cut between emptying and removing it: it means nothing, and expires.
        let places =
            self.fields()?.into_iter().filter(|(field, place)| field.starts_with("w:") && !place.is_empty());
        assert_eq!(places.count(), 0, "left in the queue: {scene}");
        Ok(())
    }

    fn acquired(&mut self, ask: &Op) -> io::Result<Option<u64>> {
        let reply = self.reply(ask, None)?;
        let items = reply.elements();
        let granted = items.first().and_then(Value::text) == Some("granted");
        Ok(items.get(1).and_then(Value::integer).filter(|_| granted).map(i64::cast_unsigned))
    }

    fn is_spent(&mut self, n: u8) -> io::Result<bool> {
        let reply = self.reply(&take(n), None)?;
        Ok(reply.elements().first().and_then(Value::text) == Some("spent"))
    }
}

/// A script whose commands fail from the `after`th on, and which says so in the end, also where it went on without.
fn cut(text: &str, after: u32) -> String {
    format!(
        "local server, left, is_cut = redis, {after}, false
        local function cut(command)
          return function(...)
            is_cut = is_cut or left == 0
            if is_cut then error('cut off') end
            left = left - 1
            return command(...)
          end
        end
        local redis = {{ call = cut(server.call), pcall = cut(server.pcall) }}
        local function script()
          {text}
        end
        local reply = script()
        return is_cut and server.error_reply('cut off') or reply"
    )
}

fn claim(n: u8) -> Claim {
    Claim::new(HoldId::from_random(SessionId::from_random([n; 12]), [n; 16]))
}

fn take(n: u8) -> Op {
    let queue = Some(Enqueue { nonce: Nonce::new(0, n.into()), kept_ms: KEPT_MS });
    let label = Label::new("test").expect("a plain text");
    Op::Acquire(Acquire { claim: claim(n), lease_ms: LEASE_MS, label, queue, adopt_ms: None })
}

/// A take whose place is over at once.
fn doomed(n: u8) -> Op {
    let mut op = take(n);
    if let Op::Acquire(Acquire { queue: Some(queue), .. }) = &mut op {
        queue.kept_ms = 1;
    }
    op
}

fn give(n: u8, next: Option<Acquire>) -> Op {
    Op::Release(Release { claim: claim(n), pass: Pass::Grant, next })
}
