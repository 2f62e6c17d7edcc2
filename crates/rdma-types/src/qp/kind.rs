//! The types of queue pairs.

use crate::macros::open_enum;

open_enum! {
    /// The transport service of a queue pair (`enum ibv_qp_type`). IBTA vol 1, section 9.2.
    #[doc(alias = "ibv_qp_type")]
    QpType(u32), "queue pair type" {
        /// Reliable connection: messages arrive exactly once and in order, or the connection fails.
        RC = 2, "RC (reliable connection)";
        /// Unreliable connection: messages may be lost, but those that arrive are complete and in
        /// order.
        UC = 3, "UC (unreliable connection)";
        /// Unreliable datagrams: single-packet messages to and from any queue pair.
        UD = 4, "UD (unreliable datagrams)";
        /// Whole link-layer packets.
        RAW_PACKET = 8, "raw packet";
        /// The sending half of an extended reliable connection.
        XRC_SEND = 9, "XRC send";
        /// The receiving half of an extended reliable connection.
        XRC_RECV = 10, "XRC receive";
        /// A provider-specific type.
        DRIVER = 255, "driver-specific";
    }
}

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    #[test]
    fn values_are_those_of_verbs_h() {
        assert_eq!([QpType::RC, QpType::UC, QpType::UD].map(QpType::raw), [2, 3, 4]);
        let others = [QpType::RAW_PACKET, QpType::XRC_SEND, QpType::XRC_RECV, QpType::DRIVER];
        assert_eq!(others.map(QpType::raw), [8, 9, 10, 0xff]);
        assert_eq!(format!("{:?}", QpType::UD), "QpType::UD");
    }

    #[test]
    fn unknown_values_are_data() {
        assert_eq!(format!("{0} {0:?}", QpType::from(5)), "unknown queue pair type 5 QpType(5)");
    }
}
