//! The terminal as a full screen, and its keys.
//!
//! However the program goes on, the terminal is as before: at the end, at an error, after a panic, and while it is stopped.

use crate::job::terminal::suspend;
use crate::output::log::HeldBack;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::layout::{Position, Rect};
use std::io::{self, Stdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use tokio::sync::mpsc::{Receiver, channel};

/// The full screen. Dropping it restores the terminal.
pub(super) struct Screen {
    pub(super) terminal: Terminal<CrosstermBackend<Stdout>>,
    /// Messages on standard error would be drawn into the screen.
    _messages: HeldBack,
}

impl Screen {
    /// Takes the terminal.
    pub(super) fn open() -> io::Result<Self> {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            leave();
            before(info);
        }));
        let messages = HeldBack::begin();
        let terminal = enter().and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        // The screen exists only once all is done, and would not restore it otherwise.
        let terminal = terminal.inspect_err(|_| leave())?;
        Ok(Self { terminal, _messages: messages })
    }

    /// Gives the terminal back, stops this process or its whole group, and takes the terminal again when it continues.
    pub(super) fn suspend(&mut self, whole_group: bool) -> io::Result<()> {
        leave();
        suspend(whole_group);
        self.retake()
    }

    /// Takes the terminal again from whatever has used it while this process was stopped.
    pub(super) fn retake(&mut self) -> io::Result<()> {
        leave();
        enter()?;
        // `clear` would ask the terminal for its cursor, and the thread of the keys would take the answer.
        let size = self.terminal.size()?;
        self.terminal.resize(Rect::from((Position::ORIGIN, size)))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

/// Whether the terminal is taken. To leave the full screen twice would move the cursor over what was written in between.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

fn enter() -> io::Result<()> {
    IS_TAKEN.store(true, Ordering::Relaxed);
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen, Hide)
}

/// Restores the terminal, which may be gone.
fn leave() {
    if !IS_TAKEN.swap(false, Ordering::Relaxed) {
        return;
    }
    let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
    let _ = disable_raw_mode();
}

/// What the terminal reports.
pub(super) enum Input {
    Key(KeyEvent),
    /// It has another size.
    Resized,
}

/// Reads the terminal, in a thread that ends with the program.
///
/// It begins to read when [`next`](Self::next) is waited for, and takes what the terminal has by then. What is typed after the
/// screen has gone, because of a key, is left for the shell. If a signal ends the program, it still waits for one input.
pub(super) struct Inputs {
    /// Each lets the thread read once.
    requests: SyncSender<()>,
    /// Whether the thread has a request whose input was not received.
    is_requested: bool,
    received: Receiver<Input>,
}

impl Inputs {
    /// Starts the thread.
    pub(super) fn start() -> io::Result<Self> {
        let (requests, requested) = sync_channel(1);
        let (sender, received) = channel(1);
        let read = move || {
            while let Ok(()) = requested.recv() {
                let Ok(input) = read_input() else { return };
                if sender.blocking_send(input).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("leasehold-keys".to_owned()).spawn(read)?;
        Ok(Self { requests, is_requested: false, received })
    }

    /// The next input, or `None` if the terminal has gone. Cancel safety: none is lost.
    pub(super) async fn next(&mut self) -> Option<Input> {
        if !self.is_requested {
            self.requests.send(()).ok()?;
            self.is_requested = true;
        }
        let input = self.received.recv().await;
        self.is_requested = false;
        input
    }
}

fn read_input() -> io::Result<Input> {
    loop {
        match event::read() {
            Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => return Ok(Input::Key(key)),
            Ok(Event::Resize(..)) => return Ok(Input::Resized),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
