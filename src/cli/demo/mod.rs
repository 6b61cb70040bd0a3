//! `petstore demo`

mod temporary_postgres;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use jiff::Timestamp;
use tokio::select;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use super::connection::storage;
use super::progress::grouped;
use super::{Failure, print, seed};
use crate::app::{App, AppError};
use crate::config::{DatabaseSettings, DatabaseUrl, DemoSettings, ServeSettings};
use crate::domain::api_key::ApiKey;
use crate::domain::key_record::{Actor, KeyId, NewKey, Scope};
use crate::storage::{
    DatabaseContents, DatabaseContentsError, SCHEMA_LATEST, Storage, database_contents, migrate,
};
use crate::systemd::Listeners;
use temporary_postgres::TemporaryPostgres;

/// How many animals there are to look at, and which.
const ANIMALS: u32 = 1_000;
const SEED: u64 = 1;

/// Where the service listens if nobody says: the first port of these that is free.
const PORTS: std::ops::Range<u16> = 8080..8100;

/// How long PostgreSQL may take to be ready.
const PATIENCE: Duration = Duration::from_mins(1);

/// Shows the service, with 1,000 animals to look at: no settings, and nothing stays.
///
/// Starts a PostgreSQL of its own from the programs that are installed on this machine. It is heard on a private
/// socket only, does not wait for the disk, and is gone when this program ends, however that ends. With
/// `DATABASE_URL`, that database is used instead, and keeps the animals; one that holds anything else is refused.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  petstore demo
  petstore demo --listen 127.0.0.1:3000")]
pub(super) struct Demo {
    #[command(flatten)]
    settings: DemoSettings,
}

impl Demo {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let begun = Instant::now();
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let mut stop = pin!(async move {
            select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        });
        if let Some(url) = &self.settings.database_url {
            return self.show(url, begun, stop).await;
        }
        let mut engine = TemporaryPostgres::start(&self.settings)?;
        let url = engine.url();
        let words = format!("Starting a temporary PostgreSQL (from {}, fsync off).\n", engine.bin.display());
        let shown = async {
            print(&words)?;
            self.show(&url, begun, stop.as_mut()).await
        };
        // Whatever comes of it, the end is the same.
        let outcome = select! {
            outcome = shown => outcome,
            failure = engine.ended() => Err(failure.into()),
        };
        let stopped = engine.stop().await;
        outcome?;
        Ok(stopped?)
    }

    /// Prepares the database, says how to use the service, and serves until `stop`.
    async fn show(
        &self,
        url: &DatabaseUrl,
        begun: Instant,
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(), Failure> {
        let (storage, app, key) = select! {
            () = &mut stop => return Ok(()),
            ready = self.prepare(url, begun) => ready?,
        };
        // Boxed: it is large, and a part of every future that leads here.
        Box::pin(app.run(stop)).await;
        if self.settings.database_url.is_some() {
            storage.revoke_api_key(key, &actor()?).await?;
        }
        Ok(())
    }

    /// The way from a database to a service that listens, and is told of. The key comes last, so that a failure
    /// leaves none behind.
    async fn prepare(&self, url: &DatabaseUrl, begun: Instant) -> Result<(Storage, App, KeyId), Failure> {
        let temporary = self.settings.database_url.is_none();
        let held = if temporary { once_ready(url, begun).await? } else { database_contents(url).await? };
        let with = match held {
            DatabaseContents::Nothing => format!("with {} animals", grouped(ANIMALS.into())),
            DatabaseContents::Demonstration => "with the animals of the last time".to_owned(),
            DatabaseContents::OtherTables(tables) => {
                return Err(refused(&format!("tables that are not petstore's ({})", tables.join(", "))));
            }
            DatabaseContents::Shop => {
                return Err(refused("animals or keys that are not the demonstration's"));
            }
        };
        migrate(url, SCHEMA_LATEST).await?;
        let storage = storage(&DatabaseSettings { database_url: url.clone() })?;
        if held == DatabaseContents::Nothing {
            // In this order: what is marked and empty is filled the next time.
            storage.mark_as_demonstration().await?;
            seed::add(&storage, ANIMALS, SEED).await?;
        }
        let app = self.listen(url).await?;
        let new =
            NewKey { name: "demo".parse()?, scopes: Scope::ALL.to_vec(), expires_at: None, rate_limit: None };
        let key = ApiKey::generate(rand::random);
        let id = storage.insert_api_key(&new, &key, &actor()?).await?;
        let ready = format!("Ready after {:.1} seconds, {with}.\n", begun.elapsed().as_secs_f64());
        print(&(ready + &how_to_use(app.public_address()?, &key, temporary)))?;
        Ok((storage, app, id))
    }

    /// Listens where it was told to, or else on the first port that is free.
    async fn listen(&self, url: &DatabaseUrl) -> Result<App, Failure> {
        let start = async |address| -> Result<Result<App, AppError>, Failure> {
            let settings = ServeSettings::for_demo(url, address)?;
            Ok(App::start(settings, Listeners::default(), Arc::new(Timestamp::now)).await)
        };
        if let Some(address) = self.settings.listen {
            return Ok(start(address).await??);
        }
        for port in PORTS {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            match start(address).await? {
                Err(AppError::Listen { source, .. }) if source.kind() == io::ErrorKind::AddrInUse => {
                    print(&format!("{address} is taken: trying the next port.\n"))?;
                }
                outcome => return Ok(outcome?),
            }
        }
        let (first, last) = (PORTS.start, PORTS.end - 1);
        Err(format!("the ports {first} to {last} are all taken: choose another with --listen").into())
    }
}

fn actor() -> Result<Actor, Failure> {
    Ok("petstore demo".parse()?)
}

/// Looks at a database that is only just starting, as soon as it answers.
async fn once_ready(url: &DatabaseUrl, begun: Instant) -> Result<DatabaseContents, DatabaseContentsError> {
    loop {
        match database_contents(url).await {
            Err(DatabaseContentsError::Connect(_) | DatabaseContentsError::Database(_))
                if begun.elapsed() < PATIENCE =>
            {
                sleep(Duration::from_millis(10)).await;
            }
            outcome => return outcome,
        }
    }
}

fn refused(what: &str) -> Failure {
    format!(
        "the database at DATABASE_URL holds {what}, so no demonstration is put there: unset DATABASE_URL for a \
         temporary database, or name an empty one"
    )
    .into()
}

fn how_to_use(address: SocketAddr, key: &ApiKey, temporary: bool) -> String {
    let (address, key) = (as_seen_from_here(address), key.reveal());
    let end = if temporary {
        "Ctrl-C stops the service and PostgreSQL. Nothing stays."
    } else {
        "Ctrl-C stops the service and ends the key. The animals stay in the database."
    };
    format!(
        "
  Address  http://{address}/v1
  Key      {key}
  Docs     http://{address}/docs

Look at three animals:

  curl -H 'Authorization: Bearer {key}' 'http://{address}/v1/pets?status=available&limit=3'

Add one:

  curl -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' \
-d '{{\"name\": \"Rex\", \"categoryId\": 1}}' 'http://{address}/v1/pets'

{end}
"
    )
}

/// Where a client on this machine finds what listens on `address`.
fn as_seen_from_here(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        });
    }
    address
}
