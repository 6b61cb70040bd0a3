//! Animals in files: CSV with a header, or a JSON object a line, packed or not.
//!
//! **Invariants:**
//! - a row that is read is valid by the rules of createPet, and by the same types;
//! - what is written can be read again, and gives the same animals, unless formulas were escaped;
//! - no row and no file is ever held whole, however long it is.

mod compression;
mod csv;
mod ndjson;
mod partial_file;

use std::io;
use std::path::Path;

use thiserror::Error;

use crate::domain::import_source::SourceKey;
use crate::domain::pet::NewPet;

pub use self::csv::write_header;
pub use compression::{CompressedWriter, Compression, decompressed};
pub use partial_file::PartialFile;

use self::csv::CsvRows;
use ndjson::NdjsonRows;

/// How animals are written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Values separated by commas, the names of the columns first.
    Csv,
    /// A JSON object a line.
    Ndjson,
}

impl Format {
    /// What the name of a file says, whether it is packed or not.
    #[must_use]
    pub fn of_name(file: &Path) -> Option<Self> {
        let name = Compression::stripped(file);
        match name.extension()?.to_str()? {
            "csv" => Some(Self::Csv),
            "ndjson" | "jsonl" => Some(Self::Ndjson),
            _ => None,
        }
    }
}

/// A row that can be imported.
#[derive(Debug)]
pub struct Row {
    /// The animal.
    pub pet: NewPet,
    /// What the source calls it, if a column of keys was named.
    pub key: Option<SourceKey>,
}

/// A row that cannot.
#[derive(Debug)]
pub struct BadRow {
    /// The line that it begins on; the first is 1.
    pub line: u64,
    /// What is wrong with it, as a sentence.
    pub reason: String,
}

/// Why a file cannot be read on.
#[derive(Debug, Error)]
pub enum FileError {
    /// It cannot be read, or not be decompressed.
    #[error("the input cannot be read")]
    Unreadable(#[from] io::Error),
    /// Its columns are not those of an animal.
    #[error("the header is not usable: {0}")]
    Header(String),
    /// It is no CSV.
    #[error("line {line}: {problem}")]
    NoCsv {
        /// Where.
        line: u64,
        /// What is wrong.
        problem: String,
    },
}

/// The rows of a file, one after another.
pub enum Rows {
    /// From CSV.
    Csv(CsvRows),
    /// From JSON.
    Ndjson(NdjsonRows),
}

impl Rows {
    /// Begins to read, with the source's keys in the column or member of that name.
    pub fn read(
        input: Box<dyn io::BufRead + Send>,
        format: Format,
        key_column: Option<String>,
    ) -> Result<Self, FileError> {
        Ok(match format {
            Format::Csv => Self::Csv(CsvRows::read(input, key_column.as_deref())?),
            Format::Ndjson => Self::Ndjson(NdjsonRows::new(input, key_column)),
        })
    }

    /// The next row, good or bad, if there is one.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator of results of options of results helps nobody"
    )]
    pub fn next(&mut self) -> Result<Option<Result<Row, BadRow>>, FileError> {
        match self {
            Self::Csv(rows) => rows.next(),
            Self::Ndjson(rows) => rows.next(),
        }
    }
}

/// Appends an animal, on a line of its own.
///
/// `escape_formulas` concerns CSV only: a name that a spreadsheet may evaluate as a formula gets a `'` in front.
pub fn write(out: &mut Vec<u8>, format: Format, escape_formulas: bool, pet: &crate::domain::pet::Pet) {
    match format {
        Format::Csv => csv::write_row(out, pet, escape_formulas),
        Format::Ndjson => ndjson::write_line(out, pet),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Cursor, Write};

    use proptest::prelude::*;

    use super::*;
    use crate::domain::pet::{CategoryId, Pet, PetName, PetStatus};

    /// What is read of a file, row by row: the `categoryId` of a good row, the line of a bad one.
    ///
    /// It must be the same however the file is packed, and wherever it is cut when it is read.
    pub(in crate::files) fn outcomes(
        content: &str,
        format: Format,
    ) -> Result<Vec<Result<i64, u64>>, FileError> {
        let packed = [Compression::Plain, Compression::Gzip, Compression::Zstd].map(|packing| {
            let mut bytes = Vec::new();
            let mut packed = CompressedWriter::new(&mut bytes, packing).unwrap();
            packed.write_all(content.as_bytes()).unwrap();
            packed.finish().unwrap();
            decompressed(Cursor::new(bytes)).unwrap()
        });
        let cut = [7, 8192].map(|size| -> Box<dyn BufRead + Send> {
            Box::new(BufReader::with_capacity(size, Cursor::new(content.to_owned())))
        });
        let mut all = packed.into_iter().chain(cut).map(|input| {
            let mut rows = Rows::read(input, format, None)?;
            let mut found = Vec::new();
            while let Some(row) = rows.next()? {
                found.push(row.map(|row| row.pet.category_id.0).map_err(|bad| bad.line));
            }
            Ok(found)
        });
        let first = all.next().unwrap();
        for other in all {
            assert_eq!(format!("{first:?}"), format!("{other:?}"));
        }
        first
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_as_the_same(
            id in 1..=i64::MAX,
            name in "[ \t]{0,2}[\"',;\\\\\u{5d0}\u{202e}\u{1f415}é a-z]{0,10}[^\\p{Cc}\\s][\"', \\\\]{0,3}",
            category_id: i64,
            status in proptest::option::of(proptest::sample::select(&PetStatus::ALL[..])),
        ) {
            prop_assume!(PetName::try_from(name.clone()).is_ok());
            let pet = Pet {
                id: id.try_into().unwrap(),
                name: name.try_into().unwrap(),
                category_id: CategoryId(category_id),
                status,
            };
            for format in [Format::Csv, Format::Ndjson] {
                let mut written = Vec::new();
                if format == Format::Csv {
                    write_header(&mut written);
                }
                write(&mut written, format, false, &pet);
                write(&mut written, format, false, &pet);
                let input = Box::new(Cursor::new(written));
                let mut rows = Rows::read(input, format, Some("id".to_owned())).unwrap();
                for _ in 0..2 {
                    let row = rows.next().unwrap().unwrap().unwrap();
                    prop_assert_eq!(&row.pet.name, &pet.name);
                    prop_assert_eq!((row.pet.category_id, row.pet.status), (pet.category_id, pet.status));
                    let key = row.key.unwrap();
                    prop_assert_eq!(key.as_str(), id.to_string());
                }
                prop_assert!(rows.next().unwrap().is_none());
            }
        }
    }

    #[test]
    fn the_name_of_a_file_tells_its_format() {
        for (name, format) in [
            ("a.csv", Some(Format::Csv)),
            ("shop/a.csv.gz", Some(Format::Csv)),
            ("a.ndjson", Some(Format::Ndjson)),
            ("a.jsonl.zst", Some(Format::Ndjson)),
            ("a.json", None),
            ("csv", None),
            ("a.gz", None),
        ] {
            assert_eq!(Format::of_name(Path::new(name)), format, "{name}");
        }
    }
}
