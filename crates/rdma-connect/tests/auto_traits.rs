//! The types that may move to other threads, and be used from them.

use std::io;

use rdma_connect::messaging::{
    Body, Content, End, Lent, Mailbox, MessageError, Options, Start, StreamState, Ticket,
};
use rdma_connect::{
    Candidate, Client, ClientStream, Clients, CloseReason, ConnectError, ConnectionCounters, Dial,
    FailedWork, Farewell, Greeting, Hello, KeepAlive, LeaseEnd, NoEnd, Operation, OperationError,
    PeerAddress, PeerId, RefusedWork, Rejected, Reported, TransportError, Until, WorkId,
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
    error::<MessageError>();
    error::<TransportError>();
    #[cfg(feature = "serde")]
    error::<rdma_connect::ValueError>();
    send_sync::<CloseReason>();
    send_sync::<ConnectionCounters>();
    send_sync::<LeaseEnd>();
    send_sync::<NoEnd>();
    send_sync::<Operation>();
    send_sync::<PeerAddress>();
    send_sync::<PeerId>();
    send_sync::<Reported>();
    send_sync::<WorkId>();
}

#[test]
fn the_state_of_messages_goes_to_any_thread() {
    send_sync::<Body>();
    send_sync::<Content<'_>>();
    send_sync::<End>();
    send_sync::<Lent>();
    send_sync::<Mailbox>();
    send_sync::<Options>();
    send_sync::<Start>();
    send_sync::<StreamState>();
    send_sync::<Ticket>();
}

struct Stream;

impl ClientStream for Stream {
    fn receive(&self, _: &mut [u8]) -> io::Result<usize> {
        Ok(0)
    }

    fn peek(&self) -> io::Result<usize> {
        Ok(0)
    }

    fn send(&self, _: &[u8]) -> io::Result<usize> {
        Ok(0)
    }

    fn end_sending(&self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn both_parts_of_the_conversation_go_to_any_thread() {
    send_sync::<Candidate<Stream, ()>>();
    send_sync::<Client>();
    send_sync::<Clients<Stream, ()>>();
    send_sync::<Dial>();
    send_sync::<Farewell>();
    send_sync::<Greeting>();
    send_sync::<Hello<Stream, ()>>();
    send_sync::<KeepAlive>();
    send_sync::<Until>();
}
