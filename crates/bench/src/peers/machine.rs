//! What stands behind the figures: they cannot be compared with those of another machine.

use crate::meter::server_version;
use anyhow::Result;
use leasehold_testkit::RedisServer;
use serde::Serialize;
use std::fs;

/// What the figures were measured on.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    /// The processor's own words of what it is.
    pub(crate) cpu: String,
    /// How many of its cores this program may use.
    pub(crate) cores: usize,
    /// The kernel, and its release.
    pub(crate) kernel: String,
    /// Product and version of the server.
    pub(crate) server: String,
}

impl Machine {
    /// The one that this program and that server run on.
    pub(crate) fn with(server: &RedisServer) -> Result<Self> {
        let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model =
            cpus.lines().find_map(|line| line.strip_prefix("model name")?.trim_start().strip_prefix(':'));
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Ok(Self {
            cpu: model.unwrap_or("unknown").trim().to_owned(),
            cores: std::thread::available_parallelism()?.get(),
            kernel: format!("Linux {}", release.trim()),
            server: server_version(server)?,
        })
    }
}
