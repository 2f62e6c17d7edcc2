//! Acknowledgements of another process that this process needs while it polls nothing: an armed completion queue, a
//! drain, or later requests wait for them. No queue pair has a timeout, so a lost wake-up is a hang. Each test has its
//! own process, because the polls of other tests would find the acknowledgements.

use std::hint::spin_loop;

use rdma_sys::{
    ibv_event_type as Event, ibv_mw_type, ibv_qp_attr, ibv_qp_attr_mask as Mask,
    ibv_qp_state as State, ibv_qp_type, ibv_wc_status as Status, ibv_wr_opcode as Opcode,
};
use test_support::program::in_own_process;
use test_support::rig::connect::Side;
use test_support::rig::events::Channel;
use test_support::rig::post::Wr;
use test_support::rig::window::Mw;
use test_support::rig::{Context, Cq, LOCAL_WRITE, MW_BIND, Mr, Size, until};

use crate::local_link::hostile::Random;
use crate::two_processes::near::{Near, PATIENT};
use crate::two_processes::peer::{LENGTH, Peer, read, sum};

/// A connection whose requests complete in a queue that sends events.
struct Sleeper {
    near: Near,
    channel: Channel,
    context: Context,
}

impl Sleeper {
    fn new() -> Self {
        rdma_soft::install();
        let context = Context::open("soft0");
        let channel = context.channel();
        channel.set_non_blocking(false);
        let (send_cq, receive_cq) = (context.cq_with(&channel, 256), context.cq(256));
        let pd = context.pd();
        let size = Size { qp_type: ibv_qp_type::IBV_QPT_RC, send_wr: 64, ..Size::default() };
        let qp = pd.qp(&send_cq, &receive_cq, &size);
        let side = Side { qp, send_cq, receive_cq, pd, context: Context::open("soft0") };
        let mut near = Near::with(side, Peer::start(), [&PATIENT, &PATIENT]);
        near.all_of_it();
        Self { near, channel, context }
    }

    fn cq(&self) -> &Cq {
        &self.near.side.send_cq
    }

    fn write(&self, length: usize) -> Wr {
        let wr = Wr::new(1, Opcode::IBV_WR_RDMA_WRITE, &[self.near.memory.sge(0, length)]);
        wr.remote(self.near.remote.0, self.near.remote.1)
    }

    /// Posts requests that wait until the peer has executed earlier ones. The last is a SEND. Returns their number.
    fn post_waiting(&self, kind: u64, random: &mut Random, (mw, bound): &(Mw, Mr)) -> u64 {
        let qp = &self.near.side.qp;
        // These do not fit into the window.
        let (writes, length) = if kind == 0 { (24, LENGTH) } else { (1 + random.below(3), 8) };
        for _ in 0..writes {
            qp.post(&self.write(length));
            pause(random);
        }
        let local = match kind {
            1 => {
                let key = mw.key_with(random.below(256) as u8);
                qp.post(&Wr::bind(1, mw, key, bound.part(0, 8, 0)));
                qp.post(&Wr::local_invalidate(1, key));
                2
            }
            _ => 0,
        };
        qp.post(&self.near.send(8));
        writes + local + 1
    }

    /// Sleeps until the completion queue has sent an event.
    fn sleep(&self) {
        self.channel.get().unwrap();
        self.cq().acknowledge(1);
    }
}

/// Runs a test of this module in its own process.
fn alone(test: &str, work: impl FnOnce()) {
    in_own_process(&format!("local_link::awaited::{test}"), work);
}

fn random() -> Random {
    Random(0x9e37_79b9_7f4a_7c15)
}

/// Lets the link's thread reach a different point each time.
fn pause(random: &mut Random) {
    let most = 1 << random.below(17);
    (0..random.below(most)).for_each(|_| spin_loop());
}

/// Stops the peer in some rounds, so that the link's thread sleeps before the peer executes the requests.
fn stop_sometimes(peer: &Peer, random: &mut Random) -> bool {
    let stops = random.below(8) == 0;
    if stops {
        peer.stop();
    }
    stops
}

#[test]
fn an_armed_queue_reports_each_acknowledgement() {
    alone("an_armed_queue_reports_each_acknowledgement", || {
        let sleepers = [Sleeper::new(), Sleeper::new()];
        let mut random = random();
        for round in 0..2000_u32 {
            let sleeper = &sleepers[random.below(2) as usize];
            let post = || sleeper.near.side.qp.post(&sleeper.write(8));
            // Whether the queue is armed before the post, and whether it is first armed for solicited completions.
            let [is_armed_first, is_narrow] = [(); 2].map(|()| random.below(2) == 0);
            if !is_armed_first {
                post();
                pause(&mut random);
            }
            if is_narrow {
                sleeper.cq().request_event(true);
                pause(&mut random);
            }
            sleeper.cq().request_event(false);
            pause(&mut random);
            if is_armed_first || !sleeper.cq().try_poll::<1>().unwrap().is_empty() {
                // If the completion that was polled has caused no event, the next one causes it.
                post();
            }
            sleeper.sleep();
            sleeper.cq().expect_success(1);
            if round.is_multiple_of(64) {
                // A queue that is destroyed or left armed.
                drop(sleeper.context.cq_with(&sleeper.channel, 4));
                let armed = sleeper.context.cq_with(&sleeper.channel, 4);
                armed.request_event(false);
            }
        }
        sleepers.into_iter().for_each(|sleeper| sleeper.near.peer.end());
    });
}

#[test]
fn a_drain_ends_while_nothing_is_polled() {
    alone("a_drain_ends_while_nothing_is_polled", || {
        let sleeper = Sleeper::new();
        let side = &sleeper.near.side;
        side.context.set_async_non_blocking(false);
        sleeper.context.set_async_non_blocking(false);
        let mut random = random();
        for _ in 0..300 {
            let is_stopped = stop_sometimes(&sleeper.near.peer, &mut random);
            let count = 1 + random.below(3);
            (0..count).for_each(|_| side.qp.post(&sleeper.write(8)));
            pause(&mut random);
            let mut attr = ibv_qp_attr::default();
            (attr.qp_state, attr.en_sqd_async_notify) = (State::IBV_QPS_SQD, 1);
            let mask = Mask::IBV_QP_STATE | Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY;
            assert_eq!(side.qp.modify(attr, mask.0), 0);
            if is_stopped {
                pause(&mut random);
                sleeper.near.peer.go_on();
            }
            let (event, _) = sleeper.context.try_async_event().unwrap();
            assert_eq!(event, Event::IBV_EVENT_SQ_DRAINED);
            assert_eq!(side.qp.to_state(State::IBV_QPS_RTS), 0);
            (0..count).for_each(|_| _ = sleeper.cq().expect_success(1));
        }
        sleeper.near.peer.end();
    });
}

#[test]
fn requests_that_wait_for_earlier_ones_are_sent_while_nothing_is_polled() {
    let test = "requests_that_wait_for_earlier_ones_are_sent_while_nothing_is_polled";
    alone(test, || {
        let mut sleeper = Sleeper::new();
        let mut random = random();
        let bound = sleeper.near.side.pd.register(8, LOCAL_WRITE | MW_BIND);
        let window = (sleeper.near.side.pd.mw(ibv_mw_type::IBV_MW_TYPE_2), bound);
        for _ in 0..200 {
            sleeper.near.peer.receive();
            let is_stopped = stop_sometimes(&sleeper.near.peer, &mut random);
            let count = sleeper.post_waiting(random.below(3), &mut random, &window);
            if is_stopped {
                pause(&mut random);
                sleeper.near.peer.go_on();
            }
            sleeper.near.peer.completion();
            (0..count).for_each(|_| _ = sleeper.cq().expect_success(1));
        }
        drop(window);
        sleeper.near.peer.end();
    });
}

#[test]
fn a_failed_request_is_reported_after_the_acknowledgements_that_it_waits_for() {
    let test = "a_failed_request_is_reported_after_the_acknowledgements_that_it_waits_for";
    alone(test, || {
        let mut random = random();
        for _ in 0..20 {
            let sleeper = Sleeper::new();
            sleeper.near.peer.stop();
            sleeper.cq().request_event(true);
            let side = &sleeper.near.side;
            side.qp.post(&sleeper.write(8));
            let mut sge = sleeper.near.memory.sge(0, 8);
            sge.lkey ^= 0x100;
            let wr = Wr::new(2, Opcode::IBV_WR_RDMA_WRITE, &[sge]);
            side.qp.post(&wr.remote(sleeper.near.remote.0, sleeper.near.remote.1));
            pause(&mut random);
            sleeper.near.peer.go_on();
            sleeper.sleep();
            sleeper.cq().expect_success(1);
            sleeper.cq().expect(2, Status::IBV_WC_LOC_PROT_ERR);
            sleeper.near.peer.end();
        }
    });
}

#[test]
fn the_end_of_the_peer_is_reported_to_a_queue_armed_for_solicited_completions() {
    let test = "the_end_of_the_peer_is_reported_to_a_queue_armed_for_solicited_completions";
    alone(test, || {
        for _ in 0..10 {
            let mut sleeper = Sleeper::new();
            sleeper.near.memory.copy_in(0, b"executedexecuted");
            let written = sum(&read(&sleeper.near.memory, 0, 16));
            sleeper.cq().request_event(true);
            let (address, key) = sleeper.near.remote;
            for at in [address, address + 8] {
                sleeper.near.side.qp.post(&sleeper.write(8).remote(at, key));
            }
            until("two writes", || sleeper.near.peer.sum(0, 16) == written);
            // No receive request matches it.
            sleeper.near.side.qp.post(&sleeper.near.send(8));
            sleeper.near.peer.kill();
            sleeper.sleep();
            sleeper.cq().expect_success(1);
            // The peer may have been killed before it acknowledged the second write.
            let rest = match sleeper.cq().next().status {
                Status::IBV_WC_SUCCESS => Status::IBV_WC_RETRY_EXC_ERR,
                status => {
                    assert_eq!(status, Status::IBV_WC_RETRY_EXC_ERR);
                    Status::IBV_WC_WR_FLUSH_ERR
                }
            };
            sleeper.cq().expect(1, rest);
        }
    });
}
