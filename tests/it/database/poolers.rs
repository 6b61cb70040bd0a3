//! The service behind a connection pooler: the real PgBouncer.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::json;
use tokio_postgres::Config;

use crate::support::postgres::connect;
use crate::support::program::{ServeProcess, free_address, new_key, run};
use crate::support::wait::eventually;
use crate::support::{Client, TestDatabase};

/// PgBouncer in front of a database.
struct PgBouncer {
    process: Child,
    directory: PathBuf,
    url: String,
}

impl PgBouncer {
    /// As Debian's package configures it, but for the mode.
    async fn start(database: &TestDatabase, pool_mode: &str) -> Self {
        let server: Config = database.url().parse().unwrap();
        let (name, user) = (server.get_dbname().unwrap(), server.get_user().unwrap());
        let address = free_address();
        let directory = std::env::temp_dir().join(format!("petstore-pgbouncer-{}", address.port()));
        fs::create_dir_all(&directory).unwrap();
        let (settings, users) = (directory.join("pgbouncer.ini"), directory.join("users.txt"));
        fs::write(&users, format!("\"{user}\" \"\"\n")).unwrap();
        let text = format!(
            "[databases]\n{name} = host=127.0.0.1 port={} dbname={name}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\nunix_socket_dir =\nauth_type = trust\n\
             auth_file = {}\npool_mode = {pool_mode}\nmax_client_conn = 100\ndefault_pool_size = 30\n",
            server.get_ports()[0],
            address.port(),
            users.display()
        );
        fs::write(&settings, text).unwrap();
        let mut command = Command::new("/usr/sbin/pgbouncer");
        command.arg(&settings);
        if fs::metadata("/proc/self").unwrap().uid() == 0 {
            // It refuses to run as root.
            command.args(["--user", "nobody"]);
        }
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let bouncer = Self { process, directory, url: format!("postgresql://{user}@{address}/{name}") };
        eventually("PgBouncer listens", async || {
            tokio_postgres::connect(&bouncer.url, tokio_postgres::NoTls).await.is_ok()
        })
        .await;
        bouncer
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

#[tokio::test]
async fn a_pooler_that_does_not_keep_sessions_is_refused_by_name() {
    let database = TestDatabase::new().await;
    for mode in ["transaction", "statement"] {
        let bouncer = PgBouncer::start(&database, mode).await;
        for command in [["serve", "--listen=127.0.0.1:0"].as_slice(), &["doctor"], &["migrate"]] {
            let output = run(command, &[("DATABASE_URL", &bouncer.url)]);
            assert_eq!(output.status.code(), Some(1), "{command:?} in {mode} mode");
            let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            assert!(text.contains("PgBouncer in transaction mode"), "{text}");
            assert!(text.contains("or set pool_mode = session"), "{text}");
        }
    }
}

#[tokio::test]
async fn a_pooler_that_keeps_sessions_works() {
    let database = TestDatabase::new().await;
    let bouncer = PgBouncer::start(&database, "session").await;
    let service = ServeProcess::start(&bouncer.url, &[]);
    let key = new_key(&bouncer.url, &[]);
    let client = Client::new(service.address, Some(&key));
    for number in 0..20 {
        let pet = json!({"name": format!("Rex {number}"), "categoryId": 1});
        assert_eq!(client.post("/v1/pets", &pet).await.status, 201);
    }
    assert_eq!(client.get("/v1/pets").await.ids().len(), 20);
    let revoked = run(&["keys", "revoke", "2"], &[("DATABASE_URL", &bouncer.url)]);
    assert!(revoked.status.success(), "{revoked:?}");
    eventually("the key is refused", async || client.get("/v1/pets").await.status == 401).await;
    service.terminate();
    // The settings of the service's sessions do not stay behind in the server's processes.
    let rows = connect(&bouncer.url).await.query("SHOW statement_timeout", &[]).await.unwrap();
    assert_eq!(rows[0].get::<_, &str>(0), "0");
    let doctor = run(&["doctor"], &[("DATABASE_URL", &bouncer.url)]);
    assert_eq!(doctor.status.code(), Some(0));
}
