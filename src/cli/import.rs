//! `petstore import`

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use clap::{Args, ValueEnum};
use tokio::sync::{mpsc, oneshot};

use super::progress::{CountingReader, Progress, ProgressCounters, counted, grouped};
use super::rejects_file::RejectsFile;
use super::{CommandError, SettingError, print};
use crate::config::DatabaseSettings;
use crate::domain::import_key::ImportSource;
use crate::files::{Compression, FileFormat, ImportRows, RejectedRow, decompressed};
use crate::storage::{CopyBuffer, CopyChunk, ImportSession, check_url};
use crate::wire::pet::PET;

/// Imports pets from a file.
///
/// The file is CSV with a header line (name, categoryId and, optionally, status), or NDJSON with one JSON object per
/// line, as createPet accepts it. It may be compressed with gzip or zstd, regardless of its name. Every row must meet
/// the same rules as a request.
///
/// With --key-column, which names the column of the source's own keys, the import is idempotent: run it again after a
/// crash or a bad row, or with a longer file, and it adds exactly the missing rows. It adds 5,000 rows per transaction
/// and stores their keys with them. If several rows have the same key, the first is imported.
///
/// Without --key-column, the import is one transaction, as with --atomic: other clients see all of it or nothing, and a
/// failed import adds nothing. Running it again after a success adds every pet again.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes:
  0  every row is imported
  1  failed: with --key-column, some rows may be imported and another run continues; else none
  2  the command line is invalid, or something else is at the path of the rejects file
  3  every valid row is imported, and bad rows are in the rejects file (or --dry-run found bad rows)
  4  stopped: more bad rows than --max-errors allows; rows are imported as for 1

Examples:
  petstore import pets.csv --dry-run
  petstore import pets.csv --key-column sku
  petstore import pets.ndjson.zst --key-column id --max-errors 100
  petstore export shop.csv.gz && petstore import shop.csv.gz --key-column id
  generate-pets | petstore import - --format ndjson")]
pub(super) struct Import {
    /// The file, or `-` for standard input.
    file: PathBuf,

    /// The format. By default, the file's extension decides: `.csv`, `.ndjson` or `.jsonl`.
    #[arg(long, value_name = "FORMAT", required_if_eq("file", "-"))]
    format: Option<FormatName>,

    /// The column or JSON member with the source's own key for each pet: 1 to 200 characters, or in JSON an integer. In a
    /// file from `petstore export` it is `id`.
    #[arg(long, value_name = "NAME", value_parser = key_column)]
    key_column: Option<String>,

    /// The name of the source. Keys are unique per source: the same key in another source is a different pet. The
    /// default is the file's name, without its directory and without `.gz` or `.zst`. Required for standard input.
    #[arg(long, value_name = "NAME", requires = "key_column")]
    source: Option<ImportSource>,

    /// Imports everything in one transaction, so that other clients see all of it or nothing. While it runs, requests for
    /// the last pages of a list have to skip the uncommitted rows: use it for up to a million rows, or in quiet hours.
    #[arg(long)]
    atomic: bool,

    /// Checks every row and changes nothing. --max-errors does not apply.
    #[arg(long)]
    dry_run: bool,

    /// The maximum number of bad rows; one more stops the import. By default, it stops at the first.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    max_errors: u64,

    /// The file for bad rows, with one JSON object per row: the line number and the reason. The default is
    /// `<FILE>.rejects.ndjson`, or standard error if the input is `-`. It is created only if there are bad rows. It replaces
    /// the rejects file of an earlier run or an empty file, but nothing else.
    #[arg(long, value_name = "FILE")]
    rejects: Option<PathBuf>,

    #[command(flatten)]
    database: DatabaseSettings,
}

/// A format, as named on the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum FormatName {
    Csv,
    Ndjson,
}

impl From<FormatName> for FileFormat {
    fn from(name: FormatName) -> Self {
        match name {
            FormatName::Csv => Self::Csv,
            FormatName::Ndjson => Self::Ndjson,
        }
    }
}

fn key_column(name: &str) -> Result<String, &'static str> {
    match name {
        "" => Err("must not be empty"),
        _ if PET.inputs().any(|(field, _)| field.name == name) => {
            Err("must not be a column of the pet itself")
        }
        other => Ok(other.to_owned()),
    }
}

const STANDARD_INPUT: &str = "-";

/// The number of chunks that may be queued while one is imported.
const QUEUED_CHUNKS: usize = 2;

/// The exit codes.
const WITH_REJECTS: u8 = 3;
const STOPPED: u8 = 4;

impl Import {
    pub(super) async fn run(self) -> Result<ExitCode, CommandError> {
        check_url(&self.database.url())?;
        let from_standard_input = self.file == Path::new(STANDARD_INPUT);
        let format = self
            .format
            .map(FileFormat::from)
            .or_else(|| FileFormat::from_extension(&self.file))
            .ok_or_else(|| {
                SettingError(format!("{} has no known file extension: pass --format", self.file.display()))
            })?;
        let source = self.key_column.as_ref().map(|_| self.source()).transpose()?;
        let (input, size): (Box<dyn Read + Send>, _) = if from_standard_input {
            (Box::new(io::stdin()), None)
        } else {
            let file = File::open(&self.file).map_err(|error| format!("{}: {error}", self.file.display()))?;
            let size = file.metadata()?.len();
            (Box::new(file), Some(size))
        };
        let max_errors = if self.dry_run { u64::MAX } else { self.max_errors };
        let rejects = RejectsFile::new(self.rejects_path(from_standard_input))?;
        let rejects_path = rejects.path.clone();
        let atomic = self.atomic || source.is_none();
        let mut importing = if self.dry_run {
            None
        } else {
            Some(ImportSession::start(&self.database.url(), source, atomic).await?)
        };
        // Not before: another import of the source may have been writing its own.
        rejects.remove_earlier()?;

        let progress = Progress::start("row", size);
        let reader = RowReader {
            input: CountingReader { input, counters: progress.counters.clone() },
            format,
            key_column: self.key_column.clone(),
            rejects,
            max_rejects: max_errors,
            counters: self.dry_run.then(|| progress.counters.clone()),
        };
        let (mut chunks, read) = reader.spawn()?;
        let (mut done, mut added) = (0, 0);
        while let Some(chunk) = chunks.recv().await {
            let rows = chunk.rows();
            if let Some(importing) = &mut importing {
                added += importing.add(chunk).await?;
                progress.counters.add(rows);
            }
            done += rows;
        }
        let read = read.await.map_err(|_| "the reader stopped: this is a bug")??;
        if let (Some(importing), None) = (importing, &read.stopped_at) {
            importing.finish().await?;
        }
        drop(progress);

        if let Some(RejectedRow { line, reason }) = read.stopped_at {
            let imported = if atomic { "nothing".into() } else { counted(added, "row") };
            let _ = writeln!(
                io::stderr(),
                "petstore: stopped at line {line}: {reason} ({} bad, --max-errors is {max_errors}; {imported} added)",
                read.bad
            );
            return Ok(ExitCode::from(STOPPED));
        }
        let summary = if self.dry_run {
            format!("{} {} valid", counted(done, "row"), if done == 1 { "is" } else { "are" })
        } else {
            format!("{} added, {} already imported", counted(added, "row"), grouped(done - added))
        };
        if read.bad == 0 {
            print(&format!("{summary}\n"))?;
            return Ok(ExitCode::SUCCESS);
        }
        let output = rejects_path.map_or("standard error".into(), |path| path.display().to_string());
        print(&format!("{summary}, {} rejected: see {output}\n", grouped(read.bad)))?;
        Ok(ExitCode::from(WITH_REJECTS))
    }

    fn source(&self) -> Result<ImportSource, SettingError> {
        if let Some(source) = &self.source {
            return Ok(source.clone());
        }
        if self.file == Path::new(STANDARD_INPUT) {
            let problem = "standard input has no file name to use as the source name: pass --source";
            return Err(SettingError(problem.into()));
        }
        let name = Compression::strip_extension(&self.file);
        let name = name.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.parse().map_err(|problem| {
            SettingError(format!("the file name is used as the source name and {problem}: pass --source"))
        })
    }

    fn rejects_path(&self, from_standard_input: bool) -> Option<PathBuf> {
        if self.rejects.is_some() || from_standard_input {
            return self.rejects.clone();
        }
        let mut name = self.file.clone().into_os_string();
        name.push(".rejects.ndjson");
        Some(name.into())
    }
}

/// Reads rows in a thread, because file I/O is blocking. The thread is not joined if the import fails: it may wait for
/// input forever.
struct RowReader {
    input: CountingReader<Box<dyn Read + Send>>,
    format: FileFormat,
    key_column: Option<String>,
    rejects: RejectsFile,
    max_rejects: u64,
    /// Counts the rows of a dry run, which nothing else counts.
    counters: Option<Arc<ProgressCounters>>,
}

struct RowReaderSummary {
    bad: u64,
    /// The bad row that exceeded the limit, if one did.
    stopped_at: Option<RejectedRow>,
}

type RowReaderResult = Result<RowReaderSummary, CommandError>;

impl RowReader {
    fn spawn(self) -> io::Result<(mpsc::Receiver<CopyChunk>, oneshot::Receiver<RowReaderResult>)> {
        let (sender, chunks) = mpsc::channel(QUEUED_CHUNKS);
        let (outcome, result) = oneshot::channel();
        thread::Builder::new().name("reader".into()).spawn(move || {
            // If the receiver is gone, the import has failed and reports that.
            let _ = outcome.send(self.run(&sender));
        })?;
        Ok((chunks, result))
    }

    fn run(mut self, chunks: &mpsc::Sender<CopyChunk>) -> RowReaderResult {
        let mut rows = ImportRows::read(decompressed(self.input)?, self.format, self.key_column)?;
        let (mut buffer, mut bad) = (CopyBuffer::default(), 0);
        while let Some(row) = rows.next()? {
            let full = match row {
                Ok(row) => buffer.push(&row.pet, row.key.as_ref()),
                Err(rejected) => {
                    self.rejects.write(&rejected)?;
                    bad += 1;
                    if bad > self.max_rejects {
                        return Ok(RowReaderSummary { bad, stopped_at: Some(rejected) });
                    }
                    None
                }
            };
            if let Some(chunk) = full {
                if let Some(counters) = &self.counters {
                    counters.add(chunk.rows());
                }
                if chunks.blocking_send(chunk).is_err() {
                    break;
                }
            }
        }
        if let Some(chunk) = buffer.take() {
            let _ = chunks.blocking_send(chunk);
        }
        Ok(RowReaderSummary { bad, stopped_at: None })
    }
}
