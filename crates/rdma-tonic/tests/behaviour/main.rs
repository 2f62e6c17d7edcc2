//! The behaviour of gRPC and HTTP over streams: a module for each subject.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failing helper fails its test.

mod accepts;
mod calls;
mod ends;
mod http1;
mod http2;
mod rig;
mod routes;
mod tls;
