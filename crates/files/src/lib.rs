//! Pets in files: CSV with a header, or NDJSON, compressed or not.
//!
//! **Must not know** HTTP or SQL: it reads and writes streams of bytes.
//!
//! **Guarantees:**
//! - a row that is read is valid by the rules of createPet, because it goes through the same types;
//! - an exported file can be imported again and yields the same pets, unless formulas were escaped;
//! - no file is ever loaded whole.

mod compression;
mod csv;
mod ndjson;
mod partial_file;

use std::io;
use std::path::Path;

use petstore_domain::import_key::ImportKey;
use petstore_domain::metadata::MetadataName;
use petstore_domain::pet::{NewPet, Pet};
use thiserror::Error;

use self::csv::CsvRows;
pub use compression::{Compression, ExportWriter, decompressed};
use ndjson::NdjsonRows;
pub use partial_file::PartialFile;

/// The format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileFormat {
    /// Comma-separated values with a header.
    Csv,
    /// One JSON object per line.
    Ndjson,
}

impl FileFormat {
    /// The format that the extension of a file names, compressed or not.
    #[must_use]
    pub fn from_extension(file: &Path) -> Option<Self> {
        let name = Compression::strip_extension(file);
        match name.extension()?.to_str()? {
            "csv" => Some(Self::Csv),
            "ndjson" | "jsonl" => Some(Self::Ndjson),
            _ => None,
        }
    }
}

/// A row that can be imported.
#[derive(Debug)]
pub struct ImportRow {
    /// The line that it starts on; the first is 1.
    pub line: u64,
    /// The pet.
    pub pet: NewPet,
    /// The source's key for it, if a key column was named.
    pub key: Option<ImportKey>,
}

/// A row that cannot be imported.
#[derive(Debug)]
pub struct RejectedRow {
    /// The line that it starts on; the first is 1.
    pub line: u64,
    /// What is wrong with it, in a sentence.
    pub reason: String,
}

/// Why a file cannot be read any further.
#[derive(Debug, Error)]
pub enum FileError {
    /// Reading or decompressing it failed.
    #[error("the input cannot be read")]
    Unreadable(#[source] io::Error),
    /// It ends before its compression format says so.
    #[error("the input is truncated")]
    Truncated(#[source] io::Error),
    /// Its columns are not those of a pet.
    #[error("the header is not usable: {0}")]
    Header(String),
    /// It is not CSV.
    #[error("line {line}: {problem}")]
    MalformedCsv {
        /// The line.
        line: u64,
        /// What is wrong.
        problem: String,
    },
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            Self::Truncated(error)
        } else {
            Self::Unreadable(error)
        }
    }
}

/// Reads the rows of a file one by one.
pub enum ImportRows {
    /// From CSV.
    Csv(CsvRows),
    /// From JSON.
    Ndjson(NdjsonRows),
}

impl ImportRows {
    /// Starts to read a file whose column or member of this name has the source's keys.
    pub fn read(
        input: Box<dyn io::BufRead + Send>,
        format: FileFormat,
        key_column: Option<String>,
    ) -> Result<Self, FileError> {
        Ok(match format {
            FileFormat::Csv => Self::Csv(CsvRows::read(input, key_column.as_deref())?),
            FileFormat::Ndjson => Self::Ndjson(NdjsonRows::new(input, key_column)),
        })
    }

    /// The next row, valid or rejected, if there is one.
    #[expect(clippy::should_implement_trait, reason = "as an iterator it would yield nested results")]
    pub fn next(&mut self) -> Result<Option<Result<ImportRow, RejectedRow>>, FileError> {
        match self {
            Self::Csv(rows) => rows.next(),
            Self::Ndjson(rows) => rows.next(),
        }
    }
}

/// Writes pets, one after the other.
#[derive(Debug)]
pub struct PetWriter {
    /// The format.
    pub format: FileFormat,
    /// Whether a text in CSV that a spreadsheet may evaluate as a formula is prefixed with `'`.
    pub escape_formulas: bool,
    /// The members of the metadata that get a column in CSV each. If there are none, one column has all of it as JSON.
    pub metadata_columns: Vec<MetadataName>,
}

impl PetWriter {
    /// Appends what comes before the first pet.
    pub fn write_header(&self, out: &mut Vec<u8>) {
        if self.format == FileFormat::Csv {
            csv::write_header(out, &self.metadata_columns);
        }
    }

    /// Appends a pet.
    pub fn write(&self, out: &mut Vec<u8>, pet: &Pet) {
        match self.format {
            FileFormat::Csv => csv::write_row(out, pet, &self.metadata_columns, self.escape_formulas),
            FileFormat::Ndjson => ndjson::write_line(out, pet),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Cursor, Write};

    use proptest::prelude::*;

    use super::*;
    use petstore_domain::metadata::Metadata;
    use petstore_domain::pet::{CategoryId, PetName, PetStatus};

    /// The rows of a file: the `categoryId` of a valid one, the line of a rejected one.
    ///
    /// They must be the same however the file is compressed, and wherever reads cut it.
    pub(crate) fn outcomes(content: &str, format: FileFormat) -> Result<Vec<Result<i64, u64>>, FileError> {
        let compressed = [Compression::Plain, Compression::Gzip, Compression::Zstd].map(|compression| {
            let mut bytes = Vec::new();
            let mut writer = ExportWriter::new(&mut bytes, compression).unwrap();
            writer.write_all(content.as_bytes()).unwrap();
            writer.finish().unwrap();
            decompressed(Cursor::new(bytes)).unwrap()
        });
        let cut = [7, 8192].map(|size| -> Box<dyn BufRead + Send> {
            Box::new(BufReader::with_capacity(size, Cursor::new(content.to_owned())))
        });
        let mut all = compressed.into_iter().chain(cut).map(|input| {
            let mut rows = ImportRows::read(input, format, None)?;
            let mut found = Vec::new();
            while let Some(row) = rows.next()? {
                found.push(row.map(|row| row.pet.category_id.0).map_err(|rejected| rejected.line));
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
        fn an_exported_pet_is_imported_unchanged(
            id in 1..=i64::MAX,
            name in "[ \t]{0,2}[\"',;\\\\\u{5d0}\u{202e}\u{1f415}é a-z]{0,10}[^\\p{Cc}\\s][\"', \\\\]{0,3}",
            category_id: i64,
            status in proptest::option::of(proptest::sample::select(&PetStatus::ALL[..])),
            reference in proptest::option::of("[ \"',=]{0,2}[^\\p{Cc}\\s][\"', ]{0,2}"),
            metadata in proptest::collection::btree_map(
                "[a-zA-Z0-9_-]{1,3}", "[ \"',=\n\t]{0,2}[^\\p{Cc}][\"', \n\t]{0,2}", 0..4,
            ),
        ) {
            prop_assume!(PetName::try_from(name.clone()).is_ok());
            let pet = Pet {
                id: id.try_into().unwrap(),
                name: name.try_into().unwrap(),
                category_id: CategoryId(category_id),
                status,
                reference: reference.map(|text| text.try_into().unwrap()),
                metadata: Metadata::from_stored(metadata.clone()),
            };
            let names: Vec<MetadataName> = metadata.into_keys().map(|name| name.try_into().unwrap()).collect();
            for (format, metadata_columns) in
                [(FileFormat::Csv, vec![]), (FileFormat::Csv, names), (FileFormat::Ndjson, vec![])]
            {
                let mut written = Vec::new();
                let writer = PetWriter { format, escape_formulas: false, metadata_columns };
                writer.write_header(&mut written);
                writer.write(&mut written, &pet);
                writer.write(&mut written, &pet);
                let input = Box::new(Cursor::new(written));
                let mut rows = ImportRows::read(input, format, Some("id".to_owned())).unwrap();
                for _ in 0..2 {
                    let row = rows.next().unwrap().unwrap().unwrap();
                    prop_assert_eq!(&row.pet.with_id(pet.id), &pet);
                    let key = row.key.unwrap();
                    prop_assert_eq!(key.as_str(), id.to_string());
                }
                prop_assert!(rows.next().unwrap().is_none());
            }
        }
    }

    #[test]
    fn the_extension_of_a_file_names_its_format() {
        for (name, format) in [
            ("a.csv", Some(FileFormat::Csv)),
            ("shop/a.csv.gz", Some(FileFormat::Csv)),
            ("a.ndjson", Some(FileFormat::Ndjson)),
            ("a.jsonl.zst", Some(FileFormat::Ndjson)),
            ("a.json", None),
            ("csv", None),
            ("a.gz", None),
        ] {
            assert_eq!(FileFormat::from_extension(Path::new(name)), format, "{name}");
        }
    }
}
