//! A server whose queue pairs share their receives and lend memory through windows, and its clients. Each client has a
//! thread, and all of them post, poll, bind, invalidate, fail and reconnect at once.
//!
//! A receive completes once. Memory of a revoked window is poisoned, and checked before it is lent again.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use rdma_sys::{
    Errno, ibv_create_cq_wc_flags as Fields, ibv_inc_rkey, ibv_mw_bind_info, ibv_send_flags,
    ibv_sge, ibv_wc_flags, ibv_wc_status as Status, ibv_wr_opcode as Opcode,
};

use crate::memory::{Dice, Memory, SLOT};
use crate::party::Region;
use test_support::rig::connect::{Endpoint, Knobs, Side, connect, endpoint};
use test_support::rig::extended::OPERATIONS;
use test_support::rig::post::Wr;
use test_support::rig::srq::Srq;
use test_support::rig::window::{Mw, TYPE_1, TYPE_2, invalidated};
use test_support::rig::{
    ALL_ACCESS, Context, Cq, LOCAL_WRITE, MW_BIND, Pd, Qp, REMOTE_WRITE, Size, datagram,
};

/// The minimum length of the completion queue of receives.
const ENTRIES: i32 = 128;
const CLIENTS: usize = 3;
const RECEIVES: u32 = 32;
/// The slots of each part of the lent memory: enough that copying takes a while.
const PART: usize = 256;
const PART_BYTES: usize = PART * SLOT;
const FIELDS: u64 = (Fields::IBV_WC_EX_WITH_IMM.0 | Fields::IBV_WC_EX_WITH_QP_NUM.0) as u64;

/// The slots that are lent to a client, or to all.
fn part_of(client: usize) -> Range<usize> {
    client * PART..(client + 1) * PART
}

/// The server's end of a connection.
#[derive(Default)]
struct Link {
    /// The key of the window that its queue pair has bound; locked during any use other than messages.
    bound: Mutex<Option<u32>>,
    /// The key for its client, or 0.
    offered: AtomicU32,
    /// The key that its client last invalidated.
    taken_back: AtomicU32,
}

/// Fields drop in order.
struct Server {
    qps: Vec<Qp>,
    datagrams: Qp,
    srq: Srq,
    send_cq: Cq,
    receive_cq: Cq,
    links: [Link; CLIENTS],
    /// The key of the window for all clients, or 0.
    offered_to_all: AtomicU32,
    /// A part for each client, and one for all.
    lent: Arc<Memory>,
    posted: AtomicU64,
    seen: Mutex<HashSet<u64>>,
    done: AtomicBool,
    pd: Pd,
    receive_pd: Pd,
    context: Context,
}

impl Server {
    fn new(device: &str) -> Self {
        let context = Context::open(device);
        let (send_cq, receive_cq) = (context.cq(64), context.cq_ex(ENTRIES as u32, FIELDS));
        let (pd, receive_pd) = (context.pd(), context.pd());
        let srq = receive_pd.srq(RECEIVES, 1);
        let qp = |size: &Size| pd.qp_with_srq(&send_cq, &receive_cq, size, &srq);
        let qps = (0..CLIENTS).map(|_| qp(&Size::default())).collect();
        let datagrams = qp(&datagram::size());
        datagram::activate(&datagrams, datagram::QKEY);
        Self {
            qps,
            datagrams,
            srq,
            send_cq,
            receive_cq,
            links: Default::default(),
            offered_to_all: AtomicU32::new(0),
            lent: Arc::new(Memory::new((CLIENTS + 1) * PART)),
            posted: AtomicU64::new(0),
            seen: Mutex::default(),
            done: AtomicBool::new(false),
            pd,
            receive_pd,
            context,
        }
    }

    /// Connects or reconnects a client. This revokes everything that the server's queue pair had lent.
    fn connect(&self, n: usize, client: &Side) {
        let (link, qp) = (&self.links[n], &self.qps[n]);
        let mut bound = link.bound.lock().unwrap();
        client.qp.to_reset();
        qp.to_reset();
        link.offered.store(0, SeqCst);
        if bound.take().is_some() {
            self.lent.poison(part_of(n));
        }
        let knobs = Knobs { timeout: 1, retries: 1, ..Knobs::default() };
        let (here, there) = (endpoint(&self.context, qp), client.endpoint());
        connect(qp, &here, &there, &knobs);
        connect(&client.qp, &there, &here, &knobs);
    }

    /// Posts receives until all clients are done.
    fn post_receives(&self, sge: ibv_sge, mut dice: Dice) {
        while !self.done.load(SeqCst) {
            let first = self.posted.load(SeqCst);
            let sges = [sge];
            let count = 1 + dice.below(8) as u64;
            let list: Vec<_> = (first..first + count).map(|id| (id, &sges[..])).collect();
            // Counted before they can complete.
            self.posted.store(first + count, SeqCst);
            if let Err((count, errno)) = self.srq.try_post_list(&list) {
                assert_eq!(errno, Errno::ENOMEM.raw());
                self.posted.store(first + count as u64, SeqCst);
                thread::yield_now();
            }
            if dice.one_in(8) {
                self.srq.set_limit(dice.below(RECEIVES as usize) as u32);
            }
        }
    }

    /// Polls completions of receives, in one of two ways.
    fn poll(&self, mut dice: Dice) {
        while !self.done.load(SeqCst) {
            if dice.one_in(2) {
                self.poll_extended(&mut dice);
            }
            let completions = self.receive_cq.try_poll::<8>().unwrap();
            if completions.is_empty() {
                thread::yield_now();
            }
            for wc in completions {
                self.receive(wc.wr_id);
                if wc.status == Status::IBV_WC_SUCCESS {
                    self.took_back(wc.qp_num, invalidated(&wc));
                }
            }
        }
    }

    fn poll_extended(&self, dice: &mut Dice) {
        if self.receive_cq.start() != 0 {
            return;
        }
        loop {
            let (wr_id, status) = self.receive_cq.at();
            self.receive(wr_id);
            if status == Status::IBV_WC_SUCCESS {
                let read = self.receive_cq.read();
                let with_key = read.wc_flags & ibv_wc_flags::IBV_WC_WITH_INV.0 != 0;
                self.took_back(read.qp_num, with_key.then_some(read.imm_data));
            }
            if dice.one_in(3) || self.receive_cq.advance() != 0 {
                return self.receive_cq.end();
            }
        }
    }

    /// Records that a message has invalidated the key that it carried.
    fn took_back(&self, qpn: u32, key: Option<u32>) {
        let link = self.qps.iter().position(|qp| qp.number() == qpn);
        if let (Some(key), Some(link)) = (key, link) {
            self.links[link].taken_back.store(key, SeqCst);
        }
    }

    fn receive(&self, wr_id: u64) {
        assert!(wr_id < self.posted.load(SeqCst), "{wr_id} was not posted");
        assert!(self.seen.lock().unwrap().insert(wr_id), "{wr_id} completed twice");
    }

    /// Executes one request of the server's own. Returns true if it succeeded.
    fn execute(&self, post: impl FnOnce()) -> bool {
        post();
        self.send_cq.next().status == Status::IBV_WC_SUCCESS
    }

    /// Binds and revokes windows until all clients are done.
    fn lend(&self, mut dice: Dice) {
        let region = Region::of(&self.pd, &self.lent, ALL_ACCESS | MW_BIND);
        let windows: Vec<_> = (0..CLIENTS).map(|_| self.pd.mw(TYPE_2)).collect();
        let mut keys: Vec<_> = windows.iter().map(Mw::key).collect();
        let (for_all, mut bound_for_all) = (self.pd.mw(TYPE_1), false);
        let part = |n, length| ibv_mw_bind_info {
            mr: region.mr,
            addr: self.lent.address_of(part_of(n).start),
            length,
            mw_access_flags: REMOTE_WRITE,
        };
        self.lent.poison(0..(CLIENTS + 1) * PART);
        let whole = PART_BYTES as u64;
        while !self.done.load(SeqCst) {
            let n = dice.below(CLIENTS);
            let (link, qp) = (&self.links[n], &self.qps[n]);
            let mut bound = link.bound.lock().unwrap();
            if dice.one_in(4) {
                let length = if bound_for_all { 0 } else { whole };
                if !bound_for_all {
                    self.lent.assert_poisoned(part_of(CLIENTS));
                }
                self.offered_to_all.store(0, SeqCst);
                let signaled = ibv_send_flags::IBV_SEND_SIGNALED.0;
                let bind =
                    || assert_eq!(qp.try_bind(1, &for_all, part(CLIENTS, length), signaled), 0);
                if self.execute(bind) {
                    bound_for_all = !bound_for_all;
                    match bound_for_all {
                        true => self.offered_to_all.store(for_all.key(), SeqCst),
                        false => self.lent.poison(part_of(CLIENTS)),
                    }
                }
            } else if let Some(key) = *bound {
                let back = link.taken_back.swap(0, SeqCst) == key
                    || dice.one_in(10) && {
                        link.offered.store(0, SeqCst);
                        self.execute(|| qp.post(&Wr::local_invalidate(1, key)))
                    };
                if back {
                    *bound = None;
                    self.lent.poison(part_of(n));
                }
            } else {
                self.lent.assert_poisoned(part_of(n));
                keys[n] = ibv_inc_rkey(keys[n]);
                let bind = Wr::bind(1, &windows[n], keys[n], part(n, whole));
                if self.execute(|| qp.post(&bind)) {
                    *bound = Some(keys[n]);
                    link.offered.store(keys[n], SeqCst);
                }
            }
            drop(bound);
            if dice.one_in(8) {
                let entries = ENTRIES + dice.below(3 * ENTRIES as usize) as i32;
                assert_eq!(self.receive_cq.try_resize(entries), 0);
            }
            thread::yield_now();
        }
        drop((windows, for_all));
        region.end();
    }
}

/// One client.
struct Client<'a> {
    server: &'a Server,
    n: usize,
    side: Side,
    datagrams: Side,
    /// The address of the server's queue pair for datagrams.
    there: Endpoint,
    dice: Dice,
    /// A key that was once offered to it.
    known: u32,
    succeeded: u64,
}

impl<'a> Client<'a> {
    fn new(server: &'a Server, device: &str, n: usize, dice: Dice) -> Self {
        let side = Side::extended(device, &Size::default(), OPERATIONS);
        let datagrams = datagram::side(device);
        let there = endpoint(&server.context, &server.datagrams);
        server.connect(n, &side);
        Self { server, n, side, datagrams, there, dice, known: 0, succeeded: 0 }
    }

    fn attend(mut self, steps: usize) -> u64 {
        let local = Region::new(&self.side.pd, PART, LOCAL_WRITE);
        for _ in 0..steps {
            if self.dice.one_in(6) {
                self.send_datagram();
            }
            // Without an offered window, only sends are possible.
            if self.server.links[self.n].offered.load(SeqCst) == 0 && !self.dice.one_in(8) {
                thread::yield_now();
            }
            let wrs: Vec<_> = (0..1 + self.dice.below(3)).map(|_| self.request(&local)).collect();
            let posted = match self.dice.one_in(2) {
                true => self.side.qp.try_call(&wrs),
                false => self.side.qp.try_post_list(&wrs).map_or_else(|(_, errno)| errno, |()| 0),
            };
            if posted != 0 {
                assert_eq!(posted, Errno::ENOMEM.raw());
                // Receives or windows are missing.
                thread::yield_now();
            }
            if self.poll() || self.dice.one_in(200) {
                self.server.connect(self.n, &self.side);
            }
        }
        self.side.qp.to_reset();
        drop(local.end());
        self.succeeded
    }

    fn request(&mut self, local: &Region) -> Wr {
        let (link, lent) = (&self.server.links[self.n], &self.server.lent);
        let offered = link.offered.load(SeqCst);
        if offered != 0 && !self.dice.one_in(50) {
            self.known = offered;
        }
        let message = [local.sge(0, 0, 8)];
        let write = |n, key| {
            let whole = [local.sge(0, 0, 100), local.sge(0, 100, PART_BYTES)];
            Wr::new(2, Opcode::IBV_WR_RDMA_WRITE, &whole)
                .remote(lent.address_of(part_of(n).start), key)
        };
        match self.dice.below(16) {
            0..8 if offered != 0 || self.known != 0 && self.dice.one_in(10) => {
                write(self.n, self.known)
            }
            8 if offered != 0 => {
                link.offered.store(0, SeqCst);
                Wr::send_with_invalidate(3, &message, offered)
            }
            9..13 => match self.server.offered_to_all.load(SeqCst) {
                0 => Wr::send(1, &message),
                key => write(CLIENTS, key),
            },
            13 => Wr::send(1, &message).with_imm(7),
            _ => Wr::send(1, &message),
        }
    }

    /// Sends a datagram, and destroys its address handle before it is sent.
    fn send_datagram(&mut self) {
        let Side { qp, send_cq, pd, .. } = &self.datagrams;
        let ah = pd.ah_to(&self.datagrams.endpoint(), &self.there);
        let wr = Wr::send(1, &[]).to(&ah, self.there.qpn, datagram::QKEY);
        let posted = qp.try_post(&wr);
        assert!(posted == 0 || posted == Errno::ENOMEM.raw(), "{posted}");
        ah.destroy();
        for wc in send_cq.try_poll::<16>().unwrap() {
            assert_eq!(wc.status, Status::IBV_WC_SUCCESS);
        }
    }

    /// Polls completions. Returns true if a request failed.
    fn poll(&mut self) -> bool {
        let mut failed = false;
        for wc in self.side.send_cq.try_poll::<16>().unwrap() {
            match wc.status {
                Status::IBV_WC_SUCCESS => self.succeeded += 1,
                Status::IBV_WC_REM_ACCESS_ERR
                | Status::IBV_WC_RETRY_EXC_ERR
                | Status::IBV_WC_WR_FLUSH_ERR => failed = true,
                status => panic!("{status:?}"),
            }
        }
        failed
    }
}

/// Runs rounds until `end`. Returns the number of successful client requests.
pub(crate) fn run(device: &str, seed: u64, end: Instant) -> u64 {
    let (mut dice, mut succeeded) = (Dice::new(!seed), 0);
    while succeeded == 0 || Instant::now() < end {
        let (seed, steps) = (dice.roll(), 100 + dice.below(400));
        succeeded += meet(device, seed, steps);
    }
    succeeded
}

/// Runs one round.
fn meet(device: &str, seed: u64, steps: usize) -> u64 {
    let mut dice = Dice::new(seed);
    let mut server = Server::new(device);
    let receive = Region::new(&server.receive_pd, 1, LOCAL_WRITE);
    let sge = receive.sge(0, 0, 64);
    let succeeded = thread::scope(|scope| {
        let server = &server;
        let mut dice = || Dice::new(dice.roll());
        // Connected before anything is lent to them.
        let clients: Vec<_> =
            (0..CLIENTS).map(|n| Client::new(server, device, n, dice())).collect();
        let clients: Vec<_> =
            clients.into_iter().map(|client| scope.spawn(move || client.attend(steps))).collect();
        let (a, b, c, d) = (dice(), dice(), dice(), dice());
        scope.spawn(move || server.post_receives(sge, a));
        scope.spawn(move || server.poll(b));
        scope.spawn(move || server.poll(c));
        scope.spawn(move || server.lend(d));
        let succeeded = clients.into_iter().map(|client| client.join().unwrap()).sum();
        server.done.store(true, SeqCst);
        succeeded
    });
    // Each receive that was not consumed is posted exactly once, and there is space for all again.
    server.qps.clear();
    server.datagrams.destroy();
    let first = server.posted.load(SeqCst);
    server.posted.store(first + server.srq.fill(first), SeqCst);
    let client = Side::new(device, &Size::default(), 64);
    let qp =
        server.pd.qp_with_srq(&server.send_cq, &server.receive_cq, &Size::default(), &server.srq);
    server.qps = vec![qp];
    server.connect(0, &client);
    for _ in 0..RECEIVES {
        client.qp.post(&Wr::send(1, &[]));
        client.send_cq.expect_success(1);
        server.receive(server.receive_cq.next().wr_id);
    }
    server.qps.clear();
    drop(receive.end());
    succeeded
}
