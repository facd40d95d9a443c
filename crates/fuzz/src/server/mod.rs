//! A server that answers anything, and the real client.
//!
//! Owns the two targets, and what must hold whatever the server sends:
//!
//! 1. Nothing panics.
//! 2. A call ends by its deadline, of the simulated clock and of the real one.
//! 3. The memory in use stays below [`MAX_MEMORY`].
//! 4. There is a guard only if the server [has said](oracle) in a frame of the protocol that the lock was granted, by this
//!    token, to a request for this lock.
//! 5. A guard is over by the end of its lease if nothing was extended.
//!
//! The client runs on a paused clock, over a pipe, with the keeper on the same runtime: an input has the same effect each time.

mod environment;
mod frames;
mod oracle;
mod relay;
mod scenario;

use crate::input::Input;
use environment::Simulated;
use leasehold_redis::{RedisConfig, RedisStore};
use leasehold_sim::ModelServer;
use leasehold_store::Store;
use oracle::Oracle;
use relay::{Script, relay};
use scenario::Plan;
use std::time::Duration;
use tokio::io::duplex;

/// By how much the memory in use may grow: what the client accepts of one reply, as bytes and as values, and the server's
/// share of it.
pub(crate) const MAX_MEMORY: usize = 256 << 20;

/// What replies are made of.
pub(crate) const WORDS: &[&str] = &[
    "*1\r\n",
    "*3\r\n",
    "*-1\r\n",
    "*2147483647\r\n",
    "$-1\r\n",
    "$0\r\n\r\n",
    "$4\r\nheld\r\n",
    "$7\r\ngranted\r\n",
    "$5\r\ntaken\r\n",
    "$5\r\nended\r\n",
    "$8\r\nreleased\r\n",
    "$1099511627776\r\n",
    "%1\r\n",
    "%-1\r\n",
    "~2\r\n",
    "|1\r\n",
    "|9223372036854775807\r\n",
    ">2\r\n",
    ">3\r\n",
    "_\r\n",
    "#t\r\n",
    ",1.5\r\n",
    ",inf\r\n",
    "(123\r\n",
    "!5\r\nERR x\r\n",
    "!-1\r\n",
    "=7\r\ntxt:abc\r\n",
    "=-1\r\n",
    ":1\r\n",
    ":0\r\n",
    ":-1\r\n",
    ":9223372036854775807\r\n",
    "+OK\r\n",
    "-ERR x\r\n",
    "-NOSCRIPT x\r\n",
    "-MOVED 1 h:1\r\n",
    "-READONLY x\r\n",
    "-OOM x\r\n",
    "-NOAUTH x\r\n",
    "-LOADING x\r\n",
    "+subscribe\r\n",
    "+unsubscribe\r\n",
    "+sunsubscribe\r\n",
    "+message\r\n",
    "+invalidate\r\n",
    "$16\r\n1762000000000001\r\n",
];

/// How many bytes of an input say what the client does.
pub const PLAN_LEN: usize = Plan::LEN;

/// The clock of the server at the start, in microseconds.
const EPOCH_US: u64 = 1_762_000_000_000_000;
/// The limit of a connection attempt.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);

/// The replies are the bytes of the input, in place of honest ones.
pub(crate) fn replies(input: &[u8]) {
    let mut input = Input::new(input);
    let plan = Plan::new(&mut input);
    run(plan, Script::replies(input), |store| store);
}

/// The replies are honest ones, changed as the input says.
pub(crate) fn faults(input: &[u8]) {
    let mut input = Input::new(input);
    let plan = Plan::new(&mut input);
    run(plan, Script::faults(input), |store| store);
}

/// [`faults`] for a client over another store on top of the connection: a defect that must be found.
pub fn faults_with<S: Store>(input: &[u8], wrap: impl FnOnce(RedisStore) -> S) {
    let mut input = Input::new(input);
    let plan = Plan::new(&mut input);
    run(plan, Script::faults(input), wrap);
}

/// The input for [`replies`] that gives a client what an honest server has given it, for a corpus. `plan` is the start of the
/// input, with what the client does.
pub fn honest_replies(plan: &[u8; PLAN_LEN]) -> Vec<u8> {
    let mut input = Input::new(plan);
    let planned = Plan::new(&mut input);
    let script = Script::faults(Input::new(&[]));
    run(planned, script.clone(), |store| store);
    [plan, &*script.replied()].concat()
}

fn run<S: Store>(plan: Plan, script: Script, wrap: impl FnOnce(RedisStore) -> S) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without a driver can be built");
    runtime.block_on(async {
        let environment = Simulated::new();
        let clock = environment.clone();
        let server = ModelServer::new(move || EPOCH_US + clock.elapsed_us());
        let oracle = Oracle::default();
        let config: RedisConfig = "redis://server".parse().expect("it is a URL");
        let connector = {
            let oracle = oracle.clone();
            move |_| {
                let (near, far) = duplex(1 << 16);
                tokio::spawn(relay(far, server.clone(), script.clone(), oracle.connection()));
                async { Ok(near) }
            }
        };
        let config =
            config.connector(connector).connect_timeout(CONNECT_WITHIN).environment(environment.clone());
        scenario::run(plan, wrap(RedisStore::lazy(config)), environment, oracle).await;
    });
}
