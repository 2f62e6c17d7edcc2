//! Acts as the other end of `rdma_server` or `rdma_client`, programs of librdmacm, over a channel.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use rdma::channel::{ChannelBuilder, ScopeError, TransportError};
use rdma::prelude::*;
use rdma::qp::WorkErrorClass;
use rdma_examples_common::{Failure, Role, Side, print, program};

/// Exchanges messages with `rdma_server` or `rdma_client`, which send one of 16 bytes. The client
/// sends all of its messages before the server answers, as in `ucmatose`.
///
///   cm_channel --connect 192.0.2.7:7471    if rdma_server listens
///   cm_channel --listen 0.0.0.0:7471       for rdma_client -s 192.0.2.6
///
/// A server of `ucmatose` needs the options `--count 10 --size 100`.
///
/// The software device must listen at an address of the network (`RDMA_SOFT_LISTEN`), unless both
/// ends are on this host and use it.
#[derive(Debug, Parser)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    #[arg(long, value_name = "NAME", default_value = "soft0", help = "The RDMA device")]
    device: String,
    #[command(flatten)]
    role: Role,
    #[arg(long, default_value_t = 1, help = "How many messages each end sends")]
    count: usize,
    #[arg(long, default_value_t = 16, help = "The size of each message, in bytes")]
    size: usize,
    #[arg(long, value_name = "SECONDS", default_value_t = 30, help = "For each message")]
    wait: u64,
}

fn main() -> ExitCode {
    program(run)
}

pub(crate) fn run(arguments: &Arguments) -> Result<String, Failure> {
    let end = End::new(arguments)?;
    match arguments.role.side() {
        Side::Server(address) => end.serve(address),
        Side::Client(address) => end.ask(address),
    }
}

/// The memory of one end.
struct End {
    pd: ProtectionDomain,
    /// The message that this end sends. It consists of zeros. The C programs do not check the bytes.
    message: OwnedRegion,
    /// The memory of the messages that the peer sends.
    rooms: Vec<OwnedRegion>,
    limit: Duration,
}

impl End {
    fn new(arguments: &Arguments) -> Result<Self, Failure> {
        let pd = open_device(&arguments.device)?.allocate_pd()?;
        let message = pd.allocate_region(arguments.size)?;
        let room = |_| pd.allocate_region(arguments.size);
        let rooms = (0..arguments.count).map(room).collect::<Result<_, _>>()?;
        Ok(Self { message, rooms, pd, limit: Duration::from_secs(arguments.wait) })
    }

    fn builder(&self) -> ChannelBuilder<'_> {
        let count = u32::try_from(self.rooms.len()).unwrap_or(u32::MAX);
        self.pd.create_channel().max_send_wr(count).max_recv_wr(count).receive_timeout(self.limit)
    }

    /// Serves one client, until it disconnects.
    fn serve(mut self, address: &str) -> Result<String, Failure> {
        let mut listener = self.builder().listen_cm(address)?;
        print(&format!("listening on {}", listener.local_addr()))?;
        let mut channel = listener.accept()?;
        for room in &mut self.rooms {
            check(channel.receive_into(&mut *room)?, self.message.len())?;
        }
        for n in 1..=self.rooms.len() {
            match channel.send_from(&self.message) {
                Ok(()) => {}
                // The client disconnects once it has all messages. Its last acknowledgement may be lost.
                Err(error) if n == self.rooms.len() && is_gone(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.see_off(channel)
    }

    /// Connects to a server.
    fn ask(mut self, address: &str) -> Result<String, Failure> {
        let (mut channel, greeting) = self.builder().connect_cm(address)?;
        let (message, limit) = (&self.message, self.limit);
        let answered = channel.scope(|s| {
            let mut receives = Vec::new();
            for room in &mut self.rooms {
                receives.push(s.receive_into(room.as_slice_mut())?);
            }
            for _ in 0..receives.len() {
                drop(s.send_from(message.as_slice())?);
            }
            for receive in receives {
                let (_, received) = receive.done(limit)?;
                check(received.scattered_bytes().unwrap_or(0), message.len())?;
            }
            Ok::<_, Failure>(())
        });
        // The server answers once it has all messages, whose last acknowledgement may be lost.
        if let Err(ScopeError::ClosureError(error)) = answered {
            return Err(error);
        }
        // A server in C disconnects by itself. One with a channel sends no private data, and waits.
        if greeting.is_empty() { Ok(self.done()) } else { self.see_off(channel) }
    }

    /// Keeps the channel until the peer disconnects. Until then, the peer may repeat messages whose
    /// acknowledgements were lost.
    fn see_off(self, mut channel: Channel) -> Result<String, Failure> {
        let mut room = self.pd.allocate_region(self.message.len())?;
        match channel.receive_into(&mut room) {
            Ok(_) => Err("the peer sent another message".into()),
            Err(_) => Ok(self.done()),
        }
    }

    fn done(&self) -> String {
        format!("{} messages of {} bytes from each end", self.rooms.len(), self.message.len())
    }
}

/// Checks the length of a message of the peer.
fn check(length: usize, size: usize) -> Result<(), Failure> {
    if length == size {
        return Ok(());
    }
    Err(format!("the peer's messages have {length} bytes").into())
}

/// Returns true if the peer has left without acknowledging a message.
fn is_gone(error: &TransportError) -> bool {
    match error {
        TransportError::PeerGone { .. } => true,
        TransportError::WorkError(failed) => failed.error.class() == WorkErrorClass::Timeout,
        _ => false,
    }
}
