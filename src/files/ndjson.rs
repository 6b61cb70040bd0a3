//! A JSON object a line, as createPet takes it.

use std::io::{self, BufRead, Read};

use super::{BadRow, FileError, Row};
use crate::domain::import_source::SourceKey;
use crate::domain::pet::Pet;
use crate::http::wire;

/// The longest line without its end, as long as the longest body of a request.
const MAX_LINE: usize = 16 * 1024;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Rows from lines of JSON.
pub struct NdjsonRows {
    input: Box<dyn BufRead + Send>,
    key_column: Option<String>,
    line: u64,
    text: Vec<u8>,
}

#[derive(PartialEq)]
enum Length {
    Fits,
    TooLong,
}

impl NdjsonRows {
    pub(super) fn new(input: Box<dyn BufRead + Send>, key_column: Option<String>) -> Self {
        Self { input, key_column, line: 0, text: Vec::new() }
    }

    /// Lines without anything on them count, but are no rows.
    pub(super) fn next(&mut self) -> Result<Option<Result<Row, BadRow>>, FileError> {
        while let Some(length) = self.read_line()? {
            self.line += 1;
            if length == Length::TooLong {
                return Ok(Some(Err(self.bad(format!("The line has more than {MAX_LINE} bytes.")))));
            }
            if self.line == 1 && self.text.starts_with(BYTE_ORDER_MARK) {
                self.text.drain(..BYTE_ORDER_MARK.len());
            }
            let text = self.text.trim_ascii();
            if !text.is_empty() {
                let row = row(text, self.key_column.as_deref());
                return Ok(Some(row.map_err(|reason| self.bad(reason))));
            }
        }
        Ok(None)
    }

    /// Reads exactly one line, with its end, if there is one. Of a line that is too long only the beginning is kept.
    fn read_line(&mut self) -> io::Result<Option<Length>> {
        self.text.clear();
        let most = MAX_LINE + b"\r\n".len();
        self.input.by_ref().take(most as u64).read_until(b'\n', &mut self.text)?;
        if self.text.is_empty() {
            return Ok(None);
        }
        if self.text.pop_if(|byte| *byte == b'\n').is_some() {
            self.text.pop_if(|byte| *byte == b'\r');
        } else {
            // The limit cut the line, or it is the last one and nothing is left to skip.
            self.input.skip_until(b'\n')?;
        }
        Ok(Some(if self.text.len() > MAX_LINE { Length::TooLong } else { Length::Fits }))
    }

    fn bad(&self, reason: String) -> BadRow {
        BadRow { line: self.line, reason }
    }
}

fn row(text: &[u8], key_column: Option<&str>) -> Result<Row, String> {
    let (pet, key) = wire::read_new_pet(text, key_column)?;
    let key = match (key_column, key) {
        (None, _) => None,
        (Some(column), None) => return Err(format!("`/{column}` is required: it is the source's key.")),
        (Some(column), Some(json)) => {
            Some(key_of(json).map_err(|problem| format!("`/{column}` {problem}."))?)
        }
    };
    Ok(Row { pet, key })
}

/// A string, or an integer as it is written in digits: `7` and `"7"` are the same key, as they are in CSV.
fn key_of(json: &str) -> Result<SourceKey, String> {
    let text = if json.starts_with('"') {
        serde_json::from_str(json).map_err(|error| error.to_string())?
    } else {
        wire::integer(json).ok_or("must be a string or an integer")?.to_string()
    };
    SourceKey::try_from(text).map_err(|problem| problem.to_string())
}

pub(super) fn write_line(out: &mut Vec<u8>, pet: &Pet) {
    wire::write_pet(out, pet);
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::super::Format;
    use super::super::tests::outcomes;
    use super::MAX_LINE;

    /// A good row on a line of this length, without its end.
    fn line(length: usize, category_id: i64) -> String {
        let object = format!("{{\"name\": \"Rex\", \"categoryId\": {category_id}");
        let spaces = " ".repeat(length - object.len() - 1);
        format!("{object}{spaces}}}")
    }

    #[test]
    fn a_line_of_any_length_is_a_row_of_its_own() {
        let around = [MAX_LINE, 2 * MAX_LINE, 3 * MAX_LINE].into_iter().flat_map(|near| near - 5..=near + 7);
        for length in around.chain([300_000]) {
            let row = |line: u64, category_id| if length > MAX_LINE { Err(line) } else { Ok(category_id) };
            for end in ["\n", "\r\n"] {
                for last_end in ["", end] {
                    let (long, short) = (line(length, 1), line(50, 2));
                    let content = format!(
                        "{long}{end}{short}{end}{end}{long}{end}{long}{end}{short}{end}{long}{last_end}"
                    );
                    let expected = [row(1, 1), Ok(2), row(4, 1), row(5, 1), Ok(2), row(7, 1)];
                    let found = outcomes(&content, Format::Ndjson).unwrap();
                    assert_eq!(found, expected, "{length} bytes, then {end:?}; last {last_end:?}");
                }
            }
        }
    }
}
