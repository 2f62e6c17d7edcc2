//! Two nodes of a program run in one thread on a simulated network, which finds the moment at which
//! both lead.
//!
//! The leader sends heartbeats, and leads for as long as its lease lasts. Each acknowledged
//! heartbeat renews the lease. A follower that has received no heartbeat for the duration of a
//! lease takes over and leads from then on.
//!
//! A renewed lease starts when its heartbeat is sent. The follower receives the heartbeat later, so
//! it does not take over before the lease ends. The hasty leader's lease starts only when the
//! acknowledgement arrives, so the follower may take over too early.
//!
//! Both nodes are in one process, because the simulated network is. Only then does the same seed
//! always find the same error.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use rdma::prelude::*;
use rdma::qp::AckTimeout;
use rdma::soft::{Builder, LinkModel, Network};
use rdma_examples_common::{Failure, program};

/// Tests two kinds of leases, each with many network failures
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    #[arg(long, default_value_t = 50, help = "The number of failures that each is tested with")]
    seeds: u64,
}

const LEASE: Duration = Duration::from_millis(2);
const BEAT: Duration = Duration::from_micros(200); // between two heartbeats
const TURN: Duration = Duration::from_micros(5); // between two turns of a node
const END: Duration = Duration::from_millis(8);

fn main() -> ExitCode {
    program(run)
}

pub(crate) fn run(arguments: &Arguments) -> Result<String, Failure> {
    let mut report = String::new();
    for (hasty, name) in [(true, "the acknowledgement"), (false, "the send")] {
        let mut outcome = format!("no mistake in {} seeds", arguments.seeds);
        for seed in 0..arguments.seeds {
            if let Some(mistake) = mistake(seed, hasty)? {
                outcome = format!("seed {seed}: {mistake}");
                break;
            }
        }
        report += &format!("lease from {name}: {outcome}\n");
    }
    Ok(report.trim_end().to_owned())
}

/// Runs both nodes on a network that loses packets. At some point, the link between the nodes
/// breaks. Returns a description of the mistake, if there is one.
fn mistake(seed: u64, hasty: bool) -> Result<Option<String>, Failure> {
    let network = Network::simulated(seed);
    network.set_all_links(LinkModel::new().latency(Duration::from_micros(20)).loss(0.02));
    let device = |name| Builder::new(name).network(&network).install();
    let (a, b) = (device("node-a")?, device("node-b")?);
    let cut = Duration::from_micros(2000 + seed * 61 % 3000);
    network.set_link_after(cut, &a, &b, LinkModel::cut())?;
    network.set_link_after(cut, &b, &a, LinkModel::cut())?;

    // Lost packets are retransmitted after 0.26 ms.
    let timeout = AckTimeout::from_code(6).ok_or("no such code")?;
    let prepare = |name| {
        let pd = open_device(name)?.allocate_pd()?;
        Ok::<_, Failure>(pd.create_channel().ack_timeout(timeout).build()?)
    };
    let (a, b) = (prepare(a.name())?, prepare(b.name())?);
    let (end_a, end_b) = (a.endpoint(), b.endpoint());
    let (mut a, mut b) = (a.handshake(end_b)?, b.handshake(end_a)?);

    // The operations of a channel end with its scope, so both nodes run within both scopes.
    a.scope(|to_b| {
        b.scope(|to_a| {
            let begin = network.now();
            let mut leader = Leader { to_b, hasty, beat: None, sent: begin, lease: Some(begin) };
            let receive = to_a.post_receive(ReceiveWorkRequest::only_immediate())?;
            let mut follower = Follower { to_a, receive, heard: Some(begin) };
            let mut mistake = None;
            while network.now() < END && mistake.is_none() {
                let now = network.now();
                // Each node does everything it can without waiting.
                if leader.turn(now)? & follower.turn(now)? {
                    mistake = Some(format!("two leaders, after {now:?}"));
                }
                network.run_for(TURN);
            }
            if leader.lease.is_none() && follower.heard.is_some() {
                mistake = Some("no node leads".into());
            }
            // Closing flushes the requests in flight immediately.
            to_a.close();
            to_b.close();
            Ok::<_, Failure>(mistake)
        })
        .map_err(Failure::from)
    })
    .map_err(Failure::from)
}

struct Leader<'scope, 'env> {
    to_b: &'scope Scope<'scope, 'env>,
    hasty: bool,
    /// The heartbeat in flight, if any.
    beat: Option<ScopedPendingWork<'scope>>,
    /// When the last heartbeat was sent.
    sent: Duration,
    /// When the lease started, or `None` if this node no longer leads.
    lease: Option<Duration>,
}

impl Leader<'_, '_> {
    /// Lets the leader act once. Returns true if it leads.
    fn turn(&mut self, now: Duration) -> Result<bool, TransportError> {
        match self.beat.as_ref().map(ScopedPendingWork::poll) {
            Some(Some(Ok(_))) => {
                let since = if self.hasty { now } else { self.sent };
                (self.beat, self.lease) = (None, self.lease.map(|_| since));
            }
            // The heartbeat has failed, and all later ones would fail too.
            Some(Some(Err(_))) => self.lease = None,
            None if now - self.sent >= BEAT => {
                let beat = self.to_b.post_send(SendWorkRequest::only_immediate(0))?;
                (self.beat, self.sent) = (Some(beat), now);
            }
            Some(None) | None => {}
        }
        self.lease = self.lease.filter(|&since| now - since < LEASE);
        Ok(self.lease.is_some())
    }
}

struct Follower<'scope, 'env> {
    to_a: &'scope Scope<'scope, 'env>,
    receive: ScopedPendingWork<'scope>,
    /// When the last heartbeat arrived, or `None` if this node leads.
    heard: Option<Duration>,
}

impl Follower<'_, '_> {
    /// Lets the follower act once. Returns true if it leads.
    fn turn(&mut self, now: Duration) -> Result<bool, TransportError> {
        if let Some(heartbeat) = self.receive.poll() {
            heartbeat?;
            self.heard = self.heard.map(|_| now);
            self.receive = self.to_a.post_receive(ReceiveWorkRequest::only_immediate())?;
        }
        self.heard = self.heard.filter(|&heard| now - heard < LEASE);
        Ok(self.heard.is_none())
    }
}
