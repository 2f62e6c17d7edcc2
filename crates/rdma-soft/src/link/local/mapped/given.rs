//! The grants of this process to others: the files of its regions, and the versions through which it revokes them.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use rdma_types::AccessFlags;
use rustix::fs::{SealFlags, fcntl_add_seals};
use rustix::io::{Errno, Result, fcntl_dupfd_cloexec};

use super::area::{Area, file_size, most};
use super::{Terms, VERSIONS, memory_file};
use crate::engine::wire::grant::{Version, Visited, Want};
use crate::engine::wire::letter::ExecutedWords;
use crate::link::descriptor::Descriptor;
use crate::link::executed::versions::{self, Versions, ordered};
use crate::link::local::socket::send_file;
use crate::memory::region::Region;
use crate::sync::{AtomicBool, Ordering, locked};

/// The files of this device's regions, by key.
#[derive(Debug, Default)]
pub(in crate::link::local) struct Files {
    by_key: Mutex<BTreeMap<u32, Arc<RegionFile>>>,
}

/// The file of a region, which other processes may map.
#[derive(Debug)]
struct RegionFile {
    region: Region,
    file: Descriptor,
    holders: Mutex<Holders>,
}

/// The number of such files that this process has, on all devices.
static FILES: AtomicUsize = AtomicUsize::new(0);

impl Drop for RegionFile {
    fn drop(&mut self) {
        FILES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The processes that have the file.
#[derive(Debug, Default)]
struct Holders {
    /// Whether the region is deregistered.
    ended: bool,
    all: Vec<Holder>,
}

/// A process that has the file.
#[derive(Debug)]
struct Holder {
    words: Weak<dyn ExecutedWords>,
    /// The region's version for this process.
    version: Version,
    /// The indexes of the words of the connections that have a grant.
    connections: Vec<usize>,
}

/// The remote rights that a grant can convey.
const RIGHTS: u32 = AccessFlags::REMOTE_READ
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_ATOMIC)
    .bits();

/// The maximum number of grants that wait until they can be sent to a process.
const MOST_WANTS: usize = 1024;

impl Files {
    /// Returns true if another region may have a file.
    pub(in crate::link::local) fn has_room() -> bool {
        FILES.load(Ordering::Relaxed) < most()
    }

    /// Keeps the file of a region. Returns false if this process cannot open another file.
    pub(in crate::link::local) fn keep(
        &self,
        key: u32,
        region: &Region,
        file: BorrowedFd<'_>,
    ) -> bool {
        let Ok(file) = Descriptor::open(|| fcntl_dupfd_cloexec(file, 0)) else { return false };
        FILES.fetch_add(1, Ordering::Relaxed);
        let file = RegionFile { region: *region, file, holders: Mutex::default() };
        locked(&self.by_key).insert(key, Arc::new(file));
        true
    }

    /// Makes all grants of the region with this key invalid. Returns the visits that may still use them.
    pub(in crate::link::local) fn end(&self, key: u32) -> Vec<Visited> {
        let Some(file) = locked(&self.by_key).remove(&key) else { return Vec::new() };
        let holders = {
            let holders = &mut *locked(&file.holders);
            holders.ended = true;
            std::mem::take(&mut holders.all)
        };
        let mut visited = Vec::new();
        for Holder { words, version, connections } in holders {
            if let Some(words) = words.upgrade() {
                words.take_version(version.index);
            }
            let at = |index| Visited { words: Weak::clone(&words), index };
            visited.extend(connections.into_iter().map(at));
        }
        visited
    }

    /// Returns the terms of a grant, with the file. Returns `None` if the region has no file, or more rights than the
    /// queue pair. The process could do with the file whatever the region permits.
    fn terms(&self, want: &Want, to: &Arc<dyn ExecutedWords>) -> Option<(Terms, Arc<RegionFile>)> {
        let file = locked(&self.by_key).get(&want.key).map(Arc::clone)?;
        let Region { iova, length, access, scope, .. } = file.region;
        let access = access & RIGHTS;
        if scope != want.domain || access & want.access != access {
            return None;
        }
        // The encoding has no address after the last one.
        iova.checked_add(length)?;
        let version = file.version_for(to, want.word.index())?;
        let versions = [want.version, version];
        let terms = Terms { word: want.word, key: want.key, iova, length, access, versions };
        Some((terms, file))
    }
}

impl RegionFile {
    /// Returns the region's version for a process, and records that a connection of that process has a grant.
    fn version_for(&self, to: &Arc<dyn ExecutedWords>, connection: usize) -> Option<Version> {
        let holders = &mut *locked(&self.holders);
        if holders.ended {
            return None;
        }
        holders.all.retain(|holder| holder.words.strong_count() > 0);
        let is_same = |holder: &&mut Holder| holder.words.ptr_eq(&Arc::downgrade(to));
        if let Some(holder) = holders.all.iter_mut().find(is_same) {
            if !holder.connections.contains(&connection) {
                holder.connections.push(connection);
            }
            return Some(holder.version);
        }
        let version = to.lend_version()?;
        let connections = vec![connection];
        holders.all.push(Holder { words: Arc::downgrade(to), version, connections });
        Some(version)
    }
}

/// The conduct of another process, or of several that have no ID in this namespace.
#[derive(Debug, Default)]
pub(in crate::link::local) struct Conduct {
    /// Whether a process has stayed in a [visit](crate::engine::wire::grant::wait_for_visits) for too long.
    stays_in_visits: AtomicBool,
}

impl Conduct {
    /// Returns true if the process gets no grants.
    pub(in crate::link::local) fn stays_in_visits(&self) -> bool {
        self.stays_in_visits.load(Ordering::Relaxed)
    }

    pub(in crate::link::local) fn note_long_visit(&self) {
        self.stays_in_visits.store(true, Ordering::Relaxed);
    }
}

/// The grants of this process to the process at the other end of a connection.
#[derive(Debug)]
pub(in crate::link::local) struct Giver {
    files: Arc<Files>,
    /// The versions, once the other process has them.
    versions: OnceLock<Area>,
    /// The versions and their file until then.
    unsent: Mutex<Option<(Descriptor, Area)>>,
    indexes: Mutex<Indexes>,
    wants: Mutex<VecDeque<Want>>,
    /// Whether this connection has ended.
    ended: AtomicBool,
    conduct: Arc<Conduct>,
}

/// The indexes of versions that are not lent.
#[derive(Debug, Default)]
struct Indexes {
    next: u32,
    free: Vec<u32>,
}

impl Giver {
    pub(in crate::link::local) fn new(files: Arc<Files>, conduct: Arc<Conduct>) -> Self {
        Self {
            files,
            conduct,
            versions: OnceLock::new(),
            unsent: Mutex::default(),
            indexes: Mutex::default(),
            wants: Mutex::default(),
            ended: AtomicBool::new(false),
        }
    }

    /// Returns true if the process with these words was given the file of the region with this key.
    pub(in crate::link::local) fn has_given(&self, key: u32, words: &dyn ExecutedWords) -> bool {
        let is_same = |holder: &Holder| ptr::addr_eq(holder.words.as_ptr(), words);
        let files = locked(&self.files.by_key);
        files.get(&key).is_some_and(|file| locked(&file.holders).all.iter().any(is_same))
    }

    /// Makes the versions, which [`give`](Self::give) sends before the first grant.
    ///
    /// # Errors
    /// Fails if this process can make no such file, or cannot map it. The other process then gets no grants.
    pub(in crate::link::local) fn prepare(&self) -> Result<()> {
        let size = file_size(size_of::<Versions>() as u64).ok_or(Errno::NOMEM)?;
        let file = Descriptor::open(|| memory_file::create("rdma-soft versions", size as u64))?;
        let memory = file.get()?;
        // The other process maps no file with holes.
        memory_file::allocate(memory, size as u64)?;
        let area = Area::map(memory, size, true)?;
        // Later mappings, such as the other process's, cannot be written.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
        fcntl_add_seals(memory, seals | SealFlags::SEAL)?;
        *locked(&self.unsent) = Some((file, area));
        Ok(())
    }

    /// Sends the versions if they are not sent yet. Returns true if the system cannot send them now.
    fn must_offer_again(&self, connection: &Descriptor) -> bool {
        let unsent = &mut *locked(&self.unsent);
        let Some((file, area)) = unsent.take() else { return false };
        let sent = file.get().and_then(|memory| send_file(connection, &[VERSIONS], memory));
        match sent {
            Ok(()) => _ = self.versions.set(area),
            Err(errno) if passes(errno) => *unsent = Some((file, area)),
            // The connection has ended, or the other process maps nothing.
            Err(_) => {}
        }
        unsent.is_some()
    }

    fn words(&self) -> Option<&Versions> {
        self.versions.get()?.versions()
    }

    /// Lends a version. Returns `None` if the other process gets no grants, or if none is left.
    pub(in crate::link::local) fn lend(&self) -> Option<Version> {
        let words = self.words().filter(|_| !self.gives_nothing())?;
        let indexes = &mut *locked(&self.indexes);
        let index = match indexes.free.pop() {
            Some(index) => index,
            None if (indexes.next as usize) < versions::VERSIONS => {
                indexes.next += 1;
                indexes.next - 1
            }
            None => return None,
        };
        let value = words.lend(index, || self.gives_nothing())?;
        Some(Version { index, value })
    }

    /// Makes the grants with a version invalid, and takes the version back.
    pub(in crate::link::local) fn take(&self, index: u32) {
        if let Some(words) = self.words() {
            words.bump(index);
            ordered();
            locked(&self.indexes).free.push(index);
        }
    }

    /// Makes all grants of this connection invalid, because the process has stayed in a visit for too long. It gets no
    /// others, on any connection.
    pub(in crate::link::local) fn end_of_process(&self) {
        self.conduct.note_long_visit();
        self.end();
    }

    /// Makes all grants of this connection invalid, and gives no others.
    pub(in crate::link::local) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        locked(&self.wants).clear();
        self.words().into_iter().for_each(Versions::end);
    }

    /// Returns true if all grants of this connection are invalid.
    pub(in crate::link::local) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Returns true if the other process gets no further grants on this connection. It may still use earlier ones.
    fn gives_nothing(&self) -> bool {
        self.has_ended() || self.conduct.stays_in_visits()
    }

    /// Records a grant that the other process should get. Drops it if too many are recorded, because the process may
    /// want grants without receiving any.
    pub(in crate::link::local) fn want(&self, want: Want) {
        let wants = &mut *locked(&self.wants);
        if wants.len() < MOST_WANTS {
            wants.push_back(want);
        }
    }

    /// Sends the versions and the grants that are wanted. Returns true if the system cannot send one now, so that
    /// this must be called again.
    pub(in crate::link::local) fn give(
        &self,
        connection: &Descriptor,
        to: &Arc<dyn ExecutedWords>,
    ) -> bool {
        if self.versions.get().is_none() && self.must_offer_again(connection) {
            return true;
        }
        loop {
            let want = locked(&self.wants).pop_front().filter(|_| !self.gives_nothing());
            let Some(want) = want else { return false };
            let Some((terms, file)) = self.files.terms(&want, to) else { continue };
            let file = file.file.get();
            let sent = file.and_then(|file| send_file(connection, &terms.encode(), file));
            if sent.is_err_and(passes) {
                locked(&self.wants).push_front(want);
                return true;
            }
        }
    }
}

/// Returns true if a file may be sent later, after an attempt that failed with this error. The errors are those of the
/// ring.
fn passes(errno: Errno) -> bool {
    matches!(errno, Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM | Errno::AGAIN | Errno::INTR)
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)] // A failing helper fails its test.
mod tests {
    use std::os::fd::AsFd as _;

    use rdma_types::Psn;
    use rustix::net::{RecvFlags, SendFlags, recv, send};

    use super::*;
    use crate::engine::wire::word::WordKey;
    use crate::link::local::tests::connection;

    /// Another process.
    #[derive(Debug)]
    struct Process;

    impl ExecutedWords for Process {
        fn store(&self, _: WordKey, _: Psn) {}

        fn is_patient(&self, _: WordKey) -> bool {
            false
        }

        fn lend_version(&self) -> Option<Version> {
            Some(Version { index: 1, value: 0 })
        }

        fn announce(&self) {}
    }

    fn process() -> Arc<dyn ExecutedWords> {
        Arc::new(Process)
    }

    fn want(key: u32, domain: u64) -> Want {
        let version = Version { index: 0, value: 0 };
        Want { key, word: WordKey::new(0, key), domain, access: RIGHTS, version }
    }

    /// The other process does not read its socket, so that nothing can be sent.
    #[test]
    fn grants_that_wait_are_limited() {
        let giver = Giver::new(Arc::default(), Arc::default());
        (0..5_000).for_each(|key| giver.want(want(key, 0)));
        assert_eq!(locked(&giver.wants).len(), MOST_WANTS);
    }

    #[test]
    fn versions_that_cannot_be_sent_now_are_sent_later() {
        let giver = Giver::new(Arc::default(), Arc::default());
        let ((near, far), to) = (connection(), process());
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        while send(near.get().unwrap(), &[0], flags).is_ok() {}
        giver.prepare().unwrap();
        assert!(giver.give(&near, &to), "the socket's buffer is full");
        assert_eq!(giver.lend(), None);
        while recv(&far, &mut [0; 2], RecvFlags::DONTWAIT).is_ok() {}
        assert!(!giver.give(&near, &to));
        let mut message = [0; 2];
        assert_eq!(recv(&far, &mut message, RecvFlags::DONTWAIT).unwrap().0, 1);
        assert_eq!(message[0], VERSIONS);
        assert_eq!(giver.lend(), Some(Version { index: 0, value: 0 }));
    }

    #[test]
    fn a_region_is_granted_only_to_queue_pairs_of_its_domain() {
        const DOMAINS: [u64; 2] = [1, 2];
        let (files, length) = (Files::default(), 64 << 10);
        let file = memory_file::create("test", length).unwrap();
        for (key, scope) in (0..).zip(DOMAINS) {
            let region = Region { address: 0, iova: 0, length, access: RIGHTS, scope };
            assert!(files.keep(key, &region, file.as_fd()));
        }
        for (key, scope) in (0..).zip(DOMAINS) {
            for domain in DOMAINS {
                let terms = files.terms(&want(key, domain), &process());
                assert_eq!(terms.is_some(), domain == scope, "{key} {domain}");
            }
        }
    }
}
