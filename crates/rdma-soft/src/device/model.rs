//! The hardware model that a device reports.

use std::borrow::Cow;

/// The vendor and version that `ibv_query_device` reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Model<S = Cow<'static, str>> {
    pub(crate) vendor: u32,
    pub(crate) part: u32,
    pub(crate) revision: u32,
    pub(crate) firmware: S,
}

/// The vendor ID that means "no vendor": all ones in these 24 bits.
const NO_VENDOR: u32 = 0x00ff_ffff;

impl Model {
    /// The default model, which claims no particular hardware.
    pub(crate) const OWN: Self = Self {
        vendor: NO_VENDOR,
        part: 0,
        revision: 0,
        firmware: Cow::Borrowed(env!("CARGO_PKG_VERSION")),
    };
}
