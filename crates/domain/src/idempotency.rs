//! Idempotency keys: a request takes effect once, however often the client sends it.

use std::str::FromStr;

use sha2::{Digest, Sha256};
use thiserror::Error;

use super::change::Change;
use super::key_record::KeyId;
use super::metadata::{Metadata, MetadataPatch};
use super::order::{HoldDuration, NewOrder, OrderEnd, OrderId, OrderPatch};
use super::pet::{NewPet, PetId, PetName, PetPatch, PetStatus};
use super::reference::Reference;

/// The client's name for a request that it may retry: 1 to 255 visible ASCII characters.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(String);

/// The text is not an idempotency key.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("must be 1 to 255 visible ASCII characters")]
pub struct IdempotencyKeyError;

impl FromStr for IdempotencyKey {
    type Err = IdempotencyKeyError;

    fn from_str(text: &str) -> Result<Self, IdempotencyKeyError> {
        let visible = text.bytes().all(|byte| byte.is_ascii_graphic());
        if visible && (1..=255).contains(&text.len()) {
            Ok(Self(text.to_owned()))
        } else {
            Err(IdempotencyKeyError)
        }
    }
}

/// The first 128 bits of a SHA-256.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest128(pub [u8; 16]);

impl From<Sha256> for Digest128 {
    fn from(hasher: Sha256) -> Self {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hasher.finalize()[..16]);
        Self(bytes)
    }
}

/// What is stored of a request: its identity and its content.
///
/// **Frozen:** during an upgrade, nodes of two versions must compute the same values for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdempotentRequest {
    /// Identifies the request: the lineage of the API key, the operation and the idempotency key.
    pub digest: Digest128,
    /// Identifies the content.
    pub fingerprint: Digest128,
}

impl IdempotentRequest {
    /// A request to add a pet.
    #[must_use]
    pub fn create_pet(lineage: KeyId, key: &IdempotencyKey, new: &NewPet) -> Self {
        let NewPet { name, category_id, status, reference, metadata } = new;
        let mut content = Sha256::new();
        // The values, not their spelling: `7` and `7.0` are the same request.
        content.update(category_id.0.to_be_bytes());
        content.update(status.map_or("", |status| status.as_str()));
        content.update([0]);
        content.update(name.as_str());
        // A pet without one has the fingerprint that it had before references existed.
        if let Some(reference) = reference {
            content.update([0]);
            content.update(reference.as_str());
        }
        add_metadata(&mut content, metadata);
        Self { digest: Self::digest(lineage, "createPet", key), fingerprint: content.into() }
    }

    /// A request to place an order.
    #[must_use]
    pub fn place_order(lineage: KeyId, key: &IdempotencyKey, new: &NewOrder) -> Self {
        let NewOrder { pet_id, reference, hold, metadata } = new;
        let mut content = Sha256::new().chain_update(pet_id.get().to_be_bytes());
        // An order with none of them has the fingerprint that it had before they existed.
        if reference.is_some() || hold.is_some() || !metadata.is_empty() {
            content.update(hold.map_or(0, HoldDuration::seconds).to_be_bytes());
            content.update(reference.as_ref().map_or("", Reference::as_str));
        }
        add_metadata(&mut content, metadata);
        Self { digest: Self::digest(lineage, "placeOrder", key), fingerprint: content.into() }
    }

    /// A request to complete or cancel an order.
    #[must_use]
    pub fn end_order(lineage: KeyId, key: &IdempotencyKey, order: OrderId, end: OrderEnd) -> Self {
        let operation = match end {
            OrderEnd::Complete => "completeOrder",
            OrderEnd::Cancel => "cancelOrder",
            OrderEnd::Expire => "expireOrder",
        };
        let content = Sha256::new().chain_update(order.get().to_be_bytes());
        Self { digest: Self::digest(lineage, operation, key), fingerprint: content.into() }
    }

    /// A request to change a pet.
    #[must_use]
    pub fn update_pet(lineage: KeyId, key: &IdempotencyKey, pet: PetId, patch: &PetPatch) -> Self {
        let PetPatch { name, category_id, status, reference, metadata } = patch;
        let mut content = PatchContent::of(pet.get());
        content.set(b'n', name.as_ref().map(PetName::as_str));
        content.set(b'c', category_id.map(|category| category.0.to_be_bytes()));
        content.set(b's', status.map(PetStatus::as_str));
        content.change(b'r', reference, |reference| reference.as_str().into());
        content.change(b'm', metadata, metadata_changes);
        Self { digest: Self::digest(lineage, "updatePet", key), fingerprint: content.0.into() }
    }

    /// A request to delete a pet.
    #[must_use]
    pub fn delete_pet(lineage: KeyId, key: &IdempotencyKey, pet: PetId) -> Self {
        let content = Sha256::new().chain_update(pet.get().to_be_bytes());
        Self { digest: Self::digest(lineage, "deletePet", key), fingerprint: content.into() }
    }

    /// A request to change an order.
    #[must_use]
    pub fn update_order(lineage: KeyId, key: &IdempotencyKey, order: OrderId, patch: &OrderPatch) -> Self {
        let OrderPatch { hold, reference, metadata } = patch;
        let mut content = PatchContent::of(order.get());
        content.set(b'h', hold.map(|hold| hold.seconds().to_be_bytes()));
        content.change(b'r', reference, |reference| reference.as_str().into());
        content.change(b'm', metadata, metadata_changes);
        Self { digest: Self::digest(lineage, "updateOrder", key), fingerprint: content.0.into() }
    }

    fn digest(lineage: KeyId, operation: &str, key: &IdempotencyKey) -> Digest128 {
        let mut digest = Sha256::new();
        digest.update(lineage.0.to_be_bytes());
        digest.update(operation);
        digest.update([0]);
        digest.update(&key.0);
        digest.into()
    }
}

/// Adds the members in the order of their names, separated by characters that no text has. None of them adds nothing.
fn add_metadata(content: &mut Sha256, metadata: &Metadata) {
    for (name, value) in metadata.iter() {
        content.update([1]);
        content.update(name);
        content.update([0]);
        content.update(value);
    }
}

/// Hashes a patch: the id, and each member that the patch has. A member that is absent adds nothing, so that a patch keeps its
/// fingerprint when there are more members. What is `null` differs from what is absent or empty.
struct PatchContent(Sha256);

impl PatchContent {
    fn of(id: i64) -> Self {
        Self(Sha256::new().chain_update(id.to_be_bytes()))
    }

    /// Each member has a letter of its own, and its length comes before it: no two patches hash the same bytes.
    fn set(&mut self, member: u8, value: Option<impl AsRef<[u8]>>) {
        let Some(value) = value else { return };
        let value = value.as_ref();
        self.0.update([member, 1]);
        self.0.update((value.len() as u64).to_be_bytes());
        self.0.update(value);
    }

    fn change<T>(&mut self, member: u8, change: &Change<T>, bytes: impl FnOnce(&T) -> Vec<u8>) {
        match change {
            Change::Keep => {}
            Change::Remove => self.0.update([member, 0]),
            Change::Set(value) => self.set(member, Some(bytes(value))),
        }
    }
}

/// The changes in the order of their names, separated by characters that no text has.
fn metadata_changes(patch: &MetadataPatch) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in patch.iter() {
        bytes.push(1);
        bytes.extend(name.as_bytes());
        if let Some(value) = value {
            bytes.push(0);
            bytes.extend(value.as_bytes());
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::pet::CategoryId;

    fn key(text: &str) -> IdempotencyKey {
        text.parse().unwrap()
    }

    fn rex(category: i64, status: Option<PetStatus>) -> NewPet {
        let name = PetName::try_from("Rex".to_owned()).unwrap();
        NewPet {
            name,
            category_id: CategoryId(category),
            status,
            reference: None,
            metadata: Metadata::default(),
        }
    }

    #[test]
    fn an_idempotency_key_is_visible_ascii() {
        for good in ["7", "a-b_c.d~e", "\"quoted\"", &"x".repeat(255)] {
            assert!(good.parse::<IdempotencyKey>().is_ok(), "{good}");
        }
        for bad in ["", " ", "a b", "a\tb", "é", "\u{7f}", &"x".repeat(256)] {
            assert_eq!(bad.parse::<IdempotencyKey>(), Err(IdempotencyKeyError), "{bad:?}");
        }
    }

    #[test]
    fn requests_differ_by_caller_key_and_content() {
        let request =
            |caller, text, new: &NewPet| IdempotentRequest::create_pet(KeyId(caller), &key(text), new);
        let first = request(1, "a", &rex(1, None));
        assert_eq!(first, request(1, "a", &rex(1, None)));
        assert_ne!(first.digest, request(2, "a", &rex(1, None)).digest);
        assert_ne!(first.digest, request(1, "b", &rex(1, None)).digest);
        let others = [
            rex(2, None),
            rex(1, Some(PetStatus::Sold)),
            NewPet { name: PetName::try_from("Max".to_owned()).unwrap(), ..rex(1, None) },
            NewPet { reference: Some("a".to_owned().try_into().unwrap()), ..rex(1, None) },
            NewPet { reference: Some(r#"{"a":"b"}"#.to_owned().try_into().unwrap()), ..rex(1, None) },
            NewPet { metadata: metadata(&[("a", "b")]), ..rex(1, None) },
            NewPet { metadata: metadata(&[("a", "c")]), ..rex(1, None) },
            NewPet { metadata: metadata(&[("a", "b"), ("b", "c")]), ..rex(1, None) },
        ];
        let mut fingerprints = HashSet::from([first.fingerprint]);
        for other in others {
            let other = request(1, "a", &other);
            assert_eq!(first.digest, other.digest);
            assert!(fingerprints.insert(other.fingerprint));
        }
    }

    fn metadata(members: &[(&str, &str)]) -> Metadata {
        Metadata::from_stored(
            members.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
        )
    }

    fn order_of_pet_7(reference: Option<&str>, hold: Option<i64>) -> NewOrder {
        NewOrder {
            pet_id: 7.try_into().unwrap(),
            reference: reference.map(|text| text.to_owned().try_into().unwrap()),
            hold: hold.map(|seconds| seconds.try_into().unwrap()),
            metadata: Metadata::default(),
        }
    }

    #[test]
    fn orders_differ_by_reference_and_hold() {
        let orders =
            [(None, None), (Some("a"), None), (Some("b"), None), (None, Some(60)), (Some("a"), Some(60))];
        let fingerprints: HashSet<[u8; 16]> = orders
            .into_iter()
            .map(|(reference, hold)| order_of_pet_7(reference, hold))
            .chain([NewOrder { metadata: metadata(&[("a", "b")]), ..order_of_pet_7(None, None) }])
            .map(|order| IdempotentRequest::place_order(KeyId(7), &key("a"), &order).fingerprint.0)
            .collect();
        assert_eq!(fingerprints.len(), orders.len() + 1);
    }

    fn metadata_patch(changes: &[(&str, Option<&str>)]) -> Change<MetadataPatch> {
        Change::Set(MetadataPatch::of(changes))
    }

    #[test]
    fn patches_differ_by_pet_and_by_each_member_and_null_is_neither_absent_nor_empty() {
        let unchanged = PetPatch::default;
        let name = |text: &str| Some(PetName::try_from(text.to_owned()).unwrap());
        let reference = |text: &str| Change::Set(text.to_owned().try_into().unwrap());
        let patches = [
            unchanged(),
            PetPatch { name: name("a"), ..unchanged() },
            PetPatch { name: name("b"), ..unchanged() },
            PetPatch { category_id: Some(CategoryId(1)), ..unchanged() },
            PetPatch { category_id: Some(CategoryId(2)), ..unchanged() },
            PetPatch { status: Some(PetStatus::Sold), ..unchanged() },
            PetPatch { status: Some(PetStatus::Available), ..unchanged() },
            PetPatch { reference: reference("a"), ..unchanged() },
            PetPatch { reference: Change::Remove, ..unchanged() },
            PetPatch { metadata: Change::Remove, ..unchanged() },
            PetPatch { metadata: metadata_patch(&[]), ..unchanged() },
            PetPatch { metadata: metadata_patch(&[("a", None)]), ..unchanged() },
            PetPatch { metadata: metadata_patch(&[("a", Some("b"))]), ..unchanged() },
            PetPatch { metadata: metadata_patch(&[("a", Some("b")), ("b", None)]), ..unchanged() },
            PetPatch { metadata: metadata_patch(&[("a", None), ("b", Some("b"))]), ..unchanged() },
        ];
        let mut fingerprints = HashSet::new();
        for pet in [7, 8] {
            for patch in &patches {
                let pet = PetId::try_from(pet).unwrap();
                let request = IdempotentRequest::update_pet(KeyId(7), &key("a"), pet, patch);
                assert!(fingerprints.insert(request.fingerprint), "{pet:?}: {patch:?}");
            }
        }
    }

    #[test]
    fn patches_of_orders_differ_by_each_member() {
        let reference = |text: &str| text.to_owned().try_into().unwrap();
        let unchanged = OrderPatch::default();
        let patches = [
            unchanged.clone(),
            OrderPatch { hold: 60.try_into().ok(), ..unchanged.clone() },
            OrderPatch { hold: 61.try_into().ok(), ..unchanged.clone() },
            OrderPatch { reference: Change::Remove, ..unchanged.clone() },
            OrderPatch { reference: Change::Set(reference("a")), ..unchanged.clone() },
            OrderPatch { metadata: Change::Remove, ..unchanged.clone() },
            OrderPatch { metadata: metadata_patch(&[]), ..unchanged },
        ];
        let order = OrderId::try_from(7).unwrap();
        let fingerprint =
            |patch| IdempotentRequest::update_order(KeyId(7), &key("a"), order, patch).fingerprint;
        let fingerprints: HashSet<Digest128> = patches.iter().map(fingerprint).collect();
        assert_eq!(fingerprints.len(), patches.len());
    }

    #[test]
    fn digests_and_fingerprints_are_frozen() {
        let request =
            IdempotentRequest::create_pet(KeyId(7), &key("order-4711"), &rex(3, Some(PetStatus::Available)));
        let hex = |hash: Digest128| hash.0.map(|byte| format!("{byte:02x}")).concat();
        assert_eq!(hex(request.digest), "0c1a333f4c3eb9fca0107291fdd5c1c9");
        assert_eq!(hex(request.fingerprint), "190a96dd84a7104b8dbb7a80ed29896e");
        let order = OrderId::try_from(7).unwrap();
        let orders = [
            IdempotentRequest::place_order(KeyId(7), &key("order-4711"), &order_of_pet_7(None, None)),
            IdempotentRequest::end_order(KeyId(7), &key("order-4711"), order, OrderEnd::Complete),
            IdempotentRequest::end_order(KeyId(7), &key("order-4711"), order, OrderEnd::Cancel),
        ];
        assert_eq!(orders.map(|request| hex(request.fingerprint)), ["a3eb8db89fc5123ccfd49585059f292b"; 3]);
        assert_eq!(
            orders.map(|request| hex(request.digest)),
            [
                "76f26e09bf35e3985c16ea068f7a8231",
                "8ed7bd2d4e2a6fe6295e932a4bef45e2",
                "bdb845c9d0806bdc61ec45bf42689d67",
            ]
        );
        let pet = PetId::try_from(7).unwrap();
        let all = PetPatch {
            name: Some("Rex".to_owned().try_into().unwrap()),
            category_id: Some(CategoryId(3)),
            metadata: metadata_patch(&[("note", None), ("price", Some("129.00"))]),
            reference: Change::Remove,
            status: None,
        };
        let changes = [
            IdempotentRequest::update_pet(KeyId(7), &key("order-4711"), pet, &all),
            IdempotentRequest::delete_pet(KeyId(7), &key("order-4711"), pet),
            IdempotentRequest::update_order(KeyId(7), &key("order-4711"), order, &OrderPatch::default()),
        ];
        assert_eq!(
            changes.map(|request| (hex(request.digest), hex(request.fingerprint))),
            [
                (
                    "2157916f3ed301252c7ebcdaf03593c4".to_owned(),
                    "53b61959c6aa4d114f9e82160505cdb6".to_owned()
                ),
                (
                    "17df002dffe7ccbf39aafeaf3e902ba8".to_owned(),
                    "a3eb8db89fc5123ccfd49585059f292b".to_owned()
                ),
                (
                    "3585637149f4a070f02ff79293b91570".to_owned(),
                    "a3eb8db89fc5123ccfd49585059f292b".to_owned()
                ),
            ]
        );
    }
}
