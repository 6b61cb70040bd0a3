//! The thinnest server on the parts of the service: hyper, tokio-postgres and requests merged into batches.
//!
//! It has no keys, checks, log, metrics, deadlines or limits, and a failed statement ends it. It shows what the parts alone
//! cost: the ratio of the service to it is the price of everything else. It understands what `suites/load/requests.lua`
//! sends to the service, and answers with the same body and the headers that all reads have in common, as constants.
//! `DATABASE_URL` names the database, `PORT` the port on 127.0.0.1.

use std::collections::HashMap;
use std::convert::Infallible;
use std::error::Error;
use std::future::Future;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderName, HeaderValue, VARY};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use mimalloc::MiMalloc;
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_postgres::types::{FromSql, IsNull, Kind, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, NoTls, Row, Statement};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

type Failure = Box<dyn Error + Send + Sync>;
type Outcome<T = ()> = Result<T, Failure>;

/// The most requests that share a statement, as in the service.
const BATCH_SIZE: usize = 128;
/// The most requests that wait, as in the service.
const QUEUE_SIZE: usize = 4_096;

#[tokio::main]
async fn main() -> Outcome {
    let url = std::env::var("DATABASE_URL")?;
    let port: u16 = std::env::var("PORT")?.parse()?;
    let mut tasks = JoinSet::new();
    let queues = Queues {
        get: start_worker(&mut tasks, &url).await?,
        list: start_worker(&mut tasks, &url).await?,
        create: start_worker(&mut tasks, &url).await?,
    };
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    tasks.spawn(accept(listener, queues));
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

async fn accept(listener: TcpListener, queues: Queues) -> Outcome {
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let queues = queues.clone();
        let service = service_fn(move |request| respond(queues.clone(), request));
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(socket), service));
    }
}

/// One queue per operation.
#[derive(Clone)]
struct Queues {
    get: Queue<GetPet>,
    list: Queue<ListPets>,
    create: Queue<CreatePet>,
}

/// The bodies of responses; none for a pet that does not exist.
type Bodies = Vec<Option<Bytes>>;

/// Requests, each with the channel for the body of its response.
type Queue<O> = mpsc::Sender<(O, oneshot::Sender<Option<Bytes>>)>;

async fn respond(queues: Queues, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let created = request.method() == Method::POST;
    let body = dispatch(&queues, request).await;
    let mut response = Response::new(Full::default());
    *response.status_mut() = match body {
        None => StatusCode::NOT_FOUND,
        Some(_) if created => StatusCode::CREATED,
        Some(_) => StatusCode::OK,
    };
    let mut headers = HeaderMap::with_capacity(8);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    headers.insert(VARY, HeaderValue::from_static("Authorization"));
    headers.insert(ETAG, HeaderValue::from_static("\"0123456789abcdef\""));
    let request_id = HeaderValue::from_static("0123456789abcdef0123456789abcdef");
    headers.insert(HeaderName::from_static("x-request-id"), request_id);
    *response.headers_mut() = headers;
    *response.body_mut() = Full::new(body.unwrap_or_default());
    Ok(response)
}

/// The body of the response; none for a request that is not one of the three, or for a pet that does not exist.
async fn dispatch(queues: &Queues, request: Request<Incoming>) -> Option<Bytes> {
    if request.method() == Method::POST {
        let body = request.into_body().collect().await.ok()?.to_bytes();
        return call(&queues.create, serde_json::from_slice(&body).ok()?).await;
    }
    if let Some(id) = request.uri().path().strip_prefix("/v1/pets/") {
        return call(&queues.get, GetPet(id.parse().ok()?)).await;
    }
    let query = request.uri().query()?;
    let parameter = |name| query.split('&').find_map(|pair| pair.strip_prefix(name));
    let after = match parameter("cursor=") {
        Some(cursor) => decode_cursor(cursor)?,
        None => 0,
    };
    call(&queues.list, ListPets { status: parameter("status=")?.to_owned(), after }).await
}

/// The id in a cursor of the service: base64url of a version byte and the eight bytes of the id.
fn decode_cursor(cursor: &str) -> Option<i64> {
    let bytes: [u8; 9] = URL_SAFE_NO_PAD.decode(cursor).ok()?.try_into().ok()?;
    let [_, id @ ..] = bytes;
    Some(i64::from_be_bytes(id))
}

async fn call<O>(queue: &Queue<O>, request: O) -> Option<Bytes> {
    let (sender, receiver) = oneshot::channel();
    queue.send((request, sender)).await.ok()?;
    receiver.await.ok()?
}

/// An operation of which one statement handles a batch.
trait Operation: Sized + Send + Sync + 'static {
    const SQL: &'static str;

    /// The body for each request, in their order.
    fn handle(
        requests: &[Self],
        client: &Client,
        statement: &Statement,
    ) -> impl Future<Output = Outcome<Bodies>> + Send;
}

/// Starts a worker with its own connection. It takes everything that is queued, and handles it as one batch.
async fn start_worker<O: Operation>(tasks: &mut JoinSet<Outcome>, url: &str) -> Outcome<Queue<O>> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tasks.spawn(async { Ok(connection.await?) });
    let settings = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off";
    client.batch_execute(settings).await?;
    let statement = client.prepare(O::SQL).await?;
    let (queue, mut queued) = mpsc::channel(QUEUE_SIZE);
    tasks.spawn(async move {
        let mut batch = Vec::with_capacity(BATCH_SIZE);
        while queued.recv_many(&mut batch, BATCH_SIZE).await > 0 {
            let (requests, senders): (Vec<O>, Vec<oneshot::Sender<_>>) = batch.drain(..).unzip();
            let bodies = O::handle(&requests, &client, &statement).await?;
            for (sender, body) in senders.into_iter().zip(bodies) {
                // The receiver is gone if the client has disconnected.
                let _ = sender.send(body);
            }
        }
        Ok(())
    });
    Ok(queue)
}

/// A pet by its id.
struct GetPet(i64);

impl Operation for GetPet {
    const SQL: &'static str = "SELECT id, name, category_id, status FROM pets WHERE id = ANY ($1)";

    async fn handle(requests: &[Self], client: &Client, statement: &Statement) -> Outcome<Bodies> {
        let ids: Vec<i64> = requests.iter().map(|request| request.0).collect();
        let mut found = HashMap::with_capacity(ids.len());
        for row in client.query(statement, &[&ids]).await? {
            let mut json = Vec::with_capacity(128);
            write_row(&mut json, &row)?;
            found.insert(row.try_get::<_, i64>(0)?, Bytes::from(json));
        }
        Ok(ids.iter().map(|id| found.get(id).cloned()).collect())
    }
}

/// The page of 20 pets with this status that starts after an id.
#[derive(PartialEq, Eq, Hash)]
struct ListPets {
    status: String,
    after: i64,
}

impl Operation for ListPets {
    const SQL: &'static str = "\
        SELECT page.*, requested.ordinality
        FROM unnest($1::bigint[], $2::pet_status[]) WITH ORDINALITY AS requested (after_id, status, ordinality)
        CROSS JOIN LATERAL (
          SELECT id, name, category_id, status
          FROM pets
          WHERE (status, id) > (requested.status, requested.after_id) AND status <= requested.status
          ORDER BY status, id
          LIMIT 20) AS page";

    async fn handle(requests: &[Self], client: &Client, statement: &Statement) -> Outcome<Bodies> {
        // Equal requests share a page.
        let (mut afters, mut statuses, mut numbers) = (Vec::new(), Vec::new(), HashMap::new());
        let mut page_numbers = Vec::with_capacity(requests.len());
        for request in requests {
            page_numbers.push(*numbers.entry(request).or_insert_with(|| {
                afters.push(request.after);
                statuses.push(Label(&request.status));
                afters.len() - 1
            }));
        }
        let rows = client.query(statement, &[&afters, &statuses]).await?;
        let mut pages = vec![Vec::new(); afters.len()];
        for row in &rows {
            let page = &mut pages[usize::try_from(row.try_get::<_, i64>(4)?)? - 1];
            page.push(if page.is_empty() { b'[' } else { b',' });
            write_row(page, row)?;
        }
        let close = |mut page: Vec<u8>| {
            page.extend_from_slice(if page.is_empty() { b"[]" } else { b"]" });
            Bytes::from(page)
        };
        let pages: Vec<Bytes> = pages.into_iter().map(close).collect();
        Ok(page_numbers.into_iter().map(|number| Some(pages[number].clone())).collect())
    }
}

/// A new pet.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CreatePet {
    name: String,
    category_id: i64,
    status: String,
}

impl Operation for CreatePet {
    const SQL: &'static str = "\
        INSERT INTO pets (name, category_id, status)
        SELECT name, category_id, status
        FROM unnest($1::text[], $2::bigint[], $3::pet_status[])
          WITH ORDINALITY AS new (name, category_id, status, ordinality)
        ORDER BY ordinality
        RETURNING id";

    async fn handle(requests: &[Self], client: &Client, statement: &Statement) -> Outcome<Bodies> {
        let names: Vec<&str> = requests.iter().map(|pet| pet.name.as_str()).collect();
        let categories: Vec<i64> = requests.iter().map(|pet| pet.category_id).collect();
        let statuses: Vec<Label<'_>> = requests.iter().map(|pet| Label(&pet.status)).collect();
        let rows = client.query(statement, &[&names, &categories, &statuses]).await?;
        let body = |(row, pet): (&Row, &Self)| {
            let mut json = Vec::with_capacity(128);
            write_pet(&mut json, row.try_get(0)?, &pet.name, pet.category_id, Some(&pet.status))?;
            Ok(Some(Bytes::from(json)))
        };
        rows.iter().zip(requests).map(body).collect()
    }
}

fn write_row(json: &mut Vec<u8>, row: &Row) -> Outcome {
    let status: Option<Label<'_>> = row.try_get(3)?;
    write_pet(json, row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, status.map(|label| label.0))
}

fn write_pet(json: &mut Vec<u8>, id: i64, name: &str, category: i64, status: Option<&str>) -> Outcome {
    let mut digits = itoa::Buffer::new();
    json.extend_from_slice(b"{\"id\":");
    json.extend_from_slice(digits.format(id).as_bytes());
    json.extend_from_slice(b",\"name\":");
    serde_json::to_writer(&mut *json, name)?;
    json.extend_from_slice(b",\"categoryId\":");
    json.extend_from_slice(digits.format(category).as_bytes());
    if let Some(status) = status {
        json.extend_from_slice(b",\"status\":\"");
        json.extend_from_slice(status.as_bytes());
        json.push(b'"');
    }
    json.push(b'}');
    Ok(())
}

/// A value of an enumerated type.
#[derive(Debug)]
struct Label<'a>(&'a str);

impl<'a> FromSql<'a> for Label<'a> {
    fn from_sql(_: &Type, label: &'a [u8]) -> Outcome<Self> {
        Ok(Self(std::str::from_utf8(label)?))
    }

    fn accepts(sql_type: &Type) -> bool {
        matches!(sql_type.kind(), Kind::Enum(_))
    }
}

impl ToSql for Label<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Outcome<IsNull> {
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(sql_type: &Type) -> bool {
        matches!(sql_type.kind(), Kind::Enum(_))
    }

    to_sql_checked!();
}
