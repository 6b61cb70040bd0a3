//! The routes of the public and the private listener.

use axum::Router;
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use utoipa::openapi::OpenApi;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter, UtoipaMethodRouterExt};
use utoipa_axum::routes;

use super::error::ApiError;
use super::pipeline::RequestPipeline;
use super::pipeline::authentication::RequireScope;
use super::pipeline::cors::AllowedOrigins;
use super::{AppState, api_docs, health, orders, pets};
use crate::config::InterfaceSettings;
use crate::domain::key_record::Scope;

/// The routes of all operations, and the OpenAPI document that describes them.
#[expect(deprecated, reason = "getPet is served until its announced removal")]
fn operations() -> (Router<AppState>, OpenApi) {
    OpenApiRouter::with_openapi(api_docs::base_document())
        .routes(operation(Scope::PetsRead, &pets::list_pets_errors(), routes!(pets::list_pets)))
        .routes(operation(Scope::PetsWrite, &pets::create_pet_errors(), routes!(pets::create_pet)))
        .routes(operation(Scope::PetsRead, &pets::get_pet_errors(), routes!(pets::get_pet)))
        .routes(operation(Scope::PetsWrite, &pets::update_pet_errors(), routes!(pets::update_pet)))
        .routes(operation(Scope::OrdersRead, &orders::list_orders_errors(), routes!(orders::list_orders)))
        .routes(operation(Scope::OrdersWrite, &orders::place_order_errors(), routes!(orders::place_order)))
        .routes(operation(Scope::OrdersRead, &orders::get_order_errors(), routes!(orders::get_order)))
        .routes(operation(Scope::OrdersWrite, &orders::end_order_errors(), routes!(orders::complete_order)))
        .routes(operation(Scope::OrdersWrite, &orders::end_order_errors(), routes!(orders::cancel_order)))
        .split_for_parts()
}

/// One operation: its scope, enforced and documented, and its documented errors.
fn operation(
    scope: Scope,
    errors: &[ApiError],
    (schemas, mut paths, handler): UtoipaMethodRouter<AppState>,
) -> UtoipaMethodRouter<AppState> {
    api_docs::describe_operation(&mut paths, scope, errors);
    (schemas, paths, handler).map(|handler| handler.route_layer(RequireScope::new(Some(scope))))
}

/// Renders the OpenAPI document as JSON.
#[must_use]
pub fn interface_document(settings: &InterfaceSettings) -> String {
    let (_, description) = operations();
    api_docs::render(description, settings)
}

/// The routes of the public listener, behind its pipeline.
pub fn public_routes(app: AppState, settings: &InterfaceSettings) -> RequestPipeline {
    let (operations, _) = operations();
    let routes = operations
        .route("/openapi.json", without_scope(get(api_docs::openapi_json)))
        .merge(api_docs::routes());
    let origins = AllowedOrigins::new(&settings.cors_origins);
    RequestPipeline::public(with_fallbacks(routes, app.clone()), app, origins)
}

/// The routes of the private listener: health checks and metrics.
pub fn admin_routes(app: AppState) -> RequestPipeline {
    let routes = Router::new()
        .route("/livez", without_scope(get(health::livez)))
        .route("/readyz", without_scope(get(health::readyz)))
        .route("/metrics", without_scope(get(health::metrics)));
    RequestPipeline::admin(with_fallbacks(routes, app))
}

fn without_scope(handler: MethodRouter<AppState>) -> MethodRouter<AppState> {
    handler.route_layer(RequireScope::new(None))
}

/// Answers requests that match no route: `OPTIONS`, other methods, other paths.
fn with_fallbacks(routes: Router<AppState>, app: AppState) -> Router {
    routes
        .method_not_allowed_fallback(method_fallback)
        .fallback(|| async { ApiError::RouteNotFound })
        .with_state(app)
}

async fn method_fallback(request: Request) -> Response {
    if request.method() == Method::OPTIONS {
        StatusCode::NO_CONTENT.into_response()
    } else {
        ApiError::MethodNotAllowed.into_response()
    }
}
