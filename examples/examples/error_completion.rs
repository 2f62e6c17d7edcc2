//! A failed request has one completion, just like a successful one. A loop that mistakes the error
//! for "not yet" never ends, because no other completion follows.
//!
//! This program writes records into a peer's memory. A fault of its software device `failing0` makes
//! some of the requests fail, and the requests after a failed one are flushed. Each request completes
//! exactly once, so the loop ends, too. The program then writes the missing records over another
//! connection. Both ends are in one process.

use std::process::ExitCode;

use clap::Parser;
use rdma::prelude::*;
use rdma::qp::WorkErrorClass;
use rdma::soft::Builder;
use rdma_examples_common::{Failure, program};

/// Writes records over connections that soon fail
#[derive(Debug, Parser)]
struct Arguments {
    #[arg(long, default_value_t = 7, help = "Selects the requests that fail")]
    seed: u64,
    #[arg(long, default_value_t = 200, help = "The number of records")]
    records: u32,
}

const FAULTS: &str = "fail=5%:RNR_RETRY_EXC";
const WRITE: AccessFlags = AccessFlags::new().with_local_write().with_remote_write();
/// The number of bytes of a record, which contains its number.
const RECORD: usize = 4;
/// The number of requests in flight.
const BATCH: u32 = 16;

/// The results of requests.
#[derive(Debug, Default)]
struct Results {
    written: u32,
    failed: u32,
    flushed: u32,
}

fn main() -> ExitCode {
    program(run)
}

fn run(arguments: &Arguments) -> Result<String, Failure> {
    let faults = format!("seed={};{FAULTS}", arguments.seed);
    Builder::new("failing0").faults(faults.parse()?).install()?;
    let own = open_device("failing0")?.allocate_pd()?;
    let peer = open_device("soft0")?.allocate_pd()?;
    let memory = peer.allocate_shared_region(arguments.records as usize * RECORD, WRITE)?;

    let mut missing: Vec<u32> = (0..arguments.records).collect();
    let (mut results, mut connections) = (Results::default(), 0);
    while !missing.is_empty() {
        let here = own.create_channel().max_send_wr(BATCH).build()?;
        let there = peer.create_channel().access(WRITE).build()?;
        let (at_here, at_there) = (here.endpoint(), there.endpoint());
        let (mut here, _there) = (here.handshake(at_there)?, there.handshake(at_here)?);
        connections += 1;
        while here.closed().is_none() && !missing.is_empty() {
            let batch: Vec<u32> = missing.drain(..missing.len().min(BATCH as usize)).collect();
            let failed = write(&mut here, &batch, memory.remote(), &mut results)?;
            missing.splice(..0, failed);
        }
    }
    for number in 0..arguments.records {
        let mut record = [0; RECORD];
        memory.read(number as usize * RECORD, &mut record)?;
        if u32::from_ne_bytes(record) != number {
            return Err(format!("record {number} is missing").into());
        }
    }
    let Results { written, failed, flushed } = results;
    Ok(format!(
        "{written} records: {failed} requests failed, {flushed} were flushed, {connections} connections"
    ))
}

/// Writes these records. Returns those that were not written.
fn write(
    channel: &mut Channel,
    batch: &[u32],
    memory: RemoteMemoryRegion,
    results: &mut Results,
) -> Result<Vec<u32>, Failure> {
    let mut missing = Vec::new();
    channel.manual_scope(|scope| {
        let mut in_flight = Vec::new();
        for &number in batch {
            let place = number as usize * RECORD;
            let place = memory.slice(place..place + RECORD).ok_or("the memory is too short")?;
            in_flight.push((number, scope.write_inline(&number.to_ne_bytes(), place)?));
        }
        while !in_flight.is_empty() {
            in_flight.retain(|(number, request)| match request.poll() {
                // Only this means "not yet".
                None => true,
                Some(Ok(_)) => {
                    results.written += 1;
                    false
                }
                // The request is over. Polling again would return the same error.
                Some(Err(error)) => {
                    missing.push(*number);
                    results.count(&error);
                    false
                }
            });
        }
        Ok::<_, Failure>(())
    })?;
    Ok(missing)
}

impl Results {
    fn count(&mut self, error: &TransportError) {
        match error {
            TransportError::WorkError(work) if work.class() == WorkErrorClass::Flushed => {
                self.flushed += 1;
            }
            _ => self.failed += 1,
        }
    }
}
