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
use std::thread;
use tokio::sync::mpsc::{Receiver, channel};

/// How many keys are kept until they are used. What is pasted or held down waits at the terminal.
const KEYS: usize = 64;

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

/// Reads the terminal in a thread, which ends with the program. The channel ends if the terminal has gone.
pub(super) fn inputs() -> io::Result<Receiver<Input>> {
    let (sender, receiver) = channel(KEYS);
    thread::Builder::new().name("leasehold-keys".to_owned()).spawn(move || {
        loop {
            let input = match event::read() {
                Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => Input::Key(key),
                Ok(Event::Resize(..)) => Input::Resized,
                Ok(_) => continue,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return,
            };
            if sender.blocking_send(input).is_err() {
                return;
            }
        }
    })?;
    Ok(receiver)
}
