//! The URLs in responses.

use bytes::Bytes;
use hyper::header::HeaderValue;
use petstore_config::BaseUrl;
use petstore_domain::event::EventType;
use petstore_domain::order::OrderId;
use petstore_domain::page::PageLimit;
use petstore_domain::pet::PetId;

use super::cursor::encode_cursor;
use super::response::ascii_value;

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

    /// `Link` to the next page of a list, with the same filters and limit, if there is one. It starts after this id.
    pub(crate) fn next_page(
        &self,
        list: &str,
        limit: PageLimit,
        filters: Vec<(&'static str, String)>,
        after: Option<impl Into<i64>>,
    ) -> Option<Bytes> {
        let after = after?.into();
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("limit", &limit.get().to_string());
        query.extend_pairs(filters);
        query.append_pair("cursor", &encode_cursor(after));
        Some(self.text("<", &[list, "?", &query.finish(), ">; rel=\"next\""]))
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
