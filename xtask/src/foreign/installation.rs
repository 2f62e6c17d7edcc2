//! The files that the suites need: the drop-in library, and packages.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context as _, Result, ensure};

use super::packages::{self, Needs, PYTHON, Tree};
use super::process::Process;
use crate::{dropin, rxe, tree};

/// The packages of the quick run.
const PACKAGES: &[(&str, &str)] = &[
    ("ibverbs-utils", "usr/bin/ibv_rc_pingpong"),
    ("perftest", "usr/bin/ib_send_lat"),
    ("python3-pyverbs", "usr/lib/python3/dist-packages/pyverbs/__init__.py"),
    ("rdma-core", "usr/share/doc/rdma-core/tests/run_tests.py"),
    ("rdmacm-utils", "usr/bin/rping"),
    ("ucx-utils", "usr/bin/ucx_perftest"),
];

/// The package with the program that installs packages of PyPI.
const PIP: &[(&str, &str)] = &[("python3-pip", "usr/lib/python3/dist-packages/pip/__init__.py")];

/// The folder of our programs for the suites.
const PROGRAMS: &str = "xtask/src/foreign/programs";

/// The text that `rdma-soft-run` prints if it cannot show the files of the devices.
const REFUSED: &str = "does not describe them";

/// The folders of the drop-in and of the packages.
#[derive(Clone, Debug)]
pub(super) struct Installation {
    /// The folder of this command, or of a suite, in cargo's target folder.
    pub(super) home: PathBuf,
    /// The packages of the quick run, and then those of a suite.
    trees: Vec<Tree>,
    /// The folder of packages of PyPI.
    wheels: Option<PathBuf>,
    /// `libibverbs.so.1`.
    pub(super) library: PathBuf,
    runner: PathBuf,
    /// Further variables for the programs.
    variables: Vec<(&'static str, String)>,
}

impl Installation {
    /// Builds the drop-in, and obtains the packages of the quick run.
    ///
    /// # Errors
    /// Returns an error if the library cannot be built, or the packages cannot be downloaded.
    pub(super) fn prepare() -> Result<Self> {
        let dropin::Built { library, program, .. } = dropin::build(&tree::root())?;
        let (home, tree) = obtain()?;
        let trees = vec![tree];
        Ok(Self { home, trees, wheels: None, library, runner: program, variables: Vec::new() })
    }

    /// Returns the installation of a suite, which has further packages and a folder of its own.
    ///
    /// # Errors
    /// Returns an error if the packages cannot be downloaded.
    pub(super) fn with(&self, suite: &str, needs: &Needs) -> Result<Self> {
        let mut all = self.clone();
        all.home = self.home.join(suite);
        all.trees.extend(obtain_for(&all.home, needs)?);
        if !needs.wheels.is_empty() {
            let pip = Tree::of_packages(&self.home.join("pip"), PIP)?;
            all.wheels = Some(packages::wheels(&all.home, needs.wheels, &pip)?);
        }
        Ok(all)
    }

    /// Returns an installation that sets a further variable for the programs.
    pub(super) fn with_variable(&self, name: &'static str, value: &str) -> Self {
        let mut all = self.clone();
        all.variables.push((name, value.to_owned()));
        all
    }

    /// Returns an installation in which UCX has only this transport, on this device.
    pub(super) fn with_ucx(&self, transport: &str, device: &str) -> Self {
        let transport = self.with_variable("UCX_TLS", transport);
        transport.with_variable("UCX_NET_DEVICES", &format!("{device}:1"))
    }

    /// Returns the path of a file of the packages.
    pub(super) fn file(&self, path: &str) -> PathBuf {
        let mut paths = self.trees.iter().rev().map(|tree| tree.root.join(path));
        paths.find(|path| path.exists()).unwrap_or_else(|| Path::new("/").join(path))
    }

    /// Returns the version of a package.
    ///
    /// # Errors
    /// Returns an error if the package is neither installed nor unpacked.
    pub(super) fn version(&self, package: &str) -> Result<String> {
        if let Some((_, version)) = package.split_once("==") {
            return Ok(version.to_owned());
        }
        let unpacked = self.trees.iter().find_map(|tree| tree.version(package));
        unpacked.map_or_else(|| packages::installed(package), Ok)
    }

    /// Returns the words that run a program of the packages.
    pub(super) fn program(&self, name: &str) -> Vec<String> {
        vec![self.file(&format!("usr/bin/{name}")).to_string_lossy().into_owned()]
    }

    /// Returns the words that run one of our Python programs.
    pub(super) fn script(&self, name: &str) -> Vec<String> {
        vec![PYTHON.to_owned(), source(name).to_string_lossy().into_owned()]
    }

    /// Returns the words that run a program with the files of the devices, and count its requests.
    pub(super) fn counted(&self, program: &[String]) -> Vec<String> {
        let runner = self.runner.to_string_lossy().into_owned();
        [&[runner, "--stats".to_owned()], program].concat()
    }

    /// Returns true if programs can be run with the files of the devices.
    ///
    /// # Errors
    /// Returns an error if this process cannot start programs.
    pub(super) fn shows_files(&self) -> Result<bool> {
        let program = self.counted(&["true".to_owned()]);
        let ended = Process::start(&program, &self.environment())?.end()?;
        Ok(ended.succeeded() && !ended.output.contains(REFUSED))
    }

    /// Compiles one of our programs with a library of the packages. `headers` and `libraries` are folders, relative to
    /// a folder of libraries such as `/usr/lib/x86_64-linux-gnu`.
    ///
    /// # Errors
    /// Returns an error if the compiler cannot be started, or does not accept the program.
    pub(super) fn compile(
        &self,
        name: &str,
        [headers, libraries, library]: [&str; 3],
    ) -> Result<PathBuf> {
        let program = self.home.join("program");
        let (variable, usual) = if name.ends_with(".cc") { ("CXX", "c++") } else { ("CC", "cc") };
        let mut compiler = Command::new(env::var_os(variable).unwrap_or_else(|| usual.into()));
        compiler.args(["-O1", "-o"]).arg(&program).arg(source(name));
        for folder in self.trees.iter().flat_map(Tree::libraries) {
            compiler.arg("-I").arg(folder.join(headers)).arg("-L").arg(folder.join(libraries));
            compiler.arg(format!("-Wl,-rpath-link,{}", folder.display()));
        }
        compiler.arg(format!("-l{library}"));
        let status = compiler.status().with_context(|| format!("starting {usual}"))?;
        ensure!(status.success(), "{usual} could not build {name}: {status}");
        Ok(program)
    }

    /// Returns the environment in which the programs find the drop-in, the libraries of unpacked packages, and the
    /// modules of Python.
    pub(super) fn environment(&self) -> Vec<(&'static str, String)> {
        let (mut libraries, mut modules) = (Vec::new(), Vec::new());
        libraries.extend(self.library.parent().map(Path::to_path_buf));
        for tree in self.unpacked() {
            libraries.extend(tree.libraries());
            modules.push(tree.modules());
        }
        modules.extend(self.wheels.clone());
        let mut environment = vec![("LD_LIBRARY_PATH", joined(&libraries))];
        if !modules.is_empty() {
            environment.push(("PYTHONPATH", joined(&modules)));
        }
        environment.extend(self.variables.iter().cloned());
        environment
    }

    /// Returns the environment in which build scripts find the programs and libraries of unpacked packages.
    pub(super) fn build_environment(&self) -> Vec<(&'static str, String)> {
        let (mut programs, mut libraries, mut environment) = (Vec::new(), Vec::new(), Vec::new());
        for tree in self.unpacked() {
            programs.push(tree.root.join("usr/bin"));
            libraries.extend(tree.libraries());
            let Some((libclang, headers)) = tree.libclang() else { continue };
            environment.push(("LIBCLANG_PATH", libclang.to_string_lossy().into_owned()));
            let headers = format!("-resource-dir={}", headers.display());
            environment.push(("BINDGEN_EXTRA_CLANG_ARGS", headers));
        }
        let mut add = |name, mut folders: Vec<PathBuf>| {
            let usual = env::var_os(name).unwrap_or_default();
            folders.extend(env::split_paths(&usual));
            folders.retain(|folder| !folder.as_os_str().is_empty());
            environment.push((name, joined(&folders)));
        };
        add("PATH", programs);
        add("LD_LIBRARY_PATH", libraries);
        environment
    }

    fn unpacked(&self) -> impl Iterator<Item = &Tree> {
        self.trees.iter().filter(|tree| tree.is_unpacked())
    }
}

/// Returns the folder of this command, and the packages of the quick run.
///
/// # Errors
/// Returns an error if the packages cannot be downloaded.
pub(super) fn obtain() -> Result<(PathBuf, Tree)> {
    let home = rxe::target()?.join("foreign");
    fs::create_dir_all(&home)?;
    let tree = Tree::of_packages(&home, PACKAGES)?;
    Ok((home, tree))
}

/// Returns the packages of a suite in its folder, if it needs any.
///
/// # Errors
/// Returns an error if the packages cannot be downloaded.
pub(super) fn obtain_for(home: &Path, needs: &Needs) -> Result<Option<Tree>> {
    fs::create_dir_all(home)?;
    if needs.packages.is_empty() {
        return Ok(None);
    }
    Tree::of_packages(home, needs.packages).map(Some)
}

/// Returns the path of one of our programs.
pub(super) fn source(name: &str) -> PathBuf {
    tree::root().join(PROGRAMS).join(name)
}

fn joined(folders: &[PathBuf]) -> String {
    let folders: Vec<_> = folders.iter().map(|path| path.to_string_lossy()).collect();
    folders.join(":")
}
