//! Enumerations whose members have one spelling: in JSON, in queries, on the command line and in the database.
//!
//! Not strum: its errors do not name the spellings.

/// Implements `ALL`, `as_str` and `FromStr` for an enumeration.
macro_rules! keywords {
    ($name:ident { $($member:ident => $keyword:literal),+ }, $error:ident) => {
        impl $name {
            /// Every member.
            pub const ALL: [Self; [$($keyword),+].len()] = [$(Self::$member),+];

            /// The spelling.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$member => $keyword),+
                }
            }
        }

        /// The text is none of the spellings.
        #[derive(Debug, thiserror::Error, PartialEq, Eq)]
        #[error("must be one of {}", $name::ALL.map(|member| format!("`{}`", member.as_str())).join(", "))]
        pub struct $error;

        impl std::str::FromStr for $name {
            type Err = $error;

            fn from_str(text: &str) -> Result<Self, $error> {
                match text {
                    $($keyword => Ok(Self::$member),)+
                    _ => Err($error),
                }
            }
        }
    };
}

pub(super) use keywords;
