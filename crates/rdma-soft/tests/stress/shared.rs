//! Clients on separate threads send to queue pairs that share a receive queue. Two threads fill it, a third polls, and
//! the connections fail one after another.
//!
//! Each message contains its client and its number; each receive is accounted for once, including those that a failed
//! queue pair had taken.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use rdma_sys::{ibv_event_type as Event, ibv_sge, ibv_wc, ibv_wc_status as Status};

use crate::memory::Dice;
use test_support::rig::connect::{Knobs, Side};
use test_support::rig::post::Wr;
use test_support::rig::srq::Server;
use test_support::rig::{LOCAL_WRITE, Mr};

const CLIENTS: usize = 4;
/// The number of connections of each client; all but the last are made to fail.
const LIVES: usize = 3;
const SLOTS: usize = 24;
/// More than the number of receives, so that posting is never refused.
const ROOM: u32 = 27;
const MESSAGES: u64 = 600;

/// Client, life and number of a message.
type Message = [u64; 3];

/// The number of messages that were sent or received on each connection.
type Count = [[u64; LIVES]; CLIENTS];

struct Round<'a> {
    server: &'a Server,
    slots: &'a [Mr],
    /// The receives that are free to post.
    free: Sender<usize>,
    done: &'a AtomicBool,
}

/// Runs rounds of one server until `end`. Returns the number of delivered messages.
pub(crate) fn run(device: &str, seed: u64, end: Instant) -> u64 {
    let (mut dice, mut messages) = (Dice::new(seed), 0);
    while messages == 0 || Instant::now() < end {
        messages += round(device, &mut dice);
    }
    messages
}

fn round(device: &str, dice: &mut Dice) -> u64 {
    let (clients, server) = Server::with_clients(device, ROOM, CLIENTS * LIVES, &Knobs::default());
    let slots: Vec<_> = (0..SLOTS).map(|_| server.pd.register(24, LOCAL_WRITE)).collect();
    let (free, taken) = channel();
    (0..SLOTS).for_each(|slot| free.send(slot).unwrap());
    let (taken, done) = (Arc::new(Mutex::new(taken)), AtomicBool::new(false));
    let (sent, received) = thread::scope(|scope| {
        for _ in 0..2 {
            let taken = Arc::clone(&taken);
            scope.spawn(|| fill(&server, &slots, taken));
        }
        let done = &done;
        let senders: Vec<_> = clients
            .chunks(LIVES)
            .enumerate()
            .map(|(client, lives)| scope.spawn(move || send(client, lives, done)))
            .collect();
        let round = Round { server: &server, slots: &slots, free, done };
        let received = round.receive(dice, || senders.iter().all(|sender| sender.is_finished()));
        let sent = senders.into_iter().map(|sender| sender.join().unwrap());
        (sent.collect::<Vec<_>>(), received)
    });
    assert_eq!(sent, received, "sent and received");
    let last = server.events();
    assert!(last.iter().all(|event| event.0 == Event::IBV_EVENT_QP_LAST_WQE_REACHED));
    assert_eq!(last.len(), CLIENTS * (LIVES - 1), "each failed queue pair has ended, once");
    // Only the receives that were not consumed are still posted.
    assert_eq!(server.srq.fill(1000), u64::from(ROOM) - SLOTS as u64);
    received.iter().flatten().sum()
}

/// Posts free receives until the channel closes.
fn fill(server: &Server, slots: &[Mr], free: Arc<Mutex<Receiver<usize>>>) {
    loop {
        let Ok(slot) = free.lock().unwrap().recv() else { return };
        server.srq.post(slot as u64, &[slots[slot].sge(0, 10), slots[slot].sge(10, 14)]);
    }
}

/// Sends on one connection until it fails, then on the next.
fn send(client: usize, lives: &[Side], done: &AtomicBool) -> [u64; LIVES] {
    let mut sent = [0; LIVES];
    for (life, side) in lives.iter().enumerate() {
        while !(done.load(Ordering::Acquire) && life + 1 == LIVES) {
            let message: Message = [client as u64, life as u64, sent[life]];
            let addr = message.as_ptr().expose_provenance() as u64;
            side.qp.post(&Wr::send(1, &[ibv_sge { addr, length: 24, lkey: 0 }]).inline());
            match side.send_cq.next().status {
                Status::IBV_WC_SUCCESS => sent[life] += 1,
                status => {
                    assert_eq!(status, Status::IBV_WC_RETRY_EXC_ERR, "a peer in error is silent");
                    break;
                }
            }
        }
    }
    sent
}

impl Round<'_> {
    /// Receives messages, and sometimes ends a connection, until all clients have ended.
    fn receive(self, dice: &mut Dice, all_have_ended: impl Fn() -> bool) -> Vec<[u64; LIVES]> {
        let mut received: Count = Default::default();
        let mut alive = [0; CLIENTS];
        let mut total = 0;
        let at_end = Instant::now() + test_support::rig::PATIENCE;
        loop {
            // Checked before the poll, which then finds everything that arrived before the end.
            let ended = all_have_ended();
            let completions = self.server.receive_cq.try_poll::<8>().unwrap();
            for wc in &completions {
                total += u64::from(self.take(wc, &mut received));
                let client = dice.below(40);
                if alive.get(client).is_some_and(|&life| life + 1 < LIVES) {
                    self.server.qps[client * LIVES + alive[client]].to_error();
                    alive[client] += 1;
                }
            }
            if total >= MESSAGES && alive == [LIVES - 1; CLIENTS] {
                self.done.store(true, Ordering::Release);
            }
            if ended && completions.is_empty() {
                return received.to_vec();
            }
            if completions.is_empty() {
                thread::yield_now();
            }
            assert!(Instant::now() < at_end, "the round does not end: {received:?}");
        }
    }

    /// Accounts for one completion. Returns true if it is a message.
    fn take(&self, wc: &ibv_wc, received: &mut Count) -> bool {
        let slot = wc.wr_id as usize;
        let whose = self.server.qps.iter().position(|qp| qp.number() == wc.qp_num).unwrap();
        let (client, life) = (whose / LIVES, whose % LIVES);
        let is_message = wc.status == Status::IBV_WC_SUCCESS;
        if is_message {
            let count = &mut received[client][life];
            let expected: Message = [client as u64, life as u64, *count];
            let expected: Vec<u8> = expected.iter().flat_map(|word| word.to_ne_bytes()).collect();
            assert_eq!((self.slots[slot].bytes(), wc.byte_len), (expected, 24));
            *count += 1;
        } else {
            assert_eq!(wc.status, Status::IBV_WC_WR_FLUSH_ERR);
        }
        self.slots[slot].fill(0xee);
        self.free.send(slot).unwrap();
        is_message
    }
}
