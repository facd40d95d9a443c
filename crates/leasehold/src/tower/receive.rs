//! A request is worked on for the owner that came with it.

use super::HEADER;
use crate::owner::{Owner, OwnerError, Scoped};
use http::{HeaderMap, Request, Response, StatusCode};
use pin_project_lite::pin_project;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use tower_layer::Layer;
use tower_service::Service;

/// Makes a service a [`ReceiveOwner`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use axum::{Router, routing::get};
/// # use axum::{body::{Body, to_bytes}, http::Request};
/// use leasehold::Owner;
/// use leasehold::tower::ReceiveOwnerLayer;
/// # use tower::ServiceExt;
///
/// async fn whom() -> String {
///     Owner::current().map_or("nobody in particular".into(), |owner| owner.to_string())
/// }
/// let service: Router = Router::new().route("/whom", get(whom)).layer(ReceiveOwnerLayer::new());
/// # let request = Request::get("/whom").header("leasehold-owner", "trace-4711").body(Body::empty())?;
/// # let response = service.oneshot(request).await?;
/// # assert_eq!(to_bytes(response.into_body(), 100).await?, "trace-4711");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct ReceiveOwnerLayer;

impl ReceiveOwnerLayer {
    /// The layer. It has no settings.
    pub fn new() -> Self {
        Self
    }
}

impl<S> Layer<S> for ReceiveOwnerLayer {
    type Service = ReceiveOwner<S>;

    fn layer(&self, inner: S) -> ReceiveOwner<S> {
        ReceiveOwner::new(inner)
    }
}

/// A service that works for the owner whose header a request has. Whoever can send the header gets into what its owner
/// holds: see [whom to believe](super#whom-to-believe).
///
/// In the owner's [scope](Owner::scope) are the inner service's `call` and its future, until that has given the response
/// or is dropped. Outside of it are
///
/// - what a handler spawns, unless by [`Owner::spawn`] or [`Owner::carry`];
/// - the response's body, if it is still made when the response has been given: a stream that acquires does so for
///   [`Owner::current`], taken in the handler, by [`owned_by`](crate::ReentrantMutex::owned_by).
///
/// A request without the header is worked on as without this layer. If the header is no owner's, or there are two, the
/// answer is 400 with an empty body, and the inner service is not called: to work for nobody in particular would have it
/// wait for what its caller holds.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use axum::http::{Request, Response, StatusCode};
/// use leasehold::tower::ReceiveOwner;
/// use tower::{ServiceExt, service_fn};
///
/// let service = ReceiveOwner::new(service_fn(async |_: Request<()>| {
///     Ok::<_, std::convert::Infallible>(Response::new("done"))
/// }));
/// let request = Request::get("/").header("leasehold-owner", "%").body(())?;
/// assert_eq!(service.oneshot(request).await?.status(), StatusCode::BAD_REQUEST);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct ReceiveOwner<S> {
    inner: S,
}

impl<S> ReceiveOwner<S> {
    /// The service, which works for the owners that come.
    pub fn new(inner: S) -> Self {
        Self { inner }
    }
}

impl<S, B, R> Service<Request<B>> for ReceiveOwner<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Default,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let way = match received(request.headers()) {
            Ok(Some(owner)) => {
                let future = owner.sync_scope(|| self.inner.call(request));
                Way::Scoped { future: owner.scoped(future) }
            }
            Ok(None) => Way::AsItIs { future: self.inner.call(request) },
            Err(refused) => {
                tracing::debug!(%refused, "a request is answered with 400");
                Way::Refused
            }
        };
        ResponseFuture { way }
    }
}

pin_project! {
    /// The response of a [`ReceiveOwner`].
    #[must_use = "a future does nothing unless it is polled"]
    pub struct ResponseFuture<F> {
        #[pin]
        way: Way<F>,
    }
}

pin_project! {
    #[project = WayPinned]
    enum Way<F> {
        /// For the owner that came.
        Scoped {
            #[pin]
            future: Scoped<F>,
        },
        /// For nobody in particular, or for whom the caller works.
        AsItIs {
            #[pin]
            future: F,
        },
        Refused,
    }
}

impl<F, R, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: Default,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        match self.project().way.project() {
            WayPinned::Scoped { future } => future.poll(cx),
            WayPinned::AsItIs { future } => future.poll(cx),
            WayPinned::Refused => Poll::Ready(Ok(refusal())),
        }
    }
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

/// Why a request is not worked on. What stood in its header is nowhere told.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("there is more than one header `{}`", Owner::HEADER)]
    Several,
    #[error(transparent)]
    NoOwner(#[from] OwnerError),
}

/// The owner of a request, if it has one.
fn received(headers: &HeaderMap) -> Result<Option<Owner>, Refused> {
    let mut values = headers.get_all(&HEADER).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => Ok(Some(Owner::from_header(value)?)),
        (Some(_), Some(_)) => Err(Refused::Several),
    }
}

fn refusal<R: Default>() -> Response<R> {
    let mut response = Response::new(R::default());
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response
}
