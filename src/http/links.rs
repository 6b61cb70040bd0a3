//! The URLs in responses, and the pagination cursor.

use axum::http::HeaderValue;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

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

/// The first byte of a cursor, so that its format can change without misreading old cursors.
const CURSOR_VERSION: u8 = 1;

/// The cursor of the page that starts after this id. It is opaque to clients but not secret: it grants nothing.
fn encode_cursor(after: i64) -> String {
    let mut bytes = [CURSOR_VERSION; 9];
    bytes[1..].copy_from_slice(&after.to_be_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The id in a cursor that [`encode_cursor`] made.
pub(crate) fn decode_cursor<Id: TryFrom<i64>>(cursor: &str) -> Option<Id> {
    let bytes: [u8; 9] = URL_SAFE_NO_PAD.decode(cursor).ok()?.try_into().ok()?;
    let [CURSOR_VERSION, id @ ..] = bytes else {
        return None;
    };
    i64::from_be_bytes(id).try_into().ok()
}

fn ascii(text: &str) -> HeaderValue {
    // Only digits, known words and a base URL that was checked on startup: always a valid header value.
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::identifier::MAX_ISSUED;

    fn id(number: i64) -> PetId {
        number.try_into().unwrap()
    }

    #[test]
    fn a_cursor_is_read_back() {
        for number in [1, 20, MAX_ISSUED, i64::MAX] {
            assert_eq!(decode_cursor(&encode_cursor(number)), Some(id(number)));
        }
    }

    #[test]
    fn the_format_of_a_cursor_is_frozen() {
        assert_eq!(encode_cursor(20), "AQAAAAAAAAAU");
    }

    #[test]
    fn what_is_not_a_cursor_is_refused() {
        for text in [
            "",
            "20",
            "AQAAAAAAAAAU=",
            "AQAAAAAAAAAUAA",
            "AgAAAAAAAAAU",
            "AQAAAAAAAAAA",
            "AYAAAAAAAAAU",
            "AQ/AAAAAAAAU",
            "AQAAAAAAAAA ",
        ] {
            assert_eq!(decode_cursor::<PetId>(text), None, "{text:?}");
        }
    }
}
