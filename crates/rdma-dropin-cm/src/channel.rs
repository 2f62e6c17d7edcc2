//! Event channels: `struct rdma_event_channel`, and the events that wait in it.
//!
//! The file of a channel is an eventfd. It is readable while events wait, so a program can poll it.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::{mem, ptr};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::{Errno, read, write};

use crate::abi::EventChannel;
use crate::devices::{self, locked};
use crate::errors::fail;
use crate::event::{Content, Waiting};
use crate::id::{self, Id};
use crate::semaphore::Semaphore;

/// The channels that were destroyed last, without their files. A thread of the program may be about to wait in one.
static DESTROYED: Mutex<VecDeque<Arc<Channel>>> = Mutex::new(VecDeque::new());

/// The maximum number of destroyed channels.
const MOST_DESTROYED: usize = 8;

/// A channel. The program has a pointer to its beginning.
#[repr(C)]
pub(crate) struct Channel {
    shown: EventChannel,
    file: Mutex<Option<OwnedFd>>,
    queue: Mutex<VecDeque<Waiting>>,
    /// The number of calls that wait for an event. A call whose thread was cancelled counts, too.
    waits: AtomicU32,
    /// Wakes these calls.
    wakes: Semaphore,
}

impl Channel {
    /// Opens a channel, or returns the error number.
    pub(crate) fn open() -> Result<Arc<Self>, c_int> {
        let file = eventfd(0, EventfdFlags::CLOEXEC).map_err(Errno::raw_os_error)?;
        let shown = EventChannel { fd: file.as_raw_fd() };
        Ok(Arc::new(Self {
            shown,
            file: Mutex::new(Some(file)),
            queue: Mutex::default(),
            waits: AtomicU32::new(0),
            wakes: Semaphore::new(),
        }))
    }

    /// Returns the program's pointer.
    pub(crate) fn as_raw(self: &Arc<Self>) -> *mut EventChannel {
        Arc::as_ptr(self).cast_mut().cast()
    }

    /// Returns the channel to which the program's pointer points.
    ///
    /// # Safety
    /// The pointer is that of a live channel.
    pub(crate) unsafe fn of(raw: *mut EventChannel) -> Arc<Self> {
        let raw = raw.cast_const().cast::<Self>();
        // SAFETY: `shown` is the first field, so the pointer is that of the `Arc` (SAFETY.md F1, F5).
        unsafe { Arc::increment_strong_count(raw) };
        // SAFETY: the reference was counted above.
        unsafe { Arc::from_raw(raw) }
    }

    /// Closes the file, unless a call waits for an event. As with the kernel's rdma_cm, such a call then waits until the
    /// process ends. rping destroys its channel while another thread waits in it, or is about to do so.
    pub(crate) fn close(self: Arc<Self>) {
        if self.waits.load(Ordering::Acquire) > 0 {
            // The call has a reference that is not counted.
            let _ = Arc::into_raw(self);
            return;
        }
        drop(locked(&self.file).take());
        let events = mem::take(&mut *locked(&self.queue));
        let oldest = {
            let mut destroyed = locked(&DESTROYED);
            destroyed.push_back(self);
            if destroyed.len() > MOST_DESTROYED { destroyed.pop_front() } else { None }
        };
        // The events have IDs, which are dropped without a lock.
        drop((events, oldest));
    }

    /// Adds an event.
    pub(crate) fn add(&self, event: Waiting) {
        let mut queue = locked(&self.queue);
        queue.push_back(event);
        // A call that does not count yet finds the event.
        self.wakes.post_up_to(self.waits.load(Ordering::Acquire));
        if queue.len() > 1 {
            return;
        }
        if let Some(file) = &*locked(&self.file) {
            let _ = write(file, &1_u64.to_ne_bytes());
        }
    }

    /// Removes the next event, and notes that its ID has reported it.
    fn take(&self) -> Option<Waiting> {
        let mut queue = locked(&self.queue);
        let event = queue.pop_front()?;
        event.id.reported.fetch_add(1, Ordering::Release);
        self.clear(&queue);
        Some(event)
    }

    /// Makes the file unreadable if no event waits. Does not block, because the file is readable while the lock of a
    /// queue with events is held.
    fn clear(&self, queue: &VecDeque<Waiting>) {
        if !queue.is_empty() {
            return;
        }
        if let Some(file) = &*locked(&self.file) {
            let _ = read(file, &mut [0_u8; 8]);
        }
    }

    /// Returns the next event, or the error number. Waits for it unless the program made the file non-blocking.
    pub(crate) fn next(&self) -> Result<Waiting, c_int> {
        self.waits.fetch_add(1, Ordering::AcqRel);
        let next = self.wait();
        self.waits.fetch_sub(1, Ordering::AcqRel);
        next
    }

    fn wait(&self) -> Result<Waiting, c_int> {
        loop {
            if let Some(event) = self.take() {
                return Ok(event);
            }
            // Without a file, the channel was destroyed.
            let flags = locked(&self.file).as_ref().map(fcntl_getfl).transpose();
            let flags = flags.map_err(Errno::raw_os_error)?;
            if flags.is_some_and(|flags| flags.contains(OFlags::NONBLOCK)) {
                return Err(libc::EAGAIN);
            }
            self.wakes.wait()?;
        }
    }

    /// Removes the request of a new connection.
    fn remove_request(&self, new: &Id) -> Option<Waiting> {
        let is_request =
            |event: &Waiting| event.new.as_ref().is_some_and(|it| ptr::eq(Arc::as_ptr(it), new));
        let mut queue = locked(&self.queue);
        let at = queue.iter().position(is_request)?;
        let removed = queue.remove(at);
        self.clear(&queue);
        removed
    }

    /// Removes the event of a membership that has ended.
    fn remove_group(&self, left: u64) {
        let mut queue = locked(&self.queue);
        let had_events = !queue.is_empty();
        let is_of =
            |content: &Content| matches!(content, Content::Group { number, .. } if *number == left);
        queue.retain(|event| !is_of(&event.content));
        if had_events {
            self.clear(&queue);
        }
    }

    /// Removes the events of an ID.
    fn remove(&self, id: &Id) -> VecDeque<Waiting> {
        let mut queue = locked(&self.queue);
        let had_events = !queue.is_empty();
        let (removed, kept) =
            queue.drain(..).partition(|event| ptr::eq(Arc::as_ptr(&event.id), id));
        *queue = kept;
        if had_events {
            self.clear(&queue);
        }
        removed
    }
}

/// Removes the events of an ID that ends. Requests for connections that the program has not received end too.
pub(crate) fn forget(id: &Id) {
    let channel = Arc::clone(&id.state().channel);
    for event in channel.remove(id) {
        if let Some(new) = event.new {
            id::end(&new);
        }
    }
}

/// Removes the event of an ID's membership that has ended.
pub(crate) fn forget_group(id: &Id, left: u64) {
    id.state().channel.remove_group(left);
}

/// Removes the request of a new connection. Returns true if the program had not received it.
pub(crate) fn withdraw(new: &Id) -> bool {
    let Some(listener) = new.state().listener.clone() else { return false };
    // The lock keeps the request in this channel.
    let state = listener.state();
    let removed = state.channel.remove_request(new);
    drop(state);
    removed.is_some()
}

/// Moves the events of an ID to its new channel.
pub(crate) fn migrate(id: &Id, to: &Arc<Channel>) -> Arc<Channel> {
    // Later events wait for the lock, and follow the moved ones.
    let mut state = id.state();
    let from = std::mem::replace(&mut state.channel, Arc::clone(to));
    for event in from.remove(id) {
        to.add(event);
    }
    from
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_event_channel() -> *mut EventChannel {
    match devices::check().and_then(|()| Channel::open()) {
        Ok(channel) => Arc::into_raw(channel).cast_mut().cast(),
        Err(number) => {
            fail(number);
            ptr::null_mut()
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut EventChannel) {
    if channel.is_null() {
        return;
    }
    // SAFETY: the caller passes a live channel, which it does not use again. The channel has the count of its creation
    // (SAFETY.md F1).
    let channel = unsafe { Arc::from_raw(channel.cast_const().cast::<Channel>()) };
    channel.close();
}
