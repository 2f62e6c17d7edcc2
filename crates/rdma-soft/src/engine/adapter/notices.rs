//! Events that explain why data does not arrive although a peer is connected. Each reason to drop or refuse packets has
//! one [`tracing`] event, emitted at most once a minute.

use std::sync::Mutex;
use std::time::Duration;

use rdma_proto::Counters as Packets;
use tracing::level_filters::LevelFilter;

use crate::address::Address;
use crate::counters::Rares;
use crate::engine::adapter::Adapter;
use crate::fabric::clock::Time;
use crate::fabric::emitters::{Emit, EventSource};
use crate::sync::locked;

#[cfg(all(test, not(loom)))]
mod tests;

/// The minimum time between two events for the same reason.
const MIN_INTERVAL: Duration = Duration::from_secs(60);

/// The severity of a reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Severity {
    /// The traffic fails until a person changes something.
    Warns,
    /// This may be normal: the protocol retries, or the connection is ending.
    Informs,
}

macro_rules! reasons {
    ($($reason:ident $counter:ident $severity:ident $advice:literal)+) => {
        /// The reason why packets did not get through.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Reason {
            $($reason,)+
        }

        impl Reason {
            const ALL: [Self; [$(Self::$reason),+].len()] = [$(Self::$reason),+];

            /// Returns the name of the reason's counter.
            fn name(self) -> &'static str {
                match self { $(Self::$reason => stringify!($counter),)+ }
            }

            /// Adds packets to the reason's counter, for packets that no other code counts.
            pub(crate) fn count(self, counters: &Rares, packets: u64) {
                match self { $(Self::$reason => counters.$counter.add(packets),)+ }
            }

            fn severity(self) -> Severity {
                match self { $(Self::$reason => Severity::$severity,)+ }
            }

            /// Returns the meaning of the reason, and what to check.
            fn advice(self) -> &'static str {
                match self { $(Self::$reason => $advice,)+ }
            }
        }
    };
}

reasons! {
    PortDown port_down Warns
        "the port of this device is down: nothing leaves or arrives until it is up (PORT_ACTIVE)"
    NoRoute no_route Warns
        "no reachable port has the destination address, or the process with the peer's queue pair \
         has ended: compare the GID or LID of the address vector with those of the peer's port. A device reaches the devices of its own process \
         with the same link layer; soft0 and softib0 also reach themselves in other processes of \
         the user; one that listens (RDMA_SOFT_LISTEN, Builder::listen) reaches other hosts, if \
         the GID index names an address at which it listens; one of a `Network` reaches only that \
         network"
    Stalled stalled Warns
        "datagrams are lost, since the peer's process receives fewer than are sent: it is stopped \
         (SIGSTOP, a debugger), or gets no processor time"
    Silent silent Warns
        "a process on this host has stopped receiving and answering, but has not ended: it is stopped (SIGSTOP, a \
         debugger), or gets no processor time. Its connections wait for it, and fail when it is silent for as long \
         again (RDMA_SOFT_PEER_LIMIT, Builder::peer_limit)"
    NotSent send_err Informs
        "the network did not accept packets: it is full, has no route to the address, or its MTU is smaller than that \
         of the connection"
    Damaged rx_icrc_encapsulated Informs
        "packets arrive damaged, and are dropped: a simulated link flips bits (LinkModel::corruption), or a program \
         other than an RDMA device sends to this UDP port"
    WrongPartition bad_pkey_cntr Warns
        "packets have a different P_Key from this port, which is a full member of only the \
         default partition (0xffff): make the peer send with 0xffff or 0x7fff (pkey_index)"
    UnknownQp unknown_qp Warns
        "packets are for an unknown queue pair number: the peer was given another number (dest_qp_num), or the queue \
         pair was destroyed"
    WrongService wrong_service Warns
        "the queue pair with that number has a different type from the sender: create both as RC, \
         UC or UD"
    WrongSource wrong_source Warns
        "packets come from a different address from the one that the queue pair is connected to: \
         compare the address vector here with the GID (its index and its type) or LID from which \
         the peer sends"
    WrongState wrong_state Informs
        "the queue pair cannot receive in its state: move it to RTR before the peer sends; if it is in ERR, the first \
         completion that failed, or an asynchronous event, shows why"
    WrongQkey qkey_viol_cntr Warns
        "datagrams have a different Q_Key from their receiver: set the same one at both ends"
    NoReceive out_of_buffer Warns
        "unacknowledged messages are lost since no receive request is posted, or the posted one is too small (a \
         datagram needs 40 bytes more than its data): post more of them, and earlier"
    ReceiverNotReady send_rnr_err Informs
        "messages find no receive request here, and their sender waits: post receives before the peer sends"
    OutOfSequence out_of_seq_request Informs
        "a request before the received ones is missing: it was lost and is sent again, or rq_psn \
         here differs from the peer's sq_psn"
    NeverTaken unanswered_duplicate Warns
        "requests with sequence numbers before the expected one arrive that were never executed: \
         rq_psn here differs from the peer's sq_psn, or the peer belongs to an earlier connection"
    RefusedAccess resp_remote_access_errors Warns
        "requests of the peer are refused: their rkey is unknown, invalidated or of another domain, or the region \
         lacks that range or those rights; or the queue pair does not grant them (qp_access_flags)"
    RefusedInvalid resp_invalid_request_errors Warns
        "requests of the peer are refused as invalid: the message is longer than its receive request, the path MTU \
         differs, or qp_access_flags or max_dest_rd_atomic does not allow the operation"
    RefusedOperation resp_remote_operation_errors Warns
        "requests of the peer are refused since a receive request here names memory that cannot be used: check its \
         lkey, range and rights"
    BadResponse bad_response Warns
        "responses do not match the requests: compare the path MTU and sequence numbers of both \
         ends"
}

impl Reason {
    /// Returns the counts of one side of a connection that point to a user's mistake. Errors that the protocol causes
    /// and repairs itself are excluded, as are packets that arrive after the connection has ended.
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

/// The two ends of a dropped packet, or of the last one if several packets were dropped.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Endpoints {
    /// The queue pair on this device, or the one that the packets were addressed to.
    pub(crate) qpn: u32,
    /// The queue pair at the other end, if known.
    pub(crate) peer_qpn: Option<u32>,
    /// The address that the packets came from or were sent to.
    pub(crate) address: Option<Address>,
}

/// The pending events of a device.
#[derive(Debug, Default)]
pub(crate) struct Notices(Mutex<[Notice; Reason::ALL.len()]>);

#[derive(Debug, Default, Clone, Copy)]
struct Notice {
    /// The number of packets since the last event.
    packets: u64,
    endpoints: Option<Endpoints>,
    /// The time at which the last event became due. `None` if no event did, or if the last one was cancelled.
    last_due: Option<Time>,
    due: bool,
}

/// An event to emit.
#[derive(Debug)]
struct DueEvent {
    device: &'static str,
    reason: Reason,
    packets: u64,
    endpoints: Endpoints,
}

impl Notices {
    /// Adds packets to the pending event for a reason. Returns true if this makes the event due.
    fn note(&self, reason: Reason, packets: u64, endpoints: Endpoints, now: Time) -> bool {
        let notice = &mut locked(&self.0)[reason as usize];
        notice.packets = notice.packets.saturating_add(packets);
        notice.endpoints = Some(endpoints);
        let has_subscriber = LevelFilter::current() != LevelFilter::OFF;
        let interval_passed = notice.last_due.is_none_or(|last| now.since(last) >= MIN_INTERVAL);
        if notice.due || !has_subscriber || !interval_passed {
            return false;
        }
        (notice.last_due, notice.due) = (Some(now), true);
        true
    }
}

impl EventSource for Adapter {
    fn take_due(&'static self) -> Option<Emit> {
        let mut due = Vec::new();
        for (reason, notice) in Reason::ALL.into_iter().zip(locked(&self.notices.0).iter_mut()) {
            if let Some(endpoints) = notice.endpoints
                && std::mem::take(&mut notice.due)
            {
                let packets = std::mem::take(&mut notice.packets);
                due.push(DueEvent { device: &self.name, reason, packets, endpoints });
            }
        }
        (!due.is_empty()).then(|| Box::new(move || due.iter().for_each(DueEvent::emit)) as Emit)
    }

    /// Cancels the due events; the next dropped packet makes them due again.
    fn postpone(&self) {
        for notice in locked(&self.notices.0).iter_mut().filter(|notice| notice.due) {
            (notice.last_due, notice.due) = (None, false);
        }
    }
}

impl Adapter {
    /// Counts packets that do not get through, and schedules an event. The caller may hold any lock except a
    /// [leaf](crate::engine).
    #[cold]
    pub(crate) fn drop_packets(&'static self, reason: Reason, packets: u16, endpoints: Endpoints) {
        reason.count(&self.tally.rare, packets.into());
        self.notice(reason, packets.into(), endpoints);
    }

    /// Schedules an event about packets that do not get through and were counted already.
    #[cold]
    pub(crate) fn notice(&'static self, reason: Reason, packets: u64, endpoints: Endpoints) {
        if self.notices.note(reason, packets, endpoints, self.fabric.clock.now()) {
            self.fabric.run_queue.queue_source(self);
        }
    }

    /// Adds the counts of one side of a connection, and schedules the events that follow from these counts.
    #[cold]
    pub(crate) fn count_packets(&'static self, packets: &Packets, endpoints: Endpoints) {
        self.tally.rare.add(packets);
        for (reason, packets) in Reason::of(packets) {
            if packets > 0 {
                self.notice(reason, packets, endpoints);
            }
        }
    }
}

impl DueEvent {
    fn emit(&self) {
        let Self { device, reason, packets, endpoints } = self;
        let address = endpoints.address.map(|address| match address {
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
                    qpn = endpoints.qpn,
                    peer_qpn = endpoints.peer_qpn.filter(|&qpn| qpn != 0),
                    address = address.as_deref(),
                    "packets did not get through: {advice}"
                )
            };
        }
        match reason.severity() {
            Severity::Warns => event!(warn),
            Severity::Informs => event!(info),
        }
    }
}
