//! A file that appears under its name only when it is complete.
//!
//! **Invariant:** whatever happens, also a power failure, the name refers to what was there before or to the complete new
//! file.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// A file under a temporary name, next to its final one. It is removed when this is dropped before
/// [`commit`](Self::commit).
pub struct PartialFile {
    file: File,
    temporary: PathBuf,
    name: PathBuf,
}

impl PartialFile {
    /// Creates `NAME.XXXXXXXX.part`, which must not exist, not even as a symbolic link.
    ///
    /// Pass random digits. With a fixed name, another user could occupy it, two exports of one file would write to the same
    /// temporary file, and a leftover from a crash would prevent the next export.
    pub fn create(name: &Path, random: u32) -> io::Result<Self> {
        let mut temporary = name.as_os_str().to_owned();
        temporary.push(format!(".{random:08x}.part"));
        let temporary = PathBuf::from(temporary);
        Ok(Self { file: File::create_new(&temporary)?, temporary, name: name.to_owned() })
    }

    /// The file, to write to.
    pub fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Gives the file its name, after everything was written. The content is on disk before the file gets its name, and
    /// the name is on disk when this returns.
    pub fn commit(self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.temporary, &self.name)?;
        let directory = match self.name.parent() {
            Some(directory) if directory != Path::new("") => directory,
            _ => Path::new("."),
        };
        File::open(directory)?.sync_all()
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // After a commit there is nothing to remove.
        let _ = fs::remove_file(&self.temporary);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Write};
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn an_existing_file_or_link_at_the_temporary_name_is_not_touched() {
        let folder = std::env::temp_dir().join(format!("petstore-test-{:016x}", rand::random::<u64>()));
        fs::create_dir(&folder).unwrap();
        let (name, planted, target) =
            (folder.join("a"), folder.join("a.0000002a.part"), folder.join("target"));
        for there in ["a file", "a link to a file", "a link to nothing"] {
            match there {
                "a file" => fs::write(&planted, "as it was").unwrap(),
                _ => symlink(&target, &planted).unwrap(),
            }
            if there == "a link to a file" {
                fs::write(&target, "as it was").unwrap();
            }
            let created = PartialFile::create(&name, 42);
            assert_eq!(created.err().map(|error| error.kind()), Some(ErrorKind::AlreadyExists), "{there}");
            let content = fs::read_to_string(&planted).ok();
            assert_eq!(content.as_deref(), (there != "a link to nothing").then_some("as it was"), "{there}");
            assert!(there == "a link to a file" || !target.exists(), "{there}");
            fs::remove_file(&planted).unwrap();
            let _ = fs::remove_file(&target);
        }
        let partial = PartialFile::create(&name, 42).unwrap();
        partial.file().unwrap().write_all(b"new").unwrap();
        assert!(!name.exists());
        partial.commit().unwrap();
        assert_eq!(fs::read(&name).unwrap(), b"new");
        assert!(!planted.exists());
        fs::remove_dir_all(&folder).unwrap();
    }
}
