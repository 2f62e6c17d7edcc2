//! The data path allocates no memory, on any thread: posts and polls, waits, errors, flushes, overflows and deadlines.
//! Creating and connecting objects may allocate and is not counted, but a connected queue pair must be small.
//!
//! The program has its own `main`, since the threads of the usual harness also allocate memory.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // As in the rig.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failing helper fails its test.

use std::ptr;
use std::sync::Barrier;
use std::thread;

use rdma_sys::{
    ibv_poll_cq, ibv_post_recv, ibv_post_send, ibv_post_srq_recv, ibv_recv_wr, ibv_send_flags,
    ibv_sge, ibv_wc, ibv_wc_status as Status, ibv_wr_opcode,
};
use test_support::alloc_counter::CountingAllocator;

use rdma_soft::{Builder, Limits, Schedule, SoftDevice};
use test_support::rig::connect::{Knobs, Side, connect, connect_sides, endpoint};
use test_support::rig::datagram;
use test_support::rig::extended::{OPERATIONS, STANDARD, TIMESTAMP, WALLCLOCK, init};
use test_support::rig::post::Wr;
use test_support::rig::srq::Server;
use test_support::rig::window::{Mw, TYPE_2};
use test_support::rig::{ALL_ACCESS, Context, Cq, MW_BIND, Mr, Qp, REMOTE_WRITE, Size, until};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const SIZE: Size = Size {
    qp_type: rdma_sys::ibv_qp_type::IBV_QPT_RC,
    send_wr: 512,
    receive_wr: 512,
    sge: 4,
    inline: 256,
    signal_all: false,
};

/// Two queue pairs, memory of each that the other may access, and requests.
struct Stage {
    device: &'static str,
    write: Wr,
    inline: Wr,
    read: Wr,
    send: Wr,
    bad_write: Wr,
    /// The window that B grants to A, and revokes.
    mw: Mw,
    remote: Mr,
    local: Mr,
    a: Side,
    b: Side,
}

impl Stage {
    fn new(device: &'static str, cq_capacity: i32) -> Self {
        let [a, b] = [(); 2].map(|()| Side::new(device, &SIZE, cq_capacity));
        connect_sides(&a, &b, &Knobs::default());
        let access = ALL_ACCESS | MW_BIND;
        let [local, remote] = [&a, &b].map(|side| side.pd.register(4096, access));
        let sges = [local.sge(0, 100), local.sge(200, 100)];
        let write = Wr::write(1, &sges, &remote, 0);
        Self {
            device,
            inline: write.clone().inline(),
            bad_write: write.clone().remote(remote.address(), !remote.key()),
            read: Wr::read(1, &sges, &remote, 0),
            send: Wr::send(1, &sges),
            mw: b.pd.mw(TYPE_2),
            write,
            remote,
            local,
            a,
            b,
        }
    }

    fn reconnect(&self, knobs: &Knobs) {
        self.a.qp.to_reset();
        self.b.qp.to_reset();
        connect_sides(&self.a, &self.b, knobs);
    }

    fn sge_of_a(&self) -> ibv_sge {
        self.local.sge(1024, 1024)
    }

    fn sge_of_b(&self) -> ibv_sge {
        self.remote.sge(1024, 1024)
    }
}

/// Posts that many copies of a request as one list; only the last is signaled.
fn post(qp: &Qp, wr: &Wr, count: usize) -> u64 {
    let mut list = [wr.wr; 64];
    for wr_n in &mut list {
        wr_n.send_flags &= !ibv_send_flags::IBV_SEND_SIGNALED.0;
        wr_n.sg_list = wr.sges.as_ptr().cast_mut();
        wr_n.num_sge = i32::try_from(wr.sges.len()).unwrap();
    }
    list[count - 1].send_flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
    let base = list.as_mut_ptr();
    for n in 1..count {
        let before = base.wrapping_add(n - 1);
        unsafe { (*before).next = base.wrapping_add(n) };
    }
    let mut bad = ptr::null_mut();
    assert_eq!(unsafe { ibv_post_send(qp.0, base, &raw mut bad) }, 0);
    count as u64
}

fn post_receives(qp: &Qp, sge: ibv_sge, count: usize) -> u64 {
    post_each(sge, count, |wr, bad| unsafe { ibv_post_recv(qp.0, wr, bad) })
}

fn post_each(
    mut sge: ibv_sge,
    count: usize,
    post: impl Fn(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> i32,
) -> u64 {
    for _ in 0..count {
        let mut wr = ibv_recv_wr { sg_list: &raw mut sge, num_sge: 1, ..Default::default() };
        let mut bad = ptr::null_mut();
        assert_eq!(post(&raw mut wr, &raw mut bad), 0);
    }
    count as u64
}

fn poll(cq: &Cq, wcs: &mut [ibv_wc; 16]) -> i32 {
    unsafe { ibv_poll_cq(cq.0, 16, wcs.as_mut_ptr()) }
}

/// Polls one completion of the first status and `count` of the other, and expects no others.
fn drain(cq: &Cq, first: Status, count: usize, rest: Status) {
    let (mut seen, mut wcs) = (0, [ibv_wc::default(); 16]);
    until("completions", || {
        let polled = usize::try_from(poll(cq, &mut wcs)).unwrap();
        for wc in &wcs[..polled] {
            assert_eq!(wc.status, if seen == 0 { first } else { rest });
            seen += 1;
        }
        seen > count
    });
    assert_eq!((seen, poll(cq, &mut wcs)), (count + 1, 0));
}

/// A part of the data path.
struct Case {
    name: &'static str,
    /// The number of counted rounds, after one uncounted round.
    rounds: u32,
    /// The set-up before each round.
    prepare: fn(&Stage),
    /// Runs a round. Returns the number of requests that it posted.
    run: fn(&Stage) -> u64,
}

const CASES: &[Case] = &[
    Case { name: "requests that succeed", rounds: 300, prepare: |_| {}, run: succeed },
    Case { name: "lists, mostly unsignaled", rounds: 20, prepare: |_| {}, run: unsignaled },
    Case { name: "memory windows", rounds: 100, prepare: |_| {}, run: windows },
    Case { name: "empty polls", rounds: 1000, prepare: |_| {}, run: empty_polls },
    Case { name: "receiver not ready", rounds: 100, prepare: |_| {}, run: resumed },
    Case { name: "receiver ready in time", rounds: 50, prepare: patient, run: resumed },
    Case { name: "receiver never ready", rounds: 20, prepare: impatient, run: given_up },
    Case { name: "receiver unreachable", rounds: 20, prepare: unreachable, run: unanswered },
    Case { name: "remote access error", rounds: 20, prepare: fresh, run: refused },
    Case { name: "hundreds of flushes", rounds: 20, prepare: fresh, run: flushed },
];

fn fresh(stage: &Stage) {
    stage.reconnect(&Knobs::default());
}

/// Sets a distant deadline for the wait.
fn patient(stage: &Stage) {
    stage.reconnect(&Knobs { rnr_retries: 6, min_rnr_timer: 31, ..Knobs::default() });
}

/// Waits for 10 us, once.
fn impatient(stage: &Stage) {
    stage.reconnect(&Knobs { rnr_retries: 1, min_rnr_timer: 1, ..Knobs::default() });
}

/// Waits for 8 us, three times.
fn unreachable(stage: &Stage) {
    stage.reconnect(&Knobs { timeout: 1, retries: 2, ..Knobs::default() });
    stage.b.qp.to_reset();
}

const OK: Status = Status::IBV_WC_SUCCESS;
const FLUSHED: Status = Status::IBV_WC_WR_FLUSH_ERR;

fn succeed(stage: &Stage) -> u64 {
    let (a, b) = (&stage.a, &stage.b);
    let receives = post_receives(&b.qp, stage.sge_of_b(), 2);
    let wrs = [&stage.write, &stage.read, &stage.inline, &stage.send, &stage.send];
    let sends: u64 = wrs.into_iter().map(|wr| post(&a.qp, wr, 1)).sum();
    drain(&a.send_cq, OK, 4, OK);
    drain(&b.receive_cq, OK, 1, OK);
    receives + sends
}

fn unsignaled(stage: &Stage) -> u64 {
    let posted = post(&stage.a.qp, &stage.write, 64);
    drain(&stage.a.send_cq, OK, 0, OK);
    posted
}

/// Granted and revoked by B, then granted again and invalidated by A.
fn windows(stage: &Stage) -> u64 {
    let (a, b, key) = (&stage.a, &stage.b, stage.mw.key());
    let part = stage.remote.part(0, 64, REMOTE_WRITE);
    let mut posted = 0;
    for wr in [Wr::bind(1, &stage.mw, key, part), Wr::local_invalidate(1, key)] {
        posted += post(&b.qp, &wr, 1);
        drain(&b.send_cq, OK, 0, OK);
    }
    posted += post(&b.qp, &Wr::bind(1, &stage.mw, key, part), 1);
    drain(&b.send_cq, OK, 0, OK);
    posted += post_receives(&b.qp, stage.sge_of_b(), 1);
    posted += post(&a.qp, &Wr::send_with_invalidate(1, &[], key), 1);
    drain(&a.send_cq, OK, 0, OK);
    drain(&b.receive_cq, OK, 0, OK);
    posted
}

fn empty_polls(stage: &Stage) -> u64 {
    assert_eq!(poll(&stage.a.send_cq, &mut [ibv_wc::default(); 16]), 0);
    0
}

fn resumed(stage: &Stage) -> u64 {
    let sends = post(&stage.a.qp, &stage.send, 1) + post(&stage.a.qp, &stage.inline, 4);
    assert_eq!(poll(&stage.a.send_cq, &mut [ibv_wc::default(); 16]), 0);
    let receives = post_receives(&stage.b.qp, stage.sge_of_b(), 1);
    drain(&stage.a.send_cq, OK, 1, OK);
    drain(&stage.b.receive_cq, OK, 0, OK);
    sends + receives
}

fn given_up(stage: &Stage) -> u64 {
    let sends = post(&stage.a.qp, &stage.send, 1) + post(&stage.a.qp, &stage.write, 4);
    drain(&stage.a.send_cq, Status::IBV_WC_RNR_RETRY_EXC_ERR, 4, FLUSHED);
    sends
}

fn unanswered(stage: &Stage) -> u64 {
    let sends = post(&stage.a.qp, &stage.write, 5);
    drain(&stage.a.send_cq, Status::IBV_WC_RETRY_EXC_ERR, 4, FLUSHED);
    sends
}

fn refused(stage: &Stage) -> u64 {
    let receives = post_receives(&stage.b.qp, stage.sge_of_b(), 4);
    let sends = post(&stage.a.qp, &stage.bad_write, 1) + post(&stage.a.qp, &stage.write, 10);
    drain(&stage.a.send_cq, Status::IBV_WC_REM_ACCESS_ERR, 10, FLUSHED);
    drain(&stage.b.receive_cq, FLUSHED, 3, FLUSHED);
    receives + sends
}

/// Two hundred sends queued after one that waits and then fails, and as many receives.
fn flushed(stage: &Stage) -> u64 {
    let (a, b) = (&stage.a, &stage.b);
    let mut posted = post_receives(&a.qp, stage.sge_of_a(), 200);
    posted += post(&a.qp, &stage.send, 1);
    posted += (0..4).map(|_| post(&a.qp, &stage.write, 50)).sum::<u64>();
    let bad = ibv_sge { lkey: !stage.remote.key(), ..stage.sge_of_b() };
    posted += post_receives(&b.qp, bad, 1);
    drain(&a.send_cq, Status::IBV_WC_REM_OP_ERR, 200, FLUSHED);
    drain(&a.receive_cq, FLUSHED, 199, FLUSHED);
    drain(&b.receive_cq, Status::IBV_WC_LOC_PROT_ERR, 0, OK);
    posted
}

/// Eight completions for a queue of four.
fn overflow(stage: &Stage) -> u64 {
    let (a, mut wcs) = (&stage.a, [ibv_wc::default(); 16]);
    let posted = (0..8).map(|_| post(&a.qp, &stage.write, 1)).sum();
    until("execution", || SoftDevice::find(stage.device).unwrap().in_flight(a.qp.qpn()) == 0);
    assert_eq!(poll(&a.send_cq, &mut wcs), 4);
    assert!(poll(&a.send_cq, &mut wcs) < 0);
    posted
}

/// Posts by function calls, including refused batches, and polls one completion after the other.
fn extended(device: &str) -> u64 {
    let fields = STANDARD | TIMESTAMP | WALLCLOCK;
    let mut a = Side::with_fields(device, 1024, fields);
    a.qp = a.context.try_qp_ex(&init(&a.pd, &a.send_cq, &a.receive_cq, &SIZE, OPERATIONS)).unwrap();
    let b = Side::with_fields(device, 1024, fields);
    connect_sides(&a, &b, &Knobs::default());
    let [local, remote] = [&a, &b].map(|side| side.pd.register(4096, ALL_ACCESS));
    let write = Wr::write(1, &[local.sge(0, 100), local.sge(200, 100)], &remote, 0);
    let (send, small) = (Wr::send(1, &[]), [7_u8; 200]);
    let take = |cq: &Cq, count: usize| {
        let mut taken = 0;
        while taken < count {
            cq.start_at_next();
            loop {
                assert_eq!(cq.at().1, OK);
                assert!(cq.read().timestamp < cq.read().wallclock);
                taken += 1;
                if cq.advance() != 0 {
                    break;
                }
            }
            cq.end();
        }
    };
    let round = || {
        post_receives(&b.qp, remote.sge(1024, 64), 1);
        a.qp.start();
        (0..64).for_each(|_| a.qp.build(&write));
        a.qp.begin(&write);
        a.qp.set_inline(&[&small]);
        a.qp.build(&send);
        assert_eq!(a.qp.complete(), 0);
        a.qp.start();
        (0..600).for_each(|_| a.qp.build(&write));
        assert_ne!(a.qp.complete(), 0);
        take(&a.send_cq, 66);
        take(&b.receive_cq, 1);
        67
    };
    round();
    counted("extended", || (0..20).map(|_| round()).sum())
}

/// Queue pairs that wait for the requests of a shared queue, also when they fail.
fn shared(device: &str) -> u64 {
    let (clients, server) = Server::with_clients(device, 8, 4, &Knobs::default());
    let (sink, message) = (server.pd.register(8, ALL_ACCESS), Wr::send(1, &[]));
    let round = || {
        server.srq.set_limit(2);
        let sends: u64 = clients.iter().map(|client| post(&client.qp, &message, 1)).sum();
        let post = |wr, bad| unsafe { ibv_post_srq_recv(server.srq.0, wr, bad) };
        let receives = post_each(sink.sge(0, 8), 4, post);
        clients.iter().for_each(|client| drain(&client.send_cq, OK, 0, OK));
        drain(&server.receive_cq, OK, 3, OK);
        sends + receives
    };
    round();
    let posted = (0..50).map(|_| counted("a shared queue", round)).sum();
    counted("the end of its queue pairs", || {
        server.qps.iter().for_each(Qp::to_error);
        0
    });
    assert_eq!(server.events().len(), 5, "the limit, and four ends");
    posted
}

/// Datagrams to a group with members on two devices; one member has no receive request.
fn group(device: &'static str, other: &'static str) -> u64 {
    let members = [device, device, other, other].map(datagram::side);
    let (a, end) = (&members[0], members[0].endpoint());
    let mut vector = datagram::vector(&end, &end, true);
    // ::ffff:239.1.2.3
    vector.grh.dgid.raw = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3];
    let rooms = members.each_ref().map(|side| side.pd.register(datagram::HEADER, ALL_ACCESS));
    let ah = a.pd.ah(vector);
    let message = Wr::send(1, &[]).to(&ah, 0x00ff_ffff, datagram::QKEY);
    assert!(members.iter().all(|side| side.qp.attach(&vector.grh.dgid, 0) == 0));
    let round = || {
        for (side, room) in members[..3].iter().zip(&rooms) {
            post_receives(&side.qp, room.sge(0, datagram::HEADER), 4);
        }
        let sent = post(&a.qp, &message, 4);
        drain(&a.send_cq, OK, 0, OK);
        members[..3].iter().for_each(|side| drain(&side.receive_cq, OK, 3, OK));
        sent + 12
    };
    round();
    let posted = (0..50).map(|_| counted("a group", round)).sum();
    assert!(members.iter().all(|side| side.qp.detach(&vector.grh.dgid, 0) == 0));
    posted
}

/// Runs a part of the data path, which must not allocate.
fn counted(name: &str, run: impl FnOnce() -> u64) -> u64 {
    let before = ALLOCATOR.allocations();
    let posted = run();
    let allocations = ALLOCATOR.allocations() - before;
    assert_eq!(allocations, 0, "allocations: {name}");
    posted
}

/// Starts the timer's thread, which stays for a while, and verifies that it runs: no other thread can end this wait,
/// since no thread polls.
fn start_timer(stage: &Stage) {
    impatient(stage);
    post(&stage.a.qp, &stage.send, 1);
    // A poll could end the wait, too.
    let device = SoftDevice::find(stage.device).unwrap();
    until("the timer's thread", || device.in_flight(stage.a.qp.qpn()) == 0);
    drain(&stage.a.send_cq, Status::IBV_WC_RNR_RETRY_EXC_ERR, 0, OK);
    fresh(stage);
}

fn count_case(stage: &Stage, case: &Case) -> u64 {
    start_timer(stage);
    (case.prepare)(stage);
    (case.run)(stage);
    let round = |_| {
        (case.prepare)(stage);
        counted(case.name, || (case.run)(stage))
    };
    (0..case.rounds).map(round).sum()
}

/// B receives A's messages and answers them, on a separate thread. That thread has executed a request before: a device
/// registers each thread at its first request.
fn two_threads(stage: &Stage, immediate: &Stage) -> u64 {
    const MESSAGES: u64 = 500;
    let first = &immediate.b;
    let (a, b, sge) = (&stage.a, &stage.b, stage.sge_of_b());
    let step = Barrier::new(2);
    let (b_qp, b_send_cq, b_receive_cq) = (&b.qp, &b.send_cq, &b.receive_cq);
    let answer = || {
        let wr = Wr::send(1, &[]);
        post(&first.qp, &Wr::new(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, &[]), 1);
        drain(&first.send_cq, OK, 0, OK);
        step.wait();
        step.wait();
        for _ in 0..MESSAGES {
            drain(b_receive_cq, OK, 0, OK);
            post_receives(b_qp, sge, 1);
            post(b_qp, &wr, 1);
            drain(b_send_cq, OK, 0, OK);
        }
        step.wait();
        // Ending a thread is not part of the data path.
        step.wait();
    };
    thread::scope(|scope| {
        scope.spawn(answer);
        post_receives(b_qp, sge, 1);
        step.wait();
        let posted = counted("two threads", || {
            step.wait();
            for _ in 0..MESSAGES {
                post_receives(&a.qp, stage.sge_of_a(), 1);
                post(&a.qp, &stage.send, 1);
                drain(&a.send_cq, OK, 0, OK);
                drain(&a.receive_cq, OK, 0, OK);
            }
            step.wait();
            4 * MESSAGES
        });
        step.wait();
        posted
    })
}

/// The maximum memory of a connected queue pair beyond its queues.
const MOST_BYTES: u64 = 64 << 10;

/// Creates queue pairs with the shortest queues, connects them, and runs everything that allocates on first use.
fn connections_by_packets_are_small(reads: u8) {
    const PAIRS: u64 = 64;
    let device = format!("no_alloc-small-{reads}");
    Builder::new(&*device)
        .limits(Limits::default().max_qp_rd_atom(reads))
        .force_wire()
        .install()
        .unwrap();
    let size = Size { send_wr: 1, receive_wr: 1, sge: 1, inline: 0, ..SIZE };
    let knobs = Knobs { rd_atomic: reads, ..Knobs::default() };
    let context = Context::open(&device);
    let (pd, cq) = (context.pd(), context.cq(16));
    let region = pd.register(4096, ALL_ACCESS);
    let exchange = |from: &Qp, to: &Qp| {
        let sges = [region.sge(0, 4096)];
        post_receives(to, sges[0], 1);
        post(from, &Wr::send(1, &sges), 1);
        drain(&cq, OK, 1, OK);
        post(from, &Wr::read(1, &sges, &region, 0), 1);
        drain(&cq, OK, 0, OK);
    };
    let connected = || {
        let pair = [(); 2].map(|()| pd.qp(&cq, &cq, &size));
        let [a, b] = pair.each_ref().map(|qp| endpoint(&context, qp));
        connect(&pair[0], &a, &b, &knobs);
        connect(&pair[1], &b, &a, &knobs);
        exchange(&pair[0], &pair[1]);
        exchange(&pair[1], &pair[0]);
        pair
    };
    // Memory that the device allocates once for all.
    let mut pairs = vec![connected()];
    pairs.reserve(usize::try_from(PAIRS).unwrap());
    let before = ALLOCATOR.bytes();
    pairs.extend((0..PAIRS).map(|_| connected()));
    let each = (ALLOCATOR.bytes() - before) / (2 * PAIRS);
    println!("{each} bytes for each connected queue pair with {reads} READs and atomics");
    assert!(each <= MOST_BYTES, "{each}");
}

fn main() {
    for reads in [1, 16, 128] {
        connections_by_packets_are_small(reads);
    }
    let immediate = "no_alloc-first";
    Builder::new(immediate).install().unwrap();
    for (device, schedule) in [
        ("no_alloc-immediate", Schedule::Immediate),
        ("no_alloc-deferred", Schedule::Deferred { seed: 1 }),
    ] {
        Builder::new(device).schedule(schedule).install().unwrap();
        let mut posted = 0;
        {
            let stage = Stage::new(device, 1024);
            posted += CASES.iter().map(|case| count_case(&stage, case)).sum::<u64>();
            start_timer(&stage);
            posted += two_threads(&stage, &Stage::new(immediate, 4));
            posted += shared(device);
            posted += group(device, immediate);
            posted += extended(device);
        }
        let small: Vec<_> = (0..10).map(|_| Stage::new(device, 4)).collect();
        start_timer(&small[0]);
        overflow(&small[0]);
        posted += small[1..].iter().map(|s| counted("overflow", || overflow(s))).sum::<u64>();
        assert!(posted >= 10_000, "{posted}");
        println!("{device}: {posted} requests without an allocation");
    }
}
