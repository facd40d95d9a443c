//! `leasehold board`: locks, waits and sessions as a web page.

use crate::board::{Access, Board, MIN_TOKEN, random_token};
use crate::commands::free::operator_label;
use crate::environment::{BOARD_TOKEN, variable};
use crate::fleet;
use crate::job::signals::Signals;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log::LogArgs;
use crate::output::report::{json_line, print};
use crate::store::args::StoreArgs;
use crate::store::client::ClientConfig;
use crate::store::secret::{Secret, first_line};
use anyhow::{Context, anyhow};
use clap::Args;
use serde::Serialize;
use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use tokio::net::TcpListener;

/// Show locks, waits and sessions as a web page.
///
/// Serves a page that shows which locks are held and waited for, each lock with its queue and history, the sessions, what waits for
/// what, and charts of the last hour. By default only this machine can reach it, and it can change nothing. The page is
/// HTTP: elsewhere than on this machine, put a proxy with TLS in front.
#[derive(Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct BoardArgs {
    /// Address and port of the page; port 0 is any that is free
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8470")]
    listen: SocketAddr,

    /// Offer to free locks; without another token, one is made as by --new-token
    #[arg(long)]
    allow_free: bool,

    #[arg(long, value_name = "FILE", help = TOKEN_HELP, long_help = TOKEN_LONG)]
    token_file: Option<PathBuf>,

    /// Make a token, and print a link that contains it
    #[arg(long, conflicts_with = "token_file")]
    new_token: bool,

    /// Name by which browsers reach the page, beside its addresses and `localhost`; repeatable
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,

    /// Label of the operator, for the audit of freed locks [default: user@host]
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,

    /// Print one line of JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    pub(super) log: LogArgs,
}

/// Serves the page until a signal ends it, which is no failure.
pub(crate) async fn board(args: &BoardArgs) -> Result<Exit, Failure> {
    let token = token(args)?;
    let label = args.label.clone().or_else(operator_label);
    let config = ClientConfig::from_args(&args.store)?.without_session().label(label.as_deref());
    let store = config.servers().unwrap_or("a file of this machine").to_owned();
    let mut signals = Signals::catch()?;
    let start = async {
        let listener = TcpListener::bind(args.listen)
            .await
            .with_context(|| format!("failed to listen at {}", args.listen))
            .map_err(Failure::unavailable)?;
        let client = config.connect().await?;
        let watch = fleet::watch(client.clone()).await?;
        Ok((listener, client, watch))
    };
    let Ok(started) = signals.interruptible(start).await else { return Ok(Exit::SUCCESS) };
    let (listener, client, watch) = started?;
    let at = listener.local_addr().context("failed to find the port").map_err(Failure::unavailable)?;
    let link = match &token {
        Some(Token { secret, is_new: true }) => format!("http://{at}/#token={}", secret.reveal()),
        _ => format!("http://{at}/"),
    };
    let started =
        Started { event: "started", url: &link, token: token.is_some(), allow_free: args.allow_free };
    print(&if args.json { json_line(&started) } else { format!("{link}\n") })?;
    let access = Access::new(&args.host, token.map(|token| token.secret), at.port(), args.allow_free);
    let board = Board::new(client, access, store);
    let serve = async {
        tokio::join!(board.follow(watch), board.clone().serve(listener));
    };
    // Neither ends by itself.
    let _ = signals.interruptible(serve).await;
    Ok(Exit::SUCCESS)
}

/// What is printed at the start. The fields of its JSON are stable.
#[derive(Serialize)]
struct Started<'a> {
    event: &'static str,
    url: &'a str,
    token: bool,
    allow_free: bool,
}

struct Token {
    secret: Secret,
    /// Whether it was made just now, and has to be printed.
    is_new: bool,
}

/// The token of the page, if it needs one.
fn token(args: &BoardArgs) -> Result<Option<Token>, Failure> {
    if let Some(secret) = given_token(args)? {
        if secret.reveal().chars().count() < MIN_TOKEN {
            return Err(Failure::usage(anyhow!(
                "the token of the page has fewer than {MIN_TOKEN} characters"
            )));
        }
        return Ok(Some(Token { secret, is_new: false }));
    }
    let is_local = args.listen.ip().is_loopback();
    if !is_local && !args.new_token {
        return Err(Failure::usage(anyhow!(
            "other machines can reach {}, so the page needs a token: give --token-file, {BOARD_TOKEN} or --new-token",
            args.listen
        )));
    }
    // Other users of this machine can reach a loopback address, too.
    let is_needed = args.new_token || args.allow_free;
    Ok(is_needed.then(|| Token { secret: random_token(), is_new: true }))
}

/// The token of a file, or of the environment.
fn given_token(args: &BoardArgs) -> Result<Option<Secret>, Failure> {
    if let Some(path) = &args.token_file {
        let read = File::open(path).map_err(anyhow::Error::from).and_then(first_line);
        let read = read.with_context(|| format!("failed to read the token from `{}`", path.display()));
        return read.map(Some).map_err(Failure::usage);
    }
    if args.new_token {
        return Ok(None);
    }
    Ok(variable(BOARD_TOKEN)?.map(Secret::new))
}

const TOKEN_HELP: &str =
    "Read the token of the page from the first line of a file [env: LEASEHOLD_BOARD_TOKEN]";

const TOKEN_LONG: &str = "\
Read the token of the page from the first line of a file [env: LEASEHOLD_BOARD_TOKEN]

A user who opens the page has to give it once. An address that other machines can reach needs a token. It has 16 characters \
at least.";

const AFTER_HELP: &str = "\
Runs until SIGTERM, SIGINT, SIGHUP or SIGQUIT, and then ends with 0. Prints the
address of the page. The charts begin empty when the board starts.

JSON (--json), one line; later versions may add fields:
  event (started), url, token (whether the page needs one), allow_free

Exit status:
    0  a signal ended it
    2  a setting cannot be used, an address that others can reach has no token,
       or the store keeps no sessions (a quorum)
   69  the address is in use, or the store could not be reached at the start

Examples:
  leasehold board
  leasehold board --allow-free --label 'alice, on call'
  leasehold board --listen 0.0.0.0:8470 --token-file /run/secrets/board \\
    --host locks.example.org";
