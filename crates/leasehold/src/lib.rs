//! Distributed locks held by lease.
