//! Which path leads where.

use axum::Router;
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use utoipa::openapi::OpenApi;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter, UtoipaMethodRouterExt};
use utoipa_axum::routes;

use super::error::ApiError;
use super::pipeline::Pipeline;
use super::pipeline::authentication::RequireScope;
use super::pipeline::cors::Origins;
use super::{AppState, admin, document, orders, pets};
use crate::config::InterfaceSettings;
use crate::domain::key_record::Scope;

/// The operations, and the document that describes just them.
#[expect(deprecated, reason = "getPet is served until its announced removal")]
fn operations() -> (Router<AppState>, OpenApi) {
    OpenApiRouter::with_openapi(document::preamble())
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

/// One operation: the scope that it needs, enforced and documented, and the errors of its own.
fn operation(
    scope: Scope,
    errors: &[ApiError],
    (schemas, mut paths, handler): UtoipaMethodRouter<AppState>,
) -> UtoipaMethodRouter<AppState> {
    document::describe(&mut paths, scope, errors);
    (schemas, paths, handler).map(|handler| handler.route_layer(RequireScope::new(Some(scope))))
}

/// The interface document, as JSON.
#[must_use]
pub fn interface_document(settings: &InterfaceSettings) -> String {
    let (_, description) = operations();
    document::complete(description, settings)
}

/// Everything that the public listener serves.
pub fn public_routes(app: AppState, settings: &InterfaceSettings) -> Pipeline {
    let (operations, _) = operations();
    let routes = operations
        .route("/openapi.json", without_scope(get(document::openapi_json)))
        .merge(document::routes());
    let origins = Origins::new(&settings.cors_origins);
    Pipeline::guarded(with_fallbacks(routes, app.clone()), app, origins)
}

/// Everything that the private listener serves.
pub fn admin_routes(app: AppState) -> Pipeline {
    let routes = Router::new()
        .route("/livez", without_scope(get(admin::livez)))
        .route("/readyz", without_scope(get(admin::readyz)))
        .route("/metrics", without_scope(get(admin::metrics)));
    Pipeline::open(with_fallbacks(routes, app))
}

fn without_scope(handler: MethodRouter<AppState>) -> MethodRouter<AppState> {
    handler.route_layer(RequireScope::new(None))
}

/// Answers what no route does: `OPTIONS`, another method, another path.
fn with_fallbacks(routes: Router<AppState>, app: AppState) -> Router {
    routes
        .method_not_allowed_fallback(other_method)
        .fallback(|| async { ApiError::RouteNotFound })
        .with_state(app)
}

async fn other_method(request: Request) -> Response {
    if request.method() == Method::OPTIONS {
        StatusCode::NO_CONTENT.into_response()
    } else {
        ApiError::MethodNotAllowed.into_response()
    }
}
