//! What programs of perftest tell each other by TCP, before, between and after the data.
//!
//! Each of these is an exchange: who has connected tells first, and who listens answers. A program of C reads each by
//! one call, and so each is sent by one call.

use std::time::Duration;

use rdma::device::Mtu;

use super::NotPerftest;
use super::keys::Keys;
use rdma_examples_common::Failure;
use rdma_examples_common::out_of_band::{OutOfBand, OutOfBandError};

/// The version of perftest whose exchange this is.
const OWN_VERSION: &[u8] = b"6.06";
/// The first and the last version that have the same exchange. Later ones leave out its last word.
const VERSIONS: [(u32, u32); 2] = [(5, 96), (6, 10)];
/// The length of a page, and of a line of the cache.
const OWN_CYCLE: [u32; 2] = [4096, 64];
/// With the NULs behind it.
const VERSION_BYTES: usize = 16;
/// What both say at the end.
const DONE: &[u8; 5] = b"done\0";

/// The memory within which small messages go around, and the steps in which they do, in bytes. Both ends take the
/// larger ones of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cycle {
    /// How much memory.
    pub buffer: usize,
    /// How far apart messages begin at least.
    pub line: usize,
}

impl Cycle {
    /// A page, and a line of the cache: as a program of C on this processor has it.
    pub const OWN: Self = Self { buffer: OWN_CYCLE[0] as usize, line: OWN_CYCLE[1] as usize };
    /// No page is longer.
    const LONGEST: usize = 1 << 24;

    fn of(buffer: [u8; 4], line: [u8; 4]) -> Result<Self, NotPerftest> {
        let number = |bytes| {
            let number = usize::try_from(i32::from_be_bytes(bytes)).ok();
            let number = number.filter(|number| (1..=Self::LONGEST).contains(number));
            number.ok_or_else(|| NotPerftest::new("length of a page or a cache line", &bytes))
        };
        Ok(Self { buffer: number(buffer)?, line: number(line)? })
    }

    /// The larger ones of both.
    fn with(self, other: Self) -> Self {
        Self { buffer: self.buffer.max(other.buffer), line: self.line.max(other.line) }
    }
}

/// What a test of bandwidth has found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// How long each message was, in bytes.
    pub size: u64,
    /// How many there were.
    pub iterations: u64,
    /// The best of all whiles, in MiB a second.
    pub peak: f64,
    /// On average, in MiB a second.
    pub average: f64,
    /// Millions of messages a second, on average.
    pub rate: f64,
}

/// A connection to a program of perftest.
#[derive(Debug)]
pub struct Talk {
    way: OutOfBand,
    wait: Duration,
}

impl Talk {
    /// Whatever the peer has to say, it has so long for it.
    #[must_use]
    pub const fn new(way: OutOfBand, wait: Duration) -> Self {
        Self { way, wait }
    }

    /// Whether the peer has connected, and is the client.
    #[must_use]
    pub const fn is_server(&self) -> bool {
        self.way.listens()
    }

    fn swap<const N: usize>(&mut self, own: &[u8; N]) -> Result<[u8; N], OutOfBandError> {
        self.way.extend(self.wait);
        if self.is_server() {
            let other = self.way.receive()?;
            self.way.send(own)?;
            Ok(other)
        } else {
            self.way.send(own)?;
            self.way.receive()
        }
    }

    /// What comes first: the versions, the cycle that both take, and the MTU that both have.
    ///
    /// # Errors
    /// If the peer is another program, another version, or stalls.
    pub fn begin(&mut self, mtu: Mtu) -> Result<(Cycle, Mtu), Failure> {
        let mut own = [0; VERSION_BYTES];
        own.iter_mut().zip(OWN_VERSION).for_each(|(to, from)| *to = *from);
        check_version(&self.swap(&own)?)?;
        let [buffer, line] = OWN_CYCLE.map(u32::to_be_bytes);
        let other = Cycle::of(self.swap(&buffer)?, self.swap(&line)?)?;
        let theirs = mtu_of(self.swap(&digit(mtu))?)?;
        Ok((Cycle::OWN.with(other), mtu.min(theirs)))
    }

    /// Tells the peer the keys, and returns its own. Also where both only want to be at the same place.
    ///
    /// # Errors
    /// If the peer tells something else, or stalls.
    pub fn keys(&mut self, own: &Keys) -> Result<Keys, Failure> {
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

    /// The same again: whose keys have changed is no program of perftest.
    ///
    /// # Errors
    /// Those of [`keys`](Self::keys), and if the peer tells others than before.
    pub fn again(&mut self, own: &Keys, before: &Keys) -> Result<(), Failure> {
        let now = self.keys(own)?;
        if now != *before {
            return Err(format!(
                "the peer tells other keys than before (QPN {} then, {} now): is it the same program of perftest?",
                before.qpn, now.qpn
            )
            .into());
        }
        Ok(())
    }

    /// Tells the peer the report, and returns its own. That of who was only written to or read from is empty, and
    /// not looked at by the other one.
    ///
    /// # Errors
    /// If the peer stalls.
    pub fn report(&mut self, own: &Report) -> Result<Report, Failure> {
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

    /// Says that this end is done, and waits until the peer is.
    ///
    /// # Errors
    /// If the peer says something else, or stalls.
    pub fn close(mut self, own: &Keys, before: &Keys) -> Result<(), Failure> {
        self.again(own, before)?;
        self.way.send(DONE)?;
        self.way.extend(self.wait);
        let end: [u8; DONE.len()] = self.way.receive()?;
        if end != *DONE {
            return Err(NotPerftest::new("end", &end).into());
        }
        self.finish()
    }

    /// Waits until the peer has ended: until then it may need an answer of this end's device.
    ///
    /// # Errors
    /// If it says more, or does not end.
    pub fn finish(self) -> Result<(), Failure> {
        Ok(self.way.finish(self.wait)?)
    }
}

fn check_version(bytes: &[u8; VERSION_BYTES]) -> Result<(), Failure> {
    let wrong = || NotPerftest::new("version", bytes);
    let mut parts = bytes.splitn(2, |&byte| byte == 0);
    let text = parts.next().and_then(|text| std::str::from_utf8(text).ok()).ok_or_else(wrong)?;
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| digits)
    };
    let (major, minor) = text.split_once('.').ok_or_else(wrong)?;
    // It is a decimal fraction: 6.1 is 6.10.
    let minor = if minor.len() == 1 { format!("{minor}0") } else { minor.to_owned() };
    let version: (u32, u32) = (number(major).ok_or_else(wrong)?, number(&minor).ok_or_else(wrong)?);
    let [(a, b), (c, d)] = VERSIONS;
    if version < (a, b) || version > (c, d) {
        return Err(format!(
            "the peer is perftest {text}, whose exchange may be another: take one from {a}.{b:02} to {c}.{d:02}, such as \
             that of Debian 12"
        )
        .into());
    }
    Ok(())
}

/// The number of an MTU in the verbs, as text.
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
    found.map(|(mtu, _)| *mtu).ok_or_else(|| NotPerftest::new("MTU", &bytes))
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
    fn versions_with_the_same_exchange_are_taken() {
        for good in ["6.06", "5.96", "6.10", "6.1"] {
            assert_eq!(version(good), Ok(()), "{good}");
        }
        for other in ["5.95", "6.11", "6.2", "7.00", "0.0", "06.99"] {
            let error = version(other).unwrap_err();
            assert!(error.contains("from 5.96 to 6.10"), "{error}");
        }
        for garbage in ["", ".", "6", "6.", ".5", "6.0x", "6.-1", "+6.06", "6.06.1", "abcdefgh"] {
            let error = version(garbage).unwrap_err();
            assert!(error.contains("no version of perftest"), "{garbage}: {error}");
        }
        let error = check_version(&[0xff; VERSION_BYTES]).unwrap_err().to_string();
        assert!(error.contains("\\xff"), "{error}");
    }

    #[test]
    fn mtus_are_numbers_of_verbs() {
        for (mtu, told) in MTUS {
            assert_eq!((digit(mtu), mtu_of([told, 0])), ([told, 0], Ok(mtu)));
        }
        for garbage in [*b"0\0", *b"6\0", *b"33", [0; 2], [0xff; 2]] {
            mtu_of(garbage).unwrap_err();
        }
    }

    #[test]
    fn lengths_that_no_machine_has_are_refused() {
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
    fn ends_that_speak_it_understand_each_other() {
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
    fn who_has_other_keys_later_is_refused() {
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
        assert!(error.contains("other keys than before"), "{error}");
    }

    #[test]
    fn garbage_and_silence_are_errors_in_time() {
        let garbage = [&b"GET / HTTP/1.1\r\nHost: a\r\n"[..], &[0xff; 400], b"6.06\0\0\0", b""];
        for bytes in garbage {
            let [here, mut there] = OutOfBand::pair(WAIT).unwrap();
            there.send(bytes).unwrap();
            let mut talk = Talk::new(here, Duration::from_millis(100));
            let begun = talk.begin(Mtu::MTU1024).unwrap_err().to_string();
            assert!(begun.contains("perftest") || begun.contains("stalled"), "{begun}");
        }
    }
}
