//! Traces, sent by OTLP to a collector if one is named: a span a request, below that of the client if it has one, and a
//! span a statement below that.
//!
//! **Invariants:**
//! - without a collector nothing is made for it;
//! - a collector that is away or slow costs requests nothing: spans that it does not take in time are lost;
//! - statements are sent as they are prepared, without their values, and no header or body is sent at all.

use std::fmt::{self, Debug, Formatter};
use std::sync::OnceLock;
use std::time::Duration;

use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Link, Span, SpanKind, Status, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tokio::runtime::Handle;

use crate::config::TraceSettings;

static TRACER: OnceLock<SdkTracer> = OnceLock::new();

/// How long a collector may take for a batch of spans, and for the last ones when the program ends.
const PATIENCE: Duration = Duration::from_secs(3);

/// Sends what is left when it is dropped.
pub struct TraceGuard(Option<SdkTracerProvider>);

impl Drop for TraceGuard {
    fn drop(&mut self) {
        if let Some(provider) = &self.0
            && let Err(error) = provider.shutdown_with_timeout(PATIENCE)
        {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }
}

/// Starts to keep traces if a collector is named. Must be called within the runtime that sends them.
pub fn start_tracing(settings: &TraceSettings) -> Result<TraceGuard, ExporterBuildError> {
    let Some(endpoint) = &settings.otlp_endpoint else { return Ok(TraceGuard(None)) };
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(OnRuntime {
            client: HyperClient::with_default_connector(PATIENCE, None),
            runtime: Handle::current(),
        })
        .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
        .with_timeout(PATIENCE)
        .build()?;
    let resource = Resource::builder()
        .with_service_name(env!("CARGO_PKG_NAME"))
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build();
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
    if TRACER.set(provider.tracer(env!("CARGO_PKG_NAME"))).is_err() {
        tracing::error!("a bug: traces are started twice");
    }
    Ok(TraceGuard(Some(provider)))
}

/// Sends on the program's own runtime: the SDK exports from a thread of its own, which has none.
struct OnRuntime {
    client: HyperClient,
    runtime: Handle,
}

impl Debug for OnRuntime {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.client.fmt(f)
    }
}

#[async_trait::async_trait]
impl HttpClient for OnRuntime {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        self.runtime.spawn(async move { client.send_bytes(request).await }).await?
    }
}

/// The span of a request, below the one that the client's `traceparent` names; none if no traces are kept.
#[must_use]
pub fn request(headers: &dyn Extractor, method: &'static str) -> Option<Context> {
    let tracer = TRACER.get()?;
    let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), headers);
    let span = tracer
        .span_builder(method)
        .with_kind(SpanKind::Server)
        .with_attributes([KeyValue::new("http.request.method", method)])
        .start_with_context(tracer, &parent);
    Some(parent.with_span(span))
}

/// Ends the span of a request with what is known only now, and returns the trace's id.
#[must_use]
pub fn end_request(context: &Context, method: &str, route: &str, status: u16) -> String {
    let span = context.span();
    span.update_name(format!("{method} {route}"));
    span.set_attribute(KeyValue::new("http.route", route.to_owned()));
    span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
    if status >= 500 {
        span.set_status(Status::error(""));
    }
    span.end();
    span.span_context().trace_id().to_string()
}

/// What the work that goes on belongs to; none if no traces are kept.
#[must_use]
pub fn current() -> Option<Context> {
    TRACER.get().map(|_| Context::current())
}

/// The others that share a piece of work with the request that it is told under.
struct Others(Vec<Link>);

/// What the work for these requests belongs to: the first, with a link to each of the others.
#[must_use]
pub fn shared(contexts: Vec<Context>) -> Option<Context> {
    let mut contexts = contexts.into_iter();
    let first = contexts.next()?;
    let links = contexts.map(|context| Link::with_context(context.span().span_context().clone())).collect();
    Some(first.with_value(Others(links)))
}

/// A statement under way.
pub struct Statement(Option<opentelemetry_sdk::trace::Span>);

/// Begins the span of a statement, below the request that it is for.
#[must_use]
pub fn statement(text: &'static str) -> Statement {
    Statement(TRACER.get().map(|tracer| {
        let parent = Context::current();
        let links = parent.get::<Others>().map(|others| others.0.clone()).unwrap_or_default();
        let name = text.split_whitespace().next().unwrap_or("statement");
        tracer
            .span_builder(name)
            .with_kind(SpanKind::Client)
            .with_attributes([
                KeyValue::new("db.system.name", "postgresql"),
                KeyValue::new("db.query.text", text),
            ])
            .with_links(links)
            .start_with_context(tracer, &parent)
    }))
}

impl Statement {
    /// Ends it.
    pub fn end(mut self, succeeded: bool) {
        if let Some(span) = &mut self.0
            && !succeeded
        {
            span.set_status(Status::error(""));
        }
    }
}
