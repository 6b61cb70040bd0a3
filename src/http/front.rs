//! The way of a request from its connection to its route, and back.
//!
//! Plain code rather than layers of the router: it runs before any routing, reads from top to bottom, and costs a
//! busy service less.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use tokio::sync::Semaphore;

use super::AppState;
use super::auth::key_of;
use super::cors::Origins;
use super::error::ApiError;
use super::limits::check_head;
use super::observe::Visit;

/// What answers every request of a listener. Cheap to clone.
#[derive(Clone)]
pub struct Front(Arc<Parts>);

struct Parts {
    routes: TowerToHyperService<Router>,
    /// What stands before the routes of the public listener.
    guard: Option<Guard>,
}

struct Guard {
    app: AppState,
    origins: Origins,
    /// A place for each request that may be under way.
    places: Semaphore,
}

impl Front {
    /// Lets everybody in.
    pub(super) fn open(routes: Router) -> Self {
        Self(Arc::new(Parts { routes: TowerToHyperService::new(routes), guard: None }))
    }

    /// Looks at size, origin, key and rate first, and works on so many requests at once.
    pub(super) fn guarded(routes: Router, app: AppState, origins: Origins, max_requests: u32) -> Self {
        let guard = Some(Guard { app, origins, places: Semaphore::new(max_requests as usize) });
        Self(Arc::new(Parts { routes: TowerToHyperService::new(routes), guard }))
    }

    /// Answers a request, whatever happens on the way.
    pub(super) async fn answer(&self, request: hyper::Request<Incoming>) -> Response {
        let visit = Visit::begin(&request);
        // A panic is logged where it happens; the client gets an answer like any other.
        let response = AssertUnwindSafe(self.pass(request.map(Body::new))).catch_unwind().await;
        let response = response.unwrap_or_else(|_| {
            ApiError::Internal { cause: "a panic, logged separately".into() }.into_response()
        });
        visit.end(response)
    }

    async fn pass(&self, request: Request) -> Response {
        let Some(Guard { app, origins, places }) = &self.0.guard else { return self.route(request).await };
        let origin = origins.look_at(&request);
        let mut response = match (origin.answer_to_question(), places.try_acquire()) {
            (Some(answer), _) => answer,
            (None, Ok(_place)) => self.enter(app, request).await.unwrap_or_else(IntoResponse::into_response),
            (None, Err(_)) => {
                ApiError::Unavailable { cause: "too many requests are under way".into() }.into_response()
            }
        };
        origin.allow(response.headers_mut());
        if app.is_stopping() {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    /// The order of the checks is size, key, rate, path, method, and within the operation scope, media type, body,
    /// values.
    async fn enter(&self, app: &AppState, mut request: Request) -> Result<Response, ApiError> {
        check_head(&request)?;
        let Some(key) = key_of(&request)? else { return Ok(self.route(request).await) };
        let caller = app.keys.find(&key, (app.clock)()).await?;
        let (passed, allowance) = caller.limiter.as_ref().map(|limiter| limiter.count()).unzip();
        // Inward to the handler, and outward to the log.
        request.extensions_mut().insert(caller.clone());
        let mut response = match passed {
            None | Some(Ok(())) => self.route(request).await,
            Some(Err(error)) => error.into_response(),
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
