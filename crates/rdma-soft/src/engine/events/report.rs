//! Asynchronous events, with which an object reports to its context what happens outside of calls.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use rdma_types::AsyncEventKind;

use crate::engine::events::EventQueue;
use crate::sync::locked;

/// The name by which the program knows an object: the pointer to its C struct. It is never dereferenced here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handle(pub(crate) *mut c_void);

// SAFETY: the pointer is only a name here. Code that converts it back to an object proves that this is sound
// (SAFETY.md F11).
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// The object that an event concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
    CompletionQueue(Handle),
    QueuePair(Handle),
    SharedReceiveQueue(Handle),
    Port(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AsyncEvent {
    pub(crate) kind: AsyncEventKind,
    pub(crate) element: Element,
}

/// The maximum number of kinds of events that one object reports. A queue pair reports the most, if it is reset between
/// its events.
const KINDS: usize = 6;

/// Reports the events of one object to the context that the object was created from.
#[derive(Debug)]
pub(crate) struct Reporter {
    /// `None` if there is no context to report to.
    context: Option<Arc<EventQueue<AsyncEvent>>>,
    /// Set while the program knows the object. The lock is held while an event is sent, so that no event is sent for a
    /// destroyed object.
    handle: Mutex<Option<Handle>>,
    element: fn(Handle) -> Element,
}

impl Reporter {
    pub(crate) fn new(
        context: Arc<EventQueue<AsyncEvent>>,
        element: fn(Handle) -> Element,
    ) -> Self {
        context.join(KINDS);
        Self { context: Some(context), handle: Mutex::default(), element }
    }

    /// Returns a reporter that discards its events.
    pub(crate) fn silent() -> Self {
        Self { context: None, handle: Mutex::default(), element: Element::QueuePair }
    }

    pub(crate) fn name(&self, handle: Handle) {
        *locked(&self.handle) = Some(handle);
    }

    pub(crate) fn report(&self, kind: AsyncEventKind) {
        if let (Some(context), Some(handle)) = (&self.context, *locked(&self.handle)) {
            context.push_new(AsyncEvent { kind, element: (self.element)(handle) });
        }
    }

    /// Removes the events that were not taken yet, and sends no others, because the object is being destroyed.
    pub(crate) fn withdraw(&self) {
        let handle = locked(&self.handle).take();
        if let (Some(context), Some(handle)) = (&self.context, handle) {
            let element = (self.element)(handle);
            context.discard(|event| event.element == element);
        }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        if let Some(context) = &self.context {
            context.leave(KINDS);
        }
    }
}
