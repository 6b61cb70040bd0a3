//! A request as its handler sees it: the caller, the query, the headers, the body.

use std::pin::pin;
use std::task::Poll;

use futures_util::poll;
use hyper::HeaderMap;
use hyper::header::{self, HeaderValue};
use hyper::http::request::Parts;
use jiff::Timestamp;
use percent_encoding::percent_decode_str;
use petstore_domain::idempotency::IdempotencyKey;
use petstore_domain::key_record::Scope;
use petstore_domain::order::OrderId;
use petstore_domain::pet::PetId;
use petstore_wire::request_body::{BodyError, RequestBody};
use petstore_wire::suggestions::shown;
use petstore_wire::unparsed_value::decimal;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::authentication::{Caller, required_authorization};
use super::client_presence::ClientPresence;
use super::conditional::{IfMatch, IfNoneMatch};
use super::error::ApiError;
use super::idempotency;
use super::incoming_body::IncomingBody;
use super::query;
use super::state::AppState;

/// A request to an operation. Its caller has the scope that the operation requires.
pub(crate) struct ApiRequest<'a> {
    pub(crate) app: &'a AppState,
    pub(crate) caller: &'a Caller,
    /// The scope that the operation requires.
    pub(crate) scope: Scope,
    pub(crate) head: &'a Parts,
    pub(crate) body: &'a mut IncomingBody,
    /// What the path has in the place of an id; empty if its pattern has none.
    pub(crate) id_in_path: &'a str,
    /// When the request arrived.
    pub(crate) now: Timestamp,
    /// Whether the client is still there.
    pub(crate) presence: &'a ClientPresence,
}

impl ApiRequest<'_> {
    /// The id of a pet in the path. What cannot be one is the id of no pet: 404.
    pub(crate) fn pet_id(&self) -> Result<PetId, ApiError> {
        id_in_path(self.id_in_path).ok_or(ApiError::PetNotFound)
    }

    /// The id of an order in the path, likewise.
    pub(crate) fn order_id(&self) -> Result<OrderId, ApiError> {
        id_in_path(self.id_in_path).ok_or(ApiError::OrderNotFound)
    }

    /// Waits for an event, or for the client to go away: see [`suspend`].
    pub(crate) async fn suspend(&self, wait: impl Future<Output = ()>) -> Result<(), ApiError> {
        suspend(self.app, self.head, self.scope, wait).await
    }

    /// The query parameters.
    pub(crate) fn query<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        query::read(&self.head.uri)
    }

    /// Refuses any query, for operations without parameters.
    pub(crate) fn refuse_query(&self) -> Result<(), ApiError> {
        query::refuse(&self.head.uri)
    }

    pub(crate) fn if_none_match(&self) -> IfNoneMatch<'_> {
        IfNoneMatch::new(&self.head.headers)
    }

    pub(crate) fn if_match(&self) -> IfMatch<'_> {
        IfMatch::new(&self.head.headers)
    }

    /// The `Idempotency-Key`, if there is one.
    pub(crate) fn idempotency_key(&self) -> Result<Option<IdempotencyKey>, ApiError> {
        idempotency::key(&self.head.headers)
    }

    /// Refuses a body, for operations that take none.
    pub(crate) fn refuse_body(&self) -> Result<(), ApiError> {
        if self.body.is_absent() { Ok(()) } else { Err(BodyError::NotExpected.into()) }
    }

    /// Reads the JSON body: 415 for another media type or encoding, 413 if it is too large, 408 if it is too slow, 400 if it is not
    /// what it should be; in this order.
    pub(crate) async fn json_body<T: RequestBody>(&mut self) -> Result<T, ApiError> {
        check_media_type(T::MEDIA_TYPES, &self.head.headers)?;
        // What is announced as too large is not even asked for.
        if self.body.is_announced_too_large() {
            return Err(ApiError::BodyTooLarge);
        }
        let Self { app, head, body, .. } = self;
        let arriving = app.admission.admit_body(self.caller.key.id)?;
        let body = suspend(app, head, self.scope, timeout(app.body_timeout, body.read())).await?;
        drop(arriving);
        let body = body.unwrap_or(Err(ApiError::RequestTimeout))?;
        Ok(T::parse(&body)?)
    }
}

/// Waits for something that a client controls. The request gives up its permit meanwhile. After a wait, its key is checked again: it
/// may have been revoked, have expired or have lost the scope.
async fn suspend<T>(
    app: &AppState,
    head: &Parts,
    scope: Scope,
    wait: impl Future<Output = T>,
) -> Result<T, ApiError> {
    let mut wait = pin!(wait);
    // Most bodies arrive together with their head.
    if let Poll::Ready(outcome) = poll!(wait.as_mut()) {
        return Ok(outcome);
    }
    let waiting = app.admission.suspend();
    let outcome = wait.await;
    waiting.resume()?;
    if let Some(authorization) = required_authorization(head)? {
        let caller = app.keys.authenticate(authorization, None, &app.admission).await?;
        caller.check_scope(scope)?;
    }
    Ok(outcome)
}

/// Accepts one of the media types, alone or with `charset=utf-8`, and not compressed.
fn check_media_type(accepted: &'static [&'static str], headers: &HeaderMap) -> Result<(), ApiError> {
    let mut encodings = headers.get_all(header::CONTENT_ENCODING).iter().map(HeaderValue::as_bytes);
    if let Some(encoding) = encodings.find(|encoding| !encoding.eq_ignore_ascii_case(b"identity")) {
        return Err(ApiError::UnsupportedContentEncoding { sent: shown(&String::from_utf8_lossy(encoding)) });
    }
    let mut values = headers.get_all(header::CONTENT_TYPE).iter();
    let sent = match (values.next(), values.next()) {
        (Some(value), None) => String::from_utf8_lossy(value.as_bytes()),
        _ => "".into(),
    };
    let mut parts = sent.split(';').map(str::trim);
    let essence = parts.next().unwrap_or_default();
    // RFC 9110 allows empty parameters and quoted values.
    let is_utf8 = |parameter: &str| {
        ["", "charset=utf-8", "charset=\"utf-8\""].iter().any(|known| parameter.eq_ignore_ascii_case(known))
    };
    if accepted.iter().any(|known| essence.eq_ignore_ascii_case(known)) && parts.all(is_utf8) {
        Ok(())
    } else {
        Err(ApiError::UnsupportedMediaType { sent: shown(&sent), accepted })
    }
}

fn id_in_path<Id: TryFrom<i64>>(text: &str) -> Option<Id> {
    // Most often nothing is encoded.
    id_in_text(text).or_else(|| id_in_text(&percent_decode_str(text).decode_utf8().ok()?))
}

/// The id that a text in a path or query stands for.
pub(crate) fn id_in_text<Id: TryFrom<i64>>(text: &str) -> Option<Id> {
    decimal(text)?.try_into().ok()
}
