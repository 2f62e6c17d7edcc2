//! The environment in which jobs run.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use cargo_metadata::MetadataCommand;

use super::timed;
use crate::tidy;
use crate::tree::Tree;

/// The environment in which jobs run, and the values for placeholders in their command lines.
pub(crate) struct Setting {
    /// The root of the workspace, also for `{root}`.
    pub(crate) root: PathBuf,
    /// Cargo's target folder, for `{target}`.
    target: String,
    /// The target triple of this machine, for `{host}`.
    host: String,
    /// The oldest supported compiler, as stated in the root manifest, for `{msrv}`.
    msrv: String,
    /// `-p` with the name of each published crate, for `{products}`.
    products: String,
    /// The modules of tests that could fail on a busy machine, for `{timed}`.
    timed: String,
}

impl Setting {
    pub(crate) fn of(root: &Path) -> Result<Self> {
        let metadata = MetadataCommand::new().current_dir(root).no_deps().exec()?;
        let msrv = metadata.packages.iter().find_map(|package| package.rust_version.as_ref());
        let msrv = msrv.context("no crate has a `rust-version`")?;
        let rustc = Command::new("rustc").arg("-vV").output().context("starting rustc")?;
        let rustc = String::from_utf8_lossy(&rustc.stdout).into_owned();
        let host = rustc.lines().find_map(|line| line.strip_prefix("host: "));
        Ok(Self {
            root: root.to_path_buf(),
            target: metadata.target_directory.to_string(),
            host: host.context("`rustc -vV` prints no host")?.to_owned(),
            msrv: format!("{}.{}", msrv.major, msrv.minor),
            products: tidy::products()
                .map(|name| format!("-p {name}"))
                .collect::<Vec<_>>()
                .join(" "),
            timed: timed::filters(&Tree::read(root)?).join(" "),
        })
    }

    pub(crate) fn fill(&self, text: &str) -> String {
        text.replace("{root}", &self.root.display().to_string())
            .replace("{target}", &self.target)
            .replace("{host}", &self.host)
            .replace("{HOST}", &self.host.to_uppercase().replace('-', "_"))
            .replace("{msrv}", &self.msrv)
            .replace("{products}", &self.products)
            .replace("{timed}", &self.timed)
    }

    /// Returns the size of the target folder, in bytes.
    pub(crate) fn disk_use(&self) -> u64 {
        size(Path::new(&self.target))
    }
}

/// Returns the number of bytes that a folder takes on disk. A file with several names is counted
/// once. A file that disappears in the meantime is not counted.
fn size(folder: &Path) -> u64 {
    let (mut folders, mut seen, mut bytes) = (vec![folder.to_path_buf()], HashSet::new(), 0);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                folders.push(entry.path());
            } else if seen.insert(metadata.ino()) {
                bytes += metadata.blocks() * 512;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree;

    fn setting() -> Setting {
        Setting::of(&tree::root()).unwrap()
    }

    #[test]
    fn a_file_with_two_names_takes_its_space_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("deps")).unwrap();
        fs::write(path("deps/program"), vec![1; 1 << 20]).unwrap();
        fs::hard_link(path("deps/program"), path("program")).unwrap();
        let size = size(folder.path());
        assert!((1 << 20..2 << 20).contains(&size), "{size}");
    }

    #[test]
    fn placeholders_are_filled() {
        let setting = setting();
        let filled =
            setting.fill("{target}/x {host} CARGO_TARGET_{HOST}_RUNNER +{msrv} {products}");
        assert!(!filled.contains('{') && filled.contains("_LINUX_GNU_RUNNER +1."), "{filled}");
        assert!(
            filled.contains(" -p rdma-types -p rdma-message ") && !filled.contains("xtask"),
            "{filled}"
        );
    }
}
