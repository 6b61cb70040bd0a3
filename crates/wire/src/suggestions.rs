//! Names that a client sent, in messages to it: which known name it meant, and how to repeat its own safely.

/// The known name that is spelt most like `name`, whether or not it is similar.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known.min_by_key(|candidate| distance(name, candidate))
}

/// The known name that was most likely meant: at most two edits away, without regard to case.
pub fn similar<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // If every letter of it is another one, it is not the same name.
    nearest(name, known).filter(|candidate| distance(name, candidate) < candidate.len().min(3))
}

/// How many edits lead from one name to the other, without regard to case.
fn distance(name: &str, candidate: &str) -> usize {
    // A longer name is like none of them, and the comparison takes the product of the lengths.
    let start: String = name.chars().take(SHOWN_CHARS).collect();
    strsim::damerau_levenshtein(&start.to_lowercase(), &candidate.to_lowercase())
}

/// Names in a message: "`a`, `b` and `c`".
pub fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}

const SHOWN_CHARS: usize = 64;

/// A client's text as a message may repeat it: short, and on one line.
#[must_use]
pub fn shown(text: &str) -> String {
    text.chars()
        .take(SHOWN_CHARS)
        .map(|character| if character.is_control() { '\u{fffd}' } else { character })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_similar_within_two_edits_in_any_case() {
        let known = || ["limit", "status", "id", "cursor"].into_iter();
        for (name, meant) in
            [("stauts", "status"), ("LIMIT", "limit"), ("limits", "limit"), ("Curser", "cursor")]
        {
            assert_eq!(similar(name, known()), Some(meant), "{name}");
        }
        for name in ["page", "offset", "sort", "petStatus", "", "x"] {
            assert_eq!(similar(name, known()), None, "{name}");
        }
    }

    #[test]
    fn names_are_listed() {
        let listed = |names: &[&str]| listed(names.iter().copied());
        assert_eq!(listed(&["a"]), "`a`");
        assert_eq!(listed(&["a", "b", "c"]), "`a`, `b` and `c`");
    }
}
