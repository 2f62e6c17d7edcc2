//! Features that some devices lack. A test that needs one of them is skipped on such devices.

use std::io::Write as _;
use std::{io, thread};

use rdma_sys::{Errno, ibv_atomic_cap, ibv_qp_type};

use crate::rig::{Context, Size};

/// A feature that some NICs do not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Feature {
    /// Atomic operations.
    Atomics,
    /// Memory windows.
    Windows,
    /// Shared receive queues.
    SharedReceiveQueues,
    /// Queue pairs for unreliable connections.
    Uc,
    /// Queue pairs for datagrams.
    Ud,
    /// At least this many bytes of inline data.
    Inline(u32),
}

impl Feature {
    const fn name(self) -> &'static str {
        match self {
            Self::Atomics => "atomics",
            Self::Windows => "memory windows",
            Self::SharedReceiveQueues => "shared receive queues",
            Self::Uc => "queue pairs of unreliable connections",
            Self::Ud => "queue pairs of datagrams",
            Self::Inline(_) => "inline data of that size",
        }
    }
}

/// Returns true if the device has the feature.
///
/// # Panics
/// Panics if no device has this name. The caller must have installed the software devices.
#[must_use]
pub fn has(device: &str, feature: Feature) -> bool {
    let context = Context::open(device);
    match feature {
        Feature::Atomics => has_atomics(&context),
        Feature::Windows => context.query_device().max_mw > 0,
        Feature::SharedReceiveQueues => context.query_device().max_srq > 0,
        Feature::Uc => has_type(&context, ibv_qp_type::IBV_QPT_UC),
        Feature::Ud => has_type(&context, ibv_qp_type::IBV_QPT_UD),
        Feature::Inline(bytes) => has_inline(&context, bytes),
    }
}

/// Returns true if the device lacks the feature. If so, prints that the calling test, or a part of
/// it, is skipped.
///
/// The line goes to standard error even if the harness captures the output of tests, so every run
/// shows what it skips.
///
/// # Panics
/// Panics like [`has`].
#[must_use]
pub fn lacks(device: &str, feature: Feature) -> bool {
    let lacks = !has(device, feature);
    if lacks {
        let what = feature.name();
        // The harness names each test's thread after the test.
        let test = thread::current().name().map(|name| format!(" ({name})")).unwrap_or_default();
        let _ = writeln!(io::stderr(), "skipped: {device} has no {what}{test}");
    }
    lacks
}

/// Returns true if the device has atomic operations.
#[must_use]
pub fn has_atomics(context: &Context) -> bool {
    context.query_device().atomic_cap != ibv_atomic_cap::IBV_ATOMIC_NONE
}

/// Returns true if the device supports this much inline data. There is no query for it, so this
/// tries to create a queue pair.
fn has_inline(context: &Context, bytes: u32) -> bool {
    let (cq, pd) = (context.cq(4), context.pd());
    pd.try_qp(&cq, &cq, &Size { inline: bytes, ..Size::default() }).is_ok()
}

/// Returns true if the device supports queue pairs of this type. There is no query for it, so this
/// tries to create one.
#[must_use]
pub fn has_type(context: &Context, qp_type: ibv_qp_type) -> bool {
    let (cq, pd) = (context.cq(4), context.pd());
    let size = Size { qp_type, send_wr: 1, receive_wr: 1, sge: 1, inline: 0, signal_all: false };
    let refused = pd.try_qp(&cq, &cq, &size).err();
    ![Errno::EOPNOTSUPP, Errno::ENOSYS].map(Some).contains(&refused)
}
