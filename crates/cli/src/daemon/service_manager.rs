//! Messages to the service manager, as `sd_notify(3)` sends them.
//!
//! 1. Each round that has ended resets the watchdog, and nothing else does: there is no timer that would go on when the rounds
//!    do not.
//! 2. No message blocks. One that could not be sent is a warning once; readiness is then sent with the next round.

use crate::daemon::progress;
use crate::duration::Shown;
use crate::output::failure::Failure;
use crate::output::log;
use crate::output::printable::printable;
use anyhow::anyhow;
use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The socket of the service manager.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";
/// After how many microseconds without a message it ends this process.
const WATCHDOG_USEC: &str = "WATCHDOG_USEC";
/// Of which process, if not of any.
const WATCHDOG_PID: &str = "WATCHDOG_PID";

/// The service manager, if there is one.
#[derive(Debug, Default)]
pub(crate) struct ServiceManager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
    is_ready: bool,
    has_warned: bool,
}

impl ServiceManager {
    /// The one that the environment names.
    pub(crate) fn from_environment() -> Self {
        let mut manager = Self::default();
        let Some(name) = env::var_os(NOTIFY_SOCKET).filter(|name| !name.is_empty()) else { return manager };
        match open(&name) {
            Ok(socket) => manager.socket = Some(socket),
            Err(error) => manager.warn(&error),
        }
        manager.watchdog = watchdog();
        manager
    }

    /// Fails if the watchdog would end a process whose rounds go on.
    pub(crate) fn check(&self, every: Duration) -> Result<(), Failure> {
        let limit = progress::limit(every);
        match self.watchdog {
            Some(watchdog) if watchdog < limit => Err(Failure::usage(anyhow!(
                "the watchdog of the service ends this program after {}, but rounds can be {} apart: set WatchdogSec= to \
                 that or more, or give a shorter --every",
                Shown(watchdog),
                Shown(limit)
            ))),
            _ => Ok(()),
        }
    }

    /// A round has ended (1).
    pub(crate) fn round(&mut self, is_done: bool, status: &str) {
        let mut message = format!("STATUS={}\n", printable(status));
        if self.watchdog.is_some() {
            message.push_str("WATCHDOG=1\n");
        }
        let is_ready = is_done && !self.is_ready;
        if is_ready {
            message.push_str("READY=1\n");
        }
        let is_sent = self.send(&message);
        self.is_ready |= is_ready && is_sent;
    }

    /// This program is about to end.
    pub(crate) fn stopping(&mut self) {
        self.send("STOPPING=1\nSTATUS=ending\n");
    }

    /// Whether the message was sent.
    fn send(&mut self, message: &str) -> bool {
        let Some((socket, address)) = &self.socket else { return true };
        match socket.send_to_addr(message.as_bytes(), address) {
            Ok(_) => true,
            Err(error) => {
                self.warn(&error);
                false
            }
        }
    }

    fn warn(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.has_warned, true) {
            log::warning(&format!("the service manager cannot be notified by {NOTIFY_SOCKET}: {error}"));
        }
    }
}

fn open(name: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => abstract_address(name)?,
        [b'/', ..] => SocketAddr::from_pathname(name)?,
        _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is neither a path nor `@NAME`")),
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn abstract_address(name: &[u8]) -> io::Result<SocketAddr> {
    #[cfg(target_os = "android")]
    use std::os::android::net::SocketAddrExt;
    #[cfg(target_os = "linux")]
    use std::os::linux::net::SocketAddrExt;
    SocketAddr::from_abstract_name(name)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn abstract_address(_: &[u8]) -> io::Result<SocketAddr> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this system has no abstract sockets"))
}

/// The time of the watchdog, if it is one of this process.
fn watchdog() -> Option<Duration> {
    let number = |name: &str| env::var(name).ok()?.parse::<u64>().ok();
    if env::var_os(WATCHDOG_PID).is_some() && number(WATCHDOG_PID) != Some(std::process::id().into()) {
        return None;
    }
    number(WATCHDOG_USEC).filter(|micros| *micros > 0).map(Duration::from_micros)
}
