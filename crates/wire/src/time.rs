//! Points in time: RFC 3339 in UTC, to the millisecond, which is what the database keeps.

use std::time::SystemTime;

use jiff::Timestamp;
use serde::{Serialize, Serializer};

/// A point in time in a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time(pub SystemTime);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let time = Timestamp::try_from(self.0).unwrap_or(Timestamp::MAX);
        // jiff's own `Serialize` leaves out zeros at the end.
        serializer.collect_str(&format_args!("{time:.3}"))
    }
}
