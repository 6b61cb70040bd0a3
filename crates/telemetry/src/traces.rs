//! Traces, exported over OTLP if a collector is configured: one span per request, a child of the client's span if it sent
//! one, and one child span per statement.
//!
//! **Invariants:**
//! - without a collector, no span is created;
//! - a collector that is down or slow does not delay requests: spans that it does not accept in time are lost;
//! - spans contain statements as prepared, without parameter values, and no headers or bodies.

use std::fmt::{self, Debug, Formatter};
use std::sync::OnceLock;
use std::time::Duration;

use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Link, Span, SpanKind, Status, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
pub use opentelemetry_otlp::ExporterBuildError;
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use petstore_config::TraceSettings;
use petstore_config::version;
use tokio::runtime::Handle;

/// The name of the service in traces.
const SERVICE: &str = "petstore";

static TRACER: OnceLock<SdkTracer> = OnceLock::new();

/// How long an export of spans may take, and the last one when the program ends.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(3);

/// Exports the remaining spans when it is dropped.
pub struct TraceGuard(Option<SdkTracerProvider>);

impl Drop for TraceGuard {
    fn drop(&mut self) {
        if let Some(provider) = &self.0
            && let Err(error) = provider.shutdown_with_timeout(EXPORT_TIMEOUT)
        {
            tracing::warn!(%error, "could not export the last spans");
        }
    }
}

/// Starts tracing if a collector is configured. Call it within the runtime that is to export spans.
pub fn start_tracing(settings: &TraceSettings) -> Result<TraceGuard, ExporterBuildError> {
    let Some(endpoint) = &settings.otlp_endpoint else { return Ok(TraceGuard(None)) };
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(OtlpClient {
            client: HyperClient::with_default_connector(EXPORT_TIMEOUT, None),
            runtime: Handle::current(),
        })
        .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
        .with_timeout(EXPORT_TIMEOUT)
        .build()?;
    let resource = Resource::builder()
        .with_service_name(SERVICE)
        .with_attribute(KeyValue::new("service.version", version::FULL))
        .build();
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
    if TRACER.set(provider.tracer(SERVICE)).is_err() {
        tracing::error!("tracing was started twice: this is a bug");
    }
    Ok(TraceGuard(Some(provider)))
}

/// An HTTP client that runs on the program's runtime: the SDK exports from a thread that has none.
struct OtlpClient {
    client: HyperClient,
    runtime: Handle,
}

impl Debug for OtlpClient {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.client.fmt(f)
    }
}

#[async_trait::async_trait]
impl HttpClient for OtlpClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        self.runtime.spawn(async move { client.send_bytes(request).await }).await?
    }
}

/// Starts the span of a request, as a child of the client's `traceparent`. None without a collector.
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

/// Ends the span of a request with the route and status, and returns the trace id.
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

/// The context of the current request. None without a collector.
#[must_use]
pub fn current() -> Option<Context> {
    TRACER.get().map(|_| Context::current())
}

/// Links to the requests that share a batch with the one whose context carries this.
struct BatchSpanLinks(Vec<Link>);

/// The context of a batch: that of its first request, with a link to each of the others.
#[must_use]
pub fn shared(contexts: Vec<Context>) -> Option<Context> {
    let mut contexts = contexts.into_iter();
    let first = contexts.next()?;
    let links = contexts.map(|context| Link::with_context(context.span().span_context().clone())).collect();
    Some(first.with_value(BatchSpanLinks(links)))
}

/// The span of a statement in progress.
pub struct StatementSpan(Option<opentelemetry_sdk::trace::Span>);

/// Starts the span of a statement, as a child of the current request's.
#[must_use]
pub fn statement(text: &'static str) -> StatementSpan {
    StatementSpan(TRACER.get().map(|tracer| {
        let parent = Context::current();
        let links = parent.get::<BatchSpanLinks>().map(|links| links.0.clone()).unwrap_or_default();
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

impl StatementSpan {
    /// Ends the span.
    pub fn end(mut self, succeeded: bool) {
        if let Some(span) = &mut self.0
            && !succeeded
        {
            span.set_status(Status::error(""));
        }
    }
}
