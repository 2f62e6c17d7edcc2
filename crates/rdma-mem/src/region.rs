//! Memory regions. Each contains a [`Registration`](registration::Registration) with the owner of
//! its memory, except [`DmabufRegion`](dmabuf::DmabufRegion), whose memory has no address in this
//! process.

pub(crate) mod array;
pub(crate) mod borrowed;
pub(crate) mod copy;
pub(crate) mod dmabuf;
pub(crate) mod hint;
pub(crate) mod local;
pub(crate) mod mapping;
pub(crate) mod memory;
pub(crate) mod owned;
pub(crate) mod pool;
pub(crate) mod registration;
pub(crate) mod relaxed;
pub(crate) mod shared;
pub(crate) mod unowned;
mod whole;
