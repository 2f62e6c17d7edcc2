//! The behaviour with a provider that refuses to destroy objects, or is old: the software device
//! with functions that fail or are missing.

#![allow(unsafe_code)]

use std::alloc::{Layout, dealloc};
use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};
use std::process::Command;
use std::slice;
use std::sync::{Mutex, OnceLock};

use rdma_mem::{
    AccessFlags, BufferPool, Context, DeviceList, Errno, Error, GidType, ProtectionDomain,
    RegionMemory,
};
use rdma_sys::{Verbs, ibv_mr, ibv_pd};
use test_support::program::{in_own_process, in_own_process_with};

thread_local! {
    static ACCESS: Cell<c_int> = const { Cell::new(0) };
    static REFUSED: Cell<u32> = const { Cell::new(0) };
}

/// Returns true if a call has to fail, and counts down.
fn refuse() -> bool {
    let left = REFUSED.get();
    REFUSED.set(left.saturating_sub(1));
    left > 0
}

unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    if refuse() {
        return Errno::EBUSY.raw();
    }
    // SAFETY: SAFETY.md F1: the caller's own contract.
    unsafe { (rdma_soft::verbs().dereg_mr)(mr) }
}

unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    ACCESS.set(access);
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

unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    if refuse() {
        return Errno::EBUSY.raw();
    }
    // SAFETY: SAFETY.md F1: the caller's own contract.
    unsafe { (rdma_soft::verbs().dealloc_pd)(pd) }
}

/// Opens `soft0` of this table.
fn soft0(verbs: &'static Verbs) -> Context {
    // SAFETY: SAFETY.md F2: the functions are the software device's, or fail without doing anything.
    let list = unsafe { DeviceList::of(verbs) };
    list.iter().find(|device| device.name() == "soft0").unwrap().open().unwrap()
}

/// Returns a domain that, like its regions, can refuse to be destroyed.
fn pd() -> ProtectionDomain {
    static TABLE: OnceLock<Verbs> = OnceLock::new();
    rdma_soft::install();
    let verbs = TABLE.get_or_init(|| {
        let mut verbs = *rdma_soft::verbs();
        verbs.reg_mr = reg_mr;
        verbs.reg_mr_iova2 = Some(reg_mr_iova2);
        verbs.dereg_mr = dereg_mr;
        verbs.dealloc_pd = dealloc_pd;
        verbs
    });
    soft0(verbs).allocate_pd().unwrap()
}

/// Returns the number of events that `work` emits. Call it in a process of its own. Otherwise a thread of another test,
/// which has no subscriber, may emit an event first, and `tracing` then disables that event.
fn events(work: impl FnOnce()) -> u32 {
    test_support::events::count(|_| true, work).1
}

fn is_busy(error: &Error) -> bool {
    matches!(error, Error::Verb(error) if error.errno == Errno::EBUSY)
}

#[test]
fn a_region_that_cannot_be_closed_comes_back_whole() {
    let pd = pd();
    let mut region = pd.allocate_region(64).unwrap();
    region.fill(5);
    REFUSED.set(1);
    let (region, error) = region.close().unwrap_err();
    assert!(is_busy(&error), "{error}");
    assert_eq!(&*region, [5; 64]);
    assert_eq!(&*region.close().unwrap(), [5; 64]);

    let access = AccessFlags::new().with_remote_read();
    let region = pd.allocate_shared_region(64, access).unwrap();
    REFUSED.set(1);
    let (region, error) = region.close().unwrap_err();
    assert!(is_busy(&error), "{error}");
    region.write(0, b"still").unwrap();
    region.close().unwrap();

    let memory = RegionMemory::memfd(64).unwrap();
    let view = pd.register_shared(memory, access).map_err(|(_, error)| error).unwrap();
    // SAFETY: SAFETY.md F16: the file is not written.
    let file = unsafe { view.memfd() }.unwrap();
    let region = pd.register_local_dmabuf_mr(file, 0, 64, 4096).unwrap();
    REFUSED.set(1);
    let (region, error) = region.close().unwrap_err();
    assert!(is_busy(&error), "{error}");
    assert_eq!(
        (region.iova(), region.len(), region.element(0..64).unwrap().length()),
        (4096, 64, 64)
    );
    region.close().unwrap();
}

#[test]
fn a_borrowed_region_that_cannot_be_closed_comes_back_and_keeps_its_borrow() {
    let pd = pd();
    let mut memory = [1; 64];
    let region = pd.register_borrowed(&mut memory).unwrap();
    REFUSED.set(1);
    let (mut region, error) = region.close().unwrap_err();
    assert!(is_busy(&error), "{error}");
    region.fill(2);
    region.close().unwrap();
    assert_eq!(memory, [2; 64]);
}

/// In a process of its own, see [`events`].
#[test]
fn memory_of_a_region_that_stays_registered_is_never_freed() {
    in_own_process(
        "failing_provider::memory_of_a_region_that_stays_registered_is_never_freed",
        || {
            // Its domain stays alive too; the static shows a leak checker that this is intended.
            static STAYS: Mutex<Option<ProtectionDomain>> = Mutex::new(None);
            let region = pd().allocate_region(4096).unwrap();
            *STAYS.lock().unwrap() = Some(region.pd().clone());
            let (memory, mr) = (region.as_ptr().cast_mut(), region.as_raw());
            REFUSED.set(1);
            assert_eq!(events(|| drop(region)), 1, "one event");
            // SAFETY: SAFETY.md F8: leaked, because the device may still write it.
            assert_eq!(unsafe { slice::from_raw_parts(memory, 4096) }, [0; 4096]);
            // SAFETY: SAFETY.md F1: the refused call did nothing, so the region is live.
            assert_eq!(unsafe { dereg_mr(mr) }, 0);
            let layout = Layout::from_size_align(4096, 4096).unwrap();
            // SAFETY: SAFETY.md F16: deregistered now, and this is how regions allocate.
            unsafe { dealloc(memory, layout) };
        },
    );
}

#[test]
fn a_domain_that_cannot_be_closed_comes_back() {
    let domain = pd();
    REFUSED.set(1);
    let (domain, error) = domain.close().unwrap_err();
    assert!(is_busy(&error), "{error}");
    domain.allocate_region(64).unwrap();
    domain.close().unwrap();
}

#[test]
fn a_pool_gives_peers_no_right() {
    let buffer = BufferPool::new(&pd()).allocate(64).unwrap();
    let access = AccessFlags::from_bits_retain(ACCESS.get().cast_unsigned());
    assert!(access.contains(AccessFlags::LOCAL_WRITE) && !access.any_remote(), "{access}");
    drop(buffer);
}

/// Relaxed ordering breaks programs that poll memory for a peer's last write.
#[test]
fn a_region_has_the_access_that_was_asked_for_and_no_other() {
    let pd = pd();
    let access = || AccessFlags::from_bits_retain(ACCESS.replace(0).cast_unsigned());
    let local = AccessFlags::new().with_local_write().with_mw_bind();
    let mut memory = [0; 64];
    let relaxed = AccessFlags::new().with_local_write().with_relaxed_ordering();
    drop(pd.allocate_region(64).unwrap());
    assert_eq!(access(), relaxed);
    drop(pd.register_borrowed(&mut memory).unwrap());
    assert_eq!(access(), relaxed);
    drop(BufferPool::without_windows(&pd, 4096).allocate(64).unwrap());
    assert_eq!(access(), relaxed);
    drop(BufferPool::new(&pd).allocate(64).unwrap());
    assert_eq!(access(), local, "a peer may write through a window");
    drop(pd.allocate_bindable_region(64).unwrap());
    assert_eq!(access(), local);
    drop(pd.register_local_mr_slice(&memory).unwrap());
    assert!(local.contains(access()));
    for asked in [
        AccessFlags::new(),
        AccessFlags::new().with_remote_read(),
        AccessFlags::new().with_local_write().with_remote_write().with_remote_atomic(),
    ] {
        drop(pd.allocate_shared_region(64, asked).unwrap());
        let given = access();
        assert!(given.contains(asked) && (asked | local).contains(given), "{asked}: {given}");
    }
}

#[test]
fn the_environment_turns_relaxed_ordering_off() {
    let test = "failing_provider::the_environment_turns_relaxed_ordering_off";
    let prepare = |program: &mut Command| _ = program.env("RDMA_RELAXED_ORDERING", "0");
    in_own_process_with(test, prepare, || {
        drop(pd().allocate_region(64).unwrap());
        assert_eq!(ACCESS.get().cast_unsigned(), AccessFlags::LOCAL_WRITE.bits());
    });
}

#[test]
fn a_value_of_the_environment_that_is_none_is_refused_with_the_memory() {
    let test =
        "failing_provider::a_value_of_the_environment_that_is_none_is_refused_with_the_memory";
    let prepare = |program: &mut Command| _ = program.env("RDMA_RELAXED_ORDERING", "off");
    in_own_process_with(test, prepare, || {
        let (memory, error) = pd().register_owned(RegionMemory::allocate(64).unwrap()).unwrap_err();
        assert_eq!(memory.len(), 64);
        assert!(matches!(error, Error::Environment { .. }), "{error}");
    });
}

/// In a process of its own, see [`events`].
#[test]
fn a_successful_close_emits_no_event() {
    in_own_process("failing_provider::a_successful_close_emits_no_event", || {
        let region = pd().allocate_region(64).unwrap();
        assert_eq!(events(|| drop(region)), 0);
    });
}

#[test]
fn without_the_verb_the_table_of_gids_comes_from_sysfs() {
    static TABLE: OnceLock<Verbs> = OnceLock::new();
    rdma_soft::install();
    let context = soft0(TABLE.get_or_init(|| {
        let mut verbs = *rdma_soft::verbs();
        verbs.query_gid_table = None;
        verbs
    }));
    let table = context.gid_table().unwrap();
    assert_eq!(table.len(), 5);
    for entry in table {
        // This device is not in sysfs, so the link layer determines the type.
        assert_eq!((entry.port, entry.gid_type), (1, GidType::ROCE_V1));
        assert_eq!(context.query_gid(1, entry.index).unwrap(), entry.gid);
    }
}
