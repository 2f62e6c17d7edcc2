//! Types that may move to other threads, or be used from several.

use rdma_channel::message::{
    Chunk, Message, MessageError, Messages, MessagesListener, Options, ReadHalf, Stream,
    StreamListener, WriteHalf, Writing,
};
use rdma_channel::{
    Armed, BatchRequest, Buffer, Channel, ChannelBuilder, ChannelListener, CloseReason,
    ConnectError, ExchangeError, FailedWork, Finished, InFlight, Incoming, Late, LeaseEnd,
    LeftReason, MultiChannel, MultiChannelBuilder, Operation, OperationError, PeerAddress,
    PeerAtomicWorkRequest, PeerId, PeerReadWorkRequest, PeerReceiveWorkRequest,
    PeerRemoteMemoryRegion, PeerSendWorkRequest, PeerWriteWorkRequest, PendingWord, PendingWork,
    Pipes, Prefix, PreparedChannel, PreparedMultiChannel, PreparedPeer, Progress, ReceiveRing,
    Refused, RefusedWork, Rejected, Rendezvous, RendezvousBuilder, RingMessage, Scope, ScopeError,
    ScopedPeer, ScopedPendingWork, Server, ServerBuilder, ServerError, ServerEvent, ToPeer,
    TransportError, Wait, Waitable, Waker, Within, WithoutPd, WorkId,
};

fn send<T: Send>() {}
fn send_sync<T: Send + Sync>() {}
fn error<T: std::error::Error + Send + Sync + 'static>() {}

/// Compiles only if the type is not `Send`, like the second trait for `Sync`: otherwise two impls apply.
trait NotSend<A> {
    fn holds() {}
}
impl<T: ?Sized> NotSend<()> for T {}
impl<T: ?Sized + Send> NotSend<u8> for T {}

trait NotSync<A> {
    fn holds() {}
}
impl<T: ?Sized> NotSync<()> for T {}
impl<T: ?Sized + Sync> NotSync<u8> for T {}

/// Compiles only if the type is not `Clone`.
trait NotClone<A> {
    fn holds() {}
}
impl<T: ?Sized> NotClone<()> for T {}
impl<T: Clone> NotClone<u8> for T {}

/// A request has one handle, which reports its result once.
#[test]
fn handles_are_not_copied() {
    <PendingWork<'_> as NotClone<_>>::holds();
    <ScopedPendingWork<'_> as NotClone<_>>::holds();
    <PendingWord<'_> as NotClone<_>>::holds();
    <InFlight<'_, ()> as NotClone<_>>::holds();
}

#[test]
fn a_channel_is_used_by_one_thread_at_a_time() {
    send::<Channel>();
    <Channel as NotSync<_>>::holds();
    send_sync::<PreparedChannel>();
    send_sync::<ChannelBuilder<'_>>();
    send_sync::<WithoutPd<Channel>>();
    send::<Within<'_>>();
    <Within<'_> as NotSync<_>>::holds();
    send_sync::<RendezvousBuilder<'_>>();
    send_sync::<Rendezvous>();
    send::<MultiChannel>();
    <MultiChannel as NotSync<_>>::holds();
    send_sync::<PreparedMultiChannel>();
    send_sync::<PreparedPeer>();
    send_sync::<MultiChannelBuilder<'_>>();
    send_sync::<Waitable<'_>>();
}

#[test]
fn messages_and_streams_are_shared_by_threads() {
    send_sync::<Messages>();
    send_sync::<Message>();
    send_sync::<Stream>();
    send_sync::<ReadHalf>();
    send_sync::<WriteHalf>();
    send_sync::<Chunk>();
    send_sync::<Options>();
    error::<MessageError>();
    send::<MessagesListener>();
    send::<StreamListener>();
    send_sync::<Writing<'_>>();
}

/// Its buffers may move to any thread.
#[test]
fn a_server_is_kept_and_moved_and_used_by_one_thread_at_a_time() {
    fn send_static<T: Send + 'static>() {}
    send_static::<Server>();
    <Server as NotSync<_>>::holds();
    send_sync::<ServerBuilder<'_>>();
    send_sync::<Waker>();
    send_sync::<PeerId>();
    send_sync::<ServerEvent>();
    error::<ServerError>();
    error::<LeftReason>();
    error::<Rejected<Buffer>>();
}

/// It holds channels that its program has not received yet.
#[test]
fn a_listener_is_kept_and_moved_and_used_by_one_thread_at_a_time() {
    fn send_static<T: Send + 'static>() {}
    send_static::<ChannelListener>();
    <ChannelListener as NotSync<_>>::holds();
    send::<Incoming<'_>>();
    <Incoming<'_> as NotSync<_>>::holds();
}

#[test]
fn a_scope_and_its_handles_stay_on_their_thread() {
    <Scope<'_, '_> as NotSend<_>>::holds();
    <Scope<'_, '_> as NotSync<_>>::holds();
    <Scope<'_, '_, MultiChannel> as NotSend<_>>::holds();
    <Scope<'_, '_, MultiChannel> as NotSync<_>>::holds();
    <ScopedPeer<'_> as NotSend<_>>::holds();
    <ScopedPeer<'_> as NotSync<_>>::holds();
    <PendingWork<'_> as NotSend<_>>::holds();
    <PendingWork<'_> as NotSync<_>>::holds();
    <ScopedPendingWork<'_> as NotSend<_>>::holds();
    <PendingWord<'_> as NotSend<_>>::holds();
    <PendingWord<'_> as NotSync<_>>::holds();
    <InFlight<'_, ()> as NotSend<_>>::holds();
    <InFlight<'_, ()> as NotSync<_>>::holds();
    <ReceiveRing<'_> as NotSend<_>>::holds();
    <ReceiveRing<'_> as NotSync<_>>::holds();
    <RingMessage<'_, '_> as NotSend<_>>::holds();
    <RingMessage<'_, '_> as NotSync<_>>::holds();
    <Progress<'_, ()> as NotSend<_>>::holds();
    <Late<'_, ()> as NotSend<_>>::holds();
}

#[test]
fn results_are_values() {
    send_sync::<Prefix<'_>>();
    send_sync::<Finished<()>>();
    send_sync::<Refused<()>>();
    send_sync::<BatchRequest<'_, '_>>();
    send_sync::<ToPeer<()>>();
    send_sync::<PeerSendWorkRequest<'_, '_>>();
    send_sync::<PeerReceiveWorkRequest<'_, '_>>();
    send_sync::<PeerWriteWorkRequest<'_, '_>>();
    send_sync::<PeerReadWorkRequest<'_, '_>>();
    send_sync::<PeerAtomicWorkRequest<'_, '_>>();
    send_sync::<PeerRemoteMemoryRegion>();
    send_sync::<CloseReason>();
    send_sync::<LeaseEnd>();
    send_sync::<PeerAddress>();
    error::<FailedWork>();
    error::<RefusedWork>();
    send_sync::<Operation>();
    send_sync::<Wait>();
    send_sync::<Armed>();
    send_sync::<WorkId>();
    error::<TransportError>();
    error::<OperationError>();
    error::<Rejected<()>>();
    error::<ScopeError>();
    error::<ExchangeError>();
    error::<ConnectError>();
    send_sync::<Pipes<std::fs::File, std::fs::File>>();
}
