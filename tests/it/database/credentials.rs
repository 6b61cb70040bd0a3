//! Passwords from files, and client certificates.

use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use tokio_postgres::Config;

use crate::support::postgres::connect;
use crate::support::private_postgres::PrivatePostgres;
use crate::support::program::{ServeProcess, free_address, petstore, run};
use crate::support::wait::eventually;
use crate::support::{Client, TestDatabase};

/// A server that asks its roles for passwords, the role `shop` among them.
struct GuardedPostgres {
    postgres: PrivatePostgres,
    port: u16,
}

impl GuardedPostgres {
    async fn start(password: &str) -> Self {
        let (postgres, _) = PrivatePostgres::start_with_key();
        let config: Config = postgres.url.parse().unwrap();
        let guarded = Self { port: config.get_ports()[0], postgres };
        let owner = connect(&guarded.postgres.url).await;
        let rules: String = owner.query_one("SHOW hba_file", &[]).await.unwrap().get(0);
        let sql = format!("CREATE ROLE shop LOGIN SUPERUSER PASSWORD '{password}'");
        owner.batch_execute(&sql).await.unwrap();
        let others = fs::read_to_string(&rules).unwrap();
        fs::write(&rules, format!("host all shop 127.0.0.1/32 scram-sha-256\n{others}")).unwrap();
        owner.batch_execute("SELECT pg_reload_conf()").await.unwrap();
        guarded
    }

    async fn change_password(&self, password: &str) {
        let sql = format!("ALTER ROLE shop PASSWORD '{password}'");
        connect(&self.postgres.url).await.batch_execute(&sql).await.unwrap();
    }

    /// Closes all connections of the service, as a restart of the server does, and waits for a new one.
    async fn reconnect(&self) {
        let owner = connect(&self.postgres.url).await;
        let now: SystemTime = owner.query_one("SELECT clock_timestamp()", &[]).await.unwrap().get(0);
        // Repeated: a connection that is being opened has no user yet.
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'shop' AND backend_start <= $1";
        let new = "SELECT FROM pg_stat_activity WHERE usename = 'shop' AND backend_start > $1 LIMIT 1";
        eventually("a new connection", async || {
            owner.execute(end, &[&now]).await.unwrap();
            owner.query_opt(new, &[&now]).await.unwrap().is_some()
        })
        .await;
    }

    fn url(&self, user: &str) -> String {
        format!("postgresql://{user}@127.0.0.1:{}/postgres", self.port)
    }
}

/// A file with a secret, removed on drop.
struct SecretFile(PathBuf);

impl SecretFile {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("petstore-secret-{name}-{}", std::process::id()));
        fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Starts a service with this variable.
fn serve_with(name: &str, value: &str, database_url: &str) -> ServeProcess {
    let mut command = petstore(&["serve"]);
    command.env(name, value);
    ServeProcess::start_as(command, database_url, free_address(), free_address())
}

async fn serves_after_a_rotation(postgres: &GuardedPostgres, service: &ServeProcess, rotate: impl Fn()) {
    let admin = Client::new(service.admin_address, None);
    eventually("ready", async || admin.get("/readyz").await.status == 200).await;
    postgres.change_password("new").await;
    rotate();
    postgres.reconnect().await;
    assert!(!service.log().contains(":old@"), "{}", service.log());
}

#[tokio::test]
async fn the_database_url_is_read_from_a_file_and_its_password_again_for_each_connection() {
    let postgres = GuardedPostgres::start("old").await;
    let file = SecretFile::new("url", &format!("{}\n", postgres.url("shop:old")));
    let service = serve_with("DATABASE_URL_FILE", file.path(), "");
    serves_after_a_rotation(&postgres, &service, || fs::write(&file.0, postgres.url("shop:new")).unwrap())
        .await;
}

#[tokio::test]
async fn a_password_is_read_from_the_password_file_for_each_connection() {
    let postgres = GuardedPostgres::start("old").await;
    let file = SecretFile::new("pass", "127.0.0.1:*:*:shop:old\n");
    let service = serve_with("PGPASSFILE", file.path(), &postgres.url("shop"));
    serves_after_a_rotation(&postgres, &service, || fs::write(&file.0, "*:*:postgres:shop:new\n").unwrap())
        .await;
}

#[test]
fn a_url_and_a_url_file_at_once_or_neither_are_refused() {
    let file = SecretFile::new("both", "postgresql://127.0.0.1:1/none");
    for environment in [
        &[("DATABASE_URL", "postgresql://127.0.0.1:1/none"), ("DATABASE_URL_FILE", file.path())][..],
        &[("DATABASE_URL_FILE", "/does/not/exist")],
        &[],
    ] {
        let output = run(&["migrate"], environment);
        assert_eq!(output.status.code(), Some(2), "{environment:?}: {output:?}");
    }
}

#[tokio::test]
async fn a_misspelt_variable_is_refused_with_the_nearest_name() {
    let database = TestDatabase::new().await;
    for command in ["serve", "doctor"] {
        let environment = [("DATABASE_URL", &*database.url()), ("PETSTORE_LISTNE", "127.0.0.1:1")];
        let output = run(&[command], &environment);
        assert_eq!(output.status.code(), Some(if command == "serve" { 2 } else { 1 }), "{output:?}");
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        let expected =
            "the environment variable PETSTORE_LISTNE is not a setting; the nearest is PETSTORE_LISTEN";
        assert!(text.contains(expected), "{text}");
    }
}

/// A certificate authority, a certificate of `localhost` signed by it, and one of the role `shop`.
const CERTIFICATES: &str = "\
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=authority \
      -keyout ca.key -out ca.crt && \
    for name in localhost shop; do \
      openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=$name \
        -keyout $name.key -out $name.csr && \
      echo subjectAltName=DNS:$name > $name.ext && \
      openssl x509 -req -in $name.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile $name.ext -out $name.crt; \
    done";

#[tokio::test]
async fn a_client_certificate_authenticates_over_verified_tls() {
    let postgres = GuardedPostgres::start("unused").await;
    let owner = connect(&postgres.postgres.url).await;
    let directory: String = owner.query_one("SHOW data_directory", &[]).await.unwrap().get(0);
    // As the user of the server, who must own its key.
    let sql =
        format!("COPY (SELECT 1) TO PROGRAM $$cd '{directory}' && {{ {CERTIFICATES}; }} 2>openssl.log$$");
    owner.batch_execute(&sql).await.unwrap();
    let rules = format!("{directory}/pg_hba.conf");
    let others = fs::read_to_string(&rules).unwrap();
    fs::write(&rules, format!("hostssl all shop 127.0.0.1/32 cert\n{others}")).unwrap();
    for setting in [
        "ssl_ca_file = 'ca.crt'",
        "ssl_cert_file = 'localhost.crt'",
        "ssl_key_file = 'localhost.key'",
        "ssl = on",
    ] {
        owner.batch_execute(&format!("ALTER SYSTEM SET {setting}")).await.unwrap();
    }
    owner.batch_execute("SELECT pg_reload_conf()").await.unwrap();

    let url = |host: &str, parameters: &str| {
        format!("postgresql://shop@{host}:{}/postgres?hostaddr=127.0.0.1&{parameters}", postgres.port)
    };
    let verified = format!("sslmode=verify-full&sslrootcert={directory}/ca.crt");
    let certificate = format!("sslcert={directory}/shop.crt&sslkey={directory}/shop.key");
    eventually("the server uses TLS", async || {
        let database = url("localhost", &format!("{verified}&{certificate}"));
        run(&["keys", "list"], &[("DATABASE_URL", &database)]).status.success()
    })
    .await;
    for (refused, reason) in [
        (url("localhost", &verified), "no client certificate"),
        (url("elsewhere", &format!("{verified}&{certificate}")), "another name"),
        (
            url("localhost", &format!("sslmode=verify-full&{certificate}")),
            "an authority that the system does not know",
        ),
    ] {
        let output = run(&["keys", "list"], &[("DATABASE_URL", &refused)]);
        assert_eq!(output.status.code(), Some(1), "{reason}: {output:?}");
    }
}
