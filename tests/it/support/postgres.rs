//! A database for each test, copied from a template that is migrated once.
//!
//! The server is the one at `TEST_DATABASE_URL`, or else one that `scripts/postgres` starts and that all test processes
//! share.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use petstore_config::DatabaseUrl;
use petstore_domain::api_key::ApiKey;
use petstore_domain::key_record::{NewKey, Scope};
use petstore_storage::{SCHEMA_LATEST, insert_api_key, migrate};
use tokio_postgres::{Client, NoTls};

use super::repository::ROOT;
use super::wait::{eventually, poll};

/// The key of every test database, with every scope. Not a secret: it is generated from zeros.
pub(crate) fn key() -> ApiKey {
    ApiKey::generate(|| 0)
}

/// The name, the category and the status of a pet.
pub(crate) type PetRow = (String, i64, Option<String>);

/// A database, dropped with this value.
pub(crate) struct TestDatabase {
    server: String,
    name: String,
}

impl TestDatabase {
    /// A migrated database that contains [`key`].
    pub(crate) async fn new() -> Self {
        let server = server_url();
        let admin = connect(&server).await;
        let template = template(&server, &admin).await;
        let database = Self::create(server, &admin, &format!("TEMPLATE {template}")).await;
        // A copy is taken for a restored dump, whose feed would start anew with the service.
        let adopt = "UPDATE event_feed SET origin = event_origin()";
        database.connect().await.batch_execute(adopt).await.unwrap();
        database
    }

    /// An empty database, not migrated.
    pub(crate) async fn empty() -> Self {
        let server = server_url();
        let admin = connect(&server).await;
        Self::create(server, &admin, "").await
    }

    /// An empty database with this encoding.
    pub(crate) async fn with_encoding(encoding: &str) -> Self {
        let server = server_url();
        let admin = connect(&server).await;
        Self::create(server, &admin, &format!("ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")).await
    }

    async fn create(server: String, admin: &Client, from: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("petstore_test_{}_{count}", std::process::id());
        admin.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await.unwrap();
        admin.batch_execute(&format!("CREATE DATABASE {name} {from}")).await.unwrap();
        Self { server, name }
    }

    /// The URL of this database.
    pub(crate) fn url(&self) -> String {
        database_url(&self.server, &self.name)
    }

    /// The URL of this database for another role.
    pub(crate) fn url_as(&self, role: &str) -> String {
        let url = self.url();
        let separator = if url.ends_with('?') { "" } else { "&" };
        format!("{url}{separator}user={role}")
    }

    /// The name of this database.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Opens a connection to the maintenance database of the same server.
    pub(crate) async fn server(&self) -> Client {
        connect(&self.server).await
    }

    /// Terminates every connection to this database.
    pub(crate) async fn disconnect_all(&self) {
        let all = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1";
        self.server().await.query(all, &[&self.name]).await.unwrap();
    }

    /// Opens a connection to this database.
    pub(crate) async fn connect(&self) -> Client {
        connect(&self.url()).await
    }

    /// Adds pets in one statement. Their statuses are each status in turn, then none.
    pub(crate) async fn add_pets(&self, count: i32) {
        let insert = "INSERT INTO pets (name, category_id, status) \
            SELECT 'Pet ' || n, n % 7, (ARRAY['available', 'pending', 'sold', NULL])[1 + n % 4]::pet_status \
            FROM generate_series(0, $1 - 1) n";
        self.connect().await.execute(insert, &[&count]).await.unwrap();
    }

    /// The pets, in id order.
    pub(crate) async fn pets(&self) -> Vec<PetRow> {
        let rows = "SELECT name, category_id, status::text FROM pets ORDER BY id";
        let rows = self.connect().await.query(rows, &[]).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let (server, name) = (self.server.clone(), self.name.clone());
        // In a separate thread: a runtime cannot be started within the runtime of the test.
        let dropping = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
                connect(&server).await.batch_execute(&drop).await
            })
        });
        let _ = dropping.join();
    }
}

fn server_url() -> String {
    std::env::var("TEST_DATABASE_URL").unwrap_or_else(|_| script(&["shared"]))
}

/// Runs `scripts/postgres` and returns its output.
pub(crate) fn script(arguments: &[&str]) -> String {
    let output = Command::new(Path::new(ROOT).join("scripts/postgres")).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "scripts/postgres {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The URL of another database on the same server.
fn database_url(server: &str, name: &str) -> String {
    let (address, query) = server.split_once('?').unwrap_or((server, ""));
    let (host, _) = address.rsplit_once('/').unwrap();
    format!("{host}/{name}?{query}")
}

/// Opens a connection to a database. It closes when the client is dropped.
pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// The number of pets.
pub(crate) async fn count_pets(client: &Client) -> i64 {
    client.query_one("SELECT count(*) FROM pets", &[]).await.unwrap().get(0)
}

/// Waits until the statement of a request in this database waits for a lock, and returns the id of its server process. Do not
/// call this in a transaction: within one, `pg_stat_activity` does not change.
pub(crate) async fn wait_for_blocked_statement(watch: &Client) -> i32 {
    // A node measures tables in the background.
    let blocked = "SELECT pid FROM pg_stat_activity \
        WHERE wait_event_type = 'Lock' AND datname = current_database() \
          AND query NOT LIKE '%pg_relation_size%' LIMIT 1";
    let pid = async || watch.query_opt(blocked, &[]).await.unwrap();
    poll("a statement waits for a lock", pid, Option::is_some).await.unwrap().get(0)
}

/// The name of the template database for the current migrations, created if it does not exist. One per day: its partitions are those
/// of the day on which it was created.
async fn template(server: &str, admin: &Client) -> String {
    let mut hasher = DefaultHasher::new();
    // With the indexes that are built after them.
    let indexes = Path::new(ROOT).join("crates/storage/src/migrations.rs");
    for file in migration_files().into_iter().chain([indexes]) {
        std::fs::read(file).unwrap().hash(&mut hasher);
    }
    let today = admin.query_one("SELECT (now() AT TIME ZONE 'UTC')::date::text", &[]).await.unwrap();
    today.get::<_, String>(0).hash(&mut hasher);
    let name = format!("petstore_template_{:016x}", hasher.finish());
    admin.execute("SELECT pg_advisory_lock(1)", &[]).await.unwrap();
    let found = admin.query("SELECT 1 FROM pg_database WHERE datname = $1 AND datistemplate", &[&name]).await;
    if found.unwrap().is_empty() {
        admin.batch_execute(&format!("DROP DATABASE IF EXISTS {name}")).await.unwrap();
        admin.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        prepare(database_url(server, &name)).await;
        let finish = format!("ALTER DATABASE {name} IS_TEMPLATE true ALLOW_CONNECTIONS false");
        admin.batch_execute(&finish).await.unwrap();
        wait_until_unused(admin, &name).await;
    }
    admin.execute("SELECT pg_advisory_unlock(1)", &[]).await.unwrap();
    name
}

async fn prepare(url: String) {
    let url = DatabaseUrl::from(url);
    migrate(&url, SCHEMA_LATEST).await.unwrap();
    let new = NewKey {
        name: "test".parse().unwrap(),
        scopes: Scope::ALL.to_vec(),
        expires_at: None,
        rate_limit: None,
    };
    let issued = insert_api_key(&url, &new, &key(), &"a test".parse().unwrap(), |_| Ok(())).await;
    issued.unwrap();
}

async fn wait_until_unused(admin: &Client, name: &str) {
    let users = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1";
    eventually("the template is unused", async || admin.query(users, &[&name]).await.unwrap().is_empty())
        .await;
}

/// The migrations, in order.
pub(crate) fn migration_files() -> Vec<std::path::PathBuf> {
    let directory = std::fs::read_dir(Path::new(ROOT).join("crates/storage/migrations")).unwrap();
    let mut files: Vec<_> = directory.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}
