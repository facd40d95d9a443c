//! Real servers on loopback, each in its own child process.
//!
//! Owns booting, process faults (stopped, killed, restarted) and raw commands. Faults of the network belong to
//! [`Proxy`](crate::Proxy).
//!
//! 1. A server is ready when the started process replies. Another process may have taken the port, so the reply must
//!    contain the child's process id.
//! 2. A server keeps its port reserved between [`kill`](RedisServer::kill) and [`restart`](RedisServer::restart).
//! 3. The configuration is in a file with mode 0600, not in the arguments, which every user can read.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::certificates::CertificateAuthority;
use crate::clock::{ServerClock, Setting};
use crate::port::ReservedPort;
use crate::resp::{RespConnection, Value};
use crate::shim::Shim;
use crate::signal;

/// Records what is on the disk.
static DISK: Shim = Shim::new("disk", include_str!("../shim/disk.c"));

/// How long a server may take to boot: a few ms as a rule, longer with data to load on a busy machine.
const BOOT_LIMIT: Duration = Duration::from_secs(60);

/// How long a raw command may take.
const CALL_LIMIT: Duration = Duration::from_secs(20);

/// How many ports are tried.
const BOOT_ATTEMPTS: usize = 20;

/// A `redis-server` as a child process of the test. Dropping it kills the process.
///
/// `LEASEHOLD_TEST_SERVER` replaces the program for all tests, for example by a `valkey-server`.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use leasehold_testkit::RedisServer;
///
/// let server = RedisServer::start()?;
/// assert_eq!(server.cli(&["SET", "orders/42", "token"])?.text(), Some("OK"));
/// assert_eq!(server.command_counts()?["set"], 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RedisServer {
    settings: RedisServerBuilder,
    /// The configuration, the log, the data and the socket.
    dir: TempDir,
    port: ReservedPort,
    /// `None` while the server is down.
    child: Option<Child>,
}

impl RedisServer {
    /// A server without a password and without persistence.
    pub fn start() -> io::Result<Self> {
        Self::builder().start()
    }

    /// A server with settings.
    pub fn builder() -> RedisServerBuilder {
        RedisServerBuilder::default()
    }

    /// The port on 127.0.0.1; it stays the same over restarts.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Whether it speaks TLS on its port.
    pub fn is_tls(&self) -> bool {
        self.settings.tls
    }

    /// `redis://127.0.0.1:port/`, without the password; `rediss://…` by TLS, without the authority.
    pub fn url(&self) -> String {
        let scheme = if self.is_tls() { "rediss" } else { "redis" };
        format!("{scheme}://127.0.0.1:{}/", self.port())
    }

    /// `redis+unix:///…/redis.sock`; `None` unless the server was built with a socket.
    pub fn unix_url(&self) -> Option<String> {
        self.unix_path().map(|path| format!("redis+unix://{}", path.display()))
    }

    /// The path of the Unix socket, if the server was built with one.
    pub fn unix_path(&self) -> Option<PathBuf> {
        self.settings.unix_socket.then(|| socket_path(self.dir.path()))
    }

    /// The process id; `None` while the server is down.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Stops the process with SIGSTOP. Connections stay open without replies. All its threads have stopped when this
    /// returns.
    pub fn stop(&self) -> io::Result<()> {
        signal::stop(self.running()?)
    }

    /// Resumes a stopped process.
    pub fn resume(&self) -> io::Result<()> {
        signal::resume(self.running()?)
    }

    /// Kills the process with SIGKILL. Connections break, and data that was not persisted is lost.
    pub fn kill(&mut self) -> io::Result<()> {
        match self.child.take() {
            Some(mut child) => signal::kill(&mut child),
            None => Ok(()),
        }
    }

    /// Kills the process if it runs, and boots it again on the same port: with its data if it is append-only, empty
    /// otherwise.
    pub fn restart(&mut self) -> io::Result<()> {
        self.kill()?;
        // The port is free once the killed process is reaped, and no other process takes it (2).
        let child = self.settings.boot(self.dir.path(), self.port()).map_err(io::Error::from)?;
        self.child = Some(child);
        Ok(())
    }

    /// Runs a command on a new connection, with the password if there is one. Arguments may be any bytes; an error
    /// reply is a [`Value::Error`].
    pub fn cli<A: AsRef<[u8]>>(&self, arguments: &[A]) -> io::Result<Value> {
        self.connect()?.call(arguments)
    }

    /// Connects for several commands, authenticated if there is a password.
    pub fn connect(&self) -> io::Result<RespConnection> {
        self.settings.connect(self.dir.path(), self.port())
    }

    /// How often each command ran since the start or the last [`reset_counts`](Self::reset_counts), by its name in
    /// lower case (`config|resetstat` for subcommands). Commands inside scripts count too.
    pub fn command_counts(&self) -> io::Result<BTreeMap<String, u64>> {
        let info = self.cli(&["INFO", "commandstats"])?.ok()?;
        Ok(info.text().unwrap_or_default().lines().filter_map(command_count).collect())
    }

    /// Resets all counts of commands.
    pub fn reset_counts(&self) -> io::Result<()> {
        self.cli(&["CONFIG", "RESETSTAT"])?.ok().map(drop)
    }

    /// Kills the process, as a power cut does: what it has written and not synced is lost. For a server
    /// [on a disk](RedisServerBuilder::on_a_disk).
    pub fn cut_power(&mut self) -> io::Result<()> {
        if !self.settings.records_syncs {
            return Err(io::Error::other("this server does not record what it syncs"));
        }
        self.kill()?;
        let record = fs::read_to_string(synced_path(self.dir.path()))?;
        let synced: BTreeMap<&str, u64> = record
            .lines()
            .filter_map(|line| line.split_once(' ').and_then(|(size, path)| Some((path, size.parse().ok()?))))
            .collect();
        for part in fs::read_dir(self.dir.path().join("appendonlydir"))? {
            let path = part?.path();
            // The other parts are complete before the server uses them.
            if path.to_string_lossy().ends_with(".incr.aof") {
                let kept = synced.get(&*path.to_string_lossy()).copied().unwrap_or(0);
                fs::OpenOptions::new().write(true).open(&path)?.set_len(kept)?;
            }
        }
        Ok(())
    }

    /// What has been written to its append-only file so far, as text.
    pub fn append_only_file(&self) -> io::Result<String> {
        let mut text = String::new();
        // Redis 7 has a directory of parts, earlier servers one file.
        for dir in [self.dir.path().to_owned(), self.dir.path().join("appendonlydir")] {
            let entries =
                if dir.is_dir() { fs::read_dir(dir)?.collect::<Result<Vec<_>, _>>()? } else { Vec::new() };
            let paths = entries.into_iter().map(|entry| entry.path());
            for path in paths.filter(|path| path.extension().is_some_and(|extension| extension == "aof")) {
                text += &String::from_utf8_lossy(&fs::read(path)?);
            }
        }
        Ok(text)
    }

    /// The end of the server's log, for the message of a failed test.
    pub fn log_tail(&self) -> String {
        log_tail(self.dir.path())
    }

    fn running(&self) -> io::Result<&Child> {
        self.child
            .as_ref()
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotConnected, "the server was killed"))
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.kill();
    }
}

/// Settings of a [`RedisServer`].
#[derive(Debug, Clone)]
#[must_use = "a server runs only after `start`"]
#[allow(clippy::struct_excessive_bools, reason = "they are independent of one another")]
pub struct RedisServerBuilder {
    /// The program; Valkey's takes the same settings.
    binary: PathBuf,
    /// Further lines of the configuration. They follow the default ones, and so override them.
    config: Vec<(String, String)>,
    /// The password that clients must send.
    password: Option<String>,
    /// Set if the server listens on a Unix socket too.
    unix_socket: bool,
    /// Set if its port speaks TLS, and raw commands go by the Unix socket.
    tls: bool,
    /// Set if data outlives a restart.
    appendonly: bool,
    /// The CPU core to run on, for measurements.
    core: Option<usize>,
    /// The server's clock.
    clock: Option<Arc<Setting>>,
    /// Whether it records what is on the disk.
    records_syncs: bool,
    /// Set if a key that has expired is deleted only when a command looks for it.
    lazy_expiry: bool,
    role: Role,
}

/// The role of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Standalone, or a replica of such a server.
    Standalone,
    /// A Sentinel.
    Sentinel,
    /// A node of a cluster.
    Node,
}

impl Default for RedisServerBuilder {
    fn default() -> Self {
        Self {
            binary: env::var_os("LEASEHOLD_TEST_SERVER").unwrap_or_else(|| "redis-server".into()).into(),
            config: Vec::new(),
            password: None,
            unix_socket: false,
            tls: false,
            appendonly: false,
            core: None,
            clock: None,
            records_syncs: false,
            lazy_expiry: false,
            role: Role::Standalone,
        }
    }
}

impl RedisServerBuilder {
    /// Adds a directive of redis.conf and its value.
    pub fn config(mut self, directive: impl Into<String>, value: impl Into<String>) -> Self {
        self.config.push((directive.into(), value.into()));
        self
    }

    /// Sets the default user's password.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Listens on a Unix socket too.
    pub fn unix_socket(mut self) -> Self {
        self.unix_socket = true;
        self
    }

    /// Serves TLS instead of plain text, with a certificate for that name signed by the authority. Clients need a
    /// certificate too unless `tls-auth-clients no` is configured. Nodes of a cluster use TLS among themselves. Raw
    /// commands use a Unix socket.
    pub fn tls(self, authority: &CertificateAuthority, name: &str) -> Self {
        let mut settings = self.certificate(authority, name).unix_socket();
        settings.tls = true;
        settings
    }

    /// Presents that certificate on TLS ports, and trusts the authority. Does not itself open a TLS port.
    pub fn certificate(self, authority: &CertificateAuthority, name: &str) -> Self {
        // The servers of other versions are built without TLS.
        self.binary("redis-server")
            .config("tls-cert-file", authority.file(&format!("{name}.pem")))
            .config("tls-key-file", authority.file(&format!("{name}.key")))
            .config("tls-ca-cert-file", authority.file("root.pem"))
    }

    /// Keeps an append-only file, flushed at every write: nothing is lost over a restart.
    pub fn appendonly(mut self) -> Self {
        self.appendonly = true;
        self
    }

    /// Boots another program, such as `valkey-server`.
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = path.into();
        self
    }

    /// Pins the process to one core by `taskset`.
    pub fn pinned(mut self, core: usize) -> Self {
        self.core = Some(core);
        self
    }

    /// Runs with a clock that the test controls. Its monotonic clock stays real.
    pub fn clock(mut self, clock: &impl ServerClock) -> Self {
        self.clock = Some(clock.setting());
        self
    }

    /// Keeps an append-only file, synced as `appendfsync` says, on a machine whose power can be cut:
    /// [`cut_power`](RedisServer::cut_power). For Redis 7 and newer.
    pub fn on_a_disk(mut self, appendfsync: &str) -> Self {
        self.records_syncs = true;
        self.appendonly().config("appendfsync", appendfsync)
    }

    /// Deletes a key that has expired only when a command looks for it. Otherwise Redis 8.2 deletes keys in their last
    /// millisecond, when commands still find them: where a clock stands still, a test would see either.
    pub fn lazy_expiry(mut self) -> Self {
        self.lazy_expiry = true;
        self
    }

    /// Runs as a Sentinel, which has no data. [`Sentinels`](crate::Sentinels) starts several, with servers.
    pub fn sentinel(mut self) -> Self {
        self.role = Role::Sentinel;
        self
    }

    /// Runs as a cluster node without peers. [`Cluster`](crate::Cluster) joins several.
    pub fn node(mut self) -> Self {
        self.role = Role::Node;
        self
    }

    /// Boots the server and returns when it answers.
    pub fn start(mut self) -> io::Result<RedisServer> {
        // Redis 6.2 permits DEBUG, and does not know the directive.
        if self.lazy_expiry && !self.is_version_6()? {
            self.config.push(("enable-debug-command".to_owned(), "local".to_owned()));
        }
        let dir = TempDir::with_prefix("leasehold-redis-")?;
        for _ in 0..BOOT_ATTEMPTS {
            let port = if self.role == Role::Node { ReservedPort::for_node()? } else { ReservedPort::new()? };
            match self.boot(dir.path(), port.number()) {
                Ok(child) => return Ok(RedisServer { settings: self, dir, port, child: Some(child) }),
                Err(BootError::PortTaken) => {}
                Err(BootError::Failed(error)) => return Err(error),
            }
        }
        Err(io::Error::other(format!("{BOOT_ATTEMPTS} ports were taken in a row")))
    }

    fn boot(&self, dir: &Path, port: u16) -> Result<Child, BootError> {
        let config = dir.join("redis.conf");
        write_private(&config, &self.config_text(dir, port))?;
        let _ = fs::remove_file(log_path(dir));
        let mut command = self.command();
        command
            .arg(&config)
            .args((self.role == Role::Sentinel).then_some("--sentinel"))
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if let Some(clock) = &self.clock {
            clock.preload(&mut command, dir)?;
        }
        if self.records_syncs {
            command.env("LEASEHOLD_SYNCED", synced_path(dir));
            DISK.preload(&mut command, dir)?;
        }
        let mut child = command.spawn().map_err(|error| self.spawn_error(&error))?;
        let ready = self.await_ready(&mut child, dir, port).and_then(|()| {
            if self.lazy_expiry {
                self.connect(dir, port)?.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"])?.ok()?;
            }
            Ok(())
        });
        match ready {
            Ok(()) => Ok(child),
            Err(error) => {
                // `error` has the reason. The process may have ended already.
                let _ = signal::kill(&mut child);
                Err(error)
            }
        }
    }

    fn command(&self) -> Command {
        let Some(core) = self.core else { return Command::new(&self.binary) };
        let mut command = Command::new("taskset");
        // taskset becomes the server by exec, so the child's id is the server's.
        command.args([OsString::from("-c"), core.to_string().into(), self.binary.clone().into()]);
        command
    }

    fn is_version_6(&self) -> io::Result<bool> {
        let output = Command::new(&self.binary).arg("--version").output();
        let output = output.map_err(|error| self.spawn_error(&error))?;
        Ok(String::from_utf8_lossy(&output.stdout).contains(" v=6."))
    }

    fn spawn_error(&self, error: &io::Error) -> io::Error {
        let program = if self.core.is_some() { Path::new("taskset") } else { &self.binary };
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        if error.kind() == io::ErrorKind::NotFound && ["redis-server", "valkey-server"].contains(&&*name) {
            let text = format!(
                "`{}` is not installed: run `cargo xtask test`, which installs it",
                program.display()
            );
            return io::Error::new(error.kind(), text);
        }
        io::Error::new(error.kind(), format!("failed to start `{}`: {error}", program.display()))
    }

    fn config_text(&self, dir: &Path, port: u16) -> String {
        let mut text = format!(
            "bind 127.0.0.1\ndaemonize no\ndir {dir}\nlogfile {log}\n",
            dir = quoted(&dir.to_string_lossy()),
            log = quoted(&log_path(dir).to_string_lossy()),
        );
        let mut line = |directive: &str, value: &str| {
            writeln!(text, "{directive} {value}").expect("writing to a string cannot fail");
        };
        if self.tls {
            line("port", "0");
        }
        line(if self.tls { "tls-port" } else { "port" }, &port.to_string());
        if self.role != Role::Sentinel {
            line("save", "\"\"");
            line("appendonly", if self.appendonly { "yes" } else { "no" });
            line("appendfsync", "always");
            if self.clock.is_some() {
                // Under a clock that stands still, that thread waits for a time that is always over, and takes a core.
                line("jemalloc-bg-thread", "no");
            }
        }
        if self.role == Role::Node {
            line("cluster-enabled", "yes");
            line("cluster-config-file", "nodes.conf");
            if self.tls {
                line("tls-cluster", "yes");
                line("tls-replication", "yes");
            }
        }
        if self.unix_socket {
            line("unixsocket", &quoted(&socket_path(dir).to_string_lossy()));
            line("unixsocketperm", "700");
        }
        if let Some(password) = &self.password {
            line("requirepass", &quoted(password));
        }
        for (directive, value) in &self.config {
            line(directive, value);
        }
        text
    }

    fn await_ready(&self, child: &mut Child, dir: &Path, port: u16) -> Result<(), BootError> {
        let deadline = Instant::now() + BOOT_LIMIT;
        loop {
            let state = match self.readiness(child.id(), dir, port) {
                Ok(Readiness::Ready) => return Ok(()),
                Ok(Readiness::OtherProcess) => return Err(BootError::PortTaken),
                Ok(Readiness::Loading) => "it is loading its data".to_owned(),
                Err(error) => error.to_string(),
            };
            if let Some(status) = child.try_wait()? {
                let log = log_tail(dir);
                if log.contains("Address already in use") {
                    return Err(BootError::PortTaken);
                }
                let text = format!("{} ended while booting ({status}): {log}", self.binary.display());
                return Err(io::Error::other(text).into());
            }
            if Instant::now() >= deadline {
                let text = format!("{} does not answer: {state}: {}", self.binary.display(), log_tail(dir));
                return Err(io::Error::new(io::ErrorKind::TimedOut, text).into());
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn readiness(&self, pid: u32, dir: &Path, port: u16) -> io::Result<Readiness> {
        let mut connection = match self.connect(dir, port) {
            Ok(connection) => connection,
            // A server with another password is another process.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Ok(Readiness::OtherProcess);
            }
            Err(error) => return Err(error),
        };
        let info = connection.call(&["INFO", "server"])?;
        if !info.text().unwrap_or_default().lines().any(|line| line == format!("process_id:{pid}")) {
            return Ok(Readiness::OtherProcess);
        }
        match connection.call(&["PING"])? {
            Value::Status(text) if text == "PONG" => Ok(Readiness::Ready),
            _ => Ok(Readiness::Loading),
        }
    }

    fn connect(&self, dir: &Path, port: u16) -> io::Result<RespConnection> {
        let mut connection = if self.tls {
            RespConnection::open_unix(&socket_path(dir), CALL_LIMIT)?
        } else {
            RespConnection::open(port, CALL_LIMIT)?
        };
        if let Some(password) = &self.password
            && let Value::Error(text) = connection.call(&["AUTH", password])?
        {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(connection)
    }
}

#[derive(Debug)]
enum BootError {
    /// Another process uses the port.
    PortTaken,
    /// It failed for another reason.
    Failed(io::Error),
}

impl From<io::Error> for BootError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<BootError> for io::Error {
    fn from(error: BootError) -> Self {
        match error {
            BootError::PortTaken => {
                io::Error::new(io::ErrorKind::AddrInUse, "the server's port was taken meanwhile")
            }
            BootError::Failed(error) => error,
        }
    }
}

enum Readiness {
    Ready,
    Loading,
    /// Another process replies on the port.
    OtherProcess,
}

fn command_count(line: &str) -> Option<(String, u64)> {
    let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(':')?;
    let calls = rest.strip_prefix("calls=")?.split(',').next()?;
    Some((name.to_owned(), calls.parse().ok()?))
}

/// A value of redis.conf in double quotes.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => quoted.extend(['\\', byte.into()]),
            0x20..0x7f => quoted.push(byte.into()),
            _ => write!(quoted, "\\x{byte:02x}").expect("writing to a string cannot fail"),
        }
    }
    quoted + "\""
}

fn write_private(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

fn synced_path(dir: &Path) -> PathBuf {
    dir.join("synced")
}

fn log_path(dir: &Path) -> PathBuf {
    dir.join("redis.log")
}

fn socket_path(dir: &Path) -> PathBuf {
    dir.join("redis.sock")
}

fn log_tail(dir: &Path) -> String {
    let Ok(log) = fs::read(log_path(dir)) else { return "there is no log".to_owned() };
    String::from_utf8_lossy(&log[log.len().saturating_sub(2000)..]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_configuration_are_quoted() {
        assert_eq!(quoted(r#"a "b" \c"#), r#""a \"b\" \\c""#);
        assert_eq!(quoted("é\n"), r#""\xc3\xa9\x0a""#);
    }

    #[test]
    fn a_missing_server_says_how_to_get_it() {
        let missing = io::Error::from(io::ErrorKind::NotFound);
        let check = |builder: RedisServerBuilder, wanted: &str| {
            let text = builder.spawn_error(&missing).to_string();
            assert!(text.contains(wanted), "{text}");
        };
        check(
            RedisServer::builder(),
            "`redis-server` is not installed: run `cargo xtask test`, which installs it",
        );
        check(
            RedisServer::builder().binary("/somewhere/valkey-server"),
            "`/somewhere/valkey-server` is not installed: run `cargo xtask test`, which installs it",
        );
        check(RedisServer::builder().binary("other-server"), "failed to start `other-server`");
        check(RedisServer::builder().pinned(0), "failed to start `taskset`");
    }

    #[test]
    fn counts_are_read_from_the_statistics() {
        let line = "cmdstat_config|get:calls=12,usec=3,usec_per_call=0.25,rejected_calls=0,failed_calls=0";
        assert_eq!(command_count(line), Some(("config|get".to_owned(), 12)));
        assert_eq!(command_count("# Commandstats"), None);
    }
}
