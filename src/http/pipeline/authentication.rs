//! Authentication by API key, and the scopes that operations require.
//!
//! **Invariant:** a client cannot tell a malformed, an unknown, an expired and a revoked key apart.

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

/// Reads the API key of a request that needs one: everything under `/v1` does, except `OPTIONS`.
pub(crate) fn required_key(request: &Request) -> Result<Option<ApiKey>, ApiError> {
    let path = request.uri().path();
    let protected = path == "/v1" || path.starts_with("/v1/");
    if protected && request.method() != Method::OPTIONS {
        bearer_token(request.headers()).map(Some)
    } else {
        Ok(None)
    }
}

fn bearer_token(headers: &HeaderMap) -> Result<ApiKey, ApiError> {
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

/// A layer around the handler of a route. It rejects requests whose key lacks the scope that the route requires, if
/// any, and passes the route outward to the log and the metrics.
///
/// A separate service rather than `from_fn`, which would clone the handler for every request.
#[derive(Clone)]
pub(crate) struct RequireScope {
    needed: Option<Scope>,
    route: Arc<Route>,
}

impl RequireScope {
    /// Creates the layer of one route.
    pub(crate) fn new(needed: Option<Scope>) -> Self {
        Self { needed, route: Arc::default() }
    }
}

impl<S> Layer<S> for RequireScope {
    type Service = RequireScopeService<S>;

    fn layer(&self, inner: S) -> RequireScopeService<S> {
        RequireScopeService { layer: self.clone(), inner }
    }
}

/// A handler behind its [`RequireScope`].
#[derive(Clone)]
pub(crate) struct RequireScopeService<S> {
    layer: RequireScope,
    inner: S,
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
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let RequireScope { needed, route } = self.layer.clone();
        route.learn_pattern(&request);
        let missing = needed.filter(|needed| {
            let caller = request.extensions().get::<Arc<Caller>>();
            !caller.is_some_and(|caller| caller.key.scopes.contains(needed))
        });
        let answer = match missing {
            None => Ok(self.inner.call(request)),
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
