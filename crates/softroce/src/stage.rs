//! Stages of the set-up. Each is a folder that is built under a temporary name and renamed when it
//! is complete.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The file with the key from which a stage was built. A stage is complete if this file exists.
const MANIFEST: &str = "manifest";

const PARTIAL: &str = "partial-";

/// Returns the folder `name` in `home`. Calls `make` to build it, unless it was already built from
/// the same `key`.
///
/// # Errors
/// Returns an error if `make` fails, or if the folder cannot be created.
pub fn stage(
    home: &Path,
    name: &str,
    key: &str,
    make: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let place = home.join(name);
    if is_made(&place, key) {
        return Ok(place);
    }
    println!("{name}: making {}", place.display());
    let partial = tempfile::Builder::new().prefix(PARTIAL).tempdir_in(home)?;
    make(partial.path()).with_context(|| format!("making the {name}"))?;
    fs::write(partial.path().join(MANIFEST), key)?;
    remove(&place)?;
    fs::rename(partial.keep(), &place).with_context(|| format!("moving {}", place.display()))?;
    Ok(place)
}

/// Returns true if the stage at `place` is complete and was built from `key`.
pub(super) fn is_made(place: &Path, key: &str) -> bool {
    manifest(place).is_some_and(|made| made == key)
}

/// Returns the key from which the stage at `place` was built, if the stage is complete.
pub(super) fn manifest(place: &Path) -> Option<String> {
    fs::read_to_string(place.join(MANIFEST)).ok()
}

/// Removes the partial folders that interrupted set-ups have left.
pub(super) fn sweep(home: &Path) -> Result<()> {
    for entry in fs::read_dir(home)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(PARTIAL) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

pub(super) fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", folder.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    fn write(text: &str) -> impl FnOnce(&Path) -> Result<()> {
        move |at| Ok(fs::write(at.join("file"), text)?)
    }

    #[test]
    fn a_stage_is_made_once_for_a_key_and_replaced_for_another() {
        let home = tempfile::tempdir().unwrap();
        let read = |key: &str, text: &str| {
            let place = stage(home.path(), "s", key, write(text)).unwrap();
            fs::read_to_string(place.join("file")).unwrap()
        };
        assert_eq!(read("a", "1"), "1");
        assert_eq!(read("a", "2"), "1");
        assert_eq!(read("b", "3"), "3");
    }

    #[test]
    fn a_failed_stage_leaves_only_the_previous_one() {
        let home = tempfile::tempdir().unwrap();
        stage(home.path(), "s", "a", write("1")).unwrap();
        let failed = stage(home.path(), "s", "b", |_| bail!("no such thing")).unwrap_err();
        assert!(format!("{failed:#}").contains("making the s: no such thing"));
        assert!(is_made(&home.path().join("s"), "a"));
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_without_manifest_is_never_used() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("s")).unwrap();
        fs::create_dir(home.path().join("partial-x")).unwrap();
        sweep(home.path()).unwrap();
        assert!(!home.path().join("partial-x").exists() && home.path().join("s").exists());
        let place = stage(home.path(), "s", "", write("1")).unwrap();
        assert_eq!(fs::read_to_string(place.join("file")).unwrap(), "1");
    }
}
