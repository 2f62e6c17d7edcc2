//! Channels that connect by address, and sleep while they wait.

use std::thread;
use std::time::{Duration, Instant};

use rdma_channel::prelude::*;
use rdma_channel::{
    Armed, Channel, ChannelBuilder, CloseReason, PeerReceiveWorkRequest, PeerSendWorkRequest,
    Rendezvous, TransportError, Wait,
};
use rdma_mem::{AccessFlags, AtomicCapability, ProtectionDomain};
use rdma_qp::{MaxRnrRetries, ReceiveWorkRequest, SendWorkRequest};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::case::cases;
use crate::device::Device;

cases![
    messages_pass_however_their_ends_wait,
    a_sleeping_wait_ends_at_its_limit_and_changes_nothing,
    the_file_of_an_armed_channel_tells_of_a_completion,
    the_end_of_a_watched_peer_comes_behind_its_messages,
    the_number_that_was_there_comes_back,
    the_place_of_a_removed_peer_is_that_of_the_next,
];

/// The limit for all waits; only a hanging case reaches it.
const BOUND: Duration = Duration::from_secs(60);

fn domain(device: &Device) -> ProtectionDomain {
    rdma_mem::open_device(&**device).unwrap().allocate_pd().unwrap()
}

/// Connects two channels by address. Returns the connecting one and the listening one.
fn met(
    device: &Device,
    knobs: impl Fn(ChannelBuilder<'_, Rendezvous>) -> ChannelBuilder<'_, Rendezvous>,
) -> (Channel, Channel) {
    let (pd, far) = (domain(device), domain(device));
    let mut listener =
        knobs(far.create_channel().rendezvous_timeout(BOUND)).listen("127.0.0.1:0").unwrap();
    let to = listener.local_addr();
    thread::scope(|threads| {
        let accepted =
            threads.spawn(move || listener.incoming(Some(BOUND)).unwrap().accept(&[]).unwrap());
        let builder = knobs(pd.create_channel().rendezvous_timeout(BOUND));
        let (channel, _) = builder.connect(to).unwrap();
        (channel, accepted.join().unwrap())
    })
}

fn messages_pass_however_their_ends_wait(device: &Device) {
    for wait in [Wait::Spin, Wait::SpinThenSleep, Wait::Sleep] {
        let (mut here, mut there) = met(device, |builder| builder.wait(wait));
        let echo = thread::spawn(move || {
            let mut room = there.pd().allocate_region(64).unwrap();
            for round in 0..20 {
                let length = there.receive_into(&mut room).unwrap();
                if round % 4 == 0 {
                    thread::sleep(Duration::from_millis(1));
                }
                there.send_from(room.get_ref(0, length).unwrap()).unwrap();
            }
        });
        let mut room = here.pd().allocate_region(64).unwrap();
        for round in 0..20_u8 {
            let text = [round; 9];
            here.send_inline(&text).unwrap();
            let length = here.receive_into(&mut room).unwrap();
            assert_eq!(room[..length], text);
        }
        echo.join().unwrap();
    }
}

fn a_sleeping_wait_ends_at_its_limit_and_changes_nothing(device: &Device) {
    const SHORT: Duration = Duration::from_millis(100);
    let (mut here, mut there) = met(device, |builder| builder.wait(Wait::Sleep));
    let number = here.scope(|s| {
        let room = s.post_receive(ReceiveWorkRequest::only_immediate())?;
        let begin = Instant::now();
        let late = room.wait(SHORT).unwrap_err();
        assert!(matches!(late, TransportError::Timeout { .. }), "{late:?}");
        assert!(begin.elapsed() >= SHORT);
        there.send(SendWorkRequest::only_immediate(8))?;
        Ok::<_, TransportError>(room.wait(BOUND)?.immediate_data())
    });
    assert_eq!(number.unwrap(), Some(8));
}

fn the_file_of_an_armed_channel_tells_of_a_completion(device: &Device) {
    let (mut here, mut there) = met(device, |builder| builder.wait(Wait::Sleep));
    let is_readable = |file: &rdma_channel::Waitable<'_>, limit: Duration| {
        let limit = Timespec::try_from(limit).unwrap();
        poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&limit)).unwrap() == 1
    };
    let numbers = here.scope(|s| {
        let rooms = [
            s.post_receive(ReceiveWorkRequest::only_immediate())?,
            s.post_receive(ReceiveWorkRequest::only_immediate())?,
        ];
        let file = s.waitable().unwrap();
        let mut numbers = Vec::new();
        for (room, number) in rooms.iter().zip(1..) {
            assert_eq!(s.arm()?, Armed::Sleep);
            assert!(!is_readable(&file, Duration::ZERO));
            there.send(SendWorkRequest::only_immediate(number))?;
            assert!(is_readable(&file, BOUND));
            let begin = Instant::now();
            numbers.push(loop {
                assert!(begin.elapsed() < BOUND);
                if let Some(received) = room.poll() {
                    break received?.immediate_data();
                }
            });
        }
        Ok::<_, TransportError>(numbers)
    });
    assert_eq!(numbers.unwrap(), [Some(1), Some(2)]);
}

fn the_end_of_a_watched_peer_comes_behind_its_messages(device: &Device) {
    for wait in [Wait::Spin, Wait::Sleep] {
        let (mut here, mut there) = met(device, |builder| builder.wait(wait).watch(BOUND));
        let peer = thread::spawn(move || {
            for number in 0..3 {
                there.send(SendWorkRequest::only_immediate(number)).unwrap();
            }
        });
        for number in 0..3 {
            let received = here.within(BOUND).receive(ReceiveWorkRequest::only_immediate());
            assert_eq!(received.unwrap().immediate_data(), Some(number));
        }
        let gone = here.within(BOUND).receive(ReceiveWorkRequest::only_immediate()).unwrap_err();
        assert!(matches!(gone, TransportError::PeerGone { .. }), "{gone}");
        assert!(matches!(here.closed(), Some(CloseReason::Disconnected)));
        peer.join().unwrap();
    }
}

fn the_number_that_was_there_comes_back(device: &Device) {
    let capability = domain(device).context().query_device().unwrap().atomic_capability;
    device.needs(capability != AtomicCapability::NONE, "the device has no atomics");
    let access = AccessFlags::new().with_local_write().with_remote_atomic();
    let (mut here, there) = met(device, |builder| builder.access(access));
    let word = there.pd().allocate_shared_region(8, access).unwrap();
    let at = word.remote();
    assert_eq!(here.fetch_add(at, 5).unwrap(), 0);
    assert_eq!(here.fetch_add(at, 1).unwrap(), 5);
    assert_eq!(here.compare_and_swap(at, 6, 100).unwrap(), 6);
    assert_eq!(
        here.compare_and_swap(at, 6, 200).unwrap(),
        100,
        "the value differs, so nothing is swapped"
    );
    assert_eq!(here.fetch_add(at, 0).unwrap(), 100);
}

fn the_place_of_a_removed_peer_is_that_of_the_next(device: &Device) {
    let (pd, far) = (domain(device), domain(device));
    let builder = pd.create_multi_channel().num_channels(0).max_channels(2).wait(Wait::Sleep);
    let mut center = builder.build().unwrap().handshake([]).unwrap();
    let add = |center: &mut rdma_channel::MultiChannel| {
        let builder = far.create_channel().max_rnr_retries(MaxRnrRetries::unlimited());
        let there = builder.wait(Wait::Sleep).build().unwrap();
        let here = center.prepare().unwrap();
        let told = here.endpoint();
        let peer = center.add(here, there.endpoint()).unwrap();
        (peer, there.handshake(told).unwrap())
    };
    let (first, _gone) = add(&mut center);
    let (second, mut stays) = add(&mut center);
    assert_eq!((first, second), (0, 1));
    for round in 0..4 {
        center.remove(first).unwrap();
        let sent = center.send(PeerSendWorkRequest::only_immediate(first, 1)).unwrap_err();
        let is_it = matches!(sent, TransportError::Closed { reason: CloseReason::Absent, .. });
        assert!(is_it, "{sent}");
        let (peer, mut there) = add(&mut center);
        assert_eq!(peer, first);
        for (peer, there) in [(first, &mut there), (second, &mut stays)] {
            let number = center.scope(|s| {
                let room = s.post_receive(PeerReceiveWorkRequest::only_immediate(peer))?;
                there.send(SendWorkRequest::only_immediate(round))?;
                Ok::<_, TransportError>(room.wait(BOUND)?.immediate_data())
            });
            assert_eq!(number.unwrap(), Some(round));
        }
    }
}
