//! Queries the attributes of devices.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // Like the rig.
#![allow(clippy::multiple_unsafe_ops_per_block)]

use std::ffi::{CStr, c_char};
use std::os::fd::BorrowedFd;
use std::ptr;

use rdma_sys::*;
use rdma_types::{Gid, Guid};

use super::{Context, Cq, Mr, Pd, Qp, errno, verbs};

/// An entry of the device list.
pub struct Listed {
    pub name: String,
    pub dev_name: String,
    pub dev_path: String,
    pub ibdev_path: String,
    pub guid: Guid,
    pub node_type: i32,
    pub transport: i32,
    pub index: i32,
}

fn string(chars: &[std::ffi::c_char]) -> String {
    unsafe { CStr::from_ptr(chars.as_ptr()) }.to_str().unwrap().to_owned()
}

/// Returns the entries of the device list, in the same order.
pub fn devices() -> Vec<Listed> {
    let mut count = -1;
    let mut listed = Vec::new();
    unsafe {
        let list = (verbs().get_device_list)(&raw mut count);
        while !(*list.add(listed.len())).is_null() {
            let device = *list.add(listed.len());
            let name = CStr::from_ptr((verbs().get_device_name)(device));
            listed.push(Listed {
                name: name.to_str().unwrap().to_owned(),
                dev_name: string(&(*device).dev_name),
                dev_path: string(&(*device).dev_path),
                ibdev_path: string(&(*device).ibdev_path),
                guid: Guid::from_bytes((verbs().get_device_guid)(device).to_ne_bytes()),
                node_type: (*device).node_type.0,
                transport: (*device).transport_type.0,
                index: verbs().get_device_index.unwrap()(device),
            });
        }
        (verbs().free_device_list)(list);
    }
    assert_eq!(usize::try_from(count).unwrap(), listed.len());
    listed
}

/// A device list that is freed when dropped.
pub struct List(*mut *mut ibv_device);

impl List {
    /// Requests the current device list.
    #[expect(clippy::new_without_default, reason = "it is requested")]
    pub fn new() -> Self {
        Self(unsafe { (verbs().get_device_list)(ptr::null_mut()) })
    }

    /// Opens the device with this name from the list.
    pub fn open(&self, name: &str) -> Result<Context, Errno> {
        for n in 0.. {
            let device = unsafe { *self.0.add(n) };
            if device.is_null() {
                break;
            }
            let found = unsafe { CStr::from_ptr((verbs().get_device_name)(device)) };
            if found.to_str() == Ok(name) {
                let context = unsafe { (verbs().open_device)(device) };
                return if context.is_null() { Err(errno()) } else { Ok(Context(context)) };
            }
        }
        panic!("no device named {name}");
    }
}

impl Drop for List {
    fn drop(&mut self) {
        unsafe { (verbs().free_device_list)(self.0) };
    }
}

/// A row of the GID table.
#[derive(Debug, PartialEq)]
pub struct Row {
    pub gid: Gid,
    pub index: u32,
    pub port: u32,
    pub kind: u32,
    pub interface: u32,
}

fn row(entry: &ibv_gid_entry) -> Row {
    Row {
        gid: unsafe { entry.gid.raw }.into(),
        index: entry.gid_index,
        port: entry.port_num,
        kind: entry.gid_type,
        interface: entry.ndev_ifindex,
    }
}

pub fn query_gid(context: &Context, port: u8, index: i32) -> Result<Gid, Errno> {
    let mut gid = ibv_gid::default();
    match unsafe { (verbs().query_gid)(context.0, port, index, &raw mut gid) } {
        0 => Ok(unsafe { gid.raw }.into()),
        -1 => Err(errno()),
        other => panic!("{other}"),
    }
}

pub fn query_gid_ex(context: &Context, port: u32, index: u32, flags: u32) -> Result<Row, Errno> {
    let mut entry = ibv_gid_entry::default();
    let (query, size) = (verbs().query_gid_ex.unwrap(), size_of::<ibv_gid_entry>());
    match unsafe { query(context.0, port, index, &raw mut entry, flags, size) } {
        0 => Ok(row(&entry)),
        refused => Err(Errno::from_raw(refused)),
    }
}

/// Calls both queries of GIDs as a program whose entries have `bytes` bytes would. Returns their
/// results, each 0 or an error number.
pub fn gid_queries_of_size(context: &Context, bytes: usize) -> [i32; 2] {
    let mut entries = [ibv_gid_entry::default(); 64];
    let place = entries.as_mut_ptr();
    let (one, all) = (verbs().query_gid_ex.unwrap(), verbs().query_gid_table.unwrap());
    let one = unsafe { one(context.0, 1, 0, place, 0, bytes) };
    let all = unsafe { all(context.0, place, 32, 0, bytes) };
    [one, i32::try_from(-all.min(0)).unwrap()]
}

pub fn gid_table(context: &Context, room: usize, flags: u32) -> Result<Vec<Row>, Errno> {
    let mut entries = vec![ibv_gid_entry::default(); room];
    let (query, size) = (verbs().query_gid_table.unwrap(), size_of::<ibv_gid_entry>());
    match unsafe { query(context.0, entries.as_mut_ptr(), room, flags, size) } {
        refused @ ..0 => Err(Errno::from_raw(i32::try_from(-refused).unwrap())),
        count => Ok(entries[..count.cast_unsigned()].iter().map(row).collect()),
    }
}

/// Returns the partition key at this index, in host order.
pub fn query_pkey(context: &Context, port: u8, index: i32) -> Result<u16, Errno> {
    let mut key = 0;
    match unsafe { (verbs().query_pkey)(context.0, port, index, &raw mut key) } {
        0 => Ok(u16::from_be(key)),
        -1 => Err(errno()),
        other => panic!("{other}"),
    }
}

impl Context {
    pub fn name(&self) -> &str {
        unsafe { CStr::from_ptr((verbs().get_device_name)((*self.0).device)) }.to_str().unwrap()
    }

    pub fn query_device(&self) -> ibv_device_attr {
        let mut attr = ibv_device_attr::default();
        assert_eq!(unsafe { (verbs().query_device)(self.0, &raw mut attr) }, 0);
        attr
    }

    pub fn query_device_ex(&self) -> ibv_device_attr_ex {
        let mut attr = ibv_device_attr_ex::default();
        let none = ptr::null();
        assert_eq!(unsafe { ibv_query_device_ex(verbs(), self.0, none, &raw mut attr) }, 0);
        attr
    }

    /// Returns the device's attributes, as filled in for a program whose struct has `size` bytes.
    /// If the query is refused, returns the error number.
    pub fn query_device_ex_bytes(&self, asks: u32, size: usize) -> Result<Vec<u8>, i32> {
        let mut room = [u64::from_ne_bytes([0xee; 8]); 64];
        let query = unsafe { (*self.extended()).query_device_ex }.unwrap();
        let input = ibv_query_device_ex_input { comp_mask: asks };
        match unsafe { query(self.0, &raw const input, room.as_mut_ptr().cast(), size) } {
            0 => Ok(marked(&room, size)),
            errno => Err(errno),
        }
    }

    pub fn query_port(&self) -> ibv_port_attr {
        let mut attr = ibv_port_attr::default();
        assert_eq!(unsafe { ibv_query_port(verbs(), self.0, 1, &raw mut attr) }, 0);
        attr
    }

    pub fn try_query_port(&self, port: u8) -> i32 {
        let mut attr = ibv_port_attr::default();
        unsafe { ibv_query_port(verbs(), self.0, port, &raw mut attr) }
    }

    fn extended(&self) -> *mut verbs_context {
        let offset = std::mem::offset_of!(verbs_context, context);
        unsafe { self.0.byte_sub(offset).cast() }
    }

    /// Returns the port's attributes, as filled in for a program whose struct has `length` bytes.
    pub fn query_port_bytes(&self, length: usize) -> Vec<u8> {
        // The buffer is aligned like the struct, and marked so that writes beyond `length` bytes
        // are detected.
        let mut room = [u64::from_ne_bytes([0xee; 8]); 16];
        let query = unsafe { (*self.extended()).query_port }.unwrap();
        assert_eq!(unsafe { query(self.0, 1, room.as_mut_ptr().cast(), length) }, 0);
        marked(&room, length)
    }

    /// Like [`query_port_bytes`](Self::query_port_bytes), but calls the function of the header's
    /// first version, as programs built with it do.
    pub fn query_port_compat(&self) -> Vec<u8> {
        let mut room = [u64::from_ne_bytes([0xee; 8]); 16];
        let old = room.as_mut_ptr().cast();
        assert_eq!(unsafe { (verbs().query_port)(self.0, 1, old) }, 0);
        marked(&room, 48)
    }

    /// Returns the index of a partition key, which is given in host order.
    pub fn pkey_index(&self, key: u16) -> Result<i32, Errno> {
        match unsafe { verbs().get_pkey_index.unwrap()(self.0, 1, key.to_be()) } {
            -1 => Err(errno()),
            index => Ok(index),
        }
    }

    /// Returns true if programs will find a `verbs_context` around this context, and it is at least
    /// as large as in the bindings.
    pub fn is_extended(&self) -> bool {
        let mark = unsafe { (*self.0).abi_compat };
        let size = unsafe { (*self.extended()).sz };
        ptr::eq(mark, ptr::without_provenance(usize::MAX)) && size >= size_of::<verbs_context>()
    }

    /// Returns true if the context has every function that `verbs.h` calls without checking for it.
    pub fn has_unchecked_functions(&self) -> bool {
        let ops = unsafe { &(*self.0).ops };
        ops.poll_cq.is_some()
            && ops.req_notify_cq.is_some()
            && ops.post_send.is_some()
            && ops.post_recv.is_some()
            && ops.post_srq_recv.is_some()
            && ops.bind_mw.is_some()
            && ops.dealloc_mw.is_some()
    }

    pub fn async_fd(&self) -> i32 {
        unsafe { (*self.0).async_fd }
    }

    pub fn command_fd(&self) -> i32 {
        unsafe { (*self.0).cmd_fd }
    }

    /// Returns the file that `cmd_fd` refers to.
    pub fn command_file(&self) -> BorrowedFd<'_> {
        unsafe { BorrowedFd::borrow_raw(self.command_fd()) }
    }

    pub fn completion_vectors(&self) -> i32 {
        unsafe { (*self.0).num_comp_vectors }
    }
}

fn text(text: *const c_char) -> &'static str {
    unsafe { CStr::from_ptr(text) }.to_str().unwrap()
}

pub fn status_text(status: u32) -> &'static str {
    text(unsafe { (verbs().wc_status_str)(ibv_wc_status(status)) })
}

pub fn event_text(event: u32) -> &'static str {
    text(unsafe { (verbs().event_type_str)(ibv_event_type(event)) })
}

pub fn node_text(node: i32) -> &'static str {
    text(unsafe { (verbs().node_type_str)(ibv_node_type(node)) })
}

pub fn port_state_text(state: u32) -> &'static str {
    text(unsafe { (verbs().port_state_str)(ibv_port_state(state)) })
}

impl Pd {
    /// Returns the context that the struct points to.
    pub fn context(&self) -> *mut ibv_context {
        unsafe { (*self.0).context }
    }
}

impl Mr {
    /// Returns the context and the protection domain that the struct points to.
    pub fn parents(&self) -> (*mut ibv_context, *mut ibv_pd) {
        unsafe { ((*self.mr).context, (*self.mr).pd) }
    }
}

impl Qp {
    /// Returns the context, the protection domain, the send completion queue and the receive
    /// completion queue that the struct points to.
    pub fn parents(&self) -> (*mut ibv_context, *mut ibv_pd, *mut ibv_cq, *mut ibv_cq) {
        let qp = unsafe { &*self.0 };
        (qp.context, qp.pd, qp.send_cq, qp.recv_cq)
    }

    /// Returns the pointer that the program stored in the queue pair.
    pub fn tag(&self) -> usize {
        unsafe { (*self.0).qp_context }.addr()
    }
}

impl Cq {
    /// Returns the context that the struct points to.
    pub fn context(&self) -> *mut ibv_context {
        unsafe { (*self.0).context }
    }

    /// Returns the pointer that the program stored in the completion queue.
    pub fn tag(&self) -> usize {
        unsafe { (*self.0).cq_context }.addr()
    }

    pub fn try_resize(&self, entries: i32) -> i32 {
        unsafe { (verbs().resize_cq)(self.0, entries) }
    }

    pub fn entries(&self) -> i32 {
        unsafe { (*self.0).cqe }
    }
}

impl Mr {
    /// Requests a change of the region's access. Returns 0 or an error number.
    pub fn try_reregister(&self) -> i32 {
        let none = ptr::null_mut();
        unsafe { (verbs().rereg_mr)(self.mr, 4, ptr::null_mut(), none, 0, 0) }
    }
}

/// Returns the first `length` bytes. Checks that the bytes after them still have their mark.
fn marked(room: &[u64], length: usize) -> Vec<u8> {
    let bytes: Vec<u8> = room.iter().flat_map(|word| word.to_ne_bytes()).collect();
    assert!(bytes[length..].iter().all(|&byte| byte == 0xee), "written after {length} bytes");
    bytes[..length].to_vec()
}
