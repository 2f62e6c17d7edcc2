//! The states of queue pairs, and the transitions between them that the verbs define (IBTA volume 1, section 11.2.5.2).

use rdma_sys::{ibv_qp_attr_mask as Mask, ibv_qp_state as State, *};

use super::Size;
use super::connect::{Endpoint, Knobs, Side, attributes};
use super::datagram::QKEY;

pub const RC: ibv_qp_type = ibv_qp_type::IBV_QPT_RC;
pub const UC: ibv_qp_type = ibv_qp_type::IBV_QPT_UC;
pub const UD: ibv_qp_type = ibv_qp_type::IBV_QPT_UD;
pub const SERVICES: [ibv_qp_type; 3] = [RC, UC, UD];

/// The states to which a program can move a queue pair.
pub const STATES: [State; 6] = [
    State::IBV_QPS_RESET,
    State::IBV_QPS_INIT,
    State::IBV_QPS_RTR,
    State::IBV_QPS_RTS,
    State::IBV_QPS_SQD,
    State::IBV_QPS_ERR,
];

/// The transitions from RESET to RTS, in order.
pub const STEPS: [(State, State); 3] = [
    (State::IBV_QPS_RESET, State::IBV_QPS_INIT),
    (State::IBV_QPS_INIT, State::IBV_QPS_RTR),
    (State::IBV_QPS_RTR, State::IBV_QPS_RTS),
];

/// The attributes of a transition, as masks: those it requires, and those it accepts in addition.
/// The state itself is not included.
#[derive(Clone, Copy)]
pub struct Transition {
    pub required: u32,
    pub optional: u32,
}

const PKEY: u32 = Mask::IBV_QP_PKEY_INDEX.0;
const ACCESS: u32 = Mask::IBV_QP_ACCESS_FLAGS.0;
const QKEY_BIT: u32 = Mask::IBV_QP_QKEY.0;
const PORT: u32 = Mask::IBV_QP_PORT.0;
const CURRENT: u32 = Mask::IBV_QP_CUR_STATE.0;
const TIMER: u32 = Mask::IBV_QP_MIN_RNR_TIMER.0;
const ADDRESS: u32 = Mask::IBV_QP_AV.0;
const ALTERNATE: u32 = Mask::IBV_QP_ALT_PATH.0;
const MIGRATION: u32 = Mask::IBV_QP_PATH_MIG_STATE.0;

/// The attributes of path migration, which few devices support.
pub const PATH_MIGRATION: u32 = ALTERNATE | MIGRATION;

fn by_service(service: ibv_qp_type, rc: u32, uc: u32, ud: u32) -> u32 {
    match service {
        RC => rc,
        UC => uc,
        _ => ud,
    }
}

/// Returns the transition between two states, or `None` if the verbs do not define it.
pub fn transition(service: ibv_qp_type, from: State, to: State) -> Option<Transition> {
    let of = |rc, uc, ud| by_service(service, rc, uc, ud);
    let init = PKEY | PORT | of(ACCESS, ACCESS, QKEY_BIT);
    let peer = ADDRESS | Mask::IBV_QP_PATH_MTU.0 | Mask::IBV_QP_DEST_QPN.0 | Mask::IBV_QP_RQ_PSN.0;
    let reads = Mask::IBV_QP_MAX_DEST_RD_ATOMIC.0;
    let retries = Mask::IBV_QP_TIMEOUT.0 | Mask::IBV_QP_RETRY_CNT.0 | Mask::IBV_QP_RNR_RETRY.0;
    let sends = Mask::IBV_QP_MAX_QP_RD_ATOMIC.0;
    let first = Mask::IBV_QP_SQ_PSN.0;
    let running = CURRENT | ACCESS | PATH_MIGRATION;
    let running = of(running | TIMER, running, CURRENT | QKEY_BIT);
    let drained = ADDRESS | PKEY | ACCESS | PATH_MIGRATION;
    let drained = of(drained | PORT | retries | sends | reads | TIMER, drained, PKEY | QKEY_BIT);
    let (required, optional) = match (from, to) {
        (_, State::IBV_QPS_RESET) => (0, 0),
        (State::IBV_QPS_RESET, State::IBV_QPS_ERR) => return None,
        (_, State::IBV_QPS_ERR) => (0, 0),
        (State::IBV_QPS_RESET, State::IBV_QPS_INIT) => (init, 0),
        (State::IBV_QPS_INIT, State::IBV_QPS_INIT) => (0, init),
        (State::IBV_QPS_INIT, State::IBV_QPS_RTR) => {
            let connected = ALTERNATE | ACCESS | PKEY;
            (of(peer | reads | TIMER, peer, 0), of(connected, connected, PKEY | QKEY_BIT))
        }
        (State::IBV_QPS_RTR, State::IBV_QPS_RTS) => {
            (of(first | retries | sends, first, first), running)
        }
        (State::IBV_QPS_RTS | State::IBV_QPS_SQD, State::IBV_QPS_RTS) => (0, running),
        (State::IBV_QPS_RTS, State::IBV_QPS_SQD) => (0, Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY.0),
        (State::IBV_QPS_SQD, State::IBV_QPS_SQD) => (0, drained),
        _ => return None,
    };
    Some(Transition { required, optional })
}

/// Creates a side whose queue pair is meant to be connected to itself.
pub fn alone(device: &str, service: ibv_qp_type) -> Side {
    Side::new(device, &Size { qp_type: service, ..Size::default() }, 16)
}

/// Returns attributes that are valid in any transition between these states. The path leads from
/// the queue pair to itself.
pub fn right(at: &Endpoint, from: State, to: State) -> ibv_qp_attr {
    let mut attr = attributes(at, at, &Knobs::default());
    (attr.qp_state, attr.cur_qp_state, attr.qkey) = (to, from, QKEY);
    attr
}

impl Side {
    /// Requests a transition with the required attributes, except that the attributes in `toggled`
    /// are added if they are optional and omitted if they are required. Returns 0 or an error
    /// number.
    pub fn transit(&self, (from, to): (State, State), toggled: u32) -> i32 {
        self.transit_with((from, to), toggled, |_| {})
    }

    /// Like [`transit`](Self::transit), but `change` modifies the values first.
    pub fn transit_with(
        &self,
        (from, to): (State, State),
        toggled: u32,
        change: impl FnOnce(&mut ibv_qp_attr),
    ) -> i32 {
        let required = transition(self.qp.service(), from, to).map_or(0, |way| way.required);
        let mut attr = right(&self.endpoint(), from, to);
        change(&mut attr);
        self.qp.modify(attr, (Mask::IBV_QP_STATE.0 | required) ^ toggled)
    }

    /// Moves the queue pair from any state to this one.
    #[track_caller]
    pub fn bring(&self, state: State) {
        self.qp.to_reset();
        let way: &[State] = match state {
            State::IBV_QPS_RESET => &[],
            State::IBV_QPS_ERR => &[State::IBV_QPS_INIT, State::IBV_QPS_ERR],
            _ => &STATES[1..=STATES.iter().position(|&other| other == state).unwrap()],
        };
        let mut from = State::IBV_QPS_RESET;
        for &to in way {
            assert_eq!(self.transit((from, to), 0), 0, "{from:?} to {to:?}");
            from = to;
        }
        assert_eq!(self.qp.state(), state);
    }
}
