//! The sockets of a listener and its clients, on which a tokio task waits.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::task::{Context, Poll};

use rdma_connect::{ClientStream, Clients, ConnectError, listen_at_first, stream_addresses};
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use rustix::process::{Resource, getrlimit};
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};

use crate::sync::now;

/// The maximum number of clients to accept in a row before serving clients that have sent something.
const ACCEPTED: usize = 64;

/// The length of the socket's backlog, if the kernel allows it (`net.core.somaxconn`).
const BACKLOG: i32 = 1024;

/// Listens at the first address that works.
pub(super) fn listen(addresses: &[SocketAddr]) -> Result<(TcpListener, SocketAddr), ConnectError> {
    listen_at_first(addresses, |address| {
        let socket = std::net::TcpListener::bind(address)?;
        // The standard library sets a short backlog, which this call increases.
        rustix::net::listen(&socket, BACKLOG)?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        Ok((TcpListener::from_std(socket)?, address))
    })
}

/// Returns the process's limit on open files, or `None` if there is no limit.
pub(super) fn open_files() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Accepts waiting clients while there is room for them. Pending if no client is waiting, or if none can be accepted
/// now.
pub(super) fn poll_accept<E>(
    clients: &mut Clients<ClientSocket, E>,
    socket: &TcpListener,
    cx: &mut Context<'_>,
) -> Poll<()> {
    if !clients.takes(now()) {
        return Poll::Pending;
    }
    for accepted in 0..ACCEPTED {
        let now = now();
        if !clients.has_room(now) {
            break;
        }
        match socket.poll_accept(cx) {
            Poll::Pending if accepted == 0 => return Poll::Pending,
            Poll::Pending => break,
            Poll::Ready(Ok((stream, from))) => {
                // If this fails, the client only waits longer.
                let _ = stream.set_nodelay(true);
                let addresses = stream_addresses(stream.local_addr(), from);
                clients.admit(ClientSocket(stream), (from, addresses), now);
            }
            Poll::Ready(Err(error)) => {
                clients.not_admitted(error, accepted, now);
                break;
            }
        }
    }
    Poll::Ready(())
}

/// The stream of a client that the program has not accepted yet.
#[derive(Debug)]
pub(super) struct ClientSocket(pub(super) TcpStream);

impl ClientSocket {
    /// Returns true if bytes have arrived or the stream has ended. Otherwise the task is woken when that happens.
    pub(super) fn is_ready(&self, cx: &mut Context<'_>) -> bool {
        while self.0.poll_read_ready(cx).is_ready() {
            // tokio keeps the stream marked as ready, even after its bytes have been received, until a call would
            // block.
            match self.0.try_io(Interest::READABLE, || self.peek()) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                _ => return true,
            }
        }
        false
    }
}

/// Each call asks the kernel directly, because tokio's readiness may be out of date.
impl ClientStream for ClientSocket {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(recv(&self.0, buffer, RecvFlags::DONTWAIT)?.0)
    }

    fn peek(&self) -> io::Result<usize> {
        Ok(recv(&self.0, &mut [0], RecvFlags::DONTWAIT | RecvFlags::PEEK)?.0)
    }

    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(&self.0, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
    }

    fn end_sending(&self) -> io::Result<()> {
        Ok(shutdown(&self.0, Shutdown::Write)?)
    }
}
