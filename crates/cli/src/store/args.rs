//! The options that name the store. Every subcommand has them.
//!
//! The URL stays a plain string here: clap repeats a value that it cannot parse, and a URL can contain a password.

use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Args)]
#[command(next_help_heading = "Store")]
pub(crate) struct StoreArgs {
    #[arg(long, value_name = "URL", help = STORE_HELP, long_help = STORE_LONG)]
    pub(crate) store: Option<String>,

    /// Prefix of all keys, on a server with other users
    #[arg(long, value_name = "TEXT")]
    pub(crate) prefix: Option<String>,

    #[arg(long, value_name = "FILE", help = PASSWORD_HELP, long_help = PASSWORD_LONG)]
    pub(crate) password_file: Option<PathBuf>,

    #[arg(long, value_name = "CMD", conflicts_with = "password_file")]
    #[arg(help = COMMAND_HELP, long_help = COMMAND_LONG)]
    pub(crate) password_command: Option<OsString>,
}

const STORE_HELP: &str =
    "The store of the locks [env: LEASEHOLD_STORE] [default: a SQLite file of this user]";

const STORE_LONG: &str = "\
The store of the locks [env: LEASEHOLD_STORE] [default: a SQLite file of this user]

  redis://[user@]host[:port][/db]
      a Redis or Valkey server; with TLS rediss:// (?ca=FILE, and
      ?cert=FILE&key=FILE for a client certificate)
  redis+unix:///path/to/socket
      the same, through a Unix socket
  redis+sentinel://a,b,c/name
      the primary of that name, found through these Sentinels
  redis+cluster://a,b,c
      a cluster, found through these nodes
  redis+shard://a,b,c
      independent servers: each name is on one of them
  redlock://a,b,c
      a quorum: a majority of these servers
  sqlite:PATH
      a file, for the processes of this machine

With `?strict=1` appended, a server that could lose locks is rejected; `?accept=CODE,CODE` accepts what was found: see \
`leasehold doctor`.

Without --store and LEASEHOLD_STORE, it is a file of this user, which `leasehold where` prints. Do not put a password \
here: every user of the machine can read it. See --password-file.";

const PASSWORD_HELP: &str =
    "Read the server's password from the first line of a file, or of standard input (`-`)";

const PASSWORD_LONG: &str = "\
Read the server's password from the first line of a file, or of standard input (`-`)

A file is read again for each connection to the server, so it may change while the program runs. What can be read only \
once, as a pipe, is read once. Only one line of standard input is read: the rest belongs to the command. The password can also come from the \
environment, as LEASEHOLD_PASSWORD or in the URL of LEASEHOLD_STORE, and the user from LEASEHOLD_USERNAME. The command \
does not inherit variables that contain a password.";

const COMMAND_HELP: &str = "Run a shell command that prints the password";

const COMMAND_LONG: &str = "\
Run a shell command that prints the password

`/bin/sh -c` runs it whenever a connection to the server is opened, so a token that is valid for minutes is enough. The \
first line of its output is the password. It has 5 s, no standard input, and the environment of this program without \
passwords. Every user of the machine can read the command in the process list: it must not contain a secret.";
