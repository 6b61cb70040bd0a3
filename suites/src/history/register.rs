//! One value that many clients write, such as the name or the status of a pet, and which values a read may still return.
//!
//! A read is stale only if that is certain: it returned a value, and a write that began after every write of that value had
//! ended was acknowledged before the read began. A write whose outcome is unknown may take effect at any later time.

/// A point in time of a history: each begin and each end of a request has its own.
pub(crate) type Moment = u64;

/// What is known about the writes of one value.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Written {
    value: Box<str>,
    /// Writes that have not ended, or whose outcome is unknown.
    in_doubt: u32,
    /// Of the last write that has begun, and of the last one that was acknowledged.
    began: Moment,
    ended: Moment,
}

/// What a read may conclude from the value that it returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shown {
    Fresh,
    /// An acknowledged write is missing.
    Stale,
    /// Older than what an earlier read has returned, but no acknowledged write is missing.
    Backwards,
    /// No client has written this value.
    Unknown,
}

/// What had been acknowledged and what had been shown when a read began.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Floor {
    acknowledged: Moment,
    shown: Moment,
}

#[derive(Debug, Default)]
pub(crate) struct Register {
    values: Vec<Written>,
    floor: Floor,
}

impl Register {
    /// With a value from before the history began.
    pub(crate) fn with(value: &str) -> Self {
        let mut register = Self::default();
        register.begin(value, 0);
        register.acknowledge(value, 0, 0);
        register
    }

    /// A write of this value begins.
    pub(crate) fn begin(&mut self, value: &str, began: Moment) {
        match self.find(value) {
            Some(place) => {
                self.values[place].in_doubt += 1;
                self.values[place].began = began;
            }
            None => self.values.push(Written { value: value.into(), in_doubt: 1, began, ended: 0 }),
        }
    }

    /// A write that has begun was acknowledged.
    pub(crate) fn acknowledge(&mut self, value: &str, began: Moment, ended: Moment) {
        if let Some(place) = self.find(value) {
            let written = &mut self.values[place];
            written.in_doubt = written.in_doubt.saturating_sub(1);
            written.ended = written.ended.max(ended);
            self.floor.acknowledged = self.floor.acknowledged.max(began);
        }
    }

    /// A write that has begun was refused: it will never take effect.
    pub(crate) fn refuse(&mut self, value: &str) {
        if let Some(place) = self.find(value) {
            self.values[place].in_doubt = self.values[place].in_doubt.saturating_sub(1);
        }
    }

    pub(crate) fn floor(&self) -> Floor {
        self.floor
    }

    /// Judges a value that was returned by a read that began when the register had this floor.
    pub(crate) fn judge(&mut self, value: &str, floor: Floor) -> Shown {
        let Some(place) = self.find(value) else { return Shown::Unknown };
        let written = &self.values[place];
        self.floor.shown = self.floor.shown.max(written.began);
        if written.in_doubt > 0 {
            Shown::Fresh
        } else if written.ended < floor.acknowledged {
            Shown::Stale
        } else if written.ended < floor.shown {
            Shown::Backwards
        } else {
            Shown::Fresh
        }
    }

    /// Whether it is unknown if this value was or will be written.
    pub(crate) fn is_in_doubt(&self, value: &str) -> bool {
        self.find(value).is_some_and(|place| self.values[place].in_doubt > 0)
    }

    /// The newest first: they are asked for most.
    fn find(&self, value: &str) -> Option<usize> {
        self.values.iter().rposition(|written| *written.value == *value)
    }
}
