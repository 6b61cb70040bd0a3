//! A JSON object a line, as createPet takes it.

use std::io::{self, BufRead, Read};

use super::{BadRow, FileError, Row};
use crate::domain::pet::Pet;
use crate::domain::source::SourceKey;
use crate::http::wire;

/// The longest line that is looked at, as long as the longest body of a request.
const MAX_LINE: usize = 16 * 1024;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Rows from lines of JSON.
pub struct NdjsonRows {
    input: Box<dyn BufRead + Send>,
    key_column: Option<String>,
    line: u64,
    text: Vec<u8>,
}

impl NdjsonRows {
    pub(super) fn new(input: Box<dyn BufRead + Send>, key_column: Option<String>) -> Self {
        Self { input, key_column, line: 0, text: Vec::new() }
    }

    /// Lines without anything on them count, but are no rows.
    pub(super) fn next(&mut self) -> Result<Option<Result<Row, BadRow>>, FileError> {
        while self.read_line()? {
            self.line += 1;
            if self.text.len() > MAX_LINE {
                self.skip_line()?;
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

    /// Reads a line, or the beginning of one that is too long, if there is one.
    fn read_line(&mut self) -> io::Result<bool> {
        self.text.clear();
        // One more for the end of the line, and one more to tell that it is too long.
        let most = MAX_LINE as u64 + 2;
        self.input.by_ref().take(most).read_until(b'\n', &mut self.text)?;
        let read = !self.text.is_empty();
        if self.text.last() == Some(&b'\n') {
            self.text.pop();
        }
        Ok(read)
    }

    fn skip_line(&mut self) -> io::Result<()> {
        while !self.text.is_empty() && self.text.last() != Some(&b'\n') {
            self.text.clear();
            self.input.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut self.text)?;
        }
        Ok(())
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
