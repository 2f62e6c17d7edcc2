//! The two kinds of ends, and the tasks that receive, read and write.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rdma_async::message::{Chunk, Message, Messages, ReadHalf, WriteHalf};
use rdma_async::{Buffer, Connection};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;

use super::model::{Shared, UNKNOWN, stream_of};
use super::operations::kill;
use crate::memory;

/// An end of a connection.
pub(crate) struct End {
    /// A handle to destroy the queue pair.
    pub(crate) connection: Connection,
    /// `None` for a stream, and after the program has left.
    pub(crate) messages: Option<Arc<Messages>>,
    pub(crate) gate: Arc<Gate>,
    /// The tasks that end with the connection.
    pub(crate) tasks: Vec<JoinHandle<()>>,
    /// The operations of the program.
    pub(crate) operations: Vec<Started>,
}

/// An operation that has started.
pub(crate) struct Started {
    pub(crate) number: u64,
    /// The request to which a reply belongs.
    pub(crate) request: Option<u64>,
    pub(crate) task: JoinHandle<()>,
    pub(crate) can_be_cancelled: bool,
}

/// The permissions of the tasks of an end.
pub(crate) struct Gate {
    /// The number of messages or chunks to receive.
    pub(crate) receives: Semaphore,
    /// The number of bytes to write. Closed to finish.
    pub(crate) writes: Semaphore,
    /// The number of messages or chunks to keep.
    keep: AtomicUsize,
    /// Whether the writer destroys the queue pair after the last byte.
    exits: AtomicBool,
    /// Drops the futures that wait.
    pub(crate) interrupts: [Notify; 2],
    /// The requests that were received, and not answered.
    pub(crate) requests: Mutex<Vec<(u64, Message)>>,
}

impl Gate {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            receives: Semaphore::new(0),
            writes: Semaphore::new(0),
            keep: AtomicUsize::new(0),
            exits: AtomicBool::new(false),
            interrupts: [Notify::new(), Notify::new()],
            requests: Mutex::default(),
        })
    }

    pub(crate) fn keep(&self, count: usize) {
        self.keep.store(count, Ordering::Relaxed);
    }

    pub(crate) fn exits(&self, exits: bool) {
        self.exits.fetch_or(exits, Ordering::Relaxed);
    }

    pub(crate) fn interrupt(&self) {
        self.interrupts.iter().for_each(Notify::notify_waiters);
    }
}

/// Bytes that the program keeps, with the number from which they are derived, and their offset.
struct Kept<T>(T, u64, usize);

/// Releases what the program may no longer keep, in any order. The bytes must not have changed.
fn release<T: Deref<Target = [u8]>>(kept: &mut VecDeque<Kept<T>>, model: &Shared, most: usize) {
    while kept.len() > most {
        let at =
            kept.back().map_or(0, |Kept(_, number, from)| (*number as usize ^ from) % kept.len());
        let Some(Kept(bytes, number, from)) = kept.remove(at) else { return };
        check(&bytes, (number, from), model);
    }
}

/// Checks bytes that the program has.
pub(crate) fn check(bytes: &[u8], (number, from): (u64, usize), model: &Shared) {
    if number == UNKNOWN {
        return;
    }
    let mut expected = vec![0; bytes.len()];
    memory::fill(number, from, &mut expected);
    if expected != bytes {
        model.lock().fail(|| format!("bytes of {number} were overwritten, from {from} on"));
    }
}

/// A message, or the buffer in which it has arrived.
enum Mail {
    Message(Message),
    Buffer(Buffer),
}

impl Deref for Mail {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Message(message) => message,
            Self::Buffer(buffer) => buffer,
        }
    }
}

/// Receives messages.
pub(crate) async fn receive(end: usize, messages: Arc<Messages>, gate: Arc<Gate>, model: Shared) {
    let mut kept = VecDeque::new();
    loop {
        let Ok(permit) = gate.receives.acquire().await else { return };
        permit.forget();
        let received = loop {
            release(&mut kept, &model, gate.keep.load(Ordering::Relaxed));
            tokio::select! {
                biased;
                () = gate.interrupts[0].notified() => {}
                received = messages.receive() => break received,
            }
        };
        let message = match received {
            Ok(Some(message)) => message,
            Ok(None) => return model.lock().stops_receiving(end, Ok(())),
            Err(error) => return model.lock().stops_receiving(end, Err(&error)),
        };
        let is_request = message.is_request();
        let number = model.lock().arrives(end, &message, is_request);
        if is_request {
            gate.requests.lock().expect("no panic").push((number, message));
            continue;
        }
        // Memory for a copy may be missing.
        let mail = match number % 4 {
            0 => message.into_buffer().await.ok().map(Mail::Buffer),
            _ => Some(Mail::Message(message)),
        };
        if let Some(mail) = mail {
            check(&mail, (number, 0), &model);
            kept.push_back(Kept(mail, number, 0));
        }
    }
}

/// Reads a stream.
pub(crate) async fn read(end: usize, mut reader: ReadHalf, gate: Arc<Gate>, model: Shared) {
    let is_unknown = model.lock().has_hostile_end(end);
    let (number, mut at) = (if is_unknown { UNKNOWN } else { stream_of(end ^ 1) }, 0);
    let mut kept: VecDeque<Kept<Chunk>> = VecDeque::new();
    let mut turn = 0;
    loop {
        let Ok(permit) = gate.receives.acquire().await else { return };
        permit.forget();
        turn += 1;
        let mut bytes = vec![0; if turn % 3 == 0 { 1 << (turn % 11) } else { 0 }];
        let read = loop {
            release(&mut kept, &model, gate.keep.load(Ordering::Relaxed));
            let next = async {
                if bytes.is_empty() {
                    return reader.read_chunk().await;
                }
                let count = reader.read(&mut bytes).await?;
                bytes.truncate(count);
                Ok(None)
            };
            tokio::select! {
                biased;
                () = gate.interrupts[0].notified() => {}
                read = next => break read,
            }
        };
        match read {
            Ok(Some(chunk)) => {
                model.lock().reads(end, &chunk);
                let length = chunk.len();
                kept.push_back(Kept(chunk, number, at));
                at += length;
            }
            Ok(None) if !bytes.is_empty() => {
                model.lock().reads(end, &bytes);
                at += bytes.len();
            }
            result => return model.lock().stops_reading(end, &result.map(drop)),
        }
    }
}

/// Receives the frames of a hostile end's peer.
pub(crate) async fn endure(connection: Connection, buffers: Vec<Buffer>, gate: Arc<Gate>) {
    let Ok(mut ring) = connection.receive_ring(buffers) else { return };
    while let Ok(permit) = gate.receives.acquire().await {
        permit.forget();
        if ring.next().await.is_err() {
            return;
        }
    }
}

/// Writes a stream.
pub(crate) async fn write(
    end: usize,
    mut writer: WriteHalf,
    connection: Connection,
    gate: Arc<Gate>,
    model: Shared,
) {
    let (mut at, mut turn) = (0, 0_u32);
    loop {
        turn += 1;
        let most = 1 << (turn.wrapping_mul(7) % 17);
        let length = gate.writes.available_permits().clamp(1, most);
        let Ok(permits) = gate.writes.acquire_many(length as u32).await else { break };
        permits.forget();
        let mut bytes = vec![0; length];
        memory::fill(stream_of(end), at, &mut bytes);
        at += length;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            // The middle slice may be empty.
            let (first, others) = rest.split_at(rest.len() / 3);
            let (second, third) = others.split_at(others.len() % (turn as usize % 64 + 1));
            let slices = [first, second, third].map(IoSlice::new);
            let written = tokio::select! {
                biased;
                () = gate.interrupts[1].notified() => Ok(0),
                written = writer.write_vectored(&slices) => written,
            };
            match written {
                Ok(count) => {
                    rest = &rest[count..];
                    model.lock().end(end).written += count as u64;
                }
                Err(error) => return model.lock().stops_writing(end, &error),
            }
        }
    }
    model.lock().end(end).has_finished = true;
    let result = writer.shutdown().await;
    model.lock().finishes(end, &result);
    if result.is_ok() && gate.exits.load(Ordering::Relaxed) {
        kill(end, &connection, &model);
    }
}
