//! Ports for servers.
//!
//! 1. A port is below the range of outgoing connections, so no connection takes it while its server is down.
//! 2. It is reserved by a lock on a file as long as its owner lives, so no other test takes it either: not for a server
//!    of its own, nor for the moment in which it looks whether the port is free.

use std::fs::{self, File, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;

/// The distance from a cluster node's port to its bus port.
const BUS_OFFSET: u16 = 10_000;

/// A port on 127.0.0.1 that no other test of this user takes. Dropping it makes it free.
#[derive(Debug)]
pub(crate) struct ReservedPort {
    port: u16,
    /// Locked.
    _files: Vec<File>,
}

impl ReservedPort {
    /// A free port; for a cluster node, one whose bus port is free too.
    pub(crate) fn new(node: bool) -> io::Result<Self> {
        for salt in 0..1000_u32 {
            // A random start, since processes that count from the same port would collide every time.
            let random = RandomState::new().hash_one(salt);
            let span = if node { 10_000 } else { 20_000 };
            let port =
                12_000 + u16::try_from(random % span).expect("a number below 20 000 fits into 16 bits");
            let ports = [port, port + BUS_OFFSET];
            if let Some(files) = reserve_all(&ports[..if node { 2 } else { 1 }])? {
                return Ok(Self { port, _files: files });
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, "no port is free between 12000 and 32000"))
    }

    pub(crate) const fn number(&self) -> u16 {
        self.port
    }
}

/// Reserves all of these ports, or none.
fn reserve_all(ports: &[u16]) -> io::Result<Option<Vec<File>>> {
    ports.iter().map(|port| reserve(*port)).collect()
}

/// Reserves a port, unless another test has reserved it, or another program uses it.
fn reserve(port: u16) -> io::Result<Option<File>> {
    // Not the environment's directory for temporary files: tests that run with different ones share the ports.
    let directory =
        Path::new("/tmp").join(format!("leasehold-test-ports-{}", rustix::process::getuid().as_raw()));
    fs::create_dir_all(&directory)?;
    let file =
        File::options().create(true).truncate(false).write(true).open(directory.join(port.to_string()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok().then_some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_port_is_not_given_again_until_it_is_dropped() {
        let first = ReservedPort::new(true).expect("a port is free");
        let (port, bus) = (first.number(), first.number() + BUS_OFFSET);
        for taken in [port, bus] {
            assert!(reserve(taken).expect("the file can be locked").is_none());
        }
        assert!(reserve_all(&[port]).expect("the file can be locked").is_none());
        drop(first);
        assert!(reserve_all(&[port, bus]).expect("the files can be locked").is_some());
    }

    #[test]
    fn a_port_that_another_program_uses_is_not_reserved() {
        let port = ReservedPort::new(false).expect("a port is free");
        let number = port.number();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, number)).expect("it is free");
        drop(port);
        assert!(reserve(number).expect("the file can be locked").is_none());
        drop(listener);
    }
}
