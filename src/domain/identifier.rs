//! What identifiers have in common: those of pets and of orders are numbers, but never each other's.

/// The largest identifier given out: 2^53 − 1, which JavaScript still holds exactly.
pub const MAX_ISSUED: i64 = (1 << 53) - 1;

/// Declares an identifier: at least 1, given out by the database, growing, never reused.
macro_rules! identifier {
    ($(#[$words:meta])* $name:ident, $error:ident, $message:literal) => {
        $(#[$words])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(i64);

        impl $name {
            /// The id as a number.
            #[must_use]
            pub fn get(self) -> i64 {
                self.0
            }
        }

        /// The number is too small to be one.
        #[derive(Debug, thiserror::Error, PartialEq, Eq)]
        #[error($message)]
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
