//! `cargo xtask dropin`: builds a folder with `libibverbs.so.1` and `librdmacm.so.1` over the software device, and with
//! `rdma-soft-run`, which runs programs with them. `rdma-soft-run` also needs the library of `rdma-soft-files` in some
//! containers.

mod nodes;
mod symbols;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use cargo_metadata::MetadataCommand;

use self::nodes::Map;
use self::symbols::{Exports, distribution};
use crate::sim::cargo;
use crate::tree;

const PROGRAM: &str = "rdma-soft-run";
const FILES_CRATE: &str = "rdma-soft-files";
const FILES_LIBRARY: &str = "librdma_soft_files.so";
/// The profile of the root `Cargo.toml` for these libraries, and its folder in cargo's target folder.
const PROFILE: &str = "dropin";

/// A library of C symbols.
struct Library {
    package: &'static str,
    soname: &'static str,
    /// The version script.
    map: &'static str,
    /// The exports of rdma-core 44 of Debian 12, for machines without the distribution's library.
    reference: &'static str,
    /// The largest size. Most of it is the device and the standard library.
    max_bytes: u64,
    /// Libraries of this command that it needs. They are linked first.
    needed: &'static [&'static str],
}

const IBVERBS: Library = Library {
    package: "rdma-dropin",
    soname: "libibverbs.so.1",
    map: "crates/rdma-dropin/libibverbs.map",
    reference: "crates/rdma-dropin/symbols/rdma-core-44.txt",
    max_bytes: 3_000_000,
    needed: &[],
};

const RDMACM: Library = Library {
    package: "rdma-dropin-cm",
    soname: "librdmacm.so.1",
    map: "crates/rdma-dropin-cm/librdmacm.map",
    reference: "crates/rdma-dropin-cm/symbols/rdma-core-44.txt",
    max_bytes: 1_200_000,
    needed: &[IBVERBS.soname],
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print the symbols of a library in the form of the checked-in list, and build nothing
    #[arg(long, value_name = "LIBRARY")]
    symbols: Option<PathBuf>,
}

/// The files of the drop-in.
pub(crate) struct Built {
    /// `libibverbs.so.1`.
    pub(crate) library: PathBuf,
    /// `rdma-soft-run`.
    pub(crate) program: PathBuf,
    /// The libraries of C symbols, each with its path and its version script.
    linked: Vec<(&'static Library, PathBuf, Map)>,
}

/// Builds the libraries, and compares their symbols with the version scripts, with the checked-in lists, and with the
/// distribution's libraries if there are any. Returns `false` if symbols are missing.
///
/// # Errors
/// Returns an error if a library cannot be built, or is too large.
pub(crate) fn run(args: &Args) -> Result<bool> {
    if let Some(library) = &args.symbols {
        print!("{}", Exports::read(library)?);
        return Ok(true);
    }
    let root = tree::root();
    let mut wrong = Vec::new();
    for (library, path, map) in build(&root)?.linked {
        wrong.extend(compare(&root, library, &path, &map)?);
    }
    wrong.iter().for_each(|line| eprintln!("{line}"));
    Ok(wrong.is_empty())
}

/// Returns the differences between a library and what it should export.
fn compare(root: &Path, library: &Library, path: &Path, map: &Map) -> Result<Vec<String>> {
    let Library { soname, reference, max_bytes, .. } = library;
    let bytes = fs::metadata(path)?.len();
    println!("{}", path.display());
    ensure!(bytes <= *max_bytes, "{soname} may have {max_bytes} bytes, but has {bytes}");

    let exports = Exports::read(path)?;
    let mut wrong = exports.differences(map);
    let listed = fs::read_to_string(root.join(reference))?;
    wrong.extend(exports.missing(&Exports::parse(&listed), reference));
    match distribution(soname) {
        Some(theirs) => {
            wrong.extend(exports.missing(&Exports::read(&theirs)?, &theirs.to_string_lossy()));
            println!("{bytes} bytes, symbols compared with those of {}", theirs.display());
        }
        None => println!("{bytes} bytes, symbols compared with {reference}"),
    }
    Ok(wrong)
}

/// Builds the libraries and the program in cargo's target folder.
///
/// # Errors
/// Returns an error if cargo or the C compiler fails.
pub(crate) fn build(root: &Path) -> Result<Built> {
    let target = compile(root)?;
    let folder = target.join("lib");
    fs::create_dir_all(&folder)?;
    let mut linked = Vec::new();
    for library in [&IBVERBS, &RDMACM] {
        let script = root.join(library.map);
        let map = Map::read(&script)?;
        let path = link(&target, library, (&script, &map), &folder)?;
        linked.push((library, path, map));
    }
    place(&target, FILES_LIBRARY, "lib")?;
    let library = folder.join(IBVERBS.soname);
    Ok(Built { library, program: place(&target, PROGRAM, "bin")?, linked })
}

/// Compiles the static libraries and the other files, and returns their folder.
fn compile(root: &Path) -> Result<PathBuf> {
    let packages = [IBVERBS.package, RDMACM.package, PROGRAM, FILES_CRATE];
    let packages = packages.into_iter().flat_map(|package| ["--package", package]);
    let built = cargo(root).arg("build").args(packages).args(["--profile", PROFILE]).status()?;
    ensure!(built.success(), "cargo build failed: {built}");
    let metadata = MetadataCommand::new().current_dir(root).no_deps().exec()?;
    Ok(metadata.target_directory.join(PROFILE).into())
}

/// Copies a file of the target folder to a folder in it. The program finds the libraries in `lib` beside its own folder.
fn place(target: &Path, name: &str, folder: &str) -> Result<PathBuf> {
    let folder = target.join(folder);
    fs::create_dir_all(&folder)?;
    // Several commands may run at a time, and programs with the old file.
    let new = folder.join(format!("{name}-{}", std::process::id()));
    fs::copy(target.join(name), &new)?;
    let placed = folder.join(name);
    fs::rename(&new, &placed).with_context(|| format!("{name} cannot be replaced"))?;
    Ok(placed)
}

/// Links a library. This needs a C compiler, because rustc's own version script cannot be combined with one that has
/// named versions.
fn link(
    target: &Path,
    library: &Library,
    (script, map): (&Path, &Map),
    folder: &Path,
) -> Result<PathBuf> {
    let Library { package, soname, needed, .. } = library;
    let archive = target.join(format!("lib{}.a", package.replace('-', "_")));
    // Several commands may run at a time.
    let aliases = target.join(format!("aliases-{}.s", std::process::id()));
    fs::write(&aliases, map.aliases()?)?;
    let (linked, new) = (folder.join(soname), aliases.with_extension("so"));
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(&compiler);
    command.args(["-shared", "-o"]).arg(&new).arg(&aliases);
    command.arg("-Wl,--whole-archive").arg(archive).arg("-Wl,--no-whole-archive");
    command.arg(format!("-Wl,--version-script={}", script.display()));
    command.arg(format!("-Wl,-soname,{soname}"));
    // Its functions are looked up at run time, so the linker knows of no need.
    command.arg("-L").arg(folder).args(["-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN"]);
    command.args(needed.iter().map(|name| format!("-l:{name}")));
    // `nodelete`: `dlclose` would unload the library while its threads run.
    command.args([
        "-Wl,-z,nodelete",
        "-Wl,-z,now",
        "-Wl,-z,relro",
        "-Wl,-z,defs",
        "-Wl,-z,noexecstack",
    ]);
    command.args(["-Wl,--gc-sections", "-Wl,--as-needed", "-Wl,--build-id", "-Wl,--strip-all"]);
    let status = command.status();
    fs::remove_file(&aliases)?;
    let status = status.with_context(|| {
        format!("{} does not start; Debian: apt-get install gcc libc6-dev", compiler.display())
    })?;
    if !status.success() {
        bail!("the C compiler could not link {soname}: {status}");
    }
    // Programs may run with the old file.
    fs::rename(&new, &linked)?;
    Ok(linked)
}
