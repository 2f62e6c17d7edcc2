//! Repeated attempts to reconnect, after a port was down or until the peer is ready.

use std::io;
use std::time::Duration;

use rdma_connect::ConnectError;
use rdma_mem::{Context, PortState, Recovery};
use rdma_qp::Error;
use tokio::time::{sleep, timeout};

use crate::connection::Connection;
use crate::driver::Driver;
use crate::sync::LONGEST;

/// The attempts, pauses and time limits of [`Connection::reconnect_by`].
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use rdma_async::ReconnectPolicy;
///
/// let policy = ReconnectPolicy::new()
///     .attempts(20)
///     .pauses(Duration::from_millis(50), Duration::from_secs(2))
///     .port_timeout(Duration::from_secs(300));
/// # let _ = policy;
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ReconnectPolicy {
    attempts: u32,
    first_pause: Duration,
    longest_pause: Duration,
    port_timeout: Duration,
}

impl ReconnectPolicy {
    /// Returns a policy with 5 attempts, pauses from 100 ms to 5 s, and 60 s per attempt to wait for the port.
    pub const fn new() -> Self {
        Self {
            attempts: 5,
            first_pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(5),
            port_timeout: Duration::from_secs(60),
        }
    }

    /// Sets the number of attempts, at least 1. Default: 5.
    pub const fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// Sets the pause after the first failed attempt, and the longest pause. Each pause is twice as long as the one
    /// before. Default: 100 ms and 5 s.
    pub const fn pauses(mut self, first: Duration, longest: Duration) -> Self {
        self.first_pause = first;
        self.longest_pause = longest;
        self
    }

    /// Sets how long each attempt waits for a port to become active. Default: 60 s. [`Duration::MAX`] means no limit.
    pub const fn port_timeout(mut self, limit: Duration) -> Self {
        self.port_timeout = limit;
        self
    }
}

impl Default for ReconnectPolicy {
    fn default() -> Self {
        Self::new()
    }
}

impl Connection {
    /// Calls [`reconnect`](Self::reconnect) until it succeeds or the policy gives up. The peer's program must make the
    /// same call, or call `reconnect`.
    ///
    /// Each attempt first waits until the connection's port is active (`PORT_ACTIVE`), or any port if the connection's
    /// options name none. It then rereads the GID table, because its entries may change while a port is down. An
    /// attempt is repeated if no port is active, no GID fits, the two endpoints do not match, or a verb fails
    /// temporarily. It is also repeated if the peer does not answer within this end's
    /// [`rendezvous_timeout`](crate::ConnectionOptions::rendezvous_timeout), or too many queue pairs are being made. If
    /// all attempts fail, the last error is returned.
    ///
    /// # Errors
    /// Same errors as [`reconnect`](Self::reconnect), and [`ConnectError::Verbs`] with
    /// [`NoActivePort`](rdma_qp::Error::NoActivePort), which contains the state of each port. Also [`ConnectError::Io`]
    /// with an error of [`Driver::events`].
    ///
    /// # Panics
    /// If this is not called within a tokio runtime with time (`enable_time`).
    ///
    /// # Examples
    /// ```
    /// use rdma_async::ReconnectPolicy;
    ///
    /// # let device = rdma_soft::Builder::new("soft-flap").install()?;
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let context = rdma_mem::open_device("soft-flap")?;
    /// # let pd = context.allocate_pd()?;
    /// # let driver = rdma_async::Driver::spawn(&context)?;
    /// # let options = rdma_async::ConnectionOptions::new(&pd);
    /// # let listener = driver.listen("127.0.0.1:0", options.clone()).await?;
    /// # let (client, server) = tokio::join!(driver.connect(listener.local_addr(), options), listener.accept());
    /// # let ((client, _), server) = (client?, server?);
    /// let receive = server.receive_imm().post().await?;
    /// # device.set_port_up(false);
    /// // The cable is pulled, and plugged in again.
    /// receive.await.unwrap_err();
    /// let policy = ReconnectPolicy::new();
    /// let both = async { tokio::join!(client.reconnect_by(&policy), server.reconnect_by(&policy)) };
    /// # let both = async { tokio::join!(both, async { device.set_port_up(true) }).0 };
    /// let (at_client, at_server) = both.await;
    /// assert_eq!((at_client?, at_server?), (1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn reconnect_by(&self, policy: &ReconnectPolicy) -> Result<u32, ConnectError> {
        let (mut left, mut pause) = (policy.attempts.max(1), policy.first_pause);
        loop {
            left -= 1;
            let tried = match self.until_port_active(policy.port_timeout).await {
                Ok(()) => self.reconnect().await,
                Err(error) => Err(error),
            };
            match tried {
                Err(error) if left > 0 && is_temporary(&error) => {
                    tracing::debug!(%error, left, ?pause, "reconnecting failed, and is tried again");
                    sleep(pause.min(policy.longest_pause).min(LONGEST)).await;
                    pause = pause.saturating_mul(2);
                }
                done => return done,
            }
        }
    }

    async fn until_port_active(&self, limit: Duration) -> Result<(), ConnectError> {
        let inner = self.inner();
        let member = inner.member().ok_or(ConnectError::NoControl)?;
        let (context, port) = (inner.pd.context(), member.qp.fixed_port());
        let failed = |source| ConnectError::Io { tried: "waiting for the port".into(), source };
        // Created before the first check, so that no later event is missed.
        let mut events = Driver(inner.driver.clone()).events().map_err(failed)?;
        let active = async {
            while states(context, port)?.iter().all(|&state| !is_active(state)) {
                events.next().await.map_err(failed)?;
            }
            Ok(())
        };
        match timeout(limit.min(LONGEST), active).await {
            Ok(done) => done,
            Err(_) => {
                let (device, ports) = (context.device().name().to_owned(), states(context, None)?);
                Err(Error::NoActivePort { device, ports }.into())
            }
        }
    }
}

/// Returns the state of this port, or of every port.
fn states(context: &Context, port: Option<u8>) -> Result<Vec<PortState>, ConnectError> {
    let ports = match port {
        Some(port) => port..=port,
        None => 1..=context.query_device()?.port_count,
    };
    ports.map(|port| Ok(context.query_port(port)?.state)).collect()
}

const fn is_active(state: PortState) -> bool {
    matches!(state, PortState::ACTIVE | PortState::ACTIVE_DEFER)
}

/// Returns true if another attempt may succeed, because ports, GIDs and the peer may recover without the program's
/// help.
fn is_temporary(error: &ConnectError) -> bool {
    match error {
        ConnectError::Timeout { .. } | ConnectError::Busy(_) => true,
        ConnectError::Io { source, .. } => source.kind() == io::ErrorKind::NetworkDown,
        ConnectError::Verbs(error) => match &**error {
            Error::NoSuchGid { .. } | Error::NoGidInNetwork { .. } | Error::Handshake(_) => true,
            error => matches!(error.recovery(), Recovery::Retry | Recovery::Reconnect),
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_temporary_errors_are_retried() {
        let limit = Duration::from_secs(1);
        let verbs = |error: Error| ConnectError::from(error);
        for error in [
            ConnectError::Timeout { limit, awaited: "it".to_owned() },
            verbs(Error::NoActivePort { device: "d".to_owned(), ports: vec![PortState::DOWN] }),
            verbs(Error::NoSuchGid { port: 1, index: 3, indexes: Vec::new() }),
            ConnectError::Io { tried: "it".to_owned(), source: io::ErrorKind::NetworkDown.into() },
        ] {
            assert!(is_temporary(&error), "{error}");
        }
        for error in [
            ConnectError::NoControl,
            ConnectError::NumberTaken { number: 1 },
            ConnectError::Io { tried: "it".to_owned(), source: io::Error::other("closed") },
            verbs(Error::NoSuchPort { port: 2, count: 1 }),
        ] {
            assert!(!is_temporary(&error), "{error}");
        }
    }
}
