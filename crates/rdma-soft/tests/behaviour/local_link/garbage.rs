//! Invalid data that another process may write to a ring or send over a connection.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rdma_sys::ibv_qp_type;
use rustix::fs::{Mode, OFlags, SealFlags, open};
use test_support::program::is_emulated;

use crate::local_link::hostile::{Head, Random, WITH_LAST, name_of, slot_of};
use crate::local_link::ring::{
    ALIGN, CAPACITY, Connection, Over, SEALS, SIZE, VERSION, Word, connect_to, file, say,
    say_whole, wait_until_asked, wait_until_closed,
};
use crate::two_processes::near::Near;

/// An empty SEND for an unknown queue pair, which is counted.
fn lost() -> Vec<u8> {
    Head::new(0x00ab_cdef).bytes(0)
}

/// The number of [such messages](lost) that have arrived.
fn count(near: &mut Near) -> u64 {
    near.peer.counter("unknown_qp")
}

/// Sends one, and waits until it has arrived.
fn expect_to_arrive(near: &mut Near, to: &mut Connection) {
    let before = count(near);
    to.send_all(&lost());
    near.peer.until_counter("unknown_qp", before + 1);
}

#[test]
fn an_invalid_ring_ends_only_its_own_connection() {
    type Kind = (&'static str, fn(&mut Connection));
    /// The bytes that a message without payload occupies in the ring.
    const TAKEN: u32 = 128;
    let kinds: &[Kind] = &[
        ("no length", |to| to.lie(0, &lost(), to.tail + TAKEN)),
        ("no length, and nothing else", |to| to.lie(0, &[], to.tail + ALIGN)),
        ("less than a head", |to| to.lie(95, &lost(), to.tail + TAKEN)),
        ("more than is written", |to| to.lie(113, &lost(), to.tail + TAKEN)),
        ("far more than is written", |to| to.lie(60_000, &lost(), to.tail + TAKEN)),
        ("more than a device has space for", |to| to.lie(200_000, &lost(), to.tail + CAPACITY)),
        ("the whole ring", |to| to.lie(CAPACITY, &lost(), to.tail + CAPACITY)),
        ("more than the ring", |to| to.lie(CAPACITY + 1, &lost(), to.tail + CAPACITY)),
        ("a length that wraps", |to| to.lie(u32::MAX - 15, &lost(), to.tail + CAPACITY)),
        ("the greatest length", |to| to.lie(u32::MAX, &lost(), to.tail + CAPACITY)),
        ("a tail too far ahead", |to| to.lie(96, &lost(), to.tail + CAPACITY + ALIGN)),
        ("a tail ahead by half of the range", |to| {
            to.lie(96, &lost(), to.tail.wrapping_add(1 << 31))
        }),
        ("a tail that goes back", |to| to.lie(96, &lost(), to.tail.wrapping_sub(ALIGN))),
        ("a tail that goes back by one", |to| to.lie(96, &lost(), to.tail.wrapping_sub(1))),
        ("a tail within the gap", |to| to.lie(96, &lost(), to.tail + 1)),
        ("a tail within a message", |to| to.lie(96, &lost(), to.tail + TAKEN - 1)),
        ("a tail within the next gap", |to| to.lie(96, &lost(), to.tail + TAKEN + 10)),
        ("zeros in the whole ring", |to| {
            to.ring.write(0, &vec![0; CAPACITY as usize]);
            to.ring.set(Word::Tail, to.tail + CAPACITY);
        }),
        ("a notification of two bytes", |to| say_whole(&to.socket, &[0, 0])),
        ("a notification of many bytes", |to| say_whole(&to.socket, &[0; 4096])),
        ("a message as a notification", |to| say_whole(&to.socket, &lost())),
    ];
    let mut near = Near::new(ibv_qp_type::IBV_QPT_RC);
    let name = name_of(slot_of(near.far.qpn));
    near.message(1, None);
    let before = near.peer.files();
    let mut malformed = 0;
    // At the beginning of the ring, and after it has wrapped.
    for messages in [0, 1, CAPACITY / TAKEN + 3] {
        for (kind, act) in kinds {
            let mut to = Connection::to(&name);
            (0..messages).for_each(|_| to.send_all(&lost()));
            to.wait_until_read();
            println!("{kind}, after {messages} messages");
            act(&mut to);
            // The connection may be closed by now.
            to.tell();
            to.wait_until_closed();
            near.message(3000, None);
            malformed += 1;
            assert_eq!(near.peer.counter("malformed"), malformed, "{kind}");
        }
    }
    near.peer.until_files(before);
    near.all_of_it();
    near.peer.end();
}

/// The receiver would execute all of them in one turn.
#[test]
fn a_message_of_too_many_packets_is_malformed() {
    let mut near = Near::new(ibv_qp_type::IBV_QPT_RC);
    let name = name_of(slot_of(near.far.qpn));
    let run = |segment: u16, segments: u16| {
        let said = u32::from(segment) * u32::from(segments);
        let head = Head { flags: WITH_LAST, segment, segments, said, ..Head::new(0x00ab_cdef) };
        head.bytes(said as usize)
    };
    let kinds = [(1, u16::MAX), (1, 17), (1, 2), (255, 16), (256, 17), (1024, 17)];
    for (number, (segment, segments)) in kinds.into_iter().enumerate() {
        let mut to = Connection::to(&name);
        // A device that polls may close the connection before it is notified.
        let _ = to.try_send(&run(segment, segments));
        to.wait_until_closed();
        near.message(3000, None);
        assert_eq!(near.peer.counter("malformed"), number as u64 + 1, "{segments} of {segment}");
    }
    let mut to = Connection::to(&name);
    for (segment, segments) in [(256, 2), (256, 16), (1024, 16), (4096, 15)] {
        to.send_all(&run(segment, segments));
        to.wait_until_read();
    }
    assert_eq!(near.peer.counter("malformed"), kinds.len() as u64);
    near.all_of_it();
    near.peer.end();
}

/// Only the connection of the process that writes the words is affected.
#[test]
fn garbage_words_harm_only_their_own_connection() {
    let mut near = Near::new(ibv_qp_type::IBV_QPT_RC);
    let mut to = Connection::to(&name_of(slot_of(near.far.qpn)));
    for word in [Word::Head, Word::Looks, Word::Waits, Word::Asked, Word::Answered] {
        for garbage in [1, 2, 3, 63, CAPACITY, CAPACITY + 1, 1 << 31, u32::MAX] {
            to.wait_until_read();
            to.ring.set(word, garbage);
            let before = count(&mut near);
            // The device rewrites its head after it has read.
            to.put(&lost());
            assert!(to.tell());
            near.peer.until_counter("unknown_qp", before + 1);
            near.message(3000, None);
            expect_to_arrive(&mut near, &mut to);
        }
    }
    assert!(!to.is_closed());
    assert_eq!(near.peer.counter("malformed"), 0);
    near.all_of_it();
    near.peer.end();
}

#[test]
fn an_invalid_first_message_ends_only_its_own_connection() {
    let mut near = Near::new(ibv_qp_type::IBV_QPT_RC);
    let name = name_of(slot_of(near.far.qpn));
    // The valid connection exists.
    near.message(1, None);
    let before = near.peer.files();
    let sealed = |length| file(length, SEALS);
    let fine = sealed(SIZE);
    let (read, write) = rustix::pipe::pipe().unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fine));
    let unwritable = open(path, OFlags::RDONLY, Mode::empty()).unwrap();
    let program = std::env::current_exe().unwrap();
    let wrong: Vec<OwnedFd> = vec![
        file(SIZE, SealFlags::empty()),
        file(SIZE, SealFlags::GROW | SealFlags::SEAL),
        file(SIZE, SealFlags::SHRINK),
        file(SIZE, SEALS | SealFlags::WRITE),
        file(SIZE, SEALS | SealFlags::FUTURE_WRITE),
        sealed(0),
        sealed(4096),
        sealed(SIZE - 4096),
        sealed(SIZE - 1),
        sealed(SIZE + 1),
        sealed(SIZE + 4096),
        sealed(1 << 40),
        unwritable,
        open(program, OFlags::RDONLY, Mode::empty()).unwrap(),
        open("/dev/zero", OFlags::RDWR, Mode::empty()).unwrap(),
        open("/", OFlags::RDONLY, Mode::empty()).unwrap(),
        open("/", OFlags::PATH, Mode::empty()).unwrap(),
        read,
        write,
        connect_to(&name).unwrap(),
    ];
    let (good, none) = (fine.as_fd(), Vec::new());
    let mut kinds = vec![
        (vec![0], vec![good]),
        (vec![VERSION - 1], vec![good]),
        (vec![VERSION + 1], vec![good]),
        (vec![VERSION; 2], vec![good]),
        (vec![VERSION; 4096], vec![good]),
        (lost(), vec![good]),
        (lost(), none.clone()),
        (vec![VERSION], none),
    ];
    // An emulator opens all three files, although the device has room for one, and never closes the others.
    if !is_emulated() {
        kinds.push((vec![VERSION], vec![good; 3]));
    }
    kinds.extend(wrong.iter().map(|file| (vec![VERSION], vec![file.as_fd()])));
    // The connection that is sent as a file stays open throughout.
    near.peer.until_files(before + 1);
    for (number, (bytes, files)) in kinds.iter().enumerate() {
        let socket = connect_to(&name).unwrap();
        assert!(wait_until_asked(&socket));
        assert!(say(&socket, bytes, files));
        wait_until_closed(&socket);
        near.message(3000, None);
        assert_eq!(near.peer.counter("malformed"), number as u64 + 1, "kind {number}");
    }
    // A second ring on a connection that already has one.
    let mut to = Connection::to(&name);
    expect_to_arrive(&mut near, &mut to);
    assert!(say(&to.socket, &[VERSION], &[good]));
    to.wait_until_closed();
    assert_eq!(near.peer.counter("malformed"), kinds.len() as u64 + 1);
    drop(to);
    near.peer.until_files(before + 1);
    near.all_of_it();
    near.peer.end();
}

/// The memory disappears while the device reads it, and is replaced by zeros.
#[test]
fn holes_in_a_ring_harm_no_other_connection() {
    let mut near = Near::new(ibv_qp_type::IBV_QPT_RC);
    let name = name_of(slot_of(near.far.qpn));
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for round in 0..200_u32 {
        let mut to = Connection::to(&name);
        if round % 3 == 0 {
            to.ring.punch();
        }
        for _ in 0..random.below(40) {
            let bytes = Head { said: 2000, ..Head::new(0x00ab_cdef) }.bytes(2000);
            if !to.try_send(&bytes) {
                break;
            }
            if random.below(4) == 0 {
                to.ring.punch();
            }
        }
        if round % 20 == 0 {
            near.message(3000, None);
        }
    }
    near.all_of_it();
    near.peer.end();
}

/// The peer notifies as fast as possible, without any message.
#[test]
fn endless_notifications_hold_up_no_other_connection() {
    let mut near = Near::new(ibv_qp_type::IBV_QPT_RC);
    let mut to = Connection::to(&name_of(slot_of(near.far.qpn)));
    expect_to_arrive(&mut near, &mut to);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                if !to.tell() {
                    return false;
                }
            }
            true
        });
        let over = Over(&done);
        for _ in 0..3 {
            near.all_of_it();
        }
        drop(over);
        assert!(flood.join().unwrap(), "the connection was closed");
    });
    expect_to_arrive(&mut near, &mut to);
    assert_eq!(near.peer.counter("malformed"), 0);
    near.peer.end();
}
