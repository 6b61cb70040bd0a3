//! The pipeline that every request passes through, from its connection to its route and back.
//!
//! Plain code rather than router layers: it runs before routing, reads from top to bottom, and costs a busy service
//! less.

pub(crate) mod access_log;
mod admission_control;
pub(crate) mod authentication;
pub(crate) mod cors;
pub(crate) mod header_limits;
pub(crate) mod key_cache;
mod key_freshness;
mod rate_limits;
mod unknown_key_throttle;
mod unread_body;

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use metrics::{Counter, counter};
use opentelemetry::context::FutureExt as _;

use super::AppState;
use super::error::ApiError;
use crate::telemetry::metrics::REQUESTS_RATE_LIMITED;

use access_log::{RequestLogEntry, Route};
pub(crate) use admission_control::Admission;
use authentication::required_key;
use cors::AllowedOrigins;
use header_limits::check_head;
pub(crate) use key_cache::KeyCache;

/// Answers all requests of a listener. Cheap to clone.
#[derive(Clone)]
pub struct RequestPipeline(Arc<RequestPipelineInner>);

struct RequestPipelineInner {
    routes: TowerToHyperService<Router>,
    /// What only the public listener checks.
    public: Option<PublicChecks>,
    /// Labels requests that match no route.
    unmatched: Route,
}

struct PublicChecks {
    app: AppState,
    origins: AllowedOrigins,
    rate_limited: Counter,
}

impl RequestPipeline {
    /// The pipeline of the private listener: no checks.
    pub(super) fn admin(routes: Router) -> Self {
        Self::new(routes, None)
    }

    /// The pipeline of the public listener: CORS, admission, head limits, authentication and rate limits.
    pub(super) fn public(routes: Router, app: AppState, origins: AllowedOrigins) -> Self {
        Self::new(routes, Some(PublicChecks { app, origins, rate_limited: counter!(REQUESTS_RATE_LIMITED) }))
    }

    fn new(routes: Router, public: Option<PublicChecks>) -> Self {
        let routes = TowerToHyperService::new(routes);
        Self(Arc::new(RequestPipelineInner { routes, public, unmatched: Route::default() }))
    }

    /// Answers a request, even if its handler panics. `client` is its address, unless the peer is a trusted proxy.
    pub(super) async fn handle(&self, request: hyper::Request<Incoming>, client: Option<IpAddr>) -> Response {
        let observation = RequestLogEntry::start(&request, self.0.public.is_some());
        let (head, body) = request.into_parts();
        let (body, unread) = unread_body::track(&head.headers, body);
        // The panic hook logs a panic; the client gets the usual Error body.
        let future = AssertUnwindSafe(self.process(Request::from_parts(head, body), client)).catch_unwind();
        let response = match &observation.trace {
            None => future.await,
            Some(trace) => future.with_context(trace.clone()).await,
        };
        let mut response = response.unwrap_or_else(|_| {
            ApiError::Internal { cause: "a panic, logged separately".into() }.into_response()
        });
        if let Some(unread) = unread {
            unread.drain_or_close(response.headers_mut()).await;
        }
        if self.0.public.is_some() {
            observation.finish(response, &self.0.unmatched)
        } else {
            observation.finish_admin(response)
        }
    }

    async fn process(&self, request: Request, client: Option<IpAddr>) -> Response {
        let Some(checks) = &self.0.public else { return self.route(request).await };
        let cors = checks.origins.classify(&request);
        let mut response = match cors.preflight_response() {
            // Before admission: a preflight request is answered even under overload, and never counted as refused.
            Some(response) => response,
            None => self.check_and_route(checks, request, client).await.into_response(),
        };
        cors.add_headers(response.headers_mut());
        if checks.app.is_stopping() {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    /// Checks admission, size, key and rate, in this order, and routes the request. Path and method come next; then,
    /// within the operation, scope, media type, body and values.
    async fn check_and_route(
        &self,
        checks: &PublicChecks,
        mut request: Request,
        client: Option<IpAddr>,
    ) -> Result<Response, ApiError> {
        let app = &checks.app;
        let _permit = app.admission.acquire()?;
        check_head(&request)?;
        let Some(key) = required_key(&request)? else { return Ok(self.route(request).await) };
        let caller = app.keys.authenticate(&key, client, &app.admission, (app.clock)()).await?;
        let (allowed, rate_limit) = caller.limiter.as_ref().map(|limiter| limiter.check()).unzip();
        // For the handler; in the response, for the log.
        request.extensions_mut().insert(caller.clone());
        let mut response = match allowed {
            None | Some(Ok(())) => self.route(request).await,
            Some(Err(error)) => {
                checks.rate_limited.increment(1);
                error.into_response()
            }
        };
        response.extensions_mut().insert(caller);
        if let Some(rate_limit) = rate_limit {
            rate_limit.add_headers(response.headers_mut());
        }
        Ok(response)
    }

    async fn route(&self, request: Request) -> Response {
        self.0.routes.call(request).await.unwrap_or_else(|impossible| match impossible {})
    }
}
