//! The record of an API key: its scopes, its expiry, its state, and its audit log.

use std::str::FromStr;
use std::time::{Duration, SystemTime};

use thiserror::Error;

use super::rate_limit::RateLimit;
use super::short_text::is_short_text;
use crate::keywords;

/// Identifier of a key, safe to show and to log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyId(pub i64);

/// The name of a key: 1 to 100 characters, not blank, no control characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyName(String);

impl KeyName {
    /// The name as given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The text is not a key's name.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("a key's name must have 1 to 100 characters, not all white space, and no control characters")]
pub struct KeyNameError;

impl FromStr for KeyName {
    type Err = KeyNameError;

    fn from_str(name: &str) -> Result<Self, KeyNameError> {
        if is_short_text(name, 100) { Ok(Self(name.to_owned())) } else { Err(KeyNameError) }
    }
}

/// A permission that a key can have. A new key has all of them by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// List and fetch pets.
    PetsRead,
    /// Add and change pets.
    PetsWrite,
    /// List and fetch orders.
    OrdersRead,
    /// Place, complete and cancel orders.
    OrdersWrite,
    /// Follow the changes of pets and orders.
    EventsRead,
}

keywords!(
    Scope {
        PetsRead => "pets:read",
        PetsWrite => "pets:write",
        OrdersRead => "orders:read",
        OrdersWrite => "orders:write",
        EventsRead => "events:read"
    },
    ScopeError
);

/// A key that is neither revoked nor expired, as a node needs it to authenticate a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveKey {
    /// Its identifier.
    pub id: KeyId,
    /// The first key of its lineage; itself if it is that key. Idempotency keys belong to the lineage, so that a retry with the
    /// rotated key is recognised, and so do rate limits.
    pub lineage: KeyId,
    /// Its permissions.
    pub scopes: Vec<Scope>,
    /// How long after its lookup it stops working. The database measures it: the clocks of nodes may differ.
    pub expires_in: Option<Duration>,
    /// Its own rate limit.
    pub rate_limit: Option<RateLimit>,
}

/// A key to be issued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewKey {
    /// Its name.
    pub name: KeyName,
    /// Its permissions.
    pub scopes: Vec<Scope>,
    /// When it stops working.
    pub expires_at: Option<SystemTime>,
    /// Its own rate limit.
    pub rate_limit: Option<RateLimit>,
}

/// Everything stored about a key. The key itself is not stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    /// Its identifier.
    pub id: KeyId,
    /// The start of the key as issued.
    pub prefix: String,
    /// Its name.
    pub name: String,
    /// Its permissions, as text: a newer version may have added some.
    pub scopes: Vec<String>,
    /// When it was issued.
    pub created_at: SystemTime,
    /// When it stops working.
    pub expires_at: Option<SystemTime>,
    /// When it was revoked.
    pub revoked_at: Option<SystemTime>,
    /// When it was last used, to the minute.
    pub last_used_at: Option<SystemTime>,
    /// Its own rate limit.
    pub rate_limit: Option<RateLimit>,
}

/// Whether a key works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyState {
    /// It works.
    Active,
    /// Its expiry has passed.
    Expired,
    /// An operator revoked it.
    Revoked,
}

impl KeyState {
    /// The state of a key at this time.
    #[must_use]
    pub fn at(now: SystemTime, expires_at: Option<SystemTime>, revoked_at: Option<SystemTime>) -> Self {
        if revoked_at.is_some() {
            Self::Revoked
        } else if expires_at.is_some_and(|end| end <= now) {
            Self::Expired
        } else {
            Self::Active
        }
    }

    /// The state in the output of `petstore keys`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
        }
    }
}

impl KeyRecord {
    /// The state of the key at this time.
    #[must_use]
    pub fn state(&self, now: SystemTime) -> KeyState {
        KeyState::at(now, self.expires_at, self.revoked_at)
    }
}

/// Who issues, changes, rotates or revokes a key: 1 to 200 characters, not blank, no control characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor(String);

impl Actor {
    /// The name as given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The text is not a valid name.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("the actor's name must have 1 to 200 characters, not all white space, and no control characters")]
pub struct ActorError;

impl FromStr for Actor {
    type Err = ActorError;

    fn from_str(name: &str) -> Result<Self, ActorError> {
        if is_short_text(name, 200) { Ok(Self(name.to_owned())) } else { Err(ActorError) }
    }
}

/// An entry of a key's audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyEvent {
    /// When.
    pub happened_at: SystemTime,
    /// What: `created`, `changed`, `rotated` or `revoked`.
    pub action: String,
    /// Who did it.
    pub actor: String,
    /// The new key, if this one was rotated.
    pub successor: Option<KeyId>,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_scope_is_parsed_from_its_exact_word_only() {
        for scope in Scope::ALL {
            assert_eq!(scope.as_str().parse(), Ok(scope));
        }
        assert_eq!("pets".parse::<Scope>(), Err(ScopeError));
    }

    #[test]
    fn a_key_is_active_until_it_expires_or_is_revoked() {
        let [before, then, after] =
            [0, 1, 2].map(|second| SystemTime::UNIX_EPOCH + Duration::from_secs(second));
        let record = |expires_at, revoked_at| KeyRecord {
            id: KeyId(1),
            prefix: String::new(),
            name: String::new(),
            scopes: Vec::new(),
            created_at: before,
            expires_at,
            revoked_at,
            last_used_at: None,
            rate_limit: None,
        };
        assert_eq!(record(None, None).state(after), KeyState::Active);
        assert_eq!(record(Some(then), None).state(before), KeyState::Active);
        assert_eq!(record(Some(then), None).state(then), KeyState::Expired);
        assert_eq!(record(Some(then), Some(before)).state(after), KeyState::Revoked);
        let states = [KeyState::Active, KeyState::Expired, KeyState::Revoked];
        assert_eq!(states.map(KeyState::as_str), ["active", "expired", "revoked"]);
    }

    #[test]
    fn an_actor_is_kept_as_given_and_has_1_to_200_characters() {
        for good in ["anna@shop", " anna ", &"x".repeat(200)] {
            assert_eq!(good.parse::<Actor>().unwrap().as_str(), good);
        }
        for bad in ["", " ", "a\nb", &"x".repeat(201)] {
            assert_eq!(bad.parse::<Actor>(), Err(ActorError), "{bad:?}");
        }
    }

    #[test]
    fn a_key_name_is_not_blank_and_has_at_most_100_characters() {
        assert_eq!("shop".parse::<KeyName>().unwrap().as_str(), "shop");
        for name in ["", " ", "a\nb", &"x".repeat(101)] {
            assert_eq!(name.parse::<KeyName>(), Err(KeyNameError), "{name:?}");
        }
    }
}
