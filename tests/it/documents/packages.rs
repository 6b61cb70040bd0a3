//! What the packages say about themselves: one repository, and the version of each package in one place.

use crate::support::repository::read;

/// The rest of the first line that starts with this text.
fn after<'a>(text: &'a str, start: &str) -> &'a str {
    text.lines()
        .find_map(|line| line.trim_start().strip_prefix(start))
        .unwrap_or_else(|| panic!("no {start}"))
}

fn assert_contains(file: &str, text: &str) {
    assert!(read(file).contains(text), "{file} lacks: {text}");
}

#[test]
fn every_package_names_the_same_repository() {
    let repository = env!("CARGO_PKG_REPOSITORY");
    assert!(repository.starts_with("https://"), "{repository}");
    for (file, named) in [
        ("clients/python/pyproject.toml", format!("Repository = \"{repository}\"")),
        ("clients/typescript/package.json", format!("\"url\": \"git+{repository}.git\"")),
        ("deploy/Containerfile", format!("org.opencontainers.image.source=\"{repository}\"")),
        ("deploy/prometheus/rules.yaml", format!("url: {repository}/blob/main/docs/runbook.md")),
    ] {
        assert_contains(file, &named);
    }
}

#[test]
fn both_sdks_have_one_version_and_the_pages_name_it() {
    let python = read("clients/python/petstore_client/_version.py");
    let python = after(&python, "__version__ = ").trim_matches('"');
    let typescript = read("clients/typescript/package.json");
    let typescript = after(&typescript, "\"version\": ").trim_matches(['"', ',']);
    assert_eq!(python, typescript, "a reader expects the same functions in both");
    let lock = read("clients/typescript/package-lock.json");
    assert_eq!(after(&lock, "\"version\": ").trim_matches(['"', ',']), typescript);
    for (page, file) in [
        ("docs/quickstart.md", format!("petstore-client-{typescript}.tgz")),
        ("docs/quickstart.md", format!("petstore_client-{python}-py3-none-any.whl")),
        ("clients/typescript/README.md", format!("petstore-client-{typescript}.tgz")),
        ("clients/python/README.md", format!("petstore_client-{python}-py3-none-any.whl")),
    ] {
        assert_contains(page, &file);
    }
}

#[test]
fn the_page_on_operations_names_the_files_of_this_version() {
    let version = env!("CARGO_PKG_VERSION");
    for file in [
        format!("petstore-{version}-x86_64-linux.tar.gz"),
        format!("petstore_{version}-1_amd64.deb"),
        format!("petstore-{version}-image-amd64.tar"),
    ] {
        assert_contains("docs/operations.md", &file);
    }
}
