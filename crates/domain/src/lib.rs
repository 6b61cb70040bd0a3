//! Types and rules of the business: pets, orders, pages of both, events, and API keys.
//!
//! **Guarantees:** a value of these types is valid, because its only constructor checks it.
//!
//! **Must not know** a clock, randomness, input or output, which the caller passes in, nor OpenAPI.
//!
//! Enums spell out their words: they are the wire format and the database's, and a `match` shows them at a glance.

pub mod api_key;
pub mod change;
pub mod event;
pub mod idempotency;
pub mod identifier;
pub mod import_key;
pub mod key_plan;
pub mod key_record;
pub mod keyword_enum;
pub mod metadata;
pub mod order;
pub mod page;
pub mod pet;
pub mod rate_limit;
pub mod reference;
mod short_text;
pub mod version;
