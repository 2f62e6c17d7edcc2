//! The library, and the environment with which programs load it.

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

const SONAME: &str = "libibverbs.so.1";
/// The library of `rdma-soft-files`, in the same folder.
pub(crate) const FILES_NAME: &str = "librdma_soft_files.so";
/// The characters that separate entries in the loader's lists of files and folders, or that the loader replaces.
const SPECIAL: &[u8] = b" :;$";

#[derive(Debug)]
pub(crate) struct Library(PathBuf);

impl Library {
    /// Finds the library that the user chose, or the one that was built together with this program.
    pub(crate) fn find(chosen: Option<&Path>) -> Result<Self> {
        let path = match chosen {
            Some(path) => path.to_owned(),
            None => {
                let own =
                    env::current_exe().context("/proc/self/exe is unreadable; mount /proc")?;
                own.ancestors().nth(2).unwrap_or(Path::new("/")).join("lib").join(SONAME)
            }
        };
        let path = path.canonicalize().with_context(|| {
            format!(
                "the library {} cannot be read; build it with `cargo xtask dropin`, or pass its path as --library",
                path.display()
            )
        })?;
        Self::at(path)
    }

    fn at(path: PathBuf) -> Result<Self> {
        let shown = path.display();
        ensure!(
            path.is_file(),
            "the library {shown} is not a file; pass the file {SONAME} as --library"
        );
        ensure!(
            path.file_name().is_some_and(|name| name == SONAME),
            "the library {shown} must be named {SONAME}, because programs load it by this name; rename it"
        );
        let special = path.as_os_str().as_bytes().iter().find(|byte| SPECIAL.contains(byte));
        if let Some(&byte) = special {
            anyhow::bail!(
                "the loader cannot load {shown}, because the path contains {:?}; move the library",
                char::from(byte)
            );
        }
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the path of the library that redirects the paths of the files.
    ///
    /// # Errors
    /// Returns an error if the file does not exist.
    pub(crate) fn files_library(&self) -> Result<PathBuf> {
        let path = self.0.with_file_name(FILES_NAME);
        ensure!(path.is_file(), "{} does not exist; copy it there", path.display());
        Ok(path)
    }

    /// Makes the command, and its children, load the library, and another one if `further` names one.
    ///
    /// The folder is for programs that load a libibverbs by its name. The preloaded library also defines the symbols of
    /// programs that load a copy with another name, because the loader searches preloaded libraries first.
    pub(crate) fn load_into(&self, command: &mut Command, further: Option<&Path>) {
        let folder = self.0.parent().unwrap_or(Path::new("/"));
        command.env("LD_LIBRARY_PATH", prepend(folder, env::var_os("LD_LIBRARY_PATH")));
        let others = env::var_os("LD_PRELOAD");
        let others = further.map_or(others.clone(), |further| Some(prepend(further, others)));
        command.env("LD_PRELOAD", prepend(&self.0, others));
    }
}

fn prepend(path: &Path, list: Option<OsString>) -> OsString {
    let mut first = path.as_os_str().to_owned();
    if let Some(list) = list.filter(|list| !list.is_empty()) {
        first.push(":");
        first.push(list);
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_their_other_entries() {
        assert_eq!(prepend(Path::new("/a"), None), "/a");
        assert_eq!(prepend(Path::new("/a"), Some("".into())), "/a");
        assert_eq!(prepend(Path::new("/a"), Some("/b:/c".into())), "/a:/b:/c");
    }

    #[test]
    fn a_library_that_the_loader_would_not_find_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        for (path, problem) in [
            ("libibverbs.so.2", "must be named"),
            ("a folder/libibverbs.so.1", "contains ' '"),
            ("a:b/libibverbs.so.1", "contains ':'"),
        ] {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            let error = Library::find(Some(&path)).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
        let error = Library::find(Some(folder.path())).unwrap_err().to_string();
        assert!(error.contains("is not a file"), "{error}");
    }
}
