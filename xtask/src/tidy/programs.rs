//! Checks that a crate has only a few test programs. Every job that runs tests links each of them
//! with the libraries that it uses.

use std::collections::BTreeMap;

use super::Finding;
use crate::tree::Tree;

/// The maximum number of test programs, which is that of the crate with the most.
const MOST: usize = 7;

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut programs: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (path, _) in tree.ending(&[".rs"]) {
        if let Some((of, name)) = path.split_once("/tests/").filter(|(_, rest)| is_program(rest)) {
            programs.entry(of).or_default().push(name);
        }
    }
    programs.retain(|_, names| names.len() > MOST);
    let too_many = programs.into_iter().map(|(of, names)| {
        let what = format!(
            "{} test programs, {MOST} at most; make modules of tests/behaviour of some of these: {}",
            names.len(),
            names.join(", ")
        );
        Finding::new(format!("{of}/tests"), 1, what)
    });
    too_many.collect()
}

/// Returns true for `x.rs` and `x/main.rs`, which cargo compiles as programs.
fn is_program(path: &str) -> bool {
    match path.split_once('/') {
        None => true,
        Some((_, rest)) => rest == "main.rs",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eighth_test_program_fails_and_modules_do_not_count() {
        let mut paths: Vec<_> = (0..5).map(|n| format!("crates/a/tests/t{n}.rs")).collect();
        let others = ["behaviour/main.rs", "behaviour/x.rs", "common/mod.rs", "soak/main.rs"];
        paths.extend(others.map(|path| format!("crates/a/tests/{path}")));
        let of = |paths: &[String]| {
            let mut files = [("", ""); 10];
            for (file, path) in files.iter_mut().zip(paths) {
                *file = (path, "");
            }
            check(&Tree::of(files))
        };
        assert_eq!(of(&paths), []);
        paths.push("crates/a/tests/more.rs".to_owned());
        let found = of(&paths);
        assert_eq!(found.len(), 1);
        let text = found[0].to_string();
        assert!(
            text.starts_with("crates/a/tests:1: 8 test programs") && text.contains("more.rs"),
            "{text}"
        );
    }
}
