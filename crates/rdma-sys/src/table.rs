//! The table of verbs: one function pointer for each libibverbs function that is used.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fmt;

use libloading::os::unix::Library;

use crate::{
    generated::{
        functions::*,
        verbs::{ibv_comp_channel, ibv_mr, ibv_pd},
    },
    mads::Mads,
    unimplemented::{MinusOne, Nothing, Null, Number, Refuse, Text, Zero},
};

/// The type of [`Verbs::note_mapped`].
pub type NoteMapped = unsafe extern "C" fn(mr: *mut ibv_mr);

/// The type of [`Verbs::wants_file`].
pub type WantsFile = unsafe extern "C" fn(pd: *mut ibv_pd, length: usize, access: u32) -> c_int;

/// The type of [`Verbs::note_file`].
pub type NoteFile = unsafe extern "C" fn(mr: *mut ibv_mr, file: c_int);

/// The type of [`Verbs::wake_early`].
pub type WakeEarly = unsafe extern "C" fn(channel: *mut ibv_comp_channel);

/// A function that this provider lacks: its libibverbs is too old, or it is a software device that
/// does not implement the function.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the provider `{provider}` has no `{verb}` (added to libibverbs in {since}): update \
     rdma-core, or do without it"
)]
#[non_exhaustive]
pub struct Unsupported {
    /// The function's name in C.
    pub verb: &'static str,
    /// The symbol version that introduced the function, and the rdma-core release that has this
    /// version.
    pub since: &'static str,
    /// The [name](Verbs::name) in the provider's table.
    pub provider: &'static str,
}

rdma_types::debug_messages!(struct Unsupported { verb, since, provider });

/// Looks up a function by its C name.
///
/// # Safety
/// `F` is the type of a pointer to the function that `library` exports as `name`.
pub(crate) unsafe fn symbol<F: Copy>(library: &Library, name: &str) -> Option<F> {
    // SAFETY: `Option<F>` has the size and the niche of a pointer, so NULL is a valid value; this
    // function's contract covers the rest (SAFETY.md F2).
    let found = unsafe { library.get::<Option<F>>(name) };
    found.ok().and_then(|symbol| *symbol)
}

/// Defines the struct, the empty table, the loader, the linked table and the list of symbol
/// versions from one list, so they cannot differ. An entry is `field: C name => failure mode`; the
/// header defines its signature ([`functions`](crate::functions)).
macro_rules! table {
    (
        required { $($field:ident: $symbol:ident => $refusal:ident,)+ }
        $(optional $since:literal { $($optional:ident: $newer:ident,)+ })+
    ) => {
        /// The functions of one provider: an installed libibverbs or a software device.
        ///
        /// A field has the name of its C function without `ibv_`, and that function's manual page
        /// documents it. The functions with the symbol versions 1.0 and 1.1 are always present. A
        /// later function is an `Option`, and a method with the field's name turns a missing one
        /// into a typed [`Unsupported`].
        ///
        /// Calls on the data path do not go through this table. They go through the `ops` in the
        /// object's context, as in the inline functions of `verbs.h`
        /// ([`ibv_post_send`](crate::ibv_post_send) …).
        ///
        /// A new provider starts from [`Verbs::unsupported`] and sets the functions that it
        /// implements:
        ///
        /// ```
        /// use rdma_sys::{Verbs, ibv_device};
        ///
        /// unsafe extern "C" fn name(_device: *mut ibv_device) -> *const std::ffi::c_char {
        ///     c"example0".as_ptr()
        /// }
        ///
        /// let mut verbs = Verbs::unsupported();
        /// verbs.name = "example";
        /// verbs.get_device_name = name;
        /// assert_eq!(verbs.reg_dmabuf_mr().unwrap_err().verb, "ibv_reg_dmabuf_mr");
        /// ```
        #[derive(Clone, Copy)]
        #[non_exhaustive]
        pub struct Verbs {
            /// The provider's name in `RDMA_PROVIDERS` and in messages: `system`, `soft`.
            pub name: &'static str,
            $(
                #[doc = concat!("`", stringify!($symbol), "`, always there.")]
                pub $field: $symbol,
            )+
            $($(
                #[doc = concat!("`", stringify!($newer), "`, since ", $since, ".")]
                pub $optional: Option<$newer>,
            )+)+
            /// Notes that a region's memory stays mapped while any request can use it.
            ///
            /// This is an extension: libibverbs has no such function, and [`system`](crate::system)
            /// never sets the field. Any provider may set the field. The function is for providers
            /// that copy with the process's own instructions, and that would otherwise have to
            /// check that memory is still mapped. A device that pins pages does not need the
            /// function. The method [`note_mapped`](Self::note_mapped) calls it and states the
            /// contract.
            pub note_mapped: Option<NoteMapped>,
            /// Returns 1 if the provider could use the file of a new region, and otherwise 0.
            ///
            /// This is an extension like [`note_mapped`](Self#structfield.note_mapped). It is for
            /// providers that let other processes of the user access the region's pages. The method
            /// [`wants_file`](Self::wants_file) calls it.
            pub wants_file: Option<WantsFile>,
            /// Passes the file of a region to the provider.
            ///
            /// This is an extension like [`note_mapped`](Self#structfield.note_mapped). The method
            /// [`note_file`](Self::note_file) calls it and states the contract.
            pub note_file: Option<NoteFile>,
            /// Allows the file of a completion channel to be readable before there is an event.
            ///
            /// This is an extension like [`note_mapped`](Self#structfield.note_mapped). It is for
            /// providers that execute what arrives in the process itself. The thread that an
            /// arrival wakes then executes it, and no other thread has to wake that thread. The
            /// method [`wake_early`](Self::wake_early) calls it and states the contract.
            pub wake_early: Option<WakeEarly>,
            /// Access to queue pair 1, through which ports exchange management datagrams.
            ///
            /// This is an extension like [`note_mapped`](Self#structfield.note_mapped). It is for
            /// communication managers that are part of the program. The methods
            /// [`open_mads`](Self::open_mads), [`mad_source`](Self::mad_source) and
            /// [`send_mad`](Self::send_mad) use it and state the contract.
            pub mads: Option<Mads>,
        }

        impl Verbs {
            /// Returns a table without optional functions. Each function fails as in C: with NULL
            /// or -1 and `errno` set to `ENOSYS`, or with `ENOSYS` itself. A function that cannot
            /// report an error returns 0, a text or nothing. The table's name is `unsupported`.
            #[must_use]
            pub const fn unsupported() -> Self {
                Self {
                    name: "unsupported",
                    $($field: <$symbol as Refuse<$refusal>>::REFUSE,)+
                    $($($optional: None,)+)+
                    note_mapped: None,
                    wants_file: None,
                    note_file: None,
                    wake_early: None,
                    mads: None,
                }
            }

            /// Returns the table of a loaded libibverbs, or the first required function that it
            /// lacks.
            ///
            /// # Safety
            /// The symbols that `library` exports under the names of libibverbs' functions must be
            /// these functions (SAFETY.md F2), and the library must stay loaded.
            pub(crate) unsafe fn load(
                name: &'static str,
                library: &Library,
            ) -> Result<Self, &'static str> {
                Ok(Self {
                    name,
                    $(
                        // SAFETY: the type matches the header's declaration (SAFETY.md F5), and the
                        // symbol is that function by this function's contract (F2).
                        $field: unsafe { symbol::<$symbol>(library, stringify!($symbol)) }
                            .ok_or(stringify!($symbol))?,
                    )+
                    $($(
                        // SAFETY: same argument as above.
                        $optional: unsafe { symbol::<$newer>(library, stringify!($newer)) },
                    )+)+
                    note_mapped: None,
                    wants_file: None,
                    note_file: None,
                    wake_early: None,
                    mads: None,
                })
            }

            /// Returns the table of the functions against which the program is linked.
            #[cfg(feature = "linked")]
            pub(crate) const fn of_symbols(name: &'static str) -> Self {
                Self {
                    name,
                    $($field: crate::generated::symbols::$symbol,)+
                    $($($optional: Some(crate::generated::symbols::$newer),)+)+
                    note_mapped: None,
                    wants_file: None,
                    note_file: None,
                    wake_early: None,
                    mads: None,
                }
            }

            /// The functions that a libibverbs must have. Without one of them, it is not loaded.
            pub const REQUIRED: &'static [&'static str] = &[$(stringify!($symbol),)+];

            /// Each optional function, and the symbol version that introduced it.
            pub const SINCE: &'static [(&'static str, &'static str)] =
                &[$($((stringify!($newer), $since),)+)+];

            $($(
                #[doc = concat!("`", stringify!($newer), "`.")]
                ///
                /// # Errors
                #[doc = concat!("[`Unsupported`] by a libibverbs before ", $since, ".")]
                #[inline]
                pub fn $optional(&self) -> Result<$newer, Unsupported> {
                    self.$optional.ok_or(Unsupported {
                        verb: stringify!($newer),
                        since: $since,
                        provider: self.name,
                    })
                }
            )+)+
        }
    };
}

table! {
    required {
        get_device_list: ibv_get_device_list => Null,
        free_device_list: ibv_free_device_list => Nothing,
        get_device_name: ibv_get_device_name => Text,
        get_device_guid: ibv_get_device_guid => Zero,
        open_device: ibv_open_device => Null,
        close_device: ibv_close_device => Number,
        get_async_event: ibv_get_async_event => MinusOne,
        ack_async_event: ibv_ack_async_event => Nothing,
        query_device: ibv_query_device => Number,
        query_port: ibv_query_port => Number,
        query_gid: ibv_query_gid => MinusOne,
        query_pkey: ibv_query_pkey => MinusOne,
        alloc_pd: ibv_alloc_pd => Null,
        dealloc_pd: ibv_dealloc_pd => Number,
        reg_mr: ibv_reg_mr => Null,
        rereg_mr: ibv_rereg_mr => Number,
        dereg_mr: ibv_dereg_mr => Number,
        create_comp_channel: ibv_create_comp_channel => Null,
        destroy_comp_channel: ibv_destroy_comp_channel => Number,
        create_cq: ibv_create_cq => Null,
        resize_cq: ibv_resize_cq => Number,
        destroy_cq: ibv_destroy_cq => Number,
        get_cq_event: ibv_get_cq_event => MinusOne,
        ack_cq_events: ibv_ack_cq_events => Nothing,
        create_srq: ibv_create_srq => Null,
        modify_srq: ibv_modify_srq => Number,
        query_srq: ibv_query_srq => Number,
        destroy_srq: ibv_destroy_srq => Number,
        create_qp: ibv_create_qp => Null,
        modify_qp: ibv_modify_qp => Number,
        query_qp: ibv_query_qp => Number,
        destroy_qp: ibv_destroy_qp => Number,
        create_ah: ibv_create_ah => Null,
        create_ah_from_wc: ibv_create_ah_from_wc => Null,
        init_ah_from_wc: ibv_init_ah_from_wc => Number,
        destroy_ah: ibv_destroy_ah => Number,
        attach_mcast: ibv_attach_mcast => Number,
        detach_mcast: ibv_detach_mcast => Number,
        fork_init: ibv_fork_init => Number,
        wc_status_str: ibv_wc_status_str => Text,
        event_type_str: ibv_event_type_str => Text,
        node_type_str: ibv_node_type_str => Text,
        port_state_str: ibv_port_state_str => Text,
    }
    optional "IBVERBS_1.5, rdma-core 20" {
        get_pkey_index: ibv_get_pkey_index,
    }
    optional "IBVERBS_1.6, rdma-core 24" {
        qp_to_qp_ex: ibv_qp_to_qp_ex,
    }
    optional "IBVERBS_1.7, rdma-core 25" {
        reg_mr_iova: ibv_reg_mr_iova,
    }
    optional "IBVERBS_1.8, rdma-core 28" {
        reg_mr_iova2: ibv_reg_mr_iova2,
    }
    optional "IBVERBS_1.9, rdma-core 30" {
        get_device_index: ibv_get_device_index,
    }
    optional "IBVERBS_1.10, rdma-core 31" {
        import_device: ibv_import_device,
        import_pd: ibv_import_pd,
        unimport_pd: ibv_unimport_pd,
        import_mr: ibv_import_mr,
        unimport_mr: ibv_unimport_mr,
        query_ece: ibv_query_ece,
        set_ece: ibv_set_ece,
    }
    optional "IBVERBS_1.11, rdma-core 32" {
        query_gid_ex: _ibv_query_gid_ex,
        query_gid_table: _ibv_query_gid_table,
    }
    optional "IBVERBS_1.12, rdma-core 34" {
        reg_dmabuf_mr: ibv_reg_dmabuf_mr,
    }
    optional "IBVERBS_1.13, rdma-core 35" {
        import_dm: ibv_import_dm,
        unimport_dm: ibv_unimport_dm,
        is_fork_initialized: ibv_is_fork_initialized,
    }
    optional "IBVERBS_1.14, rdma-core 36" {
        query_qp_data_in_order: ibv_query_qp_data_in_order,
    }
}

impl Verbs {
    /// Notes that a region's memory stays mapped while any request can use it. Does nothing if the
    /// provider [does not need it](Self#structfield.note_mapped).
    ///
    /// # Safety
    /// `mr` is a live region from this table. The call is made at most once, after the registration
    /// and before any key of the region is used. Until `ibv_dereg_mr` returns 0 for the region, its
    /// memory is mapped whenever a request or a peer can use it. The memory can be used with a key
    /// of the region, or with the key of a window on the region. The mapping has the rights that
    /// the region's access needs.
    #[inline]
    pub unsafe fn note_mapped(&self, mr: *mut ibv_mr) {
        if let Some(note_mapped) = self.note_mapped {
            // SAFETY: the region belongs to this table (SAFETY.md F2), and the contract covers the
            // memory (F29).
            unsafe { note_mapped(mr) };
        }
    }

    /// Returns true if the provider could use the memory file of a region with this length and
    /// access (`IBV_ACCESS_*`). The region need not have a file.
    ///
    /// # Safety
    /// `pd` is a live protection domain from this table.
    #[must_use]
    pub unsafe fn wants_file(&self, pd: *mut ibv_pd, length: usize, access: u32) -> bool {
        let Some(wants_file) = self.wants_file.filter(|_| self.note_file.is_some()) else {
            return false;
        };
        // SAFETY: the domain belongs to this table (SAFETY.md F2).
        unsafe { wants_file(pd, length, access) != 0 }
    }

    /// Passes the memory file of a region to the provider, which may let other processes of this
    /// user map it. The provider duplicates the descriptor if it needs it.
    ///
    /// # Safety
    /// `mr` is a live region from this table. The call is made at most once, after
    /// [`note_mapped`](Self::note_mapped) and before any key of the region is used. `file` is open
    /// during the call. It contains the pages of the region and nothing else, and its size cannot
    /// change. No other registration has these pages.
    ///
    /// If the access of the region lets peers change the pages, other processes may change them
    /// later, even after the region is deregistered. The program must not use them as
    /// memory that only it changes. Otherwise, the file is sealed against writing through any later
    /// mapping.
    pub unsafe fn note_file(&self, mr: *mut ibv_mr, file: c_int) {
        if let Some(note_file) = self.note_file {
            // SAFETY: the region belongs to this table (SAFETY.md F2), and the contract covers the
            // file (F31).
            unsafe { note_file(mr, file) };
        }
    }

    /// Allows the file of a completion channel to be readable before there is an event: when
    /// something has arrived that may complete a request. `ibv_get_cq_event` then executes what has
    /// arrived, and fails with `EAGAIN` if there is still no event.
    ///
    /// # Safety
    /// `channel` is a live channel from this table. The call is made at most once, right after the
    /// channel was created, and before its `fd` is read, because the provider may replace it.
    ///
    /// The program calls `ibv_get_cq_event` whenever the file is readable, and treats `EAGAIN` as
    /// described. The function never waits.
    pub unsafe fn wake_early(&self, channel: *mut ibv_comp_channel) {
        if let Some(wake_early) = self.wake_early {
            // SAFETY: the channel belongs to this table (SAFETY.md F2).
            unsafe { wake_early(channel) };
        }
    }
}

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verbs").field("name", &self.name).finish_non_exhaustive()
    }
}
