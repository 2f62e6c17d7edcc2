//! The socket names through which processes find each other. Abstract names are visible to all processes of a network
//! namespace, and any of them can bind one. Names in a directory belong to this user, and their files remain if a
//! process is killed. Therefore, a lock shows whether a name is in use; it is released when its process exits.

use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open, stat, unlink};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use rustix::process::geteuid;

use super::head::VERSION;
use crate::link::descriptor::Descriptor;
use crate::sync::locked;

#[derive(Debug)]
pub(super) enum Names {
    /// Abstract names that start with this prefix.
    Abstract(String),
    Directory(Directory),
}

#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    device: String,
    /// The locks on the names that this process has reserved.
    locks: Mutex<Vec<Descriptor>>,
}

impl Names {
    /// Returns names in a directory, and a string that identifies the directory.
    ///
    /// # Errors
    /// Fails if the path does not name a directory that only this user may enter, or is too long for a socket address.
    pub(super) fn in_directory(path: &Path, device: &str) -> Result<(Self, String)> {
        let found = stat(path).map_err(|errno| {
            Error::other(format!(
                "the directory {} cannot be used: {errno}; create one with `mkdir -m 700`",
                path.display()
            ))
        })?;
        let is_directory = rustix::fs::FileType::from_raw_mode(found.st_mode).is_dir();
        if !is_directory || found.st_uid != geteuid().as_raw() || found.st_mode & 0o077 != 0 {
            return Err(Error::other(format!(
                "{} is not a directory that only this user may enter: create one with `mkdir -m 700`",
                path.display()
            )));
        }
        let (path, device) = (path.to_owned(), device.to_owned());
        let directory = Directory { path, device, locks: Mutex::default() };
        SocketAddrUnix::new(directory.socket(0)).map_err(|_| {
            let path = directory.socket(0);
            let length = path.as_os_str().len();
            Error::other(format!(
                "the path {} has {length} bytes: the path of a socket has at most 107",
                path.display()
            ))
        })?;
        Ok((Self::Directory(directory), format!("{} {}", found.st_dev, found.st_ino)))
    }

    /// Returns the socket name of a slot.
    pub(super) fn address(&self, slot: u16) -> rustix::io::Result<SocketAddrUnix> {
        match self {
            Self::Abstract(begin) => {
                SocketAddrUnix::new_abstract_name(format!("{begin}{slot:03x}").as_bytes())
            }
            Self::Directory(directory) => SocketAddrUnix::new(directory.socket(slot)),
        }
    }

    /// Reserves a name in a directory for this process. Fails with `ADDRINUSE` if another process owns it. Does nothing
    /// for an abstract name, which the socket's `bind` reserves.
    pub(super) fn take(&self, slot: u16) -> rustix::io::Result<()> {
        match self {
            Self::Abstract(_) => Ok(()),
            Self::Directory(directory) => directory.take(slot),
        }
    }
}

impl Directory {
    fn socket(&self, slot: u16) -> PathBuf {
        self.path.join(format!("{}.{VERSION}.{slot:03x}", self.device))
    }

    fn take(&self, slot: u16) -> rustix::io::Result<()> {
        let socket = self.socket(slot);
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let path = socket.with_extension(format!("{slot:03x}.lock"));
        let lock = Descriptor::open(|| open(path, flags, Mode::RUSR | Mode::WUSR))?;
        flock(lock.get()?, FlockOperation::NonBlockingLockExclusive).map_err(
            |errno| match errno {
                Errno::WOULDBLOCK => Errno::ADDRINUSE,
                errno => errno,
            },
        )?;
        locked(&self.locks).push(lock);
        // Removes the socket of a process that has exited.
        match unlink(&socket) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}
