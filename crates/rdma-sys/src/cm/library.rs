//! The installed librdmacm, loaded at run time.
#![allow(unsafe_code)]

use std::ffi::{OsStr, OsString, c_int, c_void};
use std::sync::OnceLock;

use libloading::os::unix::Library;

use super::{rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_port_space};
use crate::elf::program_is_static;
use crate::environment::path_variable;
use crate::generated::verbs::ibv_qp_attr;
use crate::load;
use crate::table::symbol;

/// The file name that librdmacm has had since its first release.
const SONAME: &str = "librdmacm.so.1";

/// The environment variable that contains the path of a library to load instead of [`SONAME`].
const PATH_VARIABLE: &str = "RDMA_LIBRDMACM";

/// The reason that [`librdmacm`] failed.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} cannot be used: {reason}; install librdmacm of rdma-core 23 or newer (Debian, Ubuntu: librdmacm1; Fedora, RHEL: \
     librdmacm), or set RDMA_LIBRDMACM to its path; connections that exchange their addresses over TCP do not need it",
    .file.display()
)]
#[non_exhaustive]
pub struct LibrdmacmError {
    /// The requested file.
    pub file: OsString,
    /// The loader's message, or the function that the library lacks.
    pub reason: String,
}

rdma_types::debug_messages!(struct LibrdmacmError { file, reason });

/// Defines the struct and the loader from one list. An entry is `field: C name = type`.
macro_rules! functions {
    ($($field:ident: $symbol:ident = fn($($argument:ty),*) $(-> $result:ty)?;)+) => {
        /// The functions of the installed librdmacm that connections need.
        ///
        /// A field has the name of its C function without `rdma_`, and that function's manual page documents it.
        #[derive(Clone, Copy, Debug)]
        #[non_exhaustive]
        pub struct Librdmacm {
            $(
                #[doc = concat!("`", stringify!($symbol), "`.")]
                pub $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,
            )+
        }

        impl Librdmacm {
            /// Returns the table of a loaded librdmacm, or the first function that it lacks.
            ///
            /// # Safety
            /// The symbols that `library` exports under the names of librdmacm's functions must be these functions
            /// (SAFETY.md F2), and the library must stay loaded.
            unsafe fn load(library: &Library) -> Result<Self, &'static str> {
                Ok(Self {
                    $(
                        // SAFETY: the type is that of the header's declaration (SAFETY.md F5), and the symbol is that
                        // function by this function's contract (F2).
                        $field: unsafe { symbol(library, stringify!($symbol)) }
                            .ok_or(stringify!($symbol))?,
                    )+
                })
            }
        }
    };
}

functions! {
    create_event_channel: rdma_create_event_channel = fn() -> *mut rdma_event_channel;
    destroy_event_channel: rdma_destroy_event_channel = fn(*mut rdma_event_channel);
    create_id: rdma_create_id =
        fn(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, rdma_port_space) -> c_int;
    destroy_id: rdma_destroy_id = fn(*mut rdma_cm_id) -> c_int;
    bind_addr: rdma_bind_addr = fn(*mut rdma_cm_id, *mut libc::sockaddr) -> c_int;
    resolve_addr: rdma_resolve_addr =
        fn(*mut rdma_cm_id, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
    resolve_route: rdma_resolve_route = fn(*mut rdma_cm_id, c_int) -> c_int;
    connect: rdma_connect = fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    establish: rdma_establish = fn(*mut rdma_cm_id) -> c_int;
    listen: rdma_listen = fn(*mut rdma_cm_id, c_int) -> c_int;
    accept: rdma_accept = fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    reject: rdma_reject = fn(*mut rdma_cm_id, *const c_void, u8) -> c_int;
    disconnect: rdma_disconnect = fn(*mut rdma_cm_id) -> c_int;
    join_multicast: rdma_join_multicast =
        fn(*mut rdma_cm_id, *mut libc::sockaddr, *mut c_void) -> c_int;
    leave_multicast: rdma_leave_multicast = fn(*mut rdma_cm_id, *mut libc::sockaddr) -> c_int;
    get_cm_event: rdma_get_cm_event = fn(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
    ack_cm_event: rdma_ack_cm_event = fn(*mut rdma_cm_event) -> c_int;
    set_option: rdma_set_option = fn(*mut rdma_cm_id, c_int, c_int, *mut c_void, usize) -> c_int;
    init_qp_attr: rdma_init_qp_attr = fn(*mut rdma_cm_id, *mut ibv_qp_attr, *mut c_int) -> c_int;
}

/// Returns the functions of the installed librdmacm, which connects the devices of [`system`](crate::system) through the
/// kernel's rdma_cm.
///
/// The first call searches for the library, which is never unloaded; later calls return the same table or the same error.
/// `RDMA_LIBRDMACM` sets the path of a library other than `librdmacm.so.1`; setuid programs ignore it.
///
/// # Errors
/// Returns an error if the library is missing, refused by the loader, or older than rdma-core 23, which introduced
/// `rdma_establish` and `rdma_init_qp_attr`. Also returns one if this program is statically linked.
///
/// ```
/// if let Err(error) = rdma_sys::cm::librdmacm() {
///     assert!(error.to_string().contains("librdmacm1"), "it names the package");
/// }
/// ```
#[doc(alias = "dlopen")]
pub fn librdmacm() -> Result<&'static Librdmacm, LibrdmacmError> {
    static LIBRARY: OnceLock<Result<Librdmacm, LibrdmacmError>> = OnceLock::new();
    let loaded = LIBRARY.get_or_init(|| {
        let file = path_variable(PATH_VARIABLE).unwrap_or_else(|| OsString::from(SONAME));
        // SAFETY: the file is the machine's librdmacm, or one named by the user of this program (SAFETY.md F2).
        unsafe { librdmacm_at(&file) }
    });
    loaded.as_ref().map_err(Clone::clone)
}

/// Returns the functions of the librdmacm in this file, which is never unloaded.
///
/// # Safety
/// The file is a librdmacm: each of its functions that has the name of a function of librdmacm is that function. The
/// initialisers of the library and of the libraries that it needs may run in this program.
unsafe fn librdmacm_at(file: &OsStr) -> Result<Librdmacm, LibrdmacmError> {
    let failed = |reason: String| LibrdmacmError { file: file.to_owned(), reason };
    if program_is_static() {
        return Err(failed("this program is statically linked: link it dynamically".to_owned()));
    }
    // SAFETY: the file is a librdmacm by this function's contract.
    let library = unsafe { load::open(file) }.map_err(failed)?;
    // SAFETY: the same argument holds for the library's exported functions. The library is never closed, neither here nor
    // below (SAFETY.md F2).
    let table = unsafe { Librdmacm::load(&library) };
    let _open_for_ever = library.into_raw();
    table.map_err(|symbol| failed(format!("it has no function {symbol}")))
}

#[cfg(all(test, not(miri)))] // miri has no dlopen
mod tests {
    use super::*;

    #[test]
    #[cfg(not(target_feature = "crt-static"))]
    fn the_error_names_the_file_and_the_reason() {
        let load = |file: &str| {
            // SAFETY: the C library's initialisers have run already, and it has none of the names (SAFETY.md F2).
            unsafe { librdmacm_at(OsStr::new(file)) }.unwrap_err().to_string()
        };
        let missing = load("/nonexistent/librdmacm.so.1");
        assert!(missing.starts_with("/nonexistent/librdmacm.so.1 cannot be used: "), "{missing}");
        assert!(missing.contains("No such file"), "{missing}");
        let other = load("libc.so.6");
        assert!(other.contains("it has no function rdma_create_event_channel; install"), "{other}");
    }
}
