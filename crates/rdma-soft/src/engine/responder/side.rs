//! The responder's half of a queue pair, driven by the peer's thread under this lock.

use rdma_types::{AsyncEventKind, Psn, QpAttributes, QpState, WcOpcode, WcStatus};

use crate::address::Path;
use crate::engine::Refusal;
use crate::engine::aftermath::Aftermath;
use crate::engine::completion::work_completion::{Completion, JUNK, Side, Source};
use crate::engine::operation::Operation;
use crate::engine::queue_pair::settings::Settings;
use crate::engine::receive_queue::{Receive, Waits};
use crate::engine::responder::origin::Origin;
use crate::engine::responder::wire::Wire;
use crate::engine::station::Station;
use crate::memory::copy::Segment;
use crate::memory::room::Room;
use crate::memory::sge::Sge;

#[derive(Debug)]
pub(crate) struct Responder {
    pub(crate) state: QpState,
    pub(crate) incarnation: u32,
    /// `IBV_ACCESS_REMOTE_*` of the queue pair.
    pub(crate) access: u32,
    pub(crate) path: Option<Path>,
    pub(crate) peer_qpn: u32,
    /// The packet sequence number that is expected next.
    pub(crate) psn: Psn,
    pub(crate) min_rnr_timer: u8,
    pub(crate) max_rd_atomic: u8,
    /// The Q_Key that datagrams must carry.
    pub(crate) qkey: u32,
    /// The number of the first packet that may be for this queue pair. Earlier packets arrived when it was not ready,
    /// or for an earlier life.
    pub(crate) hears_from: u64,
    /// The state of the protocol, from RTR to RESET, if messages arrive as packets.
    pub(crate) wire: Option<Box<Wire>>,
    /// The [origin](crate::engine::requester::side::Requester::origin) with a verified address; 0 for none.
    pub(crate) verified: u64,
    /// The receive request of the current message.
    pub(crate) current: Option<Receive>,
    /// The origin of a message that was copied in part, to the current receive request if it is a SEND; 0 for none.
    pub(crate) begun: u64,
    /// The number of the next message's receive request, which is the number of requests taken. In a shared queue,
    /// those taken by this queue pair.
    pub(crate) next_receive: u64,
    /// The elements of the current receive request, and their memory.
    pub(crate) sges: Vec<Sge>,
    pub(crate) room: Vec<Segment>,
    /// Whether completions wait until their requests are acknowledged, and the completions that wait.
    pub(super) holds: bool,
    held: Vec<Completion>,
    /// Whether answers were passed to a carrier that a thread has yet to flush.
    pub(super) unflushed: bool,
    /// The number of executed requests, and of receive requests that they completed.
    pub(crate) executed: u64,
    pub(crate) receives: u64,
}

impl Responder {
    pub(crate) fn new(max_sge: u32) -> Result<Self, Refusal> {
        let max_sge = max_sge.max(1) as usize;
        Ok(Self {
            state: QpState::RESET,
            incarnation: 0,
            access: 0,
            path: None,
            peer_qpn: 0,
            psn: Psn::default(),
            min_rnr_timer: 0,
            max_rd_atomic: 0,
            qkey: 0,
            hears_from: 0,
            wire: None,
            verified: 0,
            current: None,
            begun: 0,
            next_receive: 0,
            sges: Room::new(max_sge)?.list(),
            room: Room::new(max_sge)?.list(),
            holds: false,
            held: Vec::new(),
            unflushed: false,
            executed: 0,
            receives: 0,
        })
    }

    /// Sets the given attributes of an `ibv_qp_attr`.
    pub(crate) fn set(
        &mut self,
        new: &Settings,
        path: Option<Path>,
        has: impl Fn(QpAttributes) -> bool,
    ) {
        if path.is_some() {
            (self.path, self.verified) = (path, 0);
        }
        if has(QpAttributes::DEST_QPN) {
            (self.peer_qpn, self.verified) = (new.peer_qpn, 0);
        }
        if has(QpAttributes::RQ_PSN) {
            self.psn = Psn::masked(new.rq_psn);
        }
        if has(QpAttributes::ACCESS_FLAGS) {
            self.access = new.access;
        }
        if has(QpAttributes::MIN_RNR_TIMER) {
            self.min_rnr_timer = new.min_rnr_timer;
        }
        if has(QpAttributes::MAX_DEST_RD_ATOMIC) {
            self.max_rd_atomic = new.max_dest_rd_atomic;
        }
        if has(QpAttributes::QKEY) {
            self.qkey = new.qkey;
        }
    }

    /// Returns true if the responder would accept a packet of this requester with this sequence number. Such a packet
    /// is from the connected queue pair, along the connected path, and expected next. Any other packet is dropped
    /// without an answer.
    #[inline]
    pub(crate) fn listens_to(&mut self, own: &Station, from: &Origin, psn: Psn) -> bool {
        self.psn == psn && self.knows(own, from)
    }

    /// Returns true if the responder accepts packets at all.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.state, QpState::RTS | QpState::RTR | QpState::SQD)
    }

    /// Returns true if the responder accepts packets, and those of this requester.
    #[inline]
    pub(crate) fn knows(&mut self, own: &Station, from: &Origin) -> bool {
        self.is_ready() && (self.verified == from.number || self.verify(own, from))
    }

    #[cold]
    fn verify(&mut self, own: &Station, from: &Origin) -> bool {
        let connected = own.adapter.port_is_up()
            && self.wire.is_none()
            && own.service == from.service
            && from.is(self.peer_qpn, self.path.as_ref());
        if connected {
            self.verified = from.number;
            if self.state == QpState::RTR {
                // The first message shows a passive side that the other side is ready.
                own.reporter.report(AsyncEventKind::COMM_EST);
            }
        }
        connected
    }

    /// Takes the receive request for the arriving message, if there is one.
    #[inline]
    pub(super) fn take_receive(&mut self, own: &Station) -> bool {
        if self.current.is_none() {
            self.current = own.receives.take(&mut self.next_receive, &mut self.sges);
        }
        self.current.is_some() || self.take_shared(own)
    }

    #[cold]
    fn take_shared(&mut self, own: &Station) -> bool {
        if let Some(shared) = &own.shared {
            self.current = shared.take(&mut self.next_receive, &mut self.sges, None);
        }
        self.current.is_some()
    }

    /// Looks for a receive request again, under the lock under which requests are posted. Takes one that was posted
    /// meanwhile; otherwise a later post informs the requester.
    #[cold]
    pub(super) fn take_receive_or_wait(&mut self, own: &Station, waits: Waits) -> bool {
        let Self { next_receive, sges, .. } = self;
        self.current = match &own.shared {
            Some(shared) => shared.take(next_receive, sges, Some((own.id, waits))),
            None => {
                let mut queue = own.receive.lock();
                let receive = own.receives.take(next_receive, sges);
                if receive.is_none() {
                    queue.waiter = Some(waits.waiter);
                }
                receive
            }
        };
        self.current.is_some()
    }

    /// Completes the current receive request, with `flags` in addition to those of the request.
    #[inline(always)]
    pub(crate) fn complete(
        &mut self,
        own: &Station,
        opcode: WcOpcode,
        bytes: u64,
        operation: &Operation,
        flags: u32,
        source: Source,
    ) {
        let Some(receive) = self.current.take() else { return };
        self.begun = 0;
        self.receives += 1;
        let completion = Completion {
            wr_id: receive.wr_id,
            status: WcStatus::SUCCESS,
            opcode,
            // A message is at most 2 GiB.
            byte_len: u32::try_from(bytes).unwrap_or(u32::MAX),
            imm: if operation.opcode.receive_flags() == 0 { JUNK } else { operation.imm },
            flags: operation.opcode.receive_flags() | flags,
            qpn: own.qpn,
            vendor_err: 0,
            source,
            solicited: operation.solicited,
            side: Side::Receive,
            upto: receive.index.wrapping_add(1),
        };
        if self.holds {
            return self.hold(completion);
        }
        own.push_receive(completion);
    }

    #[cold]
    fn hold(&mut self, completion: Completion) {
        self.held.push(completion);
    }

    /// Shows the program the completions that were held back.
    pub(crate) fn publish(&mut self, own: &Station) {
        self.held.drain(..).for_each(|completion| own.push_receive(completion));
    }

    /// Shows the program the completions that were held back: the answers were sent.
    pub(crate) fn has_answered(&mut self, own: &Station) {
        self.unflushed = false;
        self.publish(own);
    }

    /// Returns true if completions are held back.
    pub(super) fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Answers with a negative acknowledgement that is fatal to both sides. The current receive request completes with
    /// `status`, or is flushed, and the queue pair goes to error.
    #[cold]
    pub(crate) fn fail(
        &mut self,
        own: &Station,
        status: WcStatus,
        event: AsyncEventKind,
        aftermath: &mut Aftermath,
    ) {
        self.begun = 0;
        self.publish(own);
        if let Some(receive) = self.current.take() {
            own.push_receive(own.failed_receive(&receive, status));
        }
        self.state = QpState::ERR;
        aftermath.responder_failed(own, self.incarnation, event);
    }

    /// Counts a request that was dropped for its sequence number, if it is from the connected peer.
    pub(crate) fn count_dropped(&self, own: &Station, from: &Origin, psn: Psn) {
        let tally = &own.adapter.tally;
        match psn.offset_from(self.psn) {
            0 => {}
            _ if !from.is(self.peer_qpn, self.path.as_ref()) => {}
            1.. => tally.rare.out_of_seq_request.count(),
            _ => tally.rare.duplicate_request.count(),
        }
    }

    /// The path to its requester, and the requester's number, once it is connected.
    pub(crate) fn connection(&self) -> Option<(Path, u32)> {
        self.path.map(|path| (path, self.peer_qpn))
    }

    pub(crate) fn clear(&mut self) {
        (self.verified, self.begun) = (0, 0);
        self.current = None;
        self.path = None;
        self.wire = None;
        self.held.clear();
    }
}
