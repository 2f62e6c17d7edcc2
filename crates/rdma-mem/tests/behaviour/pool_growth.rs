//! Pools with a slow provider: only threads that need the result of a call wait for it.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use rdma_mem::{BufferPool, DeviceList, ProtectionDomain};
use rdma_sys::{Verbs, ibv_mr, ibv_pd};

/// A time limit that only a hanging call reaches.
const HANG: Duration = Duration::from_secs(60);

/// A point in a call of the provider at which one thread stops.
struct Gate {
    reached: Sender<()>,
    open: Receiver<()>,
}

thread_local! {
    static GATE: RefCell<Option<Gate>> = const { RefCell::new(None) };
}

/// Returns a gate for the next call of a thread: the call reports that it has reached the gate, and
/// waits.
fn gate() -> (Gate, Receiver<()>, Sender<()>) {
    let ((reached, is_reached), (opens, open)) = (channel(), channel());
    (Gate { reached, open }, is_reached, opens)
}

fn stop() {
    if let Some(gate) = GATE.take() {
        gate.reached.send(()).unwrap();
        gate.open.recv_timeout(HANG).unwrap();
    }
}

unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    stop();
    // SAFETY: SAFETY.md F1: the caller's own contract.
    unsafe { (rdma_soft::verbs().dereg_mr)(mr) }
}

unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    stop();
    // SAFETY: SAFETY.md F1: the caller's own contract.
    unsafe { (rdma_soft::verbs().reg_mr)(pd, address, length, access) }
}

/// The function for optional flags.
unsafe extern "C" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    _iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: SAFETY.md F1: the caller's own contract.
    unsafe { reg_mr(pd, address, length, access.cast_signed()) }
}

fn pd() -> ProtectionDomain {
    static TABLE: OnceLock<Verbs> = OnceLock::new();
    rdma_soft::install();
    let verbs = TABLE.get_or_init(|| {
        let mut verbs = *rdma_soft::verbs();
        verbs.reg_mr = reg_mr;
        verbs.reg_mr_iova2 = Some(reg_mr_iova2);
        verbs.dereg_mr = dereg_mr;
        verbs
    });
    // SAFETY: SAFETY.md F2: the functions are the software device's.
    let list = unsafe { DeviceList::of(verbs) };
    let soft0 = list.iter().find(|device| device.name() == "soft0").unwrap();
    soft0.open().unwrap().allocate_pd().unwrap()
}

#[test]
fn registered_memory_is_usable_while_another_thread_registers() {
    let pool = BufferPool::with_region_size(&pd(), 4096);
    let held = pool.allocate(2048).unwrap();
    let (gate, is_reached, opens) = gate();
    thread::scope(|scope| {
        let grows = scope.spawn(|| {
            GATE.set(Some(gate));
            pool.allocate(4096).unwrap().len()
        });
        is_reached.recv_timeout(HANG).unwrap();
        let other = pool.allocate(2048).unwrap();
        assert!(pool.try_allocate(1).unwrap().is_none());
        drop(held);
        assert_eq!((pool.usage().regions, pool.usage().buffers), (1, 1));
        drop(other);
        assert_eq!(pool.trim(), 4096);
        assert!(!grows.is_finished());
        opens.send(()).unwrap();
        assert_eq!(grows.join().unwrap(), 4096);
    });
    assert_eq!(pool.usage().regions, 1);
}

#[test]
fn registered_memory_is_usable_while_another_thread_deregisters() {
    let pool = BufferPool::with_region_size(&pd(), 4096);
    let held = [pool.allocate(4096).unwrap(), pool.allocate(2048).unwrap()];
    let [first, held] = held;
    drop(first);
    let (gate, is_reached, opens) = gate();
    thread::scope(|scope| {
        let trims = scope.spawn(|| {
            GATE.set(Some(gate));
            pool.trim()
        });
        is_reached.recv_timeout(HANG).unwrap();
        let other = pool.allocate(2048).unwrap();
        let grown = pool.allocate(4096).unwrap();
        assert_eq!(pool.usage().regions, 2, "what goes is gone");
        drop((held, other, grown));
        assert!(!trims.is_finished());
        opens.send(()).unwrap();
        assert_eq!(trims.join().unwrap(), 4096);
    });
    assert_eq!(pool.usage().regions, 2);
}

/// A thread that needs a region while another thread registers one waits for it, and allocates from
/// the new region.
#[test]
fn threads_that_need_a_region_share_it() {
    const THREADS: usize = 8;
    let pool = BufferPool::with_region_size(&pd(), 64 * 1024);
    let (gate, is_reached, opens) = gate();
    thread::scope(|scope| {
        let grows = scope.spawn(|| {
            GATE.set(Some(gate));
            pool.allocate(4096).unwrap()
        });
        is_reached.recv_timeout(HANG).unwrap();
        let (begun, begins) = channel();
        let others: Vec<_> = (0..THREADS)
            .map(|_| {
                let (begun, pool) = (begun.clone(), &pool);
                scope.spawn(move || {
                    begun.send(()).unwrap();
                    pool.allocate(4096).unwrap()
                })
            })
            .collect();
        for _ in 0..THREADS {
            begins.recv_timeout(HANG).unwrap();
        }
        opens.send(()).unwrap();
        let mut held = vec![grows.join().unwrap()];
        held.extend(others.into_iter().map(|other| other.join().unwrap()));
        assert_eq!((pool.usage().regions, pool.usage().buffers), (1, held.len()));
    });
}
