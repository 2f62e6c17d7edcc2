//! Formats values with their units, for tables and plots.

use crate::perf::report::Measure;

type Units = &'static [(f64, &'static str)];

const TIME: Units = &[(1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns")];
const BANDWIDTH: Units = &[(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")];
const RATE: Units = &[(1e6, "M/s"), (1e3, "k/s"), (1.0, "/s")];
const BYTES: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];

/// Formats a value of this measure with about four significant digits, such as `1.204 us`.
pub(crate) fn value(measure: Measure, value: f64) -> String {
    let (value, unit) = scaled(measure, value);
    format!("{} {unit}", number(value))
}

/// Formats a number with about four significant digits.
pub(crate) fn number(value: f64) -> String {
    let decimals = match value {
        _ if value >= 1000.0 => 0,
        _ if value >= 100.0 => 1,
        _ if value >= 10.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

/// Formats a round value of this measure as briefly as possible, such as `20 GB/s`.
pub(crate) fn round(measure: Measure, value: f64) -> String {
    let (number, unit) = scaled(measure, value);
    let text = format!("{number:.3}");
    format!("{} {unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Formats a length in bytes, such as `64 KiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    let unit = BYTES.iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{bytes} B"), |(unit, name)| format!("{} {name}", bytes / unit))
}

/// Parses a number of bytes, where K, M or G multiply by a power of 1024.
pub(crate) fn bytes_of(text: &str) -> Result<u32, String> {
    let wrong = || format!("not 1 to {} bytes, such as 8, 64K or 1M", u32::MAX);
    let (digits, shift) = match text.char_indices().last() {
        Some((end, 'k' | 'K')) => (text.get(..end), 10),
        Some((end, 'm' | 'M')) => (text.get(..end), 20),
        Some((end, 'g' | 'G')) => (text.get(..end), 30),
        _ => (Some(text), 0),
    };
    let number: Option<u64> = digits.and_then(|digits| digits.parse().ok());
    let bytes = number.and_then(|number| number.checked_mul(1 << shift));
    let bytes = bytes.and_then(|bytes| u32::try_from(bytes).ok());
    bytes.filter(|&bytes| bytes > 0).ok_or_else(wrong)
}

fn scaled(measure: Measure, value: f64) -> (f64, &'static str) {
    let (units, least) = match measure {
        Measure::Lat => (TIME, (1.0, "ns")),
        Measure::Bw => (BANDWIDTH, (1.0, "B/s")),
        Measure::Rate => (RATE, (1.0, "/s")),
    };
    let (unit, name) = *units.iter().find(|(unit, _)| value >= *unit).unwrap_or(&least);
    (value / unit, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_about_four_digits() {
        let texts = [0.1234, 12.345, 123.45, 123_456.0].map(number);
        assert_eq!(texts, ["0.123", "12.35", "123.5", "123456"]);
    }

    #[test]
    fn values_have_the_unit_that_keeps_them_short() {
        assert_eq!(value(Measure::Lat, 812.34), "812.3 ns");
        assert_eq!(value(Measure::Lat, 1204.0), "1.204 us");
        assert_eq!(value(Measure::Lat, 0.25), "0.250 ns");
        assert_eq!(value(Measure::Bw, 12.5e9), "12.50 GB/s");
        assert_eq!(value(Measure::Rate, 3e12), "3000000 M/s");
        assert_eq!([1e3, 2.5e6].map(|time| round(Measure::Lat, time)), ["1 us", "2.5 ms"]);
        assert_eq!([20e9, 0.0].map(|rate| round(Measure::Bw, rate)), ["20 GB/s", "0 B/s"]);
        assert_eq!(
            [0, 8, 1500, 65_536, 1 << 20].map(bytes),
            ["0 B", "8 B", "1500 B", "64 KiB", "1 MiB"]
        );
    }

    #[test]
    fn sizes_have_suffixes_and_limits() {
        let good = [("8", 8), ("64k", 65536), ("1M", 1 << 20), ("3G", 3 << 30)];
        assert!(good.iter().all(|&(text, bytes)| bytes_of(text) == Ok(bytes)));
        for bad in ["", "0", "0K", "K", "-8", "4G", "1.5K", "1T", "99999999999999999999", "8 "] {
            assert!(bytes_of(bad).is_err(), "{bad:?}");
        }
    }
}
