//! The objects that two processes share, as a hostile process uses them. These are a ring of messages in memory, which
//! it reads and writes by system calls, and a connection (`src/link/local/shared.rs`).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use rustix::io::{Errno, pread, pwrite};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recv, recvmsg, send, sendmsg, socket_with,
};
use test_support::rig::until;

/// The version of the messages, and of the names of sockets.
pub(crate) const VERSION: u8 = 9;

/// The capacity of the ring, in bytes.
pub(crate) const CAPACITY: u32 = 512 << 10;
const BEGIN: u64 = 20_480;
/// The length of the file, in bytes.
pub(crate) const SIZE: u64 = BEGIN + CAPACITY as u64;
/// The alignment of messages.
pub(crate) const ALIGN: u32 = 64;
/// The bytes before a message, including its length.
const GAP: u32 = 16;

/// The control words at the start of the file, by their offsets.
#[derive(Clone, Copy)]
pub(crate) enum Word {
    Tail = 0,
    Head = 128,
    Looks = 256,
    Waits = 384,
    Asked = 512,
    Answered = 640,
}

/// The offset of the receiver's report of how far it has executed each connection.
const EXECUTED: u64 = 768;
/// The offset of the keys of connections that retry without limit.
const PATIENT: u64 = EXECUTED + 128 + 128 + 8 * 1024;

/// The seals of the file of a ring.
pub(crate) const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Returns a memory file of that length.
pub(crate) fn file(length: u64, seals: SealFlags) -> OwnedFd {
    let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, length).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file
}

pub(crate) struct Ring(pub(crate) OwnedFd);

impl Ring {
    pub(crate) fn new() -> Self {
        Self(file(SIZE, SEALS))
    }

    pub(crate) fn get(&self, word: Word) -> u32 {
        let mut bytes = [0; 4];
        assert_eq!(pread(&self.0, &mut bytes, word as u64), Ok(4));
        u32::from_le_bytes(bytes)
    }

    pub(crate) fn set(&self, word: Word, value: u32) {
        assert_eq!(pwrite(&self.0, &value.to_le_bytes(), word as u64), Ok(4));
    }

    /// Writes bytes at a ring offset, wrapping at the end; at most the ring's capacity.
    pub(crate) fn write(&self, at: u32, bytes: &[u8]) {
        let at = at % CAPACITY;
        let (first, second) = bytes.split_at(bytes.len().min((CAPACITY - at) as usize));
        assert_eq!(pwrite(&self.0, first, BEGIN + u64::from(at)), Ok(first.len()));
        assert_eq!(pwrite(&self.0, second, BEGIN), Ok(second.len()));
    }

    fn read(&self, at: u32, bytes: &mut [u8]) {
        let at = at % CAPACITY;
        let (first, second) = bytes.split_at_mut(bytes.len().min((CAPACITY - at) as usize));
        assert_eq!(pread(&self.0, &mut *first, BEGIN + u64::from(at)), Ok(first.len()));
        assert_eq!(pread(&self.0, &mut *second, BEGIN), Ok(second.len()));
    }

    /// Fills the whole report of how far each connection is executed, and the keys after it, with that byte.
    pub(crate) fn fill_executed(&self, byte: u8) {
        const LENGTH: usize = 128 + 128 + (8 + 4) * 1024;
        assert_eq!(pwrite(&self.0, &[byte; LENGTH], EXECUTED), Ok(LENGTH));
    }

    /// Reports the position `expected` for the first connection, under any key, and marks the report as changed.
    pub(crate) fn say_executed(&self, key: u32, expected: u32) {
        let word = u64::from(key) << 32 | u64::from(expected);
        assert_eq!(pwrite(&self.0, &word.to_le_bytes(), EXECUTED + 256), Ok(8));
        assert_eq!(pwrite(&self.0, &expected.to_le_bytes(), EXECUTED), Ok(4));
    }

    /// Records that the first connection retries without limit, with this key, or not, with the key 0.
    pub(crate) fn say_patient(&self, key: u32) {
        assert_eq!(pwrite(&self.0, &key.to_le_bytes(), PATIENT), Ok(4));
    }

    /// Releases the memory of the whole file, which then reads as zeros.
    pub(crate) fn punch(&self) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.0, flags, 0, SIZE).unwrap();
    }
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

fn address_of(name: &str) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(name.as_bytes())
}

/// Connects a socket, and sends nothing.
pub(crate) fn connect_to(name: &str) -> Result<OwnedFd, Errno> {
    let socket = socket()?;
    connect(&socket, &address_of(name)?)?;
    Ok(socket)
}

/// Like [`connect_to`], but waits while the listener's backlog is full.
pub(crate) fn connect_patiently(name: &str) -> OwnedFd {
    let mut made = None;
    until("a connection", || {
        made = match connect_to(name) {
            Err(Errno::AGAIN) => None,
            other => Some(other.unwrap()),
        };
        made.is_some()
    });
    made.unwrap()
}

pub(crate) fn listen_at(name: &str) -> Result<OwnedFd, Errno> {
    let socket = socket()?;
    bind(&socket, &address_of(name)?)?;
    listen(&socket, 8)?;
    Ok(socket)
}

/// Sends a message with files. Returns true if the connection is still open.
pub(crate) fn say(socket: &OwnedFd, bytes: &[u8], files: &[BorrowedFd<'_>]) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut along = SendAncillaryBuffer::new(&mut space);
    assert!(files.is_empty() || along.push(SendAncillaryMessage::ScmRights(files)));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut along, flags);
    // If the socket buffer is full, the device has a notification that it has not read yet.
    matches!(sent, Ok(_) | Err(Errno::AGAIN))
}

/// Sends a message, and waits for space: unread notifications fill the socket buffer.
pub(crate) fn say_whole(socket: &OwnedFd, bytes: &[u8]) {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let mut sent = Ok(0);
    until("space for a message", || {
        sent = send(socket, bytes, flags);
        sent != Err(Errno::AGAIN)
    });
    assert_eq!(sent, Ok(bytes.len()));
}

/// Returns true if the other end is closed. Discards pending notifications.
pub(crate) fn is_closed(socket: &OwnedFd) -> bool {
    loop {
        match recv(socket, &mut [0_u8; 2], RecvFlags::DONTWAIT) {
            Ok((1, _)) => {}
            other => return other.map(|(read, _)| read) != Err(Errno::AGAIN),
        }
    }
}

pub(crate) fn wait_until_closed(socket: &OwnedFd) {
    until("the end of a connection", || is_closed(socket));
}

/// Waits until the device requests the ring. Returns true if it does, and false if it has closed the connection.
pub(crate) fn wait_until_asked(socket: &OwnedFd) -> bool {
    let (mut said, mut read) = ([0; 2], Err(Errno::AGAIN));
    until("a request for the ring", || {
        read = recv(socket, &mut said, RecvFlags::DONTWAIT).map(|(read, _)| read);
        read != Err(Errno::AGAIN)
    });
    assert!(read != Ok(1) || said == [VERSION, 0], "{said:?}");
    read == Ok(1)
}

/// A connection that sends messages to a device.
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    pub(crate) ring: Ring,
    pub(crate) tail: u32,
}

impl Connection {
    /// Waits for the request for the ring, and sends the first message, which passes the ring. The device may have
    /// closed the connection by then.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        wait_until_asked(&socket);
        let ring = Ring::new();
        let _ = say(&socket, &[VERSION], &[ring.0.as_fd()]);
        Self { socket, ring, tail: 0 }
    }

    pub(crate) fn to(name: &str) -> Self {
        Self::new(connect_to(name).unwrap())
    }

    /// Like [`Self::to`], but waits while the listener's backlog is full.
    pub(crate) fn patiently_to(name: &str) -> Self {
        Self::new(connect_patiently(name))
    }

    pub(crate) fn is_closed(&self) -> bool {
        is_closed(&self.socket)
    }

    pub(crate) fn wait_until_closed(&self) {
        wait_until_closed(&self.socket);
    }

    /// Notifies the device. Returns true if the connection is still open.
    pub(crate) fn tell(&self) -> bool {
        matches!(
            send(&self.socket, &[0], SendFlags::NOSIGNAL | SendFlags::DONTWAIT),
            Ok(_) | Err(Errno::AGAIN)
        )
    }

    /// Writes a message whether or not there is space. If the message is longer than the ring, only its length is
    /// written.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.put_with_gap(&[&[0; GAP as usize], bytes].concat());
    }

    /// Like [`put`](Self::put), but the bytes begin with the gap. Its first four bytes are replaced by the length.
    fn put_with_gap(&mut self, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).unwrap().saturating_sub(GAP);
        if length <= CAPACITY - GAP {
            self.ring.write(self.tail, bytes);
        }
        self.ring.write(self.tail, &length.to_le_bytes());
        self.tail = self.tail.wrapping_add(taken(length));
        self.ring.set(Word::Tail, self.tail);
    }

    /// Waits for space, and sends a message. Returns true if the connection is still open.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.try_send_with_gap(&[&[0; GAP as usize], bytes].concat())
    }

    /// Like [`try_send`](Self::try_send), but the bytes begin with the gap. Its first four bytes are replaced by the length.
    pub(crate) fn try_send_with_gap(&mut self, bytes: &[u8]) -> bool {
        let taken = taken(u32::try_from(bytes.len()).unwrap().saturating_sub(GAP));
        let mut closed = false;
        until("space", || {
            let used = self.tail.wrapping_sub(self.ring.get(Word::Head));
            // If the head is garbage there is nothing to wait for.
            let space = CAPACITY.checked_sub(used).unwrap_or(CAPACITY);
            closed = space < taken && self.is_closed();
            closed || space >= taken
        });
        if !closed {
            self.put_with_gap(bytes);
        }
        !closed && self.tell()
    }

    pub(crate) fn send_all(&mut self, bytes: &[u8]) {
        assert!(self.try_send(bytes));
    }

    /// Sends a message; its notification carries files.
    pub(crate) fn send_with_files(&mut self, bytes: &[u8]) -> bool {
        self.put(bytes);
        say(&self.socket, &[0], &[self.socket.as_fd(); 3])
    }

    /// Waits until the device has read everything.
    pub(crate) fn wait_until_read(&self) {
        until("messages that were read", || self.ring.get(Word::Head) == self.tail);
    }

    /// Writes any length before these bytes, and any tail.
    pub(crate) fn lie(&mut self, length: u32, bytes: &[u8], tail: u32) {
        let at = self.tail;
        self.ring.write(at, &length.to_le_bytes());
        self.ring.write(at.wrapping_add(GAP), bytes);
        self.ring.set(Word::Tail, tail);
        self.tail = tail;
        self.tell();
    }
}

/// The space that a message occupies in the ring.
fn taken(length: u32) -> u32 {
    if length > CAPACITY - GAP { ALIGN } else { (length + GAP).next_multiple_of(ALIGN) }
}

/// Sets a flag when dropped, so that a thread which is joined ends even if the test fails.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The ring contains something that is no message of a device.
#[derive(Debug)]
pub(crate) struct Broken;

/// A connection that a device has made.
pub(crate) struct Accepted {
    pub(crate) socket: OwnedFd,
    pub(crate) ring: Ring,
    head: u32,
}

impl Accepted {
    /// Accepts a pending connection. Returns `None` if there is none, or if it has ended.
    pub(crate) fn at(listener: &OwnedFd) -> Option<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = accept_with(listener, flags).ok()?;
        // The connection may have ended.
        let _ = send(&socket, &[VERSION], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        let (mut file, mut said) = (None, 0);
        until("the first message", || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut along = RecvAncillaryBuffer::new(&mut space);
            let (mut bytes, flags) = ([0; 2], RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC);
            let parts = &mut [IoSliceMut::new(&mut bytes)];
            let message = recvmsg(&socket, parts, &mut along, flags);
            file = along.drain().find_map(|message| match message {
                RecvAncillaryMessage::ScmRights(mut files) => files.next(),
                _ => None,
            });
            let received = message.map(|message| message.bytes);
            said = received.unwrap_or(0);
            assert!(said == 0 || bytes == [VERSION, 0], "{bytes:?}");
            received != Err(Errno::AGAIN)
        });
        (said == 1).then(|| Self { socket, ring: Ring(file.unwrap()), head: 0 })
    }

    /// Notifies the device.
    pub(crate) fn tell(&self) {
        let _ = send(&self.socket, &[0], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }

    /// Reads a message, if there is one.
    pub(crate) fn read(&mut self) -> Result<Option<Vec<u8>>, Broken> {
        let there = self.ring.get(Word::Tail).wrapping_sub(self.head);
        if there == 0 {
            return Ok(None);
        }
        let mut length = [0; 4];
        self.ring.read(self.head, &mut length);
        let length = u32::from_le_bytes(length);
        if there > CAPACITY || length > CAPACITY / 2 || taken(length) > there {
            return Err(Broken);
        }
        let mut bytes = vec![0; length as usize];
        self.ring.read(self.head.wrapping_add(GAP), &mut bytes);
        self.head = self.head.wrapping_add(taken(length));
        Ok(Some(bytes))
    }

    /// Publishes how far it has read, and notifies the device if it waits for space.
    pub(crate) fn free(&self) {
        self.ring.set(Word::Head, self.head);
        if self.ring.get(Word::Waits) != 0 {
            self.ring.set(Word::Waits, 0);
            self.tell();
        }
    }
}
