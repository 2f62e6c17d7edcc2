//! The packages that the virtual machine needs and the host lacks. They are downloaded and
//! unpacked, but never installed.
//!
//! Both sides use the unpacked tree: the host's programs (qemu) run from there, and the guest
//! mounts the tree over the host's files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use super::host::{has_rxe, on_path, os_release};
use super::stage::{stage, sweep};
use super::tools::{PROGRAMS, done, require, tool};

/// The packages with the guest's programs: the library and its provider, `ibv_rc_pingpong`,
/// `rping`, `rdma` and `ib_send_lat`.
const GUEST: [&str; 5] =
    ["ibverbs-providers", "ibverbs-utils", "rdmacm-utils", "iproute2", "perftest"];

/// The packages with programs that decompress kernel modules. Some distributions compress their
/// modules.
const UNPACKERS: [&str; 2] = ["xz-utils", "zstd"];

/// The prefixes of the names of the kernel's packages that are needed to compile a module.
const PARTS_OF_SOURCE: [&str; 3] = ["linux-headers-", "linux-kbuild-", "linux-source-"];

/// The file that lists the packages in the folder of [`unpack_packages`].
pub const VERSIONS: &str = "versions";

/// The free space that is needed for the packages, packed and unpacked, and for everything else.
const NEEDED_MIB: u64 = 1024;

/// The advice to the user if apt fails. It precedes apt's own error message.
const ARCHIVES: &str = "cannot download the packages from the archives: check the network, apt's proxy \
    and its sources, then run this again; to use your own kernel, pass --kernel and --modules";

/// A kernel that the user supplies in place of the distribution's package.
#[derive(Clone, Debug)]
pub struct GivenKernel {
    /// The file of a kernel that has `rdma_rxe`.
    pub kernel: PathBuf,
    /// The folder with the modules of that kernel, such as `/lib/modules/VERSION`.
    pub modules: PathBuf,
}

/// Returns a key that identifies the inputs of the tree. When it changes, the tree is rebuilt.
pub(super) fn key(given: Option<&GivenKernel>) -> String {
    let (distribution, version) = (os_release("ID"), os_release("VERSION_ID"));
    format!("1 {distribution} {version} {given:?} {PROGRAMS:?} {GUEST:?}\n")
}

/// Fills `tree` with the unpacked packages and a kernel.
pub(super) fn unpack(tree: &Path, given: Option<&GivenKernel>, install: bool) -> Result<()> {
    link_as_the_host_does(tree, Path::new("/"))?;
    match on_path("apt-get") {
        Some(_) => download(tree, given.is_none())?,
        None => require(install)?,
    }
    let folder = tree.join("lib/modules");
    if let Some(GivenKernel { modules, .. }) = given {
        let modules = fs::canonicalize(modules)
            .with_context(|| format!("--modules {}", modules.display()))?;
        let name =
            modules.file_name().context("--modules must name the folder of a kernel version")?;
        ensure!(
            modules.join("modules.dep").is_file(),
            "{0} has no modules.dep: it is not the folder of a kernel's modules, or `depmod` has \
             not been run for it",
            modules.display()
        );
        fs::create_dir_all(&folder)?;
        symlink(&modules, folder.join(name))?;
    } else {
        done(tool(tree, "depmod")?.arg("-b").arg(tree).arg(version(tree)?))?;
    }
    let version = version(tree)?;
    ensure_rxe(&folder, &version)?;
    let kernel = kernel(tree, given, &version);
    ensure!(kernel.is_file(), "{} is not a kernel file", kernel.display());
    Ok(())
}

fn ensure_rxe(folder: &Path, version: &str) -> Result<()> {
    ensure!(
        has_rxe(&folder.join(version)),
        "the modules of kernel {version} have no rdma_rxe; give a kernel that has it: \
         --kernel /boot/vmlinuz-VERSION --modules /lib/modules/VERSION"
    );
    Ok(())
}

pub(super) fn kernel(tree: &Path, given: Option<&GivenKernel>, version: &str) -> PathBuf {
    match given {
        Some(given) => given.kernel.clone(),
        None => tree.join(format!("boot/vmlinuz-{version}")),
    }
}

/// Returns the version of the kernel whose modules are in `tree`.
pub(super) fn version(tree: &Path) -> Result<String> {
    let folder = tree.join("lib/modules");
    let mut found = fs::read_dir(&folder).into_iter().flatten().flatten();
    let first = found.next().context("the kernel's packages have no modules")?;
    Ok(first.file_name().to_string_lossy().into_owned())
}

/// Creates links such as `lib` in `tree` wherever the host has them. If the host has the link `/lib
/// -> usr/lib` and `tree` had a folder `lib`, that folder would hide the host's libraries.
fn link_as_the_host_does(tree: &Path, host: &Path) -> Result<()> {
    for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        let Ok(target) = fs::read_link(host.join(name)) else { continue };
        let target = target.strip_prefix("/").unwrap_or(&target).to_path_buf();
        fs::create_dir_all(tree.join(&target))?;
        symlink(&target, tree.join(name))?;
    }
    Ok(())
}

/// Downloads and unpacks every needed package that is not installed and, if `kernel` is set, the
/// kernel's packages.
fn download(tree: &Path, kernel: bool) -> Result<()> {
    let programs = PROGRAMS.map(|(_, package)| package);
    with_apt(tree, |apt| {
        let mut wanted = apt.missing(&[&programs[..], &GUEST, &UNPACKERS].concat())?;
        if kernel {
            wanted.extend(apt.kernel(kernel_package(&os_release("ID"), &os_release("ID_LIKE")))?);
        }
        Ok(wanted)
    })?;
    Ok(())
}

/// Downloads and unpacks these packages, and those on which they depend and which are not
/// installed. Returns the folder in `home` that contains their files. Does nothing if the folder
/// already contains them.
///
/// The folder's file [`VERSIONS`] lists the packages, one `NAME_VERSION_ARCHITECTURE.deb` per line.
///
/// # Errors
/// Returns an error if this machine has no apt, or if the archives do not have the packages or
/// cannot be reached.
pub fn unpack_packages(home: &Path, packages: &[&str]) -> Result<PathBuf> {
    fs::create_dir_all(home)?;
    sweep(home)?;
    let (distribution, version) = (os_release("ID"), os_release("VERSION_ID"));
    let key = format!("1 {distribution} {version} {packages:?}\n");
    stage(home, "packages", &key, |tree| {
        link_as_the_host_does(tree, Path::new("/"))?;
        let debs = with_apt(tree, |apt| Ok(with_installed(apt.missing(packages)?, packages)))?;
        Ok(fs::write(tree.join(VERSIONS), debs.join("\n"))?)
    })
}

/// Adds those of `packages` that are not among the `missing` ones. An installed package may lack
/// files, for example in images without documentation.
fn with_installed(mut missing: Vec<String>, packages: &[&str]) -> Vec<String> {
    for package in packages {
        if !missing.iter().any(|known| known.starts_with(&format!("{package}="))) {
            missing.push((*package).to_owned());
        }
    }
    missing
}

/// Unpacks into `tree` the packages that `choose` returns, and returns the names of their files.
/// This does not need root, because apt's lists are kept in `tree` too.
fn with_apt(tree: &Path, choose: impl FnOnce(&Apt) -> Result<Vec<String>>) -> Result<Vec<String>> {
    ensure_space(tree)?;
    let own = tempfile::Builder::new().prefix("partial-apt-").tempdir_in(tree)?;
    let apt = Apt { own: own.path() };
    println!("packages: querying the archives");
    for folder in ["lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(own.path().join(folder))?;
    }
    done(&mut apt.get("update")).context(ARCHIVES)?;
    let wanted = choose(&apt)?;
    println!("packages: downloading {}", wanted.len());
    let folder = own.path().join("debs");
    fs::create_dir(&folder)?;
    done(apt.get("download").args(&wanted).current_dir(&folder)).context(ARCHIVES)?;
    println!("packages: unpacking");
    let mut debs = Vec::new();
    for deb in fs::read_dir(&folder)? {
        let deb = deb?;
        unpack_one(&deb.path(), tree)?;
        debs.push(deb.file_name().to_string_lossy().into_owned());
    }
    Ok(debs)
}

/// Fills `tree` with what compiling a module of the distribution's kernel `version` needs: its
/// headers, its source (as an archive), and the missing compilers.
pub(super) fn unpack_kernel_source(tree: &Path, version: &str) -> Result<()> {
    link_as_the_host_does(tree, Path::new("/"))?;
    let (headers, source) = (format!("linux-headers-{version}"), source_package(version));
    let debs = with_apt(tree, |apt| {
        let parts = apt.with_dependencies(&[&headers, &source], &PARTS_OF_SOURCE)?;
        Ok(merged(parts, apt.missing(&[&headers, "make", "xz-utils"])?))
    });
    debs.map(drop).with_context(|| {
        format!(
            "getting the source of kernel {version}; if the archives have a newer kernel, run \
             `cargo xtask rxe-teardown`, and then this again"
        )
    })
}

/// Returns the name of the package with the source of the kernel `version`.
fn source_package(version: &str) -> String {
    let numbers: Vec<_> = version.split('.').take(2).collect();
    format!("linux-source-{}", numbers.join("."))
}

/// Adds those of the `missing` packages that are no part of the kernel to the kernel's `parts`.
fn merged(mut parts: Vec<String>, missing: Vec<String>) -> Vec<String> {
    parts.extend(missing.into_iter().filter(|name| !name.starts_with("linux-")));
    parts
}

fn ensure_space(folder: &Path) -> Result<()> {
    let room = rustix::fs::statvfs(folder)?;
    let free_mib = (room.f_bavail * room.f_frsize) >> 20;
    ensure!(
        free_mib >= NEEDED_MIB,
        "{free_mib} MiB are free where the machine would be made, {NEEDED_MIB} are needed; make \
         room there, or set CARGO_TARGET_DIR to a place that has it"
    );
    Ok(())
}

/// Unpacks a package without replacing the links in `tree`, just as an installation keeps the
/// host's links.
fn unpack_one(deb: &Path, tree: &Path) -> Result<()> {
    let mut archive = Command::new("dpkg-deb");
    let mut archive = archive.arg("--fsys-tarfile").arg(deb).stdout(Stdio::piped()).spawn()?;
    let piped = archive.stdout.take().context("dpkg-deb has no output")?;
    let mut tar = Command::new("tar");
    tar.args(["-x", "--keep-directory-symlink", "--no-same-owner", "-C"]).arg(tree).stdin(piped);
    let output = tar.output()?;
    if !archive.wait()?.success() || !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("cannot unpack {}: {}", deb.display(), why.trim_end());
    }
    Ok(())
}

/// Returns the name of the package that depends on the distribution's newest kernel.
fn kernel_package(distribution: &str, like: &str) -> &'static str {
    let ubuntu = distribution == "ubuntu" || like.split(' ').any(|name| name == "ubuntu");
    if ubuntu { "linux-image-generic" } else { "linux-image-amd64" }
}

/// apt, with its lists and its cache in this folder.
struct Apt<'a> {
    own: &'a Path,
}

impl Apt<'_> {
    fn get(&self, verb: &str) -> Command {
        let mut command = Command::new("apt-get");
        let mut option = |name: &str, value: &dyn std::fmt::Display| {
            command.arg("-o").arg(format!("{name}={value}"));
        };
        option("Dir::State::Lists", &self.own.join("lists").display());
        option("Dir::Cache", &self.own.join("cache").display());
        option("Acquire::Retries", &3);
        // The user `_apt` is not used, because it may have no right to write here.
        option("APT::Sandbox::User", &"root");
        option("Debug::NoLocking", &true);
        command.args(["--quiet", "--no-install-recommends", verb]).env("LC_ALL", "C");
        command
    }

    /// Returns the packages that apt would install for `packages`, including dependencies, as
    /// `NAME=VERSION`.
    fn missing(&self, packages: &[&str]) -> Result<Vec<String>> {
        let text = done(self.get("install").arg("--simulate").args(packages)).context(ARCHIVES)?;
        Ok(to_install(&text))
    }

    /// Returns the kernel packages on which `package` depends, including those that are installed.
    fn kernel(&self, package: &str) -> Result<Vec<String>> {
        // The image and the modules, but not the firmware or the boot loader.
        self.with_dependencies(&[package], &["linux-image-", "linux-modules-"])
    }

    /// Returns the packages that `packages` depend on and whose names begin with one of these
    /// prefixes, including those that are installed.
    fn with_dependencies(&self, packages: &[&str], prefixes: &[&str]) -> Result<Vec<String>> {
        let mut command = self.get("install");
        command.args(["-o", "Dir::State::status=/dev/null", "--simulate"]).args(packages);
        let text = done(&mut command).context(ARCHIVES)?;
        let mut parts = to_install(&text);
        parts.retain(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)));
        Ok(parts)
    }
}

/// Returns the packages that a simulated installation printed, in lines of the form `Inst NAME
/// [OLD] (VERSION …`.
fn to_install(text: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("Inst "));
    let packages = lines.filter_map(|line| {
        let name = line.split(' ').next()?;
        let version = line.split_once('(')?.1.split(' ').next()?;
        Some(format!("{name}={version}"))
    });
    packages.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_read_from_a_simulated_installation() {
        let text = "NOTE: a simulation\n\
            Inst cpio (2.13+dfsg-7.1 Debian:12.15/oldstable [amd64])\n\
            Inst libc6 [2.36-8] (2.36-9 Debian:12.15/oldstable [amd64]) [x:amd64 ]\n\
            Conf cpio (2.13+dfsg-7.1 Debian:12.15/oldstable [amd64])\n";
        assert_eq!(to_install(text), ["cpio=2.13+dfsg-7.1", "libc6=2.36-9"]);
    }

    #[test]
    fn installed_packages_are_unpacked_too() {
        let missing = || vec!["perftest=4.5".to_owned(), "libibumad3=44".to_owned()];
        assert_eq!(with_installed(missing(), &["perftest"]), missing());
        let all = with_installed(missing(), &["perftest", "perf"]);
        assert_eq!(all, ["perftest=4.5", "libibumad3=44", "perf"]);
    }

    #[test]
    fn the_kernel_is_that_of_the_distribution() {
        assert_eq!(kernel_package("debian", ""), "linux-image-amd64");
        assert_eq!(kernel_package("ubuntu", "debian"), "linux-image-generic");
        assert_eq!(kernel_package("linuxmint", "ubuntu debian"), "linux-image-generic");
    }

    #[test]
    fn the_source_is_of_the_kernel_and_compilers_are_those_that_are_missing() {
        assert_eq!(source_package("6.1.0-56-amd64"), "linux-source-6.1");
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let missing = names(&["linux-headers-6.1.0-56-amd64=1", "gcc-12=12.2"]);
        let all = merged(names(&["linux-headers-6.1.0-56-amd64=1", "linux-source-6.1=1"]), missing);
        assert_eq!(all, ["linux-headers-6.1.0-56-amd64=1", "linux-source-6.1=1", "gcc-12=12.2"]);
    }

    #[test]
    fn the_tree_has_the_links_of_the_host() {
        let (tree, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        symlink("usr/lib", host.path().join("lib")).unwrap();
        fs::create_dir(host.path().join("bin")).unwrap();
        link_as_the_host_does(tree.path(), host.path()).unwrap();
        assert_eq!(fs::read_link(tree.path().join("lib")).unwrap(), Path::new("usr/lib"));
        assert!(tree.path().join("usr/lib").is_dir() && !tree.path().join("bin").exists());
    }

    #[test]
    fn a_kernel_without_rxe_is_refused_by_its_version() {
        let home = tempfile::tempdir().unwrap();
        let modules = home.path().join("5.0-small");
        fs::create_dir(&modules).unwrap();
        fs::write(modules.join("modules.dep"), "kernel/drivers/net/dummy.ko:\n").unwrap();
        let error = ensure_rxe(home.path(), "5.0-small").unwrap_err().to_string();
        assert!(error.contains("5.0-small") && error.contains("--modules"), "{error}");
        fs::write(modules.join("modules.dep"), "kernel/drivers/rdma_rxe.ko:\n").unwrap();
        ensure_rxe(home.path(), "5.0-small").unwrap();
    }
}
