//! The text files of the checkout: all files that git tracks or would add.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// The text of each file, by the file's path relative to the root. The separator in paths is `/`.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// Reads all files that git tracks or would add. The text of a binary file is empty.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let paths = listed(root)?;
        Ok(Self::of_files(root, paths.iter().map(String::as_str)))
    }

    /// Reads these files, whose paths are relative to `root`. Omits files that do not exist.
    pub(crate) fn of_files<'a>(root: &Path, paths: impl Iterator<Item = &'a str>) -> Self {
        let mut files = BTreeMap::new();
        for path in paths {
            // A file that was deleted but not staged is still listed.
            let Ok(bytes) = std::fs::read(root.join(path)) else { continue };
            files.insert(path.to_owned(), String::from_utf8(bytes).unwrap_or_default());
        }
        Self { files }
    }

    /// Creates a tree from literals. Used in tests.
    #[cfg(test)]
    pub(crate) fn of<const N: usize>(files: [(&str, &str); N]) -> Self {
        Self { files: files.map(|(path, text)| (path.to_owned(), text.to_owned())).into() }
    }

    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Returns true if `path` is a file, or a folder that contains files. An empty path is the
    /// root.
    pub(crate) fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        let folder = format!("{path}/");
        path.is_empty()
            || self.files.contains_key(path)
            || self
                .files
                .range(folder.clone()..)
                .next()
                .is_some_and(|(p, _)| p.starts_with(&folder))
    }

    pub(crate) fn paths(&self) -> BTreeSet<&str> {
        self.files.keys().map(String::as_str).collect()
    }

    /// Returns the files whose paths end with one of `suffixes`.
    pub(crate) fn ending<'a>(
        &'a self,
        suffixes: &'a [&str],
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.files
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
            .filter(|(path, _)| suffixes.iter().any(|suffix| path.ends_with(suffix)))
    }
}

/// Returns the paths of the files that git tracks or would add, relative to the root.
pub(crate) fn listed(root: &Path) -> Result<Vec<String>> {
    let paths = git(root, &["ls-files", "-z", "--cached", "--others", "--exclude-standard"])?;
    Ok(paths.split_terminator('\0').map(str::to_owned).collect())
}

/// Runs a git command in the checkout, and returns its output.
///
/// # Errors
/// Returns an error if git cannot be started or fails, for example because the folder is not a
/// checkout.
pub(crate) fn git(root: &Path, args: &[&str]) -> Result<String> {
    // The checkout may belong to a different user, as in a container.
    let trusted = ["-c", "safe.directory=*"];
    let output = Command::new("git").current_dir(root).args(trusted).args(args).output();
    let output =
        output.context("starting git, which knows the files and commits of the checkout")?;
    let (why, command) = (String::from_utf8_lossy(&output.stderr), args.join(" "));
    ensure!(output.status.success(), "`git {command}` failed, is this a git checkout? {why}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the workspace root, derived from the path at which this crate was compiled.
pub(crate) fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_path_buf()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_known_by_its_files() {
        let tree = Tree::of([("text/a.md", ""), ("texty.md", "")]);
        assert!(tree.has("text") && tree.has("text/") && tree.has("text/a.md") && tree.has(""));
        assert!(!tree.has("doc") && !tree.has("text/a") && !tree.has("text/b.md"));
    }

    #[test]
    fn untracked_files_are_read_and_ignored_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let git = Command::new("git").arg("-C").arg(dir.path()).args(["init", "-q"]).status();
        assert!(git.unwrap().success());
        for (name, text) in [(".gitignore", "secret\n"), ("secret", "x"), ("seen", "y")] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let tree = Tree::read(dir.path()).unwrap();
        assert_eq!(tree.text("seen"), Some("y"));
        assert_eq!(tree.text("secret"), None);
    }

    #[test]
    fn a_folder_without_git_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Tree::read(dir.path()).unwrap_err().to_string().contains("git"));
    }
}
