//! Packages of crates.io. Cargo downloads them, and builds their tests and examples with the drop-in.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use cargo_metadata::{Message, MetadataCommand};

use super::installation::{Installation, source};
use crate::sim::cargo;

/// The packages with the programs and the library that the build scripts need.
pub(super) const TOOLS: &[(&str, &str)] = &[
    ("cmake", "usr/bin/cmake"),
    ("make", "usr/bin/make"),
    ("pkg-config", "usr/bin/pkg-config"),
    ("libclang-dev", "usr/share/doc/libclang-dev/copyright"),
];

/// The folder of cargo's outputs beside the folders of the suites.
const OUTPUTS: &str = "crates";

/// The name by which the linker finds the library.
const LINKED: &str = "libibverbs.so";

/// The end of a manifest, without which cargo would count the package among the workspace around its folder.
const OWN_WORKSPACE: &str = "\n[workspace]\n";

/// The test programs and examples of a package.
#[derive(Debug)]
pub(super) struct Programs {
    /// The test programs by the names of their targets.
    pub(super) tests: BTreeMap<String, PathBuf>,
    /// The examples by their names.
    pub(super) examples: BTreeMap<String, PathBuf>,
}

/// Downloads a package, given as `NAME==VERSION`, and builds its test programs and examples. `cmake` is one of our
/// programs, which build scripts then start instead of cmake.
///
/// # Errors
/// Returns an error if cargo cannot download the package, or cannot build it.
pub(super) fn build(
    installation: &Installation,
    package: &str,
    cmake: Option<&str>,
) -> Result<Programs> {
    let (name, version) = package.split_once("==").context("a package without version")?;
    let home = &installation.home;
    let folder = softroce::stage(home, "crate", &format!("{package}\n"), |folder| {
        download(name, version, folder)
    })?;
    let mut command = cargo(&folder);
    command.args(["test", "--locked", "--no-run", "--message-format=json-render-diagnostics"]);
    command.arg("--target-dir").arg(home.with_file_name(OUTPUTS)).stdout(Stdio::piped());
    command.env("RUSTFLAGS", format!("-L native={}", linked(installation)?.display()));
    command.env("CARGO_INCREMENTAL", "0").env("CARGO_PROFILE_DEV_DEBUG", "0");
    command.envs(installation.build_environment());
    command.envs(cmake.map(|program| ("CMAKE", source(program))));
    let mut child = command.spawn().context("starting cargo")?;
    let messages = child.stdout.take().context("cargo has no output")?;
    let programs = Programs::read(std::io::BufReader::new(messages))?;
    let status = child.wait()?;
    ensure!(status.success(), "cargo could not build {package}: {status}");
    Ok(programs)
}

impl Programs {
    /// Reads cargo's messages until the end of the build.
    fn read(messages: impl std::io::BufRead) -> Result<Self> {
        let mut programs = Self { tests: BTreeMap::new(), examples: BTreeMap::new() };
        for message in Message::parse_stream(messages) {
            let Message::CompilerArtifact(artifact) = message? else { continue };
            let Some(path) = artifact.executable else { continue };
            let kind = match artifact.profile.test {
                true => &mut programs.tests,
                false => &mut programs.examples,
            };
            kind.insert(artifact.target.name, path.into_std_path_buf());
        }
        Ok(programs)
    }
}

/// Copies the files of a package into `folder`. A package that depends on it makes cargo download it.
fn download(name: &str, version: &str, folder: &Path) -> Result<()> {
    let manifest = format!(
        "[package]\nname = \"download\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\
         [lib]\npath = \"lib.rs\"\n[dependencies]\n{name} = \"={version}\"\n{OWN_WORKSPACE}"
    );
    let depends = folder.join("download");
    fs::create_dir(&depends)?;
    fs::write(depends.join("Cargo.toml"), manifest)?;
    fs::write(depends.join("lib.rs"), "")?;
    let metadata = MetadataCommand::new().current_dir(&depends).exec();
    let metadata = metadata
        .with_context(|| format!("cargo could not download {name} {version}; check the network"))?;
    let package = metadata.packages.iter().find(|package| package.name.as_str() == name);
    let from = &package.context("cargo does not list the package")?.manifest_path;
    let from = from.parent().context("the package has no folder")?;
    copy(from.as_std_path(), folder)?;
    fs::remove_dir_all(depends)?;
    let manifest = folder.join("Cargo.toml");
    let text = fs::read_to_string(&manifest)?;
    Ok(fs::write(manifest, text + OWN_WORKSPACE)?)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let copied = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy(&entry.path(), &copied)?,
            false => _ = fs::copy(entry.path(), copied)?,
        }
    }
    Ok(())
}

/// Returns a folder in which the linker finds the drop-in.
fn linked(installation: &Installation) -> Result<PathBuf> {
    let folder = installation.home.join("link");
    fs::create_dir_all(&folder)?;
    let link = folder.join(LINKED);
    let _ = fs::remove_file(&link); // does not exist before the first run
    symlink(&installation.library, link)?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_and_examples_are_found_in_the_messages() {
        let artifact = |name: &str, is_test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"p","manifest_path":"/p/Cargo.toml","target":{{
                "kind":["lib"],"crate_types":["lib"],"name":"{name}","src_path":"/p/a.rs","edition":"2021","doctest":
                false,"test":true,"doc":true}},"profile":{{"opt_level":"0","debuginfo":0,"debug_assertions":true,
                "overflow_checks":true,"test":{is_test}}},"features":[],"filenames":["/t/a"],"executable":{executable},
                "fresh":false}}"#
            )
            .replace('\n', " ")
        };
        let messages = [
            artifact("p", false, "null"),
            artifact("p", true, r#""/t/p-1""#),
            artifact("loopback", false, r#""/t/loopback""#),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let programs = Programs::read(messages.join("\n").as_bytes()).unwrap();
        let one = |name: &str, path: &str| BTreeMap::from([(name.to_owned(), path.into())]);
        assert_eq!(programs.tests, one("p", "/t/p-1"));
        assert_eq!(programs.examples, one("loopback", "/t/loopback"));
    }

    #[test]
    fn folders_are_copied_with_their_files() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(from.path().join("src")).unwrap();
        fs::write(from.path().join("src/lib.rs"), "text").unwrap();
        copy(from.path(), to.path()).unwrap();
        assert_eq!(fs::read_to_string(to.path().join("src/lib.rs")).unwrap(), "text");
    }
}
