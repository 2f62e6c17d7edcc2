//! Checks the files of an unpacked package.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::tidy::links::{links, resolve};
use crate::tree::Tree;

/// The files that each package must have.
const REQUIRED: [&str; 4] = ["Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT", "README.md"];
/// The macros that read a file when the crate or its documentation is compiled.
const INCLUDES: [&str; 3] = ["include_str!(", "include_bytes!(", "include!("];

#[derive(Debug)]
pub(super) struct Contents(Tree);

impl Contents {
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let (mut paths, mut folders) = (Vec::new(), vec![folder.to_owned()]);
        while let Some(at) = folders.pop() {
            for entry in fs::read_dir(&at).with_context(|| format!("reading {}", at.display()))? {
                let path = entry?.path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    paths.push(path.strip_prefix(folder)?.to_string_lossy().into_owned());
                }
            }
        }
        Ok(Self(Tree::of_files(folder, paths.iter().map(String::as_str))))
    }

    pub(super) fn count(&self) -> usize {
        self.0.paths().len()
    }

    /// Returns a line for each required or included file that is missing, and for each relative
    /// link in a page.
    pub(super) fn problems(&self) -> Vec<String> {
        let missing = REQUIRED.iter().filter(|path| !self.0.has(path));
        let mut found: Vec<_> = missing.map(|path| format!("lacks {path}; add it")).collect();
        for (path, text) in self.0.ending(&[".rs"]).filter(|(path, _)| !is_of_tests(path)) {
            for file in included(text) {
                if !resolve(path, file).is_some_and(|file| self.0.has(&file)) {
                    found.push(format!(
                        "{path} includes {file}, which the package lacks; link to it from `src`"
                    ));
                }
            }
        }
        for (path, text) in self.0.ending(&[".md"]) {
            let outside = |target: &str| !target.contains(':') && !target.starts_with('#');
            for (line, target) in links(text).into_iter().filter(|(_, target)| outside(target)) {
                found.push(format!(
                    "{path}:{line} links {target}; docs.rs has no such page: write its path as code, or an absolute URL"
                ));
            }
        }
        found
    }
}

/// Returns true for a module `tests`. It is compiled only in a checkout, so it may use unpublished
/// crates and files.
fn is_of_tests(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/")
}

/// Returns the paths that a source file includes, if they are literals.
fn included(text: &str) -> impl Iterator<Item = &str> {
    let after = INCLUDES.into_iter().flat_map(|name| text.split(name).skip(1));
    after.filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(source: &str, page: &str) -> Vec<String> {
        let required = REQUIRED.map(|path| (path, ""));
        let files: [_; 6] = std::array::from_fn(|at| match at {
            0 => ("src/lib.rs", source),
            1 => ("src/guide.md", page),
            _ => required[at - 2],
        });
        Contents(Tree::of(files)).problems()
    }

    #[test]
    fn a_missing_licence_fails() {
        let found = Contents(Tree::of([("Cargo.toml", ""), ("README.md", "")])).problems();
        assert_eq!(found, ["lacks LICENSE-APACHE; add it", "lacks LICENSE-MIT; add it"]);
    }

    #[test]
    fn an_include_from_outside_the_package_fails() {
        for (path, count) in [
            ("guide.md", 0),
            ("../README.md", 0),
            ("../../README.md", 1),
            ("../docs/page.md", 1),
            ("../../../docs/page.md", 1),
        ] {
            for source in
                [format!("#[doc = include_str!(\"{path}\")]"), format!("include!(\n \"{path}\")")]
            {
                let found = problems(&source, "");
                assert_eq!(found.len(), count, "{source}: {found:?}");
            }
        }
        let found = problems("const A: &[u8] = include_bytes!(\"a.bin\");", "");
        assert!(found[0].starts_with("src/lib.rs includes a.bin, which"), "{found:?}");
    }

    #[test]
    fn modules_of_tests_may_include_files_of_the_checkout() {
        for (path, is_of_tests) in
            [("src/a/tests.rs", true), ("src/tests/a.rs", true), ("src/latests.rs", false)]
        {
            let tree = Tree::of([(path, "include_bytes!(\"../../../b/c\")")]);
            let found = Contents(tree).problems();
            assert_eq!(found.iter().any(|line| line.contains("includes")), !is_of_tests, "{path}");
        }
    }

    #[test]
    fn a_relative_link_of_a_page_fails() {
        assert!(problems("", "# A\n[a](#a) [b](https://b/c.md) `c.md`\n").is_empty());
        let found = problems("", "\n[a](memory.md#pools)\n");
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("src/guide.md:2 links memory.md#pools"), "{found:?}");
    }

    #[test]
    fn a_folder_is_read_with_its_folders() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("src/a")).unwrap();
        for path in ["README.md", "src/a/b.rs"] {
            fs::write(dir.path().join(path), "include_str!(\"c\")").unwrap();
        }
        let contents = Contents::read(dir.path()).unwrap();
        assert_eq!(contents.count(), 2);
        let found = contents.problems();
        assert!(found.iter().any(|line| line.starts_with("src/a/b.rs includes c")), "{found:?}");
    }
}
