//! NDJSON: one JSON object per line, as createPet accepts it.

use std::io::{self, BufRead, Read};

use petstore_domain::import_key::ImportKey;
use petstore_domain::pet as domain;
use petstore_wire::json::JsonObject;
use petstore_wire::pet::{NewPet, Pet};
use petstore_wire::request_body::{BodyError, MAX_BODY_BYTES, RequestBody};
use petstore_wire::unparsed_value::{UnparsedValue, UnparsedValueError};

use super::{FileError, ImportRow, RejectedRow};

/// The longest line without its end.
const MAX_LINE: usize = MAX_BODY_BYTES;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The rows of an NDJSON file.
pub struct NdjsonRows {
    input: Box<dyn BufRead + Send>,
    key_column: Option<String>,
    line: u64,
    text: Vec<u8>,
}

#[derive(PartialEq)]
enum LineLength {
    Accepted,
    TooLong,
}

impl NdjsonRows {
    pub(super) fn new(input: Box<dyn BufRead + Send>, key_column: Option<String>) -> Self {
        Self { input, key_column, line: 0, text: Vec::new() }
    }

    /// The next row. Blank lines are counted, but are not rows.
    pub(super) fn next(&mut self) -> Result<Option<Result<ImportRow, RejectedRow>>, FileError> {
        while let Some(length) = self.read_line()? {
            self.line += 1;
            if length == LineLength::TooLong {
                return Ok(Some(Err(self.rejected(format!("The line has more than {MAX_LINE} bytes.")))));
            }
            if self.line == 1 && self.text.starts_with(BYTE_ORDER_MARK) {
                self.text.drain(..BYTE_ORDER_MARK.len());
            }
            let text = self.text.trim_ascii();
            if !text.is_empty() {
                let row = row(self.line, text, self.key_column.as_deref());
                return Ok(Some(row.map_err(|reason| self.rejected(reason))));
            }
        }
        Ok(None)
    }

    /// Reads exactly one line, if there is one. Only the start of a line that is too long is kept.
    fn read_line(&mut self) -> io::Result<Option<LineLength>> {
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
        Ok(Some(if self.text.len() > MAX_LINE { LineLength::TooLong } else { LineLength::Accepted }))
    }

    fn rejected(&self, reason: String) -> RejectedRow {
        RejectedRow { line: self.line, reason }
    }
}

fn row(line: u64, text: &[u8], key_column: Option<&str>) -> Result<ImportRow, String> {
    let mut object = JsonObject::parse(text).map_err(|error| message(error.into()))?;
    let key = key_column.map(|column| (column, object.remove(column)));
    let pet = NewPet::from_object(&object).map_err(message)?.into();
    let key = match key {
        None => None,
        Some((column, None)) => return Err(format!("`/{column}` is required: it is the source's key.")),
        Some((column, Some(value))) => {
            Some(source_key(value).map_err(|problem| format!("`/{column}` {problem}."))?)
        }
    };
    Ok(ImportRow { line, pet, key })
}

/// What is wrong with a line. Its number is not 1, as the JSON parser believes, and is reported separately.
fn message(error: BodyError) -> String {
    match error {
        BodyError::InvalidJson { problem } => {
            let problem = problem.replace(" at line 1, column ", " at column ");
            format!("The line is not valid: {problem}.")
        }
        other => other.to_string(),
    }
}

/// A string or an integer: `7` and `"7"` are the same key, as they are in CSV.
fn source_key(value: UnparsedValue<'_>) -> Result<ImportKey, String> {
    let text = match value.string() {
        Ok(text) => text.into_owned(),
        Err(error @ UnparsedValueError::Malformed) => return Err(error.to_string()),
        Err(_) => value.integer().map_err(|_| "must be a string or an integer")?.to_string(),
    };
    ImportKey::try_from(text).map_err(|problem| problem.to_string())
}

pub(super) fn write_line(out: &mut Vec<u8>, pet: &domain::Pet) {
    // Writing to memory cannot fail.
    let _ = serde_json::to_writer(&mut *out, &Pet::from(pet));
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::super::FileFormat;
    use super::super::tests::outcomes;
    use super::{MAX_LINE, row};

    /// A good row on a line of this length, without its end.
    fn line(length: usize, category_id: i64) -> String {
        let object = format!("{{\"name\": \"Rex\", \"categoryId\": {category_id}");
        let spaces = " ".repeat(length - object.len() - 1);
        format!("{object}{spaces}}}")
    }

    #[test]
    fn the_problem_with_a_line_is_reported_without_the_line_number_of_the_parser() {
        for (text, problem) in [
            ("[7]", "The line is not valid: it is not an object."),
            ("{7}", "The line is not valid: there is a syntax error at column 2."),
            (r#"{"name": "Rex"}"#, "`/categoryId` is required: it must be an integer."),
        ] {
            assert_eq!(row(3, text.as_bytes(), None).map(|_| ()), Err(problem.to_owned()));
        }
    }

    #[test]
    fn only_the_first_line_may_start_with_a_byte_order_mark() {
        let line = line(50, 1);
        let content = format!("\u{feff}{line}\n\u{feff}{line}\n{line}");
        assert_eq!(outcomes(&content, FileFormat::Ndjson).unwrap(), [Ok(1), Err(2), Ok(1)]);
    }

    #[test]
    fn a_line_of_any_length_is_one_row() {
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
                    let found = outcomes(&content, FileFormat::Ndjson).unwrap();
                    assert_eq!(found, expected, "{length} bytes, then {end:?}; last {last_end:?}");
                }
            }
        }
    }
}
