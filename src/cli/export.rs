//! `petstore export`

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use clap::Args;
use petstore_config::DatabaseSettings;
use petstore_domain::metadata::MetadataName;
use petstore_domain::pet::PetStatus;
use petstore_files::{Compression, ExportWriter, FileFormat, PartialFile, PetWriter};
use petstore_storage::{ExportStream, check_url};
use tokio::select;
use tokio::sync::{mpsc, oneshot};

use super::error::{CommandError, SettingError, report_with_advice};
use super::import::FormatName;
use super::output::confirm_until;
use super::progress::{Progress, counted};
use super::shell_command::shell_command;
use super::stop_signal::{Stopped, stop_signals};

/// Exports all pets from a consistent snapshot, by ascending id.
///
/// Each pet has its id, name, categoryId, status, reference and metadata. The last three are absent (in CSV, empty) if the
/// pet has none. In CSV, the metadata is one column of JSON, unless --metadata names columns. Requests continue during the
/// export, but the export does not contain their changes. `petstore import --key-column id` imports the same pets, with
/// new ids.
///
/// The file appears under its name only when it is complete and on disk. Until then, its name is
/// `<FILE>.XXXXXXXX.part`, with random digits. An export that fails or is stopped removes this partial file. After a
/// crash, the next export to the same file removes the partial file.
///
/// CSV contains texts as they are stored. A spreadsheet evaluates a text that starts with `=`, `+`, `-` or `@` as a
/// formula. To prevent this, use --escape-formulas.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes:
  0  every pet is exported
  1  failed
  2  the command line is invalid
  130, 143  stopped by SIGINT or SIGTERM

Examples:
  petstore export pets.ndjson
  petstore export pets.csv.gz
  petstore export pets.csv --metadata price,photo --escape-formulas
  petstore export --status available | jq .name")]
pub(super) struct ExportCommand {
    /// The file, or `-` for standard output. The file is compressed if its name ends in `.gz` or `.zst`.
    #[arg(default_value = "-")]
    file: PathBuf,

    /// The format. The default depends on the file's extension: `.csv`, `.ndjson` or `.jsonl`. Without an extension, the
    /// default is `ndjson`.
    #[arg(long, value_name = "FORMAT")]
    format: Option<FormatName>,

    /// Exports only pets with this status: `available`, `pending` or `sold`.
    #[arg(long)]
    status: Option<PetStatus>,

    /// In CSV, writes a column `metadata.NAME` for each of these members of the metadata, and leaves out all others.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    metadata: Vec<MetadataName>,

    /// In CSV, prepends `'` to each text that starts with `=`, `+`, `-` or `@`, so that a spreadsheet does not evaluate
    /// the text as a formula. Use this for files that you open in a spreadsheet. Do not import these files back into
    /// petstore, because the `'` would become part of the text.
    #[arg(long)]
    escape_formulas: bool,

    #[command(flatten)]
    database: DatabaseSettings,
}

/// The size of a block for the writer's thread, and the number of blocks that may be queued.
const BLOCK: usize = 256 * 1024;
const QUEUED_BLOCKS: usize = 4;

/// The result of the writer's thread.
type ExportWriteResult = oneshot::Receiver<io::Result<()>>;

impl ExportCommand {
    pub(super) async fn run(self) -> Result<ExitCode, CommandError> {
        let format = self
            .format
            .map(FileFormat::from)
            .or_else(|| FileFormat::from_extension(&self.file))
            .unwrap_or(FileFormat::Ndjson);
        let for_csv =
            [("--escape-formulas", self.escape_formulas), ("--metadata", !self.metadata.is_empty())];
        if format != FileFormat::Csv
            && let Some((flag, _)) = for_csv.into_iter().find(|(_, is_set)| *is_set)
        {
            return Err(SettingError(format!("{flag} applies to CSV only: pass --format csv")).into());
        }
        let mut named = BTreeSet::new();
        if let Some(twice) = self.metadata.iter().find(|name| !named.insert(*name)) {
            let problem = format!("--metadata has `{}` twice: name each member once", twice.as_str());
            return Err(SettingError(problem).into());
        }
        check_url(&self.database.url())?;
        // Caught before a temporary file exists, which would stay otherwise.
        let mut stop_signal = stop_signals()?;
        let summary = select! {
            exported = self.export(format) => exported?,
            signal = stop_signal() => return Ok(report_with_advice(&Stopped(signal), &self.advice())),
        };
        match summary {
            Some(summary) if self.is_standard_output() => {
                // Nothing can be done if standard error is closed.
                let _ = io::stderr().write_all(summary.as_bytes());
            }
            Some(summary) => confirm_until(stop_signal(), &summary).await,
            None => {}
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Exports the pets, and returns a summary, unless the reader closed the pipe.
    async fn export(&self, format: FileFormat) -> Result<Option<String>, CommandError> {
        let exporting = ExportStream::start(&self.database.url(), self.status).await?;
        let in_file = |error: io::Error| format!("{}: {error}", self.file.display());
        let written = if self.is_standard_output() {
            self.write(exporting, format, io::stdout()).await?
        } else if self.is_pipe_or_device() {
            let file = File::create(&self.file).map_err(in_file)?;
            self.write(exporting, format, file).await?
        } else {
            let partial = PartialFile::create(&self.file, rand::random).map_err(in_file)?;
            let file = partial.file().map_err(in_file)?;
            let written = self.write(exporting, format, file).await?;
            written.and_then(|count| partial.commit().map(|()| count))
        };
        match written {
            // A closed pipe (`petstore export | head`) is not an error.
            Err(error) if self.is_standard_output() && error.kind() == io::ErrorKind::BrokenPipe => Ok(None),
            Err(error) => Err(in_file(error).into()),
            Ok(count) => Ok(Some(format!("{} exported\n", counted(count, "pet")))),
        }
    }

    /// What a stopped export leaves, and how to start again.
    fn advice(&self) -> String {
        let file = self.file.display();
        let outcome = if self.is_standard_output() {
            "The export to standard output is incomplete".into()
        } else if self.is_pipe_or_device() {
            format!("The export to {file} is incomplete")
        } else {
            format!("Nothing was written to {file}")
        };
        format!("{outcome}. To start again, run: {}", shell_command())
    }

    fn is_standard_output(&self) -> bool {
        self.file == Path::new("-")
    }

    /// Whether the file is written to directly: it cannot be replaced.
    fn is_pipe_or_device(&self) -> bool {
        fs::metadata(&self.file).is_ok_and(|found| !found.is_file())
    }

    /// Writes all pets and returns their number. The outer error is the database's, the inner one the output's.
    async fn write(
        &self,
        mut exporting: ExportStream,
        format: FileFormat,
        output: impl Write + Send + 'static,
    ) -> Result<io::Result<u64>, CommandError> {
        let progress = Progress::start("pet", None);
        let (blocks, written) =
            spawn_writer(ExportWriter::new(output, Compression::from_extension(&self.file))?)?;
        let mut block = Vec::with_capacity(BLOCK + 1024);
        let (escape_formulas, metadata_columns) = (self.escape_formulas, self.metadata.clone());
        let writer = PetWriter { format, escape_formulas, metadata_columns };
        writer.write_header(&mut block);
        let mut count = 0;
        while let Some(pet) = exporting.next().await? {
            writer.write(&mut block, &pet);
            count += 1;
            if block.len() >= BLOCK {
                progress.counters.add(count - progress.counters.rows());
                let full = std::mem::replace(&mut block, Vec::with_capacity(BLOCK + 1024));
                if blocks.send(full).await.is_err() {
                    // The writer returns the error.
                    break;
                }
            }
        }
        let _ = blocks.send(block).await;
        drop(blocks);
        let written = written.await.map_err(|_| "the writer stopped: this is a bug")?;
        Ok(written.map(|()| count))
    }
}

/// Starts a thread that writes the blocks, because file I/O is blocking.
fn spawn_writer(
    mut output: ExportWriter<impl Write + Send + 'static>,
) -> io::Result<(mpsc::Sender<Vec<u8>>, ExportWriteResult)> {
    let (blocks, mut received) = mpsc::channel::<Vec<u8>>(QUEUED_BLOCKS);
    let (outcome, written) = oneshot::channel();
    thread::Builder::new().name("writer".into()).spawn(move || {
        let mut write_all = || -> io::Result<()> {
            while let Some(block) = received.blocking_recv() {
                output.write_all(&block)?;
            }
            Ok(())
        };
        let _ = outcome.send(write_all().and_then(|()| output.finish()));
    })?;
    Ok((blocks, written))
}
