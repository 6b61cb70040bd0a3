//! API keys in the `Authorization` header, and what each may do.
//!
//! **Invariant:** a malformed, an unknown, an expired and a revoked key look alike from outside.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::extract::Request;
use axum::http::{HeaderMap, Method, header};
use axum::response::{IntoResponse, Response};
use tower::{Layer, Service};

use super::access_log::Route;
use super::key_cache::Caller;
use crate::domain::api_key::ApiKey;
use crate::domain::key_record::Scope;
use crate::http::error::ApiError;

/// The key of a request that needs one: everything under `/v1` does, but for `OPTIONS`.
pub(crate) fn key_of(request: &Request) -> Result<Option<ApiKey>, ApiError> {
    let path = request.uri().path();
    let protected = path == "/v1" || path.starts_with("/v1/");
    if protected && request.method() != Method::OPTIONS {
        bearer(request.headers()).map(Some)
    } else {
        Ok(None)
    }
}

fn bearer(headers: &HeaderMap) -> Result<ApiKey, ApiError> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next().ok_or(ApiError::MissingApiKey)?;
    if values.next().is_some() {
        return Err(ApiError::InvalidApiKey);
    }
    let (scheme, key) =
        value.to_str().ok().and_then(|text| text.split_once(' ')).ok_or(ApiError::InvalidApiKey)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(ApiError::InvalidApiKey);
    }
    key.parse().map_err(|_| ApiError::InvalidApiKey)
}

/// Stands around the handler of a route: lets a request pass only if its key carries the scope that the route
/// needs, if it needs one, and hands the route outward to the log and the metrics.
///
/// A service of its own and not a function: this runs for every request, and `from_fn` copies the handler.
#[derive(Clone)]
pub(crate) struct RequireScope {
    needed: Option<Scope>,
    route: Arc<Route>,
}

impl RequireScope {
    /// For one route.
    pub(crate) fn new(needed: Option<Scope>) -> Self {
        Self { needed, route: Arc::default() }
    }
}

impl<S> Layer<S> for RequireScope {
    type Service = RequireScopeService<S>;

    fn layer(&self, handler: S) -> RequireScopeService<S> {
        RequireScopeService { entrance: self.clone(), handler }
    }
}

/// A handler behind its [`RequireScope`].
#[derive(Clone)]
pub(crate) struct RequireScopeService<S> {
    entrance: RequireScope,
    handler: S,
}

impl<S> Service<Request> for RequireScopeService<S>
where
    S: Service<Request, Response = Response, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.handler.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let RequireScope { needed, route } = self.entrance.clone();
        route.taken_by(&request);
        let missing = needed.filter(|needed| {
            let caller = request.extensions().get::<Arc<Caller>>();
            !caller.is_some_and(|caller| caller.key.scopes.contains(needed))
        });
        let answer = match missing {
            None => Ok(self.handler.call(request)),
            Some(needed) => Err(ApiError::InsufficientScope { needed }),
        };
        Box::pin(async move {
            let mut response = match answer {
                Ok(answer) => answer.await?,
                Err(error) => error.into_response(),
            };
            response.extensions_mut().insert(route);
            Ok(response)
        })
    }
}
