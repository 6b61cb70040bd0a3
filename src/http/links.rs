//! The URLs in responses.

use axum::http::HeaderValue;

use super::cursor::encode_cursor;
use crate::config::BaseUrl;
use crate::domain::order::OrderId;
use crate::domain::page::PageLimit;
use crate::domain::pet::PetId;

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
        ascii(&format!("{}/pets/{}", self.base, id.get()))
    }

    /// `Location` of an order.
    pub(crate) fn order(&self, id: OrderId) -> HeaderValue {
        ascii(&format!("{}/store/orders/{}", self.base, id.get()))
    }

    /// `Link` to the next page of a list, with the same filters and limit, if there is one. It starts after this id.
    pub(crate) fn next_page(
        &self,
        list: &str,
        limit: PageLimit,
        filters: Vec<(&'static str, String)>,
        after: Option<impl Into<i64>>,
    ) -> Option<HeaderValue> {
        let after = after?.into();
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("limit", &limit.get().to_string());
        query.extend_pairs(filters);
        query.append_pair("cursor", &encode_cursor(after));
        Some(ascii(&format!("<{}{list}?{}>; rel=\"next\"", self.base, query.finish())))
    }

    /// `Link` to the successor of getPet, for the requested pet.
    pub(crate) fn successor_of_get_pet(&self, id: Option<PetId>) -> HeaderValue {
        let query = id.map_or(String::new(), |id| format!("?id={}", id.get()));
        ascii(&format!("<{}/pets{query}>; rel=\"successor-version\"", self.base))
    }
}

fn ascii(text: &str) -> HeaderValue {
    // Only digits, known words and a base URL that was checked on startup: always a valid header value.
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}
