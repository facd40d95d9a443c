//! The options that name the store. Every subcommand has them.
//!
//! The URL stays a plain string here: clap repeats a value that it cannot parse, and a URL can contain a password.

use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
#[command(next_help_heading = "Store")]
pub(crate) struct StoreArgs {
    #[arg(long, value_name = "URL", help = STORE_HELP, long_help = STORE_LONG)]
    pub(crate) store: Option<String>,

    /// Prefix of all keys, on a Redis server that has other users
    #[arg(long, value_name = "TEXT")]
    pub(crate) prefix: Option<String>,

    #[arg(long, value_name = "FILE", help = PASSWORD_HELP, long_help = PASSWORD_LONG)]
    pub(crate) password_file: Option<PathBuf>,
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

With `?strict=1` appended, a server that could lose locks is rejected: see `leasehold doctor`.

Without --store and LEASEHOLD_STORE, it is a file of this user, which `leasehold where` prints. Do not put a password \
here: every user of the machine can read it. See --password-file.";

const PASSWORD_HELP: &str =
    "Read the server's password from the first line of a file, or of standard input (`-`)";

const PASSWORD_LONG: &str = "\
Read the server's password from the first line of a file, or of standard input (`-`)

Only that one line of standard input is read: the rest belongs to the command. The password can also come from the \
environment, as LEASEHOLD_PASSWORD or in the URL of LEASEHOLD_STORE, and the user from LEASEHOLD_USERNAME. The command \
does not inherit variables that contain a password.";
