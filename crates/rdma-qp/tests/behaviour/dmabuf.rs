//! Requests that name memory from a file descriptor.

#![allow(unsafe_code)]

use crate::common::{DEVICES, pair};
use rdma_mem::{AccessFlags, GatherElement, RegionMemory, ScatterElement};
use rdma_qp::{ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest};

#[test]
fn peers_and_requests_of_this_machine_use_the_bytes_of_the_file() {
    for device in DEVICES {
        let (a, b) = pair(device);
        // The same memory twice: as a region that shows its bytes, and as a file.
        let memory = RegionMemory::memfd(8192).unwrap();
        let view = b.pd.register_shared(memory, AccessFlags::new()).map_err(|(_, e)| e).unwrap();
        // SAFETY: SAFETY.md F16: the view's memory is never shown as a slice again.
        let file = unsafe { view.memfd() }.unwrap();
        let iova = 0x5000_0000_0000;
        // SAFETY: SAFETY.md F8: there is no reference to the memory of the file.
        let region = unsafe { b.pd.register_shared_dmabuf_mr(file, 4096, 4096, iova) }.unwrap();

        a.board.write(0, b"written").unwrap();
        let data = [GatherElement::from(a.board.element(0..7).unwrap())];
        let remote = region.remote().slice(4089..4096).unwrap();
        // SAFETY: SAFETY.md F8: shared regions and a file's, which outlive the completions below.
        unsafe { a.qp.post_write(WriteWorkRequest::new(&data, remote), 1) }.unwrap();
        a.next().result().unwrap();
        let mut bytes = [0; 8];
        view.read(8184, &mut bytes).unwrap();
        assert_eq!(&bytes, b"\0written");

        view.write(4096, b"from the file").unwrap();
        let mut room = [ScatterElement::from(a.board.element(100..108).unwrap())];
        let remote = region.remote().slice(5..13).unwrap();
        // SAFETY: SAFETY.md F8: as above.
        unsafe { a.qp.post_read(ReadWorkRequest::new(&mut room, remote), 2) }.unwrap();
        a.next().result().unwrap();
        assert_eq!(&a.read(100), b"the file");

        let short = [GatherElement::from(a.board.element(0..3).unwrap())];
        let mut room = [ScatterElement::from(region.element(50..53).unwrap())];
        // SAFETY: SAFETY.md F8: as above.
        unsafe { b.qp.post_receive(ReceiveWorkRequest::new(&mut room), 3) }.unwrap();
        // SAFETY: SAFETY.md F8: as above.
        unsafe { a.qp.post_send(SendWorkRequest::new(&short), 4) }.unwrap();
        a.next().result().unwrap();
        assert_eq!(b.next().result().unwrap().scattered_bytes(), Some(3));
        view.read(4096 + 49, &mut bytes).unwrap();
        assert_eq!(&bytes, b"\0wri\0\0\0\0");
        region.close().unwrap();
    }
}

#[test]
fn a_local_region_is_not_for_peers() {
    let (a, b) = pair("soft0");
    let memory = RegionMemory::memfd(64).unwrap();
    let view = b.pd.register_shared(memory, AccessFlags::new()).map_err(|(_, e)| e).unwrap();
    // SAFETY: SAFETY.md F16: the view's memory is never shown as a slice again.
    let file = unsafe { view.memfd() }.unwrap();
    let region = b.pd.register_local_dmabuf_mr(file, 0, 64, 0).unwrap();
    let data = [GatherElement::from(a.board.element(0..7).unwrap())];
    let remote = region.remote().slice(0..7).unwrap();
    // SAFETY: SAFETY.md F8: a shared region, which outlives the completion below.
    unsafe { a.qp.post_write(WriteWorkRequest::new(&data, remote), 1) }.unwrap();
    let error = a.next().result().unwrap_err();
    assert_eq!(error.code(), rdma_qp::WorkErrorCode::RemoteAccessError);
}
