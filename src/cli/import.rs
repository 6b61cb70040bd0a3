//! `petstore import`

use std::error::Error;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};
use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, Shared};
use petstore_config::DatabaseSettings;
use petstore_domain::import_key::ImportSourceName;
use petstore_files::{Compression, FileError, FileFormat, ImportRows, RejectedRow, decompressed};
use petstore_storage::{
    AddedChunk, ChunkBuffer, ImportChunk, ImportMode, ImportSession, StorageError, TakenReference, check_url,
};
use petstore_wire::pet::NewPet;
use tokio::select;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use super::error::{CommandError, SettingError, report_with_advice};
use super::output::confirm_until;
use super::progress::{CountingReader, Progress, ProgressCounters, counted, grouped};
use super::rejects_file::RejectsFile;
use super::shell_command::shell_command;
use super::stop_signal::{StopSignal, Stopped, stop_signals};

/// Imports pets from a file.
///
/// The file is CSV with a header line (name, categoryId and, optionally, status, reference and metadata), or NDJSON with one
/// JSON object per line, as createPet accepts it. In CSV, the metadata is one column of JSON, or one column `metadata.NAME`
/// per member. The file may be compressed with gzip or zstd, regardless of its name. Every
/// row must meet the same rules as a request. A row is also bad if another pet has its reference.
///
/// With --key-column, which names the column that contains the source's own keys, the import is idempotent: run it again
/// after a crash or a bad row, or with a longer file, and it adds exactly the missing rows. It adds 5,000 rows per
/// transaction and stores their keys with them. If several rows have the same key, only the first valid row is imported. The key is
/// not the pet's reference. A reference is part of the pet, unique in the whole shop and shown to clients. A key is never
/// shown.
///
/// Without --key-column, the import is one transaction, as with --atomic: other clients see all pets or none, and a
/// failed import adds nothing. If you run a successful import again, it adds every pet again.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes:
  0  every row is imported
  1  failed: with --key-column, some rows may be imported and another run continues; else none
  2  the command line is invalid, or something else is at the path of the rejects file
  3  every valid row is imported, and bad rows are in the rejects file (or --dry-run found bad rows)
  4  stopped: more bad rows than --max-errors allows; rows are imported as for 1
  130, 143  stopped by SIGINT or SIGTERM; rows are imported as for 1

An import that ends early prints how many rows it added and the command that continues it.
An import that has added its rows exits with 0 or 3, even if standard output fails. It then prints
the summary to standard error.

Examples:
  petstore import pets.csv --dry-run
  petstore import pets.csv --key-column sku
  petstore import pets.ndjson.zst --key-column id --max-errors 100
  petstore export shop.csv.gz && petstore import shop.csv.gz --key-column id
  generate-pets | petstore import - --format ndjson")]
pub(super) struct ImportCommand {
    /// The file, or `-` for standard input.
    file: PathBuf,

    /// The format. The default depends on the file's extension: `.csv`, `.ndjson` or `.jsonl`.
    #[arg(long, value_name = "FORMAT", required_if_eq("file", "-"))]
    format: Option<FormatName>,

    /// The column or JSON member that contains the source's own key for each pet: 1 to 200 characters, or in JSON an
    /// integer. In a file from `petstore export`, this is `id`.
    #[arg(long, value_name = "NAME", value_parser = key_column)]
    key_column: Option<String>,

    /// The name of the source. Keys are unique per source: the same key in another source is a different pet. The default
    /// is the file's name, without its directory and without `.gz` or `.zst`. For standard input, this option is
    /// required.
    #[arg(long, value_name = "NAME", requires = "key_column")]
    source: Option<ImportSourceName>,

    /// Imports everything in one transaction, so that other clients see all pets or none. While the import runs, requests
    /// for the last pages of a list must skip the uncommitted rows. Use this for up to a million rows, or in quiet hours.
    #[arg(long)]
    atomic: bool,

    /// Checks every row and changes nothing. With --key-column, counts the rows that are already imported. --max-errors
    /// does not apply.
    #[arg(long)]
    dry_run: bool,

    /// The maximum number of bad rows. One more bad row stops the import. By default, the first bad row stops it.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    max_errors: u64,

    /// The file for bad rows, with one JSON object per row: the line number and the reason. The default is
    /// `<FILE>.rejects.ndjson`, or standard error if the input is `-`. The file is created only if there are bad rows. It
    /// replaces an empty file or the rejects file of an earlier run, but no other file.
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
        _ if NewPet::columns().iter().any(|column| column.name == name) => {
            Err("must not be a column of the pet itself")
        }
        other => Ok(other.to_owned()),
    }
}

const STANDARD_INPUT: &str = "-";

/// The number of chunks that may be queued while one is imported.
const QUEUED_CHUNKS: usize = 2;

/// How long to wait for the database after a signal, so that it is known which rows were added.
const STOP_WAIT: Duration = Duration::from_secs(5);

/// The exit codes.
const WITH_REJECTS: u8 = 3;
const TOO_MANY_REJECTS: u8 = 4;

/// The first signal, for everything that waits for it.
type StopFuture = Shared<LocalBoxFuture<'static, StopSignal>>;

impl ImportCommand {
    pub(super) async fn run(self) -> Result<ExitCode, CommandError> {
        check_url(&self.database.url())?;
        let format = self.format()?;
        let source = self.key_column.as_ref().map(|_| self.source()).transpose()?;
        let rejects = RejectsFile::new(self.rejects_path())?;
        let (input, size) = self.open()?;
        let mut stop_signal = stop_signals()?;
        let stop: StopFuture = async move { stop_signal().await }.boxed_local().shared();
        let mut tally = Tally::default();
        let session = select! {
            biased;
            signal = stop.clone() => return Ok(self.report_end(&Stopped(signal), &tally)),
            session = self.start_session(source) => session?,
        };
        // Not before: another import of the source may have been writing its own.
        rejects.remove_earlier()?;

        let progress = Progress::start("row", size);
        let max = if self.dry_run { u64::MAX } else { self.max_errors };
        let rejects = Rejects(Arc::new(Mutex::new(RejectsInner { file: rejects, count: 0, max })));
        let reader = RowReader {
            input: CountingReader { input, counters: progress.counters.clone() },
            format,
            key_column: self.key_column.clone(),
            rejects: rejects.clone(),
        };
        let added =
            self.add_rows(session, reader, &rejects, &progress.counters, stop.clone(), &mut tally).await;
        drop(progress);
        if let Err(error) = added {
            return Ok(self.report_end(&*error, &tally));
        }
        let mut summary = self.summary(&tally);
        let (rejected, path) = rejects.count_and_path();
        if rejected > 0 {
            let path = path.map_or("standard error".into(), |path| path.display().to_string());
            let _ = write!(summary, ", {} rejected: see {path}", grouped(rejected));
        }
        confirm_until(stop, &format!("{summary}\n")).await;
        Ok(if rejected == 0 { ExitCode::SUCCESS } else { ExitCode::from(WITH_REJECTS) })
    }

    /// Adds all rows, and keeps the tally.
    async fn add_rows(
        &self,
        mut session: Option<ImportSession>,
        reader: RowReader,
        rejects: &Rejects,
        progress: &ProgressCounters,
        stop: StopFuture,
        tally: &mut Tally,
    ) -> Result<(), CommandError> {
        let (mut chunks, read) = reader.spawn()?;
        // A signal takes precedence over the end of the input: Ctrl-C ends both programs of a pipe.
        while let Some(chunk) = unless_stopped(&stop, chunks.recv()).await? {
            let rows = chunk.rows();
            let Some(session) = &mut session else {
                tally.done += rows;
                progress.add(rows);
                continue;
            };
            let added = settled(&stop, session.add(chunk)).await;
            tally.unknown = if is_unknown(&added) && self.mode() == ImportMode::Chunks { rows } else { 0 };
            let AddedChunk { added, taken } = added?;
            tally.new += added;
            tally.done += rows - taken.len() as u64;
            for TakenReference { line, reference } in taken {
                let reason = format!("Another pet has the `reference` {reference:?}.");
                rejects.add(RejectedRow { line, reason })?;
            }
            progress.add(rows);
        }
        unless_stopped(&stop, read).await?.map_err(|_| "the reader stopped: this is a bug")??;
        if let Some(session) = session {
            let finished = settled(&stop, session.finish()).await;
            tally.unknown =
                if is_unknown(&finished) && self.mode() == ImportMode::Atomic { tally.done } else { 0 };
            finished?;
        }
        Ok(())
    }

    /// A dry run needs the database only to look up keys.
    async fn start_session(
        &self,
        source: Option<ImportSourceName>,
    ) -> Result<Option<ImportSession>, StorageError> {
        if self.dry_run && source.is_none() {
            return Ok(None);
        }
        ImportSession::start(&self.database.url(), source, self.mode()).await.map(Some)
    }

    fn mode(&self) -> ImportMode {
        if self.dry_run {
            ImportMode::DryRun
        } else if self.atomic || self.key_column.is_none() {
            ImportMode::Atomic
        } else {
            ImportMode::Chunks
        }
    }

    fn summary(&self, Tally { done, new, .. }: &Tally) -> String {
        let known = grouped(done - new);
        if !self.dry_run {
            return format!("{} added, {known} already imported", counted(*new, "row"));
        }
        let verb = if *done == 1 { "is" } else { "are" };
        let known = self.key_column.as_ref().map(|_| format!(" ({known} already imported)"));
        format!("{} {verb} valid{}", counted(*done, "row"), known.unwrap_or_default())
    }

    /// Reports why the import ended early, what it added, and how to continue.
    fn report_end(&self, error: &(dyn Error + 'static), tally: &Tally) -> ExitCode {
        let must_fix = error.is::<FileError>() || error.is::<TooManyRejects>();
        let code = report_with_advice(error, &self.advice(tally, must_fix));
        if error.is::<TooManyRejects>() { ExitCode::from(TOO_MANY_REJECTS) } else { code }
    }

    fn advice(&self, tally: &Tally, must_fix: bool) -> String {
        let Tally { done, unknown, .. } = tally;
        let in_chunks = self.mode() == ImportMode::Chunks;
        let (outcome, goal) = match (in_chunks, unknown) {
            (false, 1..) if self.key_column.is_none() => {
                return "Whether the rows were added is unknown. Check that before you run the command again: it would \
                    add them twice."
                    .into();
            }
            (false, 1..) => ("Whether the rows were added is unknown".into(), "continue"),
            (true, 1..) => (format!("{}, {} unknown", self.summary(tally), grouped(*unknown)), "continue"),
            (true, 0) if *done > 0 => (self.summary(tally), "continue"),
            _ => ("Nothing was added".into(), "start again"),
        };
        let how = match (self.is_standard_input(), must_fix) {
            (false, false) => "run",
            (false, true) => "fix the file and run",
            (true, false) => "send the whole input to",
            (true, true) => "fix the input and send all of it to",
        };
        format!("{outcome}. To {goal}, {how}: {}", shell_command())
    }

    fn is_standard_input(&self) -> bool {
        self.file == Path::new(STANDARD_INPUT)
    }

    fn format(&self) -> Result<FileFormat, SettingError> {
        let format = self.format.map(FileFormat::from).or_else(|| FileFormat::from_extension(&self.file));
        format.ok_or_else(|| {
            SettingError(format!("{} has no known file extension: pass --format", self.file.display()))
        })
    }

    /// The input, and its size if that is known.
    fn open(&self) -> Result<(Box<dyn Read + Send>, Option<u64>), CommandError> {
        if self.is_standard_input() {
            return Ok((Box::new(io::stdin()), None));
        }
        let file = File::open(&self.file).map_err(|error| format!("{}: {error}", self.file.display()))?;
        let size = file.metadata()?.len();
        Ok((Box::new(file), Some(size)))
    }

    fn source(&self) -> Result<ImportSourceName, SettingError> {
        if let Some(source) = &self.source {
            return Ok(source.clone());
        }
        if self.is_standard_input() {
            let problem = "standard input has no file name to use as the source name: pass --source";
            return Err(SettingError(problem.into()));
        }
        let name = Compression::strip_extension(&self.file);
        let name = name.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.parse().map_err(|problem| {
            SettingError(format!("the file name is used as the source name and {problem}: pass --source"))
        })
    }

    fn rejects_path(&self) -> Option<PathBuf> {
        if self.rejects.is_some() || self.is_standard_input() {
            return self.rejects.clone();
        }
        let mut name = self.file.clone().into_os_string();
        name.push(".rejects.ndjson");
        Some(name.into())
    }
}

/// What an import has done so far.
#[derive(Default)]
struct Tally {
    /// The rows that were added or skipped.
    done: u64,
    /// Those of them that were new.
    new: u64,
    /// Further rows, or in one transaction all rows, whose commit was not confirmed.
    unknown: u64,
}

/// Waits for what comes next, unless there is a signal.
async fn unless_stopped<T>(stop: &StopFuture, next: impl Future<Output = T>) -> Result<T, Stopped> {
    select! {
        biased;
        signal = stop.clone() => Err(Stopped(signal)),
        output = next => Ok(output),
    }
}

/// Waits for a change to the database: a signal does not cancel it, but limits the wait.
async fn settled<T>(
    stop: &StopFuture,
    change: impl Future<Output = Result<T, StorageError>>,
) -> Result<T, CommandError> {
    let deadline = async {
        let signal = stop.clone().await;
        sleep(STOP_WAIT).await;
        signal
    };
    select! {
        output = change => Ok(output?),
        signal = deadline => Err(Stopped(signal).into()),
    }
}

/// Whether a change to the database may or may not have been committed.
fn is_unknown<T>(change: &Result<T, CommandError>) -> bool {
    change.as_ref().is_err_and(|error| {
        error.is::<Stopped>() || matches!(error.downcast_ref(), Some(StorageError::OutcomeUnknown(_)))
    })
}

/// Reads rows in a thread, because file I/O is blocking. The thread is not joined if the import fails: it may wait for
/// input forever.
struct RowReader {
    input: CountingReader<Box<dyn Read + Send>>,
    format: FileFormat,
    key_column: Option<String>,
    rejects: Rejects,
}

/// The rows that are rejected, while the file is read and when they are added.
#[derive(Clone)]
struct Rejects(Arc<Mutex<RejectsInner>>);

struct RejectsInner {
    file: RejectsFile,
    count: u64,
    /// One more than this stops the import.
    max: u64,
}

impl Rejects {
    /// Writes a row to the file. Fails with [`TooManyRejects`] if there are too many.
    fn add(&self, row: RejectedRow) -> Result<(), CommandError> {
        let RejectsInner { file, count, max } = &mut *self.lock();
        file.write(&row)?;
        *count += 1;
        if *count <= *max {
            return Ok(());
        }
        let RejectedRow { line, reason } = row;
        Err(TooManyRejects { line, reason, count: *count, max: *max }.into())
    }

    fn count_and_path(&self) -> (u64, Option<PathBuf>) {
        let RejectsInner { file, count, .. } = &*self.lock();
        (*count, file.path.clone())
    }

    fn lock(&self) -> MutexGuard<'_, RejectsInner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The row that exceeded the limit.
#[derive(Debug, thiserror::Error)]
#[error("stopped at line {line}: {reason} ({count} bad, --max-errors is {max})")]
struct TooManyRejects {
    line: u64,
    reason: String,
    count: u64,
    max: u64,
}

type RowReaderResult = Result<(), CommandError>;

impl RowReader {
    fn spawn(self) -> io::Result<(mpsc::Receiver<ImportChunk>, oneshot::Receiver<RowReaderResult>)> {
        let (sender, chunks) = mpsc::channel(QUEUED_CHUNKS);
        let (outcome, result) = oneshot::channel();
        thread::Builder::new().name("reader".into()).spawn(move || {
            // If the receiver is gone, the import has failed and reports that.
            let _ = outcome.send(self.run(&sender));
        })?;
        Ok((chunks, result))
    }

    fn run(self, chunks: &mpsc::Sender<ImportChunk>) -> RowReaderResult {
        let input = decompressed(self.input).map_err(FileError::from)?;
        let mut rows = ImportRows::read(input, self.format, self.key_column)?;
        let mut buffer = ChunkBuffer::default();
        while let Some(row) = rows.next()? {
            let full = match row {
                Ok(row) => buffer.push(row.line, row.pet, row.key),
                Err(rejected) => {
                    self.rejects.add(rejected)?;
                    None
                }
            };
            if let Some(chunk) = full
                && chunks.blocking_send(chunk).is_err()
            {
                break;
            }
        }
        if let Some(chunk) = buffer.take() {
            let _ = chunks.blocking_send(chunk);
        }
        Ok(())
    }
}
