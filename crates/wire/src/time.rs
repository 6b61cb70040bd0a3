//! Points in time: RFC 3339 in UTC, to the millisecond, which is what the database keeps.

use std::time::SystemTime;

use jiff::Timestamp;
use serde::{Serialize, Serializer};

/// A point in time in a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time(pub SystemTime);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let time = timestamp(self.0);
        // jiff's own `Serialize` leaves out zeros at the end.
        serializer.collect_str(&format_args!("{time:.3}"))
    }
}

/// The time, or the first or last one that RFC 3339 can express: somebody may have stored any other in SQL.
#[must_use]
pub fn timestamp(time: SystemTime) -> Timestamp {
    const FIRST: Timestamp = Timestamp::constant(-62_135_596_800, 0);
    let nearest = if time < SystemTime::UNIX_EPOCH { FIRST } else { Timestamp::MAX };
    Timestamp::try_from(time).ok().filter(|time| *time >= FIRST).unwrap_or(nearest)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_time_beyond_rfc_3339_is_shown_as_the_nearest() {
        // What PostgreSQL calls infinity and -infinity, and a time between.
        let far = Duration::from_micros(i64::MAX.unsigned_abs());
        let json = |time| serde_json::to_string(&Time(time)).unwrap();
        assert_eq!(json(SystemTime::UNIX_EPOCH + far), r#""9999-12-30T22:00:00.999Z""#);
        assert_eq!(json(SystemTime::UNIX_EPOCH - far), r#""0001-01-01T00:00:00.000Z""#);
        assert_eq!(json(SystemTime::UNIX_EPOCH), r#""1970-01-01T00:00:00.000Z""#);
    }
}
