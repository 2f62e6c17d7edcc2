//! Copies of memory that may have been unmapped.
//!
//! A program can unmap memory while it is registered. Hardware tolerates that because it has pinned the pages. During a
//! post, the program is responsible for its own memory. Later copies run on the device's thread or in another queue
//! pair's call. By then a library may have unmapped the memory without the program's knowledge. So the kernel makes
//! such a copy (`process_vm_readv(2)` on this process): it reports unmapped memory, where our own instruction would
//! crash the process. A copy by the kernel takes about a microsecond longer. Memory that a program has
//! [noted as mapped](crate::memory::region::MAPPED) is copied without the kernel.
#![allow(unsafe_code)]

use std::ffi::c_ulong;
use std::slice;
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};

use libc::iovec;

use super::{
    AtomicWord, Cursor, Data, Piece, Segment, copy_segment, pointers, transfer, transfer_mapped,
};
use crate::abi::fork::Process;
use crate::counters::rare::Rare;
use crate::memory::probe;

/// Whether the memory of a copy is known to be mapped.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reach {
    /// All memory is mapped: the copy cannot fail.
    Mapped,
    /// Memory that is not certainly mapped may have been unmapped or made inaccessible. The kernel copies such memory,
    /// and this counter counts its calls.
    ///
    /// The kernel does not copy for us if a seccomp filter or an emulator does not permit it, under valgrind or Miri,
    /// or with `--cfg rdma_visible_copies`. Then such copies are made as if the memory were mapped.
    MayBeGone(&'static Rare),
}

/// The side of a copy whose memory is not mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Source,
    Sink,
}

impl Reach {
    /// Like [`transfer`](super::transfer), but fails if memory is not mapped.
    #[inline(always)]
    pub(crate) fn transfer(
        self,
        source: &[Segment],
        sink: &[Segment],
        from: u64,
        to: u64,
    ) -> Result<(), Fault> {
        if let Self::MayBeGone(_) = self {
            return self.transfer_later(source, sink, from, to);
        }
        transfer(source, sink, from, to);
        Ok(())
    }

    #[inline(never)]
    fn transfer_later(
        self,
        source: &[Segment],
        sink: &[Segment],
        from: u64,
        to: u64,
    ) -> Result<(), Fault> {
        if let ([source, ..], [sink, ..]) = (source, sink)
            && from == 0
            && source.is_mapped_to(to)
            && sink.is_mapped_to(to)
        {
            copy_segment(source.address, sink.address, to);
            return Ok(());
        }
        let (sources, sinks) = (Cursor::at(source, from), Cursor::at(sink, from));
        self.copy(sources, sinks, to.saturating_sub(from))
    }

    /// Copies a number, in native byte order, to a list of segments.
    pub(crate) fn deliver(self, number: u64, sink: &[Segment]) -> Result<(), Fault> {
        self.deliver_bytes(&number.to_ne_bytes(), sink, 0)
    }

    /// Copies the device's own bytes to a list of segments, skipping the first `lead` bytes of the list.
    pub(crate) fn deliver_bytes(
        self,
        bytes: &[u8],
        sink: &[Segment],
        lead: u64,
    ) -> Result<(), Fault> {
        let source = own(bytes);
        if let Some(sink) = self.in_first(sink, lead, source.length) {
            copy_segment(source.address, sink, source.length);
            return Ok(());
        }
        let sources = Cursor::at(slice::from_ref(&source), 0);
        self.copy(sources, Cursor::at(sink, lead), source.length)
    }

    /// Returns the address of bytes of a list, if they are mapped and inside the first segment.
    #[inline]
    fn in_first(self, list: &[Segment], lead: u64, length: u64) -> Option<u64> {
        let first = list.first().filter(|first| first.mapped || matches!(self, Self::Mapped))?;
        (lead.checked_add(length)? <= first.length).then(|| first.address + lead)
    }

    /// Copies the first `length` bytes of a message to a list of segments, after a header or the space for one.
    pub(crate) fn deliver_behind<const N: usize>(
        self,
        header: Option<&[u8; N]>,
        data: Data<'_>,
        sink: &[Segment],
        length: u64,
    ) -> Result<(), Fault> {
        let bytes;
        let data = match data {
            Data::Segments(segments) | Data::Part(segments) => segments,
            Data::Bytes(whole) => {
                bytes = own(whole);
                slice::from_ref(&bytes)
            }
        };
        match header {
            Some(header) => {
                let sources = Cursor::chain(own(header), data);
                self.copy(sources, Cursor::at(sink, 0), N as u64 + length)
            }
            None => self.copy(Cursor::at(data, 0), Cursor::at(sink, N as u64), length),
        }
    }

    /// Copies from a list of segments to the device's own bytes, skipping the first `lead` bytes of the list.
    pub(crate) fn collect_bytes(
        self,
        source: &[Segment],
        lead: u64,
        bytes: &mut [u8],
    ) -> Result<(), Fault> {
        let (address, length) = (bytes.as_mut_ptr().expose_provenance() as u64, bytes.len() as u64);
        // SAFETY: the bytes are borrowed exclusively until the copy is done, and they are exposed here (SAFETY.md F7).
        let sink = unsafe { Segment::new(address, length) };
        self.collect(source, lead, slice::from_ref(&sink), length)
    }

    /// Copies `length` bytes from one list of segments to the beginning of another, skipping the first `lead` bytes of the
    /// source.
    #[inline]
    pub(crate) fn collect(
        self,
        source: &[Segment],
        lead: u64,
        sink: &[Segment],
        length: u64,
    ) -> Result<(), Fault> {
        if let Some(source) = self.in_first(source, lead, length)
            && let Some(sink) = self.in_first(sink, 0, length)
        {
            copy_segment(source, sink, length);
            return Ok(());
        }
        self.copy(Cursor::at(source, lead), Cursor::at(sink, 0), length)
    }

    fn copy(self, sources: Cursor<'_>, sinks: Cursor<'_>, length: u64) -> Result<(), Fault> {
        match self {
            Self::MayBeGone(calls)
                if !(sources.is_mapped() && sinks.is_mapped()) && kernel_copies() =>
            {
                transfer_by_kernel(calls, sources, sinks, length)
            }
            _ => {
                transfer_mapped(sources, sinks, length);
                Ok(())
            }
        }
    }

    /// Writes the bytes `from..to` of a message to their destination.
    #[inline(always)]
    pub(crate) fn put(
        self,
        data: Data<'_>,
        sink: &[Segment],
        from: u64,
        to: u64,
    ) -> Result<(), Fault> {
        match data {
            Data::Segments(source) => self.transfer(source, sink, from, to),
            Data::Part(source) => {
                let length = to.saturating_sub(from);
                self.copy(Cursor::at(source, 0), Cursor::at(sink, from), length)
            }
            Data::Bytes(bytes) => self.deliver_bytes(bytes, sink, from),
        }
    }

    /// Returns true if a word can be read and written.
    ///
    /// The kernel offers no atomic operations for this, so the word is checked before it is used. If the word is
    /// unmapped or made read-only in the nanoseconds in between, the process crashes.
    #[inline]
    pub(crate) fn finds(self, word: AtomicWord) -> bool {
        match self {
            Self::MayBeGone(calls) if !word.0.mapped => can_be_changed(calls, word.0.address),
            _ => true,
        }
    }
}

/// Returns a segment of the device's own bytes.
fn own(bytes: &[u8]) -> Segment {
    let (address, length) = (bytes.as_ptr().expose_provenance() as u64, bytes.len() as u64);
    // SAFETY: the callers are in this module. They borrow the bytes until their copy is done. The copy only reads the
    // bytes, and is the segment's last use. The bytes are exposed here (SAFETY.md F7).
    unsafe { Segment::new(address, length) }
}

/// Returns true if a word can be changed, or if this cannot be checked because the kernel does not copy for us. The
/// word's page is faulted in for writing, as registration does. No copy can show that the page is writable, because
/// copying the word onto itself would undo another thread's concurrent change. The read detects a page beyond the end
/// of a truncated file, even where the kernel cannot fault pages in.
#[inline(never)]
fn can_be_changed(calls: &Rare, word: u64) -> bool {
    if !kernel_copies() {
        return true;
    }
    let mut bytes = [0; 8];
    let scratch = bytes.as_mut_ptr().expose_provenance() as u64;
    let page = probe::pages(word, 8);
    let piece = Piece { source: word, sink: scratch, length: 8 };
    copy_piece(calls, piece).is_ok() && page.is_some_and(|page| probe::populate(page, true).is_ok())
}

/// Copies through the kernel, from low to high addresses. The last eight bytes are written after all others. A copy of
/// at most eight bytes is not divided.
#[inline(never)]
fn transfer_by_kernel(
    calls: &Rare,
    mut sources: Cursor<'_>,
    mut sinks: Cursor<'_>,
    length: u64,
) -> Result<(), Fault> {
    let length = length.min(sources.length()).min(sinks.length());
    let end = length.min(8);
    let body = length - end;
    let mut pieces = Pieces::new(calls);
    pieces.add(&mut sources, &mut sinks, body)?;
    // "Buffers are processed in array order" (process_vm_readv(2)), and on x86-64, stores become visible in program
    // order. On other processors, the end takes a separate call.
    if cfg!(not(target_arch = "x86_64")) {
        pieces.copy()?;
        fence(Ordering::Release);
    }
    pieces.add(&mut sources, &mut sinks, end)?;
    pieces.copy()
}

/// The maximum number of pieces that one call copies: one for each element that queues accept by default. One more is
/// needed because the last element is split in two.
const MOST_PIECES: usize = 33;

/// The pieces that the next call copies.
struct Pieces<'a> {
    calls: &'a Rare,
    sources: [iovec; MOST_PIECES],
    sinks: [iovec; MOST_PIECES],
    count: usize,
    length: u64,
}

impl<'a> Pieces<'a> {
    fn new(calls: &'a Rare) -> Self {
        let none = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self {
            calls,
            sources: [none; MOST_PIECES],
            sinks: [none; MOST_PIECES],
            count: 0,
            length: 0,
        }
    }

    /// Adds the next `left` bytes of two lists. When there is no space, first copies the pieces added so far.
    fn add(
        &mut self,
        sources: &mut Cursor<'_>,
        sinks: &mut Cursor<'_>,
        mut left: u64,
    ) -> Result<(), Fault> {
        while let Some(piece) = Piece::next(sources, sinks, left) {
            if self.count == MOST_PIECES {
                self.copy()?;
            }
            self.sources[self.count] = place(piece.source, piece.length);
            self.sinks[self.count] = place(piece.sink, piece.length);
            self.count += 1;
            self.length += piece.length;
            left -= piece.length;
        }
        Ok(())
    }

    /// Copies the added pieces, in one call if all of the memory is mapped.
    fn copy(&mut self) -> Result<(), Fault> {
        let (count, length) = (std::mem::take(&mut self.count), std::mem::take(&mut self.length));
        let (sources, sinks) = (&self.sources[..count], &self.sinks[..count]);
        let mut moved = match length {
            0 => 0,
            _ => move_by(self.calls, Call::ToHere, sources, sinks),
        };
        if moved == length {
            return Ok(());
        }
        // Some kinds of memory can only be copied by the other kernel call. If a side is not mapped, that call shows
        // which one.
        for (source, sink) in sources.iter().zip(sinks) {
            let length = source.iov_len as u64;
            let skip = moved.min(length);
            moved -= skip;
            let [source, sink] = [source, sink].map(|side| side.iov_base.addr() as u64 + skip);
            copy_piece(self.calls, Piece { source, sink, length: length - skip })?;
        }
        Ok(())
    }
}

/// Returns true if the system has `process_vm_readv` and `process_vm_writev`, and permits them; under an emulator or a
/// seccomp filter it may not. Also returns false under memory checkers (valgrind, Miri, AddressSanitizer), which check
/// our own loads and stores better than copies made by the kernel.
pub(super) fn kernel_copies() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| !is_watched() && kernel_copies_between_places())
}

#[cfg(any(miri, rdma_visible_copies, not(target_arch = "x86_64")))]
fn is_watched() -> bool {
    cfg!(any(miri, rdma_visible_copies))
}

/// Returns true if valgrind runs this program. Makes the request `RUNNING_ON_VALGRIND` of `valgrind.h`, with
/// instructions that have no effect on a real processor.
#[cfg(all(target_arch = "x86_64", not(any(miri, rdma_visible_copies))))]
fn is_watched() -> bool {
    let request: [u64; 6] = [0x1001, 0, 0, 0, 0, 0];
    let depth: u64;
    // SAFETY: the four rotations add up to 128 bits, so they and the exchange of a register with itself change only
    // flags. Valgrind reads the request and writes `rdx` (SAFETY.md F15).
    unsafe {
        std::arch::asm!(
            "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
            in("rax") request.as_ptr(), inout("rdx") 0_u64 => depth,
            options(nostack, readonly),
        );
    }
    depth != 0
}

fn kernel_copies_between_places() -> bool {
    let (mut source, mut sink) = (1_u64.to_ne_bytes(), [0; 8]);
    let from = source.as_mut_ptr().expose_provenance() as u64;
    let to = sink.as_mut_ptr().expose_provenance() as u64;
    let (from, to) = ([place(from, 8)], [place(to, 8)]);
    let none = Rare::new();
    move_by(&none, Call::ToHere, &from, &to) == 8 && move_by(&none, Call::FromHere, &from, &to) == 8
}

/// Copies one piece with as many calls as necessary.
fn copy_piece(calls: &Rare, mut piece: Piece) -> Result<(), Fault> {
    while piece.length > 0 {
        let Piece { source, sink, length } = piece;
        let moved =
            match move_by(calls, Call::ToHere, &[place(source, length)], &[place(sink, length)]) {
                0 => move_by_way_of_here(calls, piece)?,
                moved => moved,
            };
        piece = Piece { source: source + moved, sink: sink + moved, length: length - moved };
    }
    Ok(())
}

/// Copies part of a piece through a buffer of our own, to find out which side is not mapped.
///
/// The kernel then accesses both places as this thread would. The usual call looks up the pages of the source, and some
/// kinds of memory, such as a mapped device file, do not have any.
#[cold]
fn move_by_way_of_here(calls: &Rare, piece: Piece) -> Result<u64, Fault> {
    let Piece { source, sink, length: left } = piece;
    let mut bytes = [0_u8; 4096];
    let length = left.min(bytes.len() as u64);
    let here = bytes.as_mut_ptr().expose_provenance() as u64;
    // If only the first bytes are mapped, this copies these. The next round of `copy_piece` then finds none that is
    // mapped, and fails.
    match move_by(calls, Call::FromHere, &[place(source, length)], &[place(here, length)]) {
        // A seccomp filter was installed after the check.
        0 if !is_fault() => {
            copy_segment(source, sink, left);
            Ok(left)
        }
        0 => Err(Fault::Source),
        found => match move_by(calls, Call::ToHere, &[place(here, found)], &[place(sink, found)]) {
            0 => Err(Fault::Sink),
            moved => Ok(moved),
        },
    }
}

/// Returns true if the last call failed because of the memory, not because a filter forbids the call.
fn is_fault() -> bool {
    std::io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
}

/// The side that the kernel accesses as this thread would. For the other side, it looks up the pages.
#[derive(Debug, Clone, Copy)]
enum Call {
    /// The sink: `process_vm_readv`.
    ToHere,
    /// The source: `process_vm_writev`.
    FromHere,
}

fn place(address: u64, length: u64) -> iovec {
    let (_, base, iov_len) = pointers(address, address, length);
    iovec { iov_base: base.cast(), iov_len }
}

/// Makes one system call, and returns the number of bytes copied: fewer than requested, or none, if memory is not
/// mapped. Also returns 0 if a filter forbids the call.
fn move_by(calls: &Rare, call: Call, source: &[iovec], sink: &[iovec]) -> u64 {
    calls.count();
    let (sources, sinks) = (source.len() as c_ulong, sink.len() as c_ulong);
    let (source, sink) = (source.as_ptr(), sink.as_ptr());
    // In a forked child, the parent's process ID would name other memory.
    let this = Process::current().id().cast_signed();
    let moved = match call {
        // SAFETY: the two arrays have these lengths, and are borrowed during the call, which only reads them. Each
        // place is one of two kinds. The first kind is the device's own bytes: an array in a function of this module,
        // or a slice that the caller borrows for the copy. The source is borrowed shared, the sink exclusively. The
        // call uses the pointer that was made from these bytes and exposed (F7); nothing else uses the bytes until the
        // call returns. The second kind is a part of a program's segment, which may be gone. The kernel checks each
        // page, and does not touch a page that is unmapped or does not permit this access (process_vm_readv(2),
        // SAFETY.md F15). Mapped memory is valid by the contracts of `Segment` (F8), its provenance is exposed (F7),
        // and the device has no Rust reference to it (F10).
        Call::ToHere => unsafe { libc::process_vm_readv(this, sink, sinks, source, sources, 0) },
        // SAFETY: likewise (SAFETY.md F7, F8, F10, F15).
        Call::FromHere => unsafe { libc::process_vm_writev(this, source, sources, sink, sinks, 0) },
    };
    u64::try_from(moved).unwrap_or(0)
}
