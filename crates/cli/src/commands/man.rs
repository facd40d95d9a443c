//! `leasehold man`: the manual pages, made from the help of the commands.

use super::documented;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log::LogArgs;
use crate::output::report::print;
use anyhow::{Context, anyhow};
use clap::Args;
use clap_mangen::Man;
use std::fs;
use std::path::PathBuf;

/// Print a manual page, or write all of them into a directory.
///
/// For a package, or to read one with `man`. Opens no store.
#[derive(Args)]
#[command(about = "Print a manual page, or write all of them", after_long_help = AFTER_HELP)]
pub(crate) struct ManArgs {
    /// The command whose page it is; this program's without it
    #[arg(value_name = "COMMAND", conflicts_with = "dir")]
    command: Option<String>,

    /// Write all pages into this directory, which is made if it is not there
    #[arg(long, value_name = "DIRECTORY")]
    dir: Option<PathBuf>,

    #[command(flatten)]
    pub(super) log: LogArgs,
}

/// Prints or writes pages.
pub(crate) fn man(args: &ManArgs) -> Result<Exit, Failure> {
    let mut program = documented();
    // Gives each command its whole name.
    program.build();
    if let Some(directory) = &args.dir {
        let written =
            fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(program, directory));
        let context = || format!("failed to write manual pages into {}", directory.display());
        return written.with_context(context).map(|()| Exit::SUCCESS).map_err(Failure::unavailable);
    }
    let page = match args.command.as_deref() {
        None | Some("leasehold") => program,
        Some(name) => {
            let found = program.find_subcommand(name).cloned();
            found.ok_or_else(|| Failure::usage(anyhow!("there is no command `{}`", name.escape_debug())))?
        }
    };
    let mut text = Vec::new();
    Man::new(page)
        .render(&mut text)
        .context("failed to write a manual page")
        .map_err(Failure::unavailable)?;
    print(&String::from_utf8_lossy(&text)).map(|()| Exit::SUCCESS)
}

const AFTER_HELP: &str = "\
Exit status:
    0  the page was printed, or all were written
    2  there is no such command
   69  the pages cannot be written

Examples:
  leasehold man run | man -l -
  leasehold man --dir /usr/local/share/man/man1";
