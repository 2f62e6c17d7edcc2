//! Checks that the engine of the software device does not use the C bindings. Only its shims may
//! use C's names.

use super::{Finding, tokens};
use crate::tree::Tree;

const BINDINGS: &str = "rdma_sys";
const DEVICE: &str = "crates/rdma-soft/src/";
const SHIMS: &str = "crates/rdma-soft/src/abi/";

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let sources = tree.ending(&[".rs"]).filter(|(path, _)| path.starts_with(DEVICE));
    let others = sources.filter(|(path, _)| !path.starts_with(SHIMS));
    let found = others.filter_map(|(path, text)| {
        // If a file cannot be split into tokens, the rule about lengths reports it.
        let line = tokens::line_of_word(&tokens::lex(path, text).ok()?, BINDINGS)?;
        let what =
            format!("`{BINDINGS}`: only {SHIMS} names it; translate there, use rdma-types here");
        Some(Finding::new(path, line, what))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        check(&Tree::of([(path, text)])).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn only_the_shims_name_the_bindings() {
        for text in
            ["use a::b;\nuse rdma_sys::ibv_sge;\n", "fn a(\n    b: &rdma_sys::ibv_sge) {}\n"]
        {
            let found = messages("crates/rdma-soft/src/engine/a.rs", text);
            assert_eq!(found.len(), 1, "{text}");
            let start = "crates/rdma-soft/src/engine/a.rs:2: `rdma_sys`: only";
            assert!(found[0].starts_with(start), "{found:?}");
            for path in [
                "crates/rdma-soft/src/abi/a.rs",
                "crates/rdma-soft/tests/a.rs",
                "crates/rdma-mem/src/a.rs",
            ] {
                assert_eq!(messages(path, text), [""; 0], "{path}");
            }
        }
    }

    #[test]
    fn comments_may_name_them() {
        let text = "//! `rdma_sys` has it.\n/// As `rdma_sys::Errno`.\nfn a() {} // rdma_sys\n";
        assert_eq!(messages("crates/rdma-soft/src/a.rs", text), [""; 0]);
    }
}
