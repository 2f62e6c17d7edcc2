//! Whose device it says it is.

use std::borrow::Cow;

/// What `ibv_query_device` says of vendor and version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Model<S = Cow<'static, str>> {
    pub(crate) vendor: u32,
    pub(crate) part: u32,
    pub(crate) revision: u32,
    pub(crate) firmware: S,
}

/// A vendor without a number of its own has all ones in these 24 bits.
const NO_VENDOR: u32 = 0x00ff_ffff;

impl Model {
    /// This project's device.
    pub(crate) const OWN: Self = Self {
        vendor: NO_VENDOR,
        part: 0,
        revision: 0,
        firmware: Cow::Borrowed(env!("CARGO_PKG_VERSION")),
    };
}
