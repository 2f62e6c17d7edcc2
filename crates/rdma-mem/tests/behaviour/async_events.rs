//! Asynchronous events, from a provider that reports those that the test requests.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rdma_mem::{AsyncEventKind, AsyncEventSource, Context, DeviceList, Errno, Error, open_device};
use rdma_sys::{
    Verbs, ibv_async_event, ibv_async_event__bindgen_ty_1, ibv_context, ibv_event_type,
};

/// The next results of the provider.
static NEXT: Mutex<Vec<Result<u32, Errno>>> = Mutex::new(Vec::new());
static ACKNOWLEDGED: Mutex<Vec<u32>> = Mutex::new(Vec::new());

unsafe extern "C" fn get(_context: *mut ibv_context, out: *mut ibv_async_event) -> c_int {
    match NEXT.lock().unwrap().pop() {
        Some(Ok(kind)) => {
            let element = ibv_async_event__bindgen_ty_1 { port_num: 1 };
            let event = ibv_async_event { element, event_type: ibv_event_type(kind) };
            // SAFETY: SAFETY.md F1: the caller's memory for the event.
            unsafe { out.write(event) };
            0
        }
        other => {
            other.map_or(Errno::EAGAIN, Result::unwrap_err).set();
            -1
        }
    }
}

unsafe extern "C" fn acknowledge(event: *mut ibv_async_event) {
    // SAFETY: SAFETY.md F1: an event that `get` filled.
    ACKNOWLEDGED.lock().unwrap().push(unsafe { (*event).event_type }.0);
}

fn open() -> Context {
    static TABLE: OnceLock<Verbs> = OnceLock::new();
    rdma_soft::install();
    let verbs = TABLE.get_or_init(|| {
        let mut verbs = *rdma_soft::verbs();
        verbs.get_async_event = get;
        verbs.ack_async_event = acknowledge;
        verbs
    });
    // SAFETY: SAFETY.md F2: the functions are the software device's, and two that touch no object.
    let list = unsafe { DeviceList::of(verbs) };
    list.iter().next().unwrap().open().unwrap()
}

#[test]
fn every_event_is_acknowledged_before_it_is_returned_and_unknown_ones_are_data() {
    let events = open().async_events().unwrap();
    let kinds = [AsyncEventKind::PORT_ERR.raw(), 20, AsyncEventKind::DEVICE_FATAL.raw(), u32::MAX];
    let sources = [
        AsyncEventSource::Port(1),
        AsyncEventSource::Unknown,
        AsyncEventSource::Device,
        AsyncEventSource::Unknown,
    ];
    *NEXT.lock().unwrap() = kinds.into_iter().rev().map(Ok).collect();
    for (n, (kind, source)) in kinds.into_iter().zip(sources).enumerate() {
        let event = match n {
            0 => events.get_event().unwrap(),
            1 => events.try_get_event().unwrap().unwrap(),
            _ => events.get_event_timeout(Duration::MAX).unwrap().unwrap(),
        };
        assert_eq!((event.kind.raw(), event.source), (kind, source));
        assert_eq!(*ACKNOWLEDGED.lock().unwrap(), kinds[..=n]);
    }
    // A call that a signal interrupted has no event yet; one that failed returns the error.
    *NEXT.lock().unwrap() = vec![Err(Errno::ENODEV), Ok(11), Err(Errno::EINTR)];
    assert_eq!(events.try_get_event().unwrap(), None);
    assert_eq!(events.get_event().unwrap().kind, AsyncEventKind::LID_CHANGE);
    let Err(Error::Verb(error)) = events.get_event() else { panic!("the device went away") };
    assert_eq!((error.verb, error.errno), ("ibv_get_async_event", Errno::ENODEV));
}

#[test]
fn nothing_happens_on_a_device_that_does_nothing() {
    rdma_soft::install();
    for name in ["soft0", "softib0"] {
        let context = open_device(name).unwrap();
        assert_eq!(context.completion_vectors(), 1);
        let (events, others) = (context.async_events().unwrap(), context.async_events().unwrap());
        let begin = Instant::now();
        assert_eq!(events.get_event_timeout(Duration::from_millis(5)).unwrap(), None);
        assert!(begin.elapsed() >= Duration::from_millis(5));
        assert_eq!(events.try_get_event().unwrap(), None);
        assert!(events.as_fd().try_clone_to_owned().is_ok() && others.context().is_same(&context));
        let (context, error) = context.close().unwrap_err();
        assert!(matches!(error, Error::StillUsed { .. }), "{error}");
        drop((events, others));
        context.close().unwrap();
    }
}
