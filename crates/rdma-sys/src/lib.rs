//! libibverbs as it is: bindings, run-time loader, the table of verbs, the inline functions of
//! `verbs.h`.

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("rdma-sys needs 64-bit Linux: the verbs are an interface of its kernel");

mod generated;
mod os;

pub use generated::functions;
pub use generated::verbs::*;
