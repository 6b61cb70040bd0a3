//! Faults on request, for `petstore demo`: a client engineer sees what a program does when a response is lost, late, or not ours.
//!
//! **Guarantees:**
//! - Only `petstore demo` builds a [`FaultyPipeline`]. The pipeline of `petstore serve` ignores the header.
//! - Only operations fail, and only for callers that may call them: everything up to the scope is checked first.
//! - A request that takes effect is handled and logged as always, with its usual deadlines. Its fault happens afterwards, to
//!   the response alone. A request that is refused instead changes nothing.
//! - A client can make the first attempt fail and the retry succeed: a request that has the header and an
//!   `Idempotency-Key`, or else an `X-Request-Id`, fails only once.
//! - Memory is bounded: at most [`MAX_NAMED_REQUESTS`] requests are remembered.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{self, HeaderMap, HeaderName};
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use petstore_config::ServeSettings;
use petstore_domain::idempotency::IdempotencyKey;
use petstore_domain::key_record::KeyId;
use petstore_domain::keywords;
use petstore_domain::rate_limit::RateLimit;
use thiserror::Error;
use tokio::time::sleep;
use tracing::field::Empty;
use tracing::{Instrument, Span, error_span};

use super::error::{ApiError, LoggedCause};
use super::idempotency;
use super::pipeline::{CallOperation, Connection, Pipeline, Request, RequestPipeline};
use super::rate_limits::RateLimitState;
use super::request::ApiRequest;
use super::request_id::sent_request_id;
use super::response::{self, Response};
use super::router::Operation;
use super::state::AppState;

const FAULT: HeaderName = HeaderName::from_static("petstore-fault");

/// How many requests are remembered as having failed. Beyond that, the least recently used is forgotten.
const MAX_NAMED_REQUESTS: u64 = 10_000;

/// How late a slow response is: longer than many timeouts, shorter than the default of the SDKs.
const DELAY: Duration = Duration::from_secs(5);

/// How a request fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// There is no response.
    LostAnswer,
    /// The response is late.
    Slow,
    /// The rate limit is said to be reached.
    RateLimited,
    /// The service is said to be unavailable.
    Unavailable,
    /// The response is a proxy's.
    BadGateway,
}

keywords!(
    FaultKind {
        LostAnswer => "lost-answer",
        Slow => "slow",
        RateLimited => "429",
        Unavailable => "503",
        BadGateway => "502-html"
    },
    FaultKindError
);

impl FaultKind {
    /// What happens, for `--help`.
    fn description(self) -> &'static str {
        match self {
            Self::LostAnswer => "the request takes effect, then the connection is closed without a response",
            Self::Slow => "the request takes effect, and the response comes 5 seconds late",
            Self::RateLimited => "429 `rate_limited` with `Retry-After: 1`, and nothing is changed",
            Self::Unavailable => "503 `unavailable` with `Retry-After: 1`, and nothing is changed",
            Self::BadGateway => {
                "the request takes effect, and the response is an HTML page with status 502, as from a proxy"
            }
        }
    }

    /// The response to a request that is refused; none if the request takes effect.
    fn refusal(self) -> Option<Response> {
        match self {
            Self::LostAnswer | Self::Slow | Self::BadGateway => None,
            Self::RateLimited => {
                let limit = RateLimit::ONE_PER_SECOND;
                let mut response = ApiError::RateLimited { limit, seconds: 1 }.into_response();
                RateLimitState::reached(limit).add_headers(response.headers_mut());
                Some(response)
            }
            Self::Unavailable => {
                let mut response = ApiError::Unavailable { cause: String::new() }.into_response();
                // The service has not failed.
                response.extensions_mut().remove::<LoggedCause>();
                Some(response)
            }
        }
    }
}

/// A proxy's page instead of the response. It has nothing of the service except whether the connection closes.
fn bad_gateway(mut response: Response) -> Response {
    let connection = response.headers_mut().remove(header::CONNECTION);
    let page = "<html>\n<head><title>502 Bad Gateway</title></head>\n<body><h1>502 Bad Gateway</h1></body>\n</html>\n";
    let mut replaced = response::with_media_type(StatusCode::BAD_GATEWAY, "text/html", page);
    replaced.headers_mut().extend(connection.map(|value| (header::CONNECTION, value)));
    replaced
}

/// The response is to be lost. hyper closes the connection of a service that returns an error.
#[derive(Debug, Error)]
#[error("the response was lost on request")]
struct LostAnswer;

/// A kind of fault, and the share of requests that fail so.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FaultRule {
    kind: FaultKind,
    /// Above 0, and at most 1.
    share: f64,
}

/// The text is not a kind of fault with an optional share.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum FaultRuleError {
    /// The kind is unknown.
    #[error("the kind {0}")]
    Kind(#[from] FaultKindError),
    /// The share is not one.
    #[error("the share must be a number above 0 and at most 1, as in `{0}:0.5`")]
    Share(&'static str),
}

impl FromStr for FaultRule {
    type Err = FaultRuleError;

    fn from_str(text: &str) -> Result<Self, FaultRuleError> {
        let (kind, share) = text.split_once(':').unwrap_or((text, "1"));
        let kind: FaultKind = kind.parse()?;
        let share = share.parse().ok().filter(|share| *share > 0.0 && *share <= 1.0);
        Ok(Self { kind, share: share.ok_or(FaultRuleError::Share(kind.as_str()))? })
    }
}

impl fmt::Display for FaultRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_mille = (self.share * 1_000.0).round();
        write!(f, "{} ({} % of requests)", self.kind.as_str(), per_mille / 10.0)
    }
}

/// The shares add up to more than all requests.
#[derive(Debug, Error, PartialEq)]
#[error(
    "the shares of --fault add up to {0}, but each request has one fault at most: give shares that add up to at most 1, as \
     in `--fault lost-answer:0.5 --fault 503:0.2`"
)]
pub struct FaultSharesError(f64);

/// A request that its client can name again, of this caller and operation.
#[derive(Debug, PartialEq, Eq, Hash)]
struct NamedRequest {
    caller: KeyId,
    operation: &'static str,
    name: RequestName,
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum RequestName {
    IdempotencyKey(IdempotencyKey),
    RequestId(Vec<u8>),
}

/// Decides which requests fail, and how.
pub struct FaultInjector {
    rules: Vec<FaultRule>,
    /// Returns a number from 0 up to, but not including, 1.
    random: fn() -> f64,
    /// The named requests that have failed.
    failed: Cache<NamedRequest, ()>,
}

impl FaultInjector {
    /// Makes these shares of the requests fail, and those that ask for it with a header.
    pub fn new(rules: Vec<FaultRule>, random: fn() -> f64) -> Result<Self, FaultSharesError> {
        let total: f64 = rules.iter().map(|fault| fault.share).sum();
        // Decimal fractions add up to slightly more than 1 in binary.
        if total > 1.0 + 1e-9 {
            return Err(FaultSharesError((total * 1e6).round() / 1e6));
        }
        let failed = Cache::builder().max_capacity(MAX_NAMED_REQUESTS);
        Ok(Self { rules, random, failed: failed.eviction_policy(EvictionPolicy::lru()).build() })
    }

    /// The pipeline of the public listener, with these faults.
    pub fn pipeline(self, app: Arc<AppState>, settings: &ServeSettings) -> impl Pipeline + use<> {
        let faults = Arc::new(self);
        let call: CallOperation =
            Box::new(move |operation, request| Box::pin(faults.clone().call(operation, request)));
        FaultyPipeline(RequestPipeline::public(app, settings, call))
    }

    /// The fault of a request, if it has one: what its header names, or else what chance decides.
    fn choose(
        &self,
        headers: &HeaderMap,
        caller: KeyId,
        operation: &'static str,
    ) -> Result<Option<FaultKind>, ApiError> {
        let Some(kind) = requested(headers)? else { return Ok(self.draw()) };
        let has_failed = name(headers).is_some_and(|name| {
            let request = NamedRequest { caller, operation, name };
            !self.failed.entry(request).or_insert(()).is_fresh()
        });
        Ok((!has_failed).then_some(kind))
    }

    /// Draws one number per request, so that the shares add up.
    fn draw(&self) -> Option<FaultKind> {
        let mut drawn = (self.random)();
        let chosen = self.rules.iter().find(|fault| {
            drawn -= fault.share;
            drawn < 0.0
        });
        chosen.map(|fault| fault.kind)
    }

    /// Refuses a request, or calls its handler. The fault is an extension of the response.
    async fn call(
        self: Arc<Self>,
        operation: Operation,
        request: ApiRequest<'_>,
    ) -> Result<Response, ApiError> {
        let fault = self.choose(&request.head.headers, request.caller.key.lineage, operation.id())?;
        let Some(fault) = fault else { return operation.call(request).await };
        // For the log line of the request.
        Span::current().record("fault", fault.as_str());
        let mut response = match fault.refusal() {
            Some(refusal) => refusal,
            None => operation.call(request).await.unwrap_or_else(ApiError::into_response),
        };
        response.extensions_mut().insert(fault);
        Ok(response)
    }
}

/// The pipeline of a demo's public listener.
struct FaultyPipeline(RequestPipeline);

impl Pipeline for FaultyPipeline {
    type NoResponse = LostAnswer;

    /// Answers a request, then loses, delays or replaces the response if that is its fault.
    async fn handle(&self, connection: &Connection, request: Request) -> Result<Response, LostAnswer> {
        let handling = self.0.handle(connection, request).instrument(error_span!("demo", fault = Empty));
        let Ok(mut response) = handling.await;
        match response.extensions_mut().remove() {
            None | Some(FaultKind::RateLimited | FaultKind::Unavailable) => {}
            Some(FaultKind::LostAnswer) => return Err(LostAnswer),
            Some(FaultKind::Slow) => sleep(DELAY).await,
            Some(FaultKind::BadGateway) => response = bad_gateway(response),
        }
        Ok(response)
    }
}

/// The fault that the header names.
fn requested(headers: &HeaderMap) -> Result<Option<FaultKind>, ApiError> {
    static PROBLEM: LazyLock<String> =
        LazyLock::new(|| format!("`Petstore-Fault` must appear only once and {FaultKindError}"));
    let mut values = headers.get_all(FAULT).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let kind = value.to_str().ok().and_then(|text| text.parse().ok());
    if kind.is_none() || values.next().is_some() {
        return Err(ApiError::InvalidHeader { name: "Petstore-Fault", problem: &PROBLEM });
    }
    Ok(kind)
}

/// The client's name for a request, which its retries repeat. An invalid key is the operation's to refuse.
fn name(headers: &HeaderMap) -> Option<RequestName> {
    let key = idempotency::key(headers).ok().flatten().map(RequestName::IdempotencyKey);
    // Copied: a header shares the memory of its whole head.
    key.or_else(|| sent_request_id(headers).map(|id| RequestName::RequestId(id.as_bytes().to_vec())))
}

/// Describes the option `--fault`.
#[must_use]
pub fn fault_option_help() -> String {
    let lines = FaultKind::ALL.map(|kind| format!("- {}: {}", kind.as_str(), kind.description()));
    format!(
        "Makes requests fail, to test what a client does then. Repeatable. SHARE is the share of requests that fail in this \
         way: above 0 and at most 1. By default it is 1: every request fails, and so does every retry. A request has one \
         fault at most, so the shares must add up to at most 1. Only API operations fail, not the pages at \
         /docs.\n\n{}\n\nTo make a single request fail, with or without this option, send the header `Petstore-Fault: \
         KIND`. If the request also has an `Idempotency-Key` or an `X-Request-Id`, only its first attempt fails",
        lines.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(texts: &[&str]) -> Vec<FaultRule> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn injector(texts: &[&str], random: fn() -> f64) -> FaultInjector {
        FaultInjector::new(rules(texts), random).unwrap()
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_fault_has_a_kind_and_a_share_above_0_and_at_most_1() {
        for (text, kind, share) in [
            ("lost-answer", FaultKind::LostAnswer, 1.0),
            ("slow:0.25", FaultKind::Slow, 0.25),
            ("429:1", FaultKind::RateLimited, 1.0),
            ("503:1e-3", FaultKind::Unavailable, 0.001),
            ("502-html:.5", FaultKind::BadGateway, 0.5),
        ] {
            assert_eq!(text.parse(), Ok(FaultRule { kind, share }), "{text}");
        }
        for bad in [
            "slow:0",
            "slow:1.01",
            "slow:-1",
            "slow:",
            "slow:x",
            "slow:NaN",
            "slow:inf",
            "slow:50%",
            "slow:0.1:2",
        ] {
            assert_eq!(bad.parse::<FaultRule>(), Err(FaultRuleError::Share("slow")), "{bad}");
        }
        for bad in ["", ":0.5", "lost", "Slow", "504"] {
            assert_eq!(bad.parse::<FaultRule>(), Err(FaultRuleError::Kind(FaultKindError)), "{bad}");
        }
    }

    #[test]
    fn shares_add_up_to_at_most_1() {
        for good in [&[][..], &["slow"], &["slow:0.7", "503:0.1", "429:0.2"], &["slow:0.5", "slow:0.5"]] {
            assert!(FaultInjector::new(rules(good), || 0.0).is_ok(), "{good:?}");
        }
        for (bad, total) in [(&["slow", "503"][..], 2.0), (&["slow:0.7", "503:0.4"], 1.1)] {
            assert_eq!(
                FaultInjector::new(rules(bad), || 0.0).err(),
                Some(FaultSharesError(total)),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn each_request_draws_one_fault_or_none() {
        let faults = ["lost-answer:0.5", "503:0.25"];
        let draw =
            |random| injector(&faults, random).choose(&HeaderMap::new(), KeyId(1), "createPet").unwrap();
        assert_eq!(draw(|| 0.0), Some(FaultKind::LostAnswer));
        assert_eq!(draw(|| 0.499), Some(FaultKind::LostAnswer));
        assert_eq!(draw(|| 0.5), Some(FaultKind::Unavailable));
        assert_eq!(draw(|| 0.749), Some(FaultKind::Unavailable));
        assert_eq!(draw(|| 0.75), None);
        assert_eq!(draw(|| 0.999), None);
        let always = injector(&["slow"], || 0.999_999);
        assert_eq!(always.choose(&HeaderMap::new(), KeyId(1), "createPet").unwrap(), Some(FaultKind::Slow));
    }

    #[test]
    fn a_request_with_the_header_fails_so_and_draws_nothing() {
        let faults = injector(&["slow"], || 0.0);
        let choose = |pairs: &[_]| faults.choose(&headers(pairs), KeyId(1), "createPet").unwrap();
        for _ in 0..3 {
            assert_eq!(choose(&[("petstore-fault", "503")]), Some(FaultKind::Unavailable), "it has no name");
        }
        let named = [("petstore-fault", "503"), ("idempotency-key", "k")];
        assert_eq!([choose(&named), choose(&named)], [Some(FaultKind::Unavailable), None]);
    }

    #[test]
    fn a_named_request_fails_once_per_caller_operation_and_name() {
        let faults = injector(&[], || 0.0);
        let fails = |caller, operation, pairs: &[_]| {
            let headers = headers(&[&[("petstore-fault", "lost-answer")], pairs].concat());
            faults.choose(&headers, KeyId(caller), operation).unwrap().is_some()
        };
        let keyed = [("idempotency-key", "k"), ("x-request-id", "a")];
        assert!(fails(1, "createPet", &keyed));
        assert!(!fails(1, "createPet", &keyed));
        assert!(
            !fails(1, "createPet", &[("idempotency-key", "\"k\""), ("x-request-id", "b")]),
            "the same key"
        );
        assert!(fails(1, "createPet", &[("idempotency-key", "l"), ("x-request-id", "a")]));
        assert!(fails(2, "createPet", &keyed));
        assert!(fails(1, "placeOrder", &keyed));
        assert!(fails(1, "createPet", &[("x-request-id", "k")]), "not a key");
        assert!(!fails(1, "createPet", &[("x-request-id", "k")]));
    }

    #[test]
    fn a_limited_number_of_requests_is_remembered() {
        let faults = injector(&[], || 0.0);
        for number in 0..2 * MAX_NAMED_REQUESTS {
            let key = number.to_string();
            let headers = headers(&[("petstore-fault", "slow"), ("idempotency-key", &key)]);
            assert!(faults.choose(&headers, KeyId(1), "createPet").unwrap().is_some());
            assert!(faults.choose(&headers, KeyId(1), "createPet").unwrap().is_none(), "{number}");
        }
        faults.failed.run_pending_tasks();
        assert!(faults.failed.entry_count() <= MAX_NAMED_REQUESTS, "{}", faults.failed.entry_count());
    }

    #[test]
    fn an_unknown_kind_is_refused_with_the_list_of_kinds() {
        let faults = injector(&[], || 0.0);
        for pairs in [
            &[("petstore-fault", "lost")][..],
            &[("petstore-fault", "slow:0.5")],
            &[("petstore-fault", "slow"), ("petstore-fault", "slow")],
        ] {
            let error = faults.choose(&headers(pairs), KeyId(1), "createPet").unwrap_err();
            assert_eq!(
                serde_json::to_value(error.body()).unwrap(),
                serde_json::json!({
                    "code": "invalid_header",
                    "message": "`Petstore-Fault` must appear only once and must be one of `lost-answer`, `slow`, \
                                `429`, `503`, `502-html`.",
                    "status": 400,
                    "field": "Petstore-Fault",
                })
            );
        }
    }
}
