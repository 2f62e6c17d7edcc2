//! Data damaged in transit never gets a name.

use std::fs;

use copy_file::{Control, Error, Settings};
use test_support::fault::ByteFlip;

use crate::bench::{Bench, noise};

#[test]
fn one_byte_flipped_in_flight_is_detected_wherever_it_is() {
    rdma::soft::install();
    for device in ["soft0", "softib0"] {
        for at in [0, 1, 4095, 4096, 50_000, 99_999] {
            let bench = Bench::with_source(&noise(100_000));
            let flip = |offset: u64, bytes: &mut [u8]| {
                ByteFlip { at }.apply(offset, bytes);
            };
            let control = Control { arrival: &flip, ..Control::default() };
            let result = bench.copy(device, Settings::new(4096, 4).unwrap(), control);
            let Err(Error::Corrupt { expected, found, expected_bytes, bytes }) = result else {
                panic!("{result:?}");
            };
            assert_ne!(expected, found);
            assert_eq!((expected_bytes, bytes), (100_000, 100_000));
            assert_eq!(bench.names(), ["source"]);
        }
    }
}

#[test]
fn the_old_file_survives_a_damaged_copy() {
    rdma::soft::install();
    let bench = Bench::with_source(&noise(10_000));
    fs::write(bench.at("copy"), "old").unwrap();
    let flip = |offset: u64, bytes: &mut [u8]| {
        ByteFlip { at: 5000 }.apply(offset, bytes);
    };
    let control = Control { arrival: &flip, ..Control::default() };
    let error = bench.copy("soft0", Settings::default(), control).unwrap_err().to_string();
    assert!(error.contains("damaged in transit"), "{error}");
    assert_eq!(fs::read(bench.at("copy")).unwrap(), b"old");
    assert_eq!(bench.names(), ["copy", "source"]);
}
