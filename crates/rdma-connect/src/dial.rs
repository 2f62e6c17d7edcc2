//! The server addresses that a client tries.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use std::vec;

use rustix::net::sockopt::set_socket_linger;
use rustix::net::{getpeername, getsockname};

use crate::error::connect_error::ConnectError;
use crate::until::Until;

/// The IP addresses of a stream's two ends, if both are known: first this end's address, then the peer's.
pub type StreamAddresses = Option<(IpAddr, IpAddr)>;

/// Returns the addresses of a stream to this peer, if this end's address is known.
#[must_use]
pub fn stream_addresses(own: io::Result<SocketAddr>, peer: SocketAddr) -> StreamAddresses {
    Some((own.ok()?.ip(), peer.ip()))
}

/// The addresses of a server, tried in order until one accepts a stream. Each address gets an equal share of the
/// remaining time.
#[derive(Debug)]
pub struct Dial {
    untried: vec::IntoIter<SocketAddr>,
    tried: Vec<SocketAddr>,
    failure: Option<ConnectError>,
    limit: Duration,
    until: Until,
}

impl Dial {
    /// Prepares to try these addresses. `limit` is the total time for connecting.
    ///
    /// # Errors
    /// [`ConnectError::NoAddress`] if `addresses` is empty.
    pub fn new(
        addresses: Vec<SocketAddr>,
        limit: Duration,
        now: Instant,
    ) -> Result<Self, ConnectError> {
        if addresses.is_empty() {
            return Err(ConnectError::NoAddress);
        }
        let until = Until::after(now, limit);
        Ok(Self { untried: addresses.into_iter(), tried: Vec::new(), failure: None, limit, until })
    }

    /// Returns the deadline for connecting.
    #[must_use]
    pub const fn until(&self) -> Until {
        self.until
    }

    /// Returns the next address to try, and its share of the time.
    ///
    /// # Errors
    /// After all addresses have been tried, returns the first failure, or [`ConnectError::NobodyListens`] if every
    /// address refused the connection.
    pub fn next(&mut self, now: Instant) -> Result<(SocketAddr, Duration), ConnectError> {
        let mut shares = self.untried.len();
        while let Some(address) = self.untried.next() {
            self.tried.push(address);
            match self.until.left(now) {
                Duration::MAX => return Ok((address, Duration::MAX)),
                Duration::ZERO => self.failed(ErrorKind::TimedOut.into()),
                left => return Ok((address, left / u32::try_from(shares).unwrap_or(u32::MAX))),
            }
            shares -= 1;
        }
        let tried = std::mem::take(&mut self.tried);
        Err(self.failure.take().unwrap_or(ConnectError::NobodyListens { tried }))
    }

    /// Checks a stream to the server, because TCP may connect a socket to itself if no program listens. Such a stream
    /// leaves no TIME_WAIT when it is dropped, so that the server can listen at the address at once.
    ///
    /// # Errors
    /// [`ErrorKind::ConnectionRefused`] if both ends have the same address, and the errors of `getsockname(2)` and
    /// `getpeername(2)`.
    pub fn check(stream: &impl AsFd) -> io::Result<()> {
        if getpeername(stream)? != Some(getsockname(stream)?) {
            return Ok(());
        }
        set_socket_linger(stream, Some(Duration::ZERO))?;
        Err(ErrorKind::ConnectionRefused.into())
    }

    /// Records a failure to connect to the most recent address.
    pub fn failed(&mut self, source: io::Error) {
        let Some(&address) = self.tried.last() else { return };
        let failure = match source.kind() {
            ErrorKind::ConnectionRefused => return,
            ErrorKind::TimedOut => ConnectError::Timeout {
                limit: self.limit,
                awaited: format!(
                    "TCP connection to {address}: check the address. If it is right, a firewall \
                     drops the packets, or the server is too busy to accept clients and its \
                     backlog is full: then try again, or raise `rendezvous_timeout`"
                ),
            },
            _ => ConnectError::Io { tried: format!("connecting to {address}"), source },
        };
        self.failure.get_or_insert(failure);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
    use test_support::loopback::free_address;

    use super::*;

    #[test]
    fn a_socket_that_is_connected_to_itself_is_refused_and_leaves_the_port_free() {
        let address = free_address();
        let (family, flags) = (AddressFamily::INET, SocketFlags::CLOEXEC);
        let socket = socket_with(family, SocketType::STREAM, flags, None).unwrap();
        bind(&socket, &address).unwrap();
        connect(&socket, &address).unwrap();
        let error = Dial::check(&socket).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        drop(socket);
        let _server = TcpListener::bind(address).unwrap();
        Dial::check(&TcpStream::connect(address).unwrap()).unwrap();
    }

    fn addresses(count: u16) -> Vec<SocketAddr> {
        (1..=count).map(|port| ([192, 0, 2, 1], port).into()).collect()
    }

    #[test]
    fn each_address_has_an_equal_share_of_the_time_that_is_left() {
        let now = Instant::now();
        let mut dial = Dial::new(addresses(3), Duration::from_secs(6), now).unwrap();
        let share = |dial: &mut Dial, after: u64| {
            dial.next(now + Duration::from_secs(after))
                .map(|(address, share)| (address.port(), share))
        };
        assert_eq!(share(&mut dial, 0).unwrap(), (1, Duration::from_secs(2)));
        assert_eq!(share(&mut dial, 2).unwrap(), (2, Duration::from_secs(2)));
        assert_eq!(share(&mut dial, 3).unwrap(), (3, Duration::from_secs(3)));
        let error = share(&mut dial, 3).unwrap_err();
        assert!(matches!(error, ConnectError::NobodyListens { tried } if tried == addresses(3)));
    }

    #[test]
    fn the_first_failure_is_reported_unless_every_address_refuses() {
        let now = Instant::now();
        let mut dial = Dial::new(addresses(3), Duration::MAX, now).unwrap();
        for kind in [ErrorKind::ConnectionRefused, ErrorKind::HostUnreachable, ErrorKind::TimedOut]
        {
            assert_eq!(dial.next(now).unwrap().1, Duration::MAX);
            dial.failed(kind.into());
        }
        let error = dial.next(now).unwrap_err();
        assert!(matches!(error, ConnectError::Io { tried, .. } if tried.ends_with(":2")));
    }

    #[test]
    fn addresses_that_have_no_time_left_are_not_tried() {
        let now = Instant::now();
        let mut dial = Dial::new(addresses(2), Duration::ZERO, now).unwrap();
        assert!(matches!(dial.next(now), Err(ConnectError::Timeout { .. })));
        assert!(matches!(Dial::new(Vec::new(), Duration::MAX, now), Err(ConnectError::NoAddress)));
    }
}
