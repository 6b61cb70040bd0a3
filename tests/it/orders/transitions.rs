//! The state transitions of pets and orders. The tables in `docs/orders.md` are checked cell by cell, against the domain
//! and against the service. The state diagram is drawn from them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use petstore_domain::metadata::Metadata;
use petstore_domain::order::{NewOrder, OrderEnd};
use petstore_domain::pet::{CategoryId, PatchError, Pet, PetPatch, PetStatus};
use reqwest::Method;
use serde_json::json;

use crate::support::repository::{ROOT, read};
use crate::support::wait::eventually;
use crate::support::{Answer, Client, TestService};

/// The state of a row, the transition of a column, and the outcome.
type Cell = (String, String, String);

/// The cells, except the empty ones, of the table with this first heading.
fn table(heading: &str) -> Vec<Cell> {
    let page = read("docs/orders.md");
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect()
    };
    let mut lines = page.lines().skip_while(|line| !line.starts_with(&format!("| {heading} |")));
    let transitions = cells(lines.next().unwrap());
    let rows = lines.skip(1).take_while(|line| line.starts_with('|')).map(cells);
    rows.flat_map(|row| {
        let transitions = transitions.clone().into_iter().zip(row.clone()).skip(1);
        transitions.map(move |(what, outcome)| (row[0].clone(), what, outcome)).collect::<Vec<_>>()
    })
    .filter(|(_, _, outcome)| !outcome.is_empty())
    .collect()
}

fn is_code(outcome: &str) -> bool {
    outcome.contains('_')
}

/// The status of a pet in a state, and whether it has an open order.
fn parts(state: &str) -> (Option<PetStatus>, bool) {
    match state {
        "no status" => (None, false),
        "ordered" => (Some(PetStatus::Pending), true),
        status => (Some(status.parse().unwrap()), false),
    }
}

fn state(status: Option<PetStatus>, has_open_order: bool) -> &'static str {
    match status {
        None => "no status",
        Some(_) if has_open_order => "ordered",
        Some(status) => status.as_str(),
    }
}

#[test]
fn the_tables_cover_every_state_and_every_transition() {
    let pets = table("pet");
    assert_eq!(pets.len(), 5 * 4 + 3);
    assert_eq!(table("order").len(), 4 * 2 + 1);
    for from in ["no status", "available", "pending", "sold"] {
        for to in ["available", "pending", "sold"] {
            let cell = pets.iter().find(|(state, what, _)| state == from && *what == format!("set {to}"));
            let allowed = (from, to) != ("sold", "pending");
            assert_eq!(cell.unwrap().2, if allowed { to } else { "invalid_transition" });
        }
    }
}

#[test]
fn the_domain_follows_the_table_of_pets() {
    for (from, what, outcome) in table("pet") {
        let (status, has_open_order) = parts(&from);
        let found = match what.as_str() {
            "placeOrder" => {
                let pet_id = 7.try_into().unwrap();
                let order = NewOrder { pet_id, reference: None, hold: None, metadata: Metadata::default() };
                match order.decide(status, has_open_order, None) {
                    Ok((_, status)) => state(Some(status), true),
                    Err(_) => "pet_not_available",
                }
            }
            "completeOrder" => state(OrderEnd::Complete.pet_status(status), false),
            "cancelOrder" => state(OrderEnd::Cancel.pet_status(status), false),
            "expiry" => state(OrderEnd::Expire.pet_status(status), false),
            set => {
                let name = "Rex".to_owned().try_into().unwrap();
                let pet = Pet {
                    id: 7.try_into().unwrap(),
                    name,
                    category_id: CategoryId(1),
                    status,
                    reference: None,
                    metadata: Metadata::default(),
                };
                let to = set.trim_start_matches("set ").parse().unwrap();
                let patch = PetPatch { status: Some(to), ..PetPatch::default() };
                match patch.apply(&pet, has_open_order) {
                    Ok(pet) => state(pet.status, has_open_order),
                    Err(PatchError::OpenOrder) => "pet_has_open_order",
                    Err(PatchError::Move { .. }) => "invalid_transition",
                    Err(PatchError::Metadata(error)) => panic!("{error}"),
                }
            }
        };
        assert_eq!(found, outcome, "{from}: {what}");
    }
}

#[test]
fn the_domain_follows_the_table_of_orders() {
    for (from, what, outcome) in table("order") {
        let end = match what.as_str() {
            "completeOrder" => OrderEnd::Complete,
            "cancelOrder" => OrderEnd::Cancel,
            _ => OrderEnd::Expire,
        };
        let allowed = end.decide(from.parse().unwrap()).is_ok();
        assert_eq!(
            if allowed { end.status().as_str() } else { "invalid_transition" },
            outcome,
            "{from}: {what}"
        );
    }
}

async fn end(client: &Client, order: i64, what: &str) -> Answer {
    let path = format!("/v1/store/orders/{order}/{}", what.trim_end_matches("Order"));
    client.send(Method::POST, &path, |request| request).await
}

async fn place(client: &Client, pet: i64) -> Answer {
    client.post("/v1/store/orders", &json!({"petId": pet})).await
}

/// Waits until the order has expired, and returns it.
async fn expiry(client: &Client, order: i64) -> Answer {
    let path = format!("/v1/store/orders/{order}");
    eventually("the order expires", async || client.get(&path).await.json()["status"] == "expired").await;
    client.get(&path).await
}

/// The state of a pet, according to the service.
async fn state_of(client: &Client, pet: i64) -> &'static str {
    let body = client.get(&format!("/v1/pets/{pet}")).await.json();
    let status = body.get("status").map(|status| status.as_str().unwrap().parse().unwrap());
    let open = client.get(&format!("/v1/store/orders?petId={pet}&status=placed")).await.ids();
    state(status, !open.is_empty())
}

#[tokio::test]
async fn the_service_follows_the_table_of_pets() {
    let service = TestService::start_with(&["--order-hold=168h"]).await;
    let client = &service.client;
    for (from, what, outcome) in table("pet") {
        let (status, has_open_order) = parts(&from);
        let pet = client
            .add("Rex", if has_open_order { Some("available") } else { status.map(PetStatus::as_str) })
            .await;
        let mut order = 0;
        if has_open_order {
            let mut new = json!({"petId": pet});
            if what == "expiry" {
                new["holdSeconds"] = 2.into();
            }
            order = client.post("/v1/store/orders", &new).await.json()["id"].as_i64().unwrap();
        }
        assert_eq!(state_of(client, pet).await, from);
        let answer = match what.as_str() {
            "placeOrder" => place(client, pet).await,
            "completeOrder" | "cancelOrder" => end(client, order, &what).await,
            "expiry" => expiry(client, order).await,
            set => client.patch_pet(pet, &json!({"status": set.trim_start_matches("set ")})).await,
        };
        if is_code(&outcome) {
            assert_eq!(answer.error(), (409, outcome), "{from}: {what}");
            assert_eq!(state_of(client, pet).await, from, "{from}: {what}");
        } else {
            assert!(answer.status < 300, "{from}: {what}: {answer:?}");
            assert_eq!(state_of(client, pet).await, outcome, "{from}: {what}");
        }
    }
}

#[tokio::test]
async fn the_service_follows_the_table_of_orders() {
    let service = TestService::start_with(&["--order-hold=168h"]).await;
    let client = &service.client;
    for (from, what, outcome) in table("order") {
        let pet = client.add("Rex", Some("available")).await;
        let mut new = json!({"petId": pet});
        if from == "expired" || what == "expiry" {
            new["holdSeconds"] = 1.into();
        }
        let order = client.post("/v1/store/orders", &new).await.json()["id"].as_i64().unwrap();
        match from.as_str() {
            "expired" => drop(expiry(client, order).await),
            "completed" => assert_eq!(end(client, order, "completeOrder").await.status, 200),
            "cancelled" => assert_eq!(end(client, order, "cancelOrder").await.status, 200),
            _ => {}
        }
        let before = client.get(&format!("/v1/store/orders/{order}")).await;
        let answer = match what.as_str() {
            "expiry" => expiry(client, order).await,
            end_order => end(client, order, end_order).await,
        };
        let after = client.get(&format!("/v1/store/orders/{order}")).await;
        if is_code(&outcome) {
            assert_eq!(answer.error(), (409, outcome), "{from}: {what}");
            assert_eq!(after.body, before.body);
        } else {
            assert_eq!(answer.json()["status"], *outcome, "{from}: {what}");
            assert_eq!(answer.body, after.body, "{from}: {what}");
            assert!(from == "placed" || answer.body == before.body, "repeating changes nothing");
        }
    }
}

/// The position of each state in the diagram.
const POSITIONS: [(&str, f64, f64); 5] = [
    ("no status", 90.0, 60.0),
    ("available", 90.0, 230.0),
    ("pending", 390.0, 120.0),
    ("ordered", 390.0, 340.0),
    ("sold", 690.0, 230.0),
];
/// The position of each state of an order, below those of a pet.
const ORDER_POSITIONS: [(&str, f64, f64); 4] = [
    ("placed", 90.0, 510.0),
    ("completed", 690.0, 450.0),
    ("cancelled", 690.0, 510.0),
    ("expired", 690.0, 570.0),
];
const HALF: (f64, f64) = (78.0, 22.0);

/// The colours of the diagram in dark mode. Those in light mode are attributes, which also apply where the style is not allowed.
const DARK: &str = "<style>@media (prefers-color-scheme: dark) { \
    .page { fill: #1a1c20 } \
    .box { fill: #22252a; stroke: #e8e9ec } \
    .state, .caption { fill: #e8e9ec } \
    .line { stroke: #a7adb8 } \
    .head { fill: #a7adb8 } \
    .patch, .operation { stroke: #1a1c20 } \
    .patch { fill: #a7adb8 } \
    .operation { fill: #7fd6a0 } \
    }</style>\n";

/// The state diagrams of a pet and of an order, as SVG: an arrow for every transition.
fn diagram() -> String {
    let mut arrows: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for (from, what, to) in table("pet") {
        if !is_code(&to) && from != to {
            let by = if what.starts_with("set ") { "PATCH".to_owned() } else { what };
            arrows.entry((from, to)).or_default().push(by);
        }
    }
    for (from, what, to) in table("order") {
        if !is_code(&to) && from != to {
            arrows.entry((from, to)).or_default().push(what);
        }
    }
    let mut svg = String::from(concat!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 780 610" font-family="system-ui, sans-serif" font-size="14">"##,
        "\n",
        r##"<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto"><path class="head" d="M0 0 10 5 0 10z" fill="#475569"/></marker></defs>"##,
        "\n",
        r##"<rect class="page" width="780" height="610" rx="12" fill="#ffffff"/>"##,
        "\n",
    ));
    svg += DARK;
    for (caption, y) in [("Pet", 24), ("Order", 430)] {
        writeln!(svg, r##"<text class="caption" x="14" y="{y}" fill="#0f172a">{caption}</text>"##).unwrap();
    }
    let boxes = POSITIONS.into_iter().chain(ORDER_POSITIONS);
    let position = |state: &str| {
        let (_, x, y) = boxes.clone().find(|(name, _, _)| *name == state).unwrap();
        (x, y)
    };
    let mut labels = String::new();
    for ((from, to), by) in &arrows {
        let ((x1, y1), (x2, y2)) = (position(from), position(to));
        let (dx, dy) = (x2 - x1, y2 - y1);
        let length = dx.hypot(dy);
        // To the side of the straight line, so that the arrow back is separate.
        let bend = match (from.as_str(), to.as_str()) {
            ("no status", "sold") => -0.28 * length,
            ("placed", _) => 0.0,
            _ => -26.0,
        };
        let (cx, cy) =
            (f64::midpoint(x1, x2) - dy / length * bend, f64::midpoint(y1, y2) + dx / length * bend);
        let ((sx, sy), (ex, ey)) = (on_edge((x1, y1), (cx, cy)), on_edge((x2, y2), (cx, cy)));
        writeln!(
            svg,
            r##"<path class="line" d="M{sx:.0} {sy:.0} Q{cx:.0} {cy:.0} {ex:.0} {ey:.0}" fill="none" stroke="#475569" stroke-width="1.5" marker-end="url(#head)"/>"##
        )
        .unwrap();
        let (lx, ly) = (0.25 * sx + 0.5 * cx + 0.25 * ex, 0.25 * sy + 0.5 * cy + 0.25 * ey);
        let is_patch = by.iter().any(|by| by == "PATCH");
        let (class, colour) = if is_patch { ("patch", "#64748b") } else { ("operation", "#0f766e") };
        writeln!(
            labels,
            r##"<text class="{class}" x="{lx:.0}" y="{:.0}" text-anchor="middle" fill="{colour}" stroke="#ffffff" stroke-width="6" paint-order="stroke">{}</text>"##,
            ly + 5.0,
            by.join(", ")
        )
        .unwrap();
    }
    svg += &labels;
    for (state, x, y) in boxes {
        let (dash, label) = match state {
            "no status" => (r#" stroke-dasharray="5 4""#, "no status"),
            "ordered" => ("", "pending, ordered"),
            status => ("", status),
        };
        let (left, top, width, height) = (x - HALF.0, y - HALF.1, 2.0 * HALF.0, 2.0 * HALF.1);
        writeln!(
            svg,
            r##"<rect class="box" x="{left}" y="{top}" width="{width}" height="{height}" rx="10" fill="#f1f5f9" stroke="#0f172a"{dash}/><text class="state" x="{x}" y="{}" text-anchor="middle" font-weight="600" fill="#0f172a">{label}</text>"##,
            y + 5.0
        )
        .unwrap();
    }
    svg + "</svg>\n"
}

/// The point where the line from the centre of a state to a point leaves its box.
fn on_edge((x, y): (f64, f64), (to_x, to_y): (f64, f64)) -> (f64, f64) {
    let (dx, dy) = (to_x - x, to_y - y);
    let share = (HALF.0 / dx.abs()).min(HALF.1 / dy.abs());
    (x + dx * share, y + dy * share)
}

#[test]
fn the_picture_is_drawn_from_the_table() {
    let file = Path::new(ROOT).join("docs/img/states.svg");
    if std::env::var_os("INSTA_UPDATE").is_some_and(|update| update == "always") {
        std::fs::write(&file, diagram()).unwrap();
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(committed, diagram(), "run `make generate NAME=states`");
}
