//! The symbols that libraries of providers import, such as `libmlx5.so.1` and `libefa.so.1`. perftest and pyverbs link
//! with these libraries, and bind all their symbols at start.
//!
//! If the distribution's library is loaded (`system`), these functions jump to its functions of the same names, with all
//! arguments. Otherwise no device belongs to a provider's library. The library compares the bytes after `ibv_device`,
//! which are zero, before it uses a device. So none of the functions has to work then.
#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::ffi::{c_int, c_uint, c_void};
use std::mem;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use rdma_sys::{Errno, ibv_context, ibv_device};

use crate::provider::verbs_of;
use crate::refusal::{UNSUPPORTED, unsupported_minus_one, unsupported_null};
use crate::system;

/// A variable that libraries of providers may read. The distribution's library writes it, unless this library was loaded
/// with `RTLD_LOCAL`.
#[unsafe(no_mangle)]
static verbs_allow_disassociate_destroy: AtomicBool = AtomicBool::new(false);

type Register = unsafe extern "C" fn(*mut c_void);

/// The function of the distribution's library that registers a provider.
static REGISTER: OnceLock<Register> = OnceLock::new();
/// Providers whose libraries were loaded before the distribution's library.
static DRIVERS: Mutex<Vec<AtomicPtr<c_void>>> = Mutex::new(Vec::new());

/// Registers a provider, once the distribution's library is loaded. The number is the version of the private symbols.
///
/// The library is not loaded here, because a provider's library calls this function while it is being loaded itself.
#[unsafe(no_mangle)]
extern "C" fn verbs_register_driver_34(operations: *mut c_void) {
    DRIVERS.lock().unwrap_or_else(PoisonError::into_inner).push(AtomicPtr::new(operations));
    register_drivers();
}

/// Registers the providers that are not yet registered, if the distribution's library is loaded.
pub(crate) fn register_drivers() {
    let Some(register) = REGISTER.get() else { return };
    let drivers = mem::take(&mut *DRIVERS.lock().unwrap_or_else(PoisonError::into_inner));
    for driver in drivers {
        // SAFETY: the provider's library passed the pointer to the function of this name (SAFETY.md F2).
        unsafe { register(driver.into_inner()) };
    }
}

/// Makes the functions of this module forward to those of the distribution's library. Functions that it lacks stay as
/// they are.
pub(crate) fn bind(library: *mut c_void, register: NonNull<c_void>) {
    for (name, target) in TARGETS {
        if let Some(theirs) = system::symbol(library, name) {
            target.store(theirs.as_ptr(), Ordering::Release);
        }
    }
    // SAFETY: the symbol is a function of this type (SAFETY.md F2).
    let register = unsafe { mem::transmute::<NonNull<c_void>, Register>(register) };
    let _already = REGISTER.set(register);
}

type OpenDevice = unsafe extern "C" fn(*mut ibv_device, *mut c_void) -> *mut ibv_context;

#[unsafe(no_mangle)]
unsafe extern "C" fn verbs_open_device(
    device: *mut ibv_device,
    private: *mut c_void,
) -> *mut ibv_context {
    // SAFETY: the caller passes a live device (SAFETY.md F1), and the type is that of the header of providers.
    if let Some(open) = unsafe { system::function::<_, OpenDevice>(device, "verbs_open_device") } {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        return unsafe { open(device, private) };
    }
    if !private.is_null() {
        return unsupported_null();
    }
    // SAFETY: the caller passes a live device (SAFETY.md F1).
    let verbs = unsafe { verbs_of(device) };
    // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
    unsafe { (verbs.open_device)(device) }
}

// The functions that are called without the distribution's library. They ignore their arguments.

extern "C" fn unsupported() -> c_int {
    UNSUPPORTED
}

extern "C" fn null() -> *mut c_void {
    unsupported_null()
}

extern "C" fn minus_one() -> c_int {
    unsupported_minus_one()
}

/// Fails, because no software device has a `struct verbs_sysfs_dev`.
extern "C" fn no_file() -> c_int {
    Errno::ENOENT.set();
    -1
}

extern "C" fn nothing() {}

/// Succeeds, because a software device pins no pages, so a fork does not affect registered memory.
extern "C" fn zero() -> c_int {
    0
}

extern "C" fn poll_error() -> c_int {
    -1
}

/// Returns the size of a command's list of attributes, without linked lists, which only providers' libraries make.
extern "C" fn same_count(count: c_uint) -> c_uint {
    count
}

/// Jumps to the function in a pointer, with the registers and the stack of the caller.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    ($target:path) => { naked_asm!("jmp qword ptr [rip + {}]", sym $target) };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    ($target:path) => {
        naked_asm!("adrp x16, {0}", "ldr x16, [x16, :lo12:{0}]", "br x16", sym $target)
    };
}

/// Defines the functions that jump, after the function to which they jump without the distribution's library. Some take
/// a variable number of arguments, and the types of others differ between releases.
macro_rules! jumps {
    ($($default:ident: $($name:ident)+;)+) => {
        #[expect(non_upper_case_globals, reason = "The names are those of the functions")]
        mod target {
            use super::{AtomicPtr, c_void};
            $($(pub(super) static $name: AtomicPtr<c_void> = AtomicPtr::new(super::$default as *mut c_void);)+)+
        }

        /// The targets of the jumps, by name.
        static TARGETS: &[(&str, &AtomicPtr<c_void>)] = &[$($((stringify!($name), &target::$name),)+)+];

        $($(
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            extern "C" fn $name() {
                jump!(target::$name)
            }
        )+)+
    };
}

jumps! {
    null: _verbs_init_and_alloc_context ibv_dmabuf_heap_alloc ibv_dmabuf_heap_cc_shared_init;
    nothing: __verbs_log ibv_dmabuf_heap_destroy ibv_dmabuf_heap_free verbs_init_cq verbs_set_ops verbs_uninit_context;
    zero: ibv_dofork_range ibv_dontfork_range;
    no_file: ibv_read_ibdev_sysfs_file;
    poll_error: ibv_cmd_poll_cq;
    minus_one: ibv_cmd_export_dmabuf_fd;
    same_count: __ioctl_final_num_attrs;
    unsupported: execute_ioctl
    ibv_cmd_advise_mr ibv_cmd_alloc_dm ibv_cmd_alloc_dmah ibv_cmd_alloc_mw ibv_cmd_alloc_pd
    ibv_cmd_attach_mcast ibv_cmd_close_xrcd ibv_cmd_create_ah ibv_cmd_create_comp_cntr
    ibv_cmd_create_counters ibv_cmd_create_cq ibv_cmd_create_cq_ex ibv_cmd_create_cq_ex2
    ibv_cmd_create_flow ibv_cmd_create_flow_action_esp ibv_cmd_create_qp ibv_cmd_create_qp_ex
    ibv_cmd_create_qp_ex2 ibv_cmd_create_rwq_ind_table ibv_cmd_create_srq ibv_cmd_create_srq_ex
    ibv_cmd_create_wq ibv_cmd_dealloc_mw ibv_cmd_dealloc_pd ibv_cmd_dereg_mr ibv_cmd_destroy_ah
    ibv_cmd_destroy_comp_cntr ibv_cmd_destroy_counters ibv_cmd_destroy_cq ibv_cmd_destroy_flow
    ibv_cmd_destroy_flow_action ibv_cmd_destroy_qp ibv_cmd_destroy_rwq_ind_table ibv_cmd_destroy_srq
    ibv_cmd_destroy_wq ibv_cmd_detach_mcast ibv_cmd_free_dm ibv_cmd_free_dmah ibv_cmd_get_context
    ibv_cmd_inc_comp_cntr ibv_cmd_inc_err_comp_cntr ibv_cmd_modify_cq ibv_cmd_modify_flow_action_esp
    ibv_cmd_modify_qp ibv_cmd_modify_qp_ex ibv_cmd_modify_srq ibv_cmd_modify_wq ibv_cmd_open_qp
    ibv_cmd_open_xrcd ibv_cmd_post_recv ibv_cmd_post_send ibv_cmd_post_srq_recv
    ibv_cmd_qp_attach_comp_cntr ibv_cmd_query_comp_cntr_caps ibv_cmd_query_context
    ibv_cmd_query_device ibv_cmd_query_device_any ibv_cmd_query_mr ibv_cmd_query_port
    ibv_cmd_query_port_speed ibv_cmd_query_qp ibv_cmd_query_srq ibv_cmd_read_comp_cntr
    ibv_cmd_read_counters ibv_cmd_read_err_comp_cntr ibv_cmd_reg_dm_mr ibv_cmd_reg_dmabuf_mr
    ibv_cmd_reg_mr ibv_cmd_reg_mr_ex ibv_cmd_req_notify_cq ibv_cmd_rereg_mr ibv_cmd_resize_cq
    ibv_cmd_set_comp_cntr ibv_cmd_set_err_comp_cntr;
}
