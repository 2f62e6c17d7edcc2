//! Conversions of the static rate of an address handle.
#![allow(unsafe_code)]

use std::ffi::c_int;

use rdma_sys::{functions, ibv_rate};

/// A rate with its multiple of 2.5 Gb/s, if it has one in libibverbs, and its speed in Mb/s.
type Rate = (ibv_rate, Option<c_int>, c_int);

const RATES: [Rate; 23] = [
    (ibv_rate::IBV_RATE_2_5_GBPS, Some(1), 2_500),
    (ibv_rate::IBV_RATE_5_GBPS, Some(2), 5_000),
    (ibv_rate::IBV_RATE_10_GBPS, Some(4), 10_000),
    (ibv_rate::IBV_RATE_20_GBPS, Some(8), 20_000),
    (ibv_rate::IBV_RATE_30_GBPS, Some(12), 30_000),
    (ibv_rate::IBV_RATE_40_GBPS, Some(16), 40_000),
    (ibv_rate::IBV_RATE_60_GBPS, Some(24), 60_000),
    (ibv_rate::IBV_RATE_80_GBPS, Some(32), 80_000),
    (ibv_rate::IBV_RATE_120_GBPS, Some(48), 120_000),
    (ibv_rate::IBV_RATE_14_GBPS, None, 14_062),
    (ibv_rate::IBV_RATE_56_GBPS, None, 56_250),
    (ibv_rate::IBV_RATE_112_GBPS, None, 112_500),
    (ibv_rate::IBV_RATE_168_GBPS, None, 168_750),
    (ibv_rate::IBV_RATE_25_GBPS, None, 25_781),
    (ibv_rate::IBV_RATE_100_GBPS, None, 103_125),
    (ibv_rate::IBV_RATE_200_GBPS, None, 206_250),
    (ibv_rate::IBV_RATE_300_GBPS, None, 309_375),
    (ibv_rate::IBV_RATE_28_GBPS, Some(11), 28_125),
    (ibv_rate::IBV_RATE_50_GBPS, Some(20), 53_125),
    (ibv_rate::IBV_RATE_400_GBPS, Some(160), 425_000),
    (ibv_rate::IBV_RATE_600_GBPS, Some(240), 637_500),
    (ibv_rate::IBV_RATE_800_GBPS, Some(320), 850_000),
    (ibv_rate::IBV_RATE_1200_GBPS, Some(480), 1_275_000),
];

fn find(matches: impl Fn(&Rate) -> bool) -> Option<Rate> {
    RATES.into_iter().find(matches)
}

const _: functions::ibv_rate_to_mult = ibv_rate_to_mult;
#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mult(rate: ibv_rate) -> c_int {
    find(|known| known.0 == rate).and_then(|found| found.1).unwrap_or(-1)
}

const _: functions::mult_to_ibv_rate = mult_to_ibv_rate;
#[unsafe(no_mangle)]
extern "C" fn mult_to_ibv_rate(mult: c_int) -> ibv_rate {
    find(|known| known.1 == Some(mult)).map_or(ibv_rate::IBV_RATE_MAX, |found| found.0)
}

const _: functions::ibv_rate_to_mbps = ibv_rate_to_mbps;
#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mbps(rate: ibv_rate) -> c_int {
    find(|known| known.0 == rate).map_or(-1, |found| found.2)
}

const _: functions::mbps_to_ibv_rate = mbps_to_ibv_rate;
#[unsafe(no_mangle)]
extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> ibv_rate {
    find(|known| known.2 == mbps).map_or(ibv_rate::IBV_RATE_MAX, |found| found.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rate_converts_there_and_back() {
        for (rate, mult, mbps) in RATES {
            assert_eq!(mbps_to_ibv_rate(ibv_rate_to_mbps(rate)), rate);
            assert_eq!(
                (ibv_rate_to_mult(rate), ibv_rate_to_mbps(rate)),
                (mult.unwrap_or(-1), mbps)
            );
            let back = mult.map_or(rate, |mult| mult_to_ibv_rate(mult));
            assert_eq!(back, rate);
        }
        assert_eq!(ibv_rate_to_mult(ibv_rate(99)), -1);
        assert_eq!(mult_to_ibv_rate(3), ibv_rate::IBV_RATE_MAX);
        assert_eq!(mbps_to_ibv_rate(3), ibv_rate::IBV_RATE_MAX);
    }
}
