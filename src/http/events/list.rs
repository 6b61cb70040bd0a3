//! `GET /events`

use std::time::Duration;

use tokio::select;
use tokio::time::{Instant, sleep_until};
use utoipa::openapi::schema::{ObjectBuilder, Type};

use crate::domain::event::{Event, FeedPage, FeedRequest, FeedStart};
use crate::domain::page::PageLimit;
use crate::http::conditional::{IfNoneMatch, with_tag};
use crate::http::error::ApiError;
use crate::http::parameter_description::{ParameterDescription, document_parameters};
use crate::http::request::{ApiRequest, QueryParameters, decimal};
use crate::http::response::{Response, Waited};
use crate::storage::FeedOutcome;
use crate::wire::event::{EVENT, decode_position, encode_position};
use crate::wire::json::BodyError;
use crate::wire::resource_description::string;

/// The longest that a request waits for an event: less than the timeout of common proxies.
const MAX_WAIT: i64 = 25;

/// Follow the changes
///
/// Returns what happened to pets and orders, in the order in which it took effect on each of them. Nothing is left out and
/// nothing is repeated for a reader that follows the `Link` header with `rel="next"`, which is always there: on an empty
/// page, it is where to ask next. Events are kept for 30 days by default. An event says what changed, not how: fetch the
/// pet or the order.
#[utoipa::path(
    get,
    path = "/v1/events",
    operation_id = "listEvents",
    tag = "events",
    extensions(("x-stability" = json!("experimental"))),
    params(ListEventsQuery, IfNoneMatch),
    responses(
        (status = 200, description = "The next events; an empty array if there are none yet.", body = [Event], headers(
            ("Link" = String, description = "Where to go on, with `rel=\"next\"`. Always there."),
            ("ETag" = String, description = "Changes with the page; for `If-None-Match`."),
        )),
        (status = 304, description = "The page has not changed since the response with the `ETag` in `If-None-Match`."),
    ),
)]
pub(crate) async fn list_events(request: ApiRequest<'_>) -> Result<Response, ApiError> {
    request.refuse_body()?;
    let query = request.query(PARAMETERS)?;
    let (wanted, wait) = (feed_request(&query)?, wait(&query)?);
    let (page, spent_waiting) = if wait.is_zero() {
        (read(&request, wanted).await?, Waited::default())
    } else {
        read_or_wait(&request, wanted, wait).await?
    };
    let next = request.app.links.next_events(wanted.limit, wait.as_secs(), &encode_position(&page.next));
    let (body, tag) = with_tag(EVENT.render_list(&page.events), Some(&next));
    let mut response = request.if_none_match().answer(body, tag, Some(next));
    response.extensions_mut().insert(spent_waiting);
    Ok(response)
}

async fn read(request: &ApiRequest<'_>, wanted: FeedRequest) -> Result<FeedPage, ApiError> {
    match request.app.storage.read_events(wanted).await? {
        FeedOutcome::Page(page) => Ok(page),
        FeedOutcome::Expired => Err(ApiError::CursorExpired),
    }
}

/// Reads a page, and if it is empty waits until there is an event, the time is over, or the service stops. A client that has
/// closed its side of the connection is answered at once: if it is gone, it does not hold its place any longer.
async fn read_or_wait(
    request: &ApiRequest<'_>,
    mut wanted: FeedRequest,
    wait: Duration,
) -> Result<(FeedPage, Waited), ApiError> {
    let app = request.app;
    let deadline = Instant::now() + wait;
    let (mut spent_waiting, mut client_closed) = (Duration::ZERO, false);
    let mut subscription = app.storage.subscribe_to_events();
    loop {
        let page = read(request, wanted).await?;
        if !page.events.is_empty() || Instant::now() >= deadline || app.is_closing() || client_closed {
            return Ok((page, Waited(spent_waiting)));
        }
        let started = Instant::now();
        // `now` is when the request arrived.
        wanted.start = FeedStart::After(page.next);
        {
            let _share = app.admission.admit_wait(request.caller.key.id)?;
            let waiting = app.admission.suspend();
            select! {
                () = subscription.has_event_after(page.next) => {}
                () = sleep_until(deadline) => {}
                () = app.closing() => {}
                () = request.presence.closed() => client_closed = true,
            }
            waiting.resume()?;
        }
        spent_waiting += started.elapsed();
        request.authenticate_again().await?;
    }
}

/// The query parameters.
const PARAMETERS: &[ParameterDescription] = &[
    ParameterDescription::new(
        "after",
        "Where the page starts: after the event with this `id`, at the `after` of a `Link` header, or after everything that \
         has happened so far (`now`). By default, at the oldest event that is kept.",
        || string(None).into(),
    )
    .with_example("now"),
    ParameterDescription::LIMIT,
    ParameterDescription::new(
        "wait",
        "How many seconds to wait for an event if there is none yet: 0 to 25, 0 by default.",
        || {
            let wait = ObjectBuilder::new().schema_type(Type::Integer);
            wait.minimum(Some(0)).maximum(Some(MAX_WAIT)).default(Some(0.into())).into()
        },
    ),
];

/// Documents the query parameters.
pub(crate) struct ListEventsQuery;

document_parameters!(ListEventsQuery, Query, PARAMETERS);

fn feed_request(query: &QueryParameters<'_>) -> Result<FeedRequest, ApiError> {
    let start = match query.one("after")? {
        None => FeedStart::Oldest,
        Some("now") => FeedStart::Now,
        Some(position) => {
            let position = decode_position(position);
            FeedStart::After(position.map_err(|problem| ApiError::invalid_parameter("after", &problem))?)
        }
    };
    Ok(FeedRequest { start, limit: query.limit(PageLimit::DEFAULT)? })
}

fn wait(query: &QueryParameters<'_>) -> Result<Duration, ApiError> {
    let Some(text) = query.one("wait")? else { return Ok(Duration::ZERO) };
    let seconds =
        decimal(text).filter(|seconds| *seconds <= MAX_WAIT).and_then(|seconds| seconds.try_into().ok());
    seconds.map(Duration::from_secs).ok_or_else(invalid_wait)
}

fn invalid_wait() -> ApiError {
    ApiError::InvalidParameter { name: "wait", problem: format!("must be an integer from 0 to {MAX_WAIT}") }
}

/// The errors of this operation, in addition to those of every operation.
pub(crate) fn list_events_errors() -> Vec<ApiError> {
    vec![
        BodyError::NotExpected.into(),
        invalid_wait(),
        ApiError::UnknownParameter { name: "cursor".into(), known: vec!["after", "limit", "wait"] },
        ApiError::CursorExpired,
    ]
}
