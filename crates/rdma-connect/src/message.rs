//! The encoding of the messages of the rendezvous.
//!
//! A message consists of this preface, an endpoint for some kinds, and as many bytes as the preface specifies. Numbers
//! are in network byte order.
//!
//! | at | bytes | content |
//! |---|---|---|
//! | 0 | 4 | `RDRV` |
//! | 4 | 2 | version, 2 |
//! | 6 | 2 | kind |
//! | 8 | 2 | number of bytes in the last part, at most 1,024 |
//! | 10 | 344 | for HELLO and ENDPOINT: [`QueuePairEndpoint::to_bytes`] |
//! | 10 or 354 | | for HELLO and ACCEPT, the user bytes; for REJECT and BUSY, the reason in UTF-8; for DEVICE, the name of a device; otherwise none |
//!
//! | | kind | from | when |
//! |---|---|---|---|
//! | 1 | HELLO | client | first |
//! | 2 | ENDPOINT | server | its queue pair is connected |
//! | 3 | READY | client | the client's queue pair is connected, too |
//! | 4 | ACCEPT | server | the program has accepted the client; last message |
//! | 5 | REJECT | server | at any time, instead of ENDPOINT or ACCEPT; last message |
//! | 6 | BUSY | server | instead of REJECT, if a later attempt may succeed |
//! | 7 | DEVICE | client | after a REJECT whose reason begins with [`UNFIT`]; optional |
//!
//! An end that watches the stream adds 256 to the kind of its HELLO or ACCEPT. In that case both ends keep the stream
//! until the channel ends; otherwise, both close it after ACCEPT. An end can also add 512 to send and receive further
//! data on the stream, which works only if the other end adds it, too.
//!
//! If two queue pairs cannot be connected, each end names its device: the server in the reason, and the client with
//! DEVICE. The server waits for DEVICE until the client closes the stream. A client of an earlier version does not send
//! it.
//!
//! The client sends nothing before its turn, so any early bytes are a mistake. REJECT and BUSY are the same in all
//! versions, so that a client of any version gets the reason.

use rdma_qp::{EndpointError, QueuePairEndpoint};

/// The maximum length of user bytes, and of a reason.
pub(crate) const MOST: usize = 1024;
/// The length of the longest message.
pub(crate) const LONGEST: usize = PREFACE + QueuePairEndpoint::BYTES + MOST;
/// The version of the messages.
pub(crate) const VERSION: u16 = 2;
/// The prefix of the reason from a server whose queue pair cannot be connected to the client's.
pub(crate) const UNFIT: &str = "the server's queue pair cannot connect to the client's: ";
/// The prefix of the name of the server's device, which follows [`UNFIT`]. The name comes before the actual reason,
/// because a long reason is truncated.
pub(crate) const SERVER_DEVICE: &str = "the server's device is ";
/// The prefix of the name of the client's device, which each end appends to the reason.
pub(crate) const CLIENT_DEVICE: &str = "; the client's device is ";
/// The maximum length of a device name in bytes, as in the kernel (`IB_DEVICE_NAME_MAX`).
const LONGEST_NAME: usize = 64;

const MAGIC: [u8; 4] = *b"RDRV";
/// The length of the preface of each message, in bytes.
pub(crate) const PREFACE: usize = 10;

const HELLO: u16 = 1;
const ENDPOINT: u16 = 2;
const READY: u16 = 3;
const ACCEPT: u16 = 4;
const REJECT: u16 = 5;
const BUSY: u16 = 6;
const DEVICE: u16 = 7;

/// A flag in the kind of HELLO and ACCEPT: the sender watches the stream.
const WATCHES: u16 = 0x100;
/// A flag in the kind of HELLO and ACCEPT: the sender sends and receives further data on the stream.
const TALKS: u16 = 0x200;

/// A complete message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Hello(Box<QueuePairEndpoint>, Greeting),
    Endpoint(Box<QueuePairEndpoint>),
    Ready,
    Accept(Greeting),
    Reject(Box<str>),
    /// The server cannot accept the client now, but may later.
    Busy(Box<str>),
    /// The name of the client's device.
    Device(Box<str>),
}

/// The data that an end sends to the other end's program during the rendezvous.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Greeting {
    /// The program's own bytes, at most 1,024.
    pub user_bytes: Box<[u8]>,
    /// Whether the end watches the stream, which also makes the other end keep it.
    pub watches: bool,
    /// Whether the end sends and receives more data on the stream once the queue pairs are connected.
    pub talks: bool,
}

/// The result of parsing the bytes received so far.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    Whole(Message),
    /// The beginning of a message, with the minimum number of missing bytes. Even more may be missing.
    Lacks(usize),
}

/// The reason why bytes are not the expected message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Wrong {
    #[error("it began with \"{}\"", .0.escape_ascii())]
    Foreign(Vec<u8>),
    #[error("it has version {0}")]
    Version(u16),
    #[error("an unexpected message of kind {0} arrived")]
    Kind(u16),
    #[error("a message of kind {kind} announced {length} bytes, but at most {most} are allowed")]
    Length { kind: u16, length: usize, most: usize },
    #[error("a message had {0} bytes more than it announced")]
    Behind(usize),
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
}

/// The number of bytes of a foreign protocol shown in an error message.
const SHOWN: usize = 32;

impl Message {
    /// Encodes the message. Truncates a reason or a device name that is too long. User bytes are never too long.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let (endpoint, rest): (_, &[u8]) = match self {
            Self::Hello(endpoint, greeting) => (Some(endpoint), &greeting.user_bytes),
            Self::Endpoint(endpoint) => (Some(endpoint), &[]),
            Self::Ready => (None, &[]),
            Self::Accept(greeting) => (None, &greeting.user_bytes),
            Self::Reject(why) | Self::Busy(why) => (None, cut(why, MOST).as_bytes()),
            Self::Device(name) => (None, cut(name, LONGEST_NAME).as_bytes()),
        };
        let rest = rest.get(..MOST).unwrap_or(rest);
        let mut bytes = Vec::with_capacity(PREFACE + QueuePairEndpoint::BYTES + rest.len());
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_be_bytes());
        bytes.extend((self.kind() | self.flags()).to_be_bytes());
        bytes.extend(u16::try_from(rest.len()).unwrap_or(0).to_be_bytes());
        bytes.extend(endpoint.iter().flat_map(|endpoint| endpoint.to_bytes()));
        bytes.extend(rest);
        bytes
    }

    /// Returns the number of this message's kind.
    pub(crate) const fn kind(&self) -> u16 {
        match self {
            Self::Hello(..) => HELLO,
            Self::Endpoint(_) => ENDPOINT,
            Self::Ready => READY,
            Self::Accept(_) => ACCEPT,
            Self::Reject(_) => REJECT,
            Self::Busy(_) => BUSY,
            Self::Device(_) => DEVICE,
        }
    }

    const fn flags(&self) -> u16 {
        match self {
            Self::Hello(_, greeting) | Self::Accept(greeting) => {
                (if greeting.watches { WATCHES } else { 0 })
                    | (if greeting.talks { TALKS } else { 0 })
            }
            _ => 0,
        }
    }
}

/// Returns the beginning of a text, at most `most` bytes long.
fn cut(why: &str, most: usize) -> &str {
    let end = (0..=most.min(why.len())).rev().find(|&end| why.is_char_boundary(end));
    why.get(..end.unwrap_or(0)).unwrap_or_default()
}

/// Parses the bytes received so far. Fails as soon as no message can start with them.
pub(crate) fn parse(bytes: &[u8]) -> Result<Parsed, Wrong> {
    let magic = bytes.get(..MAGIC.len()).unwrap_or(bytes);
    if !MAGIC.starts_with(magic) {
        return Err(Wrong::Foreign(bytes.get(..SHOWN).unwrap_or(bytes).to_vec()));
    }
    let (Some(version), Some(kind)) = (number(bytes, 4), number(bytes, 6)) else {
        return Ok(Parsed::Lacks(PREFACE - bytes.len()));
    };
    if version != VERSION && !matches!(kind, REJECT | BUSY) {
        return Err(Wrong::Version(version));
    }
    let (plain, flags) = (kind & !(WATCHES | TALKS), kind & (WATCHES | TALKS));
    let kind = if matches!(plain, HELLO | ACCEPT) { plain } else { kind };
    let (begin, most) = match kind {
        HELLO => (PREFACE + QueuePairEndpoint::BYTES, MOST),
        ENDPOINT => (PREFACE + QueuePairEndpoint::BYTES, 0),
        READY => (PREFACE, 0),
        ACCEPT | REJECT | BUSY => (PREFACE, MOST),
        DEVICE => (PREFACE, LONGEST_NAME),
        _ => return Err(Wrong::Kind(kind)),
    };
    let Some(length) = number(bytes, 8).map(usize::from) else {
        return Ok(Parsed::Lacks(PREFACE - bytes.len()));
    };
    if length > most {
        return Err(Wrong::Length { kind, length, most });
    }
    let whole = begin + length;
    if bytes.len() > whole {
        return Err(Wrong::Behind(bytes.len() - whole));
    }
    if bytes.len() < whole {
        return Ok(Parsed::Lacks(whole - bytes.len()));
    }
    let endpoint = || {
        let bytes = bytes.get(PREFACE..begin).unwrap_or_default();
        QueuePairEndpoint::from_bytes(bytes).map(Box::new)
    };
    let rest = bytes.get(begin..).unwrap_or_default();
    let greeting = || Greeting {
        user_bytes: rest.into(),
        watches: flags & WATCHES != 0,
        talks: flags & TALKS != 0,
    };
    Ok(Parsed::Whole(match kind {
        HELLO => Message::Hello(endpoint()?, greeting()),
        ENDPOINT => Message::Endpoint(endpoint()?),
        READY => Message::Ready,
        ACCEPT => Message::Accept(greeting()),
        BUSY => Message::Busy(printable(rest)),
        DEVICE => Message::Device(device_name(rest)),
        _ => Message::Reject(printable(rest)),
    }))
}

fn number(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Returns the name of a device, with `?` for each invalid byte.
fn device_name(name: &[u8]) -> Box<str> {
    name.iter().map(|&byte| if byte.is_ascii_graphic() { char::from(byte) } else { '?' }).collect()
}

/// Returns a reason as text that is safe to print on a terminal, without control characters.
fn printable(reason: &[u8]) -> Box<str> {
    let text = String::from_utf8_lossy(reason);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;
    use rdma_types::{GidType, Psn, Qpn};

    use super::*;

    fn endpoint() -> Box<QueuePairEndpoint> {
        let gid = "::ffff:192.0.2.1".parse().unwrap();
        let endpoint = QueuePairEndpoint::new(Qpn::masked(0x102), Psn::masked(7));
        Box::new(endpoint.with_gid(gid, GidType::ROCE_V2))
    }

    fn greeting(user_bytes: &[u8], watches: bool) -> Greeting {
        Greeting { user_bytes: user_bytes.into(), watches, talks: false }
    }

    fn messages() -> Vec<Message> {
        vec![
            Message::Hello(endpoint(), greeting(b"hi", false)),
            Message::Hello(endpoint(), greeting(&[7; MOST], true)),
            Message::Endpoint(endpoint()),
            Message::Ready,
            Message::Accept(Greeting::default()),
            Message::Accept(greeting(&[9; MOST], true)),
            Message::Accept(Greeting { talks: true, ..greeting(b"", true) }),
            Message::Accept(Greeting { talks: true, ..greeting(b"", false) }),
            Message::Reject("no".into()),
            Message::Busy("no room".into()),
            Message::Device("mlx5_0".into()),
        ]
    }

    /// This format is the same in every release.
    #[test]
    fn the_format_of_version_2() {
        assert_eq!(Message::Ready.to_bytes(), b"RDRV\0\x02\0\x03\0\0");
        let reject = Message::Reject("no".into()).to_bytes();
        assert_eq!(reject, b"RDRV\0\x02\0\x05\0\x02no");
        let device = Message::Device("soft0".into()).to_bytes();
        assert_eq!(device, b"RDRV\0\x02\0\x07\0\x05soft0");
        let accept = |watches| Message::Accept(greeting(b"yes", watches)).to_bytes();
        assert_eq!(accept(false), b"RDRV\0\x02\0\x04\0\x03yes");
        assert_eq!(accept(true), b"RDRV\0\x02\x01\x04\0\x03yes");
        let talks = Message::Accept(Greeting { talks: true, ..greeting(b"yes", true) }).to_bytes();
        assert_eq!(talks, b"RDRV\0\x02\x03\x04\0\x03yes");
        let bytes = endpoint().to_bytes();
        let hello = |watches| Message::Hello(endpoint(), greeting(b"hi", watches)).to_bytes();
        assert_eq!(hello(false), [b"RDRV\0\x02\0\x01\0\x02", bytes.as_slice(), b"hi"].concat());
        assert_eq!(hello(true), [b"RDRV\0\x02\x01\x01\0\x02", bytes.as_slice(), b"hi"].concat());
        let answer = Message::Endpoint(endpoint()).to_bytes();
        assert_eq!(answer, [b"RDRV\0\x02\0\x02\0\0", bytes.as_slice()].concat());
    }

    #[test]
    fn each_message_comes_back_and_each_part_of_it_lacks_the_rest() {
        for message in messages() {
            let bytes = message.to_bytes();
            assert!(bytes.len() <= LONGEST);
            for part in 0..bytes.len() {
                let Ok(Parsed::Lacks(lacks)) = parse(&bytes[..part]) else {
                    panic!("{part} bytes of {message:?}");
                };
                assert!((1..=bytes.len() - part).contains(&lacks), "{part}: {lacks}");
            }
            assert_eq!(parse(&[bytes.as_slice(), b"?"].concat()), Err(Wrong::Behind(1)));
            assert_eq!(parse(&bytes), Ok(Parsed::Whole(message)));
        }
    }

    #[test]
    fn the_error_names_the_mistake() {
        let parsed = |bytes: &[u8]| parse(bytes).unwrap_err();
        assert_eq!(parsed(b"GET / "), Wrong::Foreign(b"GET / ".into()));
        assert_eq!(parsed(&[b'x'; 100]), Wrong::Foreign(vec![b'x'; 32]));
        assert_eq!(parsed(b"RDRV\0\x03\0\x01"), Wrong::Version(3));
        assert_eq!(parsed(b"RDRV\0\x02\0\x08"), Wrong::Kind(8));
        assert_eq!(parsed(b"RDRV\0\x02\x01\x03"), Wrong::Kind(0x103));
        assert_eq!(parsed(b"RDRV\0\x02\x02\x03"), Wrong::Kind(0x203));
        assert_eq!(parsed(b"RDRV\0\x02\x04\x01"), Wrong::Kind(0x401));
        let length = |kind, length, most| Wrong::Length { kind, length, most };
        assert_eq!(parsed(b"RDRV\0\x02\0\x01\x04\x01"), length(HELLO, 1025, 1024));
        assert_eq!(parsed(b"RDRV\0\x02\0\x03\0\x01"), length(READY, 1, 0));
        assert_eq!(parsed(b"RDRV\0\x02\0\x07\0\x41"), length(DEVICE, 65, 64));
        let mut hello = Message::Hello(endpoint(), Greeting::default()).to_bytes();
        hello[PREFACE + 4] = 9;
        assert_eq!(parsed(&hello), Wrong::Endpoint(EndpointError::Version { found: 9 }));
    }

    #[test]
    fn a_rejection_of_another_version_is_understood() {
        let reject = Parsed::Whole(Message::Reject("old".into()));
        assert_eq!(parse(b"RDRV\0\x07\0\x05\0\x03old"), Ok(reject));
    }

    #[test]
    fn a_long_reason_is_cut_between_characters_and_an_odd_one_made_printable() {
        let bytes = Message::Reject("ä".repeat(600).into()).to_bytes();
        assert_eq!(parse(&bytes), Ok(Parsed::Whole(Message::Reject("ä".repeat(512).into()))));
        let bytes = Message::Reject(format!("x{}", "ä".repeat(600)).into()).to_bytes();
        assert_eq!(bytes.len(), PREFACE + 1023);
        let reject = Parsed::Whole(Message::Reject(" [1m\u{fffd}".into()));
        assert_eq!(parse(b"RDRV\0\x02\0\x05\0\x05\x1b[1m\xff"), Ok(reject));
        let device = Message::Device("d".repeat(65).into()).to_bytes();
        assert_eq!(device.len(), PREFACE + 64);
        let device = Parsed::Whole(Message::Device("so?ft?".into()));
        assert_eq!(parse(b"RDRV\0\x02\0\x07\0\x06so\nft\xff"), Ok(device));
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            rng_seed: RngSeed::Fixed(7),
            ..ProptestConfig::default()
        })]

        /// For random bytes, and for messages with some changed bytes, the parser never panics. It never reports more
        /// missing bytes than a message has.
        #[test]
        #[cfg_attr(miri, ignore = "many cases")]
        fn arbitrary_bytes_are_refused_or_bounded(
            which in 0..11_usize,
            length in 0..=LONGEST + 1,
            changes in prop::collection::vec((0..LONGEST, any::<u8>()), 0..4),
            chance in prop::option::of(prop::collection::vec(any::<u8>(), 0..64)),
        ) {
            let mut bytes = chance.unwrap_or_else(|| messages()[which].to_bytes());
            bytes.truncate(length);
            for (at, byte) in changes {
                if let Some(place) = bytes.get_mut(at) {
                    *place = byte;
                }
            }
            if let Ok(Parsed::Lacks(lacks)) = parse(&bytes) {
                prop_assert!(lacks > 0 && bytes.len() + lacks <= LONGEST);
            }
        }
    }
}
