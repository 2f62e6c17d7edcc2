//! Inline data in each form of operation: its bytes are needed only until the post.
#![allow(unsafe_code)]

use std::sync::LazyLock;

use crate::common::{DEFERRED, DEVICES, HANG, Pair, WIRE, everything, lacks, open};
use rdma_channel::{MultiChannel, PeerRemoteMemoryRegion, ToPeer, TransportError, prelude::*};
use rdma_mem::{InlineElement, ProtectionDomain, SharedRegion};
use rdma_qp::{
    PostErrorKind, QueuePairType, ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest,
};
use test_support::features::Feature;

/// Each transport, posted to by lists and by calls.
const FORMS: [(QueuePairType, bool); 4] = [
    (QueuePairType::RC, false),
    (QueuePairType::RC, true),
    (QueuePairType::UC, false),
    (QueuePairType::UC, true),
];

fn lacks_transport(device: &str, (qp_type, _): (QueuePairType, bool)) -> bool {
    qp_type == QueuePairType::UC && lacks(device, Feature::Uc)
}

fn pair(device: &str, (qp_type, extended): (QueuePairType, bool)) -> Pair {
    Pair::with(device, |builder| builder.max_inline_data(32).qp_type(qp_type).extended(extended))
}

fn read(board: &SharedRegion, at: usize) -> [u8; 8] {
    let mut bytes = [0; 8];
    board.read(at, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_blocking_call_sends_and_writes_unregistered_bytes() {
    if lacks("soft0", Feature::Inline(32)) {
        return;
    }
    for form in FORMS {
        for device in ["soft0", DEFERRED, WIRE] {
            if lacks_transport(device, form) {
                continue;
            }
            let mut pair = pair(device, form);
            let remote = pair.board.remote();
            let mut room = pair.there.pd().allocate_region(16).unwrap();
            let received = pair.there.scope(|s| {
                let (first, second) = room.as_slice_mut().split_at(8);
                let rooms = [s.receive_into(first)?, s.receive_into(second)?];
                pair.here.send_inline(&[1; 8])?;
                pair.here.write_inline(&[2; 8], remote)?;
                let data = [InlineElement::new(&[3; 4]), InlineElement::new(&[4; 4])];
                pair.here.send(SendWorkRequest::inline(&data).with_immediate(5))?;
                let [one, other] = rooms.map(|room| room.wait(HANG).unwrap().result);
                Ok::<_, TransportError>([one?.immediate_data(), other?.immediate_data()])
            });
            assert_eq!(received.unwrap(), [None, Some(5)], "{device} {form:?}");
            assert_eq!(*room, [1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 4, 4, 4, 4]);
            assert_eq!(read(&pair.board, 0), [2; 8], "{device} {form:?}");
        }
    }
}

/// The data posted instead of rented memory, which is returned nevertheless.
static INSTEAD: LazyLock<[InlineElement<'static>; 1]> =
    LazyLock::new(|| [InlineElement::new(&[6; 8])]);

#[test]
fn inline_bytes_of_a_scope_are_free_after_their_post() {
    if lacks("soft0", Feature::Inline(32)) {
        return;
    }
    let devices = DEVICES.into_iter().chain([WIRE]);
    for (device, form) in devices.flat_map(|name| FORMS.map(|form| (name, form))) {
        if lacks_transport(device, form) {
            continue;
        }
        let mut pair = pair(device, form);
        let (remote, device_of, here) = (pair.board.remote(), pair.device, pair.here.qpn());
        let place = |at| remote.sub_region(at).unwrap();
        let mut rented = pair.memory(8, 0xee);
        let mut room = pair.there.pd().allocate_region(16).unwrap();
        let far = pair.there.scope(|there| {
            let (first, second) = room.as_slice_mut().split_at(8);
            let rooms = [there.receive_into(first)?, there.receive_into(second)?];
            let near = pair.here.scope(|s| {
                let mut bytes = [1; 8];
                let mut posted = vec![s.send_inline(&bytes)?];
                bytes.fill(2);
                posted.push(s.write_inline(&bytes, place(0))?);
                bytes.fill(3);
                let lent = s.write_from_with(rented.as_slice_mut(), place(16), |_| {
                    WriteWorkRequest::inline(&*INSTEAD, place(16))
                });
                {
                    let data = [InlineElement::new(&bytes)];
                    let write = WriteWorkRequest::inline(&data, place(8));
                    // Posted last, because its receive shows that all has arrived: with UC, completions only show that
                    // requests were sent.
                    let send = SendWorkRequest::inline(&data).with_immediate(7);
                    posted.extend(s.post_batch([write.into(), send.into()])?);
                }
                bytes.fill(5);
                device_of.release(here.unwrap(), u32::MAX);
                for work in posted {
                    work.wait(HANG)?;
                }
                assert_eq!(lent?.wait(HANG).unwrap().buf.len(), 8);
                assert_eq!(bytes, [5; 8]);
                Ok::<_, TransportError>(())
            });
            near.unwrap();
            let [one, other] = rooms.map(|room| room.wait(HANG).unwrap().result);
            Ok::<_, TransportError>([one?.immediate_data(), other?.immediate_data()])
        });
        assert_eq!(far.unwrap(), [None, Some(7)], "{device} {form:?}");
        assert_eq!(*room, [[1; 8], [3; 8]].concat(), "{device} {form:?}");
        let written = [0, 8, 16].map(|at| read(&pair.board, at));
        assert_eq!(written, [[2; 8], [3; 8], [6; 8]], "{device} {form:?}");
    }
}

/// Channels to two peers, both in this process, and a board for each.
fn looped(device: &str, extended: bool) -> (MultiChannel, [SharedRegion; 2], ProtectionDomain) {
    let pd = open(device).allocate_pd().unwrap();
    let builder =
        pd.create_multi_channel().num_channels(2).max_inline_data(32).access(everything(&pd));
    let prepared = builder.extended(extended).build().unwrap();
    let endpoints = prepared.endpoints();
    let boards = [(); 2].map(|()| pd.allocate_shared_region(64, everything(&pd)).unwrap());
    (prepared.handshake(endpoints).unwrap(), boards, pd)
}

#[test]
fn each_peer_receives_its_own_bytes() {
    if lacks("soft0", Feature::Inline(32)) {
        return;
    }
    for (device, extended) in
        [("soft0", false), ("soft0", true), (DEFERRED, false), (DEFERRED, true)]
    {
        let (mut channels, boards, pd) = looped(device, extended);
        let remote = |peer: usize| PeerRemoteMemoryRegion::new(peer, boards[peer].remote());
        let mut room = pd.allocate_region(48).unwrap();
        for peer in [0, 1] {
            let bytes = [u8::try_from(peer).unwrap() + 1; 8];
            let data = [InlineElement::new(&bytes)];
            let write = WriteWorkRequest::inline(&data, remote(peer).remote());
            channels.write(ToPeer::from_wr(peer, write)).unwrap();
        }
        let numbers = channels.scope(|s| {
            let (mut slices, mut rest) = (Vec::new(), room.as_slice_mut());
            for _ in 0..6 {
                let (slice, others) = rest.split_at(8);
                slices.push(slice);
                rest = others;
            }
            let mut rooms = Vec::new();
            for (place, slice) in slices.into_iter().enumerate() {
                rooms.push(s.to(place % 2)?.receive_into(slice)?);
            }
            let mut bytes = [3; 8];
            for peer in [0, 1] {
                let to = s.to(peer)?;
                to.send_inline(&bytes)?;
                bytes.fill(4);
                to.write_inline(&bytes, boards[peer].remote().sub_region(8).unwrap())?;
                bytes.fill(3);
            }
            bytes.fill(5);
            {
                let data = [InlineElement::new(&bytes)];
                let send =
                    |peer| ToPeer::from_wr(peer, SendWorkRequest::inline(&data).with_immediate(9));
                s.post_scatter_send([0, 1].map(send))?;
                let place = |peer: usize| boards[peer].remote().sub_region(16).unwrap();
                let write =
                    |peer| ToPeer::from_wr(peer, WriteWorkRequest::inline(&data, place(peer)));
                s.post_scatter_write([0, 1].map(write))?;
                s.post_multicast_send([0, 1], SendWorkRequest::inline(&data))?;
            }
            bytes.fill(0xee);
            let done = rooms.into_iter().map(|room| room.wait(HANG).unwrap().result);
            done.map(|done| Ok(done?.immediate_data())).collect::<Result<Vec<_>, TransportError>>()
        });
        assert_eq!(numbers.unwrap(), [None, None, Some(9), Some(9), None, None], "{device}");
        assert_eq!(*room, [[3; 16], [5; 16], [5; 16]].concat(), "{device}");
        for (peer, board) in boards.iter().enumerate() {
            let written = [0, 8, 16].map(|at| read(board, at));
            assert_eq!(written, [[u8::try_from(peer).unwrap() + 1; 8], [4; 8], [5; 8]], "{device}");
        }
    }
}

#[test]
fn a_blocking_send_to_a_peer_accepts_unregistered_bytes() {
    if lacks("soft0", Feature::Inline(32)) {
        return;
    }
    let (mut channels, _boards, pd) = looped("soft0", false);
    let mut room = pd.allocate_region(8).unwrap();
    let mut slice = room.as_slice_mut();
    let mut elements = [slice.scatter_element()];
    let receive = ReceiveWorkRequest::new(&mut elements);
    let receive = rdma_channel::PeerReceiveWorkRequest::from_wr(1, receive);
    // SAFETY: SAFETY.md F8: the region is left alone until the completion of the send below, which on this device
    // follows that of the receive.
    drop(unsafe { channels.receive_unpolled(receive) }.unwrap());
    let data = [InlineElement::new(&[7; 8])];
    let send = |peer| ToPeer::from_wr(peer, SendWorkRequest::inline(&data));
    channels.send(send(1)).unwrap();
    assert_eq!(*room, [7; 8]);
    let error = channels.send(send(2)).unwrap_err();
    assert!(matches!(error, TransportError::NoSuchPeer { peer: 2, count: 2 }), "{error}");
}

#[test]
fn more_inline_bytes_than_the_channel_takes_are_refused_and_nothing_has_changed() {
    if lacks("soft0", Feature::Inline(64)) {
        return;
    }
    let mut pair = Pair::with("soft0", |builder| builder);
    let most = pair.here.query().unwrap().capabilities.max_inline_data as usize;
    let long = vec![1; most + 1];
    let remote = pair.board.remote();
    let kind = |error| match error {
        TransportError::PostError(error) => error.kind(),
        other => panic!("{other}"),
    };
    let blocking = [pair.here.send_inline(&long), pair.here.write_inline(&long, remote)]
        .map(Result::unwrap_err);
    assert_eq!(blocking.map(kind), [PostErrorKind::TooMuchInline; 2]);
    let scoped = pair.here.scope(|s| {
        let refused = [s.send_inline(&long), s.write_inline(&long, remote)];
        Ok::<_, TransportError>(refused.map(|post| kind(post.map(drop).unwrap_err())))
    });
    assert_eq!(scoped.unwrap(), [PostErrorKind::TooMuchInline; 2]);
    assert!(pair.here.closed().is_none());
    pair.here.write_inline(&long[..most], remote).unwrap();
}
