//! Runs a history with the program, and compares the keys that work with the model.

use std::collections::HashMap;
use std::fmt::Write;
use std::process::Output;
use std::sync::atomic::{AtomicU32, Ordering};

use jiff::{SignedDuration, Timestamp};
use petstore_domain::api_key::ApiKey;
use reqwest::Method;
use serde_json::{Value, json};
use tokio_postgres::Client as Session;

use super::super::lineages::rotate_in_1_2_0;
use super::model::{Action, Entry, Hour, Key, Model, Origin, Step};
use crate::support::folder::Folder;
use crate::support::program::run;
use crate::support::{Client, TestService};

/// The default rate limit. It refills so slowly that the requests of a check can be counted.
const LIMIT: u32 = 60;

/// A database, and a service on it, from which other nodes are started.
pub(super) struct World {
    service: TestService,
    url: String,
    session: Session,
    folder: Folder,
}

impl World {
    pub(super) async fn start() -> Self {
        let service = TestService::start().await;
        let session = service.database.connect().await;
        Self { url: service.database.url(), session, folder: Folder::new(), service }
    }
}

/// A history in progress.
pub(super) struct Run<'a> {
    world: &'a World,
    /// Idempotency keys start with it, because histories share a database.
    name: String,
    pub(super) model: Model,
    secrets: HashMap<Origin, ApiKey>,
    /// The pet that the keys of a lineage have added.
    pets: HashMap<usize, i64>,
    started: Timestamp,
    script: String,
}

impl<'a> Run<'a> {
    pub(super) async fn start(world: &'a World) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let empty = "TRUNCATE api_keys, api_key_events RESTART IDENTITY";
        world.session.batch_execute(empty).await.unwrap();
        let started = world.session.query_one("SELECT extract(epoch FROM now())::bigint", &[]).await;
        Self {
            world,
            name: format!("h{}", COUNT.fetch_add(1, Ordering::Relaxed)),
            model: Model::default(),
            secrets: HashMap::new(),
            pets: HashMap::new(),
            started: Timestamp::from_second(started.unwrap().get(0)).unwrap(),
            script: String::new(),
        }
    }

    /// The commands so far, with the ids that keys have if the tables are empty at first.
    pub(super) fn script(&self) -> String {
        self.script.clone()
    }

    /// Takes a step. One that names a key that an earlier step should have issued, and did not, is left out.
    pub(super) async fn take(&mut self, step: &Step) -> Result<(), String> {
        if let Action::Rotate { key, .. } | Action::RotateIn120 { key, .. } | Action::Revoke(key) =
            &step.action
            && !self.secrets.contains_key(key)
        {
            return Ok(());
        }
        let expected = self.model.take(step).is_ok();
        let succeeded = self.perform(step).await?;
        if succeeded != expected {
            return Err(format!("the last command must {}", if expected { "succeed" } else { "be refused" }));
        }
        if let (Action::Apply { .. }, true) = (&step.action, succeeded) {
            let again = self.apply(step)?;
            if again["steps"] != json!([]) {
                return Err(format!(
                    "a second run of the last command changes something: {}",
                    again["steps"]
                ));
            }
        }
        self.check().await
    }

    /// Runs the command, and returns whether it succeeded.
    async fn perform(&mut self, step: &Step) -> Result<bool, String> {
        match &step.action {
            Action::Create { name, expires } => {
                let expires = flag("--expires", *expires);
                Ok(self.issue((step.number, name), &format!("create --name {name}{expires}")))
            }
            Action::Rotate { key, overlap, expires } => {
                let (id, expires) = (self.id(*key).await, flag("--expires", *expires));
                let command = format!("rotate {id} --overlap {overlap}h{expires}");
                Ok(self.issue((step.number, key.1), &command))
            }
            Action::RotateIn120 { key, overlap } => {
                let id = self.id(*key).await;
                let _ = writeln!(self.script, "petstore-1.2.0 keys rotate {id} --overlap {overlap}h");
                let successor = ApiKey::generate(rand::random);
                let hours = i32::try_from(*overlap).unwrap();
                let rotated = rotate_in_1_2_0(&self.world.session, id, &successor, hours).await;
                self.secrets.extend(rotated.map(|_| ((step.number, key.1), successor)));
                Ok(rotated.is_some())
            }
            Action::Revoke(key) => {
                let command = format!("revoke {}", self.id(*key).await);
                Ok(self.keys(&command).status.success())
            }
            Action::Apply { entries, .. } => {
                let Ok(applied) = self.apply(step) else { return Ok(false) };
                for entry in entries {
                    let issued = |of: &&Value| {
                        of["name"] == entry.name && of["action"] != "revoke" && of["action"] != "change"
                    };
                    let Some(of) = applied["steps"].as_array().unwrap().iter().find(issued) else { continue };
                    let secret = match entry.digest {
                        Some(digest) => elsewhere(digest),
                        None => of["key"].as_str().ok_or("no key was printed")?.parse().unwrap(),
                    };
                    self.secrets.insert((step.number, entry.name), secret);
                }
                Ok(true)
            }
            Action::Wait(hours) => {
                let passed = |column| format!("{column} = {column} - interval '{hours} hours'");
                let passed = ["created_at", "expires_at", "revoked_at"].map(passed).join(", ");
                let passed = format!("UPDATE api_keys SET {passed}");
                self.world.session.batch_execute(&passed).await.unwrap();
                let _ = writeln!(self.script, "psql \"$DATABASE_URL\" -c \"{passed}\"");
                Ok(true)
            }
        }
    }

    /// Runs `petstore keys`.
    fn keys(&mut self, command: &str) -> Output {
        let _ = writeln!(self.script, "petstore keys {command}");
        let arguments: Vec<&str> = ["keys"].into_iter().chain(command.split(' ')).collect();
        run(&arguments, &[("DATABASE_URL", &self.world.url)])
    }

    /// Runs a command that prints a key. Returns whether it did.
    fn issue(&mut self, origin: Origin, command: &str) -> bool {
        let output = self.keys(command);
        let printed = String::from_utf8(output.stdout).unwrap();
        self.secrets.extend(printed.trim().parse().ok().map(|key| (origin, key)));
        output.status.success()
    }

    /// Applies the file of a step, and returns the plan.
    fn apply(&mut self, step: &Step) -> Result<Value, String> {
        let Action::Apply { entries, prune, overlap } = &step.action else { return Err("no file".into()) };
        let file: String = entries.iter().map(|entry| self.entry(entry)).collect();
        let _ = writeln!(self.script, "cat >keys.toml <<'EOF'\n{file}EOF");
        let prune = if *prune { " --prune" } else { "" };
        let path = self.world.folder.write("keys.toml", file);
        let output = self.keys(&format!("apply {path} --overlap {overlap}h{prune} --json"));
        self.script = self.script.replace(&path, "keys.toml");
        let errors = || String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            Ok(serde_json::from_slice(&output.stdout).unwrap())
        } else {
            Err(errors())
        }
    }

    fn entry(&self, entry: &Entry) -> String {
        let Entry { name, digest, is_narrow, expires } = entry;
        let more = if *is_narrow { "" } else { ", \"orders:read\"" };
        let mut text = format!("[keys.{name}]\nscopes = [\"pets:read\", \"pets:write\"{more}]\n");
        if let Some(digest) = digest {
            let _ = writeln!(text, "digest = \"{}\"", elsewhere(*digest).digest());
        }
        if let Some(end) = expires {
            // The stored times were set back by the hours that have passed.
            let end = self.started + SignedDuration::from_hours(end - self.model.now);
            let _ = writeln!(text, "expires = {end}");
        }
        text
    }

    async fn id(&self, key: Origin) -> i64 {
        let digest = self.secrets[&key].digest();
        let find = "SELECT id FROM api_keys WHERE digest = $1";
        self.world.session.query_one(find, &[&digest.as_bytes()]).await.unwrap().get(0)
    }

    /// Uses every key on a node that has not seen any of them.
    async fn check(&mut self) -> Result<(), String> {
        let limit = format!("--default-rate-limit={LIMIT}/h");
        let node = self.world.service.start_another_with(&[&limit]).await;
        let client = node.client.without_key();
        let mut counts = HashMap::new();
        let mut checked = Ok(());
        for key in self.model.keys.clone() {
            let Some(secret) = self.secrets.get(&key.origin) else {
                checked = Err("a key was not issued".into());
                break;
            };
            let authorization = format!("Bearer {}", secret.reveal());
            let count: &mut u32 = counts.entry(key.lineage).or_default();
            if let Err(problem) = self.check_key(&client, &authorization, &key, count).await {
                let id = self.id(key.origin).await;
                checked = Err(format!("after the last command, key {id}: {problem}"));
                break;
            }
        }
        node.stop().await;
        checked
    }

    /// Compares the stored expiry with the model's, to the hour: a wrong one would be noticed only hours later.
    async fn check_expiry(&self, key: &Key) -> Result<(), String> {
        let find = "SELECT round((extract(epoch FROM expires_at)::float8 - $2::bigint) / 3600)::bigint FROM api_keys WHERE id = $1";
        let (id, started) = (self.id(key.origin).await, self.started.as_second());
        let stored: Option<Hour> = self.world.session.query_one(find, &[&id, &started]).await.unwrap().get(0);
        // The stored times were set back by the hours that have passed.
        let expected = key.expires.map(|end| end - self.model.now);
        if stored == expected { Ok(()) } else { Err(format!("expires in hour {stored:?}, not {expected:?}")) }
    }

    async fn check_key(
        &mut self,
        client: &Client,
        authorization: &str,
        key: &Key,
        count: &mut u32,
    ) -> Result<(), String> {
        let is_live = self.model.is_live(key);
        if is_live {
            self.check_expiry(key).await?;
        }
        let (orders, pet) = (if key.is_narrow { 403 } else { 200 }, json!({"name": "Rex", "categoryId": 1}));
        let expected = if is_live { [200, orders, 201] } else { [401; 3] };
        let get = async |path| client.get_with_header(path, "authorization", authorization).await;
        let answers = [
            get("/v1/pets?limit=1").await,
            get("/v1/store/orders?limit=1").await,
            client
                .send(Method::POST, "/v1/pets", |request| {
                    let request = request.header("authorization", authorization);
                    let request = request.header("idempotency-key", &self.name);
                    request.header("content-type", "application/json").body(pet.to_string())
                })
                .await,
        ];
        let statuses = answers.each_ref().map(|answer| answer.status);
        if statuses != expected {
            return Err(format!(
                "expected {expected:?} from listPets, listOrders and createPet, got {statuses:?}"
            ));
        }
        if !is_live {
            return Ok(());
        }
        for answer in &answers {
            *count += 1;
            let expected = format!("\"key\";r={};", LIMIT - *count);
            let limit = answer.header("ratelimit");
            if !limit.starts_with(&expected) {
                return Err(format!("its lineage has sent {count} requests, but {limit}"));
            }
        }
        let pet = answers[2].json()["id"].as_i64().unwrap();
        if *self.pets.entry(key.lineage).or_insert(pet) != pet {
            return Err("a retry with it adds a second pet".into());
        }
        if self.pets.iter().any(|(lineage, other)| *lineage != key.lineage && *other == pet) {
            return Err("it shares idempotency keys with another lineage".into());
        }
        Ok(())
    }
}

/// A key that is kept elsewhere.
fn elsewhere(number: u8) -> ApiKey {
    ApiKey::generate(|| number)
}

fn flag(name: &str, hours: Option<Hour>) -> String {
    hours.map(|hours| format!(" {name} {hours}h")).unwrap_or_default()
}
