//! Requests that nobody answers, and the memory that they have.

use std::mem;

use rdma_channel::{MultiChannel, Refused, Scope, TransportError};
use rdma_mem::{OwnedRegion, ProtectionDomain, RemoteMemoryRegion, SharedRegion, SliceMut};

use super::Pair;

/// What becomes of handles.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Handles {
    Dropped,
    Forgotten,
}

impl Handles {
    fn leave<T>(self, handles: T) {
        match self {
            Self::Dropped => drop(handles),
            #[allow(clippy::mem_forget)] // that is what is tested
            Self::Forgotten => mem::forget(handles),
        }
    }
}

/// The memory of three requests: a send for which there is no receive, a read behind it, and a receive for
/// which there is no send. On no schedule do they complete.
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

    /// Memory of that domain, for requests of which the read is from that board of a peer.
    pub(crate) fn of(pd: &ProtectionDomain, board: &SharedRegion) -> Self {
        board.write(0, &[9; 64]).unwrap();
        let [from, read, room] = [1, 2, 3].map(|byte| {
            let mut region = pd.allocate_region(64).unwrap();
            region.fill(byte);
            region
        });
        Self { from, read, room, remote: board.remote().slice(0..64).unwrap() }
    }

    /// Posts the three, and leaves the handles.
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

    /// As [`post`](Self::post), to one of several peers.
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

    /// Whatever the peer and the device do now, the memory is the caller's.
    pub(crate) fn assert_given_back(self, pair: &mut Pair) {
        assert_eq!(pair.in_flight(), 0, "the device has let go");
        Self::assert_untouched([self], || pair.provoke());
    }

    /// The memory stays as it is while that happens.
    pub(crate) fn assert_untouched(all: impl IntoIterator<Item = Self>, meanwhile: impl FnOnce()) {
        let regions = all.into_iter().flat_map(|stuck| [stuck.from, stuck.read, stuck.room]);
        let mut regions: Vec<_> = regions.collect();
        regions.iter_mut().for_each(|region| region.fill(7));
        meanwhile();
        for region in regions {
            assert_eq!(*region, [7; 64], "written after it was given back");
            region.close().unwrap();
        }
    }
}
