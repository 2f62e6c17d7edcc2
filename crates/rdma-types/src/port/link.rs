//! The link of a port: its width, its speed and its physical state.

use crate::macros::open_enum;

open_enum! {
    /// The physical state of a port (`ibv_port_attr.phys_state`). IBTA vol 1, section 14.2.5.6.
    PhysicalState(u8), "physical state" {
        /// The link is in power-saving sleep.
        SLEEP = 1, "sleep";
        /// The port is looking for the other end: no cable is connected, or no peer responds.
        POLLING = 2, "polling";
        /// The port is disabled.
        DISABLED = 3, "disabled";
        /// The port is negotiating with the other end.
        TRAINING = 4, "port configuration training";
        /// The link is up.
        LINK_UP = 5, "link up";
        /// The port is recovering from link errors.
        LINK_ERROR_RECOVERY = 6, "link error recovery";
        /// The port is under test.
        PHY_TEST = 7, "phy test";
    }
}

open_enum! {
    /// The number of lanes of a link (`ibv_port_attr.active_width`). IBTA vol 1, section 14.2.5.6.
    LinkWidth(u8), "link width" {
        /// One lane.
        X1 = 1, "1X";
        /// Four lanes.
        X4 = 2, "4X";
        /// Eight lanes.
        X8 = 4, "8X";
        /// Twelve lanes.
        X12 = 8, "12X";
        /// Two lanes.
        X2 = 16, "2X";
    }
}

impl LinkWidth {
    /// Returns the number of lanes, or `None` for an unknown width.
    #[inline]
    pub const fn lanes(self) -> Option<u8> {
        match self {
            Self::X1 => Some(1),
            Self::X2 => Some(2),
            Self::X4 => Some(4),
            Self::X8 => Some(8),
            Self::X12 => Some(12),
            _ => None,
        }
    }
}

open_enum! {
    /// The speed of one lane of a link (`ibv_port_attr.active_speed`). IBTA vol 1, section
    /// 14.2.5.6.
    ///
    /// ```
    /// use rdma_types::{LinkSpeed, LinkWidth};
    ///
    /// let (lanes, lane) = (LinkWidth::X4.lanes().unwrap(), LinkSpeed::EDR.lane_mbps().unwrap());
    /// assert_eq!(u32::from(lanes) * lane, 100_000); // Mbit/s
    /// assert_eq!(LinkSpeed::EDR.to_string(), "25 Gb/s a lane (EDR)");
    /// ```
    LinkSpeed(u32), "link speed" {
        /// Single data rate.
        SDR = 1, "2.5 Gb/s a lane (SDR)";
        /// Double data rate.
        DDR = 2, "5 Gb/s a lane (DDR)";
        /// Quadruple data rate.
        QDR = 4, "10 Gb/s a lane (QDR)";
        /// Ten instead of fourteen gigabits, with the same encoding as FDR.
        FDR10 = 8, "10 Gb/s a lane (FDR10)";
        /// Fourteen data rate.
        FDR = 16, "14 Gb/s a lane (FDR)";
        /// Enhanced data rate.
        EDR = 32, "25 Gb/s a lane (EDR)";
        /// High data rate.
        HDR = 64, "50 Gb/s a lane (HDR)";
        /// Next data rate.
        NDR = 128, "100 Gb/s a lane (NDR)";
        /// Extreme data rate.
        XDR = 256, "200 Gb/s a lane (XDR)";
    }
}

impl LinkSpeed {
    /// Returns the data rate of one lane in Mbit/s, or `None` for an unknown speed.
    #[inline]
    pub const fn lane_mbps(self) -> Option<u32> {
        match self {
            Self::SDR => Some(2_500),
            Self::DDR => Some(5_000),
            Self::QDR | Self::FDR10 => Some(10_000),
            Self::FDR => Some(14_000),
            Self::EDR => Some(25_000),
            Self::HDR => Some(50_000),
            Self::NDR => Some(100_000),
            Self::XDR => Some(200_000),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::string::ToString;

    use super::*;

    #[test]
    fn widths_and_speeds_are_those_of_the_specification() {
        let lanes = [1, 16, 2, 4, 8].map(|width| LinkWidth::from_raw(width).lanes());
        assert_eq!(lanes, [1, 2, 4, 8, 12].map(Some));
        let speeds = [1, 2, 4, 8, 16, 32, 64, 128, 256].map(|n| LinkSpeed::from_raw(n).lane_mbps());
        let gbps = [2.5, 5.0, 10.0, 10.0, 14.0, 25.0, 50.0, 100.0, 200.0];
        assert_eq!(speeds.map(|mbps| f64::from(mbps.unwrap()) / 1e3), gbps);
        for (n, gbps) in gbps.into_iter().enumerate() {
            let text = format!("{}", LinkSpeed::from_raw(1 << n));
            assert!(text.starts_with(&format!("{gbps} Gb/s")), "{text}");
        }
        assert_eq!(LinkWidth::from_raw(2).to_string(), "4X");
        assert!((1..8).all(|n| PhysicalState::from_raw(n).name().is_some()));
    }

    #[test]
    fn unknown_values_are_data() {
        assert_eq!((LinkWidth::from(3).lanes(), LinkSpeed::from(0).lane_mbps()), (None, None));
        assert_eq!(format!("{}", PhysicalState::from(9)), "unknown physical state 9");
    }
}
