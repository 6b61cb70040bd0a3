//! How often a key may ask.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use thiserror::Error;

/// So many requests in each second, minute or hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RateLimit {
    requests: NonZeroU32,
    window: Window,
}

/// The time that a limit counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Window {
    /// A second.
    Second,
    /// A minute.
    Minute,
    /// An hour.
    Hour,
}

impl Window {
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
    /// The limit as the database keeps it: requests, in seconds.
    pub fn new(requests: u32, seconds: u32) -> Result<Self, RateLimitError> {
        let requests = NonZeroU32::new(requests).filter(|requests| requests.get() <= Self::MAX_REQUESTS);
        let window = Window::ALL.into_iter().find(|window| window.seconds() == seconds);
        match (requests, window) {
            (Some(requests), Some(window)) => Ok(Self { requests, window }),
            _ => Err(RateLimitError),
        }
    }

    /// More than this is no limit.
    pub const MAX_REQUESTS: u32 = 1_000_000_000;

    /// How many requests.
    #[must_use]
    pub fn requests(self) -> NonZeroU32 {
        self.requests
    }

    /// In how many seconds.
    #[must_use]
    pub fn seconds(self) -> u32 {
        self.window.seconds()
    }
}

/// The text is not a limit.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("a rate limit is a number of requests a second, minute or hour, such as 100/s, 600/m or 10000/h")]
pub struct RateLimitError;

impl FromStr for RateLimit {
    type Err = RateLimitError;

    fn from_str(text: &str) -> Result<Self, RateLimitError> {
        let (requests, letter) = text.split_once('/').ok_or(RateLimitError)?;
        let window =
            Window::ALL.into_iter().find(|window| window.letter() == letter).ok_or(RateLimitError)?;
        if !requests.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(RateLimitError);
        }
        Self::new(requests.parse().map_err(|_| RateLimitError)?, window.seconds())
    }
}

impl fmt::Display for RateLimit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.requests, self.window.letter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_read_as_it_is_written() {
        for text in ["1/s", "100/s", "600/m", "10000/h", "1000000000/s"] {
            assert_eq!(text.parse::<RateLimit>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_not_a_limit_is_refused() {
        for text in
            ["", "100", "100/", "/s", "0/s", "-1/s", "+1/s", "1.5/s", "100/d", "100 /s", "1000000001/s"]
        {
            assert_eq!(text.parse::<RateLimit>(), Err(RateLimitError), "{text:?}");
        }
        assert_eq!(RateLimit::new(1, 7), Err(RateLimitError));
    }
}
