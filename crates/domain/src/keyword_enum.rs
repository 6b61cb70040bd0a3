//! Enumerations whose members have one spelling: in JSON, in queries, on the command line and in the database.
//!
//! Neither strum nor a derived `Deserialize`: their errors do not name the spellings as ours do.

use utoipa::openapi::extensions::ExtensionsBuilder;
use utoipa::openapi::{Object, ObjectBuilder, Type};

/// Implements `ALL`, `as_str` and `FromStr` for an enumeration; with a description also serde's traits and the schema.
#[macro_export]
macro_rules! keywords {
    ($name:ident { $($member:ident => $keyword:literal),+ }, $error:ident, $schema:ident $description:literal) => {
        $crate::keywords!($name { $($member => $keyword),+ }, $error);

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

        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                $crate::keyword_enum::$schema($description, Self::ALL.map(Self::as_str)).into()
            }
        }

        impl utoipa::ToSchema for $name {}
    };
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
    };
}

/// The schema of one of these keywords.
#[must_use]
pub fn closed<const N: usize>(description: &str, keywords: [&str; N]) -> Object {
    let schema = ObjectBuilder::new().schema_type(Type::String).description(Some(description));
    schema.enum_values(Some(keywords)).build()
}

/// The schema of a keyword to which others may be added: generated clients accept those, too.
#[must_use]
pub fn open<const N: usize>(description: &str, known: [&str; N]) -> Object {
    let schema = ObjectBuilder::new().schema_type(Type::String).description(Some(description));
    let known = ExtensionsBuilder::new().add("x-extensible-enum", known.to_vec()).build();
    schema.extensions(Some(known)).build()
}
