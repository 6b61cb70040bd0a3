//! Facts that must be kept consistent by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::postgres::migration_files;
use crate::support::repository::{ROOT, read};

/// Every Rust file in a folder, with its text up to its unit tests.
fn sources_in(folder: &Path) -> Vec<(PathBuf, String)> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let sources = |path: PathBuf| match path.extension() {
        None => sources_in(&path),
        Some(extension) if extension == "rs" => {
            let text = fs::read_to_string(&path).unwrap();
            vec![(path, text.split("#[cfg(test)]").next().unwrap().to_owned())]
        }
        Some(_) => Vec::new(),
    };
    paths.flat_map(sources).collect()
}

/// The crates of the service, by folder.
fn crates() -> Vec<String> {
    let folders = fs::read_dir(Path::new(ROOT).join("crates")).unwrap();
    let mut names: Vec<_> =
        folders.map(|folder| folder.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Every Rust file of the service.
fn sources() -> Vec<(PathBuf, String)> {
    let folders = crates().into_iter().map(|name| format!("crates/{name}/src")).chain(["src".to_owned()]);
    folders.flat_map(|folder| sources_in(&Path::new(ROOT).join(folder))).collect()
}

#[test]
fn the_code_map_shows_which_crates_each_crate_uses() {
    let page = read("ARCHITECTURE.md");
    let shown: BTreeMap<String, BTreeSet<String>> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `crates/"))
        .map(|row| {
            let mut cells = row.split(" | ");
            let name = cells.next().unwrap().trim_end_matches('`').to_owned();
            let uses = cells.nth(1).unwrap().split(", ").filter(|name| *name != "none");
            (name, uses.map(ToOwned::to_owned).collect())
        })
        .collect();
    let used: BTreeMap<String, BTreeSet<String>> = crates()
        .into_iter()
        .map(|name| {
            let manifest = read(&format!("crates/{name}/Cargo.toml"));
            let dependencies = manifest.split("[dependencies]").nth(1).unwrap().split("\n[").next().unwrap();
            let ours =
                dependencies.lines().filter_map(|line| line.strip_prefix("petstore-")?.split('.').next());
            (name, ours.map(ToOwned::to_owned).collect())
        })
        .collect();
    assert_eq!(shown, used);
}

#[test]
fn only_config_and_supervisor_read_the_environment() {
    for (file, text) in sources() {
        let reads = ["env::var", "env = \""].iter().any(|way| text.contains(way));
        let may_read = file.ends_with("config/src/lib.rs") || file.ends_with("systemd.rs");
        assert_eq!(reads, may_read, "{}", file.display());
    }
}

/// The tables that the migrations create.
fn tables() -> BTreeSet<String> {
    let lines = migration_files().into_iter().flat_map(|file| {
        fs::read_to_string(file).unwrap().lines().map(ToOwned::to_owned).collect::<Vec<_>>()
    });
    lines
        .filter_map(|line| Some(line.strip_prefix("CREATE TABLE ")?.split_whitespace().next()?.to_owned()))
        .collect()
}

#[test]
fn every_table_is_named_only_in_the_files_that_may_use_it() {
    let owners = [
        (
            "pets",
            &[
                "delete_pet.rs",
                "diagnostics.rs",
                "exports.rs",
                "imports.rs",
                "insert_pets.rs",
                "list_pets.rs",
                "pets.rs",
                "place_and_end_orders.rs",
            ][..],
        ),
        ("api_keys", &["api_keys.rs", "apply_keys.rs", "database_metrics.rs", "demo_database_check.rs"]),
        (
            "orders",
            &[
                "delete_pet.rs",
                "expire_orders.rs",
                "pets.rs",
                "place_and_end_orders.rs",
                "read_orders.rs",
                "update_order.rs",
            ],
        ),
        ("imported_chunks", &["imports.rs"]),
        ("events", &["diagnostics.rs", "events.rs"]),
        ("event_feed", &["events.rs"]),
        ("api_key_events", &["api_keys.rs", "apply_keys.rs", "demo_database_check.rs"]),
        ("idempotency_keys", &["diagnostics.rs", "idempotency_keys.rs", "insert_pets.rs"]),
    ];
    assert_eq!(owners.iter().map(|(table, _)| (*table).to_owned()).collect::<BTreeSet<_>>(), tables());
    for (table, files) in owners {
        let mut naming: Vec<String> = sources_in(&Path::new(ROOT).join("crates/storage/src"))
            .into_iter()
            .filter(|(_, text)| {
                let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
                ["FROM", "INTO", "UPDATE"].iter().any(|word| text.contains(&format!("{word} {table} ")))
            })
            .map(|(file, _)| file.file_name().unwrap().to_str().unwrap().to_owned())
            .collect();
        naming.sort();
        assert_eq!(naming, files, "{table}");
    }
}

#[test]
fn the_shipped_role_is_granted_every_table_and_doctor_checks_it() {
    let (granted, checked) = (read("deploy/postgresql/roles.sql"), read("crates/storage/src/privileges.rs"));
    for table in tables() {
        let grants = granted.lines().filter(|line| line.starts_with("GRANT SELECT"));
        let mut words = grants.flat_map(|line| line.split([' ', ',']));
        assert!(words.any(|word| word == table), "{table} is not granted in deploy/postgresql/roles.sql");
        assert!(checked.contains(&format!("('SELECT', '{table}', ")), "{table} is not in MISSING");
    }
}

#[test]
fn every_file_starts_with_a_doc_comment() {
    for (file, text) in sources() {
        assert!(text.starts_with("//! "), "{}", file.display());
    }
}

#[test]
fn the_error_reference_lists_exactly_the_codes_that_exist() {
    let document: serde_json::Value = serde_json::from_str(&read("openapi.json")).unwrap();
    let codes = &document["components"]["schemas"]["Error"]["properties"]["code"]["x-extensible-enum"];
    let page = read("docs/errors.md");
    let headings = page.lines().filter_map(|line| line.strip_prefix("#### `")?.strip_suffix('`'));
    let mut listed: Vec<&str> = headings.collect();
    listed.sort_unstable();
    assert_eq!(serde_json::json!(listed), *codes);
}

/// The codes of the errors in a JSON document, with their statuses.
fn errors_in(value: &serde_json::Value) -> BTreeSet<(String, u64)> {
    let own = value["code"].as_str().zip(value["status"].as_u64());
    let members = value.as_object().into_iter().flat_map(serde_json::Map::values);
    let items = value.as_array().into_iter().flatten();
    let inside = members.chain(items).flat_map(errors_in);
    own.map(|(code, status)| (code.to_owned(), status)).into_iter().chain(inside).collect()
}

#[test]
fn the_error_reference_has_the_status_of_each_code() {
    let page = read("docs/errors.md");
    let errors = errors_in(&serde_json::from_str(&read("openapi.json")).unwrap());
    assert!(errors.len() > 25, "{errors:?}");
    for (code, status) in errors {
        assert!(page.contains(&format!("\n#### `{code}`\n\n**{status}.** ")), "{code}: {status}");
    }
}

#[test]
fn the_changelog_starts_with_the_version_or_what_is_not_released_yet() {
    let changelog = read("CHANGELOG.md");
    let version = format!("## [{}]", env!("CARGO_PKG_VERSION"));
    let first = changelog.lines().find(|line| line.starts_with("## ")).unwrap();
    assert!(first.starts_with(&version) || first == "## [Unreleased]", "{first} instead of {version}");
}

#[test]
fn the_supported_versions_of_postgresql_are_those_that_are_tested() {
    let package: serde_json::Value = serde_json::from_str(&read("scripts/postgresql/package.json")).unwrap();
    let names = package["devDependencies"].as_object().unwrap().keys();
    let versions: BTreeSet<u32> =
        names.map(|name| name.strip_prefix("postgresql-").unwrap().parse().unwrap()).collect();
    let (oldest, newest) = (versions.first().unwrap(), versions.last().unwrap());
    let checked = format!("TESTED_POSTGRES: [i32; 2] = [{oldest}, {newest}]");
    assert!(read("src/cli/doctor.rs").contains(&checked), "{checked}");
    let supported = format!("PostgreSQL {oldest} to {newest}");
    for page in ["README.md", "docs/operations.md", "docs/upgrade.md"] {
        assert!(read(page).contains(&supported), "{page}: {supported}");
    }
}

#[test]
fn contributing_says_after_which_change_to_run_each_suite() {
    let list = read("scripts/suite");
    let suites = list.lines().filter_map(|line| line.strip_prefix("suite ")?.split(' ').next());
    let guide = read("CONTRIBUTING.md");
    let table = guide.split("| change | suites |").nth(1).unwrap().split("\n\n").next().unwrap();
    let named = table.lines().flat_map(|row| row.rsplit("| ").next().unwrap().split('`').skip(1).step_by(2));
    assert_eq!(named.collect::<BTreeSet<_>>(), suites.collect::<BTreeSet<_>>());
}
