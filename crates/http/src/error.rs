//! The error type of the interface: the status, code and message that a client gets when a request fails.
//!
//! **Invariant:** a cause, such as a database error, goes to the log with [`LoggedCause`], and never into a body.

use hyper::StatusCode;
use hyper::header::{self, HeaderName, HeaderValue};
use petstore_domain::key_record::Scope;
use petstore_domain::rate_limit::RateLimit;
use petstore_storage::StorageError;
use petstore_telemetry::with_causes;
use petstore_wire::json;
use petstore_wire::request_body::BodyError;
use petstore_wire::schema::open;
use petstore_wire::suggestions::{listed, similar};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa::openapi::schema::{Object, ObjectBuilder, Type};

use super::response::{self, Response};

/// Defines the codes, in alphabetical order: each with its spelling and its status.
macro_rules! error_codes {
    ($($name:ident = $code:literal, $status:ident;)+) => {
        /// What kind of error it is, for programs. Codes are frozen: clients may rely on them forever.
        #[derive(Debug, Clone, Copy)]
        pub(crate) enum ErrorCode {
            $($name,)+
        }

        impl ErrorCode {
            const ALL: [&str; [$($code),+].len()] = [$($code),+];

            pub(crate) fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $code,)+
                }
            }

            pub(crate) fn status(self) -> StatusCode {
                match self {
                    $(Self::$name => StatusCode::$status,)+
                }
            }
        }
    };
}

error_codes! {
    BodyTooLarge = "body_too_large", PAYLOAD_TOO_LARGE;
    CursorExpired = "cursor_expired", GONE;
    HeadersTooLarge = "headers_too_large", REQUEST_HEADER_FIELDS_TOO_LARGE;
    IdempotencyInProgress = "idempotency_in_progress", CONFLICT;
    IdempotencyKeyReused = "idempotency_key_reused", UNPROCESSABLE_ENTITY;
    InsufficientScope = "insufficient_scope", FORBIDDEN;
    InternalError = "internal_error", INTERNAL_SERVER_ERROR;
    InvalidApiKey = "invalid_api_key", UNAUTHORIZED;
    InvalidCursor = "invalid_cursor", BAD_REQUEST;
    InvalidField = "invalid_field", BAD_REQUEST;
    InvalidHeader = "invalid_header", BAD_REQUEST;
    InvalidJson = "invalid_json", BAD_REQUEST;
    InvalidParameter = "invalid_parameter", BAD_REQUEST;
    InvalidTransition = "invalid_transition", CONFLICT;
    MethodNotAllowed = "method_not_allowed", METHOD_NOT_ALLOWED;
    MissingApiKey = "missing_api_key", UNAUTHORIZED;
    MissingField = "missing_field", BAD_REQUEST;
    OperationRemoved = "operation_removed", GONE;
    OrderNotFound = "order_not_found", NOT_FOUND;
    OutcomeUnknown = "outcome_unknown", SERVICE_UNAVAILABLE;
    PetHasOpenOrder = "pet_has_open_order", CONFLICT;
    PetHasOrder = "pet_has_order", CONFLICT;
    PetNotAvailable = "pet_not_available", CONFLICT;
    PetNotFound = "pet_not_found", NOT_FOUND;
    PreconditionFailed = "precondition_failed", PRECONDITION_FAILED;
    RateLimited = "rate_limited", TOO_MANY_REQUESTS;
    ReferenceTaken = "reference_taken", CONFLICT;
    RequestTimeout = "request_timeout", REQUEST_TIMEOUT;
    RouteNotFound = "route_not_found", NOT_FOUND;
    Unavailable = "unavailable", SERVICE_UNAVAILABLE;
    UnknownField = "unknown_field", BAD_REQUEST;
    UnknownParameter = "unknown_parameter", BAD_REQUEST;
    UnsupportedMediaType = "unsupported_media_type", UNSUPPORTED_MEDIA_TYPE;
    UriTooLong = "uri_too_long", URI_TOO_LONG;
}

/// Why a request failed.
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
        name: &'static str,
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
    MethodNotAllowed {
        allowed: HeaderValue,
    },
    RequestTimeout,
    InvalidTransition {
        what: &'static str,
        from: &'static str,
        to: &'static str,
    },
    OrderNotHeld {
        status: &'static str,
    },
    PetNotAvailable,
    PetHasOpenOrder,
    PetHasOrder,
    ReferenceTaken,
    OperationRemoved,
    CursorExpired,
    PreconditionFailed {
        what: &'static str,
    },
    BodyTooLarge,
    UriTooLong,
    /// The link to the next page would be refused as [`UriTooLong`](Self::UriTooLong).
    NextPageTooLong,
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

    pub(crate) fn code(&self) -> ErrorCode {
        match self {
            Self::InvalidBody(BodyError::InvalidJson { .. } | BodyError::NotExpected) => {
                ErrorCode::InvalidJson
            }
            Self::InvalidBody(BodyError::MissingField { .. }) => ErrorCode::MissingField,
            Self::InvalidBody(BodyError::InvalidField { .. } | BodyError::InvalidMember { .. }) => {
                ErrorCode::InvalidField
            }
            Self::InvalidBody(BodyError::UnknownField { .. } | BodyError::ReadOnlyField { .. }) => {
                ErrorCode::UnknownField
            }
            Self::InvalidParameter { .. } => ErrorCode::InvalidParameter,
            Self::UnknownParameter { .. } => ErrorCode::UnknownParameter,
            Self::InvalidCursor => ErrorCode::InvalidCursor,
            Self::InvalidHeader { .. } | Self::InvalidFraming { .. } => ErrorCode::InvalidHeader,
            Self::MissingApiKey => ErrorCode::MissingApiKey,
            Self::NotABearerToken | Self::InvalidApiKey => ErrorCode::InvalidApiKey,
            Self::InsufficientScope { .. } => ErrorCode::InsufficientScope,
            Self::PetNotFound => ErrorCode::PetNotFound,
            Self::OrderNotFound => ErrorCode::OrderNotFound,
            Self::RouteNotFound { .. } => ErrorCode::RouteNotFound,
            Self::MethodNotAllowed { .. } => ErrorCode::MethodNotAllowed,
            Self::RequestTimeout => ErrorCode::RequestTimeout,
            Self::InvalidTransition { .. } | Self::OrderNotHeld { .. } => ErrorCode::InvalidTransition,
            Self::PetNotAvailable => ErrorCode::PetNotAvailable,
            Self::PetHasOpenOrder => ErrorCode::PetHasOpenOrder,
            Self::PetHasOrder => ErrorCode::PetHasOrder,
            Self::ReferenceTaken => ErrorCode::ReferenceTaken,
            Self::OperationRemoved => ErrorCode::OperationRemoved,
            Self::CursorExpired => ErrorCode::CursorExpired,
            Self::PreconditionFailed { .. } => ErrorCode::PreconditionFailed,
            Self::BodyTooLarge => ErrorCode::BodyTooLarge,
            Self::UriTooLong | Self::NextPageTooLong => ErrorCode::UriTooLong,
            Self::UnsupportedMediaType { .. } | Self::UnsupportedContentEncoding { .. } => {
                ErrorCode::UnsupportedMediaType
            }
            Self::HeadersTooLarge => ErrorCode::HeadersTooLarge,
            Self::IdempotencyInProgress => ErrorCode::IdempotencyInProgress,
            Self::IdempotencyKeyReused => ErrorCode::IdempotencyKeyReused,
            Self::RateLimited { .. } => ErrorCode::RateLimited,
            Self::Internal { .. } => ErrorCode::InternalError,
            Self::Unavailable { .. } | Self::NotReady { .. } => ErrorCode::Unavailable,
            Self::OutcomeUnknown { .. } => ErrorCode::OutcomeUnknown,
        }
    }

    /// The field of the body, the query parameter or the header that is wrong, if it is one.
    fn field(&self) -> Option<&str> {
        match self {
            Self::InvalidBody(error) => error.field(),
            Self::InvalidParameter { name, .. } | Self::InvalidHeader { name, .. } => Some(name),
            Self::UnknownParameter { name, .. } => Some(name),
            Self::InvalidCursor => Some("cursor"),
            Self::CursorExpired => Some("after"),
            Self::InvalidFraming { .. } => Some("Transfer-Encoding"),
            Self::IdempotencyInProgress | Self::IdempotencyKeyReused => Some("Idempotency-Key"),
            Self::PreconditionFailed { .. } => Some("If-Match"),
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
            Self::RateLimited { limit, seconds } => return rate_limited(*limit, *seconds),
            Self::InvalidTransition { what, from, to } => {
                return format!("The {what} is `{from}` and cannot become `{to}`.");
            }
            Self::OrderNotHeld { status } => {
                return format!(
                    "The order is `{status}`, and only a `placed` order reserves its pet: leave out `holdSeconds`, or place \
                     another order."
                );
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
            Self::PetHasOrder => {
                "The pet is or was in an order and cannot be deleted, because orders keep their pets: change the pet instead."
            }
            Self::ReferenceTaken => {
                "Another pet already has this `reference`: send a different one, or find that pet with \
                 `GET /v1/pets?reference=…`."
            }
            Self::PreconditionFailed { what } => return precondition_failed(what),
            Self::RouteNotFound { nearest: Some(nearest) } => {
                return format!("This path does not exist: did you mean `{nearest}`?");
            }
            Self::RouteNotFound { nearest: None } => {
                "This path does not exist: paths are lower case, without a trailing slash, and listed in \
                 `/openapi.json`."
            }
            Self::MethodNotAllowed { allowed } => {
                let allowed = allowed.to_str().unwrap_or_default();
                return format!("This path does not support this method: use {allowed}.");
            }
            Self::RequestTimeout => "The body did not arrive in time: send the request again.",
            Self::OperationRemoved => "This operation has been removed: use `GET /v1/pets?id=…` instead.",
            Self::CursorExpired => {
                "The events after this position are no longer kept: get a new position with `after=now`, read the pets and \
                 orders that you need, then follow the feed from that position."
            }
            Self::BodyTooLarge => "The body is too large: at most 16384 bytes are allowed.",
            Self::UriTooLong => "The path and query are too long: at most 8192 bytes together are allowed.",
            Self::NextPageTooLong => {
                "The link to the next page would be longer than 8192 bytes: leave out `limit` to get all pets in one response, \
                 or send fewer ids or references in one request."
            }
            Self::HeadersTooLarge => "The headers are too large: at most 16384 bytes in total are allowed.",
            Self::IdempotencyInProgress => {
                "A request with this `Idempotency-Key` may still be in progress: retry in a second to get its result."
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
        let (code, field) = (self.code(), self.field().map(str::to_owned));
        ErrorBody { code: code.as_str(), message: self.message(), status: code.status().as_u16(), field }
    }

    /// The response, with the cause as an extension for the log.
    pub(crate) fn into_response(self) -> Response {
        let mut response = response::json(self.code().status(), json::render(&self.body()));
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

fn rate_limited(limit: RateLimit, seconds: u64) -> String {
    let (requests, period) = (limit.requests().get(), limit.seconds());
    let plural = if requests == 1 { "" } else { "s" };
    format!(
        "The API key has reached its limit of {requests} request{plural} per {period} s: retry in {seconds} s."
    )
}

fn precondition_failed(what: &str) -> String {
    format!(
        "The {what} has changed since you read it, so `If-Match` does not match: read the {what} again, then repeat the change \
         if you still want it."
    )
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
            | StorageError::Deadlock(_)
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

/// The body of every error response, except to a request that is not valid HTTP.
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
    let mut schema = open(about, ErrorCode::ALL);
    schema.pattern = Some("^[a-z_]+$".into());
    schema
}

fn status_schema() -> Object {
    ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(400)).maximum(Some(599)).build()
}
