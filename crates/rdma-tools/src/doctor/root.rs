//! The files in `/sys` and `/proc`, either this machine's or copies of another machine's.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path};
use std::str::FromStr;

use rustix::fs::{self, AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags};

use super::facts::Fact;
use crate::output::printable;

/// The maximum number of bytes that are read from a file. The kernel's files about a device have at
/// most one page.
const MAX_BYTES: u64 = 64 << 10;

/// The maximum number of names that are read from a folder.
const MAX_NAMES: usize = 4096;

/// A folder that contains `sys` and `proc`. Symbolic links in a copy cannot lead out of the folder.
#[derive(Debug)]
pub(crate) struct Root {
    folder: OwnedFd,
    is_copy: bool,
}

impl Root {
    pub(crate) fn of_this_machine() -> io::Result<Self> {
        Ok(Self { folder: folder(Path::new("/"))?, is_copy: false })
    }

    pub(crate) fn of_copy(path: &Path) -> io::Result<Self> {
        Ok(Self { folder: folder(path)?, is_copy: true })
    }

    /// Returns true if the files are copies, in which case no device may be opened.
    pub(crate) fn is_copy(&self) -> bool {
        self.is_copy
    }

    /// Returns the text of a file, trimmed, with `?` in place of control characters.
    pub(crate) fn text(&self, path: &str) -> Fact<String> {
        match self.bytes(path) {
            Ok(bytes) => Fact::Value(printable(String::from_utf8_lossy(&bytes).trim())),
            Err(error) => Fact::Unknown(format!("/{path}: {error}")),
        }
    }

    /// Returns the first 64 KiB of a file.
    pub(crate) fn bytes(&self, path: &str) -> io::Result<Vec<u8>> {
        // If a copy contains a pipe or a terminal, opening it must not block the program.
        let file = File::from(self.open(path, OFlags::NONBLOCK | OFlags::NOCTTY)?);
        if FileType::from_raw_mode(fs::fstat(&file)?.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("not a regular file"));
        }
        let mut bytes = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Parses the text of a file as a value of this type.
    pub(crate) fn value<T: FromStr>(&self, path: &str) -> Fact<T> {
        self.text(path).and_then(|text| match text.parse() {
            Ok(value) => Fact::Value(value),
            Err(_) => Fact::Unknown(format!("/{path}: unexpected text `{}`", beginning(&text))),
        })
    }

    /// Returns the names in a folder, sorted. The list is empty if the folder cannot be read.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let Ok(folder) = self.open(path, OFlags::DIRECTORY) else { return Vec::new() };
        let Ok(entries) = Dir::new(folder) else { return Vec::new() };
        let names = entries.flatten().filter_map(|entry| {
            let name = entry.file_name().to_str().ok()?;
            (!name.starts_with('.') && !name.contains(char::is_control)).then(|| name.to_owned())
        });
        let mut names: Vec<_> = names.take(MAX_NAMES).collect();
        names.sort();
        names
    }

    /// Returns the last component of the path to which a symbolic link points.
    pub(crate) fn link_name(&self, path: &str) -> Fact<String> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let target = self
            .open(parent, OFlags::DIRECTORY)
            .and_then(|folder| Ok(fs::readlinkat(folder, name, Vec::new())?));
        match target {
            Ok(target) => {
                let target = target.to_string_lossy();
                Fact::Value(printable(target.rsplit('/').next().unwrap_or(&target)))
            }
            Err(error) => Fact::Unknown(format!("/{path}: {error}")),
        }
    }

    fn open(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let path = Path::new(path);
        if path.components().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC;
        let folder = self.folder.as_fd();
        Ok(if self.is_copy {
            fs::openat2(folder, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)?
        } else {
            fs::openat(folder, path, flags, Mode::empty())?
        })
    }
}

fn folder(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(fs::openat(CWD, path, flags, Mode::empty())?)
}

/// Returns an error unless this process may read and write a file of this machine.
pub(crate) fn may_use(path: &str) -> io::Result<()> {
    let access = fs::Access::READ_OK | fs::Access::WRITE_OK;
    Ok(fs::accessat(CWD, path, access, AtFlags::EACCESS)?)
}

/// Returns the beginning of a text, which may be long, as one line.
fn beginning(text: &str) -> String {
    text.chars().take(40).map(|c| if c == '\n' { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_copy_is_read_without_waiting_and_links_stay_within_it() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        fs::create_dir(at("sys")).unwrap();
        fs::write(at("sys/number"), "42\n").unwrap();
        fs::write(at("sys/long"), vec![b'x'; 1 << 20]).unwrap();
        fs::write(at("sys/bytes"), b"\x1b[31m\xff\n").unwrap();
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(CWD, at("sys/pipe"), FileType::Fifo, mode, 0).unwrap();
        std::os::unix::fs::symlink("/sys/number", at("sys/inner")).unwrap();
        std::os::unix::fs::symlink("../../../../etc/passwd", at("sys/outer")).unwrap();

        let root = Root::of_copy(place.path()).unwrap();
        assert_eq!(root.value::<u32>("sys/number"), Fact::Value(42));
        assert_eq!(root.value::<u32>("sys/inner"), Fact::Value(42));
        assert_eq!(root.bytes("sys/long").unwrap().len(), 64 << 10);
        assert_eq!(root.text("sys/bytes"), Fact::Value("?[31m\u{fffd}".to_owned()));
        assert_eq!(root.link_name("sys/outer"), Fact::Value("passwd".to_owned()));
        for path in ["sys/pipe", "sys/outer", "sys/none", "sys", "../etc/passwd", "/etc/passwd"] {
            assert!(matches!(root.text(path), Fact::Unknown(_)), "{path}");
        }
        assert!(matches!(root.value::<u32>("sys/long"), Fact::Unknown(why) if why.len() < 100));
        assert_eq!(root.names("sys").len(), 6);
    }
}
