//! Inline data: bytes that need no registration, and are needed only until they are posted.
#![allow(unsafe_code)]

use crate::common::{CALLS, DEVICES, TestPeer, everything, pair_with, parts};
use rdma_mem::{
    GatherElement, InlineElement, MemoryWindow, RemoteMemoryRegion, ScatterElement, WindowType,
};
use rdma_qp::{
    BindWindow, GlobalRouteHeader, QueuePairType, ReceiveWorkRequest, SendWithInvalidate,
    SendWorkRequest, WorkRequest, WriteWorkRequest, prelude::*,
};
use rdma_soft::{Builder, Schedule, SoftDevice};

/// A device that executes requests when the test releases them.
const HELD: &str = "softinlineheld0";

/// A device that reads the queue each time that it sends a packet.
const WIRE: &str = "softinlinewire0";

/// Returns each device, with queue pairs that post by lists and by calls.
fn forms() -> impl Iterator<Item = (&'static str, bool)> {
    // Another test may have installed it already.
    let _ = Builder::new(HELD).schedule(Schedule::Held).install();
    let _ = Builder::new(WIRE).force_wire().install();
    DEVICES.into_iter().chain([HELD, WIRE]).flat_map(|device| [(device, false), (device, true)])
}

/// Makes a device that holds requests back execute them.
fn release(end: &TestPeer) {
    if end.pd.context().device().name() == HELD {
        SoftDevice::find(HELD).unwrap().release(end.qp.qpn(), u32::MAX);
    }
}

fn receive(end: &TestPeer, at: usize, length: usize) {
    let mut room = [ScatterElement::from(end.board.element(at..at + length).unwrap())];
    // SAFETY: SAFETY.md F8: a shared region, which outlives the queue pair.
    unsafe { end.qp.post_receive(ReceiveWorkRequest::new(&mut room), 1) }.unwrap();
}

/// Posts a request of inline data only.
fn post(end: &TestPeer, request: impl WorkRequest) {
    // SAFETY: SAFETY.md F12: inline data is needed until the call returns.
    unsafe { end.qp.post(request, 2) }.unwrap();
}

#[test]
fn inline_data_is_copied_before_the_post_returns() {
    for ((device, extended), qp_type) in
        forms().flat_map(|form| [QueuePairType::RC, QueuePairType::UC].map(|kind| (form, kind)))
    {
        let (a, b) = pair_with(device, |builder| {
            builder.qp_type(qp_type).max_inline_data(64).extended(extended)
        });
        assert!(a.qp.capabilities().max_inline_data >= 64);
        let remote = b.board.remote();
        receive(&b, 0, 64);
        receive(&b, 64, 0);
        let mut bytes = [1; 64];
        post(&a, SendWorkRequest::inline(&[InlineElement::new(&bytes)]).with_immediate(5));
        bytes.fill(2);
        {
            let (data, place) = ([InlineElement::new(&bytes)], |at| remote.sub_region(at).unwrap());
            let writes = [200, 300].map(|at| WriteWorkRequest::inline(&data, place(at)).fence());
            let mut batch = writes.map(|write| write.with_id(3));
            // SAFETY: SAFETY.md F12: inline data is needed until the call returns.
            unsafe { a.qp.post_batch(&mut batch) }.unwrap();
        }
        bytes.fill(3);
        // The last request has a receive, which shows that all have arrived: a completion of UC
        // only shows that a request was sent.
        let place = remote.sub_region(100).unwrap();
        post(&a, WriteWorkRequest::inline(&[InlineElement::new(&bytes)], place).with_immediate(6));
        bytes.fill(4);
        release(&a);
        (0..4).for_each(|_| assert!(a.next().result().is_ok()));
        let received = [b.next(), b.next()].map(|done| done.result().unwrap().immediate_data());
        assert_eq!(received, [Some(5), Some(6)], "{device} {qp_type:?}");
        assert_eq!(b.read::<64>(0), [1; 64], "{device} {qp_type:?}");
        assert_eq!(b.read::<64>(100), [3; 64], "{device} {qp_type:?}");
        assert_eq!([b.read::<64>(200), b.read(300)], [[2; 64]; 2], "{device} {qp_type:?}");
        assert_eq!(bytes, [4; 64]);
    }
}

#[test]
fn an_inline_datagram_is_copied_before_the_post_returns() {
    const HEADER: usize = GlobalRouteHeader::BYTES;
    for (device, extended) in forms() {
        let [(a, _), (b, to)] = [(); 2].map(|()| {
            let (pd, cq) = parts(device);
            let builder = pd.create_qp().qp_type(QueuePairType::UD).send_cq(&cq).recv_cq(&cq);
            let prepared = builder.max_inline_data(16).extended(extended).build().unwrap();
            let endpoint = prepared.endpoint();
            let board = pd.allocate_shared_region(4096, everything()).unwrap();
            (TestPeer { qp: prepared.activate().unwrap(), cq, pd, board }, endpoint)
        });
        let handle = a.qp.address_handle(&to).unwrap();
        receive(&b, 0, HEADER + 16);
        let mut bytes = [1; 16];
        let data = [InlineElement::new(&bytes)];
        // SAFETY: SAFETY.md F12: inline data, and the handle outlives the completion below.
        unsafe { a.qp.post(SendWorkRequest::inline(&data).to(&handle, to.qpn(), to.qkey()), 2) }
            .unwrap();
        bytes.fill(2);
        release(&a);
        a.next().result().unwrap();
        assert_eq!(b.next().result().unwrap().scattered_bytes(), Some(HEADER + 16));
        assert_eq!((b.read::<16>(HEADER), bytes), ([1; 16], [2; 16]), "{device}");
    }
}

#[test]
fn a_send_that_invalidates_can_carry_inline_data() {
    for (device, extended) in forms() {
        let (a, b) = pair_with(device, |builder| builder.max_inline_data(8).extended(extended));
        let region = b.pd.allocate_bindable_region(64).unwrap();
        let mut window = MemoryWindow::allocate(region, WindowType::Two).unwrap();
        let bind = BindWindow::new(&mut window, 0..8, everything() & !local()).unwrap();
        let rkey = bind.remote().rkey();
        // SAFETY: SAFETY.md F16: the region is the window's own.
        unsafe { b.qp.post(bind, 1) }.unwrap();
        release(&b);
        b.next().result().unwrap();
        receive(&b, 0, 8);
        let mut bytes = [1; 8];
        let data = [InlineElement::new(&bytes)];
        post(&a, SendWithInvalidate::from_send(SendWorkRequest::inline(&data), rkey));
        bytes.fill(2);
        release(&a);
        a.next().result().unwrap();
        assert_eq!(b.next().result().unwrap().invalidated_rkey(), Some(rkey));
        assert_eq!((b.read::<8>(0), bytes), ([1; 8], [2; 8]), "{device}");
    }
}

fn local() -> rdma_mem::AccessFlags {
    rdma_mem::AccessFlags::new().with_local_write()
}

#[test]
fn inline_data_of_many_parts_is_posted_either_way() {
    for pieces in [1, 2, 16, 17] {
        let (a, b) = pair_with(CALLS, |builder| builder.max_send_sge(17).max_inline_data(64));
        let mut bytes: Vec<u8> = (0..64).collect();
        let data: Vec<_> =
            (0..pieces).map(|n| InlineElement::new(&bytes[2 * n..2 * n + 1])).collect();
        post(&a, WriteWorkRequest::inline(&data, b.board.remote()));
        bytes.fill(0xee);
        a.next().result().unwrap();
        let expected: Vec<_> = (0..pieces).map(|n| u8::try_from(2 * n).unwrap()).collect();
        let mut arrived = vec![0; pieces];
        b.board.read(0, &mut arrived).unwrap();
        assert_eq!(arrived, expected);
    }
}

/// Safe code could once make a request copy from any address this way: the address of an element is never used as a
/// pointer.
#[test]
fn an_element_with_a_key_is_looked_up_and_never_read_from_as_a_pointer() {
    let secret = [0x5e; 4096];
    for ((device, extended), qp_type) in
        forms().flat_map(|form| [QueuePairType::RC, QueuePairType::UC].map(|kind| (form, kind)))
    {
        let (a, b) = pair_with(device, |builder| {
            builder.qp_type(qp_type).max_inline_data(64).extended(extended)
        });
        let memory = rdma_mem::RegionMemory::memfd(4096).unwrap();
        let view = a.pd.register_shared(memory, local()).map_err(|(_, error)| error).unwrap();
        view.write(0, &[7; 4096]).unwrap();
        // SAFETY: SAFETY.md F16: the view's memory is never shown as a slice.
        let file = unsafe { view.memfd() }.unwrap();
        let iova = secret.as_ptr().addr() as u64 & !4095;
        let region = a.pd.register_local_dmabuf_mr(file, 0, 4096, iova).unwrap();
        let data = [GatherElement::from(region.element(0..64).unwrap())];
        let remote: RemoteMemoryRegion = b.board.remote();
        receive(&b, 64, 0);
        // SAFETY: SAFETY.md F8: a file's memory, which outlives the completion below.
        unsafe { a.qp.post(WriteWorkRequest::new(&data, remote).with_immediate(1), 1) }.unwrap();
        release(&a);
        a.next().result().unwrap();
        b.next().result().unwrap();
        assert_eq!(b.read::<64>(0), [7; 64], "{device} {qp_type:?}");
    }
    assert_eq!(std::hint::black_box(secret), [0x5e; 4096]);
}

/// If the flags of a request do not include inline, SoftRoCE reads its data as elements, and looks up their keys.
#[test]
fn a_request_of_inline_data_posted_by_calls_has_the_inline_flag() {
    let (a, b) = pair_with(CALLS, |builder| builder.max_inline_data(8).extended(true));
    assert!(a.qp.is_extended());
    let flags = || {
        let calls = a.qp.as_raw().cast::<rdma_sys::ibv_qp_ex>();
        // SAFETY: SAFETY.md F5: a live queue pair that posts by calls; the field is the program's.
        unsafe { (*calls).wr_flags & rdma_sys::ibv_send_flags::IBV_SEND_INLINE.0 }
    };
    post(&a, WriteWorkRequest::inline(&[InlineElement::new(&[1; 8])], b.board.remote()));
    assert_ne!(flags(), 0);
    post(&a, WriteWorkRequest::new(&[], b.board.remote()));
    assert_eq!(flags(), 0);
}
