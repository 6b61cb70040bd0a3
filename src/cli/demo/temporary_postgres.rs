//! A PostgreSQL that is gone afterwards, from the programs that are installed on this machine.
//!
//! **Invariant:** however this program ends, the server ends too, and its directory is removed. Both are the child's
//! business (`assets/demo/keep.sh`), which waits for the end of a pipe that only this program holds open.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use thiserror::Error;
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{sleep, timeout};

use crate::config::{DatabaseUrl, DemoSettings, search_path, temporary_directory};

const KEEP: &str = include_str!("../../../assets/demo/keep.sh");

/// Where Debian and Ubuntu have a directory a version.
const VERSIONS: &str = "/usr/lib/postgresql";

/// PostgreSQL refuses to run as root, so root runs it as the first of these that there is.
const USERS: [&str; 2] = ["postgres", "nobody"];

/// The longest temporary directory that leaves room for the socket's path, which the system limits to 107 bytes.
const LONGEST: usize = 107 - "/petstore-demo-00000000/.s.PGSQL.5432".len();

/// How long the server may take to stop before it is given up.
const PATIENCE: Duration = Duration::from_secs(20);

/// Why there is no PostgreSQL, or not any more.
#[derive(Debug, Error)]
pub(super) enum PostgresError {
    #[error(
        "no PostgreSQL server was found {0}: install one (Debian and Ubuntu: `apt-get install postgresql`; Fedora: \
         `dnf install postgresql-server`), or name an empty database in DATABASE_URL"
    )]
    NotFound(String),
    #[error("PostgreSQL refuses to run as root, and there is no user `postgres` or `nobody` to run it as")]
    OnlyRoot,
    #[error("no directory for PostgreSQL could be made in {0}")]
    Directory(PathBuf, #[source] io::Error),
    #[error("PostgreSQL could not be started")]
    Start(#[from] io::Error),
    #[error("PostgreSQL ended by itself; the last it said:\n{0}")]
    Ended(String),
    #[error("PostgreSQL did not stop within {PATIENCE:?}: look for it in {0}")]
    Stop(PathBuf),
}

/// A running PostgreSQL. It stops with this value; [`stop`](Self::stop) waits for it.
pub(super) struct TemporaryPostgres {
    /// Where its programs are.
    pub(super) bin: PathBuf,
    /// Where everything of it is.
    directory: PathBuf,
    log: File,
    keeper: Child,
    /// As long as this is open, the server is kept.
    hold: Option<ChildStdin>,
}

impl TemporaryPostgres {
    /// Begins to start it. It is ready when it can be connected to.
    pub(super) fn start(settings: &DemoSettings) -> Result<Self, PostgresError> {
        let bin = find(settings.postgres_bin.as_deref(), &search_path(), Path::new(VERSIONS))?;
        let parent = Some(temporary_directory()).filter(|parent| parent.as_os_str().len() <= LONGEST);
        let parent = parent.unwrap_or_else(|| "/tmp".into());
        let directory = parent.join(format!("petstore-demo-{:08x}", rand::random::<u32>()));
        let no_directory = |error| PostgresError::Directory(parent, error);
        DirBuilder::new().mode(0o700).create(&directory).map_err(no_directory)?;
        keep(&directory, &bin)
            .map(|(keeper, hold, log)| Self { bin, directory: directory.clone(), log, keeper, hold })
            .inspect_err(|_| drop(fs::remove_dir_all(directory)))
    }

    /// Its address.
    pub(super) fn url(&self) -> DatabaseUrl {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("host", &self.directory.to_string_lossy());
        format!("postgresql://petstore@/postgres?sslmode=disable&{}", query.finish()).into()
    }

    /// Waits until it ends, which it should not.
    pub(super) async fn ended(&mut self) -> PostgresError {
        if let Err(error) = self.keeper.wait().await {
            return error.into();
        }
        let mut said = String::new();
        // What cannot be read is missing from the message, and that is all.
        let _ = self.log.read_to_string(&mut said);
        let lines: Vec<&str> = said.lines().filter(|line| !line.is_empty()).collect();
        PostgresError::Ended(lines[lines.len().saturating_sub(6)..].join("\n"))
    }

    /// Stops it, and returns when nothing of it is left.
    pub(super) async fn stop(mut self) -> Result<(), PostgresError> {
        drop(self.hold.take());
        let gone = async {
            self.keeper.wait().await?;
            // Most often the keeper has done this. It cannot if it was killed, or if root's directory is not its own.
            while self.directory.exists() && fs::remove_dir_all(&self.directory).is_err() {
                sleep(Duration::from_millis(50)).await;
            }
            Ok(())
        };
        timeout(PATIENCE, gone).await.unwrap_or_else(|_| Err(PostgresError::Stop(self.directory.clone())))
    }
}

/// Starts the keeper: itself, the pipe that holds it, and what it and the server will say.
fn keep(directory: &Path, bin: &Path) -> Result<(Child, Option<ChildStdin>, File), PostgresError> {
    let path = directory.join("log");
    let (written, log) = (File::options().create_new(true).append(true).open(&path)?, File::open(&path)?);
    let script = directory.join("keep.sh");
    fs::write(&script, KEEP)?;
    let mut command = Command::new("/bin/sh");
    command.arg(&script).arg(directory).arg(bin);
    command.stdin(Stdio::piped()).stdout(written.try_clone()?).stderr(written);
    // Ctrl-C in a terminal goes to all of a group. The server is to outlive the service, so it has its own.
    command.process_group(0);
    // A new directory belongs to whoever runs this.
    if fs::metadata(directory)?.uid() == 0 {
        let passwd = fs::read_to_string("/etc/passwd")?;
        let (uid, gid) = USERS.iter().find_map(|user| ids(&passwd, user)).ok_or(PostgresError::OnlyRoot)?;
        chown(directory, Some(uid), Some(gid))?;
        chown(script, Some(uid), Some(gid))?;
        // This also leaves root's other groups behind.
        command.uid(uid).gid(gid);
    }
    let mut keeper = command.spawn()?;
    let hold = keeper.stdin.take();
    Ok((keeper, hold, log))
}

/// The numbers of a user and of its group.
fn ids(passwd: &str, user: &str) -> Option<(u32, u32)> {
    let mut fields =
        passwd.lines().map(|line| line.split(':')).find(|line| line.clone().next() == Some(user))?;
    Some((fields.nth(2)?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// The directory of the server's programs: the given one, or the first of `path`, or the newest below `versions`.
fn find(given: Option<&Path>, path: &[PathBuf], versions: &Path) -> Result<PathBuf, PostgresError> {
    let whole = |bin: &PathBuf| ["initdb", "postgres"].iter().all(|program| bin.join(program).is_file());
    if let Some(bin) = given {
        let bin = Some(bin.to_owned()).filter(whole);
        return bin
            .ok_or_else(|| PostgresError::NotFound(format!("in {}", given.unwrap_or(versions).display())));
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
    let found = path.iter().cloned().chain(numbered.into_iter().map(|(_, bin)| bin)).find(whole);
    found.ok_or_else(|| PostgresError::NotFound(format!("in PATH or {}/*/bin", versions.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with these files in it, removed with this value.
    struct Files(PathBuf);

    impl Files {
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

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_server_is_looked_for_in_the_path_and_then_among_versions_the_newest_first() {
        let files = Files::new(&[
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
            find(None, &path.iter().map(|&path| path.clone()).collect::<Vec<_>>(), &versions).unwrap()
        };
        assert_eq!(found(&[&half, &path]), path);
        assert_eq!(found(&[&half]), versions.join("15/bin"));
        let given = versions.join("9/bin");
        assert_eq!(find(Some(&given), &[path], &versions).unwrap(), given);
    }

    #[test]
    fn a_machine_without_a_server_is_told_what_to_install() {
        let error = find(None, &["/nowhere".into()], Path::new("/nowhere")).unwrap_err().to_string();
        assert!(error.starts_with("no PostgreSQL server was found in PATH or /nowhere/*/bin: "), "{error}");
        assert!(error.contains("`apt-get install postgresql`") && error.contains("DATABASE_URL"), "{error}");
    }

    #[test]
    fn the_numbers_of_a_user_are_read_from_its_line() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nbad\npostgres:x:101:104:PostgreSQL:/:/bin/sh\n";
        assert_eq!(ids(passwd, "postgres"), Some((101, 104)));
        assert_eq!(ids(passwd, "post"), None);
        assert_eq!(ids(passwd, "bad"), None);
    }
}
