//! A temporary PostgreSQL server, from the programs that are installed on this machine.
//!
//! **Invariant:** no matter how this program ends, the server ends too, and its directory is removed. A child process
//! (`run-postgres.sh`) does both when a pipe that only this program holds open closes.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use petstore_config::{DatabaseUrl, DemoSettings, search_path, temporary_directory};
use thiserror::Error;
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{sleep, timeout};

const SCRIPT: &str = include_str!("run-postgres.sh");

/// Debian and Ubuntu have one directory per version here.
const VERSIONS: &str = "/usr/lib/postgresql";

/// PostgreSQL refuses to run as root, so root runs it as the first of these users that exists.
const USERS: [&str; 2] = ["postgres", "nobody"];

/// The longest path of a temporary directory that leaves room for the socket, whose path is limited to 107 bytes.
const MAX_PARENT_BYTES: usize = 107 - "/petstore-demo-00000000/.s.PGSQL.5432".len();

/// How long the server may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// Why PostgreSQL did not start, or did not keep running.
#[derive(Debug, Error)]
pub(super) enum TemporaryPostgresError {
    #[error(
        "no PostgreSQL server found {0}: install one (Debian and Ubuntu: `apt-get install postgresql`; Fedora: `dnf \
         install postgresql-server`), or set DATABASE_URL to an empty database"
    )]
    NotFound(String),
    #[error("PostgreSQL refuses to run as root, and there is no user `postgres` or `nobody` to run it as")]
    OnlyRoot,
    #[error("could not create a directory for PostgreSQL in {0}")]
    Directory(PathBuf, #[source] io::Error),
    #[error("could not start PostgreSQL")]
    Start(#[from] io::Error),
    #[error("PostgreSQL exited unexpectedly; its last output:\n{0}")]
    Ended(String),
    #[error("PostgreSQL did not stop within {STOP_TIMEOUT:?}: its directory is {0}")]
    Stop(PathBuf),
}

/// A running server. It stops when this value is dropped; [`stop`](Self::stop) also waits for it.
pub(super) struct TemporaryPostgres {
    /// The directory of its programs.
    pub(super) bin: PathBuf,
    /// The directory of its data, socket and log.
    directory: PathBuf,
    log: File,
    supervisor: Child,
    /// The server runs as long as this pipe is open.
    pipe: Option<ChildStdin>,
}

impl TemporaryPostgres {
    /// Starts the server in the background. It is ready when it accepts connections.
    pub(super) fn start(settings: &DemoSettings) -> Result<Self, TemporaryPostgresError> {
        let bin = find_bin(settings.postgres_bin.as_deref(), &search_path(), Path::new(VERSIONS))?;
        let parent =
            Some(temporary_directory()).filter(|parent| parent.as_os_str().len() <= MAX_PARENT_BYTES);
        let parent = parent.unwrap_or_else(|| "/tmp".into());
        let directory = parent.join(format!("petstore-demo-{:08x}", rand::random::<u32>()));
        let no_directory = |error| TemporaryPostgresError::Directory(parent, error);
        DirBuilder::new().mode(0o700).create(&directory).map_err(no_directory)?;
        spawn_supervisor(&directory, &bin)
            .map(|(supervisor, pipe, log)| Self { bin, directory: directory.clone(), log, supervisor, pipe })
            .inspect_err(|_| drop(fs::remove_dir_all(directory)))
    }

    /// Its URL.
    pub(super) fn url(&self) -> DatabaseUrl {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("host", &self.directory.to_string_lossy());
        format!("postgresql://petstore@/postgres?sslmode=disable&{}", query.finish()).into()
    }

    /// Waits until the server exits unexpectedly.
    pub(super) async fn ended(&mut self) -> TemporaryPostgresError {
        if let Err(error) = self.supervisor.wait().await {
            return error.into();
        }
        let mut output = String::new();
        // If the log cannot be read, the message just lacks it.
        let _ = self.log.read_to_string(&mut output);
        let lines: Vec<&str> = output.lines().filter(|line| !line.is_empty()).collect();
        TemporaryPostgresError::Ended(lines[lines.len().saturating_sub(6)..].join("\n"))
    }

    /// Stops the server, and returns when its directory is removed.
    pub(super) async fn stop(mut self) -> Result<(), TemporaryPostgresError> {
        drop(self.pipe.take());
        let removed = async {
            self.supervisor.wait().await?;
            // Usually the supervisor has done this. It cannot if it was killed, or if only root may write to the parent.
            while self.directory.exists() && fs::remove_dir_all(&self.directory).is_err() {
                sleep(Duration::from_millis(50)).await;
            }
            Ok(())
        };
        timeout(STOP_TIMEOUT, removed)
            .await
            .unwrap_or_else(|_| Err(TemporaryPostgresError::Stop(self.directory.clone())))
    }
}

/// Starts the child process that runs the server. Returns it, the pipe that keeps it running, and its log.
fn spawn_supervisor(
    directory: &Path,
    bin: &Path,
) -> Result<(Child, Option<ChildStdin>, File), TemporaryPostgresError> {
    let path = directory.join("log");
    let (written, log) = (File::options().create_new(true).append(true).open(&path)?, File::open(&path)?);
    let script = directory.join("run-postgres.sh");
    fs::write(&script, SCRIPT)?;
    let mut command = Command::new("/bin/sh");
    command.arg(&script).arg(directory).arg(bin);
    command.stdin(Stdio::piped()).stdout(written.try_clone()?).stderr(written);
    // Ctrl-C in a terminal signals a whole process group. The server must outlive the service, so it gets its own.
    command.process_group(0);
    // A new directory belongs to the current user.
    if fs::metadata(directory)?.uid() == 0 {
        let passwd = fs::read_to_string("/etc/passwd")?;
        let (uid, gid) = USERS
            .iter()
            .find_map(|user| uid_and_gid(&passwd, user))
            .ok_or(TemporaryPostgresError::OnlyRoot)?;
        chown(directory, Some(uid), Some(gid))?;
        chown(script, Some(uid), Some(gid))?;
        // This also drops root's supplementary groups.
        command.uid(uid).gid(gid);
    }
    let mut supervisor = command.spawn()?;
    let pipe = supervisor.stdin.take();
    Ok((supervisor, pipe, log))
}

/// Looks a user up in the text of /etc/passwd.
fn uid_and_gid(passwd: &str, user: &str) -> Option<(u32, u32)> {
    let mut fields =
        passwd.lines().map(|line| line.split(':')).find(|line| line.clone().next() == Some(user))?;
    Some((fields.nth(2)?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// Finds the directory of the server's programs: the given one, or the first in `path`, or the newest below `versions`.
fn find_bin(
    given: Option<&Path>,
    path: &[PathBuf],
    versions: &Path,
) -> Result<PathBuf, TemporaryPostgresError> {
    let is_complete =
        |bin: &PathBuf| ["initdb", "postgres"].iter().all(|program| bin.join(program).is_file());
    if let Some(bin) = given {
        let bin = Some(bin.to_owned()).filter(is_complete);
        return bin.ok_or_else(|| {
            TemporaryPostgresError::NotFound(format!("in {}", given.unwrap_or(versions).display()))
        });
    }
    let mut numbered: Vec<(u32, PathBuf)> = fs::read_dir(versions)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin")))
        })
        .collect();
    numbered.sort_unstable_by(|one, other| other.cmp(one));
    let found = path.iter().cloned().chain(numbered.into_iter().map(|(_, bin)| bin)).find(is_complete);
    found.ok_or_else(|| TemporaryPostgresError::NotFound(format!("in PATH or {}/*/bin", versions.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with empty files, removed when it is dropped.
    struct TemporaryFiles(PathBuf);

    impl TemporaryFiles {
        fn new(files: &[&str]) -> Self {
            let root = temporary_directory().join(format!("petstore-test-{:016x}", rand::random::<u64>()));
            for file in files {
                let file = root.join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, "").unwrap();
            }
            Self(root)
        }
    }

    impl Drop for TemporaryFiles {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_server_is_searched_in_path_and_then_in_the_newest_version() {
        let files = TemporaryFiles::new(&[
            "path/initdb",
            "path/postgres",
            "half/initdb",
            "versions/9/bin/initdb",
            "versions/9/bin/postgres",
            "versions/15/bin/initdb",
            "versions/15/bin/postgres",
            "versions/16/bin/initdb",
            "versions/old/bin/initdb",
            "versions/old/bin/postgres",
        ]);
        let [path, half, versions] = ["path", "half", "versions"].map(|name| files.0.join(name));
        let found = |path: &[&PathBuf]| {
            find_bin(None, &path.iter().map(|&path| path.clone()).collect::<Vec<_>>(), &versions).unwrap()
        };
        assert_eq!(found(&[&half, &path]), path);
        assert_eq!(found(&[&half]), versions.join("15/bin"));
        let given = versions.join("9/bin");
        assert_eq!(find_bin(Some(&given), &[path], &versions).unwrap(), given);
    }

    #[test]
    fn the_error_without_a_server_says_what_to_install() {
        let error = find_bin(None, &["/nowhere".into()], Path::new("/nowhere")).unwrap_err().to_string();
        assert!(error.starts_with("no PostgreSQL server found in PATH or /nowhere/*/bin: "), "{error}");
        assert!(error.contains("`apt-get install postgresql`") && error.contains("DATABASE_URL"), "{error}");
    }

    #[test]
    fn the_ids_of_a_user_are_read_from_passwd() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nbad\npostgres:x:101:104:PostgreSQL:/:/bin/sh\n";
        assert_eq!(uid_and_gid(passwd, "postgres"), Some((101, 104)));
        assert_eq!(uid_and_gid(passwd, "post"), None);
        assert_eq!(uid_and_gid(passwd, "bad"), None);
    }
}
