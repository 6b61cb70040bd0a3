//! Query parameters and headers of operations, each described once: under that name it is read and documented.

use utoipa::openapi::path::{Parameter as Documented, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::openapi::{RefOr, Required};

use crate::domain::page::PageLimit;

/// An optional parameter of an operation.
pub(crate) struct Parameter {
    /// Its name in the query, or that of the header.
    pub(crate) name: &'static str,
    /// What it does.
    pub(crate) description: &'static str,
    /// The schema of its value.
    pub(crate) schema: fn() -> RefOr<Schema>,
    /// A value, where the schema does not suggest one.
    pub(crate) example: Option<&'static str>,
}

impl Parameter {
    /// The most items on a page.
    pub(crate) const LIMIT: Self = Self {
        name: "limit",
        description: "Maximum number of items returned.",
        schema: || {
            let limit = ObjectBuilder::new().schema_type(Type::Integer);
            let limit = limit.minimum(Some(PageLimit::MIN)).maximum(Some(PageLimit::MAX));
            limit.default(Some(PageLimit::DEFAULT.get().into())).into()
        },
        example: None,
    };

    /// Where a page starts.
    pub(crate) const CURSOR: Self = Self {
        name: "cursor",
        description: "Where the page starts: taken from the `Link` header of the previous page. Opaque.",
        schema: || {
            let cursor = ObjectBuilder::new().schema_type(Type::String);
            cursor.pattern(Some("^AQ[A-Za-z0-9_-]{10}$")).into()
        },
        example: Some("AQAAAAAAAAAU"),
    };

    /// The parameter in the OpenAPI document.
    pub(crate) fn document(&self, place: ParameterIn) -> Documented {
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

/// The query parameters of an operation in the OpenAPI document.
pub(crate) fn query(parameters: &[Parameter]) -> Vec<Documented> {
    parameters.iter().map(|parameter| parameter.document(ParameterIn::Query)).collect()
}
