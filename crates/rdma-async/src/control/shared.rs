//! State shared by the connections of one control connection: the connections themselves, received frames, and frames
//! that have not been sent yet.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rdma_connect::{CloseReason, ConnectError, Farewell, StreamAddresses};
use rdma_qp::{QueuePairBuilder, QueuePairEndpoint};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::frame::{Frame, write_head};
use crate::lease::limits::LeaseLimits;
use crate::lease::outbox::Outbox;
use crate::lease::table::{Closing, Leases};
use crate::ledger::after::contain_panic;
use crate::ledger::entry::ConnectionEntry;
use crate::ledger::waiters::Changes;
use crate::link::{Inner, Seat};
use crate::sync::until;

/// The maximum number of connections that the other end may offer before this end's program has requested them.
pub(super) const MOST_STRANGERS: usize = 64;

/// A connection that belongs to a control connection.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) shared: Arc<Shared>,
    /// The connection's number, or 0 if it was made by address.
    pub(crate) number: u32,
    /// The options of the connection's queue pair, also used for its next queue pair.
    pub(crate) qp: QueuePairBuilder<'static>,
    pub(super) task: Arc<Task>,
}

impl Member {
    /// Removes the connection, and notifies the other end.
    pub(crate) fn leave(&self, epoch: u32, reason: Option<CloseReason>) {
        self.shared.leave(self.number, epoch, reason);
    }

    /// Notifies the other end that the program ends the connection, and sends the program's reason.
    pub(super) fn send_farewell(&self, epoch: u32, farewell: Farewell) {
        self.shared.send_farewell(self.number, epoch, farewell);
    }

    /// Returns why the connection ends, if the other end has ended it or is gone.
    pub(crate) fn gone(&self, epoch: u32) -> Option<CloseReason> {
        self.shared.gone(self.number, epoch)
    }

    /// Returns the farewell that the peer's program has sent for the queue pair of this epoch, if any.
    pub(crate) fn farewell(&self, epoch: u32) -> Option<Farewell> {
        self.shared.farewell(self.number, epoch)
    }

    /// Notifies the other end that this end will send nothing more on the queue pair of this epoch. Waits until the
    /// other end has ended the queue pair.
    pub(super) async fn finish(&self, epoch: u32) {
        self.shared.send(self.number, epoch, &Frame::Finish);
        self.shared.until_ended(self.number, epoch).await;
    }
}

/// A handle to the task that owns the stream. Dropping the last connection drops the handle; the task then ends and
/// closes the stream.
#[derive(Debug)]
pub(crate) struct Task(pub(super) Arc<Shared>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.left.notify_one();
    }
}

/// State shared by the connections and the task of a control connection.
pub(crate) struct Shared {
    state: Mutex<StreamState>,
    /// Frames to send.
    pub(super) out: Arc<Outbox>,
    /// The connections that the task has to settle.
    changes: Arc<Changes>,
    /// Notifies all waiters when a frame arrives, a queue pair ends, or the stream ends.
    pub(super) changed: Notify,
    /// Notified when the last connection leaves.
    pub(super) left: Notify,
    /// The address of the other end.
    pub(super) address: SocketAddr,
    pub(super) stream: StreamAddresses,
    pub(super) is_client: bool,
    /// Whether the other end reads frames. A channel does not.
    pub(crate) talks: bool,
    /// The time limit for connecting a queue pair, which includes the peer's answer.
    pub(crate) limit: Duration,
    /// The time limit of operations without their own limit.
    pub(crate) operation_timeout: Option<Duration>,
    /// Memory that this end lends and borrows.
    pub(crate) leases: Arc<Leases>,
    /// The stream, while its task owns it.
    pub(super) peekable: Weak<TcpStream>,
    /// The time that the peer's machine may be silent on the stream.
    pub(super) silence: Duration,
    /// The process that created this. In a forked child, the thread that holds the lock may not exist.
    process: u32,
}

/// The state of the stream and its connections.
#[derive(Default)]
pub(super) struct StreamState {
    pub(super) lanes: BTreeMap<u32, Lane>,
    /// The newest epoch that has been offered.
    pub(super) newest: u32,
    /// Whether to request a sign of life from the other end.
    beat_due: bool,
    /// Whether the other end has requested a sign of life.
    alive_due: bool,
    /// The reason why the stream is closed, if it is.
    closed: Option<CloseReason>,
    /// The last farewell that this end sent.
    farewell: Option<Farewell>,
}

/// The state of one connection.
#[derive(Default)]
pub(super) struct Lane {
    /// This end's connection, if there is one.
    pub(super) here: Option<Seat>,
    /// Whether a queue pair for this connection is being made.
    pub(super) is_negotiating: bool,
    /// The epoch and endpoint of the client's offer, or of the server's answer.
    pub(super) endpoint: Option<(u32, Box<QueuePairEndpoint>)>,
    /// The epoch of the queue pair that the client has connected.
    pub(super) ready: Option<u32>,
    /// The newest epoch of a [`Frame::Ended`] that this end has sent.
    ended_sent: Option<u32>,
    /// The newest epoch of a [`Frame::Farewell`] that this end has sent.
    farewell_sent: Option<u32>,
    /// The farewell that the peer's program sent to end the connection, with its epoch.
    farewell: Option<(u32, Farewell)>,
    /// The newest epoch that has ended at the other end, or will never begin there.
    pub(super) withdrawn: Option<u32>,
    /// The newest epoch that the other end has finished: it sends nothing more on that queue pair, and waits for this
    /// end.
    finished: Option<u32>,
}

impl Lane {
    /// Returns the other end's farewell for the queue pair of this epoch.
    fn farewell(&self, epoch: u32) -> Option<Farewell> {
        self.farewell.filter(|(of, _)| *of == epoch).map(|(_, farewell)| farewell)
    }

    /// Returns why the queue pair of this epoch was ended by the other end or by the stream.
    fn gone(&self, epoch: u32, closed: Option<CloseReason>) -> CloseReason {
        if self.farewell(epoch).is_some() || self.finished == Some(epoch) {
            return CloseReason::Disconnected;
        }
        closed.unwrap_or(CloseReason::PeerFailed)
    }
}

impl StreamState {
    /// Forgets the connection with this number if this end has none and neither end is making one.
    pub(super) fn forget_unknown(&mut self, number: u32) {
        let is_unknown =
            |lane: &Lane| lane.here.is_none() && !lane.is_negotiating && lane.endpoint.is_none();
        if self.lanes.get(&number).is_some_and(is_unknown) {
            self.lanes.remove(&number);
        }
    }
}

impl Shared {
    pub(super) fn new(
        (address, stream): (SocketAddr, StreamAddresses),
        is_client: bool,
        talks: bool,
        (limit, operation_timeout): (Duration, Option<Duration>),
        (limits, margin): (Option<LeaseLimits>, Duration),
    ) -> Self {
        let (state, process) = (Mutex::default(), std::process::id());
        let (changed, left) = (Notify::new(), Notify::new());
        let out = Arc::new(Outbox::new(write_head));
        let changes = Arc::new(Changes::new(Arc::clone(&out.to_send)));
        let leases = Arc::new(Leases::new(Arc::clone(&out), limits, margin));
        let (peekable, silence) = (Weak::new(), Duration::MAX);
        Self {
            state,
            out,
            changes,
            changed,
            left,
            address,
            stream,
            is_client,
            talks,
            limit,
            operation_timeout,
            leases,
            peekable,
            silence,
            process,
        }
    }

    /// Returns the address of the other end.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all waiters, which recheck their conditions.
    fn notify_waiters(&self) {
        contain_panic(|| self.changed.notify_waiters());
    }

    /// Adds a connection, or its next queue pair.
    pub(super) fn enter(&self, number: u32, connection: &Inner) {
        connection.waiters.set_control(number, &self.changes);
        let seat = connection.seat();
        let epoch = connection.look(|entry| entry.epoch);
        if let Some(member) = connection.member() {
            self.leases.enter(number, epoch, &connection.pd, member.qp.granted());
        }
        self.state().lanes.entry(number).or_default().here = Some(seat.clone());
        // Frames about the connection may have arrived earlier, and the connection may already have ended.
        self.settle(number, &seat);
        self.out.to_send.notify_one();
    }

    fn leave(&self, number: u32, epoch: u32, reason: Option<CloseReason>) {
        if reason.is_none_or(is_of_program) {
            self.send_farewell(number, epoch, Farewell::PLAIN);
        }
        // Called while no other connection can use the number.
        self.leases.leave(number);
        let mut state = self.state();
        let Some(lane) = state.lanes.get_mut(&number) else { return };
        // If a future that was reconnecting this connection was leaked (`mem::forget`), it will never reset
        // `is_negotiating`.
        (lane.here, lane.is_negotiating) = (None, false);
        let ended_sent = lane.ended_sent.max(lane.withdrawn) >= Some(epoch);
        state.forget_unknown(number);
        drop(state);
        if !ended_sent {
            self.send(number, epoch, &Frame::Ended);
        }
    }

    /// Sends a frame about a connection.
    pub(super) fn send(&self, number: u32, epoch: u32, frame: &Frame) {
        self.out.write(|bytes| frame.write(number, epoch, bytes));
    }

    /// Sends the program's farewell for the queue pair of this epoch, at most once, and only before its
    /// [`Frame::Ended`].
    fn send_farewell(&self, number: u32, epoch: u32, farewell: Farewell) {
        let mut state = self.state();
        let lane = state.lanes.get_mut(&number);
        let Some(lane) = lane.filter(|lane| lane.farewell_sent.max(lane.ended_sent) < Some(epoch))
        else {
            return;
        };
        lane.farewell_sent = Some(epoch);
        state.farewell = Some(farewell);
        self.send(number, epoch, &Frame::Farewell(farewell));
    }

    /// Sends the program's farewell for all connections.
    pub(super) fn send_farewells(&self) {
        for (number, connection) in self.connections() {
            if let Some(epoch) = connection.look(|entry| entry.epoch) {
                self.send_farewell(number, epoch, Farewell::PLAIN);
            }
        }
    }

    /// Returns the other end's farewell for a connection.
    fn farewell(&self, number: u32, epoch: u32) -> Option<Farewell> {
        self.state().lanes.get(&number)?.farewell(epoch)
    }

    /// Returns why the connection ends, if the other end has ended it or is gone. Also looks at the stream itself,
    /// because the stream's task may not have read its end yet.
    fn gone(&self, number: u32, epoch: u32) -> Option<CloseReason> {
        let state = self.state();
        let lane = state.lanes.get(&number)?;
        let is_gone = state.closed.is_some() || lane.withdrawn >= Some(epoch);
        if is_gone || lane.farewell(epoch).is_some() {
            return Some(lane.gone(epoch, state.closed));
        }
        drop(state);
        let stream = self.peekable.upgrade()?;
        match recv(&*stream, &mut [0], RecvFlags::DONTWAIT | RecvFlags::PEEK) {
            Ok((0, _)) => Some(CloseReason::Died),
            // The bytes may be the other end's farewell.
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => None,
            Err(error) => Some(CloseReason::of_stream(Some(&error.into()), self.silence)),
        }
    }

    /// Returns the farewell to send to a channel before the stream ends, if the program has ended the connection.
    pub(super) fn final_farewell(&self) -> Option<Farewell> {
        self.state().farewell
    }

    /// Settles the changed connections, then takes the bytes to send now.
    pub(super) fn take_due(&self) -> Vec<u8> {
        self.settle_changed();
        let mut due = self.out.take();
        let mut state = self.state();
        let state = &mut *state;
        for (owes, frame) in
            [(&mut state.beat_due, Frame::Beat), (&mut state.alive_due, Frame::Alive)]
        {
            if std::mem::take(owes) {
                frame.write(0, 0, &mut due);
            }
        }
        due
    }

    /// Settles the connections that have changed; see [`settle`](Self::settle). Returns their number.
    pub(super) fn settle_changed(&self) -> usize {
        let numbers = self.changes.take();
        for &number in &numbers {
            let connection = self.state().lanes.get(&number).and_then(|lane| lane.here.clone());
            if let Some(connection) = connection {
                self.settle(number, &connection);
            }
        }
        numbers.len()
    }

    /// Ends a connection here if the other end has ended it, and notifies the other end if it has ended here. Only the
    /// queue pair that is current when this is called is affected, even if it is replaced in the meantime.
    fn settle(&self, number: u32, connection: &Seat) {
        let Some(epoch) = connection.look(|entry| entry.epoch) else { return };
        let (is_closed, is_finished, gone) = {
            let state = self.state();
            let Some(lane) = state.lanes.get(&number) else { return };
            let newest = Some(epoch);
            let is_closed = state.closed.is_some() || lane.withdrawn >= newest;
            (is_closed, lane.finished == newest, lane.gone(epoch, state.closed))
        };
        if is_closed {
            connection.end_if(gone, |entry| {
                entry.epoch == epoch && !entry.is_gone() && !entry.has_refused()
            });
        } else if is_finished {
            // Stops only once, because each stop triggers another call of this function.
            connection.stop_if(gone, |entry| entry.epoch == epoch && !entry.is_draining());
            self.leases.notify_all();
            connection.end_if(gone, |entry| {
                entry.epoch == epoch && entry.is_drained() && !entry.has_refused()
            });
        }
        let has_ended = connection.look(|entry| {
            let goes_on = entry.is_draining() && !entry.has_refused();
            entry.epoch == epoch && entry.closed().is_some() && !goes_on
        });
        if has_ended == Some(true) {
            if connection.look(ConnectionEntry::closed).flatten().is_some_and(is_of_program) {
                self.send_farewell(number, epoch, Farewell::PLAIN);
            }
            self.note_end(number, epoch);
        }
    }

    /// Notifies the other end, at most once, that the queue pair of this epoch has ended. Sends nothing if the other
    /// end has already ended it.
    fn note_end(&self, number: u32, epoch: u32) {
        self.leases.end_of(number, epoch);
        let mut state = self.state();
        let lane = state.lanes.get_mut(&number).filter(|lane| lane.ended_sent < Some(epoch));
        let Some(lane) = lane else { return };
        lane.ended_sent = Some(epoch);
        if lane.withdrawn < Some(epoch) {
            self.send(number, epoch, &Frame::Ended);
        }
        drop(state);
        self.notify_waiters();
    }

    /// Returns true if all connections have ended. A channel at the other end learns this from the end of the stream.
    pub(super) fn has_ended(&self) -> bool {
        let state = self.state();
        state.lanes.values().all(|lane| lane.ended_sent.is_some())
    }

    /// Returns this end's connections with their numbers.
    fn connections(&self) -> Vec<(u32, Seat)> {
        let state = self.state();
        let lanes = state.lanes.iter();
        lanes.filter_map(|(&number, lane)| Some((number, lane.here.clone()?))).collect()
    }

    /// Handles a frame from the other end. If the frame ends a lease that must be closed before the next frame is
    /// handled, returns the closing.
    ///
    /// # Errors
    /// A description of the violation, if the other end must not send this frame now.
    pub(super) fn receive(
        &self,
        number: u32,
        epoch: u32,
        frame: Frame,
    ) -> Result<Option<Closing>, &'static str> {
        let frame = match frame {
            Frame::Lease(lease) => return self.leases.receive(number, epoch, lease),
            frame => frame,
        };
        if let Some(connection) = self.note_received(number, epoch, frame)? {
            self.settle(number, &connection);
        }
        self.notify_waiters();
        Ok(None)
    }

    /// Records a frame. Returns the connection to settle, if there is one.
    fn note_received(
        &self,
        number: u32,
        epoch: u32,
        frame: Frame,
    ) -> Result<Option<Seat>, &'static str> {
        let mut state = self.state();
        match frame {
            Frame::Offer(_) if !self.is_client && epoch <= state.newest => {
                return Err("it offers a queue pair from an old epoch");
            }
            Frame::Offer(endpoint) if !self.is_client => {
                state.newest = epoch;
                let is_stranger = |lane: &Lane| lane.here.is_none() && !lane.is_negotiating;
                let strangers = state.lanes.values().filter(|lane| is_stranger(lane)).count();
                if !state.lanes.contains_key(&number) && strangers >= MOST_STRANGERS {
                    return Err("it offers too many connections that this end has not requested");
                }
                state.lanes.entry(number).or_default().endpoint = Some((epoch, endpoint));
            }
            Frame::Answer(endpoint) if self.is_client => {
                if let Some(lane) = state.lanes.get_mut(&number).filter(|lane| lane.is_negotiating)
                {
                    lane.endpoint = Some((epoch, endpoint));
                }
            }
            Frame::Ready if !self.is_client => {
                if let Some(lane) = state.lanes.get_mut(&number).filter(|lane| lane.is_negotiating)
                {
                    lane.ready = Some(epoch);
                }
            }
            Frame::Offer(_) | Frame::Answer(_) | Frame::Ready => {
                return Err("it sends a frame of the other role");
            }
            Frame::Ended if self.is_client && epoch > state.newest => {
                return Err("it ends a queue pair that was not offered");
            }
            Frame::Ended | Frame::Finish => {
                let Some(lane) = state.lanes.get_mut(&number) else { return Ok(None) };
                let newest = match frame {
                    Frame::Ended => &mut lane.withdrawn,
                    _ => &mut lane.finished,
                };
                *newest = (*newest).max(Some(epoch));
                if lane.withdrawn >= Some(epoch) {
                    lane.endpoint.take_if(|(offered, _)| *offered <= epoch);
                }
                if lane.here.is_some() {
                    return Ok(lane.here.clone());
                }
                state.forget_unknown(number);
            }
            Frame::Farewell(farewell) => {
                let lane = state.lanes.get_mut(&number);
                if let Some(lane) = lane.filter(|lane| lane.farewell(epoch).is_none()) {
                    lane.farewell = Some((epoch, farewell));
                }
            }
            Frame::Beat => {
                state.alive_due = true;
                self.out.to_send.notify_one();
            }
            Frame::Alive | Frame::Lease(_) => {}
        }
        Ok(None)
    }

    /// Ends all connections after the stream has closed.
    pub(super) fn end(&self, reason: CloseReason) {
        self.state().closed = Some(reason);
        for (number, connection) in self.connections() {
            let Some(epoch) = connection.look(|entry| entry.epoch) else { continue };
            let gone = self.state().lanes.get(&number).map(|lane| lane.gone(epoch, Some(reason)));
            connection.end_if(gone.unwrap_or(reason), |_| true);
        }
        self.leases.end();
        self.notify_waiters();
    }

    /// Waits until `look` returns a value or the stream is closed.
    pub(super) async fn until<R>(
        &self,
        number: u32,
        mut look: impl FnMut(&mut Lane) -> Option<R>,
    ) -> Result<R, ConnectError> {
        let find = || {
            let mut state = self.state();
            let found = state.lanes.get_mut(&number).and_then(&mut look).map(Ok);
            found.or_else(|| state.closed.map(|_| Err(())))
        };
        until(&self.changed, find).await.map_err(|()| {
            let (address, awaited) = (self.address, "it had agreed on a queue pair");
            ConnectError::Closed { address, awaited }
        })
    }

    /// Waits until either end has ended the queue pair of this epoch.
    pub(super) async fn until_ended(&self, number: u32, epoch: u32) {
        let ended =
            |lane: &mut Lane| (lane.ended_sent.max(lane.withdrawn) >= Some(epoch)).then_some(());
        // The end of the stream also ends the queue pair.
        let _ = self.until(number, ended).await;
    }

    /// Requests a sign of life from the other end.
    pub(super) fn beat(&self) {
        self.state().beat_due = true;
        self.out.to_send.notify_one();
    }
}

/// Returns true if the program ended the connection without a failure.
fn is_of_program(reason: CloseReason) -> bool {
    matches!(reason, CloseReason::Asked | CloseReason::Destroyed)
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("address", &self.address).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::Rig;

    #[test]
    fn only_changed_connections_are_settled() {
        let rig = Rig::new();
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let limits = (None, Duration::ZERO);
        let shared = Shared::new((address, None), false, true, (Duration::MAX, None), limits);
        let connections = [(); 8].map(|()| rig.connect([1, 1]));
        for (number, connection) in (0..).zip(&connections) {
            shared.enter(number, connection.inner());
        }
        assert_eq!(shared.settle_changed(), 0);
        connections[3].close().unwrap();
        assert_eq!(shared.settle_changed(), 1);
        let mut ended = Vec::new();
        Frame::Ended.write(3, 0, &mut ended);
        assert!(shared.out.take().ends_with(&ended));
        assert_eq!(shared.settle_changed(), 0, "each change is handled once");
    }
}
