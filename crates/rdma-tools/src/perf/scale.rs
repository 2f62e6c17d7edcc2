//! References to compare RDMA with: copies in memory, and TCP between the same ends.

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use rdma::memory::RegionMemory;

use crate::perf::ends::{Plan, Role, zeros};
use crate::perf::samples::Samples;
use crate::perf::watch::{Watch, lost};

/// The byte that the server sends to confirm that a stream has arrived.
const DONE: [u8; 1] = [1];

/// Copies between two buffers in this process.
///
/// # Errors
/// Returns an error if the user interrupts.
pub(crate) fn memcpy(plan: &Plan, watch: &Watch, samples: &mut Samples) -> anyhow::Result<()> {
    // The buffers are aligned like registered memory, because some processors copy much more slowly
    // between different page offsets.
    let (from, mut to) = (RegionMemory::allocate(plan.bytes)?, RegionMemory::allocate(plan.bytes)?);
    let is_stream = plan.role == Role::Stream;
    let begin = Instant::now();
    samples.start();
    for _ in 0..plan.iterations {
        black_box(&mut *to).copy_from_slice(black_box(&*from));
        if !is_stream {
            samples.request();
        }
        watch.interruption()?;
    }
    if is_stream {
        samples.stream(plan.iterations, begin.elapsed());
    }
    Ok(())
}

/// Sends messages to the server. The server returns each message or, for a stream, confirms all of
/// them at the end.
///
/// # Errors
/// Returns an error if the connection fails or the user interrupts.
pub(crate) fn tcp_client(
    mut stream: &TcpStream,
    plan: &Plan,
    watch: &Watch,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let mut message = zeros(plan.bytes)?;
    let is_stream = plan.role == Role::Stream;
    let begin = Instant::now();
    samples.start();
    for _ in 0..plan.iterations {
        watch.interruption()?;
        stream.write_all(&message).map_err(lost)?;
        if is_stream {
            continue;
        }
        stream.read_exact(&mut message).map_err(lost)?;
        match plan.role {
            Role::PingPong => samples.round_trip(),
            _ => samples.request(),
        }
    }
    if is_stream {
        stream.read_exact(&mut [0; DONE.len()]).map_err(lost)?;
        samples.stream(plan.iterations, begin.elapsed());
    }
    Ok(())
}

/// Runs the server's part of [`tcp_client`].
///
/// # Errors
/// Returns an error if the connection fails.
pub(crate) fn tcp_server(mut stream: &TcpStream, plan: &Plan) -> anyhow::Result<()> {
    let mut message = zeros(plan.bytes)?;
    for _ in 0..plan.iterations {
        stream.read_exact(&mut message).map_err(lost)?;
        if plan.role != Role::Stream {
            stream.write_all(&message).map_err(lost)?;
        }
    }
    if plan.role == Role::Stream {
        stream.write_all(&DONE).map_err(lost)?;
    }
    Ok(())
}
