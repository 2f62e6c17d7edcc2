//! The two ends of a program, in two processes that connect over TCP, or as two threads of one
//! process.
//!
//! A program supplies a function for each end. The function is called with the connection to the
//! other end. The end that listens is called the server.

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

use rdma::channel::{
    Channel, ExchangeError, PreparedChannel, TransportError, confirm, exchange_all,
};
use rdma::device::{Context, open_device};
use rdma::memory::RemoteMemoryRegion;
use rdma::qp::{PreparedQueuePair, QueuePair, QueuePairEndpoint, WorkError};

use rdma_examples_common::out_of_band::{OutOfBand, OutOfBandError, Peer};
use rdma_examples_common::reach::check_reach;
use rdma_examples_common::{Failure, explain, print};

/// The location of the ends, and the device that connects them, as part of a command line.
#[derive(Clone, Debug, clap::Args)]
pub struct Ends {
    /// The RDMA device
    #[arg(long, value_name = "NAME", default_value = "soft0")]
    device: String,
    #[command(flatten)]
    peer: Peer,
    /// The time to wait for the other process
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    wait: u64,
}

/// The text that an end prints when it has finished, or the error with which it fails.
pub type Outcome = Result<String, Failure>;

/// The interval between checks that the other end is still running.
const LOOK: Duration = Duration::from_millis(50);
/// The maximum time, on a busy machine, between the end of a process's queue pair and that of its
/// connection.
const SOON: Duration = Duration::from_secs(5);

impl Ends {
    /// Returns the name of the device.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Runs one end if the command line gives the address of the other process. Otherwise runs both
    /// ends as threads. Returns their texts, the server's first.
    ///
    /// # Errors
    /// Returns the error of an end. Its text also states whether the other end has ended.
    pub fn run(
        &self,
        server: impl FnOnce(&Context, &mut OtherEnd) -> Outcome + Send,
        client: impl Fn(&Context, &mut OtherEnd) -> Outcome + Sync,
    ) -> Outcome {
        let server = |context: &Context, others: &mut [OtherEnd]| match others {
            [other] => server(context, other),
            _ => Err("one client is needed".into()),
        };
        self.run_many(1, server, client)
    }

    /// Like [`run`](Self::run), but with `clients` clients of one server. Each client is a process
    /// or a thread.
    ///
    /// # Errors
    /// Same errors as [`run`](Self::run).
    pub fn run_many(
        &self,
        clients: usize,
        server: impl FnOnce(&Context, &mut [OtherEnd]) -> Outcome + Send,
        client: impl Fn(&Context, &mut OtherEnd) -> Outcome + Sync,
    ) -> Outcome {
        let context = open_device(&self.device)?; // checked before another process waits for this one
        let wait = Duration::from_secs(self.wait);
        let server = |others: Vec<OutOfBand>| {
            let mut others: Vec<_> = others.into_iter().map(|other| self.other(other)).collect();
            let outcome = server(&context, &mut others);
            outcome.map_err(|error| explained(error, &others))
        };
        let client = |other: OutOfBand| {
            let mut other = self.other(other);
            client(&context, &mut other).map_err(|error| explained(error, &[other]))
        };
        let mut others = self.peer.meet_all(clients, wait)?;
        if others.first().is_some_and(OutOfBand::listens) {
            return server(others);
        }
        if let Some(other) = others.pop() {
            return client(other);
        }
        threads(clients, wait, server, client)
    }

    fn other(&self, way: OutOfBand) -> OtherEnd {
        let wait = Duration::from_secs(self.wait);
        let (device, process) = (self.device.clone(), self.peer.is_process());
        OtherEnd { way, device, wait, process, looked: Cell::new(Instant::now()) }
    }
}

/// Runs all ends in this process, each in its own thread.
fn threads(
    clients: usize,
    wait: Duration,
    server: impl FnOnce(Vec<OutOfBand>) -> Outcome + Send,
    client: impl Fn(OutOfBand) -> Outcome + Sync,
) -> Outcome {
    let pairs: Result<Vec<_>, _> = (0..clients).map(|_| OutOfBand::pair(wait)).collect();
    let (here, there): (Vec<_>, Vec<_>) = pairs?.into_iter().map(|[a, b]| (a, b)).unzip();
    let outcomes: Vec<Outcome> = thread::scope(|threads| {
        let mut all = vec![threads.spawn(move || server(here))];
        all.extend(there.into_iter().map(|other| threads.spawn(|| client(other))));
        let join = |end: thread::ScopedJoinHandle<'_, _>| {
            end.join().unwrap_or_else(|_| Err("an end panicked".into()))
        };
        all.into_iter().map(join).collect()
    });
    // If one end fails, the others fail too. It is not known which one failed first, so all errors
    // are returned.
    let errors: Vec<_> = outcomes.iter().filter_map(|end| end.as_ref().err()).collect();
    if !errors.is_empty() {
        let errors: Vec<_> = errors.iter().map(|error| explain(&***error)).collect();
        return Err(errors.join("\nerror: ").into());
    }
    Ok(outcomes.into_iter().flatten().collect::<Vec<_>>().join("\n"))
}

/// Adds to an error that another end has ended, if that may be the reason for the error.
fn explained(error: Failure, others: &[OtherEnd]) -> Failure {
    let operation =
        error.is::<TransportError>() || error.is::<WorkError>() || error.is::<rdma::qp::Error>();
    let stream = matches!(error.downcast_ref(), Some(OutOfBandError::Io(_)))
        || matches!(error.downcast_ref(), Some(ExchangeError::Io(_)));
    match (operation || stream) && others.iter().any(|other| other.way.has_ended(SOON)) {
        true => gone(&explain(&*error)),
        false => error,
    }
}

fn gone(how: &str) -> Failure {
    format!("the other end has gone: read its output. At this end: {how}").into()
}

/// The other end, and the connection to it that does not use RDMA.
#[derive(Debug)]
pub struct OtherEnd {
    way: OutOfBand,
    device: String,
    wait: Duration,
    process: bool,
    /// When this end last checked that the other one is still running.
    looked: Cell<Instant>,
}

impl OtherEnd {
    /// Connects a channel to a channel of the other end, which must call this function too.
    ///
    /// # Errors
    /// Returns an error if the other end cannot be reached, stalls or ends, or if the device
    /// reports an error.
    pub fn connect(&self, prepared: PreparedChannel) -> Result<Channel, Failure> {
        self.connect_all(vec![prepared])?.pop().ok_or_else(|| "no endpoint arrived".into())
    }

    /// Connects several channels to the same number at the other end.
    ///
    /// # Errors
    /// Same errors as [`connect`](Self::connect). Also returns an error if the other end connects a
    /// different number.
    pub fn connect_all(&self, mut prepared: Vec<PreparedChannel>) -> Result<Vec<Channel>, Failure> {
        if let Some((own, peer)) = self.way.addresses() {
            prepared.iter_mut().for_each(|one| one.set_stream_addresses(own, peer));
        }
        let own: Vec<_> = prepared.iter().map(PreparedChannel::endpoint).collect();
        let peers = self.exchange_all(&own)?;
        prepared.into_iter().zip(peers).map(|(one, peer)| Ok(one.handshake(peer)?)).collect()
    }

    /// Connects a queue pair to a queue pair of the other end, which must call this function too.
    ///
    /// # Errors
    /// Same errors as [`connect`](Self::connect).
    pub fn connect_queue_pair(
        &self,
        mut prepared: PreparedQueuePair,
    ) -> Result<QueuePair, Failure> {
        if let Some((own, peer)) = self.way.addresses() {
            prepared.set_stream_addresses(own, peer);
        }
        let peer = self.exchange_all(&[prepared.endpoint()])?.pop();
        Ok(prepared.handshake(peer.ok_or("no endpoint arrived")?)?)
    }

    fn exchange_all(&self, own: &[QueuePairEndpoint]) -> Result<Vec<QueuePairEndpoint>, Failure> {
        let peers = exchange_all(self.way.stream(), own, self.wait)?;
        for (own, peer) in own.iter().zip(&peers) {
            check_reach(&self.device, own, peer)?;
        }
        Ok(peers)
    }

    /// Sends a number to the other end.
    ///
    /// # Errors
    /// Returns an error if the connection has failed.
    pub fn tell(&mut self, number: u64) -> Result<(), Failure> {
        Ok(self.way.send(&number.to_be_bytes())?)
    }

    /// Receives a number from the other end.
    ///
    /// # Errors
    /// Returns an error if the other end stalls or ends.
    pub fn hear(&mut self) -> Result<u64, Failure> {
        Ok(u64::from_be_bytes(self.way.receive()?))
    }

    /// Sends the location of memory that the other end may access.
    ///
    /// # Errors
    /// Same errors as [`tell`](Self::tell).
    pub fn lend(&mut self, memory: RemoteMemoryRegion) -> Result<(), Failure> {
        self.tell(memory.address())?;
        self.tell(memory.length() as u64)?;
        self.tell(memory.rkey().get().into())
    }

    /// Receives the location of memory that the other end has lent.
    ///
    /// # Errors
    /// Same errors as [`hear`](Self::hear).
    pub fn borrow(&mut self) -> Result<RemoteMemoryRegion, Failure> {
        let (address, length, rkey) = (self.hear()?, self.hear()?, self.hear()?);
        Ok(RemoteMemoryRegion::new(address, usize::try_from(length)?, u32::try_from(rkey)?))
    }

    /// Waits until both ends are connected and have posted the receives for the first messages.
    ///
    /// # Errors
    /// Returns an error if the other end stalls or ends.
    pub fn ready(&self) -> Result<(), Failure> {
        confirm(self.way.stream(), self.wait)?;
        if self.process {
            print("connected")?;
        }
        Ok(())
    }

    /// Waits until both ends have everything that they need. An end that leaves earlier could take
    /// data with it that the other one still waits for.
    ///
    /// # Errors
    /// Returns an error if the other end stalls or ends.
    pub fn finish(&self) -> Result<(), Failure> {
        // Even if the other end has finished, it must wait until this end has finished too.
        if self.way.has_ended(Duration::ZERO) {
            return Err(gone("it did not wait until this end had finished"));
        }
        Ok(confirm(self.way.stream(), self.wait)?)
    }

    /// Waits until an effect of the other end is visible. See [`until`].
    ///
    /// # Errors
    /// Same errors as [`until`].
    pub fn until<T>(&self, look: impl FnMut() -> Result<Option<T>, Failure>) -> Result<T, Failure> {
        until(std::slice::from_ref(self), look)
    }
}

/// Calls `look` until it returns a value. Meanwhile, checks that the other ends are still running.
/// Without this check, an end that only receives would wait even after the other ends have ended,
/// because none of its requests fails.
///
/// # Errors
/// Returns an error if another end has ended or the wait has reached its time limit, or the error
/// of `look`.
pub fn until<T>(
    others: &[OtherEnd],
    mut look: impl FnMut() -> Result<Option<T>, Failure>,
) -> Result<T, Failure> {
    let begin = Instant::now();
    loop {
        for other in others {
            if other.looked.get().elapsed() < LOOK {
                continue;
            }
            other.looked.set(Instant::now());
            if other.way.has_ended(Duration::ZERO) {
                return Err(gone("an operation waited for it"));
            }
            if begin.elapsed() > other.wait {
                return Err(
                    "nothing arrives from the other end: check that it has reached the same step"
                        .into(),
                );
            }
        }
        if let Some(found) = look()? {
            return Ok(found);
        }
        thread::yield_now();
    }
}
