//! The steps of a listener or connection that the program takes.

use std::net::SocketAddr;

use rdma_proto::cm::wire::{Reason, Rejection, Resolution, SidrStatus};
use rdma_qp::{QueuePair, QueuePairEndpoint};
use rdma_sys::Errno;
use rdma_types::{Psn, Qpn};

use super::entry::{Entry, Stage, check_type};
use super::iwarp::{self, Half};
use super::listening::not_listening;
use crate::engine::Handle;
use crate::engine::path::connect;
use crate::error::{End, Error};
use crate::options::BindOptions;
use crate::parameters::{NO_ANSWER, Parameters, QKEY};

impl Handle {
    /// Connects a queue pair to the peer's, through the states `INIT`, `RTR` and `RTS`. On iWARP, the kernel connects
    /// it later, or has connected it.
    pub(crate) fn connect(
        &self,
        queue_pair: Half,
        peer: &QueuePairEndpoint,
    ) -> Result<QueuePair, Error> {
        let queue_pair = match queue_pair {
            Half::Prepared(queue_pair) => *queue_pair,
            Half::Initialized(initialized) => {
                return initialized.into_queue_pair().ok_or_else(|| End::PeerGone.into());
            }
        };
        if !self.engine.is_managed {
            return Ok(connect(queue_pair, peer)?);
        }
        check_type(&queue_pair)?;
        let attributes =
            self.engine.manage(self.token, "read the connection's path", Entry::attributes)?;
        Ok(queue_pair.connect_managed(&attributes)?)
    }

    /// Listens at the bound port.
    pub(crate) fn listen(&self, address: SocketAddr) -> Result<(), Error> {
        let engine = &self.engine;
        engine.check_process()?;
        let mut state = engine.locked();
        let managed = state.managed.as_mut();
        let entry = managed.and_then(|managed| managed.entries.get(&self.token));
        let listens = entry.map_or(Err(Errno::EINVAL), |entry| entry.id.listen());
        let device = || engine.context().device().name().to_owned();
        listens.map_err(|errno| not_listening(errno, address, device()))
    }

    /// Sets the options of the bound port.
    pub(crate) fn set_port_options(&self, options: BindOptions) {
        let _ = self.engine.manage(self.token, "set the port's options", |entry| {
            entry.id.set_port_options(options.is_shared, options.is_one_ip_version)
        });
    }

    /// Answers a query.
    pub(crate) fn answer(&self, qpn: Qpn, qkey: u32, private_data: &[u8]) -> Result<(), Error> {
        if !self.engine.is_managed {
            let status = SidrStatus::VALID;
            let resolution = Resolution { status, qpn, qkey, private_data, ..NO_ANSWER };
            return self.change(|peer, _| peer.answer(&resolution));
        }
        if qkey != QKEY {
            return Err(Error::QueueKey { qkey });
        }
        self.engine.manage(self.token, "answer the query", |entry| {
            entry.id.accept(&Parameters::new(qpn, Psn::masked(0)), private_data)?;
            entry.stage = Stage::Over;
            Ok(())
        })
    }

    /// Refuses a query.
    pub(crate) fn refuse(&self, private_data: &[u8]) -> Result<(), Error> {
        if !self.engine.is_managed {
            let resolution = Resolution { private_data, ..NO_ANSWER };
            return self.change(|peer, _| peer.answer(&resolution));
        }
        self.reject(Reason::CONSUMER_DEFINED, private_data)
    }

    /// Confirms that this end is ready, after the peer's answer.
    pub(crate) fn establish(&self) -> Result<(), Error> {
        if !self.engine.is_managed {
            return self.change(|peer, _| peer.ready());
        }
        self.engine.manage(self.token, "establish the connection", |entry| {
            if !self.engine.is_iwarp() {
                entry.id.establish()?;
            }
            entry.stage = Stage::Established;
            Ok(())
        })
    }

    /// Accepts a request.
    pub(crate) fn accept(&self, own: Parameters, private_data: &[u8]) -> Result<(), Error> {
        if !self.engine.is_managed {
            return self.change(|peer, now| peer.accept_with(now, own, private_data));
        }
        self.engine.manage(self.token, "accept the request", |entry| {
            let own = match &entry.peer {
                Some(peer) if self.engine.is_iwarp() => iwarp::within(own, peer),
                Some(peer) => own.within(peer),
                None => own,
            };
            entry.id.accept(&own, private_data)?;
            entry.stage = Stage::Accepted;
            Ok(())
        })
    }

    /// Rejects a request. The kernel's rdma_cm has no other reason than [`Reason::CONSUMER_DEFINED`].
    pub(crate) fn reject(&self, reason: Reason, private_data: &[u8]) -> Result<(), Error> {
        if !self.engine.is_managed {
            let rejection = Rejection { private_data, ..Rejection::new(reason) };
            return self.change(|peer, now| peer.reject(now, &rejection));
        }
        self.engine.manage(self.token, "reject the request", |entry| {
            entry.id.reject(private_data)?;
            entry.stage = Stage::Over;
            Ok(())
        })
    }
}
