//! The shared object with the quiet device and the loops in C.
#![allow(unsafe_code)]

use std::mem::{offset_of, size_of};
use std::path::Path;

use libloading::{Library, Symbol};
use rdma_mem::ProtectionDomain;
use rdma_qp::QueuePairCapabilities;
use rdma_sys::{
    ibv_context, ibv_context_ops, ibv_cq, ibv_pd, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc,
};

use crate::loops::{PLACES, Rig};

/// `struct end` of `loops.c`.
#[repr(C)]
pub(crate) struct End {
    qp: *mut ibv_qp,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    region: Region,
    remote: Remote,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_inline_data: u32,
    elements: [ibv_sge; PLACES],
}

#[repr(C)]
struct Region {
    address: u64,
    length: u64,
    lkey: u32,
    pd: *mut ibv_pd,
}

#[repr(C)]
struct Remote {
    address: u64,
    length: u64,
    rkey: u32,
}

/// What was called, as `struct quiet_device_calls` has it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Calls {
    pub(crate) post_send: u64,
    pub(crate) post_recv: u64,
    pub(crate) poll_cq: u64,
    pub(crate) requests: u64,
    pub(crate) completions: u64,
}

type Loop = unsafe extern "C" fn(*mut End, u64) -> u64;

/// As `quiet_device_layout` has it.
const LAYOUT: [usize; 14] = [
    offset_of!(ibv_context, ops) + offset_of!(ibv_context_ops, poll_cq),
    offset_of!(ibv_context, ops) + offset_of!(ibv_context_ops, post_send),
    offset_of!(ibv_context, ops) + offset_of!(ibv_context_ops, post_recv),
    offset_of!(ibv_qp, recv_cq),
    offset_of!(ibv_qp, qp_num),
    size_of::<ibv_send_wr>(),
    offset_of!(ibv_send_wr, send_flags),
    offset_of!(ibv_send_wr, wr),
    size_of::<ibv_recv_wr>(),
    offset_of!(ibv_recv_wr, num_sge),
    size_of::<ibv_wc>(),
    offset_of!(ibv_wc, byte_len),
    offset_of!(ibv_wc, qp_num),
    offset_of!(ibv_wc, wc_flags),
];

pub(crate) struct CObject(Library);

impl CObject {
    pub(crate) fn load(object: &Path) -> Self {
        let library = unsafe { Library::new(object) }.expect("what gcc made can be loaded");
        let layout = unsafe { library.get::<*const [usize; 14]>(b"quiet_device_layout") };
        let layout = unsafe { **layout.expect("it is there") };
        assert_eq!(layout, LAYOUT, "verbs.h of the quiet device is not what rdma-sys has");
        Self(library)
    }

    fn symbol<T>(&self, name: &str) -> Symbol<'_, T> {
        unsafe { self.0.get(name.as_bytes()) }.expect("it is in the object")
    }

    /// From now on, what is posted to queue pairs of this context goes to the quiet device.
    pub(crate) fn attach(&self, qp: *mut ibv_qp) {
        let attach = self.symbol::<unsafe extern "C" fn(*mut ibv_qp)>("quiet_device_attach");
        unsafe { attach(qp) };
    }

    pub(crate) fn calls(&self) -> Calls {
        let calls = self.symbol::<unsafe extern "C" fn() -> Calls>("quiet_device_calls");
        unsafe { calls() }
    }

    pub(crate) fn run(&self, name: &str, end: &mut End, n: u64) -> u64 {
        let function = self.symbol::<Loop>(name);
        unsafe { function(end, n) }
    }
}

impl End {
    pub(crate) fn of(rig: &Rig<'_>, pd: &ProtectionDomain) -> Self {
        let (qp, slice, remote) = (rig.qp, rig.source.as_slice(), rig.remote);
        let QueuePairCapabilities { max_send_sge, max_recv_sge, max_inline_data, .. } =
            qp.capabilities();
        Self {
            qp: qp.as_raw(),
            send_cq: rig.send_cq.as_raw(),
            recv_cq: rig.recv_cq.as_raw(),
            region: Region {
                address: slice.gather_element().as_raw().addr,
                length: slice.len() as u64,
                lkey: rig.source.lkey().get(),
                pd: pd.as_raw(),
            },
            remote: Remote {
                address: remote.address(),
                length: remote.length() as u64,
                rkey: remote.rkey().get(),
            },
            max_send_sge,
            max_recv_sge,
            max_inline_data,
            elements: rig.gather.map(|[element]| *element.as_raw()),
        }
    }
}
