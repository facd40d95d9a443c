//! Spans, and warnings about slow locks, through a subscriber.

use super::fixture::Log;
use crate::environment::{client_in_paused_time, memory};
use crate::faulty_store::MS;
use crate::fixture::mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::time::sleep;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber, level_filters::LevelFilter};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

type Fields = BTreeMap<String, String>;

/// Collects the spans that have closed, and the warnings.
#[derive(Clone, Default)]
struct Collector {
    open: Arc<Mutex<BTreeMap<u64, (&'static str, Fields)>>>,
    closed: Arc<Mutex<Vec<(&'static str, Fields)>>>,
    warnings: Arc<Mutex<Vec<Fields>>>,
}

struct Values<'a>(&'a mut Fields);

impl Visit for Values<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Collector {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
        if attributes.metadata().target() == "leasehold::lock" {
            let mut fields = Fields::new();
            attributes.record(&mut Values(&mut fields));
            self.open.lock().unwrap().insert(id.into_u64(), (attributes.metadata().name(), fields));
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        if let Some((_, fields)) = self.open.lock().unwrap().get_mut(&id.into_u64()) {
            values.record(&mut Values(fields));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if *event.metadata().level() == Level::WARN && event.metadata().target() == "leasehold::lock" {
            let mut fields = Fields::new();
            event.record(&mut Values(&mut fields));
            let span = context.event_span(event).map_or("none", |span| span.name());
            fields.insert("span".into(), span.into());
            self.warnings.lock().unwrap().push(fields);
        }
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        if let Some(span) = self.open.lock().unwrap().remove(&id.into_u64()) {
            self.closed.lock().unwrap().push(span);
        }
    }
}

impl Collector {
    fn subscribe(&self, level: LevelFilter) -> tracing::subscriber::DefaultGuard {
        /// With a single subscriber, what a thread without it meets first is taken for disabled everywhere.
        static SECOND: OnceLock<tracing::Dispatch> = OnceLock::new();
        SECOND.get_or_init(|| tracing_subscriber::registry().with(LevelFilter::OFF).into());
        let subscriber = tracing_subscriber::registry().with(level).with(self.clone());
        tracing::subscriber::set_default(subscriber)
    }

    /// The fields of the spans that have closed.
    fn take(&self) -> Vec<(&'static str, Vec<String>)> {
        let closed = std::mem::take(&mut *self.closed.lock().unwrap()).into_iter();
        closed
            .map(|(name, fields)| {
                (name, fields.iter().map(|(key, value)| format!("{key}={value}")).collect())
            })
            .collect()
    }

    fn take_warnings(&self) -> Vec<Fields> {
        std::mem::take(&mut *self.warnings.lock().unwrap())
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_and_a_hold_are_spans() {
    let collector = Collector::default();
    let _subscribed = collector.subscribe(LevelFilter::DEBUG);
    let store = memory();
    let (one, other) = (Log::default().client(store.clone()).await, Log::default().client(store).await);
    let held = mutex(&one, "orders/42").acquire().await.unwrap();
    let fence = held.fencing_token();
    mutex(&other, "orders/42").acquire_timeout(250 * MS).await.unwrap_err();
    held.release().await.unwrap();
    let short = mutex(&other, "short").lease(100 * MS).acquire().await.unwrap();
    let token = short.fencing_token();
    short.lost().await;
    let lock = |class: &str, name: &str| [format!("lock.class={class}"), format!("lock.name={name}")];
    let [class, name] = lock("orders/*", "orders/42");
    let [short_class, short_name] = lock("short", "short");
    let fields = |mut fields: Vec<String>| {
        fields.sort();
        fields
    };
    let text = |text: &str| text.to_owned();
    let spans = collector.take();
    let expected = [
        (
            "lock.acquire",
            fields(vec![
                class.clone(),
                name.clone(),
                text("lock.kind=mutex"),
                text("lock.outcome=acquired"),
                text("lock.waited_ms=0"),
            ]),
        ),
        (
            "lock.acquire",
            fields(vec![
                class.clone(),
                name.clone(),
                text("lock.kind=mutex"),
                text("lock.outcome=timed_out"),
                text("lock.waited_ms=250"),
                text("lock.ahead=0"),
                text("error.type=timed_out"),
                text("otel.status_code=ERROR"),
            ]),
        ),
        (
            "lock.hold",
            fields(vec![
                class,
                name,
                text("lock.kind=mutex"),
                format!("lock.fencing_token={}", fence.as_u64()),
                text("lock.held_ms=250"),
                text("lock.ended=released"),
            ]),
        ),
        (
            "lock.acquire",
            fields(vec![
                short_class.clone(),
                short_name.clone(),
                text("lock.kind=mutex"),
                text("lock.outcome=acquired"),
                text("lock.waited_ms=0"),
            ]),
        ),
    ];
    assert_eq!(spans[..4], expected);
    let (name, last) = &spans[4];
    assert_eq!(*name, "lock.hold");
    for field in [
        short_class,
        short_name,
        text("lock.ended=expired"),
        text("error.type=expired"),
        format!("lock.fencing_token={}", token.as_u64()),
    ] {
        assert!(last.contains(&field), "{field}: {last:?}");
    }
    drop(short);
}

#[tokio::test(start_paused = true)]
async fn there_are_no_spans_at_info() {
    let collector = Collector::default();
    let _subscribed = collector.subscribe(LevelFilter::INFO);
    let client = client_in_paused_time(memory()).connect().await.unwrap();
    mutex(&client, "m").acquire().await.unwrap().release().await.unwrap();
    assert!(collector.take().is_empty() && collector.take_warnings().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_slow_wait_is_a_warning_while_it_waits() {
    let collector = Collector::default();
    let _subscribed = collector.subscribe(LevelFilter::DEBUG);
    let store = memory();
    let one = Log::default().client(store.clone()).await;
    let other = client_in_paused_time(store).slow_wait(Duration::from_secs(2)).connect().await.unwrap();
    let held = mutex(&one, "m").acquire().await.unwrap();
    let waits = tokio::spawn({
        let mutex = mutex(&other, "m");
        async move { mutex.acquire().await.unwrap() }
    });
    sleep(1_900 * MS).await;
    assert!(collector.take_warnings().is_empty());
    sleep(200 * MS).await;
    let warnings = collector.take_warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let field = |name: &str| warnings[0].get(name).map(String::as_str);
    assert_eq!(
        (field("lock"), field("holder"), field("waited_ms")),
        (Some("m"), Some("its label"), Some("2000"))
    );
    assert_eq!((field("ahead"), field("span")), (Some("0"), Some("lock.acquire")));
    sleep(5_000 * MS).await;
    held.release().await.unwrap();
    waits.await.unwrap().release().await.unwrap();
    assert!(collector.take_warnings().is_empty(), "once");
    mutex(&other, "free").acquire().await.unwrap().release().await.unwrap();
    assert!(collector.take_warnings().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_slow_hold_is_a_warning_at_a_renewal_or_at_its_end() {
    let collector = Collector::default();
    let _subscribed = collector.subscribe(LevelFilter::WARN);
    let client = client_in_paused_time(memory()).slow_hold(Duration::from_secs(5)).connect().await.unwrap();
    let guard = mutex(&client, "long").acquire().await.unwrap();
    sleep(Duration::from_secs(12)).await;
    let warnings = collector.take_warnings();
    assert_eq!(warnings.len(), 1, "at a renewal: {warnings:?}");
    assert_eq!(warnings[0]["lock"], "long");
    guard.release().await.unwrap();
    let guard = mutex(&client, "brief").acquire().await.unwrap();
    sleep(Duration::from_secs(4)).await;
    guard.release().await.unwrap();
    assert!(collector.take_warnings().is_empty());
    let guard = mutex(&client, "ended").lease(60_000 * MS).acquire().await.unwrap();
    sleep(Duration::from_secs(6)).await;
    guard.release().await.unwrap();
    let warnings = collector.take_warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert_eq!((warnings[0]["lock"].as_str(), warnings[0]["held_ms"].as_str()), ("ended", "6000"));
}
