//! The rule for short texts that people choose.

/// Whether the text is one line, not blank, and has at most `longest` characters.
pub(super) fn is_short_text(text: &str, longest: usize) -> bool {
    let blank = text.chars().all(char::is_whitespace);
    !blank && text.chars().count() <= longest && !text.chars().any(char::is_control)
}
