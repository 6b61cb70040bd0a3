//! The plan of `petstore keys apply`: the steps from the keys that exist to those that a file declares.
//!
//! An entry of the file is found by its name. A key and those that replaced it share name and lineage: together they are one
//! entry. Its key is the newest that works and that no other has replaced. Releases up to 1.2.0 could leave more than one such
//! key in a lineage.
//!
//! **Invariants:**
//! - when a plan is carried out, planning again finds no steps;
//! - all keys of an entry that work have its scopes and its rate limit, and none of them outlives its expiry. A key that is being
//!   replaced loses a right at the same time as its successor;
//! - of the keys of an entry, only one goes on. A plan gives each of the others an end, if it has none, and never a later one.

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

/// A key in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExistingKey {
    /// Its identifier.
    pub id: KeyId,
    /// The first key of its lineage.
    pub lineage: KeyId,
    /// Its name.
    pub name: String,
    /// The digest of the key.
    pub digest: KeyDigest,
    /// What it may do, and until when.
    pub terms: KeyTerms,
    /// Whether it works.
    pub state: KeyState,
    /// The key that replaced it, if it was rotated.
    pub successor: Option<KeyId>,
}

/// One step of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyStep {
    /// Issue a key.
    Create {
        /// Its entry.
        declared: DeclaredKey,
        /// The key that had the entry's name before, and has expired or was revoked: the new one continues its lineage.
        predecessor: Option<ExistingKey>,
    },
    /// Change the terms of a key in place.
    Change {
        /// The key as it is.
        key: ExistingKey,
        /// Its new terms.
        terms: KeyTerms,
    },
    /// Issue a key with the entry's digest in the lineage of another, and let that one expire or revoke it.
    Rotate {
        /// The key that is replaced, as it is.
        key: ExistingKey,
        /// When it expires; none if it is revoked.
        until: Option<SystemTime>,
        /// The entry of the new one.
        declared: DeclaredKey,
    },
    /// Let a key expire that an older release left beside its entry's key.
    End {
        /// The key as it is.
        key: ExistingKey,
        /// When it expires.
        until: SystemTime,
        /// The entry's key; none if it is the one that the plan issued last.
        successor: Option<KeyId>,
    },
    /// Revoke a key.
    Revoke {
        /// The key as it is.
        key: ExistingKey,
    },
}

/// The steps that lead to the declared keys, and what they leave alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyPlan {
    /// In this order.
    pub steps: Vec<KeyStep>,
    /// Keys that work and that the file does not declare.
    pub undeclared: Vec<ExistingKey>,
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

/// Compares the declared keys with all that exist, which are in the order of their ids.
pub fn plan(
    declared: &[DeclaredKey],
    existing: &[ExistingKey],
    options: PlanOptions,
) -> Result<KeyPlan, KeyPlanError> {
    let mut plan = KeyPlan::default();
    for entry in declared {
        plan.add_entry(entry, existing, options)?;
    }
    let names: BTreeSet<&str> = declared.iter().map(DeclaredKey::name).collect();
    let active = existing.iter().filter(|key| key.state == KeyState::Active);
    let undeclared = active.filter(|key| !names.contains(&*key.name)).cloned();
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
        existing: &[ExistingKey],
        options: PlanOptions,
    ) -> Result<(), KeyPlanError> {
        let name = entry.name();
        let digest = entry.declared_digest();
        let named: Vec<&ExistingKey> = existing.iter().filter(|key| key.name == name).collect();
        let active: Vec<&ExistingKey> =
            named.iter().copied().filter(|key| key.state == KeyState::Active).collect();
        let has_expired = entry.key.expires_at.is_some_and(|end| end <= options.now);
        if let Some((newest, older)) = active.split_last() {
            if let Some(other) = older.iter().rev().find(|key| key.lineage != newest.lineage) {
                return Err(KeyPlanError::Ambiguous(other.id.0, newest.id.0, name.to_owned()));
            }
            if has_expired {
                return Err(KeyPlanError::ExpiryPassed(name.to_owned(), newest.id.0));
            }
        } else if has_expired {
            self.expired.push(entry.clone());
            return Ok(());
        }
        let current = active.iter().copied().rfind(|key| key.successor.is_none());
        let others = active.iter().filter(|key| Some(key.id) != current.map(|current| current.id));
        if let Some(kept) = current.filter(|key| digest.is_none_or(|digest| digest == key.digest)) {
            for key in others {
                self.end(entry, key, Some(kept.id), options);
            }
            self.change(kept, entry.terms());
            return Ok(());
        }
        if let Some(key) = active.iter().find(|key| digest == Some(key.digest)) {
            let successor = current.map(|current| current.id).or(key.successor).unwrap_or(key.id);
            return Err(KeyPlanError::Replaced(name.to_owned(), key.id.0, successor.0));
        }
        check_unused(entry, existing)?;
        if let Some(key) = current {
            let terms = limited(entry, key);
            let until = end_of_overlap(terms.expires_at, options);
            self.change(key, terms);
            self.steps.push(KeyStep::Rotate { key: key.clone(), until, declared: entry.clone() });
        } else {
            let lineage = active.last().or(named.last()).map(|key| key.lineage);
            let predecessor = named.iter().rfind(|key| Some(key.lineage) == lineage);
            let predecessor = predecessor.map(|key| (*key).clone());
            self.steps.push(KeyStep::Create { declared: entry.clone(), predecessor });
        }
        for key in others {
            self.end(entry, key, None, options);
        }
        Ok(())
    }

    /// Ends a key of a lineage that another one continues: `kept`, or the key that was issued last. A key that was rotated has an
    /// end already, which only a new key makes earlier.
    fn end(&mut self, entry: &DeclaredKey, key: &ExistingKey, kept: Option<KeyId>, options: PlanOptions) {
        let terms = limited(entry, key);
        if key.successor.is_some() && kept.is_some() {
            self.change(key, terms);
            return;
        }
        let Some(until) = end_of_overlap(terms.expires_at, options) else {
            self.steps.push(KeyStep::Revoke { key: key.clone() });
            return;
        };
        if key.successor.is_some() {
            self.change(key, KeyTerms { expires_at: Some(until), ..terms });
        } else {
            self.change(key, terms);
            self.steps.push(KeyStep::End { key: key.clone(), until, successor: kept });
        }
    }

    fn change(&mut self, key: &ExistingKey, terms: KeyTerms) {
        if !key.terms.has_same_rights(&terms) || !key.terms.has_same_expiry(&terms) {
            self.steps.push(KeyStep::Change { key: key.clone(), terms });
        }
    }
}

/// The terms of an entry for a key that is being replaced, which may expire earlier.
fn limited(entry: &DeclaredKey, key: &ExistingKey) -> KeyTerms {
    let terms = entry.terms();
    let ends = [terms.expires_at, key.terms.expires_at];
    KeyTerms { expires_at: ends.into_iter().flatten().min(), ..terms }
}

/// When a key that is replaced now expires; none if it is revoked. Without an overlap it is: an expiry would depend on the clock of
/// the server that looks it up.
fn end_of_overlap(expires_at: Option<SystemTime>, options: PlanOptions) -> Option<SystemTime> {
    let end = (!options.overlap.is_zero()).then(|| options.now.checked_add(options.overlap)).flatten();
    end.map(|end| expires_at.map_or(end, |expires_at| expires_at.min(end)))
}

fn check_unused(entry: &DeclaredKey, existing: &[ExistingKey]) -> Result<(), KeyPlanError> {
    let taken = existing.iter().find(|key| entry.declared_digest() == Some(key.digest));
    let Some(ExistingKey { id, name: other, state, .. }) = taken else { return Ok(()) };
    let state = match state {
        KeyState::Active => "is active",
        KeyState::Expired => "has expired",
        KeyState::Revoked => "was revoked",
    };
    Err(KeyPlanError::DigestTaken(entry.name().to_owned(), id.0, other.clone(), state))
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

    fn key(id: i64, lineage: i64, scopes: &[Scope], days: Option<u32>) -> ExistingKey {
        ExistingKey {
            id: KeyId(id),
            lineage: KeyId(lineage),
            name: "kiosk".to_owned(),
            digest: digest(u8::try_from(id).unwrap()),
            terms: entry(scopes, days, None).terms(),
            state: KeyState::Active,
            successor: None,
        }
    }

    fn replaced(key: ExistingKey, successor: i64) -> ExistingKey {
        ExistingKey { successor: Some(KeyId(successor)), ..key }
    }

    fn find<'a>(keys: &'a mut [ExistingKey], key: &ExistingKey) -> &'a mut ExistingKey {
        keys.iter_mut().find(|other| other.id == key.id).unwrap()
    }

    /// The keys after the steps.
    fn carried_out(mut keys: Vec<ExistingKey>, steps: &[KeyStep]) -> Vec<ExistingKey> {
        for step in steps {
            let next = keys.iter().map(|key| key.id.0).max().unwrap_or(0) + 1;
            let issued = match step {
                KeyStep::Create { declared, predecessor } => {
                    Some((declared, predecessor.as_ref().map(|key| key.lineage)))
                }
                KeyStep::Rotate { declared, key, .. } => Some((declared, Some(key.lineage))),
                _ => None,
            };
            if let Some((declared, lineage)) = issued {
                let new = key(next, lineage.map_or(next, |id| id.0), &[], None);
                keys.push(ExistingKey { digest: declared.stored().1, terms: declared.terms(), ..new });
            }
            let newest = keys.last().unwrap().id;
            match step {
                KeyStep::Create { .. } => {}
                KeyStep::Rotate { key: rotated, until, .. } => {
                    let key = find(&mut keys, rotated);
                    key.successor = Some(newest);
                    match until {
                        Some(_) => key.terms.expires_at = *until,
                        None => key.state = KeyState::Revoked,
                    }
                }
                KeyStep::Change { key, terms } => find(&mut keys, key).terms = terms.clone(),
                KeyStep::End { key: ended, until, successor } => {
                    let key = find(&mut keys, ended);
                    key.successor = successor.or(Some(newest));
                    let end = key.terms.expires_at.map_or(*until, |end| end.min(*until));
                    key.terms.expires_at = Some(end);
                }
                KeyStep::Revoke { key } => find(&mut keys, key).state = KeyState::Revoked,
            }
        }
        keys
    }

    fn active(keys: &[ExistingKey]) -> Vec<&ExistingKey> {
        keys.iter().filter(|key| key.state == KeyState::Active).collect()
    }

    /// Lineages of up to three keys, each in one of many states: also those that only older releases could leave.
    fn lineages() -> Vec<Vec<ExistingKey>> {
        let (one, two) = (&[Scope::PetsRead][..], &[Scope::PetsRead, Scope::PetsWrite][..]);
        let mut lineages = vec![vec![]];
        for id in 1..=3 {
            let mut states = Vec::new();
            for (scopes, days) in [(one, None), (two, Some(1)), (two, Some(3))] {
                states.push(key(id, 1, scopes, days));
                states.push(replaced(key(id, 1, scopes, days), 3));
            }
            for state in [KeyState::Expired, KeyState::Revoked] {
                states.push(ExistingKey { state, ..key(id, 1, one, None) });
            }
            let shorter = lineages.clone();
            lineages = shorter
                .iter()
                .flat_map(|keys| states.iter().map(|state| [&keys[..], std::slice::from_ref(state)].concat()))
                .collect();
            if id < 3 {
                lineages.push(vec![]);
            }
        }
        lineages.push(vec![]);
        lineages
    }

    #[test]
    fn a_plan_that_was_carried_out_leaves_nothing_to_do_and_one_key_that_goes_on() {
        let two = &[Scope::PetsRead, Scope::PetsWrite][..];
        let mut plans = 0;
        for keys in lineages() {
            for (overlap, days, declared) in [Duration::ZERO, DAY, DAY * 2].into_iter().flat_map(|overlap| {
                [None, Some(1), Some(3)]
                    .into_iter()
                    .flat_map(move |days| [None, Some(3), Some(50)].map(|digest| (overlap, days, digest)))
            }) {
                let options = PlanOptions { overlap, ..OPTIONS };
                let entries = [entry(two, days, declared)];
                // Some have the digest of a key that no longer works, or that was replaced.
                let Ok(KeyPlan { steps, .. }) = plan(&entries, &keys, options) else { continue };
                let after = carried_out(keys.clone(), &steps);
                let what = || format!("{entries:?}\n{keys:?}\n{steps:?}");
                assert_eq!(plan(&entries, &after, options), Ok(KeyPlan::default()), "{}", what());
                let working = active(&after);
                let (current, ended): (Vec<&ExistingKey>, Vec<&ExistingKey>) =
                    working.iter().partition(|key| key.successor.is_none());
                assert_eq!(current.len(), 1, "{}", what());
                assert!(current[0].terms == entries[0].terms(), "{}", what());
                assert!(declared.is_none_or(|byte| current[0].digest == digest(byte)), "{}", what());
                assert!(
                    working.iter().all(|key| key.terms.has_same_rights(&entries[0].terms())),
                    "{}",
                    what()
                );
                assert!(working.iter().all(|key| key.lineage == KeyId(1)), "{}", what());
                let has_new = after.len() > keys.len();
                for key in ended {
                    let before = keys.iter().find(|before| before.id == key.id).unwrap();
                    let end = key.terms.expires_at.unwrap_or(NOW + DAY * 99);
                    assert!(before.terms.expires_at.is_none_or(|before| end <= before), "{}", what());
                    assert!(days.is_none_or(|days| end <= NOW + DAY * days), "{}", what());
                    if has_new || before.successor.is_none() {
                        assert!(end <= NOW + overlap, "{}", what());
                    }
                }
                for (before, after) in keys.iter().zip(&after) {
                    assert!(before.state == KeyState::Active || before == after, "{}", what());
                }
                plans += usize::from(!steps.is_empty());
            }
        }
        assert!(plans > 5_000, "{plans}");
    }

    #[test]
    fn keys_without_an_entry_are_revoked_once() {
        let keys = vec![replaced(key(1, 1, &Scope::ALL, Some(1)), 2), key(2, 1, &Scope::ALL, None)];
        let KeyPlan { steps, .. } = plan(&[], &keys, OPTIONS).unwrap();
        let after = carried_out(keys, &steps);
        assert_eq!((steps.len(), active(&after).len()), (2, 0));
        assert_eq!(plan(&[], &after, OPTIONS), Ok(KeyPlan::default()));
    }

    #[test]
    fn an_entry_whose_keys_no_longer_work_continues_the_lineage_of_the_newest() {
        let dead = |key, state| ExistingKey { state, ..key };
        let (first, second) = (key(1, 1, &Scope::ALL, None), key(2, 2, &Scope::ALL, None));
        let other = ExistingKey { name: "shop".to_owned(), ..key(3, 3, &Scope::ALL, None) };
        let keys = [dead(first.clone(), KeyState::Revoked), dead(second, KeyState::Expired), other];
        for declared in [None, Some(50)] {
            let entry = entry(&Scope::ALL, None, declared);
            let KeyPlan { steps, .. } = plan(std::slice::from_ref(&entry), &keys, OPTIONS).unwrap();
            let predecessor = Some(keys[1].clone());
            assert_eq!(steps[0], KeyStep::Create { declared: entry, predecessor });
        }
        // A key that still works belongs to the lineage, even if it was replaced.
        let keys = [replaced(first, 4), keys[1].clone(), keys[2].clone()];
        let entry = entry(&Scope::ALL, None, None);
        let KeyPlan { steps, .. } = plan(std::slice::from_ref(&entry), &keys, OPTIONS).unwrap();
        assert_eq!(steps[0], KeyStep::Create { declared: entry, predecessor: Some(keys[0].clone()) });
    }

    #[test]
    fn a_key_that_is_being_replaced_loses_the_same_rights_and_keeps_its_earlier_expiry() {
        let keys = [replaced(key(1, 1, &Scope::ALL, Some(1)), 2), key(2, 1, &Scope::ALL, None)];
        let entry = entry(&[Scope::PetsRead], Some(5), None);
        let steps = plan(std::slice::from_ref(&entry), &keys, OPTIONS).unwrap().steps;
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
        let rotated = [replaced(key(1, 1, all, Some(1)), 2), key(2, 1, all, None)];
        let elsewhere =
            ExistingKey { name: "shop".to_owned(), state: KeyState::Revoked, ..key(7, 7, all, None) };
        let explain =
            |entry: DeclaredKey, keys: &[ExistingKey]| plan(&[entry], keys, OPTIONS).unwrap_err().to_string();
        let both = explain(entry(all, None, None), &separate);
        assert!(both.starts_with("the keys 1 and 2 are both named `kiosk`"), "{both}");
        let past = explain(entry(all, Some(0), None), &rotated);
        assert!(past.starts_with("the expiry of `kiosk` has passed, but key 2 still works"), "{past}");
        let older = explain(entry(all, None, Some(1)), &rotated);
        assert!(older.starts_with("`kiosk` has the digest of key 1, which key 2 replaced"), "{older}");
        // Also if key 2 was revoked.
        let older = explain(entry(all, None, Some(1)), &rotated[..1]);
        assert!(older.starts_with("`kiosk` has the digest of key 1, which key 2 replaced"), "{older}");
        for keys in [&[][..], &rotated] {
            let keys = [keys, std::slice::from_ref(&elsewhere)].concat();
            let taken = explain(entry(all, None, Some(7)), &keys);
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
            let plan = plan(std::slice::from_ref(&entry), std::slice::from_ref(&current), options);
            let rotation = KeyStep::Rotate { key: current.clone(), until, declared: entry.clone() };
            assert_eq!(plan.unwrap().steps, [rotation], "{overlap:?}");
        }
    }

    #[test]
    fn another_expiry_alone_is_a_change() {
        let current = key(1, 1, &Scope::ALL, Some(2));
        let entry = entry(&Scope::ALL, Some(3), None);
        let plan = plan(std::slice::from_ref(&entry), std::slice::from_ref(&current), OPTIONS);
        let change = KeyStep::Change { key: current, terms: entry.terms() };
        assert_eq!(plan.unwrap().steps, [change]);
    }

    #[test]
    fn an_entry_whose_key_has_expired_is_left_alone() {
        let entries = [entry(&Scope::ALL, Some(0), None)];
        let plan = plan(&entries, &[], OPTIONS).unwrap();
        assert_eq!(plan, KeyPlan { expired: entries.to_vec(), ..KeyPlan::default() });
    }

    #[test]
    fn the_order_of_scopes_and_fractions_of_a_second_change_nothing() {
        let mut current = key(1, 1, &[Scope::PetsWrite, Scope::PetsRead], Some(2));
        current.terms.expires_at = current.terms.expires_at.map(|end| end + Duration::from_millis(300));
        let entry = entry(&[Scope::PetsRead, Scope::PetsWrite], Some(2), None);
        assert_eq!(plan(&[entry], &[current], OPTIONS), Ok(KeyPlan::default()));
    }
}
