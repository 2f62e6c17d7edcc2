//! Limits unsafe code. A checked-in list names the files that may contain it. Only a few files may
//! turn addresses into pointers. Libraries may not define symbols that C could link to, except
//! `rdma-dropin`, `rdma-dropin-cm` and `rdma-soft-files`.

use std::collections::BTreeMap;

use super::{Finding, layers, tokens};
use crate::tree::Tree;

const LIST: &str = "xtask/unsafe-files.txt";

/// The function that turns an address into a pointer (SAFETY.md F7).
const POINTERS: &str = "with_exposed_provenance";
/// The files of libraries that may use this function.
const OF_ADDRESSES: [&str; 3] = [
    "crates/rdma-qp/src/post/extended.rs",
    "crates/rdma-soft/src/memory/copy.rs",
    "crates/rdma-soft/src/memory/probe.rs",
];

/// The crates that no other crate can depend on, and whose purpose is to export C symbols.
const EXPORTING: [&str; 3] =
    ["crates/rdma-dropin/", "crates/rdma-dropin-cm/", "crates/rdma-soft-files/"];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut unsafe_files = BTreeMap::new();
    for (path, text) in tree.ending(&[".rs"]) {
        // If a file cannot be split into tokens, the rule about lengths reports it.
        let Ok(tokens) = tokens::lex(path, text) else { continue };
        if let Some(&line) = tokens::unsafe_lines(&tokens).first() {
            unsafe_files.insert(path, line);
        }
        if is_library_source(path) && !EXPORTING.iter().any(|exporting| path.starts_with(exporting))
        {
            found.extend(tokens::exports(&tokens).into_iter().map(|(line, attribute)| {
                let why =
                    "libraries must not export C symbols, which would clash with the real ones";
                Finding::new(path, line, format!("`{attribute}`: {why}; pass a function pointer"))
            }));
        }
    }
    found.extend(pointers(tree));
    found.extend(listed(tree, &unsafe_files));
    found.extend(forbidden(tree, &unsafe_files));
    found
}

fn pointers(tree: &Tree) -> Vec<Finding> {
    let sources = tree.ending(&[".rs"]).filter(|(path, _)| is_library_source(path));
    // Unpublished code is excluded: it is used only in tests, and reads the tests' own memory.
    let published = |path: &str| layers::names().any(|name| path.contains(&format!("/{name}/")));
    let others = sources.filter(|(path, _)| published(path) && !OF_ADDRESSES.contains(path));
    let line = |text: &str| Some(text.lines().position(|line| line.contains(POINTERS))? + 1);
    let found = others.filter_map(|(path, text)| Some((path, line(text)?)));
    let what =
        format!("`{POINTERS}`: SAFETY.md F7 has the files that turn addresses into pointers");
    found.map(|(path, line)| Finding::new(path, line, what.clone())).collect()
}

fn listed(tree: &Tree, unsafe_files: &BTreeMap<&str, usize>) -> Vec<Finding> {
    let Some(list) = tree.text(LIST) else {
        return vec![Finding::new(LIST, 1, "missing; it lists the files with unsafe code")];
    };
    let mut found = Vec::new();
    let mut entries = BTreeMap::new();
    let mut last = "";
    for (at, entry) in
        list.lines().enumerate().filter(|(_, l)| !l.is_empty() && !l.starts_with('#'))
    {
        if entry <= last {
            let what = format!("`{entry}` is repeated or after `{last}`; keep the list sorted");
            found.push(Finding::new(LIST, at + 1, what));
        }
        if !unsafe_files.contains_key(entry) {
            let what = format!("`{entry}` is gone or has no unsafe code any more; remove the line");
            found.push(Finding::new(LIST, at + 1, what));
        }
        entries.insert(entry, at);
        last = entry;
    }
    for (&path, &line) in unsafe_files.iter().filter(|(path, _)| !entries.contains_key(*path)) {
        let what = format!("unsafe code; do without, or add `{path}` to {LIST} for review");
        found.push(Finding::new(path, line, what));
    }
    found
}

fn forbidden(tree: &Tree, unsafe_files: &BTreeMap<&str, usize>) -> Vec<Finding> {
    let mut found = Vec::new();
    for name in layers::without_unsafe() {
        let folder = format!("crates/{name}/");
        for (path, &line) in unsafe_files.iter().filter(|(path, _)| path.starts_with(&folder)) {
            let what = format!("unsafe code, and {name} may have none, listed or not; do without");
            found.push(Finding::new(*path, line, what));
        }
        let root = format!("{folder}src/lib.rs");
        let forbids = |text| tokens::lex(&root, text).is_ok_and(|t| tokens::forbids_unsafe(&t));
        if tree.text(&root).is_some_and(|text| !forbids(text)) {
            found.push(Finding::new(
                &root,
                1,
                "add `#![forbid(unsafe_code)]`: this crate has none",
            ));
        }
    }
    found
}

fn is_library_source(path: &str) -> bool {
    let parts: Vec<_> = path.split('/').collect();
    matches!(parts[..], ["crates", _, "src", ..])
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNSAFE: &str = "#![allow(unsafe_code)]\nunsafe fn a() {}\n";

    fn messages<const N: usize>(files: [(&str, &str); N]) -> Vec<String> {
        check(&Tree::of(files)).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_listed_file_passes_and_an_unlisted_one_fails() {
        let list = "# why\ncrates/a/src/x.rs\n";
        assert!(messages([("crates/a/src/x.rs", UNSAFE), (LIST, list)]).is_empty());
        let found = messages([("crates/a/src/x.rs", UNSAFE), ("tests/y.rs", UNSAFE), (LIST, list)]);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("tests/y.rs:1: unsafe code"), "{found:?}");
    }

    #[test]
    fn a_stale_entry_fails() {
        let found = messages([("a.rs", "fn a() {}"), (LIST, "a.rs\nb.rs\n")]);
        assert_eq!(found.len(), 2);
        assert!(found[1].starts_with("xtask/unsafe-files.txt:2: `b.rs` is gone"), "{found:?}");
    }

    #[test]
    fn an_unsorted_list_and_a_missing_one_fail() {
        let found = messages([("a.rs", UNSAFE), ("b.rs", UNSAFE), (LIST, "b.rs\na.rs\n")]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains(":2: `a.rs` is repeated or after `b.rs`"), "{found:?}");
        assert_eq!(messages([("a.rs", "")]).len(), 1);
    }

    #[test]
    fn a_crate_without_unsafe_code_may_not_even_list_it() {
        let forbid = "#![forbid(unsafe_code)]\n";
        let (root, path) = ("crates/rdma-types/src/lib.rs", "crates/rdma-types/src/address/gid.rs");
        assert!(messages([(root, forbid), (LIST, "")]).is_empty());
        let found = messages([(root, forbid), (path, UNSAFE), (LIST, path)]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("gid.rs:1: unsafe code, and rdma-types may have none"));
        assert!(messages([(root, "#![deny(unsafe_code)]"), (LIST, "")])[0].contains("forbid"));
    }

    #[test]
    fn addresses_become_pointers_in_few_files() {
        let text = "fn a() {}\nlet p = ptr::with_exposed_provenance_mut::<u8>(1);\n";
        for path in OF_ADDRESSES.into_iter().chain(["crates/rdma-soft/tests/a.rs"]) {
            assert!(messages([(path, text), (LIST, "")]).is_empty(), "{path}");
        }
        let found = messages([("crates/rdma-qp/src/a.rs", text), (LIST, "")]);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("crates/rdma-qp/src/a.rs:2: `with_exposed"), "{found:?}");
    }

    #[test]
    fn exported_symbols_fail_in_libraries_only() {
        for text in [
            "#[unsafe(no_mangle)]\npub extern \"C\" fn a() {}",
            "#[unsafe(export_name = \"a\")]\nfn a() {}",
            "#[cfg_attr(unix, unsafe(no_mangle))]\nfn a() {}",
        ] {
            let path = "crates/rdma-soft/src/a.rs";
            let found = messages([(path, text), (LIST, path)]);
            assert_eq!(found.len(), 1, "{text}");
            assert!(found[0].contains("a.rs:1: `"), "{found:?}");
            let test = "crates/rdma-soft/tests/a.rs";
            assert!(messages([(test, text), (LIST, test)]).is_empty());
        }
    }
}
