//! A walk through the pages, while others add pets.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

use crate::support::TestService;

#[derive(Debug, Clone)]
struct Walk {
    limit: u8,
    status: Option<&'static str>,
    ids: Option<Vec<i64>>,
    /// How many pets another client adds meanwhile.
    added: u8,
}

fn walk() -> impl Strategy<Value = Walk> {
    let status = proptest::option::of(proptest::sample::select(vec!["available", "pending", "sold"]));
    let ids = proptest::option::weighted(0.3, proptest::collection::vec(1_i64..400, 1..=100));
    (1_u8..=100, status, ids, 0_u8..60).prop_map(|(limit, status, ids, added)| Walk {
        limit,
        status,
        ids,
        added,
    })
}

#[tokio::test]
async fn a_walk_meets_every_pet_that_was_there_at_its_start_exactly_once() {
    let service = TestService::start().await;
    service.database.add_pets(150).await;
    let mut runner = TestRunner::new(Config { cases: 60, ..Config::default() });
    let strategy = walk();
    for _ in 0..runner.config().cases {
        let walk = strategy.new_tree(&mut runner).unwrap().current();
        check(&service, &walk).await;
    }
}

async fn check(service: &TestService, walk: &Walk) {
    let mut query = format!("/v1/pets?limit={}", walk.limit);
    let mut filter = "true".to_owned();
    if let Some(status) = walk.status {
        query = format!("{query}&status={status}");
        filter = format!("{filter} AND status = '{status}'");
    }
    if let Some(ids) = &walk.ids {
        query = ids.iter().fold(query, |query, id| format!("{query}&id={id}"));
        filter = format!("{filter} AND id = ANY (ARRAY{ids:?}::bigint[])");
    }
    let database = service.database.connect().await;
    let sql = format!("SELECT id FROM pets WHERE {filter}");
    let there: BTreeSet<i64> =
        database.query(&sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();

    let (other_client, added) = (service.client.clone(), walk.added);
    let adding = tokio::spawn(async move {
        for number in 0..added {
            other_client
                .add("Newcomer", [None, Some("available"), Some("sold")][usize::from(number) % 3])
                .await;
        }
    });
    let mut met = Vec::new();
    let mut next = Some(query);
    while let Some(page) = next {
        let answer = service.client.get(&page).await;
        assert!(answer.ids().len() <= walk.limit.into());
        met.extend(answer.ids());
        next = answer.next().map(str::to_owned);
    }
    adding.await.unwrap();
    assert!(met.is_sorted_by(|one, other| one < other), "in order and never twice: {walk:?}");
    let met: BTreeSet<i64> = met.into_iter().collect();
    assert!(met.is_superset(&there), "{walk:?} missed {:?}", there.difference(&met));
}
