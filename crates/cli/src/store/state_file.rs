//! Which findings this user has accepted, and which were reported to the user today: a file of this user.
//!
//! 1. It is never a reason to fail: without it, no finding is accepted, and each is reported every time.
//! 2. It is replaced as a whole, by a rename, while a lock is held on another file: no acknowledgement is lost, and one of
//!    many processes that start at once reports a finding.
//! 3. It stays small: what was reported more than a day ago is dropped with the next change, and then the oldest reports.
//! 4. It contains no secret: a store is named by the addresses of its servers.

use crate::environment::{STATE_DIR, variable};
use crate::store::default_file::DefaultFile;
use leasehold::store::FindingCode;
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const FILE: &str = "findings.json";
const LOCK: &str = "findings.lock";
/// How long a finding that was reported is not reported again.
const DAY: Duration = Duration::from_secs(24 * 3600);
/// The size of the file (3), in bytes.
const MAX_SIZE: usize = 256 * 1024;
/// How long to wait for another process, which holds the lock while it writes the file.
const LOCK_LIMIT: Duration = Duration::from_secs(2);
/// The same for an acknowledgement, which is for a person who waits, and is synced to a disk that may be slow.
const ACCEPT_LIMIT: Duration = Duration::from_secs(60);

/// The file, which may not exist.
#[derive(Debug, Clone)]
pub(crate) struct StateFile {
    dir: PathBuf,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    findings: Vec<Entry>,
}

/// A finding about a store.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    /// The addresses of its servers (4).
    store: String,
    /// The code of the finding.
    finding: String,
    #[serde(default)]
    accepted: bool,
    /// When it was reported, in seconds since 1970; 0 if it was not.
    #[serde(default)]
    reported: u64,
}

impl StateFile {
    /// The file of this user: in the directory that the environment names, or else beside the default store.
    pub(crate) fn of_this_user() -> Option<Self> {
        let dir = match variable(STATE_DIR).ok()? {
            Some(dir) => PathBuf::from(dir),
            None => DefaultFile::of_this_user().ok()?.directory()?.to_owned(),
        };
        Some(Self { dir })
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.join(FILE)
    }

    /// The findings about a store that the user has accepted.
    pub(crate) fn accepted(&self, store: &str) -> Vec<FindingCode> {
        let state = self.read();
        let accepted = state.findings.iter().filter(|entry| entry.accepted && entry.store == store);
        accepted.filter_map(|entry| entry.finding.parse().ok()).collect()
    }

    /// Accepts findings about a store.
    pub(crate) fn accept(&self, store: &str, codes: &[FindingCode]) -> io::Result<()> {
        let _lock = self.lock(ACCEPT_LIMIT)?;
        let mut state = self.read();
        for code in codes {
            state.entry(store, *code).accepted = true;
        }
        self.write(state, now(), true)
    }

    /// Those of the findings about a store that were not reported in the last 24 hours. They count as reported now, unless
    /// that cannot be written (1).
    pub(crate) fn take_due(&self, store: &str, codes: &[FindingCode]) -> Vec<FindingCode> {
        self.take_due_at(store, codes, now())
    }

    fn take_due_at(&self, store: &str, codes: &[FindingCode], now: u64) -> Vec<FindingCode> {
        let due = self.read().due(store, codes, now);
        if due.is_empty() {
            return due;
        }
        self.mark_reported(store, codes, now).unwrap_or(due)
    }

    /// Decides again under the lock (2).
    fn mark_reported(&self, store: &str, codes: &[FindingCode], now: u64) -> io::Result<Vec<FindingCode>> {
        let _lock = self.lock(LOCK_LIMIT)?;
        let mut state = self.read();
        let due = state.due(store, codes, now);
        for code in &due {
            state.entry(store, *code).reported = now;
        }
        if !due.is_empty() {
            self.write(state, now, false)?;
        }
        Ok(due)
    }

    /// The content; empty if there is none, or none of ours.
    fn read(&self) -> State {
        let read = || -> io::Result<State> {
            let mut bytes = Vec::new();
            File::open(self.path())?.take(MAX_SIZE as u64 + 1).read_to_end(&mut bytes)?;
            Ok(serde_json::from_slice(&bytes)?)
        };
        read().unwrap_or_default()
    }

    /// Replaces the file (2). Called with the lock. An acknowledgement also survives a crash of the machine.
    fn write(&self, mut state: State, now: u64, survives_crash: bool) -> io::Result<()> {
        state.findings.retain(|entry| entry.accepted || is_recent(entry.reported, now));
        let mut text = serde_json::to_vec(&state)?;
        while text.len() > MAX_SIZE {
            let reports = state.findings.iter().enumerate().filter(|(_, entry)| !entry.accepted);
            let Some((oldest, _)) = reports.min_by_key(|(_, entry)| entry.reported) else {
                return Err(io::Error::other(
                    "it would be too large: remove it, and accept again what you need",
                ));
            };
            state.findings.remove(oldest);
            text = serde_json::to_vec(&state)?;
        }
        // Only the process with the lock uses this name. One that was killed has left it.
        let temporary = self.dir.join(format!("{FILE}.new"));
        let _ = fs::remove_file(&temporary);
        let mut file = create_new(&temporary)?;
        let written =
            file.write_all(&text).and_then(|()| if survives_crash { file.sync_all() } else { Ok(()) });
        written.and_then(|()| fs::rename(&temporary, self.path())).inspect_err(|_| {
            let _ = fs::remove_file(&temporary);
        })
    }

    /// Waits for the lock until the limit. It ends with the file that is returned, or with this process.
    fn lock(&self, limit: Duration) -> io::Result<File> {
        create_directory(&self.dir)?;
        let path = self.dir.join(LOCK);
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let deadline = Instant::now() + limit;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => sleep(Duration::from_millis(2)),
                Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::TimedOut.into()),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }
}

impl State {
    /// The codes that are neither accepted nor were reported a short while ago.
    fn due(&self, store: &str, codes: &[FindingCode], now: u64) -> Vec<FindingCode> {
        let is_known = |code: &FindingCode| {
            let mut entries = self.findings.iter().filter(|entry| entry.is_about(store, *code));
            entries.any(|entry| entry.accepted || is_recent(entry.reported, now))
        };
        codes.iter().filter(|code| !is_known(code)).copied().collect()
    }

    fn entry(&mut self, store: &str, code: FindingCode) -> &mut Entry {
        let at = self.findings.iter().position(|entry| entry.is_about(store, code));
        let at = at.unwrap_or_else(|| {
            let finding = code.as_str().to_owned();
            self.findings.push(Entry { store: store.to_owned(), finding, accepted: false, reported: 0 });
            self.findings.len() - 1
        });
        &mut self.findings[at]
    }
}

impl Entry {
    fn is_about(&self, store: &str, code: FindingCode) -> bool {
        self.store == store && self.finding == code.as_str()
    }
}

/// Whether an instant is within the last day. One in the future is from a clock that was wrong.
fn is_recent(reported: u64, now: u64) -> bool {
    now.checked_sub(reported).is_some_and(|ago| ago < DAY.as_secs())
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn create_directory(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::thread;
    use tempfile::TempDir;

    const NOW: u64 = 1_800_000_000;
    const LUA: FindingCode = FindingCode::LuaVulnerabilities;
    const REPLICA: FindingCode = FindingCode::Replica;

    fn file(dir: &TempDir) -> StateFile {
        StateFile { dir: dir.path().join("a/state") }
    }

    fn temporary() -> TempDir {
        TempDir::new().expect("there is a directory for temporary files")
    }

    #[test]
    fn a_finding_is_due_once_a_day_for_each_store() {
        let dir = temporary();
        let file = file(&dir);
        let day = DAY.as_secs();
        assert_eq!(file.take_due_at("a:1", &[LUA, REPLICA], NOW), [LUA, REPLICA]);
        assert_eq!(file.take_due_at("a:1", &[LUA, REPLICA], NOW + day - 1), []);
        assert_eq!(file.take_due_at("b:1", &[LUA], NOW + 1), [LUA]);
        assert_eq!(file.take_due_at("a:1", &[LUA], NOW + day), [LUA]);
        assert_eq!(file.take_due_at("a:1", &[LUA], NOW + day + 1), []);
        // A clock that was set back shows the finding again, and not for ever.
        assert_eq!(file.take_due_at("a:1", &[LUA], NOW), [LUA]);
        assert_eq!(file.take_due_at("a:1", &[LUA], NOW + 1), []);
    }

    #[test]
    fn what_is_accepted_is_never_due() {
        let dir = temporary();
        let file = file(&dir);
        file.accept("a:1", &[LUA]).expect("written");
        assert_eq!(file.accepted("a:1"), [LUA]);
        assert_eq!(file.accepted("b:1"), []);
        assert_eq!(file.take_due_at("a:1", &[LUA, REPLICA], NOW), [REPLICA]);
        // It stays when a report of long ago is dropped.
        assert_eq!(file.take_due_at("c:1", &[REPLICA], NOW + 10 * DAY.as_secs()), [REPLICA]);
        assert_eq!(file.read().findings.len(), 2);
        assert_eq!(file.accepted("a:1"), [LUA]);
    }

    /// Threads stand for processes: each opens the files by itself.
    #[test]
    fn of_many_that_start_at_once_one_reports_and_none_forgets() {
        let dir = temporary();
        let file = file(&dir);
        let stores: Vec<_> = (0..8).map(|n| format!("own:{n}")).collect();
        // A sync may take longer than a report waits.
        let all_reported = Barrier::new(stores.len());
        let reported: Vec<_> = thread::scope(|scope| {
            let start = |store: &String| {
                let (file, store, all_reported) = (file.clone(), store.clone(), &all_reported);
                scope.spawn(move || {
                    let due = file.take_due_at("shared:1", &[LUA], NOW).len();
                    all_reported.wait();
                    file.accept(&store, &[REPLICA]).expect("written");
                    due
                })
            };
            let threads: Vec<_> = stores.iter().map(start).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert_eq!(reported.iter().sum::<usize>(), 1, "{reported:?}");
        assert!(stores.iter().all(|store| file.accepted(store) == [REPLICA]));
    }

    #[test]
    fn without_a_file_everything_is_due_and_nothing_fails() {
        let dir = temporary();
        let path = dir.path().join("file");
        fs::write(&path, "").expect("written");
        let beside = StateFile { dir: path.join("state") };
        assert_eq!(beside.take_due_at("a:1", &[LUA], NOW), [LUA]);
        assert_eq!(beside.take_due_at("a:1", &[LUA], NOW), [LUA]);
        assert!(beside.accept("a:1", &[LUA]).is_err());
        let file = file(&dir);
        assert_eq!(file.take_due_at("a:1", &[LUA], NOW), [LUA]);
        for damage in ["", "{", "[]", r#"{"findings":[{"store":1}]}"#] {
            fs::write(file.path(), damage).expect("written");
            assert_eq!(file.take_due_at("a:1", &[LUA], NOW), [LUA], "{damage}");
        }
        // What another process holds does not stop this one for long.
        let _held = file.lock(LOCK_LIMIT).expect("free");
        let start = Instant::now();
        assert_eq!(file.take_due_at("b:1", &[LUA], NOW), [LUA]);
        assert!(start.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn the_file_stays_small() {
        let dir = temporary();
        let file = file(&dir);
        file.accept("a:1", &[LUA]).expect("written");
        let long = "x".repeat(MAX_SIZE / 4);
        for n in 0..8 {
            assert_eq!(file.take_due_at(&format!("{long}{n}"), &[LUA], NOW + n), [LUA]);
        }
        assert!(fs::metadata(file.path()).expect("it is there").len() <= MAX_SIZE as u64);
        assert_eq!(file.accepted("a:1"), [LUA]);
        assert_eq!(file.take_due_at(&format!("{long}7"), &[LUA], NOW + 8), [], "the newest are kept");
        assert_eq!(file.take_due_at(&format!("{long}0"), &[LUA], NOW + 8), [LUA], "the oldest are not");
    }
}
