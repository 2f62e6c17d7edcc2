//! Sends datagrams back and forth. The server does not know its clients in advance.
#![allow(unsafe_code)]

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use rdma::prelude::*;
use rdma::qp::{
    AddressHandle, CompletionQueue, GlobalRouteHeader, PollSlot, PreparedQueuePair, Qpn, QueuePair,
    QueuePairType, WorkCompletion,
};
use rdma_examples_common::out_of_band::{OutOfBand, Peer};
use rdma_examples_common::reach::check_reach;
use rdma_examples_common::{Failure, program};

/// A client sends numbers to a server as datagrams, and gets each one back, plus one. The ends are
/// two threads, or two processes with the same iterations. In that case, the server listens, and
/// the client connects.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    #[arg(long, value_name = "NAME", default_value = "soft0", help = "The RDMA device")]
    device: String,
    #[arg(long, default_value_t = 1000, help = "The number of round trips")]
    iterations: u64,
    #[command(flatten)]
    peer: Peer,
    #[arg(long, value_name = "SECONDS", default_value_t = 30, help = "For the other process")]
    wait: u64,
}

/// The Q_Key. Both ends must know it, because a completion does not report it.
const QKEY: u32 = 0x0dad_ab1e;
/// The bytes of a received datagram that contain the number. They follow the header.
const NUMBER: std::ops::Range<usize> = GlobalRouteHeader::BYTES..GlobalRouteHeader::BYTES + 8;

fn main() -> ExitCode {
    program(run)
}

pub(crate) fn run(arguments: &Arguments) -> Result<String, Failure> {
    let Arguments { device, iterations, .. } = arguments;
    let context = open_device(device)?;
    match arguments.peer.meet(Duration::from_secs(arguments.wait))? {
        Some(other) => with_process(arguments, &context, other),
        None => {
            let number = with_thread(*iterations, &context)?;
            Ok(format!("{device}: {iterations} round trips, which makes {number}"))
        }
    }
}

/// Runs both ends in this process. Returns the last number that the client gets back.
fn with_thread(iterations: u64, context: &Context) -> Result<u64, Failure> {
    let (client, server) = (End::prepare(context)?, End::prepare(context)?);
    let server_end = server.0.endpoint();
    let (client, server) = (End::ready(client)?, End::ready(server)?);
    // The receive is posted first, because a datagram that finds no receive is lost.
    server.receive()?;
    thread::scope(|threads| {
        let serving = threads.spawn(|| server.serve(iterations));
        let number = client.ask(iterations, &server_end)?;
        serving.join().map_err(|_| "the server panicked")??;
        Ok(number)
    })
}

/// Runs one end in this process. The client gets the server's address over a socket. The server
/// does not need the client's.
fn with_process(
    arguments: &Arguments,
    context: &Context,
    other: OutOfBand,
) -> Result<String, Failure> {
    let Arguments { device, iterations: n, wait, .. } = arguments;
    let (prepared, wait) = (End::prepare(context)?, Duration::from_secs(*wait));
    let own = prepared.0.endpoint();
    let peer = exchange(other.stream(), &own, wait)?;
    check_reach(device, &own, &peer)?;
    let end = End::ready(prepared)?;
    let line = if other.listens() {
        end.receive()?; // before the client sends
        confirm(other.stream(), wait)?;
        end.serve(*n)?;
        format!("{device}: answered {n} times")
    } else {
        confirm(other.stream(), wait)?;
        let number = end.ask(*n, &peer)?;
        format!("{device}: {n} round trips, which makes {number}")
    };
    other.finish(wait)?;
    Ok(line)
}

struct End {
    qp: QueuePair,
    board: SharedRegion,
}

impl End {
    fn prepare(context: &Context) -> Result<(PreparedQueuePair, SharedRegion), Failure> {
        let queue = || CompletionQueue::create(context, 64);
        let (sent, received, pd) = (queue()?, queue()?, context.allocate_pd()?);
        let board = pd.allocate_shared_region(64, AccessFlags::new().with_local_write())?;
        let builder = pd.create_qp().qp_type(QueuePairType::UD).qkey(QKEY);
        Ok((builder.send_cq(&sent).recv_cq(&received).build()?, board))
    }

    fn ready((prepared, board): (PreparedQueuePair, SharedRegion)) -> Result<Self, Failure> {
        Ok(Self { qp: prepared.activate()?, board })
    }

    /// Sends a number to the server, and receives it back plus one. Repeats this `iterations`
    /// times.
    fn ask(&self, iterations: u64, server: &QueuePairEndpoint) -> Result<u64, Failure> {
        let handle = self.qp.address_handle(server)?;
        let mut number = 0;
        for _ in 0..iterations {
            self.receive()?;
            self.send(number, &handle, server.qpn())?;
            number = self.arrived()?.1;
        }
        Ok(number)
    }

    fn serve(&self, iterations: u64) -> Result<(), Failure> {
        for _ in 0..iterations {
            let (completion, number) = self.arrived()?;
            let mut header = [0; GlobalRouteHeader::BYTES];
            self.board.read(0, &mut header)?;
            let back = AddressHandle::from_completion(&self.qp, &completion, &header.into())?;
            let sender = self.qp.datagram(&completion).ok_or("no datagram")?;
            self.receive()?;
            self.send(number + 1, &back, sender.qpn)?;
        }
        Ok(())
    }

    fn receive(&self) -> Result<(), Failure> {
        let mut room = [self.board.element(0..NUMBER.end)?.into()];
        // SAFETY: SAFETY.md F8: the board is freed after the queue pair, and is read only when this
        // receive has completed.
        Ok(unsafe { self.qp.post_receive(ReceiveWorkRequest::new(&mut room), 1) }?)
    }

    /// Sends a number from the end of the board, and waits for the completion.
    fn send(&self, number: u64, handle: &AddressHandle, to: Qpn) -> Result<(), Failure> {
        self.board.write(56, &number.to_le_bytes())?;
        let data = [self.board.element(56..64)?.into()];
        let request = SendWorkRequest::new(&data).to(handle, to, QKEY);
        // SAFETY: SAFETY.md F8: as above. The board and the handle do not change until the
        // completion below.
        unsafe { self.qp.post_send(request, 2) }?;
        next(self.qp.send_cq()).map(drop)
    }

    /// Waits for the next datagram. Returns its completion and the number in it.
    fn arrived(&self) -> Result<(WorkCompletion, u64), Failure> {
        let (completion, mut number) = (next(self.qp.recv_cq())?, [0; 8]);
        self.board.read(NUMBER.start, &mut number)?;
        Ok((completion, u64::from_le_bytes(number)))
    }
}

/// Waits for the next completion, which must be successful.
fn next(cq: &CompletionQueue) -> Result<WorkCompletion, Failure> {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(10) {
        if let Some(done) = cq.poll(&mut [PollSlot::default()])?.next() {
            return Ok(done.result().map(|_| done)?);
        }
    }
    Err("a datagram was lost".into())
}
