//! `cargo xtask features`: checks that each published crate compiles by itself, without features
//! and with each one of its features.
//!
//! Cargo unites the features of all crates that it builds together. So if a crate fails to request
//! a feature that it needs, this is detected only when the crate is built by itself.

use std::process::Command;

use anyhow::{Context as _, Result, bail};
use cargo_metadata::{MetadataCommand, Package};

use crate::{tidy, tree};

/// The feature that is left out. It compiles all of rdma-core, and a separate job checks it.
const ELSEWHERE: &str = "linked";

/// Checks every combination, even after one has failed. Fails with a list of those that do not
/// compile.
pub(crate) fn run() -> Result<bool> {
    let root = tree::root();
    let metadata = MetadataCommand::new().current_dir(&root).no_deps().exec()?;
    let mut failed = Vec::new();
    for name in tidy::products() {
        let package = metadata.packages.iter().find(|package| package.name == name);
        let package = package.with_context(|| format!("cargo does not know `{name}`"))?;
        for features in combinations(package) {
            let mut cargo = Command::new("cargo");
            cargo.args(["check", "--quiet", "--package", name, "--no-default-features"]);
            cargo.args(features.iter().flat_map(|one| ["--features", *one])).current_dir(&root);
            let line = format!("{name} with {}", features.first().copied().unwrap_or("no feature"));
            println!("{line}");
            if !cargo.status().context("starting cargo")?.success() {
                failed.push(line);
            }
        }
    }
    if !failed.is_empty() {
        bail!("{} do not compile: {}", failed.len(), failed.join(", "));
    }
    Ok(true)
}

/// Returns the combinations of features to check: none, and then each feature alone, including
/// `default`.
fn combinations(package: &Package) -> Vec<Vec<&str>> {
    let features = package.features.keys().map(String::as_str);
    let each = features.filter(|feature| *feature != ELSEWHERE).map(|feature| vec![feature]);
    std::iter::once(Vec::new()).chain(each).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_of_each_published_crate_is_tried_alone() {
        let metadata = MetadataCommand::new().current_dir(tree::root()).no_deps().exec().unwrap();
        let of = |name: &str| {
            let package = metadata.packages.iter().find(|package| package.name == name).unwrap();
            combinations(package)
        };
        let none: Vec<&str> = Vec::new();
        assert_eq!(of("rdma-soft"), [none.clone(), vec!["simulation"]]);
        assert_eq!(of("rdma-sys"), std::slice::from_ref(&none), "`linked` has a job of its own");
        assert_eq!(of("rdma-qp"), [none.clone(), vec!["serde"]]);
        let each = ["async", "cm", "default", "group", "serde", "simulation", "soft"]
            .map(|feature| vec![feature]);
        assert_eq!(of("rdma"), [&[none][..], &each].concat());
    }
}
