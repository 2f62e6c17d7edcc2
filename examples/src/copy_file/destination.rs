//! The file that is made.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::Error;

/// A file that appears under its name, whole, at [`commit`](Self::commit), or not at all: until then it
/// is a temporary file in the same folder, which goes away when this is dropped.
#[derive(Debug)]
pub(crate) struct Destination {
    temporary: NamedTempFile,
    path: PathBuf,
    folder: PathBuf,
    /// The file that is replaced.
    old: Option<Metadata>,
}

impl Destination {
    /// A new file has the permissions of the source, less the umask; one that is replaced keeps its
    /// own, and its owner where we may give files away. A link is followed.
    pub(crate) fn create(path: &Path, source: &Metadata) -> Result<Self, Error> {
        let failed = |error| Error::file("write", path, error);
        let old = existing(path).map_err(failed)?;
        if old.as_ref().is_some_and(|old| (old.dev(), old.ino()) == (source.dev(), source.ino())) {
            return Err(Error::SameFile { path: path.to_owned() });
        }
        Self::try_create(path, old, source).map_err(failed)
    }

    fn try_create(path: &Path, old: Option<Metadata>, source: &Metadata) -> io::Result<Self> {
        let path = match old {
            Some(_) => {
                // To replace a file takes the right to write its folder; to overwrite it, as would be
                // expected here, takes the right to write the file too.
                OpenOptions::new().write(true).open(path)?;
                fs::canonicalize(path)?
            }
            None => path.to_owned(),
        };
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            _ => PathBuf::from("."),
        };
        let temporary = tempfile::Builder::new()
            .prefix(".copy_file-")
            .suffix(".part")
            .permissions(rights(source))
            .tempfile_in(&folder)?;
        Ok(Self { temporary, path, folder, old })
    }

    /// Puts the file on disk and in its place.
    pub(crate) fn commit(self) -> io::Result<()> {
        let Self { temporary, path, folder, old } = self;
        let file = temporary.as_file();
        if let Some(old) = old {
            let _ = fchown(file, Some(old.uid()), Some(old.gid()));
            file.set_permissions(rights(&old))?;
        }
        file.sync_all()?;
        temporary.persist(path).map_err(|failed| failed.error)?;
        // A folder that may be written need not be readable.
        File::open(folder).map_or(Ok(()), |folder| folder.sync_all())
    }
}

impl Write for Destination {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.temporary.as_file_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.temporary.as_file_mut().flush()
    }
}

/// The file that is to be replaced, if there is one.
fn existing(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::metadata(path) {
        Ok(old) if old.is_dir() => {
            Err(io::Error::new(ErrorKind::IsADirectory, "it is a directory; name the file in it"))
        }
        Ok(old) if !old.is_file() => {
            Err(io::Error::new(ErrorKind::InvalidInput, "it is there and no regular file"))
        }
        Ok(old) => Ok(Some(old)),
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        Err(_) if path.as_os_str().as_bytes().ends_with(b"/") => {
            Err(io::Error::new(ErrorKind::NotADirectory, "there is no such directory"))
        }
        Err(_) if fs::symlink_metadata(path).is_ok() => {
            Err(io::Error::new(ErrorKind::NotFound, "it is a link to a file that is not there"))
        }
        Err(_) => Ok(None),
    }
}

/// Who may read, write and execute, without the bits that change who one is.
fn rights(metadata: &Metadata) -> Permissions {
    Permissions::from_mode(metadata.permissions().mode() & 0o777)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn with_source(mode: u32) -> (Self, Metadata) {
            let folder = Self(tempfile::tempdir().unwrap());
            folder.write("source", mode);
            let metadata = fs::metadata(folder.at("source")).unwrap();
            (folder, metadata)
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

        fn copy(&self, name: &str, source: &Metadata) {
            let mut destination = Destination::create(&self.at(name), source).unwrap();
            destination.write_all(b"new").unwrap();
            destination.commit().unwrap();
            assert_eq!(fs::read(self.at(name)).unwrap(), b"new");
        }

        fn mode(&self, name: &str) -> u32 {
            fs::metadata(self.at(name)).unwrap().mode() & 0o7777
        }
    }

    #[test]
    fn what_is_not_committed_leaves_nothing_and_replaces_nothing() {
        let (folder, source) = Folder::with_source(0o644);
        folder.write("old", 0o644);
        for name in ["old", "new"] {
            let mut destination = Destination::create(&folder.at(name), &source).unwrap();
            destination.write_all(b"half").unwrap();
            assert_eq!(folder.names(), 3);
            drop(destination);
        }
        assert_eq!(folder.names(), 2);
        assert_eq!(fs::read(folder.at("old")).unwrap(), b"old");
    }

    #[test]
    fn a_new_file_has_the_rights_of_the_source_and_an_old_one_its_own() {
        let (folder, source) = Folder::with_source(0o4500);
        folder.copy("new", &source);
        assert_eq!(folder.mode("new"), 0o500);
        folder.write("old", 0o640);
        let owner = |name| fs::metadata(folder.at(name)).unwrap().uid();
        let somebody = if owner("old") == 0 { 65534 } else { owner("old") };
        std::os::unix::fs::chown(folder.at("old"), Some(somebody), None).unwrap();
        folder.copy("old", &source);
        assert_eq!((folder.mode("old"), owner("old")), (0o640, somebody));
    }

    #[test]
    fn a_link_is_followed_and_stays() {
        let (folder, source) = Folder::with_source(0o644);
        folder.write("old", 0o644);
        symlink("old", folder.at("link")).unwrap();
        folder.copy("link", &source);
        assert!(fs::symlink_metadata(folder.at("link")).unwrap().is_symlink());
        assert_eq!(fs::read(folder.at("old")).unwrap(), b"new");
    }

    #[test]
    fn what_cannot_become_the_copy_is_refused() {
        let (folder, source) = Folder::with_source(0o644);
        symlink("nothing", folder.at("dangling")).unwrap();
        symlink("source", folder.at("same")).unwrap();
        fs::hard_link(folder.at("source"), folder.at("hard")).unwrap();
        for (path, says) in [
            (folder.at(""), "it is a directory"),
            (folder.at("dangling"), "a link to a file that is not there"),
            (folder.at("same"), "the same file"),
            (folder.at("hard"), "the same file"),
            (folder.at("new/"), "no such directory"),
            (folder.at("no/new"), "No such file or directory"),
            (folder.at("source/new"), "Not a directory"),
            (PathBuf::from("/dev/full"), "no regular file"),
        ] {
            let error = Destination::create(&path, &source).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
            assert!(error.contains(path.to_str().unwrap()), "{error}");
        }
    }
}
