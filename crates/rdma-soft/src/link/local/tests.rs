#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // A failing helper fails its test.

mod waiting;

use std::fs::{DirBuilder, Permissions};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::sync::{OnceLock, Weak};

use rdma_proto::wire::{Bth, Headers, Opcode, Operation};
use rdma_proto::{Burst, Last};
use rdma_types::Psn;
use rustix::event::epoll;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::io::pwrite;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType, connect, recv, send, sendmsg, socketpair,
};

use super::head::VERSION;
use super::host::{LocalHost, Peers};
use super::shared::{GAP, Message, RingReceiver};
use super::socket::receive_ring;
use super::*;
use crate::address::{Address, Path};
use crate::device::Host as _;
use crate::device::gid_place::GidPlace;
use crate::device::subnet::Subnet;
use crate::engine::wire::Carrier as _;
use crate::engine::wire::letter::Letter;
use crate::engine::wire::word::WordKey;
use crate::fabric::random::Seed;
use crate::limits::Limits;
use crate::link::Link;
use crate::link::driver::{SocketEvent, Token, Watched as _};
use crate::link::files;
use crate::link::ring::CAPACITY;
use crate::schedule::Schedule;

pub(super) struct World {
    subnet: OnceLock<Subnet>,
    device: OnceLock<Device>,
    driver: OnceLock<Driver>,
}

impl World {
    pub(super) const fn new() -> Self {
        Self { subnet: OnceLock::new(), device: OnceLock::new(), driver: OnceLock::new() }
    }

    /// Returns a device, and a driver without a thread.
    pub(super) fn get(&'static self) -> (&'static Device, &'static Driver) {
        self.get_with(Subnet::new)
    }

    fn get_with(&'static self, subnet: fn() -> Subnet) -> (&'static Device, &'static Driver) {
        let subnet = self.subnet.get_or_init(subnet);
        subnet.serve_by_polls_alone();
        let (limits, schedule) = (Limits::default(), Schedule::Immediate);
        let (link, seed) = (Link::Ethernet, Seed::new(1));
        let device = self.device.get_or_init(|| {
            let (name, gids) = ("d".to_owned(), GidPlace::usual(link));
            let mut device = Device::new(subnet, name, link, gids, limits, schedule, &seed);
            let (host, seed) = LocalHost::new("d", "", Peers::SameUser, None).unwrap();
            device.join_host(Box::new(host), &seed);
            device
        });
        (device, self.driver.get_or_init(|| Driver::new(subnet).unwrap()))
    }
}

/// Creates both ends of a connection.
pub(super) fn connection() -> (Descriptor, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    (Descriptor::open(|| Ok(one)).unwrap(), other)
}

/// Adds a connection on which the device only sends. Returns it with its other end and its ring.
fn neighbor(
    device: &'static Device,
    driver: &'static Driver,
) -> (Arc<Neighbor>, OwnedFd, RingReceiver) {
    let (connection, far) = connection();
    let (sender, receiver, file) = ring();
    let file = Descriptor::open(|| Ok(file)).unwrap();
    let new =
        |token| Neighbor::new(driver, device, connection, (sender, Handshake::new(file)), token);
    let neighbor = driver.add(new).unwrap();
    // The other end receives the file, and drops it: the test already has a receiver for the ring.
    send(&far, &[VERSION], SendFlags::DONTWAIT).unwrap();
    assert_eq!(Arc::clone(&neighbor).handle_event(epoll::EventFlags::IN), SocketEvent::Other);
    device.fabric.run_queue.run();
    expendable::start().unwrap();
    Foreign::prepare().unwrap();
    let other = Descriptor::open(|| far.try_clone().map_err(|_| Errno::MFILE)).unwrap();
    assert!(receive_ring(&other).is_ok());
    (neighbor, far, receiver)
}

/// Creates both ends of a ring, and its file.
fn ring() -> (RingSender, RingReceiver, OwnedFd) {
    let (sender, file) = RingSender::new().unwrap();
    let receiver = RingReceiver::open(file.as_fd()).unwrap();
    (sender, receiver, file)
}

/// A thread fetches an event of the first socket while another thread closes that socket. The next socket then has the
/// same index.
#[test]
fn a_late_event_is_not_taken_for_one_of_the_next_socket() {
    static WORLD: World = World::new();
    let (device, driver) = WORLD.get();
    let (first, _far, _ring) = neighbor(device, driver);
    driver.close(first.token);
    let (second, _far, _ring) = neighbor(device, driver);
    assert_eq!(first.token.index, second.token.index);
    assert_eq!(Token::of(second.token.data()), second.token);
    assert!(driver.at(first.token).is_none());
    driver.close(first.token);
    first.disconnect();
    assert!(driver.at(second.token).is_some());
    assert!(first.has_ended() && !second.has_ended());
}

/// Tests a connection, and a connection that was never accepted.
#[test]
fn an_emptied_socket_holds_and_receives_nothing() {
    let file = ring().2;
    let send_file = |socket: &OwnedFd, bytes: &[u8]| {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let (mut along, files) = (SendAncillaryBuffer::new(&mut space), [file.as_fd()]);
        along.push(SendAncillaryMessage::ScmRights(&files));
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(socket, &[IoSlice::new(bytes)], &mut along, flags)
    };
    let (near, far) = connection();
    // Messages without bytes are not the end of the connection.
    for bytes in [&[][..], &[1], &[], &[1; 100]] {
        assert_eq!(send_file(&far, bytes), Ok(bytes.len()));
        assert_eq!(send(&far, &[], SendFlags::DONTWAIT), Ok(0));
    }
    assert!(files::peek(near.get().unwrap()).unwrap().has_files);
    files::empty(near.get().unwrap());
    let next = files::peek(near.get().unwrap());
    assert_eq!(next, Ok(files::Next { bytes: 0, has_files: false }), "it is not empty");
    let late = send(&far, &[1], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    assert_eq!(late, Err(Errno::PIPE));
    let name = format!("rdma-soft-emptied-{}", std::process::id());
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let (listener, waiting) = (socket().unwrap(), socket().unwrap());
    bind(&listener, &address).unwrap();
    listen(&listener, 1).unwrap();
    connect(&waiting, &address).unwrap();
    assert_eq!(send_file(&waiting, &[1]), Ok(1));
    files::empty(listener.as_fd());
    assert_eq!(connect(socket().unwrap(), &address), Err(Errno::CONNREFUSED));
    assert_eq!(send_file(&waiting, &[1]), Err(Errno::PIPE), "it was not emptied");
}

/// A killed process leaves only its files.
#[test]
fn a_name_of_a_directory_is_free_when_its_process_has_ended() {
    static WORLD: World = World::new();
    let (device, _) = WORLD.get();
    let path = std::env::temp_dir().join(format!("rdma-soft-names-{}", std::process::id()));
    DirBuilder::new().mode(0o700).create(&path).unwrap();
    let host = || LocalHost::new("d", "", Peers::SameUser, Some(&path)).map(|(host, _)| host);
    let [one, other] = [(); 2].map(|()| host().unwrap());
    assert!(one.claim(device, 5) && !other.claim(device, 5) && other.claim(device, 6));
    // This releases its locks, but its socket files remain.
    drop(one);
    assert!(other.claim(device, 5));
    for mode in [0o770, 0o701, 0o707] {
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let error = host().unwrap_err().to_string();
        assert!(error.contains("mkdir -m 700"), "{mode:o}: {error}");
    }
    std::fs::remove_dir_all(&path).unwrap();
    let error = host().unwrap_err().to_string();
    assert!(error.contains("cannot be used"), "{error}");
}

/// This also holds if a failed send shows that the process has exited, before any event does.
#[test]
fn an_ended_process_keeps_no_descriptor() {
    static WORLD: World = World::new();
    let (device, driver) = WORLD.get();
    let (neighbor, far, _ring) = neighbor(device, driver);
    neighbor.disconnect();
    drop(neighbor);
    let read = recv(&far, &mut [0], RecvFlags::DONTWAIT);
    assert_eq!(read.map(|(read, _)| read), Ok(0), "it is still open");
}

#[test]
fn a_connecting_process_has_a_number_and_a_user() {
    let (one, _other) = connection();
    let (process, user) = one.peer().unwrap();
    let own = i32::try_from(std::process::id()).unwrap();
    assert_eq!(process.map(std::num::NonZeroI32::get), Some(own));
    assert_eq!(user, rustix::process::geteuid().as_raw());
}

/// Waiting bursts leave in as few messages as possible: an acknowledgement leaves with the data after it. A long
/// payload is the first of its message, since the receiver copies the others.
#[test]
fn several_bursts_leave_in_one_message() {
    static WORLD: World = World::new();
    let (device, link) = WORLD.get();
    let (neighbor, far, ring) = neighbor(device, link);
    let (opcode, number) = (Opcode::reliable(Operation::SendOnly), rdma_types::Qpn::masked(5));
    let local = Address::Gid(device.identity.gids[0]);
    let path = Path { local, remote: local };
    let sender: Weak<Neighbor> = Arc::downgrade(&neighbor);
    for length in [0, 8, 4096, 4096, 0, 0, 0, 0, 0, 0, 60 << 10, 0] {
        let buffer = neighbor.buffer(sender.clone()).unwrap();
        let header = Headers::new(Bth::new(opcode, number, rdma_types::Psn::masked(9)));
        let mut burst = Burst::single(header, length);
        if length > 4096 {
            burst.last = Some(Last::of(&header));
            (burst.segment, burst.segments) = (4096, 15);
        }
        Arc::clone(&neighbor).send(Letter::new(path, burst, None, buffer));
    }
    device.fabric.run_queue.run();
    let mut bytes = vec![0; 100_000];
    let mut read =
        || Ok(take(&ring, &mut [0; GAP as usize], &mut bytes)?.map(|(message, _)| message.length));
    assert_eq!(read(), Ok(Some(8 * head::HEAD + 8 + 2 * 4096)));
    assert_eq!(read(), Ok(Some(2 * head::HEAD)));
    assert_eq!(read(), Ok(Some(2 * head::HEAD + (60 << 10))));
    assert_eq!(read(), Ok::<_, Errno>(None));
    // The receiver was notified of the first message, and has not looked since.
    let notified = || recv(&far, &mut [0; 2], RecvFlags::DONTWAIT).map(|(read, _)| read);
    assert_eq!((notified(), notified()), (Ok(1), Err(Errno::AGAIN)));
}

/// The size of a message without bytes.
const LEAST: u32 = 64;

fn write(sender: &RingSender, bytes: &[u8]) -> Result<Option<bool>> {
    sender.write([bytes].into_iter(), 0)
}

/// Reads a message, and removes it from the ring. Also returns whether to notify the sender of space.
fn take<const N: usize>(
    receiver: &RingReceiver,
    first: &mut [u8; N],
    behind: &mut [u8],
) -> Result<Option<(Message, bool)>> {
    let Some(message) = receiver.next(first)? else { return Ok(None) };
    Ok(Some((message, receiver.take(message, behind)?)))
}

/// Reads a message: its first five bytes into one buffer, and up to `most` bytes into another. Returns the message, and
/// whether to notify the sender of space.
fn read(receiver: &RingReceiver, most: usize) -> Result<Option<(Vec<u8>, bool)>> {
    let (mut first, mut behind) = ([0xee; GAP as usize + 5], vec![0xee; most]);
    let message = take(receiver, &mut first, &mut behind)?;
    Ok(message.map(|(message, notify)| {
        let all = [&first[GAP as usize..], &behind].concat();
        assert!(all[message.length.max(5)..].iter().all(|byte| *byte == 0xee));
        (all[..message.length].to_vec(), notify)
    }))
}

/// Messages begin at many positions in the ring. Their lengths include multiples of the alignment.
#[test]
fn messages_of_any_length_are_read_as_written() {
    let (sender, receiver, _) = ring();
    let lengths = [0, 1, 4, 5, 6, 47, 48, 49, 96, 97, 1000, 4096, 60_001, 100_000];
    let mut all = 0;
    for round in 0..40_u8 {
        for (number, length) in lengths.into_iter().enumerate() {
            let byte = |at: usize| (at as u8).wrapping_mul(31) ^ round ^ number as u8;
            let bytes: Vec<u8> = (0..length).map(byte).collect();
            let (one, other) = bytes.split_at(length / 3);
            let written = sender.write([one, &[], other].into_iter(), 0);
            assert!(matches!(written, Ok(Some(_))), "{written:?}");
            assert!(receiver.has_arrived());
            assert_eq!(read(&receiver, length), Ok(Some((bytes, false))));
            assert!(!receiver.has_arrived());
            all += length;
        }
    }
    assert!(all > 4 * CAPACITY as usize);
    assert_eq!(read(&receiver, 0), Ok(None));
}

#[test]
fn the_receiver_is_notified_once_until_it_looks() {
    let (sender, receiver, _) = ring();
    let notified = || write(&sender, &[1]);
    assert_eq!((notified(), notified()), (Ok(Some(true)), Ok(Some(false))));
    receiver.suppress_notifications();
    assert_eq!((notified(), notified()), (Ok(Some(false)), Ok(Some(false))));
    receiver.request_notifications();
    assert_eq!((notified(), notified()), (Ok(Some(true)), Ok(Some(false))));
}

#[test]
fn a_sender_without_space_is_notified_when_half_is_free() {
    let (sender, receiver, _) = ring();
    let all = CAPACITY / LEAST;
    (0..all).for_each(|_| assert!(write(&sender, &[]).unwrap().is_some()));
    assert_eq!(write(&sender, &[]), Ok(None));
    assert_eq!(sender.wait(), Ok(false));
    for number in 1..=all {
        assert_eq!(read(&receiver, 0), Ok(Some((vec![], number == all / 2))), "{number}");
    }
    // The sender finds space without a notification.
    assert_eq!(sender.wait(), Ok(true));
    assert!(write(&sender, &[]).unwrap().is_some());
    // A message that fills the rest of the ring fits, and then nothing more does.
    (1..all / 2).for_each(|_| assert!(write(&sender, &[]).unwrap().is_some()));
    let rest = vec![7; CAPACITY as usize / 2 - 16];
    assert!(write(&sender, &rest).unwrap().is_some());
    assert_eq!(write(&sender, &[]), Ok(None));
    (0..all / 2).for_each(|_| assert!(read(&receiver, 0).unwrap().is_some()));
    assert_eq!(read(&receiver, rest.len()).unwrap().unwrap().0, rest);
}

#[test]
fn a_message_of_more_than_half_of_the_ring_is_not_written() {
    let (sender, receiver, _) = ring();
    for length in [CAPACITY / 2 - 15, CAPACITY / 2, CAPACITY, CAPACITY + 1] {
        assert_eq!(write(&sender, &vec![0; length as usize]), Err(Errno::MSGSIZE));
    }
    assert!(!receiver.has_arrived());
    // A read into buffers that are too small for the message fails, and the message stays in the ring.
    assert!(write(&sender, &[0; 100]).is_ok());
    assert_eq!(read(&receiver, 94), Err(Errno::MSGSIZE));
    assert_eq!(read(&receiver, 95).unwrap().unwrap().0.len(), 100);
}

/// The offset of the sender's position.
const TAIL: u64 = 0;
/// The offset of the receiver's position.
const HEAD: u64 = 128;
/// The offset of the ring.
const RING: u64 = 20_480;

fn set(file: &OwnedFd, at: u64, value: u32) {
    assert_eq!(pwrite(file, &value.to_le_bytes(), at), Ok(4));
}

#[test]
fn a_receiver_rejects_lengths_that_do_not_fit() {
    const ALL: u32 = CAPACITY;
    let lies = [
        (0, 1),
        (0, 63),
        (48, 63),
        (49, 127),
        (49, 64),
        (ALL - 15, ALL),
        (ALL, ALL),
        (u32::MAX - 100, ALL),
        (u32::MAX - 15, ALL),
        (u32::MAX, ALL),
        (0, ALL + 1),
        (0, ALL + 64),
        (0, 1 << 31),
        (0, u32::MAX),
    ];
    for begin in [0, LEAST] {
        for (length, tail) in lies {
            let (sender, receiver, file) = ring();
            if begin != 0 {
                assert!(write(&sender, &[]).is_ok());
                assert_eq!(read(&receiver, 0), Ok(Some((vec![], false))));
            }
            set(&file, RING + u64::from(begin), length);
            set(&file, TAIL, tail.wrapping_add(begin));
            // Polling threads must read the ring, so that they find the error.
            assert!(receiver.has_arrived());
            assert_eq!(read(&receiver, ALL as usize), Err(Errno::PROTO), "{length}, {tail}");
        }
    }
}

#[test]
fn a_sender_rejects_a_head_after_its_tail() {
    let (sender, _, file) = ring();
    let all = CAPACITY / LEAST;
    (0..all).for_each(|_| assert!(write(&sender, &[]).unwrap().is_some()));
    for head in [CAPACITY + 1, CAPACITY + LEAST, 1 << 31, u32::MAX, u32::MAX - LEAST] {
        set(&file, HEAD, head);
        assert_eq!(write(&sender, &[]), Err(Errno::PROTO), "{head}");
        assert_eq!(sender.wait(), Err(Errno::PROTO), "{head}");
    }
    set(&file, HEAD, 0);
    assert_eq!((write(&sender, &[]), sender.wait()), (Ok(None), Ok(false)));
    set(&file, HEAD, LEAST);
    assert!(write(&sender, &[]).unwrap().is_some());
    assert_eq!(write(&sender, &[]), Ok(None));
}

#[test]
fn the_memory_of_a_ring_cannot_become_smaller() {
    let (sender, _, file) = ring();
    let size = RING + u64::from(CAPACITY);
    for other in [0, size - 1, size + 1] {
        assert_eq!(ftruncate(&file, other), Err(Errno::PERM));
    }
    assert!(write(&sender, &[]).is_ok());
    // Memory that can shrink, or that has another length, is not accepted either.
    let make = |length, seals| {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("test", flags).unwrap();
        ftruncate(&file, length).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        RingReceiver::open(file.as_fd()).map(drop)
    };
    let both = SealFlags::SHRINK | SealFlags::GROW;
    assert_eq!(make(size, both), Ok(()));
    assert_eq!(make(size, SealFlags::GROW), Err(Errno::INVAL));
    assert_eq!(make(size, SealFlags::SHRINK), Err(Errno::INVAL));
    assert_eq!(make(size, both | SealFlags::WRITE), Err(Errno::PERM));
    for length in [0, size - 1, size + 1] {
        assert_eq!(make(length, both), Err(Errno::INVAL));
    }
}

/// Returns the number of bytes that are allocated for a file.
fn allocated(file: &OwnedFd) -> u64 {
    u64::try_from(fstat(file).unwrap().st_blocks).unwrap() * 512
}

/// Returns true if the pages of this new ring are allocated as it is used.
fn grows(file: &OwnedFd) -> bool {
    !test_support::program::is_emulated() && allocated(file) < RING + u64::from(CAPACITY)
}

/// The reason for skipping a test of a ring that grows.
const WHOLE: &str = "Linux before 5.14 and emulators allocate all pages at once";

/// Pages of the ring are allocated only when the sender's position gets there.
#[test]
fn a_ring_that_is_little_used_needs_little_memory() {
    let (sender, receiver, file) = ring();
    if !grows(&file) {
        return println!("skipped: {WHOLE}");
    }
    let (memory, all) = (|| allocated(&file), RING + u64::from(CAPACITY));
    assert_eq!(memory(), RING + (16 << 10));
    let message = vec![7; 4096 - 16];
    let mut last = memory();
    for number in 1..=2 * CAPACITY / 4096 {
        assert_eq!(write(&sender, &message), Ok(Some(number == 1)));
        assert_eq!(read(&receiver, message.len() - 5).unwrap().unwrap().0, message);
        let now = memory();
        let written = RING + u64::from(number * 4096);
        assert!(now >= last && now >= written.min(all) && now <= all);
        assert!(now <= (RING + 2 * u64::from(number * 4096)).max(RING + (16 << 10)));
        last = now;
    }
    assert_eq!(last, all);
}

/// The receiver claims to look at the ring, but does not.
#[test]
fn a_sender_notifies_a_receiver_that_does_not_read_once() {
    let (sender, receiver, _) = ring();
    receiver.suppress_notifications();
    for round in 0..2 {
        assert_eq!(write(&sender, &[]), Ok(Some(false)), "it looks by itself");
        let notified: Vec<u32> = (0..1000).filter(|_| sender.waits_for_reader()).collect();
        assert_eq!((notified.len(), notified[0] > 8), (1, true), "{round}");
        // Reading ends the wait.
        assert_eq!(read(&receiver, 0), Ok(Some((vec![], false))));
        assert!((0..1000).all(|_| !sender.waits_for_reader()));
    }
}

#[test]
fn a_sender_sees_executed_words_and_is_notified_once_until_it_looks() {
    let (sender, receiver, _) = ring();
    let executed = sender.executed().unwrap();
    let [key, other] = [3, 4].map(|users| WordKey::new(5, users));
    let announce = || {
        let mut notified = false;
        receiver.announce(|| {
            notified = true;
            true
        });
        notified
    };
    let moves = executed.moves(key.group());
    receiver.store(key, Psn::masked(7));
    assert_eq!((executed.expected(key), executed.expected(other)), (Some(Psn::masked(7)), None));
    assert_ne!(executed.moves(key.group()), moves);
    assert_eq!([announce(), announce()], [true, false]);
    executed.request_notifications();
    assert_eq!([announce(), announce()], [true, false]);
    executed.suppress_notifications();
    assert!(!announce());
    // If a notification fails, the next word needs one.
    executed.request_notifications();
    receiver.announce(|| false);
    assert!(announce());
}
