//! The task that owns the stream of a control connection. It sends and receives frames, and notices when the other end
//! is gone.

use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rdma_connect::{CloseReason, ConnectError, Farewell, KeepAlive};
use rdma_qp::{QueuePairBuilder, QueuePairEndpoint};
use rustix::net::{SendFlags, send};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::frame::{Frame, HEAD, Head};
use super::shared::{Member, Shared, Task};
use crate::link::Inner;

/// The number of unanswered beats after which the other end counts as gone.
const SILENT_BEATS: u32 = 3;
/// The maximum number of received frames that wait to be handled.
const MOST_FRAMES: usize = 64;
/// The time, after the end of the stream, that a thread has to start closing memory.
const GRACE: Duration = Duration::from_millis(20);
/// The longest interval of the timer.
const LONGEST_BEAT: Duration = Duration::from_secs(1 << 30);

/// Keeps the stream open for the connection that was made over it. Ends the connection when the other end closes the
/// stream, or when its machine is silent for the keep-alive time.
///
/// # Errors
/// [`ConnectError::Io`] if the runtime cannot watch the stream.
pub(super) fn keep(
    inner: &Arc<Inner>,
    stream: TcpStream,
    mut shared: Shared,
    qp: QueuePairBuilder<'static>,
    (silence, beat): (Duration, Option<Duration>),
) -> Result<(), ConnectError> {
    KeepAlive::within(silence).set(&stream);
    // The stream may have been accepted in another runtime.
    let stream = stream.into_std().and_then(TcpStream::from_std).map_err(|source| {
        let tried = format!("keeping the control connection to {}", shared.address);
        ConnectError::Io { tried, source }
    })?;
    let stream = Arc::new(stream);
    (shared.peekable, shared.silence) = (Arc::downgrade(&stream), silence);
    let shared = Arc::new(shared);
    let task = Arc::new(Task(Arc::clone(&shared)));
    inner.keep(Member { shared: Arc::clone(&shared), number: 0, qp, task });
    shared.enter(0, inner);
    let guard = Guard { shared, stream, rest: Vec::new(), reason: CloseReason::Destroyed };
    tokio::spawn(until_gone(guard, beat));
    Ok(())
}

/// Ends the connections when the task ends for any reason, because no other task would notice that the peer is gone.
struct Guard {
    shared: Arc<Shared>,
    stream: Arc<TcpStream>,
    /// Bytes of frames that have not been written yet.
    rest: Vec<u8>,
    reason: CloseReason,
}

impl Drop for Guard {
    fn drop(&mut self) {
        // A forked child owns none of this.
        if !self.shared.is_of_this_process() {
            return;
        }
        if self.reason == CloseReason::Destroyed {
            self.shared.send_farewells();
        }
        // Sends as many queued frames as the stream accepts without waiting.
        let due = self.shared.take_due();
        self.shared.end(self.reason);
        if self.shared.talks {
            self.rest.extend(due);
        } else if let Some(farewell) = self.shared.final_farewell() {
            self.rest = farewell.to_frame().into();
        }
        let _ = send(&*self.stream, &self.rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

async fn until_gone(mut guard: Guard, beat: Option<Duration>) {
    let has_received = AtomicBool::new(true);
    let Guard { shared, stream, rest, .. } = &mut guard;
    let (queue, frames) = mpsc::channel(MOST_FRAMES);
    let (ends, ended) = watch::channel(false);
    let lives = beats(shared, beat, &has_received, ended.clone());
    // The end of the stream is reported only after all frames that arrived before it have been handled.
    let receives = async {
        let end = receive_frames(shared, stream, &has_received, queue).await;
        ends.send_replace(true);
        Ok(end)
    };
    let serves = async { tokio::try_join!(receives, handle_frames(shared, frames, ended)) };
    let mut limit = shared.silence;
    let unsent = OnceLock::new();
    let ended = tokio::select! {
        ended = serves => ended.and_then(|(Err(end), ())| Err(end)),
        ended = send_frames(shared, stream, rest, &unsent) => ended,
        // The last connection was dropped.
        () = shared.left.notified() => return,
        ended = lives => {
            limit = beat.unwrap_or_default().saturating_mul(SILENT_BEATS);
            ended
        }
        ended = shared.leases.close_ended_leases() => ended,
    };
    match ended {
        // The runtime is shutting down.
        Err(error) if error.kind() == io::ErrorKind::Other => {}
        Err(error) => {
            // A stream reports its error only once. If a write gets the error, a read finds only the end of the stream.
            let is_end = error.kind() == io::ErrorKind::UnexpectedEof;
            let error = unsent.into_inner().filter(|_| is_end).unwrap_or(error);
            tracing::debug!(peer = %shared.address, %error, "a peer is gone");
            guard.reason = CloseReason::of_stream(Some(&error), limit);
        }
        Ok(()) => {}
    }
}

/// The number and epoch of a connection, with a frame about it.
type ReceivedFrame = (u32, u32, Frame);

/// Receives frames until the stream ends or contains bytes that are not a frame. Returns the reason. Handles signs of
/// life at once, and queues all other frames.
async fn receive_frames(
    shared: &Shared,
    from: &TcpStream,
    has_received: &AtomicBool,
    queue: mpsc::Sender<ReceivedFrame>,
) -> io::Result<Infallible> {
    if !shared.talks {
        // A channel sends nothing except, at most, its farewell before the end of the stream.
        let (mut bytes, mut block) = (Vec::new(), [0; 512]);
        let end = loop {
            match receive_some(from, &mut block).await {
                Ok(count) if bytes.len() <= Farewell::FRAME => {
                    bytes.extend_from_slice(&block[..count])
                }
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        if let Some(farewell) = Farewell::from_frame(&bytes) {
            shared.receive(0, 0, Frame::Farewell(farewell)).map_err(not_kept)?;
        }
        return Err(end);
    }
    let mut endpoint = [0; QueuePairEndpoint::BYTES];
    loop {
        let mut head = [0; HEAD];
        fill(from, &mut head).await?;
        let head = Head::read(head).map_err(not_kept)?;
        let rest = endpoint.get_mut(..head.length()).unwrap_or_default();
        fill(from, rest).await?;
        let frame = head.frame(rest).map_err(not_kept)?;
        has_received.store(true, Ordering::Relaxed);
        if matches!(frame, Frame::Beat | Frame::Alive) {
            shared.receive(head.number, head.epoch, frame).map_err(not_kept)?;
        } else {
            queue.send((head.number, head.epoch, frame)).await.map_err(not_kept)?;
        }
    }
}

/// Receives bytes until the buffer is full.
///
/// # Errors
/// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if the stream ends before the buffer is full.
async fn fill(from: &TcpStream, mut room: &mut [u8]) -> io::Result<()> {
    while !room.is_empty() {
        let count = receive_some(from, room).await?;
        room = room.get_mut(count..).unwrap_or_default();
    }
    Ok(())
}

/// Receives the next bytes; same errors as [`fill`]. Yields to other tasks from time to time, because a stream that is
/// always readable never makes this task wait.
async fn receive_some(from: &TcpStream, room: &mut [u8]) -> io::Result<usize> {
    loop {
        tokio::task::coop::consume_budget().await;
        from.readable().await?;
        match from.try_read(room) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            received => return received,
        }
    }
}

/// Waits until the stream is writable, and then sends as many bytes as it accepts without waiting.
async fn send_some(to: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    to.writable().await?;
    match to.try_write(bytes) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        sent => sent,
    }
}

/// Handles the queued frames in order. If a frame ends a lease, the lease is closed before the next frame is handled.
/// Another thread closes large memory. If that thread has not started within [`GRACE`] after the end of the stream,
/// this task closes the lease itself.
async fn handle_frames(
    shared: &Shared,
    mut queue: mpsc::Receiver<ReceivedFrame>,
    mut ended: watch::Receiver<bool>,
) -> io::Result<()> {
    while let Some((number, epoch, frame)) = queue.recv().await {
        let takes_time = matches!(frame, Frame::Lease(_));
        let closing = shared.receive(number, epoch, frame).map_err(not_kept)?;
        if let Some(mut closing) = closing {
            let none_has_begun = async {
                let _ = ended.wait_for(|&ended| ended).await;
                sleep(GRACE).await;
            };
            // If the thread's work was dropped, the runtime is shutting down, and this task ends, too.
            let is_closed = tokio::select! {
                _ = &mut closing.thread => true,
                () = none_has_begun => shared.leases.close_left(closing.number),
            };
            if !is_closed {
                let _ = closing.thread.await;
            }
        }
        if takes_time {
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

fn not_kept(what: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_string())
}

/// Sends queued frames, and keeps unwritten bytes in `rest`. If the other end is a channel, returns when the connection
/// has ended. On a stream error, stores the error in `unsent` and waits forever, because [`receive_frames`] then finds
/// the end of the stream.
async fn send_frames(
    shared: &Shared,
    to: &TcpStream,
    rest: &mut Vec<u8>,
    unsent: &OnceLock<io::Error>,
) -> io::Result<()> {
    loop {
        if !rest.is_empty() && shared.out.is_full() {
            return Err(not_kept("it does not read the frames that it is sent"));
        }
        if rest.is_empty() {
            *rest = shared.take_due();
        } else {
            // Connections must be settled even while the other end is slow to read.
            shared.settle_changed();
        }
        if !shared.talks {
            rest.clear();
            if shared.has_ended() {
                return Ok(());
            }
        }
        let written = tokio::select! {
            written = send_some(to, rest), if !rest.is_empty() => written,
            () = shared.out.to_send.notified() => Ok(0),
        };
        match written {
            Ok(count) => drop(rest.drain(..count)),
            // The other end no longer reads. Frames that it has already sent are still handled before the stream ends.
            Err(error) if error.kind() != io::ErrorKind::Other => {
                let _ = unsent.set(error);
                return std::future::pending().await;
            }
            Err(error) => return Err(error),
        }
        // A steady flow of frames must not starve other tasks.
        tokio::task::coop::consume_budget().await;
    }
}

/// Requests signs of life, and returns an error after [`SILENT_BEATS`] requests without one. After the end of the
/// stream, no sign of life can arrive, so this waits forever.
async fn beats(
    shared: &Shared,
    beat: Option<Duration>,
    has_received: &AtomicBool,
    ended: watch::Receiver<bool>,
) -> io::Result<()> {
    let Some(beat) = beat.filter(|_| shared.talks) else { return std::future::pending().await };
    let mut ticks = interval(beat.clamp(Duration::from_millis(1), LONGEST_BEAT));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut silent = 0;
    while silent < SILENT_BEATS {
        ticks.tick().await;
        if *ended.borrow() {
            return std::future::pending().await;
        }
        silent = if has_received.swap(false, Ordering::Relaxed) { 0 } else { silent + 1 };
        shared.beat();
    }
    Err(io::ErrorKind::TimedOut.into())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream as Peer};
    use std::sync::Arc;

    use super::*;
    use crate::lease::outbox::MOST;

    /// Creates a stream on localhost. Returns it with its other end.
    async fn stream() -> (TcpStream, Peer) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = Peer::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        (TcpStream::from_std(stream).unwrap(), peer)
    }

    #[test]
    fn frames_that_a_peer_does_not_read_end_its_stream() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (stream, _peer) = stream().await;
            let address = stream.peer_addr().unwrap();
            let limits = (None, Duration::ZERO);
            let shared = Shared::new((address, None), false, true, (Duration::MAX, None), limits);
            // The kernel buffers some of the bytes.
            let floods = async {
                loop {
                    shared.out.write(|bytes| bytes.resize(MOST + 1, 0));
                    tokio::task::yield_now().await;
                }
            };
            let (mut rest, unsent) = (Vec::new(), OnceLock::new());
            let ended = tokio::select! {
                ended = send_frames(&shared, &stream, &mut rest, &unsent) => ended.unwrap_err(),
                () = floods => unreachable!(),
                () = sleep(Duration::from_secs(60)) => panic!("it still sends"),
            };
            assert_eq!(ended.kind(), io::ErrorKind::InvalidData, "{ended}");
        });
    }

    #[test]
    fn a_peer_that_sends_without_end_lets_other_tasks_run() {
        const BYTES: usize = 16 << 10;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (stream, mut peer) = stream().await;
            peer.write_all(&[0; BYTES]).unwrap();
            stream.readable().await.unwrap();
            let ran = Arc::new(AtomicBool::new(false));
            tokio::spawn({
                let ran = Arc::clone(&ran);
                async move { ran.store(true, Ordering::Relaxed) }
            });
            for _ in 0..BYTES {
                assert_eq!(receive_some(&stream, &mut [0]).await.unwrap(), 1);
                if ran.load(Ordering::Relaxed) {
                    return;
                }
            }
            panic!("no other task ran");
        });
    }
}
