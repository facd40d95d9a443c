//! Server clocks that a test controls.
//!
//! Owns the [`Shim`] that is preloaded into a server, and the small file through which a test sets the time. It does
//! not touch the test's own clock, nor the server's monotonic one. (libfaketime breaks redis, hence a shim of
//! our own.)
//!
//! 1. The file contains the setting and its complement. A write may not be atomic for a reader of the mapping, so the
//!    shim reads until the two agree.
//! 2. The file lives as long as any clock *or server* refers to it, so that a restart finds it.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tempfile::NamedTempFile;

use crate::shim::Shim;

/// A server clock that is stopped until a test advances it.
///
/// Clones are handles to one clock, which several servers may use.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use leasehold_testkit::{FrozenClock, RedisServer};
/// use std::time::Duration;
///
/// let clock = FrozenClock::new(1_762_000_000_000_000)?;
/// let server = RedisServer::builder().clock(&clock).start()?;
/// server.cli(&["SET", "orders/42", "token", "PX", "100"])?;
/// clock.advance(Duration::from_millis(101))?;
/// assert!(server.cli(&["GET", "orders/42"])?.is_nil());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct FrozenClock {
    setting: Arc<Setting>,
}

impl FrozenClock {
    /// A clock that shows `start_us` microseconds since the Unix epoch.
    pub fn new(start_us: i64) -> io::Result<Self> {
        Ok(Self { setting: Arc::new(Setting::create(Mode::Frozen, start_us)?) })
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) -> io::Result<()> {
        let by_us = i64::try_from(by.as_micros()).map_err(io::Error::other)?;
        self.setting.change(|us| us.saturating_add(by_us))
    }

    /// Sets the clock, backwards too.
    pub fn set_us(&self, now_us: i64) -> io::Result<()> {
        self.setting.change(|_| now_us)
    }

    /// The time that the clock shows, in microseconds since the Unix epoch.
    pub fn now_us(&self) -> i64 {
        self.setting.value()
    }
}

/// A server clock that runs at the real rate with an offset: for clocks that jump.
#[derive(Debug, Clone)]
pub struct ShiftedClock {
    setting: Arc<Setting>,
}

impl ShiftedClock {
    /// A clock that differs from the real one by `offset_us` microseconds; less than 0 is behind.
    pub fn new(offset_us: i64) -> io::Result<Self> {
        Ok(Self { setting: Arc::new(Setting::create(Mode::Shifted, offset_us)?) })
    }

    /// Lets the clock jump to a new difference from the real time.
    pub fn set_offset_us(&self, offset_us: i64) -> io::Result<()> {
        self.setting.change(|_| offset_us)
    }

    /// How far the clock is ahead of the real time, in microseconds.
    pub fn offset_us(&self) -> i64 {
        self.setting.value()
    }
}

/// A clock that a [`RedisServer`](crate::RedisServer) can be started with.
pub trait ServerClock: sealed::Sealed {}

impl ServerClock for FrozenClock {}
impl ServerClock for ShiftedClock {}

pub(crate) mod sealed {
    use super::{Arc, FrozenClock, Setting, ShiftedClock};

    /// Keeps [`ServerClock`](super::ServerClock) to the clocks that the shim knows.
    pub trait Sealed {
        #[doc(hidden)]
        fn setting(&self) -> Arc<Setting>;
    }

    impl Sealed for FrozenClock {
        fn setting(&self) -> Arc<Setting> {
            Arc::clone(&self.setting)
        }
    }

    impl Sealed for ShiftedClock {
        fn setting(&self) -> Arc<Setting> {
            Arc::clone(&self.setting)
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Mode {
    Frozen = 1,
    Shifted = 2,
}

/// The file that shim and test share.
#[derive(Debug)]
pub struct Setting {
    /// Removed when the last handle is gone (2).
    file: NamedTempFile,
    /// The value in the file. The mutex makes a change atomic.
    value: Mutex<i64>,
}

impl Setting {
    fn create(mode: Mode, value: i64) -> io::Result<Self> {
        let file = tempfile::Builder::new().prefix("leasehold-clock-").tempfile()?;
        file.as_file().set_len(32)?;
        file.as_file().write_all_at(&(mode as i64).to_ne_bytes(), 0)?;
        let setting = Self { file, value: Mutex::new(value) };
        setting.change(|value| value)?;
        Ok(setting)
    }

    fn value(&self) -> i64 {
        *self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, to: impl FnOnce(i64) -> i64) -> io::Result<()> {
        let mut value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        let next = to(*value);
        let mut words = [0; 16];
        words[..8].copy_from_slice(&next.to_ne_bytes());
        words[8..].copy_from_slice(&(!next).to_ne_bytes());
        self.file.as_file().write_all_at(&words, 8)?;
        *value = next;
        Ok(())
    }

    /// Makes `command` use this clock. The shim is put into `dir`, which must outlive the process.
    pub(crate) fn preload(&self, command: &mut Command, dir: &Path) -> io::Result<()> {
        command.env("LEASEHOLD_CLOCK", self.file.path());
        SHIM.preload(command, dir)
    }
}

static SHIM: Shim = Shim::new("clock", include_str!("../shim/clock.c"));
