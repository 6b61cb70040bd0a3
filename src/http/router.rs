//! Which path leads where, and what a request passes on its way.

use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter, UtoipaMethodRouterExt};
use utoipa_axum::routes;

use super::auth::{authenticate, require_scope};
use super::cors::{Origins, allow_origins};
use super::error::ApiError;
use super::limits::check_head;
use super::observe::{after_panic, note_route, observe};
use super::{AppState, admin, docs, pets};
use crate::config::InterfaceSettings;
use crate::domain::api_key::Scope;

/// The operations, and the document that describes just them.
#[expect(deprecated, reason = "getPet is served until its announced removal")]
pub(super) fn operations() -> (Router<AppState>, OpenApi) {
    OpenApiRouter::with_openapi(docs::preamble())
        .routes(operation(Scope::PetsRead, &pets::list_pets_errors(), routes!(pets::list_pets)))
        .routes(operation(Scope::PetsWrite, &pets::create_pet_errors(), routes!(pets::create_pet)))
        .routes(operation(Scope::PetsRead, &pets::get_pet_errors(), routes!(pets::get_pet)))
        .split_for_parts()
}

/// One operation: the scope that it needs, enforced and documented, and the errors of its own.
fn operation(
    scope: Scope,
    errors: &[ApiError],
    (schemas, mut paths, handler): UtoipaMethodRouter<AppState>,
) -> UtoipaMethodRouter<AppState> {
    docs::describe(&mut paths, scope, errors);
    (schemas, paths, handler).map(|handler| handler.route_layer(from_fn_with_state(scope, require_scope)))
}

/// Everything that the public listener serves.
///
/// A request passes the layers from the last to the first, and only then is its path looked at: the order of
/// its checks is size, key, path, method, and within the operation scope, media type, body, values.
pub fn public_router(app: AppState, settings: &InterfaceSettings) -> Router {
    let (operations, _) = operations();
    let routes = Router::new()
        .nest("/v1", operations)
        .route("/openapi.json", get(docs::openapi_json))
        .layer(Extension(docs::ServedDocument::new(settings)))
        .with_state(app.clone());
    let guarded = routed(routes).layer(from_fn_with_state(app, authenticate)).layer(from_fn(check_head));
    let origins: Origins = settings.cors_origins.clone().into();
    if origins.is_empty() {
        observed(guarded)
    } else {
        observed(guarded.layer(from_fn_with_state(origins, allow_origins)))
    }
}

/// Everything that the private listener serves.
pub fn admin_router(app: AppState) -> Router {
    let routes = Router::new()
        .route("/livez", get(admin::livez))
        .route("/readyz", get(admin::readyz))
        .route("/metrics", get(admin::metrics));
    observed(routed(routes.with_state(app)))
}

/// Leads requests to these routes, and answers what no route does: `OPTIONS`, another method, another path.
///
/// The layers of the router that this returns run before any routing.
fn routed(routes: Router) -> Router {
    let routes = routes
        .route_layer(from_fn(note_route))
        .method_not_allowed_fallback(other_method)
        .fallback(|| async { ApiError::RouteNotFound });
    Router::new().fallback_service(routes)
}

async fn other_method(request: Request) -> Response {
    if request.method() == Method::OPTIONS {
        StatusCode::NO_CONTENT.into_response()
    } else {
        ApiError::MethodNotAllowed.into_response()
    }
}

fn observed(routes: Router) -> Router {
    routes.layer(CatchPanicLayer::custom(after_panic)).layer(from_fn(observe))
}
