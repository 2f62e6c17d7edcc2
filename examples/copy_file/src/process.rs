//! Copies between two processes. One has the source, and the other one creates the destination.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Instant;

use rdma::device::open_device;
use rdma::qp::QueuePairEndpoint;

use self::frame::{Answer, Kind, Offer};
use self::line::Line;
use super::connect::{prepare_receiver, prepare_sender};
use super::destination::{Destination, Origin};
use super::error::Error;
use super::settings::Settings;
use super::source::SourceFile;
use super::stop::Stop;
use super::summary::Summary;
use super::transfer::Control;
use rdma_examples_common::reach::check_reach;

pub(crate) mod frame;
pub(crate) mod line;

/// Sends a file to another process, which must call [`receive`]. Returns when the file is on the
/// other process's disk.
///
/// The processes exchange endpoints, signs of life and errors through `stream`. So each process
/// notices immediately when the other one ends, and within ten seconds when it is stopped or cannot
/// be reached.
///
/// # Errors
/// Returns any [`Error`], including those of the other process.
pub fn send(
    source: &Path,
    device: &str,
    settings: Settings,
    stream: TcpStream,
    control: Control<'_>,
) -> Result<Summary, Error> {
    let mut file = SourceFile::open(source)?;
    let started = Instant::now();
    let mode = Origin::from(file.metadata()).mode;
    let context = open_device(device); // takes longer if other threads run
    Line::run(stream, |line| {
        let mut prepared = prepare_sender(&context?, settings)?;
        prepared.meet_by(line.addresses()?);
        let endpoint = prepared.endpoint();
        line.send(Kind::Offer, &Offer { settings, mode, endpoint }.to_bytes())?;
        let answer = line.wait(Kind::Answer, control.cancelled, control.patience)?;
        let answer = Answer::from_bytes(&answer)?;
        check(device, &endpoint, &answer.endpoint)?;
        let mut sender = prepared.connect(answer.endpoint, answer.slots)?;
        let stop = Stop::between_processes(control.cancelled, control.patience, line);
        let (mut file, began) = (Counted::new(&mut file, control.progress), Instant::now());
        let sent = sender.run(&mut file, &stop);
        stop.into_result().map_err(|error| error.of_source(source))?;
        let (bytes, transfer) = (sent?.bytes, began.elapsed());
        line.wait(Kind::Done, control.cancelled, control.patience)?;
        Ok(Summary {
            device: device.to_owned(),
            bytes,
            registered_bytes: sender.registered_bytes(),
            settings,
            transfer,
            until_on_disk: started.elapsed(),
        })
    })
}

/// Creates the file that another process [sends](send). Returns when the file is on disk.
///
/// How much memory this process registers depends on the sender's settings.
///
/// # Errors
/// Returns any [`Error`], including those of the other process. The destination is then unchanged.
pub fn receive(
    destination: &Path,
    device: &str,
    stream: TcpStream,
    control: Control<'_>,
) -> Result<Summary, Error> {
    let started = Instant::now();
    let context = open_device(device);
    Line::run(stream, |line| {
        let offer = line.wait(Kind::Offer, control.cancelled, control.patience)?;
        let Offer { settings, mode, endpoint: peer } = Offer::from_bytes(&offer)?;
        let mut file = Destination::create(destination, Origin { mode, inode: None })?;
        let mut prepared = prepare_receiver(&context?, settings)?;
        prepared.meet_by(line.addresses()?);
        let (endpoint, slots) = (prepared.endpoint(), prepared.remote());
        check(device, &endpoint, &peer)?;
        let mut receiver = prepared.connect(peer)?;
        line.send(Kind::Answer, &Answer { slots, endpoint }.to_bytes())?;
        let stop = Stop::between_processes(control.cancelled, control.patience, line);
        let (mut sink, began) = (Counted::new(&mut file, &|_| {}), Instant::now());
        receiver.run(&mut sink, control, &stop);
        let (bytes, transfer) = (sink.bytes, began.elapsed());
        let written = stop.into_result().and_then(|()| file.commit().map_err(Error::Write));
        written.map_err(|error| error.of_destination(destination))?;
        // The file is complete even if the other process has ended in the meantime.
        let _ = line.send(Kind::Done, &[]);
        Ok(Summary {
            device: device.to_owned(),
            bytes,
            registered_bytes: receiver.registered_bytes(),
            settings,
            transfer,
            until_on_disk: started.elapsed(),
        })
    })
}

fn check(device: &str, own: &QueuePairEndpoint, peer: &QueuePairEndpoint) -> Result<(), Error> {
    check_reach(device, own, peer).map_err(|error| Error::Unreachable(error.to_string()))
}

/// A stream that counts the bytes passing through it, and reports the count.
struct Counted<'a, T> {
    stream: &'a mut T,
    told: &'a dyn Fn(u64),
    bytes: u64,
}

impl<'a, T> Counted<'a, T> {
    fn new(stream: &'a mut T, told: &'a dyn Fn(u64)) -> Self {
        Self { stream, told, bytes: 0 }
    }

    fn count(&mut self, bytes: usize) -> usize {
        self.bytes += bytes as u64;
        (self.told)(self.bytes);
        bytes
    }
}

impl<T: Read> Read for Counted<'_, T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.read(buffer).map(|bytes| self.count(bytes))
    }
}

impl<T: Write> Write for Counted<'_, T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes).map(|bytes| self.count(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
