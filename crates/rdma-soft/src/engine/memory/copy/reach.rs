//! Copies where the memory may be gone.
//!
//! A program can unmap memory while it is registered, and hardware does not mind: it has pinned the pages.
//! Within a post the program is there to answer for what it does, but later, from the device's thread or
//! another queue pair's, its memory may have been unmapped by a library that it knows nothing of. Such a
//! copy is made by the kernel (`process_vm_readv(2)` on this process), which says that memory is not there
//! where an instruction of ours would end the process. It takes about a microsecond longer.
#![allow(unsafe_code)]

use std::ffi::c_ulong;
use std::slice;
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};

use libc::iovec;

use super::{Cursor, Data, Segment, copy_segment, pointers, transfer_cursors};
use crate::abi::fork::Process;
use crate::engine::memory::probe;

/// Whether the memory of a copy is known to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The memory is mapped: the copy cannot fail.
    Mapped,
    /// The memory may have been unmapped, or have lost its rights to be read or written.
    ///
    /// Where the kernel does not copy for us, since a filter of system calls forbids it, under valgrind and
    /// with `--cfg rdma_visible_copies`, such copies are made as if the memory were there.
    MayBeGone,
}

/// The side of a copy whose memory was not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Source,
    Sink,
}

impl Reach {
    /// [`transfer`](super::transfer), which stops where memory is not there.
    #[inline(always)]
    pub(crate) fn transfer(
        self,
        source: &[Segment],
        sink: &[Segment],
        from: u64,
        to: u64,
    ) -> Result<(), Fault> {
        if self == Self::Mapped {
            super::transfer(source, sink, from, to);
            return Ok(());
        }
        transfer_guarded(source, sink, from, to)
    }

    /// [`transfer_behind`](super::transfer_behind), which stops where memory is not there.
    pub(crate) fn transfer_behind(
        self,
        source: &[Segment],
        sink: &[Segment],
        lead: u64,
        length: u64,
    ) -> Result<(), Fault> {
        if self == Self::Mapped {
            super::transfer_behind(source, sink, lead, length);
            return Ok(());
        }
        transfer_cursors(Cursor::at(source, 0), Cursor::at(sink, lead), length, copy_guarded)
    }

    /// Copies a number, in the order of this machine's bytes, to a list of segments.
    pub(crate) fn deliver(self, number: u64, sink: &[Segment]) -> Result<(), Fault> {
        self.deliver_bytes(&number.to_ne_bytes(), sink, 0)
    }

    /// Copies bytes of the device's own to a list of segments, behind the first `lead` bytes there.
    pub(crate) fn deliver_bytes(
        self,
        bytes: &[u8],
        sink: &[Segment],
        lead: u64,
    ) -> Result<(), Fault> {
        let (address, length) = (bytes.as_ptr().expose_provenance() as u64, bytes.len() as u64);
        // SAFETY: borrowed until the copy is done, which only reads it, and exposed here (SAFETY.md F7).
        let source = unsafe { Segment::new(address, length) };
        self.transfer_behind(&[source], sink, lead, length)
    }

    /// Copies from a list of segments, behind the first `lead` bytes there, to bytes of the device's own.
    pub(crate) fn collect_bytes(
        self,
        source: &[Segment],
        lead: u64,
        bytes: &mut [u8],
    ) -> Result<(), Fault> {
        let (address, length) = (bytes.as_mut_ptr().expose_provenance() as u64, bytes.len() as u64);
        // SAFETY: borrowed for this call alone until the copy is done, and exposed here (SAFETY.md F7).
        let sink = unsafe { Segment::new(address, length) };
        let (sources, sinks) = (Cursor::at(source, lead), Cursor::at(slice::from_ref(&sink), 0));
        transfer_cursors(sources, sinks, length, |from, to, length| self.copy(from, to, length))
    }

    fn copy(self, source: u64, sink: u64, length: u64) -> Result<(), Fault> {
        if self == Self::Mapped {
            copy_segment(source, sink, length);
            return Ok(());
        }
        copy_guarded(source, sink, length)
    }

    /// Puts data where the bytes `from..to` of a message belong.
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
            Data::Bytes(bytes) => self.deliver_bytes(bytes, sink, from),
        }
    }

    /// Whether a word can be read and written.
    ///
    /// The kernel has no atomic operations for us, so the word is looked at before it is used. If it is
    /// unmapped in the nanoseconds between, or loses its right to be written, the process ends.
    #[inline]
    pub(crate) fn finds(self, word: super::AtomicWord) -> bool {
        self == Self::Mapped || can_be_changed(word.0)
    }
}

#[inline(never)]
fn transfer_guarded(source: &[Segment], sink: &[Segment], from: u64, to: u64) -> Result<(), Fault> {
    let (sources, sinks) = (Cursor::at(source, from), Cursor::at(sink, from));
    transfer_cursors(sources, sinks, to.saturating_sub(from), copy_guarded)
}

/// Its page is made ready to be written as at a registration, since no copy can tell: one of the word onto itself
/// would undo what another thread changes meanwhile. A page of a file that was cut off is found by the read, also
/// where the kernel cannot make pages ready.
#[inline(never)]
fn can_be_changed(word: u64) -> bool {
    if !kernel_copies() {
        return true;
    }
    let mut bytes = [0; 8];
    let scratch = bytes.as_mut_ptr().expose_provenance() as u64;
    let page = probe::pages(word, 8);
    copy_guarded(word, scratch, 8).is_ok()
        && page.is_some_and(|page| probe::populate(page, true).is_ok())
}

/// Copies upwards. The last eight bytes, or all if they are fewer, come after all others.
fn copy_guarded(source: u64, sink: u64, length: u64) -> Result<(), Fault> {
    if !kernel_copies() {
        copy_segment(source, sink, length);
        return Ok(());
    }
    let body = length.saturating_sub(8);
    // "Buffers are processed in array order", and x86-64 shows stores in theirs.
    let to = [place(sink, body), place(sink + body, length - body)];
    let at_once = cfg!(target_arch = "x86_64")
        && move_by(Call::ToHere, &[place(source, length)], &to) == length;
    if at_once {
        return Ok(());
    }
    copy_by_kernel(source, sink, body)?;
    fence(Ordering::Release);
    copy_by_kernel(source + body, sink + body, length - body)
}

/// Whether the system has the two calls and lets us use them. Emulators and filters of system calls may
/// not. Tools that look for wrong accesses see those of our instructions better, so they are given these.
pub(super) fn kernel_copies() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| !is_watched() && kernel_copies_between_places())
}

#[cfg(any(miri, rdma_visible_copies, not(target_arch = "x86_64")))]
fn is_watched() -> bool {
    cfg!(any(miri, rdma_visible_copies))
}

/// Whether valgrind runs this program: its request `RUNNING_ON_VALGRIND` of `valgrind.h`, made by
/// instructions that do nothing on a processor.
#[cfg(all(target_arch = "x86_64", not(any(miri, rdma_visible_copies))))]
fn is_watched() -> bool {
    let request: [u64; 6] = [0x1001, 0, 0, 0, 0, 0];
    let depth: u64;
    // SAFETY: four rotations, by 128 bits together, and an exchange of a register with itself change
    // nothing but flags; valgrind reads the request and writes `rdx` (SAFETY.md F15).
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
    move_by(Call::ToHere, &from, &to) == 8 && move_by(Call::FromHere, &from, &to) == 8
}

fn copy_by_kernel(mut source: u64, mut sink: u64, mut left: u64) -> Result<(), Fault> {
    while left > 0 {
        let moved = match move_by(Call::ToHere, &[place(source, left)], &[place(sink, left)]) {
            0 => move_by_way_of_here(source, sink, left)?,
            moved => moved,
        };
        (source, sink, left) = (source + moved, sink + moved, left - moved);
    }
    Ok(())
}

/// Copies some of it by way of memory of our own, and so finds out which side is not there.
///
/// Both places are accessed as by this thread, while the usual call looks up the pages of the source,
/// which has not all kinds of memory: a file of a device has none.
#[cold]
fn move_by_way_of_here(source: u64, sink: u64, left: u64) -> Result<u64, Fault> {
    let mut bytes = [0_u8; 4096];
    let length = left.min(bytes.len() as u64);
    let here = bytes.as_mut_ptr().expose_provenance() as u64;
    // As many as are there, and the rest by another round, which finds none.
    match move_by(Call::FromHere, &[place(source, length)], &[place(here, length)]) {
        // A filter of system calls that came later.
        0 if !is_fault() => {
            copy_segment(source, sink, left);
            Ok(left)
        }
        0 => Err(Fault::Source),
        found => match move_by(Call::ToHere, &[place(here, found)], &[place(sink, found)]) {
            0 => Err(Fault::Sink),
            moved => Ok(moved),
        },
    }
}

/// Whether the last call failed for the memory, and not since it is forbidden.
fn is_fault() -> bool {
    std::io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
}

/// Which side the kernel accesses as this thread would; of the other it looks up the pages.
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

/// Says how many bytes were copied, fewer or none if memory is not there.
fn move_by(call: Call, source: &[iovec], sink: &[iovec]) -> u64 {
    let (sources, sinks) = (source.len() as c_ulong, sink.len() as c_ulong);
    let (source, sink) = (source.as_ptr(), sink.as_ptr());
    // In a child of fork, its parent's number is that of other memory.
    let this = Process::current().id().cast_signed();
    let moved = match call {
        // SAFETY: two arrays of these lengths, borrowed during the call, which only reads them. Each place is one
        // of two kinds. Bytes of the device's own: an array of a function of this module, or a slice that its
        // caller has borrowed for the copy, shared if they are the source, exclusively if they are the sink, from
        // which the pointer was made and exposed (F7) that the call uses; nothing else uses them until it
        // returns. Or a part of a program's segment, which may be gone: the kernel checks each page, and touches
        // none that is not there, or not for this access (process_vm_readv(2), SAFETY.md F15). What is there is
        // valid by the contract of `Segment::new` (F8), its provenance is exposed (F7), and the device has no Rust
        // reference to it (F10).
        Call::ToHere => unsafe { libc::process_vm_readv(this, sink, sinks, source, sources, 0) },
        // SAFETY: likewise (SAFETY.md F7, F8, F10, F15).
        Call::FromHere => unsafe { libc::process_vm_writev(this, source, sources, sink, sinks, 0) },
    };
    u64::try_from(moved).unwrap_or(0)
}
