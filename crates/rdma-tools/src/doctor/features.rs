//! The features of this stack that a device lacks.

use std::fs::File;
use std::os::fd::AsFd as _;

use rdma::channel::CreateChannel as _;
use rdma::device::{AtomicCapability, Context, Errno, Error, OdpCapabilities};
use rdma::memory::ProtectionDomain;
use rdma::qp::{Inline, QueuePairType};

use super::facts::Missing;

/// The number of inline bytes that channels request by default.
const INLINE: u32 = 64;

/// Finds the features that the device lacks. Attributes show some of them. To test for the others,
/// this creates and destroys queue pairs, and tries to register a file as a dma-buf. The device is
/// left unchanged. Also returns the error if an ordinary queue pair cannot be created.
pub(crate) fn missing(context: &Context) -> Result<(Vec<Missing>, Option<String>), Error> {
    let (device, extended) = (context.query_device()?, context.query_device_extended()?);
    let pd = context.allocate_pd()?;
    let mut missing = Vec::new();
    let mut lacks = |is_missing: bool, feature, instead| {
        if is_missing {
            missing.push(Missing { feature, instead });
        }
    };
    lacks(
        device.max_srq == 0,
        "shared receive queues",
        "a `Server` has receives for each client, and fewer clients",
    );
    lacks(
        device.atomic_capability == AtomicCapability::NONE,
        "atomic operations",
        "send messages that let the peer change its memory",
    );
    lacks(device.max_mw == 0, "memory windows", "register a region for each peer");
    lacks(device.max_mcast_grp == 0, "multicast", "send to each peer");
    lacks(
        extended.completion_timestamp_mask == 0,
        "completion timestamps",
        "read a clock after each poll",
    );
    lacks(
        !extended.odp.contains(OdpCapabilities::SUPPORT),
        "on-demand paging",
        "registered memory is pinned: see `memlock`",
    );
    lacks(lacks_dmabuf(&pd), "dma-bufs", "copy GPU memory to host memory");
    let builder = || pd.create_channel();
    let usual = builder().max_inline_data(Inline::UpTo(INLINE)).build().map(drop);
    // If an ordinary queue pair cannot be created, the others fail for the same reason.
    if usual.is_ok() {
        let fails = |built: Result<_, _>| built.is_err();
        lacks(
            fails(builder().qp_type(QueuePairType::UC).build().map(drop)),
            "unreliable connections (UC)",
            "use reliable connections",
        );
        lacks(
            fails(builder().max_inline_data(Inline::Exactly(INLINE)).build().map(drop)),
            "64 bytes of inline data",
            "small sends go through registered memory",
        );
    }
    Ok((missing, usual.err().map(|error| error.to_string())))
}

/// Returns true if the driver does not support dma-bufs. Such a driver refuses the call before it
/// examines the file, so any file will do.
fn lacks_dmabuf(pd: &ProtectionDomain) -> bool {
    let Ok(file) = File::open("/dev/null") else { return false };
    match pd.register_local_dmabuf_mr(file.as_fd(), 0, 4096, 0) {
        Err(Error::Unsupported(_)) => true,
        Err(Error::Verb(verb)) => [Errno::EOPNOTSUPP, Errno::ENOSYS].contains(&verb.errno),
        _ => false,
    }
}
