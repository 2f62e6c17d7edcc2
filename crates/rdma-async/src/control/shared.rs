//! What the connections of one control connection share: who they are, what the other end has said of them, and what is to
//! be said.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use rdma_channel::{CloseReason, ConnectError};
use rdma_qp::{QueuePairBuilder, QueuePairEndpoint};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::frame::Frame;
use crate::ledger::after::apart;
use crate::link::Inner;

/// So many connections that are not here the other end can speak of.
const MOST_STRANGERS: usize = 64;

/// A connection's part of its control connection.
#[derive(Debug)]
pub(crate) struct Member {
    pub(super) shared: Arc<Shared>,
    /// 0 of the one that was made by an address.
    pub(super) number: u32,
    /// The options of its queue pair, for the next one.
    pub(super) qp: QueuePairBuilder<'static>,
    pub(super) task: Arc<Task>,
}

impl Member {
    /// The connection is no more: the other end is told.
    pub(crate) fn leave(&self) {
        self.shared.leave(self.number);
    }

    /// Which of its queue pairs it has.
    pub(crate) fn epoch(&self) -> u32 {
        let state = self.shared.state();
        state.lanes.get(&self.number).map_or(0, |lane| lane.epoch)
    }

    /// Tells the other end that all was sent, and waits until it has ended.
    pub(super) async fn finish(&self) {
        let epoch = self.epoch();
        self.shared.say(self.number, epoch, &Frame::Finish);
        self.shared.until_ended(self.number, epoch).await;
    }
}

/// The task that has the stream: it ends with the last connection, and the stream is closed with it.
#[derive(Debug)]
pub(crate) struct Task(pub(super) OnceLock<AbortHandle>);

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(task) = self.0.get() {
            task.abort();
        }
    }
}

/// What is shared.
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Told when there is something to say.
    pub(super) to_say: Arc<Notify>,
    /// All who wait are told when something was heard.
    pub(super) heard: Notify,
    /// The other end.
    pub(super) address: SocketAddr,
    pub(super) is_client: bool,
    /// The other end hears what is said: it is no channel.
    pub(super) talks: bool,
    /// How long a queue pair may take to be connected.
    pub(super) limit: Duration,
}

/// What is under the lock.
#[derive(Default)]
struct State {
    lanes: BTreeMap<u32, Lane>,
    /// The newest epoch that was offered.
    newest: u32,
    to_say: Vec<u8>,
    /// The other end wants a sign of life.
    owes_alive: bool,
    /// The stream is closed.
    is_over: bool,
}

/// What is known of one connection.
#[derive(Default)]
struct Lane {
    /// The one that is here, if there is one.
    connection: Weak<Inner>,
    is_here: bool,
    /// Of the queue pair that is here.
    epoch: u32,
    /// Its end was said, or heard.
    is_ended: bool,
    /// The other end has nothing more to send, and waits for this one to end.
    is_to_finish: bool,
    /// A queue pair for it is being made.
    is_meeting: bool,
    /// What was offered by the client, or answered by the server.
    endpoint: Option<(u32, Box<QueuePairEndpoint>)>,
    /// Of the queue pair that is ready at the client.
    ready: Option<u32>,
    /// The newest that has ended, or will not be.
    withdrawn: Option<u32>,
}

impl Lane {
    fn renew(&mut self, epoch: u32) {
        (self.epoch, self.is_ended, self.is_to_finish) = (epoch, false, false);
    }
}

impl Shared {
    pub(super) fn new(address: SocketAddr, is_client: bool, talks: bool, limit: Duration) -> Self {
        let (state, to_say, heard) = (Mutex::default(), Arc::default(), Notify::new());
        Self { state, to_say, heard, address, is_client, talks, limit }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All who wait look again.
    fn tell(&self) {
        apart(|| self.heard.notify_waiters());
    }

    /// A connection is here.
    pub(super) fn enter(&self, number: u32, epoch: u32, connection: &Arc<Inner>) {
        connection.rooms.tell(&self.to_say);
        let mut state = self.state();
        let lane = state.lanes.entry(number).or_default();
        (lane.connection, lane.is_here) = (Arc::downgrade(connection), true);
        lane.renew(epoch);
        drop(state);
        // It may have ended before.
        self.to_say.notify_one();
    }

    /// It has another queue pair.
    pub(super) fn renew(&self, number: u32, epoch: u32) {
        if let Some(lane) = self.state().lanes.get_mut(&number) {
            lane.renew(epoch);
        }
        self.to_say.notify_one();
    }

    fn leave(&self, number: u32) {
        let mut state = self.state();
        let Some(lane) = state.lanes.get_mut(&number) else { return };
        lane.is_here = false;
        let (epoch, told) = (lane.epoch, lane.is_ended);
        if lane.endpoint.is_none() {
            state.lanes.remove(&number);
        }
        if !told {
            Frame::Ended.write(number, epoch, &mut state.to_say);
        }
        drop(state);
        self.to_say.notify_one();
    }

    /// Says that of a connection.
    pub(super) fn say(&self, number: u32, epoch: u32, frame: &Frame) {
        frame.write(number, epoch, &mut self.state().to_say);
        self.to_say.notify_one();
    }

    /// What is to be said now. Those whose end was not said yet are among it, and those that are done with what they had to
    /// send are closed.
    pub(super) fn take_due(&self) -> Vec<u8> {
        for (number, connection) in self.connections() {
            if self.is_to_finish(number) && connection.is_drained() {
                connection.end(CloseReason::Gone);
            }
            if connection.has_ended() {
                self.note_end(number);
            }
        }
        let mut state = self.state();
        if std::mem::take(&mut state.owes_alive) {
            Frame::Alive.write(0, 0, &mut state.to_say);
        }
        std::mem::take(&mut state.to_say)
    }

    fn is_to_finish(&self, number: u32) -> bool {
        self.state().lanes.get(&number).is_some_and(|lane| lane.is_to_finish)
    }

    /// Says that the queue pair of a connection has ended, once.
    fn note_end(&self, number: u32) {
        let mut state = self.state();
        let state = &mut *state;
        if let Some(lane) = state.lanes.get_mut(&number)
            && !std::mem::replace(&mut lane.is_ended, true)
        {
            Frame::Ended.write(number, lane.epoch, &mut state.to_say);
            self.tell();
        }
    }

    /// Whether the only connection has ended, whose other end is told so by the end of the stream.
    pub(super) fn has_ended(&self) -> bool {
        let state = self.state();
        state.lanes.values().all(|lane| lane.is_ended)
    }

    /// Those that are here. Dropped without the lock, since each may be the last owner.
    fn connections(&self) -> Vec<(u32, Arc<Inner>)> {
        let state = self.state();
        let lanes = state.lanes.iter().filter(|(_, lane)| lane.is_here);
        lanes.filter_map(|(&number, lane)| Some((number, lane.connection.upgrade()?))).collect()
    }

    /// Takes what the other end says.
    ///
    /// # Errors
    /// In words, if it cannot say that.
    pub(super) fn hear(&self, number: u32, epoch: u32, frame: Frame) -> Result<(), &'static str> {
        let mut state = self.state();
        let strangers = state.lanes.values().filter(|lane| !lane.is_here).count();
        let is_known = state.lanes.contains_key(&number);
        match frame {
            Frame::Offer(endpoint) if !self.is_client => {
                if !is_known && strangers >= MOST_STRANGERS {
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
            Frame::Ended => {
                let Some(lane) = state.lanes.get_mut(&number) else { return Ok(()) };
                lane.withdrawn = lane.withdrawn.max(Some(epoch));
                lane.endpoint.take_if(|(offered, _)| *offered <= epoch);
                let ends = lane.is_here && lane.epoch == epoch;
                let ends = ends && !std::mem::replace(&mut lane.is_ended, true);
                let connection = ends.then(|| lane.connection.upgrade()).flatten();
                if !lane.is_here && !lane.is_meeting && lane.endpoint.is_none() {
                    state.lanes.remove(&number);
                }
                drop(state);
                if let Some(connection) = connection {
                    connection.end(CloseReason::Gone);
                }
            }
            Frame::Finish => {
                let lane = state.lanes.get_mut(&number);
                let connection =
                    lane.filter(|lane| lane.is_here && lane.epoch == epoch).and_then(|lane| {
                        lane.is_to_finish = true;
                        lane.connection.upgrade()
                    });
                drop(state);
                if let Some(connection) = connection {
                    connection.ledger.stop(connection.place, CloseReason::Gone);
                }
                // It may have nothing to send.
                self.to_say.notify_one();
            }
            Frame::Beat => {
                state.owes_alive = true;
                drop(state);
                self.to_say.notify_one();
            }
            Frame::Alive => {}
        }
        self.tell();
        Ok(())
    }

    /// The stream is closed. Those that end with it.
    pub(super) fn end(&self) -> Vec<Arc<Inner>> {
        self.state().is_over = true;
        self.tell();
        self.connections().into_iter().map(|(_, connection)| connection).collect()
    }

    /// Ready when the other end has said that, or can say nothing any more.
    async fn until<R>(
        &self,
        number: u32,
        mut look: impl FnMut(&mut Lane) -> Option<R>,
    ) -> Result<R, ConnectError> {
        let heard = self.heard.notified();
        tokio::pin!(heard);
        loop {
            // Before the look, so that none is missed.
            heard.as_mut().enable();
            {
                let mut state = self.state();
                if let Some(found) = state.lanes.get_mut(&number).and_then(&mut look) {
                    return Ok(found);
                }
                if state.is_over {
                    let (address, awaited) = (self.address, "it had agreed on a queue pair");
                    return Err(ConnectError::Closed { address, awaited });
                }
            }
            heard.as_mut().await;
            heard.set(self.heard.notified());
        }
    }

    /// Ready when the other end has ended the queue pair of that epoch.
    pub(super) async fn until_ended(&self, number: u32, epoch: u32) {
        let ended = |lane: &mut Lane| (lane.is_ended || lane.epoch != epoch).then_some(());
        // If the stream is closed, it has ended, too.
        let _ = self.until(number, ended).await;
    }

    /// Wants a sign of life.
    pub(super) fn beat(&self) {
        self.say(0, 0, &Frame::Beat);
    }
}

/// A queue pair that is being made with the other end. Dropped, the other end is told that it will not be.
pub(super) struct Meeting<'s> {
    shared: &'s Shared,
    number: u32,
    /// What was said last of it.
    epoch: Option<u32>,
}

/// What the other end has done about it.
pub(super) enum Met<T> {
    Yes(T),
    /// It has given up, and may begin again.
    Withdrawn,
}

impl<'s> Meeting<'s> {
    /// For a connection that is here, or is not.
    pub(super) fn begin(
        shared: &'s Shared,
        number: u32,
        is_here: bool,
    ) -> Result<Self, ConnectError> {
        if !shared.talks {
            return Err(ConnectError::NoControl);
        }
        let mut state = shared.state();
        let lane = state.lanes.entry(number).or_default();
        if lane.is_meeting || lane.is_here != is_here {
            return Err(ConnectError::NumberTaken { number });
        }
        (lane.is_meeting, lane.ready) = (true, None);
        Ok(Self { shared, number, epoch: None })
    }

    /// The client's first part.
    pub(super) fn offer(&mut self, endpoint: QueuePairEndpoint) -> u32 {
        let mut state = self.shared.state();
        state.newest += 1;
        let epoch = state.newest;
        drop(state);
        self.say(epoch, &Frame::Offer(Box::new(endpoint)));
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

    /// What the client offers.
    pub(super) async fn offered(&self) -> Result<(u32, QueuePairEndpoint), ConnectError> {
        let look = |lane: &mut Lane| lane.endpoint.take();
        let (epoch, endpoint) = self.shared.until(self.number, look).await?;
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

    /// It was withdrawn by the other end.
    pub(super) fn forget(&mut self) {
        self.epoch = None;
    }

    /// The queue pair is there.
    pub(super) fn done(mut self, epoch: u32) {
        if self.shared.is_client {
            self.say(epoch, &Frame::Ready);
        }
        self.forget();
    }
}

impl Drop for Meeting<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        if let Some(lane) = state.lanes.get_mut(&self.number) {
            lane.is_meeting = false;
            if self.shared.is_client {
                lane.endpoint = None;
            }
            if !lane.is_here && lane.endpoint.is_none() {
                state.lanes.remove(&self.number);
            }
        }
        drop(state);
        if let Some(epoch) = self.epoch {
            self.shared.say(self.number, epoch, &Frame::Ended);
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("address", &self.address).finish_non_exhaustive()
    }
}
