//! The types that may move to other threads, and be used from them.

use rdma_cm::unmanaged::{self, Answered, Group, Id, Parameters, Port, Route};
use rdma_cm::{
    Accepted, Accepting, Awaited, BindOptions, Connecting, Connection, ConnectionId,
    ConnectionRequest, Disconnecting, End, Ended, Error, Event, EventChannel, EventKind, IdToken,
    Listener, Phase, Replied, Resolved, Resolving, Step,
};

fn send_sync<T: Send + Sync>() {}
fn error<T: std::error::Error + Send + Sync + 'static>() {}

#[test]
fn errors_go_to_any_thread() {
    error::<End>();
    error::<Error>();
}

#[test]
fn channels_and_connections_go_to_any_thread() {
    send_sync::<Awaited>();
    send_sync::<BindOptions>();
    send_sync::<EventChannel>();
    send_sync::<Event>();
    send_sync::<EventKind>();
    send_sync::<IdToken>();
    send_sync::<Listener>();
    send_sync::<Phase>();
    send_sync::<ConnectionRequest>();
    send_sync::<Accepting>();
    send_sync::<Accepted>();
    send_sync::<Resolved>();
    send_sync::<Resolving>();
    send_sync::<Connecting>();
    send_sync::<Replied>();
    send_sync::<Connection>();
    send_sync::<ConnectionId>();
    send_sync::<Disconnecting>();
    send_sync::<Ended>();
    send_sync::<Step<Connecting, Replied>>();
    send_sync::<Id>();
    send_sync::<Port>();
    send_sync::<unmanaged::Event>();
    send_sync::<Answered>();
    send_sync::<Group>();
    send_sync::<Parameters>();
    send_sync::<Route>();
}
