//! The rate limit of a key.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use thiserror::Error;

/// A number of requests per second, minute or hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RateLimit {
    requests: NonZeroU32,
    period: RateLimitPeriod,
}

/// The time over which a limit counts requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum RateLimitPeriod {
    Second,
    Minute,
    Hour,
}

impl RateLimitPeriod {
    const ALL: [Self; 3] = [Self::Second, Self::Minute, Self::Hour];

    fn letter(self) -> &'static str {
        match self {
            Self::Second => "s",
            Self::Minute => "m",
            Self::Hour => "h",
        }
    }

    fn seconds(self) -> u32 {
        match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
        }
    }
}

impl RateLimit {
    /// The limit as the database stores it: requests per number of seconds.
    pub fn new(requests: u32, seconds: u32) -> Result<Self, RateLimitError> {
        let requests = NonZeroU32::new(requests).filter(|requests| requests.get() <= Self::MAX_REQUESTS);
        let period = RateLimitPeriod::ALL.into_iter().find(|period| period.seconds() == seconds);
        match (requests, period) {
            (Some(requests), Some(period)) => Ok(Self { requests, period }),
            _ => Err(RateLimitError),
        }
    }

    /// The smallest limit per second.
    pub const ONE_PER_SECOND: Self = Self { requests: NonZeroU32::MIN, period: RateLimitPeriod::Second };

    /// The largest number of requests.
    pub const MAX_REQUESTS: u32 = 1_000_000_000;

    /// The number of requests.
    #[must_use]
    pub fn requests(self) -> NonZeroU32 {
        self.requests
    }

    /// The period, in seconds.
    #[must_use]
    pub fn seconds(self) -> u32 {
        self.period.seconds()
    }
}

/// The text is not a rate limit.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("must be a number of requests per second, minute or hour, such as 100/s, 600/m or 10000/h")]
pub struct RateLimitError;

impl FromStr for RateLimit {
    type Err = RateLimitError;

    fn from_str(text: &str) -> Result<Self, RateLimitError> {
        let (requests, letter) = text.split_once('/').ok_or(RateLimitError)?;
        let period = RateLimitPeriod::ALL
            .into_iter()
            .find(|period| period.letter() == letter)
            .ok_or(RateLimitError)?;
        if !requests.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(RateLimitError);
        }
        Self::new(requests.parse().map_err(|_| RateLimitError)?, period.seconds())
    }
}

impl fmt::Display for RateLimit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.requests, self.period.letter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_limit_is_displayed_as_it_was_written() {
        for text in ["1/s", "100/s", "600/m", "10000/h", "1000000000/s"] {
            assert_eq!(text.parse::<RateLimit>().unwrap().to_string(), text);
        }
        let limit: RateLimit = "600/m".parse().unwrap();
        assert_eq!((limit.requests().get(), limit.seconds()), (600, 60));
        assert_eq!(RateLimit::new(600, 60), Ok(limit));
    }

    #[test]
    fn text_that_is_not_a_rate_limit_is_rejected() {
        for text in
            ["", "100", "100/", "/s", "0/s", "-1/s", "+1/s", "1.5/s", "100/d", "100 /s", "1000000001/s"]
        {
            assert_eq!(text.parse::<RateLimit>(), Err(RateLimitError), "{text:?}");
        }
        assert_eq!(RateLimit::new(1, 7), Err(RateLimitError));
    }
}
