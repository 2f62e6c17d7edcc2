//! The input format of fuzz targets: records of numbers, each with its lowest byte first. After the
//! end of the input, zeros are read.
#![allow(clippy::expect_used)] // A failing helper fails its test.

use std::fmt::Debug;
use std::path::Path;
use std::sync::LazyLock;
use std::{env, fs};

use arbitrary::{Arbitrary, Unstructured};

/// Reads the next number from the input.
pub fn number<'a, T: Arbitrary<'a>>(input: &mut Unstructured<'a>) -> T {
    input.arbitrary().expect("zeros follow the end")
}

/// Prints a step that the input encodes, to help reproduce a finding. Does so only if
/// `RDMA_FUZZ_TRACE` is set.
pub fn trace(step: &impl Debug) {
    static ASKED: LazyLock<bool> = LazyLock::new(|| env::var_os("RDMA_FUZZ_TRACE").is_some());
    if *ASKED {
        eprintln!("{step:?}");
    }
}

/// Writes an input to the folder of the target's seeds. `temporary` is the test's
/// `CARGO_TARGET_TMPDIR`.
pub fn write_seed(temporary: &str, target: &str, name: &str, bytes: &[u8]) {
    let folder = Path::new(temporary).join("fuzz").join(target);
    fs::create_dir_all(&folder).expect("a folder for seeds");
    fs::write(folder.join(name), bytes).expect("a seed");
}

/// Defines a record that can be read from an input and written to a seed.
#[macro_export]
macro_rules! fuzz_record {
    ($(#[$about:meta])* $name:ident { $($(#[$note:meta])* $field:ident: $number:ty,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct $name { $($(#[$note])* pub(crate) $field: $number,)+ }

        impl $name {
            pub(crate) fn read(input: &mut arbitrary::Unstructured<'_>) -> Self {
                let record = Self { $($field: $crate::fuzz::number(input),)+ };
                $crate::fuzz::trace(&record);
                record
            }

            pub(crate) fn write(&self, bytes: &mut Vec<u8>) {
                $(bytes.extend(self.$field.to_le_bytes());)+
            }
        }
    };
}
