//! Kills two nodes and the database under clients and a reader. Afterwards the feed must have every effect exactly once, in an
//! order that explains the state of every pet and every order.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::reader::Reader;
use crate::Outcome;
use crate::http::{Connection, id_of};
use crate::random::Random;
use crate::tools::{Postgres, Server, free_addresses, prepare};

/// A private PostgreSQL, two nodes, many clients, one reader.
#[derive(Args)]
pub(crate) struct Kills {
    /// Kills: of the one node, of the other, and of the database, in turn.
    #[arg(long, default_value_t = 200)]
    rounds: u32,
    /// The least number of effects.
    #[arg(long, default_value_t = 1_000_000)]
    effects: u64,
    /// The least number of orders that expire.
    #[arg(long, default_value_t = 10_000)]
    expired: u64,
    /// Clients.
    #[arg(long, default_value_t = 64)]
    clients: u64,
    /// Seed of the requests and of the times of the kills.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The pets and orders that clients choose from: few, so that they compete.
#[derive(Default)]
pub(super) struct Shared {
    pets: Mutex<Vec<i64>>,
    orders: Mutex<Vec<i64>>,
    acknowledged: AtomicU64,
    done: AtomicBool,
}

const CHOICES: usize = 300;

impl Shared {
    /// Lets the clients stop.
    pub(super) fn finish(&self) {
        self.done.store(true, Ordering::Relaxed);
    }
}

impl Kills {
    pub(crate) async fn run(self) -> Outcome {
        let postgres = Postgres::temporary();
        let mut url = postgres.start()?;
        let key = prepare(&url, 0)?;
        let addresses: [_; 2] = free_addresses()?.into();
        let mut nodes = [Server::petstore_at(&url, addresses[0])?, Server::petstore_at(&url, addresses[1])?];
        let shared = Arc::new(Shared::default());
        let reader = Reader::start(addresses.to_vec(), &key);
        let mut clients = JoinSet::new();
        for number in 0..self.clients {
            let client = Client {
                address: addresses[usize::from(number % 2 == 0)],
                key: key.clone(),
                random: Random::of_worker(self.seed, number),
                shared: shared.clone(),
            };
            clients.spawn(client.work());
        }
        let (started, mut random, mut kills) = (Instant::now(), Random(self.seed), 0);
        while kills < self.rounds || shared.acknowledged.load(Ordering::Relaxed) < self.effects {
            sleep(Duration::from_millis(500 + random.below(2_000))).await;
            if kills == self.rounds {
                continue;
            }
            kill_in_turn(kills, &postgres, &mut url, &mut nodes, addresses)?;
            kills += 1;
            if kills % 20 == 0 {
                println!(
                    "{kills} kills, {} effects acknowledged, {} events read, {} s",
                    shared.acknowledged.load(Ordering::Relaxed),
                    reader.count(),
                    started.elapsed().as_secs()
                );
            }
        }
        shared.finish();
        clients.join_all().await;
        let (record, history) = reader.finish(&url).await?;
        history.explains(&url)?;
        let (pets, orders) = history.size();
        println!(
            "{kills} kills in {} s, {} clients: {} events read in {} pages with {} failures, each once; they explain \
             the state of {pets} pets and {orders} orders, of which {} ended, {} of them by expiry",
            started.elapsed().as_secs(),
            self.clients,
            record.events.len(),
            record.pages,
            record.failures,
            history.ended,
            history.expired
        );
        if history.expired < self.expired {
            return Err(format!("only {} orders expired", history.expired).into());
        }
        Ok(())
    }
}

/// Kills and restarts the one node, the other or the database, whichever turn it is.
pub(super) fn kill_in_turn(
    turn: u32,
    postgres: &Postgres,
    url: &mut String,
    nodes: &mut [Server; 2],
    addresses: [SocketAddr; 2],
) -> Outcome {
    match turn % 3 {
        2 => {
            postgres.crash()?;
            *url = postgres.start()?;
        }
        node => {
            let node = usize::from(node == 1);
            nodes[node].kill();
            nodes[node] = Server::petstore_at(url, addresses[node])?;
        }
    }
    Ok(())
}

/// Adds, changes, orders and ends at random, without retries: what is unknown to the client must be in the feed all the same.
pub(super) struct Client {
    pub(super) address: SocketAddr,
    pub(super) key: String,
    pub(super) random: Random,
    pub(super) shared: Arc<Shared>,
}

impl Client {
    pub(super) async fn work(mut self) {
        let mut connection = None;
        while !self.shared.done.load(Ordering::Relaxed) {
            let (method, path, body) = self.request();
            let attempt = async {
                let open = match connection.take() {
                    Some(open) => open,
                    None => Connection::open(self.address, &self.key).await?,
                };
                connection.insert(open).send(method, &path, &body).await
            };
            match timeout(Duration::from_secs(10), attempt).await {
                Ok(Ok((status @ (200 | 201), answer))) => {
                    self.shared.acknowledged.fetch_add(1, Ordering::Relaxed);
                    if status == 201 {
                        let known = if path == "/v1/pets" { &self.shared.pets } else { &self.shared.orders };
                        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
                        let id = id_of(&answer).unwrap_or_default();
                        if known.len() < CHOICES {
                            known.push(id);
                        } else {
                            known[self.random.index(CHOICES)] = id;
                        }
                    }
                }
                Ok(Ok((409, _))) => {}
                Ok(Ok(_)) => sleep(Duration::from_millis(20)).await,
                Ok(Err(_)) | Err(_) => {
                    connection = None;
                    sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }

    fn request(&mut self) -> (&'static str, String, String) {
        let (pet, order) = (self.choice(&self.shared.pets), self.choice(&self.shared.orders));
        let name = self.random.unique();
        match (self.random.below(20), pet, order) {
            (10..14, Some(pet), _) => {
                let hold = if self.random.chance(70) { r#","holdSeconds":1"# } else { "" };
                ("POST", "/v1/store/orders".into(), format!(r#"{{"petId":{pet}{hold}}}"#))
            }
            (14..16, _, Some(order)) => ("POST", format!("/v1/store/orders/{order}/complete"), String::new()),
            (16..18, _, Some(order)) => ("POST", format!("/v1/store/orders/{order}/cancel"), String::new()),
            (18.., Some(pet), _) => ("PATCH", format!("/v1/pets/{pet}"), format!(r#"{{"name":"{name}"}}"#)),
            _ => {
                let body = format!(r#"{{"name":"{name}","categoryId":1,"status":"available"}}"#);
                ("POST", "/v1/pets".into(), body)
            }
        }
    }

    fn choice(&self, known: &Mutex<Vec<i64>>) -> Option<i64> {
        let known = known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut random = Random(self.random.0);
        (!known.is_empty()).then(|| known[random.index(known.len())])
    }
}
