//! The one error of the interface: what a client reads when a request fails.
//!
//! **Invariant:** the client's words and the log's words are different. A cause, such as what the database
//! said, travels to the log with [`Cause`] and never into a body.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa::openapi::schema::{Object, ObjectBuilder, Type};

use crate::domain::key_record::Scope;
use crate::domain::rate_limit::RateLimit;
use crate::storage::StorageError;
use crate::telemetry;
use crate::wire::json;
use crate::wire::object::BodyError;

/// What went wrong. Codes are frozen: a client may rely on them for ever.
#[derive(Debug)]
pub(crate) enum ApiError {
    InvalidBody(BodyError),
    InvalidParameter {
        name: &'static str,
        problem: String,
    },
    UnknownParameter {
        name: String,
        nearest: Option<&'static str>,
    },
    InvalidCursor,
    InvalidHeader {
        problem: &'static str,
    },
    /// Where the request ends is not certain, so nothing behind it can be read.
    InvalidFraming {
        problem: &'static str,
    },
    MissingApiKey,
    InvalidApiKey,
    InsufficientScope {
        needed: Scope,
    },
    PetNotFound,
    OrderNotFound,
    RouteNotFound,
    MethodNotAllowed,
    RequestTimeout,
    InvalidTransition {
        what: &'static str,
        from: &'static str,
        to: &'static str,
    },
    PetNotAvailable,
    PetHasOpenOrder,
    OperationRemoved,
    PreconditionFailed,
    BodyTooLarge,
    UriTooLong,
    UnsupportedMediaType {
        taken: &'static [&'static str],
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
    OutcomeUnknown {
        cause: String,
    },
}

impl ApiError {
    /// A query parameter that breaks a rule.
    pub(crate) fn invalid_parameter(name: &'static str, problem: &impl ToString) -> Self {
        Self::InvalidParameter { name, problem: problem.to_string() }
    }

    /// The status and the code of each error: the only place where they are written down.
    pub(crate) fn code(&self) -> (StatusCode, &'static str) {
        match self {
            Self::InvalidBody(BodyError::InvalidJson { .. }) => (StatusCode::BAD_REQUEST, "invalid_json"),
            Self::InvalidBody(BodyError::MissingField { .. }) => (StatusCode::BAD_REQUEST, "missing_field"),
            Self::InvalidBody(BodyError::InvalidField { .. }) => (StatusCode::BAD_REQUEST, "invalid_field"),
            Self::InvalidBody(BodyError::UnknownField { .. }) => (StatusCode::BAD_REQUEST, "unknown_field"),
            Self::InvalidParameter { .. } => (StatusCode::BAD_REQUEST, "invalid_parameter"),
            Self::UnknownParameter { .. } => (StatusCode::BAD_REQUEST, "unknown_parameter"),
            Self::InvalidCursor => (StatusCode::BAD_REQUEST, "invalid_cursor"),
            Self::InvalidHeader { .. } | Self::InvalidFraming { .. } => {
                (StatusCode::BAD_REQUEST, "invalid_header")
            }
            Self::MissingApiKey => (StatusCode::UNAUTHORIZED, "missing_api_key"),
            Self::InvalidApiKey => (StatusCode::UNAUTHORIZED, "invalid_api_key"),
            Self::InsufficientScope { .. } => (StatusCode::FORBIDDEN, "insufficient_scope"),
            Self::PetNotFound => (StatusCode::NOT_FOUND, "pet_not_found"),
            Self::OrderNotFound => (StatusCode::NOT_FOUND, "order_not_found"),
            Self::RouteNotFound => (StatusCode::NOT_FOUND, "route_not_found"),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
            Self::RequestTimeout => (StatusCode::REQUEST_TIMEOUT, "request_timeout"),
            Self::InvalidTransition { .. } => (StatusCode::CONFLICT, "invalid_transition"),
            Self::PetNotAvailable => (StatusCode::CONFLICT, "pet_not_available"),
            Self::PetHasOpenOrder => (StatusCode::CONFLICT, "pet_has_open_order"),
            Self::OperationRemoved => (StatusCode::GONE, "operation_removed"),
            Self::PreconditionFailed => (StatusCode::PRECONDITION_FAILED, "precondition_failed"),
            Self::BodyTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"),
            Self::UriTooLong => (StatusCode::URI_TOO_LONG, "uri_too_long"),
            Self::UnsupportedMediaType { .. } => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type")
            }
            Self::HeadersTooLarge => (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "headers_too_large"),
            Self::IdempotencyInProgress => (StatusCode::CONFLICT, "idempotency_in_progress"),
            Self::IdempotencyKeyReused => (StatusCode::UNPROCESSABLE_ENTITY, "idempotency_key_reused"),
            Self::RateLimited { .. } => (StatusCode::TOO_MANY_REQUESTS, "rate_limited"),
            Self::Internal { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "internal_error"),
            Self::Unavailable { .. } | Self::OutcomeUnknown { .. } => {
                (StatusCode::SERVICE_UNAVAILABLE, "unavailable")
            }
        }
    }

    /// What the client reads: what is wrong, and what to do about it.
    pub(crate) fn message(&self) -> String {
        let fixed = match self {
            Self::InvalidBody(error) => return error.to_string(),
            Self::InvalidParameter { name, problem } => return format!("`{name}` {problem}."),
            Self::UnknownParameter { name, nearest: Some(nearest) } => {
                return format!(
                    "`{name}` is not a query parameter of this operation; the nearest is `{nearest}`."
                );
            }
            Self::UnknownParameter { name, nearest: None } => {
                return format!("`{name}` is not known: this operation has no query parameters.");
            }
            Self::InvalidHeader { problem } | Self::InvalidFraming { problem } => {
                return format!("{problem}.");
            }
            Self::InsufficientScope { needed } => {
                return format!("This operation needs an API key with the scope `{}`.", needed.as_str());
            }
            Self::RateLimited { limit, seconds } => {
                return format!(
                    "This API key may send {} requests in {} s: send the request again in {seconds} s.",
                    limit.requests(),
                    limit.seconds()
                );
            }
            Self::InvalidTransition { what, from, to } => {
                return format!("The {what} is `{from}`, and cannot become `{to}`.");
            }
            Self::UnsupportedMediaType { taken } => {
                return format!(
                    "The body must be JSON, sent with `Content-Type: {}`.",
                    taken.join("` or `Content-Type: ")
                );
            }
            Self::InvalidCursor => {
                "`cursor` is not one that this service gave out: take it whole from a `Link` header, or leave \
                 it out to begin at the first page."
            }
            Self::MissingApiKey => "Send your API key in a header: `Authorization: Bearer <API_KEY>`.",
            Self::InvalidApiKey => {
                "The API key is not valid: check that it was copied whole, has not expired and was not revoked."
            }
            Self::PetNotFound => "There is no pet with this id.",
            Self::OrderNotFound => "There is no order with this id.",
            Self::PetNotAvailable => {
                "The pet is not available: only one whose `status` is `available` can be ordered."
            }
            Self::PetHasOpenOrder => {
                "The pet has an open order, which alone decides its `status`: complete or cancel the order first."
            }
            Self::PreconditionFailed => {
                "The pet is not as `If-Match` says: it has changed since you read it. Read it again, and change it if \
                 you still want to."
            }
            Self::RouteNotFound => {
                "There is nothing at this path: paths are lower case, without a slash at the end; \
                 `/openapi.json` lists them."
            }
            Self::MethodNotAllowed => {
                "This path does not take this method: the `Allow` header lists those it takes."
            }
            Self::RequestTimeout => "The body did not arrive in time: send the request again.",
            Self::OperationRemoved => "This operation has been removed: use `GET /v1/pets?id=…` instead.",
            Self::BodyTooLarge => "The body must have at most 16384 bytes.",
            Self::UriTooLong => "The path and query together must have at most 8192 bytes.",
            Self::HeadersTooLarge => "The headers must be at most 100, and have at most 16384 bytes in all.",
            Self::IdempotencyInProgress => {
                "A request with this `Idempotency-Key` is still under way: send it again in a second to learn what \
                 came of it."
            }
            Self::IdempotencyKeyReused => {
                "This `Idempotency-Key` was sent with another body in the last 24 hours: take a new one for each new \
                 request."
            }
            Self::Internal { .. } => {
                "The service failed: this is a bug. Please report it with the `X-Request-Id` of this answer."
            }
            Self::Unavailable { .. } => {
                "The service cannot answer at the moment, and nothing was changed: send the request again \
                 after the time in `Retry-After`."
            }
            Self::OutcomeUnknown { .. } => {
                "The service lost its database while it stored the change, which may or may not have taken \
                 effect: send the request again with the same `Idempotency-Key`, or look first if you sent none."
            }
        };
        fixed.to_owned()
    }

    /// The body that the client reads.
    pub(crate) fn body(&self) -> ErrorBody {
        let (status, code) = self.code();
        ErrorBody { code, message: self.message(), status: status.as_u16() }
    }

    fn header(&self) -> Option<(HeaderName, HeaderValue)> {
        let challenge = |value| Some((header::WWW_AUTHENTICATE, value));
        match self {
            Self::MissingApiKey => challenge(HeaderValue::from_static(r#"Bearer realm="petstore""#)),
            Self::InvalidApiKey => {
                challenge(HeaderValue::from_static(r#"Bearer realm="petstore", error="invalid_token""#))
            }
            Self::InsufficientScope { needed } => challenge(HeaderValue::from_static(match needed {
                Scope::PetsRead => {
                    r#"Bearer realm="petstore", error="insufficient_scope", scope="pets:read""#
                }
                Scope::PetsWrite => {
                    r#"Bearer realm="petstore", error="insufficient_scope", scope="pets:write""#
                }
                Scope::OrdersRead => {
                    r#"Bearer realm="petstore", error="insufficient_scope", scope="orders:read""#
                }
                Scope::OrdersWrite => {
                    r#"Bearer realm="petstore", error="insufficient_scope", scope="orders:write""#
                }
            })),
            Self::RateLimited { seconds, .. } => Some((header::RETRY_AFTER, (*seconds).into())),
            Self::Unavailable { .. } | Self::OutcomeUnknown { .. } => {
                Some((header::RETRY_AFTER, HeaderValue::from_static("1")))
            }
            // What the client goes on sending belongs to this request, so no other can follow it.
            Self::RequestTimeout | Self::BodyTooLarge | Self::InvalidFraming { .. } => {
                Some((header::CONNECTION, HeaderValue::from_static("close")))
            }
            _ => None,
        }
    }

    fn into_cause(self) -> Option<Cause> {
        match self {
            Self::Internal { cause } | Self::Unavailable { cause } | Self::OutcomeUnknown { cause } => {
                Some(Cause(cause))
            }
            _ => None,
        }
    }
}

/// Why a request failed, for the log; an extension of the answer.
#[derive(Debug, Clone)]
pub(crate) struct Cause(pub(crate) String);

impl From<BodyError> for ApiError {
    fn from(error: BodyError) -> Self {
        Self::InvalidBody(error)
    }
}

impl From<&StorageError> for ApiError {
    fn from(error: &StorageError) -> Self {
        let cause = telemetry::with_causes(error);
        match error {
            StorageError::Unavailable(_)
            | StorageError::Locked(_)
            | StorageError::Raced(_)
            | StorageError::NoPartition(_)
            | StorageError::SchemaTooOld(_) => Self::Unavailable { cause },
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

/// The body of every error answer.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Error)]
pub(crate) struct ErrorBody {
    /// Machine-readable error code. Codes never change their meaning; new ones may be added.
    #[schema(example = "invalid_field", pattern = "^[a-z_]+$")]
    code: &'static str,
    /// Human-readable description, which says what to do. Its wording may change.
    message: String,
    /// The HTTP status code.
    #[schema(schema_with = status_schema)]
    status: u16,
}

fn status_schema() -> Object {
    ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(400)).maximum(Some(599)).build()
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = json::render(&self.body());
        let mut response = (self.code().0, [(header::CONTENT_TYPE, json::MEDIA_TYPE)], body).into_response();
        response.headers_mut().extend(self.header());
        if let Some(cause) = self.into_cause() {
            response.extensions_mut().insert(cause);
        }
        response
    }
}
