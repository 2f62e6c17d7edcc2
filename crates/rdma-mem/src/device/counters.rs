//! Port counters from sysfs.

use std::fs;
use std::path::Path;

use crate::device::listed::Device;

/// The name of a file that is not a counter. It holds the interval, in milliseconds, at which the
/// kernel reads the counters from the device.
const LIFESPAN: &str = "lifespan";

impl Device {
    /// Returns the names and values of a NIC port's counters, sorted by name. They come from
    /// `ports/N/hw_counters` and `ports/N/counters` in the device's folder in
    /// `/sys/class/infiniband`.
    ///
    /// The names and their meaning depend on the NIC's driver. `port_xmit_data` and `port_rcv_data`
    /// count units of 4 bytes. Files that cannot be read, or that contain no number, are skipped.
    /// The kernel's `Documentation/ABI/stable/sysfs-class-infiniband` describes the files.
    ///
    /// The list is empty for a port that does not exist, and for a software device. For a software
    /// device, use `rdma_soft::SoftDevice::counters`.
    ///
    /// # Examples
    /// ```
    /// # rdma_soft::install();
    /// let soft = rdma_mem::open_device("soft0")?;
    /// for (name, value) in soft.device().counters(1) {
    ///     println!("{name} {value}"); // on a NIC, such as `out_of_sequence 0`
    /// }
    /// # assert!(soft.device().counters(1).is_empty());
    /// # Ok::<(), rdma_mem::Error>(())
    /// ```
    #[doc(alias("hw_counters", "statistics"))]
    #[must_use]
    pub fn counters(&self, port: u8) -> Vec<(String, u64)> {
        self.folder().map_or_else(Vec::new, |folder| {
            counters_in(&Path::new(&folder).join(format!("ports/{port}")))
        })
    }
}

fn counters_in(port: &Path) -> Vec<(String, u64)> {
    let files = ["hw_counters", "counters"].into_iter();
    let files = files.filter_map(|folder| fs::read_dir(port.join(folder)).ok()).flatten();
    let mut counters: Vec<_> = files
        .filter_map(|file| {
            let file = file.ok()?;
            let name = file.file_name().into_string().ok().filter(|name| name != LIFESPAN)?;
            let value = fs::read_to_string(file.path()).ok()?.trim().parse().ok()?;
            Some((name, value))
        })
        .collect();
    counters.sort_unstable();
    counters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_the_numbers_of_both_folders_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let port = folder.path();
        assert_eq!(counters_in(port), [], "no such folder");
        let files: [(&str, &[u8]); 8] = [
            ("hw_counters/out_of_sequence", b"7\n"),
            ("hw_counters/lifespan", b"10\n"),
            ("hw_counters/absent", b"N/A (no PMA)\n"),
            ("hw_counters/text", b"\xff\xfe"),
            ("counters/port_xmit_data", b"18446744073709551615\n"),
            ("counters/too_large", b"18446744073709551616\n"),
            ("counters/negative", b"-1\n"),
            ("counters/empty", b""),
        ];
        for folder in ["hw_counters", "counters", "counters/folder"] {
            fs::create_dir(port.join(folder)).unwrap();
        }
        for (file, bytes) in files {
            fs::write(port.join(file), bytes).unwrap();
        }
        let expected = [("out_of_sequence", 7), ("port_xmit_data", u64::MAX)];
        assert_eq!(counters_in(port), expected.map(|(name, value)| (name.to_owned(), value)));
    }
}
