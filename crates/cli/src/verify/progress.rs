//! The bar on the terminal.

use super::recorder::Recorder;
use crate::output::live_line::LiveLine;
use crate::output::log;
use crate::output::times::spoken;
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::sleep;

const WIDTH: usize = 20;
const INTERVAL: Duration = Duration::from_millis(250);

/// Draws the bar, on a terminal, until it is dropped.
pub(crate) async fn draw(recorder: &Recorder, length: Duration) -> Infallible {
    let line = if log::is_quiet() || !log::is_text() { None } else { LiveLine::new() };
    let Some(line) = line else { return std::future::pending().await };
    loop {
        let elapsed = recorder.clock().elapsed();
        let (calls, faults) = recorder.counts();
        line.draw(&text(elapsed, length, calls, faults));
        sleep(INTERVAL).await;
    }
}

fn text(elapsed: Duration, length: Duration, calls: usize, faults: usize) -> String {
    let length_ms = length.as_millis().max(1);
    let done = WIDTH * usize::try_from(elapsed.as_millis().min(length_ms)).unwrap_or(0)
        / usize::try_from(length_ms).unwrap_or(usize::MAX);
    let bar = "#".repeat(done) + &".".repeat(WIDTH - done);
    let left = length.saturating_sub(elapsed);
    let rest = if left.is_zero() {
        "waiting until all leases have ended".to_owned()
    } else {
        format!("{} left", spoken(Duration::from_secs(left.as_secs())))
    };
    format!("[{bar}] {rest}, {calls} calls, {faults} faults")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_of_a_third() {
        let text = text(Duration::from_secs(20), Duration::from_secs(60), 12, 3);
        assert_eq!(text, "[######..............] 40s left, 12 calls, 3 faults");
    }
}
