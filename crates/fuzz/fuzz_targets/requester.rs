#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rdma_proto_fuzz::requester(bytes));
