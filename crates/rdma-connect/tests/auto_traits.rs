//! Which types may go to, and be used from, other threads.

use rdma_connect::{
    CloseReason, ConnectError, FailedWork, LeaseEnd, Message, Operation, OperationError, Parsed,
    PeerAddress, PeerId, RefusedWork, Rejected, Reported, Told, TransportError, WorkId, Wrong,
};

fn send_sync<T: Send + Sync>() {}
fn error<T: std::error::Error + Send + Sync + 'static>() {}

#[test]
fn errors_go_to_any_thread() {
    error::<ConnectError>();
    error::<FailedWork>();
    error::<OperationError>();
    error::<RefusedWork>();
    error::<Rejected<()>>();
    error::<TransportError>();
    error::<Wrong>();
    send_sync::<CloseReason>();
    send_sync::<LeaseEnd>();
    send_sync::<Operation>();
    send_sync::<PeerAddress>();
    send_sync::<PeerId>();
    send_sync::<Reported>();
    send_sync::<WorkId>();
}

#[test]
fn messages_go_to_any_thread() {
    send_sync::<Message>();
    send_sync::<Parsed>();
    send_sync::<Told>();
}
