//! The identity of an object in events.

use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Identifies a queue pair, a completion queue or a shared receive queue in events.
///
/// No two objects in a process ever get the same id, even if one is created after the other is
/// destroyed. Therefore an event about a destroyed object is never attributed to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(usize);

impl ObjectId {
    /// Returns an id that no other object in the process has ever had. `rdma-qp` calls this for the
    /// objects that it creates.
    #[must_use]
    pub fn unique() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the id that an object's user context (`qp_context`, `cq_context`, `srq_context`)
    /// holds. The context is never used as an address. In objects that other code creates, it may
    /// hold any value.
    #[must_use]
    pub fn from_context(context: *mut c_void) -> Self {
        Self(context.addr())
    }

    /// Returns the user context for an object with this id.
    #[must_use]
    pub const fn to_context(self) -> *mut c_void {
        ptr::without_provenance_mut(self.0)
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_and_survive_the_way_through_c() {
        let (a, b) = (ObjectId::unique(), ObjectId::unique());
        assert_ne!(a, b);
        assert_eq!(ObjectId::from_context(a.to_context()), a);
        assert_ne!(
            a,
            ObjectId::from_context(ptr::null_mut()),
            "NULL is not the context of an object"
        );
    }
}
