//! The rules for every answer, whatever was sent.

use std::collections::HashMap;
use std::fs;

use serde_json::{Value, json};

use super::answer::Answer;
use super::json::parse;
use crate::Outcome;

/// The page that documents the error codes.
const DOCUMENTED: &str = "docs/errors.md";

/// The outcome that a request must have, beyond the rules for every answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Expected {
    /// A documented success, or 409 or 404: another worker may have been first, and may have deleted the pet.
    Success,
    /// The same, or 429.
    SuccessWithinLimit,
    /// The key does not allow it.
    Denied,
    Any,
}

/// What is known about a request when its answer is checked.
#[expect(clippy::struct_excessive_bools, reason = "each is an independent fact about the request")]
pub(super) struct Case {
    /// Findings with the same label and the same problem are one.
    pub(super) label: &'static str,
    pub(super) to_head: bool,
    /// Whether a success has a JSON body. schemathesis compares it with the document.
    pub(super) is_json: bool,
    pub(super) expected: Expected,
    /// The `X-Request-Id` that the answer must repeat.
    pub(super) request_id: Option<String>,
    /// Texts that the answer must have, by JSON pointer.
    pub(super) texts: Vec<(&'static str, String)>,
    /// Whether an interim answer may come first.
    pub(super) expects_continue: bool,
    /// Whether the request asks to close the connection, by its version or by a header.
    pub(super) asks_to_close: bool,
}

impl Case {
    /// Any request.
    pub(super) fn any(label: &'static str) -> Self {
        Self {
            label,
            to_head: false,
            is_json: false,
            expected: Expected::Any,
            request_id: None,
            texts: Vec::new(),
            expects_continue: false,
            asks_to_close: false,
        }
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
    pub(super) fn check(&self, case: &Case, answer: &Answer) -> Result<(), String> {
        if matches!(case.expected, Expected::Any | Expected::Denied) && is_hypers(answer) {
            return Ok(());
        }
        check_request_id(case, answer)?;
        match answer.status {
            200..=299 | 303 | 304 => {
                if case.expected == Expected::Denied {
                    return Err(format!("{} although the key lacks the scope", answer.status));
                }
                check_success(case, answer)
            }
            400..=599 => {
                let code = self.check_error(case, answer)?;
                let was_first = match answer.status {
                    409 => true,
                    404 => case.to_head || code == "pet_not_found",
                    _ => false,
                };
                let is_expected = match case.expected {
                    Expected::Any | Expected::Denied => true,
                    Expected::Success => was_first,
                    Expected::SuccessWithinLimit => was_first || answer.status == 429,
                };
                let problem = || format!("{} {code} to a valid request", answer.status);
                if is_expected { Ok(()) } else { Err(problem()) }
            }
            other => Err(format!("the status {other}")),
        }
    }

    /// Checks that an error is documented and has the Error body, and returns its code.
    fn check_error(&self, case: &Case, answer: &Answer) -> Result<String, String> {
        let status = answer.status;
        if answer.header("content-type") != Some("application/json") {
            return Err(format!("{status} with the content type {:?}", answer.header("content-type")));
        }
        if case.to_head {
            return server_error(answer, "unavailable").map(|()| String::new());
        }
        let body =
            parse(&answer.body).map_err(|problem| format!("{status} with an invalid body: {problem}"))?;
        let Value::Object(members) = &body else {
            return Err(format!("{status} with a body that is not an object"));
        };
        let (code, message) =
            (body.get("code").and_then(Value::as_str), body.get("message").and_then(Value::as_str));
        // `field` is optional.
        let is_field = body.get("field").is_some_and(|field| field.as_str().is_some());
        let others = members.len() - usize::from(is_field);
        let (Some(code), Some(message), 3) = (code, message, others) else {
            return Err(format!(
                "{status} with a body whose members are not code, message, status and field"
            ));
        };
        if message.is_empty() || body.get("status").and_then(Value::as_i64) != Some(status.into()) {
            return Err(format!("{status} with an empty message or another status in its body"));
        }
        if self.statuses.get(code) != Some(&status) {
            return Err(format!("{status} with the code {code}, which is not documented with it"));
        }
        server_error(answer, code).map(|()| code.to_owned())
    }
}

/// 503 is the only server error that is documented.
fn server_error(answer: &Answer, code: &str) -> Result<(), String> {
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

fn check_request_id(case: &Case, answer: &Answer) -> Result<(), String> {
    let Some(id) = answer.header("x-request-id") else {
        return Err(format!("{} without X-Request-Id", answer.status));
    };
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if !(1..=64).contains(&id.len()) || !id.bytes().all(is_safe) {
        return Err(format!("{} with a malformed X-Request-Id", answer.status));
    }
    match &case.request_id {
        Some(sent) if sent != id => {
            Err(format!("{} with a different X-Request-Id than was sent", answer.status))
        }
        _ => Ok(()),
    }
}

fn check_success(case: &Case, answer: &Answer) -> Result<(), String> {
    let status = answer.status;
    match status {
        304 if answer.header("etag").is_none() => return Err("304 without ETag".to_owned()),
        // Not if a pet was deleted.
        204 if case.label == "options" && answer.header("allow").is_none() => {
            return Err("204 without Allow".to_owned());
        }
        303 if answer.header("location").is_none() => return Err("303 without Location".to_owned()),
        204 | 303 | 304 => return Ok(()),
        201 if answer.header("location").is_none() => return Err("201 without Location".to_owned()),
        200 | 201 => (),
        other => return Err(format!("the status {other}")),
    }
    let is_json = answer.header("content-type") == Some("application/json");
    if case.to_head {
        return Ok(());
    }
    if !case.is_json && (!is_json || answer.header("content-encoding").is_some()) {
        return if answer.body.is_empty() { Err(format!("{status} without a body")) } else { Ok(()) };
    }
    if !is_json {
        return Err(format!("{status} with the content type {:?}", answer.header("content-type")));
    }
    let body = parse(&answer.body).map_err(|problem| format!("{status} with an invalid body: {problem}"))?;
    match case.texts.iter().find(|(pointer, text)| body.pointer(pointer) != Some(&json!(text))) {
        Some((pointer, _)) => Err(format!("{status} with another {pointer} than was sent")),
        None => Ok(()),
    }
}
