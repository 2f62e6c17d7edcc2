//! Detection of silent peers.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

/// The options of a TCP stream that make the kernel end it once the peer's machine has been silent for a given time.
///
/// TCP probes an idle peer four times within that time, but at most once per second. The shortest effective limit is
/// therefore two seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeepAlive {
    /// `TCP_KEEPIDLE` and `TCP_KEEPINTVL`.
    pub interval: Duration,
    /// `TCP_USER_TIMEOUT`, in milliseconds.
    pub user_timeout_ms: u32,
}

impl KeepAlive {
    /// Returns the options for this limit.
    #[must_use]
    pub fn within(limit: Duration) -> Self {
        // TCP compares the silence with the user timeout only when it sends a probe, so the timeout is one interval
        // shorter than the limit. The kernel accepts no interval longer than 32,767 s.
        let interval = Duration::from_secs((limit.as_secs() / 4).clamp(1, 32767));
        let silence = limit.saturating_sub(interval).max(Duration::from_millis(1));
        let user_timeout_ms =
            u32::try_from(silence.as_millis()).unwrap_or(u32::MAX).min(i32::MAX as u32);
        Self { interval, user_timeout_ms }
    }

    /// Sets these options of a stream. Streams other than TCP reject them. This does not matter: they are local, so no
    /// remote machine can fall silent.
    ///
    /// # Examples
    /// ```
    /// use std::net::{TcpListener, TcpStream};
    /// use std::time::Duration;
    /// use rdma_connect::KeepAlive;
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let stream = TcpStream::connect(listener.local_addr()?)?;
    /// KeepAlive::within(Duration::from_secs(10)).set(&stream);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn set(self, stream: impl AsFd) {
        let stream = stream.as_fd();
        let _ = sockopt::set_socket_keepalive(stream, true);
        let _ = sockopt::set_tcp_keepidle(stream, self.interval);
        let _ = sockopt::set_tcp_keepintvl(stream, self.interval);
        let _ = sockopt::set_tcp_user_timeout(stream, self.user_timeout_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_four_probes_is_within_the_limit() {
        let of = |limit| {
            let KeepAlive { interval, user_timeout_ms } = KeepAlive::within(limit);
            (interval.as_secs(), user_timeout_ms)
        };
        assert_eq!(of(Duration::from_secs(40)), (10, 30_000));
        assert_eq!(of(Duration::from_millis(1500)), (1, 500));
        assert_eq!(of(Duration::ZERO), (1, 1));
        assert_eq!(of(Duration::MAX), (32767, i32::MAX as u32));
    }
}
