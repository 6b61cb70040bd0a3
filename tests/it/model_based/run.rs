//! Runs a history on two nodes of the service, and checks each answer against the model.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use petstore_config::{DatabaseUrl, PoolSettings, ReadFrom};
use petstore_domain::api_key::ApiKey;
use petstore_storage::Storage;
use reqwest::Method;
use serde_json::{Value, json};
use tokio_postgres::Client as Session;

use super::model::{Expected, Members, Model, Shown, Snapshot, Tag};
use super::operation::{Action, CLIENTS, NEVER_CREATED, Number, Operation, Request, Sql, Step};
use crate::support::events::{EVENTS, from_now};
use crate::support::program::{new_key, run};
use crate::support::wait::poll;
use crate::support::{Answer, Client, TestService};

/// The largest id that is ever issued.
const NO_ID: i64 = 9_007_199_254_740_991;

/// Two nodes on one database, and their clients.
pub(super) struct World {
    /// The clients of each node.
    clients: [Vec<Client>; 2],
    pub(super) session: Session,
    storage: Storage,
    nodes: [TestService; 2],
}

impl World {
    pub(super) async fn start() -> Self {
        // Patient with a machine that stalls.
        let flags = ["--order-hold=168h", "--database-timeout=60s"];
        let first = TestService::start_with(&flags).await;
        let second = first.start_another_with(&flags).await;
        let url = first.database.url();
        let session = first.database.connect().await;
        let mut keys: Vec<ApiKey> = Vec::new();
        for (index, client) in CLIENTS.iter().enumerate() {
            keys.push(if index > 0 && CLIENTS[index - 1].lineage == client.lineage {
                let id = "SELECT max(id)::text FROM api_keys";
                let id: String = session.query_one(id, &[]).await.unwrap().get(0);
                let rotate = ["keys", "rotate", &id, "--overlap", "24h"];
                let printed = run(&rotate, &[("DATABASE_URL", &url)]).stdout;
                String::from_utf8(printed).unwrap().trim().parse().unwrap()
            } else {
                new_key(&url, &client.scopes.iter().flat_map(|scope| ["--scope", scope]).collect::<Vec<_>>())
            });
        }
        let clients = |node: &TestService| {
            keys.iter().map(|key| Client::new(node.address, Some(key))).collect::<Vec<_>>()
        };
        let settings = PoolSettings {
            database_connections: 2,
            database_timeout: Duration::from_mins(1),
            reads: ReadFrom::Primary,
        };
        Self {
            clients: [clients(&first), clients(&second)],
            session,
            storage: Storage::new(&DatabaseUrl::from(url), &settings).unwrap(),
            nodes: [first, second],
        }
    }

    /// A client that may do everything.
    fn client(&self) -> &Client {
        &self.clients[0][0]
    }

    pub(super) async fn stop(self) {
        for node in self.nodes {
            node.stop().await;
        }
    }
}

/// A history in progress. References and idempotency keys start with its name, because histories share a database.
pub(super) struct Run<'a> {
    world: &'a World,
    name: String,
    pub(super) model: Model,
    requests: HashMap<Number, Request>,
    ids: HashMap<Number, i64>,
    tags: HashMap<Tag, String>,
    /// The JSON of each version of a pet or an order.
    texts: HashMap<(Number, u64), String>,
    expiries: HashMap<Number, Value>,
    feed: String,
}

impl<'a> Run<'a> {
    pub(super) async fn start(world: &'a World) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        Self {
            world,
            name: format!("h{}-", COUNT.fetch_add(1, Ordering::Relaxed)),
            model: Model::default(),
            requests: HashMap::new(),
            ids: HashMap::from([(NEVER_CREATED, NO_ID)]),
            tags: HashMap::new(),
            texts: HashMap::new(),
            expiries: HashMap::new(),
            feed: from_now(world.client()).await,
        }
    }

    /// Takes a step. One that names what an earlier step should have created, and did not, is left out.
    pub(super) async fn take(&mut self, step: &Step) -> Result<(), String> {
        match &step.action {
            Action::Send(request) => {
                self.requests.insert(step.number, request.clone());
                self.send(step, request).await
            }
            Action::Repeat(earlier) => match self.requests.get(earlier).cloned() {
                Some(request) => self.send(step, &request).await,
                None => Ok(()),
            },
            Action::Sql(sql) => self.run_sql(sql).await,
        }
    }

    fn id(&self, number: Number) -> i64 {
        self.ids.get(&number).copied().unwrap_or(NO_ID)
    }

    async fn send(&mut self, step: &Step, request: &Request) -> Result<(), String> {
        let known = |number: &Number| self.ids.contains_key(number);
        if !request.operation.names().iter().all(known)
            || request.tag.is_some_and(|tag| !self.model.tags.contains_key(&tag))
        {
            return Ok(());
        }
        let sent_tag = request.tag.map(|step| self.tags[&self.model.tags[&step]].clone());
        let expected = self.model.apply(step.number, request);
        let answer = self.answer(step.node, request, sent_tag.as_deref()).await;
        let checked = self.check(step.number, &expected, &answer, sent_tag.as_deref());
        checked.map_err(|problem| {
            let (_, method, path, _) = request.operation.http(&|number| self.id(number).to_string());
            let Answer { status, headers, body } = answer;
            format!("{problem}\nrequest: {method} {path}\nanswer: {status} {body}\nheaders: {headers:?}")
        })
    }

    /// Sends a request again for as long as the service says that it is unavailable, and so has changed nothing.
    async fn answer(&self, node: usize, request: &Request, tag: Option<&str>) -> Answer {
        let client = &self.world.clients[node][request.client];
        let (_, method, path, body) = request.operation.http(&|number| self.id(number).to_string());
        let tag_header = if method == Method::GET { "if-none-match" } else { "if-match" };
        let send = async || {
            client
                .send(method.clone(), &path, |mut builder| {
                    if let Some(body) = &body {
                        let body = body.replace("\"R", &format!("\"{}R", self.name));
                        builder = builder.header("content-type", "application/json").body(body);
                    }
                    if let Some(key) = request.key {
                        builder = builder.header("idempotency-key", format!("{}key-{key}", self.name));
                    }
                    tag.into_iter().fold(builder, |builder, tag| builder.header(tag_header, tag))
                })
                .await
        };
        poll("the service is available", send, |answer| answer.status != 503).await
    }

    fn check(
        &mut self,
        step: Number,
        expected: &Expected,
        answer: &Answer,
        sent_tag: Option<&str>,
    ) -> Result<(), String> {
        let code = if answer.status < 400 { String::new() } else { answer.error().1 };
        let outcome = (answer.status, code.as_str(), answer.is_replayed());
        let wanted = (expected.status, expected.code, expected.is_replayed);
        if outcome != wanted {
            return Err(format!("expected {wanted:?} (status, code, replayed), got {outcome:?}"));
        }
        if expected.status == 304 {
            return same("the tag", answer.header("etag"), sent_tag.unwrap_or_default());
        }
        let text = answer.body.replace(&format!("\"{}R", self.name), "\"R");
        match &expected.shown {
            Shown::Nothing if expected.status == 204 => same("the body", &*text, "")?,
            Shown::Nothing => {}
            Shown::One(snapshot) => {
                let shown: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
                if expected.status == 201 && snapshot.number == step {
                    let id = shown["id"].as_i64().ok_or("no id")?;
                    self.ids.insert(step, id);
                }
                self.check_snapshot(snapshot, &shown)?;
            }
            Shown::List(list) => {
                let shown: Vec<Value> = serde_json::from_str(&text).map_err(|error| error.to_string())?;
                same("the length of the list", &shown.len(), &list.len())?;
                list.iter()
                    .zip(&shown)
                    .try_for_each(|(snapshot, shown)| self.check_snapshot(snapshot, shown))?;
            }
        }
        match &expected.tag {
            Some(tag) => self.check_tag(tag, answer.header("etag")),
            None => Ok(()),
        }
    }

    /// Equal versions have equal tags, and different versions different ones.
    fn check_tag(&mut self, tag: &Tag, text: &str) -> Result<(), String> {
        if let Some(known) = self.tags.get(tag) {
            return same(&format!("the tag of {tag:?}"), text, known);
        }
        if let Some((other, _)) = self.tags.iter().find(|(_, known)| *known == text) {
            return Err(format!("the tag {text} stood for {other:?}, and stands for {tag:?} now"));
        }
        self.tags.insert(tag.clone(), text.to_owned());
        Ok(())
    }

    fn check_snapshot(&mut self, snapshot: &Snapshot, shown: &Value) -> Result<(), String> {
        let Snapshot { number, version, members, hold } = snapshot;
        let mut wanted = members.clone();
        wanted.insert("id".into(), self.id(*number).into());
        if let Some(pet) = members.get("petId").and_then(Value::as_u64) {
            wanted.insert("petId".into(), self.id(usize::try_from(pet).unwrap()).into());
            self.check_times(*number, *hold, shown)?;
        }
        let mut found: Members = shown.as_object().cloned().unwrap_or_default();
        for time in ["createdAt", "updatedAt", "expiresAt"] {
            found.remove(time);
        }
        same("the members", &found, &wanted)?;
        let text = shown.to_string();
        let first = self.texts.entry((*number, *version)).or_insert_with(|| text.clone());
        same("the same version", &text, first)
    }

    /// A hold that has just begun lasts as long as it should; otherwise the order still expires when it did.
    fn check_times(&mut self, order: Number, hold: Option<i64>, shown: &Value) -> Result<(), String> {
        let time = |member: &str| shown[member].as_str().unwrap_or_default().parse::<Timestamp>();
        let (updated, expires) = (time("updatedAt"), time("expiresAt"));
        let (Ok(updated), Ok(expires)) = (updated, expires) else { return Err("a time is missing".into()) };
        let known = self.expiries.insert(order, shown["expiresAt"].clone());
        match (hold, known) {
            (Some(hold), _) => {
                same("the hold", &expires.duration_since(updated).as_millis(), &(i128::from(hold) * 1_000))
            }
            (None, Some(known)) => same("expiresAt", &shown["expiresAt"], &known),
            (None, None) => Ok(()),
        }
    }

    async fn run_sql(&mut self, sql: &Sql) -> Result<(), String> {
        if !sql.names().iter().all(|number| self.ids.contains_key(number)) {
            return Ok(());
        }
        let statement = sql.statement(&|number| self.id(number).to_string());
        self.world.session.batch_execute(&statement).await.unwrap();
        self.model.apply_sql(sql);
        if let Sql::AgeOrder(order) = sql {
            self.expiries.remove(order);
            let is_open = self.model.orders[order].is_open();
            let open = "SELECT status = 'placed' FROM orders WHERE id = $1";
            let id = self.id(*order);
            let found = async || {
                self.world.storage.expire_orders().await.unwrap();
                self.world.session.query_one(open, &[&id]).await.unwrap().get::<_, bool>(0)
            };
            if is_open {
                same("whether the order is open", &found().await, &true)?;
            } else {
                poll("the order has ended", found, |is_open| !is_open).await;
            }
        }
        Ok(())
    }

    /// Checks that the tables and the feed are as the model says.
    pub(super) async fn finish(mut self) -> Result<(), String> {
        let mut step = usize::MAX / 2;
        let pets: Vec<Number> = self.model.pets.keys().copied().collect();
        let find = pets.chunks(50).map(|pets| Operation::FindPets(pets.to_vec(), None));
        let get = self.model.orders.keys().copied().map(Operation::GetOrder);
        for operation in find.chain(get).collect::<Vec<_>>() {
            step += 1;
            let request = Request { client: 0, operation, key: None, tag: None };
            self.send(&Step { number: step, node: step % 2, action: Action::Repeat(0) }, &request).await?;
        }
        self.check_feed().await
    }

    /// The events of each pet and of each order are those of the model, in its order.
    async fn check_feed(&mut self) -> Result<(), String> {
        let client = self.world.client();
        let last =
            client.post("/v1/pets", &json!({"name": "the last", "categoryId": 1})).await.json()["id"].clone();
        let mut found: HashMap<(bool, i64), Vec<String>> = HashMap::new();
        let mut next = self.feed.replace("limit=20", "limit=100");
        loop {
            let page = client.get(&next).await;
            if page.status != 200 {
                return Err(format!("GET {EVENTS}: {} {}", page.status, page.body));
            }
            let events = page.json().as_array().cloned().unwrap_or_default();
            if events.is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            for event in &events {
                let of = event.get("orderId").unwrap_or(&event["petId"]).as_i64().unwrap();
                let key = (event.get("orderId").is_some(), of);
                found.entry(key).or_default().push(event["type"].as_str().unwrap().to_owned());
            }
            if events.iter().any(|event| event["petId"] == last) {
                break;
            }
            next = page.next().unwrap().to_owned();
        }
        let mut wanted: HashMap<(bool, i64), Vec<String>> = HashMap::new();
        for (event, of) in &self.model.events {
            wanted.entry((event.starts_with("order."), self.id(*of))).or_default().push(event.clone());
        }
        for (of, events) in &wanted {
            let what = format!("the events of {} {}", if of.0 { "order" } else { "pet" }, of.1);
            same(&what, found.get(of).unwrap_or(&Vec::new()), events)?;
        }
        Ok(())
    }
}

fn same<T: PartialEq + Debug + ?Sized>(what: &str, found: &T, wanted: &T) -> Result<(), String> {
    if found == wanted { Ok(()) } else { Err(format!("{what}: expected {wanted:?}, got {found:?}")) }
}
