//! Tests what a read does with each event. There are no servers: what they answer is made up.

use std::future::ready;
use std::time::Duration;

use futures_util::FutureExt;
use petstore_config::{DatabaseUrl, PoolSettings};
use petstore_read_quorum::{Lsn, Role};

use super::*;
use crate::availability_log::AvailabilityLog;
use crate::cluster::cluster_view::{ClusterView, Guarantee};
use crate::cluster::server::ClusterServer;
use crate::connect::Connector;

const REPORT_OF_PRIMARY: ServerReport =
    ServerReport { start: 0, timeline: 1, role: Role::Primary { flushed: Lsn(100) } };

/// Three servers, of which the first one is the primary.
fn cluster() -> Cluster {
    let url = "postgresql://petstore@127.0.0.1:1,127.0.0.1:2,127.0.0.1:3/petstore";
    let connector = Connector::new(&DatabaseUrl::from(url.to_owned())).unwrap();
    let second = Duration::from_secs(1);
    let settings =
        PoolSettings { database_connections: 1, database_timeout: second, reads: ReadFrom::Primary };
    let cluster =
        Cluster::new(&connector, &settings, 0, second, AvailabilityLog::default()).unwrap().unwrap();
    let mut view = ClusterView::UNKNOWN.with_primary(0);
    view.guarantee = Guarantee::Proven { standbys: true };
    *cluster.0.view.write().unwrap() = view;
    cluster
}

fn ranks(cluster: &Cluster) -> Vec<u8> {
    cluster.servers().iter().map(ClusterServer::rank).collect()
}

fn asked(read: &FreshRead<'_>) -> Vec<usize> {
    let contacts = read.state.contacts.iter().enumerate();
    contacts
        .filter(|(_, contact)| matches!(contact, ServerContact::Asked))
        .map(|(server, _)| server)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn no_event_is_lost_when_another_one_comes_first() {
    let cluster = cluster();
    let mut read = FreshRead::new(&cluster, "", &[]);
    let (reported, first_report) = oneshot::channel();
    let (answered, answer) = oneshot::channel();
    read.first_report = Some(first_report);
    read.first_rows = pending().boxed();
    let answering: BoxFuture<'_, (usize, ServerReportResult)> =
        answer.map(|answer| (2, Err(answer.unwrap()))).boxed();
    read.asked = [answering].into_iter().collect();
    assert!(read.next_event().now_or_never().is_none());

    reported.send(REPORT_OF_PRIMARY).unwrap();
    answered.send(StatementError::NoPrimary).unwrap();
    read.first_rows = ready(Ok(Vec::new())).boxed();
    sleep_until(read.state.give_up_at).await;
    let event = read.next_event().await;
    assert!(matches!(event, ReadEvent::FirstReport(Some(REPORT_OF_PRIMARY))));
    read.apply(event);
    let event = read.next_event().await;
    assert!(matches!(event, ReadEvent::FirstRows(Ok(_))));
    read.apply(event);
    let event = read.next_event().await;
    assert!(matches!(event, ReadEvent::ServerReport(2, Err(StatementError::NoPrimary))));
    let event = read.next_event().await;
    assert!(matches!(event, ReadEvent::Timer(at) if at == read.state.started + SLOW_REPORT));
}

#[tokio::test]
async fn all_but_one_server_are_asked_at_first() {
    let cluster = cluster();
    let read = FreshRead::new(&cluster, "", &[]);
    assert_eq!((read.state.plan.first, asked(&read)), (0, vec![2]));
    assert_eq!(read.state.unasked().collect::<Vec<_>>(), [1]);
}

#[tokio::test]
async fn when_a_server_fails_the_others_are_asked_and_the_next_reads_start_with_another_one() {
    let cluster = cluster();
    let mut read = FreshRead::new(&cluster, "", &[]);
    read.apply(ReadEvent::FirstReport(Some(REPORT_OF_PRIMARY)));
    read.apply(ReadEvent::FirstRows(Err(StatementError::NoPrimary)));
    assert_eq!(asked(&read), [1, 2]);
    assert_eq!(read.state.reports, [None; 3]);
    assert!(read.state.standbys_from <= Instant::now(), "the primary is gone");
    assert_eq!((ranks(&cluster), cluster.source()), (vec![2, 0, 0], 1));
    read.apply(ReadEvent::ServerReport(2, Err(StatementError::NoPrimary)));
    read.apply(ReadEvent::ServerReport(1, Err(StatementError::NoPrimary)));
    assert_eq!(read.state.decide(Instant::now()), Step::Fail);
}

#[tokio::test]
async fn servers_that_do_not_report_in_time_are_passed_over() {
    let cluster = cluster();
    let mut read = FreshRead::new(&cluster, "", &[]);
    read.apply(ReadEvent::FirstReport(Some(REPORT_OF_PRIMARY)));
    let slow = read.state.next_timer(Instant::now());
    read.apply(ReadEvent::Timer(slow));
    assert_eq!(ranks(&cluster), [0, 0, 2], "server 0 has reported, and server 1 was not asked");
    assert_eq!(asked(&read), [1, 2]);
    assert_eq!(read.state.decide(Instant::now()), Step::Wait);
    read.apply(ReadEvent::Timer(read.state.give_up_at));
    assert_eq!(read.state.decide(Instant::now()), Step::Fail);
}

#[tokio::test]
async fn what_the_first_server_has_read_is_not_used_once_it_is_asked_again() {
    let cluster = cluster();
    let mut read = FreshRead::new(&cluster, "", &[]);
    read.apply(ReadEvent::FirstReport(Some(REPORT_OF_PRIMARY)));
    read.apply(ReadEvent::FirstRows(Ok(Vec::new())));
    let now = Instant::now();
    read.state.ask_again_at = Some(now);
    read.apply(ReadEvent::Timer(now));
    assert_eq!(asked(&read), [0, 2]);
    assert!(read.state.first_read().is_none());
}
