//! The service inside the test process, with its own database and ports.

use std::net::SocketAddr;
use std::sync::Arc;

use clap::Parser;
use jiff::Timestamp;
use petstore::app::App;
use petstore::systemd::Listeners;
use petstore_config::ServeSettings;
use petstore_http::{Clock, public_pipeline};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::client::Client;
use super::postgres::{TestDatabase, key};
use super::program::new_key;

/// A running service, stopped when this value is dropped.
pub(crate) struct TestService {
    pub(crate) database: Arc<TestDatabase>,
    pub(crate) client: Client,
    pub(crate) address: SocketAddr,
    pub(crate) admin_address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<()>,
}

/// Parses the settings of `petstore serve`.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    settings: ServeSettings,
}

impl TestService {
    /// Starts with default settings.
    pub(crate) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts with these flags of `petstore serve`.
    pub(crate) async fn start_with(flags: &[&str]) -> Self {
        Self::start_at(flags, Arc::new(Timestamp::now)).await
    }

    /// Starts with these flags and this clock.
    pub(crate) async fn start_at(flags: &[&str], clock: Clock) -> Self {
        Self::start_on(Arc::new(TestDatabase::new().await), flags, clock).await
    }

    /// Starts another node on the same database.
    pub(crate) async fn start_another(&self) -> Self {
        self.start_another_with(&[]).await
    }

    /// The same with these flags.
    pub(crate) async fn start_another_with(&self, flags: &[&str]) -> Self {
        Self::start_on(self.database.clone(), flags, Arc::new(Timestamp::now)).await
    }

    async fn start_on(database: Arc<TestDatabase>, flags: &[&str], clock: Clock) -> Self {
        let url = database.url();
        let required = [
            "petstore",
            "--listen=127.0.0.1:0",
            "--admin-listen=127.0.0.1:0",
            "--drain-delay=0s",
            "--database-url",
            &url,
        ];
        let Arguments { settings } = Arguments::parse_from(required.iter().chain(flags));
        let app = App::start(settings, Listeners::default(), clock).await.unwrap();
        let (address, admin_address) = (app.public_address().unwrap(), app.admin_address().unwrap());
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(app.run(public_pipeline, async move { drop(stopped.await) }));
        let client = Client::new(address, Some(&key()));
        Self { database, client, address, admin_address, stop: Some(stop), running }
    }

    /// A client with a new key, created with these flags of `petstore keys create`.
    pub(crate) fn client_with_new_key(&self, flags: &[&str]) -> Client {
        Client::new(self.address, Some(&new_key(&self.database.url(), flags)))
    }

    /// Stops the service and waits until it has stopped.
    pub(crate) async fn stop(mut self) {
        drop(self.stop.take());
        (&mut self.running).await.unwrap();
    }
}

impl Drop for TestService {
    fn drop(&mut self) {
        self.running.abort();
    }
}
