//! Times in which the machine did not run a process: what is late then is not the fault of the store.

use super::clock::RunClock;
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::sleep;

const TICK: Duration = Duration::from_millis(50);

/// How late a tick may be.
const LATE_US: u64 = 200_000;

/// Reports each time in which this process did not run, from and until when, until it is dropped.
pub(crate) async fn watch(clock: RunClock, mut report: impl FnMut(u64, u64)) -> Infallible {
    let mut last_us = clock.now_us();
    loop {
        sleep(TICK).await;
        let now_us = clock.now_us();
        if now_us.saturating_sub(last_us) > LATE_US {
            report(last_us, now_us);
        }
        last_us = now_us;
    }
}
