//! What the user sees, and what the keys do: a state without IO.
//!
//! 1. A lock is freed only as it was shown: the answer to a question belongs to the holders that the question names.
//! 2. A key that was pressed before a question is on the screen does not answer it.
//! 3. While paused, nothing on the screen changes but by a key.

use crate::commands::free::Proposal;
use crate::fleet::order::{LockOrder, Selection, SessionOrder};
use crate::fleet::{Fleet, LockView};
use crate::glob::Glob;
use crate::output::printable::printable;
use crate::output::session_report::SessionReport;
use crate::output::times::Clock;
use leasehold::LockName;
use leasehold::core::Lock;
use leasehold::inspect::{SessionId, SessionInfo};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::sync::Arc;
use std::time::SystemTime;

/// What has happened.
pub(super) enum Event {
    Key(KeyEvent),
    /// More is known of the locks.
    Fleet(Arc<Fleet>),
    /// A lock was read for its page: its state as text, or why it cannot be read.
    Page(LockName, Result<String, String>),
    /// A lock was read for a question: its holder, `None` if it is free, or why it cannot be read.
    Proposal(LockName, Result<Option<Arc<Proposal>>, String>),
    /// What was done to free a lock.
    Freed(LockName, String),
    /// The present.
    Now(SystemTime),
}

/// What is to be done.
#[derive(Clone)]
pub(super) enum Action {
    /// End the program.
    Quit,
    /// Stop the program, as Ctrl-Z does elsewhere.
    Suspend,
    /// Stop or continue the reading.
    Pause(bool),
    /// Read the lock for its page.
    ReadPage(LockName),
    /// Read the lock for a question.
    Ask(LockName),
    /// End the holds that were shown.
    Free(Arc<Proposal>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    Locks,
    Sessions,
    Graph,
}

impl View {
    pub(super) const ALL: [(Self, &'static str); 3] =
        [(Self::Locks, "1 Locks"), (Self::Sessions, "2 Sessions"), (Self::Graph, "3 Graph")];
}

/// A row that is selected, and the first row on the screen.
#[derive(Debug, Clone)]
pub(super) struct Cursor<K> {
    pub(super) at: usize,
    pub(super) top: usize,
    /// What the user selected, which is followed wherever it goes. `None`: the first row, whatever it is.
    key: Option<K>,
}

impl<K: PartialEq> Cursor<K> {
    const fn new() -> Self {
        Self { at: 0, top: 0, key: None }
    }

    /// Moves to a row of so many.
    fn go_to(&mut self, at: usize, rows: usize, key: impl Fn(usize) -> K) {
        self.at = at.min(rows.saturating_sub(1));
        self.key = (self.at > 0).then(|| key(self.at));
    }

    /// Follows what was selected. What has gone leaves its place to the next.
    fn follow(&mut self, rows: usize, key: impl Fn(usize) -> K) {
        let Some(selected) = &self.key else {
            self.at = 0;
            return;
        };
        match (0..rows).find(|at| key(*at) == *selected) {
            Some(at) => self.at = at,
            None => self.go_to(self.at, rows, key),
        }
    }

    /// Keeps the row on a screen of so many rows.
    pub(super) fn scroll(&mut self, height: usize, rows: usize) {
        self.top = self.top.min(self.at).max((self.at + 1).saturating_sub(height));
        self.top = self.top.min(rows.saturating_sub(height));
    }
}

/// A text that is scrolled.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Scroll {
    pub(super) top: usize,
}

/// A lock's page.
pub(super) struct Page {
    pub(super) name: LockName,
    /// What was read last.
    pub(super) text: Option<String>,
    /// Why it cannot be read now.
    pub(super) trouble: Option<String>,
    pub(super) scroll: Scroll,
}

/// What waits for an answer, before any other key.
pub(super) enum Prompt {
    /// Whether to free a lock.
    Free(Arc<Proposal>),
    /// For which names to look.
    Pattern(String),
}

pub(super) struct App {
    /// The name of the store.
    pub(super) store: String,
    pub(super) fleet: Arc<Fleet>,
    pub(super) now: SystemTime,
    pub(super) view: View,
    /// Set while a lock's page covers the view.
    pub(super) page: Option<Page>,
    pub(super) prompt: Option<Prompt>,
    pub(super) is_help: bool,
    pub(super) is_paused: bool,
    /// What the user should know of what was just done. The next key removes it.
    pub(super) message: Option<String>,
    pub(super) selection: Selection,
    pub(super) lock_order: LockOrder,
    pub(super) session_order: SessionOrder,
    /// The rows, as selected and ordered.
    pub(super) locks: Vec<LockView>,
    pub(super) sessions: Vec<Arc<SessionInfo>>,
    pub(super) lock_cursor: Cursor<Lock>,
    pub(super) session_cursor: Cursor<SessionId>,
    pub(super) graph_scroll: Scroll,
    /// How many rows the body of the screen has. Set when it is drawn.
    pub(super) height: usize,
    /// Whether a question can be read. Set when it is drawn.
    pub(super) is_prompt_shown: bool,
    /// The lock that is read for a question.
    asked: Option<LockName>,
}

impl App {
    pub(super) fn new(store: String, pattern: Option<&str>, order: LockOrder, now: SystemTime) -> Self {
        let pattern = pattern.map(|text| (text.to_owned(), Glob::new(text)));
        Self {
            store,
            fleet: Arc::default(),
            now,
            view: View::Locks,
            page: None,
            prompt: None,
            is_help: false,
            is_paused: false,
            message: None,
            selection: Selection { pattern, session: None },
            lock_order: order,
            session_order: SessionOrder::Locks,
            locks: Vec::new(),
            sessions: Vec::new(),
            lock_cursor: Cursor::new(),
            session_cursor: Cursor::new(),
            graph_scroll: Scroll::default(),
            height: 10,
            is_prompt_shown: false,
            asked: None,
        }
    }

    /// Takes what has happened. Returns what is to be done.
    pub(super) fn update(&mut self, event: Event) -> Option<Action> {
        match event {
            Event::Key(key) => return self.press(key),
            // (3); a reply may have been on its way.
            Event::Fleet(fleet) if !self.is_paused => {
                self.fleet = fleet;
                self.arrange();
            }
            Event::Now(now) if !self.is_paused => self.now = now,
            Event::Fleet(_) | Event::Now(_) => {}
            Event::Page(name, read) => {
                if let Some(page) = self.page.as_mut().filter(|page| page.name == name) {
                    match read {
                        Ok(text) => (page.text, page.trouble) = (Some(text), None),
                        Err(trouble) => page.trouble = Some(trouble),
                    }
                }
            }
            Event::Proposal(name, read) => {
                // The user may have gone on to something else.
                if self.asked.take_if(|asked| *asked == name).is_some() {
                    match read {
                        Ok(Some(proposal)) => {
                            self.message = None;
                            self.prompt = Some(Prompt::Free(proposal));
                            self.is_prompt_shown = false;
                        }
                        Ok(None) => self.message = Some(format!("`{name}` is free")),
                        Err(trouble) => self.message = Some(trouble),
                    }
                }
            }
            Event::Freed(name, result) => {
                self.message = Some(result);
                return self.reread(&name);
            }
        }
        None
    }

    /// Reads the page of a lock again, if it is shown.
    fn reread(&self, name: &LockName) -> Option<Action> {
        self.page.as_ref().filter(|page| page.name == *name).map(|page| Action::ReadPage(page.name.clone()))
    }

    /// The lock whose page is to be kept up to date.
    pub(super) fn followed(&self) -> Option<&LockName> {
        self.page.as_ref().filter(|_| !self.is_paused).map(|page| &page.name)
    }

    /// The locks on the screen.
    pub(super) fn on_screen(&self) -> Vec<Lock> {
        if self.view != View::Locks || self.page.is_some() {
            return Vec::new();
        }
        self.locks.iter().skip(self.lock_cursor.top).take(self.height).map(|lock| lock.lock.clone()).collect()
    }

    /// Selects and sorts the rows again.
    fn arrange(&mut self) {
        self.locks = self.selection.locks(&self.fleet, self.lock_order);
        self.sessions = self.selection.sessions(&self.fleet, self.session_order);
        self.lock_cursor.follow(self.locks.len(), |at| self.locks[at].lock.clone());
        self.session_cursor.follow(self.sessions.len(), |at| self.sessions[at].id);
    }

    fn press(&mut self, key: KeyEvent) -> Option<Action> {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            match key.code {
                KeyCode::Char('c') => return Some(Action::Quit),
                KeyCode::Char('z') => return Some(Action::Suspend),
                // Ctrl-Y is no yes.
                _ => return None,
            }
        }
        match self.prompt.take() {
            Some(Prompt::Free(proposal)) => return self.answer(proposal, key.code),
            Some(Prompt::Pattern(text)) => {
                self.type_pattern(text, key.code);
                return None;
            }
            None => {}
        }
        self.message = None;
        self.asked = None;
        if std::mem::take(&mut self.is_help) {
            return None;
        }
        match key.code {
            KeyCode::Char('q') => return Some(Action::Quit),
            KeyCode::Esc => return self.go_back(),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.is_help = true,
            KeyCode::Char('p' | ' ') => {
                self.is_paused = !self.is_paused;
                return Some(Action::Pause(self.is_paused));
            }
            KeyCode::Char('1') => self.show(View::Locks),
            KeyCode::Char('2') => self.show(View::Sessions),
            KeyCode::Char('3') => self.show(View::Graph),
            KeyCode::Tab => self.show(self.neighbour(1)),
            KeyCode::BackTab => self.show(self.neighbour(View::ALL.len() - 1)),
            KeyCode::Char('/') => {
                let text = self.selection.pattern.as_ref().map(|(text, _)| text.clone()).unwrap_or_default();
                self.prompt = Some(Prompt::Pattern(text));
            }
            KeyCode::Char(c @ ('s' | 'S')) if self.page.is_none() => self.next_order(c == 's'),
            KeyCode::Char('f') => return self.ask(),
            KeyCode::Enter if self.page.is_none() => return self.enter(),
            code => self.go(code),
        }
        None
    }

    /// The answer to a question (1).
    fn answer(&mut self, proposal: Arc<Proposal>, code: KeyCode) -> Option<Action> {
        match code {
            KeyCode::Char('y' | 'Y') if self.is_prompt_shown => {
                self.message = Some(format!("freeing `{}` …", proposal.name()));
                return Some(Action::Free(proposal));
            }
            KeyCode::Char('n' | 'N' | 'q') | KeyCode::Esc | KeyCode::Enter => {
                self.message = Some(format!("`{}` was left unchanged", proposal.name()));
            }
            _ => self.prompt = Some(Prompt::Free(proposal)),
        }
        None
    }

    fn type_pattern(&mut self, mut text: String, code: KeyCode) {
        match code {
            KeyCode::Esc => return,
            KeyCode::Enter => {
                self.selection.pattern = (!text.is_empty()).then(|| (text.clone(), Glob::new(&text)));
                self.arrange();
                return;
            }
            KeyCode::Backspace => {
                text.pop();
            }
            KeyCode::Char(c) => text.push(c),
            _ => {}
        }
        self.prompt = Some(Prompt::Pattern(text));
    }

    fn show(&mut self, view: View) {
        self.page = None;
        self.view = view;
    }

    fn neighbour(&self, by: usize) -> View {
        let at = View::ALL.iter().position(|(view, _)| *view == self.view).unwrap_or(0);
        View::ALL[(at + by) % View::ALL.len()].0
    }

    /// Leaves the page, or removes a restriction, or ends the program.
    fn go_back(&mut self) -> Option<Action> {
        if self.page.take().is_some() {
            return None;
        }
        if self.selection.session.take().is_some() {
            self.view = View::Sessions;
        } else if self.selection.pattern.take().is_none() {
            return Some(Action::Quit);
        }
        self.arrange();
        None
    }

    fn next_order(&mut self, is_forward: bool) {
        match self.view {
            View::Locks => self.lock_order = self.lock_order.next(is_forward),
            View::Sessions => self.session_order = self.session_order.next(is_forward),
            View::Graph => return,
        }
        self.arrange();
    }

    /// The lock of the page, or the one that is selected.
    fn selected_lock(&self) -> Option<LockName> {
        match (&self.page, self.view) {
            (Some(page), _) => Some(page.name.clone()),
            (None, View::Locks) => Some(self.locks.get(self.lock_cursor.at)?.lock.name.clone()),
            (None, _) => None,
        }
    }

    fn ask(&mut self) -> Option<Action> {
        let Some(name) = self.selected_lock() else {
            self.message = Some("select a lock to free it: 1 lists the locks".to_owned());
            return None;
        };
        self.asked = Some(name.clone());
        Some(Action::Ask(name))
    }

    /// Opens the page of a lock, or lists the locks of a session.
    fn enter(&mut self) -> Option<Action> {
        match self.view {
            View::Locks => {
                let name = self.selected_lock()?;
                let scroll = Scroll::default();
                self.page = Some(Page { name: name.clone(), text: None, trouble: None, scroll });
                return Some(Action::ReadPage(name));
            }
            View::Sessions => {
                let session = self.sessions.get(self.session_cursor.at)?;
                let process = SessionReport::new(session).process();
                let name = process.unwrap_or_else(|| format!("session {}", session.id));
                self.selection.session = Some((session.id, name));
                self.view = View::Locks;
                self.lock_cursor = Cursor::new();
                self.arrange();
            }
            View::Graph => {}
        }
        None
    }

    /// Moves the selection, or scrolls.
    fn go(&mut self, code: KeyCode) {
        let moved = |at: usize| {
            let screen = self.height.max(1);
            Some(match code {
                KeyCode::Up | KeyCode::Char('k') => at.saturating_sub(1),
                KeyCode::Down | KeyCode::Char('j') => at.saturating_add(1),
                KeyCode::PageUp => at.saturating_sub(screen),
                KeyCode::PageDown => at.saturating_add(screen),
                KeyCode::Home | KeyCode::Char('g') => 0,
                KeyCode::End | KeyCode::Char('G') => usize::MAX,
                _ => return None,
            })
        };
        let (lock, session) = (moved(self.lock_cursor.at), moved(self.session_cursor.at));
        let graph = moved(self.graph_scroll.top);
        let page = self.page.as_ref().map(|page| moved(page.scroll.top));
        match (self.view, &mut self.page, page) {
            // What is beyond the end is put right when it is drawn.
            (_, Some(page), Some(Some(top))) => page.scroll.top = top,
            (View::Locks, None, _) => {
                if let Some(at) = lock {
                    self.lock_cursor.go_to(at, self.locks.len(), |at| self.locks[at].lock.clone());
                }
            }
            (View::Sessions, None, _) => {
                if let Some(at) = session {
                    self.session_cursor.go_to(at, self.sessions.len(), |at| self.sessions[at].id);
                }
            }
            (View::Graph, None, _) => self.graph_scroll.top = graph.unwrap_or(self.graph_scroll.top),
            (_, Some(_), _) => {}
        }
    }

    /// The present, as times on the screen are counted.
    pub(super) fn clock(&self) -> Clock {
        Clock::at(self.now)
    }

    /// What restricts the locks that are shown, in words.
    pub(super) fn restriction(&self) -> Option<String> {
        let pattern = self.selection.pattern.as_ref().map(|(text, _)| format!("only {}", printable(text)));
        let session = self.selection.session.as_ref().map(|(_, name)| format!("only of {name}"));
        match (session, pattern) {
            (Some(session), Some(pattern)) => Some(format!("{session}, {pattern}")),
            (session, pattern) => session.or(pattern),
        }
    }
}
