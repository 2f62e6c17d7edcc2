//! The grants of other processes to this one.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use rdma_types::AccessFlags;
use rustix::fs::{fcntl_get_seals, fstat};
use rustix::io::{Errno, Result};

use super::area::{Area, file_size};
use super::{Terms, VERSIONS};
use crate::engine::wire::grant::Grant;
use crate::link::executed::versions;
use crate::memory::copy::Segment;
use crate::sync::{AtomicU32, Ordering, locked};

/// The rights that need a writable mapping.
const WRITES: u32 = AccessFlags::REMOTE_WRITE.union(AccessFlags::REMOTE_ATOMIC).bits();

/// The number that identifies a file while it exists: its device and its inode.
type FileId = (u64, u64);

/// The memory of another process that this one has mapped.
#[derive(Debug, Default)]
pub(in crate::link::local) struct Received {
    versions: OnceLock<Arc<Area>>,
    /// The number of their changes when [`have_changed`](Self::have_changed) was last called.
    seen: AtomicU32,
    /// The mapped files. Queue pairs with grants for the same region share a mapping.
    areas: Mutex<Vec<(FileId, Weak<Area>)>>,
}

/// A message with a file that has arrived.
#[derive(Debug)]
pub(in crate::link::local) enum Arrived {
    Versions,
    /// A grant whose memory still has to be populated.
    Grant(Arc<PeerGrant>),
    /// A message that this process has no space for.
    Dropped,
    /// A message to a device that maps nothing.
    Ignored,
}

impl Received {
    /// Handles a message and its file. The file is not needed afterwards.
    ///
    /// # Errors
    /// Fails if no device sends such a message or such a file.
    pub(in crate::link::local) fn accept(
        &self,
        message: &[u8],
        file: BorrowedFd<'_>,
    ) -> Result<Arrived> {
        if message == [VERSIONS] {
            let length = file_size(size_of::<versions::Versions>() as u64).ok_or(Errno::INVAL)?;
            return match Area::of_other(file, length, false) {
                Ok(area) => {
                    self.versions.set(Arc::new(area)).map_err(|_| Errno::PROTO)?;
                    Ok(Arrived::Versions)
                }
                Err(Errno::NOMEM) => Ok(Arrived::Dropped),
                Err(errno) => Err(errno),
            };
        }
        let terms = Terms::decode(message).ok_or(Errno::PROTO)?;
        // Also checks the file, which the caller then closes.
        match self.area(&terms, file) {
            Ok(memory) => Ok(match self.versions.get() {
                Some(versions) => {
                    let versions = Arc::clone(versions);
                    Arrived::Grant(Arc::new(PeerGrant { terms, memory, versions }))
                }
                None => Arrived::Dropped,
            }),
            Err(Errno::NOMEM) => Ok(Arrived::Dropped),
            Err(errno) => Err(errno),
        }
    }

    /// Handles a message to a device that maps nothing.
    ///
    /// # Errors
    /// Fails unless the file is memory, which takes no time to release.
    pub(in crate::link::local) fn ignore(file: BorrowedFd<'_>) -> Result<Arrived> {
        fcntl_get_seals(file).map(|_| Arrived::Ignored)
    }

    /// Returns true if the process has revoked grants since the last call.
    pub(in crate::link::local) fn have_changed(&self) -> bool {
        let versions = self.versions.get().and_then(|area| area.versions());
        versions.is_some_and(|versions| {
            let changes = versions.changes();
            self.seen.swap(changes, Ordering::AcqRel) != changes
        })
    }

    /// Returns the mapping of a region's file.
    fn area(&self, terms: &Terms, file: BorrowedFd<'_>) -> Result<Arc<Area>> {
        let length = file_size(terms.length).ok_or(Errno::INVAL)?;
        let writable = terms.access & WRITES != 0;
        let areas = &mut *locked(&self.areas);
        areas.retain(|(_, area)| area.strong_count() > 0);
        // Checks the file before asking for its number, because another file system may take long to answer.
        let area = Area::of_other(file, length, writable)?;
        let found = fstat(file)?;
        let id = (found.st_dev, found.st_ino);
        let same =
            areas.iter().find(|(other, _)| *other == id).and_then(|(_, area)| area.upgrade());
        if let Some(same) = same.filter(|same| same.is_like(&area)) {
            return Ok(same);
        }
        let area = Arc::new(area);
        areas.push((id, Arc::downgrade(&area)));
        Ok(area)
    }
}

/// A grant of another process.
#[derive(Debug)]
pub(in crate::link::local) struct PeerGrant {
    pub(in crate::link::local) terms: Terms,
    memory: Arc<Area>,
    versions: Arc<Area>,
}

impl PeerGrant {
    /// Fills the page table of this process. May take long.
    pub(in crate::link::local) fn populate(&self) {
        self.memory.populate();
    }
}

impl Grant for PeerGrant {
    fn key(&self) -> u32 {
        self.terms.key
    }

    fn is_valid(&self) -> bool {
        let Some(versions) = self.versions.versions() else { return false };
        self.terms.versions.iter().all(|version| versions.get(version.index) == Some(version.value))
    }

    fn locate(&self, iova: u64, length: u64, access: u32) -> Option<Segment> {
        let offset = iova.checked_sub(self.terms.iova)?;
        let end = offset.checked_add(length)?;
        if end > self.terms.length || self.terms.access & access != access {
            return None;
        }
        self.memory.segment(offset, length)
    }
}
