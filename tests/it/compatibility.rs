//! Nothing that a client relies on is taken away: the document against the last one that was released.
//!
//! A client may send whatever the released document allowed, and may rely on whatever it promised. So what goes in may
//! only be loosened, and what comes out may only be tightened or added to. Experimental operations promise nothing.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::document::DOCUMENT;
use crate::support::postgres::ROOT;

/// Which way a value goes.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    In,
    Out,
}

/// Compares two documents, and collects what would break a client.
struct Comparison<'a> {
    old: &'a Value,
    new: &'a Value,
    broken: Vec<String>,
}

fn breaks(old: &Value, new: &Value) -> Vec<String> {
    let mut comparison = Comparison { old, new, broken: Vec::new() };
    comparison.documents();
    comparison.broken
}

/// The members of an object, or none.
fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

/// The texts of an array, or none.
fn words(value: &Value) -> BTreeSet<String> {
    value.as_array().into_iter().flatten().map(ToString::to_string).collect()
}

impl Comparison<'_> {
    fn say(&mut self, place: &str, what: &str) {
        self.broken.push(format!("{place}: {what}"));
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
            return self.say(place, "is gone");
        }
        if old["operationId"] != new["operationId"] {
            self.say(place, "has another name");
        }
        if old["security"] != new["security"] {
            self.say(place, "needs another key");
        }
        let promise = |operation: &Value| match operation["x-stability"].as_str() {
            None => 2,
            Some("beta") => 1,
            Some(_) => 0,
        };
        if promise(new) < promise(old) {
            self.say(place, "is less stable");
        }
        self.parameters(place, &old["parameters"], &new["parameters"]);
        self.bodies(&format!("{place} body"), &old["requestBody"], &new["requestBody"]);
        for (status, old) in members(&old["responses"]) {
            self.answers(&format!("{place} {status}"), status, old, &new["responses"][status]);
        }
        for (status, _) in members(&new["responses"]) {
            if status.starts_with('2') && old["responses"].get(status).is_none() {
                self.say(place, &format!("succeeds with {status}, which no client expects"));
            }
        }
    }

    fn parameters(&mut self, place: &str, old: &Value, new: &Value) {
        let name = |parameter: &Value| (parameter["in"].clone(), parameter["name"].clone());
        let all = |parameters: &Value| parameters.as_array().cloned().unwrap_or_default();
        for old in all(old) {
            let place = format!("{place} {}", old["name"]);
            match all(new).into_iter().find(|new| name(new) == name(&old)) {
                None => self.say(&place, "is no longer taken"),
                Some(new) => {
                    if new["required"] == true && old["required"] != true {
                        self.say(&place, "is required");
                    }
                    self.schemas(&place, Way::In, &old["schema"], &new["schema"]);
                }
            }
        }
        for new in all(new) {
            let is_new = !all(old).iter().any(|old| name(old) == name(&new));
            if is_new && new["required"] == true {
                self.say(&format!("{place} {}", new["name"]), "is new and required");
            }
        }
    }

    fn bodies(&mut self, place: &str, old: &Value, new: &Value) {
        for (media_type, old) in members(&old["content"]) {
            match new["content"].get(media_type) {
                None => self.say(place, &format!("is no longer taken as {media_type}")),
                Some(new) => self.schemas(place, Way::In, &old["schema"], &new["schema"]),
            }
        }
        if old.is_null() && new["required"] == true {
            self.say(place, "is new and required");
        }
    }

    fn answers(&mut self, place: &str, status: &str, old: &Value, new: &Value) {
        if new.is_null() {
            // An error that cannot happen any more breaks nobody.
            if status < "400" {
                self.say(place, "is no longer answered");
            }
            return;
        }
        for (header, _) in members(&old["headers"]) {
            if new["headers"].get(header).is_none() {
                self.say(place, &format!("has no `{header}` any more"));
            }
        }
        for (media_type, old) in members(&old["content"]) {
            let new = &new["content"][media_type];
            if new.is_null() {
                self.say(place, &format!("is not {media_type} any more"));
                continue;
            }
            self.schemas(place, Way::Out, &old["schema"], &new["schema"]);
            for (code, _) in members(&old["examples"]) {
                if new["examples"].get(code).is_none() {
                    self.say(place, &format!("has no code `{code}` any more"));
                }
            }
        }
    }

    fn schemas(&mut self, place: &str, way: Way, old: &Value, new: &Value) {
        let (old, new) = (resolved(self.old, old), resolved(self.new, new));
        for word in ["type", "format"] {
            if old[word] != new[word] {
                self.say(place, &format!("was {} of {}, and is {}", word, old[word], new[word]));
            }
        }
        // A bound is tighter if it is there and was not, or if it is narrower.
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
            if (way == Way::In && tighter) || (way == Way::Out && looser) {
                self.say(place, &format!("has another `{bound}`"));
            }
        }
        let patterns = (old.get("pattern"), new.get("pattern"));
        let allowed = if way == Way::In { patterns.1.is_none() } else { patterns.0.is_none() };
        if patterns.0 != patterns.1 && !allowed {
            self.say(place, "has another `pattern`");
        }
        let (was, is) = (words(&old["enum"]), words(&new["enum"]));
        if (way == Way::In && !was.is_subset(&is) && !is.is_empty())
            || (way == Way::Out && !is.is_subset(&was))
        {
            self.say(place, &format!("may be {is:?}, and could be {was:?}"));
        }
        let (was, is) = (words(&old["required"]), words(&new["required"]));
        if (way == Way::In && !is.is_subset(&was)) || (way == Way::Out && !was.is_subset(&is)) {
            self.say(place, &format!("has to have {is:?}, and had to have {was:?}"));
        }
        if old["default"] != new["default"] {
            self.say(place, "has another default");
        }
        for (member, old) in members(&old["properties"]) {
            let place = format!("{place} `{member}`");
            match new["properties"].get(member) {
                None => self.say(&place, "is gone"),
                Some(new) => self.schemas(&place, way, old, new),
            }
        }
        if !old["items"].is_null() {
            self.schemas(&format!("{place} items"), way, &old["items"], &new["items"]);
        }
    }
}

/// What a reference refers to.
fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        None => schema,
        Some(reference) => document.pointer(reference.trim_start_matches('#')).unwrap_or(&Value::Null),
    }
}

/// The document of the last release, by its version.
fn released() -> Value {
    let files = std::fs::read_dir(Path::new(ROOT).join("docs/released")).unwrap();
    let number = |path: &Path| -> Vec<u32> {
        path.file_stem().unwrap().to_str().unwrap().split('.').map(|part| part.parse().unwrap()).collect()
    };
    let last = files.map(|file| file.unwrap().path()).max_by_key(|path| number(path)).unwrap();
    serde_json::from_str(&std::fs::read_to_string(last).unwrap()).unwrap()
}

#[test]
fn nothing_is_taken_away_from_clients() {
    assert_eq!(breaks(&released(), &DOCUMENT), Vec::<String>::new());
}

#[test]
fn what_would_break_a_client_is_noticed_and_an_addition_is_not() {
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
        ("/paths", "/store/orders", Value::Null),
    ];
    let changed = |(place, member, value): &(&str, &str, Value)| {
        let mut new = DOCUMENT.clone();
        let object = new.pointer_mut(place).unwrap_or_else(|| panic!("{place}")).as_object_mut().unwrap();
        match value {
            Value::Null => object.remove(*member).map_or_else(|| panic!("{place} {member}"), drop),
            value => drop(object.insert((*member).to_owned(), value.clone())),
        }
        breaks(&DOCUMENT, &new)
    };
    for change in &breaking {
        assert!(!changed(change).is_empty(), "{change:?} was not noticed");
    }
    for change in &harmless {
        assert_eq!(changed(change), Vec::<String>::new(), "{change:?}");
    }
}
