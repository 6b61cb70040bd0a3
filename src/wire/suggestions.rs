//! Names that a client sent, in messages to it: which known name it meant, and how to repeat its own safely.

/// The known name that is spelt most like `name`.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // A longer name is like none of them, and the comparison takes the product of the lengths.
    let start: String = name.chars().take(SHOWN_CHARS).collect();
    known.min_by_key(|candidate| strsim::damerau_levenshtein(&start, candidate))
}

const SHOWN_CHARS: usize = 64;

/// A client's text as a message may repeat it: short, and on one line.
pub(crate) fn shown(text: &str) -> String {
    text.chars()
        .take(SHOWN_CHARS)
        .map(|character| if character.is_control() { '\u{fffd}' } else { character })
        .collect()
}
