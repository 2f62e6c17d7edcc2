//! Channels whose ends meet by rdma_cm.

mod connecting;
mod endings;
mod foreign;
mod server;

use std::env;
use std::net::Ipv4Addr;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rdma_channel::{
    Channel, ChannelListener, CloseReason, Operation, RendezvousBuilder, TransportError, Wait,
    prelude::*,
};
use rdma_mem::ProtectionDomain;
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};
use rdma_soft::Builder;
use test_support::program::this_program;

use crate::common::open;

const MODES: [Wait; 3] = [Wait::Spin, Wait::SpinThenSleep, Wait::Sleep];
/// The time limit for something that should happen.
const LATER: Duration = Duration::from_secs(100);
/// A time after which another thread is most likely asleep.
const SHORTLY: Duration = Duration::from_millis(15);
const ROOM: ReceiveWorkRequest<'static, 'static> = ReceiveWorkRequest::only_immediate();
/// Environment variable of a child process: the address of its server.
const ADDRESS: &str = "RDMA_CHANNEL_CM_CHILD";

/// The domains of a client and of a server, and the address at which the server listens.
struct Ends {
    client: ProtectionDomain,
    server: ProtectionDomain,
    address: String,
}

impl Ends {
    /// Both ends use the same device.
    fn local(device: &str) -> Self {
        let context = open(device);
        let [client, server] = [(); 2].map(|()| context.allocate_pd().unwrap());
        Self { client, server, address: "localhost:0".into() }
    }

    /// Two devices, each alone at its address, which exchange packets.
    fn hosts() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let host = || {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let ip = Ipv4Addr::from_bits(0x7f00_0000 | (std::process::id() & 0xffff) << 7 | count);
            let name = format!("cmhost{count}");
            Builder::new(&name).gids([]).listen(ip.to_string()).install().unwrap();
            (open(&name).allocate_pd().unwrap(), ip)
        };
        let ((client, _), (server, ip)) = (host(), host());
        Self { client, server, address: format!("{ip}:0") }
    }

    /// Ends on one host, and ends on different hosts.
    fn both() -> [Self; 2] {
        [Self::local("soft0"), Self::hosts()]
    }

    fn builder(pd: &ProtectionDomain) -> RendezvousBuilder<'_> {
        pd.create_channel().drain_timeout(Duration::MAX).rendezvous_timeout(LATER)
    }

    fn listen(&self) -> ChannelListener {
        Self::builder(&self.server).listen_cm(self.address.as_str()).unwrap()
    }

    /// Connects a channel of each end.
    fn connect(&self, wait: Wait) -> (Channel, Channel) {
        let mut listener = self.listen();
        let address = listener.local_addr();
        thread::scope(|threads| {
            let client = threads
                .spawn(|| Self::builder(&self.client).wait(wait).connect_cm(address).unwrap().0);
            let server = listener.accept().unwrap();
            (client.join().unwrap(), server)
        })
    }
}

/// Runs a test again in a child process, which gets this address.
fn child(test: &str, address: impl ToString) -> Child {
    let mut program = this_program();
    program.args(["--exact", test, "--nocapture"]).stdout(Stdio::null());
    program.env(ADDRESS, address.to_string()).spawn().unwrap()
}

/// In such a child process, connects, sends a message, and waits until the process is killed. Otherwise returns at once.
fn wait_in_child() {
    if let Ok(address) = env::var(ADDRESS) {
        let pd = open("soft0").allocate_pd().unwrap();
        let mut channel = Ends::builder(&pd).connect_cm(address).unwrap().0;
        channel.send(SendWorkRequest::only_immediate(8)).unwrap();
        let never = channel.receive(ROOM);
        panic!("it was not killed: {never:?}");
    }
}

#[track_caller]
fn assert_gone(error: &TransportError, which: Operation, how: CloseReason, channel: &Channel) {
    let TransportError::PeerGone { operation, reason, peer, .. } = *error else {
        panic!("{error}")
    };
    assert_eq!((operation, reason), (which, how));
    assert_eq!(peer.map(|peer| peer.qpn), channel.peer().map(|peer| peer.peer_qpn));
    assert_eq!(channel.closed(), Some(how));
}
