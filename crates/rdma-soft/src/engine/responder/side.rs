//! The responder's half of a queue pair, driven by the peer's thread under the responder's lock.

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
use crate::engine::wire::grant::Visited;
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
    /// The number of the first letter that may be for this queue pair. Earlier letters arrived before it was ready, or
    /// are for an earlier incarnation.
    pub(crate) first_letter: u64,
    /// The same for letters to a multicast group, which are counted separately.
    pub(crate) first_letter_of_group: u64,
    /// The protocol's state between RTR and RESET, if messages arrive as packets.
    pub(crate) wire: Option<Box<Wire>>,
    /// The visits to wait for, because grants to the peer's process were revoked.
    pub(crate) visited: Vec<Visited>,
    /// The [origin](crate::engine::requester::side::Requester::origin) whose address was verified; 0 for none.
    pub(crate) verified: u64,
    /// The receive request of the current message.
    pub(crate) current: Option<Receive>,
    /// The origin of a partly copied message; 0 for none. The bytes of a partly copied SEND are in the memory of the
    /// current receive request.
    pub(crate) begun: u64,
    /// The number of the next message's receive request, which is also the number of requests taken. In a shared queue,
    /// only requests that this queue pair took count.
    pub(crate) next_receive: u64,
    /// The elements of the current receive request.
    pub(crate) sges: Vec<Sge>,
    /// The memory of these elements, looked up again for each part of a message.
    pub(crate) room: Vec<Segment>,
    /// Whether completions are held back until their requests are acknowledged.
    pub(super) holds: bool,
    /// The completions held back.
    held: Vec<Completion>,
    /// Whether answers have been passed to a carrier that no thread has flushed since.
    pub(super) unflushed: bool,
    /// The number of executed requests.
    pub(crate) executed: u64,
    /// The sum of their lengths.
    pub(crate) bytes: u64,
    /// The number of receive requests that executed requests have completed.
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
            first_letter: 0,
            first_letter_of_group: 0,
            wire: None,
            visited: Vec::new(),
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
            bytes: 0,
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

    /// Returns true if the responder would accept a packet from this requester with this sequence number. The packet
    /// must come from the connected queue pair, along the connected path, and be expected next. Any other packet is
    /// dropped without an answer.
    #[inline]
    pub(crate) fn listens_to(&mut self, own: &Station, from: &Origin, psn: Psn) -> bool {
        self.psn == psn && self.knows(own, from)
    }

    /// Returns true if the responder is in a state in which it accepts packets.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.state, QpState::RTS | QpState::RTR | QpState::SQD)
    }

    /// Returns true if the responder currently accepts packets from this requester.
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

    /// Takes the receive request for the arriving message, if one was posted.
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

    /// Looks for a receive request again, holding the lock under which requests are posted. Takes one if it was posted
    /// in the meantime. Otherwise, the next post notifies the requester.
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

    /// Completes the current receive request. Adds `flags` to the flags of the operation.
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

    /// Adds the held-back completions to the completion queue.
    pub(crate) fn publish(&mut self, own: &Station) {
        self.held.drain(..).for_each(|completion| own.push_receive(completion));
    }

    /// Called when the answers were sent. Adds the held-back completions to the completion queue.
    pub(crate) fn has_answered(&mut self, own: &Station) {
        self.unflushed = false;
        self.publish(own);
    }

    /// Returns true if completions are held back.
    pub(super) fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Fails the responder, and completes the current receive request, if any, with `status`. The aftermath then moves
    /// the whole queue pair to error.
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
        self.revoke();
        aftermath.responder_failed(own, self.incarnation, event);
    }

    /// Revokes what the peer's process may access without packets.
    pub(crate) fn revoke(&mut self) {
        self.visited.extend(self.wire.as_mut().and_then(|wire| wire.revoke()));
    }

    /// Counts a request that was dropped because of its sequence number, if it came from the connected peer.
    pub(crate) fn count_dropped(&self, own: &Station, from: &Origin, psn: Psn) {
        let tally = &own.adapter.tally;
        match psn.offset_from(self.psn) {
            0 => {}
            _ if !from.is(self.peer_qpn, self.path.as_ref()) => {}
            1.. => tally.rare.out_of_seq_request.count(),
            _ => tally.rare.duplicate_request.count(),
        }
    }

    /// Returns the path to the requester and the requester's queue pair number, if the responder is connected.
    pub(crate) fn connection(&self) -> Option<(Path, u32)> {
        self.path.map(|path| (path, self.peer_qpn))
    }

    pub(crate) fn clear(&mut self) {
        (self.verified, self.begun) = (0, 0);
        self.current = None;
        self.path = None;
        self.revoke();
        self.wire = None;
        self.held.clear();
    }
}
