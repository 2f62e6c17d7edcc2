//! C objects, each owned and borrowed by a wrapper. A software device records the destroyed objects.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use rdma_mem::{
    AccessFlags, Context, DmabufRegion, Error, GatherElement, MemoryRegion, MemoryWindow,
    Ownership, ProtectionDomain, WindowType,
};
use rdma_sys::{Verbs, ibv_context, ibv_device, ibv_mr, ibv_mw_type, ibv_pd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

const BOTH: [Ownership; 2] = [Ownership::Owned, Ownership::Borrowed];

thread_local! {
    static DESTROYED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Returns the number of times an object was destroyed.
fn destroyed<T>(object: NonNull<T>) -> usize {
    DESTROYED.with_borrow(|all| all.iter().filter(|&&one| one == object.addr().get()).count())
}

/// Wraps functions of the software device to record the destroyed objects.
macro_rules! counted {
    ($($name:ident: $object:ty,)+) => {
        $(unsafe extern "C" fn $name(object: *mut $object) -> c_int {
            DESTROYED.with_borrow_mut(|all| all.push(object.addr()));
            // SAFETY: SAFETY.md F1: the caller's own contract.
            unsafe { (rdma_soft::verbs().$name)(object) }
        })+

        fn verbs() -> &'static Verbs {
            static VERBS: OnceLock<Verbs> = OnceLock::new();
            VERBS.get_or_init(|| {
                let mut verbs = *rdma_soft::verbs();
                $(verbs.$name = $name;)+
                verbs
            })
        }
    };
}

counted! {
    close_device: ibv_context,
    dealloc_pd: ibv_pd,
    dereg_mr: ibv_mr,
}

fn opened() -> NonNull<ibv_context> {
    let list = rdma_mem::list_devices();
    let device = list.iter().find(|device| device.name() == "soft0").unwrap();
    // SAFETY: SAFETY.md F2: a listed device of this table.
    NonNull::new(unsafe { (verbs().open_device)(device.as_raw()) }).unwrap()
}

/// A context that is closed on drop.
fn context() -> Context {
    rdma_soft::install();
    // SAFETY: SAFETY.md F2: just opened, by a table whose functions are the software device's.
    unsafe { Context::from_raw(opened(), verbs(), Ownership::Owned) }.unwrap()
}

fn allocated(context: *mut ibv_context) -> NonNull<ibv_pd> {
    // SAFETY: SAFETY.md F2: the tests have a live context.
    NonNull::new(unsafe { (verbs().alloc_pd)(context) }).unwrap()
}

/// Drops or closes a value, and checks that its object was destroyed if, and only if, the value
/// owns it.
fn end<T, V>(raw: NonNull<T>, ownership: Ownership, values: [V; 1], close: impl FnOnce(V)) {
    let before = destroyed(raw);
    let [value] = values;
    close(value);
    assert_eq!(
        destroyed(raw) - before,
        usize::from(ownership == Ownership::Owned),
        "{ownership:?}"
    );
}

#[test]
fn a_context_of_c_is_closed_once_by_its_owner() {
    rdma_soft::install();
    for ownership in BOTH {
        for drops in [true, false] {
            let raw = opened();
            // SAFETY: SAFETY.md F2: just opened; closed below if it is borrowed.
            let context = unsafe { Context::from_raw(raw, verbs(), ownership) }.unwrap();
            assert_eq!((context.as_raw(), context.device().name()), (raw.as_ptr(), "soft0"));
            assert!(ptr::eq(context.verbs(), verbs()));
            let (device, pd) = (context.device().clone(), context.allocate_pd().unwrap());
            drop(context);
            assert_eq!(destroyed(raw), 0, "the domain needs it");
            let context = pd.context().clone();
            drop(pd);
            end(raw, ownership, [context], |context| match drops {
                true => drop(context),
                false => context.close().map_err(|(_, error)| error).unwrap(),
            });
            assert!(device.open().is_ok(), "a device outlives its context");
            if ownership == Ownership::Borrowed {
                let pd = allocated(raw.as_ptr());
                // SAFETY: SAFETY.md F2: just allocated.
                assert_eq!(unsafe { (verbs().dealloc_pd)(pd.as_ptr()) }, 0, "it is usable");
                // SAFETY: SAFETY.md F2: the value was dropped.
                assert_eq!(unsafe { (verbs().close_device)(raw.as_ptr()) }, 0);
            }
            DESTROYED.take();
        }
    }
}

#[test]
fn a_context_whose_device_is_gone_is_refused_by_its_name() {
    unsafe extern "C" fn nothing(count: *mut c_int) -> *mut *mut ibv_device {
        // SAFETY: SAFETY.md F2: the caller's own contract.
        let list = unsafe { (rdma_soft::verbs().get_device_list)(count) };
        // SAFETY: SAFETY.md F1: the caller's memory for the count.
        unsafe { count.write(0) };
        list
    }
    static GONE: OnceLock<Verbs> = OnceLock::new();
    let gone = GONE.get_or_init(|| {
        let mut gone = *verbs();
        gone.get_device_list = nothing;
        gone
    });
    rdma_soft::install();
    let raw = opened();
    // SAFETY: SAFETY.md F2: just opened; the call fails, so the test still owns it.
    let error = unsafe { Context::from_raw(raw, gone, Ownership::Owned) }.unwrap_err();
    let Error::UnknownDevice(error) = error else { panic!("{error}") };
    assert_eq!((error.name.as_str(), error.known.len()), ("soft0", 0));
    assert_eq!(destroyed(raw), 0, "it is the caller's");
    // SAFETY: SAFETY.md F2: as above.
    assert_eq!(unsafe { (verbs().close_device)(raw.as_ptr()) }, 0);
}

#[test]
fn a_domain_of_c_is_deallocated_once_by_its_owner() {
    let context = context();
    for ownership in BOTH {
        for drops in [true, false] {
            let raw = allocated(context.as_raw());
            // SAFETY: SAFETY.md F2: just allocated; deallocated below if it is borrowed.
            let pd = unsafe { ProtectionDomain::from_raw(raw, &context, ownership) };
            assert!(pd.context().is_same(&context));
            let region = pd.allocate_region(64).unwrap();
            drop(pd);
            assert_eq!(destroyed(raw), 0, "the region needs it");
            let pd = region.pd().clone();
            drop(region);
            end(raw, ownership, [pd], |pd| match drops {
                true => drop(pd),
                false => pd.close().map_err(|(_, error)| error).unwrap(),
            });
            if ownership == Ownership::Borrowed {
                // SAFETY: SAFETY.md F2: the value was dropped.
                assert_eq!(unsafe { (verbs().dealloc_pd)(raw.as_ptr()) }, 0);
            }
            DESTROYED.take();
        }
    }
    context.close().map_err(|(_, error)| error).unwrap();
}

#[test]
fn a_region_of_c_is_deregistered_once_by_its_owner() {
    let pd = context().allocate_pd().unwrap();
    let access = AccessFlags::new().with_local_write().with_remote_read();
    for ownership in BOTH {
        for drops in [true, false] {
            let mut memory = [0_u8; 96];
            let (start, flags) = (memory.as_mut_ptr(), access.bits().cast_signed());
            // SAFETY: SAFETY.md F8: memory that outlives the registration.
            let raw = unsafe { (verbs().reg_mr)(pd.as_raw(), start.cast(), 96, flags) };
            let raw = NonNull::new(raw).unwrap();
            // SAFETY: SAFETY.md F8: just registered like this; deregistered below if it is borrowed.
            let region = unsafe { MemoryRegion::from_raw(raw, &pd, access, ownership) }.unwrap();
            assert_eq!((region.address(), region.length()), (start.addr(), 96));
            let element = *region.gather_element(&memory[32..64]).as_raw();
            assert_eq!(element.addr, (start.addr() + 32) as u64);
            // SAFETY: SAFETY.md F1: live.
            let mr = unsafe { raw.read() };
            let keys = (region.lkey().get(), region.remote().rkey().get());
            assert_eq!((keys, element.lkey), ((mr.lkey, mr.rkey), mr.lkey));
            end(raw, ownership, [region], |region| match drops {
                true => drop(region),
                false => region.close().map_err(|(_, error)| error).unwrap(),
            });
            if ownership == Ownership::Borrowed {
                // SAFETY: SAFETY.md F2: the value was dropped.
                assert_eq!(unsafe { (verbs().dereg_mr)(raw.as_ptr()) }, 0);
            }
            DESTROYED.take();
        }
    }
    pd.close().map_err(|(_, error)| error).unwrap();
}

#[test]
fn a_zero_based_region_of_c_counts_from_zero() {
    let pd = context().allocate_pd().unwrap();
    let access = AccessFlags::new().with_local_write().with_zero_based();
    let mut memory = [0_u8; 96];
    let (start, flags) = (memory.as_mut_ptr().cast(), access.bits());
    // SAFETY: SAFETY.md F8: memory that outlives the registration.
    let raw = unsafe { rdma_sys::ibv_reg_mr(verbs(), pd.as_raw(), start, 96, flags) };
    let raw = NonNull::new(raw).unwrap();
    // SAFETY: SAFETY.md F8: just registered like this.
    let region = unsafe { MemoryRegion::from_raw(raw, &pd, access, Ownership::Owned) }.unwrap();
    let element = region.gather_element(&memory[32..64]);
    assert_eq!((element.as_raw().addr, region.remote().address()), (32, 0));
}

#[test]
fn a_region_without_an_address_is_refused_in_words() {
    let pd = context().allocate_pd().unwrap();
    let mut mr = ibv_mr { length: usize::MAX, ..Default::default() };
    let raw = NonNull::from(&mut mr);
    // SAFETY: SAFETY.md F1: it is only read, and the call fails.
    let region = unsafe { MemoryRegion::from_raw(raw, &pd, AccessFlags::new(), Ownership::Owned) };
    let Err(Error::Verb(error)) = region else { panic!("taken") };
    assert!(error.to_string().contains("NULL"), "{error}");
    assert_eq!(destroyed(raw), 0);
}

#[test]
fn a_dmabuf_region_of_c_is_deregistered_once_by_its_owner() {
    let pd = context().allocate_pd().unwrap();
    let file = memfd_create("door", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, 8192).unwrap();
    fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    for ownership in BOTH {
        for drops in [true, false] {
            let fd = file.as_raw_fd();
            let flags = AccessFlags::new().with_local_write().bits().cast_signed();
            let register = verbs().reg_dmabuf_mr().unwrap();
            // SAFETY: SAFETY.md F1: an open file.
            let raw = unsafe { register(pd.as_raw(), 4096, 4096, 8192, fd, flags) };
            let raw = NonNull::new(raw).unwrap();
            // SAFETY: SAFETY.md F8: just registered like this; deregistered below if it is borrowed.
            let region = unsafe { DmabufRegion::from_raw(raw, &pd, 8192, ownership) };
            assert_eq!(
                (region.len(), region.iova(), region.remote().address()),
                (4096, 8192, 8192)
            );
            let element = GatherElement::from(region.element(16..32).unwrap());
            assert_eq!((element.as_raw().addr, element.length()), (8192 + 16, 16));
            end(raw, ownership, [region], |region| match drops {
                true => drop(region),
                false => region.close().map_err(|(_, error)| error).unwrap(),
            });
            if ownership == Ownership::Borrowed {
                // SAFETY: SAFETY.md F2: the value was dropped.
                assert_eq!(unsafe { (verbs().dereg_mr)(raw.as_ptr()) }, 0);
            }
            DESTROYED.take();
        }
    }
    pd.close().map_err(|(_, error)| error).unwrap();
}

#[test]
fn a_window_of_c_is_deallocated_once_by_its_owner() {
    for (kind, is) in [
        (ibv_mw_type::IBV_MW_TYPE_1, WindowType::One),
        (ibv_mw_type::IBV_MW_TYPE_2, WindowType::Two),
    ] {
        for ownership in BOTH {
            let pd = context().allocate_pd().unwrap();
            let region = pd.allocate_bindable_region(4096).unwrap();
            // SAFETY: SAFETY.md F1: a live domain.
            let raw = NonNull::new(unsafe { rdma_sys::ibv_alloc_mw(pd.as_raw(), kind) }).unwrap();
            // SAFETY: SAFETY.md F1: live.
            let key = unsafe { (*raw.as_ptr()).rkey };
            // SAFETY: SAFETY.md F6: just allocated; deallocated below if it is borrowed.
            let mut window = unsafe { MemoryWindow::from_raw(raw, region, ownership) };
            assert_eq!((window.kind(), window.is_bound(), window.rkey()), (is, false, None));
            let bind = window.prepare_bind(0..64, AccessFlags::new().with_remote_read()).unwrap();
            let expected = if is == WindowType::One { key } else { rdma_sys::ibv_inc_rkey(key) };
            assert_eq!((bind.mw, bind.rkey.get()), (raw.as_ptr(), expected));
            // SAFETY: it was not posted.
            unsafe { window.never_bound() };
            let region = window.close().map_err(|(_, error)| error).unwrap();
            drop(region);
            let pd = match ownership {
                Ownership::Owned => pd,
                Ownership::Borrowed => {
                    let (pd, _) = pd.close().unwrap_err();
                    // SAFETY: SAFETY.md F2: the value was dropped, and the window is live.
                    assert_eq!(unsafe { rdma_sys::ibv_dealloc_mw(raw.as_ptr()) }, 0);
                    pd
                }
            };
            pd.close().map_err(|(_, error)| error).unwrap();
        }
    }
}
