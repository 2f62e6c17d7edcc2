//! REJ: the rejection of a message, or the end of an attempt.

use core::fmt;

use super::error::{TooLong, fits};
use super::mra::Subject;
use crate::cm::address::CommId;
use crate::wire::bytes::{Reader, Writer};

/// A rejection (IBTA table 108).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rej<'a> {
    /// The sender's communication ID, or [`CommId::NONE`].
    pub local_id: CommId,
    /// The receiver's communication ID, or [`CommId::NONE`] if the sender received no message.
    pub remote_id: CommId,
    /// The rejected message.
    pub subject: Subject,
    /// The sender's reason.
    pub rejection: Rejection<'a>,
}

/// The reason in a REJ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rejection<'a> {
    /// The reason.
    pub reason: Reason,
    /// At most 72 bytes of additional rejection information, which depend on the reason.
    pub info: &'a [u8],
    /// At most 148 bytes.
    pub private_data: &'a [u8],
}

impl Rejection<'_> {
    /// Creates a rejection without additional information.
    #[must_use]
    pub const fn new(reason: Reason) -> Self {
        Self { reason, info: &[], private_data: &[] }
    }
}

impl<'a> Rej<'a> {
    pub(super) fn parse(fields: &mut Reader<'a>) -> Self {
        let (local_id, remote_id) = (CommId::new(fields.u32()), CommId::new(fields.u32()));
        let (subject, info_len) = (Subject::upper(fields.u8()), fields.u8() >> 1);
        let reason = Reason(fields.u16());
        let info = Reader::new(fields.slice(72)).slice(info_len.into());
        let rejection = Rejection { reason, info, private_data: fields.rest() };
        Self { local_id, remote_id, subject, rejection }
    }

    pub(super) fn check(&self) -> Result<(), TooLong> {
        fits(self.rejection.info, 72)?;
        fits(self.rejection.private_data, 148)
    }

    pub(super) fn emit(&self, out: &mut Writer<'_>) {
        let info_len = u8::try_from(self.rejection.info.len()).unwrap_or(72);
        out.u32(self.local_id.get())
            .u32(self.remote_id.get())
            .u8(self.subject.to_upper())
            .u8(info_len << 1)
            .u16(self.rejection.reason.0)
            .padded(self.rejection.info, 72)
            .padded(self.rejection.private_data, 148);
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)+) => {
        /// The reason of a REJ (IBTA section 12.6.7.2). A code without a constant is kept
        /// unchanged.
        ///
        /// # Examples
        ///
        /// ```
        /// use rdma_proto::cm::wire::Reason;
        ///
        /// assert_eq!(Reason::INVALID_SERVICE_ID.to_string(), "no service has this ID (8)");
        /// ```
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct Reason(u16);

        impl Reason {
            $($(#[$doc])* pub const $name: Self = Self($code);)+

            const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                    _ => "another reason",
                }
            }
        }
    };
}

reasons! {
    /// No queue pair is available.
    NO_QUEUE_PAIR = 1, "no queue pair is available";
    /// No end-to-end context is available.
    NO_EE_CONTEXT = 2, "no end-to-end context is available";
    /// Resources other than queue pairs are not available.
    NO_RESOURCES = 3, "resources are not available";
    /// The sender received no answer. The additional information is the GUID of its adapter.
    TIMEOUT = 4, "no answer arrived in time";
    /// The request is not supported.
    UNSUPPORTED = 5, "the request is not supported";
    /// A communication ID of the message is unknown.
    INVALID_COMM_ID = 6, "a communication ID is unknown";
    /// The communication IDs and the queue pair belong to no connection.
    INVALID_COMM_INSTANCE = 7, "the communication IDs and the queue pair do not match";
    /// No service has this ID.
    INVALID_SERVICE_ID = 8, "no service has this ID";
    /// The transport is not supported.
    INVALID_TRANSPORT = 9, "the transport is not supported";
    /// The queue pair is still connected by an earlier connection (IBTA section 12.4.1).
    STALE_CONNECTION = 10, "an earlier connection still uses the queue pair";
    /// The reliable datagram channel does not exist.
    NO_RD_CHANNEL = 11, "the reliable datagram channel does not exist";
    /// The GID of the path is not acceptable.
    INVALID_GID = 12, "the GID of the path is not acceptable";
    /// The LID of the path is not acceptable.
    INVALID_LID = 13, "the LID of the path is not acceptable";
    /// The service level of the path is not acceptable.
    INVALID_SERVICE_LEVEL = 14, "the service level of the path is not acceptable";
    /// The traffic class of the path is not acceptable.
    INVALID_TRAFFIC_CLASS = 15, "the traffic class of the path is not acceptable";
    /// The hop limit of the path is not acceptable.
    INVALID_HOP_LIMIT = 16, "the hop limit of the path is not acceptable";
    /// The packet rate of the path is not acceptable.
    INVALID_PACKET_RATE = 17, "the packet rate of the path is not acceptable";
    /// The GID of the alternate path is not acceptable.
    INVALID_ALTERNATE_GID = 18, "the GID of the alternate path is not acceptable";
    /// The LID of the alternate path is not acceptable.
    INVALID_ALTERNATE_LID = 19, "the LID of the alternate path is not acceptable";
    /// The service level of the alternate path is not acceptable.
    INVALID_ALTERNATE_SERVICE_LEVEL = 20, "the service level of the alternate path is not acceptable";
    /// The traffic class of the alternate path is not acceptable.
    INVALID_ALTERNATE_TRAFFIC_CLASS = 21, "the traffic class of the alternate path is not acceptable";
    /// The hop limit of the alternate path is not acceptable.
    INVALID_ALTERNATE_HOP_LIMIT = 22, "the hop limit of the alternate path is not acceptable";
    /// The packet rate of the alternate path is not acceptable.
    INVALID_ALTERNATE_PACKET_RATE = 23, "the packet rate of the alternate path is not acceptable";
    /// Messages must be sent to the communication manager in the additional information.
    REDIRECT_CM = 24, "another communication manager is responsible";
    /// Messages must be sent to the port in the additional information.
    REDIRECT_PORT = 25, "another port is responsible";
    /// The MTU of the path is not acceptable.
    INVALID_MTU = 26, "the MTU of the path is not acceptable";
    /// Too few READs and atomics can be executed at a time.
    INSUFFICIENT_RESPONDER_RESOURCES = 27, "too few READs and atomics can be executed at a time";
    /// The program rejected the connection. The private data may contain its reason.
    CONSUMER_DEFINED = 28, "the program rejected the connection";
    /// The number of RNR retries is not acceptable.
    INVALID_RNR_RETRY = 29, "the number of RNR retries is not acceptable";
    /// The sender of the REQ uses its communication ID for another connection.
    DUPLICATE_COMM_ID = 30, "another connection has the communication ID";
    /// The version of the message is not supported. The additional information is the supported
    /// one.
    INVALID_CLASS_VERSION = 31, "the version of the message is not supported";
    /// The flow label of the path is not acceptable.
    INVALID_FLOW_LABEL = 32, "the flow label of the path is not acceptable";
    /// The flow label of the alternate path is not acceptable.
    INVALID_ALTERNATE_FLOW_LABEL = 33, "the flow label of the alternate path is not acceptable";
    /// The vendor's options are not supported.
    VENDOR_OPTION_NOT_SUPPORTED = 35, "the vendor's options are not supported";
}

impl Reason {
    /// Creates the reason with this code.
    #[must_use]
    pub const fn new(code: u16) -> Self {
        Self(code)
    }

    /// Returns the code.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.text(), self.0)
    }
}
