//! Routes a request: from its path and method to the handler that answers it.
//!
//! The OpenAPI document is the table of operations: a path or method is written once, at its handler.

use hyper::Method;
use hyper::header::HeaderValue;
use matchit::Match;
use metrics::SharedString;
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;
use utoipa::openapi::path::Operation as OperationDescription;

use super::api_docs::{self, DocsPage};
use super::error::ApiError;
use super::request::ApiRequest;
use super::response::Response;
use super::{events, orders, pets};
use crate::config::InterfaceSettings;
use crate::domain::key_record::Scope;

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
            pub(crate) async fn call(self, request: ApiRequest<'_>) -> Result<Response, ApiError> {
                match self {
                    // On the heap: unboxed, every request would have the size of the largest handler.
                    $(Self::$name => Box::pin($($handler)::+(request)).await,)+
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
    ListOrders = "listOrders": orders::list_orders, OrdersRead, orders::list_orders_errors();
    PlaceOrder = "placeOrder": orders::place_order, OrdersWrite, orders::place_order_errors();
    GetOrder = "getOrder": orders::get_order, OrdersRead, orders::get_order_errors();
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
    /// Redirects people to the documentation page.
    Root,
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
pub(crate) struct Routes(matchit::Router<Route>);

impl Routes {
    /// The routes of the public listener.
    pub(crate) fn public() -> Self {
        let mut routes = Self::default();
        for (path, operations) in described_operations(&mut Operations::openapi()) {
            let endpoint = |(method, operation, _)| (method, Endpoint::Operation(operation));
            routes.add(path, operations.into_iter().map(endpoint).collect());
        }
        routes.add("/", vec![(Method::GET, Endpoint::Root)]);
        routes.add("/openapi.json", vec![(Method::GET, Endpoint::Document)]);
        for (index, path) in DocsPage::paths().enumerate() {
            routes.add(path, vec![(Method::GET, Endpoint::DocsFile(index))]);
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
        if let Err(error) = self.0.insert(path, Route::new(path, endpoints)) {
            unreachable!("{path}: {error}");
        }
    }

    /// The route of a path, and what the path has in the place of an id.
    pub(crate) fn find<'path>(&self, path: &'path str) -> Option<(&Route, &'path str)> {
        let Match { value, params } = self.0.at(path).ok()?;
        let id = params.iter().next().map_or("", |(_, id)| id);
        Some((value, id))
    }
}

/// The operations of each path of a document, with their methods and descriptions.
fn described_operations(
    document: &mut OpenApi,
) -> impl Iterator<Item = (&String, Vec<(Method, Operation, &mut OperationDescription)>)> {
    document.paths.paths.iter_mut().map(|(path, item)| {
        let methods =
            [(Method::GET, &mut item.get), (Method::POST, &mut item.post), (Method::PATCH, &mut item.patch)];
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
        assert_eq!((described, routed), (10, 10));
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
    fn a_path_lists_its_methods() {
        let routes = Routes::public();
        let allowed = |path| routes.find(path).unwrap().0.allowed.clone();
        assert_eq!(allowed("/v1/pets"), "GET, HEAD, POST, OPTIONS");
        assert_eq!(allowed("/v1/pets/7"), "GET, HEAD, PATCH, OPTIONS");
        assert_eq!(allowed("/v1/store/orders/7/complete"), "POST, OPTIONS");
    }
}
