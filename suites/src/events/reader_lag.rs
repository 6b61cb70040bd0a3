//! How far a reader of the feed is behind: from the beginning of a change to the arrival of its event.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{interval, sleep};

use crate::Outcome;
use crate::history::feed::{Event, Reader};
use crate::http::Connection;
use crate::measure::Samples;
use crate::topology::{PETSTORE, Server, database_url, prepare};

/// One node, one reader.
#[derive(Args)]
pub(crate) struct ReaderLag {
    /// Changes per second, by 64 clients.
    #[arg(long, default_value_t = 1_000)]
    rate: u32,
    /// Seconds under load.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Rows of the imports.
    #[arg(long, default_value_t = 1_000_000)]
    rows: u64,
    /// The highest 99th percentile under load, in milliseconds.
    #[arg(long, default_value_t = 100.0)]
    bar: f64,
}

const FILE: &str = "target/suite-events.csv";

impl ReaderLag {
    pub(crate) async fn run(self) -> Outcome {
        let url = database_url()?;
        let key = prepare(&url, 100_000)?;
        let service = Server::petstore(&url)?;
        let idle = self.measure(&service, &key, 20, Box::pin(sleep(Duration::from_secs(5)))).await?;
        println!("20 changes per second: {}", describe(&idle));
        let load = Box::pin(sleep(Duration::from_secs(self.seconds)));
        let loaded = self.measure(&service, &key, self.rate, load).await?;
        println!("{} changes per second: {}; the bar is {} ms", self.rate, describe(&loaded), self.bar);
        let mut file = BufWriter::new(File::create(FILE)?);
        writeln!(file, "key,name,categoryId,status")?;
        for row in 0..self.rows {
            writeln!(file, "{row:09},Pet {row},{},available", row % 100)?;
        }
        file.flush()?;
        for flags in [&["--key-column", "key"][..], &["--key-column", "key", "--source", "again", "--atomic"]]
        {
            let started = Instant::now();
            let mut import = Command::new(PETSTORE);
            import.args(["import", FILE, "--database-url", &url]).args(flags);
            let importing = spawn_blocking(move || import.output());
            let ended = Box::pin(async {
                match importing.await {
                    Ok(Ok(output)) if output.status.success() => {}
                    failed => println!("the import failed: {failed:?}"),
                }
            });
            let lag = self.measure(&service, &key, 20, ended).await?;
            let (rows, flags) = (self.rows, flags.join(" "));
            let seconds = started.elapsed().as_secs_f64();
            println!(
                "20 changes per second during an import with {flags} of {rows} rows in {seconds:.1} s: {}",
                describe(&lag)
            );
        }
        let _ = fs::remove_file(FILE);
        if loaded.at(0.99) > self.bar { Err("the feed is too far behind".into()) } else { Ok(()) }
    }

    /// Adds pets at this rate until the future ends, and returns how long each event took to arrive, in milliseconds.
    async fn measure(
        &self,
        service: &Server,
        key: &str,
        rate: u32,
        until: impl Future<Output = ()> + Unpin,
    ) -> Outcome<Samples> {
        let (stop, stopped) = watch::channel(false);
        let began = SystemTime::now();
        let reader = Reader::start(&[service.address], key, 100, Some("now".to_owned()));
        let clients = rate.min(64);
        let mut adding = JoinSet::new();
        for number in 0..clients {
            let mut connection = Connection::open(service.address, key).await?;
            let stopped = stopped.clone();
            adding.spawn(async move {
                let mut ticks = interval(Duration::from_secs(1) * clients / rate);
                while !*stopped.borrow() {
                    ticks.tick().await;
                    let body = format!(r#"{{"name":"Rex","categoryId":{number}}}"#);
                    if !matches!(connection.send("POST", "/v1/pets", &body).await, Ok((201, _))) {
                        return false;
                    }
                }
                true
            });
        }
        until.await;
        sleep(Duration::from_secs(1)).await;
        stop.send_replace(true);
        if !adding.join_all().await.into_iter().all(|succeeded| succeeded) {
            return Err("a pet was not added".into());
        }
        let mut lag = Samples::default();
        for (event, arrived) in reader.stop().await?.events {
            if let Some(at) = time(&event)
                // Not what happened before, which the reader reads first.
                && at > began + Duration::from_secs(2)
                && event.kind == "pet.created"
            {
                lag.push(arrived.duration_since(at).unwrap_or_default().as_secs_f64() * 1_000.0);
            }
        }
        Ok(lag)
    }
}

fn describe(lag: &Samples) -> String {
    format!("p50 {:.0} ms, p99 {:.0} ms, at most {:.0} ms", lag.median(), lag.at(0.99), lag.at(1.0))
}

fn time(event: &Event) -> Option<SystemTime> {
    event.at.parse::<jiff::Timestamp>().ok().map(Into::into)
}
