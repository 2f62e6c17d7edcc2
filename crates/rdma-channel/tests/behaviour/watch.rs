//! Channels that watch a stream to their peer: they detect its end, and ignore everything else.

mod endings;
mod processes;
mod rendezvous;
mod streams;

use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::common::{everything, open};
use rdma_channel::{Channel, CloseReason, Operation, TransportError, Wait, prelude::*};
use rdma_mem::{Context, OwnedRegion, ProtectionDomain, SharedRegion};
use rdma_qp::ReceiveWorkRequest;

const MODES: [Wait; 3] = [Wait::Spin, Wait::SpinThenSleep, Wait::Sleep];
/// No machine of the tests is silent for this long.
const LIMIT: Duration = Duration::from_secs(100);
/// A time after which another thread is most likely asleep.
const SHORTLY: Duration = Duration::from_millis(15);
const ROOM: ReceiveWorkRequest<'static, 'static> = ReceiveWorkRequest::only_immediate();

/// A channel that watches a stream to the other one, without any time limits.
struct Watched {
    here: Channel,
    there: Channel,
    /// The other end of the stream.
    end: End,
    pd: ProtectionDomain,
    /// Memory of the other channel.
    board: SharedRegion,
}

/// A stream of either kind.
enum End {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl End {
    fn shutdown(&self, how: Shutdown) {
        match self {
            Self::Tcp(stream) => stream.shutdown(how),
            Self::Unix(stream) => stream.shutdown(how),
        }
        .unwrap();
    }

    fn try_clone(&self) -> Self {
        match self {
            Self::Tcp(stream) => Self::Tcp(stream.try_clone().unwrap()),
            Self::Unix(stream) => Self::Unix(stream.try_clone().unwrap()),
        }
    }
}

impl From<End> for OwnedFd {
    fn from(end: End) -> Self {
        match end {
            End::Tcp(stream) => stream.into(),
            End::Unix(stream) => stream.into(),
        }
    }
}

fn tcp() -> [End; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [End::Tcp(one), End::Tcp(listener.accept().unwrap().0)]
}

fn unix() -> [End; 2] {
    let (one, other) = UnixStream::pair().unwrap();
    [End::Unix(one), End::Unix(other)]
}

impl Watched {
    fn new(device: &str, wait: Wait, ends: [End; 2]) -> Self {
        Self::on(&open(device), &open(device), wait, ends)
    }

    fn on(context: &Context, other: &Context, wait: Wait, [own, end]: [End; 2]) -> Self {
        let (pd, far) = (context.allocate_pd().unwrap(), other.allocate_pd().unwrap());
        let never = Duration::MAX;
        let builder = pd.create_channel().wait(wait).access(everything(&pd));
        let builder = builder.read_timeout(never).send_timeout(LIMIT).drain_timeout(never);
        let here = builder.max_send_wr(2).watch_stream(own, LIMIT).build().unwrap();
        let there = far.create_channel().access(everything(&far)).build().unwrap();
        let (here_end, there_end) = (here.endpoint(), there.endpoint());
        let (here, there) =
            (here.handshake(there_end).unwrap(), there.handshake(here_end).unwrap());
        let board = far.allocate_shared_region(64, everything(&far)).unwrap();
        Self { here, there, end, pd, board }
    }

    fn memory(&self) -> OwnedRegion {
        self.pd.allocate_region(64).unwrap()
    }
}

/// Runs a test for each kind of stream, in each mode.
fn each(test: impl Fn(Wait, [End; 2])) {
    for wait in MODES {
        test(wait, tcp());
        test(wait, unix());
    }
}

/// Closes this end from another thread, after a short time.
fn ends_shortly(end: End) -> JoinHandle<()> {
    thread::spawn(move || {
        thread::sleep(SHORTLY);
        drop(end);
    })
}

/// Checks that the error names this operation and the peer, and that the channel is closed. No farewell was sent on the
/// stream.
#[track_caller]
fn assert_gone(error: &TransportError, which: Operation, channel: &Channel) {
    assert_gone_by(error, which, CloseReason::Died, channel);
}

#[track_caller]
fn assert_gone_by(error: &TransportError, which: Operation, how: CloseReason, channel: &Channel) {
    let TransportError::PeerGone { operation, reason, peer, .. } = *error else {
        panic!("{error}")
    };
    assert_eq!((operation, reason), (which, how));
    assert_eq!(peer.map(|peer| peer.qpn), channel.peer().map(|peer| peer.peer_qpn));
    assert!(peer.is_some());
    assert_eq!(channel.closed(), Some(how));
}
