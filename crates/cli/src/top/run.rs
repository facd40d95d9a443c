//! Connects the screen with the terminal, the store and the signals.
//!
//! 1. The store gets one request at a time for a page, and a second later the next.
//! 2. A lock that the user has answered to free is freed, or a message says that it is not known, also if the program ends
//!    meanwhile.

use crate::commands::free::Proposal;
use crate::commands::show::lock_text;
use crate::fleet;
use crate::fleet::order::LockOrder;
use crate::job::signals::{Signals, TERMINATION};
use crate::lock::any_lock;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log;
use crate::output::times::Clock;
use crate::store::CALL_TIMEOUT;
use crate::top::app::{Action, App, Event};
use crate::top::draw::{Palette, draw};
use crate::top::terminal::{Input, Inputs, Screen};
use leasehold::core::Lock;
use leasehold::{Client, LockName};
use rustix::process::Signal;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// How often ages on the screen, and the page of a lock, are brought up to date.
const SECOND: Duration = Duration::from_secs(1);

/// Shows the screen until the user or a signal ends it.
pub(crate) async fn run(
    client: Client,
    store: String,
    pattern: Option<&str>,
    order: LockOrder,
) -> Result<Exit, Failure> {
    let mut signals = Signals::catch()?;
    signals.catch_all()?;
    let mut fleet = fleet::watch(client.clone()).await?;
    let mut app = App::new(store, pattern, order, SystemTime::now());
    let mut work = Work { client, reads: JoinSet::new(), frees: JoinSet::new(), is_page_read: false };
    let palette = Palette::from_environment();
    let mut screen = Screen::open().map_err(failed)?;
    let mut inputs = Inputs::start().map_err(failed)?;
    let mut second = interval(SECOND);
    second.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut on_screen: Vec<Lock> = Vec::new();
    app.update(Event::Fleet(fleet.fleet()));
    loop {
        screen.terminal.draw(|frame| draw(frame, &mut app, palette)).map_err(failed)?;
        let now_on_screen = app.on_screen();
        if now_on_screen != on_screen {
            on_screen.clone_from(&now_on_screen);
            fleet.look_at(now_on_screen);
        }
        let event = tokio::select! {
            biased;
            signal = signals.next() => {
                match signal {
                    Signal::TSTP => screen.suspend(false).map_err(failed)?,
                    Signal::CONT => screen.retake().map_err(failed)?,
                    signal if TERMINATION.contains(&signal) => break,
                    _ => {}
                }
                continue;
            }
            input = inputs.next() => match input {
                Some(Input::Key(key)) => Event::Key(key),
                Some(Input::Resized) => continue,
                // The terminal has gone.
                None => break,
            },
            event = work.next() => event,
            fleet = fleet.changed() => Event::Fleet(fleet),
            _ = second.tick() => {
                if let Some(name) = app.followed() {
                    work.read_page(name.clone());
                }
                Event::Now(SystemTime::now())
            }
        };
        match app.update(event) {
            Some(Action::Quit) => break,
            Some(Action::Suspend) => screen.suspend(true).map_err(failed)?,
            Some(Action::Pause(is_paused)) => {
                fleet.pause(is_paused);
                if !is_paused {
                    app.update(Event::Now(SystemTime::now()));
                }
            }
            Some(Action::ReadPage(name)) => work.read_page(name),
            Some(Action::Ask(name)) => work.ask(name),
            Some(Action::Free(proposal)) => work.free(proposal),
            None => {}
        }
    }
    drop(screen);
    work.finish().await;
    Ok(Exit::SUCCESS)
}

fn failed(error: io::Error) -> Failure {
    Failure::unavailable(anyhow::Error::new(error).context("failed to use the terminal"))
}

/// Requests about single locks.
struct Work {
    client: Client,
    reads: JoinSet<Event>,
    frees: JoinSet<Event>,
    /// Whether a page is being read (1).
    is_page_read: bool,
}

impl Work {
    /// The next result. Cancel safety: none is lost.
    async fn next(&mut self) -> Event {
        let joined = tokio::select! {
            Some(joined) = self.frees.join_next() => joined,
            Some(joined) = self.reads.join_next() => joined,
            else => std::future::pending().await,
        };
        match joined {
            Ok(event) => {
                if matches!(event, Event::Page(..)) {
                    self.is_page_read = false;
                }
                event
            }
            // None is aborted, so it has panicked.
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => std::future::pending().await,
            },
        }
    }

    fn read_page(&mut self, name: LockName) {
        if std::mem::replace(&mut self.is_page_read, true) {
            return;
        }
        let client = self.client.clone();
        self.reads.spawn(async move {
            let found = any_lock::find(&client, &name).await;
            let text = found.map(|found| lock_text(&name, &found, &Clock::new(false)));
            Event::Page(name, text.map_err(|failure| failure.message()))
        });
    }

    fn ask(&mut self, name: LockName) {
        let client = self.client.clone();
        self.reads.spawn(async move {
            let read = Proposal::read(&client, &name).await;
            let read = read.map(|proposal| proposal.map(Arc::new)).map_err(|failure| failure.message());
            Event::Proposal(name, read)
        });
    }

    fn free(&mut self, proposal: Arc<Proposal>) {
        let client = self.client.clone();
        self.frees.spawn(async move {
            let result = proposal.force_release(&client).await;
            Event::Freed(proposal.name().clone(), result)
        });
    }

    /// Waits for what is under way to free a lock, and prints its result (2).
    async fn finish(mut self) {
        let mut frees = std::mem::take(&mut self.frees);
        let count = frees.len();
        let all = async {
            while let Some(joined) = frees.join_next().await {
                if let Ok(Event::Freed(_, result)) = joined {
                    log::warning(result.trim_end());
                }
            }
        };
        if count > 0 && timeout(CALL_TIMEOUT * 2, all).await.is_err() {
            log::warning("it is not known whether the lock was freed: the store does not answer");
        }
    }
}
