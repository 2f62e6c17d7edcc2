//! The other end of perftest's `ib_send_lat`, `ib_write_bw` and their kin, for both of their roles.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use rdma::device::{Mtu, open_device};
use rdma::qp::QueuePairType;
use rdma_examples::perftest::{self, Program, Settings};
use rdma_examples_common::out_of_band::Peer;
use rdma_examples_common::{Failure, mtu, program};

/// Measures with a program of perftest, `ib_send_lat -d DEVICE -x INDEX` and so on, which has to be given
/// the same size, iterations and service, and one queue pair. Perftest 5.96 to 6.10, such as
/// that of Debian 12.
///
///   perftest send-lat --device rxe0 --connect 192.0.2.7:18515     where ib_send_lat waits
///   perftest send-lat --device rxe0 --listen 0.0.0.0:18515        for ib_send_lat 192.0.2.6
#[derive(Debug, Parser)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    #[arg(help = "The program of perftest")]
    program: Program,
    #[arg(long, value_name = "NAME", default_value = "soft0", help = "The RDMA device")]
    device: String,
    #[arg(long, value_name = "INDEX", help = "The GID to use [default: the best one]")]
    gid_index: Option<u8>,
    #[arg(long, default_value = "rc", value_parser = service, help = "rc, uc or ud, as `-c`")]
    service: QueuePairType,
    #[arg(
        long,
        value_name = "BYTES",
        help = "The length of a message [default: that of perftest]"
    )]
    size: Option<usize>,
    #[arg(long, value_name = "N", help = "How many [default: that of perftest]")]
    iterations: Option<u32>,
    #[arg(long, value_parser = mtu, help = "The largest path MTU, in bytes [default: the port's]")]
    mtu: Option<Mtu>,
    #[command(flatten)]
    peer: Peer,
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 30,
        help = "For each thing that the other process has to say, a server also for all that its client does"
    )]
    wait: u64,
}

fn service(text: &str) -> Result<QueuePairType, &'static str> {
    match text {
        "rc" => Ok(QueuePairType::RC),
        "uc" => Ok(QueuePairType::UC),
        "ud" => Ok(QueuePairType::UD),
        _ => Err("rc, uc or ud"),
    }
}

fn main() -> ExitCode {
    program(run)
}

pub(crate) fn run(arguments: &Arguments) -> Result<String, Failure> {
    let Arguments { program, device, gid_index, service, size, iterations, mtu, peer, wait } =
        arguments;
    let wait = Duration::from_secs(*wait);
    let settings = Settings {
        program: *program,
        device: device.clone(),
        gid_index: *gid_index,
        service: *service,
        size: *size,
        iterations: *iterations,
        mtu: *mtu,
        wait,
    };
    // Before anybody waits for this process.
    settings.check()?;
    let _context = open_device(device)?;
    let other = peer.meet(wait)?;
    let other = other.ok_or("where is perftest's program? Give `--listen` or `--connect`")?;
    perftest::run(&settings, other)
}
