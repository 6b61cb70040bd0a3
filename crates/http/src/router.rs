//! Routes a request: from its path and method to the handler that answers it.
//!
//! The OpenAPI document is the table of operations: a path or method is written once, at its handler.

use futures_util::future::BoxFuture;
use hyper::Method;
use hyper::header::HeaderValue;
use matchit::Match;
use metrics::SharedString;
use petstore_config::InterfaceSettings;
use petstore_domain::key_record::Scope;
use petstore_wire::suggestions::similar;
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;
use utoipa::openapi::path::Operation as OperationDescription;

use super::api_docs::{self, DocsPage, MOVED_PAGES};
use super::error::ApiError;
use super::request::ApiRequest;
use super::response::Response;
use super::{events, orders, pets};

/// Defines the operations: each with its id, its handler, the scope that it requires, and its own errors.
macro_rules! operations {
    ($($name:ident = $id:literal: $($handler:ident)::+, $scope:ident, $errors:expr;)+) => {
        /// An operation of the interface.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Operation {
            $($name,)+
        }

        #[derive(utoipa::OpenApi)]
        #[openapi(paths($($($handler)::+,)+))]
        struct Operations;

        impl Operation {
            fn from_id(id: &str) -> Option<Self> {
                match id {
                    $($id => Some(Self::$name),)+
                    _ => None,
                }
            }

            /// Its id in the OpenAPI document.
            pub(crate) fn id(self) -> &'static str {
                match self {
                    $(Self::$name => $id,)+
                }
            }

            /// The scope that a caller needs.
            pub(crate) fn scope(self) -> Scope {
                match self {
                    $(Self::$name => Scope::$scope,)+
                }
            }

            /// The errors of this operation, in addition to those of every operation.
            fn errors(self) -> Vec<ApiError> {
                match self {
                    $(Self::$name => $errors,)+
                }
            }

            /// Answers a request.
            #[expect(deprecated, reason = "getPet is served until its announced removal")]
            pub(crate) fn call(self, request: ApiRequest<'_>) -> BoxFuture<'_, Result<Response, ApiError>> {
                match self {
                    // On the heap: unboxed, every request would have the size of the largest handler.
                    $(Self::$name => Box::pin($($handler)::+(request)),)+
                }
            }
        }
    };
}

operations! {
    ListPets = "listPets": pets::list_pets, PetsRead, pets::list_pets_errors();
    CreatePet = "createPet": pets::create_pet, PetsWrite, pets::create_pet_errors();
    GetPet = "getPet": pets::get_pet, PetsRead, pets::get_pet_errors();
    UpdatePet = "updatePet": pets::update_pet, PetsWrite, pets::update_pet_errors();
    DeletePet = "deletePet": pets::delete_pet, PetsWrite, pets::delete_pet_errors();
    ListOrders = "listOrders": orders::list_orders, OrdersRead, orders::list_orders_errors();
    PlaceOrder = "placeOrder": orders::place_order, OrdersWrite, orders::place_order_errors();
    GetOrder = "getOrder": orders::get_order, OrdersRead, orders::get_order_errors();
    UpdateOrder = "updateOrder": orders::update_order, OrdersWrite, orders::update_order_errors();
    CompleteOrder = "completeOrder": orders::complete_order, OrdersWrite, orders::end_order_errors();
    CancelOrder = "cancelOrder": orders::cancel_order, OrdersWrite, orders::end_order_errors();
    ListEvents = "listEvents": events::list_events, EventsRead, events::list_events_errors();
}

/// What answers a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Operation(Operation),
    /// The OpenAPI document.
    Document,
    /// A file of the documentation page.
    DocsFile(usize),
    /// Redirects people to a page of the documentation.
    Redirect(&'static str),
    Livez,
    Startupz,
    Readyz,
    Metrics,
}

impl Endpoint {
    /// The operation, if it is one.
    pub(crate) fn operation(self) -> Option<Operation> {
        match self {
            Self::Operation(operation) => Some(operation),
            _ => None,
        }
    }
}

/// The endpoints of one path, by method.
pub(crate) struct Route {
    /// The pattern of the path, as the log and the metrics show it.
    pub(crate) pattern: SharedString,
    endpoints: Vec<(Method, Endpoint)>,
    /// The value of `Allow`.
    pub(crate) allowed: HeaderValue,
}

impl Route {
    fn new(pattern: &str, endpoints: Vec<(Method, Endpoint)>) -> Self {
        let mut methods = Vec::new();
        for (method, _) in &endpoints {
            methods.push(method.as_str());
            methods.extend((method == Method::GET).then_some("HEAD"));
        }
        methods.push("OPTIONS");
        let allowed = HeaderValue::try_from(methods.join(", "));
        Self {
            pattern: SharedString::from_shared(pattern.into()),
            endpoints,
            allowed: allowed.unwrap_or_else(|_| HeaderValue::from_static("OPTIONS")),
        }
    }

    /// The endpoint for this method. `HEAD` is answered like `GET`; hyper leaves out the body.
    pub(crate) fn endpoint(&self, method: &Method) -> Option<Endpoint> {
        let method = if method == Method::HEAD { &Method::GET } else { method };
        self.endpoints.iter().find(|(known, _)| known == method).map(|(_, endpoint)| *endpoint)
    }
}

/// The routes of a listener.
#[derive(Default)]
pub(crate) struct Routes {
    router: matchit::Router<Route>,
    /// The patterns of all operations, to suggest one.
    operation_paths: Vec<String>,
}

impl Routes {
    /// The routes of the public listener.
    pub(crate) fn public() -> Self {
        let mut routes = Self::default();
        for (path, operations) in described_operations(&mut Operations::openapi()) {
            let endpoint = |(method, operation, _)| (method, Endpoint::Operation(operation));
            routes.add(path, operations.into_iter().map(endpoint).collect());
            routes.operation_paths.push(path.clone());
        }
        routes.add("/", vec![(Method::GET, Endpoint::Redirect("/docs"))]);
        routes.add("/openapi.json", vec![(Method::GET, Endpoint::Document)]);
        for (index, path) in DocsPage::paths().enumerate() {
            routes.add(path, vec![(Method::GET, Endpoint::DocsFile(index))]);
        }
        for (path, target) in MOVED_PAGES {
            routes.add(path, vec![(Method::GET, Endpoint::Redirect(target))]);
        }
        routes
    }

    /// The routes of the private listener: health checks and metrics.
    pub(crate) fn admin() -> Self {
        let mut routes = Self::default();
        for (path, endpoint) in [
            ("/livez", Endpoint::Livez),
            ("/startupz", Endpoint::Startupz),
            ("/readyz", Endpoint::Readyz),
            ("/metrics", Endpoint::Metrics),
        ] {
            routes.add(path, vec![(Method::GET, endpoint)]);
        }
        routes
    }

    fn add(&mut self, path: &str, endpoints: Vec<(Method, Endpoint)>) {
        if let Err(error) = self.router.insert(path, Route::new(path, endpoints)) {
            unreachable!("{path}: {error}");
        }
    }

    /// The route of a path, and what the path has in the place of an id.
    pub(crate) fn find<'path>(&self, path: &'path str) -> Option<(&Route, &'path str)> {
        let Match { value, params } = self.router.at(path).ok()?;
        let id = params.iter().next().map_or("", |(_, id)| id);
        Some((value, id))
    }

    /// The path of an operation that was most likely meant: the shortest that has all parts of the path or is contained in it
    /// (`/orders/7` for `/v1/store/orders/{orderId}`), or else one that is spelt alike.
    pub(crate) fn nearest(&self, path: &str) -> Option<&str> {
        let wanted = parts(path);
        let ends_alike = |known: &&String| {
            let known = parts(known);
            wanted.last() == known.last()
                && wanted.iter().any(|part| part != "{}")
                && (is_within(&wanted, &known) || is_within(&known, &wanted))
        };
        let paths = self.operation_paths.iter();
        paths.clone().filter(ends_alike).min_by_key(|known| known.len()).map(String::as_str).or_else(|| {
            // Ids are compared by their place.
            let spelt = wanted.join("/");
            let known: Vec<(String, &String)> = paths.map(|path| (parts(path).join("/"), path)).collect();
            let similar = similar(&spelt, known.iter().map(|(spelt, _)| spelt.as_str()))?;
            known.iter().find(|(spelt, _)| spelt == similar).map(|(_, path)| path.as_str())
        })
    }
}

/// The parts of a path or pattern: in lower case, without empty ones, and an id as `{}`.
fn parts(path: &str) -> Vec<String> {
    let is_id = |part: &str| part.starts_with('{') || part.bytes().all(|byte| byte.is_ascii_digit());
    let parts = path.split('/').filter(|part| !part.is_empty());
    parts.map(|part| if is_id(part) { "{}".to_owned() } else { part.to_lowercase() }).collect()
}

/// Whether a path has these parts, in this order.
fn is_within(parts: &[String], path: &[String]) -> bool {
    let mut path = path.iter();
    parts.iter().all(|part| path.any(|other| other == part))
}

/// The operations of each path of a document, with their methods and descriptions.
fn described_operations(
    document: &mut OpenApi,
) -> impl Iterator<Item = (&String, Vec<(Method, Operation, &mut OperationDescription)>)> {
    document.paths.paths.iter_mut().map(|(path, item)| {
        let methods = [
            (Method::GET, &mut item.get),
            (Method::POST, &mut item.post),
            (Method::PATCH, &mut item.patch),
            (Method::DELETE, &mut item.delete),
        ];
        let operations = methods.into_iter().filter_map(|(method, description)| {
            let description = description.as_mut()?;
            Some((method, Operation::from_id(description.operation_id.as_deref()?)?, description))
        });
        (path, operations.collect())
    })
}

/// Renders the OpenAPI document as JSON.
#[must_use]
pub fn interface_document(settings: &InterfaceSettings) -> String {
    let mut document = api_docs::base_document().merge_from(Operations::openapi());
    for (_, operations) in described_operations(&mut document) {
        for (_, operation, description) in operations {
            api_docs::describe_operation(description, operation.scope(), &operation.errors());
        }
    }
    api_docs::render(document, settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(method: &Method, path: &str) -> Option<(Endpoint, String)> {
        let routes = Routes::public();
        let (route, id) = routes.find(path)?;
        Some((route.endpoint(method)?, id.to_owned()))
    }

    #[test]
    fn every_operation_of_the_document_has_a_route() {
        let mut document = Operations::openapi();
        let described: usize = document
            .paths
            .paths
            .values()
            .map(|item| {
                [&item.get, &item.put, &item.post, &item.delete, &item.patch].into_iter().flatten().count()
            })
            .sum();
        let routed: usize = described_operations(&mut document).map(|(_, operations)| operations.len()).sum();
        assert_eq!((described, routed), (12, 12));
    }

    #[test]
    fn a_path_and_a_method_select_an_endpoint() {
        let operation = |operation, id: &str| Some((Endpoint::Operation(operation), id.to_owned()));
        assert_eq!(endpoint(&Method::GET, "/v1/pets"), operation(Operation::ListPets, ""));
        assert_eq!(endpoint(&Method::HEAD, "/v1/pets/7"), operation(Operation::GetPet, "7"));
        assert_eq!(
            endpoint(&Method::POST, "/v1/store/orders/7/cancel"),
            operation(Operation::CancelOrder, "7")
        );
        assert_eq!(endpoint(&Method::GET, "/docs"), Some((Endpoint::DocsFile(0), String::new())));
        for (method, path) in [
            (Method::DELETE, "/v1/pets"),
            (Method::GET, "/v1/pets/"),
            (Method::GET, "/v1/pets/7/"),
            (Method::GET, "/V1/pets"),
            (Method::GET, "/livez"),
        ] {
            assert_eq!(endpoint(&method, path), None, "{path}");
        }
    }

    #[test]
    fn the_nearest_path_has_the_same_parts_or_is_spelt_alike() {
        let routes = Routes::public();
        for (path, nearest) in [
            ("/v1/orders", "/v1/store/orders"),
            ("/pets", "/v1/pets"),
            ("/orders/7", "/v1/store/orders/{orderId}"),
            ("/v1/orders/7/cancel", "/v1/store/orders/{orderId}/cancel"),
            ("/api/v1/pets", "/v1/pets"),
            ("/v1/pets/", "/v1/pets"),
            ("/V1/Pets", "/v1/pets"),
            ("/v1/pet", "/v1/pets"),
            ("/v1/pet/7", "/v1/pets/{petId}"),
            ("/v1/event", "/v1/events"),
        ] {
            assert_eq!(routes.nearest(path), Some(nearest), "{path}");
        }
        for path in ["/", "/v1", "/v1/customers", "/7", "/wp-login.php", "/v1/pets/rex"] {
            assert_eq!(routes.nearest(path), None, "{path}");
        }
    }

    #[test]
    fn a_path_lists_its_methods() {
        let routes = Routes::public();
        let allowed = |path| routes.find(path).unwrap().0.allowed.clone();
        assert_eq!(allowed("/v1/pets"), "GET, HEAD, POST, OPTIONS");
        assert_eq!(allowed("/v1/pets/7"), "GET, HEAD, PATCH, DELETE, OPTIONS");
        assert_eq!(allowed("/v1/store/orders/7/complete"), "POST, OPTIONS");
    }
}
