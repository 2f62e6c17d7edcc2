//! What the connections of one control connection share: who they are, what the other end has said of them, and what is to
//! be said.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdma_connect::{CloseReason, ConnectError, StreamAddresses};
use rdma_qp::{QueuePairBuilder, QueuePairEndpoint};
use tokio::sync::Notify;

use super::frame::{Frame, write_head};
use crate::lease::limits::LeaseLimits;
use crate::lease::outbox::Outbox;
use crate::lease::table::{Closing, Leases};
use crate::ledger::after::apart;
use crate::link::{Inner, Seat};
use crate::sync::until;

/// Of so many connections that nobody here has asked for the other end can speak, and so many it makes at a time.
const MOST_STRANGERS: usize = 64;

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
    pub(crate) fn leave(&self, epoch: u32) {
        self.shared.leave(self.number, epoch);
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
    state: Mutex<State>,
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
    /// Which process has it: in a forked child nobody may be there to unlock it.
    process: u32,
}

/// What is under the lock.
#[derive(Default)]
struct State {
    lanes: BTreeMap<u32, Lane>,
    /// The newest epoch that was offered.
    newest: u32,
    /// A sign of life is wanted of the other end, or by it.
    owes_beat: bool,
    owes_alive: bool,
    /// The stream is closed.
    is_over: bool,
}

/// What is known of one connection.
#[derive(Default)]
struct Lane {
    /// The one that is here, if there is one.
    here: Option<Seat>,
    /// A queue pair for it is being made.
    is_meeting: bool,
    /// What was offered by the client, or answered by the server.
    endpoint: Option<(u32, Box<QueuePairEndpoint>)>,
    /// Of the queue pair that is ready at the client.
    ready: Option<u32>,
    /// The newest whose end was said.
    told: Option<u32>,
    /// The newest that has ended at the other end, or will not be.
    withdrawn: Option<u32>,
    /// The newest with which the other end has nothing more to send, and waits for this one to end.
    finished: Option<u32>,
}

impl State {
    /// Forgets a connection that is not here, and that neither end speaks of.
    fn forget_unknown(&mut self, number: u32) {
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
        Self { state, out, heard, left, address, stream, is_client, talks, limit, leases, process }
    }

    pub(super) fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }

    fn state(&self) -> MutexGuard<'_, State> {
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
        let epoch = connection.look(|place| place.epoch);
        if let Some(member) = connection.member() {
            self.leases.enter(number, epoch, &connection.pd, member.qp.granted());
        }
        self.state().lanes.entry(number).or_default().here = Some(seat.clone());
        // What was heard of it before, and what has become of it.
        self.settle(number, &seat);
        self.out.to_say.notify_one();
    }

    fn leave(&self, number: u32, epoch: u32) {
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
        let Some(epoch) = connection.look(|place| place.epoch) else { return };
        let (is_over, is_finished) = {
            let state = self.state();
            let Some(lane) = state.lanes.get(&number) else { return };
            let newest = Some(epoch);
            (state.is_over || lane.withdrawn >= newest, lane.finished == newest)
        };
        let gone = CloseReason::Gone;
        if is_over {
            connection.end_if(gone, |place| {
                place.epoch == epoch && !place.is_gone() && !place.has_refused()
            });
        } else if is_finished {
            // Once: each of these has this looked at again.
            connection.stop_if(gone, |place| place.epoch == epoch && !place.is_draining());
            self.leases.tell_end();
            connection.end_if(gone, |place| {
                place.epoch == epoch && place.is_drained() && !place.has_refused()
            });
        }
        let has_ended = connection.look(|place| {
            let goes_on = place.is_draining() && !place.has_refused();
            place.epoch == epoch && place.closed().is_some() && !goes_on
        });
        if has_ended == Some(true) {
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
        self.state().is_over = true;
        self.connections().iter().for_each(|(_, connection)| connection.end_if(reason, |_| true));
        self.leases.end();
        self.tell();
    }

    /// Ready when the other end has said that, or can say nothing any more.
    async fn until<R>(
        &self,
        number: u32,
        mut look: impl FnMut(&mut Lane) -> Option<R>,
    ) -> Result<R, ConnectError> {
        let find = || {
            let mut state = self.state();
            let found = state.lanes.get_mut(&number).and_then(&mut look).map(Ok);
            found.or_else(|| state.is_over.then_some(Err(())))
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

/// A queue pair that is being made with the other end. Dropped, the other end is told that it will not be.
pub(super) struct Meeting<'s> {
    shared: &'s Shared,
    number: u32,
    /// There is a connection, which is to have the queue pair.
    is_here: bool,
    /// What was said last of it.
    epoch: Option<u32>,
    /// What may be lent to, and is not there yet.
    entered: Option<u32>,
}

/// What the other end has done about it.
pub(super) enum Met<T> {
    Yes(T),
    /// It has given up, and may begin again.
    Withdrawn,
}

impl<'s> Meeting<'s> {
    /// For a connection that is here, or is not.
    ///
    /// # Errors
    /// [`ConnectError::NoControl`], [`ConnectError::NumberTaken`], and [`ConnectError::Busy`] if this end makes as many
    /// already as the other one remembers.
    pub(super) fn begin(
        shared: &'s Shared,
        number: u32,
        is_here: bool,
    ) -> Result<Self, ConnectError> {
        if !shared.talks {
            return Err(ConnectError::NoControl);
        }
        let mut state = shared.state();
        let meeting = state.lanes.values().filter(|lane| lane.is_meeting).count();
        if shared.is_client && meeting >= MOST_STRANGERS {
            let why = format!(
                "this end makes {MOST_STRANGERS} queue pairs by the control connection already: wait for some"
            );
            return Err(ConnectError::Busy(why.into()));
        }
        let lane = state.lanes.entry(number).or_default();
        if lane.is_meeting || lane.here.is_some() != is_here {
            return Err(ConnectError::NumberTaken { number });
        }
        (lane.is_meeting, lane.ready) = (true, None);
        Ok(Self { shared, number, is_here, epoch: None, entered: None })
    }

    /// The client's first part.
    pub(super) fn offer(&mut self, endpoint: QueuePairEndpoint) -> u32 {
        let mut state = self.shared.state();
        state.newest += 1;
        let epoch = state.newest;
        // Under the same lock: the server hears them in this order.
        self.shared.say(self.number, epoch, &Frame::Offer(Box::new(endpoint)));
        drop(state);
        self.epoch = Some(epoch);
        epoch
    }

    pub(super) fn say(&mut self, epoch: u32, frame: &Frame) {
        self.epoch = Some(epoch);
        self.shared.say(self.number, epoch, frame);
    }

    /// What the server answers.
    pub(super) async fn answered(
        &self,
        epoch: u32,
    ) -> Result<Met<QueuePairEndpoint>, ConnectError> {
        let look = |lane: &mut Lane| {
            if let Some((_, endpoint)) = lane.endpoint.take_if(|(answered, _)| *answered == epoch) {
                return Some(Met::Yes(*endpoint));
            }
            (lane.withdrawn >= Some(epoch)).then_some(Met::Withdrawn)
        };
        self.shared.until(self.number, look).await
    }

    /// Whether the other end has given up.
    pub(super) fn is_withdrawn(&self, epoch: u32) -> bool {
        let state = self.shared.state();
        state.lanes.get(&self.number).is_some_and(|lane| lane.withdrawn >= Some(epoch))
    }

    /// What the client offers.
    pub(super) async fn offered(&mut self) -> Result<(u32, QueuePairEndpoint), ConnectError> {
        let look = |lane: &mut Lane| lane.endpoint.take();
        let (epoch, endpoint) = self.shared.until(self.number, look).await?;
        // Whatever becomes of it, the client is told.
        self.epoch = Some(epoch);
        Ok((epoch, *endpoint))
    }

    /// Whether the client is ready.
    pub(super) async fn ready(&self, epoch: u32) -> Result<Met<()>, ConnectError> {
        let look = |lane: &mut Lane| {
            if lane.ready == Some(epoch) {
                return Some(Met::Yes(()));
            }
            let is_newer = lane.endpoint.as_ref().is_some_and(|(offered, _)| *offered > epoch);
            (lane.withdrawn >= Some(epoch) || is_newer).then_some(Met::Withdrawn)
        };
        self.shared.until(self.number, look).await
    }

    /// The other end may lend something to the queue pair from now on.
    pub(super) fn enter(&mut self, epoch: u32, qp: &QueuePairBuilder<'static>) {
        self.shared.leases.enter(self.number, epoch, qp.pd(), qp.granted());
        self.entered = Some(epoch);
    }

    /// It was withdrawn by the other end.
    pub(super) fn forget(&mut self) {
        self.epoch = None;
        self.take_back();
    }

    /// Nothing can be lent to a queue pair that will not be.
    fn take_back(&mut self) {
        if let Some(epoch) = self.entered.take() {
            let leases = &self.shared.leases;
            if self.is_here {
                leases.end_of(self.number, epoch);
            } else {
                leases.leave(self.number);
            }
        }
    }

    /// The queue pair is there.
    pub(super) fn done(mut self, epoch: u32) {
        if self.shared.is_client {
            self.say(epoch, &Frame::Ready);
        }
        (self.epoch, self.entered) = (None, None);
    }
}

impl Drop for Meeting<'_> {
    fn drop(&mut self) {
        if !self.shared.is_of_this_process() {
            return;
        }
        self.take_back();
        let mut state = self.shared.state();
        if let Some(lane) = state.lanes.get_mut(&self.number) {
            lane.is_meeting = false;
            if self.shared.is_client {
                lane.endpoint = None;
            }
        }
        state.forget_unknown(self.number);
        // Under the same lock: the server hears of it before it hears of one more.
        if let Some(epoch) = self.epoch {
            self.shared.say(self.number, epoch, &Frame::Ended);
        }
        drop(state);
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("address", &self.address).finish_non_exhaustive()
    }
}
