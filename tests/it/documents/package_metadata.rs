//! What the packages and the files of a deployment say about themselves, and which files of a release the pages name.

use petstore_config::version::VERSION;

use crate::support::repository::read;

#[test]
fn every_file_names_this_version_and_this_repository() {
    let repository = env!("CARGO_PKG_REPOSITORY");
    let python = read("clients/python/petstore_client/_version.py");
    let sdk = python.split("__version__ = \"").nth(1).unwrap().split('"').next().unwrap();
    let tarball = format!("petstore-client-{sdk}.tgz");
    let wheel = format!("petstore_client-{sdk}-py3-none-any.whl");
    for (file, text) in [
        // A Job is immutable: each version needs its own.
        (
            "deploy/kubernetes/migrate.yaml",
            format!("  name: petstore-migrate-{}\n", VERSION.replace('.', "-")),
        ),
        ("deploy/kubernetes/kustomization.yaml", format!("    newTag: {VERSION}\n")),
        ("deploy/Containerfile", format!("org.opencontainers.image.version=\"{VERSION}\"")),
        ("deploy/Containerfile", format!("org.opencontainers.image.source=\"{repository}\"")),
        ("deploy/prometheus/rules.yaml", format!("url: {repository}/blob/main/docs/runbook.md")),
        ("docs/operations.md", format!("petstore-{VERSION}-x86_64-linux.tar.gz")),
        ("docs/operations.md", format!("petstore_{VERSION}-1_amd64.deb")),
        ("docs/operations.md", format!("petstore-{VERSION}-image-amd64.tar")),
        // A reader expects the same functions in both SDKs.
        ("clients/typescript/package.json", format!("\"version\": \"{sdk}\",")),
        ("clients/typescript/package-lock.json", format!("\"version\": \"{sdk}\",")),
        ("clients/typescript/package.json", format!("\"url\": \"git+{repository}.git\"")),
        ("clients/typescript/README.md", tarball.clone()),
        ("clients/python/pyproject.toml", format!("Repository = \"{repository}\"")),
        ("clients/python/README.md", wheel.clone()),
        ("docs/quickstart.md", tarball),
        ("docs/quickstart.md", wheel),
    ] {
        assert!(read(file).contains(&text), "{file} lacks: {text}");
    }
}
