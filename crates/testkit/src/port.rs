//! Ports for servers.
//!
//! 1. A port is below the range of outgoing connections, so no connection takes it while its server is down.
//! 2. It is reserved by a lock on a file as long as its owner lives, so no other test takes it either: not for a server
//!    of its own, nor for the moment in which it looks whether the port is free.

use std::fs::{self, File, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::path::Path;

/// The distance from a cluster node's port to its bus port.
const BUS_OFFSET: u16 = 10_000;

/// A port on 127.0.0.1 for a server, which no other test of this user and no outgoing connection takes. Dropping it
/// makes it free.
///
/// A program that chooses a port itself may get one that another process takes before it listens there, or
/// that a connection has on the other of the two addresses of this machine.
#[derive(Debug)]
pub struct ReservedPort {
    port: u16,
    /// Locked.
    _files: Vec<File>,
}

impl ReservedPort {
    /// Reserves a free port.
    ///
    /// # Errors
    ///
    /// Fails if none is free, or if the files that reserve them cannot be locked.
    pub fn new() -> io::Result<Self> {
        Self::among(20_000, &[0])
    }

    /// Reserves a free port for a cluster node, whose bus port is free too.
    pub(crate) fn for_node() -> io::Result<Self> {
        Self::among(10_000, &[0, BUS_OFFSET])
    }

    /// A port of so many, of which those at these distances are free.
    fn among(span: u64, offsets: &[u16]) -> io::Result<Self> {
        for salt in 0..1000_u32 {
            // A random start, since processes that count from the same port would collide every time.
            let random = RandomState::new().hash_one(salt);
            let port =
                12_000 + u16::try_from(random % span).expect("a number below 20 000 fits into 16 bits");
            if let Some(files) = reserve_all(offsets.iter().map(|offset| port + offset))? {
                return Ok(Self { port, _files: files });
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, "no port is free between 12000 and 32000"))
    }

    /// Its number.
    #[must_use]
    pub const fn number(&self) -> u16 {
        self.port
    }
}

/// Reserves all of these ports, or none.
fn reserve_all(ports: impl Iterator<Item = u16>) -> io::Result<Option<Vec<File>>> {
    ports.map(reserve).collect()
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
    // Some servers listen on both addresses.
    let is_free = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
        && !TcpListener::bind((Ipv6Addr::LOCALHOST, port))
            .is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse);
    Ok(is_free.then_some(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    #[test]
    fn a_reserved_port_is_not_given_again_until_it_is_dropped() {
        let first = ReservedPort::for_node().expect("a port is free");
        let (port, bus) = (first.number(), first.number() + BUS_OFFSET);
        for taken in [port, bus] {
            assert!(reserve(taken).expect("the file can be locked").is_none());
        }
        assert!(reserve_all([port].into_iter()).expect("the file can be locked").is_none());
        drop(first);
        assert!(reserve_all([port, bus].into_iter()).expect("the files can be locked").is_some());
    }

    #[test]
    fn a_port_that_another_program_uses_is_not_reserved() {
        for address in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let port = ReservedPort::new().expect("a port is free");
            let number = port.number();
            let listener = match TcpListener::bind((address, number)) {
                Err(_) if address.is_ipv6() => continue, // This machine has none.
                listener => listener.expect("it is free"),
            };
            drop(port);
            assert!(reserve(number).expect("the file can be locked").is_none(), "{address}");
            drop(listener);
        }
    }
}
