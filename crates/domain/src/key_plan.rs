//! The plan of `petstore keys apply`: the steps from the keys that are current to those that a file declares.
//!
//! A key is current if it is neither revoked nor expired. An entry of the file is found by its name. A key that is being
//! replaced by rotation and its successor share name and lineage: together they are one entry, and the newest counts.
//!
//! **Invariants:**
//! - when a plan is carried out, planning again finds no steps;
//! - all current keys of an entry have its scopes and its rate limit, and none of them outlives its expiry. A key that is being
//!   replaced loses a right at the same time as its successor.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use thiserror::Error;

use super::api_key::KeyDigest;
use super::key_record::{KeyId, KeyState, NewKey};
use super::rate_limit::RateLimit;

/// A key that a file declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredKey {
    /// Its name and its terms.
    pub key: NewKey,
    /// Which key it is.
    pub identity: DeclaredKeyIdentity,
}

/// Which key an entry of a file stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeclaredKeyIdentity {
    /// The key with this digest. The key itself is kept elsewhere.
    Digest(KeyDigest),
    /// Whichever key has the name. If there is none, this one is issued.
    Named {
        /// The start of the key.
        prefix: String,
        /// Its digest.
        digest: KeyDigest,
    },
}

impl DeclaredKey {
    /// The name of the entry.
    #[must_use]
    pub fn name(&self) -> &str {
        self.key.name.as_str()
    }

    /// The digest that the file has, if any.
    #[must_use]
    pub fn declared_digest(&self) -> Option<KeyDigest> {
        match self.identity {
            DeclaredKeyIdentity::Digest(digest) => Some(digest),
            DeclaredKeyIdentity::Named { .. } => None,
        }
    }

    /// The prefix and the digest to store. Of a key that is kept elsewhere, the start of the digest replaces the prefix.
    #[must_use]
    pub fn stored(&self) -> (String, KeyDigest) {
        match &self.identity {
            DeclaredKeyIdentity::Digest(digest) => (format!("sha256:{:.6}", digest.to_string()), *digest),
            DeclaredKeyIdentity::Named { prefix, digest } => (prefix.clone(), *digest),
        }
    }

    /// What the entry's key may do, and until when.
    #[must_use]
    pub fn terms(&self) -> KeyTerms {
        let NewKey { scopes, expires_at, rate_limit, .. } = &self.key;
        let scopes = scopes.iter().map(|scope| scope.as_str().to_owned()).collect();
        KeyTerms { scopes, expires_at: *expires_at, rate_limit: *rate_limit }
    }
}

/// What a key may do, and until when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyTerms {
    /// Its permissions, as text: a newer version may have added some.
    pub scopes: Vec<String>,
    /// When it stops working.
    pub expires_at: Option<SystemTime>,
    /// Its own rate limit.
    pub rate_limit: Option<RateLimit>,
}

impl KeyTerms {
    /// Whether both permit the same: the order of the scopes does not matter.
    #[must_use]
    pub fn has_same_rights(&self, other: &Self) -> bool {
        let scopes = |terms: &'_ Self| terms.scopes.iter().cloned().collect::<BTreeSet<_>>();
        self.rate_limit == other.rate_limit && scopes(self) == scopes(other)
    }

    /// Whether both expire in the same second: times are shown and written to the second.
    #[must_use]
    pub fn has_same_expiry(&self, other: &Self) -> bool {
        seconds(self.expires_at) == seconds(other.expires_at)
    }
}

/// A key that is neither revoked nor expired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CurrentKey {
    /// Its identifier.
    pub id: KeyId,
    /// The first key in its chain of rotations.
    pub lineage: KeyId,
    /// Its name.
    pub name: String,
    /// The digest of the key.
    pub digest: KeyDigest,
    /// What it may do, and until when.
    pub terms: KeyTerms,
}

/// The key, current or not, that has one of the declared digests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyWithDigest {
    /// Its identifier.
    pub id: KeyId,
    /// Its name.
    pub name: String,
    /// The digest.
    pub digest: KeyDigest,
    /// Whether it works.
    pub state: KeyState,
}

/// One step of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyStep {
    /// Issue a key.
    Create {
        /// Its entry.
        declared: DeclaredKey,
    },
    /// Change the terms of a key in place.
    Change {
        /// The key as it is.
        key: CurrentKey,
        /// Its new terms.
        terms: KeyTerms,
    },
    /// Issue a key with the entry's digest in the lineage of another, and let that one expire or revoke it.
    Rotate {
        /// The key that is replaced, as it is.
        key: CurrentKey,
        /// When it expires; none if it is revoked.
        until: Option<SystemTime>,
        /// The entry of the new one.
        declared: DeclaredKey,
    },
    /// Revoke a key.
    Revoke {
        /// The key as it is.
        key: CurrentKey,
    },
}

/// The steps that lead to the declared keys, and what they leave alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyPlan {
    /// In this order.
    pub steps: Vec<KeyStep>,
    /// Current keys that the file does not declare.
    pub undeclared: Vec<CurrentKey>,
    /// Entries whose expiry has passed, and whose keys have expired.
    pub expired: Vec<DeclaredKey>,
}

/// Why there is no plan.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum KeyPlanError {
    /// Separately issued keys have the same name.
    #[error(
        "the keys {0} and {1} are both named `{2}` and neither replaces the other: revoke one of them with \
         `petstore keys revoke`"
    )]
    Ambiguous(i64, i64, String),
    /// The entry's expiry has passed, but its key still works.
    #[error(
        "the expiry of `{0}` has passed, but key {1} still works: to revoke it, remove the entry and use --prune; to keep it, \
         declare a later expiry"
    )]
    ExpiryPassed(String, i64),
    /// The entry has the digest of a key that was replaced.
    #[error(
        "`{0}` has the digest of key {1}, which key {2} replaced: declare the digest of key {2}, or of a new key"
    )]
    Replaced(String, i64, i64),
    /// The entry has the digest of another key.
    #[error(
        "`{0}` has the digest of key {1}, which is named `{2}` and {3}: generate another key, and declare its digest"
    )]
    DigestTaken(String, i64, String, &'static str),
}

/// How to plan.
#[derive(Debug, Clone, Copy)]
pub struct PlanOptions {
    /// The time.
    pub now: SystemTime,
    /// Whether to revoke the keys that the file does not declare.
    pub prune: bool,
    /// For how long a key works after another digest was declared.
    pub overlap: Duration,
}

/// Compares the declared keys with those that are current, which are in the order of their ids. `holders` are all keys that
/// have a declared digest.
pub fn plan(
    declared: &[DeclaredKey],
    current: &[CurrentKey],
    holders: &[KeyWithDigest],
    options: PlanOptions,
) -> Result<KeyPlan, KeyPlanError> {
    let mut plan = KeyPlan::default();
    for entry in declared {
        let keys: Vec<&CurrentKey> = current.iter().filter(|key| key.name == entry.name()).collect();
        plan.add_entry(entry, &keys, holders, options)?;
    }
    let names: BTreeSet<&str> = declared.iter().map(DeclaredKey::name).collect();
    let undeclared = current.iter().filter(|key| !names.contains(&*key.name)).cloned();
    if options.prune {
        plan.steps.extend(undeclared.map(|key| KeyStep::Revoke { key }));
    } else {
        plan.undeclared.extend(undeclared);
    }
    Ok(plan)
}

impl KeyPlan {
    fn add_entry(
        &mut self,
        entry: &DeclaredKey,
        keys: &[&CurrentKey],
        holders: &[KeyWithDigest],
        options: PlanOptions,
    ) -> Result<(), KeyPlanError> {
        let name = entry.name();
        let has_expired = entry.key.expires_at.is_some_and(|end| end <= options.now);
        let holder = holders.iter().find(|holder| entry.declared_digest() == Some(holder.digest));
        let Some((newest, older)) = keys.split_last() else {
            if has_expired {
                self.expired.push(entry.clone());
                return Ok(());
            }
            check_unused(name, holder)?;
            self.steps.push(KeyStep::Create { declared: entry.clone() });
            return Ok(());
        };
        if let Some(other) = older.iter().rev().find(|key| key.lineage != newest.lineage) {
            return Err(KeyPlanError::Ambiguous(other.id.0, newest.id.0, name.to_owned()));
        }
        if has_expired {
            return Err(KeyPlanError::ExpiryPassed(name.to_owned(), newest.id.0));
        }
        for key in older {
            self.change(key, limited(entry, key));
        }
        if entry.declared_digest().is_none_or(|digest| digest == newest.digest) {
            self.change(newest, entry.terms());
            return Ok(());
        }
        if let Some(replaced) = older.iter().find(|key| entry.declared_digest() == Some(key.digest)) {
            return Err(KeyPlanError::Replaced(name.to_owned(), replaced.id.0, newest.id.0));
        }
        check_unused(name, holder)?;
        let terms = limited(entry, newest);
        // Without an overlap it is revoked: an expiry would depend on the clock of the server that looks it up.
        let end = (!options.overlap.is_zero()).then(|| options.now.checked_add(options.overlap)).flatten();
        let until = end.map(|end| terms.expires_at.map_or(end, |expires_at| expires_at.min(end)));
        self.change(newest, terms);
        self.steps.push(KeyStep::Rotate { key: (*newest).clone(), until, declared: entry.clone() });
        Ok(())
    }

    fn change(&mut self, key: &CurrentKey, terms: KeyTerms) {
        if !key.terms.has_same_rights(&terms) || !key.terms.has_same_expiry(&terms) {
            self.steps.push(KeyStep::Change { key: key.clone(), terms });
        }
    }
}

/// The terms of an entry for a key that is being replaced, which may expire earlier.
fn limited(entry: &DeclaredKey, key: &CurrentKey) -> KeyTerms {
    let terms = entry.terms();
    let ends = [terms.expires_at, key.terms.expires_at];
    KeyTerms { expires_at: ends.into_iter().flatten().min(), ..terms }
}

fn check_unused(name: &str, holder: Option<&KeyWithDigest>) -> Result<(), KeyPlanError> {
    let Some(KeyWithDigest { id, name: other, state, .. }) = holder else { return Ok(()) };
    let state = match state {
        KeyState::Active => "is active",
        KeyState::Expired => "has expired",
        KeyState::Revoked => "was revoked",
    };
    Err(KeyPlanError::DigestTaken(name.to_owned(), id.0, other.clone(), state))
}

fn seconds(time: Option<SystemTime>) -> Option<u64> {
    let since_epoch = time?.duration_since(SystemTime::UNIX_EPOCH);
    Some(since_epoch.map_or(0, |time| time.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_record::Scope;

    const DAY: Duration = Duration::from_hours(24);
    const NOW: SystemTime = SystemTime::UNIX_EPOCH;
    const OPTIONS: PlanOptions = PlanOptions { now: NOW, prune: true, overlap: DAY };

    fn digest(byte: u8) -> KeyDigest {
        KeyDigest::from_bytes(&[byte; 32]).unwrap()
    }

    fn entry(scopes: &[Scope], days: Option<u32>, declared: Option<u8>) -> DeclaredKey {
        let key = NewKey {
            name: "kiosk".parse().unwrap(),
            scopes: scopes.to_vec(),
            expires_at: days.map(|days| NOW + DAY * days),
            rate_limit: None,
        };
        let named = DeclaredKeyIdentity::Named { prefix: "psk_abcdef".to_owned(), digest: digest(99) };
        DeclaredKey {
            key,
            identity: declared.map_or(named, |byte| DeclaredKeyIdentity::Digest(digest(byte))),
        }
    }

    fn key(id: i64, lineage: i64, scopes: &[Scope], days: Option<u32>) -> CurrentKey {
        CurrentKey {
            id: KeyId(id),
            lineage: KeyId(lineage),
            name: "kiosk".to_owned(),
            digest: digest(u8::try_from(id).unwrap()),
            terms: entry(scopes, days, None).terms(),
        }
    }

    /// The keys after the steps.
    fn carried_out(mut keys: Vec<CurrentKey>, steps: &[KeyStep]) -> Vec<CurrentKey> {
        for step in steps {
            let next = keys.iter().map(|key| key.id.0).max().unwrap_or(0) + 1;
            match step {
                KeyStep::Create { declared } | KeyStep::Rotate { declared, .. } => {
                    let mut lineage = KeyId(next);
                    if let KeyStep::Rotate { key: replaced, until, .. } = step {
                        lineage = replaced.lineage;
                        match until {
                            Some(_) => {
                                let old = keys.iter_mut().find(|key| key.id == replaced.id).unwrap();
                                old.terms.expires_at = *until;
                            }
                            None => keys.retain(|key| key.id != replaced.id),
                        }
                    }
                    let (terms, digest) = (declared.terms(), declared.stored().1);
                    keys.push(CurrentKey {
                        id: KeyId(next),
                        lineage,
                        name: declared.name().to_owned(),
                        digest,
                        terms,
                    });
                }
                KeyStep::Change { key: changed, terms } => {
                    keys.iter_mut().find(|key| key.id == changed.id).unwrap().terms = terms.clone();
                }
                KeyStep::Revoke { key: revoked } => keys.retain(|key| key.id != revoked.id),
            }
        }
        keys.retain(|key| key.terms.expires_at.is_none_or(|end| end > NOW));
        keys
    }

    #[test]
    fn a_plan_that_was_carried_out_leaves_nothing_to_do() {
        let (one, two) = (&[Scope::PetsRead][..], &[Scope::PetsRead, Scope::PetsWrite][..]);
        let expiries = [None, Some(1), Some(3)];
        let mut plans = 0;
        for overlap in [Duration::ZERO, DAY, DAY * 2] {
            for (days, other_days) in expiries.iter().flat_map(|days| expiries.map(|other| (*days, other))) {
                for keys in [
                    vec![],
                    vec![key(1, 1, one, other_days)],
                    vec![key(1, 1, one, Some(1)), key(2, 1, two, other_days)],
                    vec![key(1, 1, two, Some(2)), key(2, 1, one, other_days)],
                ] {
                    for entries in [vec![], vec![entry(two, days, None)], vec![entry(two, days, Some(50))]] {
                        let options = PlanOptions { overlap, ..OPTIONS };
                        let steps = plan(&entries, &keys, &[], options).unwrap().steps;
                        let after = carried_out(keys.clone(), &steps);
                        let holders: Vec<KeyWithDigest> = after.iter().map(holder).collect();
                        let again = plan(&entries, &after, &holders, options).unwrap();
                        assert_eq!(again, KeyPlan::default(), "{entries:?}\n{keys:?}\n{steps:?}");
                        assert_eq!(after.is_empty(), entries.is_empty());
                        assert!(after.iter().all(|key| key.terms.has_same_rights(&entries[0].terms())));
                        plans += usize::from(!steps.is_empty());
                    }
                }
            }
        }
        assert!(plans > 200, "{plans}");
    }

    fn holder(key: &CurrentKey) -> KeyWithDigest {
        KeyWithDigest { id: key.id, name: key.name.clone(), digest: key.digest, state: KeyState::Active }
    }

    #[test]
    fn a_key_that_is_being_replaced_loses_the_same_rights_and_keeps_its_earlier_expiry() {
        let keys = [key(1, 1, &Scope::ALL, Some(1)), key(2, 1, &Scope::ALL, None)];
        let entry = entry(&[Scope::PetsRead], Some(5), None);
        let steps = plan(std::slice::from_ref(&entry), &keys, &[], OPTIONS).unwrap().steps;
        let KeyTerms { scopes, rate_limit, .. } = entry.terms();
        let early = KeyTerms { expires_at: Some(NOW + DAY), scopes, rate_limit };
        let [old, new] = keys;
        let expected =
            [KeyStep::Change { key: old, terms: early }, KeyStep::Change { key: new, terms: entry.terms() }];
        assert_eq!(steps, expected);
    }

    #[test]
    fn entries_that_cannot_be_planned_are_explained() {
        let all = &Scope::ALL[..];
        let separate = [key(1, 1, all, None), key(2, 2, all, None)];
        let rotated = [key(1, 1, all, Some(1)), key(2, 1, all, None)];
        let elsewhere = KeyWithDigest {
            name: "shop".to_owned(),
            state: KeyState::Revoked,
            ..holder(&key(7, 7, all, None))
        };
        let explain = |entry: DeclaredKey, keys: &[CurrentKey], holders: &[KeyWithDigest]| {
            plan(&[entry], keys, holders, OPTIONS).unwrap_err().to_string()
        };
        let both = explain(entry(all, None, None), &separate, &[]);
        assert!(both.starts_with("the keys 1 and 2 are both named `kiosk`"), "{both}");
        let past = explain(entry(all, Some(0), None), &rotated, &[]);
        assert!(past.starts_with("the expiry of `kiosk` has passed, but key 2 still works"), "{past}");
        let replaced = explain(entry(all, None, Some(1)), &rotated, &[holder(&rotated[0])]);
        assert!(replaced.starts_with("`kiosk` has the digest of key 1, which key 2 replaced"), "{replaced}");
        for keys in [&[][..], &rotated] {
            let taken = explain(entry(all, None, Some(7)), keys, std::slice::from_ref(&elsewhere));
            let start = "`kiosk` has the digest of key 7, which is named `shop` and was revoked: generate";
            assert!(taken.starts_with(start), "{taken}");
        }
    }

    #[test]
    fn a_replaced_key_expires_after_the_overlap_or_is_revoked_without_one() {
        let current = key(1, 1, &Scope::ALL, Some(3));
        let entry = entry(&Scope::ALL, Some(3), Some(50));
        for (overlap, until) in
            [(Duration::ZERO, None), (DAY, Some(NOW + DAY)), (DAY * 9, Some(NOW + DAY * 3))]
        {
            let options = PlanOptions { overlap, ..OPTIONS };
            let plan = plan(std::slice::from_ref(&entry), std::slice::from_ref(&current), &[], options);
            let rotation = KeyStep::Rotate { key: current.clone(), until, declared: entry.clone() };
            assert_eq!(plan.unwrap().steps, [rotation], "{overlap:?}");
        }
    }

    #[test]
    fn another_expiry_alone_is_a_change() {
        let current = key(1, 1, &Scope::ALL, Some(2));
        let entry = entry(&Scope::ALL, Some(3), None);
        let plan = plan(std::slice::from_ref(&entry), std::slice::from_ref(&current), &[], OPTIONS);
        let change = KeyStep::Change { key: current, terms: entry.terms() };
        assert_eq!(plan.unwrap().steps, [change]);
    }

    #[test]
    fn an_entry_whose_key_has_expired_is_left_alone() {
        let entries = [entry(&Scope::ALL, Some(0), None)];
        let plan = plan(&entries, &[], &[], OPTIONS).unwrap();
        assert_eq!(plan, KeyPlan { expired: entries.to_vec(), ..KeyPlan::default() });
    }

    #[test]
    fn the_order_of_scopes_and_fractions_of_a_second_change_nothing() {
        let mut current = key(1, 1, &[Scope::PetsWrite, Scope::PetsRead], Some(2));
        current.terms.expires_at = current.terms.expires_at.map(|end| end + Duration::from_millis(300));
        let entry = entry(&[Scope::PetsRead, Scope::PetsWrite], Some(2), None);
        assert_eq!(plan(&[entry], &[current], &[], OPTIONS), Ok(KeyPlan::default()));
    }
}
