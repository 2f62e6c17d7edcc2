//! The networks of a machine's interfaces. They are read from files in `/proc`, which may be copies
//! from another machine. `getifaddrs(3)` would not do, because it covers only the machine on which
//! it runs.

use std::net::Ipv4Addr;

use rdma::device::Gid;

use super::root::Root;

/// The networks of interfaces. Each entry consists of the interface's name, an address in the
/// network as a GID, and the prefix length in bits.
#[derive(Debug, Default)]
pub(crate) struct Networks(Vec<(String, Gid, u8)>);

impl Networks {
    pub(crate) fn read(root: &Root) -> Self {
        let routes = root.text("proc/net/route");
        let addresses = root.text("proc/net/if_inet6");
        let lines = |text: &str, read: fn(&str) -> Option<(String, Gid, u8)>| {
            text.lines().filter_map(read).collect::<Vec<_>>()
        };
        let mut networks = lines(routes.value().map_or("", String::as_str), ipv4);
        networks.extend(lines(addresses.value().map_or("", String::as_str), ipv6));
        Self(networks)
    }

    /// Returns the prefix length of this interface's network that contains the GID. If there are
    /// several, returns the longest one.
    pub(crate) fn prefix_length(&self, gid: Gid, interface: Option<&str>) -> Option<u8> {
        let shares = |network: &Gid, length: u8| {
            let bits = |gid: &Gid| u128::from_be_bytes(gid.to_bytes());
            (bits(network) ^ bits(&gid)).leading_zeros() >= u32::from(length)
        };
        let of_it = self.0.iter().filter(|(name, network, length)| {
            Some(name.as_str()) == interface && shares(network, *length)
        });
        of_it.map(|(_, _, length)| *length).max()
    }
}

/// Parses a line of `/proc/net/route`: interface, destination, gateway, flags, three numbers, mask.
/// The addresses have the byte order of a little-endian machine. A network belongs to the interface
/// itself only if the line has no gateway.
fn ipv4(line: &str) -> Option<(String, Gid, u8)> {
    let words: Vec<_> = line.split_whitespace().collect();
    let &[name, destination, gateway, _, _, _, _, mask, ..] = words.as_slice() else { return None };
    let number = |text: &str| u32::from_str_radix(text, 16).ok().map(u32::swap_bytes);
    let (network, mask) = (number(destination)?, number(mask)?);
    if number(gateway)? != 0 || mask == 0 || mask.leading_ones() != mask.count_ones() {
        return None;
    }
    let length = u8::try_from(mask.leading_ones()).ok()?;
    Some((name.to_owned(), Gid::from_ipv4(Ipv4Addr::from_bits(network)), 96 + length))
}

/// Parses a line of `/proc/net/if_inet6`: address, index, prefix length, scope, flags, interface.
fn ipv6(line: &str) -> Option<(String, Gid, u8)> {
    let words: Vec<_> = line.split_whitespace().collect();
    let &[address, _, length, _, _, name] = words.as_slice() else { return None };
    let address = u128::from_str_radix(address, 16).ok()?;
    let length = u8::from_str_radix(length, 16).ok().filter(|length| (1..=128).contains(length))?;
    Some((name.to_owned(), Gid::from_bytes(address.to_be_bytes()), length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_networks() {
        let line = "eth0\t0000000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0";
        let (name, network, length) = ipv4(line).unwrap();
        assert_eq!(
            (name.as_str(), network.to_string(), length),
            ("eth0", "::ffff:10.0.0.0".into(), 120)
        );
        let (name, address, length) =
            ipv6("fd000000000000000000000000000002 04 40 00 82 eth0").unwrap();
        assert_eq!((name.as_str(), address.to_string(), length), ("eth0", "fd00::2".into(), 64));
        for line in
            ["", "Iface Destination Gateway Flags RefCnt Use Metric Mask", "a 0 0 0 0 0 0 00FF00FF"]
        {
            assert_eq!((ipv4(line), ipv6(line)), (None, None), "{line}");
        }
        assert_eq!(ipv4("eth0 00000000 0100000A 3 0 0 0 00000000"), None, "a default route");
        assert_eq!(ipv6("fd000000000000000000000000000002 04 ff 00 82 eth0"), None);
    }
}
