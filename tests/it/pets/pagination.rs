//! Paging through pets and orders, in both directions, while another client adds some.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;
use tokio::task::JoinSet;

use crate::support::TestService;

#[derive(Debug, Clone)]
struct Query {
    limit: u8,
    status: Option<&'static str>,
    ids: Option<Vec<i64>>,
    category: Option<i64>,
    descending: bool,
    /// How many pets another client adds in the meantime.
    added: u8,
}

fn query() -> impl Strategy<Value = Query> {
    let status = proptest::option::of(proptest::sample::select(vec!["available", "pending", "sold"]));
    let ids = proptest::option::weighted(0.3, proptest::collection::vec(1_i64..400, 1..=100));
    let category = proptest::option::weighted(0.3, 0_i64..8);
    (1_u8..=100, status, ids, category, any::<bool>(), 0_u8..60).prop_map(
        |(limit, status, ids, category, descending, added)| Query {
            limit,
            status,
            ids,
            category,
            descending,
            added,
        },
    )
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
    if let Some(category) = query.category {
        path = format!("{path}&categoryId={category}");
        filter = format!("{filter} AND category_id = {category}");
    }
    if query.descending {
        path = format!("{path}&sort=-id");
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
    if query.descending {
        visited.reverse();
    }
    assert!(visited.is_sorted_by(|one, other| one < other), "out of order or repeated: {query:?}");
    let visited: BTreeSet<i64> = visited.into_iter().collect();
    assert!(visited.is_superset(&existing), "{query:?} missed {:?}", existing.difference(&visited));
}

/// Follows the links from a path to the last page, and returns the ids. Each page has as many as the limit, except the last one.
/// After the first page, another client adds pets and orders.
async fn walk(service: &TestService, path: &str, limit: usize, adds: bool) -> Vec<i64> {
    let mut ids = Vec::new();
    let mut next = Some(path.to_owned());
    let mut is_first = true;
    while let Some(page) = next {
        let answer = service.client.get(&page).await;
        let found = answer.ids();
        assert!(!found.is_empty() || is_first, "{page}: an empty page");
        assert!(found.len() == limit || answer.next().is_none(), "{page}: {found:?}");
        ids.extend(found);
        next = answer.next().map(str::to_owned);
        if is_first && adds {
            add_of_each_kind(service).await;
        }
        is_first = false;
    }
    ids
}

/// Adds pets and orders that match every filter of the test below.
async fn add_of_each_kind(service: &TestService) {
    let add = "INSERT INTO pets (name, category_id, status) \
          SELECT 'Pet', 3, status FROM unnest(enum_range(NULL::pet_status) || NULL::pet_status) AS status; \
        INSERT INTO orders (pet_id, status, created_at, updated_at, reference) \
          SELECT 1, status, now(), now(), 'basket' FROM unnest('{completed,cancelled,expired}'::order_status[]) AS status";
    service.database.connect().await.batch_execute(add).await.unwrap();
}

#[tokio::test]
async fn newest_first_is_the_reverse_of_oldest_first_with_every_filter_and_limit() {
    let service = TestService::start().await;
    let fill = "INSERT INTO pets (name, category_id, status, reference) \
          SELECT 'Pet', n % 5, (ARRAY['available', 'pending', 'sold', NULL])[n % 4 + 1]::pet_status, 'chip ' || n \
          FROM generate_series(1, 230) n; \
        INSERT INTO orders (pet_id, status, created_at, updated_at, reference) \
          SELECT 1 + n % 2, (ARRAY['completed', 'cancelled', 'expired'])[n % 3 + 1]::order_status, now(), now(), \
            CASE WHEN n % 5 < 3 THEN 'basket' END \
          FROM generate_series(1, 230) n; \
        INSERT INTO pets (id, name, category_id, status, reference) OVERRIDING SYSTEM VALUE VALUES \
          (-2, 'Odd', 3, 'available', NULL), (-1, 'Odd', 3, 'sold', NULL), (0, 'Odd', 3, NULL, 'chip 999999'); \
        INSERT INTO orders (id, pet_id, status, created_at, updated_at, reference) OVERRIDING SYSTEM VALUE \
          SELECT odd, 1, 'cancelled', now(), now(), 'basket' \
          FROM unnest(ARRAY[-1, 0]) odd";
    service.database.connect().await.batch_execute(fill).await.unwrap();
    let (pets, orders) = ("/v1/pets", "/v1/store/orders");
    // Not in order, one twice, and one that does not exist.
    let named = "&id=9&id=3&id=200&id=3&id=77&id=999999".to_owned();
    let by_reference = named.replace("id=", "reference=chip+");
    let filters = [
        (pets, "", "true"),
        (pets, "&status=sold", "status = 'sold'"),
        (pets, "&categoryId=3", "category_id = 3"),
        (pets, "&categoryId=3&status=available", "category_id = 3 AND status = 'available'"),
        (pets, &named, "id IN (9, 3, 200, 77)"),
        (pets, &*format!("{named}&status=pending"), "id IN (9, 3, 200, 77) AND status = 'pending'"),
        (pets, &by_reference, "id IN (9, 3, 200, 77)"),
        (pets, &*format!("{by_reference}&categoryId=3"), "id = 3"),
        (pets, "&categoryId=99", "false"),
        (orders, "", "true"),
        (orders, "&status=cancelled", "status = 'cancelled'"),
        (orders, "&status=placed", "false"),
        (orders, "&petId=1", "pet_id = 1"),
        (orders, "&petId=1&status=cancelled", "pet_id = 1 AND status = 'cancelled'"),
        (orders, "&petId=1&reference=basket", "pet_id = 1 AND reference = 'basket'"),
        (orders, "&reference=basket", "reference = 'basket'"),
        (orders, "&reference=basket&status=expired", "reference = 'basket' AND status = 'expired'"),
    ];
    let session = service.database.connect().await;
    for (list, filter, condition) in filters {
        for limit in [1, 7, 20, 100] {
            let existing =
                // Ids that only SQL can set are left out.
                format!(
                    "SELECT id FROM {} WHERE {condition} AND id >= 1 ORDER BY id",
                    list.rsplit('/').next().unwrap()
                );
            let existing = session.query(&existing, &[]).await.unwrap();
            let mut existing: Vec<i64> = existing.iter().map(|row| row.get(0)).collect();
            // Page by page, a long list would take long.
            if existing.len() > 60 * limit {
                continue;
            }
            let path = |sort: &str| format!("{list}?limit={limit}{sort}{filter}");
            assert_eq!(walk(&service, &path(""), limit, false).await, existing, "{}", path(""));
            existing.reverse();
            // What is added during the walk does not appear.
            let newest_first = walk(&service, &path("&sort=-id"), limit, true).await;
            assert_eq!(newest_first, existing, "{}", path("&sort=-id"));
        }
    }
}

#[tokio::test]
async fn only_the_link_of_a_list_that_is_newest_first_names_the_order() {
    let service = TestService::start().await;
    service.database.add_pets(5).await;
    let client = &service.client;
    let plain = client.get("/v1/pets?limit=2").await;
    let named = client.get("/v1/pets?limit=2&sort=id").await;
    for header in ["link", "etag"] {
        assert_eq!(named.headers(header), plain.headers(header));
    }
    assert_eq!(named.body, plain.body);
    let newest = client.get("/v1/pets?sort=-id&limit=2").await;
    assert_eq!(newest.ids(), [5, 4]);
    assert_eq!(newest.headers("link"), ["</v1/pets?limit=2&sort=-id&cursor=AQAAAAAAAAAE>; rel=\"next\""]);
    let filtered = client.get("/v1/pets?sort=-id&limit=1&id=1&id=4&id=5").await;
    assert_eq!(filtered.next(), Some("/v1/pets?limit=1&id=1&id=4&id=5&sort=-id&cursor=AQAAAAAAAAAF"));
    // A full last page has no link.
    let last = client.get("/v1/pets?limit=2&sort=-id&cursor=AQAAAAAAAAAD").await;
    assert_eq!((last.ids(), last.next()), (vec![2, 1], None));
    let beyond = client.get("/v1/pets?sort=-id&cursor=AQAAAAAAAAAB").await;
    assert_eq!((&*beyond.body, beyond.next()), ("[]", None));
}

#[tokio::test]
async fn a_cursor_continues_in_the_direction_of_the_list_in_which_it_is_used() {
    let service = TestService::start().await;
    service.database.add_pets(6).await;
    let pet = service.client.add("Rex", Some("available")).await;
    service.client.post("/v1/store/orders", &json!({"petId": pet})).await;
    let after_4 = "cursor=AQAAAAAAAAAE";
    for (sort, ids) in [("", vec![5, 6, 7]), ("&sort=id", vec![5, 6, 7]), ("&sort=-id", vec![3, 2, 1])] {
        assert_eq!(service.client.get(&format!("/v1/pets?{after_4}{sort}")).await.ids(), ids, "{sort}");
    }
    for (sort, ids) in [("", vec![]), ("&sort=-id", vec![1])] {
        assert_eq!(
            service.client.get(&format!("/v1/store/orders?{after_4}{sort}")).await.ids(),
            ids,
            "{sort}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_for_both_directions_that_arrive_together_get_their_own_pages() {
    let service = TestService::start().await;
    service.database.add_pets(40).await;
    let mut clients = JoinSet::new();
    for number in 0..32 {
        let client = service.client.clone();
        clients.spawn(async move {
            for round in 0..25 {
                // The same limit and the same filter, in both directions.
                let (filter, ascending, descending) = [
                    ("", [1, 2], [40, 39]),
                    ("&status=available", [1, 5], [37, 33]),
                    ("&categoryId=1", [2, 9], [37, 30]),
                    ("&id=2&id=9&id=20", [2, 9], [20, 9]),
                ][(number + round) % 4];
                let mut wanted = [("", ascending), ("&sort=-id", descending)];
                wanted.rotate_left(number % 2);
                for (sort, ids) in wanted {
                    let page = client.get(&format!("/v1/pets?limit=2{filter}{sort}")).await;
                    assert_eq!(page.ids(), ids, "{filter}{sort}");
                    assert_eq!(page.next().unwrap().contains("sort=-id"), !sort.is_empty(), "{filter}{sort}");
                }
            }
        });
    }
    clients.join_all().await;
}

#[tokio::test]
async fn a_link_is_never_longer_than_a_request_may_be() {
    let service = TestService::start().await;
    let client = &service.client;
    // What a client may send without encoding, and what it may not.
    for text in ["a/b:c@d!e$f(g)*?~", "a b", "ab,;='\"<>", "äöü🐕"] {
        let reference = |number: usize| format!("{}{number}", text.repeat(200 / text.chars().count()));
        for number in 0..3 {
            let body = json!({"name": "Rex", "categoryId": 1, "reference": reference(number)});
            assert!(matches!(client.post("/v1/pets", &body).await.status, 201 | 409));
        }
        for count in [3, 10, 20, 30, 39, 40] {
            let encoded = |number: usize| {
                let mut text =
                    form_urlencoded::byte_serialize(reference(number).as_bytes()).collect::<String>();
                // As short as possible.
                for (escape, raw) in [
                    ("%2F", "/"),
                    ("%3A", ":"),
                    ("%40", "@"),
                    ("%21", "!"),
                    ("%24", "$"),
                    ("%28", "("),
                    ("%29", ")"),
                    ("%2A", "*"),
                    ("%3F", "?"),
                    ("%7E", "~"),
                    ("%2C", ","),
                    ("%3B", ";"),
                    ("%3D", "="),
                    ("%27", "'"),
                ] {
                    text = text.replace(escape, raw);
                }
                text
            };
            let values = (0..count).map(encoded).collect::<Vec<_>>();
            let path = format!("/v1/pets?limit=1&reference={}", values.join("&reference="));
            if path.len() > 8_192 {
                continue;
            }
            let page = client.get(&path).await;
            if page.status == 200 {
                let next = page.next().unwrap();
                assert!(next.len() <= 8_192, "{} bytes", next.len());
                let next = client.get(next).await;
                assert_eq!(next.json()[0]["reference"], reference(1), "{path}");
                continue;
            }
            assert_eq!(page.error(), (414, "uri_too_long".into()));
            assert!(path.len() > 2_700, "{} bytes are refused", path.len());
            let all = client.get(&path.replacen("limit=1&", "", 1)).await;
            assert_eq!(all.ids().len(), 3, "all in one response");
        }
    }
}

#[tokio::test]
async fn a_link_does_not_repeat_values() {
    let service = TestService::start().await;
    let client = &service.client;
    for name in ["Rex", "Max"] {
        client.add(name, None).await;
    }
    let page = client.get(&format!("/v1/pets?limit=1{}", "&id=1&id=2".repeat(50))).await;
    assert_eq!(page.next(), Some("/v1/pets?limit=1&id=1&id=2&cursor=AQAAAAAAAAAB"));
    let feed = client.get(&format!("/v1/events?{}limit=1", "type=pet.created&".repeat(400))).await;
    assert_eq!(feed.next().unwrap().matches("type=").count(), 1, "{feed:?}");
    assert_eq!(client.get(feed.next().unwrap()).await.status, 200);
}
