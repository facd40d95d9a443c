//! Runs a service in the scope of the owner received with the request.

use super::HEADER;
use crate::guard::owner::{Owner, OwnerError, Scoped};
use http::{HeaderMap, Request, Response, StatusCode};
use pin_project_lite::pin_project;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use tower_layer::Layer;
use tower_service::Service;

/// Wraps a service in a [`ReceiveOwner`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use axum::{Router, routing::get};
/// # use axum::{body::{Body, to_bytes}, http::Request};
/// use leasehold::Owner;
/// use leasehold::tower::ReceiveOwnerLayer;
/// # use tower::ServiceExt;
///
/// async fn owner() -> String {
///     Owner::current().map_or("no owner".into(), |owner| owner.to_string())
/// }
/// let service: Router = Router::new().route("/owner", get(owner)).layer(ReceiveOwnerLayer::new());
/// # let request = Request::get("/owner").header("leasehold-owner", "trace-4711").body(Body::empty())?;
/// # let response = service.oneshot(request).await?;
/// # assert_eq!(to_bytes(response.into_body(), 100).await?, "trace-4711");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct ReceiveOwnerLayer;

impl ReceiveOwnerLayer {
    /// Creates the layer. It has no settings.
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

/// A service that handles each request in the scope of the owner in its header. A client that can send the
/// header can enter the locks that its owner holds: see [Trust](super#trust).
///
/// The inner service's `call` and its future run in the owner's [scope](Owner::scope), until the future has
/// returned the response or is dropped. Not in the scope are
///
/// - tasks that a handler spawns, unless with [`Owner::spawn`] or [`Owner::in_current_scope`];
/// - the response body, if it is produced after the response has been returned: for a stream that acquires
///   locks, take [`Owner::current`] in the handler and set it with
///   [`owned_by`](crate::ReentrantMutex::owned_by).
///
/// A request without the header is handled as without this layer. If the header is not a valid owner, or
/// occurs twice, the reply is 400 with an empty body, and the inner service is not called: without the owner,
/// it would wait for a lock that its caller holds.
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
    /// Wraps a service so that it runs in the scopes of received owners.
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
        let state = match received(request.headers()) {
            Ok(Some(owner)) => {
                let future = owner.sync_scope(|| self.inner.call(request));
                ResponseState::Scoped { future: owner.scoped(future) }
            }
            Ok(None) => ResponseState::Unscoped { future: self.inner.call(request) },
            Err(rejection) => {
                tracing::debug!(%rejection, "request rejected with status 400");
                ResponseState::Rejected
            }
        };
        ResponseFuture { state }
    }
}

pin_project! {
    /// The response of a [`ReceiveOwner`].
    #[must_use = "a future does nothing unless it is polled"]
    pub struct ResponseFuture<F> {
        #[pin]
        state: ResponseState<F>,
    }
}

pin_project! {
    #[project = ResponseStateProjection]
    enum ResponseState<F> {
        /// In the scope of the received owner.
        Scoped {
            #[pin]
            future: Scoped<F>,
        },
        /// Without an owner in the request.
        Unscoped {
            #[pin]
            future: F,
        },
        Rejected,
    }
}

impl<F, R, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: Default,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        match self.project().state.project() {
            ResponseStateProjection::Scoped { future } => future.poll(cx),
            ResponseStateProjection::Unscoped { future } => future.poll(cx),
            ResponseStateProjection::Rejected => Poll::Ready(Ok(bad_request())),
        }
    }
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

/// Why a request is rejected. The header's content is never shown.
#[derive(Debug, thiserror::Error)]
enum Rejection {
    #[error("the header `{}` occurs more than once", Owner::HEADER)]
    Repeated,
    #[error(transparent)]
    Invalid(#[from] OwnerError),
}

/// The owner of a request, if it has one.
fn received(headers: &HeaderMap) -> Result<Option<Owner>, Rejection> {
    let mut values = headers.get_all(&HEADER).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => Ok(Some(Owner::from_header(value)?)),
        (Some(_), Some(_)) => Err(Rejection::Repeated),
    }
}

fn bad_request<R: Default>() -> Response<R> {
    let mut response = Response::new(R::default());
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response
}
