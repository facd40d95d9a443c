//! The program `leasehold`: runs commands under a lock, and inspects and manages locks.
//!
//! It knows of locks only what the library offers. It starts no threads of its own, and its runtime runs on the main
//! thread: the kernel ties the end of the command to the thread that started it.

mod args;
mod backoff;
mod commands;
mod duration;
mod environment;
mod job;
mod lock;
mod output;
mod store;

use anyhow::Context;
use args::{Arguments, Task};
use clap::Parser;
use commands::{acl, acquire, doctor, extend, free, lead, ls, monitor, release, run, show, wait};
use leasehold::LockName;
use output::exit::Exit;
use output::failure::Failure;
use output::log;
use std::process::ExitCode;

fn main() -> ExitCode {
    let exit = match Arguments::try_parse() {
        Ok(arguments) => leasehold(&arguments).unwrap_or_else(|failure| log::failure(&failure)),
        Err(error) => misuse(&error),
    };
    exit.into()
}

fn leasehold(arguments: &Arguments) -> Result<Exit, Failure> {
    log::start(match &arguments.task {
        Task::Run(args) => &args.log,
        Task::Lead(args) => &args.log,
        Task::Wait(args) => &args.log,
        Task::Show(args) => &args.log,
        Task::Acquire(args) => &args.log,
        Task::Extend(args) => &args.log,
        Task::Release(args) => &args.log,
        Task::Ls(args) => &args.log,
        Task::Free(args) => &args.log,
        Task::Monitor(args) => &args.log,
        Task::Doctor(args) => &args.log,
        Task::Acl(args) => &args.log,
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the runtime")
        .map_err(Failure::unavailable)?;
    runtime.block_on(async {
        match &arguments.task {
            Task::Run(args) => run::run(args).await,
            Task::Lead(args) => lead::lead(args).await,
            Task::Wait(args) => wait::wait(args).await,
            Task::Show(args) => show::show(args).await,
            Task::Acquire(args) => acquire::acquire(args).await,
            Task::Extend(args) => extend::extend(args).await,
            Task::Release(args) => release::release(args).await,
            Task::Ls(args) => ls::ls(args).await,
            Task::Free(args) => free::free(args).await,
            Task::Monitor(args) => monitor::monitor(args).await,
            Task::Doctor(args) => doctor::doctor(args).await,
            Task::Acl(args) => acl::acl(args).await,
        }
    })
}

/// Help and version are no errors; all else is reported in the form of this program's own errors.
fn misuse(error: &clap::Error) -> Exit {
    if !error.use_stderr() {
        // A reader that has closed the pipe needs no more output.
        let _ = error.print();
        return Exit::SUCCESS;
    }
    let text = error.render().to_string();
    match text.strip_prefix("error: ") {
        Some(text) => log::error(text.trim_end()),
        None => eprint!("{text}"),
    }
    Exit::USAGE
}

fn lock_name(text: &str) -> Result<LockName, Failure> {
    LockName::new(text).map_err(|error| {
        let shown = text.escape_debug().take(60).collect::<String>();
        let cause = anyhow::Error::new(error).context(format!("`{shown}` cannot be the name of a lock"));
        Failure::usage(cause)
    })
}
