//! The API key: its format and its digest.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};
use thiserror::Error;

const TAG: &str = "psk_";
const SECRET_CHARS: usize = 32;
const CHECKSUM_CHARS: usize = 6;
const PREFIX_CHARS: usize = TAG.len() + 6;
const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// An API key: `psk_`, 32 random base62 characters, and the CRC-32 of all that in 6 more.
///
/// Secret scanners find a leaked key by its fixed start. The checksum rejects a mistyped key without a database
/// lookup. The key is a secret: it has no `Display`, and its `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ApiKey(String);

impl ApiKey {
    /// Generates a key from uniformly random bytes.
    pub fn generate(random_byte: impl FnMut() -> u8) -> Self {
        let secret = std::iter::repeat_with(random_byte)
            // Rejection sampling: values above 61 would favour some characters.
            .filter_map(|byte| BASE62.get(usize::from(byte & 0b11_1111)))
            .take(SECRET_CHARS)
            .map(|&character| char::from(character));
        let mut key: String = TAG.chars().chain(secret).collect();
        let checksum = checksum(&key);
        key.push_str(&checksum);
        Self(key)
    }

    /// The key in plain text. Only for handing it to its owner.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What the database stores instead of the key.
    #[must_use]
    pub fn digest(&self) -> KeyDigest {
        KeyDigest(Sha256::digest(self.0.as_bytes()).into())
    }

    /// The start of the key, to recognise it by: 6 of its 32 random characters, too few to guess the rest.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.0[..PREFIX_CHARS]
    }
}

impl Borrow<str> for ApiKey {
    /// To find a key in a map by its text.
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ApiKey(REDACTED)")
    }
}

/// The text is not an API key: its format or its checksum is wrong.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("not an API key")]
pub struct ApiKeyError;

impl FromStr for ApiKey {
    type Err = ApiKeyError;

    fn from_str(text: &str) -> Result<Self, ApiKeyError> {
        let characters = text.strip_prefix(TAG).ok_or(ApiKeyError)?;
        if characters.len() != SECRET_CHARS + CHECKSUM_CHARS
            || !characters.bytes().all(|byte| byte.is_ascii_alphanumeric())
        {
            return Err(ApiKeyError);
        }
        let (checked, given) = text.split_at(TAG.len() + SECRET_CHARS);
        if given == checksum(checked) { Ok(Self(text.to_owned())) } else { Err(ApiKeyError) }
    }
}

fn checksum(text: &str) -> String {
    let mut rest = crc32fast::hash(text.as_bytes()) as usize;
    let mut characters = [b'0'; CHECKSUM_CHARS];
    for character in characters.iter_mut().rev() {
        *character = BASE62[rest % BASE62.len()];
        rest /= BASE62.len();
    }
    characters.into_iter().map(char::from).collect()
}

/// SHA-256 of a key. A key has 190 random bits and cannot be guessed, so a fast digest is enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyDigest([u8; 32]);

impl KeyDigest {
    /// The bytes, for the database.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The digest with these bytes, if there are 32.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Display for KeyDigest {
    /// In hexadecimal digits, as `sha256sum` prints it.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

/// The text is not the digest of a key. The message does not repeat it: it may be the key itself.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "must be the SHA-256 of the key in 64 hexadecimal digits, as `printf %s \"$KEY\" | sha256sum` prints it"
)]
pub struct KeyDigestError;

impl FromStr for KeyDigest {
    type Err = KeyDigestError;

    fn from_str(text: &str) -> Result<Self, KeyDigestError> {
        let mut digest = [0; 32];
        let pairs = text.as_bytes().chunks_exact(2);
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(KeyDigestError);
        }
        for (byte, pair) in digest.iter_mut().zip(pairs) {
            let pair = str::from_utf8(pair).map_err(|_| KeyDigestError)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| KeyDigestError)?;
        }
        Ok(Self(digest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> ApiKey {
        let mut byte = 0_u8;
        ApiKey::generate(|| {
            byte = byte.wrapping_mul(5).wrapping_add(7);
            byte
        })
    }

    #[test]
    fn a_generated_key_can_be_parsed() {
        let key = key();
        assert_eq!(key.reveal().len(), 42);
        assert!(key.reveal().starts_with(key.prefix()));
        assert_eq!(Borrow::<str>::borrow(&key), key.reveal());
        assert_eq!(key.reveal().parse(), Ok(key));
    }

    #[test]
    fn the_format_of_a_key_is_frozen() {
        let key = ApiKey::generate(|| 0);
        assert_eq!(key.reveal(), "psk_000000000000000000000000000000000Dqkal");
        assert_eq!(key.prefix(), "psk_000000");
    }

    #[test]
    fn a_key_with_one_wrong_character_is_rejected() {
        let key = key();
        for position in 0..key.reveal().len() {
            let mut mistyped = key.reveal().to_owned();
            let other = if mistyped.as_bytes()[position] == b'x' { "y" } else { "x" };
            mistyped.replace_range(position..=position, other);
            assert_eq!(mistyped.parse::<ApiKey>(), Err(ApiKeyError), "{mistyped}");
        }
    }

    #[test]
    fn text_in_another_format_is_rejected() {
        for text in ["", "psk_", "psk_short", &"é".repeat(21), &format!("{} ", key().reveal())] {
            assert_eq!(text.parse::<ApiKey>(), Err(ApiKeyError), "{text:?}");
        }
    }

    #[test]
    fn a_digest_is_written_as_by_sha256sum() {
        // printf %s psk_000000000000000000000000000000000Dqkal | sha256sum
        let text = "314cf5f99114f97b1baab841c6f585ebfd8957b700cd27bd9d33123fa54769a9";
        let digest = ApiKey::generate(|| 0).digest();
        assert_eq!(digest.to_string(), text);
        assert_eq!(text.parse(), Ok(digest));
        assert_eq!(text.to_uppercase().parse(), Ok(digest));
        assert_eq!(KeyDigest::from_bytes(digest.as_bytes()), Some(digest));
        for bad in ["", &text[1..], &format!("{text}0"), &format!("{text}  -"), &format!("+{}", &text[1..])] {
            assert_eq!(bad.parse::<KeyDigest>(), Err(KeyDigestError), "{bad:?}");
        }
    }

    #[test]
    fn debug_does_not_show_the_key() {
        assert_eq!(format!("{:?}", key()), "ApiKey(REDACTED)");
    }

    #[test]
    fn bytes_that_would_favour_a_character_are_skipped() {
        let mut bytes = [62, 63, 1].into_iter().cycle();
        let key = ApiKey::generate(|| bytes.next().unwrap());
        assert!(key.reveal().starts_with("psk_11111111111111111111111111111111"));
    }
}
