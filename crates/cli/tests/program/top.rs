//! The screen that follows all locks, at a terminal.

use super::fixture::{Fixture, LIMIT, expect, signal, start, status, until};
use super::pty::Pty;
use leasehold::Client;
use leasehold::error::ConnectError;
use leasehold_testkit::{RedisServer, Worker};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// A command under the lock `job`, and another one that waits for it.
fn holder_and_waiter(fixture: &Fixture) -> (Worker, Worker) {
    let mut holder = fixture.start(&["--label", "the-holder"], "echo running; read line");
    expect(&mut holder, "running");
    let waiter = fixture.start(&["--label", "the-waiter", "--wait", "60s"], "echo next; read line");
    until("it waits", || fixture.status()["waiting"] == 1);
    (holder, waiter)
}

/// `top` at a terminal, whose settings are written to files before and after it.
fn top(fixture: &Fixture, options: &str) -> Option<Pty> {
    let settings = "stty -a > before";
    let script =
        format!("{settings}; $LEASEHOLD top {options}; echo status $?; stty -a > after; cmp before after");
    Pty::start(fixture, &script)
}

/// Checks that the terminal is as it was before the program, and its status.
#[track_caller]
fn assert_restored(pty: &mut Pty, fixture: &Fixture, wanted: i32) {
    assert_eq!(
        pty.status(),
        Some(0),
        "the settings differ:\n{}\n{}",
        fixture.read("before"),
        fixture.read("after")
    );
    pty.expect(&format!("status {wanted}"));
    assert!(!pty.is_full_screen() && fixture.read("before").contains("speed"), "{}", pty.text());
}

fn shows_a_lock_its_page_and_frees_it(fixture: &Fixture) {
    let (mut holder, mut waiter) = holder_and_waiter(fixture);
    let Some(mut pty) = top(fixture, "") else { return };
    pty.until("the lock and its waiter", |screen| {
        screen.lines().any(|line| line.starts_with("> job ") && line.contains("  1  "))
    });
    assert!(pty.is_full_screen());
    pty.until("the waiter's time", |screen| {
        screen.lines().any(|line| line.starts_with("> job ") && line.split_whitespace().nth(3) != Some("-"))
    });
    // Its page, with the queue.
    pty.press("\r");
    pty.expect("queue    1. ");
    pty.expect("history  none");
    // A question, and no.
    pty.press("f");
    pty.expect("Take the lock away? [y/N]");
    pty.expect("`job` is held by the-holder");
    pty.press("n");
    pty.expect("`job` was left unchanged");
    assert_eq!(fixture.status()["holder"], "the-holder");
    // And yes.
    pty.press("f");
    pty.expect("Take the lock away? [y/N]");
    pty.press("y");
    pty.expect("freed `job`: taken from the-holder");
    expect(&mut waiter, "next");
    let shown = fixture.status();
    assert_eq!(shown["holder"], "the-waiter", "{shown}");
    let audit = &shown["audit"][0];
    assert_eq!((&audit["how"], &audit["whose"]), (&"force_released".into(), &"the-holder".into()), "{shown}");
    let by = audit["by"].as_str().unwrap_or_default();
    assert!(std::env::var("USER").map_or(true, |user| by.starts_with(&format!("{user}@"))), "{shown}");
    pty.expect("force_released from the-holder");
    assert_eq!(status(&mut holder), Some(70));
    pty.press("q");
    assert_restored(&mut pty, fixture, 0);
    drop(waiter);
}

#[test]
fn a_lock_its_queue_and_its_end_are_shown_on_a_server() {
    let server = RedisServer::start().expect("there is a server");
    shows_a_lock_its_page_and_frees_it(&Fixture::redis(&server));
}

#[test]
fn a_lock_its_queue_and_its_end_are_shown_of_a_file() {
    shows_a_lock_its_page_and_frees_it(&Fixture::sqlite());
}

#[test]
fn only_such_names_are_shown_as_the_user_types() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let mut holders = ["orders:1", "orders:2", "carts:1"].map(|name| {
        let mut holder = start(fixture.command(&["run", name, "--", "sh", "-c", "echo running; read line"]));
        expect(&mut holder, "running");
        holder
    });
    let Some(mut pty) = top(&fixture, "--sort name") else { return };
    for name in ["> carts:1", "orders:1", "orders:2"] {
        pty.expect(name);
    }
    pty.press("/orders:*\r");
    pty.until("only those", |screen| screen.contains("only orders:*") && !screen.contains("carts:1"));
    assert!(pty.text().contains("orders:1") && pty.text().contains("orders:2"), "{}", pty.text());
    // The sessions, of which one holds no such lock.
    pty.press("2");
    pty.until("two sessions", |screen| screen.matches("  sh ").count() == 2);
    pty.press("\x1b");
    pty.until("three sessions", |screen| screen.matches("  sh ").count() == 3);
    pty.press("?");
    pty.expect("a lock's page: its holders, queue, audit and history");
    pty.press("x\x03");
    assert_restored(&mut pty, &fixture, 0);
    for holder in &mut holders {
        holder.send("go").expect("it reads");
        assert_eq!(status(holder), Some(0));
    }
}

#[test]
fn a_lost_store_is_shown_and_the_screen_goes_on_when_it_is_back() {
    let mut server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let (_holder, _waiter) = holder_and_waiter(&fixture);
    let Some(mut pty) = top(&fixture, "") else { return };
    pty.expect("> job ");
    server.kill().expect("killed");
    pty.expect("NO ANSWER");
    pty.expect("the store does not answer");
    assert!(pty.text().contains("> job "), "what was known stays:\n{}", pty.text());
    server.restart().expect("restarted");
    pty.until("it goes on", |screen| screen.contains("read ") && !screen.contains("NO ANSWER"));
    pty.press("q");
    assert_restored(&mut pty, &fixture, 0);
}

#[test]
fn processes_that_wait_for_each_other_are_shown() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let nested = |first: &str, second: &str| {
        let script = "echo held; read line; exec \"$LEASEHOLD\" run \"$0\" --wait 60s -- echo both";
        let mut command = fixture.command(&["run", first, "--", "sh", "-c", script, second]);
        command.env("LEASEHOLD", env!("CARGO_BIN_EXE_leasehold"));
        let mut worker = start(command);
        expect(&mut worker, "held");
        worker
    };
    let mut both = [nested("a", "b"), nested("b", "a")];
    let Some(mut pty) = top(&fixture, "") else { return };
    pty.expect("2 held");
    for worker in &mut both {
        worker.send("go").expect("it reads");
    }
    pty.expect("1 DEADLOCK");
    pty.press("3");
    pty.expect("DEADLOCK 1 of 1: each waits for a lock of the next one");
    pty.expect("waits for `a`");
    both[0].terminate().expect("it runs");
    expect(&mut both[1], "both");
    pty.until("none", |screen| screen.contains("nothing waits") && !screen.contains("DEADLOCK"));
    pty.press("q");
    assert_restored(&mut pty, &fixture, 0);
}

#[test]
fn the_terminal_is_given_back_however_the_program_ends() {
    let fixture = Fixture::sqlite();
    for name in ["TERM", "INT", "HUP", "QUIT"] {
        let script = "stty -a > before; sh -c 'echo $$ > pid; exec \"$LEASEHOLD\" top'; echo status $?; \
                      stty -a > after; cmp before after";
        let Some(mut pty) = Pty::start(&fixture, script) else { return };
        pty.expect("no lock is held");
        signal(fixture.read("pid").trim(), name);
        assert_restored(&mut pty, &fixture, 0);
    }
}

#[test]
fn it_can_be_stopped_and_continued_like_any_job() {
    let fixture = Fixture::sqlite();
    let script = "PS1= exec bash --norc --noprofile --noediting -i";
    let Some(mut pty) = Pty::start(&fixture, script) else { return };
    pty.press("stty -a > before; $LEASEHOLD top\n");
    pty.expect("no lock is held");
    pty.press("\x1a");
    pty.until("it is stopped", |screen| screen.contains("Stopped"));
    assert!(!pty.is_full_screen());
    pty.press("stty -a > after; cmp before after && echo as before\n");
    pty.until("the shell has its terminal", |screen| screen.lines().any(|line| line.ends_with("as before")));
    pty.press("fg\n");
    pty.until("it goes on", |screen| screen.contains("no lock is held") && screen.contains("q quit"));
    pty.press("q");
    pty.until("the shell", |screen| screen.contains("Stopped"));
    pty.press("exit\n");
    assert_eq!(pty.status(), Some(0));
}

#[test]
fn what_is_typed_after_its_end_is_for_the_shell() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let (_holder, _waiter) = holder_and_waiter(&fixture);
    let Some(mut pty) = Pty::start(&fixture, "$LEASEHOLD top; read line; echo \"the shell has $line\"")
    else {
        return;
    };
    pty.expect("> job ");
    pty.press("f");
    pty.expect("Take the lock away? [y/N]");
    // The program waits for the end of this request after it has given the terminal back.
    server.stop().expect("stopped");
    pty.press("y");
    pty.press("q");
    until("the terminal is given back", || !pty.is_full_screen());
    pty.press("all of it\n");
    pty.expect("all of it");
    server.resume().expect("it goes on");
    pty.expect("the shell has all of it");
    assert_eq!(pty.status(), Some(0));
}

#[test]
fn colours_can_be_turned_off_and_words_say_the_same() {
    let fixture = Fixture::sqlite();
    for (variable, is_coloured) in [("NO_COLOR=1", false), ("NO_COLOR=", true)] {
        let Some(mut pty) = Pty::start(&fixture, &format!("{variable} $LEASEHOLD top")) else { return };
        pty.expect("no lock is held");
        pty.press("p");
        pty.expect("PAUSED");
        assert_eq!(pty.has_colours(), is_coloured, "{variable}");
        pty.press("q");
        assert_eq!(pty.status(), Some(0));
    }
}

#[test]
fn where_no_screen_can_be_drawn_the_message_says_what_to_use() {
    let fixture = Fixture::sqlite();
    fixture.run(&["top"]).check(2, "needs a terminal");
    for script in ["TERM=dumb $LEASEHOLD top", "$LEASEHOLD top < /dev/null", "$LEASEHOLD top > /dev/null"] {
        let Some(mut pty) = Pty::start(&fixture, script) else { return };
        assert_eq!(pty.status(), Some(2), "{script}");
        pty.expect("leasehold ls --watch");
        assert!(!pty.is_full_screen());
    }
}

#[test]
fn a_store_that_cannot_be_followed_is_named_before_the_screen_is_taken() {
    for (url, wanted) in [
        ("redis://127.0.0.1:1", (69, "failed to open the store")),
        ("redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", (69, "failed to ")),
    ] {
        let fixture = Fixture::at(url.to_owned());
        let Some(mut pty) = Pty::start(&fixture, "$LEASEHOLD top") else { return };
        assert_eq!(pty.status(), Some(wanted.0), "{url}: {}", pty.text());
        pty.expect(wanted.1);
        assert!(!pty.is_full_screen());
    }
}

/// How many locks change hands, and how long each is held: 10 000 changes a minute.
const LOCKS: usize = 1000;
const HELD: Duration = Duration::from_secs(6);

/// Two clients that hand 1 000 locks to each other, until the returned sender is dropped.
fn hand_over(url: &str) -> (oneshot::Sender<()>, thread::JoinHandle<()>) {
    let (stop, stopped) = oneshot::channel();
    let url = url.to_owned();
    let (ready, is_ready) = channel();
    let thread = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            tokio::select! {
                failed = swap(&url, ready) => panic!("it goes on: {failed:?}"),
                _ = stopped => {}
            }
        });
    });
    is_ready.recv_timeout(super::fixture::LIMIT).expect("they are connected");
    (stop, thread)
}

async fn swap(url: &str, ready: Sender<()>) -> Result<(), ConnectError> {
    let clients = [Client::connect(url).await?, Client::connect(url).await?];
    let mut tasks = JoinSet::new();
    for at in 0..LOCKS {
        for client in &clients {
            let lock = client.mutex(format!("lock-{at:04}")).expect("a name");
            tasks.spawn(async move {
                // So that not all change at once.
                sleep(HELD * u32::try_from(at).expect("a small number") / 1000).await;
                loop {
                    let guard = lock.acquire().await.expect("the store answers");
                    sleep(HELD).await;
                    guard.release().await.expect("the store answers");
                }
            });
        }
    }
    ready.send(()).expect("the test waits");
    let ended = tasks.join_next().await;
    panic!("a task has ended: {ended:?}");
}

#[test]
fn a_thousand_locks_and_ten_thousand_changes_a_minute_are_followed() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let (stop, thread) = hand_over(fixture.url());
    let Some(mut pty) = top(&fixture, "--sort name") else { return };
    let number = |screen: &str, what: &str| {
        let line = screen.lines().nth(1).unwrap_or_default();
        let (before, _) = line.split_once(&format!(" {what}")).unwrap_or_default();
        before.rsplit(' ').next().and_then(|number| number.parse::<f64>().ok()).unwrap_or(0.0)
    };
    // A lock between two holders may be free for a moment. All are looked at in turns, within the budget.
    pty.until_within(LIMIT * 3, "all are held and waited for", |screen| {
        number(screen, "held") > 950.0 && number(screen, "waiting") > 950.0
    });
    pty.until("changes are seen", |screen| number(screen, "changes/s") > 1.0);
    // How long the first lock has been held, as the screen says.
    let held = |screen: &str| {
        let line = screen.lines().find(|line| line.contains(" lock-0000 "))?;
        line.split_whitespace().nth(4)?.strip_suffix('s')?.parse::<u32>().ok()
    };
    for _ in 0..2 {
        pty.until("it has been held for a while", |screen| held(screen).is_some_and(|held| held >= 3));
        pty.until("it has changed hands", |screen| held(screen).is_some_and(|held| held <= 1));
    }
    // The last one, which is read once it is on the screen.
    pty.press("G");
    pty.expect("> lock-0999 ");
    pty.press("q");
    assert_restored(&mut pty, &fixture, 0);
    drop(stop);
    thread.join().expect("no task has failed");
}
