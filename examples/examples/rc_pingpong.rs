//! Acts as the other end of `ibv_rc_pingpong` and `ibv_uc_pingpong`, tools of rdma-core, as either
//! their server or their client.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use rdma::device::Mtu;
use rdma::prelude::*;
use rdma::qp::{CompletionQueue, PreparedQueuePair, QueuePairType};
use rdma_examples::rc_pingpong_line::Line;
use rdma_examples_common::end::End;
use rdma_examples_common::out_of_band::Peer;
use rdma_examples_common::reach::check_reach;
use rdma_examples_common::{Failure, mtu, print, program};

/// Sends messages back and forth with `ibv_rc_pingpong -d DEVICE -g INDEX`, which must get the
/// same size, iterations and MTU. The number of receives that it posts (`-r`) does not matter.
///
///   rc_pingpong --device rxe0 --connect 192.0.2.7:18515     if ibv_rc_pingpong listens
///   rc_pingpong --device rxe0 --listen 0.0.0.0:18515        for ibv_rc_pingpong 192.0.2.6
#[derive(Debug, Parser)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    #[arg(long, value_name = "NAME", default_value = "soft0", help = "The RDMA device")]
    device: String,
    #[arg(long, value_name = "INDEX", help = "The GID to use [default: the best one]")]
    gid_index: Option<u8>,
    #[arg(long, default_value = "rc", value_parser = service, help = "rc, or uc for ibv_uc_pingpong")]
    service: QueuePairType,
    #[arg(long, default_value_t = 4096, help = "How long the message is, in bytes")]
    size: usize,
    #[arg(long, default_value_t = 1000, help = "How many round trips")]
    iterations: u32,
    #[arg(long, default_value = "1024", value_parser = mtu, help = "The path MTU, in bytes")]
    mtu: Mtu,
    #[command(flatten)]
    peer: Peer,
    #[arg(long, value_name = "SECONDS", default_value_t = 30, help = "For the other process")]
    wait: u64,
}

fn service(text: &str) -> Result<QueuePairType, &'static str> {
    match text {
        "rc" => Ok(QueuePairType::RC),
        "uc" => Ok(QueuePairType::UC),
        _ => Err("rc or uc"),
    }
}

fn main() -> ExitCode {
    program(run)
}

pub(crate) fn run(arguments: &Arguments) -> Result<String, Failure> {
    let Arguments { device, size, iterations: n, peer, wait, .. } = arguments;
    let prepared = prepare(arguments)?;
    let own = prepared.endpoint();
    print(&format!("here: {}", Line::of(&own)))?;
    let other = peer.meet(Duration::from_secs(*wait))?;
    let mut other = other.ok_or("where is ibv_rc_pingpong? Give `--listen` or `--connect`")?;
    let mut end = other.exchange(&Line::of(&own).to_bytes(), |bytes| {
        let line = Line::from_bytes(bytes)?;
        print(&format!("there: {line}"))?;
        let peer = line.endpoint(&own)?;
        check_reach(device, &own, &peer)?;
        End::connect(prepared, peer, *size)
    })?;
    // The client first confirms that it has read the server's line, and then sends the first
    // message.
    let begin = Instant::now();
    if other.listens() {
        if other.receive()? != Line::DONE {
            return Err("the peer did not confirm the exchange".into());
        }
        end.answer(*n)?;
    } else {
        other.send(&Line::DONE)?;
        end.ask(*n)?;
    }
    let time = begin.elapsed();
    // `ibv_rc_pingpong` closed its end of the TCP connection long before.
    other.finish(Duration::from_secs(*wait))?;
    let micros = time.as_secs_f64() * 1e6 / f64::from((*n).max(1));
    Ok(format!("{device}: {n} times {size} bytes, {micros:.2} us per round trip"))
}

fn prepare(arguments: &Arguments) -> Result<PreparedQueuePair, Failure> {
    let context = open_device(&arguments.device)?;
    let cq = CompletionQueue::create(&context, 4)?;
    let pd = context.allocate_pd()?;
    let builder = pd.create_qp().qp_type(arguments.service);
    let mut builder = builder.send_cq(&cq).recv_cq(&cq).max_send_wr(2).max_recv_wr(2);
    if let Some(index) = arguments.gid_index {
        builder = builder.gid_index(index);
    }
    Ok(builder.mtu(arguments.mtu).build()?)
}
