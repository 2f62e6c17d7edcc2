//! The installed libibverbs, loaded at run time.

#![allow(unsafe_code)]

use std::{
    ffi::{OsStr, OsString},
    ptr,
    sync::OnceLock,
};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::{elf, environment::path_variable, load_error::LoadError, table::Verbs};

/// The file name that libibverbs has had since its first release.
pub(crate) const SONAME: &str = "libibverbs.so.1";

/// The environment variable that contains the path of a library to load instead of [`SONAME`].
const PATH_VARIABLE: &str = "RDMA_LIBIBVERBS";

static SYSTEM: OnceLock<Result<Verbs, LoadError>> = OnceLock::new();

/// Returns the verbs of the installed libibverbs, which lists all RDMA devices of this machine that
/// the kernel knows.
///
/// The first call searches for the library, which is never unloaded; later calls return the same
/// table or the same error. `RDMA_LIBIBVERBS` sets the path of a library other than
/// `libibverbs.so.1`; setuid programs ignore it. The library is loaded with `RTLD_NOW | RTLD_LOCAL`, so its names are not
/// visible to other libraries. The provider is called `system`.
///
/// A program can continue if this function fails, because a software device has its own [`Verbs`].
///
/// # Errors
/// Returns an error if the library is missing, too old, built for another machine or refused by the
/// loader, or if this binary is static. Each [`LoadError`] states the remedy.
///
/// ```
/// match rdma_sys::system() {
///     Ok(verbs) => assert_eq!(verbs.name, "system"),
///     Err(error) => eprintln!("no RDMA hardware: {error}"),
/// }
/// ```
#[doc(alias = "dlopen")]
pub fn system() -> Result<&'static Verbs, LoadError> {
    let loaded = SYSTEM.get_or_init(|| {
        let file = path_variable(PATH_VARIABLE).unwrap_or_else(|| OsString::from(SONAME));
        // SAFETY: the file is the machine's libibverbs, or one named by the user of this program
        // (SAFETY.md F2).
        unsafe { system_at(&file) }
    });
    loaded.as_ref().map_err(Clone::clone)
}

/// Returns true if this is the table of the machine's libibverbs, which [`system`] has loaded or against which the program
/// is linked. The other libraries of rdma-core use the same devices.
///
/// ```
/// use rdma_sys::{Verbs, is_installed, system};
///
/// assert!(!is_installed(&Verbs::unsupported()));
/// if let Ok(verbs) = system() {
///     assert!(is_installed(verbs));
/// }
/// ```
#[must_use]
pub fn is_installed(verbs: &Verbs) -> bool {
    #[cfg(feature = "linked")]
    if ptr::eq(verbs, crate::linked()) {
        return true;
    }
    let loaded = SYSTEM.get().and_then(|loaded| loaded.as_ref().ok());
    loaded.is_some_and(|loaded| ptr::eq(verbs, loaded))
}

/// Returns the verbs of the libibverbs in this file, which is never unloaded.
///
/// [`system`] chooses the file. This function is for a program in which the name `libibverbs.so.1`
/// means another library.
///
/// # Safety
/// The file is a libibverbs: each of its functions that has the name of a verb is that verb. The
/// initialisers of the library and of the libraries that it needs may run in this program.
///
/// # Errors
/// Same errors as [`system`].
#[doc(alias = "dlopen")]
pub unsafe fn system_at(file: &OsStr) -> Result<Verbs, LoadError> {
    if elf::program_is_static() {
        return Err(LoadError::StaticBinary);
    }
    // SAFETY: the file is a libibverbs by this function's contract. Its initialisers register
    // drivers and touch no memory of ours (SAFETY.md F2).
    let opened = unsafe { open(file) };
    let library = opened.map_err(|reason| LoadError::of_dlopen(file, &reason))?;
    // SAFETY: the same argument holds for the library's exported functions. The library is never
    // closed, neither here nor below (SAFETY.md F2).
    let table = unsafe { Verbs::load("system", &library) };
    // Never close it, even after a failure: its drivers may have started threads or kept pointers.
    let _open_for_ever = library.into_raw();
    table.map_err(|symbol| LoadError::TooOld { file: file.to_owned(), symbol })
}

/// Loads a library. The error is the text of `dlerror`, which is the source of libloading's error.
///
/// # Safety
/// The initialisers of the library and of the libraries that it needs may run in this program.
pub(crate) unsafe fn open(file: &OsStr) -> Result<Library, String> {
    // SAFETY: this function's contract.
    let opened = unsafe { Library::open(Some(file), RTLD_NOW | RTLD_LOCAL) };
    opened.map_err(|error| {
        std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string)
    })
}

#[cfg(test)]
mod tests;
