//! The OpenAPI 3.1 document, derived from the operations.

use hyper::StatusCode;
use petstore_config::{GET_PET_REMOVAL, InterfaceSettings};
use petstore_domain::key_record::Scope;
use petstore_domain::rate_limit::RateLimit;
use petstore_wire::json;
use petstore_wire::schema::{EventType, OrderStatus, PetStatus};
use serde_json::{Value, json};
use utoipa::OpenApi as _;
use utoipa::openapi::content::ContentBuilder;
use utoipa::openapi::example::ExampleBuilder;
use utoipa::openapi::extensions::Extensions;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::Operation;
use utoipa::openapi::response::{Response as ApiResponse, ResponseBuilder};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::server::ServerBuilder;
use utoipa::openapi::{OpenApi, Ref, RefOr};

use super::extract_components::share_components;
use crate::error::{ApiError, ErrorBody};

const BEARER: &str = "bearer";

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Pet Store",
        version = "1.0.0",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
        description = "A pet store inventory: list pets, add pets, and sell each pet once.\n\n\
            Send your API key with every request: `Authorization: Bearer <API_KEY>`. Every error has the same \
            body, except if the request is not valid HTTP. Branch on `code`, show `message` to people, and \
            include the `X-Request-Id` header when you report a problem. To set the id yourself, send \
            `X-Request-Id` with 1 to 64 characters from `A-Za-z0-9._-`. Unknown fields and parameters are rejected.\n\n\
            Operations marked `x-stability: beta` may change with a minor release, and the changelog says so first. \
            All other operations are stable.",
    ),
    tags(
        (name = "animals", description = "The pets of the shop."),
        (name = "store", description = "Orders. A pet has at most one open order, and is sold once."),
        (name = "events", description = "Changes to pets and orders, as a feed."),
    ),
    external_docs(url = "/docs/quickstart", description = "The quickstart: from the first request to a sold pet."),
    components(schemas(ErrorBody, EventType, OrderStatus, PetStatus)),
    security(("bearer" = [])),
)]
struct BaseDocument;

/// The document without its operations.
pub(crate) fn base_document() -> OpenApi {
    let mut document = BaseDocument::openapi();
    let bearer = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("Your API key: `psk_` and 38 more characters."))
        .build();
    if let Some(components) = &mut document.components {
        components.add_security_scheme(BEARER, SecurityScheme::Http(bearer));
    }
    document
}

/// Adds the scope, the errors and the common headers to an operation.
pub(crate) fn describe_operation(operation: &mut Operation, scope: Scope, own_errors: &[ApiError]) {
    operation.security = Some(vec![SecurityRequirement::new(BEARER, [scope.as_str()])]);
    for error in own_errors.iter().chain(&errors_of_every_operation(scope)) {
        add_error(operation, error);
    }
    copy_headers(operation);
    let other =
        error_response("Any other error, such as an error from a proxy or a status that is added later.");
    operation.responses.responses.insert("default".to_owned(), RefOr::T(other));
    for (status, response) in &mut operation.responses.responses {
        if let RefOr::T(response) = response {
            add_header(response, "X-Request-Id", "Identifies this request in the service's log.");
            // Rejected before the key is known, and so its limit.
            if !["401", "414", "431"].contains(&status.as_str()) {
                let policy = "The key's rate limit, if any: `q` requests in `w` seconds.";
                let state =
                    "The remaining quota: you can send `r` requests now, and another one within `t` seconds.";
                add_header(response, "RateLimit-Policy", policy);
                add_header(response, "RateLimit", state);
            }
        }
    }
}

/// Copies headers of the success response to other responses that also have them: to 304, to 404 for a retry that finds what it
/// changed deleted, and from a deprecated operation to everything that its handler answers.
fn copy_headers(operation: &mut Operation) {
    let deprecated = operation.deprecated.is_some();
    let success = ["200", "201"].iter().find_map(|status| operation.responses.responses.get(*status));
    let Some(RefOr::T(success)) = success.cloned() else { return };
    for (status, response) in &mut operation.responses.responses {
        let RefOr::T(response) = response else { continue };
        let names: &[&str] = match status.as_str() {
            "304" => &["ETag", "Link", "Deprecation", "Sunset", "Petstore-Feed-Lag"],
            "401" | "403" | "414" | "429" | "431" => &[],
            _ if deprecated => &["Link", "Deprecation", "Sunset"],
            "404" => &["Idempotent-Replayed"],
            _ => &[],
        };
        for (name, header) in success.headers.iter().filter(|(name, _)| names.contains(&name.as_str())) {
            response.headers.insert(name.clone(), header.clone());
        }
    }
}

fn errors_of_every_operation(scope: Scope) -> Vec<ApiError> {
    let limit = RateLimit::new(100, 1).ok();
    let rate_limited = limit.map(|limit| ApiError::RateLimited { limit, seconds: 1 });
    let others = [
        ApiError::InvalidHeader {
            name: "Host",
            problem: "The request must have exactly one `Host` header, with a host name or address and an \
                      optional port",
        },
        ApiError::MissingApiKey,
        ApiError::InvalidApiKey,
        ApiError::InsufficientScope { needed: scope },
        ApiError::UriTooLong,
        ApiError::HeadersTooLarge,
        ApiError::Internal { cause: String::new() },
        ApiError::Unavailable { cause: String::new() },
    ];
    others.into_iter().chain(rate_limited).collect()
}

/// Adds an error as one more example of its status.
fn add_error(operation: &mut Operation, error: &ApiError) {
    let code = error.code();
    let response = operation
        .responses
        .responses
        .entry(code.status().as_str().to_owned())
        .or_insert_with(|| RefOr::T(response_with(error)));
    let RefOr::T(response) = response else { return };
    let Some(RefOr::T(content)) = response.content.get_mut(json::MEDIA_TYPE) else {
        return;
    };
    let example = ExampleBuilder::new().value(serde_json::to_value(error.body()).ok()).build();
    content.examples.insert(code.as_str().to_owned(), RefOr::T(example));
}

fn error_response(description: &str) -> ApiResponse {
    let schema = Ref::from_schema_name("Error");
    ResponseBuilder::new()
        .description(description)
        .content(json::MEDIA_TYPE, ContentBuilder::new().schema(Some(schema)).build())
        .build()
}

fn response_with(error: &ApiError) -> ApiResponse {
    let status = error.code().status();
    let mut response = error_response(match error {
        ApiError::CursorExpired => "The events after this position are no longer kept.",
        _ => description_of(status),
    });
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            add_header(&mut response, "WWW-Authenticate", "The challenge and the required scope (RFC 6750).");
        }
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
            add_header(&mut response, "Retry-After", "How many seconds to wait before a retry.");
        }
        _ => {}
    }
    response
}

fn description_of(status: StatusCode) -> &'static str {
    match status {
        StatusCode::BAD_REQUEST => "The request is missing required fields or contains invalid values.",
        StatusCode::UNAUTHORIZED => "Missing or invalid API key.",
        StatusCode::FORBIDDEN => "The API key lacks the scope that the operation requires.",
        StatusCode::NOT_FOUND => "The requested resource could not be found.",
        StatusCode::REQUEST_TIMEOUT => "The body did not arrive in time.",
        StatusCode::CONFLICT => {
            "The request conflicts with the current state, or the same request is still in progress."
        }
        StatusCode::UNPROCESSABLE_ENTITY => "The `Idempotency-Key` was used for a different request.",
        StatusCode::PRECONDITION_FAILED => "It has changed: `If-Match` does not match.",
        StatusCode::GONE => "The operation has been removed.",
        StatusCode::PAYLOAD_TOO_LARGE => "The body is larger than 16 KiB.",
        StatusCode::URI_TOO_LONG => "The path and query are longer than 8 KiB.",
        StatusCode::UNSUPPORTED_MEDIA_TYPE => "The body is compressed, or is not sent as JSON.",
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => "The headers exceed 16 KiB.",
        StatusCode::TOO_MANY_REQUESTS => "The API key has reached its rate limit.",
        StatusCode::SERVICE_UNAVAILABLE => "The service is temporarily unavailable.",
        _ => "The service failed.",
    }
}

fn add_header(response: &mut ApiResponse, name: &str, description: &str) {
    let schema = ObjectBuilder::new().schema_type(Type::String);
    let header = HeaderBuilder::new().schema(Some(schema)).description(Some(description)).build();
    response.headers.insert(name.to_owned(), RefOr::T(header));
}

/// Renders the document as JSON, with the servers and the removal date from the settings.
pub(crate) fn render(mut document: OpenApi, settings: &InterfaceSettings) -> String {
    // The servers' URLs end in the prefix that the routes start with.
    document.paths.paths = document
        .paths
        .paths
        .into_iter()
        .map(|(path, item)| (path.trim_start_matches("/v1").to_owned(), item))
        .collect();
    document.servers = Some(servers(settings));
    if let Some(get_pet) = document.paths.paths.get_mut("/pets/{petId}").and_then(|path| path.get.as_mut()) {
        let removal = settings.get_pet_removal.unwrap_or(GET_PET_REMOVAL).to_string();
        get_pet.extensions =
            Some(Extensions::from_iter([("x-deprecated-sunset".to_owned(), json!(removal))]));
    }
    let mut document = serde_json::to_value(&document).unwrap_or_default();
    sort_extensions(&mut document);
    open_responses(&mut document);
    share_components(&mut document);
    serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
}

/// Sorts extensions, which come in random order, so that the document is reproducible.
fn sort_extensions(document: &mut Value) {
    let paths = document["paths"].as_object_mut().into_iter().flat_map(|paths| paths.values_mut());
    let operations = paths.filter_map(Value::as_object_mut).flat_map(|path| path.values_mut());
    for operation in operations.filter_map(Value::as_object_mut) {
        let (mut extensions, others): (Vec<_>, Vec<_>) =
            std::mem::take(operation).into_iter().partition(|(name, _)| name.starts_with("x-"));
        extensions.sort_by(|(one, _), (other, _)| one.cmp(other));
        operation.extend(others.into_iter().chain(extensions));
    }
}

/// States that a response may gain members. Generators such as openapi-generator take silence for the opposite, and their
/// clients would fail at the next new member. A request states that it has no other members.
fn open_responses(document: &mut Value) {
    let schemas =
        document["components"]["schemas"].as_object_mut().into_iter().flat_map(|all| all.values_mut());
    for schema in schemas.filter_map(Value::as_object_mut) {
        if schema.get("type").is_some_and(|kind| kind == "object") {
            schema.entry("additionalProperties").or_insert(json!(true));
        }
    }
}

fn servers(settings: &InterfaceSettings) -> Vec<utoipa::openapi::Server> {
    let server =
        |url: &str, description| ServerBuilder::new().url(url).description(Some(description)).build();
    let Some(production) = &settings.public_base_url else {
        return vec![server("/v1", "This service.")];
    };
    let staging = settings.staging_base_url.as_ref().map(|url| server(url.as_str(), "Staging."));
    [Some(server(production.as_str(), "Production.")), staging].into_iter().flatten().collect()
}
