//! The files of this repository that tests compare with the service: pages, manifests, sources.

use std::fs;
use std::path::Path;

/// The root of the repository.
pub(crate) const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The text of a file, by its path from the root of the repository.
pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The id that GitHub gives a heading.
pub(crate) fn heading_id(text: &str) -> String {
    let kept = text.chars().filter(|&c| c.is_alphanumeric() || " -_".contains(c));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}
