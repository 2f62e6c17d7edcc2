//! Requests that nobody answers, and the memory that they have.

use std::mem;

use rdma_channel::{Refused, Scope};
use rdma_mem::{OwnedRegion, RemoteMemoryRegion, SliceMut};

use crate::common::Pair;

/// What becomes of handles.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Handles {
    Dropped,
    Forgotten,
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
        pair.board.write(0, &[9; 4096]).unwrap();
        let [from, read, room] = [1, 2, 3].map(|byte| pair.memory(64, byte));
        Self { from, read, room, remote: pair.board.remote().slice(0..64).unwrap() }
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
        match handles {
            Handles::Dropped => drop((room, sent, read)),
            #[allow(clippy::mem_forget)] // that is what is tested
            Handles::Forgotten => mem::forget((room, sent, read)),
        }
        Ok(())
    }

    /// Whatever the peer and the device do now, the memory is the caller's.
    pub(crate) fn assert_given_back(mut self, pair: &mut Pair) {
        assert_eq!(pair.in_flight(), 0, "the device has let go");
        let filled = [&mut self.from, &mut self.read, &mut self.room].map(|region| {
            region.fill(7);
            region
        });
        pair.provoke();
        for region in filled {
            assert_eq!(**region, [7; 64], "written after it was given back");
        }
        for region in [self.from, self.read, self.room] {
            region.close().unwrap();
        }
    }
}
