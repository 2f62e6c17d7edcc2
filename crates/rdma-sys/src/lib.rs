//! libibverbs as it is: bindings, run-time loader, the table of verbs, the inline functions of
//! `verbs.h`.

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("rdma-sys needs 64-bit Linux: the verbs are an interface of its kernel");

mod elf;
mod errno;
mod generated;
mod inline;
mod load;
mod load_error;
mod os;
mod refusal;
mod registry;
mod table;

pub use errno::Errno;
pub use generated::{functions, verbs::*};
pub use inline::*;
pub use load::system;
pub use load_error::LoadError;
pub use registry::{Provider, UnknownProvider, providers, register};
pub use table::{Unsupported, Verbs};
