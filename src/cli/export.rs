//! `petstore export`

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread;

use clap::Args;
use tokio::sync::{mpsc, oneshot};

use super::import::FormatName;
use super::progress::{Progress, grouped};
use super::{Failure, print};
use crate::config::DatabaseSettings;
use crate::domain::pet::PetStatus;
use crate::files::{Format, Packed, Packing, write, write_header};
use crate::storage::Export as Exporting;

/// Writes all animals as they are at one instant, by ascending id.
///
/// Each has its id, name, categoryId and status, which is left out (in CSV: empty) if the animal has none. Changes that
/// are made meanwhile are not in it, and are not held up. `petstore import --key-column id` reads it again: the same
/// animals, with new ids.
///
/// A file appears under its name when it is whole.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  petstore export animals.ndjson
  petstore export animals.csv.gz
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

    #[command(flatten)]
    database: DatabaseSettings,
}

/// How much is handed to the thread that writes at once, and how often that may wait for it.
const BLOCK: usize = 256 * 1024;
const WAITING: usize = 4;

/// What came of writing, once it has ended.
type Written = oneshot::Receiver<io::Result<()>>;

impl Export {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let to_standard_output = self.file == Path::new("-");
        let format =
            self.format.map(Format::from).or_else(|| Format::of_name(&self.file)).unwrap_or(Format::Ndjson);
        let mut exporting = Exporting::start(&self.database.database_url, self.status).await?;
        let progress = Progress::start("animals", None);
        let (blocks, written) = self.start_writing(to_standard_output)?;

        let mut block = Vec::with_capacity(BLOCK + 1024);
        if format == Format::Csv {
            write_header(&mut block);
        }
        let mut count = 0;
        while let Some(pet) = exporting.next().await? {
            write(&mut block, format, &pet);
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
        drop(progress);
        match written {
            // A reader that has seen enough (`petstore export | head`) is no failure.
            Err(error) if to_standard_output && error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            other => other.map_err(|error| format!("{}: {error}", self.file.display()))?,
        }
        let summary = format!("{} animals\n", grouped(count));
        if to_standard_output {
            // Nothing can be done where standard error is closed.
            let _ = io::stderr().write_all(summary.as_bytes());
            return Ok(());
        }
        if self.becomes_whole_at_once() {
            fs::rename(self.partial(), &self.file)?;
        }
        Ok(print(&summary)?)
    }

    /// A pipe or a device is written to as it is.
    fn becomes_whole_at_once(&self) -> bool {
        fs::metadata(&self.file).map_or(true, |found| found.is_file())
    }

    /// What the file is called until it is whole.
    fn partial(&self) -> PathBuf {
        let mut name = self.file.clone().into_os_string();
        name.push(".part");
        name.into()
    }

    /// Writing blocks, so it has a thread of its own.
    fn start_writing(&self, to_standard_output: bool) -> Result<(mpsc::Sender<Vec<u8>>, Written), Failure> {
        let output: Box<dyn Write + Send> = if to_standard_output {
            Box::new(io::stdout())
        } else {
            let name = if self.becomes_whole_at_once() { self.partial() } else { self.file.clone() };
            Box::new(File::create(&name).map_err(|error| format!("{}: {error}", name.display()))?)
        };
        let mut output = Packed::new(output, Packing::of_name(&self.file))?;
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
}
