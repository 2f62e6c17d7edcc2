//! The installed librdmacm, loaded at run time.
#![allow(unsafe_code)]

use std::ffi::{OsStr, OsString, c_char, c_int, c_void};
use std::sync::OnceLock;

use libloading::os::unix::Library;

use super::{
    rdma_addrinfo, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_cm_join_mc_attr_ex,
    rdma_conn_param, rdma_event_channel, rdma_port_space,
};
use crate::elf::program_is_static;
use crate::environment::path_variable;
use crate::generated::verbs::{
    ibv_context, ibv_ece, ibv_event_type, ibv_pd, ibv_qp_attr, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_srq_init_attr, ibv_srq_init_attr_ex,
};
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
    (
        required {
            $($field:ident: $symbol:ident = fn($($argument:ty),*) $(-> $result:ty)?;)+
        }
        $(optional $since:literal {
            $($optional:ident: $other:ident = fn($($given:ty),*) $(-> $returned:ty)?;)+
        })+
    ) => {
        /// The functions of the installed librdmacm.
        ///
        /// A field has the name of its C function without `rdma_`, and that function's manual page documents it. The
        /// functions that `rdma-cm` calls are always present. The others of the symbol versions `RDMACM_1.0` to
        /// `RDMACM_1.3` are for programs, and may be absent.
        ///
        /// The sockets of rsockets (`rsocket`, `repoll_create` …) are left out, because Rust has traits for streams.
        /// The functions of `RDMACM_1.4` are left out, because the headers of rdma-core 44 do not declare them.
        #[derive(Clone, Copy, Debug)]
        #[non_exhaustive]
        pub struct Librdmacm {
            $(
                #[doc = concat!("`", stringify!($symbol), "`.")]
                pub $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,
            )+
            $($(
                #[doc = concat!("`", stringify!($other), "`, since ", $since, ".")]
                pub $optional: Option<unsafe extern "C" fn($($given),*) $(-> $returned)?>,
            )+)+
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
                    $($(
                        // SAFETY: as above.
                        $optional: unsafe { symbol(library, stringify!($other)) },
                    )+)+
                })
            }

            /// Returns the optional functions that the library lacks, each with its symbol version and the release of
            /// rdma-core.
            #[must_use]
            pub fn lacking(&self) -> Vec<(&'static str, &'static str)> {
                let functions = [$($((stringify!($other), $since, self.$optional.is_none()),)+)+];
                let lacking = functions.into_iter().filter(|&(.., is_lacking)| is_lacking);
                lacking.map(|(name, since, _)| (name, since)).collect()
            }
        }
    };
}

functions! {
    required {
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
    optional "RDMACM_1.0 (rdma-core 12)" {
        create_ep: rdma_create_ep = fn(
            *mut *mut rdma_cm_id, *mut rdma_addrinfo, *mut ibv_pd, *mut ibv_qp_init_attr
        ) -> c_int;
        destroy_ep: rdma_destroy_ep = fn(*mut rdma_cm_id);
        get_request: rdma_get_request = fn(*mut rdma_cm_id, *mut *mut rdma_cm_id) -> c_int;
        create_qp: rdma_create_qp = fn(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
        create_qp_ex: rdma_create_qp_ex = fn(*mut rdma_cm_id, *mut ibv_qp_init_attr_ex) -> c_int;
        destroy_qp: rdma_destroy_qp = fn(*mut rdma_cm_id);
        create_srq: rdma_create_srq =
            fn(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_srq_init_attr) -> c_int;
        create_srq_ex: rdma_create_srq_ex = fn(*mut rdma_cm_id, *mut ibv_srq_init_attr_ex) -> c_int;
        destroy_srq: rdma_destroy_srq = fn(*mut rdma_cm_id);
        notify: rdma_notify = fn(*mut rdma_cm_id, ibv_event_type) -> c_int;
        migrate_id: rdma_migrate_id = fn(*mut rdma_cm_id, *mut rdma_event_channel) -> c_int;
        get_src_port: rdma_get_src_port = fn(*mut rdma_cm_id) -> u16;
        get_dst_port: rdma_get_dst_port = fn(*mut rdma_cm_id) -> u16;
        get_devices: rdma_get_devices = fn(*mut c_int) -> *mut *mut ibv_context;
        free_devices: rdma_free_devices = fn(*mut *mut ibv_context);
        event_str: rdma_event_str = fn(rdma_cm_event_type) -> *const c_char;
        getaddrinfo: rdma_getaddrinfo =
            fn(*const c_char, *const c_char, *const rdma_addrinfo, *mut *mut rdma_addrinfo) -> c_int;
        freeaddrinfo: rdma_freeaddrinfo = fn(*mut rdma_addrinfo);
    }
    optional "RDMACM_1.1 (rdma-core 16)" {
        join_multicast_ex: rdma_join_multicast_ex =
            fn(*mut rdma_cm_id, *mut rdma_cm_join_mc_attr_ex, *mut c_void) -> c_int;
    }
    optional "RDMACM_1.3 (rdma-core 31)" {
        set_local_ece: rdma_set_local_ece = fn(*mut rdma_cm_id, *mut ibv_ece) -> c_int;
        get_remote_ece: rdma_get_remote_ece = fn(*mut rdma_cm_id, *mut ibv_ece) -> c_int;
        reject_ece: rdma_reject_ece = fn(*mut rdma_cm_id, *const c_void, u8) -> c_int;
    }
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
