//! Sends the owner along with a request.

use super::HEADER;
use crate::guard::owner::Owner;
use http::{HeaderValue, Request};
use std::task::{Context, Poll};
use tower_layer::Layer;
use tower_service::Service;

/// Wraps a client in a [`SendOwner`].
///
/// ```
/// # use axum::{body::Body, http::{Request, Response}};
/// use leasehold::Owner;
/// use leasehold::tower::SendOwnerLayer;
/// use tower::{Service, ServiceBuilder, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let http = service_fn(async |request: Request<Body>| {
/// #     assert_eq!(request.headers()["leasehold-owner"], "trace-4711");
/// #     Ok::<_, std::convert::Infallible>(Response::new(Body::empty()))
/// # });
/// let mut http = ServiceBuilder::new().layer(SendOwnerLayer::new()).service(http);
/// let request = Request::get("http://stock.internal/lamp").body(Body::empty())?;
/// let response = Owner::new("trace-4711")?.scope(async { http.call(request).await }).await?;
/// # assert!(response.status().is_success());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct SendOwnerLayer;

impl SendOwnerLayer {
    /// Creates the layer. It has no settings.
    pub fn new() -> Self {
        Self
    }
}

impl<S> Layer<S> for SendOwnerLayer {
    type Service = SendOwner<S>;

    fn layer(&self, inner: S) -> SendOwner<S> {
        SendOwner::new(inner)
    }
}

/// A client that sends the owner of its caller along: that of the [scope](Owner::scope) in which `call` is
/// called. The scope in which the response is awaited does not matter.
///
/// Place it outside of every layer that calls in a task of its own, like tower's `Buffer`; a tonic `Channel`
/// is one of these.
///
/// The scope alone determines what is sent. If the request already has the header [`HEADER`](Owner::HEADER),
/// it is replaced by that of the scope, or removed if there is no scope: a handler that forwards a request
/// may have copied it from an untrusted client. To send another owner, call in its scope.
///
/// ```
/// # use axum::{body::Body, http::{Request, Response}};
/// use leasehold::Owner;
/// use leasehold::tower::SendOwner;
/// use tower::{Service, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let http = service_fn(async |request: Request<Body>| {
/// #     assert_eq!(request.headers()["leasehold-owner"], "trace-4711");
/// #     Ok::<_, std::convert::Infallible>(Response::new(Body::empty()))
/// # });
/// let mut http = SendOwner::new(http);
/// let request = Request::get("http://stock.internal/lamp").body(Body::empty())?;
/// let sent = Owner::new("trace-4711")?.sync_scope(|| http.call(request));
/// # assert!(sent.await?.status().is_success());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct SendOwner<S> {
    inner: S,
}

impl<S> SendOwner<S> {
    /// Wraps a client so that it sends owners along.
    pub fn new(inner: S) -> Self {
        Self { inner }
    }
}

impl<S, B> Service<Request<B>> for SendOwner<S>
where
    S: Service<Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> S::Future {
        match Owner::of_scope() {
            Some(owner) => request.headers_mut().insert(&HEADER, value(&owner)),
            None => request.headers_mut().remove(&HEADER),
        };
        self.inner.call(request)
    }
}

fn value(owner: &Owner) -> HeaderValue {
    HeaderValue::try_from(owner.to_header()).expect("an owner's header is visible ASCII")
}
