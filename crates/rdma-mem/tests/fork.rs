//! A forked child cannot use the objects of its parent: each function returns an error.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use std::ffi::c_int;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use rdma_mem::{
    AccessFlags, AsyncEventSource, BufferPool, Context, DeviceList, Error, Forked, PoolUsage,
    ProtectionDomain, RegionMemory,
};
use rdma_sys::{Verbs, ibv_context, ibv_device, ibv_mr, ibv_pd};

/// The number of releases in this process.
static RELEASED: AtomicU8 = AtomicU8::new(0);

/// Wraps the functions that release objects, to count their calls.
macro_rules! counted {
    ($($name:ident($T:ty) -> $R:ty;)+) => {$(
        unsafe extern "C" fn $name(object: *mut $T) -> $R {
            RELEASED.fetch_add(1, Ordering::Relaxed);
            // SAFETY: SAFETY.md F1: the caller's own contract.
            unsafe { (rdma_soft::verbs().$name)(object) }
        }
    )+};
}

counted! {
    dereg_mr(ibv_mr) -> c_int;
    dealloc_pd(ibv_pd) -> c_int;
    close_device(ibv_context) -> c_int;
    free_device_list(*mut ibv_device) -> ();
}

fn context() -> Context {
    static TABLE: OnceLock<Verbs> = OnceLock::new();
    rdma_soft::install();
    let verbs = TABLE.get_or_init(|| {
        let mut verbs = *rdma_soft::verbs();
        verbs.dereg_mr = dereg_mr;
        verbs.dealloc_pd = dealloc_pd;
        verbs.close_device = close_device;
        verbs.free_device_list = free_device_list;
        verbs
    });
    // SAFETY: SAFETY.md F2: the functions are the software device's.
    let list = unsafe { DeviceList::of(verbs) };
    list.iter().find(|device| device.name() == "soft0").unwrap().open().unwrap()
}

/// Returns the result of `child` in a forked child. A child that hangs is killed after two minutes.
///
/// Other threads may hold locks during the fork, so the child must call nothing that waits for one.
/// The allocator's lock is free in a child.
fn forked(child: impl FnOnce() -> u8) -> c_int {
    // SAFETY: SAFETY.md F15: the child calls nothing that waits for another thread, and ends below.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "no child");
    if pid == 0 {
        // SAFETY: SAFETY.md F15: it ends this child.
        unsafe { libc::alarm(120) };
        let returned = child();
        // SAFETY: SAFETY.md F15: nothing else runs in this child.
        unsafe { libc::_exit(returned.into()) };
    }
    let mut status = 0;
    // SAFETY: SAFETY.md F15: the child of this process, and room for its status.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "the child was ended by signal {}", libc::WTERMSIG(status));
    libc::WEXITSTATUS(status)
}

fn is_forked<T>(result: Result<T, Error>, owner: u32) -> bool {
    matches!(result, Err(Error::Forked(Forked { owner: of, .. })) if of == owner)
}

/// Returns the number of the first check that is `false`, from 1; 0 if there is none.
fn first_false(checks: &[bool]) -> u8 {
    let place = checks.iter().position(|check| !check);
    place.map_or(0, |place| u8::try_from(place + 1).unwrap_or(u8::MAX))
}

#[test]
fn every_control_verb_fails_in_a_forked_child() {
    let (context, me) = (context(), std::process::id());
    let pd = context.allocate_pd().unwrap();
    let events = context.async_events().unwrap();
    let pool = BufferPool::new(&pd);
    let held = pool.allocate(64).unwrap();
    let (mut bytes, memory) = ([0; 64], RegionMemory::allocate(64).unwrap());
    let access = AccessFlags::new();
    let returned = forked(|| {
        first_false(&[
            is_forked(context.device().open(), me),
            is_forked(context.query_device(), me),
            is_forked(context.query_port(1), me),
            is_forked(context.query_gid(1, 0), me),
            is_forked(context.gid_table(), me),
            is_forked(context.async_events(), me),
            is_forked(context.events_of(AsyncEventSource::Device), me),
            is_forked(events.try_get_event(), me),
            is_forked(context.allocate_pd(), me),
            is_forked(pd.allocate_region(64), me),
            is_forked(pd.allocate_shared_region(64, access), me),
            is_forked(pd.register_local_mr_slice(&bytes), me),
            is_forked(pd.register_borrowed(&mut bytes), me),
            is_forked(pd.register_local_dmabuf_mr(std::io::stdin().as_fd(), 0, 64, 0), me),
            is_forked(pd.register_owned(memory).map_err(|(_, error)| error), me),
            is_forked(pool.allocate(64), me),
            is_forked(pool.allocate_aligned(64, 4096), me),
            is_forked(pool.try_allocate(64), me),
            is_forked(pool.grow(64), me),
            pool.trim() == 0,
            pool.usage() == PoolUsage::default(),
        ])
    });
    assert_eq!(returned, 0, "the number of the check that failed");
    assert_eq!(held.len(), 64);
    context.query_device().unwrap(); // works in the parent
}

fn everything(pd: &ProtectionDomain) -> impl Sized + use<> {
    let access = AccessFlags::new().with_remote_read();
    let pool = BufferPool::new(pd);
    let buffer = pool.allocate(64).unwrap();
    let mr = pd.register_local_mr_slice(&buffer).unwrap();
    let memory = RegionMemory::memfd(64).unwrap();
    let shared = pd.register_shared(memory, access).map_err(|(_, error)| error).unwrap();
    // SAFETY: SAFETY.md F16: the file is not written.
    let file = unsafe { shared.memfd() }.unwrap();
    let dmabuf = pd.register_local_dmabuf_mr(file, 0, 64, 0).unwrap();
    let events = pd.context().async_events().unwrap();
    (mr, buffer, pool, shared, dmabuf, pd.allocate_region(64).unwrap(), events)
}

#[test]
fn a_forked_child_releases_nothing() {
    let context = context();
    let pd = context.allocate_pd().unwrap();
    let closing = (pd.allocate_region(64).unwrap(), pd.clone());
    let all = everything(&pd);
    let returned = forked(move || {
        // Tests of the parent release objects too, but not in this process.
        let before = RELEASED.load(Ordering::Relaxed);
        let (region, _pd) = closing;
        let refused = region.close();
        let refused = matches!(&refused, Err((_, Error::Forked(_))));
        drop((all, pd, context));
        let released = RELEASED.load(Ordering::Relaxed).wrapping_sub(before);
        if refused { released } else { 99 }
    });
    assert_eq!(returned, 0, "the number of released objects; 99 if closing returned another error");
}

#[test]
fn a_process_with_live_regions_starts_others() {
    let pd = context().allocate_pd().unwrap();
    let mut region = pd.allocate_region(1 << 16).unwrap();
    region.fill(1);
    let output = Command::new("echo").arg("from a child").output().unwrap();
    assert_eq!(output.stdout, b"from a child\n");
    assert!(region.iter().all(|&byte| byte == 1));
    region.close().unwrap();
}
