//! `cargo xtask dropin`: builds a folder with `libibverbs.so.1` over the software device, and with `rdma-soft-run`, which
//! runs programs with it. `rdma-soft-run` also needs the library of `rdma-soft-files` in some containers.

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

const CRATE: &str = "rdma-dropin";
const PROGRAM: &str = "rdma-soft-run";
const FILES_CRATE: &str = "rdma-soft-files";
const FILES_LIBRARY: &str = "librdma_soft_files.so";
/// The profile of the root `Cargo.toml` for this library, and its folder in cargo's target folder.
const PROFILE: &str = "dropin";
const SONAME: &str = "libibverbs.so.1";
const MAP: &str = "crates/rdma-dropin/libibverbs.map";
/// The exports of rdma-core 44 of Debian 12, for machines without a libibverbs.
const REFERENCE: &str = "crates/rdma-dropin/symbols/rdma-core-44.txt";
/// The largest size of the library. Most of it is the device and the standard library.
const MAX_BYTES: u64 = 3_000_000;

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
    /// The version script with which the library was linked.
    map: Map,
}

/// Builds the library, and compares its symbols with the version script, with the checked-in list, and with the
/// distribution's library if there is one. Returns `false` if symbols are missing.
///
/// # Errors
/// Returns an error if the library cannot be built, or is too large.
pub(crate) fn run(args: &Args) -> Result<bool> {
    if let Some(library) = &args.symbols {
        print!("{}", Exports::read(library)?);
        return Ok(true);
    }
    let root = tree::root();
    let Built { library, map, .. } = build(&root)?;
    let bytes = fs::metadata(&library)?.len();
    println!("{}", library.display());
    ensure!(bytes <= MAX_BYTES, "the library may have {MAX_BYTES} bytes, but has {bytes}");

    let exports = Exports::read(&library)?;
    let mut wrong = exports.differences(&map);
    let reference = fs::read_to_string(root.join(REFERENCE))?;
    wrong.extend(exports.missing(&Exports::parse(&reference), REFERENCE));
    match distribution() {
        Some(theirs) => {
            wrong.extend(exports.missing(&Exports::read(&theirs)?, &theirs.to_string_lossy()));
            println!("{bytes} bytes, symbols compared with those of {}", theirs.display());
        }
        None => println!("{bytes} bytes, symbols compared with {REFERENCE}"),
    }
    wrong.iter().for_each(|line| eprintln!("{line}"));
    Ok(wrong.is_empty())
}

/// Builds the library and the program in cargo's target folder.
///
/// # Errors
/// Returns an error if cargo or the C compiler fails.
pub(crate) fn build(root: &Path) -> Result<Built> {
    let archive = archive(root)?;
    let folder = archive.with_file_name("lib");
    fs::create_dir_all(&folder)?;
    let script = root.join(MAP);
    let map = Map::read(&script)?;
    let library = link(&archive, &script, &map, &folder)?;
    place(&archive, FILES_LIBRARY, "lib")?;
    Ok(Built { library, program: place(&archive, PROGRAM, "bin")?, map })
}

/// Compiles the static library and the other files, and returns the path of the static library.
fn archive(root: &Path) -> Result<PathBuf> {
    let packages = ["--package", CRATE, "--package", PROGRAM, "--package", FILES_CRATE];
    let built = cargo(root).arg("build").args(packages).args(["--profile", PROFILE]).status()?;
    ensure!(built.success(), "cargo build failed: {built}");
    let metadata = MetadataCommand::new().current_dir(root).no_deps().exec()?;
    let folder = metadata.target_directory.join(PROFILE);
    Ok(folder.join(format!("lib{}.a", CRATE.replace('-', "_"))).into())
}

/// Copies a file to `folder`, which is beside the archive. The program finds the libraries in `lib` beside its own folder.
fn place(archive: &Path, name: &str, folder: &str) -> Result<PathBuf> {
    let folder = archive.with_file_name(folder);
    fs::create_dir_all(&folder)?;
    // Several commands may run at a time, and programs with the old file.
    let new = folder.join(format!("{name}-{}", std::process::id()));
    fs::copy(archive.with_file_name(name), &new)?;
    let placed = folder.join(name);
    fs::rename(&new, &placed).with_context(|| format!("{name} cannot be replaced"))?;
    Ok(placed)
}

/// Links the library. This needs a C compiler, because rustc's own version script cannot be combined with one that has
/// named versions.
fn link(archive: &Path, script: &Path, map: &Map, folder: &Path) -> Result<PathBuf> {
    // Several commands may run at a time.
    let aliases = folder.with_file_name(format!("aliases-{}.s", std::process::id()));
    fs::write(&aliases, map.aliases()?)?;
    let (library, new) = (folder.join(SONAME), aliases.with_extension("so"));
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(&compiler);
    command.args(["-shared", "-o"]).arg(&new).arg(&aliases);
    command.arg("-Wl,--whole-archive").arg(archive).arg("-Wl,--no-whole-archive");
    command.arg(format!("-Wl,--version-script={}", script.display()));
    command.arg(format!("-Wl,-soname,{SONAME}"));
    // `nodelete`: `dlclose` would unload the library while its threads run.
    command.args([
        "-Wl,-z,nodelete",
        "-Wl,-z,now",
        "-Wl,-z,relro",
        "-Wl,-z,defs",
        "-Wl,-z,noexecstack",
    ]);
    command.args(["-Wl,--gc-sections", "-Wl,--as-needed", "-Wl,--build-id", "-Wl,--strip-all"]);
    let linked = command.status();
    fs::remove_file(&aliases)?;
    let linked = linked.with_context(|| {
        format!("{} does not start; Debian: apt-get install gcc libc6-dev", compiler.display())
    })?;
    if !linked.success() {
        bail!("the C compiler could not link the library: {linked}");
    }
    // Programs may run with the old file.
    fs::rename(&new, &library)?;
    Ok(library)
}
