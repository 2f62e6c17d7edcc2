//! Packages of the distribution and of PyPI. Those that are not installed are unpacked into the target folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// The distribution's Python, which the packages with modules need.
pub(super) const PYTHON: &str = "/usr/bin/python3";

/// The packages that a suite needs.
#[derive(Debug)]
pub(super) struct Needs {
    /// Packages of the distribution, each with a file of it. If a file is not on this machine, all are unpacked.
    pub(super) packages: &'static [(&'static str, &'static str)],
    /// Packages of PyPI, as `NAME==VERSION`, without those on which they depend.
    pub(super) wheels: &'static [&'static str],
}

impl Needs {
    pub(super) const NONE: Self = Self { packages: &[], wheels: &[] };
}

/// The files of packages.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    /// The folder with the files: `/`, or a folder of unpacked packages.
    pub(super) root: PathBuf,
    /// The file names of the unpacked packages; empty if the packages are installed.
    unpacked: Vec<String>,
}

impl Tree {
    /// Returns the files of installed packages. If a package is not installed, unpacks all of them into a folder in
    /// `home`.
    ///
    /// # Errors
    /// Returns an error if the packages cannot be downloaded.
    pub(super) fn of_packages(home: &Path, packages: &[(&str, &str)]) -> Result<Self> {
        if packages.iter().all(|(_, file)| Path::new("/").join(file).exists()) {
            return Ok(Self { root: PathBuf::from("/"), unpacked: Vec::new() });
        }
        let names: Vec<_> = packages.iter().map(|(name, _)| *name).collect();
        let root = softroce::unpack_packages(home, &names)?;
        let versions = fs::read_to_string(root.join(softroce::VERSIONS))?;
        Ok(Self { root, unpacked: versions.lines().map(str::to_owned).collect() })
    }

    /// Returns the version of a package if it is unpacked.
    pub(super) fn version(&self, package: &str) -> Option<String> {
        let start = format!("{package}_");
        let rest = self.unpacked.iter().find_map(|name| name.strip_prefix(&start))?;
        Some(rest.split('_').next().unwrap_or(rest).replace("%3a", ":"))
    }

    /// Returns true if the files are in a folder that the system does not know.
    pub(super) fn is_unpacked(&self) -> bool {
        !self.unpacked.is_empty()
    }

    /// Returns the folder with Python's modules.
    pub(super) fn modules(&self) -> PathBuf {
        self.root.join("usr/lib/python3/dist-packages")
    }

    /// Returns the folder with libclang, and the one with its version of the compiler's headers.
    pub(super) fn libclang(&self) -> Option<(PathBuf, PathBuf)> {
        let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
        let mut folders = entries(&self.root.join("usr/lib")).map(|entry| entry.path().join("lib"));
        let library = folders.find(|folder| folder.join("libclang.so").exists())?;
        let mut headers = entries(&library.join("clang")).map(|entry| entry.path());
        let headers = headers.find(|folder| folder.join("include/stddef.h").exists())?;
        Some((library, headers))
    }

    /// Returns the folders with libraries: `usr/lib`, the folder in it with the architecture in its name, and the folders
    /// in that one. The last are for libraries such as `libceph-common`, which other libraries expect at an absolute path.
    pub(super) fn libraries(&self) -> Vec<PathBuf> {
        let folder = self.root.join("usr/lib");
        let mut libraries = folders(&folder);
        libraries.retain(|path| path.to_string_lossy().ends_with("-linux-gnu"));
        let inner: Vec<_> = libraries.iter().flat_map(|path| folders(path)).collect();
        libraries.into_iter().chain(inner).chain([folder]).collect()
    }
}

/// Returns the folders in a folder, if it exists.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// Returns the version of an installed package.
///
/// # Errors
/// Returns an error if the package is not installed.
pub(super) fn installed(package: &str) -> Result<String> {
    let query = ["--show", "--showformat=${Version}", package];
    let output = Command::new("dpkg-query").args(query).output().context("starting dpkg-query")?;
    ensure!(output.status.success(), "dpkg-query does not know the package {package}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Installs packages of PyPI into a folder in `home`, and returns the folder. `pip` has the files of pip.
///
/// # Errors
/// Returns an error if pip cannot be started or fails.
pub(super) fn wheels(home: &Path, wheels: &[&str], pip: &Tree) -> Result<PathBuf> {
    fs::create_dir_all(home)?;
    softroce::stage(home, "wheels", &format!("{wheels:?}\n"), |folder| {
        let options = ["--quiet", "--no-input", "--no-deps", "--only-binary=:all:"];
        let mut command = Command::new(PYTHON);
        command.args(["-m", "pip", "install"]).args(options).arg("--target").arg(folder);
        command.args(wheels).env("PYTHONPATH", pip.modules());
        command.env("PIP_DISABLE_PIP_VERSION_CHECK", "1").env("PIP_ROOT_USER_ACTION", "ignore");
        let status = command.status().context(PYTHON)?;
        ensure!(status.success(), "pip could not install {wheels:?}; check the network: {status}");
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_an_unpacked_package_is_that_of_its_file() {
        let unpacked = ["perftest_4.5+0.17-1_amd64.deb", "ucx_1%3a1.13_amd64.deb"];
        let unpacked = unpacked.map(str::to_owned).to_vec();
        let tree = Tree { root: PathBuf::from("/nowhere"), unpacked };
        assert_eq!(tree.version("perftest").unwrap(), "4.5+0.17-1");
        assert_eq!(tree.version("ucx").unwrap(), "1:1.13");
        assert_eq!(tree.version("perf"), None);
    }

    #[test]
    fn installed_packages_are_not_unpacked() {
        let home = tempfile::tempdir().unwrap();
        let tree = Tree::of_packages(home.path(), &[("any", "proc/self/exe")]).unwrap();
        assert_eq!(tree.root, Path::new("/"));
        assert!(!tree.is_unpacked());
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
    }
}
