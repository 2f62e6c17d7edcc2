//! Readers of sysfs. librdmacm, the libraries of providers, and programs such as `ibv_devinfo` use them.
#![allow(unsafe_code)]

use std::env;
use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::OnceLock;

use rdma_sys::Errno;
use rustix::process::{geteuid, getuid};

/// The environment variable that replaces `/sys`, unless the program has another user's rights.
const PATH_VARIABLE: &str = "SYSFS_PATH";

#[unsafe(no_mangle)]
extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    static PATH: OnceLock<CString> = OnceLock::new();
    PATH.get_or_init(path).as_ptr()
}

fn path() -> CString {
    let chosen = env::var_os(PATH_VARIABLE).filter(|_| getuid() == geteuid());
    let mut path = chosen.map_or_else(|| b"/sys".to_vec(), OsStringExt::into_vec);
    while path.last() == Some(&b'/') {
        path.pop();
    }
    CString::new(path).unwrap_or_default()
}

/// Reads a file without its last newline and terminates the text. Returns the length, or -1.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_sysfs_file(
    folder: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: the caller passes a terminated string (SAFETY.md F1).
    let folder = unsafe { CStr::from_ptr(folder) };
    // SAFETY: as above.
    let file = unsafe { CStr::from_ptr(file) };
    let path = Path::new(OsStr::from_bytes(folder.to_bytes()));
    // Not `join`, because a name that begins with `/` is also relative to the folder.
    let mut path = path.as_os_str().to_owned();
    path.push("/");
    path.push(OsStr::from_bytes(file.to_bytes()));
    let text = match read(Path::new(&path), size) {
        Ok(text) => text,
        Err(error) => {
            Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)).set();
            return -1;
        }
    };
    if text.is_empty() {
        return 0;
    }
    let bytes = text.as_bytes_with_nul();
    // SAFETY: the caller's buffer has `size` bytes (SAFETY.md F1), and the text fits together with its last zero.
    unsafe { buffer.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len()) };
    c_int::try_from(text.count_bytes()).unwrap_or(c_int::MAX)
}

/// Returns the text of a file without its last newline, if the text and a zero have at most `size` bytes.
fn read(path: &Path, size: usize) -> io::Result<CString> {
    let mut text = Vec::new();
    File::open(path)?.take(size as u64).read_to_end(&mut text)?;
    if text.last() == Some(&b'\n') {
        text.pop();
    } else if !text.is_empty() && text.len() == size {
        return Err(io::Error::from_raw_os_error(libc::EOVERFLOW));
    }
    // A file of sysfs contains no zero byte. If there were one, it would end the text in C.
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    text.truncate(end);
    CString::new(text).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_into(text: &[u8], size: usize) -> (c_int, Vec<u8>) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), text).unwrap();
        let name = CString::new(folder.path().as_os_str().as_bytes()).unwrap();
        let mut buffer = vec![b'?'; size];
        // SAFETY: the strings are terminated, and the buffer has this size.
        let length = unsafe {
            ibv_read_sysfs_file(name.as_ptr(), c"file".as_ptr(), buffer.as_mut_ptr().cast(), size)
        };
        (length, buffer)
    }

    #[test]
    fn a_text_loses_its_newline_and_is_terminated() {
        assert_eq!(read_into(b"4X\n", 8), (2, b"4X\0?????".to_vec()));
        assert_eq!(read_into(b"4X\n", 3), (2, b"4X\0".to_vec()));
        assert_eq!(read_into(b"4X", 3), (2, b"4X\0".to_vec()));
        assert_eq!(read_into(b"", 3), (0, b"???".to_vec()));
    }

    #[test]
    fn a_text_that_does_not_fit_is_an_error() {
        assert_eq!(read_into(b"4X", 2), (-1, b"??".to_vec()));
        assert_eq!(read_into(b"4X more\n", 2), (-1, b"??".to_vec()));
    }
}
