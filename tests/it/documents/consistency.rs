//! Facts that must be kept consistent by hand.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::support::postgres::migration_files;
use crate::support::repository::{ROOT, read};

#[test]
fn the_code_map_shows_which_crates_each_crate_uses() {
    let page = read("ARCHITECTURE.md");
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `crates/")).collect();
    for row in &rows {
        let name = row.split('`').nth(1).unwrap();
        let manifest = read(&format!("{name}/Cargo.toml"));
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap().split("\n[").next().unwrap();
        let ours = dependencies.lines().filter_map(|line| line.strip_prefix("petstore-")?.split('.').next());
        let uses = ours.collect::<Vec<_>>().join(", ");
        let uses = if uses.is_empty() { "none" } else { &uses };
        assert!(row.contains(&format!(" | {uses} | ")), "{name} uses {uses}");
    }
    assert_eq!(rows.len(), fs::read_dir(Path::new(ROOT).join("crates")).unwrap().count());
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
fn the_shipped_role_is_granted_every_table_and_doctor_checks_it() {
    let (granted, checked) = (read("deploy/postgresql/roles.sql"), read("crates/storage/src/privileges.rs"));
    for table in tables() {
        let grants = granted.lines().filter(|line| line.starts_with("GRANT SELECT"));
        let mut words = grants.flat_map(|line| line.split([' ', ',']));
        assert!(words.any(|word| word == table), "{table} is not granted in deploy/postgresql/roles.sql");
        assert!(checked.contains(&format!("('SELECT', '{table}', ")), "{table} is not in MISSING");
    }
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
fn the_error_reference_has_every_code_with_its_status() {
    let document: serde_json::Value = serde_json::from_str(&read("openapi.json")).unwrap();
    let codes = &document["components"]["schemas"]["Error"]["properties"]["code"]["x-extensible-enum"];
    let page = read("docs/errors.md");
    let headings = page.lines().filter_map(|line| line.strip_prefix("#### `")?.strip_suffix('`'));
    let mut listed: Vec<&str> = headings.collect();
    listed.sort_unstable();
    assert_eq!(serde_json::json!(listed), *codes);
    for (code, status) in errors_in(&document) {
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
