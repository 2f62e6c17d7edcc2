#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rdma_fuzz::mad(bytes));
