//! Regions of memory from files: real dma-bufs if the kernel provides them (`/dev/udmabuf`), and sealed files in memory
//! on the software device.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

use rdma_mem::{
    AccessFlags, DeviceList, DmabufRegion, Errno, Error, GatherElement, ProtectionDomain,
    RangeError, ScatterElement,
};
use rdma_sys::Verbs;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

const PAGE: u64 = 4096;

fn pd() -> ProtectionDomain {
    rdma_soft::install();
    rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap()
}

/// A file in memory of three pages that cannot shrink.
fn memfd() -> OwnedFd {
    let file = memfd_create("dmabuf", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, 3 * PAGE).unwrap();
    fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    file
}

#[test]
fn requests_and_peers_count_from_the_chosen_address() {
    let (pd, file) = (pd(), memfd());
    let iova = 0x7000_0000_0000 + 100;
    let region = pd.register_local_dmabuf_mr(file.as_fd(), PAGE + 100, 5000, iova).unwrap();
    assert_eq!((region.iova(), region.len()), (iova, 5000));
    let element = region.element(10..40).unwrap();
    assert!(element.pd().is_same(&pd));
    let (source, target) = (GatherElement::from(element), ScatterElement::from(element));
    for sge in [source.as_raw(), target.as_raw()] {
        assert_eq!((sge.addr, sge.length, sge.lkey), (iova + 10, 30, region.lkey().get()));
    }
    let remote = region.remote();
    assert_eq!((remote.address(), remote.length(), remote.rkey()), (iova, 5000, region.rkey()));
    let text = format!("{region:?}");
    assert!(text.contains("0x700000000064") && text.contains("5000"), "{text}");
    region.close().unwrap();
}

#[test]
fn elements_lie_within_the_region() {
    let (pd, file) = (pd(), memfd());
    let region = pd.register_local_dmabuf_mr(file.as_fd(), 0, 100, 0).unwrap();
    assert_eq!(region.element(100..100).unwrap().length(), 0);
    assert!(matches!(region.element(90..101), Err(RangeError::OutOfBounds { .. })));
    #[allow(clippy::reversed_empty_ranges)]
    let reversed = region.element(40..10);
    assert!(matches!(reversed, Err(RangeError::OutOfBounds { .. })));
}

/// A domain of a provider with this function for dma-bufs.
fn without(register: Option<rdma_sys::functions::ibv_reg_dmabuf_mr>) -> ProtectionDomain {
    static TABLES: [OnceLock<Verbs>; 2] = [OnceLock::new(), OnceLock::new()];
    let table = TABLES[usize::from(register.is_some())].get_or_init(|| {
        let mut verbs = *rdma_soft::verbs();
        verbs.reg_dmabuf_mr = register;
        verbs
    });
    rdma_soft::install();
    // SAFETY: SAFETY.md F2: the software device's functions, except for one.
    let devices = unsafe { DeviceList::of(table) };
    let soft0 = devices.iter().find(|device| device.name() == "soft0").unwrap();
    soft0.open().unwrap().allocate_pd().unwrap()
}

unsafe extern "C" fn never(
    _pd: *mut rdma_sys::ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: std::ffi::c_int,
    _access: std::ffi::c_int,
) -> *mut rdma_sys::ibv_mr {
    std::process::abort()
}

#[test]
fn invalid_ranges_and_access_flags_are_refused_before_the_device_sees_them() {
    let (pd, file) = (without(Some(never)), memfd());
    let fd = file.as_fd();
    let refused = |offset, length, iova| pd.register_local_dmabuf_mr(fd, offset, length, iova);
    let error = refused(PAGE + 1, 8, 2).unwrap_err();
    assert!(matches!(error, Error::PageOffset { offset: 4097, iova: 2, page: 4096 }), "{error}");
    let text = error.to_string();
    assert!(text.contains("0x1001") && text.contains("0x1 more than a multiple"), "{text}");
    assert!(matches!(refused(0, 0, 0).unwrap_err(), Error::EmptyRegion));
    for (offset, iova) in [(0, u64::MAX - PAGE + 1), (u64::MAX - PAGE + 1, 0)] {
        let Error::Verb(error) = refused(offset, 4096, iova).unwrap_err() else { panic!() };
        assert_eq!(error.errno, Errno::EINVAL);
        assert!(error.to_string().contains("64 bits"), "{error}");
    }
    let access = AccessFlags::new().with_remote_write();
    // SAFETY: SAFETY.md F8: there is no reference to the file's memory.
    let refused = unsafe { pd.register_dmabuf_mr_with_access(fd, 0, 8, 0, access) };
    assert!(matches!(refused.unwrap_err(), Error::Access(_)));
}

#[test]
fn a_provider_without_dmabufs_is_named() {
    let (pd, file) = (without(None), memfd());
    let error = pd.register_local_dmabuf_mr(file.as_fd(), 0, 8, 0).unwrap_err();
    let Error::Unsupported(unsupported) = &error else { panic!("{error}") };
    assert_eq!(unsupported.verb, "ibv_reg_dmabuf_mr");
    assert!(error.to_string().contains("rdma-core 34"), "{error}");
}

#[test]
fn refusals_of_the_device_have_a_hint() {
    let (pd, file) = (pd(), memfd());
    let verb = |result: Result<DmabufRegion, Error>| match result.unwrap_err() {
        Error::Verb(error) => (error.errno, error.to_string()),
        other => panic!("{other}"),
    };
    let (errno, text) = verb(pd.register_local_dmabuf_mr(file.as_fd(), 0, 4 * 4096, 0));
    assert!(errno == Errno::EINVAL && text.contains("beyond its end"), "{text}");
    let plain = memfd_create("dmabuf-plain", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&plain, PAGE).unwrap();
    let (errno, text) = verb(pd.register_local_dmabuf_mr(plain.as_fd(), 0, 8, 0));
    assert!(errno == Errno::EINVAL && text.contains("F_SEAL_SHRINK"), "{text}");
    let read_only = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    let (errno, text) = verb(pd.register_local_dmabuf_mr(read_only.as_fd(), 0, 8, 0));
    assert!(errno == Errno::EACCES && text.contains("is not writable"), "{text}");
    let access = AccessFlags::new().with_zero_based();
    // SAFETY: SAFETY.md F8: no peer can use it.
    let zero_based = unsafe { pd.register_dmabuf_mr_with_access(file.as_fd(), 0, 8, 0, access) };
    let (errno, text) = verb(zero_based);
    assert!(errno == Errno::EINVAL && text.contains("access flag"), "{text}");
}

/// `struct udmabuf_create` and `UDMABUF_CREATE` of `linux/udmabuf.h`.
#[repr(C)]
struct UdmabufCreate {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}
const UDMABUF_CREATE: libc::c_ulong = 0x4018_7542;

#[test]
fn a_real_dmabuf_is_registered() {
    let Ok(maker) = File::options().read(true).write(true).open("/dev/udmabuf") else {
        println!("skipped: there is no /dev/udmabuf that this user may open (modprobe udmabuf)");
        return;
    };
    let file = memfd();
    let mut create = UdmabufCreate {
        memfd: file.as_raw_fd().cast_unsigned(),
        flags: 1, // UDMABUF_FLAGS_CLOEXEC
        offset: 0,
        size: 3 * PAGE,
    };
    // SAFETY: SAFETY.md F15: the device's own request, with its own struct.
    let made = unsafe { libc::ioctl(maker.as_raw_fd(), UDMABUF_CREATE, &raw mut create) };
    assert!(made >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: SAFETY.md F15: a new file descriptor, owned by this test.
    let dmabuf = unsafe { OwnedFd::from_raw_fd(made) };
    let pd = pd();
    let region = pd.register_local_dmabuf_mr(dmabuf.as_fd(), PAGE, 8192, 0).unwrap();
    assert_eq!(region.element(0..8192).unwrap().length(), 8192);
    let beyond = pd.register_local_dmabuf_mr(dmabuf.as_fd(), PAGE, 8193, 0).unwrap_err();
    assert!(matches!(beyond, Error::Verb(error) if error.errno == Errno::EINVAL));
}
