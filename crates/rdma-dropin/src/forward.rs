//! Functions of libibverbs that only forward to the table of verbs.

/// Defines C functions, each with the verb of the table that it calls. A verb that the table may lack has an `or`, with
/// the result in that case.
///
/// Each function is compared with its type in `rdma_sys::functions`, because C would not notice a difference.
macro_rules! forward {
    (@call $verb:ident($($argument:ident),*)) => {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        unsafe { ($crate::provider::verbs().$verb)($($argument),*) }
    };
    (@call $verb:ident($($argument:ident),*), $lacking:expr) => {
        match $crate::provider::verbs().$verb {
            // SAFETY: as above.
            Some(verb) => unsafe { verb($($argument),*) },
            None => $lacking,
        }
    };
    ($(
        $(#[$attribute:meta])*
        $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $returned:ty)? => $verb:ident $(, or $lacking:expr)?;
    )+) => {$(
        const _: rdma_sys::functions::$name = $name;
        $(#[$attribute])*
        #[allow(unsafe_code)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) $(-> $returned)? {
            forward!(@call $verb($($argument),*) $(, $lacking)?)
        }
    )+};
}

pub(crate) use forward;
