//! The memory that two processes share: a ring of messages from the one that made it to the other.
//!
//! | bytes | what |
//! |---|---|
//! | 0 to 767 | [`Words`], each in 128 bytes |
//! | 768 to 9215 | [`Executed`]: how far the receiver has executed what came for each connection |
//! | 12288 and on | the ring, of [`CAPACITY`] bytes |
//!
//! A message begins at a multiple of [`ALIGN`], with its length in four bytes (little endian) and [`GAP`] bytes in all before
//! it. Whoever has the memory may write it at any time: no reference to the bytes of the ring is formed, and what was
//! copied out of it is checked then.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rdma_types::Psn;
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat,
    memfd_create,
};
use rustix::io::{Errno, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::abi::fork::Process;
use crate::engine::wire::word::{GROUPS, WordKey};
use crate::link::executed::Executed;
use crate::link::ring::{Broken, CAPACITY, Words};
use crate::memory::copy::{Reach, Segment};

/// Where the ring begins.
const BEGIN: usize = 12_288;
const SIZE: usize = BEGIN + CAPACITY as usize;
/// Where messages begin.
const ALIGN: u32 = 64;
/// After how many looks a sender tells a receiver that has said that it looks: some microseconds.
const PATIENCE: u32 = 128;
/// How many bytes there are before a message, so that a short message takes two cache lines.
const GAP: u32 = 16;

/// What is before the ring.
#[repr(C)]
struct Front {
    words: Words,
    executed: Executed,
}

const _: () = assert!(size_of::<Front>() <= BEGIN && CAPACITY.is_power_of_two());

/// The memory, as it is mapped here. A forked child does not have it.
#[derive(Debug)]
struct Mapping {
    place: NonNull<u8>,
    process: Process,
}

// SAFETY: the memory belongs to no thread, and is reached by atomics and device copies alone (SAFETY.md F26).
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn of(memory: BorrowedFd<'_>) -> Result<Self> {
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, where the kernel has space (mmap(2), SAFETY.md F15).
        let place = unsafe { mmap(std::ptr::null_mut(), SIZE, rights, flags, memory, 0) }?;
        let place = NonNull::new(place.cast()).ok_or(Errno::NOMEM)?;
        let mapping = Self { place, process: Process::current() };
        // SAFETY: of these pages, which are this value's (madvise(2), SAFETY.md F15).
        unsafe { madvise(place.as_ptr().cast(), SIZE, Advice::LinuxDontFork) }?;
        let _ = place.as_ptr().expose_provenance();
        Ok(mapping)
    }

    /// In the process that has mapped it.
    fn front(&self) -> Result<&Front> {
        if !self.process.is_current() {
            return Err(Errno::BADF);
        }
        // SAFETY: mapped here as long as this value is, aligned, and there is no other access to it, in whatever process,
        // than by atomics, of which any bytes are values (SAFETY.md F26).
        Ok(unsafe { self.place.cast::<Front>().as_ref() })
    }

    fn words(&self) -> Result<&Words> {
        self.front().map(|front| &front.words)
    }

    /// All of the ring from `at` on, in two pieces.
    fn ring(&self, at: u32) -> [Segment; 2] {
        let at = u64::from(at % CAPACITY);
        let begin = (self.place.as_ptr().addr() + BEGIN) as u64;
        [(begin + at, u64::from(CAPACITY) - at), (begin, at)].map(|(address, length)| {
            // SAFETY: within the mapping, of which all was exposed, and which is there as long as this value, from which the
            // segment does not get away (SAFETY.md F26).
            unsafe { Segment::new(address, length) }
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.process.is_current() {
            // SAFETY: mapped by this value, and used by nobody when it is dropped (munmap(2), SAFETY.md F26).
            let _ = unsafe { munmap(self.place.as_ptr().cast(), SIZE) };
        }
    }
}

/// What a message takes of the ring.
fn taken(length: usize) -> Option<u32> {
    u32::try_from(length).ok()?.checked_add(GAP)?.checked_next_multiple_of(ALIGN)
}

/// What the sender has. Who calls holds a lock, so that messages do not mix.
#[derive(Debug)]
pub(super) struct RingSender {
    memory: Mapping,
    tail: AtomicU32,
    /// How far what is written may go, as far as is known: the receiver's word is looked at only when that is too little, so
    /// that it stays in the receiver's cache.
    limit: AtomicU32,
    /// How far the receiver had read at the last look, and how many looks have found the same since.
    stays: [AtomicU32; 2],
}

impl RingSender {
    /// Makes a ring, with a file that is to be sent to the other process.
    pub(super) fn new() -> Result<(Self, OwnedFd)> {
        let file = memfd_create("rdma-soft", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        // All of it now: where there is no memory this fails, and not the write to a page later.
        fallocate(&file, FallocateFlags::empty(), 0, SIZE as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let memory = Mapping::of(file.as_fd())?;
        let (tail, limit) = (AtomicU32::new(0), AtomicU32::new(CAPACITY));
        Ok((Self { memory, tail, limit, stays: Default::default() }, file))
    }

    /// Writes a message, given in parts. Says whether the receiver is to be told of it; `None` if there is no space.
    pub(super) fn write<'a>(
        &self,
        parts: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Result<Option<bool>> {
        let words = self.memory.words()?;
        let tail = self.tail.load(Ordering::Relaxed);
        let length = parts.clone().map(<[u8]>::len).sum::<usize>();
        let taken = taken(length).filter(|&taken| taken <= CAPACITY / 2).ok_or(Errno::MSGSIZE)?;
        if self.limit.load(Ordering::Relaxed).wrapping_sub(tail) < taken {
            let space = words.space(tail).map_err(|Broken| Errno::PROTO)?;
            self.limit.store(tail.wrapping_add(space), Ordering::Relaxed);
            if space < taken {
                return Ok(None);
            }
        }
        let ring = self.memory.ring(tail);
        let said = u32::try_from(length).map_err(|_| Errno::MSGSIZE)?.to_le_bytes();
        let _ = Reach::Mapped.deliver_bytes(&said, &ring, 0);
        let mut at = GAP.into();
        for part in parts {
            let _ = Reach::Mapped.deliver_bytes(part, &ring, at);
            at += part.len() as u64;
        }
        let tail = tail.wrapping_add(taken);
        self.tail.store(tail, Ordering::Relaxed);
        Ok(Some(words.publish(tail)))
    }

    /// The receiver could not be told.
    pub(super) fn has_not_told(&self) {
        if let Ok(words) = self.memory.words() {
            words.has_not_told();
        }
    }

    /// Asks the question of that number: whether everything is executed that was written before. The caller notifies the
    /// receiver.
    pub(super) fn ask(&self, question: u32) {
        if let Ok(words) = self.memory.words() {
            words.ask(question);
        }
    }

    /// The number of the last question that was answered, as the receiver says.
    pub(super) fn answered(&self) -> u32 {
        self.memory.words().map_or(0, Words::answered)
    }

    /// Whether the receiver has something to read.
    pub(super) fn is_unread(&self) -> bool {
        let words = self.memory.words();
        words.is_ok_and(|words| words.head() != self.tail.load(Ordering::Relaxed))
    }

    /// Whether as many looks as that have found that the receiver does not read, though it was not to be told.
    pub(super) fn waits_for_reader(&self) -> bool {
        let Ok(words) = self.memory.words() else { return false };
        let ([head, looks], now) = (&self.stays, words.head());
        if now == self.tail.load(Ordering::Relaxed) || head.swap(now, Ordering::Relaxed) != now {
            looks.store(0, Ordering::Relaxed);
            return false;
        }
        looks.fetch_add(1, Ordering::Relaxed) == PATIENCE
    }

    /// How far what was sent is executed. A forked child has nothing of it.
    pub(super) fn executed(&self) -> Option<&Executed> {
        self.memory.front().ok().map(|front| &front.executed)
    }

    /// It is to be told of space from now on. Says whether there is space for every message nevertheless.
    pub(super) fn wait(&self) -> Result<bool> {
        let space = self.memory.words()?.wait(self.tail.load(Ordering::Relaxed));
        space.map(|space| space >= CAPACITY / 2).map_err(|Broken| Errno::PROTO)
    }
}

/// What the receiver has. Who reads holds a lock, so that each message is read once.
#[derive(Debug)]
pub(super) struct RingReceiver {
    memory: Mapping,
    head: AtomicU32,
    /// How often a word of each group was stored.
    moves: [AtomicU32; GROUPS],
}

/// A message that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message {
    /// How long it is.
    pub(super) length: usize,
    /// The sender is to be told that there is space.
    pub(super) tell: bool,
}

impl RingReceiver {
    /// The ring that another process has made.
    pub(super) fn open(file: BorrowedFd<'_>) -> Result<Self> {
        // First of all, since it fails for what is no memory. Of a file that becomes smaller pages would go that are read here;
        // one that becomes larger would take long to release.
        let sealed = fcntl_get_seals(file)?.contains(SealFlags::SHRINK | SealFlags::GROW);
        let size = fstat(file)?.st_size;
        if !sealed || u64::try_from(size) != Ok(SIZE as u64) {
            return Err(Errno::INVAL);
        }
        Ok(Self { memory: Mapping::of(file)?, head: AtomicU32::new(0), moves: Default::default() })
    }

    /// Whether something has come, or the sender has written what it may not.
    pub(super) fn has_come(&self) -> bool {
        let there = self.memory.words().map(|words| words.there(self.head.load(Ordering::Relaxed)));
        there.is_ok_and(|there| there != Ok(0))
    }

    /// Reads a message, of which the beginning goes to `first` and the rest to `behind`. `None` if there is none.
    ///
    /// # Errors
    /// If the sender has written what it may not: a message that does not fit among others.
    pub(super) fn read(&self, first: &mut [u8], behind: &mut [u8]) -> Result<Option<Message>> {
        let words = self.memory.words()?;
        let head = self.head.load(Ordering::Relaxed);
        let there = words.there(head).map_err(|Broken| Errno::PROTO)?;
        if there == 0 {
            return Ok(None);
        }
        let (ring, mut said) = (self.memory.ring(head), [0; 4]);
        let _ = Reach::Mapped.collect_bytes(&ring, 0, &mut said);
        let length = u32::from_le_bytes(said) as usize;
        let taken = taken(length).filter(|&taken| taken <= there).ok_or(Errno::PROTO)?;
        let rest = length.saturating_sub(first.len());
        let (first_length, behind) = (length.min(first.len()), behind.get_mut(..rest));
        let behind = behind.ok_or(Errno::MSGSIZE)?;
        let _ = Reach::Mapped.collect_bytes(&ring, GAP.into(), &mut first[..first_length]);
        let at = u64::from(GAP) + first_length as u64;
        let _ = Reach::Mapped.collect_bytes(&ring, at, behind);
        let head = head.wrapping_add(taken);
        self.head.store(head, Ordering::Relaxed);
        Ok(Some(Message { length, tell: words.free(head, there - taken) }))
    }

    /// All packets before this one were executed, of the connection that has this word.
    pub(super) fn store(&self, key: WordKey, expected: Psn) {
        if let Ok(Front { executed, .. }) = self.memory.front() {
            let moves = self.moves[key.group()].fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            executed.store(key, expected, moves);
        }
    }

    /// Has `tell` tell the sender of what was stored, if it is to be told. That says whether it was.
    pub(super) fn announce(&self, tell: impl FnOnce() -> bool) {
        if let Ok(Front { executed, .. }) = self.memory.front()
            && executed.is_to_be_told()
            && !tell()
        {
            executed.has_not_told();
        }
    }

    /// The sender could not be told of space.
    pub(super) fn has_not_told(&self) {
        if let Ok(words) = self.memory.words() {
            words.has_not_told_of_space();
        }
    }

    /// The number of the sender's last question, which is about all that has come before.
    pub(super) fn asked(&self) -> u32 {
        self.memory.words().map_or(0, Words::asked)
    }

    /// Answers that question: everything is executed that came before. The caller notifies the sender.
    pub(super) fn answer(&self, question: u32) {
        if let Ok(words) = self.memory.words() {
            words.answer(question);
        }
    }

    /// Somebody looks here from now on, whatever the sender tells.
    pub(super) fn look(&self) {
        if let Ok(words) = self.memory.words() {
            words.look();
        }
    }

    /// The sender is to tell of messages from now on.
    pub(super) fn sleep(&self) {
        if let Ok(words) = self.memory.words() {
            words.sleep();
        }
    }
}
