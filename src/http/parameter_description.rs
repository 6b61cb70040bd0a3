//! Query parameters and headers of operations, each described once: under that name it is read and documented.

use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::openapi::{RefOr, Required};

use crate::domain::page::PageLimit;
use crate::wire::resource_description::string;

/// An optional parameter of an operation.
pub(crate) struct ParameterDescription {
    /// Its name in the query, or that of the header.
    pub(crate) name: &'static str,
    description: &'static str,
    schema: fn() -> RefOr<Schema>,
    example: Option<&'static str>,
}

impl ParameterDescription {
    /// The most items on a page.
    pub(crate) const LIMIT: Self =
        Self::new("limit", "Maximum number of items returned: 1 to 100, 20 by default.", || {
            let limit = ObjectBuilder::new().schema_type(Type::Integer);
            let limit = limit.minimum(Some(PageLimit::MIN)).maximum(Some(PageLimit::MAX));
            limit.default(Some(PageLimit::DEFAULT.get().into())).into()
        });

    /// Where a page starts.
    pub(crate) const CURSOR: Self = Self::new(
        "cursor",
        "Where the page starts: taken from the `Link` header of the previous page. Opaque: its form may change.",
        || string(None).into(),
    )
    .with_example("AQAAAAAAAAAU");

    /// Describes a parameter by its name, what it does, and the schema of its value.
    pub(crate) const fn new(
        name: &'static str,
        description: &'static str,
        schema: fn() -> RefOr<Schema>,
    ) -> Self {
        Self { name, description, schema, example: None }
    }

    /// Adds an example, where the schema does not suggest one.
    pub(crate) const fn with_example(self, example: &'static str) -> Self {
        Self { example: Some(example), ..self }
    }

    /// The parameter in the OpenAPI document.
    pub(crate) fn document(&self, place: ParameterIn) -> Parameter {
        ParameterBuilder::new()
            .name(self.name)
            .parameter_in(place)
            .description(Some(self.description))
            .required(Required::False)
            .schema(Some((self.schema)()))
            .example(self.example.map(Into::into))
            .build()
    }
}

/// Documents an extractor by the parameters that it reads.
macro_rules! document_parameters {
    ($extractor:ty, $place:ident, $parameters:expr) => {
        impl utoipa::IntoParams for $extractor {
            fn into_params(
                _: impl Fn() -> Option<utoipa::openapi::path::ParameterIn>,
            ) -> Vec<utoipa::openapi::path::Parameter> {
                let place = || utoipa::openapi::path::ParameterIn::$place;
                $parameters.iter().map(|parameter| parameter.document(place())).collect()
            }
        }
    };
}

pub(crate) use document_parameters;
