//! A gRPC service with all four kinds of call, for RDMA and TCP.
//!
//! `proto` is generated from `proto/greeter.proto`, so that a build needs no `protoc`. After a change of that file, run
//! a program with these lines, which uses the crates `tonic-prost-build` and `protox`:
//!
//! ```text
//! let set = protox::compile(["proto/greeter.proto"], ["proto"])?;
//! tonic_prost_build::configure().out_dir("src/generated").compile_fds(set)?;
//! ```

mod command;
mod service;

pub use command::main;
pub use service::MyGreeter;

/// The messages, the client and the server, as generated.
#[allow(missing_docs, clippy::all, clippy::too_many_lines)]
pub mod proto {
    include!("generated/greeter.rs");
}
