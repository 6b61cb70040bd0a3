//! The query of a request. Each operation with parameters has a struct for them, which is also their documentation.

use std::borrow::Cow;

use hyper::Uri;
use petstore_wire::struct_deserializer::{self, FieldsError, NamedValues};
use petstore_wire::suggestions::shown;
use petstore_wire::unparsed_value::UnparsedValue;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::error::ApiError;

/// Reads the query of a URI into the struct of its operation. A parameter that the struct does not have is refused, so that a
/// misspelt filter does not silently list everything.
pub(crate) fn read<T: DeserializeOwned>(uri: &Uri) -> Result<T, ApiError> {
    let parameters = QueryParameters::parse(uri.query().unwrap_or_default());
    struct_deserializer::read(&&parameters).map_err(|error| match error {
        FieldsError::Unknown { name, known } => ApiError::UnknownParameter { name: shown(&name), known },
        FieldsError::Field { name, error } => ApiError::invalid_parameter(name, &error),
        FieldsError::Other(problem) => ApiError::invalid_parameter("", &problem),
    })
}

/// Refuses any query.
pub(crate) fn refuse(uri: &Uri) -> Result<(), ApiError> {
    #[derive(Deserialize)]
    struct NoParameters {}
    read::<NoParameters>(uri).map(drop)
}

/// The values without repetitions, in the order of their first appearance.
pub(crate) fn distinct<T: PartialEq>(values: Vec<T>) -> Vec<T> {
    let mut distinct = Vec::with_capacity(values.len());
    for value in values {
        if !distinct.contains(&value) {
            distinct.push(value);
        }
    }
    distinct
}

/// More than any operation has.
const MOST_NAMES: usize = 32;

/// The values of each parameter, in the order of their first appearance.
struct QueryParameters<'a>(Vec<(Cow<'a, str>, Vec<Cow<'a, str>>)>);

impl<'a> QueryParameters<'a> {
    /// Stops at so many names that one of them must be unknown: each name is compared with all before it.
    fn parse(query: &'a str) -> Self {
        let mut parameters: Vec<(Cow<'a, str>, Vec<Cow<'a, str>>)> = Vec::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            if parameters.len() > MOST_NAMES {
                break;
            }
            match parameters.iter_mut().find(|(known, _)| *known == name) {
                Some((_, values)) => values.push(value),
                None => parameters.push((name, vec![value])),
            }
        }
        Self(parameters)
    }
}

impl<'a> NamedValues<'a> for &'a QueryParameters<'_> {
    fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| &**name)
    }

    fn get(&self, name: &str) -> UnparsedValue<'a> {
        let parameter = self.0.iter().find(|(known, _)| known == name);
        parameter.map_or(UnparsedValue::Absent, |(_, values)| UnparsedValue::Query(values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Such a query needs no key, and each name is compared with all before it.
    #[test]
    fn of_thousands_of_names_only_the_first_are_read() {
        let names: Vec<String> = (0..2_700).map(|name| format!("{name}=x")).collect();
        assert_eq!(QueryParameters::parse(&names.join("&")).0.len(), MOST_NAMES + 1);
        let query = "id=7&".repeat(2_700);
        let QueryParameters(repeated) = QueryParameters::parse(&query);
        assert_eq!((repeated.len(), repeated[0].1.len()), (1, 2_700));
    }
}
