//! Moves what several operations of the document have in common into its `components`, so that it is written once.

use std::collections::BTreeMap;

use hyper::StatusCode;
use serde_json::{Map, Value, json};

/// A part of the document that operations can share.
#[derive(Clone, Copy)]
enum SharedPart {
    Parameter,
    Header,
    Example,
    Response,
}

impl SharedPart {
    /// Those inside of others come first.
    const ALL: [Self; 4] = [Self::Parameter, Self::Header, Self::Example, Self::Response];

    /// The member of `components` that has them.
    fn section(self) -> &'static str {
        match self {
            Self::Parameter => "parameters",
            Self::Header => "headers",
            Self::Example => "examples",
            Self::Response => "responses",
        }
    }

    /// Calls `visit` with the name and the value of each one in the operations of a document.
    fn for_each(self, document: &mut Value, mut visit: impl FnMut(&str, &mut Value)) {
        for operation in operations(document) {
            match self {
                Self::Parameter => {
                    // Indexing would add the member to an operation without parameters.
                    let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
                    for parameter in parameters.into_iter().flatten() {
                        let name = parameter["name"].as_str().unwrap_or_default().to_owned();
                        visit(&name, parameter);
                    }
                }
                Self::Response => {
                    for (status, response) in members(operation, "responses") {
                        visit(&name_of(status), response);
                    }
                }
                Self::Header => {
                    members(operation, "responses")
                        .flat_map(|(_, response)| members(response, "headers"))
                        .for_each(|(name, header)| visit(name, header));
                }
                Self::Example => {
                    members(operation, "responses")
                        .flat_map(|(_, response)| members(response, "content"))
                        .flat_map(|(_, content)| members(content, "examples"))
                        .for_each(|(code, example)| visit(code, example));
                }
            }
        }
    }
}

/// Replaces parts of operations by references, if all that have the same name are equal and there are several: a name in
/// `components` has one meaning.
pub(super) fn share_components(document: &mut Value) {
    for part in SharedPart::ALL {
        let mut found: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        part.for_each(document, |name, value| found.entry(name.to_owned()).or_default().push(value.clone()));
        found.retain(|_, values| values.len() > 1 && values.iter().all(|value| *value == values[0]));
        part.for_each(document, |name, value| {
            if found.contains_key(name) {
                *value = json!({"$ref": format!("#/components/{}/{name}", part.section())});
            }
        });
        let shared: Map<String, Value> =
            found.into_iter().filter_map(|(name, values)| Some((name, values.into_iter().next()?))).collect();
        document["components"][part.section()] = Value::Object(shared);
    }
}

fn operations(document: &mut Value) -> impl Iterator<Item = &mut Value> {
    let paths = members(document, "paths").filter_map(|(_, path)| path.as_object_mut());
    paths.flat_map(|path| path.values_mut())
}

/// The members of an object in an object, if it is there.
fn members<'a>(
    outer: &'a mut Value,
    name: &str,
) -> impl Iterator<Item = (&'a String, &'a mut Value)> + use<'a> {
    outer.get_mut(name).and_then(Value::as_object_mut).into_iter().flatten()
}

/// The name of a response: that of its status, in one word.
fn name_of(status: &str) -> String {
    let status = status.parse().ok().and_then(|number| StatusCode::from_u16(number).ok());
    let reason = status.and_then(|status| status.canonical_reason()).unwrap_or("Error");
    reason.split(' ').collect()
}
