//! What every answer must be, whatever was sent.

use std::collections::HashMap;
use std::fs;

use super::answer::Answer;
use super::json::Json;
use crate::Outcome;

/// Where the codes of errors are documented.
const DOCUMENTED: &str = "docs/errors.md";
/// What a status of a pet or an order can be.
const STATUSES: [&str; 6] = ["available", "pending", "sold", "placed", "completed", "cancelled"];

/// What a successful answer holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Shape {
    Pets,
    Pet,
    Orders,
    Order,
    /// What is not under `/v1`, or was reached by a changed path or method.
    Other,
}

/// How a request must end, beyond the rules for every answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fate {
    /// As the interface says; 409 is a success too, since another worker may have been first.
    Success,
    /// The same, or 429.
    SuccessWithinLimit,
    /// The key does not allow it.
    Denied,
    Any,
}

/// What is known about a request when its answer is checked.
pub(super) struct Case {
    /// Findings with the same label and the same problem are one.
    pub(super) label: &'static str,
    pub(super) to_head: bool,
    pub(super) shape: Shape,
    pub(super) fate: Fate,
    /// What must be repeated as `X-Request-Id`.
    pub(super) request_id: Option<String>,
    /// The name that the pet in the answer must have.
    pub(super) name: Option<String>,
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
            shape: Shape::Other,
            fate: Fate::Any,
            request_id: None,
            name: None,
            expects_continue: false,
            asks_to_close: false,
        }
    }
}

/// The rules, with the codes that are documented.
pub(super) struct Rules {
    statuses: HashMap<String, u16>,
}

impl Rules {
    /// Reads the documented codes and their statuses from the table.
    pub(super) fn read() -> Outcome<Self> {
        let page = fs::read_to_string(DOCUMENTED)?;
        let row = |line: &str| {
            let mut cells = line.strip_prefix("| `")?.split(" | ");
            let code = cells.next()?.strip_suffix('`')?.to_owned();
            Some((code, cells.next()?.parse().ok()?))
        };
        let statuses: HashMap<_, _> = page.lines().filter_map(row).collect();
        if statuses.is_empty() {
            return Err(format!("{DOCUMENTED} has no table of codes").into());
        }
        Ok(Self { statuses })
    }

    /// What is wrong with a final answer, in words that do not change from one such answer to the next.
    pub(super) fn check(&self, case: &Case, answer: &Answer) -> Result<(), String> {
        check_request_id(case, answer)?;
        match answer.status {
            200..=299 | 303 | 304 => {
                if case.fate == Fate::Denied {
                    return Err(format!("{} although the key does not allow it", answer.status));
                }
                check_success(case, answer)
            }
            400..=599 => {
                let code = self.check_error(case, answer)?;
                let expected = match case.fate {
                    Fate::Any | Fate::Denied => true,
                    Fate::Success => answer.status == 409,
                    Fate::SuccessWithinLimit => matches!(answer.status, 409 | 429),
                };
                let problem = || format!("{} {code} to a request that has no fault", answer.status);
                if expected { Ok(()) } else { Err(problem()) }
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
            Json::parse(&answer.body).map_err(|problem| format!("{status} with a body that is {problem}"))?;
        let Json::Object(members) = &body else {
            return Err(format!("{status} with a body that is no object"));
        };
        let (code, message) =
            (body.get("code").and_then(Json::text), body.get("message").and_then(Json::text));
        let (Some(code), Some(message), 3) = (code, message, members.len()) else {
            return Err(format!("{status} with a body of other members than code, message and status"));
        };
        if message.is_empty() || body.get("status").and_then(Json::integer) != Some(status.into()) {
            return Err(format!("{status} with an empty message or another status in its body"));
        }
        if self.statuses.get(code) != Some(&status) {
            return Err(format!("{status} with the code {code}, which is not documented with it"));
        }
        server_error(answer, code).map(|()| code.to_owned())
    }
}

/// Only one server error is documented to happen.
fn server_error(answer: &Answer, code: &str) -> Result<(), String> {
    let retry_after = answer.header("retry-after").and_then(|seconds| seconds.parse::<u32>().ok());
    match answer.status {
        ..500 => Ok(()),
        503 if code == "unavailable" && retry_after.is_some() => Ok(()),
        status => Err(format!("{status} {code}, Retry-After {retry_after:?}")),
    }
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
        // A request that is refused before its headers are read has a new id.
        Some(sent) if sent != id && !matches!(answer.status, 400 | 414 | 431) => {
            Err(format!("{} with another X-Request-Id than was sent", answer.status))
        }
        _ => Ok(()),
    }
}

fn check_success(case: &Case, answer: &Answer) -> Result<(), String> {
    let status = answer.status;
    match status {
        304 if answer.header("etag").is_none() => return Err("304 without ETag".to_owned()),
        204 if answer.header("allow").is_none() => return Err("204 without Allow".to_owned()),
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
    if case.shape == Shape::Other && (!is_json || answer.header("content-encoding").is_some()) {
        return if answer.body.is_empty() { Err(format!("{status} without a body")) } else { Ok(()) };
    }
    if !is_json {
        return Err(format!("{status} with the content type {:?}", answer.header("content-type")));
    }
    let body =
        Json::parse(&answer.body).map_err(|problem| format!("{status} with a body that is {problem}"))?;
    let is_right = match case.shape {
        Shape::Other => true,
        Shape::Pet => {
            is_pet(&body)
                && case.name.as_deref().is_none_or(|name| body.get("name").and_then(Json::text) == Some(name))
        }
        Shape::Order => is_order(&body),
        Shape::Pets => is_page(&body, is_pet),
        Shape::Orders => is_page(&body, is_order),
    };
    if is_right {
        Ok(())
    } else {
        Err(format!("{status} with a body that is not what the operation returns"))
    }
}

fn is_page(body: &Json, is_item: fn(&Json) -> bool) -> bool {
    let Some(items) = body.items() else { return false };
    let ids: Vec<_> = items.iter().filter_map(id).collect();
    items.len() <= 100 && items.iter().all(is_item) && ids.is_sorted_by(|one, next| one < next)
}

fn is_pet(body: &Json) -> bool {
    let name = body.get("name").and_then(Json::text);
    id(body).is_some()
        && name.is_some_and(|name| (1..=255).contains(&name.chars().count()))
        && body.get("categoryId").and_then(Json::integer).is_some()
        && body.get("status").is_none_or(is_status)
        && has_only(body, &["id", "name", "categoryId", "status"])
}

fn is_order(body: &Json) -> bool {
    let is_time = |name| {
        let time = body.get(name).and_then(Json::text);
        time.is_some_and(|time| time.len() == "2026-11-15T08:04:48.968Z".len() && time.ends_with('Z'))
    };
    id(body).is_some()
        && body.get("petId").and_then(Json::integer).is_some_and(|id| id > 0)
        && body.get("status").is_some_and(is_status)
        && is_time("createdAt")
        && is_time("updatedAt")
        && has_only(body, &["id", "petId", "status", "createdAt", "updatedAt"])
}

fn id(body: &Json) -> Option<i64> {
    body.get("id").and_then(Json::integer).filter(|id| (1..1 << 53).contains(id))
}

fn is_status(value: &Json) -> bool {
    value.text().is_some_and(|text| STATUSES.contains(&text))
}

fn has_only(body: &Json, names: &[&str]) -> bool {
    matches!(body, Json::Object(members) if members.iter().all(|(name, _)| names.contains(&&**name)))
}
