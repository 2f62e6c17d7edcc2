//! The devices of this process, and the threads that process messages.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::{ptr, thread};

use rdma_cm::unmanaged::{self, Address, Route};
use rdma_cm::{Error, EventChannel};
use rdma_mem::{Context, DeviceList, ProtectionDomain};
use rdma_sys::{PerProcess, SignalsBlocked, ibv_context};

use crate::errors::{fail, number, report};
use crate::library::verbs;
use crate::{event, id};

/// A device that was opened. It stays open until the process ends, like those of the distribution's librdmacm.
pub(crate) struct Device {
    pub(crate) channel: EventChannel,
    pub(crate) pd: ProtectionDomain,
    /// The maximum numbers of RDMA reads and atomics that a queue pair serves, and that it starts.
    pub(crate) max_responder_resources: u8,
    pub(crate) max_initiator_depth: u8,
}

/// A device of the list.
struct Listed {
    device: rdma_mem::Device,
    opened: Mutex<Option<&'static Device>>,
    /// Whether a failure to open the device was printed.
    is_failure_printed: AtomicBool,
}

/// Locks a mutex whose owner cannot have panicked.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the devices, or `ENODEV` if the process has none.
fn devices() -> Result<&'static [Listed], c_int> {
    static DEVICES: LazyLock<Mutex<PerProcess<Option<&'static [Listed]>>>> =
        LazyLock::new(Mutex::default);
    let mut devices = locked(&DEVICES);
    // A forked child has its own.
    let devices = devices.get(|devices| *devices = None);
    if let Some(devices) = *devices {
        return Ok(devices);
    }
    let verbs = verbs().ok_or(libc::ENODEV)?;
    // SAFETY: the table is that of a libibverbs (SAFETY.md F2).
    let list = unsafe { DeviceList::of(verbs) };
    let listed = list.iter().map(|device| Listed {
        device: device.clone(),
        opened: Mutex::default(),
        is_failure_printed: AtomicBool::new(false),
    });
    let all: Vec<_> = listed.collect();
    if all.is_empty() {
        return Err(libc::ENODEV);
    }
    Ok(devices.insert(Vec::leak(all)))
}

/// Checks that the process has devices.
pub(crate) fn check() -> Result<(), c_int> {
    devices().map(|_| ())
}

impl Listed {
    /// Returns the device, opened at the first success. A later call tries again after a failure.
    fn open(&self) -> Result<&'static Device, c_int> {
        let mut opened = locked(&self.opened);
        if let Some(device) = *opened {
            return Ok(device);
        }
        let device = Device::open(&self.device).map_err(|error| {
            if !self.is_failure_printed.swap(true, Ordering::Relaxed) {
                report(&format!("{} cannot be used: {error}", self.device.name()));
            }
            number(&error)
        })?;
        Ok(opened.insert(device))
    }
}

impl Device {
    fn open(device: &rdma_mem::Device) -> Result<&'static Self, Error> {
        let context = Context::open(device)?;
        let attributes = context.query_device()?;
        let at_most = |number: u32| u8::try_from(number).unwrap_or(u8::MAX - 1);
        let device: &Self = Box::leak(Box::new(Self {
            pd: context.allocate_pd()?,
            channel: EventChannel::open(&context)?,
            max_responder_resources: at_most(attributes.max_qp_rd_atom),
            max_initiator_depth: at_most(attributes.max_qp_init_rd_atom),
        }));
        let name = String::from("librdmacm");
        let blocked = SignalsBlocked::new();
        let started = thread::Builder::new().name(name).spawn(|| process(device));
        drop(blocked);
        started.map_err(|source| Error::System { tried: "start a thread", source })?;
        Ok(device)
    }

    pub(crate) fn context(&self) -> &Context {
        self.channel.context()
    }

    /// Returns the index of a GID with a packet type, and its port. A LID belongs to the first port.
    pub(crate) fn port_of(&self, route: &Route) -> Option<(u8, u8)> {
        let Address::Gid(local) = route.local else { return Some((0, 1)) };
        let table = self.context().gid_table().ok()?;
        let found =
            table.iter().find(|entry| entry.gid == local && entry.gid_type == route.gid_type)?;
        Some((u8::try_from(found.index).ok()?, found.port))
    }
}

/// Processes the messages of a device, and passes its events on.
fn process(device: &'static Device) {
    // The channel is never closed. Other errors cannot be repaired.
    while let Ok(next) = device.channel.next(None) {
        if let Some(next) = next {
            let (token, happened) = unmanaged::event(next);
            id::with(token, |id| event::queue(device, &id, happened));
        }
    }
}

/// Returns the first device that reaches an address, and the route. The error is that of the first device.
pub(crate) fn route_to(
    only: Option<&'static Device>,
    source: Option<IpAddr>,
    to: SocketAddr,
) -> Result<(&'static Device, Route), c_int> {
    let find = |device: &'static Device| {
        let channel = &device.channel;
        let route = match to.ip().to_canonical().is_multicast() {
            true => unmanaged::group(channel, to, source).map(|group| group.route),
            false => unmanaged::route(channel, to),
        };
        Ok((device, route.map_err(|error| number(&error))?))
    };
    match only {
        Some(device) => find(device),
        None => first(find),
    }
}

/// Returns the first success on a device, or the error of the first device.
pub(crate) fn first<T>(find: impl Fn(&'static Device) -> Result<T, c_int>) -> Result<T, c_int> {
    let mut error = None;
    for listed in devices()? {
        match listed.open().and_then(&find) {
            Ok(found) => return Ok(found),
            Err(number) => error = error.or(Some(number)),
        }
    }
    Err(error.unwrap_or(libc::ENODEV))
}

/// Returns the devices that can be opened, or `ENODEV` if none can.
pub(crate) fn all() -> Result<Vec<&'static Device>, c_int> {
    let opened: Vec<_> = devices()?.iter().filter_map(|listed| listed.open().ok()).collect();
    if opened.is_empty() { Err(libc::ENODEV) } else { Ok(opened) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    let found = all().unwrap_or_else(|number| {
        fail(number);
        Vec::new()
    });
    let contexts = found.iter().map(|device| device.context().as_raw());
    let mut list: Vec<*mut ibv_context> = contexts.collect();
    if !num_devices.is_null() {
        // SAFETY: the caller passes a valid pointer for the number, or NULL (SAFETY.md F1).
        unsafe { num_devices.write(c_int::try_from(list.len()).unwrap_or(c_int::MAX)) };
    }
    if list.is_empty() {
        return ptr::null_mut();
    }
    list.push(ptr::null_mut());
    // SAFETY: the size is that of the list (malloc(3)).
    let memory = unsafe { libc::malloc(size_of_val(&list[..])) }.cast::<*mut ibv_context>();
    if !memory.is_null() {
        // SAFETY: the memory is new, and has the size of the list.
        unsafe { ptr::copy_nonoverlapping(list.as_ptr(), memory, list.len()) };
    }
    memory
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: the caller passes a list of `rdma_get_devices`, or NULL (SAFETY.md F1).
    unsafe { libc::free(list.cast()) };
}
