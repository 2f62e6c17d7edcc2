//! One operation for each of several peers.
#![allow(unsafe_code)]

use std::thread;

use rdma_channel::{
    PeerReadWorkRequest, PeerReceiveWorkRequest, PeerSendWorkRequest, PeerWriteWorkRequest,
    TransportError,
};
use rdma_qp::{SendWorkRequest, WcOpcode};

use crate::multi_channel::{DEVICES, SECONDS, Star};

/// Peers out of order, one of them twice.
const ORDER: [usize; 4] = [2, 0, 1, 0];

#[test]
fn results_are_in_the_order_of_the_requests() {
    for device in DEVICES {
        let mut star = Star::new(device);
        for (place, &peer) in ORDER.iter().enumerate() {
            star.send_number(peer, place as u32);
        }
        let rooms = ORDER.map(PeerReceiveWorkRequest::only_immediate);
        let received = star.center.within(SECONDS).gather_receive(rooms).unwrap();
        let numbers: Vec<_> = received.iter().map(|done| done.immediate_data()).collect();
        assert_eq!(numbers, [0, 1, 2, 3].map(Some));
        assert_eq!(star.open(), [0, 1, 2]);
    }
}

#[test]
fn scattered_bytes_are_gathered_again() {
    for device in DEVICES {
        let mut star = Star::new(device);
        let remotes = [2, 0, 1].map(|peer| star.remote(peer));
        let mut memory: [u8; 24] = std::array::from_fn(|i| i as u8);
        let region = star.pd.register_local_mr_slice(&memory).unwrap();
        let data: Vec<_> = memory.chunks(8).map(|data| [region.gather_element(data)]).collect();
        let writes = data.iter().zip(remotes).map(|(data, to)| PeerWriteWorkRequest::new(data, to));
        let done = star.center.scatter_write(writes).unwrap();
        assert_eq!(
            done.iter().map(|done| done.opcode()).collect::<Vec<_>>(),
            [WcOpcode::RDMA_WRITE; 3]
        );
        memory.fill(0);
        let chunks = memory.chunks_mut(8);
        let mut room: Vec<_> = chunks.map(|room| [region.scatter_element(room)]).collect();
        let reads =
            room.iter_mut().zip(remotes).map(|(room, from)| PeerReadWorkRequest::new(room, from));
        assert_eq!(star.center.gather_read(reads).unwrap().len(), 3);
        assert_eq!(memory, std::array::from_fn::<_, 24, _>(|i| i as u8));
    }
}

#[test]
fn messages_go_to_each_peer_and_to_several() {
    for device in DEVICES {
        let mut star = Star::new(device);
        ORDER.into_iter().for_each(|peer| star.expect_number(peer));
        let sends = ORDER.map(|peer| PeerSendWorkRequest::only_immediate(peer, 1));
        assert_eq!(star.center.scatter_send(sends).unwrap().len(), 4);
        [2, 1].into_iter().for_each(|peer| star.expect_number(peer));
        let done =
            star.center.multicast_send([2, 1], SendWorkRequest::only_immediate(1).signaled(false));
        assert_eq!(done.unwrap().len(), 2);
        assert_eq!(star.center.scatter_send([]).unwrap(), []);
        assert_eq!(star.open(), [0, 1, 2]);
    }
}

#[test]
fn each_operation_of_a_collective_in_a_scope_has_a_handle() {
    for device in DEVICES {
        let mut star = Star::new(device);
        ORDER.into_iter().for_each(|peer| star.expect_number(peer));
        ORDER.into_iter().for_each(|peer| star.send_number(peer, peer as u32));
        let remotes = [0, 1, 2].map(|peer| star.remote(peer));
        let mut memory = [5; 48];
        let region = star.pd.register_local_mr_slice(&memory).unwrap();
        let (from, to) = memory.split_at_mut(24);
        let data: Vec<_> = from.chunks(8).map(|data| [region.gather_element(data)]).collect();
        // Declared outside the scope, and mutable: the elements outlive it.
        let mut room: Vec<_> =
            to.chunks_mut(8).map(|room| [region.scatter_element(room)]).collect();
        let numbers = star.center.manual_scope(|s| {
            let rooms = s.post_gather_receive(ORDER.map(PeerReceiveWorkRequest::only_immediate))?;
            let sent = s.post_multicast_send(ORDER, SendWorkRequest::only_immediate(9))?;
            let writes =
                data.iter().zip(remotes).map(|(data, to)| PeerWriteWorkRequest::new(data, to));
            let written = s.post_scatter_write(writes)?;
            for done in sent.iter().chain(&written) {
                done.wait(SECONDS)?;
            }
            let reads = room.iter_mut().zip(remotes);
            let reads = reads.map(|(room, from)| PeerReadWorkRequest::new(room, from));
            for done in s.post_gather_read(reads)? {
                done.wait(SECONDS)?;
            }
            rooms
                .iter()
                .map(|room| Ok(room.wait(SECONDS)?.immediate_data()))
                .collect::<Result<Vec<_>, _>>()
        });
        let numbers: Result<_, TransportError> = numbers;
        assert_eq!(numbers.unwrap(), ORDER.map(|peer| Some(peer as u32)));
        assert_eq!(memory, [5; 48]);
    }
}

#[test]
fn each_unpolled_operation_of_a_collective_has_a_handle() {
    let star = Star::new("soft0");
    let rooms = ORDER.map(PeerReceiveWorkRequest::only_immediate);
    // SAFETY: SAFETY.md F8: the requests have no memory, here and below.
    let rooms = unsafe { star.center.gather_receive_unpolled(rooms) }.unwrap();
    for (place, &peer) in ORDER.iter().enumerate() {
        star.send_number(peer, place as u32);
        star.expect_number(peer);
    }
    let sends = SendWorkRequest::only_immediate(1);
    // SAFETY: SAFETY.md F8: as above.
    let sent = unsafe { star.center.multicast_send_unpolled(ORDER, sends) }.unwrap();
    sent.iter().for_each(|sent| assert!(sent.wait(SECONDS).is_ok()));
    let numbers: Vec<_> =
        rooms.iter().map(|room| room.wait(SECONDS).unwrap().immediate_data()).collect();
    assert_eq!(numbers, [0, 1, 2, 3].map(Some));
}

#[test]
fn unpolled_scattered_bytes_are_gathered_again() {
    for device in DEVICES {
        let star = Star::new(device);
        let remotes = [2, 0, 1].map(|peer| star.remote(peer));
        let [mut from, mut to] = [(); 2].map(|()| star.pd.allocate_region(24).unwrap());
        from.copy_from_slice(&std::array::from_fn::<_, 24, _>(|i| i as u8));
        let data = [0, 8, 16].map(|at| [from.get_ref(at, 8).unwrap().gather_element()]);
        let writes = data.iter().zip(remotes).map(|(data, to)| PeerWriteWorkRequest::new(data, to));
        // SAFETY: SAFETY.md F8: the memory is left alone until the requests have completed; here and below.
        let written = unsafe { star.center.scatter_write_unpolled(writes) }.unwrap();
        written.iter().for_each(|written| assert!(written.wait(SECONDS).is_ok()));
        let (one, rest) = to.as_slice_mut().split_at(8);
        let (other, last) = rest.split_at(8);
        let mut room = [one, other, last];
        let mut room: Vec<_> = room.iter_mut().map(|room| [room.scatter_element()]).collect();
        let reads = room.iter_mut().zip(remotes);
        let reads = reads.map(|(room, from)| PeerReadWorkRequest::new(room, from));
        // SAFETY: SAFETY.md F8: as above.
        let read = unsafe { star.center.gather_read_unpolled(reads) }.unwrap();
        read.iter().for_each(|read| assert!(read.wait(SECONDS).is_ok()));
        assert_eq!(*to, *from);
    }
}

#[test]
fn each_peer_has_a_queue_of_the_requested_depth() {
    let mut star = Star::with("soft0", |builder| builder.max_recv_wr(4).max_send_wr(2));
    for peer in [0, 1, 2].repeat(4) {
        star.send_number(peer, 1);
    }
    let all = (0..12).map(|i| PeerReceiveWorkRequest::only_immediate(i % 3));
    assert_eq!(star.center.within(SECONDS).gather_receive(all).unwrap().len(), 12);
    let sender = thread::spawn(move || {
        let all = (0..9).map(|i| PeerSendWorkRequest::only_immediate(i % 3, 1));
        let error = star.center.scatter_send(all).unwrap_err();
        assert!(matches!(error, TransportError::WouldBlock), "{error}");
    });
    sender.join().unwrap();
}
