//! The result of a copy as a line of text.

use std::fmt;
use std::time::Duration;

use super::Settings;

/// The size and the speed of a copy. Displayed as one line.
///
/// ```
/// # use std::time::Duration;
/// # use copy_file::{Settings, Summary};
/// let summary = Summary {
///     device: "soft0".to_owned(),
///     bytes: 3_000_000_000,
///     registered_bytes: 2 << 20,
///     settings: Settings::default(),
///     transfer: Duration::from_millis(1500),
///     until_on_disk: Duration::from_millis(2700),
/// };
/// assert_eq!(
///     summary.to_string(),
///     "soft0: 3000000000 bytes in 1.500 s, 2.00 GB/s; on disk after 2.700 s; \
///      each side registered 2097152 bytes (8 x 262144)"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The name of the device.
    pub device: String,
    /// The length of the file, in bytes.
    pub bytes: u64,
    /// The total number of bytes that each side registered.
    pub registered_bytes: usize,
    /// The sizes from which that number results.
    pub settings: Settings,
    /// The time between reading the first byte and having checked and written the last one.
    pub transfer: Duration,
    /// The time until the file was on disk under its name. Includes the set-up.
    pub until_on_disk: Duration,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.transfer.as_secs_f64();
        let rate = self.bytes as f64 / seconds.max(1e-9) / 1e9;
        write!(f, "{}: {} bytes in {seconds:.3} s, {rate:.2} GB/s", self.device, self.bytes)?;
        write!(f, "; on disk after {:.3} s", self.until_on_disk.as_secs_f64())?;
        let (depth, chunk) = (self.settings.depth(), self.settings.chunk());
        write!(f, "; each side registered {} bytes ({depth} x {chunk})", self.registered_bytes)
    }
}
