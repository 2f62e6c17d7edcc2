//! Finds the tests that could fail on a busy machine, by the words in their files: tests with a
//! deadline or a second process.

use crate::tree::Tree;

/// Words that occur in tests which start a process or run in one.
const PROCESSES: &[&str] = &[
    "this_program",
    "in_own_process",
    "in_a_process_of_its_own",
    "must_live",
    "must_abort",
    "Process::",
    "Peer::start",
    "Near::",
    "two_processes::run",
];

/// Words that occur in tests which use the machine's clock.
const DEADLINES: &[&str] = &["Instant::now", ".elapsed()", "timeout(", "deadline", "sleep("];

/// A crate whose tests represent time as numbers, so they do not depend on the machine.
const WITHOUT_A_CLOCK: &str = "crates/rdma-proto/";

/// Returns the modules of `tests/behaviour` that contain such tests, as filters for libtest.
pub(super) fn filters(tree: &Tree) -> Vec<String> {
    let files = tree.ending(&[".rs"]).filter(|(path, _)| !path.starts_with(WITHOUT_A_CLOCK));
    let modules = files.filter_map(|(path, text)| Some((module(path)?, text)));
    let timed = modules
        .filter(|(_, text)| PROCESSES.iter().chain(DEADLINES).any(|mark| text.contains(mark)));
    let mut filters: Vec<_> = timed.map(|(module, _)| module).collect();
    filters.sort();
    filters.dedup();
    filters
}

/// Returns `a::b::` for `…/tests/behaviour/a/b.rs`, and `None` for code that several tests share.
fn module(path: &str) -> Option<String> {
    let (_, inside) = path.split_once("/tests/behaviour/")?;
    let module = inside.strip_suffix(".rs")?;
    let shared = module == "main" || module.starts_with("common/");
    (!shared).then(|| module.replace('/', "::") + "::")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_with_a_clock_or_a_second_process_are_named() {
        let tree = Tree::of([
            ("crates/a/tests/behaviour/main.rs", "mod late; // Instant::now"),
            ("crates/a/tests/behaviour/late.rs", "let begin = Instant::now();"),
            ("crates/a/tests/behaviour/late/killed.rs", "let child = this_program();"),
            ("crates/a/tests/behaviour/common/mod.rs", "sleep(A_WHILE)"),
            ("crates/a/tests/behaviour/sums.rs", "assert_eq!(1 + 1, 2);"),
            ("crates/a/tests/fork.rs", "this_program()"),
            ("crates/rdma-proto/tests/behaviour/pair.rs", "pair.timeout(3)"),
            ("crates/b/tests/behaviour/late.rs", "channel.timeout(SHORT)"),
        ]);
        assert_eq!(filters(&tree), ["late::", "late::killed::"]);
    }

    #[test]
    fn this_repository_has_some_of_both_kinds() {
        let tree = Tree::read(&crate::tree::root()).unwrap();
        let filters = filters(&tree);
        for known in ["local_link::", "sleeping::limits::", "leases::processes::", "told::"] {
            assert!(filters.iter().any(|filter| filter == known), "{known}: {filters:?}");
        }
    }
}
