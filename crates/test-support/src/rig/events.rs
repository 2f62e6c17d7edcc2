//! Completion channels and asynchronous events.

use std::ptr;

use rdma_sys::*;

use super::{Context, Cq, Qp, errno, verbs};

/// A completion channel. Reading it blocks until there is an event, unless it was set to
/// non-blocking.
pub struct Channel(*mut ibv_comp_channel);

unsafe impl Send for Channel {}
unsafe impl Sync for Channel {}

impl Drop for Channel {
    fn drop(&mut self) {
        assert_eq!(self.try_destroy(), 0);
    }
}

/// Returns true if reading the file would not block.
fn readable(fd: i32) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

fn set_non_blocking(fd: i32, on: bool) {
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL) & !libc::O_NONBLOCK;
        let flags = if on { flags | libc::O_NONBLOCK } else { flags };
        assert_eq!(libc::fcntl(fd, libc::F_SETFL, flags), 0);
    }
}

impl Channel {
    pub fn as_raw(&self) -> *mut ibv_comp_channel {
        self.0
    }

    pub fn fd(&self) -> i32 {
        unsafe { (*self.0).fd }
    }

    pub fn is_readable(&self) -> bool {
        readable(self.fd())
    }

    pub fn set_non_blocking(&self, on: bool) {
        set_non_blocking(self.fd(), on);
    }

    /// Reads the next event. Returns its completion queue.
    pub fn get(&self) -> Result<*mut ibv_cq, Errno> {
        self.get_tagged().map(|(cq, _)| cq)
    }

    /// Reads the next event. Returns its completion queue, and the pointer that the program stored
    /// in that queue.
    pub fn get_tagged(&self) -> Result<(*mut ibv_cq, usize), Errno> {
        let (mut cq, mut tag) = (ptr::null_mut(), ptr::null_mut());
        match unsafe { (verbs().get_cq_event)(self.0, &raw mut cq, &raw mut tag) } {
            0 => Ok((cq, tag.addr())),
            _ => Err(errno()),
        }
    }

    pub fn try_destroy(&self) -> i32 {
        unsafe { (verbs().destroy_comp_channel)(self.0) }
    }
}

/// A reference to a completion queue that another thread may destroy.
#[derive(Clone, Copy)]
pub struct CqName(*mut ibv_cq);

unsafe impl Send for CqName {}

impl CqName {
    pub fn acknowledge(self, events: u32) {
        unsafe { (verbs().ack_cq_events)(self.0, events) }
    }
}

impl Cq {
    pub fn name(&self) -> CqName {
        CqName(self.0)
    }

    pub fn request_event(&self, solicited_only: bool) {
        assert_eq!(unsafe { ibv_req_notify_cq(self.0, solicited_only.into()) }, 0);
    }

    /// Requests event moderation. Returns 0 or an error number.
    pub fn moderate(&self, count: u16, period_us: u16) -> i32 {
        let mut attr = ibv_modify_cq_attr::default();
        attr.attr_mask = ibv_cq_attr_mask::IBV_CQ_ATTR_MODERATE.0;
        attr.moderate = ibv_moderate_cq { cq_count: count, cq_period: period_us };
        unsafe { ibv_modify_cq(self.0, &raw mut attr) }
    }

    pub fn acknowledge(&self, events: u32) {
        self.name().acknowledge(events);
    }
}

/// A reference to a queue pair that another thread may destroy.
#[derive(Clone, Copy)]
pub struct QpName(*mut ibv_qp);

unsafe impl Send for QpName {}

impl QpName {
    pub fn acknowledge(self, event_type: ibv_event_type) {
        let element = ibv_async_event__bindgen_ty_1 { qp: self.0 };
        let mut event = ibv_async_event { element, event_type };
        unsafe { (verbs().ack_async_event)(&raw mut event) }
    }
}

impl Qp {
    pub fn name(&self) -> QpName {
        QpName(self.0)
    }
}

impl Context {
    pub fn channel(&self) -> Channel {
        self.try_channel().unwrap()
    }

    pub fn try_channel(&self) -> Result<Channel, Errno> {
        let channel = unsafe { (verbs().create_comp_channel)(self.0) };
        if channel.is_null() { Err(errno()) } else { Ok(Channel(channel)) }
    }

    pub fn cq_with(&self, channel: &Channel, capacity: i32) -> Cq {
        self.cq_tagged(channel, capacity, 0)
    }

    /// Creates a completion queue with a pointer of the program.
    pub fn cq_tagged(&self, channel: &Channel, capacity: i32, tag: usize) -> Cq {
        let tag = ptr::without_provenance_mut(tag);
        let cq = unsafe { (verbs().create_cq)(self.0, capacity, tag, channel.0, 0) };
        assert!(!cq.is_null(), "{}", errno());
        Cq(cq)
    }

    /// Reads and acknowledges all pending asynchronous events. Returns the type and the object of
    /// each.
    pub fn async_events(&self) -> Vec<(ibv_event_type, usize)> {
        self.take_async_events(true)
    }

    pub fn has_async_events(&self) -> bool {
        readable(self.async_fd())
    }

    pub fn set_async_non_blocking(&self, on: bool) {
        set_non_blocking(self.async_fd(), on);
    }

    /// Reads and acknowledges the next asynchronous event. Returns its type and its object.
    pub fn try_async_event(&self) -> Result<(ibv_event_type, usize), Errno> {
        self.take_async_event(true)
    }

    fn take_async_event(&self, acknowledge: bool) -> Result<(ibv_event_type, usize), Errno> {
        let mut event: ibv_async_event = unsafe { std::mem::zeroed() };
        if unsafe { (verbs().get_async_event)(self.0, &raw mut event) } != 0 {
            return Err(errno());
        }
        if acknowledge {
            unsafe { (verbs().ack_async_event)(&raw mut event) };
        }
        Ok((event.event_type, unsafe { event.element.qp.addr() }))
    }

    pub fn take_async_events(&self, acknowledge: bool) -> Vec<(ibv_event_type, usize)> {
        set_non_blocking(self.async_fd(), true);
        let mut found = Vec::new();
        while readable(self.async_fd()) {
            found.push(self.take_async_event(acknowledge).unwrap());
        }
        found
    }
}
