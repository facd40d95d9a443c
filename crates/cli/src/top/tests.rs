//! The screen, drawn on a terminal in memory.

use super::app::{Action, App, Event, Prompt};
use super::draw::{Palette, draw};
use crate::commands::free::Proposal;
use crate::fleet::order::LockOrder;
use crate::fleet::{Fleet, LockView, Totals};
use leasehold::core::{Kind, Lock};
use leasehold::inspect::SessionInfo;
use leasehold::{Client, LockName};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_762_000_000)
}

fn ago(seconds: u64) -> SystemTime {
    now() - Duration::from_secs(seconds)
}

fn name(text: &str) -> LockName {
    LockName::new(text).expect("a name")
}

/// What a lock is made of: its name, its waiters and since when the first one waits, since when it is held, and changes a
/// second.
type Row = (&'static str, u64, u64, u64, f64);

/// A fleet of one session that holds locks.
async fn fleet(rows: &[Row]) -> Arc<Fleet> {
    let client = Client::connect("memory:top-fleet").await.expect("in memory");
    let _guard = client.mutex("a").expect("a name").acquire().await.expect("it is free");
    let status = client.mutex("a").expect("a name").inspect().await.expect("an answer");
    let mut session = session(&client).await;
    session.locks = rows.iter().map(|row| Lock { kind: Kind::Mutex, name: name(row.0) }).collect();
    let session = Arc::new(session);
    let mut locks: Vec<_> = rows
        .iter()
        .map(|&(lock, waiting, wait, hold, changes)| {
            let mut status = status.clone();
            status.since = Some(ago(hold));
            LockView {
                lock: Lock { kind: Kind::Mutex, name: name(lock) },
                status: Some(Arc::new(status)),
                session: Some(Arc::clone(&session)),
                waiting,
                waiting_since: (waiting > 0).then(|| ago(wait)),
                changes_per_second: Some(changes),
            }
        })
        .collect();
    locks.sort_by(|one, other| one.lock.name.cmp(&other.lock.name));
    let waiting = rows.iter().map(|row| row.1).sum();
    Arc::new(Fleet {
        read_at: Some(ago(1)),
        sessions: vec![session],
        totals: Totals { held: locks.len(), waiting, alive: 1, dead: 0, changes_per_second: 2.5 },
        locks,
        ..Fleet::default()
    })
}

/// The session of a client in memory, as a process of a server would describe it.
async fn session(client: &Client) -> SessionInfo {
    let mut session = client.sessions().await.expect("an answer").items.remove(0);
    session.alive_for = Some(Duration::from_secs(24));
    let about = session.metadata.as_mut().expect("it describes itself");
    (about.host, about.pid, about.program) = ("web-1".to_owned(), 4711, "worker".to_owned());
    about.started_ms = 1_761_996_400_000;
    session
}

fn app(fleet: &Arc<Fleet>) -> App {
    let mut app = App::new("127.0.0.1:6379".to_owned(), None, LockOrder::Waiters, now());
    app.update(Event::Fleet(Arc::clone(fleet)));
    app
}

fn press(app: &mut App, keys: &str) -> Vec<Action> {
    let codes = keys.chars().map(|c| match c {
        '\n' => KeyCode::Enter,
        '\x1b' => KeyCode::Esc,
        'v' => KeyCode::Down,
        c => KeyCode::Char(c),
    });
    let events = codes.map(|code| Event::Key(KeyEvent::new(code, KeyModifiers::NONE)));
    events.filter_map(|event| app.update(event)).collect()
}

/// The lines of a screen of that size, without blanks at their ends.
fn screen(app: &mut App, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("in memory");
    terminal.draw(|frame| draw(frame, app, Palette::without_colours())).expect("in memory");
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(line).collect()
}

const ROWS: [Row; 4] = [
    ("orders:42", 3, 75, 192, 0.0),
    ("nightly", 0, 0, 18_420, 0.0),
    ("orders:7", 12, 4, 5, 118.4),
    ("carts/a-customer-with-a-long-name", 1, 3, 3, 0.25),
];

#[tokio::test]
async fn locks_are_listed_on_80_columns() {
    let mut app = app(&fleet(&ROWS).await);
    let lines = screen(&mut app, 80, 24);
    let blank = vec![String::new(); 24];
    let mut wanted = blank;
    let top = [
        "leasehold top  127.0.0.1:6379                                        read 1s ago",
        "4 held  16 waiting  2.5 changes/s  1 session",
        "[1 Locks] 2 Sessions  3 Graph                                 most waiters first",
        "  NAME                  WAITERS    WAIT    HELD  CHANGES/S  HOLDER",
        "> orders:7                   12      4s      5s        118  web-1/4711 (worker)",
        "  orders:42                   3   1m15s   3m12s        0.0  web-1/4711 (worker)",
        "  carts/a-customer-wi…        1      3s      3s        0.2  web-1/4711 (worker)",
        "  nightly                     -       -   5h07m        0.0  web-1/4711 (worker)",
    ];
    for (line, text) in wanted.iter_mut().zip(top) {
        text.clone_into(line);
    }
    wanted[23] = "q quit  ? help  Enter page  / filter  s sort  f free  p pause  Tab view".to_owned();
    assert_eq!(lines, wanted, "{lines:#?}");
}

#[tokio::test]
async fn nothing_at_all_is_said_so() {
    let nothing = Totals { changes_per_second: std::iter::empty::<f64>().sum(), ..Totals::default() };
    let mut app = app(&Arc::new(Fleet { totals: nothing, ..Fleet::default() }));
    let lines = screen(&mut app, 80, 24);
    assert_eq!(lines[1], "0 held  0 waiting  0.0 changes/s  0 sessions");
    assert_eq!(lines[4], "  no lock is held");
    // Nothing is selected.
    assert!(press(&mut app, "vG\nf2\n").is_empty());
}

#[tokio::test]
async fn a_narrow_screen_leaves_columns_out_and_no_size_fails() {
    let mut app = app(&fleet(&ROWS).await);
    let lines = screen(&mut app, 60, 10);
    assert_eq!(lines[3], "  NAME                    WAITERS    WAIT    HELD  CHANGES/S");
    assert_eq!(lines[4], "> orders:7                     12      4s      5s        118");
    for keys in ["", "2", "3", "?", "1\n", "\x1b/abc"] {
        press(&mut app, keys);
        for (width, height) in
            (1..100).step_by(9).flat_map(|width| (1..30).map(move |height| (width, height)))
        {
            screen(&mut app, width, height);
        }
    }
}

#[tokio::test]
async fn each_order_has_its_first_lock() {
    let fleet = fleet(&ROWS).await;
    let mut app = app(&fleet);
    for (order, first) in [
        ("most waiters first", "orders:7"),
        ("longest wait first", "orders:42"),
        ("longest hold first", "nightly"),
        ("most changes first", "orders:7"),
        ("by name", "carts/"),
        ("most waiters first", "orders:7"),
    ] {
        let lines = screen(&mut app, 80, 24);
        assert!(lines[2].ends_with(order), "{lines:#?}");
        assert!(lines[4].starts_with(&format!("> {first}")), "{order}: {lines:#?}");
        press(&mut app, "s");
    }
}

#[tokio::test]
async fn a_selected_lock_is_followed_to_its_new_place() {
    let mut app = app(&fleet(&ROWS).await);
    press(&mut app, "v");
    assert!(screen(&mut app, 80, 24)[5].starts_with("> orders:42"));
    let mut rows = ROWS;
    rows[0].1 = 100;
    app.update(Event::Fleet(fleet(&rows).await));
    assert!(screen(&mut app, 80, 24)[4].starts_with("> orders:42"));
    app.update(Event::Fleet(fleet(&ROWS[1..]).await));
    let lines = screen(&mut app, 80, 24);
    assert_eq!(lines.iter().filter(|line| line.starts_with("> ")).count(), 1, "{lines:#?}");
}

#[tokio::test]
async fn a_list_longer_than_the_screen_is_scrolled_to_the_selected_row() {
    let names: Vec<&'static str> = (0..50).map(|at| &*format!("lock-{at:02}").leak()).collect();
    let rows: Vec<Row> = names.iter().map(|lock| (*lock, 0, 0, 9, 0.0)).collect();
    let mut app = app(&fleet(&rows).await);
    for _ in 0..3 {
        screen(&mut app, 80, 10);
        app.update(Event::Key(KeyEvent::new(KeyCode::PageDown, KeyModifiers::NONE)));
    }
    let lines = screen(&mut app, 80, 10);
    assert!(lines[8].starts_with("> lock-18"), "{lines:#?}");
    assert_eq!(app.on_screen()[0].name, name("lock-14"));
    press(&mut app, "G");
    assert!(screen(&mut app, 80, 10)[8].starts_with("> lock-49"));
    press(&mut app, "g");
    assert!(screen(&mut app, 80, 10)[4].starts_with("> lock-00"));
}

#[tokio::test]
async fn no_name_draws_outside_of_its_cells() {
    // A name has no control characters; what a session reports may have some.
    let hostile = [
        "a\u{2028}b\u{feff}",
        "\u{202e}evil\u{2066}",
        "漢字漢字漢字漢字漢字漢字漢字",
        "e\u{301}\u{301}\u{301}",
    ];
    let rows: Vec<Row> = hostile.iter().map(|lock| (*lock, 1, 1, 1, 1.0)).collect();
    let mut fleet = Fleet::clone(&*fleet(&rows).await);
    let mut session = SessionInfo::clone(&fleet.sessions[0]);
    let about = session.metadata.as_mut().expect("it describes itself");
    (about.host, about.program) = ("a\x1b[2J\x1b]0;b\x07".to_owned(), "\u{9b}31m\r\n".to_owned());
    fleet.sessions = vec![Arc::new(session)];
    fleet.trouble = Some("\x1b[2J\r\n\u{202e}".to_owned());
    let mut app = app(&Arc::new(fleet));
    for keys in ["", "2", "3", "1\n"] {
        press(&mut app, keys);
        let text = screen(&mut app, 80, 24).concat();
        assert!(!text.chars().any(|c| c.is_control() || matches!(c, '\u{202a}'..='\u{2069}')), "{text:?}");
    }
    press(&mut app, "\x1b");
    let lines = screen(&mut app, 80, 24);
    assert!(lines.iter().any(|line| line.contains("\\u{202e}evil\\u{2066}")), "{lines:#?}");
    assert!(lines[4..8].iter().all(|line| line.contains("  web-1/4711")), "{lines:#?}");
}

#[tokio::test]
async fn a_filter_is_the_glob_of_the_other_commands() {
    let mut app = app(&fleet(&ROWS).await);
    press(&mut app, "/orders:?");
    assert_eq!(screen(&mut app, 80, 24)[22], "show only names like: orders:?_");
    press(&mut app, "\n");
    let lines = screen(&mut app, 80, 24);
    assert!(lines[2].ends_with("only orders:?; most waiters first"), "{lines:#?}");
    assert!(lines[4].starts_with("> orders:7") && lines[5].is_empty(), "{lines:#?}");
    press(&mut app, "2");
    assert!(screen(&mut app, 80, 24)[4].starts_with("> web-1"));
    press(&mut app, "1/x\x1b");
    assert!(screen(&mut app, 80, 24)[4].starts_with("> orders:7"), "Esc leaves the filter as it was");
    press(&mut app, "\x1b");
    assert!(screen(&mut app, 80, 24)[7].starts_with("  nightly"));
    assert!(matches!(press(&mut app, "\x1b")[..], [Action::Quit]));
}

#[tokio::test]
async fn nothing_moves_while_paused() {
    let mut app = app(&fleet(&ROWS).await);
    assert!(matches!(press(&mut app, "p")[..], [Action::Pause(true)]));
    let before = screen(&mut app, 80, 24);
    assert!(before[0].ends_with("PAUSED"));
    app.update(Event::Fleet(fleet(&ROWS[1..]).await));
    app.update(Event::Now(now() + Duration::from_secs(60)));
    assert_eq!(screen(&mut app, 80, 24), before);
    assert!(app.followed().is_none());
    assert!(matches!(press(&mut app, "p")[..], [Action::Pause(false)]));
}

#[tokio::test]
async fn a_lost_store_is_named_and_the_last_state_stays() {
    let known = fleet(&ROWS).await;
    let mut app = app(&known);
    let lost = Fleet { trouble: Some("connection refused".to_owned()), ..(*known).clone() };
    app.update(Event::Fleet(Arc::new(lost)));
    app.update(Event::Now(now() + Duration::from_secs(29)));
    let lines = screen(&mut app, 80, 24);
    assert!(lines[0].ends_with("NO ANSWER, read 30s ago"), "{lines:#?}");
    assert_eq!(lines[22], "the store does not answer: connection refused; trying again");
    assert!(lines[4].starts_with("> orders:7"));
    app.update(Event::Fleet(known));
    assert!(!screen(&mut app, 80, 24).concat().contains("answer"));
}

#[tokio::test]
async fn only_the_answer_yes_to_a_question_on_the_screen_frees_a_lock() {
    let client = Client::builder("memory:top-yes").label("the holder").connect().await.expect("in memory");
    let lock = client.mutex("orders:7").expect("a name");
    let guard = lock.acquire().await.expect("it is free");
    let read = async || {
        let proposal = Proposal::read(&client, &name("orders:7")).await.expect("an answer");
        Event::Proposal(name("orders:7"), Ok(proposal.map(Arc::new)))
    };
    let mut app = app(&fleet(&ROWS).await);
    assert!(matches!(&press(&mut app, "f")[..], [Action::Ask(asked)] if *asked == name("orders:7")));
    app.update(read().await);
    assert!(press(&mut app, "y").is_empty(), "it is not on the screen yet");
    let lines = screen(&mut app, 80, 24);
    let foot = lines[15..23].join("\n");
    assert!(foot.contains("`orders:7` is held by the holder"), "{lines:#?}");
    assert!(foot.ends_with("Take the lock away? [y/N]") && lines[23].starts_with("y take"), "{lines:#?}");
    assert!(press(&mut app, "x ").is_empty(), "another key is no answer");
    assert!(matches!(app.prompt, Some(Prompt::Free(_))));
    assert!(press(&mut app, "n").is_empty());
    assert!(screen(&mut app, 80, 24)[22].contains("`orders:7` was left unchanged"));
    assert!(press(&mut app, "y").is_empty());
    // The same again, with yes.
    press(&mut app, "f");
    app.update(read().await);
    screen(&mut app, 30, 8);
    assert!(press(&mut app, "y").is_empty(), "it does not fit the screen");
    screen(&mut app, 80, 24);
    let actions = press(&mut app, "y");
    let [Action::Free(proposal)] = &actions[..] else { panic!("it is to be freed") };
    let result = proposal.force_release(&client).await;
    app.update(Event::Freed(name("orders:7"), result));
    assert!(screen(&mut app, 80, 24).concat().contains("freed `orders:7`: taken from the holder"));
    tokio::time::timeout(Duration::from_secs(60), guard.lost()).await.expect("it is notified");
    // A holder that acquired the lock after it was shown keeps it.
    let shown = lock.acquire().await.expect("it is free");
    let Event::Proposal(_, Ok(Some(proposal))) = read().await else { panic!("it is held") };
    shown.release().await.expect("it is held");
    let next = lock.acquire().await.expect("it is free");
    let result = proposal.force_release(&client).await;
    assert!(result.starts_with("failed to free `orders:7`") && next.check().is_ok(), "{result}");
}

#[tokio::test]
async fn a_question_that_comes_too_late_is_not_asked() {
    let client = Client::connect("memory:top-late").await.expect("in memory");
    let _guard = client.mutex("orders:7").expect("a name").acquire().await.expect("it is free");
    let proposal = Proposal::read(&client, &name("orders:7")).await.expect("an answer").map(Arc::new);
    let mut app = app(&fleet(&ROWS).await);
    press(&mut app, "fv");
    app.update(Event::Proposal(name("orders:7"), Ok(proposal)));
    assert!(app.prompt.is_none());
    press(&mut app, "f");
    app.update(Event::Proposal(name("orders:42"), Ok(None)));
    assert!(screen(&mut app, 80, 24)[22].contains("`orders:42` is free"));
}

#[tokio::test]
async fn a_page_shows_what_was_read_last_and_why_it_cannot_be_read_now() {
    let mut app = app(&fleet(&ROWS).await);
    assert!(matches!(press(&mut app, "\n")[..], [Action::ReadPage(_)]));
    assert_eq!(screen(&mut app, 80, 24)[3], "reading `orders:7` …");
    app.update(Event::Page(name("other"), Ok("not this one".to_owned())));
    let text = (0..40).map(|at| format!("line {at}")).collect::<Vec<_>>().join("\n");
    app.update(Event::Page(name("orders:7"), Ok(text)));
    let lines = screen(&mut app, 80, 24);
    assert_eq!((&*lines[3], &*lines[22]), ("line 0", "… 21 more lines"), "{lines:#?}");
    press(&mut app, "vG");
    assert_eq!(screen(&mut app, 80, 24)[22], "line 39");
    app.update(Event::Page(name("orders:7"), Err("no answer".to_owned())));
    press(&mut app, "g");
    let lines = screen(&mut app, 80, 24);
    assert_eq!((&*lines[3], &*lines[4]), ("CANNOT BE READ NOW: no answer", "line 0"));
    assert_eq!(app.followed(), Some(&name("orders:7")));
    assert!(press(&mut app, "\x1b").is_empty() && app.followed().is_none());
}

#[tokio::test]
async fn sessions_are_listed_and_lead_to_their_locks() {
    let mut app = app(&fleet(&ROWS).await);
    press(&mut app, "2");
    let lines = screen(&mut app, 80, 24);
    assert_eq!(lines[3], "  HOST                       PID  PROGRAM                  SINCE    ALIVE  LOCKS");
    assert_eq!(lines[4], "> web-1                     4711  worker                   1h00m      23s      4");
    press(&mut app, "\n");
    let lines = screen(&mut app, 80, 24);
    assert!(lines[2].contains("only of web-1/4711 (worker); most waiters"), "{lines:#?}");
    assert!(lines[4].starts_with("> orders:7"));
    press(&mut app, "\x1b");
    assert!(screen(&mut app, 80, 24)[2].contains("[2 Sessions]"));
}
