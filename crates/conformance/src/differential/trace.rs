//! The observed behaviour of a device that ran a program.

use std::collections::BTreeMap;

use rdma_sys::{ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};
use serde::{Deserialize, Serialize};
use test_support::rig::imm_of;
use test_support::rig::window::invalidated_key;

use super::program::WINDOWS;

pub(super) const WITH_INV: u32 = ibv_wc_flags::IBV_WC_WITH_INV.0;
/// SoftRoCE's flag for the same.
pub(super) const RXE_WITH_INV: u32 = ibv_wc_flags::IBV_WC_IP_CSUM_OK.0;

/// The observed behaviour of a device, step by step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Trace {
    pub(super) steps: Vec<StepTrace>,
}

/// The observations in one step. Ends have names such as `0A`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StepTrace {
    /// The results of the calls in order: 0 or an error number each.
    pub(super) calls: Vec<i32>,
    pub(super) sent: BTreeMap<String, Vec<Completion>>,
    pub(super) received: BTreeMap<String, Vec<Completion>>,
    /// States of the queue pairs that were used.
    pub(super) states: BTreeMap<String, u32>,
    /// The asynchronous events of each object, sorted. Queue pairs are named by their ends, shared
    /// receive queues `SRQ`. SoftRoCE's events are not compared.
    pub(super) events: BTreeMap<String, Vec<String>>,
    /// Bytes that changed. The key is slot and offset, the value the new contents in hexadecimal.
    pub(super) memory: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Completion {
    pub(super) wr_id: u64,
    pub(super) status: u32,
    /// The fields that only a successful completion has.
    pub(super) details: Option<Details>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Details {
    pub(super) opcode: i32,
    /// For receives, READs and atomics.
    pub(super) byte_len: Option<u32>,
    pub(super) imm: Option<u32>,
    /// For datagrams, whether the reported source is the peer.
    pub(super) of_peer: Option<bool>,
    pub(super) invalidated: Option<Invalidated>,
}

/// The report of a receive about a key that its sender invalidated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Invalidated {
    /// The flag that reports it.
    pub(super) flag: u32,
    /// The window with this key.
    pub(super) window: Option<usize>,
}

/// The queue of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    Send,
    /// The receive queue, with the number of the queue pair that sends datagrams to it, and the
    /// keys of its windows.
    Receive {
        datagrams_of: Option<u32>,
        windows: [u32; WINDOWS as usize],
    },
}

impl Completion {
    pub(super) fn of(wc: &ibv_wc, queue: Queue) -> Self {
        let status = ibv_wc_status(wc.status.0);
        let received = queue != Queue::Send;
        let (datagrams_of, windows) = match queue {
            Queue::Receive { datagrams_of, windows } => (datagrams_of, windows),
            Queue::Send => (None, Default::default()),
        };
        let success = status == ibv_wc_status::IBV_WC_SUCCESS;
        let details = success.then(|| {
            let fetched = wc.opcode == ibv_wc_opcode::IBV_WC_RDMA_READ
                || wc.opcode == ibv_wc_opcode::IBV_WC_COMP_SWAP
                || wc.opcode == ibv_wc_opcode::IBV_WC_FETCH_ADD;
            let has_imm = received && wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
            Details {
                opcode: wc.opcode.0.try_into().expect("few opcodes"),
                byte_len: (received || fetched).then_some(wc.byte_len),
                imm: has_imm.then(|| imm_of(wc)),
                of_peer: datagrams_of.map(|peer| peer == wc.src_qp),
                invalidated: (received && datagrams_of.is_none())
                    .then(|| Invalidated::of(wc, windows))
                    .flatten(),
            }
        });
        Self { wr_id: wc.wr_id, status: status.0, details }
    }
}

impl Invalidated {
    fn of(wc: &ibv_wc, windows: [u32; WINDOWS as usize]) -> Option<Self> {
        let flag = wc.wc_flags & (WITH_INV | RXE_WITH_INV);
        let window = windows.iter().position(|&key| key == invalidated_key(wc));
        (flag != 0).then_some(Self { flag, window })
    }
}

/// Returns the differences between two states of memory.
pub(super) fn changes(before: &[u8], after: &[u8]) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    if before == after {
        return found;
    }
    let mut end = 0;
    for (at, (old, new)) in before.iter().zip(after).enumerate() {
        if old == new {
            continue;
        }
        let byte = format!("{new:02x}");
        match found.last_mut() {
            Some((_, bytes)) if end == at => bytes.push_str(&byte),
            _ => found.push((at, byte)),
        }
        end = at + 1;
    }
    found
}
