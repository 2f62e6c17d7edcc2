//! The memory that two processes share, which contains a message ring. The process that created the ring writes to it,
//! and the other process reads from it.
//!
//! | bytes | what |
//! |---|---|
//! | 0 to 767 | [`Words`], each in 128 bytes |
//! | 768 to 13311 | [`Executed`]: how far the receiver has executed the packets of each connection |
//! | 13312 to 17407 | [`Visits`]: which connections of the sender use the receiver's memory themselves |
//! | 20480 and on | the ring, of [`CAPACITY`] bytes |
//!
//! A message and the [`GAP`] bytes before it occupy a multiple of [`ALIGN`] bytes. The first four bytes of the gap
//! contain the message's length (little endian). The next four are 0, unless the gap is part of the header of a
//! [message of one packet](super::head). Either process may write the memory at any time. Therefore, no
//! reference to the ring's bytes is ever created, and data is checked after it has been copied out.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rdma_types::Psn;
use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate};
use rustix::io::{Errno, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::head::{AFTER_GAP, HEAD, SINGLE_HEAD, SingleHead};
use super::mapped::memory_file;
use crate::abi::fork::Process;
use crate::engine::wire::word::WordKey;
use crate::link::executed::Executed;
use crate::link::executed::versions::Visits;
use crate::link::ring::{Broken, CAPACITY, Words};
use crate::memory::copy::{Reach, Segment};

/// The offset of the ring.
const BEGIN: usize = 20_480;
const SIZE: usize = BEGIN + CAPACITY as usize;
/// The number of the ring's bytes that have pages from the start.
const FIRST_PAGES: u32 = 16 << 10;
/// The alignment of messages.
pub(super) const ALIGN: u32 = 64;
/// If the receiver claims to be looking but reads nothing, the sender notifies it after looking this many times,
/// which takes some microseconds.
const PATIENCE: u32 = 128;
/// One look of the sender in this many reads the receiver's position.
const READER_INTERVAL: u32 = 16;

const _: () = assert!(PATIENCE.is_multiple_of(READER_INTERVAL));
/// The number of bytes before a message, chosen so that a short message occupies two cache lines.
pub(super) const GAP: u32 = 16;
/// The number of bytes between the beginning of the gap and the payload of a message's first burst.
pub(super) const DATA: u32 = GAP + 96;

const _: () = assert!(DATA as usize == GAP as usize + HEAD);

/// The words before the ring.
#[repr(C)]
struct Front {
    words: Words,
    executed: Executed,
    visits: Visits,
}

const _: () = assert!(size_of::<Front>() <= BEGIN && CAPACITY.is_power_of_two());
const _: () = assert!(std::mem::offset_of!(Front, visits) == 13_312);

/// The mapping of the shared memory in this process. A forked child does not inherit it.
#[derive(Debug)]
struct Mapping {
    place: NonNull<u8>,
    process: Process,
}

// SAFETY: the memory belongs to no thread, and is accessed only through atomics and device copies (SAFETY.md F26).
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn of(memory: BorrowedFd<'_>) -> Result<Self> {
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the kernel chooses an unused address for the mapping (mmap(2), SAFETY.md F15).
        let place = unsafe { mmap(std::ptr::null_mut(), SIZE, rights, flags, memory, 0) }?;
        let place = NonNull::new(place.cast()).ok_or(Errno::NOMEM)?;
        let mapping = Self { place, process: Process::current() };
        // SAFETY: the pages belong to this value (madvise(2), SAFETY.md F15).
        unsafe { madvise(place.as_ptr().cast(), SIZE, Advice::LinuxDontFork) }?;
        let _ = place.as_ptr().expose_provenance();
        Ok(mapping)
    }

    /// Returns the words. Fails in any process other than the one that mapped them.
    fn front(&self) -> Result<&Front> {
        if !self.process.is_current() {
            return Err(Errno::BADF);
        }
        // SAFETY: the pages are mapped in this process until `self` is dropped, and are aligned. All other accesses to
        // them, in any process, use atomics, and any bytes are valid values of these types (SAFETY.md F26).
        Ok(unsafe { self.place.cast::<Front>().as_ref() })
    }

    fn words(&self) -> Result<&Words> {
        self.front().map(|front| &front.words)
    }

    /// Allocates the pages of the ring's bytes `from..to`.
    fn allocate(&self, from: u32, to: u32) -> Result<()> {
        let length = to.saturating_sub(from) as usize;
        // SAFETY: the bytes are within the mapping, because no caller goes beyond `CAPACITY`.
        let first = unsafe { self.place.add(BEGIN + from as usize) };
        // SAFETY: the pages belong to this value. The call changes none of their bytes (madvise(2), SAFETY.md F15).
        unsafe { madvise(first.as_ptr().cast(), length, Advice::LinuxPopulateWrite) }
    }

    /// Returns the whole ring, starting at `at`, in two pieces.
    fn ring(&self, at: u32) -> [Segment; 2] {
        let at = u64::from(at % CAPACITY);
        let begin = (self.place.as_ptr().addr() + BEGIN) as u64;
        [(begin + at, u64::from(CAPACITY) - at), (begin, at)].map(|(address, length)| {
            // SAFETY: the segment is within the mapping, whose whole range was exposed. The mapping exists until `self`
            // is dropped, and the segment does not outlive it (SAFETY.md F26).
            unsafe { Segment::new(address, length) }
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.process.is_current() {
            // SAFETY: this value mapped the pages, and nothing uses them after it is dropped (munmap(2), SAFETY.md
            // F26).
            let _ = unsafe { munmap(self.place.as_ptr().cast(), SIZE) };
        }
    }
}

/// Returns the number of ring bytes that a message occupies.
fn ring_bytes(length: usize) -> Option<u32> {
    u32::try_from(length).ok()?.checked_add(GAP)?.checked_next_multiple_of(ALIGN)
}

/// The sender's end. Callers hold a lock, so that messages do not get mixed up.
#[derive(Debug)]
pub(super) struct RingSender {
    memory: Mapping,
    tail: AtomicU32,
    /// The number of the ring's bytes that have pages. The others get theirs before the sender writes there for the
    /// first time, so that a lack of memory is an error and no fault.
    allocated: AtomicU32,
    /// The last known position up to which the sender may write. The receiver's word is read only when this limit is
    /// not enough, so the word usually stays in the receiver's cache.
    limit: AtomicU32,
    stays: Stays,
}

/// The sender's looks that found no progress of the receiver.
#[derive(Debug, Default)]
struct Stays {
    /// The receiver's position when it was last read.
    head: AtomicU32,
    /// The number of looks since the position last changed.
    looks: AtomicU32,
}

impl RingSender {
    /// Creates a ring. Returns it with the file that must be sent to the other process.
    ///
    /// # Errors
    /// Fails with `EFBIG` if the file would be longer than this process may create.
    pub(super) fn new() -> Result<(Self, OwnedFd)> {
        let file = memory_file::create("rdma-soft", SIZE as u64)?;
        ftruncate(&file, SIZE as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let memory = Mapping::of(file.as_fd())?;
        memory_file::allocate(&file, BEGIN as u64)?;
        let allocated = match memory.allocate(0, FIRST_PAGES) {
            // Linux before 5.14 can only allocate all pages at once.
            Err(Errno::INVAL) => memory_file::allocate(&file, SIZE as u64).map(|()| CAPACITY)?,
            result => result.map(|()| FIRST_PAGES)?,
        };
        let [tail, allocated, limit] = [0, allocated, CAPACITY].map(AtomicU32::new);
        Ok((Self { memory, tail, allocated, limit, stays: Stays::default() }, file))
    }

    /// Allocates the pages of the ring's first `end` bytes.
    #[cold]
    fn allocate(&self, end: u32) -> Result<()> {
        let allocated = self.allocated.load(Ordering::Relaxed);
        if end > allocated {
            let goal = end.next_power_of_two();
            self.memory.allocate(allocated, goal)?;
            self.allocated.store(goal, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Writes a message, given in parts. The last `rest` bytes of the message are already [in place](Self::memory_from).
    /// Returns whether the receiver must be notified, or `None` if there is no space.
    ///
    /// # Errors
    /// Fails with `ENOMEM` or `EFAULT` if there is no memory for the ring.
    pub(super) fn write<'a>(
        &self,
        parts: impl Iterator<Item = &'a [u8]> + Clone,
        rest: usize,
    ) -> Result<Option<bool>> {
        let length = parts.clone().map(<[u8]>::len).sum::<usize>() + rest;
        let prefix = u64::try_from(length).map_err(|_| Errno::MSGSIZE)?.to_le_bytes();
        self.write_with(length, |tail| {
            let ring = self.memory.ring(tail);
            let _ = Reach::Mapped.deliver_bytes(&prefix, &ring, 0);
            let mut at = GAP.into();
            for part in parts {
                let _ = Reach::Mapped.deliver_bytes(part, &ring, at);
                at += part.len() as u64;
            }
        })
    }

    /// Like [`write`](Self::write), for a message of one packet. Its header, which begins in the gap, contains its length.
    pub(super) fn write_single(
        &self,
        head: &SingleHead,
        data: &[Segment],
        length: usize,
    ) -> Result<Option<bool>> {
        self.write_with(AFTER_GAP + length, |tail| {
            let _ = Reach::Mapped.deliver_bytes(head, &self.memory.ring(tail), 0);
            let ring = self.memory.ring(tail.wrapping_add(SINGLE_HEAD));
            let _ = Reach::Mapped.transfer(data, &ring, 0, length as u64);
        })
    }

    /// Returns how many bytes of payload, up to `most`, a message with one burst can have now. Bytes without pages do not
    /// count, because these need a system call. Returns 0 if the ring has no space for `most` bytes, and in a forked child.
    pub(super) fn room(&self, most: usize) -> usize {
        let taken = ring_bytes(HEAD + most).filter(|&taken| self.has_space(taken) == Ok(true));
        if taken.is_none() || self.memory.words().is_err() {
            return 0;
        }
        let before = self.tail.load(Ordering::Relaxed) as usize + DATA as usize;
        match self.allocated.load(Ordering::Relaxed) {
            CAPACITY.. => most,
            allocated => (allocated as usize).saturating_sub(before).min(most),
        }
    }

    /// Returns the ring's memory that starts `at` bytes after the beginning of the next message's gap.
    pub(super) fn memory_from(&self, at: u32) -> [Segment; 2] {
        self.memory.ring(self.tail.load(Ordering::Relaxed).wrapping_add(at))
    }

    /// Returns true if a message that takes this many bytes has space.
    #[inline]
    fn has_space(&self, taken: u32) -> Result<bool> {
        let tail = self.tail.load(Ordering::Relaxed);
        if self.limit.load(Ordering::Relaxed).wrapping_sub(tail) >= taken {
            return Ok(true);
        }
        let space = self.memory.words()?.space(tail).map_err(|Broken| Errno::PROTO)?;
        self.limit.store(tail.wrapping_add(space), Ordering::Relaxed);
        Ok(space >= taken)
    }

    /// Writes a message of `length` bytes. `fill` gets the position of its gap, and writes the gap and the message.
    #[inline]
    fn write_with(&self, length: usize, fill: impl FnOnce(u32)) -> Result<Option<bool>> {
        let words = self.memory.words()?;
        let tail = self.tail.load(Ordering::Relaxed);
        let taken =
            ring_bytes(length).filter(|&taken| taken <= CAPACITY / 2).ok_or(Errno::MSGSIZE)?;
        if !self.has_space(taken)? {
            return Ok(None);
        }
        if self.allocated.load(Ordering::Relaxed) < CAPACITY {
            // The position has not yet reached the end of the ring for the first time.
            self.allocate((tail + taken).min(CAPACITY))?;
        }
        fill(tail);
        let tail = tail.wrapping_add(taken);
        self.tail.store(tail, Ordering::Relaxed);
        Ok(Some(words.publish(tail)))
    }

    /// Records that the receiver could not be notified.
    pub(super) fn notification_failed(&self) {
        if let Ok(words) = self.memory.words() {
            words.notification_failed();
        }
    }

    /// Returns true if a message of `length` bytes has pages, so that writing it makes no system call.
    pub(super) fn has_pages(&self, length: usize) -> bool {
        let allocated = self.allocated.load(Ordering::Relaxed);
        let end = |taken| u64::from(self.tail.load(Ordering::Relaxed)) + u64::from(taken);
        allocated >= CAPACITY
            || ring_bytes(length).is_some_and(|taken| end(taken) <= u64::from(allocated))
    }

    /// Asks, as question number `question`, whether everything written before is executed. The caller notifies the
    /// receiver.
    pub(super) fn ask(&self, question: u32) {
        if let Ok(words) = self.memory.words() {
            words.ask(question);
        }
    }

    /// Returns the number of the last question that the receiver claims to have answered.
    pub(super) fn answered(&self) -> u32 {
        self.memory.words().map_or(0, Words::answered)
    }

    /// Counts a look. Returns true once if [`PATIENCE`] looks in a row find unread bytes and an unchanged position of
    /// the receiver. The receiver may have claimed to need no notification, and then not looked.
    #[inline]
    pub(super) fn waits_for_reader(&self) -> bool {
        // One thread at a time looks.
        let looks = self.stays.looks.load(Ordering::Relaxed);
        self.stays.looks.store(looks.wrapping_add(1), Ordering::Relaxed);
        // The receiver writes its position for each message. A read at each look would take the cache line from it.
        looks.is_multiple_of(READER_INTERVAL) && self.reader_stays(looks)
    }

    fn reader_stays(&self, looks: u32) -> bool {
        let Ok(words) = self.memory.words() else { return false };
        let (stays, now) = (&self.stays, words.head());
        if now == self.tail.load(Ordering::Relaxed) || stays.head.load(Ordering::Relaxed) != now {
            stays.head.store(now, Ordering::Relaxed);
            stays.looks.store(1, Ordering::Relaxed);
            return false;
        }
        looks == PATIENCE
    }

    /// Returns the words of executed requests, or `None` in a forked child.
    pub(super) fn executed(&self) -> Option<&Executed> {
        self.memory.front().ok().map(|front| &front.executed)
    }

    /// Returns the words of visits, or `None` in a forked child.
    pub(super) fn visits(&self) -> Option<&Visits> {
        self.memory.front().ok().map(|front| &front.visits)
    }

    /// Asks the receiver for a notification of space. Returns true if there is already space for any message.
    pub(super) fn wait(&self) -> Result<bool> {
        let space = self.memory.words()?.wait(self.tail.load(Ordering::Relaxed));
        space.map(|space| space >= CAPACITY / 2).map_err(|Broken| Errno::PROTO)
    }
}

/// The receiver's end. Callers hold a lock, so that each message is read only once.
#[derive(Debug)]
pub(super) struct RingReceiver {
    memory: Mapping,
    head: AtomicU32,
}

/// A message whose first bytes have been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message {
    /// The length in bytes.
    pub(super) length: usize,
    /// The number of bytes that have been read.
    read: usize,
    /// The number of bytes that it takes in the ring.
    taken: u32,
    /// The number of bytes in the ring that had not been read, including those of the message.
    unread: u32,
}

impl RingReceiver {
    /// Opens a ring that another process created.
    pub(super) fn open(file: BorrowedFd<'_>) -> Result<Self> {
        // Checked first, because this fails for a file that is not memory. If the file could shrink, pages could
        // disappear while they are read here. If it could grow, releasing it could take long.
        let sealed = fcntl_get_seals(file)?.contains(SealFlags::SHRINK | SealFlags::GROW);
        let size = fstat(file)?.st_size;
        if !sealed || u64::try_from(size) != Ok(SIZE as u64) {
            return Err(Errno::INVAL);
        }
        Ok(Self { memory: Mapping::of(file)?, head: AtomicU32::new(0) })
    }

    /// Returns true if something has arrived, or the sender has violated the protocol.
    pub(super) fn has_arrived(&self) -> bool {
        let unread =
            self.memory.words().map(|words| words.unread(self.head.load(Ordering::Relaxed)));
        unread.is_ok_and(|unread| unread != Ok(0))
    }

    /// Reads the [`GAP`] bytes before the next message, and its first bytes. Bytes after its end are arbitrary. Returns
    /// `None` if there is no message. [`take`](Self::take) reads the rest.
    ///
    /// # Errors
    /// Fails if the sender has violated the protocol: the message's length does not fit the ring.
    pub(super) fn next<const N: usize>(&self, first: &mut [u8; N]) -> Result<Option<Message>> {
        const { assert!(N >= GAP as usize) };
        let words = self.memory.words()?;
        let head = self.head.load(Ordering::Relaxed);
        let unread = words.unread(head).map_err(|Broken| Errno::PROTO)?;
        if unread == 0 {
            return Ok(None);
        }
        let _ = Reach::Mapped.collect_bytes(&self.memory.ring(head), 0, first);
        let length = first.first_chunk().map_or(0, |&length| u32::from_le_bytes(length)) as usize;
        let taken = ring_bytes(length).filter(|&taken| taken <= unread).ok_or(Errno::PROTO)?;
        let read = length.min(N - GAP as usize);
        Ok(Some(Message { length, read, taken, unread }))
    }

    /// Reads more of the first bytes of the [next](Self::next) message.
    pub(super) fn read_more<const N: usize>(&self, message: &mut Message, first: &mut [u8; N]) {
        let _ = Reach::Mapped.collect_bytes(&self.memory_from(0), 0, first);
        message.read = message.length.min(N - GAP as usize);
    }

    /// Returns the memory from the byte `at` after the beginning of the gap on, until the [next](Self::next) message is
    /// [removed](Self::remove).
    pub(super) fn memory_from(&self, at: u32) -> [Segment; 2] {
        self.memory.ring(self.head.load(Ordering::Relaxed).wrapping_add(at))
    }

    /// Removes the [next](Self::next) message from the ring. Returns true if the sender must be notified of space.
    pub(super) fn remove(&self, message: Message) -> Result<bool> {
        let Message { taken, unread, .. } = message;
        let head = self.head.load(Ordering::Relaxed).wrapping_add(taken);
        self.head.store(head, Ordering::Relaxed);
        Ok(self.memory.words()?.free(head, unread - taken))
    }

    /// Reads the rest of the [next](Self::next) message, and removes the message from the ring. Returns true if the sender
    /// must be notified of space.
    ///
    /// # Errors
    /// Fails if the rest does not fit `behind`.
    pub(super) fn take(&self, message: Message, behind: &mut [u8]) -> Result<bool> {
        let Message { length, read, .. } = message;
        let behind = behind.get_mut(..length - read).ok_or(Errno::MSGSIZE)?;
        let at = u64::from(GAP) + read as u64;
        let _ = Reach::Mapped.collect_bytes(&self.memory_from(0), at, behind);
        self.remove(message)
    }

    /// Records in the connection's word that all packets before `expected` have been executed.
    pub(super) fn store(&self, key: WordKey, expected: Psn) {
        if let Ok(Front { executed, .. }) = self.memory.front() {
            executed.store(key, expected);
        }
    }

    /// Returns true if the sender retries this connection's requests without limit while the receiver is not ready.
    pub(super) fn is_patient(&self, key: WordKey) -> bool {
        self.memory.front().is_ok_and(|front| front.executed.is_patient(key))
    }

    /// Returns the number of the visit in which the sender's connection with this word is, if any.
    pub(super) fn visit(&self, index: usize) -> Option<u32> {
        self.memory.front().ok()?.visits.current(index)
    }

    /// If the sender must be notified of stored words, calls `notify`, which returns true if it succeeds.
    pub(super) fn announce(&self, notify: impl FnOnce() -> bool) {
        if let Ok(Front { executed, .. }) = self.memory.front()
            && executed.must_notify()
            && !notify()
        {
            executed.notification_failed();
        }
    }

    /// Records that the sender could not be notified of space.
    pub(super) fn notification_failed(&self) {
        if let Ok(words) = self.memory.words() {
            words.space_notification_failed();
        }
    }

    /// Returns the number of the sender's last question, which covers everything that arrived before it.
    pub(super) fn asked(&self) -> u32 {
        self.memory.words().map_or(0, Words::asked)
    }

    /// Answers the question: everything that arrived before it is executed. The caller notifies the sender.
    pub(super) fn answer(&self, question: u32) {
        if let Ok(words) = self.memory.words() {
            words.answer(question);
        }
    }

    /// Announces that a thread looks at the ring from now on without being notified.
    pub(super) fn suppress_notifications(&self) {
        if let Ok(words) = self.memory.words() {
            words.suppress_notifications();
        }
    }

    /// Asks the sender for notifications of messages.
    pub(super) fn request_notifications(&self) {
        if let Ok(words) = self.memory.words() {
            words.request_notifications();
        }
    }
}
