//! Simultaneous accesses of the device to the same bytes that safe code can request, and the time when it sees the
//! bytes.

use std::thread;
use std::time::Duration;

use crate::common::{DEFERRED, everything, must_end, open};
use rdma_channel::{Channel, MultiChannel, PeerReceiveWorkRequest, TransportError, prelude::*};
use rdma_mem::{GatherElement, GatherList, ProtectionDomain, ScatterElement};
use rdma_qp::{ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest};

const DEVICES: [&str; 2] = ["soft0", DEFERRED];
const SECONDS: Duration = Duration::from_secs(10);
/// Long enough for simultaneous copies.
const LENGTH: usize = 1 << 16;

/// Channels to two peers.
fn star(pd: &ProtectionDomain) -> (MultiChannel, [Channel; 2]) {
    let center = pd.create_multi_channel().num_channels(2).build().unwrap();
    let [one, other] = [(); 2].map(|()| pd.create_channel().build().unwrap());
    let ends = center.endpoints();
    let center = center.handshake([one.endpoint(), other.endpoint()]).unwrap();
    (center, [one.handshake(ends[0]).unwrap(), other.handshake(ends[1]).unwrap()])
}

#[test]
fn memory_of_an_element_posted_twice_is_returned_after_both_messages() {
    for device in DEVICES {
        must_end(move || {
            let pd = open(device).allocate_pd().unwrap();
            let (mut center, peers) = star(&pd);
            let mut memory = vec![0_u8; LENGTH];
            let region = pd.register_local_mr_slice(&memory).unwrap();
            let sending = [1, 2].into_iter().zip(peers).map(|(byte, mut peer)| {
                let mut data = pd.allocate_region(LENGTH).unwrap();
                data.fill(byte);
                thread::spawn(move || {
                    let list = GatherList::from([data.as_slice()]);
                    peer.send(SendWorkRequest::from_list(&list)).unwrap();
                })
            });
            let sending: Vec<_> = center
                .scope(|s| {
                    let mut room = [region.scatter_element(&mut memory)];
                    let one = s.post_receive(PeerReceiveWorkRequest::new(0, &mut room))?;
                    let other = s.post_receive(PeerReceiveWorkRequest::new(1, &mut room))?;
                    let sending = sending.collect();
                    for arrived in [one, other] {
                        assert_eq!(arrived.wait(SECONDS)?.scattered_bytes(), Some(LENGTH));
                    }
                    Ok::<_, TransportError>(sending)
                })
                .unwrap();
            sending.into_iter().for_each(|sender| sender.join().unwrap());
            assert!(memory.iter().all(|&byte| byte == 1 || byte == 2), "bytes of neither message");
        });
    }
}

#[test]
fn requests_with_the_same_memory_end_with_their_scope() {
    for device in DEVICES {
        must_end(move || {
            let pd = open(device).allocate_pd().unwrap();
            let channel = pd.create_channel().access(everything(&pd)).build().unwrap();
            let end = channel.endpoint();
            let mut channel = channel.handshake(end).unwrap();
            let board = pd.allocate_shared_region(LENGTH, everything(&pd)).unwrap();
            let mut region = pd.allocate_region(LENGTH).unwrap();
            for byte in 1..9 {
                board.write(0, &[byte; LENGTH]).unwrap();
                let mut slice = region.as_slice_mut();
                channel
                    .scope(|s| {
                        let mut room = [slice.scatter_element()];
                        for _ in 0..4 {
                            s.post_read(ReadWorkRequest::new(&mut room, board.remote()))?;
                        }
                        Ok::<_, TransportError>(())
                    })
                    .unwrap();
                assert!(region.iter().all(|&found| found == byte));
            }
        });
    }
}

/// No reference to the memory exists or can exist, so no contents are promised.
#[test]
fn shared_memory_is_sent_from_and_received_into_while_it_is_written() {
    for device in DEVICES {
        must_end(move || {
            let pd = open(device).allocate_pd().unwrap();
            let channel = pd.create_channel().build().unwrap();
            let end = channel.endpoint();
            let mut channel = channel.handshake(end).unwrap();
            let board = pd.allocate_shared_region(2 * LENGTH, everything(&pd)).unwrap();
            board.write(0, &[1; 2 * LENGTH]).unwrap();
            let source = board.element(0..LENGTH).unwrap();
            let target = board.element(LENGTH..2 * LENGTH).unwrap();
            thread::scope(|threads| {
                let writing = threads.spawn(|| {
                    for byte in [2, 1].into_iter().cycle().take(100) {
                        board.write(0, &[byte; 2 * LENGTH]).unwrap();
                    }
                });
                while !writing.is_finished() {
                    channel
                        .scope(|s| {
                            let mut room = [ScatterElement::from(target)];
                            let data = [GatherElement::from(source)];
                            for _ in 0..2 {
                                s.post_receive(ReceiveWorkRequest::new(&mut room))?;
                                s.post_send(SendWorkRequest::new(&data))?;
                            }
                            Ok::<_, TransportError>(())
                        })
                        .unwrap();
                }
            });
            let mut bytes = vec![0; 2 * LENGTH];
            board.read(0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|&byte| byte == 1 || byte == 2));
        });
    }
}
