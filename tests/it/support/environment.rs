//! Settings of a test run.

/// The number in a variable of the environment. None if it is empty: `make` sets `SEED` in any case.
pub(crate) fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty());
    text.map(|text| text.parse().unwrap())
}
