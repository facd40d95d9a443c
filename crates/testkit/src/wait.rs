//! Waiting for the state of a server, as fixtures do.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// Probes every 10 ms until the state is reached. A probe that fails counts as "not yet": a server drops its
/// connections when it changes its role, and replies with errors while it loads or looks for its primary.
///
/// Fails with [`io::ErrorKind::TimedOut`] after `limit`; the error names the state, the last failure, and what
/// `report` returns.
pub(crate) fn wait_until(
    state: &str,
    limit: Duration,
    mut probe: impl FnMut() -> io::Result<bool>,
    report: impl FnOnce() -> String,
) -> io::Result<()> {
    let deadline = Instant::now() + limit;
    let mut failure = None;
    loop {
        match probe() {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => failure = Some(error),
        }
        if Instant::now() >= deadline {
            let failure =
                failure.map(|error| format!("; the last probe that failed: {error}")).unwrap_or_default();
            let text = format!("waited {limit:?} for {state}{failure}; {}", report());
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_that_fails_is_repeated() {
        let mut results = vec![Ok(true), Ok(false), Err(io::ErrorKind::ConnectionReset.into())];
        let probe = || results.pop().expect("it is probed three times");
        wait_until("a state", Duration::from_secs(20), probe, String::new).expect("reached");
    }

    #[test]
    fn the_error_names_the_state_and_the_last_failure() {
        let probe = || Err(io::Error::other("no such key"));
        let error =
            wait_until("a state", Duration::ZERO, probe, || "the log".to_owned()).expect_err("never reached");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let text = error.to_string();
        assert!(["a state", "no such key", "the log"].iter().all(|part| text.contains(part)), "{text}");
    }
}
