//! `petstore export`

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread;

use clap::Args;
use tokio::select;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

use super::import::FormatName;
use super::progress::{Progress, grouped};
use super::{Failure, print};
use crate::config::DatabaseSettings;
use crate::domain::pet::PetStatus;
use crate::files::{CompressedWriter, Compression, Format, PartialFile, write, write_header};
use crate::storage::Export as Exporting;

/// Writes all animals as they are at one instant, by ascending id.
///
/// Each has its id, name, categoryId and status, which is left out (in CSV: empty) if the animal has none. Changes that
/// are made meanwhile are not in it, and are not held up. `petstore import --key-column id` reads it again: the same
/// animals, with new ids.
///
/// A file appears under its name when it is complete and on disk. Until then it is `<FILE>.XXXXXXXX.part`, with random
/// digits. An export that fails or is stopped removes this file; after a crash it stays, and you can delete it.
///
/// Names in CSV are written as they are stored. A spreadsheet evaluates names that begin with `=`, `+`, `-` or `@` as
/// formulas: see --escape-formulas.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  petstore export animals.ndjson
  petstore export animals.csv.gz
  petstore export animals.csv --escape-formulas
  petstore export --status available | jq .name")]
pub(super) struct Export {
    /// The file, packed if its name ends in `.gz` or `.zst`; `-` is standard output.
    #[arg(default_value = "-")]
    file: PathBuf,

    /// How the animals are written. Told from the file's name without it (`.csv`, `.ndjson` or `.jsonl`), else `ndjson`.
    #[arg(long, value_name = "FORMAT")]
    format: Option<FormatName>,

    /// Only animals with this status: `available`, `pending` or `sold`.
    #[arg(long)]
    status: Option<PetStatus>,

    /// Puts a `'` in front of names in CSV that a spreadsheet may evaluate as a formula: those that begin with `=`, `+`, `-`
    /// or `@`. Use this for files that are opened in a spreadsheet. Do not use it for `petstore import`, which keeps the
    /// `'` as a part of the name.
    #[arg(long)]
    escape_formulas: bool,

    #[command(flatten)]
    database: DatabaseSettings,
}

/// How much is handed to the thread that writes at once, and how often that may wait for it.
const BLOCK: usize = 256 * 1024;
const WAITING: usize = 4;

/// The result of writing, once it has ended.
type Written = oneshot::Receiver<io::Result<()>>;

impl Export {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let format = self
            .format
            .map(Format::from)
            .or_else(|| Format::from_extension(&self.file))
            .unwrap_or(Format::Ndjson);
        if self.escape_formulas && format != Format::Csv {
            return Err("--escape-formulas is for CSV only".into());
        }
        let exporting = Exporting::start(&self.database.database_url, self.status).await?;
        let to_standard_output = self.file == Path::new("-");
        let in_file = |error: io::Error| format!("{}: {error}", self.file.display());
        let written = if to_standard_output {
            self.write(exporting, format, io::stdout()).await?
        } else if fs::metadata(&self.file).is_ok_and(|found| !found.is_file()) {
            // A pipe or a device is written to as it is.
            let file = File::create(&self.file).map_err(in_file)?;
            self.write(exporting, format, file).await?
        } else {
            // Caught before there is a temporary file, which would stay otherwise.
            let stop = stop_signal()?;
            let partial = PartialFile::create(&self.file, rand::random()).map_err(in_file)?;
            let file = partial.file().map_err(in_file)?;
            let written = select! {
                written = self.write(exporting, format, file) => written?,
                stopped = stop => Err(stopped),
            };
            written.and_then(|count| partial.commit().map(|()| count))
        };
        match written {
            // A reader that has seen enough (`petstore export | head`) is no failure.
            Err(error) if to_standard_output && error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(error) => Err(in_file(error).into()),
            Ok(count) => {
                let summary = format!("{} animals\n", grouped(count));
                if !to_standard_output {
                    return Ok(print(&summary)?);
                }
                // Nothing can be done where standard error is closed.
                let _ = io::stderr().write_all(summary.as_bytes());
                Ok(())
            }
        }
    }

    /// Writes all animals and returns how many they are. The outer error is the database's, the inner one the output's.
    async fn write(
        &self,
        mut exporting: Exporting,
        format: Format,
        output: impl Write + Send + 'static,
    ) -> Result<io::Result<u64>, Failure> {
        let progress = Progress::start("animals", None);
        let (blocks, written) =
            start_writing(CompressedWriter::new(output, Compression::from_extension(&self.file))?)?;
        let mut block = Vec::with_capacity(BLOCK + 1024);
        if format == Format::Csv {
            write_header(&mut block);
        }
        let mut count = 0;
        while let Some(pet) = exporting.next().await? {
            write(&mut block, format, self.escape_formulas, &pet);
            count += 1;
            if block.len() >= BLOCK {
                progress.counts.done(count - progress.counts.rows());
                let full = std::mem::replace(&mut block, Vec::with_capacity(BLOCK + 1024));
                if blocks.send(full).await.is_err() {
                    // What the writer says is the reason.
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

/// Starts a thread that writes the blocks, because writing blocks.
fn start_writing(
    mut output: CompressedWriter<impl Write + Send + 'static>,
) -> io::Result<(mpsc::Sender<Vec<u8>>, Written)> {
    let (blocks, mut received) = mpsc::channel::<Vec<u8>>(WAITING);
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

/// Catches SIGTERM and SIGINT from now on, and returns what waits for one of them.
fn stop_signal() -> io::Result<impl Future<Output = io::Error>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        io::Error::new(io::ErrorKind::Interrupted, "stopped by a signal")
    })
}
