//! Common parts of random programs: random numbers that are the same for the same seed, and the treatment of handles.
#![allow(unsafe_code)]

use std::mem;
use std::time::Duration;

use rdma_channel::{Channel, InFlight, PendingWork, Progress};
use rdma_mem::{GatherElement, ScatterElement, SharedElement};
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    pub(crate) fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

/// A handle of either form.
pub(crate) enum Handle<'scope> {
    Rented(InFlight<'scope, SharedElement<'scope>>),
    Borrowed(PendingWork<'scope>),
}

/// Treats a handle at random. `None` if it is gone.
pub(crate) fn treat<'scope>(handle: Handle<'scope>, random: &mut Random) -> Option<Handle<'scope>> {
    let limit = Duration::from_micros(random.below(300));
    match (handle, random.below(8)) {
        (handle, 0..4) => return Some(handle),
        (Handle::Rented(handle), 4) => match handle.poll() {
            Progress::Done(done) => drop(done),
            Progress::Pending(handle) => return Some(Handle::Rented(handle)),
            #[allow(clippy::panic)] // a helper of tests
            dead => panic!("no poll fails here: {dead:?}"),
        },
        (Handle::Rented(handle), 5) => {
            return handle.wait(limit).err().map(|late| Handle::Rented(late.handle));
        }
        (Handle::Borrowed(handle), 4) => {
            let _ = handle.poll();
            return Some(Handle::Borrowed(handle));
        }
        (Handle::Borrowed(handle), 5) => drop(handle.wait(limit)),
        #[allow(clippy::mem_forget)] // the subject of this test
        (handle, 6) => mem::forget(handle),
        (handle, _) => drop(handle),
    }
    None
}

/// Lets a peer do its part of some messages.
pub(crate) fn serve(peer: &Channel, element: SharedElement<'_>, random: &mut Random) {
    if random.one_in(2) {
        let mut room = [ScatterElement::from(element)];
        // SAFETY: SAFETY.md F8: a shared region, which lives longer than the channel.
        let _ = unsafe { peer.receive_unpolled(ReceiveWorkRequest::new(&mut room)) };
    } else {
        let data = [GatherElement::from(element)];
        // SAFETY: SAFETY.md F8: as above.
        let _ = unsafe { peer.send_unpolled(SendWorkRequest::new(&data)) };
    }
}
