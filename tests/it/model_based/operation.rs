//! The operations of the interface, as requests that can be sent again at any time.
//!
//! A pet or an order is named by the number of the step that created it, so that a shortened history still means the same.

use reqwest::Method;
use serde_json::Value;

/// The number of a step.
pub(super) type Number = usize;

/// Names a pet or an order that does not exist.
pub(super) const NEVER_CREATED: Number = usize::MAX;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Operation {
    CreatePet(Value),
    UpdatePet(Number, Value),
    DeletePet(Number),
    GetPet(Number),
    /// The pets, and the status that they must have.
    FindPets(Vec<Number>, Option<&'static str>),
    /// The pet, and the other members of the body.
    PlaceOrder(Number, Value),
    CompleteOrder(Number),
    CancelOrder(Number),
    UpdateOrder(Number, Value),
    GetOrder(Number),
    /// The pet, and the status that its orders must have.
    ListOrders(Number, Option<&'static str>),
    ListNewEvents,
}

impl Operation {
    /// The scope, the method, the path and the body. `id` returns the id of a pet or an order.
    pub(super) fn http(
        &self,
        id: &dyn Fn(Number) -> String,
    ) -> (&'static str, Method, String, Option<String>) {
        let pet = |number: &Number| format!("/pets/{}", id(*number));
        let order = |number: &Number| format!("/store/orders/{}", id(*number));
        let (scope, method, path, body) = match self {
            Self::CreatePet(new) => ("pets:write", Method::POST, "/pets".into(), Some(new.to_string())),
            Self::UpdatePet(of, patch) => ("pets:write", Method::PATCH, pet(of), Some(patch.to_string())),
            Self::DeletePet(of) => ("pets:write", Method::DELETE, pet(of), None),
            Self::GetPet(of) => ("pets:read", Method::GET, pet(of), None),
            Self::FindPets(of, status) => {
                let ids: Vec<String> = of.iter().map(|number| format!("id={}", id(*number))).collect();
                let status = status.map(|status| format!("&status={status}")).unwrap_or_default();
                ("pets:read", Method::GET, format!("/pets?{}{status}", ids.join("&")), None)
            }
            Self::PlaceOrder(of, new) => {
                let members = new.to_string().replacen('{', &format!("{{\"petId\":{},", id(*of)), 1);
                let body = members.replace(",}", "}");
                ("orders:write", Method::POST, "/store/orders".into(), Some(body))
            }
            Self::CompleteOrder(of) => ("orders:write", Method::POST, order(of) + "/complete", None),
            Self::CancelOrder(of) => ("orders:write", Method::POST, order(of) + "/cancel", None),
            Self::UpdateOrder(of, patch) => {
                ("orders:write", Method::PATCH, order(of), Some(patch.to_string()))
            }
            Self::GetOrder(of) => ("orders:read", Method::GET, order(of), None),
            Self::ListOrders(of, status) => {
                let status = status.map(|status| format!("&status={status}")).unwrap_or_default();
                ("orders:read", Method::GET, format!("/store/orders?petId={}{status}", id(*of)), None)
            }
            Self::ListNewEvents => ("events:read", Method::GET, "/events?after=now".into(), None),
        };
        (scope, method, format!("/v1{path}"), body)
    }

    /// The scope that a key needs.
    pub(super) fn scope(&self) -> &'static str {
        self.http(&|_| String::new()).0
    }

    /// Whether the operation changes nothing.
    pub(super) fn is_safe(&self) -> bool {
        self.http(&|_| String::new()).1 == Method::GET
    }

    /// The pets and orders that the request names. It is sent with their tags, unless `generator::tag` adds those of others: the tags
    /// of a list of orders are not those of the pet that the request names.
    pub(super) fn names(&self) -> Vec<Number> {
        let names = std::cell::RefCell::new(Vec::new());
        self.http(&|number| {
            names.borrow_mut().push(number);
            String::new()
        });
        names.into_inner()
    }
}

/// A request of a client.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Request {
    /// An index into [`CLIENTS`].
    pub(super) client: usize,
    pub(super) operation: Operation,
    /// Which `Idempotency-Key` is sent. All clients and operations use the same ones.
    pub(super) key: Option<usize>,
    /// The step whose answer had the tag that is sent: in `If-None-Match` by an operation that changes nothing, otherwise in
    /// `If-Match`.
    pub(super) tag: Option<Number>,
}

/// A client with an API key.
pub(super) struct KeyOfClient {
    /// Keys of one lineage share their idempotency keys.
    pub(super) lineage: usize,
    pub(super) scopes: &'static [&'static str],
}

const ALL_SCOPES: &[&str] = &["pets:read", "pets:write", "orders:read", "orders:write", "events:read"];

/// The second is the successor of the first.
pub(super) const CLIENTS: [KeyOfClient; 5] = [
    KeyOfClient { lineage: 0, scopes: ALL_SCOPES },
    KeyOfClient { lineage: 0, scopes: ALL_SCOPES },
    KeyOfClient { lineage: 1, scopes: ALL_SCOPES },
    KeyOfClient { lineage: 2, scopes: &["pets:read", "pets:write"] },
    KeyOfClient { lineage: 3, scopes: &["pets:read", "orders:read", "events:read"] },
];

/// What somebody does in psql, and what time does.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Sql {
    /// Writes the row of a pet again, as it is.
    TouchPet(Number),
    ChangePet(Number),
    /// Sets the status of a pet, also while the pet is ordered.
    SetStatus(Number, &'static str),
    /// Locks the row of a pet for a moment.
    LockPet(Number),
    AnnotateOrder(Number),
    /// An hour passes for an order. If it is due then, it expires.
    AgeOrder(Number),
    /// More than a day passes for all idempotency keys.
    ForgetKeys,
    Freeze,
}

impl Sql {
    /// `id` returns the id of a pet or an order.
    pub(super) fn statement(&self, id: &dyn Fn(Number) -> String) -> String {
        match self {
            Self::TouchPet(pet) => format!("UPDATE pets SET name = name WHERE id = {}", id(*pet)),
            Self::ChangePet(pet) => {
                format!("UPDATE pets SET category_id = category_id + 1 WHERE id = {}", id(*pet))
            }
            Self::SetStatus(pet, status) => {
                format!("UPDATE pets SET status = '{status}' WHERE id = {}", id(*pet))
            }
            Self::LockPet(pet) => format!("SELECT id FROM pets WHERE id = {} FOR UPDATE", id(*pet)),
            Self::AnnotateOrder(order) => {
                format!("UPDATE orders SET metadata = '{{\"note\": \"psql\"}}' WHERE id = {}", id(*order))
            }
            Self::AgeOrder(order) => format!(
                "UPDATE orders SET created_at = created_at - interval '1 hour', updated_at = updated_at - interval '1 hour', \
                 expires_at = expires_at - interval '1 hour' WHERE id = {}",
                id(*order)
            ),
            Self::ForgetKeys => {
                "DELETE FROM idempotency_keys WHERE kept_on <> (now() AT TIME ZONE 'UTC')::date; \
                 UPDATE idempotency_keys SET kept_on = kept_on - 1, used_at = used_at - interval '25 hours'"
                    .into()
            }
            Self::Freeze => "VACUUM (FREEZE) pets, orders".into(),
        }
    }

    /// The pets and orders that the statement names.
    pub(super) fn names(&self) -> Vec<Number> {
        let names = std::cell::RefCell::new(Vec::new());
        self.statement(&|number| {
            names.borrow_mut().push(number);
            String::new()
        });
        names.into_inner()
    }
}

/// One step of a history.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) number: Number,
    /// The node that gets the request: 0 or 1.
    pub(super) node: usize,
    pub(super) action: Action,
}

#[derive(Debug, Clone)]
pub(super) enum Action {
    Send(Request),
    /// Sends the request of an earlier step again, exactly as it was.
    Repeat(Number),
    Sql(Sql),
}
