//! Work requests, which programs post to queue pairs.

pub(crate) mod atomic;
pub(crate) mod elements;
pub(crate) mod flags;
pub(crate) mod queued;
pub(crate) mod queued_receive;
pub(crate) mod read;
pub(crate) mod receive;
pub(crate) mod request;
pub(crate) mod send;
pub(crate) mod send_wr;
pub(crate) mod window;
pub(crate) mod write;
