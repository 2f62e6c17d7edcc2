//! Code that the tests of several programs share.

pub(crate) mod process;

use test_support::features::{self, Feature};

/// Returns true if the device has the feature.
pub(crate) fn has(device: &str, feature: Feature) -> bool {
    rdma::soft::install();
    features::has(device, feature)
}

/// Returns true if the device lacks the feature, and prints that a test or a part of it is skipped.
pub(crate) fn lacks(device: &str, feature: Feature) -> bool {
    rdma::soft::install();
    features::lacks(device, feature)
}
