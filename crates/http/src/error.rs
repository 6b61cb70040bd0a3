//! The error type of the interface: the status, code and message that a client gets when a request fails.
//!
//! **Invariant:** a cause, such as a database error, goes to the log with [`LoggedCause`], and never into a body.

use hyper::StatusCode;
use hyper::header::{self, HeaderName, HeaderValue};
use petstore_domain::key_record::Scope;
use petstore_domain::keyword_enum::open;
use petstore_domain::rate_limit::RateLimit;
use petstore_storage::StorageError;
use petstore_telemetry::with_causes;
use petstore_wire::json;
use petstore_wire::request_body::BodyError;
use petstore_wire::suggestions::{listed, similar};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa::openapi::schema::{Object, ObjectBuilder, Type};

use super::response::{self, Response};

/// Why a request failed. Codes are frozen: clients may rely on them forever.
#[derive(Debug)]
pub(crate) enum ApiError {
    InvalidBody(BodyError),
    InvalidParameter {
        name: &'static str,
        problem: String,
    },
    UnknownParameter {
        name: String,
        known: &'static [&'static str],
    },
    InvalidCursor,
    InvalidHeader {
        /// The header; none if it is the whole head.
        name: Option<&'static str>,
        problem: &'static str,
    },
    /// The end of the request is uncertain, so the connection cannot carry another one.
    InvalidFraming {
        problem: &'static str,
    },
    MissingApiKey,
    /// The header has another scheme, or none.
    NotABearerToken,
    InvalidApiKey,
    InsufficientScope {
        needed: Scope,
    },
    PetNotFound,
    OrderNotFound,
    RouteNotFound {
        /// The path that was most likely meant.
        nearest: Option<String>,
    },
    MethodNotAllowed,
    RequestTimeout,
    InvalidTransition {
        what: &'static str,
        from: &'static str,
        to: &'static str,
    },
    PetNotAvailable,
    PetHasOpenOrder,
    ReferenceTaken,
    OperationRemoved,
    CursorExpired,
    PreconditionFailed,
    BodyTooLarge,
    UriTooLong,
    UnsupportedMediaType {
        /// As the client sent it; empty if it sent none, or several.
        sent: String,
        accepted: &'static [&'static str],
    },
    UnsupportedContentEncoding {
        sent: String,
    },
    HeadersTooLarge,
    IdempotencyInProgress,
    IdempotencyKeyReused,
    RateLimited {
        limit: RateLimit,
        seconds: u64,
    },
    Internal {
        cause: String,
    },
    Unavailable {
        cause: String,
    },
    /// A failed check of the private listener, whose callers may know why.
    NotReady {
        reason: String,
    },
    OutcomeUnknown {
        cause: String,
    },
}

impl ApiError {
    /// The error for a query parameter with an invalid value.
    pub(crate) fn invalid_parameter(name: &'static str, problem: &impl ToString) -> Self {
        Self::InvalidParameter { name, problem: problem.to_string() }
    }

    /// The status and the code of each error, defined only here.
    pub(crate) fn code(&self) -> (StatusCode, &'static str) {
        match self {
            Self::InvalidBody(BodyError::InvalidJson { .. } | BodyError::NotExpected) => {
                (StatusCode::BAD_REQUEST, "invalid_json")
            }
            Self::InvalidBody(BodyError::MissingField { .. }) => (StatusCode::BAD_REQUEST, "missing_field"),
            Self::InvalidBody(BodyError::InvalidField { .. }) => (StatusCode::BAD_REQUEST, "invalid_field"),
            Self::InvalidBody(BodyError::UnknownField { .. } | BodyError::ReadOnlyField { .. }) => {
                (StatusCode::BAD_REQUEST, "unknown_field")
            }
            Self::InvalidParameter { .. } => (StatusCode::BAD_REQUEST, "invalid_parameter"),
            Self::UnknownParameter { .. } => (StatusCode::BAD_REQUEST, "unknown_parameter"),
            Self::InvalidCursor => (StatusCode::BAD_REQUEST, "invalid_cursor"),
            Self::InvalidHeader { .. } | Self::InvalidFraming { .. } => {
                (StatusCode::BAD_REQUEST, "invalid_header")
            }
            Self::MissingApiKey => (StatusCode::UNAUTHORIZED, "missing_api_key"),
            Self::NotABearerToken | Self::InvalidApiKey => (StatusCode::UNAUTHORIZED, "invalid_api_key"),
            Self::InsufficientScope { .. } => (StatusCode::FORBIDDEN, "insufficient_scope"),
            Self::PetNotFound => (StatusCode::NOT_FOUND, "pet_not_found"),
            Self::OrderNotFound => (StatusCode::NOT_FOUND, "order_not_found"),
            Self::RouteNotFound { .. } => (StatusCode::NOT_FOUND, "route_not_found"),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
            Self::RequestTimeout => (StatusCode::REQUEST_TIMEOUT, "request_timeout"),
            Self::InvalidTransition { .. } => (StatusCode::CONFLICT, "invalid_transition"),
            Self::PetNotAvailable => (StatusCode::CONFLICT, "pet_not_available"),
            Self::PetHasOpenOrder => (StatusCode::CONFLICT, "pet_has_open_order"),
            Self::ReferenceTaken => (StatusCode::CONFLICT, "reference_taken"),
            Self::OperationRemoved => (StatusCode::GONE, "operation_removed"),
            Self::CursorExpired => (StatusCode::GONE, "cursor_expired"),
            Self::PreconditionFailed => (StatusCode::PRECONDITION_FAILED, "precondition_failed"),
            Self::BodyTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"),
            Self::UriTooLong => (StatusCode::URI_TOO_LONG, "uri_too_long"),
            Self::UnsupportedMediaType { .. } | Self::UnsupportedContentEncoding { .. } => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type")
            }
            Self::HeadersTooLarge => (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "headers_too_large"),
            Self::IdempotencyInProgress => (StatusCode::CONFLICT, "idempotency_in_progress"),
            Self::IdempotencyKeyReused => (StatusCode::UNPROCESSABLE_ENTITY, "idempotency_key_reused"),
            Self::RateLimited { .. } => (StatusCode::TOO_MANY_REQUESTS, "rate_limited"),
            Self::Internal { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "internal_error"),
            Self::Unavailable { .. } | Self::NotReady { .. } => {
                (StatusCode::SERVICE_UNAVAILABLE, "unavailable")
            }
            Self::OutcomeUnknown { .. } => (StatusCode::SERVICE_UNAVAILABLE, "outcome_unknown"),
        }
    }

    /// The field of the body, the query parameter or the header that is wrong, if it is one.
    fn field(&self) -> Option<&str> {
        match self {
            Self::InvalidBody(error) => error.field(),
            Self::InvalidParameter { name, .. } => Some(name),
            Self::UnknownParameter { name, .. } => Some(name),
            Self::InvalidHeader { name, .. } => *name,
            Self::InvalidCursor => Some("cursor"),
            Self::CursorExpired => Some("after"),
            Self::InvalidFraming { .. } => Some("Transfer-Encoding"),
            Self::IdempotencyInProgress | Self::IdempotencyKeyReused => Some("Idempotency-Key"),
            Self::PreconditionFailed => Some("If-Match"),
            Self::ReferenceTaken => Some("reference"),
            Self::UnsupportedMediaType { .. } => Some("Content-Type"),
            Self::UnsupportedContentEncoding { .. } => Some("Content-Encoding"),
            _ => None,
        }
    }

    /// The message for the client: what is wrong, and what to send instead.
    pub(crate) fn message(&self) -> String {
        let fixed = match self {
            Self::InvalidBody(error) => return error.to_string(),
            Self::InvalidParameter { name, problem } => return format!("`{name}` {problem}."),
            Self::UnknownParameter { name, known } => return unknown_parameter(name, known),
            Self::UnsupportedMediaType { sent, accepted } => return unsupported_media_type(sent, accepted),
            Self::UnsupportedContentEncoding { sent } => {
                return format!("`Content-Encoding: {sent}` is not supported: send the body uncompressed.");
            }
            Self::InvalidHeader { problem, .. } | Self::InvalidFraming { problem } => {
                return format!("{problem}.");
            }
            Self::NotReady { reason } => return format!("This node is not ready: {reason}."),
            Self::InsufficientScope { needed } => {
                let scope = needed.as_str();
                return format!("The API key lacks the scope `{scope}`: use a key with this scope.");
            }
            Self::RateLimited { limit, seconds } => {
                let (requests, period) = (limit.requests().get(), limit.seconds());
                let plural = if requests == 1 { "" } else { "s" };
                return format!(
                    "The API key has reached its limit of {requests} request{plural} per {period} s: retry \
                     in {seconds} s."
                );
            }
            Self::InvalidTransition { what, from, to } => {
                return format!("The {what} is `{from}` and cannot become `{to}`.");
            }
            Self::InvalidCursor => {
                "`cursor` was not issued by this service: copy it from a `Link` header, or leave it out to start at the \
                 first page."
            }
            Self::MissingApiKey => "The API key is missing: send it as `Authorization: Bearer <API_KEY>`.",
            Self::NotABearerToken => {
                "The `Authorization` header is malformed: send `Authorization: Bearer <API_KEY>`."
            }
            Self::InvalidApiKey => {
                "The API key is not valid: check that it is complete, has not expired and has not been revoked."
            }
            Self::PetNotFound => "No pet has this id.",
            Self::OrderNotFound => "No order has this id.",
            Self::PetNotAvailable => {
                "The pet is not available: only a pet whose `status` is `available` can be ordered."
            }
            Self::PetHasOpenOrder => "The pet has an open order: complete or cancel the order first.",
            Self::ReferenceTaken => {
                "Another pet already has this `reference`: send a different one, or find that pet with \
                 `GET /v1/pets?reference=…`."
            }
            Self::PreconditionFailed => {
                "The pet has changed since you read it, so `If-Match` does not match: read the pet again, \
                 then repeat the change if you still want it."
            }
            Self::RouteNotFound { nearest: Some(nearest) } => {
                return format!("This path does not exist: did you mean `{nearest}`?");
            }
            Self::RouteNotFound { nearest: None } => {
                "This path does not exist: paths are lower case, without a trailing slash, and listed in \
                 `/openapi.json`."
            }
            Self::MethodNotAllowed => {
                "This path does not support this method: see the `Allow` header for the supported methods."
            }
            Self::RequestTimeout => "The body did not arrive in time: send the request again.",
            Self::OperationRemoved => "This operation has been removed: use `GET /v1/pets?id=…` instead.",
            Self::CursorExpired => {
                "The events after this position are no longer kept: get a new position with `after=now`, read the pets and \
                 orders that you need, then follow the feed from that position."
            }
            Self::BodyTooLarge => "The body is too large: at most 16384 bytes are allowed.",
            Self::UriTooLong => "The path and query are too long: at most 8192 bytes together are allowed.",
            Self::HeadersTooLarge => {
                "The headers are too large: at most 100 headers and 16384 bytes in total are allowed."
            }
            Self::IdempotencyInProgress => {
                "A request with this `Idempotency-Key` is still in progress: retry in a second to get its result."
            }
            Self::IdempotencyKeyReused => {
                "This `Idempotency-Key` was used for a different request in the last 24 hours: send a new key \
                 with each new request."
            }
            Self::Internal { .. } => {
                "The service failed because of a bug: please report it with the `X-Request-Id` of this \
                 response."
            }
            Self::Unavailable { .. } => {
                "The service is temporarily unavailable, and nothing was changed: retry after the number of seconds \
                 in `Retry-After`."
            }
            Self::OutcomeUnknown { .. } => {
                "The outcome of this request is unknown, because the database failed before it confirmed the change: \
                 retry with the same `Idempotency-Key`. If you sent no key, first check whether the change \
                 took effect."
            }
        };
        fixed.to_owned()
    }

    /// The body of the error response.
    pub(crate) fn body(&self) -> ErrorBody {
        let (status, code) = self.code();
        let field = self.field().map(str::to_owned);
        ErrorBody { code, message: self.message(), status: status.as_u16(), field }
    }

    /// The response, with the cause as an extension for the log.
    pub(crate) fn into_response(self) -> Response {
        let mut response = response::json(self.code().0, json::render(&self.body()));
        response.headers_mut().extend(self.header());
        if let Some(cause) = self.into_cause() {
            response.extensions_mut().insert(cause);
        }
        response
    }

    fn header(&self) -> Option<(HeaderName, HeaderValue)> {
        let challenge = |value| Some((header::WWW_AUTHENTICATE, value));
        match self {
            Self::MissingApiKey => challenge(HeaderValue::from_static(r#"Bearer realm="petstore""#)),
            Self::NotABearerToken | Self::InvalidApiKey => {
                challenge(HeaderValue::from_static(r#"Bearer realm="petstore", error="invalid_token""#))
            }
            Self::InsufficientScope { needed } => {
                let scope = needed.as_str();
                let value =
                    format!(r#"Bearer realm="petstore", error="insufficient_scope", scope="{scope}""#);
                HeaderValue::try_from(value).ok().and_then(challenge)
            }
            Self::RateLimited { seconds, .. } => Some((header::RETRY_AFTER, (*seconds).into())),
            Self::Unavailable { .. } | Self::NotReady { .. } | Self::OutcomeUnknown { .. } => {
                Some((header::RETRY_AFTER, HeaderValue::from_static("1")))
            }
            // The client may still be sending this request, so the connection cannot carry another one.
            Self::RequestTimeout | Self::BodyTooLarge | Self::InvalidFraming { .. } => {
                Some((header::CONNECTION, HeaderValue::from_static("close")))
            }
            _ => None,
        }
    }

    fn into_cause(self) -> Option<LoggedCause> {
        match self {
            Self::Internal { cause } | Self::Unavailable { cause } | Self::OutcomeUnknown { cause } => {
                Some(LoggedCause(cause))
            }
            _ => None,
        }
    }
}

fn unknown_parameter(name: &str, known: &[&str]) -> String {
    let known = || known.iter().copied();
    if let Some(similar) = similar(name, known()) {
        format!("`{name}` is not a query parameter of this operation: did you mean `{similar}`?")
    } else if known().next().is_some() {
        let known = listed(known());
        format!("`{name}` is not a query parameter of this operation: the parameters are {known}.")
    } else {
        format!("`{name}` is not allowed: this operation has no query parameters.")
    }
}

fn unsupported_media_type(sent: &str, accepted: &[&str]) -> String {
    let accepted = format!("`Content-Type: {}`", accepted.join("` or `Content-Type: "));
    if sent.is_empty() {
        format!("The `Content-Type` header is missing, empty or repeated: send JSON with {accepted}.")
    } else {
        format!("`Content-Type: {sent}` is not supported: send JSON in UTF-8 with {accepted}.")
    }
}

/// Why a request failed, for the log. An extension of the response.
#[derive(Debug, Clone)]
pub(crate) struct LoggedCause(pub(crate) String);

impl From<BodyError> for ApiError {
    fn from(error: BodyError) -> Self {
        Self::InvalidBody(error)
    }
}

impl From<&StorageError> for ApiError {
    fn from(error: &StorageError) -> Self {
        let cause = with_causes(error);
        match error {
            StorageError::Unavailable(_)
            | StorageError::Locked(_)
            | StorageError::Raced(_)
            | StorageError::NoPartition(_)
            | StorageError::Unusable(_) => Self::Unavailable { cause },
            StorageError::OutcomeUnknown(_) => Self::OutcomeUnknown { cause },
            StorageError::Unexpected(_) => Self::Internal { cause },
        }
    }
}

impl From<StorageError> for ApiError {
    fn from(error: StorageError) -> Self {
        Self::from(&error)
    }
}

/// Every code.
const CODES: [&str; 33] = [
    "body_too_large",
    "cursor_expired",
    "headers_too_large",
    "idempotency_in_progress",
    "idempotency_key_reused",
    "insufficient_scope",
    "internal_error",
    "invalid_api_key",
    "invalid_cursor",
    "invalid_field",
    "invalid_header",
    "invalid_json",
    "invalid_parameter",
    "invalid_transition",
    "method_not_allowed",
    "missing_api_key",
    "missing_field",
    "operation_removed",
    "order_not_found",
    "outcome_unknown",
    "pet_has_open_order",
    "pet_not_available",
    "pet_not_found",
    "precondition_failed",
    "rate_limited",
    "reference_taken",
    "request_timeout",
    "route_not_found",
    "unavailable",
    "unknown_field",
    "unknown_parameter",
    "unsupported_media_type",
    "uri_too_long",
];

/// The body of every error response.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Error)]
pub(crate) struct ErrorBody {
    #[schema(schema_with = code_schema)]
    code: &'static str,
    /// What is wrong, and what to send instead. The wording may change.
    message: String,
    /// The HTTP status code.
    #[schema(schema_with = status_schema)]
    status: u16,
    /// The body field, query parameter or header that is wrong, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "name")]
    field: Option<String>,
}

fn code_schema() -> Object {
    let about = "Error code for programs. A code never changes its meaning. New codes may be added.";
    let mut schema = open(about, CODES);
    schema.pattern = Some("^[a-z_]+$".into());
    schema
}

fn status_schema() -> Object {
    ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(400)).maximum(Some(599)).build()
}
