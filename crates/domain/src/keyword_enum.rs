//! Enumerations whose members have one spelling: in JSON, in queries, on the command line and in the database.
//!
//! Neither strum nor a derived `Deserialize`: their errors do not name the spellings as ours do.

/// Implements `ALL`, `as_str`, `FromStr` and serde's traits for an enumeration.
#[macro_export]
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

        impl From<$name> for &'static str {
            fn from(member: $name) -> Self {
                member.as_str()
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

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
