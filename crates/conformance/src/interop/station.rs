//! A station: a device that executes commands.

use std::panic::{self, AssertUnwindSafe};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use rdma_sys::{
    ibv_gid, ibv_gid_type, ibv_mtu, ibv_qp_type as Type, ibv_sge, ibv_wc, ibv_wr_opcode,
};
use rdma_types::Gid;
use test_support::rig::connect::{
    Endpoint, Knobs, connect, connect_unreliably, endpoint, endpoint_with_gid,
};
use test_support::rig::datagram::{Ah, QKEY, activate, gid_of, vector};
use test_support::rig::device::gid_table;
use test_support::rig::post::Wr;
use test_support::rig::window::{Mw, TYPE_2, invalidated_key};
use test_support::rig::{
    ALL_ACCESS, Context, Cq, LOCAL_WRITE, MW_BIND, Mr, Pd, Qp, Size, imm_of, pause,
};

use super::arguments::{Own, Source};
use super::command::{
    Answer, Command, Completion, Destination, Facts, Operation, Piece, Queue, SendWr, Service,
    Tuning,
};
use super::pattern;
use crate::devices;

/// The number of requests in each queue.
pub(super) const DEPTH: usize = 80;
/// The maximum number of elements in a request.
pub(super) const ELEMENTS: usize = 4;
/// The maximum number of inline bytes in a request.
pub(super) const INLINE: usize = 64;

/// A device and, after the command to create one, an end.
pub(super) struct Station {
    end: Option<VerbsObjects>,
    facts: Facts,
    gid_index: Option<u8>,
    context: Context,
}

/// An end. The fields are dropped in their order, so that dependent objects are destroyed before
/// those from which they were created.
struct VerbsObjects {
    way: Option<(Ah, u32)>,
    qp: Option<Qp>,
    window: Option<Mw>,
    memory: Mr,
    send_cq: Cq,
    receive_cq: Cq,
    pd: Pd,
    own: Endpoint,
    service: Service,
}

impl Station {
    pub(super) fn open(own: &Own) -> Result<Self> {
        let device = devices::prepare(&own.device);
        let context = Context::try_open(&device)
            .map_err(|errno| anyhow!("cannot open {}: {errno}", own.device))?;
        let gid_index = own.gid.map(|source| index_of(&context, source)).transpose()?;
        let port = context.query_port();
        let windows = context.pd().try_mw(TYPE_2).is_ok();
        let facts = Facts {
            device: own.device.clone(),
            rxe: devices::is_rxe(&own.device),
            ethernet: false,
            gid: String::new(),
            mtu: 128 << port.active_mtu.0,
            windows,
        };
        let mut station = Self { end: None, facts, gid_index, context };
        // The rig returns the link layer and the GID only together with the address of a queue
        // pair, so this creates one.
        let probe = station.make(Service::Ud, 64, false)?;
        station.facts.ethernet = probe.own.ethernet;
        station.facts.gid = gid_of(&probe.own.gid).to_ipv6().to_string();
        Ok(station)
    }

    pub(super) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Executes the command. An error, or a failed assertion in the rig, is returned as an answer
    /// too.
    pub(super) fn execute(&mut self, command: Command) -> Answer {
        let done = panic::catch_unwind(AssertUnwindSafe(|| self.try_execute(command)));
        match done {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => Answer::Failed(format!("{error:#}")),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
                Answer::Failed(text.unwrap_or_else(|| "a panic".to_owned()))
            }
        }
    }

    fn try_execute(&mut self, command: Command) -> Result<Answer> {
        match command {
            Command::Describe => return Ok(Answer::Facts(self.facts.clone())),
            Command::Create { service, bytes, remote_rights } => {
                self.end = None;
                let end = self.end.insert(self.make(service, bytes, remote_rights)?);
                return Ok(Answer::Destination(end.destination()?));
            }
            Command::Drop => self.end = None,
            Command::Leave => {}
            command => return self.end.as_mut().context("no end was created")?.execute(command),
        }
        Ok(Answer::Done)
    }

    fn make(&self, service: Service, bytes: usize, remote_rights: bool) -> Result<VerbsObjects> {
        let context = &self.context;
        let (send_cq, receive_cq) = (context.cq(2 * DEPTH as i32), context.cq(2 * DEPTH as i32));
        let pd = context.pd();
        let qp_type = match service {
            Service::Rc => Type::IBV_QPT_RC,
            Service::Uc => Type::IBV_QPT_UC,
            Service::Ud => Type::IBV_QPT_UD,
        };
        let size = Size {
            qp_type,
            send_wr: DEPTH as u32,
            receive_wr: DEPTH as u32,
            sge: ELEMENTS as u32,
            inline: INLINE as u32,
            signal_all: true,
        };
        let qp = pd.try_qp(&send_cq, &receive_cq, &size);
        let qp = qp.map_err(|errno| anyhow!("cannot create a queue pair: {errno}"))?;
        let binds = if self.facts.windows { MW_BIND } else { 0 };
        let rights = if remote_rights { ALL_ACCESS } else { LOCAL_WRITE };
        let memory = pd.register(bytes, rights | binds);
        let own = match self.gid_index {
            Some(index) => endpoint_with_gid(context, &qp, index),
            None => endpoint(context, &qp),
        };
        let qp = Some(qp);
        Ok(VerbsObjects {
            way: None,
            qp,
            window: None,
            memory,
            send_cq,
            receive_cq,
            pd,
            own,
            service,
        })
    }
}

fn index_of(context: &Context, source: Source) -> Result<u8> {
    let address = match source {
        Source::Index(index) => return Ok(index),
        Source::Address(address) => address,
    };
    let gid = match address {
        std::net::IpAddr::V4(address) => Gid::from(address),
        std::net::IpAddr::V6(address) => Gid::from(address),
    };
    let rows = gid_table(context, 1024, 0)
        .map_err(|errno| anyhow!("cannot read the GID table: {errno}"))?;
    let v2 = ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0;
    let row = rows.iter().find(|row| row.kind == v2 && row.gid == gid);
    let row = row.with_context(|| format!("the device has no RoCE v2 GID for {address}"))?;
    Ok(u8::try_from(row.index)?)
}

impl VerbsObjects {
    fn destination(&self) -> Result<Destination> {
        let qp = self.qp()?;
        Ok(Destination {
            qpn: qp.number(),
            lid: self.own.lid,
            gid: gid_of(&self.own.gid).to_bytes(),
            address: self.memory.address(),
            rkey: self.memory.rkey(),
        })
    }

    fn qp(&self) -> Result<&Qp> {
        self.qp.as_ref().context("the queue pair was destroyed")
    }

    fn execute(&mut self, command: Command) -> Result<Answer> {
        match command {
            Command::Connect { peer, tuning } => self.connect(&peer, &tuning)?,
            Command::Fill { ranges } => {
                for ((at, length), seed) in ranges {
                    self.memory.copy_in(at, &pattern::bytes(seed, length));
                }
            }
            Command::Compare { ranges } => return Ok(Answer::Wrong(self.compare(&ranges))),
            Command::Read { piece } => return Ok(Answer::Bytes(self.bytes(piece))),
            Command::Write { at, bytes } => self.memory.copy_in(at, &bytes),
            Command::Receive { wr_id, pieces } => {
                let errno = self.qp()?.try_post_receive(wr_id, &self.elements(&pieces));
                ensure!(errno == 0, "cannot post a receive: error number {errno}");
            }
            Command::Post { requests } => self.post(&requests)?,
            Command::Take { queue, count, limit_ms } => {
                let limit = Duration::from_millis(limit_ms);
                return Ok(Answer::Completions(self.take(queue, count, limit)?));
            }
            Command::Bind { piece } => return Ok(Answer::Key(self.bind(piece)?)),
            Command::DestroyQueuePair => self.qp = None,
            Command::Describe | Command::Create { .. } | Command::Drop | Command::Leave => {
                unreachable!("the station handles these commands")
            }
        }
        Ok(Answer::Done)
    }

    fn connect(&mut self, peer: &Destination, tuning: &Tuning) -> Result<()> {
        let own = self.own;
        let gid = ibv_gid { raw: peer.gid };
        let peer = Endpoint { qpn: peer.qpn, lid: peer.lid, gid, ..own };
        let knobs = Knobs {
            access: ALL_ACCESS,
            mtu: ibv_mtu(tuning.mtu.ilog2() - 7),
            psn: 0x00ff_fff0, // so that PSNs soon wrap around
            timeout: tuning.timeout,
            retries: tuning.retries,
            rnr_retries: tuning.rnr_retries,
            min_rnr_timer: tuning.min_rnr_timer,
            rd_atomic: 4,
        };
        let qp = self.qp()?;
        match self.service {
            Service::Rc => connect(qp, &own, &peer, &knobs),
            Service::Uc => connect_unreliably(qp, &own, &peer, &knobs),
            Service::Ud => {
                activate(qp, QKEY);
                let way = self.pd.try_ah(vector(&own, &peer, true));
                let way =
                    way.map_err(|errno| anyhow!("cannot create an address handle: {errno}"))?;
                self.way = Some((way, peer.qpn));
            }
        }
        Ok(())
    }

    fn bytes(&self, (at, length): Piece) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.copy_out(at, &mut bytes);
        bytes
    }

    fn compare(&self, ranges: &[(Piece, Vec<u64>)]) -> Option<usize> {
        let wrong = |&(piece, ref seeds): &(Piece, Vec<u64>)| {
            pattern::first_wrong(&self.bytes(piece), seeds).map(|at| piece.0 + at)
        };
        ranges.iter().find_map(wrong)
    }

    fn elements(&self, pieces: &[Piece]) -> Vec<ibv_sge> {
        pieces.iter().map(|&(at, length)| self.memory.sge(at, length)).collect()
    }

    fn post(&self, requests: &[SendWr]) -> Result<()> {
        let list: Vec<Wr> =
            requests.iter().map(|request| self.request(request)).collect::<Result<_>>()?;
        let posted = self.qp()?.try_post_list(&list);
        posted.map_err(|(at, errno)| anyhow!("cannot post request {at}: error number {errno}"))
    }

    fn request(&self, request: &SendWr) -> Result<Wr> {
        let (id, (address, key)) = (request.wr_id, request.remote);
        let sges = self.elements(&request.pieces);
        let of = |opcode| Wr::new(id, opcode, &sges);
        let mut wr = match request.operation {
            Operation::Send => of(ibv_wr_opcode::IBV_WR_SEND),
            Operation::Write => of(ibv_wr_opcode::IBV_WR_RDMA_WRITE).remote(address, key),
            Operation::Read => of(ibv_wr_opcode::IBV_WR_RDMA_READ).remote(address, key),
            Operation::CompareSwap { compare, swap } => {
                of(ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP).atomic_at(address, key, compare, swap)
            }
            Operation::FetchAdd { add } => {
                of(ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD).atomic_at(address, key, add, 0)
            }
            Operation::SendInvalidate { key } => Wr::send_with_invalidate(id, &sges, key),
        };
        if let Some(imm) = request.imm {
            wr = wr.with_imm(imm.to_be());
        }
        if request.inline {
            wr = wr.inline();
        }
        if self.service == Service::Ud {
            let (way, qpn) = self.way.as_ref().context("no address handle for the peer")?;
            wr = wr.to(way, *qpn, request.qkey);
        }
        Ok(wr)
    }

    fn take(&self, queue: Queue, count: usize, limit: Duration) -> Result<Vec<Completion>> {
        let cq = match queue {
            Queue::Send => &self.send_cq,
            Queue::Receive => &self.receive_cq,
        };
        let (end, mut taken, mut turns) = (Instant::now() + limit, Vec::new(), 0);
        while taken.len() < count {
            let polled = cq.try_poll::<1>().map_err(|result| anyhow!("polling: {result}"))?;
            let Some(wc) = polled.first() else {
                if Instant::now() >= end {
                    break;
                }
                pause(&mut turns);
                continue;
            };
            taken.push(completion(wc));
        }
        Ok(taken)
    }

    fn bind(&mut self, (at, length): Piece) -> Result<u32> {
        let window =
            self.pd.try_mw(TYPE_2).map_err(|errno| anyhow!("cannot allocate a window: {errno}"))?;
        let rights = ALL_ACCESS & !LOCAL_WRITE;
        let key = self.qp()?.post_bind(u64::MAX, &window, self.memory.part(at, length, rights));
        self.window = Some(window);
        let done = self.take(Queue::Send, 1, Duration::from_secs(10))?;
        ensure!(done.first().is_some_and(|done| done.status == 0), "binding: {done:?}");
        Ok(key)
    }
}

fn completion(wc: &ibv_wc) -> Completion {
    Completion {
        wr_id: wc.wr_id,
        status: wc.status.0,
        opcode: wc.opcode.0,
        bytes: wc.byte_len,
        imm: u32::from_be(imm_of(wc)),
        invalidated: invalidated_key(wc),
        flags: wc.wc_flags,
        source: wc.src_qp,
    }
}
