//! The rejects file of an import: the rows that it did not accept, as NDJSON.
//!
//! **Invariants:**
//! - no file is replaced or removed but an earlier rejects file or an empty file, and no symbolic link is followed to one;
//! - each row is in the file as soon as it is rejected, however the import ends.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use petstore_files::RejectedRow;
use serde::{Deserialize, Serialize};

use super::error::{CommandError, SettingError};

/// Writes rejected rows to a file, or to standard error without one.
pub(super) struct RejectsFile {
    pub(super) path: Option<PathBuf>,
    output: Option<Box<dyn Write + Send>>,
}

/// A line of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RejectsLine<'a> {
    line: u64,
    reason: Cow<'a, str>,
}

/// The longest first line by which an earlier rejects file is recognised: longer than any reason.
const MAX_LINE: u64 = 64 * 1024;

impl RejectsFile {
    /// Fails with a [`SettingError`] if something else is at the path. A pipe or a device is written to directly.
    pub(super) fn new(path: Option<PathBuf>) -> Result<Self, CommandError> {
        if let Some(path) = &path {
            check(path)?;
        }
        Ok(Self { path, output: None })
    }

    /// Removes the file of an earlier run, which would be mistaken for this one's.
    pub(super) fn remove_earlier(&self) -> Result<(), CommandError> {
        if let Some(path) = &self.path
            && check(path)? == ExistingPath::Replaceable
        {
            fs::remove_file(path).map_err(|error| in_file(path, &error))?;
        }
        Ok(())
    }

    /// Writes a rejected row. The first one creates the file.
    pub(super) fn write(&mut self, RejectedRow { line, reason }: &RejectedRow) -> Result<(), CommandError> {
        let output = match &mut self.output {
            Some(output) => output,
            empty => empty.insert(match &self.path {
                Some(path) => Box::new(create(path)?),
                None => Box::new(io::stderr()),
            }),
        };
        let mut text = serde_json::to_vec(&RejectsLine { line: *line, reason: reason.into() })?;
        text.push(b'\n');
        output.write_all(&text).map_err(|error| match &self.path {
            Some(path) => in_file(path, &error),
            None => error.into(),
        })
    }
}

/// What is at the path of a rejects file.
#[derive(PartialEq)]
enum ExistingPath {
    Nothing,
    /// An earlier rejects file, or an empty file.
    Replaceable,
    PipeOrDevice,
}

fn check(path: &Path) -> Result<ExistingPath, CommandError> {
    let refuse = |what: &str| SettingError(format!("{} {what}: pass another --rejects", path.display()));
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ExistingPath::Nothing),
        Err(error) => return Err(in_file(path, &error)),
    };
    // Followed only to a pipe or a device: /dev/stderr is a link.
    let target = fs::metadata(path).ok();
    if found.is_dir() || target.as_ref().is_some_and(fs::Metadata::is_dir) {
        return Err(refuse("is a directory").into());
    }
    if target.is_some_and(|target| !target.is_file()) {
        return Ok(ExistingPath::PipeOrDevice);
    }
    if found.is_symlink() {
        return Err(refuse("is a symbolic link").into());
    }
    let mut first = Vec::new();
    let file = File::open(path).map_err(|error| in_file(path, &error))?;
    let mut file = BufReader::new(file).take(MAX_LINE);
    file.read_until(b'\n', &mut first).map_err(|error| in_file(path, &error))?;
    if first.is_empty() || serde_json::from_slice::<RejectsLine<'_>>(&first).is_ok() {
        return Ok(ExistingPath::Replaceable);
    }
    Err(refuse("exists and is not a rejects file").into())
}

/// Creates the file, unless something is at its path by now.
fn create(path: &Path) -> Result<File, CommandError> {
    let created = match check(path)? {
        ExistingPath::PipeOrDevice => File::options().write(true).open(path),
        ExistingPath::Nothing | ExistingPath::Replaceable => File::create_new(path),
    };
    created.map_err(|error| in_file(path, &error))
}

fn in_file(path: &Path, error: &io::Error) -> CommandError {
    format!("{}: {error}", path.display()).into()
}
