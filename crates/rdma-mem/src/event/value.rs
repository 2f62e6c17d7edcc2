//! Asynchronous events as values.
#![allow(unsafe_code)]

use rdma_sys::ibv_async_event;
use rdma_types::{AsyncEventKind, Qpn};

use crate::object::id::ObjectId;

/// An asynchronous event of a device, a port or an object.
///
/// It is a plain value: the provider's event is already acknowledged, so destroying the object does
/// not wait for it.
#[doc(alias = "ibv_async_event")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct AsyncEvent {
    /// The kind of the event.
    pub kind: AsyncEventKind,
    /// The object that the event is about.
    pub source: AsyncEventSource,
}

/// The object that an asynchronous event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncEventSource {
    /// The device as a whole.
    Device,
    /// A port, with its number.
    Port(u8),
    /// A queue pair.
    QueuePair {
        /// The queue pair's number. A later queue pair may get the same number.
        qpn: Qpn,
        /// The queue pair's id.
        id: ObjectId,
    },
    /// A completion queue, with its id.
    CompletionQueue(ObjectId),
    /// A shared receive queue, with its id.
    SharedReceiveQueue(ObjectId),
    /// Any other object. The event's kind is unknown, or is `WQ_FATAL`, or the number of its port
    /// is invalid.
    Unknown,
}

impl AsyncEvent {
    /// Copies the contents of an event.
    ///
    /// # Safety
    /// `ibv_get_async_event` filled in the event. The event is not acknowledged yet, so its object
    /// is still alive.
    pub(crate) unsafe fn from_raw(raw: &ibv_async_event) -> Self {
        let kind = AsyncEventKind::from_raw(raw.event_type.0);
        // SAFETY: the caller upholds the same contract.
        let source = unsafe { source(kind, raw) };
        Self { kind, source }
    }
}

/// # Safety
/// The contract of [`AsyncEvent::from_raw`] applies.
unsafe fn source(kind: AsyncEventKind, raw: &ibv_async_event) -> AsyncEventSource {
    match kind {
        AsyncEventKind::CQ_ERR => {
            // SAFETY: SAFETY.md F1: the element of this kind of event is a completion queue.
            let cq = unsafe { raw.element.cq };
            // SAFETY: SAFETY.md F1: the queue is live until the event is acknowledged.
            let context = unsafe { (*cq).cq_context };
            AsyncEventSource::CompletionQueue(ObjectId::from_context(context))
        }
        AsyncEventKind::SRQ_ERR | AsyncEventKind::SRQ_LIMIT_REACHED => {
            // SAFETY: SAFETY.md F1: the element of these kinds of event is a shared receive queue.
            let srq = unsafe { raw.element.srq };
            // SAFETY: SAFETY.md F1: the queue is live until the event is acknowledged.
            let context = unsafe { (*srq).srq_context };
            AsyncEventSource::SharedReceiveQueue(ObjectId::from_context(context))
        }
        AsyncEventKind::QP_FATAL
        | AsyncEventKind::QP_REQ_ERR
        | AsyncEventKind::QP_ACCESS_ERR
        | AsyncEventKind::COMM_EST
        | AsyncEventKind::SQ_DRAINED
        | AsyncEventKind::PATH_MIG
        | AsyncEventKind::PATH_MIG_ERR
        | AsyncEventKind::QP_LAST_WQE_REACHED => {
            // SAFETY: SAFETY.md F1: the element of these kinds of event is a queue pair.
            let qp = unsafe { raw.element.qp };
            // SAFETY: SAFETY.md F1: the queue pair is live until the event is acknowledged.
            let qpn = Qpn::masked(unsafe { (*qp).qp_num });
            // SAFETY: SAFETY.md F1: the queue pair is live until the event is acknowledged.
            let id = ObjectId::from_context(unsafe { (*qp).qp_context });
            AsyncEventSource::QueuePair { qpn, id }
        }
        AsyncEventKind::PORT_ACTIVE
        | AsyncEventKind::PORT_ERR
        | AsyncEventKind::LID_CHANGE
        | AsyncEventKind::PKEY_CHANGE
        | AsyncEventKind::SM_CHANGE
        | AsyncEventKind::CLIENT_REREGISTER
        | AsyncEventKind::GID_CHANGE => {
            // SAFETY: SAFETY.md F1: the element of these kinds of event is a port number.
            let port = unsafe { raw.element.port_num };
            u8::try_from(port).map_or(AsyncEventSource::Unknown, AsyncEventSource::Port)
        }
        AsyncEventKind::DEVICE_FATAL => AsyncEventSource::Device,
        // For an unknown kind, no union member may be read. The work queue of `WQ_FATAL` has no
        // variant.
        _ => AsyncEventSource::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use rdma_sys::{
        ibv_async_event__bindgen_ty_1 as Element, ibv_cq, ibv_event_type, ibv_qp, ibv_srq,
    };

    use super::*;

    fn of(kind: AsyncEventKind, element: Element) -> AsyncEventSource {
        let raw = ibv_async_event { element, event_type: ibv_event_type(kind.raw()) };
        // SAFETY: SAFETY.md F1: the tests pass an element that is live and matches the event's
        // kind.
        let event = unsafe { AsyncEvent::from_raw(&raw) };
        assert_eq!(event.kind, kind);
        event.source
    }

    #[test]
    fn objects_are_named_by_what_outlives_them() {
        let id = ObjectId::unique();
        let mut cq = ibv_cq { cq_context: id.to_context(), ..Default::default() };
        let element = Element { cq: &raw mut cq };
        assert_eq!(of(AsyncEventKind::CQ_ERR, element), AsyncEventSource::CompletionQueue(id));
        let mut srq = ibv_srq { srq_context: id.to_context(), ..Default::default() };
        let element = Element { srq: &raw mut srq };
        let limit = of(AsyncEventKind::SRQ_LIMIT_REACHED, element);
        assert_eq!(limit, AsyncEventSource::SharedReceiveQueue(id));
        let context = id.to_context();
        let mut qp = ibv_qp { qp_num: 0x12_3456, qp_context: context, ..Default::default() };
        let element = Element { qp: &raw mut qp };
        for kind in [1, 2, 3, 4, 5, 6, 7, 16] {
            let source = of(AsyncEventKind::from_raw(kind), element);
            let qpn = Qpn::masked(0x12_3456);
            assert_eq!(source, AsyncEventSource::QueuePair { qpn, id });
        }
    }

    #[test]
    fn ports_are_numbers() {
        for kind in [9, 10, 11, 12, 13, 17, 18] {
            let kind = AsyncEventKind::from_raw(kind);
            assert_eq!(of(kind, Element { port_num: 2 }), AsyncEventSource::Port(2));
            assert_eq!(of(kind, Element { port_num: -1 }), AsyncEventSource::Unknown);
        }
    }

    #[test]
    fn the_object_of_an_unknown_kind_is_not_read() {
        let dangling = Element { cq: std::ptr::without_provenance_mut(8) };
        for kind in [19, 20, 99, u32::MAX] {
            assert_eq!(of(AsyncEventKind::from_raw(kind), dangling), AsyncEventSource::Unknown);
        }
        assert_eq!(of(AsyncEventKind::DEVICE_FATAL, dangling), AsyncEventSource::Device);
    }
}
