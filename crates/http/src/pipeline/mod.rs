//! The pipeline that every request passes through, from its connection to its handler and back.
//!
//! Plain code rather than layers around a router: it reads from top to bottom, and costs a busy service less.

mod access_log;
mod client_address;
mod cors;
mod head_checks;

use std::convert::Infallible;
use std::error::Error;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use ipnet::IpNet;
use metrics::{Counter, counter};
use opentelemetry::context::FutureExt as _;
use petstore_config::ServeSettings;
use petstore_telemetry::metrics::REQUESTS_RATE_LIMITED;

use super::admin_routes;
use super::authentication::{Caller, required_authorization};
use super::client_presence::ClientPresence;
use super::error::ApiError;
use super::incoming_body::IncomingBody;
use super::request::ApiRequest;
use super::response::{self, Response};
use super::router::{Endpoint, Operation, Route, Routes};
use super::state::AppState;
use access_log::RequestLogEntry;
use client_address::{Peer, client_address};
use cors::AllowedOrigins;
use head_checks::check_head;

pub(crate) type Request = hyper::Request<Incoming>;

/// Answers all requests of a listener.
pub trait Pipeline: Send + Sync + 'static {
    /// Why a request gets no response: hyper closes the connection.
    type NoResponse: Error + Send + Sync + 'static;

    /// Answers a request.
    fn handle(
        &self,
        connection: &Connection,
        request: Request,
    ) -> impl Future<Output = Result<Response, Self::NoResponse>> + Send;
}

/// Calls the handler of an operation, for a caller that has the operation's scope.
pub(crate) type CallOperation =
    Box<dyn Fn(Operation, ApiRequest<'_>) -> BoxFuture<'_, Result<Response, ApiError>> + Send + Sync>;

/// The steps that every request passes through.
pub(crate) struct RequestPipeline {
    app: Arc<AppState>,
    routes: Routes,
    /// What only the public listener checks.
    public: Option<PublicListenerChecks>,
    call: CallOperation,
}

struct PublicListenerChecks {
    origins: AllowedOrigins,
    rate_limited: Counter,
    /// The proxies whose `X-Forwarded-For` is trusted. None if the log has no addresses.
    trusted_proxies: Option<Vec<IpNet>>,
}

/// A client's connection.
pub struct Connection {
    /// The client's address, unless the peer is a trusted proxy.
    client: Option<IpAddr>,
    peer: Peer,
    presence: ClientPresence,
}

impl Connection {
    /// A new connection. `client` is its address, unless the peer is a trusted proxy.
    pub(super) fn new(peer: IpAddr, client: Option<IpAddr>, presence: ClientPresence) -> Self {
        Self { client, peer: Peer::new(peer), presence }
    }
}

/// A request on its way through the pipeline.
struct RequestContext<'a> {
    connection: &'a Connection,
    head: &'a Parts,
    body: IncomingBody,
    /// The route of its path, and what the path has in the place of an id.
    route: Option<(&'a Route, &'a str)>,
    log_entry: RequestLogEntry,
}

/// The pipeline of the private listener: health checks and metrics, without checks.
#[must_use]
pub fn admin_pipeline(app: Arc<AppState>) -> impl Pipeline {
    RequestPipeline { app, routes: Routes::admin(), public: None, call: Box::new(Operation::call) }
}

/// The pipeline of the public listener: CORS, admission, head limits, authentication and rate limits.
#[must_use]
pub fn public_pipeline(app: Arc<AppState>, settings: &ServeSettings) -> impl Pipeline + use<> {
    RequestPipeline::public(app, settings, Box::new(Operation::call))
}

impl Pipeline for RequestPipeline {
    type NoResponse = Infallible;

    /// Answers a request, even if its handler panics.
    async fn handle(&self, connection: &Connection, request: Request) -> Result<Response, Infallible> {
        let (head, body) = request.into_parts();
        let log_entry = RequestLogEntry::start(&head, self.public.is_some());
        let trace = log_entry.trace.clone();
        let mut request = RequestContext {
            connection,
            head: &head,
            body: IncomingBody::new(body),
            route: self.routes.find(head.uri.path()),
            log_entry,
        };
        // The panic hook logs a panic; the client gets the usual Error body.
        let processing = AssertUnwindSafe(self.process(&mut request)).catch_unwind();
        let response = match trace {
            None => processing.await,
            Some(trace) => processing.with_context(trace).await,
        };
        let mut response = response.unwrap_or_else(|_| {
            ApiError::Internal { cause: "a panic, logged separately".into() }.into_response()
        });
        let RequestContext { body, log_entry, .. } = request;
        body.drain_or_close(&head.headers, response.headers_mut()).await;
        let Some(checks) = &self.public else { return Ok(log_entry.finish_admin(response)) };
        let proxies = checks.trusted_proxies.as_deref();
        let client = proxies.map(|proxies| client_address(&connection.peer, &head.headers, proxies));
        Ok(log_entry.finish(response, client, &self.app.failures))
    }
}

impl RequestPipeline {
    /// The pipeline of the public listener, which calls its operations in this way.
    pub(super) fn public(app: Arc<AppState>, settings: &ServeSettings, call: CallOperation) -> Self {
        let public = PublicListenerChecks {
            origins: AllowedOrigins::new(&settings.interface.cors_origins),
            rate_limited: counter!(REQUESTS_RATE_LIMITED),
            trusted_proxies: settings.log_client_addresses.then(|| settings.limits.trusted_proxies.clone()),
        };
        Self { app, routes: Routes::public(), public: Some(public), call }
    }

    async fn process(&self, request: &mut RequestContext<'_>) -> Response {
        if let Some((route, _)) = request.route
            && let Some(endpoint) = route.endpoint(&request.head.method)
        {
            request.log_entry.route = route.pattern.clone();
            request.log_entry.operation = endpoint.operation().map(Operation::id);
        }
        let Some(checks) = &self.public else {
            return self.answer(request, None).await.unwrap_or_else(ApiError::into_response);
        };
        let cors = checks.origins.classify(request.head);
        let mut response = match cors.preflight_response() {
            // Before admission: a preflight request is answered even under overload, and never counted as refused.
            Some(response) => response,
            None => self.check_and_answer(checks, request).await.unwrap_or_else(ApiError::into_response),
        };
        cors.add_headers(response.headers_mut());
        if self.app.is_stopping() {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    /// Checks admission, size, key and rate, in this order, and answers the request. Path and method come next; then,
    /// within the operation, scope, media type, body and values.
    async fn check_and_answer(
        &self,
        checks: &PublicListenerChecks,
        request: &mut RequestContext<'_>,
    ) -> Result<Response, ApiError> {
        let app = &self.app;
        let _permit = app.admission.acquire()?;
        check_head(request.head)?;
        let Some(authorization) = required_authorization(request.head)? else {
            return self.answer(request, None).await;
        };
        let caller =
            match app.keys.authenticate(authorization, request.connection.client, &app.admission).await {
                Ok(caller) => caller,
                Err(error) => {
                    request.log_entry.key = app.keys.last_known(authorization).await;
                    return Err(error);
                }
            };
        request.log_entry.key = Some(caller.key.id);
        let (allowed, rate_limit) = caller.limiter.as_ref().map(|limiter| limiter.check()).unzip();
        let response = match allowed {
            None | Some(Ok(())) => self.answer(request, Some(&caller)).await,
            Some(Err(error)) => {
                checks.rate_limited.increment(1);
                Err(error)
            }
        };
        let mut response = response.unwrap_or_else(ApiError::into_response);
        if let Some(rate_limit) = rate_limit {
            rate_limit.add_headers(response.headers_mut());
        }
        Ok(response)
    }

    async fn answer(
        &self,
        request: &mut RequestContext<'_>,
        caller: Option<&Caller>,
    ) -> Result<Response, ApiError> {
        let (app, head) = (&self.app, request.head);
        let (route, id_in_path) = request.route.ok_or_else(|| {
            let nearest = self.routes.nearest(head.uri.path()).map(str::to_owned);
            ApiError::RouteNotFound { nearest }
        })?;
        let Some(endpoint) = route.endpoint(&head.method) else {
            return Ok(answer_other_method(route, head));
        };
        match endpoint {
            Endpoint::Operation(operation) => {
                let (caller, scope) = (caller.ok_or(ApiError::MissingApiKey)?, operation.scope());
                caller.check_scope(scope)?;
                let (body, now, presence) = (&mut request.body, (app.clock)(), &request.connection.presence);
                let request = ApiRequest { app, caller, scope, head, body, id_in_path, now, presence };
                (self.call)(operation, request).await
            }
            Endpoint::Document => app.document.answer(head),
            Endpoint::DocsFile(file) => app.docs_page.answer(file, head),
            Endpoint::Redirect(path) => Ok(response::see_other(path)),
            Endpoint::Livez => Ok(admin_routes::livez()),
            Endpoint::Startupz => admin_routes::startupz(app),
            Endpoint::Readyz => admin_routes::readyz(app),
            Endpoint::Metrics => Ok(admin_routes::metrics(app)),
        }
    }
}

/// Answers a method that has no endpoint at this path: `OPTIONS`, or one that is not allowed.
fn answer_other_method(route: &Route, head: &Parts) -> Response {
    let mut response = if head.method == Method::OPTIONS {
        response::empty(StatusCode::NO_CONTENT)
    } else {
        ApiError::MethodNotAllowed { allowed: route.allowed.clone() }.into_response()
    };
    response.headers_mut().insert(header::ALLOW, route.allowed.clone());
    response
}
