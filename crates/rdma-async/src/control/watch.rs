//! The stream of a connection, which tells when the peer is gone.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rdma_channel::CloseReason;
use rdma_channel::parts::notice_silence;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use crate::ledger::place::Rooms;
use crate::link::Inner;

/// Keeps this end of the stream, which is closed when it is dropped.
#[derive(Debug)]
pub(crate) struct Watch(AbortHandle);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Keeps the stream with the connection, and ends the connection when the peer has closed its end, or its machine has been
/// silent for so long.
///
/// # Errors
/// If the runtime cannot wait for the stream.
pub(super) fn watch(inner: &Arc<Inner>, stream: OwnedFd, silence: Duration) -> io::Result<()> {
    notice_silence(&stream, silence);
    let stream = std::net::TcpStream::from(stream);
    stream.set_nonblocking(true)?;
    let stream = TcpStream::from_std(stream)?;
    let guard = Guard { connection: Arc::downgrade(inner), reason: CloseReason::Destroyed };
    let task = tokio::spawn(until_gone(stream, guard, Arc::clone(&inner.rooms)));
    inner.keep(Watch(task.abort_handle()));
    Ok(())
}

/// Ends the connection when the task ends, however it does: nobody would notice a peer that goes.
struct Guard {
    connection: Weak<Inner>,
    reason: CloseReason,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(inner) = self.connection.upgrade() else { return };
        if inner.pd.context().check_process().is_ok()
            && let Err(error) = inner.ledger.close(inner.place, self.reason)
        {
            tracing::error!(%error, "a queue pair whose control connection has ended could not be destroyed");
        }
    }
}

async fn until_gone(stream: TcpStream, mut guard: Guard, rooms: Arc<Rooms>) {
    loop {
        let readable = tokio::select! {
            readable = stream.readable() => readable,
            // This end has closed it, or has failed: the peer is told by the end of the stream.
            () = rooms.closed() => return,
        };
        if readable.is_err() {
            // The runtime ends.
            return;
        }
        // What the peer says changes nothing, only that it goes. Much of it keeps nobody from running.
        match stream.try_read(&mut [0; 512]) {
            Ok(0) => break,
            Ok(_) => tokio::task::yield_now().await,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    tracing::debug!("a peer is gone");
    guard.reason = CloseReason::Gone;
}
