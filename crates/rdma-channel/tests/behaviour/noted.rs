//! Memory that the software device copies itself because it stays mapped, and memory that the kernel copies for it.
//! Forgotten borrows of registered memory.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::slice::from_raw_parts_mut;
use std::sync::Mutex;
use std::time::Duration;

use rdma_channel::TransportError;
use rdma_mem::{BufferPool, CommonMemory, RegionMemory, RemoteMemoryRegion, SliceMut, SliceRef};
use rdma_qp::WorkErrorCode;
use rdma_soft::{Builder, Peers, Schedule};
use test_support::rig::map::Mapping;

use crate::common::{DRAIN, Pair, everything};

const LENGTH: usize = 20_000;
/// A longer wait is a hang.
const LIMIT: Duration = Duration::from_secs(60);

/// Devices that execute requests after their post: later, by packets, and by the link between processes.
fn devices(name: &str) -> [String; 3] {
    rdma_soft::install();
    let [deferred, wire, link] = ["deferred", "wire", "link"].map(|way| format!("{name}-{way}"));
    Builder::new(&deferred).schedule(Schedule::Deferred { seed: 3 }).install().unwrap();
    Builder::new(&wire).force_wire().install().unwrap();
    Builder::new(&link).peers(Peers::SameUser).force_wire().install().unwrap();
    [deferred, wire, link]
}

fn pair(device: &str) -> Pair {
    Pair::with(device, |builder| builder)
}

impl Pair {
    /// Sends a message from the first channel to the second.
    fn send<'a>(&mut self, from: impl Into<SliceRef<'a>>, to: SliceMut<'_>) {
        let Self { here, there, .. } = self;
        let from = from.into();
        let received = there.scope(|s| {
            let room = s.receive_into(to)?;
            here.send_from(from).unwrap();
            room.wait(LIMIT).unwrap().result
        });
        received.unwrap();
    }

    /// Performs a WRITE to the second channel's board, a READ of it into `memory`, and an atomic operation.
    fn one_sided(&mut self, mut memory: SliceMut<'_>) {
        memory.fill(8);
        let board = self.board.remote();
        let read = self.here.scope(|s| {
            let written = s.write_from(memory, board)?.wait(LIMIT).unwrap();
            written.result?;
            let mut memory = written.buf;
            memory.fill(0);
            let read = s.read_into(memory, board)?.wait(LIMIT).unwrap();
            assert!(read.buf.iter().all(|&byte| byte == 8));
            read.result
        });
        read.unwrap();
        self.here.fetch_add(board, 1).unwrap();
    }

    #[track_caller]
    fn assert_not_guarded(&self) {
        assert_eq!(self.device.counters().guarded_copies, 0, "{}", self.device.name());
    }
}

#[test]
fn memory_that_a_region_owns_takes_no_guarded_copy() {
    for device in devices("owned") {
        let mut pair = pair(&device);
        let mut from = pair.memory(LENGTH, 1);
        let mut to = pair.there.pd().allocate_array::<u32>(LENGTH / 4).unwrap();
        pair.send(&from, to.as_slice_mut());
        assert!(to.iter().all(|&value| value == 0x0101_0101));
        pair.one_sided(from.get_mut(0, 4096).unwrap());
        pair.assert_not_guarded();
    }
}

#[test]
fn buffers_of_a_pool_take_no_guarded_copy() {
    for device in devices("pool") {
        let mut pair = pair(&device);
        let pools = [&pair.pd, pair.there.pd()].map(BufferPool::new);
        let [mut from, mut to] = pools.map(|pool| pool.allocate(4096).unwrap());
        from.fill(2);
        pair.send(&from, to.as_slice_mut());
        assert!(to.iter().all(|&byte| byte == 2));
        pair.one_sided(from.as_slice_mut());
        pair.assert_not_guarded();
    }
}

#[test]
fn memory_in_several_regions_takes_no_guarded_copy() {
    for device in devices("common") {
        let mut pair = pair(&device);
        let memory = CommonMemory::new(RegionMemory::allocate(4096).unwrap());
        let part = memory.open(pair.there.pd(), 96..4096, everything(pair.there.pd())).unwrap();
        let from = pair.memory(4000, 3);
        pair.here.write_from(&from, part.remote()).unwrap();
        part.close().unwrap();
        assert!(memory.try_into_memory().unwrap()[96..].iter().all(|&byte| byte == 3));
        pair.assert_not_guarded();
    }
}

#[test]
fn borrowed_memory_takes_no_guarded_copy() {
    for device in devices("borrowed") {
        let mut pair = pair(&device);
        let (mut from, mut to) = (vec![4; LENGTH], vec![0; LENGTH]);
        let mut source = pair.pd.register_borrowed(&mut from).unwrap();
        let mut sink = pair.there.pd().register_borrowed(&mut to).unwrap();
        pair.send(&source, sink.as_slice_mut());
        pair.one_sided(source.get_mut(0, 4096).unwrap());
        drop(sink);
        assert!(to.iter().all(|&byte| byte == 4));
        pair.assert_not_guarded();
    }
}

/// `valgrind` leaves this module out: there the device copies everything by instructions.
#[cfg(not(rdma_visible_copies))]
mod unmapped {
    use rdma_channel::TransportError;
    use rdma_mem::MemoryRegion;
    use rdma_qp::ReceiveWorkRequest;
    use test_support::program::is_emulated;

    use super::*;

    /// Checks a device with memory that its region neither owns nor borrows.
    fn guarded(
        device: &str,
        register: impl Fn(&rdma_mem::ProtectionDomain, &mut [u8]) -> MemoryRegion,
    ) {
        let mut pair = pair(device);
        let mut to = vec![0; LENGTH];
        let sink = register(pair.there.pd(), &mut to);
        let from = pair.memory(LENGTH, 5);
        let Pair { here, there, .. } = &mut pair;
        let received = there.scope(|s| {
            let mut room = [sink.scatter_element(&mut to)];
            let received = s.post_receive(ReceiveWorkRequest::new(&mut room))?;
            here.send_from(&from)?;
            received.wait(LIMIT)?;
            Ok::<_, TransportError>(())
        });
        received.unwrap();
        assert!(to.iter().all(|&byte| byte == 5));
        assert!(pair.device.counters().guarded_copies > 0, "{device}");
    }

    #[test]
    fn memory_that_no_region_keeps_takes_guarded_copies() {
        if is_emulated() {
            return println!("skipped: the emulator has no `process_vm_readv`");
        }
        for device in devices("kept") {
            guarded(&device, |pd, memory| pd.register_local_mr_slice(memory).unwrap());
        }
        for device in devices("raw") {
            guarded(&device, |pd, memory| {
                // SAFETY: SAFETY.md F8: the memory outlives the region.
                unsafe { pd.register_shared_mr(memory.as_mut_ptr(), memory.len()) }.unwrap()
            });
        }
    }
}

/// Memory that is made inaccessible when its last borrow has ended: an access then ends this process.
struct Lent(Mapping);

impl Lent {
    fn new() -> Self {
        Self(Mapping::writable(LENGTH))
    }

    fn borrow(&mut self) -> &mut [u8] {
        // SAFETY: SAFETY.md F15: the mapping has `LENGTH` bytes, initially zero, which this borrows exclusively.
        unsafe { from_raw_parts_mut(self.0.start(), LENGTH) }
    }

    fn take_away(&mut self) {
        self.0.take_away();
    }
}

/// Forgets a value, like `mem::forget`: it is never dropped, and its borrows end. Its address is kept, so that leak
/// checkers find what it owns.
fn forget<T>(value: T) {
    static FORGOTTEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let place = Box::into_raw(Box::new(ManuallyDrop::new(value)));
    FORGOTTEN.lock().unwrap().push(place.expose_provenance());
}

/// The region stays registered: the device has its key, and does not know that the borrow has ended.
#[test]
fn a_forgotten_region_whose_requests_are_over_is_not_touched_again() {
    for device in devices("forgotten") {
        let mut pair = pair(&device);
        let (mut from, mut to) = (Lent::new(), Lent::new());
        let mut source = pair.pd.register_borrowed(from.borrow()).unwrap();
        let mut sink = pair.there.pd().register_borrowed(to.borrow()).unwrap();
        source.fill(6);
        pair.send(&source, sink.as_slice_mut());
        pair.one_sided(source.get_mut(0, 4096).unwrap());
        assert!(sink.iter().all(|&byte| byte == 6));
        forget((source, sink));
        from.take_away();
        to.take_away();
        // The connection goes on with other memory.
        let (from, mut to) = (pair.memory(LENGTH, 7), pair.there.pd().allocate_region(LENGTH));
        pair.send(&from, to.as_mut().unwrap().as_slice_mut());
        assert!(to.unwrap().iter().all(|&byte| byte == 7));
    }
}

/// A peer that knows the key of a borrowed region cannot use it.
#[test]
fn a_peer_does_not_reach_a_forgotten_region() {
    for device in devices("guessed") {
        let mut pair = pair(&device);
        let mut lent = Lent::new();
        let region = pair.there.pd().register_borrowed(lent.borrow()).unwrap();
        let (address, key) = (region.as_ptr().expose_provenance() as u64, region.lkey().get());
        forget(region);
        lent.take_away();
        let guess = RemoteMemoryRegion::new(address, LENGTH, key);
        let from = pair.memory(LENGTH, 1);
        let refused = pair.here.write_from(&from, guess).unwrap_err();
        let TransportError::WorkError(failed) = refused else { panic!("{refused}") };
        assert_eq!(failed.code(), WorkErrorCode::RemoteAccessError);
    }
}

/// The scope ends the requests whose handles are forgotten, before the region can be.
#[test]
fn a_region_is_not_touched_after_its_receive_and_itself_were_forgotten() {
    for device in devices("receives") {
        let mut pair = Pair::with(&device, |builder| builder.drain_timeout(DRAIN));
        let mut lent = Lent::new();
        let mut region = pair.there.pd().register_borrowed(lent.borrow()).unwrap();
        let left = pair.there.scope(|s| {
            forget(s.receive_into(region.as_slice_mut())?);
            Ok::<_, TransportError>(())
        });
        left.unwrap_err();
        forget(region);
        lent.take_away();
        // The queue pair is in error, so the message is not received.
        let from = pair.memory(LENGTH, 1);
        pair.here.send_from(&from).unwrap_err();
    }
}

/// A scope that is left by a panic does the same.
#[test]
fn a_region_is_not_touched_after_a_panic_left_its_receive() {
    for device in devices("panics") {
        let mut pair = Pair::with(&device, |builder| builder.drain_timeout(DRAIN));
        let mut lent = Lent::new();
        let mut region = pair.there.pd().register_borrowed(lent.borrow()).unwrap();
        let there = &mut pair.there;
        let slice = region.as_slice_mut();
        let panicked = catch_unwind(AssertUnwindSafe(move || {
            let _ = there.scope(|s| -> Result<(), TransportError> {
                forget(s.receive_into(slice)?);
                resume_unwind(Box::new("on purpose"))
            });
        }));
        assert!(panicked.is_err());
        forget(region);
        lent.take_away();
        let from = pair.memory(LENGTH, 1);
        pair.here.send_from(&from).unwrap_err();
    }
}
