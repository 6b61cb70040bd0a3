//! The deprecation of getPet: when it is removed, and the headers that announce it.

use hyper::HeaderMap;
use hyper::header::{self, HeaderName, HeaderValue};
use jiff::Timestamp;
use jiff::civil::{Date, date};
use jiff::tz::TimeZone;
use petstore_config::GET_PET_REMOVAL;

use super::error::ApiError;

const DEPRECATION: HeaderName = HeaderName::from_static("deprecation");
const SUNSET: HeaderName = HeaderName::from_static("sunset");

/// The day on which getPet was declared deprecated: the release of 1.0.0.
const DEPRECATED_ON: Date = date(2026, 11, 15);

/// The deprecation of getPet: its removal date, and the headers that announce it.
pub(crate) struct GetPetDeprecation {
    removed_at: Timestamp,
    deprecation: HeaderValue,
    sunset: HeaderValue,
}

impl GetPetDeprecation {
    /// `postponed` is the removal date that the operator set, if any.
    pub(crate) fn new(postponed: Option<Date>) -> Self {
        let removed_at = midnight(postponed.unwrap_or(GET_PET_REMOVAL));
        let since = midnight(DEPRECATED_ON).as_second();
        let sunset = removed_at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        let ascii = |text: String| text.parse().unwrap_or_else(|_| HeaderValue::from_static(""));
        Self { removed_at, deprecation: ascii(format!("@{since}")), sunset: ascii(sunset) }
    }

    /// Fails once the operation is removed.
    pub(crate) fn check(&self, now: Timestamp) -> Result<(), ApiError> {
        if now < self.removed_at { Ok(()) } else { Err(ApiError::OperationRemoved) }
    }

    /// Announces the removal.
    pub(crate) fn add_headers(&self, headers: &mut HeaderMap, successor: HeaderValue) {
        headers.insert(DEPRECATION, self.deprecation.clone());
        headers.insert(SUNSET, self.sunset.clone());
        headers
            .append(header::LINK, HeaderValue::from_static("</docs#/animals/getPet>; rel=\"deprecation\""));
        headers.append(header::LINK, successor);
    }
}

fn midnight(day: Date) -> Timestamp {
    day.to_zoned(TimeZone::UTC).map_or(Timestamp::MAX, |midnight| midnight.timestamp())
}
