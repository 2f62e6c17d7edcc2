//! The sending end of a connection to one slot of another process. It has a message ring in memory that both processes
//! share, and a connection on which each side notifies the other.

mod writing;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rdma_types::Psn;
use rustix::event::epoll;
use rustix::io::Errno;

use super::claims::Claims;
use super::handshake::Handshake;
use super::mapped::received::{Arrived, Received};
use super::questions::covers;
use super::queues::{Message, Queues};
use super::shared::RingSender;
use super::silence::Silence;
use super::socket::{NOTIFICATIONS, receive_file, receive_notification_or_find_file};
use crate::device::Device;
use crate::engine::adapter::notices::{Endpoints, Reason};
use crate::engine::wire::grant::Grant;
use crate::engine::wire::letter::{BURST_BYTES, Letter};
use crate::engine::wire::single::Single;
use crate::engine::wire::word::WordKey;
use crate::engine::wire::{Carrier, Fill};
use crate::fabric::clock::Time;
use crate::fabric::run_queue::{Entry, Task};
use crate::link::descriptor::Descriptor;
use crate::link::driver::{Driver, Paused, SocketEvent, Token, Watched};
use crate::link::executed::attention::Attention;
use crate::link::outbox::new_buffer;
use crate::memory::copy::Segment;
use crate::sync::{AtomicBool, Mutex, Ordering, locked_for_calls, locked_in_models as locked};

/// The time after which the datagrams that wait for a process are dropped, if the process reads nothing. Packets of
/// connections wait until the process reads them or exits.
const STALL: Duration = Duration::from_secs(1);

/// The delay before another attempt to send the ring.
const RETRY: Duration = Duration::from_millis(100);

/// The delay before a question is sent again after it failed for lack of memory. Also the delay before another attempt
/// to receive a file.
pub(super) const AGAIN: Duration = Duration::from_millis(1);

/// A slot of another process.
#[derive(Debug)]
pub(crate) struct Neighbor {
    driver: &'static Driver,
    device: &'static Device,
    connection: Descriptor,
    ring: RingSender,
    handshake: Handshake,
    /// The token under which the driver knows this neighbor.
    pub(super) token: Token,
    queues: Mutex<Queues>,
    /// The words in the ring that show what the process has executed, and the connections that read these words.
    claims: Claims,
    /// Locked by the thread that writes, so that messages stay in order. The message is empty while it is not locked.
    writing: Mutex<Message>,
    /// Whether the process must be notified of what was written.
    owes_notification: AtomicBool,
    /// The memory of the process that this one has mapped.
    received: Received,
    /// Whether receiving files is postponed, because other processes hold up all threads that could close them, this
    /// process forks, or it cannot open another file.
    paused: Paused,
    /// The neighbor itself.
    own: Weak<Self>,
    /// The way in which this process notices changed words.
    attention: Attention,
    /// Whether the process has exited or violated the protocol.
    gone: AtomicBool,
    pub(super) entry: Entry,
}

impl Neighbor {
    pub(super) fn new(
        driver: &'static Driver,
        device: &'static Device,
        connection: Descriptor,
        (ring, handshake): (RingSender, Handshake),
        token: Token,
    ) -> Arc<Self> {
        Arc::new_cyclic(|weak: &Weak<Self>| Self {
            driver,
            device,
            connection,
            ring,
            handshake,
            token,
            queues: Mutex::default(),
            claims: Claims::default(),
            writing: Mutex::default(),
            owes_notification: AtomicBool::new(false),
            received: Received::default(),
            paused: Paused::default(),
            own: Weak::clone(weak),
            attention: Attention::default(),
            gone: AtomicBool::new(false),
            entry: Entry::new(device.fabric, weak.clone()),
        })
    }

    /// Queues a turn for each of these senders.
    fn queue_turns(&self, all: &[Weak<dyn Task>]) {
        for sender in all.iter().filter_map(Weak::upgrade) {
            sender.entry().queue();
        }
    }

    /// Handles new space: queues a turn for as many waiting senders as fit. If more senders wait, also queues a turn of
    /// this neighbor, which calls this function again.
    fn queue_waiting_turns(self: &Arc<Self>) {
        let (first, more) = locked(&self.queues).connections.take_senders();
        self.queue_turns(&first);
        if more {
            self.entry().queue();
        }
    }

    /// Handles the exit of the process. Nothing more is sent to the process. Each queue pair that is connected to the
    /// process notices the exit in its next turn.
    pub(super) fn disconnect(&self) {
        // After this, only the queue pairs that are connected to the process keep the connection's descriptor open.
        self.driver.close(self.token);
        let (users, senders) = {
            let queues = &mut *locked(&self.queues);
            self.gone.store(true, Ordering::Release);
            queues.clear();
            (queues.users.take(usize::MAX), queues.connections.take_all_senders())
        };
        self.claims.end_grants();
        self.queue_turns(&users);
        self.queue_turns(&senders);
    }

    /// Receives what the process sends on the connection: a request for the ring, a notification, or a file.
    fn receive(&self) -> rustix::io::Result<()> {
        if !self.handshake.has_begun() {
            return self.handshake.receive_request(&self.connection);
        }
        if !receive_notification_or_find_file(&self.connection)? {
            return Ok(());
        }
        let accept = |message: &[u8], file: BorrowedFd<'_>| match self.device.maps {
            true => self.received.accept(message, file),
            // A kernel before Linux 6.16 does not refuse files.
            false => Received::ignore(file),
        };
        let (thread, file, arrived) = receive_file(&self.connection, accept)?;
        match arrived {
            Arrived::Versions => {}
            Arrived::Ignored => thread.run(|| drop(file)),
            Arrived::Dropped => {
                self.device.tally.rare.unmapped_regions.count();
                thread.run(|| drop(file));
            }
            Arrived::Grant(grant) => {
                let own = Weak::clone(&self.own);
                // Populating much memory takes long, and this thread holds up others.
                thread.run(move || {
                    grant.populate();
                    if let Some(own) = own.upgrade() {
                        own.claims.add_grant(grant);
                    }
                });
            }
        }
        Ok(())
    }

    /// Postpones what the process has sent. Notifications wait too, so the delay is short.
    fn back_off(&self) {
        self.driver.pause(&self.connection, &self.paused);
        self.entry.set_timer(self.device.fabric.clock.now() + AGAIN);
    }

    /// Returns how long the process may stay silent.
    fn limit(&self) -> Duration {
        self.device.limits.patience.process
    }

    /// Returns the time at which the next limit on silence expires.
    fn next_deadline(&self, silence: &Silence) -> Option<Time> {
        let stalled = silence.stalled.map(|since| since + STALL);
        stalled.into_iter().chain(silence.next(self.limit())).min()
    }

    /// Starts the period in which the process must show a sign of life.
    fn begin_silence(&self, now: Time, stalled: bool) {
        let next = {
            let silence = &mut locked(&self.queues).silence;
            if stalled {
                silence.stalled.get_or_insert(now);
            }
            silence.begin(now);
            self.next_deadline(silence)
        };
        if let Some(next) = next {
            self.entry.set_timer(next);
        }
    }

    /// If a question is due and everything has been written, asks whether everything sent is executed. Called by the
    /// thread that writes.
    fn send_question(&self) {
        let Some(question) = locked(&self.queues).questions.next() else { return };
        let now = self.device.fabric.clock.now();
        self.ring.ask(question);
        if self.notify() {
            self.begin_silence(now, false);
        } else {
            locked(&self.queues).questions.ask_again();
            self.entry.set_timer(now + AGAIN);
        }
    }

    /// Handles notifications of space, of executed requests, or of an answer. Returns false if anything else has arrived,
    /// or the process has ended.
    fn handle_notifications(&self) -> bool {
        // Whatever the notification was for, there may be space.
        match (0..NOTIFICATIONS).try_for_each(|_| self.receive()) {
            // The peer sends more notifications than are useful.
            Ok(()) => self.driver.note_useless(),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(Errno::BUSY | Errno::MFILE | Errno::NFILE | Errno::NOMEM)
                if self.handshake.has_begun() =>
            {
                self.back_off();
            }
            Err(_) => return false,
        }
        // The notification may be that of a revocation.
        if self.received.have_changed() {
            self.claims.drop_invalid();
        }
        self.check_answer();
        self.entry().queue();
        if let Some(executed) = self.ring.executed() {
            self.attention.was_notified(executed);
        }
        true
    }

    /// Checks whether the process has answered a question, and queues the senders that wait for the answer.
    pub(super) fn check_answer(&self) {
        let answered = self.ring.answered();
        let covered = {
            let queues = &mut *locked(&self.queues);
            if !queues.questions.are_open() {
                return;
            }
            let covered = queues.questions.answer(answered);
            if !queues.questions.are_open() {
                queues.silence.end();
            }
            covered
        };
        covered.iter().filter_map(Weak::upgrade).for_each(|sender| sender.entry().wake());
    }
}

impl Carrier for Neighbor {
    fn has_ended(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    fn add_user(&self, user: Weak<dyn Task>) {
        let mut queues = locked(&self.queues);
        if self.has_ended() {
            drop(queues);
            return self.queue_turns(&[user]);
        }
        queues.users.add(user);
    }

    fn loses_datagrams(&self) -> bool {
        true
    }

    fn buffer(&self, sender: Weak<dyn Task>) -> Option<Box<[u8]>> {
        let mut queues = locked(&self.queues);
        if !self.has_ended() && queues.connections.space() == 0 {
            queues.connections.add_waiting_sender(sender);
            return None;
        }
        let spare = queues.connections.lend();
        drop(queues);
        Some(spare.unwrap_or_else(|| new_buffer(BURST_BYTES)))
    }

    /// Returns `None` if there is no space. The datagram is then lost; its sender does not wait, because it may have
    /// datagrams for other processes.
    fn datagram_buffer(&self, _sender: Weak<dyn Task>, length: usize) -> Option<Box<[u8]>> {
        let mut queues = locked(&self.queues);
        if !queues.has_room_for_datagram(length) {
            return None;
        }
        let spare = queues.connections.lend();
        drop(queues);
        Some(spare.unwrap_or_else(|| new_buffer(BURST_BYTES)))
    }

    fn give_back(self: Arc<Self>, buffer: Box<[u8]>) {
        locked(&self.queues).connections.take_back(buffer);
        self.queue_waiting_turns();
    }

    fn ask(self: Arc<Self>, sender: Weak<dyn Task>) -> u32 {
        let question = locked(&self.queues).questions.ask(sender);
        self.entry().queue();
        question
    }

    fn is_lossless(&self) -> bool {
        true
    }

    fn has_answered(&self, question: u32) -> bool {
        covers(self.ring.answered(), question)
    }

    fn is_silent(&self) -> bool {
        locked(&self.queues).silence.is_expired()
    }

    fn carries_void(&self) -> bool {
        true
    }

    fn send_in_place(&self, fill: &mut Fill<'_>) -> bool {
        self.write_in_place(fill)
    }

    fn send(self: Arc<Self>, letter: Letter) {
        {
            let queues = &mut *locked(&self.queues);
            if self.has_ended() {
                return queues.connections.take_back(letter.into_buffer());
            }
            queues.put(letter);
        }
        self.entry().queue();
    }

    fn send_single(&self, single: &Single, data: &[Segment]) -> bool {
        self.write_single_at_once(single, data)
    }

    fn flush(self: Arc<Self>) {
        self.write(&mut locked_for_calls(&self.writing));
    }

    fn claim_word(&self, user: Weak<dyn Task>) -> Option<WordKey> {
        self.claims.claim(user)
    }

    fn release_word(&self, word: WordKey) {
        self.set_patient(word, false);
        self.claims.release(word);
    }

    fn set_patient(&self, word: WordKey, is_patient: bool) {
        if let Some(executed) = self.ring.executed() {
            executed.set_patient(word, is_patient);
        }
    }

    fn expected(&self, word: WordKey) -> Option<Psn> {
        self.ring.executed()?.expected(word)
    }

    fn count_waiting(&self, is_one_more: bool) {
        self.claims.count_waiting(is_one_more);
        if is_one_more {
            self.listen();
        }
    }

    fn granted(&self) -> u32 {
        self.claims.granted()
    }

    fn grants(&self, word: WordKey) -> Vec<Arc<dyn Grant>> {
        self.claims.grants(word)
    }

    fn begin_visit(&self, word: WordKey) {
        if let Some(visits) = self.ring.visits() {
            visits.begin(word.index());
        }
    }

    fn end_visit(&self, word: WordKey) {
        if let Some(visits) = self.ring.visits() {
            visits.end(word.index());
        }
    }
}

impl Watched for Neighbor {
    fn descriptor(&self) -> &Descriptor {
        &self.connection
    }

    fn handle_event(self: Arc<Self>, flags: epoll::EventFlags) -> SocketEvent {
        if flags.intersects(!epoll::EventFlags::IN) {
            return SocketEvent::End;
        }
        if !flags.is_empty() && !self.handle_notifications() {
            return SocketEvent::End;
        }
        match self.claims.notify_changed(&self.ring) {
            true => SocketEvent::Messages,
            false => SocketEvent::Other,
        }
    }

    fn is_doorbell(&self) -> bool {
        true
    }

    fn has_arrived(&self) -> bool {
        self.claims.has_changed(&self.ring)
    }

    /// The process reads nothing if its thread leaves the reading to a program that has just stopped polling.
    fn may_have_message(&self) -> bool {
        if self.ring.waits_for_reader() {
            self.notify();
        }
        self.has_arrived()
    }

    fn look(self: Arc<Self>) -> bool {
        self.claims.notify_changed(&self.ring)
    }

    fn start_polling(&self) {
        if let Some(executed) = self.ring.executed() {
            self.attention.start_polling(executed);
        }
    }

    fn stop_polling(&self, is_quiet: bool) {
        if let Some(executed) = self.ring.executed() {
            self.attention.stop_polling(executed, is_quiet, || self.claims.are_awaited());
        }
    }

    fn listen(&self) -> bool {
        if let Some(executed) = self.ring.executed() {
            self.attention.listen(executed);
        }
        self.has_arrived()
    }

    fn ended(self: Arc<Self>) {
        self.disconnect();
    }

    fn has_work(&self) -> bool {
        !locked(&self.queues).is_empty()
            || self.writing.try_lock().is_err()
            || !self.handshake.is_complete()
            || self.owes_notification.load(Ordering::Relaxed)
    }

    fn is_used(&self) -> bool {
        true
    }
}

impl Task for Neighbor {
    fn entry(&self) -> &Entry {
        &self.entry
    }

    fn run(self: Arc<Self>) -> bool {
        let more = {
            let message = &mut *locked_for_calls(&self.writing);
            let more = self.write(message);
            self.send_question();
            more
        };
        self.queue_waiting_turns();
        more
    }

    fn expire(self: Arc<Self>) {
        if !self.has_ended() && !self.driver.resume(self.token, &self.connection, &self.paused) {
            self.entry.set_timer(self.device.fabric.clock.now() + AGAIN);
        }
        let now = self.device.fabric.clock.now();
        let (lost, passed, users, next) = {
            let queues = &mut *locked(&self.queues);
            let stalled = queues.silence.stalled.is_some_and(|since| since + STALL <= now);
            if stalled {
                queues.silence.stalled = None;
            }
            let lost = if stalled { queues.take_datagrams() } else { VecDeque::new() };
            let passed = queues.silence.take_passed(now, self.limit());
            let users = if passed.all { queues.users.all() } else { Vec::new() };
            (lost, passed, users, self.next_deadline(&queues.silence))
        };
        if let Some(next) = next {
            self.entry.set_timer(next);
        }
        if passed.half {
            let endpoints = Endpoints { qpn: 0, peer_qpn: None, address: None };
            self.device.drop_packets(Reason::Silent, 1, endpoints);
        }
        users.iter().filter_map(Weak::upgrade).for_each(|user| user.entry().wake());
        for letter in &lost {
            let Letter { path, burst, datagram, .. } = letter;
            let qpn = datagram.map_or(0, |datagram| datagram.source.qpn);
            let peer_qpn = Some(burst.header.bth.destination.get());
            let endpoints = Endpoints { qpn, peer_qpn, address: Some(path.remote) };
            self.device.drop_packets(Reason::Stalled, burst.segments, endpoints);
        }
        if self.handshake.has_begun() && !self.handshake.is_complete() {
            self.entry().queue();
        }
        self.queue_waiting_turns();
        // Retries the notifications that failed.
        self.entry().queue();
    }
}
