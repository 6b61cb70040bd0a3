//! What is known of a key: what it allows, when it ends, and what was done to it.

use std::str::FromStr;
use std::time::SystemTime;

use thiserror::Error;

use super::rate_limit::RateLimit;

/// Identifier of a key, safe to show and to log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyId(pub i64);

/// What a key was issued for: 1 to 100 characters, not blank, no control characters.
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
#[error("a key's name has 1 to 100 characters, is not blank and has no control characters")]
pub struct KeyNameError;

impl FromStr for KeyName {
    type Err = KeyNameError;

    fn from_str(name: &str) -> Result<Self, KeyNameError> {
        if is_label(name, 100) { Ok(Self(name.to_owned())) } else { Err(KeyNameError) }
    }
}

/// Text for people, on one line.
fn is_label(text: &str, longest: usize) -> bool {
    let blank = text.chars().all(char::is_whitespace);
    !blank && text.chars().count() <= longest && !text.chars().any(char::is_control)
}

/// One right that a key can carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// List and fetch pets.
    PetsRead,
    /// Add pets.
    PetsWrite,
    /// List and fetch orders.
    OrdersRead,
    /// Place orders.
    OrdersWrite,
}

impl Scope {
    /// Every scope: what a key carries unless told otherwise.
    pub const ALL: [Self; 4] = [Self::PetsRead, Self::PetsWrite, Self::OrdersRead, Self::OrdersWrite];

    /// The word for this scope.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PetsRead => "pets:read",
            Self::PetsWrite => "pets:write",
            Self::OrdersRead => "orders:read",
            Self::OrdersWrite => "orders:write",
        }
    }
}

/// The text is not the word for a scope.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("a scope is one of `pets:read`, `pets:write`, `orders:read`, `orders:write`")]
pub struct ScopeError;

impl FromStr for Scope {
    type Err = ScopeError;

    fn from_str(word: &str) -> Result<Self, ScopeError> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == word).ok_or(ScopeError)
    }
}

/// A key that was issued and not revoked: what a node needs to know to let its holder in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedKey {
    /// Its identifier.
    pub id: KeyId,
    /// The first key of the rotations that made it: itself, if none did. What is remembered of requests belongs to it.
    pub lineage: KeyId,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// From when on it opens nothing any more.
    pub expires_at: Option<SystemTime>,
    /// How often it may ask.
    pub rate_limit: Option<RateLimit>,
}

impl IssuedKey {
    /// Whether the key has ended by itself.
    #[must_use]
    pub fn expired(&self, now: SystemTime) -> bool {
        self.expires_at.is_some_and(|end| end <= now)
    }
}

/// What a key is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewKey {
    /// What it is for.
    pub name: KeyName,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// From when on it opens nothing any more.
    pub expires_at: Option<SystemTime>,
    /// How often it may ask.
    pub rate_limit: Option<RateLimit>,
}

/// Everything that is known of a key, but for the key itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    /// Its identifier.
    pub id: KeyId,
    /// The start of the key as issued.
    pub prefix: String,
    /// What it is for.
    pub name: String,
    /// What it may do, in words: some may be of a newer version.
    pub scopes: Vec<String>,
    /// When it was issued.
    pub created_at: SystemTime,
    /// From when on it opens nothing any more.
    pub expires_at: Option<SystemTime>,
    /// When it was revoked.
    pub revoked_at: Option<SystemTime>,
    /// When it was used last, to the minute.
    pub last_used_at: Option<SystemTime>,
    /// How often it may ask.
    pub rate_limit: Option<RateLimit>,
}

/// Whether a key opens anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyState {
    /// It does.
    Active,
    /// It ended by itself.
    Expired,
    /// It was taken back.
    Revoked,
}

impl KeyState {
    /// The word for this state.
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
    /// Whether the key opens anything now.
    #[must_use]
    pub fn state(&self, now: SystemTime) -> KeyState {
        if self.revoked_at.is_some() {
            KeyState::Revoked
        } else if self.expires_at.is_some_and(|end| end <= now) {
            KeyState::Expired
        } else {
            KeyState::Active
        }
    }
}

/// Who does something to a key: 1 to 200 characters, not blank, no control characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor(String);

impl Actor {
    /// The name as given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The text names nobody.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("whoever does this needs a name of 1 to 200 characters, not blank and without control characters")]
pub struct ActorError;

impl FromStr for Actor {
    type Err = ActorError;

    fn from_str(name: &str) -> Result<Self, ActorError> {
        if is_label(name, 200) { Ok(Self(name.to_owned())) } else { Err(ActorError) }
    }
}

/// One thing that was done to a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyEvent {
    /// When.
    pub happened_at: SystemTime,
    /// What: `created`, `rotated` or `revoked`.
    pub action: String,
    /// By whom.
    pub actor: String,
    /// The key that takes its place, if it was rotated.
    pub successor: Option<KeyId>,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_scope_has_exactly_one_word() {
        for scope in Scope::ALL {
            assert_eq!(scope.as_str().parse(), Ok(scope));
        }
        assert_eq!("pets".parse::<Scope>(), Err(ScopeError));
    }

    #[test]
    fn a_key_is_active_until_it_is_revoked_or_its_time_has_come() {
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
    }

    #[test]
    fn a_key_name_is_neither_blank_nor_too_long() {
        assert!("shop".parse::<KeyName>().is_ok());
        for name in ["", " ", "a\nb", &"x".repeat(101)] {
            assert_eq!(name.parse::<KeyName>(), Err(KeyNameError), "{name:?}");
        }
    }
}
