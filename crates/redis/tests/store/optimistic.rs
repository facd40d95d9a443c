//! Optimistic transactions, on real servers: every concurrent change is detected, and every outcome is reported.

use leasehold_core::RetryPolicy;
use leasehold_redis::optimistic::{Change, Connection, Error};
use leasehold_testkit::{AfterDrop, Proxy, RedisServer, cancel_at_every_await, command};
use redis::{AsyncCommands, RedisError, Value};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

fn server() -> RedisServer {
    RedisServer::start().unwrap()
}

async fn connection(url: &str) -> Connection {
    Connection::open(&redis::Client::open(url).unwrap()).await.unwrap()
}

fn patient() -> RetryPolicy {
    RetryPolicy::exponential(MS, 20 * MS)
}

fn once() -> RetryPolicy {
    patient().tries(1)
}

fn text(server: &RedisServer, key: &str) -> Option<String> {
    server.cli(&["GET", key]).unwrap().text().map(str::to_owned)
}

/// Adds one to a counter, by a read and a write, which lose updates without a transaction.
async fn add_one(connection: &mut Connection, retry: RetryPolicy) -> Result<u32, Error<RedisError>> {
    let done = connection.transact("n", retry, async |watched| {
        let n: Option<u64> = watched.get("n").await?;
        let mut writes = redis::pipe();
        writes.set("n", n.unwrap_or(0) + 1);
        Ok(Change::new(writes, ()))
    });
    Ok(done.await?.tries)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_that_contend_lose_no_count() {
    const TASKS: u32 = 8;
    const ROUNDS: u32 = 25;
    let server = server();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let url = server.url();
            tokio::spawn(async move {
                let mut connection = connection(&url).await;
                let mut tries = 0;
                for _ in 0..ROUNDS {
                    tries += add_one(&mut connection, patient()).await.unwrap();
                }
                tries
            })
        })
        .collect();
    let mut tries = 0;
    for task in tasks {
        tries += task.await.unwrap();
    }
    assert_eq!(text(&server, "n"), Some((TASKS * ROUNDS).to_string()));
    let executed = server.command_counts().unwrap()["exec"];
    assert_eq!(executed, u64::from(tries), "each try is one EXEC, and each is counted");
}

#[tokio::test]
async fn a_try_that_was_overtaken_is_made_again_and_counted() {
    let server = server();
    let mut connection = connection(&server.url()).await;
    let mut overtaken = 2;
    let done = connection.transact(&["a", "b"], patient(), async |watched| {
        let (a, b): (Option<u32>, Option<u32>) = watched.mget(&["a", "b"]).await?;
        if overtaken > 0 {
            overtaken -= 1;
            // A change to either key counts.
            server.cli(&["INCR", if overtaken == 0 { "a" } else { "b" }]).unwrap();
        }
        let mut writes = redis::pipe();
        writes.set("sum", a.unwrap_or(0) + b.unwrap_or(0)).incr("times", 1);
        Ok::<_, RedisError>(Change::new(writes, (a, b)))
    });
    let done = done.await.unwrap();
    assert_eq!((done.value, done.tries), ((Some(1), Some(1)), 3));
    assert_eq!(done.replies, [Value::Okay, Value::Int(1)]);
    assert_eq!(text(&server, "sum").as_deref(), Some("2"));
}

#[tokio::test]
async fn tries_run_out_and_are_counted() {
    let server = server();
    let mut connection = connection(&server.url()).await;
    for tries in [1, 4] {
        let result = connection.transact("n", patient().tries(tries), async |_| {
            server.cli(&["INCR", "n"]).unwrap();
            let mut writes = redis::pipe();
            writes.set("written", 1);
            Ok::<_, RedisError>(Change::new(writes, ()))
        });
        let result = result.await;
        assert!(matches!(&result, Err(Error::OutOfTries { tries: t }) if *t == tries), "{result:?}");
    }
    assert_eq!(text(&server, "n").as_deref(), Some("5"));
    assert_eq!(text(&server, "written"), None);
}

/// The values that were read are consistent, even if the transaction then writes nothing.
#[tokio::test]
async fn nothing_is_written_only_if_nothing_has_changed() {
    let server = server();
    let mut connection = connection(&server.url()).await;
    let mut first = true;
    let done = connection.transact(&["a", "b"], patient(), async |watched| {
        let a: Option<u32> = watched.get("a").await?;
        if std::mem::take(&mut first) {
            server.cli(&["MSET", "a", "1", "b", "1"]).unwrap();
        }
        let b: Option<u32> = watched.get("b").await?;
        Ok::<_, RedisError>(Change::nothing((a, b)))
    });
    let done = done.await.unwrap();
    assert_eq!((done.value, done.tries), ((Some(1), Some(1)), 2), "not one of before and one of after");
}

#[tokio::test]
async fn the_users_own_error_ends_the_watching() {
    let server = server();
    let proxy = Proxy::to_server(&server).unwrap();
    let mut connection = connection(&proxy.url()).await;
    add_one(&mut connection, once()).await.unwrap();
    proxy.reset_counts();
    let refused =
        connection.transact("n", patient(), async |_| Err::<Change<()>, _>("too little money")).await;
    assert!(matches!(refused, Err(Error::Work { error: "too little money", tries: 1 })), "{refused:?}");
    assert_eq!((proxy.count("UNWATCH"), proxy.count("EXEC")), (1, 0));
    // No transaction is left open.
    add_one(&mut connection, once()).await.unwrap();
    assert_eq!(proxy.count("UNWATCH"), 1);
}

#[tokio::test]
async fn a_lost_reply_is_unknown() {
    let server = server();
    let proxy = Proxy::to_server(&server).unwrap();
    for (then, applied) in [(AfterDrop::Disconnect, "1"), (AfterDrop::Stall, "2")] {
        let mut connection = connection(&proxy.url()).await;
        proxy.drop_replies(1, then, command("EXEC"));
        let result = add_one(&mut connection, patient()).await;
        assert!(matches!(result, Err(Error::Unknown { tries: 1, .. })), "{result:?}");
        assert_eq!(text(&server, "n").as_deref(), Some(applied), "it was executed, and once");
    }
    let mut connection = connection(&proxy.url()).await;
    proxy.drop_requests(1, AfterDrop::Disconnect, command("EXEC"));
    let result = add_one(&mut connection, patient()).await;
    assert!(matches!(result, Err(Error::Unknown { tries: 1, .. })), "{result:?}");
    assert_eq!(text(&server, "n").as_deref(), Some("2"), "it was not, and that looks the same from here");
    // The connection does not reconnect: a new one would watch no keys.
    let broken = add_one(&mut connection, patient()).await;
    assert!(matches!(broken, Err(Error::Redis { tries: 1, .. })), "{broken:?}");
}

/// A connection that breaks between reading and writing has lost its watched keys: nothing is written.
#[tokio::test]
async fn a_connection_that_breaks_while_reading_writes_nothing() {
    let server = server();
    let proxy = Proxy::to_server(&server).unwrap();
    let mut connection = connection(&proxy.url()).await;
    let result = connection.transact("n", patient(), async |watched| {
        let _: Option<u32> = watched.get("n").await?;
        server.cli(&["SET", "n", "7"]).unwrap();
        proxy.disconnect();
        proxy.until_connections(0, Duration::from_secs(5)).await.unwrap();
        let mut writes = redis::pipe();
        writes.set("n", 1);
        Ok::<_, RedisError>(Change::new(writes, ()))
    });
    let result = result.await;
    assert!(matches!(result, Err(Error::Unknown { .. })), "{result:?}");
    assert_eq!(text(&server, "n").as_deref(), Some("7"));
}

#[tokio::test]
async fn a_command_that_fails_inside_differs_from_one_that_is_not_queued() {
    let server = server();
    let mut connection = connection(&server.url()).await;
    server.cli(&["SET", "list", "is none"]).unwrap();
    let result = connection.transact("n", once(), async |_| {
        let mut writes = redis::pipe();
        writes.set("before", 1).rpush("list", 1).set("after", 1);
        Ok::<_, RedisError>(Change::new(writes, ()))
    });
    let result = result.await;
    let Err(Error::Partly { source, replies, tries: 1 }) = result else { panic!("{result:?}") };
    assert_eq!((source.code(), replies.len()), (Some("WRONGTYPE"), 3));
    assert_eq!(
        (text(&server, "before").as_deref(), text(&server, "after").as_deref()),
        (Some("1"), Some("1"))
    );

    let result = connection.transact("n", once(), async |_| {
        let mut writes = redis::pipe();
        writes.set("let in", 1).cmd("NOSUCH").arg(1);
        Ok::<_, RedisError>(Change::new(writes, ()))
    });
    let result = result.await;
    let Err(Error::Redis { source, tries: 1 }) = result else { panic!("{result:?}") };
    assert!(source.to_string().contains("NOSUCH"), "{source}");
    assert_eq!(text(&server, "let in"), None);
    // The connection remains usable.
    assert_eq!(add_one(&mut connection, once()).await.unwrap(), 1);
}

/// If the user may not run MULTI, the commands are executed one by one, and the error reports that.
#[tokio::test]
async fn an_execution_without_a_transaction_is_reported() {
    let server = server();
    server.cli(&["ACL", "SETUSER", "clerk", "on", ">secret", "~*", "+@all", "-multi"]).unwrap();
    let url = server.url().replace("redis://", "redis://clerk:secret@");
    let mut connection = connection(&url).await;
    for tries in 1..=2 {
        let result = connection.transact("n", patient(), async |watched| {
            let n: Option<u32> = watched.get("n").await?;
            // Another client is faster: the error must not claim that this was detected.
            server.cli(&["INCR", "n"]).unwrap();
            let mut writes = redis::pipe();
            writes.set("n", n.unwrap_or(0) + 1).rpush("n", 1);
            Ok::<_, RedisError>(Change::new(writes, ()))
        });
        let result = result.await;
        let Err(Error::Unguarded { source, tries: 1, replies }) = result else { panic!("{result:?}") };
        assert_eq!(source.code(), Some("NOPERM"), "{source}");
        assert!(matches!(&replies[..], [Value::Okay, Value::ServerError(_)]), "{replies:?}");
        assert_eq!(text(&server, "n"), Some(tries.to_string()), "one of two was lost");
    }
    // If nothing was executed, nothing was written.
    let result = connection.transact("n", once(), async |_| Ok::<_, RedisError>(Change::nothing(())));
    let result = result.await;
    assert!(matches!(result, Err(Error::Redis { tries: 1, .. })), "{result:?}");
    let result = connection.transact("n", once(), async |_| {
        let mut writes = redis::pipe();
        writes.rpush("n", 1);
        Ok::<_, RedisError>(Change::new(writes, ()))
    });
    let result = result.await;
    assert!(matches!(result, Err(Error::Redis { tries: 1, .. })), "{result:?}");
    assert_eq!(text(&server, "n").as_deref(), Some("2"));
}

#[tokio::test]
async fn what_would_end_the_watching_is_refused() {
    let server = server();
    let mut connection = connection(&server.url()).await;
    let done = connection.transact("n", once(), async |watched| {
        for name in ["EXEC", "unwatch", "MULTI", "DISCARD", "RESET"] {
            let refused: Result<Value, _> = redis::cmd(name).query_async(watched).await;
            assert!(refused.unwrap_err().to_string().contains("not sent"), "{name}");
        }
        let mut atomic = redis::pipe();
        atomic.atomic().get("n");
        let refused: Result<Value, _> = atomic.query_async(watched).await;
        assert!(refused.unwrap_err().to_string().contains("not sent"));
        let mut hidden = redis::pipe();
        hidden.get("n").cmd("UNWATCH");
        let refused: Result<Value, _> = hidden.query_async(watched).await;
        assert!(refused.unwrap_err().to_string().contains("not sent"));
        // Ordinary reads in a pipeline are allowed.
        let read: (Option<u32>, Option<u32>) = redis::pipe().get("n").get("m").query_async(watched).await?;
        Ok::<_, RedisError>(Change::nothing(read))
    });
    assert_eq!(done.await.unwrap().value, (None, None));
    let none: [&str; 0] = [];
    let result =
        connection.transact(&none[..], once(), async |_| Ok::<_, RedisError>(Change::nothing(()))).await;
    assert!(matches!(result, Err(Error::Redis { .. })), "{result:?}");
}

/// A dropped future leaves keys watched. That must not make the next transaction fail.
#[tokio::test]
async fn what_a_dropped_future_has_watched_does_not_count_for_the_next() {
    let server = server();
    let mut connection = connection(&server.url()).await;
    let (reached, mut reading) = tokio::sync::mpsc::unbounded_channel();
    let stuck = connection.transact("other", patient(), async |_| {
        reached.send(()).unwrap();
        std::future::pending::<Result<Change<()>, RedisError>>().await
    });
    tokio::select! {
        _ = stuck => unreachable!("it never ends"),
        _ = reading.recv() => {}
    }
    server.cli(&["SET", "other", "changed"]).unwrap();
    assert_eq!(add_one(&mut connection, once()).await.unwrap(), 1);
}

/// Wherever the future is dropped, the change was written or not, and the connection remains usable.
#[tokio::test]
async fn it_can_be_dropped_at_every_await() {
    let server = server();
    let connection = tokio::sync::Mutex::new(connection(&server.url()).await);
    let last = std::cell::Cell::new(0);
    let start = || async { add_one(&mut *connection.lock().await, once()).await.unwrap() };
    let check = async |k| {
        // On the same connection, and so after all requests in flight.
        add_one(&mut *connection.lock().await, once()).await.unwrap();
        let n: u32 = text(&server, "n").unwrap().parse().unwrap();
        assert!((last.get() + 1..=last.get() + 2).contains(&n), "{n} after {} at {k}", last.get());
        last.set(n);
    };
    assert!(cancel_at_every_await(start, check).await > 2);
}

/// The closure owns what it uses: the task may move between threads.
#[tokio::test]
async fn a_transaction_may_run_in_a_spawned_task() {
    let server = server();
    let (mut connection, key) = (connection(&server.url()).await, "n".to_owned());
    let done = tokio::spawn(async move {
        connection
            .transact(key.clone(), patient(), async move |watched| {
                let before: Option<u64> = watched.get(&key).await?;
                let mut writes = redis::pipe();
                writes.set(&key, before.unwrap_or_default() + 1);
                Ok::<_, RedisError>(Change::new(writes, ()))
            })
            .await
    });
    done.await.expect("no panic").expect("executed");
    assert_eq!(text(&server, "n").as_deref(), Some("1"));
}
