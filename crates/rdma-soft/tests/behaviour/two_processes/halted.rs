//! A process that stops or dies inside a copy to or from memory of another process.

use std::ffi::c_int;
use std::mem::ManuallyDrop;

use rdma_soft::SoftDevice;
use rdma_sys::{ibv_wc_status as Status, ibv_wr_opcode as Opcode};
use rustix::param::page_size;
use test_support::rig::connect::Side;
use test_support::rig::memory::deregister;
use test_support::rig::post::Wr;
use test_support::rig::{ALL_ACCESS, until};

use crate::local_link::mapped::Pair;
use crate::two_processes::near::PATIENT;
use crate::two_processes::peer::LENGTH;

const WRITE: u32 = Opcode::IBV_WR_RDMA_WRITE.0;
const READ: u32 = Opcode::IBV_WR_RDMA_READ.0;
const WRITE_WITH_IMM: u32 = Opcode::IBV_WR_RDMA_WRITE_WITH_IMM.0;
const FETCH_AND_ADD: u32 = Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD.0;

/// Executes the command `copy OPCODE ADDRESS KEY PAGE SIGNAL` of the second process. It gets a grant for that memory, and
/// the signal when the request has reached that page of its own memory. Returns the status of the request, that of another
/// WRITE, and the number of requests that it then executed without packets.
pub(crate) fn copy(device: &str, side: &Side, words: &[&str]) -> String {
    let number = |n: usize| words[n].parse::<u64>().unwrap();
    let [opcode, address, key, page, signal] = [0, 1, 2, 3, 4].map(number);
    // A file, so that the device copies by its own instructions.
    let memory = side.pd.register_file(LENGTH, ALL_ACCESS);
    let request = |opcode, length| {
        let is_atomic = opcode == Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
        let wr = Wr::new(1, opcode, &[memory.sge(0, if is_atomic { 8 } else { length })]);
        side.qp.post(&match is_atomic {
            true => wr.atomic_at(address, key as u32, 1, 0),
            false => wr.remote(address, key as u32),
        });
        side.send_cq.next().status
    };
    let mapped = || SoftDevice::find(device).unwrap().counters().mapped_requests;
    until("a request without packets", || {
        assert_eq!(request(Opcode::IBV_WR_RDMA_WRITE, 8), Status::IBV_WC_SUCCESS);
        mapped() > 0
    });
    memory.signal_at_access(page as usize, signal as c_int);
    let before = mapped();
    let [first, next] =
        [request(Opcode(opcode as u32), LENGTH), request(Opcode::IBV_WR_RDMA_WRITE, 8)];
    format!("{} {} {}", first.0, next.0, mapped() - before)
}

/// Connects to a process that then halts when its request has reached that page. Deregisters the memory of the request.
fn deregister_during(name: &str, opcode: u32, page: usize, signal: c_int) -> Pair {
    let mut pair = Pair::new(name, &PATIENT);
    let memory = ManuallyDrop::new(pair.near.side.pd.register_file(LENGTH, ALL_ACCESS));
    let (address, key) = (memory.address(), memory.rkey());
    pair.near.peer.begin_last(&format!("copy {opcode} {address} {key} {page} {signal}"));
    if signal == libc::SIGKILL {
        pair.near.peer.wait_for_end();
    } else {
        pair.near.peer.wait_until_stopped();
    }
    deregister(memory.mr);
    pair
}

/// Returns each kind of request with each page at which the process halts: the first, a middle one and the last. If pages
/// are long, there are only two. An atomic stores its result in the first page.
fn requests() -> Vec<(u32, usize)> {
    let mut pages = vec![0, LENGTH / page_size() / 2, (LENGTH - 1) / page_size()];
    pages.dedup();
    let of = |opcode| pages.iter().map(move |&page| (opcode, page));
    [WRITE, READ, WRITE_WITH_IMM].into_iter().flat_map(of).chain([(FETCH_AND_ADD, 0)]).collect()
}

/// The copy ends after the region was deregistered, in memory that belongs to nothing. The next request is refused. A
/// WRITE with immediate data is refused itself, at its last packet.
#[test]
fn a_process_that_stops_inside_a_copy_keeps_no_region_registered() {
    for (opcode, page) in requests() {
        let name = format!("stopped-{opcode}-{page}");
        let mut pair = deregister_during(&name, opcode, page, libc::SIGSTOP);
        pair.near.peer.go_on();
        let statuses = match opcode {
            WRITE_WITH_IMM => [Status::IBV_WC_REM_ACCESS_ERR, Status::IBV_WC_WR_FLUSH_ERR],
            _ => [Status::IBV_WC_SUCCESS, Status::IBV_WC_REM_ACCESS_ERR],
        };
        let [first, next] = statuses.map(|status| u128::from(status.0));
        assert_eq!(pair.near.peer.finish(), [first, next, 1], "{name}");
        pair.near.peer.end();
    }
}

#[test]
fn a_process_that_dies_inside_a_copy_keeps_no_region_registered() {
    for (opcode, page) in requests() {
        let name = format!("killed-{opcode}-{page}");
        let pair = deregister_during(&name, opcode, page, libc::SIGKILL);
        pair.near.side.qp.post(&pair.near.send(8));
        pair.near.expect_end();
    }
}
