//! Writes JSON.

use serde::Serialize;

/// The media type of every body.
pub(crate) const MEDIA_TYPE: &str = "application/json";

/// Renders a body. The types of the interface are plain data, which always renders.
pub(crate) fn render(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).unwrap_or_default()
}

/// Appends a text as a JSON string.
pub(crate) fn write_string(json: &mut Vec<u8>, text: &str) {
    let plain = |byte: u8| byte >= b' ' && byte != b'"' && byte != b'\\';
    if text.bytes().all(plain) {
        json.push(b'"');
        json.extend_from_slice(text.as_bytes());
        json.push(b'"');
    } else {
        // Writing a text to memory cannot fail.
        let _ = serde_json::to_writer(json, text);
    }
}
