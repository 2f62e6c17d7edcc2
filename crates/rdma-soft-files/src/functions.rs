//! The functions of the C library that take a path, and redirect it.
#![allow(unsafe_code)]

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("SAFETY.md F30 is known to hold only on x86_64 and aarch64");

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use rustix::fs::{CWD, readlinkat_raw};
use rustix::path::DecInt;

use crate::path::{self, Buffer, MAX_LENGTH};

/// The environment variable with the absolute path of the folder with the devices' files, without symbolic links.
const VARIABLE: &CStr = c"RDMA_DROPIN_FILES";

/// Defines functions of the C library. A semicolon marks the place of the path among the arguments. A relative path
/// refers to the descriptor after `at`, or to the working directory. The function after `then` changes the result.
///
/// C declares the argument after `...` as variable. It arrives in the register of an ordinary argument, which has an
/// unspecified value if the caller passes none (SAFETY.md F30).
macro_rules! redirect {
    (@at) => { libc::AT_FDCWD };
    (@at $at:ident) => { $at };
    ($($name:ident($($before:ident: $before_type:ty),*; $($after:ident: $after_type:ty),* $(; $dots:tt $mode:ident)?)
        -> $returned:ty $(, at $at:ident)? $(, then $then:ident)?;)+) => {
        /// The C library's own functions.
        #[allow(non_upper_case_globals)]
        mod own {
            use super::Own;
            $(pub(super) static $name: Own = Own::new(concat!(stringify!($name), "\0"));)+
        }

        /// Finds all functions when this library is loaded, so that calls need not search for them.
        extern "C" fn prepare() {
            folder();
            GETCWD.address();
            $(own::$name.address();)+
        }

        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(
                $($before: $before_type,)* path: *const c_char, $($after: $after_type,)* $($mode: c_uint)?
            ) -> $returned {
                type Function = unsafe extern "C" fn(
                    $($before_type,)* *const c_char, $($after_type,)* $($dots)?
                ) -> $returned;
                let Some(address) = own::$name.address() else { return Failed::failed() };
                // SAFETY: the address is that of the C library's function with this name, whose type this is
                // (SAFETY.md F30).
                let function: Function = unsafe { mem::transmute(address) };
                let call = |path| {
                    // SAFETY: the caller's promises, except that `path` may be another valid string (SAFETY.md F30).
                    unsafe { function($($before,)* path, $($after,)* $($mode)?) }
                };
                // SAFETY: the caller passes a string, or NULL (SAFETY.md F30).
                let result = unsafe { redirected(redirect!(@at $($at)?), path, call) };
                $(
                    // SAFETY: the C library's function has returned this string, or NULL (SAFETY.md F15).
                    let result = unsafe { $then(result) };
                )?
                result
            }
        )+
    };
}

redirect! {
    open(; flags: c_int; ... mode) -> c_int;
    open64(; flags: c_int; ... mode) -> c_int;
    openat(start: c_int; flags: c_int; ... mode) -> c_int, at start;
    openat64(start: c_int; flags: c_int; ... mode) -> c_int, at start;
    // Compilers call the names with `__` and `_2` or `_chk` if `_FORTIFY_SOURCE` is defined.
    __open_2(; flags: c_int) -> c_int;
    __open64_2(; flags: c_int) -> c_int;
    __openat_2(start: c_int; flags: c_int) -> c_int, at start;
    __openat64_2(start: c_int; flags: c_int) -> c_int, at start;
    fopen(; mode: *const c_char) -> *mut c_void;
    fopen64(; mode: *const c_char) -> *mut c_void;
    freopen(; mode: *const c_char, stream: *mut c_void) -> *mut c_void;
    freopen64(; mode: *const c_char, stream: *mut c_void) -> *mut c_void;
    opendir(;) -> *mut c_void;
    scandir(; list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int;
    scandir64(; list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int;
    chdir(;) -> c_int;
    stat(; status: *mut c_void) -> c_int;
    stat64(; status: *mut c_void) -> c_int;
    lstat(; status: *mut c_void) -> c_int;
    lstat64(; status: *mut c_void) -> c_int;
    fstatat(start: c_int; status: *mut c_void, flags: c_int) -> c_int, at start;
    fstatat64(start: c_int; status: *mut c_void, flags: c_int) -> c_int, at start;
    statx(start: c_int; flags: c_int, mask: c_uint, status: *mut c_void) -> c_int, at start;
    // Programs that were linked with a glibc before 2.33 call these instead.
    __xstat(version: c_int; status: *mut c_void) -> c_int;
    __xstat64(version: c_int; status: *mut c_void) -> c_int;
    __lxstat(version: c_int; status: *mut c_void) -> c_int;
    __lxstat64(version: c_int; status: *mut c_void) -> c_int;
    __fxstatat(version: c_int, start: c_int; status: *mut c_void, flags: c_int) -> c_int, at start;
    __fxstatat64(version: c_int, start: c_int; status: *mut c_void, flags: c_int) -> c_int, at start;
    access(; mode: c_int) -> c_int;
    eaccess(; mode: c_int) -> c_int;
    euidaccess(; mode: c_int) -> c_int;
    faccessat(start: c_int; mode: c_int, flags: c_int) -> c_int, at start;
    readlink(; target: *mut c_char, size: usize) -> isize;
    readlinkat(start: c_int; target: *mut c_char, size: usize) -> isize, at start;
    getxattr(; name: *const c_char, value: *mut c_void, size: usize) -> isize;
    lgetxattr(; name: *const c_char, value: *mut c_void, size: usize) -> isize;
    listxattr(; list: *mut c_char, size: usize) -> isize;
    llistxattr(; list: *mut c_char, size: usize) -> isize;
    __readlink_chk(; target: *mut c_char, size: usize, room: usize) -> isize;
    __readlinkat_chk(start: c_int; target: *mut c_char, size: usize, room: usize) -> isize, at start;
    realpath(; resolved: *mut c_char) -> *mut c_char, then without_folder;
    __realpath_chk(; resolved: *mut c_char, room: usize) -> *mut c_char, then without_folder;
    canonicalize_file_name(;) -> *mut c_char, then without_folder;
}

static GETCWD: Own = Own::new("getcwd\0");

/// Returns the working directory. The program may have entered a redirected folder.
#[unsafe(no_mangle)]
unsafe extern "C" fn getcwd(path: *mut c_char, size: usize) -> *mut c_char {
    type Function = unsafe extern "C" fn(*mut c_char, usize) -> *mut c_char;
    let Some(address) = GETCWD.address() else { return Failed::failed() };
    // SAFETY: the address is that of the C library's function with this name, whose type this is (SAFETY.md F30).
    let function: Function = unsafe { mem::transmute(address) };
    // SAFETY: the caller's promises (SAFETY.md F30).
    let result = unsafe { function(path, size) };
    // SAFETY: the C library's function has returned this string, or NULL (SAFETY.md F15).
    unsafe { without_folder(result) }
}

// SAFETY: the loader calls the function once, after it has bound this library's symbols (SAFETY.md F30).
#[used]
#[unsafe(link_section = ".init_array")]
static PREPARE: extern "C" fn() = prepare;

/// A function of the C library.
struct Own {
    /// The name, with a NUL.
    name: &'static str,
    /// NULL before the first search.
    address: AtomicPtr<c_void>,
}

impl Own {
    const fn new(name: &'static str) -> Self {
        Self { name, address: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the address, or `None` if the C library lacks the function.
    fn address(&self) -> Option<NonNull<c_void>> {
        NonNull::new(self.address.load(Ordering::Acquire)).or_else(|| {
            // SAFETY: the name ends with a NUL (SAFETY.md F15).
            let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr().cast()) };
            self.address.store(found, Ordering::Release);
            NonNull::new(found)
        })
    }
}

/// The result of a function that the C library lacks.
trait Failed {
    const RESULT: Self;

    fn failed() -> Self
    where
        Self: Sized,
    {
        // SAFETY: the function has no requirements (SAFETY.md F15).
        let error = unsafe { libc::__errno_location() };
        // SAFETY: the pointer is that of this thread's error number (SAFETY.md F15).
        unsafe { error.write(libc::ENOSYS) };
        Self::RESULT
    }
}

impl Failed for c_int {
    const RESULT: Self = -1;
}

impl Failed for isize {
    const RESULT: Self = -1;
}

impl<T> Failed for *mut T {
    const RESULT: Self = ptr::null_mut();
}

/// Returns the folder with the devices' files, if the environment names one. Later calls take no lock.
fn folder() -> Option<&'static [u8]> {
    static FOLDER: OnceLock<Option<Buffer>> = OnceLock::new();
    let read = || {
        // SAFETY: the name is a string. No thread changes the environment while libraries are loaded (SAFETY.md F30).
        let value = unsafe { libc::getenv(VARIABLE.as_ptr()) };
        if value.is_null() {
            return None;
        }
        // SAFETY: the variable's value is a string, which this block copies (SAFETY.md F30).
        let value = unsafe { CStr::from_ptr(value) }.to_bytes();
        let mut folder = Buffer::new();
        folder.push(value).filter(|()| value.starts_with(b"/"))?;
        Some(folder)
    };
    FOLDER.get_or_init(read).as_ref().map(Buffer::bytes)
}

/// Passes the redirected path to `call`, or else the same path.
///
/// # Safety
/// `path` is a string that does not change during the call, or NULL.
unsafe fn redirected<R>(
    start: c_int,
    path: *const c_char,
    call: impl FnOnce(*const c_char) -> R,
) -> R {
    if let Some(folder) = folder()
        && !path.is_null()
    {
        // SAFETY: this function's contract.
        let path = unsafe { CStr::from_ptr(path) };
        if path::is_candidate(path.to_bytes()) {
            return with_buffers(folder, start, path, call);
        }
    }
    call(path)
}

/// This function is separate, so that the calls for other paths need no buffers.
#[inline(never)]
fn with_buffers<R>(
    folder: &[u8],
    start: c_int,
    path: &CStr,
    call: impl FnOnce(*const c_char) -> R,
) -> R {
    let (mut buffer, mut other) = (Buffer::new(), [0; MAX_LENGTH]);
    let redirected = start_of(start, path, &mut other)
        .and_then(|start| path::redirect(folder, start, path.to_bytes(), &mut buffer));
    let path = match redirected {
        Some(node) if path::is_node(folder, node) => target(node, &mut other).unwrap_or(node),
        Some(redirected) => redirected,
        None => path,
    };
    call(path.as_ptr())
}

/// Returns the path of the folder to which a path is relative. For an absolute path, returns the empty path.
fn start_of<'a>(start: c_int, path: &CStr, space: &'a mut [u8; MAX_LENGTH]) -> Option<&'a [u8]> {
    if path.to_bytes().starts_with(b"/") {
        return Some(b"");
    }
    if start == libc::AT_FDCWD {
        return target(c"/proc/self/cwd", space).map(CStr::to_bytes);
    }
    let mut link = [0; 32];
    let number = DecInt::new(start);
    let parts = [b"/proc/self/fd/", number.as_bytes()];
    let bytes = parts.into_iter().flatten();
    link.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    target(CStr::from_bytes_until_nul(&link).ok()?, space).map(CStr::to_bytes)
}

/// Returns the target of a symbolic link. This uses a system call and not the C library, so it leaves `errno` as it is.
fn target<'a>(link: &CStr, space: &'a mut [u8; MAX_LENGTH]) -> Option<&'a CStr> {
    let length = readlinkat_raw(CWD, link, &mut space[..]).ok()?;
    // A target that fills the space may be incomplete, and has no NUL.
    space.get_mut(length..)?.fill(0);
    CStr::from_bytes_until_nul(space).ok()
}

/// Removes the folder with the devices' files from the beginning of a path, which then is the path that the program
/// knows.
///
/// # Safety
/// `path` is a string that the caller may change, or NULL.
unsafe fn without_folder(path: *mut c_char) -> *mut c_char {
    let Some(folder) = folder().filter(|_| !path.is_null()) else { return path };
    // SAFETY: this function's contract.
    let text = unsafe { CStr::from_ptr(path) };
    let rest = text.to_bytes_with_nul().strip_prefix(folder).filter(|rest| rest.starts_with(b"/"));
    if let Some(length) = rest.map(<[u8]>::len) {
        // SAFETY: the string begins with the folder's path, so this position is within it.
        let start = unsafe { path.add(folder.len()) };
        // SAFETY: `length` bytes of the string follow `start`, and a longer part follows `path`. No reference to them
        // is used any more.
        unsafe { ptr::copy(start, path, length) };
    }
    path
}
