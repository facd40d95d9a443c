//! `leasehold top`: a screen that follows all locks, their waiters and their sessions.

use crate::commands::free::operator_label;
use crate::fleet::order::LockOrder;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log::LogArgs;
use crate::output::printable::printable;
use crate::output::screen;
use crate::store::args::StoreArgs;
use crate::store::client::ClientConfig;
use crate::top;
use anyhow::anyhow;
use clap::Args;
use std::io;

/// Follow all locks on the screen: what waits, what holds, and what waits for each other
///
/// Shows what sessions report: the locks that they have held or waited for longer than about a second. Not shown are locks that
/// were just acquired, detached ones, and those of clients without a session or of other libraries. Those on the screen are read
/// about once a second, of a large fleet less often, and the others in turns: the server spends less than 1 % of a core on this,
/// however many there are.
#[derive(Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct TopArgs {
    /// Only locks with such a name: * is any text, ? one character
    pattern: Option<String>,

    /// Order of the locks at the start
    #[arg(long, value_name = "KEY", value_enum, default_value_t = LockOrder::Waiters)]
    sort: LockOrder,

    /// Label of the operator, for the audit of a lock that is freed [default: user@host]
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    pub(super) log: LogArgs,
}

/// Shows the screen until the user or a signal ends it.
pub(crate) async fn top(args: &TopArgs) -> Result<Exit, Failure> {
    if !(screen::can_move_cursor(io::stdin()) && screen::can_move_cursor(io::stdout())) {
        return Err(Failure::usage(anyhow!(
            "`top` needs a terminal for its input and its output, and one that can move its cursor (TERM is not `dumb`): \
             elsewhere use `leasehold ls --watch`, `leasehold ls --json` or `leasehold graph`"
        )));
    }
    let label = args.label.clone().or_else(operator_label);
    let config = ClientConfig::from_args(&args.store)?.without_session().label(label.as_deref());
    let store = config.servers().map_or_else(|| "a file".to_owned(), printable);
    let client = config.connect().await?;
    top::run(client, store, args.pattern.as_deref(), args.sort).await
}

const AFTER_HELP: &str = "\
Keys:
  1 2 3, Tab   locks, sessions, or what waits for what
  up, down     select; also j, k, PageUp, PageDown, Home, End
  Enter        a lock's page: its holders, queue, audit and history;
               of a session: its locks
  /            show only locks with such a name
  s, S         the next order, the last one
  f            take the selected lock from its holder, after a question
  p, space     pause, and go on
  ?            help
  Esc          back; q or Ctrl-C ends it

Exit status:
    0  you or a signal ended it
    2  there is no terminal, the store keeps no sessions, or the URL or another
       setting cannot be used
   69  the store cannot be reached at the start, or refuses the request

Examples:
  leasehold top
  leasehold top 'orders:*' --sort hold
  NO_COLOR=1 leasehold top --store redis://db.example.org";
