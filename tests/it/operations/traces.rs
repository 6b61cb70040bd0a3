//! The traces that a collector receives.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message;

use crate::support::postgres::{TestDatabase, key};
use crate::support::program::ServeProcess;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// A collector that receives OTLP over HTTP and passes on the spans.
fn collector() -> (String, Receiver<Vec<Span>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let send = send.clone();
            std::thread::spawn(move || {
                let mut connection = BufReader::new(connection.unwrap());
                while let Some(body) = read_request(&mut connection) {
                    let export = ExportTraceServiceRequest::decode(&*body).unwrap();
                    let scopes = export.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
                    let _ = send.send(scopes.flat_map(|scope| scope.spans).collect());
                    connection.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
                }
            });
        }
    });
    (address, receive)
}

fn read_request(connection: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut length = 0;
    let mut head = String::new();
    while connection.read_line(&mut head).ok()? > 2 {
        let line = head.to_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        head.clear();
    }
    let mut body = vec![0; length];
    connection.read_exact(&mut body).ok()?;
    (length > 0).then_some(body)
}

fn attribute(span: &Span, name: &str) -> String {
    let found = span.attributes.iter().find(|attribute| attribute.key == name);
    format!("{:?}", found.and_then(|attribute| attribute.value.clone()).and_then(|value| value.value))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

#[tokio::test]
async fn a_request_span_is_a_child_of_the_client_span_and_the_parent_of_its_statements() {
    let database = TestDatabase::new().await;
    let (address, received) = collector();
    let service = ServeProcess::start(&database.url(), &["--otlp-endpoint", &address]);
    let traceparent = format!("00-{TRACE}-{PARENT}-01");
    let answer = service.client.get_with_header("/v1/pets?limit=7", "traceparent", &traceparent).await;
    assert_eq!(answer.status, 200);
    let (exited_well, log) = service.terminate();
    assert!(exited_well);
    // The service waits for the collector before it exits, so everything has arrived.
    let mut spans: Vec<Span> = received.try_iter().flatten().collect();
    spans.retain(|span| hex(&span.trace_id) == TRACE);
    let request = spans.iter().find(|span| span.kind() == SpanKind::Server).unwrap();
    assert_eq!(request.name, "GET /v1/pets");
    assert_eq!(hex(&request.parent_span_id), PARENT);
    assert!(attribute(request, "http.response.status_code").contains("200"));
    let statements: Vec<&Span> = spans.iter().filter(|span| span.kind() == SpanKind::Client).collect();
    assert!(statements.iter().all(|span| span.parent_span_id == request.span_id), "{spans:?}");
    let texts: Vec<String> = statements.iter().map(|span| attribute(span, "db.query.text")).collect();
    assert!(texts.iter().any(|text| text.contains("FROM pets")), "{texts:?}");
    assert!(texts.iter().any(|text| text.contains("api_keys")), "{texts:?}");
    assert!(log.contains(&format!("\"trace_id\":\"{TRACE}\"")), "{log}");
    let everything = format!("{spans:?}");
    assert!(!everything.contains("limit=7") && !everything.contains(key().reveal()));
}

#[tokio::test]
async fn an_unavailable_collector_does_not_affect_requests() {
    let database = TestDatabase::new().await;
    let service = ServeProcess::start(&database.url(), &["--otlp-endpoint", "http://127.0.0.1:9"]);
    for _ in 0..50 {
        assert_eq!(service.client.get("/v1/pets").await.status, 200);
    }
    assert!(service.terminate().0);
}
