//! The pipeline: what every request passes through, in order, from its connection to its route and back.
//!
//! Plain code rather than layers of the router: it runs before any routing, reads from top to bottom, and costs a
//! busy service less.

pub(crate) mod access_log;
mod admission;
pub(crate) mod authentication;
pub(crate) mod cors;
pub(crate) mod head_limits;
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

use access_log::{Observation, Route};
pub(crate) use admission::Admission;
use authentication::key_of;
use cors::Origins;
use head_limits::check_head;
pub(crate) use key_cache::KeyCache;

/// What answers every request of a listener. Cheap to clone.
#[derive(Clone)]
pub struct Pipeline(Arc<Parts>);

struct Parts {
    routes: TowerToHyperService<Router>,
    /// What stands before the routes of the public listener.
    guard: Option<Guard>,
    /// Where requests of the public listener are counted that come to no route.
    elsewhere: Route,
}

struct Guard {
    app: AppState,
    origins: Origins,
    rate_limited: Counter,
}

impl Pipeline {
    /// Lets everybody in.
    pub(super) fn open(routes: Router) -> Self {
        Self::new(routes, None)
    }

    /// Looks at size, origin, key and rate first.
    pub(super) fn guarded(routes: Router, app: AppState, origins: Origins) -> Self {
        Self::new(routes, Some(Guard { app, origins, rate_limited: counter!(REQUESTS_RATE_LIMITED) }))
    }

    fn new(routes: Router, guard: Option<Guard>) -> Self {
        let routes = TowerToHyperService::new(routes);
        Self(Arc::new(Parts { routes, guard, elsewhere: Route::default() }))
    }

    /// Answers a request, whatever happens on the way. `client` is its address, unless that is a proxy's.
    pub(super) async fn answer(&self, request: hyper::Request<Incoming>, client: Option<IpAddr>) -> Response {
        let observation = Observation::begin(&request, self.0.guard.is_some());
        let (head, body) = request.into_parts();
        let (body, unread) = unread_body::lend(&head.headers, body);
        // A panic is logged where it happens; the client gets an answer like any other.
        let passing = AssertUnwindSafe(self.pass(Request::from_parts(head, body), client)).catch_unwind();
        let response = match &observation.trace {
            None => passing.await,
            Some(trace) => passing.with_context(trace.clone()).await,
        };
        let mut response = response.unwrap_or_else(|_| {
            ApiError::Internal { cause: "a panic, logged separately".into() }.into_response()
        });
        if let Some(unread) = unread {
            unread.finish(response.headers_mut()).await;
        }
        if self.0.guard.is_some() {
            observation.end(response, &self.0.elsewhere)
        } else {
            observation.end_unseen(response)
        }
    }

    async fn pass(&self, request: Request, client: Option<IpAddr>) -> Response {
        let Some(guard) = &self.0.guard else { return self.route(request).await };
        let app = &guard.app;
        let origin = guard.origins.look_at(&request);
        let mut response = match origin.answer_to_question() {
            // Before admission: it is answered however many requests are in progress, and never counted as refused.
            Some(answer) => answer,
            None => match app.admission.begin() {
                Ok(_in_progress) => {
                    self.enter(guard, request, client).await.unwrap_or_else(IntoResponse::into_response)
                }
                Err(refused) => refused.into_response(),
            },
        };
        origin.allow(response.headers_mut());
        if app.is_stopping() {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    /// The order of the checks is size, key, rate, path, method, and within the operation scope, media type, body,
    /// values.
    async fn enter(
        &self,
        guard: &Guard,
        mut request: Request,
        client: Option<IpAddr>,
    ) -> Result<Response, ApiError> {
        let app = &guard.app;
        check_head(&request)?;
        let Some(key) = key_of(&request)? else { return Ok(self.route(request).await) };
        let caller = app.keys.find(&key, client, &app.admission, (app.clock)()).await?;
        let (passed, allowance) = caller.limiter.as_ref().map(|limiter| limiter.count()).unzip();
        // Inward to the handler, and outward to the log.
        request.extensions_mut().insert(caller.clone());
        let mut response = match passed {
            None | Some(Ok(())) => self.route(request).await,
            Some(Err(error)) => {
                guard.rate_limited.increment(1);
                error.into_response()
            }
        };
        response.extensions_mut().insert(caller);
        if let Some(allowance) = allowance {
            allowance.announce(response.headers_mut());
        }
        Ok(response)
    }

    async fn route(&self, request: Request) -> Response {
        self.0.routes.call(request).await.unwrap_or_else(|impossible| match impossible {})
    }
}
