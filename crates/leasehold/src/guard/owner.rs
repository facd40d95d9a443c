//! The owner of re-entrant locks: its text, the scope that carries it through tasks, and the header that
//! carries it between processes.
//!
//! A store knows only an owner's text. This module also records whether an owner came from another process,
//! which is not part of its identity.

pub(crate) mod thread;

use leasehold_core::OwnValue;
use leasehold_store::Environment;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode, utf8_percent_encode};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::task::JoinHandle;
use tokio::task::futures::TaskLocalFuture;

/// The field of a ReentrantMutex's hash that is reserved for metadata, and so cannot be an owner.
const RESERVED: &str = leasehold_core::RESERVED_OWNER;
/// What must be escaped in a header value: everything but visible ASCII, the escape character itself, and the
/// comma, with which proxies join two headers into one.
const ESCAPED: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b',');

/// A future in the scope of an owner; it is also dropped in that scope.
pub(crate) type Scoped<F> = TaskLocalFuture<Owner, F>;

tokio::task_local! {
    static CURRENT: Owner;
}

/// The identity that re-enters a [`ReentrantMutex`](crate::ReentrantMutex).
///
/// All acquires with the same owner share its locks: an acquire succeeds at once if the owner already holds
/// the lock, on any host, and does not exclude the other holds. So an owner stands for one piece of work that
/// may be spread over tasks and processes: a request, a job, a transaction. Its parts do not wait for one
/// another; where they must exclude each other, use a [`Mutex`](crate::Mutex) between them.
///
/// An owner is a text: `<uuid>:<number>` if a client [creates](crate::Client::new_owner) it, or [any
/// text](Self::new) of your own. Cloning is cheap.
///
/// # The owner of a task
///
/// [`scope`](Self::scope) makes it the owner of every lock that a future acquires. Scopes do not cross
/// `tokio::spawn`; [`spawn`](Self::spawn) and [`in_current_scope`](Self::in_current_scope) do. Without a
/// scope, each acquire gets a new owner, and excludes all others, including those of the same task. A thread that uses a
/// [blocking](crate::blocking) client without a scope has an owner of its own.
///
/// | Work that continues in | has the owner |
/// |---|---|
/// | the same task, also by `join!`, `select!` and streams | without further steps |
/// | `tokio::spawn` | with [`Owner::spawn`] |
/// | a `JoinSet`, or another runtime's spawn function | with [`Owner::in_current_scope`] around the future |
/// | `tokio::task::spawn_blocking` | with [`Owner::spawn_blocking`] |
/// | `std::thread::spawn`, a scoped thread, rayon's `spawn`, `scope` and `join` | with [`Owner::wrap`] around the function |
/// | rayon's parallel iterators | with [`Owner::sync_scope`] in the closure of each item |
/// | another process, over HTTP | with the layers of the module `tower`, or the [header](Self::to_header) |
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Client, Owner};
///
/// let client = Client::connect("memory:").await?;
/// let account = client.reentrant_mutex("account/7")?;
/// let booked = client.new_owner().scope(async {
///     let outer = account.acquire().await?;
///     // A spawned task, and what it calls, need no owner passed to them.
///     let inner = Owner::spawn({
///         let account = account.clone();
///         async move { account.acquire().await }
///     });
///     let inner = inner.await??;
///     assert_eq!(inner.count(), 2);
///     inner.release().await?;
///     outer.release().await?;
///     Ok::<_, Box<dyn std::error::Error>>("booked")
/// });
/// assert_eq!(booked.await?, "booked");
/// # Ok(()) }
/// ```
///
/// # To another process
///
/// The caller sends [`to_header`](Self::to_header) along, and the callee runs in the scope of
/// [`from_header`](Self::from_header): two lines in a middleware, invisible to the handlers. The module
/// `tower` provides both as layers, for axum, tonic, hyper and everything else that is a `tower::Service`
/// (with the feature of that name). What such an owner holds in the callee ends with its lease, even if the
/// callee's client has a [session](crate::ClientBuilder::session_ttl).
///
/// A client that can send the header can enter the locks that its owner holds. Accept it only from your own
/// services, like an identity header, and strip it from requests of untrusted clients.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::error::OwnerError;
/// use leasehold::{Client, Owner};
/// use std::collections::HashMap;
///
/// # struct Request { headers: HashMap<&'static str, String> }
/// # struct Response;
/// # async fn handler(_: Request) -> Response { Response }
/// fn send(mut request: Request) -> Request {
///     if let Some(owner) = Owner::current() {
///         request.headers.insert(Owner::HEADER, owner.to_header());
///     }
///     request
/// }
///
/// async fn receive(request: Request) -> Result<Response, OwnerError> {
///     Ok(match request.headers.get(Owner::HEADER) {
///         Some(header) => Owner::from_header(header)?.scope(handler(request)).await,
///         None => handler(request).await,
///     })
/// }
/// # let client = Client::connect("memory:").await?;
/// # let request = client.new_owner().sync_scope(|| send(Request { headers: HashMap::new() }));
/// # assert!(request.headers.contains_key("leasehold-owner"));
/// # receive(request).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Owner {
    text: OwnValue,
    /// Set if it came from another process.
    remote: bool,
}

/// A text that is not a valid owner.
///
/// ```
/// use leasehold::Owner;
/// use leasehold::error::OwnerError;
///
/// assert_eq!(Owner::new(""), Err(OwnerError::Text { len: 0 }));
/// assert_eq!(Owner::new("leasehold"), Err(OwnerError::Reserved));
/// assert_eq!(Owner::from_header("%ff"), Err(OwnerError::Header));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OwnerError {
    /// It is empty, too long, or contains control characters.
    #[error("an owner has 1 to {max} bytes and no control characters; this text of {len} bytes is none", max = Owner::MAX_LEN)]
    Text {
        /// The length of the text, in bytes.
        len: usize,
    },
    /// It is the field name reserved for the metadata of a ReentrantMutex.
    #[error("`{RESERVED}` is the one text that no owner can have: choose another")]
    Reserved,
    /// It is not a valid value of the owner header.
    #[error("the header `{}` is not percent-encoded UTF-8", Owner::HEADER)]
    Header,
}

impl Owner {
    /// The header that carries an owner.
    pub const HEADER: &'static str = "leasehold-owner";

    /// The longest text of an owner, in bytes.
    pub const MAX_LEN: usize = OwnValue::MAX_LEN;

    /// Creates an owner from a text of your own: a trace id, say. Owners with equal texts are the same owner
    /// on every host, so the text must stand for one piece of work, and for no later one.
    ///
    /// Fails if the text is empty, longer than [`MAX_LEN`](Self::MAX_LEN), contains control characters, or is
    /// `leasehold`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::{Client, Owner};
    ///
    /// let client = Client::connect("memory:").await?;
    /// let trace = Owner::new("trace-4711")?;
    /// let guard = client.reentrant_mutex("account/7")?.owned_by(&trace).acquire().await?;
    /// assert_eq!(guard.owner(), &trace);
    /// # Ok(()) }
    /// ```
    pub fn new(text: impl AsRef<str>) -> Result<Self, OwnerError> {
        Self::parse(text.as_ref(), false)
    }

    /// Returns the owner of the innermost [`scope`](Self::scope) around this task's code. Outside of scopes, on a thread
    /// that has acquired a [`ReentrantMutex`](crate::ReentrantMutex) or [`RwLock`](crate::RwLock) through a
    /// [blocking](crate::blocking) client, returns that thread's own owner; of several clients, for the one used last.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::{Owner, blocking::Client};
    ///
    /// let account = Client::connect("memory:")?.reentrant_mutex("account/7")?;
    /// assert_eq!(Owner::current(), None);
    /// let guard = account.acquire()?;
    /// assert_eq!(Owner::current().as_ref(), Some(guard.owner()));
    /// guard.release()?;
    /// # Ok(()) }
    /// ```
    pub fn current() -> Option<Self> {
        Self::of_scope().or_else(thread::current)
    }

    /// The owner of the innermost scope. A thread's own owner is not among them: an async client on that thread acquires
    /// for its tasks, which do not share an owner.
    pub(crate) fn of_scope() -> Option<Self> {
        CURRENT.try_with(Clone::clone).ok()
    }

    /// Wraps a future so that it acquires locks for this owner wherever it is polled. The result can be
    /// awaited or spawned.
    ///
    /// Cancel safety: that of the future.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        self.scoped(future)
    }

    /// Like [`scope`](Self::scope), with a named type.
    pub(crate) fn scoped<F: Future>(&self, future: F) -> Scoped<F> {
        CURRENT.scope(self.clone(), future)
    }

    /// Runs a function that acquires locks for this owner.
    pub fn sync_scope<T>(&self, work: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(self.clone(), work)
    }

    /// Wraps a future so that it keeps the current task's owner wherever it is polled. Without an owner, the
    /// future is unchanged. For `JoinSet`, `select!` in another task, and spawn functions other than tokio's.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::Owner;
    ///
    /// let mut tasks = tokio::task::JoinSet::new();
    /// Owner::new("trace-4711")?.sync_scope(|| tasks.spawn(Owner::in_current_scope(async { Owner::current() })));
    /// assert_eq!(tasks.join_next().await.expect("one was spawned")?, Some(Owner::new("trace-4711")?));
    /// # Ok(()) }
    /// ```
    pub fn in_current_scope<F: Future>(future: F) -> impl Future<Output = F::Output> {
        // Not a thread's own: tasks that a thread starts side by side do not share an owner.
        let owner = Self::of_scope();
        async move {
            match owner {
                Some(owner) => owner.scope(future).await,
                None => future.await,
            }
        }
    }

    /// Like `tokio::spawn`, and keeps the current task's owner.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime, as `tokio::spawn` does.
    pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        tokio::spawn(Self::in_current_scope(future))
    }

    /// Like `tokio::task::spawn_blocking`, and keeps the current task's owner.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime, as `tokio::task::spawn_blocking` does.
    pub fn spawn_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let owner = Self::of_scope();
        tokio::task::spawn_blocking(move || run_as(owner, work))
    }

    /// Wraps a function so that it acquires locks for the current owner on whichever thread it is called: for
    /// `std::thread::spawn`, scoped threads and rayon. Without an owner, the function is unchanged: a thread that uses a
    /// blocking client has one once it has acquired a [`ReentrantMutex`](crate::ReentrantMutex) or an
    /// [`RwLock`](crate::RwLock).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::{Owner, blocking::Client};
    ///
    /// let account = Client::connect("memory:")?.reentrant_mutex("account/7")?;
    /// let guard = account.acquire()?;
    /// let count = std::thread::scope(|threads| {
    ///     // The same owner: it enters the lock that this thread holds.
    ///     let working = threads.spawn(Owner::wrap(|| account.acquire().map(|guard| guard.count())));
    ///     working.join().expect("no panic")
    /// });
    /// assert_eq!(count?, 2);
    /// guard.release()?;
    /// # Ok(()) }
    /// ```
    pub fn wrap<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
        let owner = Self::current();
        move || run_as(owner, work)
    }

    /// Encodes the owner as a value of the header [`HEADER`](Self::HEADER): visible ASCII without commas,
    /// percent-encoded where necessary.
    pub fn to_header(&self) -> String {
        utf8_percent_encode(self.as_str(), ESCAPED).to_string()
    }

    /// Decodes the owner from a header value, as one that came from another process.
    ///
    /// Fails if the value contains a byte that [`to_header`](Self::to_header) would have encoded, which
    /// includes two headers joined by a proxy, or if the decoded text is not a valid owner. Unnecessary
    /// encoding is accepted.
    pub fn from_header(value: impl AsRef<[u8]>) -> Result<Self, OwnerError> {
        let value = value.as_ref();
        if !is_encoded(value) {
            return Err(OwnerError::Header);
        }
        let text = percent_decode(value).decode_utf8().map_err(|_| OwnerError::Header)?;
        Self::parse(&text, true)
    }

    /// Returns the owner's text, as stored at the lock's key.
    pub fn as_str(&self) -> &str {
        self.text.as_str()
    }

    /// Creates the owner that a store reports, which may be any text.
    pub(crate) fn from_store(text: OwnValue) -> Self {
        Self { text, remote: true }
    }

    pub(crate) fn text(&self) -> &OwnValue {
        &self.text
    }

    /// Whether it came from another process.
    pub(crate) fn is_remote(&self) -> bool {
        self.remote
    }

    fn parse(text: &str, remote: bool) -> Result<Self, OwnerError> {
        if text == RESERVED {
            return Err(OwnerError::Reserved);
        }
        let text = OwnValue::new(text).map_err(|error| OwnerError::Text { len: error.len })?;
        Ok(Self { text, remote })
    }
}

/// Runs a function in the scope of an owner, if there is one.
fn run_as<T>(owner: Option<Owner>, work: impl FnOnce() -> T) -> T {
    match owner {
        Some(owner) => owner.sync_scope(work),
        None => work(),
    }
}

/// Compares the text: where an owner came from does not matter.
impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Owner {}

impl Hash for Owner {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Owner").field(&self.as_str()).finish()
    }
}

/// Whether every byte that needs encoding is encoded, and every escape is complete.
fn is_encoded(value: &[u8]) -> bool {
    let escape = |after: &[u8]| after.get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit));
    value.iter().all(|byte| byte.is_ascii_graphic() && *byte != b',')
        && value.split(|byte| *byte == b'%').skip(1).all(escape)
}

/// Creates a client's owners.
pub(crate) struct OwnerFactory {
    /// Set if the user named the instance.
    name: Option<String>,
    environment: Arc<dyn Environment>,
    /// The instance and the next number; chosen when the first owner is created.
    sequence: OnceLock<(String, AtomicU64)>,
}

impl OwnerFactory {
    /// The longest instance id: an owner's text also needs room for a colon and a number.
    pub(crate) const MAX_INSTANCE: usize = OwnValue::MAX_LEN - 21;

    /// Uses the instance name set by the user, or a random one; `None` if the name is invalid.
    pub(crate) fn new(name: Option<String>, environment: Arc<dyn Environment>) -> Option<Self> {
        let fits = |name: &String| name.len() <= Self::MAX_INSTANCE && OwnValue::new(name).is_ok();
        name.as_ref().is_none_or(fits).then(|| Self { name, environment, sequence: OnceLock::new() })
    }

    /// Creates a unique owner.
    pub(crate) fn create(&self) -> Owner {
        let (instance, next) = self.sequence.get_or_init(|| self.start_sequence());
        let text = OwnValue::new(format!("{instance}:{}", next.fetch_add(1, Ordering::Relaxed)));
        Owner { text: text.expect("an instance id leaves room for a number"), remote: false }
    }

    /// With an instance name set by the user, the numbers start at a random one, so that a process restarted
    /// under the same name does not re-enter locks that its predecessor still holds.
    fn start_sequence(&self) -> (String, AtomicU64) {
        match &self.name {
            Some(name) => (name.clone(), AtomicU64::new(self.environment.random() >> 16)),
            None => (uuid(|| self.environment.random()), AtomicU64::new(1)),
        }
    }
}

impl fmt::Debug for OwnerFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnerFactory").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A random UUID, as of RFC 9562.
fn uuid(mut random: impl FnMut() -> u64) -> String {
    let (high, low) = (random() & !0xf000 | 0x4000, random() >> 2 | 1 << 63);
    let group = |bits: u64, digits: usize| format!("{:0digits$x}", bits & ((1 << (4 * digits)) - 1));
    [group(high >> 32, 8), group(high >> 16, 4), group(high, 4), group(low >> 48, 4), group(low, 12)]
        .join("-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_store::System;

    #[test]
    fn an_owner_reads_back_from_its_header() {
        for text in ["trace-4711", "a b%20", "a,b", "Überweisung/7", "f3a0:1", &"x".repeat(256)] {
            let owner = Owner::new(text).expect("an owner");
            let header = owner.to_header();
            assert!(header.bytes().all(|byte| byte.is_ascii_graphic() && byte != b','), "{header}");
            let other = Owner::from_header(&header).expect("our own header");
            assert_eq!((other.as_str(), &other), (text, &owner));
            assert!(other.is_remote() && !owner.is_remote());
        }
        for (none, error) in [
            ("", OwnerError::Text { len: 0 }),
            ("a%00b", OwnerError::Text { len: 3 }),
            ("%ff", OwnerError::Header),
            ("Überweisung", OwnerError::Header),
            ("a b", OwnerError::Header),
            ("one,two", OwnerError::Header),
            ("100%", OwnerError::Header),
            ("%4g", OwnerError::Header),
            ("leasehol%64", OwnerError::Reserved),
        ] {
            assert_eq!(Owner::from_header(none), Err(error), "{none}");
        }
        let encoded = Owner::from_header("%61%2f%c3%9c")
            .expect("unnecessary encoding and lowercase digits are accepted");
        assert_eq!(encoded.as_str(), "a/Ü");
        assert_eq!(Owner::new("x".repeat(257)), Err(OwnerError::Text { len: 257 }));
    }

    #[test]
    fn owners_of_a_client_are_its_own() {
        let make = |name: Option<&str>| OwnerFactory::new(name.map(str::to_owned), Arc::new(System));
        let owners = make(None).expect("without a name");
        let (first, second) = (owners.create(), owners.create());
        let (instance, number) = first.as_str().split_once(':').expect("an instance and a number");
        assert_eq!((number, second.as_str()), ("1", &*format!("{instance}:2")));
        let longest = "x".repeat(OwnerFactory::MAX_INSTANCE);
        let (before, after) =
            (make(Some(&longest)).expect("it leaves room"), make(Some(&longest)).expect("too"));
        assert_ne!(before.create(), after.create(), "the second one after a restart");
        for none in [&*format!("{longest}x"), "", "a\nb"] {
            assert!(make(Some(none)).is_none(), "{none}");
        }
    }

    #[test]
    fn a_uuid_says_that_it_is_random() {
        let mut bits = [0x0123_4567_89ab_cdef, u64::MAX].into_iter();
        let uuid = uuid(|| bits.next().expect("two numbers suffice"));
        assert_eq!(uuid, "01234567-89ab-4def-bfff-ffffffffffff");
    }

    #[test]
    fn a_scope_is_left_with_its_work() {
        assert_eq!(Owner::current(), None);
        let (outer, inner) = (Owner::new("outer").expect("an owner"), Owner::new("inner").expect("an owner"));
        outer.sync_scope(|| {
            inner.sync_scope(|| assert_eq!(Owner::current().as_ref(), Some(&inner)));
            assert_eq!(Owner::current().as_ref(), Some(&outer));
        });
        assert_eq!(Owner::current(), None);
    }
}
