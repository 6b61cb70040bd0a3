//! CSV, RFC 4180: commas, quotes where they are needed, and a header that names the columns.

use std::io::{self, BufRead, Read};

use csv::{ByteRecord, Reader, ReaderBuilder};

use super::{BadRow, COLUMNS, FileError, Row};
use crate::domain::pet::{CategoryId, NewPet, Pet, PetName, PetStatus};
use crate::domain::source::SourceKey;

/// The longest row. A longer one is most likely a quote that is never closed, which would take in the whole file.
const MAX_ROW: usize = 256 * 1024;

/// Rows from CSV.
pub struct CsvRows {
    reader: Reader<Bounded>,
    columns: Columns,
    record: ByteRecord,
}

/// Where in a row everything is.
struct Columns {
    count: usize,
    name: usize,
    category_id: usize,
    status: Option<usize>,
    key: Option<(String, usize)>,
}

impl CsvRows {
    pub(super) fn read(input: Box<dyn BufRead + Send>, key_column: Option<&str>) -> Result<Self, FileError> {
        let mut reader = ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .from_reader(Bounded { input, left: MAX_ROW });
        let mut record = ByteRecord::new();
        if !reader.read_byte_record(&mut record).map_err(unreadable)? {
            return Err(FileError::Header("the input is empty".into()));
        }
        let columns = Columns::find(&record, key_column).map_err(FileError::Header)?;
        Ok(Self { reader, columns, record })
    }

    pub(super) fn next(&mut self) -> Result<Option<Result<Row, BadRow>>, FileError> {
        self.reader.get_mut().left = MAX_ROW;
        if !self.reader.read_byte_record(&mut self.record).map_err(unreadable)? {
            return Ok(None);
        }
        let line = self.record.position().map_or(0, csv::Position::line);
        Ok(Some(self.columns.row(&self.record).map_err(|reason| BadRow { line, reason })))
    }
}

impl Columns {
    fn find(header: &ByteRecord, key_column: Option<&str>) -> Result<Self, String> {
        let mut names: Vec<&str> = Vec::new();
        for name in header {
            let name = std::str::from_utf8(name).map_err(|_| "it is not UTF-8".to_owned())?;
            if names.contains(&name) {
                return Err(format!("the column `{name}` is there twice"));
            }
            if !COLUMNS.contains(&name) && key_column != Some(name) {
                let hint =
                    if name == "id" { "; `--key-column id` takes it for the source's key" } else { "" };
                return Err(format!(
                    "there is no column `{name}`: it has `name`, `categoryId` and `status`{hint}"
                ));
            }
            names.push(name);
        }
        let place = |wanted: &str| names.iter().position(|name| *name == wanted);
        let needed = |wanted: &str| place(wanted).ok_or(format!("the column `{wanted}` is missing"));
        Ok(Self {
            count: names.len(),
            name: needed("name")?,
            category_id: needed("categoryId")?,
            status: place("status"),
            key: key_column
                .map(|column| needed(column).map(|place| (column.to_owned(), place)))
                .transpose()?,
        })
    }

    fn row(&self, record: &ByteRecord) -> Result<Row, String> {
        if record.len() != self.count {
            return Err(format!(
                "The row has {} values, and the header {} columns.",
                record.len(),
                self.count
            ));
        }
        let value = |place: usize| {
            let text = std::str::from_utf8(record.get(place).unwrap_or_default());
            text.map_err(|_| "The row is not UTF-8.".to_owned())
        };
        let name = PetName::try_from(value(self.name)?.to_owned());
        let name = name.map_err(|problem| format!("`name` {problem}."))?;
        let category_id = value(self.category_id)?.parse().map(CategoryId);
        let category_id =
            category_id.map_err(|_| "`categoryId` must be an integer from -2^63 to 2^63 - 1.".to_owned())?;
        let status: Option<PetStatus> = match self.status.map(value).transpose()? {
            None | Some("") => None,
            Some(word) => Some(word.parse().map_err(|problem| format!("`status` {problem}."))?),
        };
        let key = match &self.key {
            None => None,
            Some((column, place)) => {
                let key = SourceKey::try_from(value(*place)?.to_owned());
                Some(key.map_err(|problem| format!("`{column}` {problem}."))?)
            }
        };
        Ok(Row { pet: NewPet { name, category_id, status }, key })
    }
}

fn unreadable(error: csv::Error) -> FileError {
    let line = error.position().map_or(0, csv::Position::line);
    match error.into_kind() {
        csv::ErrorKind::Io(error) => FileError::Unreadable(error),
        other => FileError::NoCsv { line, problem: format!("{other:?}") },
    }
}

/// An input that gives so much, and then fails rather than give more.
struct Bounded {
    input: Box<dyn BufRead + Send>,
    left: usize,
}

impl Read for Bounded {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(bytes)?;
        self.left = self.left.checked_sub(read).ok_or_else(|| {
            let problem = format!("a row of CSV has more than {MAX_ROW} bytes: a quote may not be closed");
            io::Error::new(io::ErrorKind::InvalidData, problem)
        })?;
        Ok(read)
    }
}

/// Appends the header of an export.
pub fn write_header(out: &mut Vec<u8>) {
    out.extend_from_slice(b"id,name,categoryId,status\n");
}

pub(super) fn write_row(out: &mut Vec<u8>, pet: &Pet) {
    let mut digits = itoa::Buffer::new();
    out.extend_from_slice(digits.format(pet.id.get()).as_bytes());
    out.push(b',');
    write_text(out, pet.name.as_str());
    out.push(b',');
    out.extend_from_slice(digits.format(pet.category_id.0).as_bytes());
    out.push(b',');
    out.extend_from_slice(pet.status.map_or("", PetStatus::as_str).as_bytes());
    out.push(b'\n');
}

/// In quotes if other programs might else read it otherwise: white space at the ends, too.
fn write_text(out: &mut Vec<u8>, text: &str) {
    if !text.contains([',', '"']) && text.trim() == text {
        return out.extend_from_slice(text.as_bytes());
    }
    out.push(b'"');
    for byte in text.bytes() {
        if byte == b'"' {
            out.push(b'"');
        }
        out.push(byte);
    }
    out.push(b'"');
}
