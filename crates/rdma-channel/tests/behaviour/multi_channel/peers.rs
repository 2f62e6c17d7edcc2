//! Operations with one peer, connecting, and queries.
#![allow(unsafe_code)]

use std::iter;
use std::thread;
use std::time::Duration;

use rdma_channel::{
    BatchRequest, MultiChannel, OperationError, PeerAtomicWorkRequest, PeerReadWorkRequest,
    PeerReceiveWorkRequest, PeerRemoteMemoryRegion, PeerSendWorkRequest, PeerWriteWorkRequest,
    ScopeError, ToPeer, TransportError, prelude::*,
};
use rdma_mem::{
    GatherElement, GatherList, RemoteMemoryRegion, ScatterList, remote_array_field,
    remote_struct_field,
};
use rdma_qp::{AtomicWorkRequest, Error, QpState, ReadWorkRequest, WriteWorkRequest};
use test_support::features::Feature;

use crate::common::{lacks, open};
use crate::multi_channel::{DEVICES, HELD, SECONDS, Star};

#[test]
fn each_operation_reaches_the_peer_that_it_names() {
    for device in DEVICES {
        let has_atomics = !lacks(device, Feature::Atomics);
        let last = |peer| if has_atomics { 100 * peer as u64 } else { 5 + peer as u64 };
        let mut star = Star::new(device);
        let mut memory = star.pd.allocate_region(8).unwrap();
        for peer in [2, 0, 1] {
            star.expect_number(peer);
            star.center.send(PeerSendWorkRequest::only_immediate(peer, 7)).unwrap();
            star.send_number(peer, 40 + peer as u32);
            let request = PeerReceiveWorkRequest::only_immediate(peer);
            let received = star.center.within(SECONDS).receive(request).unwrap();
            assert_eq!(received.immediate_data(), Some(40 + peer as u32));

            let remote = star.remote(peer);
            memory.copy_from_slice(&(5 + peer as u64).to_ne_bytes());
            let from = [memory.as_slice().gather_element()];
            star.center.write(PeerWriteWorkRequest::new(&from, remote)).unwrap();
            if has_atomics {
                let mut list = ScatterList::from([memory.as_slice_mut()]);
                let word = remote.sub_region(0).unwrap().remote();
                let add = AtomicWorkRequest::fetch_and_add(&mut list, word, 10);
                star.center.atomic(PeerAtomicWorkRequest::from_wr(peer, add)).unwrap();
                let (was, new) = (15 + peer as u64, 100 * peer as u64);
                let swap = AtomicWorkRequest::compare_and_swap(&mut list, word, was, new);
                star.center.atomic(PeerAtomicWorkRequest::from_wr(peer, swap)).unwrap();
                assert_eq!(*memory, was.to_ne_bytes());
            }
            memory.fill(0);
            let mut list = ScatterList::from([memory.as_slice_mut()]);
            let read = ReadWorkRequest::from_list(&mut list, remote.remote());
            star.center.read(PeerReadWorkRequest::from_wr(peer, read)).unwrap();
            assert_eq!(*memory, last(peer).to_ne_bytes());
        }
        for (peer, board) in star.boards.iter().enumerate() {
            let mut word = [0; 8];
            board.read(0, &mut word).unwrap();
            assert_eq!(u64::from_ne_bytes(word), last(peer));
        }
        assert_eq!((star.open(), star.center.stray_completions()), (vec![0, 1, 2], 0));
    }
}

#[test]
fn rented_requests_carry_the_additions_of_their_closures() {
    let mut star = Star::new("soft0");
    let mut from = star.pd.allocate_region(8).unwrap();
    let mut to = star.far.allocate_region(8).unwrap();
    let remote = star.remote(1);
    let (center, peer) = (&mut star.center, &mut star.peers[1]);
    let numbers = peer.scope(|p| {
        let written = p.receive_into(to.as_slice_mut())?;
        center
            .scope(|s| {
                let from = from.as_slice_mut();
                let write = s
                    .to(remote.peer())?
                    .write_from_with(from, remote.remote(), |w| w.with_immediate(1))?;
                let to = written.wait(SECONDS).unwrap();
                let sent = p.receive_into(to.buf)?;
                let from = write.wait(SECONDS).unwrap().buf;
                drop(s.to(1)?.send_from_with(from, |w| w.with_immediate(2))?);
                let sent = sent.wait(SECONDS).unwrap().result?;
                Ok::<_, TransportError>([to.result?, sent].map(|got| got.immediate_data()))
            })
            .map_err(|error| panic!("{error}"))
    });
    assert_eq!(numbers.unwrap_or_else(|error: ScopeError| panic!("{error}")), [Some(1), Some(2)]);
}

#[test]
fn rented_memory_is_sent_to_any_peer_and_returned() {
    for device in DEVICES {
        let has_atomics = !lacks(device, Feature::Atomics);
        let mut star = Star::new(device);
        let mut memory = star.pd.allocate_region(16).unwrap();
        let remotes = [0, 1, 2].map(|peer| star.remote(peer));
        let sum = star.center.scope(|s| {
            let (mut word, mut room) = memory.as_slice_mut().split_at(8);
            let mut sum = 0;
            for (peer, remote) in remotes.into_iter().enumerate() {
                let (to, there) = (s.to(peer)?, remote.remote());
                word.copy_from_slice(&(peer as u64 + 1).to_ne_bytes());
                word = to.write_from(word, there)?.wait(SECONDS).unwrap().buf;
                if has_atomics {
                    let (was, new) = (peer as u64 + 2, 10 * (peer as u64 + 1));
                    assert_eq!(to.fetch_add(there, 1)?.wait(SECONDS)?, was - 1);
                    assert_eq!(to.compare_and_swap(there, was, new)?.wait(SECONDS)?, was);
                }
                room = to.read_into(room, there)?.wait(SECONDS).unwrap().buf;
                sum += u64::from_ne_bytes(room[..].try_into().unwrap());
            }
            Ok::<_, TransportError>(sum)
        });
        assert_eq!(sum.unwrap(), if has_atomics { 60 } else { 6 });
    }
}

#[test]
fn an_operation_with_a_missing_peer_fails_and_returns_its_memory() {
    let mut star = Star::new(HELD);
    let center = &mut star.center;
    let nobody = |error: TransportError| {
        assert!(matches!(error, TransportError::NoSuchPeer { peer: 3, count: 3 }), "{error}");
    };
    nobody(center.send(PeerSendWorkRequest::only_immediate(3, 1)).unwrap_err());
    nobody(center.receive(PeerReceiveWorkRequest::only_immediate(3)).unwrap_err());
    nobody(center.closed(3).unwrap_err());
    nobody(center.state(3).unwrap_err());
    nobody(center.peer(3).unwrap_err());
    // SAFETY: SAFETY.md F8: the requests have no memory, here and below.
    let posted = unsafe { center.send_unpolled(PeerSendWorkRequest::only_immediate(3, 1)) };
    nobody(posted.map(drop).unwrap_err());
    let several = || [0, 3, 1].map(|peer| PeerSendWorkRequest::only_immediate(peer, 1));
    nobody(center.scatter_send(several()).unwrap_err());
    // SAFETY: SAFETY.md F8: as above.
    let posted = unsafe { center.scatter_send_unpolled(several()) };
    nobody(posted.map(drop).unwrap_err());
    center
        .scope(|s| {
            nobody(s.post_scatter_send(several()).map(drop).unwrap_err());
            nobody(s.to(3).map(drop).unwrap_err());
            Ok::<(), TransportError>(())
        })
        .unwrap();
    assert_eq!(star.in_flight(), 0, "nothing was posted to the peers that there are");
    assert_eq!(star.open(), [0, 1, 2]);
}

#[test]
fn the_numbers_of_endpoints_and_channels_have_to_match() {
    let pd = open("soft0").allocate_pd().unwrap();
    let prepare = || pd.create_multi_channel().num_channels(2).build().unwrap();
    let end = prepare().endpoints()[0];
    for (given, told) in [(0, "only 0 endpoints"), (1, "only 1 endpoints"), (3, "more endpoints")] {
        let error = prepare().handshake(iter::repeat_n(end, given)).unwrap_err();
        assert!(
            matches!(error, TransportError::EndpointCount { channels: 2, endpoints } if endpoints == given)
        );
        assert!(error.to_string().contains(told), "{error}");
    }
    let error = prepare().handshake(iter::repeat(end)).unwrap_err();
    assert!(matches!(error, TransportError::EndpointCount { endpoints: 3, .. }), "{error}");
    let error = pd.create_multi_channel().build().unwrap_err();
    assert!(matches!(error, Error::Missing { knob: "num_channels" }), "{error}");
    let none = pd.create_multi_channel().num_channels(0).build().unwrap().handshake([]).unwrap();
    assert_eq!(none.num_channels(), 0);
}

#[test]
fn more_requests_than_ids_can_distinguish_are_refused() {
    let pd = open("soft0").allocate_pd().unwrap();
    let build = |channels, sends, receives| {
        let builder = pd.create_multi_channel().num_channels(channels);
        let prepared = builder.max_send_wr(sends).max_recv_wr(receives).build()?;
        let ends = prepared.endpoints();
        prepared.handshake(ends).map(drop)
    };
    let most = (1 << 30) - 1;
    for (channels, sends, receives, knob) in [
        (0, u32::MAX, 16, "max_send_wr"),
        (0, 16, u32::MAX, "max_recv_wr"),
        (0, u32::MAX, u32::MAX, "max_send_wr"),
        (1, u32::MAX, 0, "max_send_wr"),
        (1, 1, most, "max_recv_wr"),
        (1 << 16, 1 << 13, 1 << 13, "num_channels"),
        (usize::MAX, 0, 1, "num_channels"),
        (usize::MAX, 0, 0, "num_channels"),
    ] {
        let error = build(channels, sends, receives).unwrap_err();
        let TransportError::IbvError(error) = error else { panic!("{error}") };
        let Error::TooLarge { knob: named, .. } = *error else { panic!("{error}") };
        assert_eq!(named, knob, "{channels} x ({sends} + {receives})");
    }
    build(0, 1, most - 1).unwrap();
    let error = pd.create_channel().max_send_wr(u32::MAX).max_recv_wr(u32::MAX).build();
    assert!(matches!(error, Err(Error::TooLarge { knob: "max_send_wr", .. })), "{error:?}");
}

#[test]
fn a_builder_takes_its_domain_or_is_created_by_it() {
    let pd = open("soft0").allocate_pd().unwrap();
    let prepared = MultiChannel::builder().pd(&pd).num_channels(2).max_send_wr(4).build().unwrap();
    let ends = prepared.endpoints();
    let center = prepared.handshake(ends.clone()).unwrap();
    assert_eq!((center.num_channels(), center.state(1).unwrap()), (2, QpState::RTS));
    assert_eq!(center.peer(1).unwrap().map(|to| to.peer_qpn), Some(ends[1].qpn()));
    let center = thread::spawn(move || center).join().unwrap();
    center.close().unwrap();
}

#[test]
fn a_request_carries_its_flags_and_numbers() {
    let star = Star::new(HELD);
    let data = star.pd.allocate_region(8).unwrap();
    let list = GatherList::from([data.as_slice()]);
    let wr = WriteWorkRequest::from_list(&list, star.remote(1).remote()).signaled(false);
    let request = PeerWriteWorkRequest::from_wr(1, wr).with_immediate(3);
    assert_eq!(request.peer(), 1);
    assert!(!WriteWorkRequest::from(request).is_signaled());
    assert_eq!(PeerWriteWorkRequest::new(list.elements(), star.remote(2)).peer(), 2);
}

#[test]
fn a_part_of_a_peers_region_keeps_its_peer() {
    #[repr(C)]
    struct Board {
        generation: u64,
        slots: [u32; 4],
    }
    let board = PeerRemoteMemoryRegion::new(5, RemoteMemoryRegion::new(0x1000, 24, 7));
    let slots = remote_struct_field!(board, Board::slots).unwrap();
    assert_eq!((slots.peer(), slots.remote().address(), slots.remote().length()), (5, 0x1008, 16));
    let third = remote_array_field!(slots, u32, 3).unwrap();
    assert_eq!((third.peer(), third.remote().address()), (5, 0x1014));
    assert!(remote_array_field!(slots, u32, 4).is_none() && board.sub_region(25).is_none());
    assert_eq!(board.sub_region_unchecked(25).remote().length(), 0);
}

#[cfg(feature = "serde")]
#[test]
fn a_region_of_a_peer_is_serialised_like_in_the_published_crate() {
    let region = PeerRemoteMemoryRegion::new(5, RemoteMemoryRegion::new(4096, 24, 7));
    let text = r#"{"peer":5,"remote_mr":{"addr":4096,"length":24,"rkey":7}}"#;
    assert_eq!(serde_json::to_string(&region).unwrap(), text);
    assert_eq!(serde_json::from_str::<PeerRemoteMemoryRegion>(text).unwrap(), region);
}

#[test]
fn a_limit_of_a_single_operation_closes_one_connection() {
    for device in DEVICES {
        let mut star =
            Star::with(device, |builder| builder.receive_timeout(Duration::from_millis(20)));
        let error = star.center.receive(PeerReceiveWorkRequest::only_immediate(1)).unwrap_err();
        assert!(matches!(error, TransportError::Timeout { .. }), "{error}");
        assert_eq!(star.open(), [0, 2]);
        star.expect_number(2);
        star.center.send(PeerSendWorkRequest::only_immediate(2, 1)).unwrap();
    }
}

/// Two writes for each peer, in turn. The first one of each is unsignaled.
fn writes<'wr, 'data>(
    star: &Star,
    elements: &'wr [[GatherElement<'data>; 1]],
) -> Vec<ToPeer<BatchRequest<'wr, 'data>>> {
    let writes = elements.iter().enumerate().map(|(n, element)| {
        let remote = star.remote(n % 3).sub_region(8 * (n / 3)).unwrap().remote();
        let write = WriteWorkRequest::new(element, remote).signaled(n >= 3);
        PeerWriteWorkRequest::from_wr(n % 3, write).into()
    });
    writes.collect()
}

#[test]
fn a_batch_goes_to_several_peers_and_its_results_are_in_order() {
    for device in DEVICES {
        let mut star = Star::new(device);
        let mut memory = star.pd.allocate_region(48).unwrap();
        for (n, byte) in memory.iter_mut().enumerate() {
            *byte = n as u8;
        }
        let elements: Vec<_> =
            (0..6).map(|n| [memory.get_ref(8 * n, 8).unwrap().gather_element()]).collect();
        let requests = writes(&star, &elements);
        assert_eq!(star.center.batch(requests).unwrap().len(), 6);
        let requests = writes(&star, &elements);
        let center = &mut star.center;
        center
            .scope(|s| {
                let handles = s.post_batch(requests)?;
                assert_eq!(handles.len(), 6);
                handles.iter().try_for_each(|handle| handle.wait(SECONDS).map(drop))
            })
            .unwrap();
        for (peer, board) in star.boards.iter().enumerate() {
            let mut bytes = [0; 16];
            board.read(0, &mut bytes).unwrap();
            let first = [8 * peer as u8, 8 * (peer as u8 + 3)];
            assert_eq!([bytes[0], bytes[8]], first, "the bytes written to the peer");
        }
        assert_eq!(star.open(), [0, 1, 2]);
        // Nothing is posted if one of the peers does not exist, and earlier requests are not continued.
        let nobody = [0, 3].map(|peer| PeerSendWorkRequest::only_immediate(peer, 1).into());
        let error = star.center.batch(nobody).unwrap_err();
        assert!(matches!(error, TransportError::NoSuchPeer { peer: 3, count: 3 }), "{error}");
        assert_eq!((star.in_flight(), star.open()), (0, vec![0, 1, 2]));
    }
}

#[test]
fn a_batch_that_one_peer_does_not_answer_closes_only_its_connection() {
    let mut star = Star::new("soft0");
    star.expect_number(0);
    let limit = Duration::from_millis(20);
    // The second peer has no receive.
    let sends = [0, 1].map(|peer| PeerSendWorkRequest::only_immediate(peer, 1).into());
    let error = star.center.within(limit).batch(sends).unwrap_err();
    let TransportError::Collective(errors) = error else { panic!("{error}") };
    let late = |error: &OperationError| {
        let late =
            matches!(error.error, TransportError::Timeout { timeout, .. } if timeout == limit);
        (error.peer, late)
    };
    assert_eq!(errors.iter().map(late).collect::<Vec<_>>(), [(Some(1), true)]);
    assert_eq!((star.open(), star.in_flight()), (vec![0, 2], 0));
    let too_many = (0..17).map(|_| PeerSendWorkRequest::only_immediate(2, 1).into());
    let error = star.center.batch(too_many).unwrap_err();
    assert!(
        matches!(error, TransportError::BatchTooLarge { requests: 17, capacity: 16 }),
        "{error}"
    );
    assert_eq!(star.open(), [0, 2]);
}
