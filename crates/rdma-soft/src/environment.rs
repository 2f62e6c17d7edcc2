//! The devices that the environment describes.

pub(crate) mod variable;

#[cfg(not(loom))]
use crate::abi::environment::path_variable;
#[cfg(not(loom))]
use crate::builder::MAPPED;
use crate::builder::{Builder, is_name};
use crate::device::subnet::{InstallError, NAMES, profiles};
#[cfg(not(loom))]
use crate::environment::variable::flag;
use crate::environment::variable::{Mistake, variable};
use crate::faults::{Faults, FaultsError};
use crate::limits::patience::Patience;
use crate::link::Link;
#[cfg(not(loom))]
use crate::link::local::host::Peers;
use crate::profile::Profile;
use crate::schedule::Schedule;

const DEVICES: &str = "RDMA_SOFT_DEVICES";
const FAULTS: &str = "RDMA_SOFT_FAULTS";
#[cfg(not(loom))]
const DIRECTORY: &str = "RDMA_SOFT_DIRECTORY";

/// Installs `soft0` and `softib0`, or the devices that `RDMA_SOFT_DEVICES` describes. Calling this again, from any
/// thread, changes nothing.
///
/// Programs that need other devices use [`Builder`], with or without this function. The following environment variables
/// apply:
///
/// - `RDMA_SOFT_DEVICES`: the devices, separated by semicolons. Each is a name, followed by options:
///   `soft0,like=connectx-7;soft1,port=ib`.
///   - `like=<profile>`: see [`Builder::like`].
///   - `port=roce` or `port=ib`: see [`Builder::link`]. With the option `like`, the hardware must have such ports. The
///     default is the port of the option `like`. Without this option, it is RoCE, or InfiniBand for the name `softib0`.
///   - `address=<address or interface>`: see [`Builder::listen`]. May be repeated.
///   - `schedule=deferred:<seed>`: see [`Builder::schedule`].
///   - `packets`: see [`Builder::force_wire`].
/// - `RDMA_SOFT_PEERS`: see [`Peers`].
/// - `RDMA_SOFT_DIRECTORY`: see [`Builder::directory`].
/// - `RDMA_SOFT_MAPPED`: see [`Builder::mapped`].
/// - `RDMA_SOFT_PEER_LIMIT`: see [`Builder::peer_limit`].
/// - `RDMA_SOFT_RETRY_TIME`: see [`Builder::retry_time`].
/// - `RDMA_SOFT_LISTEN`: the addresses at which `soft0` listens if it has no option `address`, see [`Builder::listen`].
/// - `RDMA_SOFT_LIKE`: the name of a [`Profile`] for each device without an option `like`, see [`Builder::like`]. It
///   does not change the link layers.
/// - `RDMA_SOFT_FAULTS`: the [`Faults`] of each device.
/// - `RDMA_SOFT_PCAP`: a capture file, see [`Builder::pcap`].
///
/// An empty variable is ignored. If the value of a variable is wrong, or the capture file cannot be written, no device
/// can be opened. If a device cannot listen, that device cannot be opened. A device that cannot be opened is still in
/// the list: `ibv_open_device` prints the reason on standard error and fails with `EIO`. This function reports the
/// reason earlier, in a `tracing` event.
pub fn install() {
    let devices = variable(DEVICES).unwrap_or_default();
    match builders(&devices) {
        Ok(builders) => builders.into_iter().for_each(install_one),
        Err(error) => {
            tracing::warn!(%error, "the software devices cannot be opened");
            for device in names(&devices) {
                install_one(device.builder(None, None).unusable(error.clone()));
            }
        }
    }
}

/// Returns a builder for each device that the environment describes. `devices` is the value of `RDMA_SOFT_DEVICES`.
fn builders(devices: &str) -> Result<Vec<Builder>, InstallError> {
    let devices = described(devices)?;
    let profile = profile(variable("RDMA_SOFT_LIKE"))?;
    let faults = faults(variable(FAULTS))?;
    // `Builder::new` uses these limits, and ignores mistakes.
    Patience::of_environment()?;
    #[cfg(not(loom))]
    flag(MAPPED)?;
    let builders = devices.into_iter().map(|device| device.builder(profile, faults.as_ref()));
    #[cfg(not(loom))]
    let builders = {
        let peers = Peers::in_environment()?;
        builders.map(move |device| shared(device, peers))
    };
    Ok(builders.collect())
}

/// Installs a device. If the capture, an address or the directory is not available, installs a device that cannot be
/// opened instead. If the device cannot be shared for another reason, installs it for this process alone.
fn install_one(device: Builder) {
    match device.clone().install() {
        Err(error @ (InstallError::NoCapture { .. } | InstallError::CannotListen { .. })) => {
            tracing::warn!(%error, "a software device cannot be opened");
            install_one(device.unusable(error));
        }
        #[cfg(not(loom))]
        Err(InstallError::NotShared { reason }) if path_variable(DIRECTORY).is_some() => {
            let error = wrong(DIRECTORY, reason);
            tracing::warn!(%error, "a software device cannot be opened");
            install_one(device.peers(Peers::ThisProcess).unusable(error));
        }
        #[cfg(not(loom))]
        Err(error @ InstallError::NotShared { .. }) => {
            tracing::warn!(%error, "other processes cannot reach a software device");
            install_one(device.peers(Peers::ThisProcess));
        }
        // If the name is taken, the device was installed by an earlier call of `install` or by a builder.
        Ok(_) | Err(_) => {}
    }
}

fn profile(name: Option<String>) -> Result<Option<Profile>, InstallError> {
    let Some(name) = name else { return Ok(None) };
    Profile::named(&name).map(Some).ok_or(InstallError::NoProfile { name })
}

fn faults(text: Option<String>) -> Result<Option<Faults>, InstallError> {
    let faults = text.map(|text| text.parse()).transpose();
    faults.map_err(|error: FaultsError| wrong(FAULTS, error.to_string()))
}

impl From<Mistake> for InstallError {
    fn from(Mistake { variable, reason }: Mistake) -> Self {
        Self::BadVariable { variable, reason }
    }
}

fn wrong(variable: &'static str, reason: String) -> InstallError {
    InstallError::BadVariable { variable, reason }
}

/// A device that `RDMA_SOFT_DEVICES` describes.
#[derive(Debug, Clone, PartialEq, Default)]
struct Described {
    name: String,
    like: Option<Profile>,
    link: Option<Link>,
    addresses: Vec<String>,
    schedule: Schedule,
    packets: bool,
}

impl Described {
    fn named(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Applies an option. If the option is wrong, returns the allowed ones.
    fn apply(&mut self, option: &str) -> Result<(), String> {
        match option.split_once('=') {
            None if option == "packets" => self.packets = true,
            Some(("like", name)) => {
                let profile = Profile::named(name);
                self.like =
                    Some(profile.ok_or_else(|| format!("the profiles are {}", profiles()))?);
            }
            Some(("port", "roce")) => self.link = Some(Link::Ethernet),
            Some(("port", "ib")) => self.link = Some(Link::InfiniBand),
            Some(("port", _)) => return Err("the ports are roce and ib".to_owned()),
            Some(("address", place)) if !place.is_empty() => self.addresses.push(place.to_owned()),
            Some(("schedule", schedule)) => {
                let seed = schedule.strip_prefix("deferred:").and_then(|seed| seed.parse().ok());
                let seed = seed.ok_or("use deferred:<seed>, where the seed is a number")?;
                self.schedule = Schedule::Deferred { seed };
            }
            _ => {
                let options = "the options are like=<profile>, port=roce, port=ib, address=<address or interface>, \
                     schedule=deferred:<seed> and packets";
                return Err(options.to_owned());
            }
        }
        Ok(())
    }

    /// Returns a builder for the device. `profile` applies unless the device has its own.
    fn builder(self, profile: Option<Profile>, faults: Option<&Faults>) -> Builder {
        let own = self.like.map(Profile::link);
        let usual = if self.name == "softib0" { Link::InfiniBand } else { Link::Ethernet };
        let link = self.link.or(own).unwrap_or(usual);
        let mut device = Builder::new(&self.name);
        if let Some(profile) = self.like.or(profile) {
            device = device.like(profile);
        }
        device = device.link(link).schedule(self.schedule);
        if self.packets {
            device = device.force_wire();
        }
        if let Some(faults) = faults {
            device = device.faults(faults.clone());
        }
        #[cfg(not(loom))]
        {
            let listens = link == Link::Ethernet && self.name == "soft0";
            let places = match variable("RDMA_SOFT_LISTEN").filter(|_| listens) {
                Some(place) if self.addresses.is_empty() => vec![place],
                _ => self.addresses,
            };
            device = places.into_iter().fold(device, Builder::listen);
        }
        device
    }
}

/// Shares a device with `peers`, through the directory that the environment names.
#[cfg(not(loom))]
fn shared(device: Builder, peers: Peers) -> Builder {
    let device = device.peers(peers);
    match path_variable(DIRECTORY) {
        Some(path) => device.directory(path),
        None => device,
    }
}

/// Returns the devices that exist unless the environment describes others.
fn usual() -> Vec<Described> {
    ["soft0", "softib0"].map(Described::named).into()
}

/// Parses the value of `RDMA_SOFT_DEVICES`. If it contains no device, returns the usual ones.
fn described(text: &str) -> Result<Vec<Described>, InstallError> {
    let mut devices: Vec<Described> = Vec::new();
    for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
        let mut words = part.split(',').map(str::trim);
        let name = words.next().unwrap_or_default();
        if !is_name(name) {
            let reason = format!("`{name}` in `{part}` is not a device name: {NAMES}");
            return Err(wrong(DEVICES, reason));
        }
        if devices.iter().any(|device| device.name == name) {
            let reason = format!("`{name}` occurs twice: give each device its own name");
            return Err(wrong(DEVICES, reason));
        }
        let mut device = Described::named(name);
        let mut given = Vec::new();
        for option in words {
            let kind = option.split('=').next().unwrap_or(option);
            if kind != "address" && given.contains(&kind) {
                let reason =
                    format!("`{kind}` occurs twice in the options of `{name}`: give it once");
                return Err(wrong(DEVICES, reason));
            }
            given.push(kind);
            device.apply(option).map_err(|allowed| {
                wrong(DEVICES, format!("`{option}` is not an option of `{name}`: {allowed}"))
            })?;
        }
        if let (Some(profile), Some(link)) = (device.like, device.link)
            && !profile.allows(link)
        {
            let other = if link == Link::Ethernet { "ib" } else { "roce" };
            let reason = format!(
                "the port of `{name}` contradicts `like={}`: use port={other}, or omit it",
                profile.name()
            );
            return Err(wrong(DEVICES, reason));
        }
        devices.push(device);
    }
    Ok(if devices.is_empty() { usual() } else { devices })
}

/// Returns the devices that a wrong value of `RDMA_SOFT_DEVICES` names, without their options.
fn names(text: &str) -> Vec<Described> {
    let names = text.split(';').filter_map(|part| part.split(',').next()).map(str::trim);
    let named: Vec<_> = names.filter(|name| is_name(name)).map(Described::named).collect();
    if named.is_empty() { usual() } else { named }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn devices_are_described_by_names_and_options() {
        let text = "soft0,like=connectx7,address=fd00::1,address=192.0.2.1; soft1, port=ib ;\
            a.b-c,port=roce,packets,schedule=deferred:7;";
        let soft0 = Described {
            like: Some(Profile::CONNECTX_7),
            addresses: vec!["fd00::1".to_owned(), "192.0.2.1".to_owned()],
            ..Described::named("soft0")
        };
        let soft1 = Described { link: Some(Link::InfiniBand), ..Described::named("soft1") };
        let last = Described {
            link: Some(Link::Ethernet),
            packets: true,
            schedule: Schedule::Deferred { seed: 7 },
            ..Described::named("a.b-c")
        };
        assert_eq!(described(text), Ok(vec![soft0, soft1, last]));
        let both = Described {
            like: Some(Profile::CONNECTX_7),
            link: Some(Link::InfiniBand),
            ..Described::named("both")
        };
        assert_eq!(described("both,port=ib,like=connectx-7"), Ok(vec![both]));
        for nothing in ["", " ; "] {
            assert_eq!(described(nothing), Ok(usual()));
        }
    }

    #[test]
    fn a_wrong_option_is_named_with_its_device_and_the_allowed_ones() {
        for (text, expected) in [
            (
                "soft0;so/ft,port=ib",
                "`so/ft` in `so/ft,port=ib` is not a device name: use 1 to 63 ",
            ),
            (",port=ib", "`` in `,port=ib` is not a device name"),
            ("..;a", "`..` in `..` is not a device name: use 1 to 63 "),
            ("a,port=ib,port=roce", "`port` occurs twice in the options of `a`: give it once"),
            ("a,packets,packets", "`packets` occurs twice in the options of `a`: give it once"),
            (
                "a,like=connect-ib,port=roce",
                "the port of `a` contradicts `like=connect-ib`: use port=ib, or omit it",
            ),
            (
                "a,port=ib,like=mana",
                "the port of `a` contradicts `like=mana`: use port=roce, or omit it",
            ),
            ("a;b;a", "`a` occurs twice: give each device its own name"),
            (
                "a,like=connectx-8",
                "`like=connectx-8` is not an option of `a`: the profiles are connectx-7, ",
            ),
            ("a;b,port=opa", "`port=opa` is not an option of `b`: the ports are roce and ib"),
            ("a,schedule=late", "`schedule=late` is not an option of `a`: use deferred:<seed>, "),
            ("a,address=", "`address=` is not an option of `a`: the options are like=<profile>, "),
            ("a,", "`` is not an option of `a`: the options are "),
            ("a,gid=3", "`gid=3` is not an option of `a`: the options are "),
        ] {
            let error = described(text).unwrap_err();
            let start = format!("`RDMA_SOFT_DEVICES` has a mistake: {expected}");
            assert!(error.to_string().starts_with(&start), "{error}");
            assert!(matches!(
                error,
                InstallError::BadVariable { variable: "RDMA_SOFT_DEVICES", .. }
            ));
        }
        assert_eq!(names("soft7,port=x;so/ft"), [Described::named("soft7")]);
        assert_eq!(names("so/ft"), usual());
    }
}
