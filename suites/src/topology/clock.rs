//! A clock that can be stepped: libfaketime reads its offset from a file, again at each call.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::Outcome;

/// The clock of the processes that are started with it. The file is removed on drop.
#[derive(Debug)]
pub(crate) struct Clock(PathBuf);

impl Clock {
    pub(crate) fn new(name: &str) -> Outcome<Self> {
        let file = std::env::temp_dir().join(format!("petstore-clock-{}-{name}", std::process::id()));
        let clock = Self(file);
        clock.set(0)?;
        Ok(clock)
    }

    /// Lets it differ from the machine's clock by so many seconds from now on.
    pub(crate) fn set(&self, seconds: i64) -> Outcome {
        // Renamed, because a process that reads half a file exits.
        let new = self.0.with_extension("new");
        fs::write(&new, format!("{seconds:+}\n"))?;
        Ok(fs::rename(new, &self.0)?)
    }

    /// Lets a command and the processes that it starts have this clock.
    pub(crate) fn apply_to(&self, command: &mut Command) -> Outcome {
        let library = fs::read_dir("/usr/lib")?
            .filter_map(|entry| Some(entry.ok()?.path().join("faketime/libfaketimeMT.so.1")))
            .find(|library| library.exists())
            .ok_or("libfaketime is missing: scripts/install-tools all installs it")?;
        command
            .env("LD_PRELOAD", library)
            .env("FAKETIME_TIMESTAMP_FILE", &self.0)
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        Ok(())
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
