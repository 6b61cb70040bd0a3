//! A file that appears under its name only when it is complete.
//!
//! **Invariants:**
//! - whatever happens, also a power failure, the name refers to what was there before or to the complete new file;
//! - a temporary file outlives its process at most until the next one of the same name is created.

use std::fs::{self, DirEntry, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// A file under a temporary name, next to its final one. It is removed when this is dropped before
/// [`commit`](Self::commit).
pub struct PartialFile {
    /// Locked, so that it is not taken for a leftover. The lock ends with the process, even by SIGKILL.
    file: File,
    temporary: PathBuf,
    name: PathBuf,
}

impl PartialFile {
    /// Creates `NAME.XXXXXXXX.part`, which must not exist, not even as a symbolic link. Removes what processes that were
    /// killed have left under such names.
    ///
    /// Pass random digits. With a fixed name, another user could occupy it, and two exports of one file would write to the
    /// same temporary file.
    pub fn create(name: &Path, mut random: impl FnMut() -> u32) -> io::Result<Self> {
        // A leftover that cannot be removed does not matter for this file.
        let _ = remove_leftovers(name);
        loop {
            let mut temporary = name.as_os_str().to_owned();
            temporary.push(format!(".{:08x}.part", random()));
            let temporary = PathBuf::from(temporary);
            let partial = Self { file: File::create_new(&temporary)?, temporary, name: name.to_owned() };
            // Where locks are not supported, nothing is ever taken for a leftover.
            let is_taken = matches!(partial.file.try_lock(), Err(TryLockError::WouldBlock));
            // Another process may have taken the file for a leftover before it was locked.
            if !is_taken && partial.temporary.exists() {
                return Ok(partial);
            }
        }
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
        File::open(directory(&self.name))?.sync_all()
    }
}

fn directory(name: &Path) -> &Path {
    match name.parent() {
        Some(directory) if directory != Path::new("") => directory,
        _ => Path::new("."),
    }
}

/// Removes the temporary files for this name that no living process has locked.
fn remove_leftovers(name: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory(name))? {
        let entry = entry?;
        // Not a symbolic link: that is not ours, and is not followed.
        if is_temporary(&entry, name) && entry.file_type().is_ok_and(|found| found.is_file()) {
            let file = File::options().read(true).write(true).open(entry.path());
            // Locked until it is removed, so that its creator does not start to use it.
            if let Ok(file) = file
                && file.try_lock().is_ok()
            {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
    Ok(())
}

/// Whether [`PartialFile::create`] could have chosen this name.
fn is_temporary(entry: &DirEntry, name: &Path) -> bool {
    let (found, name) = (entry.file_name(), name.file_name().unwrap_or_default());
    let random = found
        .as_encoded_bytes()
        .strip_prefix(name.as_encoded_bytes())
        .and_then(|rest| rest.strip_prefix(b"."))
        .and_then(|rest| rest.strip_suffix(b".part"));
    random.is_some_and(|random| {
        random.len() == 8 && random.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
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

    fn create_folder() -> PathBuf {
        let folder = std::env::temp_dir().join(format!("petstore-test-{:016x}", rand::random::<u64>()));
        fs::create_dir(&folder).unwrap();
        folder
    }

    #[test]
    fn an_existing_file_or_link_at_the_temporary_name_is_not_touched() {
        let folder = create_folder();
        let (name, planted, target) =
            (folder.join("a"), folder.join("a.0000002a.part"), folder.join("target"));
        for there in ["a file in use", "a link to a file", "a link to nothing"] {
            let mut in_use = None;
            if there == "a file in use" {
                fs::write(&planted, "as it was").unwrap();
                in_use.insert(File::open(&planted).unwrap()).lock().unwrap();
            } else {
                symlink(&target, &planted).unwrap();
            }
            if there == "a link to a file" {
                fs::write(&target, "as it was").unwrap();
            }
            let created = PartialFile::create(&name, || 42);
            assert_eq!(created.err().map(|error| error.kind()), Some(ErrorKind::AlreadyExists), "{there}");
            let content = fs::read_to_string(&planted).ok();
            assert_eq!(content.as_deref(), (there != "a link to nothing").then_some("as it was"), "{there}");
            assert!(there == "a link to a file" || !target.exists(), "{there}");
            fs::remove_file(&planted).unwrap();
            let _ = fs::remove_file(&target);
        }
        fs::write(&planted, "a leftover").unwrap();
        let partial = PartialFile::create(&name, || 42).unwrap();
        partial.file().unwrap().write_all(b"new").unwrap();
        assert!(!name.exists());
        partial.commit().unwrap();
        assert_eq!(fs::read(&name).unwrap(), b"new");
        assert!(!planted.exists());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_name_without_a_directory_is_in_the_working_directory() {
        for (name, expected) in [("a", "."), ("./a", "."), ("b/a", "b"), ("/a", "/")] {
            assert_eq!(directory(Path::new(name)), Path::new(expected), "{name}");
        }
    }

    #[test]
    fn a_file_with_another_name_is_not_taken_for_a_leftover() {
        let folder = create_folder();
        let others =
            ["a.0000002.part", "a.0000002A.part", "a.0000002g.part", "b.0000002a.part", "a.0000002a"];
        for other in others {
            fs::write(folder.join(other), "not ours").unwrap();
        }
        fs::write(folder.join("a.0000002b.part"), "a leftover").unwrap();
        let partial = PartialFile::create(&folder.join("a"), || 42).unwrap();
        for other in others {
            assert!(folder.join(other).exists(), "{other}");
        }
        assert!(!folder.join("a.0000002b.part").exists());
        drop(partial);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn files_that_are_created_at_the_same_time_do_not_remove_each_other() {
        let folder = create_folder();
        let name = folder.join("a");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let partial = PartialFile::create(&name, rand::random).unwrap();
                        std::thread::yield_now();
                        assert!(partial.temporary.exists());
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        fs::remove_dir_all(&folder).unwrap();
    }
}
