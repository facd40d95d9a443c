//! Draws the state on a screen of any size.
//!
//! 1. What colours say, words say as well.
//! 2. A text from elsewhere is [`printable`] before it is drawn.
//! 3. Of a question, the lock and its first holder are shown, or it cannot be answered.

use crate::fleet::order::held_since;
use crate::fleet::{Fleet, LockView};
use crate::output::capacity::Capacity;
use crate::output::graph_text;
use crate::output::printable::{printable, printable_lines};
use crate::output::session_report::SessionReport;
use crate::output::times::spoken;
use crate::top::app::{App, Prompt, Scroll, View};
use crate::top::text::{left, right, wrapped};
use leasehold::inspect::{SessionInfo, WaitGraph};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use std::time::{Duration, SystemTime};
use unicode_width::UnicodeWidthStr;

use Width::{Left, Right};

/// Below this, nothing could be read.
const MIN_WIDTH: usize = 30;
const MIN_HEIGHT: usize = 8;
/// The lines above the body: the store, the numbers, the views.
const HEAD: usize = 3;
/// How many waits are drawn at most.
const MOST_WAITS: usize = 1000;

/// Which styles there are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Palette {
    has_colours: bool,
}

impl Palette {
    /// Without colours if the variable `NO_COLOR` is set to anything: <https://no-color.org>.
    pub(super) fn from_environment() -> Self {
        Self { has_colours: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) }
    }

    #[cfg(test)]
    pub(super) const fn without_colours() -> Self {
        Self { has_colours: false }
    }

    fn coloured(self, color: Color) -> Style {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        if self.has_colours { bold.fg(color) } else { bold }
    }

    fn alarm(self) -> Style {
        self.coloured(Color::Red)
    }

    fn notice(self) -> Style {
        self.coloured(Color::Yellow)
    }
}

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const SELECTED: Style = Style::new().add_modifier(Modifier::REVERSED);
const PLAIN: Style = Style::new();

/// Draws all. Sets what the keys need to know of the screen.
pub(super) fn draw(frame: &mut Frame<'_>, app: &mut App, palette: Palette) {
    let area = frame.area();
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    app.is_prompt_shown = false;
    if width < MIN_WIDTH || height < MIN_HEIGHT {
        let text = format!("{width}x{height} is too small: {MIN_WIDTH}x{MIN_HEIGHT} at least");
        let lines = wrapped(&text, width.max(1)).into_iter().map(Line::from).collect();
        return put(frame, 0, height, lines);
    }
    let (foot, is_whole) = foot(app, palette, width, height - HEAD - 3);
    app.is_prompt_shown = is_whole;
    app.height = height - HEAD - 1 - foot.len();
    let head = vec![title(app, palette, width), totals(&app.fleet, palette), views(app, width)];
    let body_height = app.height;
    let body = if app.is_help { help(width) } else { body(app, palette, width) };
    put(frame, 0, HEAD, head);
    put(frame, HEAD, body_height, body);
    put(frame, HEAD + body_height, foot.len(), foot);
    put(frame, height - 1, 1, vec![Line::styled(left(keys(app), width), SELECTED)]);
}

/// Writes lines from a row on, at most so many.
fn put(frame: &mut Frame<'_>, top: usize, most: usize, lines: Vec<Line<'_>>) {
    let area = frame.area();
    for (at, line) in lines.into_iter().take(most).enumerate() {
        let Ok(y) = u16::try_from(top + at) else { return };
        if y < area.height {
            frame.render_widget(line, Rect { x: 0, y, width: area.width, height: 1 });
        }
    }
}

/// What is followed, and how old it is.
fn title(app: &App, palette: Palette, width: usize) -> Line<'static> {
    let age = app.fleet.read_at.map(|at| since(at, app.now));
    let (state, style) = match (app.is_paused, &app.fleet.trouble, age) {
        (true, ..) => ("PAUSED".to_owned(), palette.notice()),
        (_, Some(_), Some(age)) => (format!("NO ANSWER, read {} ago", spoken(age)), palette.alarm()),
        (_, Some(_), None) => ("NO ANSWER".to_owned(), palette.alarm()),
        (_, None, Some(age)) => (format!("read {} ago", spoken(Duration::from_secs(age.as_secs()))), PLAIN),
        (_, None, None) => ("reading".to_owned(), PLAIN),
    };
    let state_width = state.width().min(width);
    let name = format!("leasehold top  {}", app.store);
    Line::from(vec![
        Span::styled(left(&name, width.saturating_sub(state_width + 1)), BOLD),
        Span::raw(" "),
        Span::styled(state, style),
    ])
}

fn totals(fleet: &Fleet, palette: Palette) -> Line<'static> {
    let totals = &fleet.totals;
    let mut parts = vec![
        Span::raw(format!("{} held  {} waiting", totals.held, totals.waiting)),
        Span::raw(format!("  {} changes/s", rate(totals.changes_per_second))),
        Span::raw(format!("  {} session{}", totals.alive, if totals.alive == 1 { "" } else { "s" })),
    ];
    if totals.dead > 0 {
        parts.push(Span::styled(format!("  {} dead", totals.dead), palette.notice()));
    }
    match fleet.graph.cycles.len() {
        0 => {}
        1 => parts.push(Span::styled("  1 DEADLOCK", palette.alarm())),
        count => parts.push(Span::styled(format!("  {count} DEADLOCKS"), palette.alarm())),
    }
    Line::from(parts)
}

/// The views, the present one in brackets, and what restricts and orders it.
fn views(app: &App, width: usize) -> Line<'static> {
    let mut spans = Vec::new();
    let mut used = 0;
    for (view, name) in View::ALL {
        let is_shown = view == app.view;
        let text = if is_shown { format!("[{name}]") } else { format!(" {name} ") };
        used += text.width();
        spans.push(Span::styled(text, if is_shown { BOLD } else { PLAIN }));
    }
    let order = match (&app.page, app.view) {
        (Some(_), _) | (None, View::Graph) => None,
        (None, View::Locks) => Some(app.lock_order.text().to_owned()),
        (None, View::Sessions) => Some(app.session_order.text().to_owned()),
    };
    let parts: Vec<_> = [app.restriction(), order].into_iter().flatten().collect();
    spans.push(Span::raw(right(&parts.join("; "), width.saturating_sub(used))));
    Line::from(spans)
}

/// The lines above the keys: a question or its answer, and what is wrong. Also whether a question can be answered (3).
fn foot(app: &App, palette: Palette, width: usize, most: usize) -> (Vec<Line<'static>>, bool) {
    let mut lines = Vec::new();
    let mut say = |text: &str, style: Style, most: usize| {
        let text = cut(wrapped(&printable_lines(text), width), most);
        lines.extend(text.into_iter().map(|line| Line::styled(line, style)));
    };
    if let Some(Prompt::Free(proposal)) = &app.prompt {
        let question = proposal.question();
        let text = wrapped(&question, width);
        // The name and the holder, or of several the first one.
        let first: Vec<_> = question.lines().take(2).collect();
        let is_whole = text.len() <= most || wrapped(&first.join("\n"), width).len() + 3 <= most;
        let text = cut(text, most);
        return (text.into_iter().map(|line| Line::styled(line, palette.notice())).collect(), is_whole);
    }
    if let Some(trouble) = &app.fleet.trouble {
        say(&format!("the store does not answer: {trouble}; trying again"), palette.alarm(), 2);
    } else if let Some(incomplete) = &app.fleet.incomplete {
        say(&format!("the list is incomplete: {incomplete}"), PLAIN, 1);
    }
    if let Some(message) = &app.message {
        say(message, BOLD, most.saturating_sub(2).max(1));
    }
    if let Some(Prompt::Pattern(text)) = &app.prompt {
        say(&format!("show only names like: {text}_"), BOLD, 1);
    }
    lines.truncate(most);
    (lines, false)
}

/// At most so many lines: of more, the first ones and the last two are kept.
fn cut(mut lines: Vec<String>, most: usize) -> Vec<String> {
    if lines.len() <= most {
        return lines;
    }
    if most < 4 {
        lines.truncate(most);
        return lines;
    }
    let last = lines.split_off(lines.len() - 2);
    let left_out = lines.len() - (most - 3);
    lines.truncate(most - 3);
    lines.push(format!("… {left_out} more lines"));
    lines.extend(last);
    lines
}

fn keys(app: &App) -> &'static str {
    match (&app.prompt, app.is_help, &app.page, app.view) {
        (Some(Prompt::Free(_)), ..) if app.is_prompt_shown => "y take the lock from its holder   n leave it",
        (Some(Prompt::Free(_)), ..) => "n leave it   (to answer y, make the window larger)",
        (Some(Prompt::Pattern(_)), ..) => "Enter apply   Esc leave as it was   * any text, ? one character",
        (None, true, ..) => "any key goes back",
        (None, _, Some(_), _) => "Esc back  up/down scroll  f free  p pause  ? help  q quit",
        (None, _, None, View::Locks) => {
            "q quit  ? help  Enter page  / filter  s sort  f free  p pause  Tab view"
        }
        (None, _, None, View::Sessions) => "q quit  ? help  Enter locks  / filter  s sort  p pause  Tab view",
        (None, _, None, View::Graph) => "q quit  ? help  up/down scroll  / filter  p pause  Tab view",
    }
}

fn body(app: &mut App, palette: Palette, width: usize) -> Vec<Line<'static>> {
    let height = app.height;
    if let Some(page) = &mut app.page {
        let mut text = match (&page.text, &page.trouble) {
            (Some(text), _) => printable_lines(text),
            (None, None) => format!("reading `{}` …", page.name),
            (None, Some(_)) => String::new(),
        };
        if let Some(trouble) = &page.trouble {
            text = format!("CANNOT BE READ NOW: {}\n{text}", printable(trouble));
        }
        return scrolled(&text, &mut page.scroll, width, height, palette);
    }
    match app.view {
        View::Locks => locks(app, palette, width),
        View::Sessions => sessions(app, palette, width),
        View::Graph => {
            let text = graph(app);
            scrolled(&text, &mut app.graph_scroll, width, height, palette)
        }
    }
}

/// The lines of a text from where it is scrolled to.
fn scrolled(
    text: &str,
    scroll: &mut Scroll,
    width: usize,
    height: usize,
    palette: Palette,
) -> Vec<Line<'static>> {
    let lines = wrapped(text, width);
    let total = lines.len();
    scroll.top = scroll.top.min(total.saturating_sub(height));
    let mut shown: Vec<_> = lines.into_iter().skip(scroll.top).take(height).collect();
    let below = total - scroll.top - shown.len();
    if below > 0
        && let Some(last) = shown.last_mut()
    {
        *last = format!("… {} more lines", below + 1);
    }
    let style = |line: &str| match line {
        line if line.starts_with("DEADLOCK") || line.starts_with("CANNOT") => palette.alarm(),
        _ => PLAIN,
    };
    shown.into_iter().map(|line| Line::styled(line.clone(), style(&line))).collect()
}

/// A column of a number of columns of the screen. One without any is left out.
#[derive(Debug, Clone, Copy)]
enum Width {
    Left(usize),
    Right(usize),
}

/// A row of a table, with a gap between two columns.
fn row<const N: usize>(marker: &str, columns: [Width; N], cells: &[String; N]) -> String {
    let shown = columns.iter().zip(cells).filter_map(|(column, text)| match *column {
        Left(0) | Right(0) => None,
        Left(width) => Some(left(text, width)),
        Right(width) => Some(right(text, width)),
    });
    format!("{marker}{}", shown.collect::<Vec<_>>().join("  "))
}

fn locks(app: &mut App, palette: Palette, width: usize) -> Vec<Line<'static>> {
    let rows = app.height.saturating_sub(1);
    app.lock_cursor.scroll(rows, app.locks.len());
    let has_holder = width >= 70;
    let kind = if width >= 110 { 9 } else { 0 };
    let numbers = [7, 6, 6, 9];
    // The marker, the columns of a fixed width, and a gap before each.
    let fixed = 2 + 4 * 2 + numbers.iter().sum::<usize>() + if kind > 0 { 2 + kind } else { 0 };
    let left_over = width.saturating_sub(fixed + if has_holder { 2 } else { 0 });
    let name = if has_holder { left_over / 2 } else { left_over };
    let columns = [
        Left(name),
        Left(kind),
        Right(numbers[0]),
        Right(numbers[1]),
        Right(numbers[2]),
        Right(numbers[3]),
        Left(left_over - name),
    ];
    let head = ["NAME", "KIND", "WAITERS", "WAIT", "HELD", "CHANGES/S", "HOLDER"].map(str::to_owned);
    let mut lines = vec![Line::styled(left(&row("  ", columns, &head), width), BOLD)];
    if app.locks.is_empty() {
        let any = if app.fleet.locks.is_empty() { "no lock is held" } else { "no such lock is held" };
        lines.push(Line::raw(format!("  {any}")));
    }
    for (at, lock) in app.locks.iter().enumerate().skip(app.lock_cursor.top).take(rows) {
        let is_selected = at == app.lock_cursor.at;
        let marker = if is_selected { "> " } else { "  " };
        let cells = [
            printable(lock.lock.name.as_str()),
            lock.lock.kind.as_str().to_owned(),
            if lock.waiting == 0 { "-".to_owned() } else { lock.waiting.to_string() },
            lock.waiting_since.map_or_else(|| "-".to_owned(), |at| age(at, app.now)),
            held(lock, app.now),
            lock.changes_per_second.map_or_else(|| "-".to_owned(), rate),
            holder(lock),
        ];
        let text = row(marker, columns, &cells);
        let is_dead = lock.session.as_ref().is_some_and(|session| session.alive_for.is_none());
        let style = if is_dead { palette.notice() } else { PLAIN };
        lines.push(Line::styled(left(&text, width), if is_selected { SELECTED } else { style }));
    }
    lines
}

fn held(lock: &LockView, now: SystemTime) -> String {
    match (&lock.status, held_since(lock)) {
        (Some(status), _) if !status.held => "free".to_owned(),
        (_, Some(since)) => age(since, now),
        _ => "-".to_owned(),
    }
}

/// The holder, and what of a shared lock is taken.
fn holder(lock: &LockView) -> String {
    let session = lock.session.as_deref().map(SessionReport::new);
    let Some(status) = lock.status.as_deref() else {
        return session.and_then(|session| session.process()).unwrap_or_else(|| "-".to_owned());
    };
    if !status.held {
        return "-".to_owned();
    }
    let mut text = match Capacity::new(lock.lock.kind, status).text() {
        Some(taken) => format!("{taken}: "),
        None => String::new(),
    };
    if status.in_cooldown {
        text += "in cooldown: ";
    }
    if session.as_ref().is_some_and(|session| !session.alive) {
        text += "DEAD: ";
    }
    let label = || status.holder.as_deref().filter(|label| !label.is_empty()).map(printable);
    let process = session.as_ref().and_then(SessionReport::process).or_else(label);
    text += process.as_deref().unwrap_or(if status.fence.is_some() { "no label" } else { "another library" });
    match status.shared_holders.len() {
        0 | 1 => text,
        count => format!("{text} and {} more", count - 1),
    }
}

fn sessions(app: &mut App, palette: Palette, width: usize) -> Vec<Line<'static>> {
    let rows = app.height.saturating_sub(1);
    app.session_cursor.scroll(rows, app.sessions.len());
    let has_label = width >= 100;
    let pid = if width >= 50 { 7 } else { 0 };
    let numbers = [7, 7, 5];
    let gaps = 2 * (4 + usize::from(pid > 0) + usize::from(has_label));
    let left_over = width.saturating_sub(2 + gaps + pid + numbers.iter().sum::<usize>());
    let (host, program) =
        if has_label { (left_over / 4, left_over / 3) } else { (left_over / 2, left_over - left_over / 2) };
    let columns = [
        Left(host),
        Right(pid),
        Left(program),
        Right(numbers[0]),
        Right(numbers[1]),
        Right(numbers[2]),
        Left(left_over - host - program),
    ];
    let head = ["HOST", "PID", "PROGRAM", "SINCE", "ALIVE", "LOCKS", "LABEL"].map(str::to_owned);
    let mut lines = vec![Line::styled(left(&row("  ", columns, &head), width), BOLD)];
    if app.sessions.is_empty() {
        lines.push(Line::raw("  no session"));
    }
    for (at, info) in app.sessions.iter().enumerate().skip(app.session_cursor.top).take(rows) {
        let is_selected = at == app.session_cursor.at;
        let session = SessionReport::new(info);
        let or_dash = |text: Option<&str>| text.map_or_else(|| "-".to_owned(), printable);
        let cells = [
            or_dash(session.host),
            session.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
            or_dash(session.command()),
            session.started_at.map_or_else(|| "-".to_owned(), |at| age(at, app.now)),
            alive(info, app),
            info.locks.len().to_string(),
            or_dash(session.label),
        ];
        let text = row(if is_selected { "> " } else { "  " }, columns, &cells);
        let style = if session.alive { PLAIN } else { palette.notice() };
        lines.push(Line::styled(left(&text, width), if is_selected { SELECTED } else { style }));
    }
    lines
}

/// How long a session lives without another heartbeat, from now on.
fn alive(info: &SessionInfo, app: &App) -> String {
    match info.alive_for {
        None => "DEAD".to_owned(),
        Some(Duration::MAX) => "yes".to_owned(),
        Some(time) => {
            let passed = app.fleet.read_at.map(|at| since(at, app.now)).unwrap_or_default();
            spoken(Duration::from_secs(time.saturating_sub(passed).as_secs()))
        }
    }
}

/// What waits for what, as far as it is selected.
fn graph(app: &App) -> String {
    let mut graph: WaitGraph = (*app.fleet.graph).clone();
    let is_shown = |name: &str| app.selection.has_name(name);
    graph.waits.retain(|wait| is_shown(wait.lock.as_str()));
    graph.cycles.retain(|cycle| cycle.waits.iter().any(|wait| is_shown(wait.lock.as_str())));
    let more = graph.waits.len().saturating_sub(MOST_WAITS);
    graph.waits.truncate(MOST_WAITS);
    let mut lines = vec![graph_text::text(&graph, &app.clock())];
    if more > 0 {
        lines.push(format!("and {more} more waits: / shows only some locks\n"));
    }
    if !graph.skipped.is_empty() {
        lines.push(format!("incomplete: {}\n", printable(&graph.skipped.to_string())));
    }
    if graph.omitted > 0 {
        lines.push(format!("incomplete: {} waits or holds are left out\n", graph.omitted));
    }
    lines.concat()
}

fn help(width: usize) -> Vec<Line<'static>> {
    wrapped(HELP, width).into_iter().map(Line::raw).collect()
}

fn since(at: SystemTime, now: SystemTime) -> Duration {
    // The clock of the store may be ahead.
    now.duration_since(at).unwrap_or_default()
}

/// Whole seconds, as a longer time is read more easily without tenths.
fn age(at: SystemTime, now: SystemTime) -> String {
    spoken(Duration::from_secs(since(at, now).as_secs()))
}

fn rate(per_second: f64) -> String {
    // The sum of nothing is minus zero.
    let per_second = per_second + 0.0;
    if per_second < 100.0 { format!("{per_second:.1}") } else { format!("{per_second:.0}") }
}

const HELP: &str = "\
1 2 3, Tab     locks, sessions, what waits for what
up, down       select; also j, k, PageUp, PageDown, Home, End
Enter          a lock's page: its holders, queue, audit and history;
               of a session: its locks
/              show only such names: * is any text, ? one character
s, S           the next order, the last one
f              take the selected lock from its holder, after a question
p, space       pause, and go on
Esc            back, or show all again
q, Ctrl-C      quit

CHANGES/S counts how often another holder is seen in a second: at least
so many hand-overs there are. Not shown are locks held for less than
about a second, detached ones, and those of other libraries.";
