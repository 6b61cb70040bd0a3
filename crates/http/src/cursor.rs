//! The pagination cursor.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::error::ApiError;

/// The first byte of a cursor, so that its format can change without misreading old cursors.
const CURSOR_VERSION: u8 = 1;

/// The cursor of the page that starts after this id. It is opaque to clients but not secret: it grants nothing.
pub(crate) fn encode_cursor(after: i64) -> String {
    let mut bytes = [CURSOR_VERSION; 9];
    bytes[1..].copy_from_slice(&after.to_be_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The id in a cursor that [`encode_cursor`] made.
fn decode_cursor<Id: TryFrom<i64>>(cursor: &str) -> Option<Id> {
    let bytes: [u8; 9] = URL_SAFE_NO_PAD.decode(cursor).ok()?.try_into().ok()?;
    let [CURSOR_VERSION, id @ ..] = bytes else {
        return None;
    };
    i64::from_be_bytes(id).try_into().ok()
}

/// What the page begins after, by the `cursor` of a query.
pub(crate) fn after_cursor<Id: TryFrom<i64>>(cursor: Option<&str>) -> Result<Option<Id>, ApiError> {
    cursor.map(|cursor| decode_cursor(cursor).ok_or(ApiError::InvalidCursor)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use petstore_domain::identifier::MAX_ISSUED;
    use petstore_domain::pet::PetId;

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
