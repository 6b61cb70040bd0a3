//! The model of keys: what each command does and which keys work, without a database or a clock. Time passes in whole hours.
//!
//! **Rules:**
//! - a lineage is a key and the keys that replaced it, in order. At most one of them, the newest, goes on: every other one ends;
//! - nothing makes a key work again, and no command prolongs the overlap that a rotation granted;
//! - a file decides about the key of each entry. It may shorten the life of the other keys of the lineage, not prolong it.

/// The number of a step.
pub(super) type Number = usize;

/// An hour, counted from the start of the history.
pub(super) type Hour = i64;

/// A key is named by the step that issued it and by its name, so that a shortened history still means the same.
pub(super) type Origin = (Number, &'static str);

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Action {
    Create {
        name: &'static str,
        expires: Option<Hour>,
    },
    Rotate {
        key: Origin,
        overlap: Hour,
        /// Another lifetime than that of the key.
        expires: Option<Hour>,
    },
    RotateIn120 {
        key: Origin,
        overlap: Hour,
    },
    Revoke(Origin),
    Apply {
        entries: Vec<Entry>,
        prune: bool,
        overlap: Hour,
    },
    /// So many hours pass.
    Wait(Hour),
}

/// An entry of a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub(super) name: &'static str,
    /// Which of the keys that are kept elsewhere it declares.
    pub(super) digest: Option<u8>,
    /// Whether it permits less.
    pub(super) is_narrow: bool,
    /// The hour in which it expires.
    pub(super) expires: Option<Hour>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Step {
    pub(super) number: Number,
    pub(super) action: Action,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Key {
    pub(super) origin: Origin,
    /// The index of the first key of the lineage.
    pub(super) lineage: usize,
    pub(super) digest: Option<u8>,
    pub(super) is_narrow: bool,
    issued: Hour,
    pub(super) expires: Option<Hour>,
    pub(super) is_revoked: bool,
    /// Whether a rotation has replaced it.
    is_replaced: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Model {
    pub(super) now: Hour,
    /// In the order of issue.
    pub(super) keys: Vec<Key>,
}

/// The command is refused, and changes nothing.
#[derive(Debug, PartialEq)]
pub(super) struct Refused;

impl Model {
    pub(super) fn is_live(&self, key: &Key) -> bool {
        !key.is_revoked && key.expires.is_none_or(|end| end > self.now)
    }

    pub(super) fn find(&self, origin: Origin) -> Option<usize> {
        self.keys.iter().position(|key| key.origin == origin)
    }

    /// Takes a step. Panics if the model breaks its own rules.
    pub(super) fn take(&mut self, step: &Step) -> Result<(), Refused> {
        let before = self.clone();
        let outcome = self.perform(step);
        if outcome.is_err() {
            *self = before;
            return outcome;
        }
        for (old, new) in before.keys.iter().zip(&self.keys) {
            assert!(before.is_live(old) || !self.is_live(new), "{new:?} works again after {step:?}");
            let prolongs = new.expires.is_none_or(|end| old.expires.is_some_and(|old| end > old));
            let was_limited = old.expires.is_some() && old.is_replaced;
            assert!(!(was_limited && prolongs), "{new:?} outlives its overlap after {step:?}");
        }
        outcome
    }

    fn perform(&mut self, step: &Step) -> Result<(), Refused> {
        match &step.action {
            Action::Create { name, expires } => {
                let lineage = self.keys.len();
                let expires = expires.map(|hours| self.now + hours);
                self.issue((step.number, name), lineage, None, false, expires);
                Ok(())
            }
            Action::Rotate { key, overlap, expires } => {
                let rotated =
                    self.find(*key).filter(|rotated| self.is_live(&self.keys[*rotated])).ok_or(Refused)?;
                let newer = |(index, key): &(usize, &Key)| {
                    *index > rotated && key.lineage == self.keys[rotated].lineage
                };
                if self.keys.iter().enumerate().filter(newer).any(|(_, key)| self.is_live(key)) {
                    return Err(Refused);
                }
                // The newest key has the lifetime that the lineage has: a rotation shortened that of the others.
                let newest = self.keys.iter().enumerate().rfind(newer);
                let of =
                    newest.filter(|_| self.keys[rotated].is_replaced).map_or(rotated, |(index, _)| index);
                let lifetime = expires.or_else(|| Some(self.keys[of].expires? - self.keys[of].issued));
                self.rotate(step.number, rotated, *overlap, lifetime);
                Ok(())
            }
            Action::RotateIn120 { key, overlap } => {
                let rotated =
                    self.find(*key).filter(|rotated| self.is_live(&self.keys[*rotated])).ok_or(Refused)?;
                let lifetime = self.keys[rotated].expires.map(|end| end - self.keys[rotated].issued);
                self.rotate(step.number, rotated, *overlap, lifetime);
                Ok(())
            }
            Action::Revoke(key) => {
                let revoked = self.find(*key).ok_or(Refused)?;
                self.keys[revoked].is_revoked = true;
                Ok(())
            }
            Action::Apply { entries, prune, overlap } => self.apply(step.number, entries, *prune, *overlap),
            Action::Wait(hours) => {
                self.now += hours;
                Ok(())
            }
        }
    }

    fn issue(
        &mut self,
        origin: Origin,
        lineage: usize,
        digest: Option<u8>,
        is_narrow: bool,
        expires: Option<Hour>,
    ) {
        let (issued, is_revoked, is_replaced) = (self.now, false, false);
        self.keys.push(Key { origin, lineage, digest, is_narrow, issued, expires, is_revoked, is_replaced });
    }

    fn rotate(&mut self, number: Number, rotated: usize, overlap: Hour, lifetime: Option<Hour>) {
        let Key { origin: (_, name), lineage, is_narrow, .. } = self.keys[rotated];
        self.end(rotated, overlap);
        self.issue((number, name), lineage, None, is_narrow, lifetime.map(|hours| self.now + hours));
    }

    /// Ends a key after an overlap.
    fn end(&mut self, index: usize, overlap: Hour) {
        let end = self.now + overlap;
        let key = &mut self.keys[index];
        key.is_replaced = true;
        if overlap == 0 {
            key.is_revoked = true;
        } else {
            key.expires = Some(key.expires.map_or(end, |expires| expires.min(end)));
        }
    }

    fn apply(
        &mut self,
        number: Number,
        entries: &[Entry],
        prune: bool,
        overlap: Hour,
    ) -> Result<(), Refused> {
        if prune && entries.is_empty() {
            return Err(Refused);
        }
        let taken: Vec<u8> = self.keys.iter().filter_map(|key| key.digest).collect();
        for entry in entries {
            self.apply_entry(number, entry, overlap, &taken)?;
        }
        if prune {
            for key in &mut self.keys {
                key.is_revoked |= entries.iter().all(|entry| entry.name != key.origin.1);
            }
        }
        Ok(())
    }

    fn apply_entry(
        &mut self,
        number: Number,
        entry: &Entry,
        overlap: Hour,
        taken: &[u8],
    ) -> Result<(), Refused> {
        let named: Vec<usize> =
            (0..self.keys.len()).filter(|index| self.keys[*index].origin.1 == entry.name).collect();
        let live: Vec<usize> =
            named.iter().copied().filter(|index| self.is_live(&self.keys[*index])).collect();
        let has_expired = entry.expires.is_some_and(|end| end <= self.now);
        if has_expired {
            return if live.is_empty() { Ok(()) } else { Err(Refused) };
        }
        if live.iter().any(|index| self.keys[*index].lineage != self.keys[live[0]].lineage) {
            return Err(Refused);
        }
        let current = live.iter().copied().rfind(|index| !self.keys[*index].is_replaced);
        let kept = current.filter(|index| entry.digest.is_none() || entry.digest == self.keys[*index].digest);
        if let Some(kept) = kept {
            self.keys[kept].expires = entry.expires;
        } else {
            if entry.digest.is_some_and(|digest| taken.contains(&digest)) {
                return Err(Refused);
            }
            let lineage =
                live.last().or(named.last()).map_or(self.keys.len(), |index| self.keys[*index].lineage);
            self.issue((number, entry.name), lineage, entry.digest, entry.is_narrow, entry.expires);
        }
        for index in live {
            self.keys[index].is_narrow = entry.is_narrow;
            if Some(index) == kept {
                continue;
            }
            if let (Some(end), expires) = (entry.expires, &mut self.keys[index].expires) {
                *expires = Some(expires.map_or(end, |expires| expires.min(end)));
            }
            if kept.is_none() || !self.keys[index].is_replaced {
                self.end(index, overlap);
            }
        }
        Ok(())
    }
}
