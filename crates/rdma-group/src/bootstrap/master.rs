//! The address of rank 0, at which it listens and to which the other ranks connect.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rdma_connect::Dial;

use super::link::after;
use crate::environment::{HOST_AND_PORT, Settings, is_address, own_host};
use crate::error::Error;

/// The connections that wait to be accepted, if the group is not larger.
const BACKLOG: usize = 1024;

/// The shortest pause between attempts to connect to rank 0, and the shortest time of an attempt.
const SHORTEST: Duration = Duration::from_millis(10);

/// The longest pause between attempts to look up rank 0.
const LONGEST: Duration = Duration::from_secs(1);

/// The maximum time of an attempt to connect to one of several addresses of rank 0, or to connect again.
pub(super) const ATTEMPT: Duration = Duration::from_secs(3);

/// Returns the addresses of rank 0.
///
/// # Errors
/// [`Error::Io`] if they cannot be looked up within the limit, [`Error::BadAddress`] or [`Error::SecretRequired`].
pub(super) fn addresses(settings: &Settings, limit: Duration) -> Result<Vec<SocketAddr>, Error> {
    let Settings { master, stated_by, .. } = settings;
    if !is_address(master) {
        let (address, expected) = (master.clone(), HOST_AND_PORT);
        return Err(Error::BadAddress { address, stated_by, expected });
    }
    let mut addresses = match master.parse() {
        Ok(address) => vec![address],
        Err(_) => {
            let tried =
                format!("looking up the address of rank 0, {master}, which {stated_by} states");
            let name = master.clone();
            look_up(limit, move || resolve(&name)).map_err(Error::io(tried))?
        }
    };
    if !addresses.iter().all(is_link_local) {
        addresses.retain(|address| !is_link_local(address));
    }
    check(settings, &addresses)?;
    Ok(addresses)
}

fn resolve(master: &str) -> io::Result<Vec<SocketAddr>> {
    // The resolver expects an IPv6 address without brackets. The standard library removes them only if no interface follows.
    let bare = master.rsplit_once("]:").map(|(host, port)| (host.trim_start_matches('['), port));
    let addresses = match bare.and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?))) {
        Some(host_and_port) => host_and_port.to_socket_addrs(),
        None => master.to_socket_addrs(),
    };
    Ok(addresses?.collect())
}

/// Calls `resolve` on another thread, because the resolver has no limit. After the limit, that thread continues until
/// the resolver returns. A failure is not final, because launchers such as Kubernetes start a rank before its name exists.
fn look_up(
    limit: Duration,
    resolve: impl Fn() -> io::Result<Vec<SocketAddr>> + Send + 'static,
) -> io::Result<Vec<SocketAddr>> {
    let (sender, results) = mpsc::channel();
    let repeat = move || {
        let mut pauses = Pauses::up_to(LONGEST);
        loop {
            let result = resolve();
            let is_last = result.is_ok();
            // After the limit, no receiver is left.
            if sender.send(result).is_err() || is_last {
                return;
            }
            pauses.pause();
        }
    };
    thread::Builder::new().name("looks up rank 0".to_owned()).spawn(repeat)?;
    let until = after(limit);
    let mut failure = None;
    loop {
        match results.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Err(error)) if error.kind() != ErrorKind::InvalidInput => {
                if failure.is_none() {
                    tracing::warn!("looking up rank 0 is repeated until it succeeds: {error}");
                }
                failure = Some(format!("{error}: it was repeated for {limit:?}, check the name"));
            }
            Ok(result) => return result,
            Err(RecvTimeoutError::Timeout) => {
                let text = failure.unwrap_or_else(|| {
                    format!("no answer within {limit:?}: check the name servers of this host, or use an IP address")
                });
                return Err(io::Error::new(ErrorKind::TimedOut, text));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(io::Error::other("the look-up has panicked"));
            }
        }
    }
}

/// Refuses addresses to which no rank can connect, and those that need a secret if there is none.
fn check(settings: &Settings, addresses: &[SocketAddr]) -> Result<(), Error> {
    let Settings { master, stated_by, secret, .. } = settings;
    let (address, stated_by) = (master.clone(), *stated_by);
    let all = || addresses.iter().map(|address| address.ip().to_canonical());
    if all().any(|ip| ip.is_unspecified()) {
        let expected = "the name or an address of its host, to which the other ranks can connect";
        return Err(Error::BadAddress { address, stated_by, expected });
    }
    if addresses.iter().any(is_link_local) {
        let expected = "an address that is valid on all hosts, and not a link-local one";
        return Err(Error::BadAddress { address, stated_by, expected });
    }
    if secret.as_ref().is_none_or(Vec::is_empty) && !all().all(|ip| ip.is_loopback()) {
        return Err(Error::SecretRequired { address });
    }
    Ok(())
}

fn is_link_local(address: &SocketAddr) -> bool {
    matches!(address, SocketAddr::V6(address) if address.ip().is_unicast_link_local())
}

/// Listens as rank 0.
pub(super) fn listen_as_root(
    settings: &Settings,
    addresses: &[SocketAddr],
    waiting: usize,
) -> Result<TcpListener, Error> {
    let Settings { ref master, stated_by, .. } = *settings;
    let (address, host) = (master.clone(), own_host());
    let failed = |source| Error::Listen { address, stated_by, host, source };
    listen(addresses, waiting).map_err(failed)
}

/// Listens at the first address that works. That many ranks can connect before one is accepted, if the kernel allows it
/// (`net.core.somaxconn`).
pub(super) fn listen(addresses: &[SocketAddr], waiting: usize) -> io::Result<TcpListener> {
    let listener = bind(addresses)?;
    let waiting = i32::try_from(waiting.max(BACKLOG)).unwrap_or(i32::MAX);
    // The standard library requests a shorter backlog. This call enlarges it.
    rustix::net::listen(&listener, waiting)?;
    Ok(listener)
}

/// Binds the first address that this host has. If another process listens there, others would connect to that process
/// rather than to a later address.
fn bind(addresses: &[SocketAddr]) -> io::Result<TcpListener> {
    let mut last = io::Error::from(ErrorKind::NotFound);
    for address in addresses {
        match TcpListener::bind(address) {
            Err(error) if error.kind() != ErrorKind::AddrInUse => last = error,
            result => return result,
        }
    }
    Err(last)
}

/// Returns the reason why ranks on other hosts cannot join. There is one if rank 0 listens at a loopback address, and not
/// all ranks are known to be on its host. Some systems map a host's own name to a loopback address.
pub(super) fn local_only(settings: &Settings, ip: IpAddr) -> Option<String> {
    let Settings { master, stated_by, .. } = settings;
    let is_harmless = !ip.to_canonical().is_loopback() || settings.is_one_host(ip);
    (!is_harmless).then(|| {
        format!(
            "other hosts cannot connect to rank 0 at {master}, which {stated_by} states, because it is {ip} on the \
             host of rank 0: if there are ranks on other hosts, state an address that they reach"
        )
    })
}

/// Connects to rank 0 within the limit, which ends at `until`.
pub(super) fn connect_to_root(
    settings: &Settings,
    addresses: &[SocketAddr],
    limit: Duration,
    until: Instant,
) -> Result<TcpStream, Error> {
    let (address, rank) = (settings.master.clone(), settings.rank);
    let failed = |source| Error::Unreachable { rank, address, limit, source };
    connect(addresses, until).map_err(failed)
}

/// Connects to rank 0, which may not listen yet.
pub(super) fn connect(addresses: &[SocketAddr], until: Instant) -> io::Result<TcpStream> {
    let mut pauses = Pauses::default();
    loop {
        match attempt(addresses, until) {
            Err(_) if Instant::now() < until => pauses.pause(),
            result => return result,
        }
    }
}

/// The pauses between attempts to reach rank 0, which become longer.
pub(super) struct Pauses {
    next: Duration,
    longest: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self::up_to(Duration::from_millis(250))
    }
}

impl Pauses {
    const fn up_to(longest: Duration) -> Self {
        Self { next: SHORTEST, longest }
    }

    pub(super) fn pause(&mut self) {
        thread::sleep(self.next);
        self.next = (self.next * 2).min(self.longest);
    }
}

/// Connects to rank 0, which has dropped a connection. In a flood of strangers, it may not answer for a while. Fails if
/// rank 0 does not listen any more.
pub(super) fn connect_again(
    addresses: &[SocketAddr],
    pauses: &mut Pauses,
    until: Instant,
) -> io::Result<TcpStream> {
    loop {
        pauses.pause();
        match attempt(addresses, until.min(Instant::now() + ATTEMPT)) {
            Err(error) if error.kind() == ErrorKind::TimedOut && Instant::now() < until => {}
            result => return result,
        }
    }
}

/// Tries to connect to each address of rank 0. Returns the last error if none accepts.
fn attempt(addresses: &[SocketAddr], until: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::from(ErrorKind::NotFound);
    for address in addresses {
        let mut left = until.saturating_duration_since(Instant::now()).max(SHORTEST);
        if addresses.len() > 1 {
            left = left.min(ATTEMPT);
        }
        let connect = || {
            let stream = TcpStream::connect_timeout(address, left)?;
            Dial::check(&stream)?;
            Ok(stream)
        };
        match connect() {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests;
