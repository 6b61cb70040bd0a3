//! Paging through the pets while another client adds some.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

use crate::support::TestService;

#[derive(Debug, Clone)]
struct Query {
    limit: u8,
    status: Option<&'static str>,
    ids: Option<Vec<i64>>,
    /// How many pets another client adds in the meantime.
    added: u8,
}

fn query() -> impl Strategy<Value = Query> {
    let status = proptest::option::of(proptest::sample::select(vec!["available", "pending", "sold"]));
    let ids = proptest::option::weighted(0.3, proptest::collection::vec(1_i64..400, 1..=100));
    (1_u8..=100, status, ids, 0_u8..60).prop_map(|(limit, status, ids, added)| Query {
        limit,
        status,
        ids,
        added,
    })
}

#[tokio::test]
async fn paging_visits_every_pet_that_existed_at_the_start_exactly_once() {
    let service = TestService::start().await;
    service.database.add_pets(150).await;
    let mut runner = TestRunner::new(Config { cases: 60, ..Config::default() });
    let strategy = query();
    for _ in 0..runner.config().cases {
        let query = strategy.new_tree(&mut runner).unwrap().current();
        check(&service, &query).await;
    }
}

async fn check(service: &TestService, query: &Query) {
    let mut path = format!("/v1/pets?limit={}", query.limit);
    let mut filter = "true".to_owned();
    if let Some(status) = query.status {
        path = format!("{path}&status={status}");
        filter = format!("{filter} AND status = '{status}'");
    }
    if let Some(ids) = &query.ids {
        path = ids.iter().fold(path, |path, id| format!("{path}&id={id}"));
        filter = format!("{filter} AND id = ANY (ARRAY{ids:?}::bigint[])");
    }
    let database = service.database.connect().await;
    let sql = format!("SELECT id FROM pets WHERE {filter}");
    let existing: BTreeSet<i64> =
        database.query(&sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();

    let (other_client, added) = (service.client.clone(), query.added);
    let adding = tokio::spawn(async move {
        for number in 0..added {
            other_client
                .add("Newcomer", [None, Some("available"), Some("sold")][usize::from(number) % 3])
                .await;
        }
    });
    let mut visited = Vec::new();
    let mut next = Some(path);
    while let Some(page) = next {
        let answer = service.client.get(&page).await;
        assert!(answer.ids().len() <= query.limit.into());
        visited.extend(answer.ids());
        next = answer.next().map(str::to_owned);
    }
    adding.await.unwrap();
    assert!(visited.is_sorted_by(|one, other| one < other), "out of order or repeated: {query:?}");
    let visited: BTreeSet<i64> = visited.into_iter().collect();
    assert!(visited.is_superset(&existing), "{query:?} missed {:?}", existing.difference(&visited));
}
