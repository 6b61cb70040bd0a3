//! Kills a mirror of the Python SDK, the nodes and the database under writers of every kind, and restores a backup once, while
//! two processes read the copy and have their own index, view and full-text table on it. They may see only rows that the table
//! had, each pet's in their order, and all of a build or nothing; in the end, the copy must equal the table.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use crate::Outcome;
use crate::http::{Connection, id_of};
use crate::random::Random;
use crate::topology::{Nodes, PETSTORE, Postgres, output, prepare, psql};
use crate::workload::{Clients, Kind, Load};

/// A private PostgreSQL, two nodes, a mirror, two readers of its file, writers of every kind.
#[derive(Args)]
pub(crate) struct Mirror {
    /// Kills: of the mirror every other time, and else of the one node, of the other, and of the database, in turn.
    #[arg(long, default_value_t = 200)]
    rounds: u32,
    /// Seed of the requests and of the times of the kills.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// No more than the readers, who look at all pets each time, can follow.
const CLIENTS: Clients = Clients {
    mix: &[
        (1, Kind::Create),
        (4, Kind::PlaceBriefly),
        (2, Kind::Complete),
        (2, Kind::Cancel),
        (8, Kind::Rename),
    ],
    stay: true,
    pause: 10..60,
    ..Clients::DEFAULT
};
/// The pets and orders that clients choose from.
const FEW: usize = 300;

/// Every version of every pet, in the order in which the pet had them. Each row is what reader.py knows of a pet.
const RECORD_VERSIONS: &str = "\
    CREATE TABLE versions (place bigint GENERATED ALWAYS AS IDENTITY, pet json NOT NULL);
    CREATE FUNCTION pet_as_json(pet pets) RETURNS json LANGUAGE sql AS $$
      SELECT json_build_array(pet.id, pet.name, pet.category_id, pet.status, pet.reference, coalesce(pet.metadata, '{}'))
    $$;
    CREATE FUNCTION record_version() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      INSERT INTO versions (pet) VALUES (pet_as_json(NEW));
      RETURN NULL;
    END $$;
    CREATE TRIGGER record_version AFTER INSERT OR UPDATE ON pets FOR EACH ROW EXECUTE FUNCTION record_version();
    INSERT INTO versions (pet) SELECT pet_as_json(pets) FROM pets;
    INSERT INTO pets (name, category_id) SELECT 'generation 1 ' || n, 999 FROM generate_series(1, 1000) n";
const NEXT_GENERATION: &str =
    "UPDATE pets SET name = replace(name, 'generation 1', 'generation 2') WHERE category_id = 999";
const VERSIONS: &str = "SELECT json_build_array(place, pet) FROM versions ORDER BY place";
/// The same of each pet as it is.
const PETS: &str =
    "SELECT json_build_array(id, name, category_id, status, reference, coalesce(metadata, '{}')) FROM pets";
const EMPTY: &str = "DROP SCHEMA public CASCADE; CREATE SCHEMA public";

/// What an operator does. The pets that the clients order are left alone, except for their names.
const OPERATOR: [&str; 6] = [
    "UPDATE pets SET name = 'renamed ' || id || ' ' || clock_timestamp() WHERE id % 50 = 7 AND category_id <> 999",
    "DELETE FROM pets WHERE category_id = 77",
    "INSERT INTO pets (name, category_id) SELECT 'many ' || n, 77 FROM generate_series(1, 2300) n",
    "INSERT INTO pets (name, category_id, metadata) SELECT 'few', 77, '{\"price\": \"129.00\"}' FROM generate_series(1, 5)",
    "BEGIN; INSERT INTO pets (name, category_id) VALUES ('slow', 77); SELECT pg_sleep(1); COMMIT",
    "BEGIN; UPDATE pets SET name = 'never' WHERE id % 50 = 9 AND category_id <> 999; SELECT pg_sleep(0.3); ROLLBACK",
];

const PYTHON: &str = "target/tools/clients/python/bin/python";
/// Where everything is that this suite writes.
const DIRECTORY: &str = "target/suite-mirror";

/// A copy that is as complete as the table must be seen within this time.
const PATIENCE: Duration = Duration::from_mins(3);

impl Mirror {
    pub(crate) async fn run(self) -> Outcome {
        empty_directory()?;
        let postgres = Postgres::temporary();
        let url = postgres.start()?;
        let key = prepare(&url, 300)?;
        let mut nodes = Nodes::start(&url)?;
        let load = Arc::new(Load::new(&url, &nodes.addresses, &key, self.seed, FEW)?.beside_others());
        psql(&url, RECORD_VERSIONS)?;
        let mut random = Random(self.seed);

        let mut tasks = JoinSet::new();
        load.spawn(&mut tasks, 8, &CLIENTS);
        let writers = Arc::new(Writers { database: Mutex::new(url.clone()), ..Writers::default() });
        let stop = StopOnDrop(writers.clone());
        let operator = spawn_blocking({
            let (writers, seed) = (writers.clone(), self.seed);
            move || writers.operate(seed)
        });
        let deleter = tokio::spawn(writers.clone().add_and_delete(nodes.addresses, key.clone()));

        let mut readers = ["one", "two"].map(Process::reader).into_iter().collect::<Outcome<Vec<_>>>()?;
        let address = forward(nodes.addresses).await?;
        let mut mirror = Process::mirror(address, &key)?;
        for _ in 0..5 {
            sleep(Duration::from_millis(200 + random.below(300))).await;
            mirror = mirror.killed_and_restarted(address, &key)?;
        }
        eventually("the copy was built", || Ok(mirror_log()?.contains("built from"))).await?;

        let (started, mut restored) = (Instant::now(), None);
        for kill in 0..self.rounds {
            sleep(Duration::from_millis(300 + random.below(1_200))).await;
            for process in readers.iter_mut().chain([&mut mirror]) {
                process.must_run()?;
            }
            if kill == self.rounds / 4 {
                output("pg_dump", &[&url, "--format=custom", "--file", &file("backup")])?;
                psql(&url, NEXT_GENERATION)?;
            } else if kill == self.rounds / 2 {
                // Until all readers have seen the next generation.
                sleep(Duration::from_secs(5)).await;
                let log = mirror_log()?.len();
                restored = Some(restore(&writers, &mut nodes, &url)?);
                // Builds that are interrupted, too.
                for _ in 0..3 {
                    sleep(Duration::from_millis(200 + random.below(600))).await;
                    mirror = mirror.killed_and_restarted(address, &key)?;
                }
                eventually("the copy was built again", || Ok(mirror_log()?[log..].contains("built from")))
                    .await?;
            } else if kill % 2 == 0 {
                mirror = mirror.killed_and_restarted(address, &key)?;
            } else {
                let _paused = writers.database.lock().unwrap_or_else(PoisonError::into_inner);
                nodes.restart_in_turn(kill / 2, &postgres, &url)?;
            }
        }
        load.stop();
        tasks.join_all().await;
        drop(stop);
        let by_operator = operator.await?;
        let deletions = deleter.await?;

        let restored: u64 = restored.ok_or("too few rounds for a backup")?;
        let equal = equals_table(&url).await?;
        for reader in readers {
            print!("{}", reader.stopped()?);
        }
        mirror.stopped()?;
        fs::write(file("after"), psql(&url, VERSIONS)?)?;
        for name in ["one", "two"] {
            let (log, place) = (file(&format!("{name}.log")), restored.to_string());
            print!("{}", check(&["history", &log, &file("before"), &file("after"), &place])?);
        }
        print!("{equal}");
        let log = mirror_log()?;
        let (builds, expired) = (log.matches("built from").count(), log.matches("has expired").count());
        println!(
            "{} kills and one restored backup in {} s: {} changes by HTTP, {by_operator} by imports and in SQL, {deletions} pets \
             deleted by HTTP; {builds} builds",
            self.rounds,
            started.elapsed().as_secs(),
            load.history().counts.writes,
        );
        // A mirror that is killed while it builds begins again, but says so only at the end.
        if builds == 2 && expired >= 1 { Ok(()) } else { Err(format!("{builds} builds, not 2").into()) }
    }
}

/// A mirror for another suite, which begins to build its copy.
pub(crate) struct NewMirror(Process);

impl NewMirror {
    pub(crate) fn start(address: SocketAddr, key: &str) -> Outcome<Self> {
        empty_directory()?;
        Process::mirror(address, key).map(Self)
    }

    /// Waits until the copy equals the table, to which nobody may write any more, and says so.
    pub(crate) async fn finish(self, url: &str) -> Outcome<String> {
        let equal = equals_table(url).await?;
        self.0.stopped()?;
        Ok(equal)
    }
}

/// Waits until the copy has all pets of the table as they are, and says how many.
async fn equals_table(url: &str) -> Outcome<String> {
    let equal = || check(&["equal", &file("pets.sqlite"), &file("pets")]);
    eventually("the copy equals the table", || {
        fs::write(file("pets"), psql(url, PETS)?)?;
        Ok(equal().is_ok())
    })
    .await
    .map_err(|error| format!("{error}: {:?}", equal()))?;
    equal()
}

fn empty_directory() -> Outcome {
    let _ = fs::remove_dir_all(DIRECTORY);
    Ok(fs::create_dir_all(DIRECTORY)?)
}

/// Restores the backup in place, while nobody writes. Returns the place of its last version.
fn restore(writers: &Writers, nodes: &mut Nodes, url: &str) -> Outcome<u64> {
    let _paused = writers.database.lock().unwrap_or_else(PoisonError::into_inner);
    nodes.stop();
    fs::write(file("before"), psql(url, VERSIONS)?)?;
    psql(url, EMPTY)?;
    output("pg_restore", &["--exit-on-error", "--no-owner", "--dbname", url, &file("backup")])?;
    let last = psql(url, "SELECT max(place) FROM versions")?.trim().parse()?;
    (0..2).try_for_each(|node| nodes.restart(node, url))?;
    Ok(last)
}

/// Those who change pets beside the clients.
#[derive(Default)]
struct Writers {
    /// The URL of the database. Whoever holds it is the only one to write in SQL.
    database: Mutex<String>,
    stopped: AtomicBool,
}

/// Tells the writers to stop, also if the suite fails.
struct StopOnDrop(Arc<Writers>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stopped.store(true, Ordering::Relaxed);
    }
}

impl Writers {
    /// Imports pets and changes them in SQL until told to stop. What fails is not repeated. Returns how often it succeeded.
    fn operate(&self, seed: u64) -> u64 {
        let (mut random, mut changes, import) = (Random(seed), 0, file("import.ndjson"));
        let _ = fs::write(&import, "{\"name\":\"imported\",\"categoryId\":77}\n".repeat(3_200));
        while !self.stopped.load(Ordering::Relaxed) {
            let url = self.database.lock().unwrap_or_else(PoisonError::into_inner);
            changes += u64::from(match OPERATOR.get(random.index(OPERATOR.len() + 1)) {
                Some(statement) => psql(&url, statement).is_ok(),
                None => output(PETSTORE, &["import", "--database-url", &url, &import]).is_ok(),
            });
            drop(url);
            // A mirror on a busy machine must be able to follow.
            std::thread::sleep(Duration::from_secs(1));
        }
        changes
    }

    /// Adds, changes and deletes pets by HTTP until told to stop. Returns how many it has deleted.
    async fn add_and_delete(self: Arc<Self>, nodes: [SocketAddr; 2], key: String) -> u64 {
        let (mut deleted, mut number) = (0, 0);
        while !self.stopped.load(Ordering::Relaxed) {
            let attempt = async {
                number += 1;
                let mut connection = Connection::open(nodes[number % 2], &key).await?;
                for price in 0..20 {
                    let pet =
                        json!({"name": "Rex", "categoryId": 1, "reference": format!("{number}-{price}")});
                    let (_, body) = connection.send("POST", "/v1/pets", &pet.to_string()).await?;
                    let path = format!("/v1/pets/{}", id_of(&body).ok_or("no id")?);
                    let change = json!({"reference": null, "metadata": {"price": format!("{price}.00")}});
                    connection.send("PATCH", &path, &change.to_string()).await?;
                    let (status, _) = connection.send("DELETE", &path, "").await?;
                    deleted += u64::from(status == 204);
                    sleep(Duration::from_millis(20)).await;
                }
                Outcome::Ok(())
            };
            if attempt.await.is_err() {
                sleep(Duration::from_millis(100)).await;
            }
        }
        deleted
    }
}

/// Forwards each connection to one of the nodes, in turn, or to the other one if it is away. Returns the address.
async fn forward(nodes: [SocketAddr; 2]) -> Outcome<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        let mut turn = 0;
        while let Ok((mut client, _)) = listener.accept().await {
            turn += 1;
            let nodes = [nodes[turn % 2], nodes[(turn + 1) % 2]];
            tokio::spawn(async move {
                if let Ok(mut node) = TcpStream::connect(&nodes[..]).await {
                    let _ = copy_bidirectional(&mut client, &mut node).await;
                }
            });
        }
    });
    Ok(address)
}

/// A Python program, killed on drop.
struct Process {
    name: String,
    child: Child,
}

impl Process {
    /// The mirror. Its log is appended to that of its predecessors.
    fn mirror(address: SocketAddr, key: &str) -> Outcome<Self> {
        let mut command = Command::new(PYTHON);
        command.args(["-B", "-m", "petstore_client.mirror", &file("pets.sqlite")]);
        command.env("PYTHONPATH", "clients/python").env("PETSTORE_KEY", key);
        command.env("PETSTORE_URL", format!("http://{address}"));
        Self::start("mirror", command)
    }

    fn reader(name: &str) -> Outcome<Self> {
        let mut command = Command::new(PYTHON);
        command.args([
            "-B",
            "suites/mirror/reader.py",
            &file("pets.sqlite"),
            name,
            &file(&format!("{name}.log")),
        ]);
        Self::start(name, command)
    }

    fn start(name: &str, mut command: Command) -> Outcome<Self> {
        let output = File::options().create(true).append(true).open(output_of(name))?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        Ok(Self { name: name.to_owned(), child: command.spawn()? })
    }

    fn killed_and_restarted(mut self, address: SocketAddr, key: &str) -> Outcome<Self> {
        self.must_run()?;
        self.child.kill()?;
        self.child.wait()?;
        Self::mirror(address, key)
    }

    fn must_run(&mut self) -> Outcome {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(end) => Err(format!("{} ended with {end}: {}", self.name, self.output()?).into()),
        }
    }

    /// Sends SIGTERM, and returns what the program has printed.
    fn stopped(mut self) -> Outcome<String> {
        self.must_run()?;
        output("kill", &[&self.child.id().to_string()])?;
        let end = self.child.wait()?;
        if end.success() {
            self.output()
        } else {
            Err(format!("{} ended with {end}: {}", self.name, self.output()?).into())
        }
    }

    fn output(&self) -> Outcome<String> {
        Ok(fs::read_to_string(output_of(&self.name))?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn output_of(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{name}.out"))
}

fn mirror_log() -> Outcome<String> {
    Ok(fs::read_to_string(output_of("mirror"))?)
}

/// The path of a file of this suite.
fn file(name: &str) -> String {
    format!("{DIRECTORY}/{name}")
}

fn check(arguments: &[&str]) -> Outcome<String> {
    output(PYTHON, &[&["-B", "suites/mirror/check.py"], arguments].concat())
}

async fn eventually(what: &str, mut condition: impl FnMut() -> Outcome<bool>) -> Outcome {
    let started = Instant::now();
    while !condition()? {
        if started.elapsed() > PATIENCE {
            return Err(format!("not within {} s: {what}", PATIENCE.as_secs()).into());
        }
        sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}
