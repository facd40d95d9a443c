//! Clients of libraries and of Leasehold count together: under the lock, each reads a number and writes it back one greater.
//!
//! Owns the clients and the proof: two holders at once read the same number. The lock must also pass between the libraries,
//! or they have not contended.

use std::iter;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use leasehold_testkit::RedisServer;

use crate::driver::{Answer, Count, Driver};
use crate::fixture::LOCK;
use crate::library::{Format, LEASEHOLD, Library};
use crate::mutant_proxy::MutantProxy;
use crate::report::setup;

/// The number's key.
const NUMBER: &str = "number";
/// The lease of all clients: no hold ends by it.
const LEASE: Duration = Duration::from_secs(20);
/// The lock must pass from one library to another at least once in so many steps.
const STEPS_PER_HANDOVER: usize = 50;
/// How long it may take until all have finished.
const TIME_LIMIT: Duration = Duration::from_secs(90);

/// The clients that count together.
pub(crate) struct Contention<'a> {
    /// The library of each client.
    pub(crate) libraries: Vec<&'a Library>,
    /// How many clients of Leasehold's, each a process of its own.
    pub(crate) leasehold_clients: u32,
    pub(crate) count: CountOptions,
}

/// What each client does.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct CountOptions {
    /// How often each client acquires the lock; by default 125 times, and 250 times a re-entrant one.
    #[arg(long)]
    sections: Option<u32>,
    /// The longest pause of Leasehold's clients after each time; the libraries' drivers pause up to 40 ms.
    #[arg(long, value_name = "MS", default_value_t = 40)]
    pause_ms: u64,
}

impl Contention<'_> {
    /// Lets all clients count, on a server of their own, and describes the result.
    pub(crate) fn run(&self) -> Result<String> {
        let format = self.libraries.first().map_or(Format::String, |library| library.format);
        let sections = self.count.sections.unwrap_or(match format {
            Format::String => 125,
            Format::Hash => 250,
        });
        let leasehold = Library::leasehold(format, self.count.pause_ms);
        let clients: Vec<&Library> = self
            .libraries
            .iter()
            .copied()
            .chain(iter::repeat_n(&leasehold, self.leasehold_clients as usize))
            .collect();
        let server = setup(RedisServer::start().context("the server"))?;
        let mut drivers = setup(start_all(&server, &clients))?;
        let start = Instant::now();
        let counts = count_all(&mut drivers, &clients, sections)?;
        let took = start.elapsed();

        let holders = holders(clients.iter().map(|client| client.name.as_str()).zip(&counts))?;
        let steps = sections as usize * counts.len();
        let number = server.cli(&["GET", NUMBER])?.ok()?.integer();
        let is_complete = holders.len() == steps && number == i64::try_from(steps).ok();
        ensure!(is_complete, "{} of {steps} steps were made, and the number is {number:?}", holders.len());
        let handovers = holders.windows(2).filter(|pair| pair[0] != pair[1]).count();
        ensure!(
            handovers >= steps / STEPS_PER_HANDOVER,
            "the lock passed from one library to another only {handovers} times"
        );
        ensure!(took < TIME_LIMIT, "it took {took:?}");
        let last_of_leasehold = holders.iter().rposition(|holder| *holder == LEASEHOLD).unwrap_or(0);
        let mixed = holders[..last_of_leasehold].iter().filter(|holder| **holder != LEASEHOLD).count();
        let (libraries, leasehold) = counts.split_at(self.libraries.len());
        Ok(format!(
            "{steps} of {steps} steps in {:.1} s, {handovers} hand-offs between libraries, {mixed} steps of other libraries \
             before Leasehold's last; longest wait: library {} ms, Leasehold {} ms",
            took.as_secs_f64(),
            longest_wait(libraries).as_millis(),
            longest_wait(leasehold).as_millis()
        ))
    }
}

/// A driver for each client. Leasehold's clients connect through the proxy if there is a mutant.
fn start_all(server: &RedisServer, clients: &[&Library]) -> Result<Vec<Driver>> {
    let mutant = clients.iter().find_map(|client| client.mutant);
    let proxy = mutant.map(|mutant| MutantProxy::start(server, mutant)).transpose()?;
    let direct = server.url();
    let proxied = proxy.map(|proxy| proxy.url());
    let url = |client: &Library| proxied.as_ref().filter(|_| client.name == LEASEHOLD).unwrap_or(&direct);
    clients.iter().map(|client| Driver::start(client, url(client), LEASE)).collect()
}

/// What all clients observe while they count at the same time.
fn count_all(drivers: &mut [Driver], clients: &[&Library], sections: u32) -> Result<Vec<Count>> {
    for driver in &mut *drivers {
        driver.send(&format!("count {LOCK} {NUMBER} {sections} {}", LEASE.as_millis()))?;
    }
    drivers.iter_mut().zip(clients).map(|(driver, client)| count_of(driver, client)).collect()
}

fn count_of(driver: &mut Driver, client: &Library) -> Result<Count> {
    match driver.answer(TIME_LIMIT).with_context(|| format!("{} counts", client.name))? {
        Answer::Counted(count) => Ok(count),
        other => bail!("`count` was answered {other:?}"),
    }
}

/// The holder at each step, in order; fails if two steps began from the same number.
fn holders<'a>(counts: impl Iterator<Item = (&'a str, &'a Count)>) -> Result<Vec<&'a str>> {
    let mut steps: Vec<_> = counts
        .flat_map(|(client, count)| count.numbers.iter().map(move |number| (*number, client)))
        .collect();
    steps.sort_unstable();
    for pair in steps.windows(2) {
        let ((number, one), (next, other)) = (pair[0], pair[1]);
        ensure!(
            number != next,
            "two clients held the lock at once: {one} and {other} both counted from {number}"
        );
    }
    Ok(steps.into_iter().map(|(_, client)| client).collect())
}

fn longest_wait(counts: &[Count]) -> Duration {
    counts.iter().map(|count| count.longest_wait).max().unwrap_or_default()
}
