//! The distribution's libibverbs, loaded beside this library.
//!
//! The libraries of its providers, such as `librxe-rdmav34.so`, need a `libibverbs.so.1`. The loader gives them this
//! library, which has that name and was loaded first. So `driver` forwards their calls to the distribution's library.
#![allow(unsafe_code)]

use std::env;
use std::ffi::{CString, OsString, c_void};
use std::mem;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use rdma_sys::Verbs;

use crate::driver;
use crate::provider::{Owned, soft, verbs_of};

/// The environment variable with the path of the distribution's library, as in Rust programs.
const PATH_VARIABLE: &str = "RDMA_LIBIBVERBS";
const SONAME: &str = "libibverbs.so.1";

/// The versions of the private symbols. A release of rdma-core has one of them, and this library has all.
const PRIVATE: [u32; 5] = [34, 57, 59, 64, 65];

/// The loader's handle of the library. It is never closed.
static LIBRARY: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Loads the library, and makes `driver` forward to it.
///
/// # Errors
/// Returns what to do if the library is not found, or cannot be used.
pub(crate) fn load() -> Result<Verbs, String> {
    let file = match rdma_sys::path_variable(PATH_VARIABLE) {
        Some(path) => path,
        None => find()?,
    };
    let shown = file.display();
    // SAFETY: the file is the machine's libibverbs, or one named by the user (SAFETY.md F2).
    let verbs = unsafe { rdma_sys::system_at(&file) }.map_err(|error| error.to_string())?;
    let name = CString::new(file.as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: the library is already loaded, so this call only returns its handle (SAFETY.md F15).
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    let mut register = PRIVATE.iter().filter_map(|version| register(library, *version));
    let (Some(register), None) = (register.next(), register.next()) else {
        return Err(format!(
            "{shown} is a copy of this library, or is not from rdma-core 34 to 65; set {PATH_VARIABLE} to the path \
             of the distribution's library"
        ));
    };
    driver::bind(library, register);
    LIBRARY.store(library, Ordering::Release);
    Ok(verbs)
}

/// Returns the library in one of the loader's folders. Its name alone would mean this library.
fn find() -> Result<OsString, String> {
    let machine = format!("/usr/lib/{}-linux-gnu", env::consts::ARCH);
    let folders = [&machine, "/usr/lib64", "/lib64", "/usr/lib"];
    let mut files = folders.iter().map(|folder| Path::new(folder).join(SONAME));
    files.find(|file| file.exists()).map(Into::into).ok_or_else(|| {
        format!(
            "{SONAME} is in none of {}; install libibverbs (Debian: libibverbs1, ibverbs-providers), or set \
             {PATH_VARIABLE} to its path",
            folders.join(", ")
        )
    })
}

/// Returns the function that registers a provider, if the library has the private symbols of this version.
fn register(library: *mut c_void, version: u32) -> Option<ptr::NonNull<c_void>> {
    let name = CString::new(format!("verbs_register_driver_{version}")).ok()?;
    let version = CString::new(format!("IBVERBS_PRIVATE_{version}")).ok()?;
    // SAFETY: the handle is open, or NULL and then means the program (SAFETY.md F15).
    ptr::NonNull::new(unsafe { libc::dlvsym(library, name.as_ptr(), version.as_ptr()) })
}

/// Returns the address of a symbol of a library.
pub(crate) fn symbol(library: *mut c_void, name: &str) -> Option<ptr::NonNull<c_void>> {
    let name = CString::new(name).ok()?;
    // SAFETY: the handle is open, or NULL and then means the program (SAFETY.md F15).
    ptr::NonNull::new(unsafe { libc::dlsym(library, name.as_ptr()) })
}

/// Returns the library's own function of this name, if the object belongs to the library.
///
/// # Safety
/// The object is live, or NULL. `F` is the type of the function.
pub(crate) unsafe fn function<T: Owned, F: Copy>(object: *mut T, name: &str) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: this function's contract.
    if ptr::eq(unsafe { verbs_of(object) }, soft()) {
        return None;
    }
    let found = symbol(LIBRARY.load(Ordering::Acquire), name)?;
    // SAFETY: this function's contract (SAFETY.md F2).
    Some(unsafe { mem::transmute_copy(&found) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_private_versions_are_those_of_the_version_script() {
        let map = include_str!("../libibverbs.map");
        let versions = map.lines().filter_map(|line| line.strip_prefix("IBVERBS_PRIVATE_"));
        let versions = versions.map(|rest| rest.trim_end_matches(" {").parse().unwrap());
        assert_eq!(versions.collect::<Vec<u32>>(), PRIVATE);
    }
}
