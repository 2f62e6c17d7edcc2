//! The observed behaviour of a device while it runs a program.

use std::collections::BTreeMap;

use rdma_sys::{ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};
use serde::{Deserialize, Serialize};
use test_support::rig::imm_of;
use test_support::rig::window::invalidated_key;

use super::program::WINDOWS;

pub(super) const WITH_INV: u32 = ibv_wc_flags::IBV_WC_WITH_INV.0;
/// The flag that SoftRoCE sets instead of [`WITH_INV`].
pub(super) const RXE_WITH_INV: u32 = ibv_wc_flags::IBV_WC_IP_CSUM_OK.0;

/// The observed behaviour of a device, step by step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Trace {
    pub(super) steps: Vec<StepTrace>,
}

/// The observations of one step. Ends have names such as `0A`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StepTrace {
    /// The result of each call, in order: 0 or an error number.
    pub(super) calls: Vec<i32>,
    pub(super) sent: BTreeMap<String, Vec<Completion>>,
    pub(super) received: BTreeMap<String, Vec<Completion>>,
    /// The states of the queue pairs that the step used.
    pub(super) states: BTreeMap<String, u32>,
    /// The asynchronous events of each object, sorted. A queue pair is named after its end, and a
    /// shared receive queue is called `SRQ`. SoftRoCE's events are not compared.
    pub(super) events: BTreeMap<String, Vec<String>>,
    /// The bytes that changed. The key names the end, the slot and the offset; the value is the new
    /// contents in hexadecimal.
    pub(super) memory: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Completion {
    pub(super) wr_id: u64,
    pub(super) status: u32,
    /// The fields that are valid only in a successful completion.
    pub(super) details: Option<Details>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Details {
    pub(super) opcode: i32,
    /// The number of bytes, for receives, READs and atomics.
    pub(super) byte_len: Option<u32>,
    pub(super) imm: Option<u32>,
    /// For datagrams: whether the reported source is the peer.
    pub(super) of_peer: Option<bool>,
    pub(super) invalidated: Option<Invalidated>,
}

/// The report by a completed receive about a key that its sender invalidated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Invalidated {
    /// The flag that was set.
    pub(super) flag: u32,
    /// The window that has the reported key, if any.
    pub(super) window: Option<usize>,
}

/// The queue from which a completion comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    Send,
    /// The receive queue. `datagrams_of` is the number of the queue pair that sends datagrams to
    /// it, and `windows` are the keys of the end's windows.
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

/// Returns the ranges that differ between two states of memory: offset and new contents.
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
