//! Checks that the faults that the simulator must find can still be planted. A change of the code
//! that a patch modifies breaks the patch, but the job that plants the faults is not in the gate.

use std::path::Path;

use anyhow::{Context as _, Result};

use super::Finding;
use crate::sim;
use crate::tree::Tree;

pub(crate) fn check(root: &Path, tree: &Tree) -> Result<Vec<Finding>> {
    let mut found = Vec::new();
    for fault in sim::faults(tree) {
        // The patches are checked one by one. Otherwise git would apply each one to the result of
        // those before it.
        let output = sim::git_apply(root)?.arg("--check").arg(fault.path).output();
        let output = output.context("starting git, which checks patches")?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            let why = why.lines().next().unwrap_or_default().trim_start_matches("error: ");
            let what = format!("does not apply ({why}); plant the same fault in the code as it is");
            found.push(Finding::new(fault.path, 1, what));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn patch(from: &str, to: &str) -> String {
        format!(
            "What is wrong.\n\n--- a/code.rs\n+++ b/code.rs\n@@ -1,3 +1,3 @@\n one\n-{from}\n+{to}\n three\n"
        )
    }

    /// Returns the findings for three patches in this folder: two change the same line and can be
    /// applied, and one cannot.
    fn found_in(folder: &Path) -> Vec<Finding> {
        let right = [patch("two", "2"), patch("two", "II")];
        let wrong = patch("zwei", "2");
        let tree = Tree::of([
            ("code.rs", "one\ntwo\nthree\n"),
            ("crates/sim/faults/a.patch", &right[0]),
            ("crates/sim/faults/b.patch", &right[1]),
            ("crates/sim/faults/c.patch", &wrong),
            ("crates/other/d.patch", &wrong),
        ]);
        for (path, text) in tree.ending(&[""]) {
            let to = folder.join(path);
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::write(to, text).unwrap();
        }
        check(folder, &tree).unwrap()
    }

    #[test]
    fn a_patch_that_does_not_apply_is_found_in_a_checkout_a_folder_and_a_folder_of_a_checkout() {
        let folder = tempfile::tempdir().unwrap();
        let (alone, checkout) = (folder.path().join("alone"), folder.path().join("checkout"));
        std::fs::create_dir(&alone).unwrap();
        let git = Command::new("git").args(["init", "-q"]).arg(&checkout).status();
        assert!(git.unwrap().success());
        let within = checkout.join("within");
        std::fs::create_dir(&within).unwrap();
        for folder in [&alone, &checkout, &within] {
            let found = found_in(folder);
            assert_eq!(found.len(), 1, "{} {found:?}", folder.display());
            let found = found[0].to_string();
            assert!(found.starts_with("crates/sim/faults/c.patch:1: does not apply ("), "{found}");
        }
    }
}
