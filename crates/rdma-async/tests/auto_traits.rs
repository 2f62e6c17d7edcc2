//! Types that can be sent to, and used from, other threads.

use std::time::Duration;

use rdma_async::message::{
    self, Chunk, Message, MessageError, Messages, MessagesListener, ReadHalf, Stream,
    StreamListener, WriteHalf,
};
use rdma_async::{
    Atomic, BufferSlice, ConnectError, Connection, ConnectionCounters, ConnectionOptions,
    Descriptor, Driver, EndedLease, Endpoint, Events, Failed, Incoming, Lease, LeaseDenial,
    LeaseEnd, LeaseError, LeaseLimits, LendError, Listener, ManualDriver, Op, Pool, PoolError,
    Post, Posted, PreparedConnection, Read, Receive, ReceiveImmediate, ReceiveRing, Received,
    ReconnectPolicy, Region, RemoteRegion, ReserveError, Reserved, ReservedEnd, RingMessage, Run,
    SendOut, SharedBuffer, Write,
};
use rdma_mem::Buffer;

fn shared<T: Send + Sync + 'static>() {}
fn moved<T: Send>() {}
fn moves<T: Send>(_: T) {}
fn unpinned<T: Unpin>() {}
fn error<T: std::error::Error + Send + Sync + 'static>() {}

#[test]
fn shared_types_are_send_and_sync() {
    #[cfg(feature = "cm")]
    shared::<rdma_async::CmListener>();
    #[cfg(feature = "cm")]
    shared::<rdma_async::CmIncoming>();
    shared::<Connection>();
    shared::<Driver>();
    shared::<Endpoint>();
    shared::<Events>();
    shared::<ManualDriver>();
    shared::<PreparedConnection>();
    shared::<ConnectionCounters>();
    shared::<ConnectionOptions>();
    shared::<ReconnectPolicy>();
    shared::<Listener>();
    shared::<Incoming>();
    shared::<BufferSlice>();
    shared::<SharedBuffer>();
    shared::<Received<Buffer>>();
    shared::<Descriptor>();
    shared::<Pool>();
    shared::<Region>();
    shared::<Reserved<u8>>();
    shared::<ReservedEnd>();
    shared::<LeaseLimits>();
    shared::<Lease>();
    shared::<EndedLease>();
    shared::<LeaseEnd>();
    shared::<RemoteRegion>();
    shared::<Stream>();
    shared::<StreamListener>();
    shared::<ReadHalf>();
    shared::<WriteHalf>();
    shared::<Chunk>();
    shared::<message::Options>();
    shared::<Messages>();
    shared::<MessagesListener>();
    shared::<Message>();
    error::<MessageError>();
    let _ = |messages: &'static Messages, message: Message| {
        moves(messages.send(b""));
        moves(messages.call(b""));
        moves(messages.receive());
        moves(messages.finish());
        moves(message.reply(b""));
    };
    error::<ConnectError>();
    error::<Failed<Buffer>>();
    error::<Failed<SharedBuffer>>();
    error::<PoolError>();
    error::<ReserveError>();
    error::<LeaseError>();
    error::<LendError>();
    error::<LeaseDenial>();
    #[cfg(feature = "serde")]
    error::<rdma_async::ValueError>();
}

#[test]
fn operations_are_send() {
    moved::<Op<'_, Read<Buffer>>>();
    moved::<Post<'_, Write<SharedBuffer>>>();
    moved::<Run<'_, SendOut<BufferSlice>>>();
    moved::<Posted<'_, Receive<BufferSlice>>>();
    moved::<Posted<'_, Atomic>>();
    moved::<ReceiveRing<'_>>();
    moved::<RingMessage<'_, '_, BufferSlice>>();
    moved::<Posted<'_, ReceiveImmediate>>();
    unpinned::<Posted<'_, Read<Buffer>>>();
    let _ = |op: Op<'static, Read<Buffer>>, posted: Posted<'static, Atomic>| {
        moves(op.busy_poll(Duration::ZERO));
        moves(posted.busy_poll(Duration::ZERO));
    };
    unpinned::<Lease>();
}
