//! The pipeline that every request passes through, from its connection to its handler and back.
//!
//! Plain code rather than layers around a router: it reads from top to bottom, and costs a busy service less.

mod access_log;
mod client_address;
mod cors;
mod failure_log;
mod header_limits;

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use ipnet::IpNet;
use metrics::{Counter, counter};
use opentelemetry::context::FutureExt as _;
use petstore_config::ServeSettings;
use petstore_telemetry::metrics::REQUESTS_RATE_LIMITED;

use super::authentication::{Caller, required_authorization};
use super::client_presence::ClientPresence;
use super::error::ApiError;
use super::faults::{FaultInjector, FaultKind, LostAnswer};
use super::incoming_body::IncomingBody;
use super::request::ApiRequest;
use super::response::{self, Response};
use super::router::{Endpoint, Operation, Route, Routes};
use super::{AppState, health};
use access_log::RequestLogEntry;
use client_address::{Peer, client_address};
use cors::AllowedOrigins;
pub(crate) use failure_log::FailureLog;
use header_limits::check_head;

/// Answers all requests of a listener. Cheap to clone.
#[derive(Clone)]
pub struct RequestPipeline(Arc<RequestPipelineInner>);

struct RequestPipelineInner {
    app: AppState,
    routes: Routes,
    /// What only the public listener checks.
    public: Option<PublicListenerChecks>,
}

struct PublicListenerChecks {
    origins: AllowedOrigins,
    rate_limited: Counter,
    /// The proxies whose `X-Forwarded-For` is trusted. None if the log has no addresses.
    trusted_proxies: Option<Vec<IpNet>>,
    /// Only in a demo.
    faults: Option<FaultInjector>,
}

/// The pipeline of one connection.
pub(super) struct ConnectionPipeline {
    pipeline: RequestPipeline,
    /// The client's address, unless the peer is a trusted proxy.
    client: Option<IpAddr>,
    peer: Peer,
    presence: ClientPresence,
}

/// A request on its way through the pipeline.
struct RequestContext<'a> {
    head: &'a Parts,
    body: IncomingBody,
    /// The route of its path, and what the path has in the place of an id.
    route: Option<(&'a Route, &'a str)>,
    log_entry: RequestLogEntry,
}

impl RequestPipeline {
    /// The pipeline of the private listener: health checks and metrics, without checks.
    #[must_use]
    pub fn admin(app: AppState) -> Self {
        Self::new(app, Routes::admin(), None)
    }

    /// The pipeline of the public listener: CORS, admission, head limits, authentication and rate limits.
    #[must_use]
    pub fn public(app: AppState, settings: &ServeSettings, faults: Option<FaultInjector>) -> Self {
        let checks = PublicListenerChecks {
            origins: AllowedOrigins::new(&settings.interface.cors_origins),
            rate_limited: counter!(REQUESTS_RATE_LIMITED),
            trusted_proxies: settings.log_client_addresses.then(|| settings.limits.trusted_proxies.clone()),
            faults,
        };
        Self::new(app, Routes::public(), Some(checks))
    }

    fn new(app: AppState, routes: Routes, public: Option<PublicListenerChecks>) -> Self {
        Self(Arc::new(RequestPipelineInner { app, routes, public }))
    }

    /// The pipeline of a new connection. `client` is its address, unless the peer is a trusted proxy.
    pub(super) fn connection(
        &self,
        peer: IpAddr,
        client: Option<IpAddr>,
        presence: ClientPresence,
    ) -> ConnectionPipeline {
        let (pipeline, peer) = (self.clone(), Peer::new(peer));
        ConnectionPipeline { pipeline, client, peer, presence }
    }
}

impl ConnectionPipeline {
    /// Answers a request, even if its handler panics. In a demo, the response may be lost on request.
    pub(super) async fn handle(&self, request: hyper::Request<Incoming>) -> Result<Response, LostAnswer> {
        let RequestPipelineInner { app, routes, public } = &*self.pipeline.0;
        let (head, body) = request.into_parts();
        let log_entry = RequestLogEntry::start(&head, public.is_some());
        let trace = log_entry.trace.clone();
        let mut request = RequestContext {
            head: &head,
            body: IncomingBody::new(body),
            route: routes.find(head.uri.path()),
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
        let Some(checks) = public else { return Ok(log_entry.finish_admin(response)) };
        let proxies = checks.trusted_proxies.as_deref();
        let client = proxies.map(|proxies| client_address(&self.peer, &head.headers, proxies));
        let fault = log_entry.fault;
        let response = log_entry.finish(response, client, &app.failures);
        match fault {
            None => Ok(response),
            // Boxed: rare, and otherwise part of every request.
            Some(fault) => Box::pin(fault.deliver(response)).await,
        }
    }

    async fn process(&self, request: &mut RequestContext<'_>) -> Response {
        let RequestPipelineInner { app, public, .. } = &*self.pipeline.0;
        if let Some((route, _)) = request.route
            && let Some(endpoint) = route.endpoint(&request.head.method)
        {
            request.log_entry.route = route.pattern.clone();
            request.log_entry.operation = endpoint.operation().map(Operation::id);
        }
        let Some(checks) = public else {
            return self.answer(request, None).await.unwrap_or_else(ApiError::into_response);
        };
        let cors = checks.origins.classify(request.head);
        let mut response = match cors.preflight_response() {
            // Before admission: a preflight request is answered even under overload, and never counted as refused.
            Some(response) => response,
            None => self.check_and_answer(checks, request).await.unwrap_or_else(ApiError::into_response),
        };
        cors.add_headers(response.headers_mut());
        if app.is_stopping() {
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
        let app = &self.pipeline.0.app;
        let _permit = app.admission.acquire()?;
        check_head(request.head)?;
        let Some(authorization) = required_authorization(request.head)? else {
            return self.answer(request, None).await;
        };
        let caller =
            match app.keys.authenticate(authorization, self.client, &app.admission, (app.clock)()).await {
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
        let RequestPipelineInner { app, routes, public } = &*self.pipeline.0;
        let head = request.head;
        let (route, id_in_path) = request.route.ok_or_else(|| {
            let nearest = routes.nearest(head.uri.path()).map(str::to_owned);
            ApiError::RouteNotFound { nearest }
        })?;
        let Some(endpoint) = route.endpoint(&head.method) else {
            return Ok(answer_other_method(route, head));
        };
        match endpoint {
            Endpoint::Operation(operation) => {
                let caller = caller.ok_or(ApiError::MissingApiKey)?;
                caller.check_scope(operation.scope())?;
                if let Some(faults) = public.as_ref().and_then(|checks| checks.faults.as_ref()) {
                    let fault = faults.choose(&head.headers, caller.key.lineage, operation.id())?;
                    request.log_entry.fault = fault;
                    if let Some(refusal) = fault.and_then(FaultKind::refusal) {
                        return Ok(refusal);
                    }
                }
                let (body, now, presence) = (&mut request.body, (app.clock)(), &self.presence);
                operation.call(ApiRequest { app, caller, head, body, id_in_path, now, presence }).await
            }
            Endpoint::Document => app.document.answer(head),
            Endpoint::DocsFile(file) => app.docs_page.answer(file, head),
            Endpoint::Redirect(path) => Ok(response::see_other(path)),
            Endpoint::Livez => Ok(health::livez()),
            Endpoint::Startupz => health::startupz(app),
            Endpoint::Readyz => health::readyz(app),
            Endpoint::Metrics => Ok(health::metrics(app)),
        }
    }
}

/// Answers a method that has no endpoint at this path: `OPTIONS`, or one that is not allowed.
fn answer_other_method(route: &Route, head: &Parts) -> Response {
    let mut response = if head.method == Method::OPTIONS {
        response::empty(StatusCode::NO_CONTENT)
    } else {
        ApiError::MethodNotAllowed.into_response()
    };
    response.headers_mut().insert(header::ALLOW, route.allowed.clone());
    response
}
