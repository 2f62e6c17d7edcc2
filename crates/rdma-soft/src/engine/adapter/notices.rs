//! What explains "connected, but nothing comes": one event of [`tracing`] for each reason for which packets are
//! dropped or refused, and no more than one in a minute.

use std::sync::Mutex;
use std::time::Duration;

use rdma_proto::Counters as Packets;
use tracing::level_filters::LevelFilter;

use crate::address::Address;
use crate::counters::Rares;
use crate::engine::adapter::Adapter;
use crate::fabric::clock::Time;
use crate::fabric::tellers::{Tell, Tells};
use crate::sync::locked;

#[cfg(all(test, not(loom)))]
mod tests;

/// Of one reason no more than one event comes in this time.
const APART: Duration = Duration::from_secs(60);

/// How grave a reason is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gravity {
    /// Nothing will come before somebody changes something.
    Warns,
    /// It may be as it should: the protocol tries again, or the connection is at its end.
    Informs,
}

macro_rules! reasons {
    ($($reason:ident $counter:ident $gravity:ident $advice:literal)+) => {
        /// Why a packet did not get through.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Reason {
            $($reason,)+
        }

        impl Reason {
            const ALL: [Self; [$(Self::$reason),+].len()] = [$(Self::$reason),+];

            /// The name of its counter.
            fn name(self) -> &'static str {
                match self { $(Self::$reason => stringify!($counter),)+ }
            }

            /// Counts packets, if nobody else does.
            pub(crate) fn count(self, counters: &Rares, packets: u64) {
                match self { $(Self::$reason => counters.$counter.add(packets),)+ }
            }

            fn gravity(self) -> Gravity {
                match self { $(Self::$reason => Gravity::$gravity,)+ }
            }

            /// What it means, and what to look at.
            fn advice(self) -> &'static str {
                match self { $(Self::$reason => $advice,)+ }
            }
        }
    };
}

reasons! {
    PortDown port_down Warns
        "the port of this device is down: nothing leaves or arrives before it is up (PORT_ACTIVE)"
    NoRoute no_route Warns
        "nobody has the address that they are sent to: compare the GID or LID of the address vector with those of \
         the peer's port. A device reaches the devices of its own process with the same link layer; soft0 and softib0 \
         also reach themselves in other processes of the user; one that listens (RDMA_SOFT_LISTEN, Builder::listen) \
         reaches other hosts, if the GID index names an address at which it listens; one of a `Network` reaches that \
         network alone"
    Stalled stalled Warns
        "datagrams are lost, since the process of the peer takes fewer than are sent: it has stopped (SIGSTOP, a \
         debugger), or gets no processor"
    Silent silent Warns
        "a process of this host takes and answers nothing, though it has not ended: it has stopped (SIGSTOP, a \
         debugger), or gets no processor. Its connections wait for it, and fail when it is silent for as long again \
         (RDMA_SOFT_PEER_LIMIT, Builder::peer_limit)"
    NotSent send_err Informs
        "the network did not take packets: it is full, has no way to the address, or its MTU is smaller than that of \
         the connection"
    Damaged rx_icrc_encapsulated Informs
        "packets arrive damaged, and are dropped: a simulated link flips bits (LinkModel::corruption), or somebody \
         sends by UDP what no RDMA device does"
    WrongPartition bad_pkey_cntr Warns
        "packets show another P_Key than this port has, which is a full member of the default partition alone \
         (0xffff): have the peer send with 0xffff or 0x7fff (pkey_index)"
    UnknownQp unknown_qp Warns
        "no queue pair has the number that they are for: the peer was given another number (dest_qp_num), or the \
         queue pair was destroyed"
    WrongService wrong_service Warns
        "the queue pair with that number is of another type than the sender: create both as RC, UC or UD"
    WrongSource wrong_source Warns
        "they are from another address than the one that the queue pair is connected to: compare the address vector \
         here with the GID (its index, and its type) or LID by which the peer sends"
    WrongState wrong_state Informs
        "the queue pair takes nothing in its state: move it to RTR before the peer sends; if it is in ERR, the first \
         completion that failed, or an asynchronous event, says why"
    WrongQkey qkey_viol_cntr Warns
        "datagrams show another Q_Key than their receiver has: set the same one at both ends"
    NoReceive out_of_buffer Warns
        "messages without acknowledgement are lost since no receive request is posted, or a too small one (a \
         datagram needs 40 bytes more than its data): post more of them, and earlier"
    ReceiverNotReady send_rnr_err Informs
        "messages find no receive request here, and their sender waits: post receives before the peer sends"
    OutOfSequence out_of_seq_request Informs
        "requests come of which one before is missing: it was lost and is sent again, or rq_psn here is not sq_psn \
         of the peer"
    NeverTaken unanswered_duplicate Warns
        "requests come from before the expected sequence number which were never taken: rq_psn here is not sq_psn \
         of the peer, or the peer is of an earlier connection"
    RefusedAccess resp_remote_access_errors Warns
        "requests of the peer are refused: their rkey is unknown or taken back, of another domain, or the region \
         has not that range or those rights; or the queue pair does not give them (qp_access_flags)"
    RefusedInvalid resp_invalid_request_errors Warns
        "requests of the peer are refused as invalid: a longer message than its receive request, another path MTU, \
         a kind that qp_access_flags or max_dest_rd_atomic does not allow"
    RefusedOperation resp_remote_operation_errors Warns
        "requests of the peer are refused since a receive request here names memory that cannot be used: look at its \
         lkey, range and rights"
    BadResponse bad_response Warns
        "answers do not fit what was asked: compare path MTU and sequence numbers of both ends"
}

impl Reason {
    /// What one side of a connection counted that somebody may wonder at. What the protocol causes and cures itself
    /// is none of it, nor what comes after the end.
    fn of(packets: &Packets) -> [(Self, u64); 8] {
        [
            (Self::NoReceive, packets.out_of_buffer),
            (Self::ReceiverNotReady, packets.send_rnr_err),
            (Self::OutOfSequence, packets.out_of_seq_request),
            (Self::NeverTaken, packets.unanswered_duplicate),
            (Self::RefusedAccess, packets.resp_remote_access_errors),
            (Self::RefusedInvalid, packets.resp_invalid_request_errors),
            (Self::RefusedOperation, packets.resp_remote_operation_errors),
            (Self::BadResponse, packets.bad_response),
        ]
    }
}

/// Of whom packets were: the last of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Whose {
    /// The queue pair of this device, or the one that they were for.
    pub(crate) qpn: u32,
    /// The other end, where it is known.
    pub(crate) peer_qpn: Option<u32>,
    /// Where they came from, or went.
    pub(crate) address: Option<Address>,
}

/// What a device has to tell.
#[derive(Debug, Default)]
pub(crate) struct Notices(Mutex<[Notice; Reason::ALL.len()]>);

#[derive(Debug, Default, Clone, Copy)]
struct Notice {
    /// Since the last event.
    packets: u64,
    whose: Option<Whose>,
    /// When the last event came, or was called for.
    called_for: Option<Time>,
    due: bool,
}

/// An event.
#[derive(Debug)]
struct Told {
    device: &'static str,
    reason: Reason,
    packets: u64,
    whose: Whose,
}

impl Notices {
    /// Adds packets, and says whether an event is due that was not before.
    fn note(&self, reason: Reason, packets: u64, whose: Whose, now: Time) -> bool {
        let notice = &mut locked(&self.0)[reason as usize];
        notice.packets = notice.packets.saturating_add(packets);
        notice.whose = Some(whose);
        let heard = LevelFilter::current() != LevelFilter::OFF;
        let in_time = notice.called_for.is_none_or(|last| now.since(last) >= APART);
        if notice.due || !heard || !in_time {
            return false;
        }
        (notice.called_for, notice.due) = (Some(now), true);
        true
    }
}

impl Tells for Adapter {
    fn take(&'static self) -> Option<Tell> {
        let mut told = Vec::new();
        for (reason, notice) in Reason::ALL.into_iter().zip(locked(&self.notices.0).iter_mut()) {
            if let Some(whose) = notice.whose
                && std::mem::take(&mut notice.due)
            {
                let packets = std::mem::take(&mut notice.packets);
                told.push(Told { device: &self.name, reason, packets, whose });
            }
        }
        (!told.is_empty()).then(|| Box::new(move || told.iter().for_each(Told::tell)) as Tell)
    }

    /// The next dropped packet makes them due again.
    fn put_off(&self) {
        for notice in locked(&self.notices.0).iter_mut().filter(|notice| notice.due) {
            (notice.called_for, notice.due) = (None, false);
        }
    }
}

impl Adapter {
    /// Counts packets that do not get through, and has that told. The caller may hold locks, but no leaf.
    #[cold]
    pub(crate) fn drop_packets(&'static self, reason: Reason, packets: u16, whose: Whose) {
        reason.count(&self.tally.rare, packets.into());
        self.notice(reason, packets.into(), whose);
    }

    /// Has it told that packets do not get through, which are counted.
    #[cold]
    pub(crate) fn notice(&'static self, reason: Reason, packets: u64, whose: Whose) {
        if self.notices.note(reason, packets, whose, self.fabric.clock.now()) {
            self.fabric.run_queue.tell(self);
        }
    }

    /// Adds what one side of a connection counted, and has told what is to be.
    #[cold]
    pub(crate) fn count_packets(&'static self, packets: &Packets, whose: Whose) {
        self.tally.rare.add(packets);
        for (reason, packets) in Reason::of(packets) {
            if packets > 0 {
                self.notice(reason, packets, whose);
            }
        }
    }
}

impl Told {
    fn tell(&self) {
        let Self { device, reason, packets, whose } = self;
        let address = whose.address.map(|address| match address {
            Address::Lid(lid) => format!("LID {lid}"),
            Address::Gid(entry) => entry.gid.to_string(),
        });
        let (name, advice) = (reason.name(), reason.advice());
        macro_rules! event {
            ($event:ident) => {
                tracing::$event!(
                    target: "rdma_soft::wire",
                    device,
                    reason = name,
                    packets,
                    qpn = whose.qpn,
                    peer_qpn = whose.peer_qpn.filter(|&qpn| qpn != 0),
                    address = address.as_deref(),
                    "packets did not get through: {advice}"
                )
            };
        }
        match reason.gravity() {
            Gravity::Warns => event!(warn),
            Gravity::Informs => event!(info),
        }
    }
}
