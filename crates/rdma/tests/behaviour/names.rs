//! The facade exports every name of the layers, by name, and the prelude makes its names available.
#![cfg(feature = "soft")]

use std::collections::BTreeSet;

const FACADE: [&str; 8] = [
    include_str!("../../src/aio.rs"),
    include_str!("../../src/channel.rs"),
    include_str!("../../src/cm.rs"),
    include_str!("../../src/device.rs"),
    include_str!("../../src/group.rs"),
    include_str!("../../src/memory.rs"),
    include_str!("../../src/qp.rs"),
    include_str!("../../src/soft.rs"),
];

const LAYERS: [(&str, &str); 8] = [
    ("rdma-types", include_str!("../../../rdma-types/src/lib.rs")),
    ("rdma-mem", include_str!("../../../rdma-mem/src/lib.rs")),
    ("rdma-qp", include_str!("../../../rdma-qp/src/lib.rs")),
    ("rdma-cm", include_str!("../../../rdma-cm/src/lib.rs")),
    ("rdma-channel", include_str!("../../../rdma-channel/src/lib.rs")),
    ("rdma-group", include_str!("../../../rdma-group/src/lib.rs")),
    ("rdma-async", include_str!("../../../rdma-async/src/lib.rs")),
    ("rdma-soft", include_str!("../../../rdma-soft/src/lib.rs")),
];

/// The names that are not re-exported: three functions are the facade's own, `MemoryError` is
/// `memory::Error`.
const NOT_HERE: [&str; 5] =
    ["list_devices", "open_device", "open_default_device", "MemoryError", "__size_of_field"];

/// Returns the names that a file exports by `pub use`.
fn exports(text: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    for statement in text.split("\npub use ").skip(1) {
        let path = statement.split(';').next().unwrap_or_default();
        let names = match path.split_once('{') {
            Some((_, list)) => list.trim_end().trim_end_matches('}'),
            None => path.rsplit("::").next().unwrap_or_default(),
        };
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            found.insert(name.rsplit(" as ").next().unwrap_or(name));
        }
    }
    found
}

#[test]
fn the_facade_has_every_name_of_the_layers() {
    let here: BTreeSet<_> = FACADE.into_iter().flat_map(exports).chain(NOT_HERE).collect();
    for (layer, text) in LAYERS {
        let names = exports(text);
        assert!(names.len() > 9, "{layer}: {names:?}");
        let lacking: Vec<_> = names.difference(&here).collect();
        assert!(lacking.is_empty(), "{layer} has what no module here has: {lacking:?}");
    }
}

#[test]
fn nothing_is_exported_by_a_glob() {
    for text in FACADE.into_iter().chain([include_str!("../../src/prelude.rs")]) {
        let names = exports(text);
        assert!(!names.is_empty() && !names.contains("*"), "{names:?}");
    }
}

/// Imports each name, and returns the list.
macro_rules! names {
    ($($name:ident)+) => {
        const _: () = {
            #[allow(unused_imports)] // the test is that they resolve
            use rdma::prelude::{$($name),+};
        };
        const NAMES: &[&str] = &[$(stringify!($name)),+];
    };
}

names! {
    AccessFlags Armed AtomicWorkRequest Buffer BufferPool Channel ChannelListener CloseReason ConnectError
    Context CreateChannel
    CreateCompletionQueue CreateQueuePair ExchangeError Finished GatherList InFlight InlineElement
    Late LeftReason MultiChannel OwnedArray OwnedRegion PeerId PeerReceiveWorkRequest PeerRemoteMemoryRegion
    PeerSendWorkRequest Prefix PreparedChannel Progress ProtectionDomain QueuePairEndpoint
    ReadWorkRequest ReceiveWorkRequest Rejected RemoteMemoryRegion RemoteRef RemoteSlice ScatterList Scope
    ScopeError ScopedPendingWork SendWorkRequest Server ServerError ServerEvent SharedRegion SliceMut SliceRef TransportError
    Wait WorkSuccess WriteWorkRequest confirm exchange exchange_all list_devices open_default_device open_device
}

#[test]
fn every_name_of_the_prelude_resolves() {
    let names = exports(include_str!("../../src/prelude.rs"));
    assert_eq!(names, NAMES.iter().copied().collect());
}

/// One import provides all that a program of channels needs.
#[test]
fn a_program_needs_the_prelude_alone() -> Result<(), Box<dyn std::error::Error>> {
    use rdma::prelude::*;

    let pd = open_device("softib0")?.allocate_pd()?;
    let channel = pd.create_channel().build()?;
    let endpoint = channel.endpoint();
    let mut channel = channel.handshake(endpoint)?; // to itself
    let mut region = pd.allocate_region(16)?;
    let sum = channel.scope(|s| {
        let [mut from, to] = region.as_slice_mut().into_array().map_err(|_| "two halves")?;
        from.fill(3);
        let received = s.receive_into(to)?;
        s.send_from(from)?.done(std::time::Duration::from_secs(5))?;
        let (to, success) = received.done(std::time::Duration::from_secs(5))?;
        Ok::<_, Box<dyn std::error::Error>>((to.iter().sum::<u8>(), success.byte_len()))
    })?;
    assert_eq!(sum, (24, Some(8)));
    Ok(())
}
