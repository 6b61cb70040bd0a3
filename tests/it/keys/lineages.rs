//! The keys of a lineage: which of them works, until when, and what they share.
//!
//! Up to release 1.2.0, a key could be rotated more than once. So the tests also split lineages as those releases did.

use std::process::{Child, Stdio};

use jiff::Timestamp;
use petstore_domain::api_key::ApiKey;
use serde_json::{Value, json};
use tokio_postgres::Client as Session;

use super::apply::Shop;
use crate::support::folder::Folder;
use crate::support::postgres::wait_for_blocked_statement;
use crate::support::program::{new_key, petstore, run};
use crate::support::{Client, TestService};

/// The statement of `petstore keys rotate` in release 1.2.0.
const ROTATE_IN_1_2_0: &str = "\
    WITH old AS (
      SELECT id, COALESCE(lineage_id, id) AS lineage_id, name, scopes,
        extract(epoch FROM expires_at) - extract(epoch FROM created_at) AS lifetime,
        rate_limit_requests, rate_limit_seconds
      FROM api_keys
      WHERE id = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())
      FOR UPDATE),
    ending AS (
      UPDATE api_keys
      SET expires_at = CASE WHEN $4::float8 > 0 THEN LEAST(api_keys.expires_at, now() + make_interval(secs => $4))
          ELSE api_keys.expires_at END,
        revoked_at = CASE WHEN $4::float8 > 0 THEN NULL ELSE now() END
      FROM old
      WHERE api_keys.id = old.id),
    new AS (
      INSERT INTO api_keys
        (name, prefix, digest, scopes, expires_at, lineage_id, rate_limit_requests, rate_limit_seconds)
      SELECT name, $2, $3, scopes,
        CASE WHEN lifetime IS NOT NULL THEN LEAST(now() + make_interval(secs => lifetime::float8), '9999-12-30 22:00:00Z') END,
        lineage_id, rate_limit_requests, rate_limit_seconds
      FROM old
      RETURNING id),
    events AS (
      INSERT INTO api_key_events (key_id, action, actor, successor_id)
      SELECT old.id, 'rotated', '1.2.0', new.id FROM old, new
      UNION ALL
      SELECT old.id, 'revoked', '1.2.0', NULL FROM old, new WHERE $4::float8 <= 0
      UNION ALL
      SELECT new.id, 'created', '1.2.0', NULL FROM new)
    SELECT id FROM new";

/// Rotates a key as release 1.2.0 did, whether it was rotated before or not. Returns the id of the successor, if the key was
/// active.
pub(super) async fn rotate_in_1_2_0(
    session: &Session,
    id: i64,
    successor: &ApiKey,
    overlap_hours: i32,
) -> Option<i64> {
    let (digest, seconds) = (successor.digest(), f64::from(overlap_hours) * 3600.0);
    let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
        [&id, &successor.prefix(), &digest.as_bytes(), &seconds];
    session.query_opt(ROTATE_IN_1_2_0, &parameters).await.unwrap().map(|row| row.get(0))
}

/// The states of all keys, in order.
fn states(shop: &Shop) -> Vec<String> {
    shop.list().iter().map(|record| record["state"].as_str().unwrap().to_owned()).collect()
}

/// The error of a command that is refused and changes nothing.
fn refused(shop: &Shop, arguments: &[&str]) -> String {
    let before = shop.content();
    let output = shop.keys(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    assert_eq!(shop.content(), before, "{arguments:?}");
    let error = String::from_utf8(output.stderr).unwrap();
    error.strip_prefix("petstore: ").unwrap().trim_end().to_owned()
}

#[tokio::test]
async fn a_key_that_was_rotated_is_not_rotated_again_and_the_error_names_the_key_to_rotate() {
    let shop = Shop::new().await;
    shop.create(&["kiosk"]);
    shop.output(&["rotate", "1", "--overlap", "24h"]);
    let again = ["rotate", "1", "--overlap", "24h"];
    assert_eq!(refused(&shop, &again), "API key 1 was rotated to 2: rotate 2 instead");
    // The new key was lost: the old one still works until the overlap ends.
    let overlap = shop.list()[0]["expiresAt"].clone();
    shop.output(&["rotate", "2", "--overlap", "0s"]);
    assert_eq!(states(&shop), ["active", "revoked", "active"]);
    assert_eq!(shop.list()[0]["expiresAt"], overlap);
    for id in ["1", "2"] {
        let error = refused(&shop, &["rotate", id, "--overlap", "0s"]);
        assert_eq!(error, format!("API key {id} was rotated to 3: rotate 3 instead"));
    }
    shop.output(&["revoke", "3"]);
    shop.output(&["revoke", "1"]);
    for id in ["1", "2", "3"] {
        let error = refused(&shop, &["rotate", id, "--overlap", "24h"]);
        assert_eq!(error, format!("no active key has the id {id}: see `petstore keys list`"));
    }
}

#[tokio::test]
async fn a_key_whose_successor_was_revoked_can_be_rotated_again_and_passes_on_its_lifetime() {
    for (expires, days) in [(&[][..], None), (&["--expires", "90d"][..], Some(90))] {
        let shop = Shop::new().await;
        shop.create(&[&["kiosk"], expires].concat());
        for successor in ["2", "3", "4"] {
            shop.output(&["rotate", "1", "--overlap", "24h"]);
            shop.output(&["revoke", successor]);
        }
        // It may have been rotated itself before it was revoked.
        shop.output(&["rotate", "1", "--overlap", "24h"]);
        shop.output(&["rotate", "5", "--overlap", "1h"]);
        shop.output(&["revoke", "6"]);
        shop.output(&["revoke", "5"]);
        shop.output(&["rotate", "1", "--overlap", "24h"]);
        for record in &shop.list()[1..] {
            let time = |member: &str| record[member].as_str().map(|text| text.parse::<Timestamp>().unwrap());
            if record["id"] == 5 {
                continue;
            }
            let lifetime = time("expiresAt")
                .map(|end| ((end - time("createdAt").unwrap()).get_seconds() + 43_200) / 86_400);
            assert_eq!(lifetime, days, "{record}");
        }
        assert_eq!(states(&shop)[0], "active");
        let overlap: Timestamp = shop.list()[0]["expiresAt"].as_str().unwrap().parse().unwrap();
        assert!(
            (overlap - Timestamp::now()).get_seconds() <= 24 * 60 * 60,
            "the first overlap still ends it"
        );
    }
}

/// Starts `petstore keys rotate`.
fn rotation(shop: &Shop, id: &str) -> Child {
    let mut command = petstore(&["keys", "rotate", id, "--overlap", "24h"]);
    command.env("DATABASE_URL", shop.database.url()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

#[tokio::test]
async fn of_two_rotations_of_a_key_at_once_one_succeeds_and_the_other_names_its_successor() {
    let shop = Shop::new().await;
    shop.create(&["kiosk"]);
    for newest in 1..=10 {
        let rotations = [0; 2].map(|_| rotation(&shop, &format!("{newest}")));
        let outputs = rotations.map(|rotation| rotation.wait_with_output().unwrap());
        let mut errors = outputs.map(|output| String::from_utf8(output.stderr).unwrap());
        errors.sort();
        let next = newest + 1;
        let refused = format!("petstore: API key {newest} was rotated to {next}: rotate {next} instead\n");
        assert_eq!(errors, [String::new(), refused]);
        assert_eq!(shop.list().len(), next);
    }
}

#[tokio::test]
async fn a_rotation_that_waits_for_one_by_an_older_release_is_refused() {
    let shop = Shop::new().await;
    shop.create(&["kiosk"]);
    let (older, watch) = (shop.database.connect().await, shop.database.connect().await);
    older.batch_execute("BEGIN").await.unwrap();
    rotate_in_1_2_0(&older, 1, &ApiKey::generate(|| 2), 24).await.unwrap();
    let waiting = rotation(&shop, "1");
    wait_for_blocked_statement(&watch).await;
    older.batch_execute("COMMIT").await.unwrap();
    let output = waiting.wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error, "petstore: API key 1 was rotated to 2: rotate 2 instead\n");
    assert_eq!(shop.list().len(), 2);
}

/// An entry of a keys' file.
fn vault(digest: &ApiKey) -> String {
    format!("[keys.vault]\nscopes = ['pets:read', 'pets:write']\ndigest = '{}'\n", digest.digest())
}

#[tokio::test]
async fn a_new_digest_ends_every_other_key_of_a_split_lineage_as_the_overlap_says() {
    for (overlap, left) in [("0s", None), ("1h", Some(60 * 60)), ("24h", Some(24 * 60 * 60))] {
        let shop = Shop::new().await;
        let session = shop.database.connect().await;
        let keys: Vec<ApiKey> = (1..=7).map(|byte| ApiKey::generate(|| byte)).collect();
        shop.apply(&vault(&keys[0]), &[]);
        // 1 was rotated three times; 2 was rotated too, and 3 has been revoked.
        for (id, key, hours) in [(1, 1, 72), (1, 2, 48), (1, 3, 48), (2, 4, 36)] {
            rotate_in_1_2_0(&session, id, &keys[key], hours).await.unwrap();
        }
        // The second and the third successor inherited the overlap: that is the fault of the older release.
        session.batch_execute("UPDATE api_keys SET expires_at = NULL WHERE id IN (3, 4, 5)").await.unwrap();
        shop.output(&["revoke", "3"]);
        let flags = ["--prune", "--overlap", overlap];
        let applied = shop.apply(&vault(&keys[5]), &flags);
        assert!(applied.contains("1 rotated"), "{applied}");
        for flags in [&flags[..], &["--overlap", "0s"], &["--prune", "--overlap", "7d"]] {
            assert_eq!(shop.apply(&vault(&keys[5]), flags), "no changes\n", "{applied}");
        }
        let list = shop.list();
        let (newest, others) = list.split_last().unwrap();
        assert_eq!(
            (&newest["id"], &newest["state"], &newest["expiresAt"]),
            (&json!(6), &json!("active"), &Value::Null)
        );
        for record in others {
            let is_revoked = left.is_none() || record["id"] == 3;
            assert_eq!(record["state"], if is_revoked { "revoked" } else { "active" }, "{record}");
            if let (false, Some(seconds)) = (is_revoked, left) {
                let end: Timestamp = record["expiresAt"].as_str().unwrap().parse().unwrap();
                assert!((end - Timestamp::now()).get_seconds() <= seconds, "{record}");
            }
        }
    }
}

#[tokio::test]
async fn applying_a_file_ends_the_keys_that_an_older_release_left_beside_the_newest() {
    for (digest, overlap) in [(None, "24h"), (None, "0s"), (Some(3), "24h"), (Some(3), "0s")] {
        let shop = Shop::new().await;
        let session = shop.database.connect().await;
        let keys: Vec<ApiKey> = (1..=3).map(|byte| ApiKey::generate(|| byte)).collect();
        shop.apply(&vault(&keys[0]), &[]);
        for (key, hours) in [(1, 48), (2, 48)] {
            rotate_in_1_2_0(&session, 1, &keys[key], hours).await.unwrap();
        }
        let file = digest.map_or_else(
            || "[keys.vault]\nscopes = ['pets:read', 'pets:write']\n".to_owned(),
            |number: usize| vault(&keys[number - 1]),
        );
        shop.apply(&file, &["--overlap", overlap]);
        assert_eq!(shop.apply(&file, &["--overlap", overlap]), "no changes\n");
        let list = shop.list();
        // The overlap that the rotation of key 1 granted is kept: this file rotates nothing.
        let hours = |record: &Value| {
            let end: Option<Timestamp> = record["expiresAt"].as_str().map(|text| text.parse().unwrap());
            end.map(|end| ((end - Timestamp::now()).get_seconds() + 1800) / 3600)
        };
        assert_eq!(list.iter().map(hours).collect::<Vec<_>>()[0], Some(48));
        let left = if overlap == "0s" { (json!("revoked"), None) } else { (json!("active"), Some(24)) };
        assert_eq!((list[1]["state"].clone(), hours(&list[1])), left);
        assert_eq!((list[2]["state"].clone(), hours(&list[2])), (json!("active"), None));
    }
}

#[tokio::test]
async fn a_key_that_replaces_an_expired_or_revoked_one_by_the_file_recognises_its_retries() {
    let service = TestService::start().await;
    let (folder, url) = (Folder::new(), service.database.url());
    let session = service.database.connect().await;
    let apply = |content: &str| -> Value {
        let file = folder.write("keys.toml", content);
        let output = run(&["keys", "apply", &file, "--json"], &[("DATABASE_URL", &url)]);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let rex = json!({"name": "Rex", "categoryId": 3});
    let add = async |key: &ApiKey| {
        Client::new(service.address, Some(key)).post_with_key("/v1/pets", "a", &rex).await
    };
    let mut keys = (1..).map(|byte| ApiKey::generate(|| byte));
    let first = keys.next().unwrap();
    apply(&vault(&first));
    let added = add(&first).await;
    assert_eq!(added.status, 201, "{}", added.body);
    let mut id = 2_i64;
    for end in ["expires_at = now()", "revoked_at = now()"] {
        session.execute(&format!("UPDATE api_keys SET {end} WHERE id = $1"), &[&id]).await.unwrap();
        let key = keys.next().unwrap();
        let applied = apply(&vault(&key));
        assert_eq!(
            (&applied["steps"][0]["action"], &applied["steps"][0]["replaces"]),
            (&json!("create"), &json!(id))
        );
        let again = add(&key).await;
        assert_eq!((again.status, again.is_replayed(), &again.body), (201, true, &added.body), "{end}");
        id += 1;
        // A revocation is not undone.
        let states = "SELECT count(*) FROM api_keys WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())";
        assert_eq!(session.query_one(states, &[]).await.unwrap().get::<_, i64>(0), 2, "{end}");
    }
    // The same without a digest.
    session.execute("UPDATE api_keys SET revoked_at = now() WHERE id = $1", &[&id]).await.unwrap();
    let applied = apply("[keys.vault]\nscopes = ['pets:read', 'pets:write']\n");
    let key: ApiKey = applied["steps"][0]["key"].as_str().unwrap().parse().unwrap();
    assert!(add(&key).await.is_replayed());
    // A key that is created with the same name has nothing to do with it.
    let other = run(&["keys", "create", "--name", "vault"], &[("DATABASE_URL", &url)]).stdout;
    let other: ApiKey = String::from_utf8(other).unwrap().trim().parse().unwrap();
    assert!(!add(&other).await.is_replayed());
}

#[tokio::test]
async fn the_keys_of_a_lineage_share_their_rate_limit() {
    for (flags, limit) in [(&[][..], &["--rate-limit", "5/h"][..]), (&["--default-rate-limit", "5/h"], &[])] {
        let service = TestService::start_with(flags).await;
        let url = service.database.url();
        let old = new_key(&url, limit);
        let rotated = run(&["keys", "rotate", "2", "--overlap", "24h"], &[("DATABASE_URL", &url)]).stdout;
        let new: ApiKey = String::from_utf8(rotated).unwrap().trim().parse().unwrap();
        let [old, new] = [old, new].map(|key| Client::new(service.address, Some(&key)));
        for left in (0..5).rev() {
            let client = if left % 2 == 0 { &old } else { &new };
            let answer = client.get("/v1/pets").await;
            assert_eq!(answer.status, 200);
            assert!(answer.header("ratelimit").starts_with(&format!("\"key\";r={left};")), "{answer:?}");
        }
        for client in [&old, &new] {
            assert_eq!(client.get("/v1/pets").await.status, 429);
        }
        let separate = service.client_with_new_key(limit);
        assert_eq!(separate.get("/v1/pets").await.status, 200, "a separate key is not affected");
    }
}
