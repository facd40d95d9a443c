//! How many calls a second: what a short trial says costs the server 5 % of one of its processors.

use super::nodes::Nodes;
use leasehold::Client;
use leasehold::error::AcquireError;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// The part of a processor that the run may use.
const SHARE: f64 = 0.05;

/// How many holds the trial has.
const TRIALS: u32 = 100;

/// How long the trial may take.
const TRIAL_LIMIT: Duration = Duration::from_secs(2);

/// The limits of what a trial can say: fewer calls show nothing, and more make histories that are too long to read.
const LEAST: f64 = 10.0;
const MOST: f64 = 100.0;

/// Calls of acquire in a second, of all workers together.
pub(crate) async fn calls_per_second(client: &Client, nodes: &Nodes) -> Result<f64, AcquireError> {
    // What others use in the same time.
    let (begin, before) = (Instant::now(), nodes.processor_us().await);
    sleep(Duration::from_millis(200)).await;
    let (idle_time, idle) = (begin.elapsed(), nodes.processor_us().await);
    let (begin, mut held) = (Instant::now(), 0);
    // The name is valid.
    let Ok(mutex) = client.mutex("trial") else { return Ok(LEAST) };
    while held < TRIALS && begin.elapsed() < TRIAL_LIMIT {
        let guard = mutex.acquire_timeout(TRIAL_LIMIT).await?;
        // A release that fails ends with the lease.
        let _ = guard.release().await;
        held += 1;
    }
    let (time, after) = (begin.elapsed(), nodes.processor_us().await);
    let used = if after.is_empty() || after.len() != idle.len() || idle.len() != before.len() {
        // A file, which all processes write by themselves, or a server that does not say: all of the time.
        time.as_secs_f64()
    } else {
        let nodes = before.iter().zip(&idle).zip(&after);
        let used = nodes.map(|((before, idle), after)| {
            used_s(*idle, *after) - used_s(*before, *idle) * time.as_secs_f64() / idle_time.as_secs_f64()
        });
        used.fold(0.0, f64::max)
    };
    Ok(affordable(used / f64::from(held.max(1))))
}

fn used_s(from_us: u64, to_us: u64) -> f64 {
    Duration::from_micros(to_us.saturating_sub(from_us)).as_secs_f64()
}

/// So many calls that each cost so many seconds.
fn affordable(cost_s: f64) -> f64 {
    (SHARE / cost_s.max(1e-6)).clamp(LEAST, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_of_a_millisecond_is_affordable_50_times_a_second() {
        assert!((affordable(0.001) - 50.0).abs() < 1e-6);
        assert!((affordable(0.0) - MOST).abs() < 1e-6);
        assert!((affordable(1.0) - LEAST).abs() < 1e-6);
    }
}
