//! The initramfs of the virtual machine: a statically linked busybox, the modules with which the
//! guest can access the host's files, and a script.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use super::tools::{done, tool};

pub(super) const INIT: &str = include_str!("init.sh");
pub(super) const GUEST: &str = include_str!("guest.sh");

/// The modules with which the guest can access the host's files. It then loads all other modules
/// from those files.
const MODULES: [&str; 4] = ["virtio_pci", "9pnet_virtio", "9p", "overlay"];

/// Writes the file `initramfs` for the kernel `version`, whose modules are in `tree`.
pub(super) fn write(tree: &Path, version: &str, initramfs: &Path) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let root = folder.path();
    let (busybox, modules) = (root.join("busybox"), root.join("modules"));
    let program = tool(tree, "busybox")?;
    fs::copy(program.get_program(), &busybox)?;
    ensure_static(&busybox)?;
    fs::write(root.join("init"), INIT)?;
    done(Command::new("chmod").arg("755").arg(root.join("init")))?;
    fs::write(root.join("guest.sh"), GUEST)?;
    fs::create_dir(&modules)?;
    let mut order = String::new();
    for file in dependencies(tree, version)? {
        let name = unpacked_name(&file);
        unpack_module(tree, Path::new(&file), &modules.join(name))?;
        order += &format!("{name}\n");
    }
    fs::write(modules.join("order"), order)?;

    let files = fs::File::create(root.join(".list"))?;
    let list = Command::new("find")
        .args([".", "-mindepth", "1", "!", "-name", ".list"])
        .current_dir(root)
        .stdout(files)
        .status()?;
    ensure!(list.success(), "cannot list the files of the initramfs: {list}");
    let mut cpio = tool(tree, "cpio")?;
    cpio.args(["--create", "--format=newc", "--quiet", "--owner=0:0"]).current_dir(root);
    cpio.stdin(fs::File::open(root.join(".list"))?).stdout(fs::File::create(initramfs)?);
    let status = cpio.status().context("starting cpio")?;
    ensure!(status.success(), "cpio: {status}");
    Ok(())
}

/// Checks that busybox is statically linked. The guest's first process has no libraries and no
/// dynamic linker yet.
fn ensure_static(busybox: &Path) -> Result<()> {
    const INTERPRETER: &[u8] = b"/ld-linux";
    let bytes = fs::read(busybox)?;
    ensure!(
        !bytes.windows(INTERPRETER.len()).any(|part| part == INTERPRETER),
        "busybox of this machine is not static; install the static one (busybox-static)"
    );
    Ok(())
}

/// Returns the files of the [`MODULES`] and of all modules on which they depend. Each file comes
/// after those on which it depends.
fn dependencies(tree: &Path, version: &str) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for module in MODULES {
        let mut command = tool(tree, "modprobe")?;
        command.arg("-d").arg(tree).args(["-S", version, "--show-depends", module]);
        let text = done(&mut command)
            .with_context(|| format!("kernel {version} lacks {module}, which the machine needs"))?;
        for file in loaded(&text) {
            if !files.contains(&file) {
                files.push(file);
            }
        }
    }
    Ok(files)
}

/// Returns the files that `modprobe --show-depends` printed, in lines of the form `insmod FILE
/// [PARAMETERS]`.
fn loaded(text: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("insmod "));
    lines.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

/// Returns the name of a module's file, without a suffix for compression.
fn unpacked_name(file: &str) -> &str {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.find(".ko").map_or(name, |at| &name[..at + 3])
}

/// Copies a module and decompresses it, because busybox cannot load compressed modules.
fn unpack_module(tree: &Path, from: &Path, to: &Path) -> Result<()> {
    let program = match from.extension().and_then(|ending| ending.to_str()) {
        Some("ko") => return fs::copy(from, to).map(drop).context("copying a module"),
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => bail!("{} has an unknown compression", from.display()),
    };
    let mut command = tool(tree, program)?;
    command.args(["-d", "-c"]).arg(from).stdin(Stdio::null()).stdout(fs::File::create(to)?);
    let status = command.status()?;
    ensure!(status.success(), "cannot decompress {}: {status}", from.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_loaded_in_the_order_of_modprobe() {
        let text = "builtin virtio\ninsmod /a/virtio_ring.ko \ninsmod /a/9p.ko.zst x=1\n";
        assert_eq!(loaded(text), ["/a/virtio_ring.ko", "/a/9p.ko.zst"]);
        assert_eq!(unpacked_name("/a/9p.ko.zst"), "9p.ko");
        assert_eq!(unpacked_name("/a/9p.ko"), "9p.ko");
    }

    #[test]
    fn compressed_modules_are_decompressed_and_unknown_formats_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("m.ko"), "code").unwrap();
        done(Command::new("gzip").arg("-k").arg(at("m.ko"))).unwrap();
        for name in ["m.ko", "m.ko.gz"] {
            unpack_module(folder.path(), &at(name), &at("out")).unwrap();
            assert_eq!(fs::read_to_string(at("out")).unwrap(), "code");
        }
        let error = unpack_module(folder.path(), &at("m.ko.zip"), &at("out")).unwrap_err();
        assert!(error.to_string().contains("m.ko.zip"), "{error}");
    }

    #[test]
    fn a_busybox_with_libraries_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), b"\x7fELF").unwrap();
        ensure_static(file.path()).unwrap();
        fs::write(file.path(), b"\x7fELF/lib64/ld-linux-x86-64.so.2").unwrap();
        assert!(ensure_static(file.path()).unwrap_err().to_string().contains("busybox-static"));
    }
}
