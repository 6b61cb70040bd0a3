//! The layering of the code, and facts that must be kept consistent by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::postgres::{ROOT, migration_files};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).unwrap()
}

/// Every Rust file in a file or folder of `src`, with its text up to its unit tests.
fn sources(name: &str) -> Vec<(PathBuf, String)> {
    let path = Path::new(ROOT).join("src").join(name);
    if path.is_file() {
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap().to_owned();
        return vec![(path, code)];
    }
    let inside = fs::read_dir(path).unwrap().map(|entry| Path::new(name).join(entry.unwrap().file_name()));
    inside.flat_map(|path| sources(path.to_str().unwrap())).collect()
}

#[test]
fn no_layer_uses_what_belongs_to_another() {
    let sql = ["SELECT ", "INSERT INTO", "tokio_postgres", "deadpool"];
    let above_storage = ["crate::http", "crate::app", "crate::cli"];
    let forbidden_words: [(&str, Vec<&str>); 12] = [
        (
            "domain",
            [
                &sql[..],
                &[
                    "axum",
                    "hyper",
                    "serde_json",
                    "tokio",
                    "rand::",
                    "jiff",
                    "SystemTime::now",
                    "Instant",
                    "crate::storage",
                ],
                &["crate::config", "crate::telemetry"],
                &above_storage,
            ]
            .concat(),
        ),
        ("storage", [&["axum", "hyper", "serde", "StatusCode"][..], &above_storage].concat()),
        ("http", [&sql[..], &["crate::app", "crate::cli"]].concat()),
        // Knows sockets, not keys.
        ("http/transport", vec!["crate::storage", "crate::domain", "axum", "authentication", "Caller"]),
        // Knows no table: each table has its own file.
        ("storage/postgres", vec!["crate::domain", "FROM pets", "FROM orders", "FROM api_keys"]),
        ("files", [&sql[..], &["axum", "hyper", "crate::storage"], &above_storage].concat()),
        ("wire", [&sql[..], &["axum", "hyper", "crate::storage"], &above_storage].concat()),
        ("app.rs", [&sql[..], &["axum", "crate::cli"]].concat()),
        ("cli", [&sql[..], &["axum", "hyper", "StatusCode"]].concat()),
        ("config.rs", [&["crate::storage", "crate::telemetry"][..], &above_storage].concat()),
        ("systemd.rs", [&["crate::config", "crate::domain", "crate::storage"][..], &above_storage].concat()),
        ("telemetry", [&["crate::domain", "crate::storage"][..], &above_storage].concat()),
    ];
    for (layer, forbidden) in forbidden_words {
        for (file, text) in sources(layer) {
            for word in &forbidden {
                assert!(!text.contains(word), "{} has `{word}`", file.display());
            }
        }
    }
}

/// The module path of a file, such as `http::pets::list`.
fn module(file: &Path) -> String {
    let inside = file.strip_prefix(Path::new(ROOT).join("src")).unwrap().with_extension("");
    let names = inside.iter().map(|name| name.to_str().unwrap()).collect::<Vec<_>>().join("::");
    names.trim_end_matches("::mod").to_owned()
}

/// The modules that a file imports, by `crate::` or `super::`.
fn imported(text: &str, own: &str, modules: &BTreeSet<String>) -> BTreeSet<String> {
    let folder = own.rsplit_once("::").map_or("", |(folder, _)| folder);
    let found = text.split_whitespace().flat_map(|word| word.split(['(', '<', '{', ',', '[', '&']));
    let paths = found.filter_map(|word| {
        let path = match (word.strip_prefix("crate::"), word.strip_prefix("super::")) {
            (Some(path), _) => path.to_owned(),
            (None, Some(path)) => format!("{folder}::{path}"),
            (None, None) => return None,
        };
        // The longest prefix that is a module.
        let parts: Vec<&str> = path.trim_end_matches(';').split("::").collect();
        (1..=parts.len()).rev().map(|length| parts[..length].join("::")).find(|path| modules.contains(path))
    });
    paths.filter(|path| path != own).collect()
}

#[test]
fn no_files_import_each_other_in_a_cycle() {
    // Except `mod.rs`: it declares the modules of its folder, and they use what it shares.
    let files: Vec<_> = sources("")
        .into_iter()
        .filter(|(file, _)| !file.ends_with("mod.rs") && !file.ends_with("lib.rs"))
        .collect();
    let modules: BTreeSet<String> = files.iter().map(|(file, _)| module(file)).collect();
    let mut imports: BTreeMap<String, BTreeSet<String>> =
        files.iter().map(|(file, text)| (module(file), imported(text, &module(file), &modules))).collect();
    assert!(imports.values().map(BTreeSet::len).sum::<usize>() > 150, "{imports:?}");
    // A module that imports no remaining module is in no cycle.
    loop {
        let left: BTreeSet<String> = imports.keys().cloned().collect();
        let in_cycle = |imported: &BTreeSet<String>| imported.iter().any(|module| left.contains(module));
        imports.retain(|_, imported| in_cycle(imported));
        if imports.len() == left.len() {
            break;
        }
    }
    assert!(imports.is_empty(), "a cycle, or modules that import one: {:?}", imports.keys());
}

#[test]
fn only_config_and_supervisor_read_the_environment() {
    for (file, text) in sources("") {
        let reads = ["env::var", "env = \""].iter().any(|way| text.contains(way));
        let may_read = file.ends_with("config.rs") || file.ends_with("systemd.rs");
        assert_eq!(reads, may_read, "{}", file.display());
    }
}

#[test]
fn every_table_is_named_only_in_the_files_that_may_use_it() {
    for (table, files) in [
        (
            "pets",
            &["diagnostics.rs", "exports.rs", "imports.rs", "insert_pets.rs", "orders.rs", "pets.rs"][..],
        ),
        ("api_keys", &["api_keys.rs", "apply_keys.rs", "database_metrics.rs"]),
        ("orders", &["orders.rs", "pets.rs"]),
        ("imported_chunks", &["imports.rs"]),
        ("events", &["events.rs"]),
        ("event_feed", &["events.rs"]),
        ("api_key_events", &["api_keys.rs", "apply_keys.rs"]),
        ("idempotency_keys", &["insert_pets.rs", "orders.rs"]),
    ] {
        let mut naming: Vec<String> = sources("storage")
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
    let (granted, checked) = (read("deploy/postgresql/roles.sql"), read("src/storage/privileges.rs"));
    let names: Vec<String> = migration_files()
        .iter()
        .flat_map(|file| fs::read_to_string(file).unwrap().lines().map(ToOwned::to_owned).collect::<Vec<_>>())
        .filter_map(|line| Some(line.strip_prefix("CREATE TABLE ")?.split_whitespace().next()?.to_owned()))
        .collect();
    assert!(names.len() >= 6, "{names:?}");
    for table in names {
        let grants = granted.lines().filter(|line| line.starts_with("GRANT SELECT"));
        let mut words = grants.flat_map(|line| line.split([' ', ',']));
        assert!(words.any(|word| word == table), "{table} is not granted in deploy/postgresql/roles.sql");
        assert!(checked.contains(&format!("('SELECT', '{table}', ")), "{table} is not in MISSING");
    }
}

#[test]
fn every_file_starts_with_a_doc_comment() {
    for (file, text) in sources("") {
        assert!(text.starts_with("//! "), "{}", file.display());
    }
}

#[test]
fn the_error_reference_lists_exactly_the_codes_that_exist() {
    let (_, source) = sources("http/error.rs").remove(0);
    let pairs = source.lines().filter(|line| line.contains("(StatusCode::"));
    let codes: BTreeSet<&str> = pairs.map(|line| line.split('"').nth(1).unwrap()).collect();
    let known = source.split("const CODES").nth(1).unwrap().split("];").next().unwrap();
    assert_eq!(known.split('"').skip(1).step_by(2).collect::<BTreeSet<_>>(), codes);
    let page = read("docs/errors.md");
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let listed: BTreeSet<&str> = rows.map(|row| row.split('`').nth(1).unwrap()).collect();
    assert_eq!(listed, codes);
}

#[test]
fn the_changelog_has_the_version_or_what_is_not_released_yet() {
    let changelog = read("CHANGELOG.md");
    let version = format!("## [{}]", env!("CARGO_PKG_VERSION"));
    assert!(changelog.contains(&version) != changelog.contains("## [Unreleased]"), "{version}");
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
    for page in ["README.md", "docs/operations.md"] {
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
