//! A process that stops or dies at a step of a request. It is in a visit to mapped memory of another process, or inside a
//! copy to or from a ring.

use std::ffi::c_int;
use std::fs::read_to_string;
use std::mem::ManuallyDrop;

use rdma_soft::SoftDevice;
use rdma_sys::{ibv_wc_status as Status, ibv_wr_opcode as Opcode};
use rustix::param::page_size;
use test_support::rig::connect::Side;
use test_support::rig::memory::deregister;
use test_support::rig::post::Wr;
use test_support::rig::trap::{self, Trap};
use test_support::rig::{ALL_ACCESS, Mr, until};

use crate::local_link::mapped::Pair;
use crate::two_processes::near::PATIENT;
use crate::two_processes::peer::LENGTH;

const WRITE: u32 = Opcode::IBV_WR_RDMA_WRITE.0;
const READ: u32 = Opcode::IBV_WR_RDMA_READ.0;
const WRITE_WITH_IMM: u32 = Opcode::IBV_WR_RDMA_WRITE_WITH_IMM.0;
const FETCH_AND_ADD: u32 = Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD.0;

/// The offset of the words of visits in the file of a ring (`src/link/local/shared.rs`).
const VISITS: usize = 13_312;

/// The step at which the second process halts.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The visit has begun, and no version was read yet.
    Begun,
    /// The copy has reached this page of the process's own memory.
    Copying(usize),
    /// Everything is copied, and the visit has not ended.
    Copied,
}

impl Step {
    fn word(self) -> String {
        match self {
            Self::Begun => "begun".to_owned(),
            Self::Copying(page) => page.to_string(),
            Self::Copied => "copied".to_owned(),
        }
    }

    fn of(word: &str) -> Self {
        match word {
            "begun" => Self::Begun,
            "copied" => Self::Copied,
            page => Self::Copying(page.parse().unwrap()),
        }
    }

    /// Returns the traps of a request with this memory. The process has mapped memory of another one, and written there.
    fn traps(self, memory: &Mr, visits: usize) -> Vec<Trap> {
        let visits = Trap::at_write(visits / page_size() * page_size());
        let last = memory.length().div_ceil(page_size()) - 1;
        match self {
            Self::Begun => {
                let [versions] = trap::mappings("rdma-soft versions", "r--s")[..] else {
                    panic!("the versions of one other process");
                };
                vec![visits, Trap::at_read(versions)]
            }
            Self::Copying(page) => vec![memory.trap(page)],
            Self::Copied => vec![memory.trap(last), visits],
        }
    }
}

/// Returns the address of the first word of visits. It is in the only ring whose sender has made visits.
fn visits() -> usize {
    let rings = trap::mappings("/memfd:rdma-soft (deleted)", "rw-s");
    let mut visits = rings.into_iter().map(|ring| ring + VISITS);
    visits.find(|&word| trap::word_at(word) != 0).expect("a ring with visits")
}

/// Executes a command of the second process, which halts with a signal:
/// - `visit OPCODE ADDRESS KEY STEP SIGNAL`: at that step of a request on that memory, after it got a grant. Returns the
///   status of the request, and that of another WRITE. Then the number of requests that it executed without packets, and
///   whether it halted during a visit.
/// - `fill OPCODE ADDRESS KEY PAGE SIGNAL`: when a request that travels as packets has copied its memory up to that page.
///   Returns the status of the request.
/// - `drain PAGE SIGNAL`: when a message that arrives has reached that page of its memory. Returns its status.
pub(crate) fn act(device: &str, side: &Side, words: &[&str]) -> String {
    let number = |n: usize| words[n].parse::<u64>().unwrap();
    // A file, so that the device copies by its own instructions.
    let memory = side.pd.register_file(LENGTH, ALL_ACCESS);
    if words[0] == "drain" {
        trap::signal_at(vec![memory.trap(number(1) as usize)], number(2) as c_int, None);
        side.qp.post_receive(1, &[memory.sge(0, LENGTH)]);
        return side.receive_cq.next().status.0.to_string();
    }
    let [opcode, address, key, signal] = [1, 2, 3, 5].map(number);
    let request = |opcode, length| {
        let is_atomic = opcode == Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
        let wr = Wr::new(1, opcode, &[memory.sge(0, if is_atomic { 8 } else { length })]);
        side.qp.post(&match is_atomic {
            true => wr.atomic_at(address, key as u32, 1, 0),
            false => wr.remote(address, key as u32),
        });
        side.send_cq.next().status
    };
    let opcode = Opcode(opcode as u32);
    if words[0] == "fill" {
        trap::signal_at(vec![memory.trap(number(4) as usize)], signal as c_int, None);
        return request(opcode, LENGTH).0.to_string();
    }
    let mapped = || SoftDevice::find(device).unwrap().counters().mapped_requests;
    until("a request without packets", || {
        assert_eq!(request(Opcode::IBV_WR_RDMA_WRITE, 8), Status::IBV_WC_SUCCESS);
        mapped() > 0
    });
    let (before, visits) = (mapped(), visits());
    let traps = Step::of(words[4]).traps(&memory, visits);
    trap::signal_at(traps, signal as c_int, Some(visits));
    let [first, next] = [request(opcode, LENGTH), request(Opcode::IBV_WR_RDMA_WRITE, 8)];
    let visit = trap::found_at_signal().expect("the process has halted") % 2;
    format!("{} {} {} {visit}", first.0, next.0, mapped() - before)
}

/// Waits until the second process has halted. Returns true if it has only stopped.
fn has_stopped(pair: &Pair) -> bool {
    let status = format!("/proc/{}/stat", pair.near.peer.pid().as_raw_nonzero());
    let mut found = String::new();
    until("halted", || {
        found = read_to_string(&status).unwrap();
        [") T ", ") Z "].iter().any(|state| found.contains(state))
    });
    found.contains(") T ")
}

/// Connects to a process that then halts at that step of its request. Deregisters the memory of the request.
fn deregister_during(name: &str, opcode: u32, step: Step, signal: c_int) -> Pair {
    for attempt in 0.. {
        let mut pair = Pair::new(&format!("{name}-{attempt}"), &PATIENT);
        let memory = ManuallyDrop::new(pair.near.side.pd.register_file(LENGTH, ALL_ACCESS));
        let (address, key, step) = (memory.address(), memory.rkey(), step.word());
        pair.near.peer.begin_last(&format!("halt visit {opcode} {address} {key} {step} {signal}"));
        let has_stopped = has_stopped(&pair);
        deregister(memory.mr);
        // The process ends if the device's thread, which blocks SIGSEGV, is the first one at the page.
        if has_stopped == (signal == libc::SIGSTOP) {
            return pair;
        }
        assert!(attempt < 10, "{name}: the process has ended each time");
    }
    unreachable!()
}

/// Returns the first page of the memory, a middle one and the last. If pages are long, there are only two.
fn pages() -> Vec<usize> {
    let mut pages = vec![0, LENGTH / page_size() / 2, (LENGTH - 1) / page_size()];
    pages.dedup();
    pages
}

/// Returns each of these pages with each way to halt.
fn halts() -> Vec<(usize, c_int)> {
    let ways = |page| [libc::SIGSTOP, libc::SIGKILL].map(|signal| (page, signal));
    pages().into_iter().flat_map(ways).collect()
}

/// Returns each kind of request with each step. An atomic stores its result in the first page.
fn requests() -> Vec<(u32, Step)> {
    let copying = pages().into_iter().map(Step::Copying);
    let steps: Vec<Step> = [Step::Begun, Step::Copied].into_iter().chain(copying).collect();
    let of = |opcode| steps.iter().map(move |&step| (opcode, step));
    let atomics = [Step::Begun, Step::Copying(0)].map(|step| (FETCH_AND_ADD, step));
    [WRITE, READ, WRITE_WITH_IMM].into_iter().flat_map(of).chain(atomics).collect()
}

/// The copy ends after the region was deregistered, in memory that belongs to nothing. The next request is refused. A
/// WRITE with immediate data is refused itself, at its last packet. So is a request that had not read the versions.
#[test]
fn a_process_that_stops_during_a_visit_keeps_no_region_registered() {
    for (opcode, step) in requests() {
        let name = format!("stopped-{opcode}-{}", step.word());
        let mut pair = deregister_during(&name, opcode, step, libc::SIGSTOP);
        pair.near.peer.go_on();
        let is_refused = matches!(step, Step::Begun) || opcode == WRITE_WITH_IMM;
        let statuses = match is_refused {
            true => [Status::IBV_WC_REM_ACCESS_ERR, Status::IBV_WC_WR_FLUSH_ERR],
            false => [Status::IBV_WC_SUCCESS, Status::IBV_WC_REM_ACCESS_ERR],
        };
        let [first, next] = statuses.map(|status| u128::from(status.0));
        let executed = u128::from(!matches!(step, Step::Begun));
        assert_eq!(pair.near.peer.finish(), [first, next, executed, 1], "{name}");
        pair.near.peer.end();
    }
}

#[test]
fn a_process_that_dies_during_a_visit_keeps_no_region_registered() {
    for (opcode, step) in requests() {
        let name = format!("killed-{opcode}-{}", step.word());
        let pair = deregister_during(&name, opcode, step, libc::SIGKILL);
        pair.near.side.qp.post(&pair.near.send(8));
        pair.near.expect_end();
    }
}

/// The sender is inside a copy to its ring. The memory for the message can be withdrawn. If the device's thread copies, it
/// blocks the signal that the page causes, and the process ends instead of stopping.
#[test]
fn a_sender_that_halts_inside_a_copy_to_a_ring_delays_nothing() {
    for (page, signal) in halts() {
        let mut pair = Pair::new(&format!("filling-{page}-{signal}"), &PATIENT);
        let memory = vec![0; LENGTH];
        let memory = ManuallyDrop::new(pair.near.side.pd.register_private(memory, ALL_ACCESS));
        let (address, key) = (memory.address(), memory.rkey());
        pair.near.peer.begin_last(&format!("halt fill {WRITE} {address} {key} {page} {signal}"));
        let has_stopped = has_stopped(&pair);
        deregister(memory.mr);
        if has_stopped {
            pair.near.peer.go_on();
            let refused = u128::from(Status::IBV_WC_REM_ACCESS_ERR.0);
            assert_eq!(pair.near.peer.finish(), [refused], "page {page}");
            pair.near.peer.end();
        } else {
            pair.near.side.qp.post(&pair.near.send(8));
            // Flushed, if a part of the message had arrived, which the region's key no longer permits.
            let status = pair.near.side.send_cq.next().status;
            let ends = [Status::IBV_WC_RETRY_EXC_ERR, Status::IBV_WC_WR_FLUSH_ERR];
            assert!(ends.contains(&status), "page {page}: {status:?}");
        }
    }
}

/// The receiver is inside a copy from a ring. The message is not executed, so it does not complete. The process may end,
/// as in the previous test.
#[test]
fn a_receiver_that_halts_inside_a_copy_from_a_ring_executes_nothing() {
    for (page, signal) in halts() {
        let mut pair = Pair::new(&format!("draining-{page}-{signal}"), &PATIENT);
        pair.near.peer.begin_last(&format!("halt drain {page} {signal}"));
        pair.near.side.qp.post(&pair.near.send(LENGTH));
        if has_stopped(&pair) {
            assert!(pair.near.side.send_cq.try_poll::<1>().unwrap().is_empty(), "page {page}");
            pair.near.peer.go_on();
            let success = u128::from(Status::IBV_WC_SUCCESS.0);
            assert_eq!(pair.near.peer.finish(), [success], "page {page}");
            pair.near.side.send_cq.expect_success(1);
            pair.near.peer.end();
        } else {
            pair.near.expect_end();
        }
    }
}
