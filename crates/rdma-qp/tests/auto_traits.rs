//! The types that may move to other threads, and be used from them.

use rdma_qp::{
    AddressHandle, AddressVector, AtomicResult, AtomicWorkRequest, BindWindow, CompletionChannel,
    CompletionQueue, CompletionQueueBuilder, ConnectAttributes, DataOrder, DatagramSource,
    EndpointError, EndpointGid, Error, GidChoice, GidNetwork, GidRule, GlobalRoute,
    GlobalRouteHeader, HandshakeError, Inline, LocalInvalidate, ParseGidNetworkError, PollError,
    PollSlot, PolledCompletions, PostError, PostErrorKind, PreparedQueuePair, QueuePair,
    QueuePairAttributes, QueuePairBuilder, QueuePairCapabilities, QueuePairEndpoint,
    QueuePairModification, QueuedReceive, QueuedRequest, ReadWorkRequest, ReceiveWorkRequest,
    SendWithInvalidate, SendWorkRequest, SharedReceiveQueue, SharedReceiveQueueAttributes,
    SharedReceiveQueueBuilder, WorkCompletion, WorkError, WorkErrorClass, WorkErrorCode,
    WorkSuccess, WriteWorkRequest,
};

fn send_sync<T: Send + Sync>() {}
fn copy<T: Copy>() {}
fn error<T: std::error::Error + Send + Sync + 'static>() {}

#[test]
fn objects_are_send_and_sync() {
    send_sync::<AddressHandle>();
    send_sync::<CompletionChannel>();
    send_sync::<CompletionQueue>();
    send_sync::<CompletionQueueBuilder<'_>>();
    send_sync::<QueuePair>();
    send_sync::<PreparedQueuePair>();
    send_sync::<QueuePairBuilder<'_>>();
    send_sync::<SharedReceiveQueue>();
    send_sync::<SharedReceiveQueueBuilder<'_>>();
}

#[test]
fn values_are_send_and_sync() {
    send_sync::<AddressVector>();
    send_sync::<DatagramSource>();
    send_sync::<GlobalRouteHeader>();
    send_sync::<AtomicResult<'_, '_>>();
    send_sync::<AtomicWorkRequest<'_, '_>>();
    send_sync::<BindWindow<'_>>();
    send_sync::<LocalInvalidate>();
    send_sync::<SendWithInvalidate<'_, '_>>();
    send_sync::<ConnectAttributes>();
    send_sync::<DataOrder>();
    send_sync::<EndpointGid>();
    send_sync::<GidChoice>();
    send_sync::<GidNetwork>();
    send_sync::<GidRule>();
    send_sync::<ParseGidNetworkError>();
    send_sync::<GlobalRoute>();
    send_sync::<PollSlot>();
    send_sync::<PolledCompletions<'_>>();
    send_sync::<QueuePairAttributes>();
    send_sync::<QueuePairCapabilities>();
    send_sync::<Inline>();
    send_sync::<QueuePairEndpoint>();
    send_sync::<QueuePairModification>();
    send_sync::<PostErrorKind>();
    send_sync::<QueuedReceive<'_, '_>>();
    send_sync::<QueuedRequest<'_, '_>>();
    send_sync::<ReadWorkRequest<'_, '_>>();
    send_sync::<ReceiveWorkRequest<'_, '_>>();
    send_sync::<SendWorkRequest<'_, '_>>();
    send_sync::<SharedReceiveQueueAttributes>();
    send_sync::<WriteWorkRequest<'_, '_>>();
    send_sync::<WorkCompletion>();
    send_sync::<WorkErrorClass>();
    send_sync::<WorkErrorCode>();
    send_sync::<WorkSuccess>();
    copy::<QueuePairEndpoint>();
    copy::<WorkCompletion>();
    copy::<AddressVector>();
}

#[test]
fn errors_are_errors_of_any_thread() {
    error::<EndpointError>();
    error::<Error>();
    error::<HandshakeError>();
    error::<PollError>();
    error::<PostError>();
    error::<WorkError>();
}
