//! CSV, RFC 4180: commas, quotes where they are needed, and a header that names the columns.

use std::io::{self, BufRead, Read, Write};
use std::iter;

use csv::{ByteRecord, Reader, ReaderBuilder};
use petstore_domain::import_key::ImportKey;
use petstore_domain::metadata::MetadataName;
use petstore_domain::pet::{Pet, PetStatus};
use petstore_wire::pet::NewPet;
use petstore_wire::struct_deserializer::{self, NamedValues};
use petstore_wire::unparsed_value::UnparsedValue;

use super::{FileError, ImportRow, RejectedRow};

/// The longest row, with its line end. A longer one most likely has an unclosed quote, which would swallow the rest of the
/// file.
const MAX_ROW: usize = 256 * 1024;

/// The rows of a CSV file.
pub struct CsvRows {
    reader: Reader<LineReader>,
    columns: CsvColumns,
    record: ByteRecord,
}

/// The columns of the file, by name.
struct CsvColumns {
    names: Vec<String>,
    /// The index of the column with the source's keys.
    key: Option<usize>,
}

/// The column with all metadata, and the start of the name of a column with one member of it.
const METADATA: &str = "metadata";
const METADATA_MEMBER: &str = "metadata.";

/// A row, in which the names of the columns lead to the cells of the pet.
struct CsvRow<'a> {
    columns: &'a CsvColumns,
    cells: &'a [&'a str],
    /// The members of the metadata that have columns of their own and are set.
    metadata: &'a [(&'a str, &'a str)],
}

impl CsvRows {
    pub(super) fn read(input: Box<dyn BufRead + Send>, key_column: Option<&str>) -> Result<Self, FileError> {
        let mut reader =
            ReaderBuilder::new().has_headers(false).flexible(true).from_reader(LineReader::new(input));
        let mut record = ByteRecord::new();
        if !reader.read_byte_record(&mut record).map_err(unreadable)? {
            return Err(FileError::Header("the input is empty".into()));
        }
        let columns = CsvColumns::find(&record, key_column).map_err(FileError::Header)?;
        Ok(Self { reader, columns, record })
    }

    pub(super) fn next(&mut self) -> Result<Option<Result<ImportRow, RejectedRow>>, FileError> {
        self.reader.get_mut().start_row();
        if !self.reader.read_byte_record(&mut self.record).map_err(unreadable)? {
            return Ok(None);
        }
        let line = self.reader.get_ref().row_line;
        Ok(Some(self.columns.row(line, &self.record).map_err(|reason| RejectedRow { line, reason })))
    }
}

impl CsvColumns {
    fn find(header: &ByteRecord, key_column: Option<&str>) -> Result<Self, String> {
        let of_pet = NewPet::columns();
        let mut names: Vec<String> = Vec::new();
        for name in header {
            let name = std::str::from_utf8(name).map_err(|_| "it is not UTF-8".to_owned())?;
            if names.iter().any(|other| other == name) {
                return Err(format!("the column `{name}` appears twice"));
            }
            let is_known = of_pet.iter().any(|column| column.name == name) || key_column == Some(name);
            if let (false, Some(member)) = (is_known, name.strip_prefix(METADATA_MEMBER)) {
                let member = MetadataName::try_from(member.to_owned());
                member.map_err(|problem| format!("the column `{name}` {problem}"))?;
            } else if !is_known {
                let known: Vec<_> = of_pet.iter().map(|column| format!("`{}`", column.name)).collect();
                let hint = if name == "id" { "; `--key-column id` uses it as the source's key" } else { "" };
                return Err(format!(
                    "there is no column `{name}`; the columns are {}{hint}",
                    known.join(", ")
                ));
            }
            names.push(name.to_owned());
        }
        let is_key = |name: &String| key_column == Some(name.as_str());
        let has_member = names.iter().any(|name| name.starts_with(METADATA_MEMBER) && !is_key(name));
        if has_member && names.iter().any(|name| name == METADATA && !is_key(name)) {
            return Err("it has a column `metadata` and columns for its members: use one or the other".into());
        }
        let index = |wanted: &str| {
            let index = names.iter().position(|name| name == wanted);
            index.ok_or_else(|| format!("the column `{wanted}` is missing"))
        };
        for column in of_pet.iter().filter(|column| column.is_required) {
            index(&column.name)?;
        }
        let key = key_column.map(index).transpose()?;
        Ok(Self { names, key })
    }

    fn row(&self, line: u64, record: &ByteRecord) -> Result<ImportRow, String> {
        if record.len() != self.names.len() {
            return Err(format!(
                "The row has {} values, but the header {} columns.",
                record.len(),
                self.names.len()
            ));
        }
        let cells: Result<Vec<&str>, _> = record.iter().map(std::str::from_utf8).collect();
        let cells = cells.map_err(|_| "The row is not UTF-8.")?;
        let members = self.names.iter().zip(&cells).enumerate().filter_map(|(index, (name, cell))| {
            let is_member = Some(index) != self.key && !cell.is_empty();
            Some((name.strip_prefix(METADATA_MEMBER).filter(|_| is_member)?, *cell))
        });
        let row = CsvRow { columns: self, cells: &cells, metadata: &members.collect::<Vec<_>>() };
        let pet: NewPet = struct_deserializer::read(&row).map_err(|error| format!("{error}."))?;
        let key = self.key.map(|index| {
            let key = ImportKey::try_from(row.cells[index].to_owned());
            key.map_err(|problem| format!("`{}` {problem}.", self.names[index]))
        });
        Ok(ImportRow { line, pet: pet.into(), key: key.transpose()? })
    }
}

impl<'a> NamedValues<'a> for CsvRow<'a> {
    /// None: the header has no unknown ones, see [`CsvColumns::find`].
    fn names(&self) -> impl Iterator<Item = &str> {
        iter::empty()
    }

    fn get(&self, name: &str) -> UnparsedValue<'a> {
        if name == METADATA && !self.metadata.is_empty() {
            return UnparsedValue::CsvMembers(self.metadata);
        }
        let index = self.columns.names.iter().position(|column| column == name);
        index.map_or(UnparsedValue::Absent, |index| UnparsedValue::Csv(self.cells[index]))
    }
}

fn unreadable(error: csv::Error) -> FileError {
    let line = error.position().map_or(0, csv::Position::line);
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error.into(),
        other => FileError::MalformedCsv { line, problem: format!("{other:?}") },
    }
}

/// Passes the input on, at most one line per read. Because the parser then never buffers the start of the next row, the
/// line and the length of each row are known. The parser itself reports the position of the blank lines before a row, and
/// with CRLF that of the LF before it.
///
/// Where lines end in CR alone, all of them count as one line.
struct LineReader {
    input: Box<dyn BufRead + Send>,
    /// The line of the next byte.
    line: u64,
    /// The line that the current row starts on.
    row_line: u64,
    /// Whether only line ends of the current row were read so far. They are not part of it.
    blank: bool,
    /// How many more bytes the current row may have.
    left: usize,
}

impl LineReader {
    fn new(input: Box<dyn BufRead + Send>) -> Self {
        Self { input, line: 1, row_line: 1, blank: true, left: MAX_ROW }
    }

    fn start_row(&mut self) {
        self.blank = true;
        self.left = MAX_ROW;
    }
}

impl Read for LineReader {
    /// Fails if a row is longer than allowed.
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let available = self.input.fill_buf()?;
        let available = &available[..available.len().min(bytes.len())];
        let line_end = available.iter().position(|byte| *byte == b'\n');
        let read = line_end.map_or(available.len(), |end| end + 1);
        bytes[..read].copy_from_slice(&available[..read]);
        self.input.consume(read);
        if self.blank {
            self.row_line = self.line;
            self.blank = bytes[..read].iter().all(|byte| matches!(byte, b'\r' | b'\n'));
        }
        self.line += u64::from(line_end.is_some());
        if !self.blank {
            self.left = self.left.checked_sub(read).ok_or_else(|| {
                let problem = format!("a CSV row has more than {MAX_ROW} bytes: is a quote not closed?");
                io::Error::new(io::ErrorKind::InvalidData, problem)
            })?;
        }
        Ok(read)
    }
}

pub(super) fn write_header(out: &mut Vec<u8>, metadata_columns: &[MetadataName]) {
    out.extend_from_slice(b"id,name,categoryId,status,reference");
    if metadata_columns.is_empty() {
        out.extend_from_slice(b",metadata");
    }
    for name in metadata_columns {
        let _ = write!(out, ",{METADATA_MEMBER}{}", name.as_str());
    }
    out.push(b'\n');
}

pub(super) fn write_row(
    out: &mut Vec<u8>,
    pet: &Pet,
    metadata_columns: &[MetadataName],
    escape_formulas: bool,
) {
    let Pet { id, name, category_id, status, reference, metadata } = pet;
    let (id, name, category_id) = (id.get(), name.as_str(), category_id.0);
    // Writing to memory cannot fail.
    let write_value = |out: &mut Vec<u8>, text: &str| {
        if escape_formulas && may_be_formula(text) {
            write_text(out, &format!("'{text}"));
        } else {
            write_text(out, text);
        }
    };
    let _ = write!(out, "{id},");
    write_value(out, name);
    let _ = write!(out, ",{category_id},{},", status.map_or("", PetStatus::as_str));
    if let Some(reference) = reference {
        write_value(out, reference.as_str());
    }
    if metadata_columns.is_empty() {
        out.push(b',');
        if !metadata.is_empty() {
            write_value(out, &serde_json::to_string(metadata).unwrap_or_default());
        }
    }
    for name in metadata_columns {
        out.push(b',');
        write_value(out, metadata.get(name.as_str()).unwrap_or_default());
    }
    out.push(b'\n');
}

/// Whether a spreadsheet may evaluate the text, also after white space.
fn may_be_formula(text: &str) -> bool {
    text.trim_start().starts_with(['=', '+', '-', '@', '＝', '＋', '－', '＠'])
}

/// Quotes the text if other programs might otherwise read it differently, which includes white space at its ends.
fn write_text(out: &mut Vec<u8>, text: &str) {
    if !text.contains([',', '"', '\n', '\r']) && text.trim() == text {
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

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::super::tests::outcomes;
    use super::super::{FileError, FileFormat, ImportRows};
    use super::{MAX_ROW, may_be_formula, write_text};

    const HEADER: &str = "name,categoryId";

    #[test]
    fn a_header_with_an_unknown_a_repeated_or_a_missing_column_is_refused() {
        let read = |header: &str, key_column: Option<&str>| {
            let input = Box::new(Cursor::new(format!("{header}\n")));
            match ImportRows::read(input, FileFormat::Csv, key_column.map(str::to_owned)) {
                Ok(_) => String::new(),
                Err(FileError::Header(problem)) => problem,
                Err(other) => panic!("{other}"),
            }
        };
        for (header, key_column, problem) in [
            ("name,categoryId", None, ""),
            ("id,categoryId,name", Some("id"), ""),
            ("name,categoryId,metadata.a,metadata.b", None, ""),
            ("name,categoryId,metadata,metadata.key", Some("metadata.key"), ""),
            ("name,categoryId,metadata.a,metadata", Some("metadata"), ""),
            (
                "name,categoryId,metadata,metadata.a",
                None,
                "it has a column `metadata` and columns for its members",
            ),
            ("name,categoryId,metadata.", None, "the column `metadata.` "),
            ("name,categoryId,name", None, "the column `name` appears twice"),
            ("name", None, "the column `categoryId` is missing"),
            ("name,categoryId", Some("id"), "the column `id` is missing"),
            ("name,categoryId,id", None, "`--key-column id` uses it as the source's key"),
            ("name,categoryId,sku", None, "there is no column `sku`"),
            ("name,categoryId,sku", Some("name"), "there is no column `sku`"),
        ] {
            let found = read(header, key_column);
            assert!(found.contains(problem) && found.is_empty() == problem.is_empty(), "{header}: {found}");
        }
        assert!(!read("name,categoryId,sku", None).contains("--key-column"));
    }

    #[test]
    fn neither_an_empty_cell_nor_the_key_is_a_member_of_the_metadata() {
        let content = "name,categoryId,metadata.a,metadata.b,metadata.key\nRex,1,,x,7\n";
        let input = Box::new(Cursor::new(content));
        let mut rows = ImportRows::read(input, FileFormat::Csv, Some("metadata.key".to_owned())).unwrap();
        let metadata = rows.next().unwrap().unwrap().unwrap().pet.metadata;
        assert_eq!(serde_json::to_string(&metadata).unwrap(), r#"{"b":"x"}"#);
    }

    #[test]
    fn a_text_is_quoted_only_where_another_program_might_read_it_differently() {
        for (text, quoted) in [
            ("Rex = 'the' dog; 7", "Rex = 'the' dog; 7"),
            ("Rex, the dog", "\"Rex, the dog\""),
            ("Rex \"the\" dog", "\"Rex \"\"the\"\" dog\""),
            ("Rex\nthe dog", "\"Rex\nthe dog\""),
            ("Rex\rthe dog", "\"Rex\rthe dog\""),
            (" Rex", "\" Rex\""),
            ("Rex\u{3000}", "\"Rex\u{3000}\""),
        ] {
            let mut out = Vec::new();
            write_text(&mut out, text);
            assert_eq!(String::from_utf8(out).unwrap(), quoted);
        }
    }

    #[test]
    fn a_text_may_be_a_formula_if_it_starts_like_one() {
        for text in ["=1", "+1", "-1", "@a", "＝1", "＋1", "－1", "＠a", " \t=1"] {
            assert!(may_be_formula(text), "{text}");
        }
        for text in ["", "Rex", "1=1", "'=1"] {
            assert!(!may_be_formula(text), "{text}");
        }
    }

    #[test]
    fn a_rejected_row_is_reported_with_the_line_it_starts_on() {
        let lines =
            ["", "Rex,1", ",2", "", "", ",3", "\"two", "", "lines\",4", "Tom,5", ",6", "", ",7", "Kit,8"];
        let expected = [Ok(1), Err(4), Err(7), Err(8), Ok(5), Err(12), Err(14), Ok(8)];
        for end in ["\n", "\r\n"] {
            for last_end in ["", end] {
                let content = format!("{HEADER}{end}{}{last_end}", lines.join(end));
                assert_eq!(
                    outcomes(&content, FileFormat::Csv).unwrap(),
                    expected,
                    "{end:?}, last {last_end:?}"
                );
            }
        }
    }

    #[test]
    fn a_row_may_have_the_maximum_length_wherever_it_starts() {
        for end in ["\n", "\r\n"] {
            // The rows before it decide where it starts.
            for before in [1000, 0] {
                let short = format!("{HEADER}{end}{}", format!("Rex,1{end}").repeat(before));
                let read = |length: usize| {
                    let zeros = "0".repeat(length - "Tom,2".len());
                    let (good, bad) = (format!("Tom,{zeros}2{end}"), format!(",{zeros}3Tom{end}"));
                    outcomes(&format!("{short}{good}{bad}Kit,4{end}"), FileFormat::Csv)
                };
                for length in [MAX_ROW - 8192, MAX_ROW - 3, MAX_ROW - end.len()] {
                    let expected = [vec![Ok(1); before], vec![Ok(2), Err(before as u64 + 3), Ok(4)]].concat();
                    assert_eq!(
                        read(length).unwrap(),
                        expected,
                        "{length} bytes after {before} rows, {end:?}"
                    );
                }
                for length in [MAX_ROW, 2 * MAX_ROW] {
                    let found = read(length);
                    assert!(matches!(found, Err(FileError::Unreadable(_))), "{length} bytes, {end:?}");
                }
            }
        }
    }

    #[test]
    fn any_number_of_blank_lines_may_separate_rows() {
        for end in ["\n", "\r\n"] {
            let content = format!("{HEADER}{end}Rex,1{end}{},2{end}Tom,3", end.repeat(MAX_ROW));
            let expected = [Ok(1), Err(MAX_ROW as u64 + 3), Ok(3)];
            assert_eq!(outcomes(&content, FileFormat::Csv).unwrap(), expected, "{end:?}");
        }
    }
}
