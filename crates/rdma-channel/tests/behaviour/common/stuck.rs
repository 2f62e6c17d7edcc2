//! Requests that are never answered, with their memory.

use std::mem;

use rdma_channel::{MultiChannel, Refused, Scope, TransportError};
use rdma_mem::{OwnedRegion, ProtectionDomain, RemoteMemoryRegion, SharedRegion, SliceMut};

use super::Pair;

/// The treatment of handles.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Handles {
    Dropped,
    Forgotten,
}

impl Handles {
    fn leave<T>(self, handles: T) {
        match self {
            Self::Dropped => drop(handles),
            #[allow(clippy::mem_forget)] // the subject of this test
            Self::Forgotten => mem::forget(handles),
        }
    }
}

/// The memory of three requests: a send without a receive, a read after it, and a receive without a send. They complete
/// on no schedule.
pub(crate) struct Stuck {
    from: OwnedRegion,
    read: OwnedRegion,
    room: OwnedRegion,
    remote: RemoteMemoryRegion,
}

impl Stuck {
    pub(crate) fn new(pair: &Pair) -> Self {
        Self::of(&pair.pd, &pair.board)
    }

    /// Creates memory of this domain. The read is from this board of a peer.
    pub(crate) fn of(pd: &ProtectionDomain, board: &SharedRegion) -> Self {
        board.write(0, &[9; 64]).unwrap();
        let [from, read, room] = [1, 2, 3].map(|byte| {
            let mut region = pd.allocate_region(64).unwrap();
            region.fill(byte);
            region
        });
        Self { from, read, room, remote: board.remote().slice(0..64).unwrap() }
    }

    /// Posts the three requests, and drops or forgets the handles.
    pub(crate) fn post<'scope>(
        &'scope mut self,
        s: &'scope Scope<'scope, '_>,
        handles: Handles,
    ) -> Result<(), Refused<SliceMut<'scope>>> {
        let room = s.receive_into(self.room.as_slice_mut())?;
        let sent = s.send_from(self.from.as_slice()).unwrap();
        let read = s.read_into(self.read.as_slice_mut(), self.remote)?;
        handles.leave((room, sent, read));
        Ok(())
    }

    /// Like [`post`](Self::post), to one of several peers.
    pub(crate) fn post_to<'scope>(
        &'scope mut self,
        peer: usize,
        s: &'scope Scope<'scope, '_, MultiChannel>,
        handles: Handles,
    ) -> Result<(), TransportError> {
        let peer = s.to(peer)?;
        let room = peer.receive_into(self.room.as_slice_mut())?;
        let sent = peer.send_from(self.from.as_slice())?;
        let read = peer.read_into(self.read.as_slice_mut(), self.remote)?;
        handles.leave((room, sent, read));
        Ok(())
    }

    /// Checks that the memory belongs to the caller, whatever the peer and the device do now.
    pub(crate) fn assert_given_back(self, pair: &mut Pair) {
        assert_eq!(pair.in_flight(), 0, "requests are still in flight");
        Self::assert_untouched([self], || pair.provoke());
    }

    /// Checks that the memory stays unchanged while `meanwhile` runs.
    pub(crate) fn assert_untouched(all: impl IntoIterator<Item = Self>, meanwhile: impl FnOnce()) {
        let regions = all.into_iter().flat_map(|stuck| [stuck.from, stuck.read, stuck.room]);
        let mut regions: Vec<_> = regions.collect();
        regions.iter_mut().for_each(|region| region.fill(7));
        meanwhile();
        for region in regions {
            assert_eq!(*region, [7; 64], "written after it was returned");
            region.close().unwrap();
        }
    }
}
