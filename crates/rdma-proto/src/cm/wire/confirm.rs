//! RTU and DREP: the confirmations of a REP and of a DREQ.

use super::error::{TooLong, fits};
use crate::cm::address::CommId;
use crate::wire::bytes::{Reader, Writer};

macro_rules! confirmation {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name<'a> {
            /// The sender's communication ID.
            pub local_id: CommId,
            /// The receiver's communication ID.
            pub remote_id: CommId,
            /// At most 224 bytes.
            pub private_data: &'a [u8],
        }

        impl<'a> $name<'a> {
            pub(super) fn parse(fields: &mut Reader<'a>) -> Self {
                Self {
                    local_id: CommId::new(fields.u32()),
                    remote_id: CommId::new(fields.u32()),
                    private_data: fields.rest(),
                }
            }

            pub(super) fn check(&self) -> Result<(), TooLong> {
                fits(self.private_data, 224)
            }

            pub(super) fn emit(&self, out: &mut Writer<'_>) {
                out.u32(self.local_id.get())
                    .u32(self.remote_id.get())
                    .padded(self.private_data, 224);
            }
        }
    };
}

confirmation! {
    /// Ready to use: the active end can send (IBTA table 111).
    Rtu
}

confirmation! {
    /// A disconnection reply (IBTA table 113).
    Drep
}
