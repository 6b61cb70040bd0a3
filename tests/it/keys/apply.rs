//! `petstore keys apply`: keys that a file declares.

use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use petstore_domain::api_key::ApiKey;
use serde_json::{Value, json};

use crate::support::folder::Folder;
use crate::support::postgres::wait_for_blocked_statement;
use crate::support::program::{petstore, run};
use crate::support::repository::read;
use crate::support::wait::eventually;
use crate::support::{Client, TestDatabase, TestService};

/// A database, and the file that is applied to it.
pub(super) struct Shop {
    pub(super) database: TestDatabase,
    folder: Folder,
}

impl Shop {
    /// A shop whose only keys are those that a test creates.
    pub(super) async fn new() -> Self {
        let database = TestDatabase::new().await;
        database
            .connect()
            .await
            .batch_execute("TRUNCATE api_keys, api_key_events RESTART IDENTITY")
            .await
            .unwrap();
        Self { database, folder: Folder::new() }
    }

    /// Runs `petstore keys`.
    pub(super) fn keys(&self, arguments: &[&str]) -> Output {
        run(&[&["keys"], arguments].concat(), &[("DATABASE_URL", &self.database.url())])
    }

    /// Runs `petstore keys`, which must succeed, and returns its output.
    pub(super) fn output(&self, arguments: &[&str]) -> String {
        let output = self.keys(arguments);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{arguments:?}");
        assert!(output.status.success(), "{arguments:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub(super) fn create(&self, arguments: &[&str]) -> ApiKey {
        self.output(&[&["create", "--name"], arguments].concat()).trim().parse().unwrap()
    }

    /// Applies a file.
    pub(super) fn apply(&self, content: &str, flags: &[&str]) -> String {
        let file = self.folder.write("keys.toml", content);
        self.output(&[&["apply", &file], flags].concat())
    }

    fn apply_as_json(&self, content: &str, flags: &[&str]) -> Value {
        serde_json::from_str(&self.apply(content, &[flags, &["--json"]].concat())).unwrap()
    }

    /// Applies a file that is refused, and returns the error without the path of the file.
    fn refused(&self, content: &str, flags: &[&str]) -> String {
        let file = self.folder.write("keys.toml", content);
        let before = self.content();
        let output = self.keys(&[&["apply", &file], flags].concat());
        assert_eq!(output.status.code(), Some(1), "{content}");
        assert!(output.stdout.is_empty(), "{content}");
        assert_eq!(self.content(), before, "{content}");
        let error = String::from_utf8(output.stderr).unwrap().replace(&file, "keys.toml");
        error.strip_prefix("petstore: ").unwrap().trim_end().to_owned()
    }

    pub(super) fn list(&self) -> Vec<Value> {
        serde_json::from_str(&self.output(&["list", "--json"])).unwrap()
    }

    /// The actions and actors in the audit log of a key.
    fn events(&self, id: i64) -> Vec<(String, String)> {
        let shown: Value = serde_json::from_str(&self.output(&["show", &id.to_string(), "--json"])).unwrap();
        let text = |event: &Value, member: &str| event[member].as_str().unwrap().to_owned();
        let events = shown["events"].as_array().unwrap();
        events.iter().map(|event| (text(event, "action"), text(event, "actor"))).collect()
    }

    /// All rows of keys and events.
    pub(super) fn content(&self) -> String {
        let dump = std::process::Command::new("pg_dump")
            .args(["--data-only", "--table=api_keys", "--table=api_key_events", "--dbname"])
            .arg(self.database.url())
            .output()
            .unwrap();
        assert!(dump.status.success(), "{dump:?}");
        let text = String::from_utf8(dump.stdout).unwrap();
        // A random token in recent versions.
        text.lines().filter(|line| !line.contains("restrict")).collect::<Vec<_>>().join("\n")
    }
}

const KIOSK_AND_SHOP: &str = "\
[keys.kiosk]
scopes = ['pets:read']
rate-limit = '10/s'
expires = 2099-01-31

[keys.shop]
scopes = ['pets:read', 'pets:write']
";

fn status(record: &Value) -> (&str, &str) {
    (record["name"].as_str().unwrap(), record["state"].as_str().unwrap())
}

#[tokio::test]
async fn applying_a_file_creates_its_keys_prints_them_once_and_then_changes_nothing() {
    let shop = Shop::new().await;
    let printed = shop.apply(KIOSK_AND_SHOP, &["--by", "Ada"]);
    let (plan, keys) = printed.split_once("\nnew keys, shown only this once:\n").unwrap();
    assert_eq!(
        plan,
        "\
+ create kiosk (key 1)
    scopes          pets:read
    rate limit      10/s
    expires         2099-01-31T00:00:00Z
+ create shop (key 2)
    scopes          pets:read pets:write
    rate limit      default
    expires         never
applied: 2 created, 0 changed, 0 rotated, 0 revoked
"
    );
    let keys: Vec<(&str, ApiKey)> = keys
        .lines()
        .map(|line| line.split_once("  ").unwrap())
        .map(|(name, key)| (name, key.parse().unwrap()))
        .collect();
    assert_eq!([keys[0].0, keys[1].0], ["kiosk", "shop"]);
    let list = shop.list();
    assert_eq!(list.len(), 2);
    for (record, (name, key)) in list.iter().zip(&keys) {
        assert_eq!(status(record), (*name, "active"));
        assert_eq!(record["prefix"], key.prefix());
        assert_eq!(shop.events(record["id"].as_i64().unwrap()), [("created".into(), "Ada".into())]);
    }
    assert_eq!(list[0]["scopes"], json!(["pets:read"]));
    assert_eq!(
        (&list[0]["rateLimit"], &list[0]["expiresAt"]),
        (&json!("10/s"), &json!("2099-01-31T00:00:00Z"))
    );

    let before = shop.content();
    for _ in 0..2 {
        assert_eq!(shop.apply(KIOSK_AND_SHOP, &["--prune"]), "no changes\n");
    }
    // Scopes have no order, and a time may be written in other ways.
    let same = KIOSK_AND_SHOP
        .replace("['pets:read', 'pets:write']", "['pets:write', 'pets:read', 'pets:write']")
        .replace("2099-01-31", "'2099-01-31T01:00:00+01:00'");
    assert_eq!(shop.apply(&same, &[]), "no changes\n");
    assert_eq!(shop.content(), before);
}

#[tokio::test]
async fn a_changed_entry_changes_its_key_in_place_and_running_nodes_obey_within_3_seconds() {
    let service = TestService::start().await;
    let (folder, url) = (Folder::new(), service.database.url());
    let file = |content: &str| folder.write("keys.toml", content);
    let apply = |content: &str| {
        run(&["keys", "apply", &file(content), "--json", "--by", "Ada"], &[("DATABASE_URL", &url)])
    };
    let both = "[keys.till]\nscopes = ['pets:read', 'orders:read']\n";
    let created: Value = serde_json::from_slice(&apply(both).stdout).unwrap();
    let key: ApiKey = created["steps"][0]["key"].as_str().unwrap().parse().unwrap();
    let client = Client::new(service.address, Some(&key));
    for path in ["/v1/pets", "/v1/store/orders"] {
        assert_eq!(client.get(path).await.status, 200);
    }
    let changed = apply("[keys.till]\nscopes = ['orders:read']\nexpires = '2099-12-31T23:30:00Z'\n");
    let since = Instant::now();
    let changed: Value = serde_json::from_slice(&changed.stdout).unwrap();
    let id = &created["steps"][0]["id"];
    let expected = json!({
        "dryRun": false,
        "steps": [{
            "action": "change",
            "name": "till",
            "id": id,
            "fields": [
                {"name": "scopes", "old": ["pets:read", "orders:read"], "new": ["orders:read"]},
                {"name": "expiresAt", "old": null, "new": "2099-12-31T23:30:00Z"},
            ],
        }],
        "undeclared": [{"id": 1, "name": changed["undeclared"][0]["name"]}],
        "expired": [],
    });
    assert_eq!(changed, expected);
    let mut last_served = Duration::ZERO;
    loop {
        let sent = since.elapsed();
        match client.get("/v1/pets").await.status {
            200 => last_served = sent,
            status => break assert_eq!(status, 403),
        }
    }
    assert!(last_served < Duration::from_secs(3), "{last_served:?}");
    assert_eq!(client.get("/v1/store/orders").await.status, 200, "the same key still works");

    // A limit, and none again.
    apply("[keys.till]\nscopes = ['orders:read']\nrate-limit = '1/h'\n");
    eventually("the limit applies", async || client.get("/v1/store/orders").await.status == 429).await;
    apply("[keys.till]\nscopes = ['orders:read']\n");
    eventually("the limit is gone", async || client.get("/v1/store/orders").await.status == 200).await;
    let shown = run(&["keys", "show", &id.to_string()], &[("DATABASE_URL", &url)]).stdout;
    let shown = String::from_utf8(shown).unwrap();
    assert_eq!(shown.matches("changed by Ada").count(), 3, "{shown}");
    assert!(shown.contains("expires    never"), "{shown}");
}

#[tokio::test]
async fn keys_that_are_not_in_the_file_are_left_alone_unless_they_are_pruned() {
    let shop = Shop::new().await;
    shop.create(&["old"]);
    shop.create(&["shop", "--scope", "pets:read", "--scope", "pets:write"]);
    shop.output(&["rotate", "1", "--overlap", "1h"]);
    let file = "[keys.shop]\nscopes = ['pets:read', 'pets:write']\n";
    let kept = "  keep old (key 1): not in the file; --prune revokes it
  keep old (key 3): not in the file; --prune revokes it
no changes\n";
    let before = shop.content();
    assert_eq!(shop.apply(file, &[]), kept);
    assert_eq!(shop.content(), before);
    let plan = "- revoke old (key 1)\n- revoke old (key 3)\n";
    let counts = |end: &str| ["0 created", "0 changed", "0 rotated", &format!("2 {end}")].join(", ");
    assert_eq!(
        shop.apply(file, &["--prune", "--by", "Ada"]),
        format!("{plan}applied: {}\n", counts("revoked"))
    );
    let states: Vec<Value> = shop.list().into_iter().map(|record| record["state"].clone()).collect();
    assert_eq!(states, ["revoked", "active", "revoked"]);
    assert_eq!(shop.events(3).last().unwrap(), &("revoked".into(), "Ada".into()));
    assert_eq!(shop.apply(file, &["--prune"]), "no changes\n");

    let refused = shop.refused("", &["--prune"]);
    assert!(
        refused.starts_with("the file declares no keys, so --prune would revoke all of them"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_dry_run_prints_the_plan_and_changes_nothing() {
    let shop = Shop::new().await;
    let old = ApiKey::generate(|| 1).digest();
    let new = ApiKey::generate(|| 2).digest();
    let billing = |digest| {
        format!("[keys.billing]\nscopes = ['orders:read']\ndigest = '{digest}'\nexpires = 2099-01-01\n")
    };
    shop.apply(&billing(old), &[]);
    shop.create(&["shop", "--scope", "pets:read", "--scope", "pets:write", "--rate-limit", "600/m"]);
    shop.create(&["gone"]);
    let file = format!(
        "{}[keys.shop]\nscopes = ['pets:read']\n[keys.kiosk]\nscopes = ['events:read']\nexpires = 2098-01-31\n\
         [keys.guest]\nscopes = ['pets:read']\nexpires = 2020-01-01\n",
        billing(new)
    );
    let before = shop.content();
    let plan = shop.apply(&file, &["--prune", "--dry-run", "--overlap", "90d"]);
    let until = plan.lines().find(|line| line.contains("old key expires")).unwrap().to_owned();
    assert_eq!(
        plan.replace(&until, "UNTIL"),
        format!(
            "\
~ rotate billing (key 1)
    digest          {} → {}
UNTIL
    expires         2099-01-01T00:00:00Z
~ change shop (key 2)
    scopes          pets:read pets:write → pets:read
    rate limit      600/m → default
+ create kiosk
    scopes          events:read
    rate limit      default
    expires         2098-01-31T00:00:00Z
- revoke gone (key 3)
  skip guest: its expiry has passed
plan: 1 to create, 1 to change, 1 to rotate, 1 to revoke
",
            &old.to_string()[..12],
            &new.to_string()[..12]
        )
    );
    let json = shop.apply_as_json(&file, &["--prune", "--dry-run"]);
    assert_eq!((&json["dryRun"], &json["steps"][2]["id"]), (&json!(true), &Value::Null));
    assert!(!json.to_string().contains("psk_"), "{json}");
    assert_eq!(shop.content(), before);

    let done = shop.apply(&file, &["--prune"]);
    assert!(done.contains("applied: 1 created, 1 changed, 1 rotated, 1 revoked\n"), "{done}");
    assert_eq!(
        shop.apply(&file, &["--prune", "--dry-run"]),
        "  skip guest: its expiry has passed\nno changes\n"
    );
}

#[tokio::test]
async fn a_key_whose_digest_is_declared_is_never_printed_and_rotates_when_the_digest_changes() {
    let service = TestService::start().await;
    let folder = Folder::new();
    let url = service.database.url();
    let apply = |digest: &str, overlap: &str| {
        let content = format!("[keys.vault]\nscopes = ['pets:read', 'pets:write']\ndigest = '{digest}'\n");
        let file = folder.write("keys.toml", content);
        let output = run(&["keys", "apply", &file, "--overlap", overlap], &[("DATABASE_URL", &url)]);
        let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        assert!(!text.contains("psk_"), "{text}");
        text
    };
    let generated = || -> (ApiKey, String) {
        let output = run(&["keys", "generate", "--json"], &[]);
        let generated: Value = serde_json::from_slice(&output.stdout).unwrap();
        let text = |member: &str| generated[member].as_str().unwrap().to_owned();
        (text("key").parse().unwrap(), text("digest"))
    };
    let [(first, first_digest), (second, second_digest)] = [generated(), generated()];
    let client = |key: &ApiKey| Client::new(service.address, Some(key));
    apply(&first_digest, "1h");
    let rex = json!({"name": "Rex", "categoryId": 3});
    let added = client(&first).post_with_key("/v1/pets", "a", &rex).await;
    assert_eq!(added.status, 201, "{}", added.body);

    let rotated = apply(&second_digest.to_uppercase(), "1h");
    assert!(rotated.contains("0 changed, 1 rotated"), "{rotated}");
    // Both work, and a retry with the new key is recognised.
    assert_eq!(client(&first).get("/v1/pets").await.status, 200);
    let again = client(&second).post_with_key("/v1/pets", "a", &rex).await;
    assert_eq!((again.status, again.is_replayed(), again.body), (201, true, added.body));
    assert!(apply(&second_digest, "1h").ends_with("no changes\n"));

    // The way back is another key.
    let replaced = apply(&first_digest, "1h");
    assert!(replaced.contains("`vault` has the digest of key 2, which key 3 replaced"), "{replaced}");
    let (third, third_digest) = generated();
    apply(&third_digest, "0s");
    assert_eq!(client(&third).get("/v1/pets").await.status, 200);
    eventually("the second key is refused", async || client(&second).get("/v1/pets").await.status == 401)
        .await;
    let records: Vec<Value> =
        serde_json::from_slice(&run(&["keys", "list", "--json"], &[("DATABASE_URL", &url)]).stdout).unwrap();
    let states: Vec<&str> = records[1..].iter().map(|record| record["state"].as_str().unwrap()).collect();
    // The overlap of the first key has not ended, but the file was applied without one.
    assert_eq!(states, ["revoked", "revoked", "active"]);
    assert_eq!(records[3]["prefix"], format!("sha256:{}", &third_digest[..6]));
    let taken = apply(&second_digest, "1h");
    assert!(
        taken.contains("`vault` has the digest of key 3, which is named `vault` and was revoked"),
        "{taken}"
    );
}

#[tokio::test]
async fn a_rotated_key_and_its_successor_are_one_entry_but_separate_keys_are_not() {
    let shop = Shop::new().await;
    shop.create(&["till", "--scope", "pets:read", "--scope", "pets:write"]);
    shop.output(&["rotate", "1", "--overlap", "1h"]);
    let applied = shop.apply("[keys.till]\nscopes = ['pets:read']\n", &["--prune"]);
    let change =
        |id| format!("~ change till (key {id})\n    scopes          pets:read pets:write → pets:read\n");
    let expected = format!("{}{}applied: 0 created, 2 changed, 0 rotated, 0 revoked\n", change(1), change(2));
    assert_eq!(applied, expected);
    // The old key still expires after the overlap.
    assert!(shop.list()[0]["expiresAt"].is_string());
    assert!(shop.list()[1]["expiresAt"].is_null());

    shop.create(&["till"]);
    let refused = shop.refused("[keys.till]\nscopes = ['pets:read']\n", &[]);
    let both = "the keys 2 and 3 are both named `till` and neither replaces the other: revoke one of them with \
        `petstore keys revoke`";
    assert_eq!(refused, both);
    shop.output(&["revoke", "3"]);
    assert_eq!(shop.apply("[keys.till]\nscopes = ['pets:read']\n", &[]), "no changes\n");
    // Revoked keys stay revoked: the entry gets another one.
    shop.output(&["revoke", "2"]);
    shop.output(&["revoke", "1"]);
    let applied = shop.apply("[keys.till]\nscopes = ['pets:read']\n", &[]);
    assert!(applied.starts_with("+ create till (key 4, replaces key 3)\n"), "{applied}");
}

#[tokio::test]
async fn two_processes_that_apply_the_same_file_at_once_end_with_the_same_keys() {
    let shop = Shop::new().await;
    let url = shop.database.url();
    for round in 1..=10 {
        let digest = ApiKey::generate(|| round).digest();
        let file = shop.folder.write(
            "keys.toml",
            format!(
                "[keys.new-{round}]\nscopes = ['pets:read']\n[keys.kept]\nscopes = ['pets:read']\nrate-limit = '{round}/s'\n\
                 [keys.sealed]\nscopes = ['pets:read']\ndigest = '{digest}'\n"
            ),
        );
        let start = || -> Child {
            let mut command = petstore(&["keys", "apply", &file, "--prune", "--json"]);
            command.env("DATABASE_URL", &url).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let processes = [start(), start()];
        let steps = processes.map(|process| {
            let output = process.wait_with_output().unwrap();
            assert!(output.status.success(), "{output:?}");
            let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
            plan["steps"].as_array().unwrap().clone()
        });
        let mut counts = steps.each_ref().map(Vec::len);
        counts.sort_unstable();
        let expected = if round == 1 { 3 } else { 4 };
        assert_eq!(counts, [0, expected], "one of them has nothing to do: {steps:?}");
        let keys: Vec<&str> = steps.iter().flatten().filter_map(|step| step["key"].as_str()).collect();
        let current = "SELECT name, encode(digest, 'hex') FROM api_keys WHERE revoked_at IS NULL \
            AND (expires_at IS NULL OR expires_at > now() + interval '25h') ORDER BY name";
        let current = shop.database.connect().await.query(current, &[]).await.unwrap();
        let current: Vec<(String, String)> = current.iter().map(|row| (row.get(0), row.get(1))).collect();
        let names: Vec<&str> = current.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["kept", &format!("new-{round}"), "sealed"]);
        let printed = keys.last().unwrap().parse::<ApiKey>().unwrap().digest().to_string();
        assert!(current.iter().any(|(_, digest)| *digest == printed), "the printed key is the stored one");
        assert_eq!(current[2].1, digest.to_string());
    }
}

#[tokio::test]
async fn a_key_that_is_revoked_while_it_is_applied_is_not_changed_but_created_again() {
    let shop = Shop::new().await;
    shop.create(&["till"]);
    let watch = shop.database.connect().await;
    let other = shop.database.connect().await;
    other.batch_execute("BEGIN; UPDATE api_keys SET revoked_at = now() WHERE id = 1").await.unwrap();
    let file = shop.folder.write("keys.toml", "[keys.till]\nscopes = ['pets:read']\n");
    let mut command = petstore(&["keys", "apply", &file]);
    command.env("DATABASE_URL", shop.database.url()).stdout(Stdio::piped());
    let applying = command.spawn().unwrap();
    wait_for_blocked_statement(&watch).await;
    other.batch_execute("COMMIT").await.unwrap();
    let output = applying.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("+ create till (key 2, replaces key 1)\n"), "{text}");
    let states: Vec<Value> = shop.list().into_iter().map(|record| record["state"].clone()).collect();
    assert_eq!(states, ["revoked", "active"]);
    assert_eq!(shop.events(1).len(), 1, "it was not changed");
}

#[tokio::test]
async fn a_bad_file_is_refused_with_the_line_of_each_problem() {
    let shop = Shop::new().await;
    let key = ApiKey::generate(|| 3);
    let pasted = format!("[keys.a]\nscopes = ['pets:read']\ndigest = '{}'\n", key.reveal());
    let digest = key.digest().to_string();
    let twice = format!("digest = '{digest}'\nscopes = ['pets:read']\n");
    let scopes = "list what the key may do, of `pets:read`, `pets:write`, `orders:read`, `orders:write` and `events:read`";
    let expiry = "must be a date, such as 2027-01-31, or a time with an offset, such as 2027-01-31T12:00:00Z";
    let members = "only `scopes`, `rate-limit`, `expires` and `digest` are known";
    for (content, expected) in [
        ("[keys.a", vec!["keys.toml:1: unclosed table, expected `]`"]),
        ("[keys.a]\nscopes = ['pets:read']\n\n[keys.a]\n", vec!["keys.toml:4: duplicate key"]),
        ("\n[key.a]\n", vec!["keys.toml:2: unknown table `key`: did you mean `keys`?"]),
        ("colour = 1", vec!["keys.toml:1: unknown table `colour`: only `keys` is known"]),
        ("keys = 7", vec!["keys.toml:1: `keys` must be a table: declare a key as [keys.NAME]"]),
        ("[keys]\na = 'pets:read'", vec!["keys.toml:2: `a` must be a table: [keys.a]"]),
        ("[keys.a]", vec![&format!("keys.toml:1: `a` has no `scopes`: {scopes}")]),
        (
            "[keys.a]\nscope = ['pets:read']",
            vec![
                &format!("keys.toml:1: `a` has no `scopes`: {scopes}"),
                "keys.toml:2: `a` has an unknown member `scope`: did you mean `scopes`?",
            ],
        ),
        (
            "[keys.a]\nscopes = ['pets:read']\nrate_limit = '1/s'\n[keys.b]\nscopes = ['pets:reed', 'cats']\ncolour = 7\n",
            vec![
                "keys.toml:3: `a` has an unknown member `rate_limit`: did you mean `rate-limit`?",
                "keys.toml:5: `b` has an unknown scope `cats`: must be one of `pets:read`, `pets:write`, `orders:read`, \
                 `orders:write`, `events:read`",
                "keys.toml:5: `b` has an unknown scope `pets:reed`: did you mean `pets:read`?",
                &format!("keys.toml:6: `b` has an unknown member `colour`: {members}"),
            ],
        ),
        (
            "[keys.a]\nscopes = []\nrate-limit = 5\nexpires = '90d'\n[keys.b]\nscopes = 'pets:read'\nexpires = 2027-01-31T12:00:00\n",
            vec![
                "keys.toml:2: `scopes` of `a` must be a list of at least one scope, such as [\"pets:read\"]",
                "keys.toml:3: `rate-limit` of `a` must be a number of requests per second, minute or hour, such as 100/s, \
                 600/m or 10000/h",
                &format!("keys.toml:4: `expires` of `a` {expiry}"),
                "keys.toml:6: `scopes` of `b` must be a list of at least one scope, such as [\"pets:read\"]",
                &format!("keys.toml:7: `expires` of `b` {expiry}"),
            ],
        ),
        (
            &pasted,
            vec![
                "keys.toml:3: `digest` of `a` must be the digest of a key, but it is a key: rotate that key, it is in a file now",
            ],
        ),
        (
            "[keys.a]\nscopes = ['pets:read']\ndigest = 'abc'",
            vec![
                "keys.toml:3: `digest` of `a` must be the SHA-256 of the key in 64 hexadecimal digits, as `printf %s \"$KEY\" | \
                 sha256sum` prints it",
            ],
        ),
        (&format!("[keys.a]\n{twice}[keys.b]\n{twice}"), vec!["keys.toml:4: `b` has the same digest as `a`"]),
        (
            "[keys.' ']\nscopes = ['pets:read']",
            vec![
                "keys.toml:1: a key's name must have 1 to 100 characters, not all white space, and no control characters",
            ],
        ),
    ] {
        let error = shop.refused(content, &[]);
        assert_eq!(error.lines().collect::<Vec<_>>(), expected, "{content}");
        assert!(!error.contains(key.reveal()), "{error}");
    }
    let missing = shop.keys(&["apply", "/nonexistent.toml"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("cannot read /nonexistent.toml: No such file"));
}

/// The first code block of a language in docs/keys.md after a heading.
fn documented(heading: &str, language: &str) -> String {
    let page = read("docs/keys.md");
    let section = page.split(&format!("\n{heading}\n")).nth(1).unwrap();
    let block = section.split(&format!("\n```{language}\n")).nth(1).unwrap();
    block.split("```").next().unwrap().to_owned()
}

#[tokio::test]
async fn the_example_in_the_documentation_is_what_the_program_prints() {
    let shop = Shop::new().await;
    let file = documented("## Keys as code", "toml");
    let console = documented("## Keys as code", "console");
    let (_, billing) = file.split_once("[keys.billing]").unwrap();
    let narrower = billing.replace(", \"events:read\"", "");
    shop.create(&["old-kiosk"]);
    shop.apply(&format!("[keys.billing]{narrower}"), &[]);
    let plan = shop.apply(&file, &["--prune", "--dry-run"]);
    assert!(
        console.starts_with(&format!("$ petstore keys apply keys.toml --prune --dry-run\n{plan}$ ")),
        "{plan}"
    );
    let applied = shop.apply(&file, &["--prune"]);
    let (first, rest) = applied.split_once('\n').unwrap();
    let end = rest.split_once("applied: ").unwrap().1.split_once("psk_").unwrap().0;
    let shown = format!("$ petstore keys apply keys.toml --prune\n{first}\n…\napplied: {end}psk_…\n$ ");
    assert!(console.contains(&shown), "{applied}");
    let again = shop.apply(&file, &["--prune"]);
    assert!(console.ends_with(&format!("$ petstore keys apply keys.toml --prune\n{again}")), "{again}");

    // The commands that make a key and its digest.
    let script = documented("### Keys from a secret store", "sh");
    let script = script.lines().filter(|line| !line.contains("vault")).collect::<Vec<_>>().join("\n");
    let path = Path::new(env!("CARGO_BIN_EXE_petstore")).parent().unwrap().to_str().unwrap();
    let output = std::process::Command::new("sh")
        .args(["-c", &format!("set -e\n{script}\nprintf %s \"$KEY\"")])
        .env("PATH", format!("{path}:{}", std::env::var("PATH").unwrap()))
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let (digest, key) = printed.split_once('\n').unwrap();
    assert_eq!(key.parse::<ApiKey>().unwrap().digest().to_string(), digest);
}

#[tokio::test]
async fn keys_create_json_has_the_key_and_its_record() {
    let shop = Shop::new().await;
    let create = [
        "create",
        "--name",
        "till",
        "--scope",
        "pets:read",
        "--expires",
        "2099-01-31",
        "--rate-limit",
        "5/s",
    ];
    let created: Value = serde_json::from_str(&shop.output(&[&create[..], &["--json"]].concat())).unwrap();
    let key: ApiKey = created["key"].as_str().unwrap().parse().unwrap();
    let mut record = shop.list().remove(0);
    for later in ["createdAt", "lastUsedAt", "state"] {
        record.as_object_mut().unwrap().remove(later);
    }
    record["key"] = json!(key.reveal());
    assert_eq!(created, record);
    assert_eq!(record["prefix"], key.prefix());
}
