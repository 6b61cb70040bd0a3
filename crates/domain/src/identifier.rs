//! Identifiers: pets and orders have distinct types, so that one is never taken for the other.

/// The largest identifier that is issued: 2^53 − 1, the largest integer that JavaScript represents exactly.
pub const MAX_ISSUED: i64 = (1 << 53) - 1;

/// Declares an identifier type: at least 1, issued by the database in ascending order, never reused.
macro_rules! identifier {
    ($(#[$attribute:meta])* $name:ident, $error:ident) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "i64")]
        pub struct $name(i64);

        impl $name {
            /// The id as a number.
            #[must_use]
            pub fn get(self) -> i64 {
                self.0
            }
        }

        /// The number is less than 1.
        #[derive(Debug, thiserror::Error, PartialEq, Eq)]
        #[error("must be at least 1")]
        pub struct $error;

        impl TryFrom<i64> for $name {
            type Error = $error;

            fn try_from(id: i64) -> Result<Self, $error> {
                if id >= 1 { Ok(Self(id)) } else { Err($error) }
            }
        }

        impl From<$name> for i64 {
            fn from(id: $name) -> i64 {
                id.0
            }
        }
    };
}

pub(super) use identifier;

#[cfg(test)]
mod tests {
    #[test]
    fn the_largest_id_is_the_largest_safe_integer_of_javascript() {
        assert_eq!(super::MAX_ISSUED, 9_007_199_254_740_991);
    }
}
