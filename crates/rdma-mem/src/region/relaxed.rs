//! Relaxed ordering, for memory that no peer can write.

use std::env::{self, VarError};

use rdma_types::AccessFlags;

use crate::error::Error;

const VARIABLE: &str = "RDMA_RELAXED_ORDERING";

/// The rights that let a peer write, directly or through a window.
const WRITABLE: AccessFlags =
    AccessFlags::REMOTE_WRITE.union(AccessFlags::REMOTE_ATOMIC).union(AccessFlags::MW_BIND);

/// Returns the access flags for memory whose owner reads it only after a completion. They are
/// `access` and, if no peer can write the memory and the environment allows it,
/// [`RELAXED_ORDERING`](AccessFlags::RELAXED_ORDERING).
pub(crate) fn relax(access: AccessFlags) -> Result<AccessFlags, Error> {
    if access.intersects(WRITABLE) || !is_allowed(env::var(VARIABLE))? {
        return Ok(access);
    }
    Ok(access.with_relaxed_ordering())
}

/// Like [`relax`], for memory that windows open only for reading.
pub(crate) fn relax_read_only(access: AccessFlags) -> Result<AccessFlags, Error> {
    Ok(relax(access.difference(AccessFlags::MW_BIND))? | (access & AccessFlags::MW_BIND))
}

fn is_allowed(value: Result<String, VarError>) -> Result<bool, Error> {
    let value = match value {
        Err(VarError::NotPresent) => return Ok(true),
        Ok(text) => text,
        Err(VarError::NotUnicode(text)) => text.to_string_lossy().into_owned(),
    };
    match value.trim() {
        "" | "1" => Ok(true),
        "0" => Ok(false),
        _ => Err(Error::Environment { variable: VARIABLE, value, expected: "0 or 1" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_a_peer_can_write_keeps_its_order() {
        let local = AccessFlags::new().with_local_write();
        for access in [local, local.with_remote_read(), AccessFlags::new()] {
            assert_eq!(relax(access).unwrap(), access.with_relaxed_ordering());
        }
        for access in [local.with_remote_write(), local.with_remote_atomic(), local.with_mw_bind()]
        {
            assert_eq!(relax(access).unwrap(), access);
        }
        let bindable = local.with_mw_bind();
        assert_eq!(relax_read_only(bindable).unwrap(), bindable.with_relaxed_ordering());
        assert_eq!(relax_read_only(local).unwrap(), local.with_relaxed_ordering());
    }

    #[test]
    fn the_variable_is_0_or_1() {
        let allowed = |text: &str| is_allowed(Ok(text.to_owned()));
        assert!(is_allowed(Err(VarError::NotPresent)).unwrap());
        assert!(allowed("").unwrap() && allowed("1").unwrap() && allowed(" 1 ").unwrap());
        assert!(!allowed("0").unwrap());
        let error = allowed("off").unwrap_err().to_string();
        assert!(error.contains("RDMA_RELAXED_ORDERING is `off`"), "{error}");
        assert!(error.contains("0 or 1"), "{error}");
    }
}
