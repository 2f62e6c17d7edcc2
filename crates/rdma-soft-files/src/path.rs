//! Finds paths that lead to the files of the devices, and replaces them.

use std::ffi::CStr;

/// The maximum length of a path, with its NUL (`PATH_MAX`).
pub(crate) const MAX_LENGTH: usize = 4096;

/// The folders that are redirected. Their parents are real folders, not symbolic links.
const FOLDERS: [&[u8]; 3] =
    [b"/sys/class/infiniband", b"/sys/class/infiniband_verbs", b"/dev/infiniband"];
/// The folder with character devices.
const NODES: &[u8] = b"/dev/infiniband/";
/// The text that the paths of all folders contain.
const COMMON: &[u8] = b"infiniband";

/// A path, in memory that needs no allocation.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: [u8; MAX_LENGTH],
    length: usize,
}

impl Buffer {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; MAX_LENGTH], length: 0 }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// Returns the path from this position on, with its NUL.
    fn from(&self, start: usize) -> Option<&CStr> {
        CStr::from_bytes_until_nul(self.bytes.get(start..)?).ok()
    }

    /// Appends bytes, unless they and a NUL do not fit.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.length + bytes.len();
        if end >= MAX_LENGTH {
            return None;
        }
        self.bytes.get_mut(self.length..end)?.copy_from_slice(bytes);
        self.length = end;
        Some(())
    }

    fn truncate(&mut self, length: usize) {
        self.bytes.get_mut(length..self.length).unwrap_or_default().fill(0);
        self.length = length;
    }

    /// Removes the last component, if there is one after `start`.
    fn pop_component(&mut self, start: usize) {
        let path = self.bytes().get(start..).unwrap_or_default();
        let slash = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        self.truncate(start + slash);
    }
}

/// Returns true if the path may lead to one of the folders. Other paths are not examined further.
pub(crate) fn is_candidate(path: &[u8]) -> bool {
    path.len() < MAX_LENGTH && path.windows(COMMON.len()).any(|part| part == COMMON)
}

/// Returns the path to use instead, or `None` if `path` leads to none of the folders. `files` is the folder with the
/// devices' files, and `start` is the absolute path of the folder to which a relative path refers.
///
/// The path is resolved up to one of the folders, and the system resolves the later components. So `..` may leave a
/// folder, and symbolic links within a folder are followed. After a component that leads elsewhere, the path is not
/// redirected.
pub(crate) fn redirect<'a>(
    files: &[u8],
    start: &[u8],
    path: &[u8],
    buffer: &'a mut Buffer,
) -> Option<&'a CStr> {
    buffer.push(files)?;
    // While the path is within one of the folders: the length up to there, and the number of components after it.
    let mut inside = None;
    let mut has_left = false;
    let is_slash = |byte: &u8| *byte == b'/';
    let mut components = start.split(is_slash).chain(path.split(is_slash));
    while let Some(component) = components.next() {
        match (component, inside) {
            (b"" | b".", _) => continue,
            (b"..", Some((folder, 0))) => {
                has_left = true;
                inside = None;
                buffer.truncate(folder);
                buffer.pop_component(files.len());
                continue;
            }
            (b"..", Some((folder, depth))) => inside = Some((folder, depth - 1)),
            (b"..", None) => {
                buffer.pop_component(files.len());
                continue;
            }
            (_, Some((folder, depth))) => inside = Some((folder, depth + 1)),
            (_, None) => {}
        }
        buffer.push(b"/")?;
        buffer.push(component)?;
        if inside.is_some() {
            continue;
        }
        let walked = buffer.bytes().get(files.len()..)?;
        if FOLDERS.contains(&walked) {
            inside = Some((buffer.length, 0_usize));
        } else if !FOLDERS.iter().any(|folder| is_parent(walked, folder)) {
            if !has_left {
                return None;
            }
            for rest in components {
                buffer.push(b"/")?;
                buffer.push(rest)?;
            }
            return buffer.from(files.len());
        }
    }
    // A path with such an end must lead to a folder.
    if let Some(end) = [&b"/"[..], b"/."].into_iter().find(|end| path.ends_with(end)) {
        buffer.push(end)?;
    } else if buffer.length == files.len() {
        buffer.push(b"/")?;
    }
    match inside {
        Some(_) => buffer.from(0),
        None if has_left => buffer.from(files.len()),
        None => None,
    }
}

fn is_parent(parent: &[u8], folder: &[u8]) -> bool {
    folder.strip_prefix(parent).is_some_and(|rest| rest.starts_with(b"/"))
}

/// Returns true if the path is that of a character device in the folder with the devices' files.
pub(crate) fn is_node(files: &[u8], path: &CStr) -> bool {
    let rest = path.to_bytes().strip_prefix(files);
    rest.is_some_and(|rest| rest.starts_with(NODES))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: &str = "/tmp/files";

    fn redirected(start: &str, path: &str) -> Option<String> {
        let mut buffer = Buffer::new();
        let (start, path) = (start.as_bytes(), path.as_bytes());
        let new = redirect(FILES.as_bytes(), start, path, &mut buffer)?;
        Some(new.to_str().unwrap().to_owned())
    }

    #[test]
    fn paths_into_the_folders_are_redirected_in_each_spelling() {
        for (path, expected) in [
            ("/sys/class/infiniband", "/sys/class/infiniband"),
            ("/sys/class/infiniband/", "/sys/class/infiniband/"),
            ("/sys/class/infiniband/.", "/sys/class/infiniband/."),
            ("//sys/./class//infiniband/soft0", "/sys/class/infiniband/soft0"),
            ("/../sys/class/infiniband_verbs/a", "/sys/class/infiniband_verbs/a"),
            ("/dev/../sys/../dev/infiniband/a", "/dev/infiniband/a"),
            ("/sys/class/infiniband/a/../../infiniband_verbs/b", "/sys/class/infiniband_verbs/b"),
            // Components may be symbolic links.
            ("/sys/class/infiniband/a/b/../c", "/sys/class/infiniband/a/b/../c"),
        ] {
            let expected = format!("{FILES}{expected}");
            assert_eq!(redirected("", path).as_deref(), Some(&*expected), "{path}");
        }
    }

    #[test]
    fn other_paths_are_left_unchanged() {
        for path in [
            "/",
            "/sys/class",
            "/sys/class/net/infiniband",
            "/sys/class/infiniband2/soft0",
            "/sys/class/infinibandx",
            "/sys/class/infinib",
            "/sysx/class/infiniband",
            "/tmp/sys/class/infiniband",
            "/tmp/../sys/class/infiniband",
            "/dev/infiniband_verbs",
        ] {
            assert_eq!(redirected("", path), None, "{path}");
        }
    }

    #[test]
    fn paths_that_leave_a_folder_do_not_need_it() {
        for (path, expected) in [
            ("/sys/class/infiniband/..", "/sys/class"),
            ("/sys/class/infiniband/../", "/sys/class/"),
            ("/sys/class/infiniband/a/../../net/lo/../b/", "/sys/class/net/lo/../b/"),
            ("/dev/infiniband/../../../", "/"),
            ("/dev/infiniband/../null", "/dev/null"),
        ] {
            assert_eq!(redirected("", path).as_deref(), Some(expected), "{path}");
        }
    }

    #[test]
    fn relative_paths_refer_to_their_start() {
        let expected = format!("{FILES}/sys/class/infiniband/a");
        for (start, path) in [
            ("/sys/class", "infiniband/a"),
            ("/", "sys/class/infiniband/a"),
            ("/sys/class/infiniband_verbs", "../infiniband/a"),
        ] {
            assert_eq!(redirected(start, path).as_deref(), Some(&*expected), "{start} {path}");
        }
        assert_eq!(redirected("/sys/class/net", "infiniband/a"), None);
        assert_eq!(redirected("pipe:[7]", "infiniband/a"), None);
    }

    #[test]
    fn paths_that_become_too_long_are_left_unchanged() {
        let folder = "/sys/class/infiniband/";
        let length = MAX_LENGTH - FILES.len() - folder.len();
        let name = "a".repeat(length - 1);
        assert_eq!(redirected("", &format!("{folder}{name}")).unwrap().len(), MAX_LENGTH - 1);
        assert_eq!(redirected("", &format!("{folder}{name}a")), None);
        // Repeated slashes are removed first.
        let slashes = "/".repeat(MAX_LENGTH - 30);
        assert!(redirected("", &format!("/sys/class/infiniband{slashes}a")).is_some());
        assert!(!is_candidate(&[folder.as_bytes(), &[b'a'; MAX_LENGTH]].concat()));
        assert!(is_candidate(b"infiniband") && !is_candidate(b"/sys/class/net"));
    }

    #[test]
    fn only_character_devices_are_nodes() {
        for (path, expected) in [
            (c"/tmp/files/dev/infiniband/uverbs8192", true),
            (c"/tmp/files/dev/infiniband", false),
            (c"/tmp/files/sys/class/infiniband/soft0", false),
            (c"/dev/infiniband/uverbs8192", false),
        ] {
            assert_eq!(is_node(FILES.as_bytes(), path), expected, "{path:?}");
        }
    }
}
