//! Backward compatibility: the document compared with the released ones.
//!
//! A client may send anything that the released document allows, and may rely on anything that it promises. So
//! requirements on requests may only be relaxed, and guarantees on responses may only be tightened or extended.
//! Experimental operations promise nothing.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::openapi::{DOCUMENT, parse};
use crate::support::repository::ROOT;

/// Whether a value is sent by clients or by the service.
#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Request,
    Response,
}

/// Compares two documents and collects the breaking changes.
struct Comparison<'a> {
    old: &'a Value,
    new: &'a Value,
    breaking: Vec<String>,
}

fn breaking_changes(old: &Value, new: &Value) -> Vec<String> {
    let mut comparison = Comparison { old, new, breaking: Vec::new() };
    comparison.documents();
    comparison.breaking
}

/// The members of an object, or none.
fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

/// The elements of an array as text, or none.
fn elements(value: &Value) -> BTreeSet<String> {
    value.as_array().into_iter().flatten().map(ToString::to_string).collect()
}

impl Comparison<'_> {
    fn report(&mut self, place: &str, what: &str) {
        self.breaking.push(format!("{place}: {what}"));
    }

    fn documents(&mut self) {
        for (path, item) in members(&self.old["paths"]) {
            for (method, old) in members(item) {
                if old["x-stability"] != "experimental" {
                    self.operations(&format!("{method} {path}"), old, &self.new["paths"][path][method]);
                }
            }
        }
    }

    fn operations(&mut self, place: &str, old: &Value, new: &Value) {
        if new.is_null() {
            return self.report(place, "is gone");
        }
        if old["operationId"] != new["operationId"] {
            self.report(place, "has another name");
        }
        if old["security"] != new["security"] {
            self.report(place, "needs another key");
        }
        let promise = |operation: &Value| match operation["x-stability"].as_str() {
            None => 2,
            Some("beta") => 1,
            Some(_) => 0,
        };
        if promise(new) < promise(old) {
            self.report(place, "is less stable");
        }
        self.parameters(place, &old["parameters"], &new["parameters"]);
        self.bodies(&format!("{place} body"), &old["requestBody"], &new["requestBody"]);
        for (status, old) in members(&old["responses"]) {
            self.answers(&format!("{place} {status}"), status, old, &new["responses"][status]);
        }
        for (status, _) in members(&new["responses"]) {
            if status.starts_with('2') && old["responses"].get(status).is_none() {
                self.report(place, &format!("succeeds with {status}, which no client expects"));
            }
        }
    }

    fn parameters(&mut self, place: &str, old: &Value, new: &Value) {
        let name = |parameter: &Value| (parameter["in"].clone(), parameter["name"].clone());
        let all = |parameters: &Value| parameters.as_array().cloned().unwrap_or_default();
        for old in all(old) {
            let place = format!("{place} {}", old["name"]);
            match all(new).into_iter().find(|new| name(new) == name(&old)) {
                None => self.report(&place, "is no longer accepted"),
                Some(new) => {
                    if new["required"] == true && old["required"] != true {
                        self.report(&place, "is required");
                    }
                    self.schemas(&place, Direction::Request, &old["schema"], &new["schema"]);
                }
            }
        }
        for new in all(new) {
            let is_new = !all(old).iter().any(|old| name(old) == name(&new));
            if is_new && new["required"] == true {
                self.report(&format!("{place} {}", new["name"]), "is new and required");
            }
        }
    }

    fn bodies(&mut self, place: &str, old: &Value, new: &Value) {
        for (media_type, old) in members(&old["content"]) {
            match new["content"].get(media_type) {
                None => self.report(place, &format!("is no longer accepted as {media_type}")),
                Some(new) => self.schemas(place, Direction::Request, &old["schema"], &new["schema"]),
            }
        }
        if old.is_null() && new["required"] == true {
            self.report(place, "is new and required");
        }
    }

    fn answers(&mut self, place: &str, status: &str, old: &Value, new: &Value) {
        if new.is_null() {
            // An error that cannot happen any more breaks no client.
            if status < "400" {
                self.report(place, "is no longer answered");
            }
            return;
        }
        for (header, _) in members(&old["headers"]) {
            if new["headers"].get(header).is_none() {
                self.report(place, &format!("has no `{header}` any more"));
            }
        }
        for (media_type, old) in members(&old["content"]) {
            let new = &new["content"][media_type];
            if new.is_null() {
                self.report(place, &format!("is not {media_type} any more"));
                continue;
            }
            self.schemas(place, Direction::Response, &old["schema"], &new["schema"]);
            for (code, _) in members(&old["examples"]) {
                if new["examples"].get(code).is_none() {
                    self.report(place, &format!("has no code `{code}` any more"));
                }
            }
        }
    }

    fn schemas(&mut self, place: &str, direction: Direction, old: &Value, new: &Value) {
        let (old, new) = (resolved(self.old, old), resolved(self.new, new));
        if old["format"] != new["format"] {
            self.report(place, &format!("was format of {}, and is {}", old["format"], new["format"]));
        }
        let (was, is) = (types(old), types(new));
        let allowed = if direction == Direction::Request { was.is_subset(&is) } else { is.is_subset(&was) };
        if !allowed {
            self.report(place, &format!("was type of {was:?}, and is {is:?}"));
        }
        // A bound is tighter if it is new or narrower.
        for (bound, is_least) in [
            ("minimum", true),
            ("minLength", true),
            ("minItems", true),
            ("maximum", false),
            ("maxLength", false),
            ("maxItems", false),
        ] {
            let (was, is) = (old[bound].as_i64(), new[bound].as_i64());
            let widest = if is_least { i64::MIN } else { i64::MAX };
            let (was, is) = (was.unwrap_or(widest), is.unwrap_or(widest));
            let (tighter, looser) = if is_least { (is > was, is < was) } else { (is < was, is > was) };
            if (direction == Direction::Request && tighter) || (direction == Direction::Response && looser) {
                self.report(place, &format!("has another `{bound}`"));
            }
        }
        let patterns = (old.get("pattern"), new.get("pattern"));
        let allowed = match direction {
            Direction::Request => patterns.1.is_none_or(|new| is_relaxed(&old["pattern"], new)),
            Direction::Response => patterns.0.is_none(),
        };
        if patterns.0 != patterns.1 && !allowed {
            self.report(place, "has another `pattern`");
        }
        let (was, is) = (elements(&old["enum"]), elements(&new["enum"]));
        if (direction == Direction::Request && !was.is_subset(&is) && !is.is_empty())
            || (direction == Direction::Response && !is.is_subset(&was))
        {
            self.report(place, &format!("may be {is:?}, and could be {was:?}"));
        }
        let (was, is) = (elements(&old["required"]), elements(&new["required"]));
        if (direction == Direction::Request && !is.is_subset(&was))
            || (direction == Direction::Response && !was.is_subset(&is))
        {
            self.report(place, &format!("has to have {is:?}, and had to have {was:?}"));
        }
        if old["default"] != new["default"] {
            self.report(place, "has another default");
        }
        for (member, old) in members(&old["properties"]) {
            let place = format!("{place} `{member}`");
            match new["properties"].get(member) {
                None => self.report(&place, "is gone"),
                Some(new) => self.schemas(&place, direction, old, new),
            }
        }
        if !old["items"].is_null() {
            self.schemas(&format!("{place} items"), direction, &old["items"], &new["items"]);
        }
    }
}

/// The types that a value may have.
fn types(schema: &Value) -> BTreeSet<String> {
    match &schema["type"] {
        Value::Array(types) => types.iter().map(ToString::to_string).collect(),
        Value::Null => BTreeSet::new(),
        one => BTreeSet::from([one.to_string()]),
    }
}

/// Whether a pattern accepts all that the other one does, as far as we compare patterns: `\S` for the pattern of names and
/// references in 1.1.0 and before, which also excludes control characters. The only difference is that in ECMAScript, U+FEFF
/// is white space.
fn is_relaxed(old: &Value, new: &Value) -> bool {
    let spelled_out = r"^[^\u0000-\u001F\u007F-\u009F]*[^\u0000-\u0020\u007F-\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000][^\u0000-\u001F\u007F-\u009F]*$";
    old == spelled_out && new == r"\S"
}

/// Follows a `$ref`.
fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        None => schema,
        Some(reference) => document.pointer(reference.trim_start_matches('#')).unwrap_or(&Value::Null),
    }
}

#[test]
fn the_document_is_backward_compatible_with_every_release() {
    let files = std::fs::read_dir(Path::new(ROOT).join("docs/released")).unwrap();
    let released: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    assert!(released.len() >= 2, "{released:?}");
    for file in released {
        let document = parse(&std::fs::read_to_string(&file).unwrap());
        assert_eq!(breaking_changes(&document, &DOCUMENT), Vec::<String>::new(), "{}", file.display());
    }
}

#[test]
fn breaking_changes_are_detected_and_additions_are_allowed() {
    let list = "/paths/~1pets/get";
    let create = "/paths/~1pets/post";
    let pet = "/components/schemas/Pet";
    let new_pet = "/components/schemas/NewPet";
    let breaking = [
        ("/paths", "/pets", Value::Null),
        (list, "operationId", json!("allPets")),
        (list, "security", json!([{"bearer": ["admin"]}])),
        (list, "x-stability", json!("experimental")),
        (list, "parameters", json!([])),
        (&format!("{list}/parameters/0/schema"), "maximum", json!(50)),
        (&format!("{list}/parameters/0/schema"), "default", json!(10)),
        (&format!("{list}/parameters/1"), "required", json!(true)),
        (&format!("{list}/responses"), "200", Value::Null),
        (&format!("{list}/responses/200/headers"), "Link", Value::Null),
        (&format!("{create}/responses"), "202", json!({"description": "later"})),
        (&format!("{create}/responses/400/content/application~1json/examples"), "missing_field", Value::Null),
        (&format!("{create}/requestBody/content"), "application/json", Value::Null),
        (&format!("{pet}/properties/id"), "type", json!("string")),
        (&format!("{pet}/properties/id"), "maximum", Value::Null),
        (&format!("{pet}/properties/categoryId"), "format", json!("int32")),
        (&format!("{pet}/properties"), "name", Value::Null),
        (pet, "required", json!(["id", "name"])),
        (&format!("{new_pet}/properties/name"), "maxLength", json!(100)),
        (&format!("{new_pet}/properties/name"), "pattern", json!("^[a-z]+$")),
        (new_pet, "required", json!(["name", "categoryId", "status"])),
        ("/components/schemas/PetStatus", "enum", json!(["available", "sold"])),
        ("/components/schemas/PetStatus", "enum", json!(["available", "pending", "sold", "lost"])),
    ];
    let harmless = [
        (&*format!("{list}/parameters/0/schema"), "maximum", json!(200)),
        (&format!("{create}/responses"), "402", json!({"description": "pay first"})),
        (&format!("{pet}/properties"), "colour", json!({"type": "string"})),
        (pet, "required", json!(["id", "name", "categoryId", "status"])),
        (&format!("{new_pet}/properties/name"), "pattern", Value::Null),
        (new_pet, "required", json!(["name"])),
        ("/paths", "/dogs", json!({"get": {"operationId": "listDogs"}})),
    ];
    let changed = |(place, member, value): &(&str, &str, Value)| {
        let mut new = DOCUMENT.clone();
        let object = new.pointer_mut(place).unwrap_or_else(|| panic!("{place}")).as_object_mut().unwrap();
        match value {
            Value::Null => object.remove(*member).map_or_else(|| panic!("{place} {member}"), drop),
            value => drop(object.insert((*member).to_owned(), value.clone())),
        }
        breaking_changes(&DOCUMENT, &new)
    };
    for change in &breaking {
        assert!(!changed(change).is_empty(), "{change:?} was not detected");
    }
    for change in &harmless {
        assert_eq!(changed(change), Vec::<String>::new(), "{change:?}");
    }
}

#[test]
fn an_experimental_operation_may_be_removed() {
    let (mut old, mut new) = (DOCUMENT.clone(), DOCUMENT.clone());
    for method in ["get", "post"] {
        old["paths"]["/store/orders"][method]["x-stability"] = json!("experimental");
    }
    new["paths"].as_object_mut().unwrap().remove("/store/orders");
    assert_eq!(breaking_changes(&old, &new), Vec::<String>::new());
    assert!(!breaking_changes(&DOCUMENT, &new).is_empty());
}
