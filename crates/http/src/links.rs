//! The URLs in responses.

use bytes::Bytes;
use hyper::header::HeaderValue;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use petstore_config::BaseUrl;
use petstore_domain::event::EventType;
use petstore_domain::order::OrderId;
use petstore_domain::page::{PageLimit, PageRequest, SortOrder};
use petstore_domain::pet::PetId;

use super::cursor::encode_cursor;
use super::error::ApiError;
use super::response::ascii_value;

/// The maximum size of path and query together.
pub(crate) const MAX_URI_BYTES: usize = 8 * 1024;

/// What a value in a query is encoded for: everything except what the query of a URL may contain and nobody takes for a separator,
/// not even of several links in one header. So a link is hardly ever longer than the request. Spaces become `+`.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b' ')
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'!')
    .remove(b'$')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'/')
    .remove(b':')
    .remove(b'?')
    .remove(b'@');

/// Builds URLs: below the public base URL if the operator set one, else relative to the host.
pub(crate) struct Links {
    base: String,
}

impl Links {
    pub(crate) fn new(public: Option<&BaseUrl>) -> Self {
        Self { base: public.map_or("/v1", BaseUrl::as_str).to_owned() }
    }

    /// `Location` of a pet.
    pub(crate) fn pet(&self, id: PetId) -> HeaderValue {
        self.url("", &["/pets/", itoa::Buffer::new().format(id.get())])
    }

    /// `Location` of an order.
    pub(crate) fn order(&self, id: OrderId) -> HeaderValue {
        self.url("", &["/store/orders/", itoa::Buffer::new().format(id.get())])
    }

    /// `Link` to the next page of a list, with the same filters, order and limit, if there is one. It starts after this id. An
    /// error if the service would refuse the link because of its length.
    pub(crate) fn next_page<Filter, Id: Into<i64>>(
        &self,
        list: &str,
        request: &PageRequest<Filter, Id>,
        filters: Vec<(&'static str, String)>,
        after: Option<Id>,
    ) -> Result<Option<Bytes>, ApiError> {
        let Some(after) = after else { return Ok(None) };
        let mut query = format!("?limit={}", request.limit.get());
        for (name, value) in filters {
            let value = utf8_percent_encode(&value, ENCODED).to_string().replace(' ', "+");
            query.extend(["&", name, "=", &value]);
        }
        // Left out by default, so that the link is short.
        if request.sort != SortOrder::default() {
            query.extend(["&sort=", request.sort.as_str()]);
        }
        query.extend(["&cursor=", &encode_cursor(after.into())]);
        if "/v1".len() + list.len() + query.len() > MAX_URI_BYTES {
            return Err(ApiError::NextPageTooLong);
        }
        Ok(Some(self.text("<", &[list, &query, ">; rel=\"next\""])))
    }

    /// `Link` to the next page of the feed.
    pub(crate) fn next_events(&self, limit: PageLimit, wait: u64, types: &[EventType], after: &str) -> Bytes {
        let (mut limit_digits, mut wait_digits) = (itoa::Buffer::new(), itoa::Buffer::new());
        let limit = limit_digits.format(limit.get());
        let wait = if wait == 0 { ["", ""] } else { ["&wait=", wait_digits.format(wait)] };
        let types: String = types.iter().flat_map(|name| ["&type=", name.as_str()]).collect();
        self.text(
            "<",
            &["/events?limit=", limit, wait[0], wait[1], &types, "&after=", after, ">; rel=\"next\""],
        )
    }

    /// `Link` to the successor of getPet, for the requested pet.
    pub(crate) fn successor_of_get_pet(&self, id: Option<PetId>) -> HeaderValue {
        let (mut digits, end) = (itoa::Buffer::new(), ">; rel=\"successor-version\"");
        match id {
            Some(id) => self.url("<", &["/pets?id=", digits.format(id.get()), end]),
            None => self.url("<", &["/pets", end]),
        }
    }

    /// The same as [`text`](Self::text), as a header value: digits, known words and a base URL that was checked on startup.
    fn url(&self, before: &str, after: &[&str]) -> HeaderValue {
        ascii_value(self.text(before, after))
    }

    /// The base URL, with what comes before and after it.
    fn text(&self, before: &str, after: &[&str]) -> Bytes {
        let mut text = String::with_capacity(128);
        text.push_str(before);
        text.push_str(&self.base);
        for part in after {
            text.push_str(part);
        }
        text.into()
    }
}
