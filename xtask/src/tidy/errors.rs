//! Checks that the `Debug` output of public errors is their message. `unwrap`, `expect` and a
//! `main` that returns an error print that output.

use syn::{Attribute, Item, Meta, Token, Visibility, punctuated::Punctuated};

use super::{Finding, layers};
use crate::tree::Tree;

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let of_product =
        |path: &str| layers::names().any(|name| path.starts_with(&format!("crates/{name}/src/")));
    let files = tree.ending(&[".rs"]).filter(|(path, _)| of_product(path));
    files.flat_map(|(path, text)| check_file(path, text)).collect()
}

fn check_file(path: &str, text: &str) -> Vec<Finding> {
    // If a file is not Rust, the rule about lengths reports it.
    let items = syn::parse_file(text).map(|file| file.items).unwrap_or_default();
    let implementing: Vec<_> = items.iter().filter_map(error_implemented).collect();
    let mut found = Vec::new();
    for item in &items {
        let (attrs, ident) = match item {
            Item::Struct(item) if is_public(&item.vis) => (&item.attrs, &item.ident),
            Item::Enum(item) if is_public(&item.vis) => (&item.attrs, &item.ident),
            _ => continue,
        };
        let derives = |name: &str| derived(attrs).iter().any(|derived| derived == name);
        let is_error = derives("Error") || implementing.iter().any(|name| ident == name);
        if is_error && derives("Debug") {
            let what = format!(
                "`{ident}` is an error whose `Debug` prints no message: use `rdma_types::debug_messages!` instead of \
                 `derive(Debug)`"
            );
            found.push(Finding::new(path, ident.span().start().line, what));
        }
    }
    found
}

/// If the item implements `Error` for a type, returns the name of the type.
fn error_implemented(item: &Item) -> Option<String> {
    let Item::Impl(block) = item else { return None };
    let (_, of, _) = block.trait_.as_ref()?;
    let syn::Type::Path(own) = &*block.self_ty else { return None };
    let is_error = of.segments.last()?.ident == "Error";
    is_error.then(|| own.path.segments.last().map(|last| last.ident.to_string()))?
}

fn derived(attrs: &[Attribute]) -> Vec<String> {
    let derives = attrs.iter().filter(|attr| attr.path().is_ident("derive"));
    let paths = derives.filter_map(|attr| match &attr.meta {
        Meta::List(list) => {
            list.parse_args_with(Punctuated::<syn::Path, Token![,]>::parse_terminated).ok()
        }
        _ => None,
    });
    paths.flatten().filter_map(|path| Some(path.segments.last()?.ident.to_string())).collect()
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_errors_that_derive_debug_are_found() {
        let text = "#[derive(Clone, Debug, thiserror::Error)] pub enum Bad {}\n\
                    #[derive(Clone, thiserror::Error)] pub enum Good {}\n\
                    #[derive(Debug)] pub struct Plain;\n\
                    #[derive(Debug)] pub struct ByHand;\n\
                    impl std::error::Error for ByHand {}\n\
                    #[derive(Debug, thiserror::Error)] pub(crate) enum Inner {}\n";
        let found = check_file("a.rs", text);
        let named = |name: &str| found.iter().filter(|it| it.to_string().contains(name)).count();
        assert_eq!((found.len(), named("`Bad`"), named("`ByHand`")), (2, 1, 1));
    }
}
