//! The verbs of the `libibverbs.so.1` in this process.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_void};
use std::mem;
use std::panic;
use std::ptr::NonNull;
use std::sync::OnceLock;

use rdma_sys::{Mads, Verbs};

use crate::errors::report;

const SONAME: &CStr = c"libibverbs.so.1";

/// Returns the verbs of the library with this name that is already loaded, or that the loader finds. The first failure is
/// printed.
pub(crate) fn verbs() -> Option<&'static Verbs> {
    static VERBS: OnceLock<Option<Verbs>> = OnceLock::new();
    let verbs = VERBS.get_or_init(|| {
        // The hook belongs to this library's copy of the standard library, not to the program.
        panic::set_hook(Box::new(|_| {}));
        let name = OsStr::new(SONAME.to_str().unwrap_or_default());
        // SAFETY: a library with this name is a libibverbs (SAFETY.md F2).
        match unsafe { rdma_sys::system_at(name) } {
            Ok(mut verbs) => {
                verbs.mads = mads();
                Some(verbs)
            }
            Err(error) => {
                report(&error.to_string());
                None
            }
        }
    });
    verbs.as_ref()
}

/// Returns the functions of `rdma-dropin` that other libibverbs lack. They give access to queue pair 1, through which
/// connections lead to other hosts.
fn mads() -> Option<Mads> {
    // SAFETY: the library is already loaded, so this call only returns its handle (SAFETY.md F15).
    let library = unsafe { libc::dlopen(SONAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    let library = NonNull::new(library)?;
    let symbol = |name: &CStr| {
        // SAFETY: the handle is open (SAFETY.md F15).
        NonNull::new(unsafe { libc::dlsym(library.as_ptr(), name.as_ptr()) })
    };
    let open = symbol(c"rdma_soft_open_mads")?;
    let source = symbol(c"rdma_soft_mad_source")?;
    let send = symbol(c"rdma_soft_send_mad")?;
    Some(Mads {
        // SAFETY: `rdma-dropin` defines the symbol with the type of this field (SAFETY.md F2).
        open: unsafe { function(open) },
        // SAFETY: as above.
        source: unsafe { function(source) },
        // SAFETY: as above.
        send: unsafe { function(send) },
        // No program creates a simulated network through libibverbs.
        clock: None,
    })
}

/// Returns a symbol as a function.
///
/// # Safety
/// The symbol is a function of type `F`.
unsafe fn function<F: Copy>(symbol: NonNull<c_void>) -> F {
    const { assert!(size_of::<F>() == size_of::<NonNull<c_void>>()) };
    // SAFETY: this function's contract; both types have the same size.
    unsafe { mem::transmute_copy(&symbol) }
}
