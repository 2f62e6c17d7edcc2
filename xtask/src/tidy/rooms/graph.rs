//! Finds the imports between the files of a crate, by the paths in their code.
//!
//! A path may begin with `crate`, `super`, `self` or the name of a child module. It is then an
//! import from the file of the module that the path names. Code that only tests use is ignored, and
//! so are the arguments of macros.

use std::collections::BTreeMap;

use syn::visit::{self, Visit};
use syn::{Attribute, File, Item, ItemMod, ItemUse, Macro, Meta, Path, UseTree, VisRestricted};

use super::circles::Imports;
use crate::tree::Tree;

/// The path of a module from the crate's root. It is empty for the root itself.
type Module = Vec<String>;

/// The files of a crate, and the files from which each one imports.
pub(super) struct Graph {
    pub(super) imports: Imports,
}

/// An import from the crate's root of an item that another module defines. Contains the importing
/// file, the line, and the path.
pub(super) type FromRoot = (String, usize, String);

impl Graph {
    /// Reads the crate whose sources are in this folder.
    pub(super) fn read(tree: &Tree, folder: &str) -> (Self, Vec<FromRoot>) {
        let mut files = BTreeMap::new();
        collect(tree, folder, Module::new(), &format!("{folder}lib.rs"), &mut files);
        // A module that is written within a file counts as that file.
        let mut modules = BTreeMap::new();
        for (module, (path, file)) in &files {
            modules.insert(module.clone(), path.as_str());
            inner(&file.items, module, path, &mut modules);
        }
        let root = files.get(&Module::new());
        let of_root = root.map(|(_, file)| defined(&file.items)).unwrap_or_default();
        let (mut imports, mut from_root) = (Imports::new(), Vec::new());
        for (module, (path, file)) in &files {
            let mut paths = Paths { module: module.clone(), modules: &modules, found: Vec::new() };
            paths.visit_file(file);
            let of_file = imports.entry(path.clone()).or_default();
            for (to, line) in paths.found {
                let Some((within, named)) = resolve(&modules, &to) else { continue };
                if modules[within] != path.as_str() {
                    of_file.insert(modules[within].to_owned());
                }
                // For `crate::name`, if `name` is neither a module nor defined in the root, the
                // root only re-exports it.
                if let (true, Some(name)) = (within.is_empty() && !module.is_empty(), named)
                    && !of_root.contains(name)
                {
                    from_root.push((path.clone(), line, format!("crate::{name}")));
                }
            }
        }
        (Self { imports }, from_root)
    }
}

/// Returns the longest beginning of a path that is a module, and the name that follows it.
fn resolve<'a>(
    modules: &'a BTreeMap<Module, &str>,
    path: &'a [String],
) -> Option<(&'a Module, Option<&'a String>)> {
    let lengths = (0..=path.len()).rev();
    lengths
        .map(|length| (modules.get_key_value(&path[..length]), path.get(length)))
        .find_map(|(module, name)| Some((module?.0, name)))
}

/// Reads the file of a module, and the files of its children.
fn collect(
    tree: &Tree,
    folder: &str,
    module: Module,
    path: &str,
    files: &mut BTreeMap<Module, (String, File)>,
) {
    // If the file is not Rust, the rule about lengths reports it.
    let Some(file) = tree.text(path).and_then(|text| syn::parse_file(text).ok()) else { return };
    let mut children = Vec::new();
    declared(&file.items, &module, &mut children);
    for child in children {
        let place = format!("{folder}{}", child.join("/"));
        for path in [format!("{place}.rs"), format!("{place}/mod.rs")] {
            collect(tree, folder, child.clone(), &path, files);
        }
    }
    files.insert(module, (path.to_owned(), file));
}

/// Collects the modules that these items declare and that have separate files.
fn declared(items: &[Item], module: &Module, children: &mut Vec<Module>) {
    for (child, content) in modules_of(items, module) {
        match content {
            Some(items) => declared(items, &child, children),
            None => children.push(child),
        }
    }
}

/// Adds the modules that are written within the file.
fn inner<'a>(
    items: &[Item],
    module: &Module,
    path: &'a str,
    modules: &mut BTreeMap<Module, &'a str>,
) {
    for (child, content) in modules_of(items, module) {
        let Some(items) = content else { continue };
        inner(items, &child, path, modules);
        modules.insert(child, path);
    }
}

/// Returns the children of a module, except tests. Each child that is written inline comes with its
/// items.
fn modules_of<'a>(
    items: &'a [Item],
    module: &'a Module,
) -> impl Iterator<Item = (Module, Option<&'a [Item]>)> {
    items.iter().filter_map(move |item| match item {
        Item::Mod(ItemMod { ident, content, attrs, .. }) if !is_test(attrs) => {
            let child = module.iter().cloned().chain([ident.to_string()]).collect();
            Some((child, content.as_ref().map(|(_, items)| items.as_slice())))
        }
        _ => None,
    })
}

/// Returns the names of the items that are defined here, and not only re-exported.
fn defined(items: &[Item]) -> Vec<String> {
    let name = |item: &Item| match item {
        Item::Const(item) => Some(item.ident.to_string()),
        Item::Enum(item) => Some(item.ident.to_string()),
        Item::Fn(item) => Some(item.sig.ident.to_string()),
        Item::Macro(item) => item.ident.as_ref().map(ToString::to_string),
        Item::Static(item) => Some(item.ident.to_string()),
        Item::Struct(item) => Some(item.ident.to_string()),
        Item::Trait(item) => Some(item.ident.to_string()),
        Item::Type(item) => Some(item.ident.to_string()),
        Item::Union(item) => Some(item.ident.to_string()),
        _ => None,
    };
    items.iter().filter_map(name).collect()
}

/// Returns true for `#[cfg(test)]`, and for `all` with `test` among its conditions.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && matches!(&attribute.meta, Meta::List(list)
                if list.tokens.to_string() == "test" || {
                    let text = list.tokens.to_string().replace(' ', "");
                    text.starts_with("all(test,") || text.starts_with("all(") && text.ends_with(",test)")
                })
    })
}

/// Collects the paths in a file that stay within the crate. They are expressed from the crate's
/// root, each with its line.
struct Paths<'a> {
    /// The module that is being read.
    module: Module,
    modules: &'a BTreeMap<Module, &'a str>,
    found: Vec<(Vec<String>, usize)>,
}

impl Paths<'_> {
    fn add(&mut self, path: &[(String, usize)]) {
        let Some((first, line)) = path.first() else { return };
        let mut whole = match first.as_str() {
            "crate" => Module::new(),
            "self" => self.module.clone(),
            "super" => {
                self.module.split_last().map(|(_, parent)| parent.to_vec()).unwrap_or_default()
            }
            _ => {
                let child: Module = self.module.iter().chain([first]).cloned().collect();
                if !self.modules.contains_key(&child) {
                    return;
                }
                child
            }
        };
        for (name, _) in path.iter().skip(1) {
            match name.as_str() {
                "super" => drop(whole.pop()),
                "self" => {}
                _ => whole.push(name.clone()),
            }
        }
        self.found.push((whole, *line));
    }

    /// Adds each name that an import contains, with the path that leads to it.
    fn leaves(&mut self, tree: &UseTree, before: &[(String, usize)]) {
        let with =
            |name: &syn::Ident| [before, &[(name.to_string(), name.span().start().line)]].concat();
        match tree {
            UseTree::Path(path) => self.leaves(&path.tree, &with(&path.ident)),
            UseTree::Name(name) => self.add(&with(&name.ident)),
            UseTree::Rename(name) => self.add(&with(&name.ident)),
            UseTree::Glob(glob) => {
                let line = glob.star_token.spans[0].start().line;
                self.add(&[before, &[("*".to_owned(), line)]].concat());
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.leaves(tree, before)),
        }
    }
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !is_test(&item.attrs) {
            self.module.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.module.pop();
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if !is_test(&item.attrs) {
            self.leaves(&item.tree, &[]);
        }
    }

    fn visit_path(&mut self, path: &'ast Path) {
        let name = |name: &syn::Ident| (name.to_string(), name.span().start().line);
        let names: Vec<_> = path.segments.iter().map(|segment| name(&segment.ident)).collect();
        if names.len() > 1 && path.leading_colon.is_none() {
            self.add(&names);
        }
        visit::visit_path(self, path);
    }

    // The path in a restricted visibility is not an import.
    fn visit_vis_restricted(&mut self, _who: &'ast VisRestricted) {}

    // Macros are found by their names, wherever they are defined.
    fn visit_macro(&mut self, _call: &'ast Macro) {}

    fn visit_attribute(&mut self, _attribute: &'ast Attribute) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<const N: usize>(files: [(&str, &str); N]) -> (String, Vec<String>) {
        let files = files.map(|(name, text)| (format!("src/{name}"), text));
        let files = files.each_ref().map(|(path, text)| (path.as_str(), *text));
        let (graph, from_root) = Graph::read(&Tree::of(files), "src/");
        let short = |path: &str| path.trim_start_matches("src/").trim_end_matches(".rs").to_owned();
        let edges = graph.imports.iter().flat_map(|(from, to)| {
            to.iter().map(move |to| format!("{}>{}", short(from), short(to)))
        });
        let edges: Vec<_> = edges.collect();
        (
            edges.join(" "),
            from_root.iter().map(|(f, l, w)| format!("{}:{l} {w}", short(f))).collect(),
        )
    }

    /// Returns the imports from `a/b.rs` to other files, if it has this text. Its parent is `a.rs`,
    /// next to which `c.rs` exists.
    fn edges(text: &str) -> String {
        let (a, b) = ("pub mod b;", text);
        read([("lib.rs", "mod a;\nmod c;"), ("a.rs", a), ("a/b.rs", b), ("c.rs", "")]).0
    }

    #[test]
    fn each_kind_of_path_is_an_import() {
        for text in [
            "use crate::c::Thing;",
            "use crate::{c, c::{self, e}};",
            "use crate::c as other;",
            "use super::super::c::*;",
            "fn a() { crate::c::b(); }",
            "fn a(b: &crate::c::B<u8>) {}",
            "impl crate::c::B for C {}",
            "mod inner { use super::super::super::c::B; }",
        ] {
            assert_eq!(edges(text), "a/b>c", "{text}");
        }
        assert_eq!(edges("use super::Thing;"), "a/b>a");
        assert_eq!(edges("use super::{Thing, super::c::Other};"), "a/b>a a/b>c");
    }

    #[test]
    fn paths_within_the_same_file_are_not_imports() {
        for text in [
            "use c::Thing;",
            "use std::fmt;",
            "mod d { pub fn e() {} } use d::e; fn f() { self::d::e(); }",
            "pub(in crate::a) fn b() {}",
            "/// [`b`](crate::c::b)\nfn a() {}",
            "#[cfg(test)]\nmod tests { use crate::c::Thing; }",
            "#[cfg(all(test, loom))]\nmod tests { use crate::c::Thing; }",
            "#[cfg(test)]\nuse crate::c::Thing;",
        ] {
            assert_eq!(edges(text), "", "{text}");
        }
    }

    #[test]
    fn a_declaration_is_no_import_and_the_use_of_a_child_is_one() {
        let of = |a| read([("lib.rs", "mod a;"), ("a.rs", a), ("a/b.rs", "")]).0;
        assert_eq!(of("mod b;"), "");
        assert_eq!(of("mod b; pub use b::Thing;"), "a>a/b");
        assert_eq!(of("mod b; fn c() { b::d() }"), "a>a/b");
        assert_eq!(of("#[cfg(test)] mod b; use b::Thing;"), "", "its file belongs to a test");
    }

    #[test]
    fn a_module_may_be_a_file_of_a_folder() {
        let files = [("lib.rs", "mod a; mod c;"), ("a/mod.rs", "use crate::c::d;"), ("c.rs", "")];
        assert_eq!(read(files).0, "a/mod>c");
    }

    #[test]
    fn an_item_that_the_root_only_re_exports_is_reported() {
        let lib = "mod a; mod c;\npub use c::Thing;\npub struct Own;";
        let of = |a| read([("lib.rs", lib), ("a.rs", a), ("c.rs", "")]);
        let (edges, told) = of("\nuse crate::Thing;");
        assert_eq!((edges.as_str(), told), ("a>lib lib>c", vec!["a:2 crate::Thing".to_owned()]));
        assert_eq!(of("fn b(c: crate::Thing) {}").1, ["a:1 crate::Thing"]);
        assert_eq!(of("use super::Thing;").1, ["a:1 crate::Thing"]);
        assert_eq!(of("use crate::*;").1, ["a:1 crate::*"]);
        assert_eq!(of("use crate::{Own, c::Thing};").1, [""; 0]);
    }
}
