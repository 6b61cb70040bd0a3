//! `petstore events`

use std::io::{self, ErrorKind, Write};
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use petstore_config::DatabaseSettings;
use petstore_domain::event::{Event, FeedPage, FeedRequest, FeedStart};
use petstore_domain::page::PageLimit;
use petstore_storage::{FeedOutcome, Storage, StorageError};
use petstore_telemetry::with_causes;
use tokio::time::sleep;

use super::error::CommandError;
use super::storage::storage;

/// How often the feed is read with --follow.
const INTERVAL: Duration = Duration::from_millis(500);
/// The pause after it could not be read.
const BACKOFF: Duration = Duration::from_secs(2);

/// Prints the latest pet and order events, one per line.
///
/// Programs read the same events with `GET /v1/events`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  petstore events --last 100 --follow")]
pub(super) struct EventsCommand {
    /// How many of the newest events to print.
    #[arg(long, default_value_t = 10, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(0..=1_000))]
    last: u16,

    /// Keeps printing new events until the command is stopped.
    #[arg(long)]
    follow: bool,

    #[command(flatten)]
    database: DatabaseSettings,
}

impl EventsCommand {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let storage = storage(&self.database.url())?;
        // Before the newest events are read, so that none falls in between.
        let mut start = FeedStart::Now;
        if self.follow {
            start = FeedStart::After(read(&storage, start).await?.next);
        }
        let newest = storage.newest_events(self.last).await?;
        if let Some(last) = newest.last() {
            start = FeedStart::After(last.position);
        }
        let mut is_open = print_lines(&newest)?;
        while self.follow && is_open {
            match read(&storage, start).await {
                Ok(page) => {
                    start = FeedStart::After(page.next);
                    is_open = print_lines(&page.events)?;
                    if page.events.is_empty() {
                        sleep(INTERVAL).await;
                    }
                }
                Err(FeedReadError::Storage(error @ StorageError::Unavailable(_))) => {
                    tracing::warn!(cause = with_causes(&error), "the feed is unavailable: retrying in 2 s");
                    sleep(BACKOFF).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Why the feed could not be read.
#[derive(Debug, thiserror::Error)]
enum FeedReadError {
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(
        "the feed began anew: the database was restored from a backup, or the reader was away for too long"
    )]
    Expired,
}

async fn read(storage: &Storage, start: FeedStart) -> Result<FeedPage, FeedReadError> {
    match storage.read_events(FeedRequest { start, limit: PageLimit::LARGEST }).await? {
        FeedOutcome::Page(page) => Ok(page),
        FeedOutcome::Expired => Err(FeedReadError::Expired),
    }
}

/// Prints events, and returns whether somebody still reads them.
fn print_lines(events: &[Event]) -> io::Result<bool> {
    let mut output = io::stdout().lock();
    let written = events.iter().try_for_each(|event| writeln!(output, "{}", line(event)));
    match written.and_then(|()| output.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

fn line(event: &Event) -> String {
    let at = Timestamp::try_from(event.at).unwrap_or(Timestamp::MAX);
    let mut line = format!("{at:.3}  {:15}  pet {}", event.event_type.as_str(), event.pet_id.get());
    let details = [
        event.last_pet_id.map(|pet| format!(" to {}", pet.get())),
        event.order_id.map(|order| format!("  order {}", order.get())),
    ];
    line.extend(details.into_iter().flatten());
    line
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use petstore_domain::event::{EventPosition, EventType};

    #[test]
    fn a_line_names_everything_that_the_event_is_about() {
        let placed = Event {
            position: EventPosition { epoch: 1, transaction: 700, number: 42, pet: 7 },
            event_type: EventType::OrderPlaced,
            pet_id: 7.try_into().unwrap(),
            last_pet_id: None,
            order_id: Some(4711.try_into().unwrap()),
            at: UNIX_EPOCH + Duration::from_millis(1_794_735_000_123),
        };
        assert_eq!(line(&placed), "2026-11-15T09:30:00.123Z  order.placed     pet 7  order 4711");
        let imported = Event {
            event_type: EventType::PetsImported,
            last_pet_id: Some(5_006.try_into().unwrap()),
            order_id: None,
            ..placed
        };
        assert_eq!(line(&imported), "2026-11-15T09:30:00.123Z  pets.imported    pet 7 to 5006");
    }
}
