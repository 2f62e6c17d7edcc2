//! The memory of an end: to send from, to receive or read into, and to lend to the peer.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context as _;
use rdma::memory::{
    AccessFlags, GatherElement, MemoryRegion, OwnedRegion, ProtectionDomain, RemoteMemoryRegion,
    ScatterElement, SharedRegion,
};

use crate::perf::settings::{Operation, Settings, WORD};

/// The memory that an end sends from and receives or reads into.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) source: Source,
    pub(super) sinks: Vec<Sink>,
}

impl Memory {
    /// Registers a source as long as the longest message, and the sinks. There is one sink for all
    /// receives, or one for each message length that is read.
    ///
    /// # Errors
    /// Returns an error if the machine has too little memory, or if the limit on locked memory is
    /// too low.
    pub(super) fn allocate(pd: &ProtectionDomain, settings: &Settings) -> anyhow::Result<Self> {
        let foreign = settings.foreign_memory;
        let longest = settings.longest() as usize;
        let sinks = match settings.operation {
            _ if settings.has_receives() => vec![longest],
            Operation::Read | Operation::Atomic => {
                settings.sizes.iter().map(|&size| size as usize).collect()
            }
            Operation::Send | Operation::Write => Vec::new(),
        };
        let source = Source::allocate(pd, longest, foreign).with_context(|| no_memory(longest))?;
        let sink = |length| Sink::allocate(pd, length, foreign).with_context(|| no_memory(length));
        Ok(Self { source, sinks: sinks.into_iter().map(sink).collect::<Result<_, _>>()? })
    }
}

fn no_memory(bytes: usize) -> String {
    format!("cannot register {bytes} bytes")
}

/// Returns a buffer of zeros, or an error if the machine has too little memory.
pub(crate) fn zeros(length: usize) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length)?;
    bytes.resize(length, 0);
    Ok(bytes)
}

/// Memory from which requests send.
#[derive(Debug)]
pub(super) enum Source {
    Owned(OwnedRegion),
    Foreign { region: MemoryRegion, bytes: Vec<u8> },
}

impl Source {
    fn allocate(pd: &ProtectionDomain, length: usize, foreign: bool) -> anyhow::Result<Self> {
        if !foreign {
            return Ok(Self::Owned(pd.allocate_region(length)?));
        }
        let bytes = zeros(length)?;
        Ok(Self::Foreign { region: pd.register_local_mr_slice(&bytes)?, bytes })
    }

    /// Returns an element for the first `length` bytes, or `None` if the memory is shorter.
    #[inline]
    pub(super) fn element(&self, length: usize) -> Option<GatherElement<'_>> {
        match self {
            Self::Owned(region) => region.get_ref(0, length).map(|slice| slice.gather_element()),
            Self::Foreign { region, bytes } => {
                region.gather_element_checked(bytes.get(..length)?).ok()
            }
        }
    }

    /// Sets the byte at `index`. The caller must ensure that no request in flight uses the memory.
    #[inline]
    pub(super) fn set(&mut self, index: usize, byte: u8) {
        let bytes: &mut [u8] = match self {
            Self::Owned(region) => region,
            Self::Foreign { bytes, .. } => bytes,
        };
        if let Some(place) = bytes.get_mut(index) {
            *place = byte;
        }
    }
}

impl Deref for Source {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Owned(region) => region,
            Self::Foreign { bytes, .. } => bytes,
        }
    }
}

/// Memory that requests receive or read into.
#[derive(Debug)]
pub(super) enum Sink {
    Owned(SharedRegion),
    Foreign { region: MemoryRegion, bytes: Vec<u8> },
}

impl Sink {
    fn allocate(pd: &ProtectionDomain, length: usize, foreign: bool) -> anyhow::Result<Self> {
        if !foreign {
            let access = AccessFlags::new().with_local_write();
            return Ok(Self::Owned(pd.allocate_shared_region(length, access)?));
        }
        let bytes = zeros(length)?;
        Ok(Self::Foreign { region: pd.register_local_mr_slice(&bytes)?, bytes })
    }

    /// Returns an element for the whole memory. Several requests may use it at the same time,
    /// because the bytes are never read.
    pub(super) fn element(&mut self) -> anyhow::Result<ScatterElement<'_>> {
        Ok(match self {
            Self::Owned(region) => region.element(0..region.len())?.into(),
            Self::Foreign { region, bytes } => region.scatter_element_checked(bytes)?,
        })
    }
}

/// Memory that is lent to the peer.
#[derive(Debug)]
pub(super) enum Target {
    Owned(SharedRegion),
    /// The fields are dropped in their order, so the words are freed after the region is
    /// deregistered.
    Foreign {
        region: MemoryRegion,
        words: Vec<AtomicU64>,
    },
}

impl Target {
    /// Registers memory for the longest message, rounded up to whole words. The region grants the
    /// rights that the operation needs.
    ///
    /// # Errors
    /// Same errors as [`Memory::allocate`].
    pub(super) fn allocate(pd: &ProtectionDomain, settings: &Settings) -> anyhow::Result<Self> {
        let length = settings.longest().next_multiple_of(WORD) as usize;
        let access = access(settings.operation);
        let allocated = match settings.foreign_memory {
            false => pd.allocate_shared_region(length, access).map(Self::Owned).map_err(Into::into),
            true => Self::foreign(pd, length, access),
        };
        allocated.with_context(|| no_memory(length))
    }

    fn foreign(pd: &ProtectionDomain, length: usize, access: AccessFlags) -> anyhow::Result<Self> {
        let mut words: Vec<AtomicU64> = Vec::new();
        words.try_reserve_exact(length / WORD as usize)?;
        words.resize_with(length / WORD as usize, AtomicU64::default);
        let address = words.as_ptr().cast::<u8>().cast_mut();
        // SAFETY: SAFETY.md F8: `words` is freed after the region is deregistered, and this process accesses it only
        // with eight-byte atomics.
        let region = unsafe { pd.register_mr_with_access(address, length, access) }?;
        Ok(Self::Foreign { region, words })
    }

    /// Returns the address and the key that the peer needs.
    pub(super) fn remote(&self) -> RemoteMemoryRegion {
        match self {
            Self::Owned(region) => region.remote(),
            Self::Foreign { region, .. } => region.remote(),
        }
    }

    /// Returns the word that contains the byte at `index`.
    pub(super) fn word(&self, index: usize) -> Option<&AtomicU64> {
        let word = index / WORD as usize;
        match self {
            Self::Owned(region) => region.atomic_u64(word * WORD as usize).ok(),
            Self::Foreign { words, .. } => words.get(word),
        }
    }
}

/// Reads the byte at `index` of the memory. `word` is the word that contains it.
#[inline]
pub(super) fn byte(word: &AtomicU64, index: usize) -> Option<u8> {
    let bytes = word.load(Ordering::Acquire).to_ne_bytes();
    bytes.get(index % WORD as usize).copied()
}

/// Returns the rights that the peer needs for this operation. A software device lets a peer in another process map
/// memory only if the peer can also read it.
pub(super) const fn access(operation: Operation) -> AccessFlags {
    let access = AccessFlags::new().with_local_write();
    match operation {
        Operation::Send => access,
        Operation::Write => access.with_remote_write().with_remote_read(),
        Operation::Read => access.with_remote_read(),
        Operation::Atomic => access.with_remote_atomic(),
    }
}
