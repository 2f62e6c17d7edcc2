//! The serialised forms, which other versions of this crate must read.

#![cfg(feature = "serde")]
#![allow(clippy::unwrap_used)] // the helpers below are tests as well

use std::fmt::{self, Debug, Display};

use rdma_types::{
    AccessFlags, AckTimeout, Gid, GidType, Guid, Lid, LinkLayer, Lkey, MaxAckRetries,
    MaxRnrRetries, MinRnrTimer, Mtu, Pkey, PortState, Psn, QpState, QpType, Qpn, Rkey, WcOpcode,
    WcStatus,
};
use serde::Serialize;
use serde::de::value::{Error, StrDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer};

/// Checks that `value` serialises to these bytes in `postcard`, and that they deserialise to it.
#[track_caller]
fn golden<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: T, bytes: &[u8]) {
    assert_eq!(postcard::to_stdvec(&value).unwrap(), bytes);
    assert_eq!(postcard::from_bytes::<T>(bytes).unwrap(), value);
}

/// Checks that `T` refuses a number that is too great for it.
#[track_caller]
fn refused<T: DeserializeOwned + Debug>(number: u32) {
    let bytes = postcard::to_stdvec(&number).unwrap();
    postcard::from_bytes::<T>(&bytes).unwrap_err();
    let error = T::deserialize(IntoDeserializer::<Error>::into_deserializer(number)).unwrap_err();
    assert!(error.to_string().contains("out of range"), "{error}");
}

/// A value in the text form of human-readable formats. A formatter is the smallest of these.
struct Text<T>(T);

impl<T: Serialize> Display for Text<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.serialize(f)
    }
}

fn from_text<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    T::deserialize(StrDeserializer::new(text))
}

#[test]
fn numbers_are_bare_integers() {
    golden(Lkey::new(300), &[0xac, 0x02]);
    golden(Rkey::new(u32::MAX), &[0xff, 0xff, 0xff, 0xff, 0x0f]);
    golden(Qpn::MAX, &[0xff, 0xff, 0xff, 0x07]);
    golden(Psn::masked(1), &[1]);
    golden(Lid::new(7), &[7]);
    golden(Pkey::new(7), &[7]);
    assert_eq!(Text(Rkey::new(300)).to_string(), "300");
}

#[test]
fn codes_are_bare_integers() {
    golden(Mtu::MTU4096, &[5]);
    golden(AckTimeout::unlimited(), &[0]);
    golden(MinRnrTimer::limited(31).unwrap(), &[31]);
    golden(MaxAckRetries::limited(7).unwrap(), &[7]);
    golden(MaxRnrRetries::unlimited(), &[7]);
}

#[test]
fn open_enums_are_bare_integers_even_unknown_ones() {
    golden(WcStatus::RETRY_EXC_ERR, &[12]);
    golden(WcStatus::from_raw(100), &[100]);
    golden(WcOpcode::RECV, &[0x80, 0x01]);
    golden(GidType::ROCE_V2, &[2]);
    golden(LinkLayer::ETHERNET, &[2]);
    golden(PortState::ACTIVE, &[4]);
    golden(QpState::from_raw(77), &[77]);
    golden(QpType::UD, &[4]);
}

#[test]
fn illegal_codes_are_refused() {
    refused::<Qpn>(1 << 24);
    refused::<Psn>(u32::MAX);
    for mtu in [0, 6] {
        refused::<Mtu>(mtu);
    }
    refused::<AckTimeout>(32);
    refused::<MinRnrTimer>(32);
    refused::<MaxAckRetries>(8);
    refused::<MaxRnrRetries>(8);
}

#[test]
fn gid_and_guid_are_bytes_or_text() {
    let gid: Gid = "::ffff:192.0.2.1".parse().unwrap();
    golden(gid, gid.as_bytes());
    assert_eq!(Text(gid).to_string(), "::ffff:192.0.2.1");
    assert_eq!(from_text("::ffff:192.0.2.1"), Ok(gid));
    assert!(from_text::<Gid>("192.0.2.1").is_err());

    let guid = Guid::from_u64(0x0011_2233_4455_6677);
    golden(guid, guid.as_bytes());
    assert_eq!(Text(guid).to_string(), "0011:2233:4455:6677");
    assert_eq!(from_text("0011:2233:4455:6677"), Ok(guid));
    assert!(from_text::<Guid>("0011").is_err());
}

#[test]
fn access_flags_are_bits_or_names() {
    let access = AccessFlags::new().with_local_write().with_remote_read();
    golden(access, &[5]);
    golden(AccessFlags::from_bits_retain(1 << 25), &[0x80, 0x80, 0x80, 0x10]);
    assert_eq!(Text(access).to_string(), "LOCAL_WRITE | REMOTE_READ");
    assert_eq!(from_text("LOCAL_WRITE | REMOTE_READ"), Ok(access));
    assert!(from_text::<AccessFlags>("LOCAL_WRITE | EVERYTHING").is_err());
}

#[test]
fn truncated_bytes_are_refused() {
    assert!(postcard::from_bytes::<Gid>(&[0; 15]).is_err());
    assert!(postcard::from_bytes::<Guid>(&[0; 7]).is_err());
}
