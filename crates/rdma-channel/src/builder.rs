//! The knobs of a channel.

use std::marker::PhantomData;

use rdma_mem::{AccessFlags, ProtectionDomain};
use rdma_qp::{
    CompletionQueue, Error, MaxRnrRetries, PreparedQueuePair, QueuePair, QueuePairBuilder,
    QueuePairType,
};

use crate::lane::Asked;
use crate::limits::Limits;
use crate::slot::MOST_REQUESTS;
use crate::{Channel, PreparedChannel};

/// Makes a channel.
///
/// The knobs are those of a [`QueuePairBuilder`] but for the queues, which a channel has for itself, and the
/// limits of its operations. Nothing has to be set.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use rdma_channel::prelude::*;
///
/// rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let prepared = pd
///     .create_channel()
///     .max_send_wr(128)
///     .receive_timeout(Duration::from_secs(10))
///     .build()?;
/// println!("tell the peer: {:?}", prepared.endpoint());
/// # Ok::<(), rdma_qp::Error>(())
/// ```
#[must_use]
#[derive(Clone, Debug)]
pub struct ChannelBuilder<'a> {
    qp: QueuePairBuilder<'a>,
    pd: &'a ProtectionDomain,
    qp_type: QueuePairType,
    max_send_wr: u32,
    max_recv_wr: u32,
    sq_sig_all: bool,
    limits: Limits,
}

/// How many requests a queue holds unless it is said.
const DEPTH: u32 = 16;

/// The knobs that all builders of channels have: `own` makes those of the [`ChannelBuilder`], `forward` those of
/// one that has a `channel` of it.
macro_rules! channel_knobs {
    ($kind:ident $builder:ident) => {
        $crate::builder::channel_knobs! {
            @$kind $builder
            values {
                /// How many requests of the send queue can be under way. Default: 16.
                max_send_wr: u32;
                /// How many receives can be under way. Default: 16.
                max_recv_wr: u32;
                /// RC or UC. Default: RC. Of UC a message arrives or not, and its send succeeds when it has
                /// left.
                qp_type: rdma_qp::QueuePairType;
                /// Every request of the send queue makes a completion, also one that says it is unsignaled: it is as
                /// if none did. Default: no.
                sq_sig_all: bool;
            }
            limits {
                /// How long a send may take. Default: 30 seconds. [`Duration::MAX`](std::time::Duration::MAX) is for ever, here and below.
                send_timeout => send;
                /// How long a receive may take. Default: for ever, as of a socket.
                receive_timeout => receive;
                /// How long an RDMA write may take. Default: 30 seconds.
                write_timeout => write;
                /// How long an RDMA read may take. Default: 30 seconds.
                read_timeout => read;
                /// How long an atomic operation may take. Default: 30 seconds.
                atomic_timeout => atomic;
                /// How long what a scope has left under way may take, and, if that is not enough, its flushes once
                /// more. Default: 5 seconds.
                drain_timeout => drain;
            }
            queue_pair {
                /// What the peer may do through this channel to memory that allows it too. Default: remote read
                /// and write.
                access: rdma_mem::AccessFlags;
                /// How many elements a request of the send queue can have.
                max_send_sge: u32;
                /// How many elements a receive can have.
                max_recv_sge: u32;
                /// How many bytes an inline request can have.
                max_inline_data: u32;
                /// The port.
                port: u8;
                /// The GID.
                gid_index: u8;
                /// The path MTU.
                mtu: rdma_qp::MaximumTransferUnit;
                /// The number of the first packet from here.
                send_psn: rdma_qp::PacketSequenceNumber;
                /// The number of the peer's first packet.
                recv_psn: rdma_qp::PacketSequenceNumber;
                /// How many RDMA reads and atomics are in flight from here.
                max_rd_atomic: u8;
                /// How many RDMA reads and atomics of the peer are answered.
                max_dest_rd_atomic: u8;
                /// How long to wait for an acknowledgement.
                ack_timeout: rdma_qp::AckTimeout;
                /// How often to send again.
                max_ack_retries: rdma_qp::MaxAckRetries;
                /// How often to try again when the peer has no receive posted. Default: without end, since
                /// the limit of the operation ends it.
                max_rnr_retries: rdma_qp::MaxRnrRetries;
                /// How long the peer has to wait when no receive is posted here.
                min_rnr_timer: rdma_qp::MinRnrTimer;
                /// The place of the partition key.
                pkey_index: u16;
                /// The service level.
                service_level: u8;
                /// The traffic class of routed packets.
                traffic_class: u8;
                /// Over how many routers packets may go.
                hop_limit: u8;
                /// The flow label of routed packets.
                flow_label: u32;
                /// Post by function calls where the device can.
                extended: bool;
            }
        }
    };
    (@own $builder:ident
        values {$($(#[$value_doc:meta])* $value:ident: $value_type:ty;)+}
        limits {$($(#[$limit_doc:meta])* $limit:ident => $of:ident;)+}
        queue_pair {$($(#[$knob_doc:meta])* $knob:ident: $knob_type:ty;)+}
    ) => {
        impl<'a> $builder<'a> {
            $($(#[$value_doc])*
            pub fn $value(mut self, $value: $value_type) -> Self {
                self.$value = $value;
                self
            })+

            $($(#[$limit_doc])*
            pub fn $limit(mut self, $of: std::time::Duration) -> Self {
                self.limits.$of = $of;
                self
            })+

            $($(#[$knob_doc])*
            #[doc = concat!("See [`QueuePairBuilder::", stringify!($knob), "`](rdma_qp::QueuePairBuilder::", stringify!($knob), ").")]
            pub fn $knob(mut self, $knob: $knob_type) -> Self {
                self.qp = self.qp.$knob($knob);
                self
            })+
        }
    };
    (@forward $builder:ident
        values {$($(#[$value_doc:meta])* $value:ident: $value_type:ty;)+}
        limits {$($(#[$limit_doc:meta])* $limit:ident => $of:ident;)+}
        queue_pair {$($(#[$knob_doc:meta])* $knob:ident: $knob_type:ty;)+}
    ) => {
        impl<'a> $builder<'a> {
            $($(#[$value_doc])*
            pub fn $value(mut self, $value: $value_type) -> Self {
                self.channel = self.channel.$value($value);
                self
            })+

            $($(#[$limit_doc])*
            pub fn $limit(mut self, $of: std::time::Duration) -> Self {
                self.channel = self.channel.$limit($of);
                self
            })+

            $($(#[$knob_doc])*
            #[doc = concat!("See [`QueuePairBuilder::", stringify!($knob), "`](rdma_qp::QueuePairBuilder::", stringify!($knob), ").")]
            pub fn $knob(mut self, $knob: $knob_type) -> Self {
                self.channel = self.channel.$knob($knob);
                self
            })+
        }
    };
}

pub(crate) use channel_knobs;

channel_knobs!(own ChannelBuilder);

impl<'a> ChannelBuilder<'a> {
    pub(crate) fn new(pd: &'a ProtectionDomain) -> Self {
        let access = AccessFlags::new().with_remote_read().with_remote_write();
        Self {
            qp: QueuePair::builder(pd).access(access).max_rnr_retries(MaxRnrRetries::unlimited()),
            pd,
            qp_type: QueuePairType::RC,
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            sq_sig_all: false,
            limits: Limits::DEFAULT,
        }
    }

    /// Creates the channel's queues.
    ///
    /// # Errors
    /// As of [`QueuePairBuilder::build`]; [`Error::NotConnected`] of UD, which has no connections;
    /// [`Error::TooLarge`] for more requests than can be told apart.
    #[doc(alias = "ibv_create_qp")]
    pub fn build(self) -> Result<PreparedChannel, Error> {
        let cq = self.completion_queue(1)?;
        let qp = self.queue_pair(&cq)?;
        let (asked, limits, pd) = self.parts();
        Ok(PreparedChannel { qp, cq, asked, limits, pd })
    }

    /// What a channel keeps: what its queues were asked for, its limits and its domain.
    pub(crate) fn parts(&self) -> (Asked, Limits, ProtectionDomain) {
        let (sends, receives) = (self.max_send_wr, self.max_recv_wr);
        let asked = Asked { sends, receives, signals_all: self.sq_sig_all };
        (asked, self.limits, self.pd.clone())
    }

    /// A completion queue that so many channels cannot overflow, and whose requests can be told apart.
    pub(crate) fn completion_queue(&self, channels: u32) -> Result<CompletionQueue, Error> {
        if self.qp_type == QueuePairType::UD {
            return Err(Error::NotConnected);
        }
        CompletionQueue::create(self.pd.context(), self.room(channels)?.max(1))
    }

    /// How many requests of so many channels can be under way.
    fn room(&self, channels: u32) -> Result<u32, Error> {
        let at_most = |knob, value, most| match value {
            _ if value > most => Err(Error::TooLarge { knob, value, most }),
            _ => Ok(value),
        };
        let sends = at_most("max_send_wr", self.max_send_wr, MOST_REQUESTS)?;
        let receives = at_most("max_recv_wr", self.max_recv_wr, MOST_REQUESTS - sends)?;
        let each = sends + receives;
        Ok(each * at_most("num_channels", channels, MOST_REQUESTS / each.max(1))?)
    }

    /// A queue pair that completes in that queue.
    pub(crate) fn queue_pair(&self, cq: &CompletionQueue) -> Result<PreparedQueuePair, Error> {
        let qp = self.qp.clone().qp_type(self.qp_type).send_cq(cq).recv_cq(cq);
        let qp = qp.sq_sig_all(self.sq_sig_all);
        qp.max_send_wr(self.max_send_wr).max_recv_wr(self.max_recv_wr).strict_cq(true).build()
    }
}

/// A builder that lacks the protection domain, which [`pd`](WithoutPd::pd) tells it.
#[must_use]
#[derive(Debug)]
pub struct WithoutPd<C>(PhantomData<fn() -> C>);

impl<C> WithoutPd<C> {
    pub(crate) const fn new() -> Self {
        Self(PhantomData)
    }
}

impl WithoutPd<Channel> {
    /// The domain whose memory the channel will use.
    pub fn pd(self, pd: &ProtectionDomain) -> ChannelBuilder<'_> {
        ChannelBuilder::new(pd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else a channel could overflow its queue, whose failure nobody survives.
    #[test]
    #[cfg_attr(miri, ignore = "the software device copies in assembly")]
    fn channels_need_a_completion_queue_that_they_cannot_overflow() {
        rdma_soft::install();
        let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
        let builder = ChannelBuilder::new(&pd);
        let cq = builder.completion_queue(2).unwrap();
        let _two = [builder.queue_pair(&cq).unwrap(), builder.queue_pair(&cq).unwrap()];
        let error = builder.queue_pair(&cq).unwrap_err();
        let Error::CompletionQueueTooSmall { capacity: 64, needed: 96, .. } = error else {
            panic!("{error}");
        };
    }
}
