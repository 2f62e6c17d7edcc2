//! The bytes in messages. There is no relation between bytes from different seeds, nor between
//! neighbouring bytes.

/// Returns the first `length` bytes of the pattern of a seed.
pub(super) fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let words = (0..length.div_ceil(8) as u64).map(|n| mix(seed.wrapping_add(mix(n))));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(length);
    bytes
}

/// Returns the offset of the first byte that matches the pattern of none of the seeds.
pub(super) fn first_wrong(found: &[u8], seeds: &[u64]) -> Option<usize> {
    let expected: Vec<_> = seeds.iter().map(|&seed| bytes(seed, found.len())).collect();
    let right = |at: usize, byte: u8| expected.iter().any(|one| one[at] == byte);
    found.iter().enumerate().find(|&(at, &byte)| !right(at, byte)).map(|(at, _)| at)
}

/// The finalizer of SplitMix64.
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_that_is_wrong_is_found() {
        let good = bytes(7, 100);
        assert_eq!(first_wrong(&good, &[7]), None);
        for at in [0, 7, 8, 99] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert_eq!(first_wrong(&bad, &[7]), Some(at));
        }
        assert!(first_wrong(&good, &[8]).is_some());
        let mixed = [&bytes(7, 100)[..50], &bytes(8, 100)[50..]].concat();
        assert_eq!(first_wrong(&mixed, &[8, 7]), None);
        assert!(first_wrong(&mixed, &[7]).is_some_and(|at| at >= 50));
    }

    #[test]
    fn bytes_differ_by_seed_and_offset() {
        let (one, other) = (bytes(1, 4096), bytes(2, 4096));
        let same = one.iter().zip(&other).filter(|(one, other)| one == other).count();
        assert!(same < 64, "{same} of 4096 are the same");
        assert_ne!(one[..512], one[512..1024]);
    }
}
