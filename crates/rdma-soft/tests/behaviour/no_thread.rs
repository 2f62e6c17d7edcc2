//! A process that cannot start threads: polling threads handle deadlines and work that other calls have left. This
//! makes the work that a call leaves countable. The tests run in a process of their own, since they leave it no memory
//! for another thread's stack.
// AddressSanitizer needs memory of its own all the time.
#![cfg(not(rdma_visible_copies))]
#![allow(clippy::disallowed_methods)] // The programs' side has clocks and threads of its own.

use std::time::{Duration, Instant};

use rdma_soft::{Builder, Schedule, SoftDevice};
use rdma_sys::ibv_wc_status as Status;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use test_support::program::{in_own_process, is_emulated};
use test_support::rig::connect::{Knobs, Side, pair_with};
use test_support::rig::post::Wr;
use test_support::rig::srq::Server;
use test_support::rig::{ALL_ACCESS, Mr, Size};

/// Runs `work` with the memory limit at the present use, so that no thread's stack fits. Lifts the limit afterwards,
/// since a leak checker needs memory when the process ends.
fn without_more_memory(work: impl FnOnce()) {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    let now = pages * rustix::param::page_size() as u64;
    let before = getrlimit(Resource::As);
    setrlimit(Resource::As, Rlimit { current: Some(now), ..before }).unwrap();
    assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "a thread was started");
    work();
    setrlimit(Resource::As, before).unwrap();
}

#[test]
fn polls_end_requests_without_a_thread() {
    in_own_process("no_thread::polls_end_requests_without_a_thread", || {
        if is_emulated() {
            return; // the emulator does not limit its program's memory
        }
        let deferred = Schedule::Deferred { seed: 5 };
        for (name, schedule) in [("alone", Schedule::Immediate), ("alone-deferred", deferred)] {
            Builder::new(name).schedule(schedule).install().unwrap();
        }
        let knobs =
            Knobs { rnr_retries: 1, min_rnr_timer: 10, timeout: 5, retries: 2, ..Knobs::default() };
        let pairs = ["alone", "alone-deferred"]
            .map(|name| [(); 2].map(|()| pair_with(name, &Size::default(), &knobs)));
        let (lists, shared) = (List::new(), SharedList::new());
        without_more_memory(|| {
            pairs.into_iter().for_each(both_end);
            lists.executes_one_turn();
            shared.executes_one_turn();
        });
    });
}

/// Expects both requests to complete without a thread.
fn both_end([(not_ready, _receiver), (unanswered, gone)]: [(Side, Side); 2]) {
    drop(gone);
    not_ready.qp.post(&Wr::send(1, &[]));
    unanswered.qp.post(&Wr::send(2, &[]));
    for (side, status) in
        [(not_ready, Status::IBV_WC_RNR_RETRY_EXC_ERR), (unanswered, Status::IBV_WC_RETRY_EXC_ERR)]
    {
        let limit = Instant::now() + Duration::from_secs(20);
        let completion = loop {
            assert!(Instant::now() < limit, "never ended: {status:?}");
            if let Some(&completion) = side.send_cq.try_poll::<1>().unwrap().first() {
                break completion;
            }
        };
        assert_eq!(completion.status, status);
    }
}

/// More messages than a turn executes, which wait for as many receive requests.
struct List(Side, Side);

const MESSAGES: u64 = 20;

impl List {
    fn new() -> Self {
        let (a, b) = pair_with("alone", &Size::default(), &Knobs::default());
        (0..MESSAGES).for_each(|n| a.qp.post(&Wr::send(n, &[])));
        Self(a, b)
    }

    /// A list is one call, and has the budget of one; polls execute the rest.
    fn executes_one_turn(self) {
        let Self(a, b) = self;
        let list: Vec<_> = (0..MESSAGES).map(|n| (n, &[][..])).collect();
        b.qp.try_post_receive_list(&list).unwrap();
        assert_eq!(in_flight(&a), 4);
        for n in 0..MESSAGES {
            a.send_cq.expect_success(n);
            b.receive_cq.expect_success(n);
        }
    }
}

/// Messages of several senders that wait for requests of one queue. Two of them are more than a turn.
struct SharedList {
    _sources: Vec<Mr>,
    sink: Mr,
    clients: Vec<Side>,
    server: Server,
}

const LENGTH: usize = 40 << 10;

impl SharedList {
    fn new() -> Self {
        let (clients, server) = Server::with_clients("alone", 8, 4, &Knobs::default());
        let source = |client: &Side| client.pd.register_filled(vec![7; LENGTH], 0);
        let sources: Vec<Mr> = clients.iter().map(source).collect();
        for (client, source) in clients.iter().zip(&sources) {
            client.qp.post(&Wr::send(1, &[source.sge(0, LENGTH)]));
        }
        let sink = server.pd.register_filled(vec![0; LENGTH], ALL_ACCESS);
        Self { _sources: sources, sink, clients, server }
    }

    /// The same, in the order in which the senders came.
    fn executes_one_turn(self) {
        let room = [self.sink.sge(0, LENGTH)];
        self.server.srq.try_post_list(&[0, 1, 2, 3].map(|n| (n, &room[..]))).unwrap();
        let left: Vec<_> = self.clients.iter().map(in_flight).collect();
        assert_eq!(left, [0, 1, 1, 1]);
        for (n, client) in self.clients.iter().enumerate() {
            self.server.expect(n, n as u64);
            client.send_cq.expect_success(1);
        }
    }
}

fn in_flight(sender: &Side) -> usize {
    SoftDevice::find("alone").unwrap().in_flight(sender.qp.qpn())
}
