//! What becomes of a hold that its process has kept, for the next in line or for whoever comes, when nobody takes it.

use crate::moody::{MS, Moody, Paused, Whim, once};
use leasehold::store::{MemoryStore, Op};
use leasehold::{Client, Mutex, World};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

const LONG: Duration = Duration::from_secs(600);

/// Two clients of one store in paused time, of whom the first has moods.
struct Pair {
    moody: Client,
    other: Client,
}

impl Pair {
    async fn new(mood: impl Fn(&Op) -> Whim + Send + Sync + 'static) -> Self {
        let world = Paused(Instant::now());
        let memory = MemoryStore::with_clock(move || world.now().as_micros());
        let moody = Moody::new(&memory, move |_, op| mood(op));
        let moody = Client::of_store(moody).world(world).call_timeout(200 * MS).watchdog_lease(LONG);
        let other = Client::of_store(memory).world(world).connect().await.expect("it connects");
        Self { moody: moody.connect().await.expect("it connects"), other }
    }

    fn mutex(&self) -> Mutex {
        self.moody.mutex("m").expect("a good name")
    }

    async fn is_held(&self) -> bool {
        self.other.mutex("m").expect("a good name").inspect().await.expect("an answer").held
    }
}

async fn use_once(mutex: &Mutex) {
    mutex.acquire().await.expect("acquired").release().await.expect("released");
}

/// The one at the front cannot use what is kept, gives it back, and has no answer: nobody but the keeper can try again.
#[tokio::test(start_paused = true)]
async fn what_the_front_gives_back_without_an_answer_is_given_back_by_the_keeper() {
    let first = once();
    let pair = Pair::new(move |op| match op {
        Op::Release(_) if first() => Whim::Hang,
        _ => Whim::Obey,
    })
    .await;
    let kept = pair.mutex().sticky(LONG);
    use_once(&kept).await;
    // By then it has been lengthened.
    sleep(LONG / 100).await;
    let own = pair.mutex().value("a value of one's own").expect("a good value");
    let guard = timeout(LONG / 10, own.acquire()).await.expect("not only when the lease ends");
    guard.expect("acquired").release().await.expect("released");
}

/// It had been looked at while it was used, and the keeper had decided before when to wake.
#[tokio::test(start_paused = true)]
async fn what_was_used_meanwhile_is_kept_for_as_long_as_was_asked_and_not_until_the_keeper_wakes_by_chance() {
    let pair = Pair::new(|_| Whim::Obey).await;
    let kept = pair.mutex().sticky(700 * MS);
    let guard = kept.acquire().await.expect("acquired");
    // It has been lengthened, and nothing else wakes the keeper for some time.
    sleep(LONG / 100).await;
    guard.release().await.expect("released");
    sleep(400 * MS).await;
    use_once(&kept).await;
    sleep(650 * MS).await;
    assert!(pair.is_held().await, "it is kept from the last use on");
    sleep(100 * MS).await;
    assert!(!pair.is_held().await);
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_kept_for_as_long_as_the_last_one_asked_who_had_it() {
    let pair = Pair::new(|_| Whim::Obey).await;
    let (long, brief) = (pair.mutex().sticky(LONG), pair.mutex().sticky(1_000 * MS));
    use_once(&long).await;
    use_once(&brief).await;
    sleep(900 * MS).await;
    assert!(pair.is_held().await);
    sleep(200 * MS).await;
    assert!(!pair.is_held().await);
}

/// One who wants it kept had it before: the keeper was to look after that.
#[tokio::test(start_paused = true)]
async fn what_is_kept_for_one_who_leaves_the_line_is_given_back() {
    for sticky in [None, Some(LONG)] {
        let pair = Pair::new(|_| Whim::Obey).await;
        let first = pair.mutex().sticky(LONG / 2);
        use_once(&first).await;
        let last = sticky.map_or(pair.mutex(), |keep_for| pair.mutex().sticky(keep_for));
        let (guard, next) = (last.acquire().await.expect("acquired"), pair.mutex());
        {
            let mut next = pin!(next.acquire());
            assert!(next.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            guard.release().await.expect("released");
        }
        sleep(100 * MS).await;
        assert_eq!(pair.is_held().await, sticky.is_some(), "only what is to be kept");
        sleep(LONG).await;
        assert!(!pair.is_held().await);
    }
}

/// The tokens of one who wants it kept were asked for while another had it who did not: nobody had asked to be told.
#[tokio::test(start_paused = true)]
async fn what_is_kept_is_given_back_when_another_asks_whoever_the_store_was_asked_for() {
    let pair = Pair::new(|op| match op {
        Op::Extend(_) => Whim::Late(20 * MS),
        _ => Whim::Obey,
    })
    .await;
    let guard = pair.mutex().acquire().await.expect("acquired");
    let (plain, kept) = (pair.mutex(), pair.mutex().sticky(LONG));
    let other = pair.other.mutex("m").expect("a good name");
    // They stand in line in this order. When the last one takes it, more tokens are asked for, in the name of one who does
    // not want it kept; and he is done with it before they come.
    let (first, last) = (use_once(&plain), use_once(&kept));
    let ((), (), released) = tokio::join!(first, last, async { guard.release().await });
    released.expect("released");
    sleep(1_000 * MS).await;
    assert!(pair.is_held().await, "it is kept");
    let guard = other.acquire_timeout(1_000 * MS).await.expect("who keeps it is told that another asks");
    guard.release().await.expect("released");
}

/// The same, where he for whom they were asked leaves the line when they have come.
#[tokio::test(start_paused = true)]
async fn what_is_kept_for_one_who_leaves_the_line_is_given_back_when_another_asks() {
    let pair = Pair::new(|_| Whim::Obey).await;
    let (kept, plain) = (pair.mutex().sticky(LONG), pair.mutex());
    let other = pair.other.mutex("m").expect("a good name");
    let guard = pair.mutex().acquire().await.expect("acquired");
    {
        let (mut second, mut third) = (pin!(kept.acquire()), pin!(plain.acquire()));
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(second.as_mut().poll(cx).is_pending() && third.as_mut().poll(cx).is_pending());
        guard.release().await.expect("released");
        sleep(20 * MS).await;
        let Poll::Ready(second) = second.as_mut().poll(cx) else { panic!("it was handed on") };
        second.expect("acquired").release().await.expect("released");
        sleep(20 * MS).await;
    }
    let guard = other.acquire_timeout(1_000 * MS).await.expect("who keeps it is told that another asks");
    guard.release().await.expect("released");
}
