//! `GET /v1/pets`

use serde_json::json;

use crate::support::TestService;

#[tokio::test]
async fn list_pets_answers_an_empty_array_without_pets() {
    let service = TestService::start().await;
    let answer = service.client.get("/v1/pets").await;
    assert_eq!((answer.status, &*answer.body), (200, "[]"));
    assert_eq!(answer.header("content-type"), "application/json");
    assert_eq!(answer.next(), None);
}

#[tokio::test]
async fn list_pets_returns_20_pets_per_page_in_id_order() {
    let service = TestService::start().await;
    service.database.add_pets(45).await;
    let first = service.client.get("/v1/pets").await;
    assert_eq!(first.ids(), (1..=20).collect::<Vec<_>>());
    assert_eq!(first.headers("link"), ["</v1/pets?limit=20&cursor=AQAAAAAAAAAU>; rel=\"next\""]);
    let second = service.client.get(first.next().unwrap()).await;
    assert_eq!(second.ids(), (21..=40).collect::<Vec<_>>());
    let last = service.client.get(second.next().unwrap()).await;
    assert_eq!(last.ids(), (41..=45).collect::<Vec<_>>());
    assert_eq!(last.next(), None);
}

#[tokio::test]
async fn list_pets_links_no_next_page_after_a_full_last_page() {
    let service = TestService::start().await;
    service.database.add_pets(20).await;
    assert_eq!(service.client.get("/v1/pets").await.next(), None);
}

#[tokio::test]
async fn list_pets_accepts_every_limit_from_1_to_100() {
    let service = TestService::start().await;
    service.database.add_pets(120).await;
    for limit in 1..=100 {
        assert_eq!(service.client.get(&format!("/v1/pets?limit={limit}")).await.ids().len(), limit);
    }
}

#[tokio::test]
async fn list_pets_filters_by_status() {
    let service = TestService::start().await;
    let available = service.client.add("Rex", Some("available")).await;
    let pending = service.client.add("Max", Some("pending")).await;
    let sold = service.client.add("Bella", Some("sold")).await;
    let unstated = service.client.add("Luna", None).await;
    for (status, id) in [("available", available), ("pending", pending), ("sold", sold)] {
        assert_eq!(service.client.get(&format!("/v1/pets?status={status}")).await.ids(), [id]);
    }
    let all = service.client.get("/v1/pets").await.ids();
    assert_eq!(
        all,
        [available, pending, sold, unstated],
        "only the unfiltered list has the pet without a status"
    );
}

#[tokio::test]
async fn list_pets_filters_by_id() {
    let service = TestService::start().await;
    service.database.add_pets(12).await;
    for (query, ids) in [
        ("id=7", vec![7]),
        ("id=7&id=3", vec![3, 7]),
        ("id=7&id=7", vec![7]),
        ("id=99", vec![]),
        ("id=9223372036854775807&id=2", vec![2]),
        // Pets 1, 5 and 9 are available.
        ("id=4&id=5&id=9&status=available", vec![5, 9]),
        ("id=4&status=available", vec![]),
    ] {
        assert_eq!(service.client.get(&format!("/v1/pets?{query}")).await.ids(), ids, "{query}");
    }
}

#[tokio::test]
async fn up_to_100_pets_that_are_named_by_id_come_in_one_answer_unless_a_limit_is_set() {
    let service = TestService::start().await;
    service.database.add_pets(150).await;
    let ids: Vec<String> = (1..=100).map(|id| format!("id={id}")).collect();
    for (limit, found) in [("", 100), ("limit=100&", 100), ("limit=20&", 20)] {
        let answer = service.client.get(&format!("/v1/pets?{limit}{}", ids.join("&"))).await;
        assert_eq!((answer.ids().len(), answer.next().is_some()), (found, found < 100), "{limit}");
    }
}

#[tokio::test]
async fn the_next_link_keeps_every_filter_and_the_limit() {
    let service = TestService::start().await;
    service.database.add_pets(20).await;
    let first = service.client.get("/v1/pets?status=available&limit=2&id=1&id=5&id=9&id=2").await;
    assert_eq!(first.ids(), [1, 5]);
    let next = "/v1/pets?limit=2&status=available&id=1&id=5&id=9&id=2&cursor=AQAAAAAAAAAF";
    assert_eq!(first.next(), Some(next));
    assert_eq!(service.client.get(next).await.ids(), [9]);
}

#[tokio::test]
async fn list_pets_filters_by_category_alone_and_with_a_status() {
    let service = TestService::start().await;
    let fill = "INSERT INTO pets (name, category_id, status) SELECT 'Pet', (ARRAY[-7, 0, 9223372036854775807])[n % 3 + 1], \
        (ARRAY['available', 'pending', 'sold', NULL])[n % 4 + 1]::pet_status FROM generate_series(1, 480) n";
    service.database.connect().await.batch_execute(fill).await.unwrap();
    for (category, rest) in [("-7", 0), ("0", 1), ("9223372036854775807", 2)] {
        let pets: Vec<i64> = (1..=480).filter(|id| id % 3 == rest).collect();
        let first = service.client.get(&format!("/v1/pets?categoryId={category}&limit=100")).await;
        assert_eq!(first.ids(), pets[..100]);
        let next = first.next().unwrap();
        assert!(next.starts_with(&format!("/v1/pets?limit=100&categoryId={category}&cursor=")), "{next}");
        let second = service.client.get(next).await;
        assert_eq!((second.ids(), second.next()), (pets[100..].to_vec(), None));
        for (status, rest) in [("available", 0), ("pending", 1), ("sold", 2)] {
            let pets: Vec<i64> = pets.iter().copied().filter(|id| id % 4 == rest).collect();
            let path = format!("/v1/pets?categoryId={category}&status={status}&limit=30");
            let first = service.client.get(&path).await;
            let second = service.client.get(first.next().unwrap()).await;
            assert_eq!(
                (first.ids(), second.ids(), second.next()),
                (pets[..30].to_vec(), pets[30..].to_vec(), None)
            );
        }
    }
    assert_eq!(service.client.get("/v1/pets?categoryId=5").await.ids(), [0; 0]);
    assert_eq!(service.client.get("/v1/pets?categoryId=0&id=1&id=2&id=4").await.ids(), [1, 4]);
}

#[tokio::test]
async fn the_limit_may_change_between_pages() {
    let service = TestService::start().await;
    service.database.add_pets(10).await;
    let first = service.client.get("/v1/pets?limit=3").await;
    let next = first.next().unwrap().replace("limit=3", "limit=5");
    assert_eq!(service.client.get(&next).await.ids(), [4, 5, 6, 7, 8]);
}

#[tokio::test]
async fn links_start_with_the_public_base_url_if_it_is_set() {
    let service = TestService::start_with(&["--public-base-url", "https://api.example.com/shop/v1"]).await;
    service.database.add_pets(3).await;
    assert_eq!(
        service.client.get("/v1/pets?limit=2").await.next(),
        Some("https://api.example.com/shop/v1/pets?limit=2&cursor=AQAAAAAAAAAC"),
    );
    let created = service.client.post("/v1/pets", &json!({"name": "Rex", "categoryId": 1})).await;
    assert_eq!(created.header("location"), "https://api.example.com/shop/v1/pets/4");
}

#[tokio::test]
async fn list_pets_answers_400_to_a_bad_query() {
    let service = TestService::start().await;
    let limit = "`limit` must be an integer from 1 to 100.";
    let status = "`status` must be one of `available`, `pending`, `sold`.";
    let id = "`id` must be a positive 64-bit integer, and can appear up to 100 times.";
    let category = "`categoryId` must be an integer from -2^63 to 2^63 - 1.";
    let sort = "`sort` must be `id`, or `-id` for the newest first.";
    let cursor = "`cursor` was not issued by this service: copy it from a `Link` header, or leave it out to start \
        at the first page.";
    let too_many = vec!["id=1"; 101].join("&");
    for (query, code, message) in [
        ("limit=0", "invalid_parameter", limit),
        ("limit=101", "invalid_parameter", limit),
        ("limit=-1", "invalid_parameter", limit),
        ("limit=", "invalid_parameter", limit),
        ("limit", "invalid_parameter", limit),
        ("limit=ten", "invalid_parameter", limit),
        ("limit=5.0", "invalid_parameter", limit),
        ("limit=%2B5", "invalid_parameter", limit),
        ("limit=+5", "invalid_parameter", limit),
        ("limit=05", "invalid_parameter", limit),
        ("limit=1e1", "invalid_parameter", limit),
        ("limit=99999999999999999999", "invalid_parameter", limit),
        ("limit=5&limit=5", "invalid_parameter", "`limit` must appear only once."),
        ("status=", "invalid_parameter", status),
        ("status=Available", "invalid_parameter", status),
        ("status=available,sold", "invalid_parameter", status),
        ("status=lost", "invalid_parameter", status),
        ("status=sold%00", "invalid_parameter", status),
        ("status=%ff", "invalid_parameter", status),
        ("status=sold&status=available", "invalid_parameter", "`status` must appear only once."),
        ("categoryId=", "invalid_parameter", category),
        ("categoryId=-0", "invalid_parameter", category),
        ("categoryId=%2B5", "invalid_parameter", category),
        ("categoryId=1.0", "invalid_parameter", category),
        ("categoryId=-9223372036854775809", "invalid_parameter", category),
        ("categoryId=1&categoryId=2", "invalid_parameter", "`categoryId` must appear only once."),
        ("id=0", "invalid_parameter", id),
        ("id=-1", "invalid_parameter", id),
        ("id=abc", "invalid_parameter", id),
        ("id=1,2", "invalid_parameter", id),
        ("id=1&id=", "invalid_parameter", id),
        ("id=9223372036854775808", "invalid_parameter", id),
        (&too_many, "invalid_parameter", id),
        ("sort=", "invalid_parameter", sort),
        ("sort", "invalid_parameter", sort),
        ("sort=ID", "invalid_parameter", sort),
        ("sort=+id", "invalid_parameter", sort),
        ("sort=-id,id", "invalid_parameter", sort),
        ("sort=--id", "invalid_parameter", sort),
        ("sort=desc", "invalid_parameter", sort),
        ("sort=-name", "invalid_parameter", sort),
        ("sort=-id&sort=-id", "invalid_parameter", "`sort` must appear only once."),
        ("cursor=", "invalid_cursor", cursor),
        ("cursor=20", "invalid_cursor", cursor),
        ("cursor=AgAAAAAAAAAU", "invalid_cursor", cursor),
        ("cursor=AQAAAAAAAAAU%3D", "invalid_cursor", cursor),
        ("cursor=AQAAAAAAAAAU&cursor=AQAAAAAAAAAU", "invalid_parameter", "`cursor` must appear only once."),
        (
            "stauts=sold",
            "unknown_parameter",
            "`stauts` is not a query parameter of this operation: did you mean `status`?",
        ),
        (
            "Status=sold",
            "unknown_parameter",
            "`Status` is not a query parameter of this operation: did you mean `status`?",
        ),
        (
            "lmit=5",
            "unknown_parameter",
            "`lmit` is not a query parameter of this operation: did you mean `limit`?",
        ),
        (
            "ids=1",
            "unknown_parameter",
            "`ids` is not a query parameter of this operation: did you mean `id`?",
        ),
        (
            "=5",
            "unknown_parameter",
            "`` is not a query parameter of this operation: the parameters are `limit`, `status`, `categoryId`, \
             `id`, `reference`, `cursor` and `sort`.",
        ),
        (
            "page=2",
            "unknown_parameter",
            "`page` is not a query parameter of this operation: the parameters are `limit`, `status`, `categoryId`, \
             `id`, `reference`, `cursor` and `sort`.",
        ),
    ] {
        let answer = service.client.get(&format!("/v1/pets?{query}")).await;
        let field = message.split('`').nth(1).unwrap();
        let error = json!({"code": code, "message": message, "status": 400, "field": field});
        assert_eq!(answer.json(), error, "{query}");
        assert_eq!(answer.status, 400, "{query}");
    }
}

#[tokio::test]
async fn list_pets_accepts_an_empty_query() {
    let service = TestService::start().await;
    for query in ["?", "?&", ""] {
        assert_eq!(service.client.get(&format!("/v1/pets{query}")).await.status, 200, "{query}");
    }
}
