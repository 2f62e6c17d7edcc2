//! The options of a channel builder. They borrow nothing, so a listener can keep them.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rdma_mem::{AccessFlags, Errno, ProtectionDomain};
use rdma_qp::prelude::*;
use rdma_qp::{
    CompletionChannel, CompletionQueue, Error, PreparedQueuePair, QueuePair, QueuePairBuilder,
    QueuePairType, SharedReceiveQueue,
};

use crate::deadline::Wait;
use crate::ledger::queues::{Asked, MOST_REQUESTS};
use crate::limits::Limits;

/// The options of each channel.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) qp: QueuePairBuilder<'static>,
    pub(crate) pd: ProtectionDomain,
    pub(crate) qp_type: QueuePairType,
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) sq_sig_all: bool,
    pub(crate) limits: Limits,
    /// The stream that each channel watches, with the time limit.
    pub(crate) watch: Option<(Arc<OwnedFd>, Duration)>,
}

/// The default size of a queue.
const DEPTH: u32 = 16;

impl Options {
    pub(crate) fn new(pd: &ProtectionDomain) -> Self {
        let access = AccessFlags::new().with_remote_read().with_remote_write();
        Self {
            qp: QueuePair::builder(pd).access(access),
            pd: pd.clone(),
            qp_type: QueuePairType::RC,
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            sq_sig_all: false,
            limits: Limits::DEFAULT,
            watch: None,
        }
    }

    /// Returns the settings that a channel keeps: the sizes of its queues, its limits, and its protection domain.
    pub(crate) fn parts(&self) -> (Asked, Limits, ProtectionDomain) {
        let (sends, receives) = (self.max_send_wr, self.max_recv_wr);
        let asked = Asked { sends, receives, signals_all: self.sq_sig_all };
        (asked, self.limits, self.pd.clone())
    }

    /// Returns the maximum size of inline data that the program requested, in bytes.
    pub(crate) const fn inline(&self) -> u32 {
        self.qp.asked().max_inline_data
    }

    /// Creates a completion queue with room for this number of channels. Returns an error if there would be more
    /// requests than WR IDs can distinguish.
    pub(crate) fn completion_queue(
        &self,
        (knob, channels): (&'static str, u32),
    ) -> Result<CompletionQueue, Error> {
        let sends = at_most("max_send_wr", self.max_send_wr, MOST_REQUESTS)?;
        let receives = at_most("max_recv_wr", self.max_recv_wr, MOST_REQUESTS - sends)?;
        let each = sends + receives;
        let all = each * at_most(knob, channels, MOST_REQUESTS / each.max(1))?;
        self.queue_for(all, "`max_send_wr` plus `max_recv_wr` completions for each channel")
    }

    /// Creates a completion queue for the queue pairs of a server, which share their receives.
    pub(crate) fn shared_completion_queue(&self, peers: u32) -> Result<CompletionQueue, Error> {
        let receives = at_most("max_recv_wr", self.max_recv_wr, MOST_REQUESTS)?;
        let room = MOST_REQUESTS - receives;
        let sends = at_most("max_send_wr", self.max_send_wr, room)?;
        let sends = sends * at_most("max_peers", peers, room / sends.max(1))?;
        self.queue_for(
            receives + sends,
            "`max_recv_wr` completions, plus `max_send_wr` for each of `max_peers`",
        )
    }

    /// Creates a completion queue. If the provider refuses the size, the hint of the error ends with `of`, which names
    /// the options that determine the size.
    fn queue_for(&self, completions: u32, of: &str) -> Result<CompletionQueue, Error> {
        if self.qp_type == QueuePairType::UD {
            return Err(Error::NotConnected);
        }
        let (context, completions) = (self.pd.context(), completions.max(1));
        let created = match self.limits.wait {
            Wait::Spin => CompletionQueue::create(context, completions),
            Wait::SpinThenSleep | Wait::Sleep => CompletionChannel::create(context)
                .and_then(|events| CompletionQueue::create_with_channel(&events, completions, 0)),
        };
        created.map_err(|error| match error {
            Error::Verb(error) if matches!(error.errno, Errno::EINVAL | Errno::ENOMEM) => {
                let hint = error.hint.as_deref();
                let hint = hint.map(|hint| format!("{hint}; the queue must hold {of}").into());
                error.with_hint(hint).into()
            }
            other => other,
        })
    }

    /// Creates a receive queue that all queue pairs of a server share. Each receive has one element.
    pub(crate) fn shared_receive_queue(&self) -> Result<SharedReceiveQueue, Error> {
        self.pd.create_srq().max_wr(self.max_recv_wr).max_sge(1).build()
    }

    /// Creates a server's queue pair, which completes in `cq` and uses the receives of `srq`.
    pub(crate) fn queue_pair_sharing(
        &self,
        cq: &CompletionQueue,
        srq: &SharedReceiveQueue,
    ) -> Result<PreparedQueuePair, Error> {
        let qp: QueuePairBuilder<'_> = self.qp.clone();
        let qp = qp.qp_type(self.qp_type).send_cq(cq).recv_cq(cq).srq(srq);
        qp.max_send_wr(self.max_send_wr).strict_cq(true).build()
    }

    /// Creates a server's queue pair, which completes in `cq` and has `max_recv_wr` receives of its own.
    pub(crate) fn queue_pair_with(
        &self,
        cq: &CompletionQueue,
        max_recv_wr: u32,
    ) -> Result<PreparedQueuePair, Error> {
        let qp: QueuePairBuilder<'_> = self.qp.clone();
        let qp = qp.qp_type(self.qp_type).send_cq(cq).recv_cq(cq).max_recv_wr(max_recv_wr);
        qp.max_send_wr(self.max_send_wr).strict_cq(true).build()
    }

    /// Creates a queue pair that completes in `cq`.
    pub(crate) fn queue_pair(&self, cq: &CompletionQueue) -> Result<PreparedQueuePair, Error> {
        let qp: QueuePairBuilder<'_> = self.qp.clone();
        let qp = qp.qp_type(self.qp_type).send_cq(cq).recv_cq(cq).sq_sig_all(self.sq_sig_all);
        qp.max_send_wr(self.max_send_wr).max_recv_wr(self.max_recv_wr).strict_cq(true).build()
    }
}

fn at_most(knob: &'static str, value: u32, most: u32) -> Result<u32, Error> {
    if value > most { Err(Error::TooLarge { knob, value, most }) } else { Ok(value) }
}

/// The options of the rendezvous.
#[derive(Clone, Debug)]
pub(crate) struct RendezvousOptions {
    pub(crate) user_bytes: Box<[u8]>,
    pub(crate) timeout: Duration,
    /// If set, a channel keeps the stream and watches it with this limit. Servers have a limit of their own.
    pub(crate) watch: Option<Duration>,
}

/// The default time that a peer's machine may be silent.
const SILENCE: Duration = Duration::from_secs(10);

impl Default for RendezvousOptions {
    fn default() -> Self {
        Self { user_bytes: Box::default(), timeout: Duration::from_secs(10), watch: Some(SILENCE) }
    }
}

/// The options that only servers have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerKnobs {
    pub(crate) max_peers: u32,
    pub(crate) message_size: usize,
    /// Whether the clients share a receive queue; `None` if this depends on the device.
    pub(crate) shares: Option<bool>,
    /// The number of receives for each client if the clients do not share a receive queue.
    pub(crate) per_peer: Option<u32>,
    /// The time that a client's machine may be silent.
    pub(crate) watch: Duration,
}

impl Default for ServerKnobs {
    fn default() -> Self {
        Self { max_peers: 64, message_size: 4096, shares: None, per_peer: None, watch: SILENCE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creating a queue pair fails if the completion queue has no room for it. Without this check, channels could
    /// overflow the completion queue, and there is no recovery from that.
    #[test]
    #[cfg_attr(miri, ignore = "the software device copies in assembly")]
    fn channels_need_a_completion_queue_that_they_cannot_overflow() {
        rdma_soft::install();
        let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
        let options = Options::new(&pd);
        let cq = options.completion_queue(("num_channels", 2)).unwrap();
        let _two = [options.queue_pair(&cq).unwrap(), options.queue_pair(&cq).unwrap()];
        let error = options.queue_pair(&cq).unwrap_err();
        let Error::CompletionQueueTooSmall { capacity: 64, needed: 96, .. } = error else {
            panic!("{error}");
        };
    }
}
