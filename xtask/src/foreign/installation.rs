//! The files that the suites need: the drop-in library, and the distribution's packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::{dropin, rxe, tree};

/// Each package, and a file of it. If a file is not on this machine, the packages are unpacked into the target folder.
const PACKAGES: &[(&str, &str)] = &[
    ("ibverbs-utils", "usr/bin/ibv_rc_pingpong"),
    ("perftest", "usr/bin/ib_send_lat"),
    ("python3-pyverbs", "usr/lib/python3/dist-packages/pyverbs/__init__.py"),
    ("rdma-core", "usr/share/doc/rdma-core/tests/run_tests.py"),
    ("ucx-utils", "usr/bin/ucx_perftest"),
];

/// The folders of the drop-in and of the packages.
#[derive(Debug)]
pub(super) struct Installation {
    /// The folder of this command in cargo's target folder.
    pub(super) home: PathBuf,
    /// The root of the packages' files: `/`, or a folder in `home`.
    root: PathBuf,
    /// The file names of the unpacked packages; empty if the packages are installed.
    unpacked: Vec<String>,
    library: PathBuf,
    runner: PathBuf,
}

impl Installation {
    /// Builds the drop-in, and obtains the packages.
    ///
    /// # Errors
    /// Returns an error if the library cannot be built, or the packages cannot be downloaded.
    pub(super) fn prepare() -> Result<Self> {
        let dropin::Built { library, program, .. } = dropin::build(&tree::root())?;
        let library = library.parent().context("the library has no folder")?.to_path_buf();
        let home = rxe::target()?.join("foreign");
        fs::create_dir_all(&home)?;
        let installed = PACKAGES.iter().all(|(_, file)| Path::new("/").join(file).exists());
        let (root, unpacked) = match installed {
            true => (PathBuf::from("/"), Vec::new()),
            false => {
                let names: Vec<_> = PACKAGES.iter().map(|(name, _)| *name).collect();
                let root = softroce::unpack_packages(&home, &names)?;
                let versions = fs::read_to_string(root.join(softroce::VERSIONS))?;
                (root, versions.lines().map(str::to_owned).collect())
            }
        };
        Ok(Self { home, root, unpacked, library, runner: program })
    }

    /// Returns the path of a file of the packages.
    pub(super) fn file(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// Returns the version of a package.
    ///
    /// # Errors
    /// Returns an error if the package is neither installed nor unpacked.
    pub(super) fn version(&self, package: &str) -> Result<String> {
        let start = format!("{package}_");
        if let Some(rest) = self.unpacked.iter().find_map(|name| name.strip_prefix(&start)) {
            let version = rest.split('_').next().unwrap_or(rest);
            return Ok(version.replace("%3a", ":"));
        }
        let query = ["--show", "--showformat=${Version}", package];
        let output =
            Command::new("dpkg-query").args(query).output().context("starting dpkg-query")?;
        ensure!(output.status.success(), "dpkg-query does not know the package {package}");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Returns the words that run a program of the packages.
    pub(super) fn program(&self, name: &str) -> Vec<String> {
        vec![self.file("usr/bin").join(name).to_string_lossy().into_owned()]
    }

    /// Returns the words that run a program of the packages with the files of the devices, and count its requests.
    pub(super) fn counted(&self, name: &str) -> Vec<String> {
        let runner = self.runner.to_string_lossy().into_owned();
        [vec![runner, "--stats".to_owned()], self.program(name)].concat()
    }

    /// Returns the environment in which the programs find the drop-in, and the libraries of unpacked packages.
    pub(super) fn environment(&self) -> Vec<(&'static str, String)> {
        let mut folders = vec![self.library.clone()];
        let mut environment = Vec::new();
        if !self.unpacked.is_empty() {
            let libraries = fs::read_dir(self.file("usr/lib")).into_iter().flatten().flatten();
            let libraries = libraries.map(|entry| entry.path());
            folders.extend(libraries.filter(|path| path.to_string_lossy().ends_with("-linux-gnu")));
            let python = self.file("usr/lib/python3/dist-packages");
            environment.push(("PYTHONPATH", python.to_string_lossy().into_owned()));
        }
        let folders: Vec<_> = folders.iter().map(|path| path.to_string_lossy()).collect();
        environment.push(("LD_LIBRARY_PATH", folders.join(":")));
        environment
    }
}
