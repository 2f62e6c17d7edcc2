//! Numbers can be copied, compared, and used in every thread.

use std::hash::Hash;

use rdma_types::{
    AccessError, AccessFlags, AckTimeout, AsyncEventKind, AtomicCapability, DeviceCapabilities,
    Gid, GidType, Guid, Lid, LinkLayer, LinkSpeed, LinkWidth, Lkey, MaxAckRetries, MaxRnrRetries,
    MinRnrTimer, Mtu, NodeType, OdpCapabilities, OdpOperations, OutOfRangeError, ParseGidError,
    ParseGuidError, PhysicalState, Pkey, PortState, Psn, QpAttributes, QpState, QpTransition,
    QpType, Qpn, RawPacketCapabilities, Rkey, TransportType, WcOpcode, WcStatus,
};

fn number<T: Copy + Eq + Hash + Send + Sync + Unpin + 'static>() {}
fn error<T: core::error::Error + Send + Sync + 'static>() {}

#[test]
fn numbers_are_copied_and_compared_in_any_thread() {
    number::<AccessFlags>();
    number::<AckTimeout>();
    number::<AsyncEventKind>();
    number::<AtomicCapability>();
    number::<DeviceCapabilities>();
    number::<Gid>();
    number::<GidType>();
    number::<Guid>();
    number::<Lid>();
    number::<Pkey>();
    number::<LinkLayer>();
    number::<LinkSpeed>();
    number::<LinkWidth>();
    number::<Lkey>();
    number::<MaxAckRetries>();
    number::<MaxRnrRetries>();
    number::<MinRnrTimer>();
    number::<Mtu>();
    number::<NodeType>();
    number::<OdpCapabilities>();
    number::<OdpOperations>();
    number::<PhysicalState>();
    number::<PortState>();
    number::<Psn>();
    number::<QpAttributes>();
    number::<QpState>();
    number::<QpTransition>();
    number::<QpType>();
    number::<Qpn>();
    number::<RawPacketCapabilities>();
    number::<Rkey>();
    number::<TransportType>();
    number::<WcOpcode>();
    number::<WcStatus>();
}

#[test]
fn errors_are_errors_of_any_thread() {
    error::<AccessError>();
    error::<OutOfRangeError>();
    error::<ParseGidError>();
    error::<ParseGuidError>();
}
