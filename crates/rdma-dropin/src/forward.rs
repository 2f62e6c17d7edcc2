//! Functions of libibverbs that only forward to a table of verbs.

/// Defines C functions, each with the verb that it calls. The first argument is an object or a device, whose provider's
/// table is used. A verb that the table may lack has an `or`, with the result in that case.
///
/// Each function is compared with its type in `rdma_sys::functions`, because C would not notice a difference.
macro_rules! forward {
    (@call $verbs:ident.$verb:ident($($argument:ident),*)) => {
        // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
        unsafe { ($verbs.$verb)($($argument),*) }
    };
    (@call $verbs:ident.$verb:ident($($argument:ident),*), $lacking:expr) => {
        match $verbs.$verb {
            // SAFETY: as above.
            Some(verb) => unsafe { verb($($argument),*) },
            None => $lacking,
        }
    };
    ($(
        $(#[$attribute:meta])*
        $name:ident($first:ident: $object:ty $(, $argument:ident: $type:ty)* $(,)?) $(-> $returned:ty)? => $verb:ident $(, or $lacking:expr)?;
    )+) => {$(
        const _: rdma_sys::functions::$name = $name;
        $(#[$attribute])*
        #[allow(unsafe_code)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($first: $object, $($argument: $type),*) $(-> $returned)? {
            // SAFETY: the caller passes a live object, or NULL (SAFETY.md F1).
            let verbs = unsafe { $crate::provider::verbs_of($first) };
            forward!(@call verbs.$verb($first $(, $argument)*) $(, $lacking)?)
        }
    )+};
}

pub(crate) use forward;
