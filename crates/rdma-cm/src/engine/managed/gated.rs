//! A librdmacm whose calls wait at a gate, like those of an iWARP device for a silent peer.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use rdma_mem::Context;
use rdma_sys::Errno;
use rdma_sys::cm::{
    Librdmacm, librdmacm, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_port_space,
};
use test_support::program::dropin;

use super::Managed;
use super::library::Channel;
use super::requests::Requests;
use crate::engine::{Engine, MADS};

/// The limit of a wait. Only a call that holds up the test reaches it.
const LIMIT: Duration = Duration::from_secs(60);

/// Makes a child use the drop-in libraries as the system's.
pub(super) fn over_library(program: &mut Command) {
    let folder = dropin();
    program.env("RDMA_LIBIBVERBS", folder.join("libibverbs.so.1"));
    program.env("RDMA_LIBRDMACM", folder.join("librdmacm.so.1"));
    program.env_remove("RDMA_PROVIDERS");
}

/// The gate of this process.
pub(super) static GATE: Gate = Gate { passed: Mutex::new(Passed::NONE), changed: Condvar::new() };

pub(super) struct Gate {
    passed: Mutex<Passed>,
    changed: Condvar,
}

/// The calls that arrived at the gate.
pub(super) struct Passed {
    is_closed: bool,
    /// The IDs of listeners and resolutions, whose end waits for no peer.
    own: BTreeSet<usize>,
    /// The calls that wait, or have waited.
    pub(super) connects: usize,
    pub(super) ends: usize,
    /// The IDs of connections that were destroyed.
    pub(super) ended: usize,
    /// The error of the next request.
    refused: Option<Errno>,
}

impl Passed {
    const NONE: Self = Self {
        is_closed: false,
        own: BTreeSet::new(),
        connects: 0,
        ends: 0,
        ended: 0,
        refused: None,
    };
}

impl Gate {
    fn locked(&self) -> MutexGuard<'_, Passed> {
        self.passed.lock().unwrap()
    }

    /// Changes the state, and notifies the threads that wait for it.
    fn change<T>(&self, change: impl FnOnce(&mut Passed) -> T) -> T {
        let changed = change(&mut self.locked());
        self.changed.notify_all();
        changed
    }

    /// Waits until the state is as wanted. Panics after the limit.
    #[track_caller]
    pub(super) fn wait_until(&self, is_wanted: impl Fn(&Passed) -> bool) {
        let waited = self.changed.wait_timeout_while(self.locked(), LIMIT, |it| !is_wanted(it));
        assert!(!waited.unwrap().1.timed_out(), "the call holds up this thread");
    }

    pub(super) fn close(&self) {
        self.change(|it| it.is_closed = true);
    }

    pub(super) fn open(&self) {
        self.change(|it| it.is_closed = false);
    }

    /// Fails the next request.
    pub(super) fn refuse(&self, errno: Errno) {
        self.change(|it| it.refused = Some(errno));
    }

    /// Returns how many connections were destroyed.
    pub(super) fn ended(&self) -> usize {
        self.locked().ended
    }
}

fn real() -> &'static Librdmacm {
    librdmacm().unwrap()
}

unsafe extern "C" fn create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    space: rdma_port_space,
) -> c_int {
    // SAFETY: the arguments are the caller's.
    let created = unsafe { (real().create_id)(channel, id, context, space) };
    // SAFETY: the call has written the ID, or left the caller's NULL.
    let id = unsafe { *id };
    GATE.change(|it| it.own.insert(id.addr()));
    created
}

unsafe extern "C" fn connect(id: *mut rdma_cm_id, parameters: *mut rdma_conn_param) -> c_int {
    let refused = GATE.change(|it| {
        it.connects += 1;
        it.own.remove(&id.addr());
        it.refused.take()
    });
    GATE.wait_until(|it| !it.is_closed);
    match refused {
        Some(errno) => -errno.raw(),
        // SAFETY: the arguments are the caller's.
        None => unsafe { (real().connect)(id, parameters) },
    }
}

unsafe extern "C" fn destroy_id(id: *mut rdma_cm_id) -> c_int {
    let is_of_connection = GATE.change(|it| !it.own.remove(&id.addr()));
    if is_of_connection {
        GATE.change(|it| it.ends += 1);
        GATE.wait_until(|it| !it.is_closed);
    }
    // SAFETY: the argument is the caller's.
    let destroyed = unsafe { (real().destroy_id)(id) };
    GATE.change(|it| it.ended += usize::from(is_of_connection));
    destroyed
}

/// Returns an engine whose calls pass the gate, as those of an iWARP device.
pub(super) fn engine(context: &Context) -> Arc<Engine> {
    static LIBRARY: OnceLock<Librdmacm> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        let mut library = *real();
        (library.create_id, library.connect, library.destroy_id) = (create_id, connect, destroy_id);
        library
    });
    let engine = Engine::open(context).unwrap();
    let requests = Some(Requests::open().unwrap());
    let managed = Managed::with(Channel::open_with(library).unwrap(), requests);
    for (file, key) in managed.files().zip(MADS) {
        engine.files.add(file, key).unwrap();
    }
    engine.locked().managed = Some(managed);
    engine
}
