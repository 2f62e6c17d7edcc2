//! An interface's settings for lossless traffic: PFC and packet priorities (`dcb(8)`), queried
//! through rtnetlink.

use std::io;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};
use serde::Serialize;

use super::facts::Fact;

// From linux/rtnetlink.h and linux/dcbnl.h.
const RTM_GETDCB: u16 = 78;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const DCB_CMD_IEEE_GET: u8 = 21;
const DCB_ATTR_IFNAME: u16 = 1;
const DCB_ATTR_IEEE: u16 = 13;
const DCB_ATTR_IEEE_PFC: u16 = 2;
const DCB_ATTR_IEEE_APP_TABLE: u16 = 3;
const IEEE_8021QAZ_APP_SEL_DSCP: u8 = 5;
/// The mask for the type of an attribute, without its flags.
const NLA_TYPE: u16 = 0x3fff;
/// The length of `struct nlmsghdr`.
const HEADER: usize = 16;
/// The length of `struct dcbmsg`.
const DCBMSG: usize = 4;

/// The priority settings of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Dcb {
    /// A bit mask of the priorities that PFC protects from loss, or `None` if the driver does not
    /// report it.
    pub(crate) pfc: Option<u8>,
    /// DSCP values, each with its priority. If there are any, the interface derives the priority of
    /// a packet from its DSCP.
    pub(crate) dscp: Vec<(u8, u8)>,
}

impl Dcb {
    /// Returns the priorities that PFC protects from loss.
    pub(crate) fn lossless(&self) -> Vec<u8> {
        let enabled = self.pfc.unwrap_or(0);
        (0..8).filter(|priority| enabled & (1 << priority) != 0).collect()
    }

    /// Returns the priority of packets with this DSCP. If the DSCP has no entry, its upper three
    /// bits are the priority.
    pub(crate) fn priority_of(&self, dscp: u8) -> u8 {
        let entry = self.dscp.iter().find(|(of, _)| *of == dscp);
        entry.map_or(dscp >> 3, |(_, priority)| *priority)
    }
}

/// Queries an interface's priority settings from the kernel.
pub(crate) fn query(interface: &str) -> Fact<Dcb> {
    let reason = match exchange(interface) {
        Ok(answer) => match parse(&answer) {
            Ok(dcb) => return Fact::Value(dcb),
            Err(reason) => reason,
        },
        Err(error) => format!("rtnetlink: {error}"),
    };
    Fact::Unknown(format!("{interface}: {reason}"))
}

fn exchange(interface: &str) -> io::Result<Vec<u8>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Protocol 0 is NETLINK_ROUTE.
    let kernel = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    let request = request(interface).ok_or(io::ErrorKind::InvalidInput)?;
    sendto(&kernel, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    // The kernel has queued its answer before `sendto` returns.
    let mut answer = vec![0; 32 << 10];
    let (length, _) = recv(&kernel, &mut answer[..], RecvFlags::empty())?;
    answer.truncate(length);
    Ok(answer)
}

/// Returns the request message, or `None` if the name cannot be that of an interface.
fn request(interface: &str) -> Option<Vec<u8>> {
    let mut name = [interface.as_bytes(), &[0]].concat();
    if name.len() > 16 {
        return None;
    }
    let attribute = u16::try_from(4 + name.len()).ok()?;
    name.resize(name.len().next_multiple_of(4), 0);
    let length = u32::try_from(HEADER + DCBMSG + 4 + name.len()).ok()?;
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend([RTM_GETDCB.to_ne_bytes(), NLM_F_REQUEST.to_ne_bytes()].as_flattened());
    bytes.extend([0; 8]); // the sequence number and the port
    bytes.extend([0, DCB_CMD_IEEE_GET, 0, 0]);
    bytes.extend([attribute.to_ne_bytes(), DCB_ATTR_IFNAME.to_ne_bytes()].as_flattened());
    bytes.extend(name);
    Some(bytes)
}

/// Parses the kernel's answer.
fn parse(answer: &[u8]) -> Result<Dcb, String> {
    let cut = || "the kernel's answer is cut off".to_owned();
    let (length, payload) = (number(answer, 0).ok_or_else(cut)?, answer.get(HEADER..));
    let payload = payload.ok_or_else(cut)?;
    if answer.get(4..6) == Some(&NLMSG_ERROR.to_ne_bytes()) {
        let errno = number(payload, 0).ok_or_else(cut)?.cast_signed();
        let error = io::Error::from_raw_os_error(errno.saturating_neg());
        return Err(format!("its driver or the kernel reports no DCB ({error})"));
    }
    if usize::try_from(length) != Ok(answer.len()) {
        return Err(cut());
    }
    let attributes = payload.get(DCBMSG..).ok_or_else(cut)?;
    let Some(ieee) = attribute(attributes, DCB_ATTR_IEEE) else {
        return Err("its driver has no IEEE mode of DCB".to_owned());
    };
    // `struct ieee_pfc` begins with `pfc_cap` and `pfc_en`.
    let pfc = attribute(ieee, DCB_ATTR_IEEE_PFC).and_then(|pfc| pfc.get(1)).copied();
    let table = attribute(ieee, DCB_ATTR_IEEE_APP_TABLE).unwrap_or(&[]);
    // `struct dcb_app` consists of selector, priority and protocol.
    let dscp = attributes_of(table).filter_map(|(_, entry)| match *entry {
        [IEEE_8021QAZ_APP_SEL_DSCP, priority, low, high] => {
            Some((u8::try_from(u16::from_ne_bytes([low, high])).ok()?, priority))
        }
        _ => None,
    });
    let mut dcb = Dcb { pfc, dscp: dscp.collect() };
    dcb.dscp.sort_unstable();
    Ok(dcb)
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn attribute(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes_of(attributes).find(|(of, _)| *of == kind).map(|(_, value)| value)
}

/// Returns the type and the value of each attribute. Stops at the first truncated one.
fn attributes_of(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let &[a, b, c, d] = rest.first_chunk()?;
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((u16::from_ne_bytes([c, d]) & NLA_TYPE, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = u16::try_from(4 + value.len()).unwrap().to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn message(kind: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = u32::try_from(HEADER + payload.len()).unwrap().to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(HEADER, 0);
        [bytes.as_slice(), payload].concat()
    }

    fn answer() -> Vec<u8> {
        let pfc = [&[8, 0b1000, 0, 0], [0; 132].as_slice()].concat();
        let app = |priority, dscp: u16| {
            let [low, high] = dscp.to_ne_bytes();
            nested(1, &[IEEE_8021QAZ_APP_SEL_DSCP, priority, low, high])
        };
        let table = [nested(1, &[1, 3, 6, 0x89]), app(3, 26), app(6, 48)].concat();
        let ieee = [nested(2, &pfc), nested(3, &table)].concat();
        let attributes = [nested(1, b"eth0\0"), nested(DCB_ATTR_IEEE | 0x8000, &ieee)].concat();
        message(RTM_GETDCB, &[&[0, DCB_CMD_IEEE_GET, 0, 0], attributes.as_slice()].concat())
    }

    #[test]
    fn pfc_and_the_priorities_of_dscp_are_read() {
        let dcb = parse(&answer()).unwrap();
        assert_eq!(dcb, Dcb { pfc: Some(0b1000), dscp: vec![(26, 3), (48, 6)] });
        assert_eq!(dcb.lossless(), [3]);
        assert_eq!([26, 48, 24, 0].map(|dscp| dcb.priority_of(dscp)), [3, 6, 3, 0]);
    }

    #[test]
    fn an_error_names_its_cause() {
        let error = parse(&message(NLMSG_ERROR, &[(-95_i32).to_ne_bytes(), [0; 4]].concat()));
        assert!(error.unwrap_err().contains("not supported"));
    }

    #[test]
    fn damaged_answers_are_read_without_a_panic() {
        let whole = answer();
        for length in 0..whole.len() {
            let _ = parse(&whole[..length]);
            for byte in [0, 1, 0x7f, 0xff] {
                let mut damaged = whole.clone();
                damaged[length] = byte;
                let _ = parse(&damaged);
            }
        }
    }

    #[test]
    fn the_loopback_interface_has_no_dcb() {
        let Fact::Unknown(reason) = query("lo") else { panic!("lo has DCB") };
        assert!(reason.starts_with("lo: "), "{reason}");
        assert!(matches!(query("a name of more than 15"), Fact::Unknown(_)));
    }
}
