//! A certificate authority for TLS tests.
//!
//! Owns keys and certificates in its own directory, made by `openssl`. Tests decide which client or server uses which.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// The validity of a certificate that is valid in every test.
const ALWAYS: (&str, &str) = ("20200101000000Z", "20991231000000Z");

/// A certificate authority for tests. Its own certificate is `root.pem`. Dropping it removes all its files.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use leasehold_testkit::{CertificateAuthority, RedisServer};
///
/// let authority = CertificateAuthority::new()?;
/// authority.sign("server", "IP:127.0.0.1,DNS:localhost")?;
/// let server = RedisServer::builder().tls(&authority, "server").start()?;
/// assert!(server.url().starts_with("rediss://"));
/// assert_eq!(server.cli(&["PING"])?.text(), Some("PONG"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CertificateAuthority {
    dir: TempDir,
}

impl CertificateAuthority {
    /// Makes an authority with its own key and a self-signed certificate.
    pub fn new() -> io::Result<Self> {
        let authority = Self { dir: TempDir::with_prefix("leasehold-authority-")? };
        let settings = format!(
            "[ca]\ndefault_ca = own\n[own]\ndatabase = {0}/index\nnew_certs_dir = {0}\ncertificate = {0}/root.pem\n\
             private_key = {0}/root.key\nrand_serial = yes\nunique_subject = no\ndefault_md = sha256\npolicy = any\n\
             [any]\ncommonName = supplied\n",
            authority.dir().display()
        );
        fs::write(authority.path("settings"), settings)?;
        fs::write(authority.path("index"), "")?;
        authority.request("root", &["-x509", "-days", "2", "-out", &authority.file("root.pem")])?;
        Ok(authority)
    }

    /// Makes a key `name.key` and a certificate `name.pem` for hosts such as `IP:127.0.0.1,DNS:localhost`.
    pub fn sign(&self, name: &str, hosts: &str) -> io::Result<()> {
        self.sign_for_period(name, hosts, ALWAYS)
    }

    /// The same, valid only between two times such as `20200101000000Z`.
    pub fn sign_for_period(&self, name: &str, hosts: &str, (from, until): (&str, &str)) -> io::Result<()> {
        let extensions = format!("basicConstraints = critical,CA:FALSE\nsubjectAltName = {hosts}\n");
        fs::write(self.path("extensions"), extensions)?;
        self.request(name, &["-out", &self.file("request")])?;
        let files = [("-config", "settings"), ("-extfile", "extensions"), ("-in", "request")];
        let files = files.map(|(option, name)| [option.to_owned(), self.file(name)]).concat();
        let mut ca = Command::new("openssl");
        ca.args(["ca", "-batch", "-notext", "-startdate", from, "-enddate", until]).args(files);
        run(ca.args(["-out", &self.file(&format!("{name}.pem"))]))
    }

    /// The directory of its files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The path of one of its files.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    /// The contents of one of its files.
    pub fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        fs::read(self.path(name))
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Makes a key and a signing request for it.
    fn request(&self, name: &str, settings: &[&str]) -> io::Result<()> {
        let mut req = Command::new("openssl");
        req.args(["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
        req.args(["-subj", "/CN=leasehold test", "-keyout", &self.file(&format!("{name}.key"))]);
        run(req.args(settings))
    }
}

fn run(command: &mut Command) -> io::Result<()> {
    let output = command.output().map_err(|error| {
        io::Error::new(error.kind(), format!("TLS tests need `openssl`, which failed to start: {error}"))
    })?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("openssl: {}", String::from_utf8_lossy(&output.stderr))))
}
