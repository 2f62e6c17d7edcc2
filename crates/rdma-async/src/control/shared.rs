//! What the connections of one control connection share: who they are, what the other end has said of them, and what is to
//! be said.

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
use crate::ledger::after::apart;
use crate::ledger::entry::ConnectionEntry;
use crate::link::{Inner, Seat};
use crate::sync::until;

/// Of so many connections that nobody here has asked for the other end can speak, and so many it makes at a time.
pub(super) const MOST_STRANGERS: usize = 64;

/// A connection's part of its control connection.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) shared: Arc<Shared>,
    /// 0 of the one that was made by an address.
    pub(crate) number: u32,
    /// The options of its queue pair, for the next one.
    pub(crate) qp: QueuePairBuilder<'static>,
    pub(super) task: Arc<Task>,
}

impl Member {
    /// The connection is no more: the other end is told.
    pub(crate) fn leave(&self, epoch: u32, reason: Option<CloseReason>) {
        self.shared.leave(self.number, epoch, reason);
    }

    /// Tells the other end that the program ends the connection, and why.
    pub(super) fn say_farewell(&self, epoch: u32, farewell: Farewell) {
        self.shared.say_farewell(self.number, epoch, farewell);
    }

    /// How the other end has gone, as far as the stream shows it now.
    pub(crate) fn gone(&self, epoch: u32) -> Option<CloseReason> {
        self.shared.gone(self.number, epoch)
    }

    /// The reason that the program of the other end has given.
    pub(crate) fn farewell(&self, epoch: u32) -> Option<Farewell> {
        self.shared.farewell(self.number, epoch)
    }

    /// Tells the other end that all was sent with the queue pair of that epoch, and waits until it has ended.
    pub(super) async fn finish(&self, epoch: u32) {
        self.shared.say(self.number, epoch, &Frame::Finish);
        self.shared.until_ended(self.number, epoch).await;
    }
}

/// The task that has the stream: it ends with the last connection, and the stream is closed with it.
#[derive(Debug)]
pub(crate) struct Task(pub(super) Arc<Shared>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.left.notify_one();
    }
}

/// What is shared.
pub(crate) struct Shared {
    state: Mutex<StreamState>,
    /// What is to be said.
    pub(super) out: Arc<Outbox>,
    /// All who wait are told when something was heard.
    pub(super) heard: Notify,
    /// Told when there are no connections any more.
    pub(super) left: Notify,
    /// The other end.
    pub(super) address: SocketAddr,
    pub(super) stream: StreamAddresses,
    pub(super) is_client: bool,
    /// The other end hears what is said: it is no channel.
    pub(crate) talks: bool,
    /// How long a queue pair may take to be connected, and the peer to answer.
    pub(crate) limit: Duration,
    /// What is lent and borrowed.
    pub(crate) leases: Arc<Leases>,
    /// The stream, as long as its task has it, and after how long of silence it ends.
    pub(super) to_look_at: Weak<TcpStream>,
    pub(super) silence: Duration,
    /// Which process has it: in a forked child nobody may be there to unlock it.
    process: u32,
}

/// What is under the lock.
#[derive(Default)]
pub(super) struct StreamState {
    pub(super) lanes: BTreeMap<u32, Lane>,
    /// The newest epoch that was offered.
    pub(super) newest: u32,
    /// A sign of life is wanted of the other end, or by it.
    owes_beat: bool,
    owes_alive: bool,
    /// Why the stream is closed.
    over: Option<CloseReason>,
    /// What this end has said last of why its program ends a connection.
    farewell: Option<Farewell>,
}

/// What is known of one connection.
#[derive(Default)]
pub(super) struct Lane {
    /// The one that is here, if there is one.
    pub(super) here: Option<Seat>,
    /// A queue pair for it is being made.
    pub(super) is_meeting: bool,
    /// What was offered by the client, or answered by the server.
    pub(super) endpoint: Option<(u32, Box<QueuePairEndpoint>)>,
    /// Of the queue pair that is ready at the client.
    pub(super) ready: Option<u32>,
    /// The newest whose end was said, and the newest of which it was said that the program ends it.
    told: Option<u32>,
    bidden: Option<u32>,
    /// Why the program of the other end ends the connection.
    farewell: Option<(u32, Farewell)>,
    /// The newest that has ended at the other end, or will not be.
    pub(super) withdrawn: Option<u32>,
    /// The newest with which the other end has nothing more to send, and waits for this one to end.
    finished: Option<u32>,
}

impl Lane {
    /// What the other end has said last of the queue pair of that epoch.
    fn farewell(&self, epoch: u32) -> Option<Farewell> {
        self.farewell.filter(|(of, _)| *of == epoch).map(|(_, farewell)| farewell)
    }

    /// Why the queue pair of that epoch has ended, if the other end has ended it, or the stream for this reason.
    fn gone(&self, epoch: u32, over: Option<CloseReason>) -> CloseReason {
        if self.farewell(epoch).is_some() || self.finished == Some(epoch) {
            return CloseReason::Disconnected;
        }
        over.unwrap_or(CloseReason::PeerFailed)
    }
}

impl StreamState {
    /// Forgets a connection that is not here, and that neither end speaks of.
    pub(super) fn forget_unknown(&mut self, number: u32) {
        let is_unknown =
            |lane: &Lane| lane.here.is_none() && !lane.is_meeting && lane.endpoint.is_none();
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
        limit: Duration,
        (limits, margin): (Option<LeaseLimits>, Duration),
    ) -> Self {
        let (state, process) = (Mutex::default(), std::process::id());
        let (heard, left) = (Notify::new(), Notify::new());
        let out = Arc::new(Outbox::new(write_head));
        let leases = Arc::new(Leases::new(Arc::clone(&out), limits, margin));
        let (to_look_at, silence) = (Weak::new(), Duration::MAX);
        Self {
            state,
            out,
            heard,
            left,
            address,
            stream,
            is_client,
            talks,
            limit,
            leases,
            to_look_at,
            silence,
            process,
        }
    }

    pub(super) fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All who wait look again.
    fn tell(&self) {
        apart(|| self.heard.notify_waiters());
    }

    /// A connection is here, or has another queue pair.
    pub(super) fn enter(&self, number: u32, connection: &Inner) {
        connection.rooms.tell(&self.out.to_say);
        let seat = connection.seat();
        let epoch = connection.look(|entry| entry.epoch);
        if let Some(member) = connection.member() {
            self.leases.enter(number, epoch, &connection.pd, member.qp.granted());
        }
        self.state().lanes.entry(number).or_default().here = Some(seat.clone());
        // What was heard of it before, and what has become of it.
        self.settle(number, &seat);
        self.out.to_say.notify_one();
    }

    fn leave(&self, number: u32, epoch: u32, reason: Option<CloseReason>) {
        if reason.is_none_or(is_of_program) {
            self.say_farewell(number, epoch, Farewell::PLAIN);
        }
        // As long as no other connection can have the number.
        self.leases.leave(number);
        let mut state = self.state();
        let Some(lane) = state.lanes.get_mut(&number) else { return };
        // Nobody reconnects it any more: a future that did so was forgotten.
        (lane.here, lane.is_meeting) = (None, false);
        let told = lane.told.max(lane.withdrawn) >= Some(epoch);
        state.forget_unknown(number);
        drop(state);
        if !told {
            self.say(number, epoch, &Frame::Ended);
        }
    }

    /// Says that of a connection.
    pub(super) fn say(&self, number: u32, epoch: u32, frame: &Frame) {
        self.out.write(|bytes| frame.write(number, epoch, bytes));
    }

    /// Says that the program ends the connection, once.
    fn say_farewell(&self, number: u32, epoch: u32, farewell: Farewell) {
        let mut state = self.state();
        let lane = state.lanes.get_mut(&number);
        let Some(lane) = lane.filter(|lane| lane.bidden.max(lane.told) < Some(epoch)) else {
            return;
        };
        lane.bidden = Some(epoch);
        state.farewell = Some(farewell);
        self.say(number, epoch, &Frame::Farewell(farewell));
    }

    /// Says that the program ends all connections.
    pub(super) fn say_farewells(&self) {
        for (number, connection) in self.connections() {
            if let Some(epoch) = connection.look(|entry| entry.epoch) {
                self.say_farewell(number, epoch, Farewell::PLAIN);
            }
        }
    }

    /// What the other end has said of why its program ends a connection.
    fn farewell(&self, number: u32, epoch: u32) -> Option<Farewell> {
        self.state().lanes.get(&number)?.farewell(epoch)
    }

    /// How the other end has gone, as far as the stream shows it now: its task may not have read that yet.
    fn gone(&self, number: u32, epoch: u32) -> Option<CloseReason> {
        let state = self.state();
        let lane = state.lanes.get(&number)?;
        let is_gone = state.over.is_some() || lane.withdrawn >= Some(epoch);
        if is_gone || lane.farewell(epoch).is_some() {
            return Some(lane.gone(epoch, state.over));
        }
        drop(state);
        let stream = self.to_look_at.upgrade()?;
        match recv(&*stream, &mut [0], RecvFlags::DONTWAIT | RecvFlags::PEEK) {
            Ok((0, _)) => Some(CloseReason::Died),
            // The other end may have said why.
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => None,
            Err(error) => Some(CloseReason::of_stream(Some(&error.into()), self.silence)),
        }
    }

    /// What a channel is told at the end of the stream, if the program has ended the connection.
    pub(super) fn last_word(&self) -> Option<Farewell> {
        self.state().farewell
    }

    /// What is to be said now. Those whose end was not said yet are among it, and those that are done with what they had to
    /// send are closed.
    pub(super) fn take_due(&self) -> Vec<u8> {
        self.settle_all();
        let mut due = self.out.take();
        let mut state = self.state();
        let state = &mut *state;
        for (owes, frame) in
            [(&mut state.owes_beat, Frame::Beat), (&mut state.owes_alive, Frame::Alive)]
        {
            if std::mem::take(owes) {
                frame.write(0, 0, &mut due);
            }
        }
        due
    }

    /// Ends, and notes as ended, what has come to its end.
    pub(super) fn settle_all(&self) {
        for (number, connection) in self.connections() {
            self.settle(number, &connection);
        }
    }

    /// Brings together what the other end has said of a connection and what has become of it here. Each is about the queue
    /// pair of an epoch, which another one may follow meanwhile.
    fn settle(&self, number: u32, connection: &Seat) {
        let Some(epoch) = connection.look(|entry| entry.epoch) else { return };
        let (is_over, is_finished, gone) = {
            let state = self.state();
            let Some(lane) = state.lanes.get(&number) else { return };
            let newest = Some(epoch);
            let is_over = state.over.is_some() || lane.withdrawn >= newest;
            (is_over, lane.finished == newest, lane.gone(epoch, state.over))
        };
        if is_over {
            connection.end_if(gone, |entry| {
                entry.epoch == epoch && !entry.is_gone() && !entry.has_refused()
            });
        } else if is_finished {
            // Once: each of these has this looked at again.
            connection.stop_if(gone, |entry| entry.epoch == epoch && !entry.is_draining());
            self.leases.tell_end();
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
                self.say_farewell(number, epoch, Farewell::PLAIN);
            }
            self.note_end(number, epoch);
        }
    }

    /// Says that the queue pair of that epoch has ended, once, unless the other end has said so.
    fn note_end(&self, number: u32, epoch: u32) {
        self.leases.end_of(number, epoch);
        let mut state = self.state();
        let lane = state.lanes.get_mut(&number).filter(|lane| lane.told < Some(epoch));
        let Some(lane) = lane else { return };
        lane.told = Some(epoch);
        if lane.withdrawn < Some(epoch) {
            self.say(number, epoch, &Frame::Ended);
        }
        drop(state);
        self.tell();
    }

    /// Whether the only connection has ended, whose other end is told so by the end of the stream.
    pub(super) fn has_ended(&self) -> bool {
        let state = self.state();
        state.lanes.values().all(|lane| lane.told.is_some())
    }

    /// Those that are here.
    fn connections(&self) -> Vec<(u32, Seat)> {
        let state = self.state();
        let lanes = state.lanes.iter();
        lanes.filter_map(|(&number, lane)| Some((number, lane.here.clone()?))).collect()
    }

    /// Takes what the other end says. What is to be waited for before the next that it says.
    ///
    /// # Errors
    /// In words, if it cannot say that.
    pub(super) fn hear(
        &self,
        number: u32,
        epoch: u32,
        frame: Frame,
    ) -> Result<Option<Closing>, &'static str> {
        let frame = match frame {
            Frame::Lease(lease) => return self.leases.hear(number, epoch, lease),
            frame => frame,
        };
        if let Some(connection) = self.note_heard(number, epoch, frame)? {
            self.settle(number, &connection);
        }
        self.tell();
        Ok(None)
    }

    /// Notes it. The connection that it ends, if there is one.
    fn note_heard(
        &self,
        number: u32,
        epoch: u32,
        frame: Frame,
    ) -> Result<Option<Seat>, &'static str> {
        let mut state = self.state();
        match frame {
            Frame::Offer(_) if !self.is_client && epoch <= state.newest => {
                return Err("it offers a queue pair of an epoch that was");
            }
            Frame::Offer(endpoint) if !self.is_client => {
                state.newest = epoch;
                let is_stranger = |lane: &Lane| lane.here.is_none() && !lane.is_meeting;
                let strangers = state.lanes.values().filter(|lane| is_stranger(lane)).count();
                if !state.lanes.contains_key(&number) && strangers >= MOST_STRANGERS {
                    return Err("it offers more connections than are awaited");
                }
                state.lanes.entry(number).or_default().endpoint = Some((epoch, endpoint));
            }
            Frame::Answer(endpoint) if self.is_client => {
                if let Some(lane) = state.lanes.get_mut(&number).filter(|lane| lane.is_meeting) {
                    lane.endpoint = Some((epoch, endpoint));
                }
            }
            Frame::Ready if !self.is_client => {
                if let Some(lane) = state.lanes.get_mut(&number).filter(|lane| lane.is_meeting) {
                    lane.ready = Some(epoch);
                }
            }
            Frame::Offer(_) | Frame::Answer(_) | Frame::Ready => {
                return Err("it says what the other end has to say");
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
                state.owes_alive = true;
                self.out.to_say.notify_one();
            }
            Frame::Alive | Frame::Lease(_) => {}
        }
        Ok(None)
    }

    /// The stream is closed, and its connections end with it.
    pub(super) fn end(&self, reason: CloseReason) {
        self.state().over = Some(reason);
        for (number, connection) in self.connections() {
            let Some(epoch) = connection.look(|entry| entry.epoch) else { continue };
            let gone = self.state().lanes.get(&number).map(|lane| lane.gone(epoch, Some(reason)));
            connection.end_if(gone.unwrap_or(reason), |_| true);
        }
        self.leases.end();
        self.tell();
    }

    /// Ready when the other end has said that, or can say nothing any more.
    pub(super) async fn until<R>(
        &self,
        number: u32,
        mut look: impl FnMut(&mut Lane) -> Option<R>,
    ) -> Result<R, ConnectError> {
        let find = || {
            let mut state = self.state();
            let found = state.lanes.get_mut(&number).and_then(&mut look).map(Ok);
            found.or_else(|| state.over.map(|_| Err(())))
        };
        until(&self.heard, find).await.map_err(|()| {
            let (address, awaited) = (self.address, "it had agreed on a queue pair");
            ConnectError::Closed { address, awaited }
        })
    }

    /// Ready when the other end has ended the queue pair of that epoch.
    pub(super) async fn until_ended(&self, number: u32, epoch: u32) {
        let ended = |lane: &mut Lane| (lane.told.max(lane.withdrawn) >= Some(epoch)).then_some(());
        // If the stream is closed, it has ended, too.
        let _ = self.until(number, ended).await;
    }

    /// Wants a sign of life.
    pub(super) fn beat(&self) {
        self.state().owes_beat = true;
        self.out.to_say.notify_one();
    }
}

/// Whether the program has ended a connection, and nothing has failed.
fn is_of_program(reason: CloseReason) -> bool {
    matches!(reason, CloseReason::Asked | CloseReason::Destroyed)
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("address", &self.address).finish_non_exhaustive()
    }
}
