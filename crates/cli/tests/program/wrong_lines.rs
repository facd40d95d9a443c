//! Wrong command lines: the exit status of each, and the first line on standard error.
//!
//! A line is written as for a shell without expansions: words between spaces, `''` for an empty one, assignments to
//! variables in front. `{redis}` and `{address}` stand for the URL and the address of a server. On both stores, locks of
//! some kinds are held under the name of their kind, and `list` is a list on the server.

use super::fixture::{Fixture, LIMIT, Outcome, expect, finish, start};
use leasehold_testkit::{RedisServer, Worker};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

/// The line, the exit status, and the first line on standard error.
type Row = (&'static str, i32, &'static str);

#[rustfmt::skip]
const COMMANDS: &[Row] = &[
    ("walk", 2, "unrecognized subcommand 'walk'"),
    ("nightly -- echo hi", 2, "unrecognized subcommand 'nightly'"),
    ("run", 2, "the following required arguments were not provided: <NAME>..., <CMD>..."),
    ("run -- echo hi", 2, "the following required arguments were not provided: <NAME>..."),
    ("run nightly", 2, "the command is missing: write `leasehold run nightly -- CMD ARGS...`"),
    ("run nightly --", 2, "the command is missing after `--`"),
    ("run nightly echo hi", 2, "the `--` before the command is missing: write `leasehold run nightly -- echo ...`"),
    ("run nightly ./backup.sh --full", 2, "unexpected argument '--full' found, and no `--` before a command: write `leasehold run nightly -- ./backup.sh ...`"),
    ("run nightly ls -l", 2, "unexpected argument '-l' found, and no `--` before a command: write `leasehold run nightly -- ls ...`"),
    ("run nightly --try echo hi", 2, "the `--` before the command is missing: write `leasehold run NAME [OPTIONS] -- CMD ARGS...`"),
    ("run nightly -- ./missing", 127, "failed to start the command `./missing`: there is no such program: check its path, or PATH: No such file or directory (os error 2)"),
    ("run nightly -- /dev/null", 126, "failed to start the command `/dev/null`: it is not executable: check its mode: Permission denied (os error 13)"),
    ("lead scheduler ./scheduler", 2, "unexpected argument './scheduler' found, and no `--` before a command: write `leasehold lead scheduler -- ./scheduler`"),
    ("lead scheduler -- ./missing", 127, "failed to start the command `./missing`: there is no such program: check its path, or PATH: No such file or directory (os error 2)"),
    ("run nightly --waits 1s -- echo hi", 2, "unexpected argument '--waits' found"),
    ("acquire nightly", 2, "the following required arguments were not provided: --lease <DURATION>, --token-file <FILE>"),
    ("acquire nightly --lease 10s --token-file t --shared", 2, "unexpected argument '--shared' found"),
    ("free nightly", 2, "cannot ask for confirmation, because standard input and standard error are not a terminal: give --yes to free `nightly` without a question"),
    ("free nightly --fence x", 2, "invalid value 'x' for '--fence <TOKEN>': invalid digit found in string"),
    ("doctor nightly", 2, "unexpected argument 'nightly' found"),
    ("show", 2, "the following required arguments were not provided: <NAME>"),
    ("show a b", 2, "unexpected argument 'b' found"),
    ("extend --token-file missing", 2, "the token file `missing` cannot be used: there is no such file: the lock was never acquired with it, or was released"),
    ("release other --token-file missing", 2, "the token file `missing` cannot be used: there is no such file: the lock was never acquired with it, or was released"),
];

#[rustfmt::skip]
const NAMES: &[Row] = &[
    ("run '' -- echo hi", 2, "`` cannot be the name of a lock: a lock name needs at least one character"),
    ("run a\nb -- echo hi", 2, "`a\\nb` cannot be the name of a lock: a lock name has no control characters, but '\\n' is at byte 1"),
    ("show ''", 2, "`` cannot be the name of a lock: a lock name needs at least one character"),
    ("run a b --reentrant -- echo hi", 2, "--reentrant and --owner take one lock, and 2 are named: several can be held together only without them; or nest them, everywhere in the same order: `leasehold run --reentrant a -- leasehold run --reentrant b -- …`"),
    ("run a b --shared -- echo hi", 2, "--shared, --exclusive and --permits take one lock, and 2 are named: nest them, everywhere in the same order"),
    ("run a b --once-per 1h -- echo hi", 2, "--once-per takes one lock, and 2 are named"),
];

#[rustfmt::skip]
const TIMES: &[Row] = &[
    ("run job --lease 30 -- echo hi", 2, "invalid value '30' for '--lease <DURATION>': 30 has no unit: write 30s for seconds, 30ms for milliseconds, or m, h, d"),
    ("run job --lease 1.5 -- echo hi", 2, "invalid value '1.5' for '--lease <DURATION>': 1.5 has no unit: write 1.5s for seconds, 1.5ms for milliseconds, or m, h, d"),
    ("run job --lease soon -- echo hi", 2, "invalid value 'soon' for '--lease <DURATION>': write numbers with units, the longest first, as in 500ms, 30s, 1.5h, 1h30m or 2d"),
    ("run job --lease 30m1h -- echo hi", 2, "invalid value '30m1h' for '--lease <DURATION>': write numbers with units, the longest first, as in 500ms, 30s, 1.5h, 1h30m or 2d"),
    ("run job --lease 0.3333s -- echo hi", 2, "invalid value '0.3333s' for '--lease <DURATION>': it is finer than a millisecond: write a whole number of ms"),
    ("run job --lease 99999999999999999999s -- echo hi", 2, "invalid value '99999999999999999999s' for '--lease <DURATION>': it is too long"),
    ("run job --lease 0s -- echo hi", 2, "--lease 0s is too short: give 200ms at least, to leave time to renew the lock and to end the command"),
    ("run job --max-hold 0s -- echo hi", 2, "--max-hold 0s is too short: give 200ms at least, to leave time to renew the lock and to end the command"),
    ("run job --once-per 0s -- echo hi", 2, "--once-per 0s is too short: give 200ms at least, to leave time to renew the lock and to end the command"),
    ("run job --lease 400d -- echo hi", 2, "invalid --lease: a lease is at most 366 days long, this one 34560000s"),
    ("run job --once-per 400d -- echo hi", 2, "invalid --once-per: a lease is at most 366 days long, this one 34560000s"),
    ("run job --once-per 1d --at-most 400d -- echo hi", 2, "invalid --at-most: a lease is at most 366 days long, this one 34560000s"),
    ("run job --lease 5s --kill-grace 5s -- echo hi", 2, "--kill-grace 5s is not shorter than the lease of 5s: the command would have to end before it starts; shorten --kill-grace or lengthen --lease"),
    ("run job --lease 10s --kill-grace 9900ms -- echo hi", 2, "--kill-grace 9.9s leaves no time to renew a lease of 10s: it must be shorter than the lease by at least 500ms"),
    ("run job --session 0s -- echo hi", 2, "--session 0s is too short: give 1s at least, since a shorter session would end at any brief network delay"),
    ("run job --session 500ms -- echo hi", 2, "--session 500ms is too short: give 1s at least, since a shorter session would end at any brief network delay"),
    ("run job --wait -1s -- echo hi", 2, "unexpected argument '-1' found"),
    ("acquire job --lease 0s --token-file t", 2, "invalid --lease: a lease is at least 1 ms long, this one 0ns"),
    ("monitor --every 0s", 2, "invalid value '0s' for '--every <DURATION>': it must be longer than 0"),
    ("monitor --every 2", 2, "invalid value '2' for '--every <DURATION>': 2 has no unit: write 2s for seconds, 2ms for milliseconds, or m, h, d"),
    ("wait job --wait soon", 2, "invalid value 'soon' for '--wait <DURATION>': write numbers with units, the longest first, as in 500ms, 30s, 1.5h, 1h30m or 2d"),
];

#[rustfmt::skip]
const OPTIONS: &[Row] = &[
    ("run job --adopt 1h --shared -- echo hi", 2, "the argument '--adopt <TIME>' cannot be used with '--shared'"),
    ("run a b --adopt 1h -- echo hi", 2, "--adopt takes one lock, and 2 are named"),
    ("run job --adopt 0s -- echo hi", 2, "invalid value '0s' for '--adopt <TIME>': it must be longer than 0"),
    ("run job -q -v -- echo hi", 2, "the argument '--quiet' cannot be used with '--verbose...'"),
    ("ls --foreign", 2, "--foreign and --no-expiry scan all keys of the server for names that you choose: write `leasehold ls 'orders:*' --foreign`, or '*' for all"),
    ("ls x --no-expiry", 2, "cannot scan: sending to store: this store has no keys of other libraries, and cannot be scanned"),
    ("ls x --foreign --watch", 2, "the argument '--foreign' cannot be used with '--watch'"),
    ("ls x --foreign --sessions", 2, "the argument '--foreign' cannot be used with '--sessions'"),
    ("ls --sessions --sort host", 2, "the argument '--sessions' cannot be used with '--sort <KEY>'"),
    ("ls --sort size", 2, "invalid value 'size' for '--sort <KEY>'"),
    ("ls --watch --interval 100ms", 2, "invalid value '100ms' for '--interval <DURATION>': it must be 500ms at least, to spare the store"),
    ("show job --interval 1s", 2, "the following required arguments were not provided: --watch"),
    ("run job --try --wait 1s -- echo hi", 2, "the argument '--try' cannot be used with '--wait <DURATION>'"),
    ("run job --session 5s --no-session -- echo hi", 2, "the argument '--session <DURATION>' cannot be used with '--no-session'"),
    ("run job --shared --exclusive -- echo hi", 2, "the argument '--shared' cannot be used with '--exclusive'"),
    ("run job --permits 2 --reentrant -- echo hi", 2, "the argument '--permits <N>' cannot be used with '--reentrant'"),
    ("run job --permits 0 -- echo hi", 2, "invalid value '0' for '--permits <N>': 0 is not in 1..=4294967295"),
    ("run job --take 2 -- echo hi", 2, "the following required arguments were not provided: --permits <N>"),
    ("run job --permits 2 --take 3 -- echo hi", 2, "--take 3 is more than --permits 2"),
    ("run job --resize -- echo hi", 2, "the following required arguments were not provided: --permits <N>"),
    ("run job --at-most 2h -- echo hi", 2, "the following required arguments were not provided: --once-per <DURATION>"),
    ("run job --once-per 1h --lease 5s -- echo hi", 2, "the argument '--once-per <DURATION>' cannot be used with '--lease <DURATION>'"),
    ("run job --owner '' -- echo hi", 2, "invalid --owner: an owner has 1 to 256 bytes and no control characters; this text of 0 bytes is none"),
    ("run job --conflict-exit-code 256 -- echo hi", 2, "invalid value '256' for '--conflict-exit-code <N>': 256 is not in 0..=255"),
    ("run job --log-format xml -- echo hi", 2, "invalid value 'xml' for '--log-format <FORMAT>'"),
    ("run job --password-file missing -- echo hi", 2, "failed to read the password from `missing`: No such file or directory (os error 2)"),
    ("run job --password-file f --password-command pwgen -- echo hi", 2, "the argument '--password-file <FILE>' cannot be used with '--password-command <CMD>'"),
    ("run job --password-command -- echo hi", 2, "a value is required for '--password-command <CMD>' but none was supplied"),
    ("run job --password-command pwgen -- echo hi", 2, "--password-command is for a server, and the store is none: give one by --store"),
    ("show job --store redis://h --password-command ''", 2, "--password-command needs a command that prints the password"),
    ("LEASEHOLD_STORE=redis://:hunter2@h show job --password-command pwgen", 2, "the URL of LEASEHOLD_STORE contains a password, and --password-command gives another: leave out one of them"),
    ("LEASEHOLD_STORE=redis://:hunter2@h show job --password-file missing", 2, "the URL of LEASEHOLD_STORE contains a password, and --password-file gives another: leave out one of them"),
    ("acl --password-command pwgen", 2, "--password-command is for a server, and none is given: give one by --store"),
    ("run job --prefix app: -- echo hi", 2, "failed to open the store: `sqlite:` takes no user, password or key prefix: these are for Redis"),
    ("acl --user ''", 2, "invalid --user: the name of an ACL user is not empty, and has no spaces or control characters"),
];

#[rustfmt::skip]
const STORES: &[Row] = &[
    ("show job --store localhost:6379", 2, "failed to open the store: the store's URL cannot be used: there is no store of its scheme: did you mean `redis://localhost:6379`?"),
    ("show job --store locks.db", 2, "failed to open the store: the store's URL cannot be used: it has no scheme: did you mean `sqlite:locks.db`?"),
    ("show job --store localhost", 2, "failed to open the store: the store's URL cannot be used: it has no scheme: write redis://HOST:PORT for a server, or sqlite:PATH for a file; `leasehold help where` lists all schemes"),
    ("show job --store ''", 2, "failed to open the store: the store's URL cannot be used: it has no scheme: write redis://HOST:PORT for a server, or sqlite:PATH for a file; `leasehold help where` lists all schemes"),
    ("show job --store postgres://h", 2, "failed to open the store: the store's URL cannot be used: there is no store of its scheme: write redis://HOST:PORT for a server, or sqlite:PATH for a file; `leasehold help where` lists all schemes"),
    ("LEASEHOLD_STORE=localhost:6379 show job", 2, "failed to open the store: the store's URL cannot be used: there is no store of its scheme: write redis://HOST:PORT for a server, or sqlite:PATH for a file; `leasehold help where` lists all schemes"),
    ("show job --store memory:", 2, "a `memory:` store ends with this program, so no other process would see its locks: give a file (sqlite:PATH) or a server (redis://…)"),
    ("show job --store sqlite:", 2, "failed to open the store: the store's URL cannot be used: `sqlite:` needs the path of a file behind it"),
    ("show job --store sqlite:locks.db?strict=1", 2, "failed to open the store: the store's URL cannot be used: a `sqlite:` URL has no settings, and its path no `?`; if it contains a password, change the password: every user of this machine can read --store in the process list"),
    ("show job --store sqlite:no/such/dir/locks.db", 2, "failed to open the store: connecting to no/such/dir/locks.db: its directory does not exist: create it first, with mode 0700: No such file or directory (os error 2)"),
    ("show job --store redis://", 2, "failed to open the store: the store's URL cannot be used: the URL names no host: write `redis://host:6379`, and `[…]` around an IPv6 address"),
    ("show job --store redis://h:x", 2, "failed to open the store: the store's URL cannot be used: the text after the host's `:` is not a port from 1 to 65535; if it is part of a password, write `%40` for `@`, `%2F` for `/` and `%3F` for `?` in it"),
    ("show job --store redis://h/x", 2, "failed to open the store: the store's URL cannot be used: the database is a number, as in `redis://host/1` or `?db=1`"),
    ("show job --store redis://:hunter2@h", 2, "the URL of --store contains a password, which every user of this machine can read in the process list: change the password, and give it by --password-file, LEASEHOLD_PASSWORD or LEASEHOLD_STORE"),
    ("show job --store redis://h?prefix=a&prefix=b", 2, "failed to open the store: the store's URL cannot be used: the URL gives `prefix` twice: leave out one of them"),
    ("show job --store redis://h/0?db=1", 2, "failed to open the store: the store's URL cannot be used: the URL gives `db` twice: leave out one of them"),
    ("show job --store redis://u@h?user=v", 2, "failed to open the store: the store's URL cannot be used: the URL gives `user` twice: leave out one of them; if it contains a password, change the password: every user of this machine can read --store in the process list"),
    ("LEASEHOLD_STORE=redis://h?strict=1&strict=0 show job", 2, "failed to open the store: the store's URL cannot be used: the URL gives `strict` twice: leave out one of them"),
    ("show job --store redis://h?prefx=a", 2, "failed to open the store: the store's URL cannot be used: there is no setting `prefx`: the settings are `prefix`, `replicas`, `durable`, `user`, `password`, `db`, `protocol`, `tracking`, `probe`, `accept` and `strict`, with TLS `ca`, `cert` and `key`, with Sentinels `sentinel_user` and `sentinel_password`, and with a quorum `min_uptime` and `node_timeout`; if it contains a password, change the password: every user of this machine can read --store in the process list"),
    ("show job --store redis://h?min_uptime=1m", 2, "failed to open the store: the store's URL cannot be used: there is no setting `min_uptime`: the settings are `prefix`, `replicas`, `durable`, `user`, `password`, `db`, `protocol`, `tracking`, `probe`, `accept` and `strict`, with TLS `ca`, `cert` and `key`, with Sentinels `sentinel_user` and `sentinel_password`, and with a quorum `min_uptime` and `node_timeout`; if it contains a password, change the password: every user of this machine can read --store in the process list"),
    ("show job --store redis://h?strict=yes", 2, "failed to open the store: the store's URL cannot be used: `strict` is 1 or 0, as in `?strict=1`; if it contains a password, change the password: every user of this machine can read --store in the process list"),
    ("show job --store redis://h?ca=f", 2, "failed to open the store: the store's URL cannot be used: `ca`, `cert` and `key` are for `rediss://`, `rediss+sentinel://`, `rediss+cluster://`, `rediss+shard://` and `redlocks://`: without TLS no certificate is checked; if it contains a password, change the password: every user of this machine can read --store in the process list"),
    ("show job --store redis://h?sentinel_user=f", 2, "failed to open the store: the store's URL cannot be used: `sentinel_user` and `sentinel_password` are for `redis+sentinel://` and `rediss+sentinel://`; if it contains a password, change the password: every user of this machine can read --store in the process list"),
    ("show job --store rediss://h?cert=f", 2, "failed to open the store: the store's URL cannot be used: `cert` and `key` go together: the files of the client's certificate and of its key; if it contains a password, change the password: every user of this machine can read --store in the process list"),
    ("show job --store redlock://a,b", 2, "failed to open the store: the store's URL cannot be used: these nodes do not form a quorum: a quorum has at least three nodes, this one has 2: a smaller one tolerates no failure"),
    ("show job --store redlock://a,b,c?min_uptime=soon", 2, "failed to open the store: the store's URL cannot be used: the minimum uptime of a node is a duration, as in `?min_uptime=90s` or `1h30m`, with `ms`, `s`, `m`, `h` and `d`; if it contains a password, change the password: every user of this machine can read --store in the process list"),
    ("run job --session 5s --store redlock://a,b,c -- echo hi", 2, "--session cannot be used with a quorum (redlock://), which keeps no sessions: there the lock of a dead process ends with its lease, so give --lease instead"),
    ("lead job --session 5s --store redlock://a,b,c -- echo hi", 2, "--session cannot be used with a quorum (redlock://), which keeps no sessions: there the lock of a dead process ends with its lease, so give --lease instead"),
    ("show job --store {redis}/99", 2, "failed to open the store: handshake with {address}: it has no database of that number: the databases are numbered from 0, and a server has 16 unless its `databases` setting says otherwise"),
    ("run job --wait 1m --store {redis}/99 -- echo hi", 2, "failed to open the store: handshake with {address}: it has no database of that number: the databases are numbered from 0, and a server has 16 unless its `databases` setting says otherwise"),
    ("lead job --store {redis}/99 -- echo hi", 2, "failed to open the store: handshake with {address}: it has no database of that number: the databases are numbered from 0, and a server has 16 unless its `databases` setting says otherwise"),
    ("where --store memory:", 2, "a `memory:` store ends with this program, so no other process would see its locks: give a file (sqlite:PATH) or a server (redis://…)"),
    ("where --store redis://h --prefix {", 2, "failed to open the store: the store's URL cannot be used: the prefix is not valid: a key prefix has neither braces nor control characters: put a hash tag into the lock's name instead"),
];

/// With the names in use for other kinds.
#[rustfmt::skip]
const KINDS: &[Row] = &[
    ("run mutex --reentrant --try -- echo hi", 65, "failed to acquire `mutex`: `mutex` is a plain lock (a mutex), which `leasehold run` acquires without --reentrant, --owner, --shared, --exclusive and --permits; use that, or another name"),
    ("run mutex --shared --try -- echo hi", 65, "failed to acquire `mutex`: `mutex` is a plain lock (a mutex), which `leasehold run` acquires without --reentrant, --owner, --shared, --exclusive and --permits; use that, or another name"),
    ("lead mutex -- echo hi", 65, "failed to lead `mutex`: `mutex` is a plain lock (a mutex), which `leasehold run` acquires without --reentrant, --owner, --shared, --exclusive and --permits; use that, or another name"),
    ("run reentrant --try -- echo hi", 65, "failed to acquire `reentrant`: `reentrant` is a reentrant lock, which `leasehold run --reentrant` or `--owner ID` acquires; use that, or another name"),
    ("run rwlock --try -- echo hi", 65, "failed to acquire `rwlock`: `rwlock` is a read-write lock, which `leasehold run --shared` or `--exclusive` acquires; use that, or another name"),
    ("run semaphore --try -- echo hi", 65, "failed to acquire `semaphore`: `semaphore` is a semaphore, which `leasehold run --permits 3` acquires; use that, or another name"),
    ("run semaphore --shared --try -- echo hi", 65, "failed to acquire `semaphore`: `semaphore` is a semaphore, which `leasehold run --permits 3` acquires; use that, or another name"),
    ("run election --try -- echo hi", 65, "failed to acquire `election`: `election` is an election, which `leasehold lead` takes part in; use that, or another name"),
    ("run free reentrant --try -- echo hi", 65, "failed to acquire `free`, `reentrant`: `reentrant` is a reentrant lock, which `leasehold run --reentrant` or `--owner ID` acquires; use that, or another name"),
    ("run rwlock --once-per 1h -- echo hi", 65, "failed to acquire `rwlock`: `rwlock` is a read-write lock, which `leasehold run --shared` or `--exclusive` acquires; use that, or another name"),
    ("acquire rwlock --lease 1m --try --token-file t", 65, "failed to acquire `rwlock`: `rwlock` is a read-write lock, which `leasehold run --shared` or `--exclusive` acquires; use that, or another name"),
];

#[rustfmt::skip]
const LISTS: &[Row] = &[
    ("run list --try -- echo hi", 65, "failed to acquire `list`: reply from the store: its key holds a list, which is no lock of this kind (a Mutex is a string, an Election a string of its own form, a ReentrantMutex a hash of its owner, each other kind a hash of its own): the name is used for something else; use another name, or a prefix of your own (--prefix)"),
    ("lead list -- echo hi", 65, "failed to lead `list`: reply from the store: its key holds a list, which is no lock of this kind (a Mutex is a string, an Election a string of its own form, a ReentrantMutex a hash of its owner, each other kind a hash of its own): the name is used for something else; use another name, or a prefix of your own (--prefix)"),
    ("acquire list --lease 1m --try --token-file t", 65, "failed to acquire `list`: reply from the store: its key holds a list, which is no lock of this kind (a Mutex is a string, an Election a string of its own form, a ReentrantMutex a hash of its owner, each other kind a hash of its own): the name is used for something else; use another name, or a prefix of your own (--prefix)"),
    ("show list", 65, "failed to inspect `list`: reply from the store: its key holds a list, which is no lock of this kind (a Mutex is a string, an Election a string of its own form, a ReentrantMutex a hash of its owner, each other kind a hash of its own): the name is used for something else"),
    ("wait list", 65, "failed to inspect `list`: reply from the store: its key holds a list, which is no lock of this kind (a Mutex is a string, an Election a string of its own form, a ReentrantMutex a hash of its owner, each other kind a hash of its own): the name is used for something else"),
    ("free list --yes", 65, "failed to inspect `list`: reply from the store: its key holds a list, which is no lock of this kind (a Mutex is a string, an Election a string of its own form, a ReentrantMutex a hash of its owner, each other kind a hash of its own): the name is used for something else"),
];

#[test]
fn wrong_command_lines_end_with_a_status_and_a_reason() {
    let server = RedisServer::start().expect("there is a server");
    server.cli(&["LPUSH", "list", "x"]).expect("it answers");
    let (file, redis) = (Fixture::sqlite(), Fixture::redis(&server));
    let _holders: Vec<_> = [&file, &redis].into_iter().flat_map(hold_all_kinds).collect();
    let mut wrong = String::new();
    for rows in [COMMANDS, NAMES, TIMES, OPTIONS, STORES, KINDS] {
        check(&file, &server, rows, &mut wrong);
    }
    for rows in [KINDS, LISTS] {
        check(&redis, &server, rows, &mut wrong);
    }
    assert!(wrong.is_empty(), "these differ:\n{wrong}");
}

/// Adds the rows that differ, as they should be written.
fn check(fixture: &Fixture, server: &RedisServer, rows: &[Row], wrong: &mut String) {
    let url = server.url();
    let url = url.trim_end_matches('/');
    let address = url.trim_start_matches("redis://");
    let filled = |text: &str| text.replace("{redis}", url).replace("{address}", address);
    for (line, status, message) in rows {
        let outcome = run(fixture, &filled(line), *status);
        let first = outcome.stderr.lines().next().unwrap_or_default();
        let first = first.strip_prefix("leasehold: ").unwrap_or("(no message of this program)");
        if outcome.status.code() != Some(*status) || first != filled(message) || !outcome.stdout.is_empty() {
            let status = outcome.status.code();
            let first = first.replace(url, "{redis}").replace(address, "{address}");
            writeln!(wrong, "    ({line:?}, {}, {first:?}),", status.unwrap_or(-1))
                .expect("writing to a string cannot fail");
        }
    }
}

/// Runs a line, again while a busy machine lets the store answer too late.
fn run(fixture: &Fixture, line: &str, status: i32) -> Outcome {
    let words = line.split(' ').map(|word| if word == "''" { "" } else { word });
    let is_assignment = |word: &&str| word.starts_with("LEASEHOLD_");
    let (assignments, arguments): (Vec<_>, Vec<_>) = words.partition(is_assignment);
    let deadline = Instant::now() + LIMIT;
    loop {
        let mut command = fixture.command(&arguments);
        command.envs(assignments.iter().filter_map(|word| word.split_once('=')));
        let outcome = finish(command, "");
        let is_late = outcome.status.code() == Some(69) && status != 69;
        if !is_late || Instant::now() >= deadline {
            return outcome;
        }
    }
}

/// Holds a lock of each kind that the program can hold, under the name of the kind, until the result is dropped.
fn hold_all_kinds(fixture: &Fixture) -> Vec<Worker> {
    let hold = |arguments: &[&str]| {
        // A busy machine must not let them lapse.
        let command = ["--lease", "1h", "--session", "1h", "--", "sh", "-c", "echo held; read line"];
        let mut worker = start(fixture.command(&[arguments, &command].concat()));
        expect(&mut worker, "held");
        worker
    };
    vec![
        hold(&["run", "mutex"]),
        hold(&["run", "reentrant", "--owner", "me"]),
        hold(&["run", "rwlock", "--shared"]),
        hold(&["run", "semaphore", "--permits", "3"]),
        hold(&["lead", "election"]),
    ]
}

#[test]
fn a_variable_that_is_no_text_matters_only_where_it_is_used() {
    let fixture = Fixture::sqlite();
    let with_variable = |arguments: &[&str]| {
        let mut command = fixture.command(arguments);
        command.env("LEASEHOLD_STORE", OsStr::from_bytes(b"redis://:hunter2\xff@h"));
        finish(command, "")
    };
    let named = format!("sqlite:{}", fixture.path("locks.db").display());
    let used = with_variable(&["run", "job", "--store", &named, "--", "echo", "hi"]);
    used.check(0, "");
    assert_eq!(used.stdout, "hi\n");
    let refused = with_variable(&["run", "job", "--", "echo", "hi"]);
    refused.check(2, "the environment variable LEASEHOLD_STORE is not UTF-8 text");
    assert!(!refused.stderr.contains("hunter2"), "{refused:?}");
}
