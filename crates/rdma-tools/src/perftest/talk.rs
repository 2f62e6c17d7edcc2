//! perftest's exchange over TCP: before, during and after the data transfer.
//!
//! In each step, the client sends first, and then the server answers. perftest reads each message
//! with one call, so this end also sends each message with one call.

use std::time::Duration;

use anyhow::{Result, bail};
use rdma::device::Mtu;
use rdma_examples_common::out_of_band::{OutOfBand, OutOfBandError};

use super::NotPerftest;
use super::keys::Keys;

/// The version of perftest that this end claims to have.
const OWN_VERSION: &[u8] = b"6.06";
/// The first and the last version of perftest with this exchange. Later versions omit the last
/// message, `DONE`.
const VERSIONS: [(u32, u32); 2] = [(5, 96), (6, 10)];
/// The size of a page, and that of a cache line.
const OWN_CYCLE: [u32; 2] = [4096, 64];
/// The length of a version text, which is padded with NULs.
const VERSION_BYTES: usize = 16;
/// The last message that each end sends.
const DONE: &[u8; 5] = b"done\0";

/// The placement of small messages in memory: they cycle through a buffer, at a certain distance
/// from each other. For each of the two values, the larger of the ends' values applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cycle {
    pub(super) buffer: usize,
    /// The minimum distance between messages, in bytes.
    pub(super) line: usize,
}

impl Cycle {
    /// The values of perftest on this processor: a page and a cache line.
    pub(super) const OWN: Self =
        Self { buffer: OWN_CYCLE[0] as usize, line: OWN_CYCLE[1] as usize };
    /// The maximum accepted size of a page.
    const LONGEST: usize = 1 << 24;

    fn of(buffer: [u8; 4], line: [u8; 4]) -> Result<Self, NotPerftest> {
        let number = |bytes| {
            let number = usize::try_from(i32::from_be_bytes(bytes)).ok();
            let number = number.filter(|number| (1..=Self::LONGEST).contains(number));
            number.ok_or_else(|| NotPerftest::new("the length of a page or a cache line", &bytes))
        };
        Ok(Self { buffer: number(buffer)?, line: number(line)? })
    }

    /// Returns the values that apply to both ends.
    fn with(self, other: Self) -> Self {
        Self { buffer: self.buffer.max(other.buffer), line: self.line.max(other.line) }
    }
}

/// The result of a bandwidth test, as perftest's programs exchange it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Report {
    /// The length of a message, in bytes.
    pub(super) size: u64,
    pub(super) iterations: u64,
    /// The peak bandwidth, in MiB per second.
    pub(super) peak: f64,
    /// The average bandwidth, in MiB per second.
    pub(super) average: f64,
    /// The average message rate, in millions of messages per second.
    pub(super) rate: f64,
}

/// The conversation with a perftest program.
#[derive(Debug)]
pub(super) struct Talk {
    stream: OutOfBand,
    /// The time limit for each message from the peer, and for the peer to close the connection.
    wait: Duration,
}

impl Talk {
    pub(super) const fn new(stream: OutOfBand, wait: Duration) -> Self {
        Self { stream, wait }
    }

    /// Returns true if this end is the server, and the peer is the client.
    pub(super) const fn is_server(&self) -> bool {
        self.stream.listens()
    }

    fn swap<const N: usize>(&mut self, own: &[u8; N]) -> Result<[u8; N], OutOfBandError> {
        if self.is_server() {
            let other = self.receive()?;
            self.stream.send(own)?;
            Ok(other)
        } else {
            self.stream.send(own)?;
            self.receive()
        }
    }

    fn receive<const N: usize>(&mut self) -> Result<[u8; N], OutOfBandError> {
        self.stream.limit(self.wait);
        self.stream.receive()
    }

    /// Exchanges versions, and agrees on the cycle and on the smaller of the two MTUs.
    ///
    /// # Errors
    /// Returns an error if the peer is a different program, has another version, or stalls.
    pub(super) fn begin(&mut self, mtu: Mtu) -> Result<(Cycle, Mtu)> {
        let mut own = [0; VERSION_BYTES];
        own.iter_mut().zip(OWN_VERSION).for_each(|(to, from)| *to = *from);
        check_version(&self.swap(&own)?)?;
        let [buffer, line] = OWN_CYCLE.map(u32::to_be_bytes);
        let other = Cycle::of(self.swap(&buffer)?, self.swap(&line)?)?;
        let theirs = mtu_of(self.swap(&digit(mtu))?)?;
        Ok((Cycle::OWN.with(other), mtu.min(theirs)))
    }

    /// Exchanges keys: sends this end's and returns the peer's. This also synchronizes both ends.
    ///
    /// # Errors
    /// Returns an error if the peer sends something else or stalls.
    pub(super) fn keys(&mut self, own: &Keys) -> Result<Keys> {
        let bytes = own.to_bytes();
        let other = match <[u8; Keys::BYTES]>::try_from(&bytes[..]) {
            Ok(own) => Keys::from_bytes(&self.swap(&own)?),
            Err(_) => {
                let own: [u8; Keys::BYTES_WITHOUT_GID] = bytes[..].try_into()?;
                Keys::from_bytes(&self.swap(&own)?)
            }
        };
        Ok(other?)
    }

    /// Exchanges the same keys again, which synchronizes both ends. No perftest program changes its
    /// keys.
    ///
    /// # Errors
    /// Same errors as [`keys`](Self::keys). Also returns an error if the peer's keys have changed.
    pub(super) fn again(&mut self, own: &Keys, before: &Keys) -> Result<()> {
        let now = self.keys(own)?;
        if now != *before {
            bail!(
                "the peer sends different keys than before (QPN {} then, {} now): check that it \
                 is the same program of perftest",
                before.qpn,
                now.qpn
            );
        }
        Ok(())
    }

    /// Exchanges reports: sends this end's and returns the peer's. A server sends an empty report,
    /// and clients ignore it.
    ///
    /// # Errors
    /// Returns an error if the peer stalls.
    pub(super) fn report(&mut self, own: &Report) -> Result<Report> {
        let size = self.swap(&own.size.to_be_bytes())?;
        let iterations = self.swap(&own.iterations.to_be_bytes())?;
        let mut rates = [own.peak, own.average, own.rate];
        for rate in &mut rates {
            *rate = f64::from_be_bytes(self.swap(&rate.to_be_bytes())?);
        }
        let [peak, average, rate] = rates;
        let (size, iterations) = (u64::from_be_bytes(size), u64::from_be_bytes(iterations));
        Ok(Report { size, iterations, peak, average, rate })
    }

    /// Reports that this end has finished, and waits until the peer has finished too.
    ///
    /// # Errors
    /// Returns an error if the peer sends something else or stalls.
    pub(super) fn close(mut self, own: &Keys, before: &Keys) -> Result<()> {
        self.again(own, before)?;
        self.stream.send(DONE)?;
        let end: [u8; DONE.len()] = self.receive()?;
        if end != *DONE {
            return Err(NotPerftest::new("the end of an exchange", &end).into());
        }
        self.finish()
    }

    /// Waits until the peer has closed the connection. Before that, it may need an acknowledgement
    /// from this end's device.
    ///
    /// # Errors
    /// Returns an error if the peer sends more bytes, or does not close the connection.
    pub(super) fn finish(self) -> Result<()> {
        Ok(self.stream.finish(self.wait)?)
    }
}

fn check_version(bytes: &[u8; VERSION_BYTES]) -> Result<()> {
    let wrong = || NotPerftest::new("a version of perftest", bytes);
    let mut parts = bytes.splitn(2, |&byte| byte == 0);
    let text = parts.next().and_then(|text| std::str::from_utf8(text).ok()).ok_or_else(wrong)?;
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| digits)
    };
    let (major, minor) = text.split_once('.').ok_or_else(wrong)?;
    // A version is a decimal fraction, so 6.1 equals 6.10.
    let minor = if minor.len() == 1 { format!("{minor}0") } else { minor.to_owned() };
    let version: (u32, u32) = (number(major).ok_or_else(wrong)?, number(&minor).ok_or_else(wrong)?);
    let [(a, b), (c, d)] = VERSIONS;
    if version < (a, b) || version > (c, d) {
        bail!(
            "the peer is perftest {text}, whose exchange may differ: use a version from {a}.{b:02} to {c}.{d:02}, such as \
             that of Debian 12"
        );
    }
    Ok(())
}

/// The MTUs, each with its number in the verbs as text.
const MTUS: [(Mtu, u8); 5] = [
    (Mtu::MTU256, b'1'),
    (Mtu::MTU512, b'2'),
    (Mtu::MTU1024, b'3'),
    (Mtu::MTU2048, b'4'),
    (Mtu::MTU4096, b'5'),
];

fn digit(mtu: Mtu) -> [u8; 2] {
    [MTUS.iter().rfind(|(one, _)| *one <= mtu).map_or(b'1', |(_, digit)| *digit), 0]
}

fn mtu_of(bytes: [u8; 2]) -> Result<Mtu, NotPerftest> {
    let [digit, end] = bytes;
    let found = MTUS.iter().find(|(_, one)| *one == digit && end == 0);
    found.map(|(mtu, _)| *mtu).ok_or_else(|| NotPerftest::new("an MTU of perftest", &bytes))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use rdma::device::{Gid, Lid};
    use rdma::qp::{Psn, Qpn};

    use super::*;

    const WAIT: Duration = Duration::from_secs(10);

    fn version(text: &str) -> Result<(), String> {
        let mut bytes = [0; VERSION_BYTES];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        check_version(&bytes).map_err(|error| error.to_string())
    }

    #[test]
    fn versions_with_the_same_exchange_are_accepted() {
        for good in ["6.06", "5.96", "6.10", "6.1"] {
            assert_eq!(version(good), Ok(()), "{good}");
        }
        for other in ["5.95", "6.11", "6.2", "7.00", "0.0", "06.99"] {
            let error = version(other).unwrap_err();
            assert!(error.contains("from 5.96 to 6.10"), "{error}");
        }
        for garbage in ["", ".", "6", "6.", ".5", "6.0x", "6.-1", "+6.06", "6.06.1", "abcdefgh"] {
            let error = version(garbage).unwrap_err();
            assert!(error.contains("not a version of perftest"), "{garbage}: {error}");
        }
        let error = check_version(&[0xff; VERSION_BYTES]).unwrap_err().to_string();
        assert!(error.contains("\\xff"), "{error}");
    }

    #[test]
    fn mtus_are_sent_as_their_numbers_in_the_verbs() {
        for (mtu, told) in MTUS {
            assert_eq!((digit(mtu), mtu_of([told, 0])), ([told, 0], Ok(mtu)));
        }
        for garbage in [*b"0\0", *b"6\0", *b"33", [0; 2], [0xff; 2]] {
            mtu_of(garbage).unwrap_err();
        }
    }

    #[test]
    fn impossible_lengths_are_refused() {
        let length = |buffer: i32, line: i32| Cycle::of(buffer.to_be_bytes(), line.to_be_bytes());
        assert_eq!(length(65536, 128), Ok(Cycle { buffer: 65536, line: 128 }));
        for (buffer, line) in [(0, 64), (-1, 64), (4096, 0), (4096, i32::MIN), (i32::MAX, 64)] {
            length(buffer, line).unwrap_err();
        }
        let own = Cycle::OWN.with(Cycle { buffer: 65536, line: 32 });
        assert_eq!(own, Cycle { buffer: 65536, line: 64 });
    }

    fn keys(qpn: u32) -> Keys {
        let gid: Option<Gid> = "::ffff:192.0.2.1".parse().ok();
        let (qpn, psn) = (Qpn::masked(qpn), Psn::masked(2));
        Keys { lid: Lid::NONE, reads: 16, qpn, psn, rkey: 3, address: 4, gid }
    }

    #[test]
    fn two_ends_complete_the_exchange() {
        let [here, there] = OutOfBand::pair(WAIT).unwrap();
        let report = |size| Report { size, iterations: 9, peak: 1.5, average: 1.25, rate: 1e-3 };
        let end = move |way, own: Keys, size| {
            let mut talk = Talk::new(way, WAIT);
            let began = talk.begin(Mtu::MTU2048).unwrap();
            let other = talk.keys(&own).unwrap();
            talk.again(&own, &other).unwrap();
            let reported = talk.report(&report(size)).unwrap();
            talk.close(&own, &other).unwrap();
            (began, other, reported)
        };
        let server = thread::spawn(move || end(here, keys(0x11), 7));
        let began = (Cycle::OWN, Mtu::MTU2048);
        assert_eq!(end(there, keys(0x22), 8), (began, keys(0x11), report(7)));
        assert_eq!(server.join().unwrap(), (began, keys(0x22), report(8)));
    }

    #[test]
    fn changed_keys_are_refused() {
        let [here, there] = OutOfBand::pair(WAIT).unwrap();
        let server = thread::spawn(move || {
            let mut talk = Talk::new(here, WAIT);
            let other = talk.keys(&keys(1)).unwrap();
            talk.again(&keys(1), &other).unwrap_err().to_string()
        });
        let mut talk = Talk::new(there, WAIT);
        talk.keys(&keys(5)).unwrap();
        talk.keys(&keys(6)).unwrap();
        let error = server.join().unwrap();
        assert!(error.contains("different keys than before"), "{error}");
    }

    #[test]
    fn garbage_and_silence_are_errors_in_time() {
        let garbage = [&b"GET / HTTP/1.1\r\nHost: a\r\n"[..], &[0xff; 400], b"6.06\0\0\0", b""];
        for bytes in garbage {
            let wait = Duration::from_millis(100);
            let [here, mut there] = OutOfBand::pair(wait).unwrap();
            there.send(bytes).unwrap();
            let mut talk = Talk::new(here, wait);
            let begun = talk.begin(Mtu::MTU1024).unwrap_err().to_string();
            assert!(begun.contains("perftest") || begun.contains("stalled"), "{begun}");
        }
    }
}
