//! Acts as the other end of `rping`, a program of librdmacm, as either its server or its client.
#![allow(unsafe_code)]

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use rdma::cm::{Connection, EventChannel, Listener};
use rdma::memory::SharedRegion;
use rdma::prelude::*;
use rdma::qp::{CompletionQueue, PollSlot, PreparedQueuePair, QueuePair};
use rdma_examples_common::{Failure, Role, Side, print, program};

/// Exchanges texts with `rping`, which must get the same count and size. The client advertises a
/// buffer with a text, which the server reads. Then the client advertises another buffer, to which
/// the server writes the text.
///
///   rping --device soft0 --connect 192.0.2.7:7174     if rping -s -C 10 listens
///   rping --device soft0 --listen 0.0.0.0:7174        for rping -c -a 192.0.2.6 -C 10
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
    #[arg(long, default_value_t = 10, help = "How many texts")]
    count: u32,
    #[arg(long, default_value_t = 64, help = "The size of each text, in bytes")]
    size: u32,
    #[arg(long, value_name = "SECONDS", default_value_t = 30, help = "For each event")]
    wait: u64,
}

/// The message in which an end advertises a buffer: its address, its key and its length, in network
/// byte order. The content of the server's messages does not matter.
const MESSAGE: usize = 16;
const RECEIVED: usize = 0;
const SENT: usize = 1;
const DONE: usize = 2;

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

/// The memory and queues of one end. The memory is freed after the queue pair, which the functions
/// below own.
struct End {
    channel: EventChannel,
    cq: CompletionQueue,
    pd: ProtectionDomain,
    incoming: OwnedRegion,
    outgoing: OwnedRegion,
    /// The numbers of received and sent messages and of other requests that have completed, and were not waited for yet.
    completed: [u32; 3],
    count: u32,
    size: usize,
    limit: Duration,
}

impl End {
    fn new(arguments: &Arguments) -> Result<Self, Failure> {
        let context = open_device(&arguments.device)?;
        let cq = CompletionQueue::create(&context, 8)?;
        let pd = context.allocate_pd()?;
        let [incoming, outgoing] = [pd.allocate_region(MESSAGE)?, pd.allocate_region(MESSAGE)?];
        let (count, size) = (arguments.count, usize::try_from(arguments.size)?);
        let limit = Duration::from_secs(arguments.wait);
        let channel = EventChannel::open(&context)?;
        let completed = [0; 3];
        Ok(Self { channel, cq, pd, incoming, outgoing, completed, count, size, limit })
    }

    fn queue_pair(&self) -> Result<PreparedQueuePair, Failure> {
        let access = AccessFlags::new().with_remote_read().with_remote_write();
        let builder = self.pd.create_qp().send_cq(&self.cq).recv_cq(&self.cq).access(access);
        Ok(builder.max_send_wr(4).max_recv_wr(4).build()?)
    }

    /// Serves one client, until it disconnects. The client may do so before it acknowledges the last message.
    fn serve(mut self, address: &str) -> Result<String, Failure> {
        let listener = Listener::bind(&self.channel, address)?;
        print(&format!("listening on {}", listener.local_address()))?;
        // Freed after the queue pair.
        let mut text = self.pd.allocate_region(self.size)?;
        let accepting = listener.incoming(self.limit)?.prepare(self.queue_pair()?)?;
        self.receive(accepting.queue_pair())?;
        let connection = accepting.accept(b"")?.wait(self.limit)?;
        for _ in 0..self.count {
            let source = self.advertised(&connection)?;
            if source.length() > self.size {
                return Err(format!("the client's texts have {} bytes", source.length()).into());
            }
            let mut buffer = text.get_mut(0, source.length()).ok_or("too short")?;
            let mut elements = [buffer.scatter_element()];
            let read = ReadWorkRequest::new(&mut elements, source);
            // SAFETY: SAFETY.md F8: nothing uses the text before the request has completed.
            unsafe { connection.queue_pair().post_read(read, DONE as u64) }?;
            self.complete(DONE)?;
            self.send(connection.queue_pair())?;

            let sink = self.advertised(&connection)?;
            let data = text.get_ref(0, source.length()).ok_or("too short")?;
            let elements = [data.gather_element()];
            // SAFETY: SAFETY.md F8: nothing changes the text before the request has completed.
            unsafe {
                connection
                    .queue_pair()
                    .post_write(WriteWorkRequest::new(&elements, sink), DONE as u64)
            }?;
            self.complete(DONE)?;
            self.send(connection.queue_pair())?;
        }
        let end = connection.wait(self.limit)?;
        Ok(format!("{} texts of {} bytes; {end}", self.count, self.size))
    }

    /// Connects to a server, and compares each text that it writes with the one that it has read.
    fn ask(mut self, address: &str) -> Result<String, Failure> {
        let access = AccessFlags::new().with_local_write().with_remote_read().with_remote_write();
        let [source, sink] = [
            self.pd.allocate_shared_region(self.size, access)?,
            self.pd.allocate_shared_region(self.size, access)?,
        ];
        let resolved = self.channel.resolve(address)?;
        let replied = resolved.connect(self.queue_pair()?, b"")?.wait(self.limit)?;
        self.receive(replied.queue_pair())?;
        let connection = replied.establish()?;
        for n in 0..self.count {
            let letters = (b'A'..=b'Z').cycle().skip(usize::try_from(n % 26)?);
            let mut text: Vec<u8> = letters.take(self.size).collect();
            // The server of C writes back what precedes the first zero, and the zero.
            text.splice(self.size.saturating_sub(1).., [0]);
            source.write(0, &text)?;
            self.advertise(&connection, &source)?;
            self.advertise(&connection, &sink)?;
            let mut written = vec![0; self.size];
            sink.read(0, &mut written)?;
            if written != text {
                return Err(format!("text {n} came back changed").into());
            }
        }
        let ended = connection.disconnect(b"")?.wait(self.limit)?;
        Ok(format!("{} texts of {} bytes; {}", self.count, self.size, ended.end()))
    }

    /// Advertises a buffer, and waits for the server's message.
    fn advertise(&mut self, connection: &Connection, buffer: &SharedRegion) -> Result<(), Failure> {
        let remote = buffer.remote();
        let length = u32::try_from(remote.length())?.to_be_bytes();
        let parts = [
            &remote.address().to_be_bytes()[..],
            &remote.rkey().get().to_be_bytes()[..],
            &length[..],
        ];
        self.outgoing.copy_from_slice(&parts.concat());
        self.send(connection.queue_pair())?;
        self.complete(SENT)?;
        self.complete(RECEIVED)?;
        self.receive(connection.queue_pair())
    }

    /// Waits for the client's next buffer.
    fn advertised(&mut self, connection: &Connection) -> Result<RemoteMemoryRegion, Failure> {
        self.complete(RECEIVED)?;
        let (address, rest) = self.incoming.split_first_chunk().ok_or("too short")?;
        let (rkey, rest) = rest.split_first_chunk().ok_or("too short")?;
        let (length, _) = rest.split_first_chunk().ok_or("too short")?;
        let (rkey, length) = (u32::from_be_bytes(*rkey), u32::from_be_bytes(*length));
        let address = u64::from_be_bytes(*address);
        self.receive(connection.queue_pair())?;
        Ok(RemoteMemoryRegion::new(address, usize::try_from(length)?, rkey))
    }

    fn receive(&mut self, queue_pair: &QueuePair) -> Result<(), Failure> {
        let mut room = self.incoming.as_slice_mut();
        let elements = &mut [room.scatter_element()];
        // SAFETY: SAFETY.md F8: no code uses the memory before the receive completes.
        Ok(unsafe { queue_pair.post_receive(ReceiveWorkRequest::new(elements), RECEIVED as u64) }?)
    }

    fn send(&mut self, queue_pair: &QueuePair) -> Result<(), Failure> {
        let data = [self.outgoing.as_slice().gather_element()];
        // SAFETY: SAFETY.md F8: the server never changes the memory, and the client waits for the completion before.
        Ok(unsafe { queue_pair.post_send(SendWorkRequest::new(&data), SENT as u64) }?)
    }

    /// Waits until a message has arrived ([`RECEIVED`]), or a request has completed.
    fn complete(&mut self, what: usize) -> Result<(), Failure> {
        let (begin, mut slots) = (Instant::now(), [PollSlot::default(); 4]);
        while self.completed[what] == 0 {
            for completion in self.cq.poll(&mut slots)? {
                completion.result()?;
                self.completed[usize::try_from(completion.wr_id())?] += 1;
            }
            if begin.elapsed() > self.limit {
                let hint = "give the peer the same count and size";
                let what = if what == RECEIVED { "message arrived" } else { "request completed" };
                return Err(format!("no {what} for {:?}: {hint}", self.limit).into());
            }
            thread::yield_now();
        }
        self.completed[what] -= 1;
        Ok(())
    }
}
