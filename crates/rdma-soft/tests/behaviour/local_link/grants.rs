//! Hostile processes that give or get grants for mapped memory.

use std::fs::File;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use rdma_soft::{Builder, Peers, SoftDevice};
use rdma_sys::{
    ibv_qp_type, ibv_wc_opcode as Done, ibv_wc_status as Status, ibv_wr_opcode as Opcode,
};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::io::{Errno, pread, pwrite};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use test_support::program::in_own_process;
use test_support::rig::connect::{Endpoint, Knobs, Side, connect};
use test_support::rig::post::Wr;
use test_support::rig::{ALL_ACCESS, LOCAL_WRITE, Mr, REMOTE_WRITE, Size, until};

use crate::local_link::hostile::{FIRST, Head, PLACED, Random, SECOND, name_at, slot_of};
use crate::local_link::mapped::Pair;
use crate::local_link::ring::{Accepted, Connection, SEALS, file, listen_at, say};
use crate::two_processes::near::{MAPPED, Near, PATIENT};
use crate::two_processes::peer::{Peer, sum};

/// The first bytes of the two kinds of messages with files.
pub(super) const VERSIONS: u8 = 1;
const GRANT: u8 = 2;
/// The length of the file with the versions.
const VERSIONS_LENGTH: u64 = 4096;
/// The key of the word of the first connection to a process.
const FIRST_KEY: u32 = 1024;
/// The offset of the words of visits in the file of a ring.
const VISITS: u64 = 13_312;
/// The memory of a hostile process: its address in requests, its key and its length.
const IOVA: u64 = 0x1000_0000;
const RKEY: u32 = 0x1234;
const LENGTH: u64 = 64 << 10;
/// The length of a huge page.
const HUGE: u64 = 2 << 20;

/// The contents of a grant (`src/link/local/mapped.rs`).
#[derive(Clone, Copy)]
pub(super) struct Terms {
    word: u32,
    access: u32,
    /// The indexes and the values of the versions.
    versions: [u32; 4],
    length: u64,
}

impl Terms {
    pub(super) const FINE: Self =
        Self { word: FIRST_KEY, access: ALL_ACCESS & !1, versions: [0, 0, 1, 0], length: LENGTH };

    pub(super) fn bytes(self) -> Vec<u8> {
        let Self { word, access, versions: [a, b, c, d], length } = self;
        let words = [u32::from(GRANT), word, RKEY, access, a, b, c, d].map(u32::to_le_bytes);
        [words.concat(), [IOVA, length].map(u64::to_le_bytes).concat()].concat()
    }
}

/// Returns a memory file that has all of its pages.
fn whole(length: u64) -> OwnedFd {
    let file = file(length, SEALS);
    fallocate(&file, FallocateFlags::empty(), 0, length).unwrap();
    file
}

/// Returns a file of this length that had a name in this folder.
fn named(folder: &str, length: u64) -> OwnedFd {
    let file = tempfile::tempfile_in(folder).unwrap();
    file.set_len(length).unwrap();
    file.into()
}

/// A queue pair of this process that is connected to a hostile one, which gives it grants.
struct Victim {
    /// Dropped before its domain.
    memory: Mr,
    side: Side,
    from: Accepted,
    /// The number of the packet that is expected next.
    expected: u32,
    _listener: OwnedFd,
}

static DEVICE: LazyLock<SoftDevice> =
    LazyLock::new(|| Builder::new("local-grants").peers(Peers::SameUser).install().unwrap());

impl Victim {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0x400);
        let device = DEVICE.name();
        let (slot, listener) = std::iter::repeat_with(|| NEXT.fetch_add(1, Ordering::Relaxed))
            .find_map(|slot| Some((slot, listen_at(&name_at(device, slot)).ok()?)))
            .unwrap();
        let side = Side::new(device, &Size::default(), 64);
        let memory = side.pd.register(LENGTH as usize, ALL_ACCESS);
        let far = Endpoint { qpn: slot << 12 | 5, ..side.endpoint() };
        let knobs = Knobs { timeout: 0, ..Knobs::default() };
        connect(&side.qp, &side.endpoint(), &far, &knobs);
        let from = Accepted::at(&listener).unwrap();
        Self { memory, side, from, expected: knobs.psn, _listener: listener }
    }

    fn versions(&self) -> OwnedFd {
        let file = whole(VERSIONS_LENGTH);
        assert!(say(&self.from.socket, &[VERSIONS], &[file.as_fd()]));
        file
    }

    /// Sends a grant, unless the buffer of the socket is full of notifications.
    fn grant(&self, terms: Terms, file: &OwnedFd) {
        assert!(say(&self.from.socket, &terms.bytes(), &[file.as_fd()]));
    }

    fn post_write(&self) {
        let wr = Wr::new(1, Opcode::IBV_WR_RDMA_WRITE, &[self.memory.sge(0, 8)]);
        self.side.qp.post(&wr.remote(IOVA, RKEY));
    }

    /// Writes, and reports each packet as executed. Returns true if there was none.
    fn write(&mut self) -> bool {
        let before = self.expected;
        assert!(self.try_write());
        self.expected == before
    }

    /// Like [`write`](Self::write), but returns false if the connection has ended.
    fn try_write(&mut self) -> bool {
        self.post_write();
        let mut done = Vec::new();
        until("a completion", || {
            while self.from.read().unwrap().is_some() {
                self.expected += 1;
                self.from.ring.say_executed(FIRST_KEY, self.expected);
                self.from.free();
                self.from.tell();
            }
            done = self.side.send_cq.try_poll::<1>().unwrap();
            !done.is_empty()
        });
        match done[0].status {
            Status::IBV_WC_SUCCESS => true,
            status => {
                assert_eq!(status, Status::IBV_WC_RETRY_EXC_ERR);
                false
            }
        }
    }

    /// Expects that the connection has ended, so that its requests fail.
    fn expect_end(&self) {
        self.post_write();
        self.side.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
    }
}

#[test]
fn files_that_no_device_sends_end_the_connection() {
    type Kind = (&'static str, fn(&Victim));
    let kinds: &[Kind] = &[
        ("versions that are no memory", |victim| {
            assert!(say(&victim.from.socket, &[VERSIONS], &[victim.from.socket.as_fd()]));
        }),
        ("versions of another length", |victim| {
            let file = whole(2 * VERSIONS_LENGTH);
            assert!(say(&victim.from.socket, &[VERSIONS], &[file.as_fd()]));
        }),
        ("versions that can shrink", |victim| {
            let file = file(VERSIONS_LENGTH, rustix::fs::SealFlags::GROW);
            assert!(say(&victim.from.socket, &[VERSIONS], &[file.as_fd()]));
        }),
        ("versions in a file of tmpfs", |victim| {
            let file = named("/dev/shm", VERSIONS_LENGTH);
            assert!(say(&victim.from.socket, &[VERSIONS], &[file.as_fd()]));
        }),
        ("versions twice", |victim| drop([victim.versions(), victim.versions()])),
        ("versions with more bytes", |victim| {
            let file = whole(VERSIONS_LENGTH);
            assert!(say(&victim.from.socket, &[VERSIONS; 2], &[file.as_fd()]));
        }),
        ("another kind", |victim| {
            assert!(say(&victim.from.socket, &[3], &[whole(VERSIONS_LENGTH).as_fd()]));
        }),
        ("two files", |victim| {
            let files = [whole(VERSIONS_LENGTH), whole(VERSIONS_LENGTH)];
            assert!(say(&victim.from.socket, &[VERSIONS], &[files[0].as_fd(), files[1].as_fd()]));
        }),
        ("a grant that is no memory", |victim| {
            let _versions = victim.versions();
            let (socket, bytes) = (&victim.from.socket, Terms::FINE.bytes());
            assert!(say(socket, &bytes, &[socket.as_fd()]));
        }),
        ("a grant of a file of another file system", |victim| {
            victim.grant(Terms::FINE, &named("/var/tmp", LENGTH));
        }),
        // Without huge pages, the system may still have such files.
        ("a grant of huge pages", |victim| {
            let flags = MemfdFlags::HUGETLB | MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
            let Ok(file) = memfd_create("huge", flags) else {
                return victim.grant(Terms::FINE, &named("/var/tmp", LENGTH));
            };
            ftruncate(&file, HUGE).unwrap();
            rustix::fs::fcntl_add_seals(&file, SEALS).unwrap();
            victim.grant(Terms { length: HUGE, ..Terms::FINE }, &file);
        }),
        ("a grant of another length", |victim| victim.grant(Terms::FINE, &whole(LENGTH + 4096))),
        ("an empty grant", |victim| {
            victim.grant(Terms { length: 0, ..Terms::FINE }, &whole(LENGTH));
        }),
        ("a grant that wraps", |victim| {
            victim.grant(Terms { length: u64::MAX, ..Terms::FINE }, &whole(LENGTH));
        }),
        ("a grant with more bytes", |victim| {
            let bytes = [Terms::FINE.bytes(), vec![0]].concat();
            assert!(say(&victim.from.socket, &bytes, &[whole(LENGTH).as_fd()]));
        }),
        ("a grant of a file that cannot be written", |victim| {
            let file = whole(LENGTH);
            rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::FUTURE_WRITE).unwrap();
            victim.grant(Terms::FINE, &file);
        }),
    ];
    for (kind, act) in kinds {
        println!("{kind}");
        let victim = Victim::new();
        act(&victim);
        victim.expect_end();
    }
}

/// Until the process that gives the grant revokes it.
#[test]
fn a_grant_of_any_process_is_used_on_its_file_alone() {
    let mut victim = Victim::new();
    let (versions, file) = (victim.versions(), whole(LENGTH));
    victim.grant(Terms::FINE, &file);
    let mut round = 0_u64;
    let mut write = |victim: &mut Victim| {
        round += 1;
        victim.memory.copy_in(0, &round.to_ne_bytes());
        (victim.write(), round.to_ne_bytes())
    };
    until("a grant", || write(&mut victim).0);
    let (is_mapped, written) = write(&mut victim);
    let mut found = [0; 8];
    pread(&file, &mut found, 0).unwrap();
    assert_eq!((is_mapped, found), (true, written));
    // Pages that are taken away come back as zeros.
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, flags, 0, LENGTH).unwrap();
    let (is_mapped, written) = write(&mut victim);
    pread(&file, &mut found, 0).unwrap();
    assert_eq!((is_mapped, found), (true, written));
    fallocate(&file, FallocateFlags::empty(), 0, LENGTH).unwrap();
    for index in [0, 1] {
        assert_eq!(pwrite(&versions, &1_u32.to_le_bytes(), 4 * (1 + index)), Ok(4));
        assert!(!write(&mut victim).0);
        assert_eq!(pwrite(&versions, &0_u32.to_le_bytes(), 4 * (1 + index)), Ok(4));
        until("another grant", || {
            victim.grant(Terms::FINE, &file);
            write(&mut victim).0
        });
    }
}

/// The owner of a grant may write any versions at any time.
#[test]
fn versions_that_change_all_the_time_delay_nothing() {
    let mut victim = Victim::new();
    let (versions, file) = (victim.versions(), whole(LENGTH));
    until("a grant", || {
        victim.grant(Terms::FINE, &file);
        victim.write()
    });
    thread::scope(|scope| {
        let changes = scope.spawn(|| {
            let mut random = Random(1);
            for _ in 0..100_000 {
                let (at, value) = (random.next() & (VERSIONS_LENGTH - 4), random.below(2));
                pwrite(&versions, &value.to_le_bytes()[..4], at).unwrap();
            }
        });
        while !changes.is_finished() {
            victim.grant(Terms::FINE, &file);
            (0..10).for_each(|_| _ = victim.write());
        }
    });
    // Holes are zeros, so earlier grants may be valid again.
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&versions, flags, 0, VERSIONS_LENGTH).unwrap();
    until("another grant", || {
        victim.grant(Terms::FINE, &file);
        victim.write()
    });
}

/// Grants that the connection cannot use: for another connection, with other rights, with a version that does not
/// exist, and far too many.
#[test]
fn useless_grants_change_nothing() {
    let mut victim = Victim::new();
    let (_versions, holes, file) = (victim.versions(), file(LENGTH, SEALS), whole(LENGTH));
    let fine = Terms::FINE;
    let useless = [
        Terms { word: FIRST_KEY + 1, ..fine },
        Terms { word: FIRST_KEY * 2, ..fine },
        Terms { word: u32::MAX, ..fine },
        Terms { access: 4, ..fine },
        Terms { access: 0, ..fine },
        Terms { versions: [1023, 0, 1, 0], ..fine },
        Terms { versions: [0, 0, u32::MAX, 0], ..fine },
        Terms { versions: [0, 7, 1, 0], ..fine },
    ];
    for terms in useless {
        victim.grant(terms, &file);
        (0..20).for_each(|_| assert!(!victim.write()));
    }
    // The other process would have to fill the holes.
    victim.grant(fine, &holes);
    (0..20).for_each(|_| assert!(!victim.write()));
    for n in 0..2_000 {
        // The socket's buffer may be full.
        say(&victim.from.socket, &Terms { access: n % 16, ..fine }.bytes(), &[file.as_fd()]);
    }
    victim.grant(fine, &file);
    victim.write();
}

/// Each message is ignored, or ends its connection. `RDMA_TEST_SEED` selects the messages.
#[test]
fn random_grants_do_no_harm() {
    // The mappings could reach the limit of this process, so that the grants of other tests would be dropped.
    in_own_process("local_link::grants::random_grants_do_no_harm", send_random_grants);
}

fn send_random_grants() {
    let mut random = Random::of_environment();
    let files = [whole(LENGTH), whole(2 * LENGTH), file(LENGTH, SEALS), whole(VERSIONS_LENGTH)];
    let mut ended = 0;
    for _ in 0..100 {
        let mut victim = Victim::new();
        let _versions = (random.below(4) > 0).then(|| victim.versions());
        for _ in 0..5 {
            let mut bytes = Terms::FINE.bytes();
            for _ in 0..random.below(4) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
            bytes.truncate(48 - random.below(20).saturating_sub(16) as usize);
            let file = &files[(random.below(12) as usize).saturating_sub(8)];
            say(&victim.from.socket, &bytes, &[file.as_fd()]);
            if !victim.try_write() {
                ended += 1;
                break;
            }
        }
    }
    assert!((1..100).contains(&ended), "{ended} connections have ended");
    let mut victim = Victim::new();
    assert!(!victim.write());
}

/// Receives a message, with its file if it has one. Fails with `EAGAIN` if there is none.
fn try_receive(socket: &OwnedFd) -> Result<(Vec<u8>, Option<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut along = RecvAncillaryBuffer::new(&mut space);
    let (mut bytes, flags) = ([0; 64], RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC);
    let message = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut along, flags)?;
    let file = along.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    Ok((bytes[..message.bytes].to_vec(), file))
}

/// Receives a message with a file.
fn receive_file(socket: &OwnedFd) -> (Vec<u8>, OwnedFd) {
    let mut received = None;
    until("a message with a file", || {
        received = match try_receive(socket) {
            Err(Errno::AGAIN) => None,
            message => {
                let (bytes, file) = message.unwrap();
                file.map(|file| (bytes, file))
            }
        };
        received.is_some()
    });
    received.unwrap()
}

/// Returns a WRITE to the memory of a queue pair's peer, as a process that has the queue pair's number can send it.
fn write(near: &Near, word: u32, psn: u32, length: u16) -> Vec<u8> {
    let indices = [near.far.gid_index; 2];
    let (segment, said) = (length, u32::from(length));
    let head = Head { indices, segment, said, ..Head::new(near.far.qpn) };
    let mut bytes = head.bytes(length.into());
    bytes[12..16].copy_from_slice(&word.to_le_bytes());
    bytes[FIRST] = 0x0a; // RC RDMA WRITE Only
    bytes[FIRST + 8..FIRST + 12].copy_from_slice(&psn.to_be_bytes());
    bytes[FIRST + 12..FIRST + 20].copy_from_slice(&near.remote.0.to_be_bytes());
    bytes[FIRST + 20..FIRST + 24].copy_from_slice(&near.remote.1.to_be_bytes());
    bytes[FIRST + 24..FIRST + 28].copy_from_slice(&said.to_be_bytes());
    bytes
}

/// Returns the last packet of a WRITE with immediate data, whose first `placed` bytes the process claims to have written.
/// The packet has 8 bytes, at this offset in the memory of the queue pair's peer.
fn notice(near: &Near, offset: u64, placed: u32) -> Vec<u8> {
    let mut bytes = write(near, 0, PATIENT.psn, 8);
    bytes[1] = if placed > 0 { PLACED } else { 0 };
    bytes[FIRST] = 0x0b; // RC RDMA WRITE Only with Immediate
    bytes[FIRST + 12..FIRST + 20].copy_from_slice(&(near.remote.0 + offset).to_be_bytes());
    bytes[SECOND..SECOND + 4].copy_from_slice(&placed.to_le_bytes());
    bytes
}

/// A process that may only write could otherwise make a program use old bytes as its message. The region and the queue
/// pair must both permit the process to read.
#[test]
fn only_bytes_that_the_process_may_read_count_as_placed() {
    const NO_READS: u32 = LOCAL_WRITE | REMOTE_WRITE;
    for (name, [of_region, of_queue_pair], offset, placed, error) in [
        ("placed-all", [ALL_ACCESS; 2], 96, 96, None),
        ("placed-before", [ALL_ACCESS; 2], 96, 97, Some("resp_remote_access_errors")),
        ("placed-unread", [NO_READS, ALL_ACCESS], 96, 96, Some("resp_remote_access_errors")),
        ("placed-rights", [ALL_ACCESS, NO_READS], 96, 96, Some("resp_invalid_request_errors")),
        ("placed-nothing", [NO_READS; 2], 96, 0, None),
    ] {
        let _device = Builder::new(name).peers(Peers::SameUser).install().unwrap();
        let memory = format!("{of_region} {LENGTH}");
        let peer = Peer::start_with(&format!("/{name}"), &[(MAPPED, &memory)]);
        let mut near = Near::on(name, peer, ibv_qp_type::IBV_QPT_RC, &PATIENT);
        near.peer.ask(&format!("permit {of_queue_pair}"));
        near.peer.receive();
        let mut hostile = Connection::to(&name_at(name, slot_of(near.far.qpn)));
        hostile.send_all(&notice(&near, offset, placed));
        if let Some(error) = error {
            near.peer.until_counter(error, 1);
            assert_eq!(near.peer.counter("rdma_recvs"), 0, "{name}");
        } else {
            let done = Done::IBV_WC_RECV_RDMA_WITH_IMM.0;
            assert_eq!(near.peer.completion(), (done, placed + 8, 0), "{name}");
        }
        near.peer.kill();
    }
}

/// Otherwise a process could try all keys. A dropped request does not make a queue pair fail, and the key of a request
/// without bytes is not checked.
#[test]
fn a_request_that_was_not_executed_with_its_key_gets_no_grant() {
    let name = "grants-guess";
    let _device = Builder::new(name).peers(Peers::SameUser).install().unwrap();
    let memory = format!("{ALL_ACCESS} {LENGTH}");
    let peer = Peer::start_with(&format!("/{name}"), &[(MAPPED, &memory)]);
    let mut near = Near::on(name, peer, ibv_qp_type::IBV_QPT_RC, &PATIENT);
    let mut hostile = Connection::to(&name_at(name, slot_of(near.far.qpn)));
    let psn = PATIENT.psn;
    // Each request has another word, which its grant would name.
    let requests = [(psn + 5, 8), (psn, 0), (psn, 8), (psn + 1, 8)];
    for (word, (psn, length)) in (FIRST_KEY..).zip(requests) {
        hostile.send_all(&write(&near, word, psn, length));
    }
    assert_eq!(receive_file(&hostile.socket).0, [VERSIONS]);
    let (message, _file) = receive_file(&hostile.socket);
    assert_eq!(message[4..8], (FIRST_KEY + 3).to_le_bytes());
    near.peer.kill();
}

/// The process that has the grant can write the old pages. But the owner revokes the grant, and does not wait without
/// a limit.
#[test]
fn a_visit_without_end_does_not_keep_a_region_registered() {
    let name = "grants-visit";
    let device = Builder::new(name).peers(Peers::SameUser).install().unwrap();
    let memory = format!("{ALL_ACCESS} {LENGTH}");
    let peer = Peer::start_with(&format!("/{name}"), &[(MAPPED, &memory)]);
    let mut near = Near::on(name, peer, ibv_qp_type::IBV_QPT_RC, &PATIENT);
    // A process that sends as if it had the first one's queue pair.
    let mut hostile = Connection::to(&name_at(name, slot_of(near.far.qpn)));
    hostile.send_all(&write(&near, FIRST_KEY, PATIENT.psn, 8));
    let (message, versions) = receive_file(&hostile.socket);
    assert_eq!(message, [VERSIONS]);
    let (message, file) = receive_file(&hostile.socket);
    assert_eq!((message.len(), message[0]), (48, GRANT));
    let word = |n: usize| u32::from_le_bytes(*message[4 * n..].first_chunk().unwrap());
    assert_eq!([word(1), word(2)], [FIRST_KEY, near.remote.1]);
    let value = |index: u32| {
        let mut bytes = [0; 4];
        pread(&versions, &mut bytes, 4 * (1 + u64::from(index))).unwrap();
        u32::from_le_bytes(bytes)
    };
    assert_eq!([value(word(4)), value(word(6))], [word(5), word(7)]);
    // Only the owner can write the versions, or remove their pages.
    assert_eq!(pwrite(&versions, &[1], 0), Err(Errno::PERM));
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(fallocate(&versions, flags, 0, VERSIONS_LENGTH), Err(Errno::PERM));
    assert_eq!(pwrite(&hostile.ring.0, &1_u32.to_le_bytes(), VISITS), Ok(4));
    near.peer.ask("deregister");
    assert_ne!([value(word(4)), value(word(6))], [word(5), word(7)]);
    // The file stays, and belongs to nothing.
    assert_eq!(pwrite(&file, &[1; 8], 0), Ok(8));
    // The process gets no other files, also on another connection.
    let mut again = Connection::to(&name_at(name, slot_of(near.far.qpn)));
    again.send_all(&write(&near, FIRST_KEY, PATIENT.psn, 0));
    again.wait_until_read();
    for socket in [&hostile.socket, &again.socket] {
        while let Ok((_, file)) = try_receive(socket) {
            assert!(file.is_none());
        }
    }
    assert_eq!(device.counters().mapped_requests, 0);
    near.peer.kill();
}

/// Returns the memory file of the second process.
fn memory_of(peer: &Peer) -> OwnedFd {
    let files = format!("/proc/{}/fd", peer.pid().as_raw_nonzero());
    let mut files = std::fs::read_dir(files).unwrap().map(|file| file.unwrap().path());
    let is_memory = |path: &PathBuf| {
        std::fs::read_link(path).is_ok_and(|link| link.to_string_lossy().starts_with("/memfd:test"))
    };
    let path = files.find(is_memory).unwrap();
    File::options().read(true).write(true).open(path).unwrap().into()
}

/// The pages come back as zeros. The region stays usable for its owner and for other processes.
#[test]
fn a_process_with_a_grant_may_remove_pages() {
    let mut pair = Pair::new("grants-pages", &PATIENT);
    // A file that has holes already would not be mapped.
    pair.use_grant();
    let near = &mut pair.near;
    near.write(60_000, None);
    let (file, flags) =
        (memory_of(&near.peer), FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE);
    let remove = || fallocate(&file, flags, 0, LENGTH).unwrap();
    remove();
    assert_eq!(near.peer.sum(0, 60_000), sum(&[0; 60_000]));
    near.write(60_000, None);
    remove();
    near.peer.ask("deregister");
    near.peer.ask("receive_without_memory");
    near.side.qp.post(&near.send(0));
    near.side.send_cq.expect_success(1);
    near.peer.kill();
}
