//! `petstore demo`

mod temporary_postgres;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use jiff::Timestamp;
use petstore_config::{DatabaseUrl, DemoSettings, ServeSettings};
use petstore_domain::api_key::ApiKey;
use petstore_domain::key_record::{Actor, NewKey, Scope};
use petstore_http::{FaultInjector, FaultRule, fault_option_help};
use petstore_storage::{
    DatabaseContents, ExamineError, SCHEMA_LATEST, database_contents, insert_api_key, migrate,
};
use tokio::select;
use tokio::time::sleep;

use super::error::{CommandError, SettingError};
use super::output::print;
use super::output::print_in_thread;
use super::progress::grouped;
use super::seed;
use super::stop_signal::stop_signals;
use super::storage::storage;
use crate::app::{App, StartError};
use crate::systemd::Listeners;
use temporary_postgres::TemporaryPostgres;

/// The sample pets: their number and their seed.
const PETS: u32 = 1_000;
const SEED: u64 = 1;

/// Without --listen, the service listens on the first free port of these.
const PORTS: std::ops::Range<u16> = 8080..8100;

/// How long PostgreSQL may take to start.
const START_TIMEOUT: Duration = Duration::from_mins(1);

/// Runs the service with 1,000 sample pets, without any setup, and leaves nothing behind.
///
/// The demo starts a temporary PostgreSQL from the programs that are installed on this machine. This PostgreSQL listens
/// only on a private socket, does not sync to disk, and is removed when the demo ends, even after SIGKILL. If
/// `DATABASE_URL` is set, the demo uses that database instead, and leaves the pets in it. The demo refuses a database
/// with any other content, or where somebody has created a key or imported pets since an earlier demo.
///
/// To test a client, make requests fail: all or some of them with --fault, or a single one with the header `Petstore-Fault`.
/// The page /docs/sandbox of the demo shows how. Orders expire after 15 minutes, unless `PETSTORE_ORDER_HOLD` is set.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  petstore demo
  petstore demo --listen 127.0.0.1:3000

Fail 20 % and 10 % of all requests, so that retries can succeed:
  petstore demo --fault 503:0.2 --fault lost-answer:0.1

Lose every response, also to retries, as in an outage that never ends:
  petstore demo --fault lost-answer

Lose one response, but not that of its retry:
  curl -H 'Petstore-Fault: lost-answer' -H 'Idempotency-Key: …' …")]
pub(super) struct DemoCommand {
    #[command(flatten)]
    settings: DemoSettings,

    /// Makes requests fail.
    #[arg(long = "fault", value_name = "KIND[:SHARE]", long_help = fault_option_help())]
    faults: Vec<FaultRule>,
}

impl DemoCommand {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let started = Instant::now();
        let faults = FaultInjector::new(self.faults.clone(), rand::random);
        let faults = faults.map_err(|error| SettingError(error.to_string()))?;
        let mut stop_signal = stop_signals()?;
        let mut stop = pin!(async {
            stop_signal().await;
        });
        if let Some(url) = &self.settings.database_url {
            return self.serve(url, faults, started, stop).await;
        }
        let mut postgres = TemporaryPostgres::start(&self.settings)?;
        let url = postgres.url();
        let text = format!("Starting a temporary PostgreSQL (from {}, fsync off).\n", postgres.bin.display());
        let serving = async {
            print(&text)?;
            self.serve(&url, faults, started, stop.as_mut()).await
        };
        let outcome = select! {
            outcome = serving => outcome,
            failure = postgres.ended() => Err(failure.into()),
        };
        let stopped = postgres.stop().await;
        outcome?;
        Ok(stopped?)
    }

    /// Prepares the database, prints instructions, and serves until `stop`.
    async fn serve(
        &self,
        url: &DatabaseUrl,
        faults: FaultInjector,
        started: Instant,
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(), CommandError> {
        let (app, ready) = select! {
            () = &mut stop => return Ok(()),
            prepared = self.prepare(url, started) => prepared?,
        };
        let new =
            NewKey { name: "demo".parse()?, scopes: Scope::ALL.to_vec(), expires_at: None, rate_limit: None };
        let key = ApiKey::generate(rand::random);
        // Printed only when it is valid, because clients use it at once. From here on, it is revoked whatever happens.
        let id = insert_api_key(url, &new, &key, &actor()?, |_| Ok(())).await?;
        let temporary = self.settings.database_url.is_none();
        let text = ready + &instructions(app.public_address()?, &key, temporary, &self.faults);
        let printed = select! {
            () = &mut stop => None,
            printed = print_in_thread(text) => Some(printed),
        };
        if let Some(Ok(())) = printed {
            // Boxed: it is large and would be part of every future up to here.
            let pipeline = |state, settings: &_| faults.pipeline(state, settings);
            Box::pin(app.run(pipeline, stop)).await;
        }
        if !temporary {
            storage(url)?.revoke_api_key(id, &actor()?).await?;
        }
        Ok(printed.unwrap_or(Ok(()))?)
    }

    /// Fills the database, starts to listen, and returns how long that took.
    async fn prepare(&self, url: &DatabaseUrl, started: Instant) -> Result<(App, String), CommandError> {
        let temporary = self.settings.database_url.is_none();
        let contents =
            if temporary { wait_until_ready(url, started).await? } else { database_contents(url).await? };
        let pets = match contents {
            DatabaseContents::Nothing => format!("{} pets", grouped(PETS.into())),
            DatabaseContents::Demonstration => "the pets from the last demo".to_owned(),
            DatabaseContents::OtherTables(tables) => {
                return Err(unsuitable_database(&format!("other tables ({})", tables.join(", "))));
            }
            DatabaseContents::Shop => {
                return Err(unsuitable_database("pets or keys that are not from a demo"));
            }
        };
        migrate(url, SCHEMA_LATEST).await?;
        let storage = storage(url)?;
        if contents == DatabaseContents::Nothing {
            // In this order: if the demo ends in between, the next one fills the marked database.
            storage.mark_as_demonstration().await?;
            seed::add(&storage, PETS, SEED).await?;
        }
        let app = self.listen(url).await?;
        Ok((app, format!("Ready in {:.1} s with {pets}.\n", started.elapsed().as_secs_f64())))
    }

    /// Listens on the given address, or else on the first free port.
    async fn listen(&self, url: &DatabaseUrl) -> Result<App, CommandError> {
        let start = async |address| -> Result<Result<App, StartError>, CommandError> {
            let settings = ServeSettings::for_demo(url, address)?;
            Ok(App::start(settings, Listeners::default(), Arc::new(Timestamp::now)).await)
        };
        if let Some(address) = self.settings.listen {
            return Ok(start(address).await??);
        }
        for port in PORTS {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            match start(address).await? {
                Err(StartError::Listen { source, .. }) if source.kind() == io::ErrorKind::AddrInUse => {
                    print(&format!("{address} is in use: trying the next port.\n"))?;
                }
                outcome => return Ok(outcome?),
            }
        }
        let (first, last) = (PORTS.start, PORTS.end - 1);
        Err(format!("ports {first} to {last} are all in use: choose another with --listen").into())
    }
}

fn actor() -> Result<Actor, CommandError> {
    Ok("petstore demo".parse()?)
}

/// Waits until the database accepts connections, and returns its contents.
async fn wait_until_ready(url: &DatabaseUrl, started: Instant) -> Result<DatabaseContents, ExamineError> {
    loop {
        match database_contents(url).await {
            Err(ExamineError::Connect(_) | ExamineError::Database(_))
                if started.elapsed() < START_TIMEOUT =>
            {
                sleep(Duration::from_millis(10)).await;
            }
            outcome => return outcome,
        }
    }
}

fn unsuitable_database(contents: &str) -> CommandError {
    format!(
        "the database at DATABASE_URL contains {contents}: unset DATABASE_URL to use a temporary database, or set it \
         to an empty one"
    )
    .into()
}

fn instructions(address: SocketAddr, key: &ApiKey, temporary: bool, faults: &[FaultRule]) -> String {
    let (address, key) = (local_address(address), key.reveal());
    let (faults, example) = if faults.is_empty() {
        let example = format!(
            "
Add another, but lose the response (for more faults, see http://{address}/docs/sandbox):

  curl -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' -H 'Petstore-Fault: lost-answer' \
-d '{{\"name\": \"Max\", \"categoryId\": 1}}' 'http://{address}/v1/pets'
"
        );
        (String::new(), example)
    } else {
        let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
        (format!("\n  Faults   {}", faults.join(", ")), String::new())
    };
    let end = if temporary {
        "Ctrl-C stops the service and removes the database."
    } else {
        "Ctrl-C stops the service and revokes the key. The pets stay in the database."
    };
    format!(
        "
  Address  http://{address}/v1
  Key      {key}
  Docs     http://{address}/docs{faults}

List three pets:

  curl -H 'Authorization: Bearer {key}' 'http://{address}/v1/pets?status=available&limit=3'

Add one:

  curl -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' \
-d '{{\"name\": \"Rex\", \"categoryId\": 1}}' 'http://{address}/v1/pets'
{example}
{end}
"
    )
}

/// The address at which a client on this machine reaches a service that listens on `address`.
fn local_address(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        });
    }
    address
}
