//! `cargo xtask package`: packages the published crates, and then builds and documents each crate
//! from its package.
//!
//! A package contains no files from outside the crate's folder. So if a crate includes a page or a
//! test from elsewhere, only this command detects it. Nothing is published: `publish = true` is set
//! only in a copy of the checkout. Registries are used only to download missing dependencies.

mod contents;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use cargo_metadata::{MetadataCommand, Package};

use self::contents::Contents;
use crate::sim::cargo;
use crate::{tidy, tree};

/// The folder of this command, relative to the root. Git ignores it.
const FOLDER: &str = "target/package";
const FORBIDDEN: &str = "\npublish = false\n";
const ALLOWED: &str = "\npublish = true\n";
/// The beginning of an address that stands for the repository's address until the repository has
/// one. The host does not exist.
const PLACEHOLDER: &str = "https://git.example/";

/// Packages, builds, unpacks and documents all published crates.
///
/// # Errors
/// Returns an error if a crate cannot be packaged, does not build, or lacks a file, or if its
/// documentation causes a warning.
pub(crate) fn run() -> Result<bool> {
    let (root, start) = (tree::root(), Instant::now());
    let places = Places::new(&root.join(FOLDER))?;
    copy(&root, &places.checkout)?;
    allow_publishing(&places.checkout.join("Cargo.toml"))?;
    let packages = published(&places.checkout)?;
    fetch(&root)?;
    pack(&places)?;
    for package in &packages {
        unpack(&places, package)?;
    }
    join(&places, &packages, &root.join("Cargo.lock"))?;
    for package in &packages {
        compile(&places, package)?;
        document(&places, package)?;
    }
    let addresses = packages.iter().filter_map(|package| package.repository.as_deref());
    if addresses.into_iter().any(|address| address.starts_with(PLACEHOLDER)) {
        println!(
            "note: `repository` is a placeholder; docs/decisions/names.md has what to set before a release"
        );
    }
    println!("{} packages in {:.0} s", packages.len(), start.elapsed().as_secs_f64());
    Ok(true)
}

/// The folders of one run, all below [`FOLDER`].
struct Places {
    /// A copy of the checkout.
    checkout: PathBuf,
    /// The workspace that consists of the unpacked packages.
    unpacked: PathBuf,
    /// The folder of cargo's outputs. It is kept, so that a second run takes less time.
    target: PathBuf,
}

impl Places {
    /// Removes the files of an earlier run, except cargo's outputs.
    fn new(folder: &Path) -> Result<Self> {
        let at = |name| folder.join(name);
        let places =
            Self { checkout: at("checkout"), unpacked: at("unpacked"), target: at("target") };
        for old in [&places.checkout, &places.unpacked] {
            if old.exists() {
                fs::remove_dir_all(old).with_context(|| format!("removing {}", old.display()))?;
            }
            fs::create_dir_all(old)?;
        }
        Ok(places)
    }

    /// Returns the path of the file that cargo creates for a package.
    fn archive(&self, package: &Package) -> PathBuf {
        self.target.join("package").join(format!("{}-{}.crate", package.name, package.version))
    }

    fn folder(&self, package: &Package) -> PathBuf {
        self.unpacked.join(format!("{}-{}", package.name, package.version))
    }
}

/// Copies all files that git tracks or would add. Symbolic links are copied as links.
fn copy(root: &Path, to: &Path) -> Result<()> {
    for path in tree::listed(root)? {
        let (from, to) = (root.join(&path), to.join(&path));
        // A file that was deleted but not staged is still listed.
        let Ok(metadata) = fs::symlink_metadata(&from) else { continue };
        fs::create_dir_all(to.parent().context("a file is in a folder")?)?;
        let copied = match metadata.is_symlink() {
            true => fs::read_link(&from).and_then(|target| std::os::unix::fs::symlink(target, &to)),
            false => fs::copy(&from, &to).map(|_| ()),
        };
        copied.with_context(|| format!("copying {path}"))?;
    }
    Ok(())
}

/// Allows publishing in the copy. Otherwise cargo would not package crates that depend on each
/// other.
fn allow_publishing(manifest: &Path) -> Result<()> {
    let text = fs::read_to_string(manifest)?;
    ensure!(text.contains(FORBIDDEN), "the root Cargo.toml lacks `publish = false`; restore it");
    Ok(fs::write(manifest, text.replacen(FORBIDDEN, ALLOWED, 1))?)
}

/// Returns the published crates of the workspace, starting with those that depend on no others.
fn published(root: &Path) -> Result<Vec<Package>> {
    let mut members = MetadataCommand::new().current_dir(root).no_deps().exec()?.packages;
    let mut find = |name| {
        let at = members.iter().position(|package| package.name == name);
        Ok(members.swap_remove(at.with_context(|| format!("cargo does not know `{name}`"))?))
    };
    tidy::products().map(&mut find).collect()
}

/// Downloads locked dependencies that are missing on this machine, so that all later steps work
/// offline.
fn fetch(root: &Path) -> Result<()> {
    let fetched = cargo(root).args(["fetch", "--quiet", "--locked"]).status();
    ensure!(
        fetched.context("starting cargo")?.success(),
        "`cargo fetch --locked` failed; connect to the registry, or update Cargo.lock, and run it again"
    );
    Ok(())
}

/// Creates the packages. Cargo does not verify them. Verification could use old sources of the
/// lower crates, which an earlier run has left in cargo's home folder with the same versions.
fn pack(places: &Places) -> Result<()> {
    let mut cargo = cargo(&places.checkout);
    // Without `--quiet`, cargo would print a warning for each test that is not packaged.
    cargo.args(["package", "--quiet", "--locked", "--offline", "--no-verify", "--target-dir"]);
    cargo.arg(&places.target).args(tidy::products().flat_map(|name| ["--package", name]));
    println!("cargo package of {}", tidy::products().collect::<Vec<_>>().join(", "));
    ensure!(
        cargo.status().context("starting cargo")?.success(),
        "`cargo package` failed for the crate named above; mend its Cargo.toml"
    );
    Ok(())
}

fn unpack(places: &Places, package: &Package) -> Result<()> {
    let (name, archive) = (&package.name, places.archive(package));
    let size = fs::metadata(&archive).with_context(|| format!("no {}", archive.display()))?.len();
    let mut tar = Command::new("tar");
    // The files get the time of this run, so that cargo builds them again.
    tar.args(["--touch", "-xzf"]).arg(&archive).arg("-C").arg(&places.unpacked);
    ensure!(tar.status().context("starting tar")?.success(), "{name}: tar cannot unpack it");
    let contents = Contents::read(&places.folder(package))?;
    println!("{name}: {} files, {} KiB compressed", contents.count(), size.div_ceil(1024));
    let problems = contents.problems();
    ensure!(problems.is_empty(), "the package of {name}:\n{}", problems.join("\n"));
    Ok(())
}

/// Makes the unpacked packages into one workspace. They use each other, and the locked versions of
/// all other crates.
fn join(places: &Places, packages: &[Package], lock: &Path) -> Result<()> {
    let mut manifest = "[workspace]\nresolver = \"3\"\nmembers = [\"*\"]\n".to_owned();
    manifest += "\n[patch.crates-io]\n";
    for package in packages {
        let folder = format!("{}-{}", package.name, package.version);
        manifest += &format!("{} = {{ path = \"{folder}\" }}\n", package.name);
    }
    fs::write(places.unpacked.join("Cargo.toml"), manifest)?;
    fs::copy(lock, places.unpacked.join("Cargo.lock"))?;
    Ok(())
}

/// Checks that a package compiles with its default features.
fn compile(places: &Places, package: &Package) -> Result<()> {
    ensure!(
        run_in_packages(places, package, &["check"], &[])?,
        "{0}: its package does not compile; it has only what `include` in the root Cargo.toml selects: move what {0} \
         reads into its folder, or link to it from there",
        package.name
    );
    Ok(())
}

/// Checks that the documentation of a package can be built with the features that docs.rs uses.
fn document(places: &Places, package: &Package) -> Result<()> {
    ensure!(
        run_in_packages(places, package, &["doc", "--no-deps"], &features(package))?,
        "{}: its documentation cannot be built from its package; mend what rustdoc reports above",
        package.name
    );
    Ok(())
}

/// Runs a cargo command on one of the unpacked packages. Returns true if it succeeds.
fn run_in_packages(
    places: &Places,
    package: &Package,
    command: &[&str],
    features: &[String],
) -> Result<bool> {
    println!("cargo {} of {}", command[0], package.name);
    let mut cargo = cargo(&places.unpacked);
    cargo.args(command).args(["--quiet", "--offline", "--package", package.name.as_str()]);
    cargo.args(features).arg("--target-dir").arg(&places.target);
    let status = cargo.env("RUSTDOCFLAGS", "-D warnings").status().context("starting cargo")?;
    Ok(status.success())
}

/// Returns cargo's options for the features that `[package.metadata.docs.rs]` selects.
fn features(package: &Package) -> Vec<String> {
    let docs = &package.metadata["docs"]["rs"];
    if docs["all-features"] == true {
        return vec!["--all-features".to_owned()];
    }
    let some = docs["features"].as_array().into_iter().flatten();
    some.filter_map(|one| Some(format!("--features={}", one.as_str()?))).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn published_crates_describe_themselves() {
        for package in published(&tree::root()).unwrap() {
            let name = &package.name;
            assert!(package.description.is_some() && package.license.is_some(), "{name}");
            assert!((1..=5).contains(&package.keywords.len()), "{name}: {:?}", package.keywords);
            assert!((1..=5).contains(&package.categories.len()), "{name}");
            assert_eq!(package.documentation, Some(format!("https://docs.rs/{name}")), "{name}");
            assert_eq!(package.readme.as_deref().map(|path| path.as_str()), Some("README.md"));
            assert!(!package.metadata["docs"]["rs"].is_null(), "{name}: no metadata for docs.rs");
        }
    }

    #[test]
    fn published_crates_have_one_version_and_one_repository() {
        let packages = published(&tree::root()).unwrap();
        let versions: HashSet<_> = packages.iter().map(|package| &package.version).collect();
        let repositories: HashSet<_> = packages.iter().map(|package| &package.repository).collect();
        assert_eq!((versions.len(), repositories.len()), (1, 1), "{repositories:?}");
        let repository = repositories.into_iter().next().unwrap().as_deref().unwrap();
        for name in tidy::products() {
            let path = tree::root().join("crates").join(name).join("README.md");
            let readme = fs::read_to_string(path).unwrap();
            assert!(readme.contains(&format!("({repository}#readme)")), "{name}");
            assert!(readme.contains(&format!("(https://docs.rs/{name})")), "{name}");
        }
    }

    #[test]
    fn documentation_has_all_features_except_the_linked_library() {
        for package in published(&tree::root()).unwrap() {
            let wanted: &[&str] =
                if package.name == "rdma-sys" { &[] } else { &["--all-features"] };
            assert_eq!(features(&package), wanted, "{}", package.name);
        }
    }

    #[test]
    fn the_workflow_and_the_page_name_the_published_crates_in_order() {
        let read = |path| fs::read_to_string(tree::root().join(path)).unwrap();
        let options = tidy::products().map(|name| format!("-p {name}")).collect::<Vec<_>>();
        assert!(read(".github/workflows/release.yml").contains(&options.join(" ")));
        let names = tidy::products().map(|name| format!("`{name}`")).collect::<Vec<_>>();
        let page = read("CONTRIBUTING.md").replace('\n', " ");
        assert!(page.contains(&names.join(", ")), "write: {}", names.join(", "));
    }

    #[test]
    fn a_copy_has_links_and_may_be_published() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        let git = Command::new("git").args(["init", "-q"]).arg(&from).status();
        assert!(git.unwrap().success());
        let manifest = "[workspace.package]\npublish = false\ninclude = []\n";
        fs::write(from.join("Cargo.toml"), manifest).unwrap();
        std::os::unix::fs::symlink("Cargo.toml", from.join("link")).unwrap();
        copy(&from, &to).unwrap();
        assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("Cargo.toml"));
        allow_publishing(&to.join("Cargo.toml")).unwrap();
        let copied = fs::read_to_string(to.join("link")).unwrap();
        assert_eq!(copied, manifest.replace("false", "true"));
        let error = allow_publishing(&to.join("Cargo.toml")).unwrap_err();
        assert!(error.to_string().contains("publish = false"), "{error}");
    }
}
