//! Finds the names in a module that refer to an unstable crate.

use std::collections::HashSet;

use syn::visit::{self, Visit};
use syn::{Ident, Item, Path, UseTree, Visibility};

use super::{UNSTABLE, is_public};

/// The facts about the whole crate that are needed to check one of its files.
#[derive(Default)]
pub(super) struct Crate {
    /// The names under which the crate re-exports unstable items for its own use.
    carried: HashSet<String>,
    /// The types and traits that are not public.
    hidden: HashSet<String>,
    public: HashSet<String>,
}

impl Crate {
    pub(super) fn of<'a>(files: impl Iterator<Item = &'a [Item]> + Clone) -> Self {
        let mut known = Self::default();
        files.clone().for_each(|items| known.declare(items));
        files.for_each(|items| known.carry(items));
        known
    }

    /// Returns true if the crate declares a type or trait with this name, but no public one.
    pub(super) fn hides(&self, name: &Ident) -> bool {
        let name = name.to_string();
        self.hidden.contains(&name) && !self.public.contains(&name)
    }

    fn declare(&mut self, items: &[Item]) {
        for item in items {
            let (visibility, name) = match item {
                Item::Struct(item) => (&item.vis, &item.ident),
                Item::Enum(item) => (&item.vis, &item.ident),
                Item::Union(item) => (&item.vis, &item.ident),
                Item::Trait(item) => (&item.vis, &item.ident),
                Item::Mod(module) => {
                    module.content.iter().for_each(|(_, items)| self.declare(items));
                    continue;
                }
                _ => continue,
            };
            let names = if is_public(visibility) { &mut self.public } else { &mut self.hidden };
            names.insert(name.to_string());
        }
    }

    fn carry(&mut self, items: &[Item]) {
        let scope = Scope::of(items, &Self::default());
        for item in items {
            match item {
                Item::Use(import) if !matches!(import.vis, Visibility::Inherited) => {
                    let names = leaves(&import.tree).into_iter().filter(|leaf| scope.is_of(leaf));
                    self.carried.extend(names.map(|leaf| leaf.local));
                }
                Item::Type(alias) if !matches!(alias.vis, Visibility::Inherited) => {
                    let name = alias.ident.to_string();
                    if scope.unstable.contains(&name) {
                        self.carried.insert(name);
                    }
                }
                Item::Mod(module) => module.content.iter().for_each(|(_, items)| self.carry(items)),
                _ => {}
            }
        }
    }
}

/// The names that one module declares or imports.
pub(super) struct Scope {
    unstable: HashSet<String>,
    carried: HashSet<String>,
}

impl Scope {
    pub(super) fn of(items: &[Item], of_crate: &Crate) -> Self {
        let mut scope = Self { unstable: HashSet::default(), carried: of_crate.carried.clone() };
        for item in items {
            match item {
                Item::Use(import) => {
                    for leaf in leaves(&import.tree) {
                        if scope.is_of(&leaf) {
                            scope.unstable.insert(leaf.local);
                        }
                    }
                }
                Item::ExternCrate(import) if UNSTABLE.iter().any(|name| import.ident == name) => {
                    let renamed = import.rename.iter().map(|(_, name)| name.to_string());
                    scope.unstable.extend(renamed);
                }
                _ => {}
            }
        }
        for item in items {
            if let Item::Type(alias) = item
                && !is_public(&alias.vis)
            {
                let mut paths = Paths { scope: &scope, found: false };
                paths.visit_type(&alias.ty);
                if paths.found {
                    scope.unstable.insert(alias.ident.to_string());
                }
            }
        }
        scope
    }

    /// Returns true if a path that begins with this name refers to an unstable crate.
    pub(super) fn is_unstable(&self, first: &str) -> bool {
        UNSTABLE.contains(&first) || self.unstable.contains(first)
    }

    /// Returns the imports from unstable crates, each with its line.
    pub(super) fn unstable_imports(&self, tree: &UseTree) -> Vec<(usize, String)> {
        let found = leaves(tree).into_iter().filter(|leaf| self.is_of(leaf));
        found.map(|leaf| (leaf.line, leaf.path.join("::"))).collect()
    }

    fn is_of(&self, leaf: &Leaf) -> bool {
        let (first, last) = (leaf.path.first(), leaf.path.last());
        let own = first.is_some_and(|first| ["crate", "super", "self"].contains(&first.as_str()));
        first.is_some_and(|first| UNSTABLE.contains(&first.as_str()))
            || own && last.is_some_and(|last| self.carried.contains(last))
    }
}

struct Paths<'a> {
    scope: &'a Scope,
    found: bool,
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_path(&mut self, path: &'ast Path) {
        let first = path.segments.first().map(|first| first.ident.to_string());
        self.found |= first.is_some_and(|first| self.scope.is_unstable(&first));
        visit::visit_path(self, path);
    }
}

/// A name that a `use` imports: its full path, and its local name.
struct Leaf {
    path: Vec<String>,
    local: String,
    line: usize,
}

fn leaves(tree: &UseTree) -> Vec<Leaf> {
    let leaf = |path: &[&Ident], local: &Ident| Leaf {
        path: path.iter().map(ToString::to_string).collect(),
        local: local.to_string(),
        line: local.span().start().line,
    };
    match tree {
        UseTree::Name(name) => vec![leaf(&[&name.ident], &name.ident)],
        UseTree::Rename(name) => vec![leaf(&[&name.ident], &name.rename)],
        UseTree::Glob(glob) => {
            let line = glob.star_token.spans[0].start().line;
            vec![Leaf { path: vec!["*".to_owned()], local: "*".to_owned(), line }]
        }
        UseTree::Group(group) => group.items.iter().flat_map(leaves).collect(),
        UseTree::Path(path) => {
            let within = leaves(&path.tree).into_iter();
            let longer = within.map(|mut leaf| {
                let first = path.ident.to_string();
                if leaf.path == ["self"] {
                    leaf.path.clear();
                    if leaf.local == "self" {
                        leaf.local.clone_from(&first);
                    }
                }
                leaf.path.insert(0, first);
                leaf
            });
            longer.collect()
        }
    }
}
