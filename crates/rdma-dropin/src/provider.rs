//! The providers of this library's devices: the software devices, and the distribution's libibverbs.
//!
//! The distribution's library is loaded only if the environment chooses it. Without it, all objects belong to the
//! software devices, and no object is read to find its provider.
#![allow(unsafe_code)]

use std::env;
use std::io::{self, Write};
use std::panic;
use std::ptr;
use std::slice;
use std::sync::OnceLock;

use rdma_sys::{
    Errno, Verbs, ibv_ah, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device,
    ibv_dm, ibv_event_type, ibv_mr, ibv_pd, ibv_qp, ibv_srq,
};

use crate::{driver, stats, system};

/// The environment variable that chooses and orders providers, as in Rust programs.
const CHOICE_VARIABLE: &str = "RDMA_PROVIDERS";
const SOFT: &str = "soft";
const SYSTEM: &str = "system";

/// The verbs of the distribution's library, if it is chosen and could be loaded.
static LOADED: OnceLock<Option<Verbs>> = OnceLock::new();
/// The addresses of the software devices, if both providers are chosen.
static SOFT_DEVICES: OnceLock<Vec<usize>> = OnceLock::new();

/// Returns the table of the software devices.
pub(crate) fn soft() -> &'static Verbs {
    rdma_soft::verbs()
}

/// Returns the table of the distribution's library, if it is loaded.
pub(crate) fn system() -> Option<&'static Verbs> {
    LOADED.get()?.as_ref()
}

/// Loads the distribution's library in the first call, if the environment chooses it. A failure is printed.
pub(crate) fn load_system() -> Option<&'static Verbs> {
    let loaded = LOADED.get_or_init(|| {
        let choice = env::var_os(CHOICE_VARIABLE)?;
        let choice = choice.to_string_lossy();
        let is_chosen = choose(&choice).is_ok_and(|names| names.contains(&SYSTEM));
        is_chosen.then(system::load)?.map_err(|error| report(&error)).ok()
    });
    driver::register_drivers();
    loaded.as_ref()
}

/// Returns the chosen providers, in the order of their devices. The first call installs or loads them.
///
/// # Errors
/// Returns `EOPNOTSUPP` if the environment chooses an unknown provider, or none that can be loaded. The first call prints
/// the reason.
pub(crate) fn providers() -> Result<&'static [&'static Verbs], Errno> {
    static PROVIDERS: OnceLock<Result<Vec<&'static Verbs>, Errno>> = OnceLock::new();
    let providers = PROVIDERS.get_or_init(|| {
        // The hook belongs to this library's copy of the standard library, not to the program.
        panic::set_hook(Box::new(|_| {}));
        let choice = env::var_os(CHOICE_VARIABLE).unwrap_or_default();
        let choice = choice.to_string_lossy();
        let names = choose(&choice).map_err(|other| {
            report(&format!(
                "{CHOICE_VARIABLE} names {other:?}, but the providers are {SOFT:?} and {SYSTEM:?}; correct the \
                 variable, or unset it to use {SOFT:?}"
            ));
            Errno::EOPNOTSUPP
        })?;
        let found = names.into_iter().filter_map(|name| match name {
            SYSTEM => load_system(),
            _ => Some(install()),
        });
        Some(found.collect()).filter(|found: &Vec<_>| !found.is_empty()).ok_or(Errno::EOPNOTSUPP)
    });
    providers.as_deref().map_err(|errno| *errno)
}

/// Installs the software devices, and notes their addresses.
fn install() -> &'static Verbs {
    rdma_soft::install();
    stats::begin();
    SOFT_DEVICES.get_or_init(|| {
        let mut count = 0;
        // SAFETY: the count is writable (SAFETY.md F1, F2).
        let list = unsafe { (soft().get_device_list)(&raw mut count) };
        if list.is_null() {
            return Vec::new();
        }
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: the list has this number of devices, and is freed below (SAFETY.md F2).
        let devices = unsafe { slice::from_raw_parts(list, count) };
        let addresses = devices.iter().map(|device| device.addr()).collect();
        // SAFETY: the list is the one above (SAFETY.md F1, F2).
        unsafe { (soft().free_device_list)(list) };
        addresses
    });
    soft()
}

/// Prints an error. Standard error is the only way to report it to a C program.
fn report(error: &str) {
    // A write error is ignored.
    let _ = writeln!(io::stderr(), "libibverbs: {error}");
}

/// Returns the names in a list of providers, each once, or the first unknown one.
fn choose(list: &str) -> Result<Vec<&str>, &str> {
    let mut names = Vec::new();
    for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        if ![SOFT, SYSTEM].contains(&name) {
            return Err(name);
        }
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.is_empty() {
        names.push(SOFT);
    }
    Ok(names)
}

/// A device, or an object of a context.
pub(crate) trait Owned {
    /// Returns the object's device, or NULL for an event of a port.
    ///
    /// # Safety
    /// The object is live.
    unsafe fn device(object: *mut Self) -> *mut ibv_device;
}

impl Owned for ibv_device {
    unsafe fn device(object: *mut Self) -> *mut ibv_device {
        object
    }
}

impl Owned for ibv_context {
    unsafe fn device(object: *mut Self) -> *mut ibv_device {
        // SAFETY: a live context has its device (SAFETY.md F1, F5).
        unsafe { (*object).device }
    }
}

impl Owned for ibv_async_event {
    unsafe fn device(object: *mut Self) -> *mut ibv_device {
        // SAFETY: the caller passes an event that `ibv_get_async_event` filled (SAFETY.md F1).
        let event = unsafe { object.read() };
        match event.event_type {
            ibv_event_type::IBV_EVENT_DEVICE_FATAL
            | ibv_event_type::IBV_EVENT_PORT_ACTIVE
            | ibv_event_type::IBV_EVENT_PORT_ERR
            | ibv_event_type::IBV_EVENT_LID_CHANGE
            | ibv_event_type::IBV_EVENT_PKEY_CHANGE
            | ibv_event_type::IBV_EVENT_SM_CHANGE
            | ibv_event_type::IBV_EVENT_CLIENT_REREGISTER
            | ibv_event_type::IBV_EVENT_GID_CHANGE => ptr::null_mut(),
            _ => {
                // SAFETY: an event of another type concerns an object, to which all fields point (SAFETY.md F1).
                let object = unsafe { event.element.cq };
                // SAFETY: the object exists until the event is acknowledged, and begins with its context like a queue
                // (SAFETY.md F1, F5).
                unsafe { ibv_cq::device(object) }
            }
        }
    }
}

/// Implements [`Owned`] for objects of a context.
macro_rules! of_a_context {
    ($($object:ident)+) => {$(
        impl Owned for $object {
            unsafe fn device(object: *mut Self) -> *mut ibv_device {
                // SAFETY: a live object has its context, and the context its device (SAFETY.md F1, F5).
                unsafe { (*(*object).context).device }
            }
        }
    )+};
}

of_a_context! { ibv_ah ibv_comp_channel ibv_cq ibv_dm ibv_mr ibv_pd ibv_qp ibv_srq }

/// Returns the table of an object's provider. NULL belongs to the software devices.
///
/// # Safety
/// The object is live, or NULL.
pub(crate) unsafe fn verbs_of<T: Owned>(object: *mut T) -> &'static Verbs {
    match system() {
        // SAFETY: this function's contract.
        Some(system) if !object.is_null() && !is_soft(unsafe { T::device(object) }) => system,
        _ => soft(),
    }
}

fn is_soft(device: *mut ibv_device) -> bool {
    let soft = SOFT_DEVICES.get();
    device.is_null() || soft.is_some_and(|devices| devices.contains(&device.addr()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_chooses_and_orders_providers() {
        assert_eq!(choose(""), Ok(vec!["soft"]));
        assert_eq!(choose(" system,"), Ok(vec!["system"]));
        assert_eq!(choose("system, soft,system"), Ok(vec!["system", "soft"]));
        assert_eq!(choose("soft,sytsem"), Err("sytsem"));
    }
}
