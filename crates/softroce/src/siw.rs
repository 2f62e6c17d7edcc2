//! The module `siw`, for an iWARP device. Kernels of Debian lack it, so it is compiled from their
//! source.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use super::host::has_module;
use super::machine::{Ended, Machine};
use super::packages;
use super::stage;
use super::tools::{done, on_path_or};

/// The name of the stage, and of the module.
const NAME: &str = "siw";
/// The source of the module in that of the kernel.
const SOURCE: &str = "drivers/infiniband/sw/siw";

/// The time limit for a start of the machine with the device.
const LIMIT: Duration = Duration::from_secs(240);

/// Builds the stage with the module, unless the machine's kernel has the module. Then starts the
/// machine once to verify that it has the device.
pub(super) fn make(home: &Path, machine: &Machine) -> Result<PathBuf> {
    let version = packages::version(&machine.tree)?;
    stage::stage(home, NAME, &key(home)?, |at| {
        let modules = machine.tree.join("lib/modules").join(&version);
        if has_module(&modules, NAME) {
            println!("{NAME}: kernel {version} has the module");
        } else {
            compile(home, &version, &at.join("siw.ko"))?;
        }
        check(machine, at)
    })
}

/// Returns the folder that `make` has built. Returns an error if it is missing.
pub(super) fn made(home: &Path) -> Result<PathBuf> {
    let place = home.join(NAME);
    ensure!(
        stage::is_made(&place, &key(home)?),
        "siw is not set up for this machine; run `cargo xtask rxe-setup --with siw`"
    );
    Ok(fs::canonicalize(place)?)
}

/// Returns the key of the stage, which begins with that of the machine.
fn key(home: &Path) -> Result<String> {
    let machine = stage::manifest(&home.join("check")).context("the machine is not complete")?;
    Ok(format!("{machine}{NAME} 1\n"))
}

/// Compiles the module for the distribution's kernel `version`.
fn compile(home: &Path, version: &str, module: &Path) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("partial-source-").tempdir_in(home)?;
    // The compiler needs absolute paths.
    let tree = fs::canonicalize(folder.path())?;
    packages::unpack_kernel_source(&tree, version)?;
    let (all, headers) = (tree.join("usr/src"), format!("linux-headers-{version}"));
    println!("{NAME}: unpacking the source");
    let own = unpack(&all)?.join(SOURCE);
    let headers = all.join(headers);
    relocate(&headers.join("Makefile"), &all)?;
    println!("{NAME}: compiling");
    let mut make = compiler(&tree);
    make.arg("-C").arg(headers).arg(assignment("M=", &own)).args(["CONFIG_RDMA_SIW=m", "modules"]);
    done(&mut make)?;
    fs::copy(own.join("siw.ko"), module).context("copying siw.ko")?;
    Ok(())
}

/// Unpacks the module's source from the archive in `folder`. Returns the root of the source.
fn unpack(folder: &Path) -> Result<PathBuf> {
    let mut files = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    let archive = files.find(|file| file.to_string_lossy().ends_with(".tar.xz"));
    let archive = archive.context("the package with the kernel's source has no archive")?;
    let root = archive.with_extension("").with_extension("");
    let name = root.file_name().unwrap_or_default();
    let mut tar = Command::new("tar");
    tar.arg("-xJf").arg(&archive).arg("-C").arg(folder).arg(Path::new(name).join(SOURCE));
    done(&mut tar)?;
    Ok(root)
}

/// Changes a makefile of the kernel's headers, which expects them in `/usr/src`, to find them in
/// `folder`.
fn relocate(makefile: &Path, folder: &Path) -> Result<()> {
    let text =
        fs::read_to_string(makefile).with_context(|| format!("reading {}", makefile.display()))?;
    let own = format!("{}/", folder.display());
    Ok(fs::write(makefile, text.replace("/usr/src/", &own))?)
}

/// Returns a command that runs make. It finds compilers in `tree` as well as on the host.
fn compiler(tree: &Path) -> Command {
    let path = env::var_os("PATH").unwrap_or_default();
    let own = tree.join("usr/bin");
    let places: Vec<_> = env::split_paths(&path).chain([own.clone()]).collect();
    let make = Some(own.join("make")).filter(|file| file.is_file());
    let mut make = Command::new(make.unwrap_or_else(|| on_path_or("make")));
    if let Ok(places) = env::join_paths(places) {
        make.env("PATH", places);
    }
    make.env("LD_LIBRARY_PATH", tree.join("usr/lib/x86_64-linux-gnu"));
    make
}

fn assignment(name: &str, value: &Path) -> OsString {
    let mut word = OsString::from(name);
    word.push(value);
    word
}

/// Starts the machine with the module in `folder`, to verify that it has the device.
fn check(machine: &Machine, folder: &Path) -> Result<()> {
    let machine = Machine {
        tree: machine.tree.clone(),
        boot: machine.boot.clone(),
        accelerator: machine.accelerator,
        siw: Some(fs::canonicalize(folder)?),
    };
    println!("{NAME}: starting the machine, at most {LIMIT:?}");
    match machine.run(&["true".into()], Some(LIMIT))? {
        (Ended::Status(0), _) => Ok(()),
        (Ended::Interrupted(signal), _) => bail!("interrupted by signal {signal}"),
        (ended, console) => Err(anyhow!("{ended:?}").context(console)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_makefile_finds_the_headers_in_their_folder() {
        let folder = tempfile::tempdir().unwrap();
        let makefile = folder.path().join("Makefile");
        fs::write(&makefile, "include /usr/src/linux-headers-6.1-common/Makefile\n").unwrap();
        relocate(&makefile, Path::new("/a/usr/src")).unwrap();
        let text = fs::read_to_string(&makefile).unwrap();
        assert_eq!(text, "include /a/usr/src/linux-headers-6.1-common/Makefile\n");
    }

    #[test]
    fn only_the_source_of_the_module_is_unpacked() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        for path in ["linux-source-6.1/drivers/infiniband/sw/siw/siw.h", "linux-source-6.1/README"]
        {
            fs::create_dir_all(at(path).parent().unwrap()).unwrap();
            fs::write(at(path), "").unwrap();
        }
        let mut tar = Command::new("tar");
        tar.arg("-cJf").arg(at("linux-source-6.1.tar.xz")).arg("-C").arg(folder.path());
        done(tar.arg("linux-source-6.1")).unwrap();
        fs::remove_dir_all(at("linux-source-6.1")).unwrap();
        let root = unpack(folder.path()).unwrap();
        assert_eq!(root, at("linux-source-6.1"));
        assert!(root.join(SOURCE).join("siw.h").exists() && !root.join("README").exists());
        fs::remove_file(at("linux-source-6.1.tar.xz")).unwrap();
        assert!(unpack(folder.path()).unwrap_err().to_string().contains("no archive"));
    }

    #[test]
    fn the_module_belongs_to_one_machine() {
        let home = tempfile::tempdir().unwrap();
        let refused = || made(home.path()).unwrap_err().to_string();
        assert!(refused().contains("not complete"), "{}", refused());
        stage::stage(home.path(), "check", "a\n", |_| Ok(())).unwrap();
        assert!(refused().contains("rxe-setup --with siw"), "{}", refused());
        stage::stage(home.path(), NAME, &key(home.path()).unwrap(), |_| Ok(())).unwrap();
        assert!(made(home.path()).unwrap().ends_with(NAME));
        stage::stage(home.path(), "check", "b\n", |_| Ok(())).unwrap();
        assert!(refused().contains("rxe-setup --with siw"), "{}", refused());
    }
}
