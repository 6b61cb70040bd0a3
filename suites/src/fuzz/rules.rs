//! The rules for every answer, whatever was sent.

use std::collections::HashMap;
use std::fs;

use serde_json::{Map, Value};

use super::response_parser::Answer;
use super::valid::is_intact;
use crate::Outcome;

/// The page that documents the error codes.
const DOCUMENTED: &str = "docs/errors.md";

/// The outcome that a request must have, beyond the rules for every answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Expected {
    /// A documented success, or 409 or 404: another client may have been first, and may have deleted the pet.
    Success,
    /// An error, because the key does not allow it.
    Denied,
    Any,
}

/// What is known about a request when its answer is checked.
pub(super) struct Expectation {
    pub(super) label: &'static str,
    pub(super) to_head: bool,
    pub(super) expected: Expected,
    /// The `X-Request-Id` that the answer must repeat.
    pub(super) request_id: Option<String>,
    /// What the body of a success must have; null if it has none.
    pub(super) echo: Value,
}

impl Expectation {
    /// Any request.
    pub(super) fn any(label: &'static str) -> Self {
        Self { label, to_head: false, expected: Expected::Any, request_id: None, echo: Value::Null }
    }
}

/// The rules, with the documented error codes.
pub(super) struct Rules {
    statuses: HashMap<String, u16>,
}

impl Rules {
    /// Reads the documented codes and their statuses: each code is a heading, and its section starts with the status.
    pub(super) fn read() -> Outcome<Self> {
        let page = fs::read_to_string(DOCUMENTED)?;
        let entry = |section: &str| {
            let (code, text) = section.split_once("`\n\n**")?;
            Some((code.to_owned(), text.split('.').next()?.parse().ok()?))
        };
        let statuses: HashMap<_, _> = page.split("\n#### `").skip(1).filter_map(entry).collect();
        if statuses.is_empty() {
            return Err(format!("{DOCUMENTED} has no codes").into());
        }
        Ok(Self { statuses })
    }

    /// Checks a final answer. The error is the same text for every answer with the same problem.
    pub(super) fn check(&self, case: &Expectation, answer: &Answer) -> Result<(), String> {
        let status = answer.status;
        if case.expected != Expected::Success && is_hypers(answer) {
            return Ok(());
        }
        check_request_id(case, answer)?;
        match (status, case.expected) {
            (200..=299 | 303 | 304, Expected::Denied) => {
                Err(format!("{status} although the key lacks the scope"))
            }
            (200..=299 | 303 | 304, _) => check_success(case, answer),
            (400..=599, expected) => {
                let code = self.check_error(case, answer)?;
                let was_late = status == 409 || status == 404 && (case.to_head || code == "pet_not_found");
                if expected != Expected::Success || was_late {
                    Ok(())
                } else {
                    Err(format!("{status} {code} to a valid request"))
                }
            }
            _ => Err(format!("the status {status}")),
        }
    }

    /// Checks that an error is documented and has the Error body, and returns its code.
    fn check_error(&self, case: &Expectation, answer: &Answer) -> Result<String, String> {
        let status = answer.status;
        if answer.header("content-type") != Some("application/json") {
            return Err(format!("{status} with the content type {:?}", answer.header("content-type")));
        }
        if case.to_head {
            return check_server_error(answer, "unavailable").map(|()| String::new());
        }
        let body = parse(answer)?;
        let text = |name: &str| body.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let members = 3 + usize::from(text("field").is_some());
        let (Some(code), Some(_)) = (text("code"), text("message")) else {
            return Err(format!("{status} without a code or a message"));
        };
        if body.as_object().map(Map::len) != Some(members) {
            return Err(format!("{status} with other members than code, message, status and field"));
        }
        if body["status"] != status || self.statuses.get(code) != Some(&status) {
            return Err(format!("{status} with the code {code}, which is not documented with it"));
        }
        check_server_error(answer, code).map(|()| code.to_owned())
    }
}

/// 503 is the only server error that is documented.
fn check_server_error(answer: &Answer, code: &str) -> Result<(), String> {
    let retry_after = answer.header("retry-after").and_then(|seconds| seconds.parse::<u32>().ok());
    match answer.status {
        ..500 => Ok(()),
        503 if ["unavailable", "outcome_unknown"].contains(&code) && retry_after.is_some() => Ok(()),
        status => Err(format!("{status} {code}, Retry-After {retry_after:?}")),
    }
}

/// Whether this is hyper's answer to what is not HTTP, or is too large: a status and no body.
fn is_hypers(answer: &Answer) -> bool {
    matches!(answer.status, 400 | 431) && answer.header("x-request-id").is_none() && answer.body.is_empty()
}

fn check_request_id(case: &Expectation, answer: &Answer) -> Result<(), String> {
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match (answer.header("x-request-id"), &case.request_id) {
        (Some(id), Some(sent)) if sent != id => Err("a different X-Request-Id than was sent".to_owned()),
        (Some(id), _) if (1..=64).contains(&id.len()) && id.bytes().all(is_safe) => Ok(()),
        (id, _) => Err(format!("{} with the X-Request-Id {id:?}", answer.status)),
    }
}

fn check_success(case: &Expectation, answer: &Answer) -> Result<(), String> {
    let (status, is_certain) = (answer.status, case.expected == Expected::Success);
    let required = match status {
        304 => Some("etag"),
        201 | 303 => Some("location"),
        // Not if a pet was deleted.
        204 if case.label == "options" => Some("allow"),
        200 | 204 => None,
        _ => return Err(format!("the status {status}")),
    };
    if let Some(name) = required.filter(|name| answer.header(name).is_none()) {
        return Err(format!("{status} without {name}"));
    }
    let is_json = answer.header("content-type") == Some("application/json");
    match status {
        204 if case.echo.is_null() || !is_certain => return Ok(()),
        303 | 304 if is_certain => return Err(format!("{status} to an unconditional request")),
        303 | 304 => return Ok(()),
        _ if case.to_head => return Ok(()),
        // Odd or changed, it may ask for a page.
        _ if !is_certain && (!is_json || answer.header("content-encoding").is_some()) => {
            let is_empty = answer.body.is_empty();
            return if is_empty { Err(format!("{status} without a body")) } else { Ok(()) };
        }
        _ => {}
    }
    if !is_json {
        return Err(format!("{status} with the content type {:?}", answer.header("content-type")));
    }
    let body = parse(answer)?;
    if !is_intact(&body) {
        Err(format!("{status} with an altered text"))
    } else if is_certain && !has(&body, &case.echo) {
        Err(format!("{status} with something else than was sent"))
    } else {
        Ok(())
    }
}

/// Parses a body, in which no member may appear twice. The error does not say where it is, so that equal errors are one finding.
fn parse(answer: &Answer) -> Result<Value, String> {
    let status = answer.status;
    let body: Value = serde_json::from_slice(&answer.body).map_err(|error| {
        let cause = error.to_string();
        format!("{status} with an invalid body: {}", cause.split(" at line").next().unwrap_or_default())
    })?;
    // The service writes no spaces, except in the document, and serde_json keeps one of two equal members.
    let is_document = body.get("openapi").is_some();
    if !is_document && body.to_string().len() != answer.body.len() {
        return Err(format!("{status} with a member that appears twice"));
    }
    Ok(body)
}

/// Whether a value has what is expected of it: an object its members, and each element of an array that of the first.
fn has(value: &Value, expected: &Value) -> bool {
    match (value, expected) {
        (Value::Array(items), Value::Array(expected)) => {
            expected.first().is_none_or(|expected| items.iter().all(|item| has(item, expected)))
        }
        (Value::Object(members), Value::Object(expected)) => expected
            .iter()
            .all(|(name, expected)| members.get(name).is_some_and(|value| has(value, expected))),
        _ => value == expected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_appears_twice_is_refused() {
        for (body, is_valid) in
            [(r#"{"id":1,"name":"Rex"}"#, true), (r#"{"id":1,"name":"Rex","id":1}"#, false)]
        {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            let (answer, _) = Answer::parse((head + body).as_bytes(), false).unwrap().unwrap();
            assert_eq!(parse(&answer).is_ok(), is_valid, "{body}");
        }
    }
}
