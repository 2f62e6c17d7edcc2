//! Checks that each crate's `tests/auto_traits.rs` asserts, for each public type, which threads may
//! use the type.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens as _;
use syn::{File, Item, ItemMod, ItemUse, UseTree, Visibility};

use super::{Finding, layers};
use crate::tree::Tree;

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    layers::names().flat_map(|name| check_crate(tree, name)).collect()
}

fn check_crate(tree: &Tree, name: &str) -> Vec<Finding> {
    let root = format!("crates/{name}/src/lib.rs");
    let test = format!("crates/{name}/tests/auto_traits.rs");
    // If a file is not Rust, the rule about lengths reports it.
    let parse = |path: &str| tree.text(path).and_then(|text| syn::parse_file(text).ok());
    let Some(lib) = parse(&root) else { return Vec::new() };
    let others = not_types(tree, &format!("crates/{name}/src/"));
    let asserted = parse(&test).map(|file| words(&file)).unwrap_or_default();
    let lacking = types(&lib)
        .into_iter()
        .filter(|(name, _)| !others.contains(name.as_str()) && !asserted.contains(name.as_str()));
    lacking
        .map(|(name, line)| {
            let what =
                format!("{test} does not assert which threads may use `{name}`; add it there");
            Finding::new(&root, line, what)
        })
        .collect()
}

/// Returns the public names that come from the crate's own modules and look like types.
fn types(lib: &File) -> BTreeSet<(String, usize)> {
    let modules: Vec<_> = lib
        .items
        .iter()
        .filter_map(|item| match item {
            Item::Mod(ItemMod { ident, .. }) => Some(ident.to_string()),
            _ => None,
        })
        .collect();
    let mut found = BTreeSet::new();
    for item in &lib.items {
        let Item::Use(ItemUse { vis: Visibility::Public(_), tree: UseTree::Path(path), .. }) = item
        else {
            continue;
        };
        if modules.iter().any(|module| path.ident == module) {
            leaves(&path.tree, &mut found);
        }
    }
    let of_type = |name: &str| name.starts_with(char::is_uppercase) && name != name.to_uppercase();
    found.retain(|(name, _)| of_type(name));
    found
}

fn leaves(tree: &UseTree, found: &mut BTreeSet<(String, usize)>) {
    let mut add = |name: &syn::Ident| {
        found.insert((name.to_string(), name.span().start().line));
    };
    match tree {
        UseTree::Name(name) => add(&name.ident),
        UseTree::Rename(name) => add(&name.rename),
        UseTree::Path(path) => leaves(&path.tree, found),
        UseTree::Group(group) => group.items.iter().for_each(|tree| leaves(tree, found)),
        UseTree::Glob(_) => {} // a glob of the bindings, whose pointers belong to C
    }
}

/// Returns names that look like types but are not: traits, and aliases of types.
fn not_types(tree: &Tree, folder: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (_, text) in tree.ending(&[".rs"]).filter(|(path, _)| path.starts_with(folder)) {
        for item in syn::parse_file(text).map(|file| file.items).unwrap_or_default() {
            match item {
                Item::Trait(item) => found.insert(item.ident.to_string()),
                Item::Type(item) => found.insert(item.ident.to_string()),
                _ => false,
            };
        }
    }
    found
}

/// Returns all words of the file except those in its imports.
fn words(file: &File) -> BTreeSet<String> {
    fn add(tokens: TokenStream, words: &mut BTreeSet<String>) {
        for tree in tokens {
            match tree {
                TokenTree::Group(group) => add(group.stream(), words),
                TokenTree::Ident(word) => {
                    words.insert(word.to_string());
                }
                _ => {}
            }
        }
    }
    let mut found = BTreeSet::new();
    let items = file.items.iter().filter(|item| !matches!(item, Item::Use(_)));
    items.for_each(|item| add(item.to_token_stream(), &mut found));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIB: &str = "mod a;\nmod b;\npub use a::{One, Two, make};\npub use b::Three as Four;\n\
        pub use a::Like;\npub use other::Foreign;\npub(crate) use a::Hidden;\npub use b::LIMIT;\n";
    const A: &str = "pub trait Like {}\npub struct One;\npub struct Two;\n";

    fn messages(test: &str) -> Vec<String> {
        let tree = Tree::of([
            ("crates/rdma-mem/src/lib.rs", LIB),
            ("crates/rdma-mem/src/a.rs", A),
            ("crates/rdma-mem/tests/auto_traits.rs", test),
        ]);
        check(&tree).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn each_public_type_must_be_asserted() {
        let all = "#[test]\nfn all() { send::<One>(); send::<Two<'_>>(); send::<Vec<Four>>(); }";
        assert_eq!(messages(all), [""; 0]);
        let found = messages("#[test]\nfn all() { send::<One>(); send::<Four>(); }");
        assert_eq!(found.len(), 1);
        let start = "crates/rdma-mem/src/lib.rs:3: crates/rdma-mem/tests/auto_traits.rs does not";
        assert!(found[0].starts_with(start) && found[0].contains("`Two`"), "{found:?}");
    }

    #[test]
    fn an_import_asserts_nothing() {
        assert_eq!(messages("use rdma_mem::{One, Two, Four};").len(), 3);
        assert_eq!(messages("// One, Two, Four").len(), 3);
    }

    #[test]
    fn a_crate_without_the_test_fails() {
        let tree = Tree::of([("crates/rdma-mem/src/lib.rs", LIB)]);
        assert_eq!(check(&tree).len(), 4, "unresolved names count as types");
    }
}
