//! `petstore import`

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use clap::{Args, ValueEnum};
use serde_json::json;
use tokio::sync::{mpsc, oneshot};

use super::progress::{Counted, Counts, Progress, grouped};
use super::{Failure, print};
use crate::config::DatabaseSettings;
use crate::domain::import_source::SourceName;
use crate::files::{Compression, Format, RejectedRow, Rows, decompressed};
use crate::storage::{CopyBuffer, CopyChunk, Import as Importing};

/// Adds the animals of a file.
///
/// The file is CSV, whose first line names its columns (name, categoryId and, if you like, status), or NDJSON, a JSON
/// object a line as createPet takes it. It may be packed with gzip or zstd, whatever its name. Every row is held
/// against the same rules as a request.
///
/// Name the column of the source's own keys with --key-column, and the import can be run again: it adds exactly the
/// rows that are not there yet, after a crash, a bad row or a longer file. It adds 5,000 rows at a time, each time all or
/// none, and remembers their keys with them. Of rows with the same key the first counts.
///
/// Without --key-column, the import is one transaction, as with --atomic: nobody sees a part of it, and after a failure
/// nothing of it is there. But once it has succeeded, running it again adds everything again.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes:
  0  every row is there
  1  failed: with --key-column, whole chunks may be there, and running it again goes on; else nothing is
  2  the command line is wrong
  3  every good row is there, and bad ones are in the file of rejects (or --dry-run found bad ones)
  4  stopped, because there were more bad rows than --max-errors allows; what is there is as for 1

Examples:
  petstore import animals.csv --dry-run
  petstore import animals.csv --key-column sku
  petstore import animals.ndjson.zst --key-column id --max-errors 100
  petstore export shop.csv.gz && petstore import shop.csv.gz --key-column id
  generate-animals | petstore import - --format ndjson")]
pub(super) struct Import {
    /// The file, or `-` for standard input.
    file: PathBuf,

    /// How the animals are written. Told from the file's name without it: `.csv`, `.ndjson` or `.jsonl`.
    #[arg(long, value_name = "FORMAT", required_if_eq("file", "-"))]
    format: Option<FormatName>,

    /// The column or member that has the source's own key for each animal: a text of 1 to 200 characters, or in JSON
    /// an integer. What `petstore export` wrote has `id`.
    #[arg(long, value_name = "NAME", value_parser = key_column)]
    key_column: Option<String>,

    /// What the keys belong to: the same key of another source is another animal. The file's name without it, without
    /// folders and without `.gz` or `.zst`; standard input has none, so say one.
    #[arg(long, value_name = "NAME", requires = "key_column")]
    source: Option<SourceName>,

    /// Adds everything in one transaction, so that nobody sees a part of it. While it runs, requests for the end of a
    /// list have to pass over what they may not see yet, so keep it to a million rows or to quiet hours.
    #[arg(long)]
    atomic: bool,

    /// Reads and checks every row and changes nothing, whatever --max-errors allows.
    #[arg(long)]
    dry_run: bool,

    /// How many bad rows are put aside before the import stops.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    max_errors: u64,

    /// Where bad rows are noted, a line of JSON each: the line's number and the reason. A file next to the input
    /// without it, `<FILE>.rejects.ndjson`, or standard error if the input is `-`. It is there only if it is needed.
    #[arg(long, value_name = "FILE")]
    rejects: Option<PathBuf>,

    #[command(flatten)]
    database: DatabaseSettings,
}

/// The formats, in the words of the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum FormatName {
    Csv,
    Ndjson,
}

impl From<FormatName> for Format {
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
        "name" | "categoryId" | "status" => Err("must be another column than those of the animal"),
        other => Ok(other.to_owned()),
    }
}

const STANDARD_INPUT: &str = "-";

/// Chunks that wait while one is being moved.
const WAITING: usize = 2;

const WITH_REJECTS: u8 = 3;
const STOPPED: u8 = 4;

impl Import {
    pub(super) async fn run(self) -> Result<ExitCode, Failure> {
        let from_standard_input = self.file == Path::new(STANDARD_INPUT);
        let format =
            self.format.map(Format::from).or_else(|| Format::from_extension(&self.file)).ok_or_else(
                || format!("what is in {} is not told by its name: say --format", self.file.display()),
            )?;
        let source = self.key_column.as_ref().map(|_| self.source()).transpose()?;
        let (input, size): (Box<dyn Read + Send>, _) = if from_standard_input {
            (Box::new(io::stdin()), None)
        } else {
            let file = File::open(&self.file).map_err(|error| format!("{}: {error}", self.file.display()))?;
            let size = file.metadata()?.len();
            (Box::new(file), Some(size))
        };
        let rejects = Rejects::new(self.rejects_file(from_standard_input), self.bound())?;
        let rejects_file = rejects.file.clone();
        let atomic = self.atomic || source.is_none();
        let mut importing = if self.dry_run {
            None
        } else {
            Some(Importing::start(&self.database.database_url, source, atomic).await?)
        };

        let progress = Progress::start("rows", size);
        let reading = Reading {
            input: Counted { input, counts: progress.counts.clone() },
            format,
            key_column: self.key_column.clone(),
            rejects,
            checked: self.dry_run.then(|| progress.counts.clone()),
        };
        let (mut chunks, read) = start(reading)?;
        let (mut done, mut added) = (0, 0);
        while let Some(chunk) = chunks.recv().await {
            let rows = chunk.rows();
            if let Some(importing) = &mut importing {
                added += importing.add(chunk).await?;
                progress.counts.done(rows);
            }
            done += rows;
        }
        let read = read.await.map_err(|_| "the reader stopped: this is a bug")??;
        if let (Some(importing), None) = (importing, &read.stopped_at) {
            importing.finish().await?;
        }
        drop(progress);

        if let Some(RejectedRow { line, reason }) = read.stopped_at {
            let there = if atomic { "nothing".into() } else { format!("{} rows", grouped(added)) };
            let bound = self.max_errors;
            let _ = writeln!(
                io::stderr(),
                "petstore: stopped at line {line}: {reason} ({} bad, --max-errors is {bound}; {there} added)",
                read.bad
            );
            return Ok(ExitCode::from(STOPPED));
        }
        let good = if self.dry_run {
            format!("{} rows are good", grouped(done))
        } else {
            format!("{} rows added, {} there already", grouped(added), grouped(done - added))
        };
        if read.bad == 0 {
            print(&format!("{good}\n"))?;
            return Ok(ExitCode::SUCCESS);
        }
        let place = rejects_file.map_or("standard error".into(), |file| file.display().to_string());
        print(&format!("{good}, {} refused: see {place}\n", grouped(read.bad)))?;
        Ok(ExitCode::from(WITH_REJECTS))
    }

    fn source(&self) -> Result<SourceName, Failure> {
        if let Some(source) = &self.source {
            return Ok(source.clone());
        }
        if self.file == Path::new(STANDARD_INPUT) {
            return Err("standard input has no name to remember its keys by: say --source".into());
        }
        let name = Compression::strip_extension(&self.file);
        let name = name.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.parse().map_err(|problem| {
            format!("the file's name as the name of the source {problem}: say --source").into()
        })
    }

    fn rejects_file(&self, from_standard_input: bool) -> Option<PathBuf> {
        if self.rejects.is_some() || from_standard_input {
            return self.rejects.clone();
        }
        let mut name = self.file.clone().into_os_string();
        name.push(".rejects.ndjson");
        Some(name.into())
    }

    /// How many bad rows may be put aside.
    fn bound(&self) -> u64 {
        if self.dry_run { u64::MAX } else { self.max_errors }
    }
}

/// What the thread that reads is given. Reading blocks, so it has a thread of its own; one that nobody waits for if
/// the import fails, since it may wait for input for ever.
struct Reading {
    input: Counted<Box<dyn Read + Send>>,
    format: Format,
    key_column: Option<String>,
    rejects: Rejects,
    /// Where to count the rows, if nobody else does.
    checked: Option<Arc<Counts>>,
}

/// What came of it.
struct Finding {
    bad: u64,
    /// The row that was one too many, if there was one.
    stopped_at: Option<RejectedRow>,
}

type Outcome = Result<Finding, Failure>;

fn start(reading: Reading) -> io::Result<(mpsc::Receiver<CopyChunk>, oneshot::Receiver<Outcome>)> {
    let (chunks, received) = mpsc::channel(WAITING);
    let (outcome, told) = oneshot::channel();
    thread::Builder::new().name("reader".into()).spawn(move || {
        // Whoever does not listen any more has failed, and tells of it.
        let _ = outcome.send(reading.run(&chunks));
    })?;
    Ok((received, told))
}

impl Reading {
    fn run(mut self, chunks: &mpsc::Sender<CopyChunk>) -> Outcome {
        let mut rows = Rows::read(decompressed(self.input)?, self.format, self.key_column)?;
        let mut gathered = CopyBuffer::default();
        while let Some(row) = rows.next()? {
            let full = match row {
                Ok(row) => gathered.push(&row.pet, row.key.as_ref()),
                Err(bad) => {
                    if let Some(limit_plus_one) = self.rejects.note(bad)? {
                        let bad = self.rejects.finish()?;
                        return Ok(Finding { bad, stopped_at: Some(limit_plus_one) });
                    }
                    None
                }
            };
            if let Some(chunk) = full {
                if let Some(checked) = &self.checked {
                    checked.done(chunk.rows());
                }
                if chunks.blocking_send(chunk).is_err() {
                    break;
                }
            }
        }
        if let Some(chunk) = gathered.take() {
            let _ = chunks.blocking_send(chunk);
        }
        Ok(Finding { bad: self.rejects.finish()?, stopped_at: None })
    }
}

/// The bad rows. Without a file they go to standard error.
struct Rejects {
    file: Option<PathBuf>,
    output: Option<BufWriter<Box<dyn Write + Send>>>,
    count: u64,
    bound: u64,
}

impl Rejects {
    /// What an earlier run noted is gone: it would be taken for what this one found.
    fn new(file: Option<PathBuf>, bound: u64) -> Result<Self, Failure> {
        if let Some(file) = &file
            && let Err(error) = fs::remove_file(file)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(format!("{}: {error}", file.display()).into());
        }
        Ok(Self { file, output: None, count: 0, bound })
    }

    /// Notes a bad row, and gives it back if it is one too many.
    fn note(&mut self, bad: RejectedRow) -> Result<Option<RejectedRow>, Failure> {
        let output = match &mut self.output {
            Some(output) => output,
            empty => {
                let output: Box<dyn Write + Send> = match &self.file {
                    Some(file) => {
                        Box::new(File::create(file).map_err(|error| format!("{}: {error}", file.display()))?)
                    }
                    None => Box::new(io::stderr()),
                };
                empty.insert(BufWriter::new(output))
            }
        };
        writeln!(output, "{}", json!({"line": bad.line, "reason": bad.reason}))?;
        self.count += 1;
        Ok((self.count > self.bound).then_some(bad))
    }

    /// Writes what is left, and returns how many bad rows there were.
    fn finish(&mut self) -> Result<u64, Failure> {
        if let Some(output) = &mut self.output {
            output.flush()?;
        }
        Ok(self.count)
    }
}
