//! `leasehold completions`: what a shell completes after the name of this program.

use super::documented;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log::LogArgs;
use crate::output::report::print;
use clap::{Args, ValueEnum};
use clap_complete::{Shell, generate};

/// Print what a shell completes: commands, options and their values.
///
/// For a package, or for your own shell. Opens no store.
#[derive(Args)]
#[command(about = "Print the completions for a shell", after_long_help = AFTER_HELP)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL", value_enum)]
    shell: KnownShell,

    #[command(flatten)]
    pub(super) log: LogArgs,
}

/// The shells. Bash is tested by completing words, the others by their own check of the syntax where they are installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum KnownShell {
    Bash,
    Zsh,
    Fish,
}

/// Prints the completions.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<Exit, Failure> {
    let shell = match args.shell {
        KnownShell::Bash => Shell::Bash,
        KnownShell::Zsh => Shell::Zsh,
        KnownShell::Fish => Shell::Fish,
    };
    let mut text = Vec::new();
    generate(shell, &mut documented(), "leasehold", &mut text);
    print(&String::from_utf8_lossy(&text)).map(|()| Exit::SUCCESS)
}

const AFTER_HELP: &str = "\
Exit status:
    0  they were printed
    2  there is no such shell

Examples:
  leasehold completions bash > /etc/bash_completion.d/leasehold
  leasehold completions zsh > /usr/local/share/zsh/site-functions/_leasehold
  leasehold completions fish > ~/.config/fish/completions/leasehold.fish";
