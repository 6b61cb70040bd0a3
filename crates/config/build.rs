//! Finds the commit that is built.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=BUILD_COMMIT={}", commit());
}

/// The commit that is built: `BUILD_COMMIT`, or that of the Git repository.
fn commit() -> String {
    println!("cargo::rerun-if-env-changed=BUILD_COMMIT");
    let git = |arguments: &[&str]| {
        let output =
            Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        String::from_utf8(output.stdout).ok().map(|text| text.trim().to_owned())
    };
    if let Ok(commit) = env::var("BUILD_COMMIT") {
        return commit;
    }
    // It grows with every commit and every checkout.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".to_owned())
}
