//! The destination file.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
use rustix::io::Errno;
use tempfile::NamedTempFile;

use super::Error;

/// The destination file. It gets its name only when it is complete, in [`commit`](Self::commit).
/// Until then it has no name, and disappears when the process ends, for whatever reason.
#[derive(Debug)]
pub(crate) struct Destination {
    temporary: Temporary,
    path: PathBuf,
    folder: PathBuf,
    /// The metadata of the existing file that will be replaced, if any.
    old: Option<Metadata>,
}

/// The file before it gets its name.
#[derive(Debug)]
enum Temporary {
    Unnamed(File),
    /// A file with a temporary name, for file systems that do not support unnamed files. It is
    /// deleted when this is dropped.
    Hidden(NamedTempFile),
}

/// The properties of the source file that affect the destination.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    /// The permissions of the source.
    pub(crate) mode: u32,
    /// The device and the inode number of the source, if it is on this host.
    pub(crate) inode: Option<(u64, u64)>,
}

impl From<&Metadata> for Origin {
    fn from(file: &Metadata) -> Self {
        Self { mode: file.mode(), inode: Some((file.dev(), file.ino())) }
    }
}

impl Destination {
    /// Creates the file. A new file gets the permissions of the source, reduced by the umask. When
    /// a file is replaced, its permissions are kept, and also its owner if this process may set it.
    /// A symbolic link is followed.
    pub(crate) fn create(path: &Path, source: Origin) -> Result<Self, Error> {
        Self::create_as(path, source, Temporary::create)
    }

    fn create_as(
        path: &Path,
        source: Origin,
        make: impl FnOnce(&Path, u32) -> io::Result<Temporary>,
    ) -> Result<Self, Error> {
        let failed = |error| Error::file("write", path, error);
        let old = existing(path).map_err(failed)?;
        if old.as_ref().is_some_and(|old| Some((old.dev(), old.ino())) == source.inode) {
            return Err(Error::SameFile { path: path.to_owned() });
        }
        Self::try_create(path, old, |folder| make(folder, source.mode & RIGHTS)).map_err(failed)
    }

    fn try_create(
        path: &Path,
        old: Option<Metadata>,
        make: impl FnOnce(&Path) -> io::Result<Temporary>,
    ) -> io::Result<Self> {
        let path = match old {
            Some(_) => {
                // Replacing a file requires only the right to write to its folder. Users expect
                // that overwriting a file also requires the right to write to the file itself, so
                // this checks it.
                OpenOptions::new().write(true).open(path)?;
                fs::canonicalize(path)?
            }
            None => path.to_owned(),
        };
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            _ => PathBuf::from("."),
        };
        let temporary = make(&folder)?;
        Ok(Self { temporary, path, folder, old })
    }

    /// Writes the file to disk and gives it its name.
    pub(crate) fn commit(self) -> io::Result<()> {
        let Self { temporary, path, folder, old } = self;
        let file = temporary.file();
        if let Some(old) = &old {
            let _ = fchown(file, Some(old.uid()), Some(old.gid()));
            file.set_permissions(Permissions::from_mode(old.mode() & RIGHTS))?;
        }
        file.sync_all()?;
        temporary.name(&path, &folder)?;
        // A process that may write to a folder may lack the right to read it.
        File::open(folder).map_or(Ok(()), |folder| folder.sync_all())
    }
}

impl Write for Destination {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.temporary.file().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.temporary.file().flush()
    }
}

impl Temporary {
    fn create(folder: &Path, mode: u32) -> io::Result<Self> {
        match Self::unnamed(folder, mode) {
            // The errors if the file system does not support unnamed files, or if the kernel does
            // not know them.
            Err(Errno::OPNOTSUPP | Errno::ISDIR) => Self::hidden(folder, mode),
            made => Ok(made?),
        }
    }

    fn unnamed(folder: &Path, mode: u32) -> rustix::io::Result<Self> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = File::from(open(folder, flags, Mode::from_raw_mode(mode))?);
        match place(&file).exists() {
            true => Ok(Self::Unnamed(file)),
            false => Err(Errno::OPNOTSUPP), // without /proc, the file could never get a name
        }
    }

    fn hidden(folder: &Path, mode: u32) -> io::Result<Self> {
        let rights = Permissions::from_mode(mode);
        hidden().permissions(rights).tempfile_in(folder).map(Self::Hidden)
    }

    fn file(&self) -> &File {
        match self {
            Self::Unnamed(file) => file,
            Self::Hidden(file) => file.as_file(),
        }
    }

    /// Gives the file its name. Replaces an existing file with this name.
    fn name(self, path: &Path, folder: &Path) -> io::Result<()> {
        let file = match self {
            Self::Unnamed(file) => file,
            Self::Hidden(file) => return Ok(file.persist(path).map(drop)?),
        };
        let link = |name: &Path| linkat(CWD, place(&file), CWD, name, AtFlags::SYMLINK_FOLLOW);
        match link(path) {
            // Only a file that has a name can replace another one, so this file gets a temporary
            // name first.
            Err(Errno::EXIST) => {
                let hidden = hidden().make_in(folder, |name| Ok(link(name)?))?;
                Ok(hidden.persist(path)?)
            }
            linked => Ok(linked?),
        }
    }
}

/// Returns a builder of files with temporary names.
fn hidden() -> tempfile::Builder<'static, 'static> {
    let mut names = tempfile::Builder::new();
    names.prefix(".copy_file-").suffix(".part");
    names
}

/// Returns the path under which the kernel provides an open file.
fn place(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Returns the metadata of the file that will be replaced, if it exists.
fn existing(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::metadata(path) {
        Ok(old) if old.is_dir() => {
            Err(io::Error::new(ErrorKind::IsADirectory, "it is a directory; name the file in it"))
        }
        Ok(old) if !old.is_file() => {
            Err(io::Error::new(ErrorKind::InvalidInput, "it exists and is not a regular file"))
        }
        Ok(old) => Ok(Some(old)),
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        Err(_) if path.as_os_str().as_bytes().ends_with(b"/") => {
            Err(io::Error::new(ErrorKind::NotADirectory, "the directory does not exist"))
        }
        Err(_) if fs::symlink_metadata(path).is_ok() => {
            Err(io::Error::new(ErrorKind::NotFound, "it is a link to a file that does not exist"))
        }
        Err(_) => Ok(None),
    }
}

/// The permission bits that are copied, without set-user-ID and similar ones.
const RIGHTS: u32 = 0o777;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    type Make = fn(&Path, u32) -> io::Result<Temporary>;

    /// Both kinds of temporary files. The first function falls back to the second kind if the file
    /// system requires that.
    const MAKES: [Make; 2] = [Temporary::create, Temporary::hidden];

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn with_source(mode: u32) -> (Self, Origin) {
            let folder = Self(tempfile::tempdir().unwrap());
            folder.write("source", mode);
            let metadata = fs::metadata(folder.at("source")).unwrap();
            (folder, Origin::from(&metadata))
        }

        fn at(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn write(&self, name: &str, mode: u32) {
            fs::write(self.at(name), name).unwrap();
            fs::set_permissions(self.at(name), Permissions::from_mode(mode)).unwrap();
        }

        fn names(&self) -> usize {
            fs::read_dir(self.0.path()).unwrap().count()
        }

        fn copy(&self, name: &str, source: Origin, make: Make) {
            let mut destination = Destination::create_as(&self.at(name), source, make).unwrap();
            destination.write_all(b"new").unwrap();
            destination.commit().unwrap();
            assert_eq!(fs::read(self.at(name)).unwrap(), b"new");
        }

        fn mode(&self, name: &str) -> u32 {
            fs::metadata(self.at(name)).unwrap().mode() & 0o7777
        }
    }

    #[test]
    fn an_uncommitted_file_leaves_nothing_and_replaces_nothing() {
        let (folder, source) = Folder::with_source(0o644);
        folder.write("old", 0o644);
        for (name, make) in [("old", MAKES[0]), ("new", MAKES[0]), ("old", MAKES[1])] {
            let destination = Destination::create_as(&folder.at(name), source, make);
            let mut destination = destination.unwrap();
            destination.write_all(b"half").unwrap();
            let hidden = matches!(destination.temporary, Temporary::Hidden(_));
            assert_eq!(folder.names(), if hidden { 3 } else { 2 });
            drop(destination);
        }
        assert_eq!(folder.names(), 2);
        assert_eq!(fs::read(folder.at("old")).unwrap(), b"old");
    }

    #[test]
    fn a_new_file_has_the_permissions_of_the_source_and_an_old_one_keeps_its_own() {
        for make in MAKES {
            let (folder, source) = Folder::with_source(0o4500);
            folder.copy("new", source, make);
            assert_eq!(folder.mode("new"), 0o500);
            folder.write("old", 0o640);
            let owner = |name| fs::metadata(folder.at(name)).unwrap().uid();
            let somebody = if owner("old") == 0 { 65534 } else { owner("old") };
            std::os::unix::fs::chown(folder.at("old"), Some(somebody), None).unwrap();
            folder.copy("old", source, make);
            assert_eq!((folder.mode("old"), owner("old")), (0o640, somebody));
            assert_eq!(folder.names(), 3, "no temporary file is left");
        }
    }

    #[test]
    fn a_file_created_in_the_meantime_is_replaced() {
        for make in MAKES {
            let (folder, source) = Folder::with_source(0o644);
            let mut destination = Destination::create_as(&folder.at("new"), source, make).unwrap();
            destination.write_all(b"copied").unwrap();
            folder.write("new", 0o644);
            destination.commit().unwrap();
            assert_eq!(fs::read(folder.at("new")).unwrap(), b"copied");
            assert_eq!(folder.names(), 2);
        }
    }

    #[test]
    fn a_link_is_followed_and_kept() {
        for make in MAKES {
            let (folder, source) = Folder::with_source(0o644);
            folder.write("old", 0o644);
            symlink("old", folder.at("link")).unwrap();
            folder.copy("link", source, make);
            assert!(fs::symlink_metadata(folder.at("link")).unwrap().is_symlink());
            assert_eq!(fs::read(folder.at("old")).unwrap(), b"new");
        }
    }

    #[test]
    fn invalid_destinations_are_refused() {
        let (folder, source) = Folder::with_source(0o644);
        symlink("nothing", folder.at("dangling")).unwrap();
        symlink("source", folder.at("same")).unwrap();
        fs::hard_link(folder.at("source"), folder.at("hard")).unwrap();
        for (path, says) in [
            (folder.at(""), "it is a directory"),
            (folder.at("dangling"), "a link to a file that does not exist"),
            (folder.at("same"), "the same file"),
            (folder.at("hard"), "the same file"),
            (folder.at("new/"), "the directory does not exist"),
            (folder.at("no/new"), "No such file or directory"),
            (folder.at("source/new"), "Not a directory"),
            (PathBuf::from("/dev/full"), "not a regular file"),
        ] {
            let error = Destination::create(&path, source).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
            assert!(error.contains(path.to_str().unwrap()), "{error}");
        }
    }
}
