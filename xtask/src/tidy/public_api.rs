//! Checks that public signatures do not name items of unstable crates. A breaking change there
//! would also break our users.
//!
//! The lint `unreachable_pub` ensures that `pub` items are really public, so each file can be
//! checked separately. Names are followed through imports and aliases, including those in other
//! files of the crate.

mod names;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{Attribute, Block, Expr, Field, ImplItem, Item, ItemImpl, ItemMod, Path, Visibility};

use super::{Finding, layers};
use crate::tree::Tree;
use names::{Crate, Scope};

/// Crates that have no version 1.0 yet or are implementation details, such as rustix and bon.
const UNSTABLE: &[&str] = &[
    "bon",
    "ibverbs_sys",
    "libloading",
    "offset_allocator",
    "quinn_udp",
    "rustix",
    "socket2",
    "zerocopy",
];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    layers::names().flat_map(|name| check_crate(tree, &format!("crates/{name}/src/"))).collect()
}

fn check_crate(tree: &Tree, folder: &str) -> Vec<Finding> {
    // If a file is not Rust, the rule about lengths reports it.
    let parsed = tree.ending(&[".rs"]).filter(|(path, _)| path.starts_with(folder));
    let parsed = parsed.filter_map(|(path, text)| Some((path, syn::parse_file(text).ok()?)));
    let files: Vec<_> = parsed.collect();
    let of_crate = Crate::of(files.iter().map(|(_, file)| file.items.as_slice()));
    let mut found = Vec::new();
    for (path, file) in &files {
        for (line, what) in check_items(&file.items, &of_crate) {
            let why =
                "public, and its crate is unstable: keep it inside, or wrap it in a type of ours";
            found.push(Finding::new(*path, line, format!("`{what}` is {why}")));
        }
    }
    found
}

fn check_items(items: &[Item], of_crate: &Crate) -> Vec<(usize, String)> {
    let scope = Scope::of(items, of_crate);
    let mut found = Vec::new();
    for item in items {
        if let Item::Mod(ItemMod { content: Some((_, items)), attrs, .. }) = item {
            if !is_test(attrs) {
                found.extend(check_items(items, of_crate));
            }
            continue;
        }
        let mut signature = Signature { scope: &scope, found: Vec::new() };
        signature.item(item, of_crate);
        found.append(&mut signature.found);
    }
    found
}

/// Checks the public parts of an item.
struct Signature<'a> {
    scope: &'a Scope,
    found: Vec<(usize, String)>,
}

impl Signature<'_> {
    fn item(&mut self, item: &Item, of_crate: &Crate) {
        match item {
            Item::Impl(block) => self.block(block, of_crate),
            Item::Macro(call) => self.tokens(&call.mac.tokens),
            Item::Use(import) => {
                let names = self.scope.unstable_imports(&import.tree);
                // The names that a glob imports cannot be distinguished from our own.
                let seen = |name: &str| is_public(&import.vis) || name.ends_with('*');
                self.found.extend(names.into_iter().filter(|(_, name)| seen(name)));
            }
            Item::Struct(item) if is_public(&item.vis) => self.visit_item_struct(item),
            Item::Union(item) if is_public(&item.vis) => self.visit_item_union(item),
            Item::Enum(item) if is_public(&item.vis) => self.visit_item_enum(item),
            Item::Fn(item) if is_public(&item.vis) => self.visit_item_fn(item),
            Item::Trait(item) if is_public(&item.vis) => self.visit_item_trait(item),
            Item::Type(item) if is_public(&item.vis) => self.visit_item_type(item),
            Item::Const(item) if is_public(&item.vis) => self.visit_item_const(item),
            Item::Static(item) if is_public(&item.vis) => self.visit_item_static(item),
            _ => {}
        }
    }

    /// Checks the implementation of a trait, unless the crate hides the trait or the type. In an
    /// inherent implementation, only the public functions and constants are checked.
    fn block(&mut self, block: &ItemImpl, of_crate: &Crate) {
        let Some((_, path, _)) = &block.trait_ else {
            self.visit_generics(&block.generics);
            for item in &block.items {
                match item {
                    ImplItem::Fn(item) if is_public(&item.vis) => self.visit_signature(&item.sig),
                    ImplItem::Const(item) if is_public(&item.vis) => self.visit_type(&item.ty),
                    _ => {}
                }
            }
            return;
        };
        let of_ours = |path: &Path| path.segments.last().is_some_and(|s| of_crate.hides(&s.ident));
        let hidden = matches!(&*block.self_ty, syn::Type::Path(own) if of_ours(&own.path));
        if !hidden && !of_ours(path) {
            self.visit_item_impl(block);
        }
    }

    /// Checks the tokens of a macro: those from each `pub` to the following body, semicolon or end.
    fn tokens(&mut self, tokens: &TokenStream) {
        let level: Vec<_> = tokens.clone().into_iter().collect();
        let mut public = false;
        for (at, tree) in level.iter().enumerate() {
            match tree {
                TokenTree::Ident(word) if word == "pub" => {
                    let restricted = matches!(level.get(at + 1), Some(TokenTree::Group(group))
                        if group.delimiter() == Delimiter::Parenthesis);
                    public = !restricted;
                }
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                    public = false;
                    self.tokens(&group.stream());
                }
                TokenTree::Punct(end) if matches!(end.as_char(), ';') => public = false,
                TokenTree::Group(group) if public => self.words(&group.stream()),
                TokenTree::Group(group) => self.tokens(&group.stream()),
                tree if public => self.words(&tree.to_token_stream()),
                _ => {}
            }
        }
    }

    /// Finds unstable names among tokens that are not parsed.
    fn words(&mut self, tokens: &TokenStream) {
        for tree in tokens.clone() {
            match tree {
                TokenTree::Group(group) => self.words(&group.stream()),
                TokenTree::Ident(word) if self.scope.is_unstable(&word.to_string()) => {
                    self.found.push((word.span().start().line, word.to_string()));
                }
                _ => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Signature<'_> {
    fn visit_path(&mut self, path: &'ast Path) {
        if let Some(first) = path.segments.first()
            && self.scope.is_unstable(&first.ident.to_string())
        {
            let text = path.to_token_stream().to_string().replace(' ', "");
            self.found.push((path.span().start().line, text));
        }
        visit::visit_path(self, path);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        // `derive` implements the traits that it lists.
        if attribute.path().is_ident("derive")
            && let syn::Meta::List(list) = &attribute.meta
        {
            self.words(&list.tokens);
        }
        visit::visit_attribute(self, attribute);
    }

    fn visit_field(&mut self, field: &'ast Field) {
        if is_public(&field.vis) {
            visit::visit_field(self, field);
        }
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        // The fields of a variant are as public as the enum, although they have no `pub`.
        variant.fields.iter().for_each(|field| visit::visit_field(self, field));
    }

    fn visit_block(&mut self, _body: &'ast Block) {}

    fn visit_expr(&mut self, _value: &'ast Expr) {}
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && matches!(&attribute.meta, syn::Meta::List(list) if list.tokens.to_string() == "test")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOLDER: &str = "crates/rdma-mem/src/";

    fn messages<const N: usize>(files: [(&str, &str); N]) -> Vec<String> {
        let files = files.map(|(name, text)| (format!("{FOLDER}{name}"), text));
        let files = files.each_ref().map(|(path, text)| (path.as_str(), *text));
        check(&Tree::of(files)).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn each_kind_of_public_signature_is_looked_at() {
        for text in [
            "pub fn a(b: rustix::io::Errno) {}",
            "pub fn a() -> Result<(), ::rustix::io::Errno> { b() }",
            "pub fn a<T: zerocopy::FromBytes>(b: T) {}",
            "pub fn a<T>(b: T) where T: zerocopy::FromBytes {}",
            "pub fn a(b: impl Fn(&[socket2::Socket])) {}",
            "pub struct A { pub b: rustix::io::Errno }",
            "pub struct A(pub rustix::io::Errno);",
            "pub enum A { B(rustix::io::Errno) }",
            "pub type A = rustix::io::Errno;",
            "pub const A: Option<rustix::io::Errno> = None;",
            "pub trait A: zerocopy::FromBytes {}",
            "pub trait A { fn b(&self) -> libloading::Library; }",
            "pub use rustix::io::Errno as OsError;",
            "pub use rustix;",
            "#[derive(zerocopy::FromBytes)] pub struct A;",
            "#[bon::builder] pub fn a() {}",
            "pub struct A; impl A { pub fn b(&self) -> rustix::io::Errno { c() } }",
            "pub struct A; impl From<rustix::io::Errno> for A {}",
            "pub struct A; impl Iterator for A { type Item = rustix::io::Errno; }",
            "pub struct A; mod b { impl crate::A { pub fn c(_: rustix::io::Errno) {} } }",
            "macro_rules! m { () => { pub fn a(b: rustix::io::Errno) {} } }",
            "m! { impl A { pub fn a(&self) -> rustix::io::Errno { b } } }",
        ] {
            let found = messages([("a.rs", text)]);
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            assert!(found[0].contains("a.rs:1: `"), "{found:?}");
        }
    }

    #[test]
    fn private_items_may_name_anything() {
        for text in [
            "fn a(b: rustix::io::Errno) {}",
            "pub(crate) fn a(b: rustix::io::Errno) {}",
            "pub fn a() { let b: rustix::io::Errno = c(); }",
            "pub fn a() -> io::Errno {}",
            "pub struct A { b: rustix::io::Errno }",
            "pub struct A(pub(crate) rustix::io::Errno);",
            "use rustix::io::Errno; pub fn a(b: crate::Errno) {}",
            "struct A; impl From<rustix::io::Errno> for A {}",
            "trait B {} pub struct A; impl B for A { fn c(_: rustix::io::Errno) {} }",
            "pub struct A; impl A { pub(crate) fn b(&self) -> rustix::io::Errno { c() } }",
            "pub(crate) use rustix::io::Errno;",
            "#[cfg(test)] mod tests { use rustix::io::Errno; pub fn a(_: Errno) {} }",
            "macro_rules! m { () => { pub(crate) fn a(b: rustix::io::Errno) {} } }",
            "macro_rules! m { () => { pub fn a() { rustix::b() } } }",
            "pub const A: u32 = rustix::A;",
        ] {
            assert_eq!(messages([("a.rs", text)]), [""; 0], "{text}");
        }
    }

    #[test]
    fn names_are_followed_through_imports_and_aliases() {
        for text in [
            "use rustix::io::Errno; pub fn a() -> Errno {}",
            "use rustix::io; pub fn a() -> io::Errno {}",
            "use rustix::io::{self, Errno as E}; pub fn a() -> E {}",
            "use rustix as r; pub fn a() -> r::io::Errno {}",
            "extern crate rustix as r; pub fn a() -> r::io::Errno {}",
            "type E = rustix::io::Errno; pub fn a() -> E {}",
            "use rustix::io::Errno; type E<T> = Result<T, Errno>; pub fn a() -> E<u8> {}",
            "use zerocopy::FromBytes; #[derive(Debug, FromBytes)] pub struct A;",
            "use rustix::io::Errno; m! { pub fn a() -> Errno {} }",
        ] {
            assert_eq!(messages([("a.rs", text)]).len(), 1, "{text}");
        }
        let os = ("os.rs", "pub(crate) use rustix::io::Errno; pub(crate) type E = Errno;");
        for text in [
            "use crate::os::Errno; pub fn a() -> Errno {}",
            "use crate::os::E; pub fn a() -> E {}",
            "use super::os::Errno as X; pub fn a() -> X {}",
            "pub use crate::os::Errno;",
        ] {
            let found = messages([("a.rs", text), os]);
            assert_eq!(found.len(), 1, "{text}: {found:?}");
        }
        let other = "use rdma_sys::Errno; pub fn a() -> Errno {}";
        assert_eq!(messages([("a.rs", other), os]), [""; 0], "a name from another crate");
    }

    #[test]
    fn a_glob_of_an_unstable_crate_hides_what_it_names() {
        let found = messages([("a.rs", "use rustix::fs::*; pub fn a() -> Mode {}")]);
        assert!(found[0].contains("`rustix::fs::*`"), "{found:?}");
    }
}
