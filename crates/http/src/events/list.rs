//! `GET /events`

use std::time::Duration;

use hyper::header::HeaderName;
use petstore_domain::event::{EventType, EventTypeError, FeedPage, FeedRequest, FeedStart};
use petstore_domain::page::PageLimit;
use petstore_storage::FeedOutcome;
use petstore_wire::event::{Event, decode_position, encode_position};
use petstore_wire::json;
use petstore_wire::request_body::BodyError;
use petstore_wire::schema;
use serde::{Deserialize, Deserializer};
use thiserror::Error;
use tokio::select;
use tokio::time::{Instant, sleep_until};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};

use crate::conditional::{IfNoneMatchParameter, with_tag};
use crate::error::ApiError;
use crate::query::distinct;
use crate::request::ApiRequest;
use crate::response::{Response, Waited, ascii_value};

const FEED_LAG: HeaderName = HeaderName::from_static("petstore-feed-lag");

/// How many pages of 100 events are searched for those of the wanted types.
const MAX_PAGES: usize = 10;

/// Follow the changes
///
/// Returns changes to pets and orders. The events of each pet are in the order of their effects. Every page, even an empty
/// page, has a `Link` header with `rel="next"`. If you follow it, you get every event once. Events are kept for 30 days by
/// default. An event does not contain the new values: fetch the pet or the order.
#[utoipa::path(
    get,
    path = "/v1/events",
    operation_id = "listEvents",
    tag = "events",
    extensions(("x-stability" = json!("beta"))),
    params(ListEventsQuery, IfNoneMatchParameter),
    responses(
        (status = 200, description = "The next events; an empty array if there are none yet.", body = [Event], headers(
            ("Link" = String, description = "Link to the next page, with `rel=\"next\"`. Present on every page."),
            ("ETag" = String, description = "Identifies this version of the page. Send it in `If-None-Match`."),
            ("Petstore-Feed-Lag" = f64, description = "How many seconds the oldest event that is not shown yet has waited for a \
                running transaction. 0 if none waits."),
        )),
        (status = 304, description = "The page has not changed since the response with the `ETag` in `If-None-Match`."),
    ),
)]
pub(crate) async fn list_events(request: ApiRequest<'_>) -> Result<Response, ApiError> {
    request.refuse_body()?;
    let query: ListEventsQuery = request.query()?;
    let (wanted, WaitSeconds(seconds)) = (query.feed_request()?, query.wait.unwrap_or_default());
    let EventTypes(types) = &query.r#type;
    let wait = Duration::from_secs(seconds);
    let (page, spent_waiting) = if wait.is_zero() {
        (read(&request, wanted, types).await?, Waited::default())
    } else {
        read_or_wait(&request, wanted, types, wait).await?
    };
    let next = request.app.links.next_events(wanted.limit, seconds, types, &encode_position(&page.next));
    let events: Vec<Event> = page.events.into_iter().map(Event::from).collect();
    let (body, tag) = with_tag(json::render(&events), [], Some(&next));
    let mut response = request.if_none_match().answer(body, tag, Some(next));
    let lag = format!("{:.3}", page.lag.as_secs_f64());
    response.headers_mut().insert(FEED_LAG, ascii_value(lag.into()));
    response.extensions_mut().insert(spent_waiting);
    Ok(response)
}

/// Reads a page with events of these types, or of all types if there are none. The page may be empty before the end of the feed:
/// after so many events of other types, the client asks again.
async fn read(
    request: &ApiRequest<'_>,
    wanted: FeedRequest,
    types: &[EventType],
) -> Result<FeedPage, ApiError> {
    let mut start = wanted.start;
    let limit = if types.is_empty() { wanted.limit } else { PageLimit::LARGEST };
    for pages_left in (0..MAX_PAGES).rev() {
        let mut page = match request.app.storage.read_events(FeedRequest { start, limit }).await? {
            FeedOutcome::Page(page) => page,
            FeedOutcome::Expired => return Err(ApiError::CursorExpired),
        };
        if types.is_empty() {
            return Ok(page);
        }
        page.events.retain(|event| types.contains(&event.event_type));
        if page.events.len() > usize::from(wanted.limit.get()) {
            page.events.truncate(wanted.limit.get().into());
            page.next = page.events.last().map_or(page.next, |last| last.position);
            page.is_end = false;
            return Ok(page);
        }
        if page.is_end || pages_left == 0 || !page.events.is_empty() {
            return Ok(page);
        }
        start = FeedStart::After(page.next);
    }
    unreachable!("the last page is returned")
}

/// Reads a page, and if it is empty waits until there is an event, the time is over, or the service stops. A client that has
/// closed its side of the connection is answered at once: if it is gone, it does not hold its place any longer.
async fn read_or_wait(
    request: &ApiRequest<'_>,
    mut wanted: FeedRequest,
    types: &[EventType],
    wait: Duration,
) -> Result<(FeedPage, Waited), ApiError> {
    let app = request.app;
    let deadline = Instant::now() + wait;
    let (mut spent_waiting, mut client_closed) = (Duration::ZERO, false);
    let mut subscription = app.storage.subscribe_to_events();
    loop {
        let page = read(request, wanted, types).await?;
        if !page.events.is_empty()
            || !page.is_end
            || Instant::now() >= deadline
            || app.is_closing()
            || client_closed
        {
            return Ok((page, Waited(spent_waiting)));
        }
        let started = Instant::now();
        // `now` is when the request arrived.
        wanted.start = FeedStart::After(page.next);
        let _share = app.admission.admit_wait(request.caller.key.id)?;
        let event_or_end = async {
            select! {
                () = subscription.has_event_after(page.next) => {}
                () = sleep_until(deadline) => {}
                () = app.closing() => {}
                () = request.presence.closed() => client_closed = true,
            }
        };
        request.suspend(event_or_end).await?;
        spent_waiting += started.elapsed();
    }
}

/// The query parameters.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListEventsQuery {
    /// The position after which the page starts: the `id` of an event, the `after` of a `Link` header, or `now` for new events only. By default, the page starts at the oldest event that is kept.
    #[param(nullable = false, example = "now")]
    after: Option<String>,
    /// Maximum number of items returned: 1 to 100, 20 by default.
    #[param(value_type = Option<schema::PageLimit>, inline, nullable = false)]
    limit: Option<PageLimit>,
    /// If there is no event yet, wait up to this many seconds for one: 0 to 25, 0 by default.
    #[param(inline, nullable = false)]
    wait: Option<WaitSeconds>,
    /// Only events of these types. A page may be empty although more events follow, so always follow `Link`.
    #[param(value_type = Option<Vec<schema::EventType>>, nullable = false, min_items = 1)]
    r#type: EventTypes,
}

impl ListEventsQuery {
    fn feed_request(&self) -> Result<FeedRequest, ApiError> {
        let start = match self.after.as_deref() {
            None => FeedStart::Oldest,
            Some("now") => FeedStart::Now,
            Some(position) => {
                let position = decode_position(position);
                FeedStart::After(position.map_err(|problem| ApiError::invalid_parameter("after", &problem))?)
            }
        };
        Ok(FeedRequest { start, limit: self.limit.unwrap_or(PageLimit::DEFAULT) })
    }
}

/// The types of events in a query; all if there are none.
#[derive(Debug, Deserialize)]
#[serde(try_from = "Vec<String>")]
struct EventTypes(Vec<EventType>);

impl TryFrom<Vec<String>> for EventTypes {
    type Error = EventTypeError;

    fn try_from(types: Vec<String>) -> Result<Self, EventTypeError> {
        types.iter().map(|name| name.parse()).collect::<Result<_, _>>().map(distinct).map(Self)
    }
}

/// How long a request waits for an event.
#[derive(Debug, Clone, Copy, Default)]
struct WaitSeconds(u64);

impl WaitSeconds {
    /// Less than the timeout of common proxies.
    const MAX: u64 = 25;
}

/// The value is not a number of seconds, or too large.
#[derive(Debug, Error)]
#[error("must be an integer from 0 to {max}", max = WaitSeconds::MAX)]
struct WaitSecondsError;

impl<'de> Deserialize<'de> for WaitSeconds {
    /// Whatever is wrong with the value, the error says which integers are accepted.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let seconds = i64::deserialize(deserializer).ok().and_then(|seconds| u64::try_from(seconds).ok());
        let seconds = seconds.filter(|seconds| *seconds <= Self::MAX);
        seconds.map(Self).ok_or_else(|| serde::de::Error::custom(WaitSecondsError))
    }
}

impl utoipa::PartialSchema for WaitSeconds {
    fn schema() -> RefOr<Schema> {
        let wait = ObjectBuilder::new().schema_type(Type::Integer);
        wait.minimum(Some(0)).maximum(Some(Self::MAX)).default(Some(0.into())).into()
    }
}

impl utoipa::ToSchema for WaitSeconds {}

/// The errors of this operation, in addition to those of every operation.
pub(crate) fn list_events_errors() -> Vec<ApiError> {
    vec![
        BodyError::NotExpected.into(),
        ApiError::invalid_parameter("wait", &WaitSecondsError),
        ApiError::UnknownParameter { name: "cursor".into(), known: &["after", "limit", "wait", "type"] },
        ApiError::CursorExpired,
    ]
}
