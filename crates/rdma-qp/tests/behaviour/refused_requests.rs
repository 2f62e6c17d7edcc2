//! Requests that are refused before the device sees them, and those that the device refuses.

#![allow(unsafe_code)]

use crate::common::{DEVICES, TestPeer, everything, pair, pair_with};
use rdma_mem::{Errno, GatherElement, GatherList, InlineElement, ScatterElement, ScatterList};
use rdma_qp::{
    AtomicWorkRequest, MaxRnrRetries, PostError, PostErrorKind, QpState, QueuedRequest,
    ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WorkRequest, WriteWorkRequest,
};

/// Posts a request that must be refused before the device sees it.
fn refusal(end: &TestPeer, request: impl WorkRequest) -> PostError {
    // SAFETY: SAFETY.md F8: shared regions, which outlive the test, or memory that is never used.
    let error = unsafe { end.qp.post(request, 1) }.unwrap_err();
    assert_eq!((error.posted(), error.errno()), (0, None), "{error}");
    assert!(end.is_idle());
    assert_eq!(end.qp.state().unwrap(), QpState::RTS);
    error
}

/// Posts it in a batch, after a valid request.
fn refusal_in_batch(end: &TestPeer, request: QueuedRequest<'_, '_>) -> PostError {
    let mut batch = [SendWorkRequest::only_immediate(1).with_id(1), request];
    // SAFETY: SAFETY.md F8: as above.
    let error = unsafe { end.qp.post_batch(&mut batch) }.unwrap_err();
    assert_eq!((error.posted(), error.refused(), error.errno()), (0, 1, None), "{error}");
    assert!(error.to_string().starts_with("request 1 of the batch (none was posted): "));
    assert!(end.is_idle(), "not even the first");
    error
}

#[test]
fn a_request_longer_than_the_remote_memory_never_reaches_the_device() {
    for device in DEVICES {
        let (a, b) = pair(device);
        let data = [GatherElement::from(a.board.element(0..40).unwrap()); 2];
        let remote = b.board.remote().slice(0..79).unwrap();
        let write = WriteWorkRequest::new(&data, remote);
        // SAFETY: SAFETY.md F8: shared regions, which outlive the test.
        let error = unsafe { a.qp.post_write(write, 1) }.unwrap_err();
        assert_eq!((error.posted(), error.errno()), (0, None));
        let fits = WriteWorkRequest::new(&data[..1], remote);
        let mut batch = [fits.with_id(1), write.with_id(2)];
        // SAFETY: SAFETY.md F8: as above.
        let error = unsafe { a.qp.post_batch(&mut batch) }.unwrap_err();
        assert_eq!(error.posted(), 0, "not even the first");
        let mut room = [ScatterElement::from(a.board.element(0..80).unwrap())];
        // SAFETY: SAFETY.md F8: as above.
        let error = unsafe { a.qp.post_read(ReadWorkRequest::new(&mut room, remote), 3) };
        let text = error.unwrap_err().to_string();
        assert_eq!(text, "80 bytes of elements do not fit into 79 bytes of remote memory");
        assert!(a.is_idle());
        assert_eq!(a.qp.state().unwrap(), QpState::RTS);
    }
}

#[test]
fn a_full_queue_reports_the_number_of_posted_requests() {
    let (a, b) = pair("soft0");
    let room = usize::try_from(b.qp.capabilities().max_recv_wr).unwrap();
    let mut batch: Vec<_> =
        (0..room + 3).map(|n| ReceiveWorkRequest::only_immediate().with_id(n as u64)).collect();
    // SAFETY: SAFETY.md F8: no memory.
    let error = unsafe { b.qp.post_receive_batch(&mut batch) }.unwrap_err();
    assert_eq!((error.posted(), error.errno()), (room, Some(Errno::ENOMEM)));
    assert_eq!(error.kind(), PostErrorKind::WouldBlock);
    let text = error.to_string();
    assert!(text.contains("the queue is full") && text.ends_with(" posted before it)"), "{text}");
    // SAFETY: SAFETY.md F8: no memory.
    let error = unsafe { b.qp.post_receive(ReceiveWorkRequest::only_immediate(), 0) };
    assert_eq!(error.unwrap_err().posted(), 0);
    drop(a);
}

#[test]
fn a_raw_batch_is_posted_up_to_the_invalid_request() {
    let (a, b) = pair("soft0");
    let most = usize::try_from(a.qp.capabilities().max_send_sge).unwrap();
    let elements = vec![GatherElement::from(a.board.element(0..1).unwrap()); most + 1];
    let write = |count: usize| WriteWorkRequest::new(&elements[..count], b.board.remote());
    let mut batch = [write(most).with_id(1), write(most + 1).with_id(2), write(1).with_id(3)];
    // SAFETY: SAFETY.md F8: shared regions, which outlive the test.
    let error = unsafe { a.qp.post_batch_raw(&mut batch) }.unwrap_err();
    assert_eq!((error.posted(), error.errno()), (1, Some(Errno::EINVAL)));
    assert_eq!(a.next().wr_id(), 1);
    assert!(a.is_idle());
}

#[test]
fn more_elements_than_the_queue_takes_are_refused() {
    for device in DEVICES {
        let (a, b) = pair(device);
        let most = a.qp.capabilities().max_send_sge;
        let element = a.board.element(0..1).unwrap();
        let elements = vec![GatherElement::from(element); most as usize + 1];
        let send = SendWorkRequest::new(&elements);
        let text = refusal(&a, send).to_string();
        let expected =
            format!("the request has {} elements, but the queue takes {most}: ", most + 1);
        assert!(text.starts_with(&expected), "{text}");
        let kind = refusal_in_batch(&a, send.with_id(2)).kind();
        assert_eq!(kind, PostErrorKind::TooManyElements);

        let most = b.qp.capabilities().max_recv_sge;
        let room = || (0..=most).map(|_| ScatterElement::from(element)).collect::<Vec<_>>();
        let (mut one, mut other) = (room(), room());
        let error = refusal(&b, ReceiveWorkRequest::new(&mut one));
        assert_eq!(error.kind(), PostErrorKind::TooManyElements);
        let mut batch = [
            ReceiveWorkRequest::only_immediate().with_id(1),
            ReceiveWorkRequest::new(&mut one).with_id(2),
        ];
        // SAFETY: SAFETY.md F8: as above.
        let error = unsafe { b.qp.post_receive_batch(&mut batch) }.unwrap_err();
        assert_eq!((error.posted(), error.refused()), (0, 1));
        // SAFETY: SAFETY.md F8: as above.
        let raw = unsafe { b.qp.post_raw(ReceiveWorkRequest::new(&mut other), 3) }.unwrap_err();
        assert_eq!((raw.kind(), raw.errno()), (PostErrorKind::Refused, Some(Errno::EINVAL)));
    }
}

#[test]
fn more_inline_bytes_than_the_queue_pair_takes_are_refused() {
    for device in DEVICES {
        let (a, b) = pair_with(device, |builder| builder.max_inline_data(32));
        let most = a.qp.capabilities().max_inline_data;
        let bytes = vec![7; most as usize + 1];
        let element = |n: u32| [InlineElement::new(&bytes[..n as usize])];
        let (fits, too_long) = (element(most), element(most + 1));
        let write = WriteWorkRequest::inline(&too_long, b.board.remote());
        let text = refusal(&a, write).to_string();
        assert!(
            text.starts_with(&format!("the request has {} inline bytes, but", most + 1)),
            "{text}"
        );
        let kind = refusal_in_batch(&a, write.with_id(2)).kind();
        assert_eq!(kind, PostErrorKind::TooMuchInline);
        let write = WriteWorkRequest::inline(&fits, b.board.remote());
        // SAFETY: SAFETY.md F12: inline data.
        unsafe { a.qp.post_write(write, 3) }.unwrap();
        a.next().result().unwrap();
    }
}

#[test]
fn registered_slices_of_another_domain_are_refused() {
    for device in DEVICES {
        let (a, b) = pair_with(device, |builder| builder.max_inline_data(8));
        let foreign = a.pd.context().allocate_pd().unwrap();
        let (mut own, mut other) =
            (a.pd.allocate_region(64).unwrap(), foreign.allocate_region(64).unwrap());
        let remote = b.board.remote();
        {
            let mixed =
                GatherList::from([own.get_ref(0, 8).unwrap(), other.get_ref(0, 8).unwrap()]);
            let (send, write) =
                (SendWorkRequest::from_list(&mixed), WriteWorkRequest::from_list(&mixed, remote));
            let text = refusal(&a, send).to_string();
            assert!(
                text.starts_with("element 1 belongs to a different protection domain"),
                "{text}"
            );
            assert_eq!(refusal(&a, write).kind(), PostErrorKind::WrongDomain);
            let kind = refusal_in_batch(&a, write.with_id(2)).kind();
            assert_eq!(kind, PostErrorKind::WrongDomain);

            let right = GatherList::from([own.get_ref(0, 8).unwrap()]);
            // SAFETY: SAFETY.md F8: the regions are not written until the completion below.
            unsafe { a.qp.post_write(WriteWorkRequest::from_list(&right, remote), 3) }.unwrap();
            a.next().result().unwrap();
            let copied = [InlineElement::new(&other[..8])];
            let of = [&foreign];
            let inline = WriteWorkRequest::inline(&copied, remote).with_domains(&of);
            // SAFETY: SAFETY.md F12: inline data.
            unsafe { a.qp.post_write(inline, 4) }.unwrap();
            a.next().result().unwrap();
            let keyed = right.elements();
            let (two, one) = ([&a.pd, &foreign], [&a.pd]);
            let two_domains = WriteWorkRequest::new(keyed, remote).with_domains(&two);
            // SAFETY: SAFETY.md F8: as above.
            unsafe { a.qp.post_write(two_domains, 5) }.unwrap();
            a.next().result().unwrap();
            let many = vec![keyed[0]; a.qp.capabilities().max_send_sge as usize + 1];
            let one_domain = WriteWorkRequest::new(&many, remote).with_domains(&one);
            let refused = refusal_in_batch(&a, one_domain.with_id(6));
            assert_eq!(refused.kind(), PostErrorKind::TooManyElements, "{refused}");
        }
        let mut room = ScatterList::from([own.as_slice_mut(), other.as_slice_mut()]);
        let read = ReadWorkRequest::from_list(&mut room, remote);
        assert_eq!(refusal(&a, read).kind(), PostErrorKind::WrongDomain);
        let receive = ReceiveWorkRequest::from_list(&mut room);
        assert_eq!(refusal(&a, receive).kind(), PostErrorKind::WrongDomain);
        let mut result = ScatterList::from([other.get_mut(0, 8).unwrap()]);
        let next = AtomicWorkRequest::fetch_and_add(&mut result, remote, 1);
        assert_eq!(refusal(&a, next).kind(), PostErrorKind::WrongDomain);
        let board = foreign.allocate_shared_region(64, everything()).unwrap();
        let element = board.element(0..8).unwrap();
        let list = GatherList::from([element]);
        assert_eq!(
            refusal(&a, SendWorkRequest::from_list(&list)).kind(),
            PostErrorKind::WrongDomain
        );
        let mut room = ScatterList::from([a.board.element(0..8).unwrap(), element]);
        let receive = ReceiveWorkRequest::from_list(&mut room);
        assert_eq!(refusal(&a, receive).kind(), PostErrorKind::WrongDomain);
        // The device finds the mistake of elements without a list, which ends the connection.
        let elements = [other.get_ref(0, 8).unwrap().gather_element()];
        // SAFETY: SAFETY.md F8: as above.
        unsafe { a.qp.post_write(WriteWorkRequest::new(&elements, remote), 5) }.unwrap();
        assert!(a.next().result().unwrap_err().to_string().contains("protection"));
    }
}

#[test]
fn atomics_need_an_aligned_word_and_a_result_of_eight_bytes() {
    for device in DEVICES {
        let (a, b) = pair(device);
        let remote = b.board.remote();
        let element = |length| ScatterElement::from(a.board.element(0..length).unwrap());
        let mut result = element(8);
        for offset in 1..8 {
            let word = remote.sub_region(offset).unwrap();
            let text =
                refusal(&a, AtomicWorkRequest::fetch_and_add(&mut result, word, 1)).to_string();
            assert!(text.contains(&format!("{:#x}", word.address())), "{text}");
            let swap = AtomicWorkRequest::compare_and_swap(&mut result, word, 0, 1);
            let kind = refusal_in_batch(&a, swap.with_id(2)).kind();
            assert_eq!(kind, PostErrorKind::Misaligned);
        }
        for length in [0, 4, 7, 9, 16] {
            let mut result = element(length);
            let error = refusal(&a, AtomicWorkRequest::fetch_and_add(&mut result, remote, 1));
            assert_eq!(error.kind(), PostErrorKind::AtomicResult);
        }
        let short = remote.slice(0..7).unwrap();
        let error = refusal(&a, AtomicWorkRequest::fetch_and_add(&mut result, short, 1));
        assert_eq!(error.kind(), PostErrorKind::RemoteTooShort);
        assert_eq!(b.read(0), [0; 16]);
    }
}

#[test]
fn a_full_send_queue_would_block_and_is_not_dead() {
    let forever = MaxRnrRetries::unlimited();
    let (a, b) = pair_with("soft0", |builder| builder.max_rnr_retries(forever));
    let most = u64::from(a.qp.capabilities().max_send_wr);
    // There are no receives yet: the requests wait in the queue.
    for id in 0..most {
        // SAFETY: SAFETY.md F8: no memory.
        unsafe { a.qp.post_send(SendWorkRequest::only_immediate(1), id) }.unwrap();
    }
    // SAFETY: SAFETY.md F8: no memory.
    let error = unsafe { a.qp.post_send(SendWorkRequest::only_immediate(1), most) }.unwrap_err();
    assert_eq!((error.kind(), error.posted()), (PostErrorKind::WouldBlock, 0));
    for _ in 0..most {
        // SAFETY: SAFETY.md F8: no memory.
        unsafe { b.qp.post_receive(ReceiveWorkRequest::only_immediate(), 7) }.unwrap();
    }
    for id in 0..most {
        let sent = a.next();
        assert_eq!((sent.wr_id(), sent.result().is_ok()), (id, true));
        b.next().result().unwrap();
    }
    // SAFETY: SAFETY.md F8: no memory.
    unsafe { b.qp.post_receive(ReceiveWorkRequest::only_immediate(), 7) }.unwrap();
    // SAFETY: SAFETY.md F8: no memory.
    unsafe { a.qp.post_send(SendWorkRequest::only_immediate(1), most) }.unwrap();
    a.next().result().unwrap();
}
