//! The metadata of the client's own session, which other clients can list.

use crate::error::ConnectError;
use leasehold_core::{Label, SessionMetadata};
use leasehold_store::Environment;
use std::collections::BTreeMap;

/// Describes this process. Fails if the label is invalid, or if all of it together is too long.
pub(super) fn session_metadata(
    label: Option<String>,
    labels: BTreeMap<String, String>,
    environment: &dyn Environment,
) -> Result<SessionMetadata, ConnectError> {
    let host = host_name();
    let program = std::env::args_os().next().map(std::path::PathBuf::from);
    let program = program.as_deref().and_then(std::path::Path::file_name).map(|name| name.to_string_lossy());
    let (pid, program) = (std::process::id(), program.unwrap_or_default().into_owned());
    let label = match label {
        Some(label) => Label::new(label).map_err(|error| ConnectError::Setting(error.to_string()))?,
        None => default_label(&format!("{host}/{pid}/{program}")),
    };
    let started = environment.system_time().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let metadata = SessionMetadata {
        label,
        host,
        pid,
        program,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_ms: u64::try_from(started.as_millis()).unwrap_or(u64::MAX),
        labels,
    };
    let len = metadata.to_json().len();
    if len > SessionMetadata::MAX_LEN {
        let text = format!(
            "the session's labels have {len} bytes, but at most {} are allowed",
            SessionMetadata::MAX_LEN
        );
        return Err(ConnectError::Setting(text));
    }
    Ok(metadata)
}

/// The name of this machine.
#[cfg(unix)]
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The name of this machine.
#[cfg(not(unix))]
fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}

/// `host/pid/program`, shortened to a valid label.
fn default_label(text: &str) -> Label {
    let mut clean = String::new();
    for c in text.chars().filter(|c| !c.is_control()) {
        if clean.len() + c.len_utf8() > Label::MAX_LEN {
            break;
        }
        clean.push(c);
    }
    Label::new(clean).unwrap_or_else(|_| empty_label())
}

fn empty_label() -> Label {
    Label::new("").expect("an empty label is a label")
}
