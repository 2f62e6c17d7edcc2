//! The steps of jobs that have many of them.

use super::needs::Need;
use super::step::{Step, run, tests, tests_two_at_a_time, two_at_a_time};

/// Makes cargo compile the crates of the workspace by a script in `rustc/`, which adds options. Flags
/// in `RUSTFLAGS` would apply to all crates, and cargo would compile their dependencies again.
macro_rules! compiled_by {
    ($script:literal) => {
        ("RUSTC_WORKSPACE_WRAPPER", concat!("{root}/xtask/src/ci/rustc/", $script))
    };
}

/// Makes cargo run only the programs of the crate that `RDMA_CI_ONLY` names.
const RUN_ONLY: (&str, &str) = ("CARGO_TARGET_{HOST}_RUNNER", "{target}/debug/xtask only");

/// Runs a program under valgrind, which fails the program if it leaks or has an invalid access.
macro_rules! memcheck {
    () => {
        "valgrind --quiet --fair-sched=yes --error-exitcode=99 --leak-check=full \
            --show-leak-kinds=definite --errors-for-leak-kinds=definite \
            --suppressions={root}/xtask/src/ci/valgrind.supp"
    };
}

const MEMCHECK: (&str, &str) = ("CARGO_TARGET_{HOST}_RUNNER", memcheck!());

/// The suppressions name inlined functions, which memcheck knows only from the tables of lines.
/// `.ci/run` omits these tables from its builds.
const LINES: (&str, &str) = ("CARGO_PROFILE_DEV_DEBUG", "line-tables-only");

pub(super) const AARCH64_NEEDS: &[Need] = &[
    Need::Std("aarch64-unknown-linux-gnu"),
    Need::Tool(
        "aarch64-linux-gnu-gcc",
        "apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    ),
    Need::Tool("qemu-aarch64", "apt-get install qemu-user"),
];

/// Debian's cross compiler links the programs. qemu runs them, and also the programs that tests
/// start.
const EMULATED: &[(&str, &str)] = &[
    ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc"),
    ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", "qemu-aarch64 -L /usr/aarch64-linux-gnu"),
    ("RDMA_TEST_EMULATOR", "qemu-aarch64 -L /usr/aarch64-linux-gnu"),
    ("CC", "aarch64-linux-gnu-gcc"),
    // Line numbers are not needed, and compilation is faster without debug information.
    ("CARGO_PROFILE_DEV_DEBUG", "0"),
    WITHOUT_RXE,
];

/// Compiles everything for the target, including programs and tests.
const AARCH64_CHECK: Step = run(
    "cargo check --target aarch64-unknown-linux-gnu --workspace --exclude xtask --exclude softroce",
)
.with(EMULATED);

/// Compiles the published crates, and runs the tests that depend on the processor. These are the
/// tests of the copy, of atomics, of the layout of C's structs, and of the functions in its
/// headers. Tests that fork are skipped: if a process with several threads forks, the child may
/// hang in qemu, which has locks of its own. The device is not optimised, because no other job uses
/// the compiled tests.
pub(super) const AARCH64: &[Step] = &[
    run("cargo check --target aarch64-unknown-linux-gnu {products}").with(EMULATED),
    tests(
        "cargo test --target aarch64-unknown-linux-gnu --config profile.test.package.rdma-soft.opt-level=0 \
            -p rdma-sys -p rdma-soft --lib -- --skip fork",
    )
    .with(EMULATED),
    tests(
        "cargo test --target aarch64-unknown-linux-gnu --config profile.test.package.rdma-soft.opt-level=0 \
            -p rdma-sys -p rdma-soft --test behaviour -- \
            layout:: inline:: inline_extended:: inline_mw:: device::atomics:: --skip fork",
    )
    .with(EMULATED),
];

pub(super) const MSRV_NEEDS: &[Need] =
    &[Need::Works("cargo +{msrv} --version", "rustup toolchain install {msrv}")];

const OLDEST: &[(&str, &str)] =
    &[("RUSTUP_TOOLCHAIN", "{msrv}"), ("CARGO_TARGET_DIR", "{target}/features")];

pub(super) const MSRV: &[Step] = &[run("cargo check {products}").with(OLDEST)];

pub(super) const FEATURES: &[Step] = &[run("{target}/debug/xtask features").with(OLDEST)];

/// The suite accepts one filter.
pub(super) const MORE_DEVICES: &[Step] = &[
    run("cargo test -p conformance --test conformance --no-run"),
    tests_two_at_a_time(&[
        "cargo test -p conformance --test conformance -- softib0-deferred::",
        "cargo test -p conformance --test conformance -- softib0-wire::",
        "cargo test -p conformance --test conformance -- wire-deferred::",
    ])
    .with(&[
        (
            "RDMA_TEST_DEVICES",
            "softib0-deferred:all,softib0-wire:all,soft0-wire-deferred:all,softib0-wire-deferred:all",
        ),
        WITHOUT_RXE,
        ("RUST_TEST_THREADS", "4"),
    ]),
];

/// Runs the tests of a crate on devices that imitate this NIC.
macro_rules! on_nic {
    ($crate_:literal, $profile:literal) => {
        concat!(
            "env RDMA_CI_ONLY=",
            $crate_,
            " RDMA_SOFT_LIKE=",
            $profile,
            " cargo test --workspace --test behaviour",
        )
    };
}

/// Runs the tests of the channels, the examples and rdmatool twice, on devices that imitate one NIC
/// and the other.
macro_rules! on_nics {
    ($one:literal, $other:literal) => {
        tests_two_at_a_time(&[
            on_nic!("rdma-channel", $one),
            on_nic!("rdma-channel", $other),
            on_nic!("rdma-examples", $one),
            on_nic!("rdma-examples", $other),
            on_nic!("copy_file", $one),
            on_nic!("copy_file", $other),
            on_nic!("rdma-tools", $one),
            on_nic!("rdma-tools", $other),
        ])
        .with(&[RUN_ONLY, ("RUST_TEST_THREADS", "4")])
    };
}

/// Runs tests on further profiles. As in `nics`, tests are skipped if they need a feature that the
/// device lacks.
pub(super) const PROFILES: &[Step] = &[
    tests("cargo test -p conformance --test conformance -- like-")
        .with(&[("RDMA_TEST_DEVICES", "like-broadcom-thor,like-hip08,like-mana,like-connect-ib")]),
    run("cargo build --profile test --workspace --examples"),
    run("cargo test --workspace --test behaviour --no-run"),
    on_nics!("broadcom-thor", "connect-ib"),
    on_nics!("hip08", "mana"),
];

/// One NIC has all features, and the other one lacks many, so tests that need those are skipped.
/// Tests mostly wait, so running two at a time takes no longer than one.
pub(super) const NICS: &[Step] = &[
    run("cargo build --profile test --workspace --examples"),
    run("cargo test --workspace --test behaviour --no-run"),
    on_nics!("connectx-7", "intel-e810"),
];

const STALLED: &[(&str, &str)] = &[compiled_by!("stalls.sh"), WITHOUT_RXE];

pub(super) const STALLS: &[Step] = &[
    tests("cargo test -p conformance --test conformance").with(STALLED),
    tests("cargo test --lib --tests -p rdma-soft").with(STALLED),
    tests(
        "cargo test --lib --test behaviour -p rdma-mem -p rdma-qp -p rdma-cm \
            -p rdma-channel -p rdma-connect -p rdma-async -p rdma",
    )
    .with(STALLED),
];

/// Tests of code that must not compile do not depend on the processor, so they are skipped. Tests
/// that fork are skipped as in [`AARCH64`], but not in the suite, whose cases run in separate
/// processes. Tests with files of hostile processes are skipped too: qemu opens all files of a
/// message, although the program has room for one.
pub(super) const AARCH64_FULL: &[Step] = &[
    AARCH64_CHECK,
    tests(
        "cargo test --no-fail-fast --target aarch64-unknown-linux-gnu --lib --tests -p rdma-types -p rdma-sys \
            -p rdma-proto -p rdma-soft -p rdma-mem -p rdma-qp -p rdma-channel -p test-support \
            -- --skip no_case_compiles --skip fork --skip neighbours::files_of --skip files_that_no_device",
    )
    .with(EMULATED),
    tests("cargo test --target aarch64-unknown-linux-gnu -p conformance --test conformance")
        .with(EMULATED),
];

/// Leaves crates unoptimised that release builds of tests and benches only link.
macro_rules! linked_only {
    () => {
        "--config profile.release.package.proptest.opt-level=0 \
            --config profile.release.package.regex-syntax.opt-level=0 \
            --config profile.release.package.trybuild.opt-level=0 "
    };
}

/// Compiles all benches first, and then runs them two at a time. Callgrind uses only one processor,
/// and its counts do not depend on other programs.
macro_rules! instructions {
    ($crate_:literal) => {
        instructions!($crate_, "")
    };
    ($crate_:literal, $how:literal) => {
        concat!(
            "env RDMA_CI_ONLY=",
            $crate_,
            " cargo bench -p rdma-proto -p rdma-qp -p rdma-channel -p rdma-async -p rdma-soft \
                -p rdma-dropin ",
            linked_only!(),
            "--bench instructions ",
            $how,
        )
    };
}

pub(super) const INSTRUCTIONS: &[Step] = &[
    run(instructions!("", "--no-run")),
    two_at_a_time(&[
        instructions!("rdma-qp"),
        instructions!("rdma-channel"),
        instructions!("rdma-async"),
        instructions!("rdma-soft"),
        instructions!("rdma-proto"),
        instructions!("rdma-dropin"),
    ])
    .with(&[RUN_ONLY]),
];

/// Runs the program `copy_file` as a user would. The build selects the same crates as `nics`, which
/// has compiled them.
pub(super) const COPY_FILE: &[Step] = &[
    run("cargo build --profile test --workspace --examples --bin copy_file"),
    run("mkdir -p {target}/copy-file"),
    run("dd if=/dev/urandom of={target}/copy-file/src bs=10000019 count=1 iflag=fullblock"),
    run("{target}/debug/copy_file {target}/copy-file/src {target}/copy-file/soft0 \
        --device soft0"),
    run("cmp {target}/copy-file/src {target}/copy-file/soft0"),
    run("{target}/debug/copy_file {target}/copy-file/src {target}/copy-file/softib0 \
        --device softib0"),
    run("cmp {target}/copy-file/src {target}/copy-file/softib0"),
];

pub(super) const IMAGE: &[Step] = &[
    run("crates/rdma-dropin/image/build.sh {target}/image.tar"),
    run("crates/rdma-dropin/image/check.sh {target}/image.tar"),
    run("crates/rdma-dropin/deb/build.sh {target}/rdma-soft.deb"),
    run("crates/rdma-dropin/deb/check.sh {target}/rdma-soft.deb"),
];

pub(super) const RXE: &[Step] = &[
    run("cargo build --profile test -p rdma-examples --examples"),
    run("cargo xtask rxe-setup"),
    // This does not use `cargo xtask`, because the runner would be applied to xtask itself.
    tests(
        "cargo test -p rdma-examples -p copy_file -p greeter -p rdma-tools --test behaviour \
            -- --ignored --test-threads=1",
    )
    .with(&[("CARGO_TARGET_{HOST}_RUNNER", "{target}/debug/xtask rxe-run --timeout 900 --")]),
    // The programs of the tutorial open `soft0`, so the script gives this name to the RXE device.
    tests("cargo test -p rdma-examples --doc Tutorial").with(&[(
        "CARGO_TARGET_{HOST}_RUNNER",
        "{target}/debug/xtask rxe-run --machine --timeout 900 -- \
            /bin/sh ../xtask/src/ci/rxe_as.sh soft0",
    )]),
    run("cargo xtask dropin"),
    run(
        "cargo xtask rxe-run --machine --timeout 900 -- /bin/sh xtask/src/ci/providers.sh {target}/dropin/lib",
    ),
    tests("cargo test -p conformance").with(&[("RDMA_TEST_RXE", "required")]),
    // The last of these tests removes the device.
    tests(
        "cargo test -p rdma-cm --test behaviour -- --ignored --test-threads=1 kernel:: removal::",
    )
    .with(&[
        ("CARGO_TARGET_{HOST}_RUNNER", "{target}/debug/xtask rxe-run --machine --timeout 900 --"),
        ("RDMA_TEST_CM_SYSTEM", "rxe0"),
        ("RDMA_TEST_CM_IP", "198.18.0.1"),
    ]),
    tests("cargo test -p rdma-cm --test behaviour -- --ignored --test-threads=1 kernel::").with(&[
        (
            "CARGO_TARGET_{HOST}_RUNNER",
            "{target}/debug/xtask rxe-run --machine --timeout 900 -- \
                /bin/sh {root}/xtask/src/ci/rxe_ipv6.sh fd00:2::1",
        ),
        ("RDMA_TEST_CM_SYSTEM", "rxe0"),
        ("RDMA_TEST_CM_IP", "fd00:2::1"),
    ]),
    run("cargo xtask rxe-setup --with siw"),
    run(
        "cargo xtask rxe-run --with siw --timeout 900 -- /bin/sh xtask/src/ci/siw.sh {target}/debug/examples",
    ),
    tests(
        "cargo test -p rdma-cm --test behaviour -- --ignored --test-threads=1 \
            kernel::everything_is_dropped kernel::processes_that_exit",
    )
    .with(&[
        ("CARGO_TARGET_{HOST}_RUNNER", "{target}/debug/xtask rxe-run --with siw --timeout 900 --"),
        ("RDMA_TEST_CM_SYSTEM", "siw0"),
        ("RDMA_TEST_CM_IP", "198.18.1.1"),
    ]),
    tests("cargo test -p conformance --test conformance -- siw0::").with(&[
        ("CARGO_TARGET_{HOST}_RUNNER", "{target}/debug/xtask rxe-run --with siw --timeout 900 --"),
        ("RDMA_TEST_DEVICES", "siw0"),
        ("RDMA_TEST_RXE", "off"),
    ]),
    run("cargo xtask interop --run 4,1024,0,65536,- --run 6,4096,1,16384,send --run 4,rc,0 \
            --run 4,cm,0 --run 4,cm,5 --run 4,cm-tools,0 --run 4,cm-tools,5"),
    run("cargo xtask interop --ends rxe-soft --run 4,cm,0 --run 4,cm,5 --run 6,cm,0 --run 6,cm,5 \
            --run 4,cm-tools,0 --run 4,cm-tools,5 --run 6,cm-tools,0 --run 6,cm-tools,5"),
];

/// Runs a fuzz target for this many seconds, with a seed that it prints. A sanitizer finds only errors
/// of unsafe code; without one, the stable compiler is enough.
macro_rules! fuzz {
    ($name:literal, $seconds:literal) => {
        fuzz!($name, $seconds, "fuzz --sanitizer none")
    };
    ($name:literal, $seconds:literal, $how:literal) => {
        concat!(
            "cargo fuzz run --fuzz-dir crates/fuzz --target-dir {target}/",
            $how,
            " ",
            $name,
            " {target}/tmp/fuzz/",
            $name,
            " -- -max_total_time=",
            $seconds,
            " -max_len=4096 -rss_limit_mb=1024 -timeout=60",
        )
    };
}

pub(super) const FUZZ_NEEDS: &[Need] = &[
    Need::Tool("cargo-fuzz", "cargo install --locked cargo-fuzz"),
    Need::Tool("c++", "apt-get install g++"),
];

/// Writes the seeds for the fuzzers by tests, and runs each fuzz target.
pub(super) const FUZZ: &[Step] = &[
    tests("cargo test --workspace --test fuzz"),
    run("cargo fuzz build --fuzz-dir crates/fuzz --target-dir {target}/fuzz --sanitizer none"),
    two_at_a_time(&[
        fuzz!("packet", "60"),
        fuzz!("mad", "60"),
        fuzz!("responder", "60"),
        fuzz!("requester", "60"),
        fuzz!("endpoint", "60"),
        fuzz!("message_frame", "60"),
        fuzz!("message_machine", "60"),
        fuzz!("work_request", "60"),
        fuzz!("local_link", "60"),
        fuzz!("udp_link", "60"),
        fuzz!("simulator", "60"),
    ]),
];

/// Runs the fuzz target that passes work requests to unsafe code.
pub(super) const FUZZ_ADDRESS: &[Step] = &[
    tests("cargo test --workspace --test fuzz"),
    run(fuzz!("work_request", "30", "fuzz-address --sanitizer address")).with(VISIBLE_COPIES),
];

/// Makes the device copy in such a way that AddressSanitizer sees the accesses.
/// `RUSTC_BOOTSTRAP` makes a stable compiler accept `-Z`.
const VISIBLE_COPIES: &[(&str, &str)] =
    &[("RUSTC_BOOTSTRAP", "1"), ("RUSTFLAGS", "--cfg rdma_visible_copies")];

/// Leaves out SoftRoCE, because the sanitizers and memcheck are meant for our own code.
const WITHOUT_RXE: (&str, &str) = ("RDMA_TEST_RXE", "off");

/// Runs tests under AddressSanitizer. Each run selects the same crates: cargo unites their
/// features, and would compile all of them again for a different selection. The tests of the other
/// layers are left out: the suite, which has cases with channels and futures, runs their code.
macro_rules! asan {
    ($which:literal) => {
        tests(concat!("cargo test -p rdma-soft -p conformance ", $which,)).with(ADDRESS)
    };
}

const ADDRESS: &[(&str, &str)] = &[compiled_by!("asan.sh"), WITHOUT_RXE];

/// Checks first that the sanitizer sees the device's accesses at all. These tests expect it to
/// abort the program.
const ASAN_SEES: Step = asan!("--test behaviour visible_copies::");

/// Runs the suite only on the device with the direct path. The other devices differ in the
/// schedule, in how packets travel and in the link layer, which the device's own tests cover. Tests
/// of code that must not compile, and of `Send`, are left out, because they check nothing at run
/// time.
pub(super) const ASAN: &[Step] = &[
    ASAN_SEES,
    asan!(
        "--lib --test behaviour --test fuzz --test stress --test no_alloc --test ended_networks \
            --test soak -- --skip differential::"
    ),
    asan!("--test conformance -- soft0::"),
];

/// Tests of code that must not compile are left out, and those of their twins that forget memory, or
/// whose provider keeps regions registered. A test that limits the address space is also left out, because
/// the sanitizer needs terabytes of it. In virtual time, each empty poll advances the clock a little, which
/// takes too long here.
pub(super) const ASAN_FULL: &[Step] = &[
    ASAN_SEES,
    // Builds the programs of the examples, because a test starts them.
    run("cargo build --profile test -p rdma-examples --examples").with(ADDRESS),
    tests(
        "cargo test --no-fail-fast --lib --bins --tests --examples \
            -p rdma-soft -p rdma-mem -p rdma-qp -p rdma-cm -p rdma-channel -p rdma-async -p rdma-examples \
            -p copy_file -p hello -p rdma-tools -p conformance \
            -- --skip no_case_compiles --skip is_not_forgotten --skip a_subscriber_that_panics_leaves_no_thread \
            --skip more_memory_than_the_process --skip device::faults::faults_are_the_same",
    )
    .with(ADDRESS),
];

/// Checks first that memcheck sees the device's accesses at all. These tests expect it to report an
/// error.
const MEMCHECK_SEES: Step =
    tests("cargo test --workspace --test behaviour visible_copies:: -- --ignored --test-threads=1")
        .with(&[LINES]);

/// Runs the suite on one device, which is enough. Forks are excluded for the reason given at
/// [`VALGRIND`]. Cases in which memory is kept alive on purpose are excluded because it would
/// count as a leak.
const MEMCHECK_SUITE: Step = tests(
    "cargo test -p conformance --test conformance -- soft0:: --skip ::forks:: --skip _lives_on",
)
.with(&[MEMCHECK, LINES, ("VALGRIND_OPTS", "--trace-children=yes"), WITHOUT_RXE]);

/// Some tests are left out. A forked child releases nothing on purpose, and some twins of code that
/// must not compile forget memory, which valgrind would report as leaks. Under valgrind, the kernel
/// does not copy inaccessible memory, and registers are lost when a faulting instruction is resumed.
/// Two tests need many empty polls, as in [`ASAN_FULL`], and 40 clients at a time take minutes.
/// Tests of hostile processes need `pidfd_open`, which valgrind lacks.
pub(super) const VALGRIND: &[Step] = &[
    MEMCHECK_SEES,
    run("cargo build --profile test -p rdma-examples --examples").with(&[LINES]),
    tests(
        "cargo test --no-fail-fast --lib --bins --tests --examples -p rdma-soft -p rdma-mem -p rdma-qp \
            -p rdma-channel -p rdma-examples -p copy_file -p hello -- --test-threads=1 --skip no_case_compiles \
            --skip is_not_forgotten --skip a_subscriber_that_panics_leaves_no_thread \
            --skip device::faults::faults_are_the_same --skip device::faults::lost_packets --skip forked_child --skip copy::tests::gone:: --skip copy::tests::order:: --skip unmapped:: --skip polls_end --skip many_clients_connect --skip neighbours::files_of",
    )
    .with(&[MEMCHECK, LINES]),
    MEMCHECK_SUITE,
];

pub(super) const LINKED: &[Step] = &[
    run("cargo clippy -p rdma-sys --features linked --all-targets --target-dir {target}/linked \
        -- -D warnings"),
    tests("cargo test -p rdma-sys --features linked --target-dir {target}/linked"),
];

/// Compiles both crates together, so that their models can then run in parallel.
macro_rules! loom {
    ($crate_:literal, $how:literal) => {
        concat!(
            "env RDMA_CI_ONLY=",
            $crate_,
            " cargo test -p rdma-soft -p rdma-async --release --lib ",
            linked_only!(),
            $how,
        )
    };
}

/// Explores all orders of the threads, which takes a minute. A model with too many orders limits its
/// preemptions itself. A model maps a stack for each thread of each order. Two models in one process
/// would mostly wait for the lock of its address space.
pub(super) const LOOM: &[Step] = &[
    run(loom!("", "--no-run")).with(UNDER_LOOM),
    tests_two_at_a_time(&[
        loom!("rdma-async", "wakes::loom"),
        loom!("rdma-async", "loom -- --skip wakes::loom"),
        loom!("rdma-soft", "loom"),
    ])
    .with(UNDER_LOOM),
];

const UNDER_LOOM: &[(&str, &str)] = &[
    compiled_by!("loom.sh"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "0"),
    ("RUST_TEST_THREADS", "1"),
    RUN_ONLY,
];

pub(super) const STRESS: &[Step] = &[
    tests("cargo test -p rdma-soft --release --test stress")
        .with(&[("RDMA_STRESS_SECONDS", "120")]),
    tests("cargo test -p rdma-soft --test behaviour local_link -- --ignored"),
    // Starts 200 processes for each last operation and for each way in which a process can end.
    tests("cargo test -p rdma-soft --test behaviour before_it_ends")
        .with(&[("RDMA_TEST_ENDS", "800")]),
    tests("cargo test -p rdma-cm --test behaviour processes:: -- --ignored"),
    tests("cargo test -p rdma-async --test behaviour crowd -- --ignored"),
    tests("cargo test -p rdma-async --release --test soak messages")
        .with(&[("RDMA_TEST_MESSAGES", "1000000")]),
    tests("cargo test -p rdma-async --test behaviour idle_streams")
        .with(&[("RDMA_TEST_STREAMS", "10000")]),
    tests("cargo test -p rdma-group --features async,serde --lib -- --include-ignored before_each_step a_thousand_ranks")
        .with(&[("RDMA_TEST_DEATHS", "all")]),
    run("cargo xtask sim --connections 5000"),
    run("cargo xtask sim --messages 100000"),
];

/// Miri needs access to files, because proptest reads its recorded failures. Since Miri is a
/// hundred times slower than the machine, few cases are tried. Under Miri, the copy does not use
/// assembly. rdma-qp is left out: its tests of the transition table would take minutes, and its
/// unsafe code calls C. rdma-group has no unsafe code. The requests of the messages that it sends
/// (`Owned` of rdma-channel) need a connected device, which Miri cannot run. AddressSanitizer and
/// valgrind check them.
pub(super) const MIRI: &[Step] = &[
    tests("cargo +nightly miri test -p rdma-types --target-dir {target}/miri").with(UNDER_MIRI),
    tests(
        "cargo +nightly miri test --lib -p rdma-mem -p rdma-connect -p rdma-channel --target-dir {target}/miri",
    )
    .with(UNDER_MIRI),
    // In these tests the device is a mock, so no C code is called.
    tests("cargo +nightly miri test --lib -p rdma-async --target-dir {target}/miri ledger::")
        .with(UNDER_MIRI),
    tests("cargo +nightly miri test --lib -p rdma-soft --target-dir {target}/miri memory::copy::")
        .with(UNDER_MIRI),
];

/// The device turns addresses into pointers, which requires exposed provenance.
const UNDER_MIRI: &[(&str, &str)] = &[
    ("MIRIFLAGS", "-Zmiri-disable-isolation -Zmiri-permissive-provenance"),
    ("PROPTEST_CASES", "8"),
];

/// The tests run one at a time, so that the figures measure only the attack.
pub(super) const HOSTILE_NEIGHBOUR: &[Step] = &[tests(
    "cargo test --workspace --test behaviour -- --nocapture --test-threads=1 local_link::neighbours:: \
        local_link::garbage:: local_link::receiver:: local_link::names:: \
        local_link::the_end_of_a_process server::siege:: \
        server::bad_clients:: rendezvous::half_open:: rendezvous::bad_clients::",
)];

/// SoftRoCE's virtual machine is left out, because it is slow enough without load. Twice as many
/// tests as processors run at a time: each gets less of a processor, but all of them finish sooner.
const BUSY: &[(&str, &str)] = &[WITHOUT_RXE, ("RUST_TEST_THREADS", "4")];

/// Runs all tests first, except those of the documentation and of code that must not compile, which
/// do not depend on the load. Then repeats those that have a deadline or start a process, which are
/// found by the words in their files (`timed.rs`). Also repeats the separate test programs that do
/// either.
pub(super) const LOADED: &[Step] = &[
    run("cargo test --workspace --no-run"),
    tests("cargo test --workspace --no-fail-fast --lib --bins --tests -- --skip no_case_compiles")
        .with(BUSY)
        .under_load(1),
    tests("cargo test --workspace --no-fail-fast --test behaviour -- {timed}")
        .with(BUSY)
        .under_load(3),
    tests("cargo test --workspace --no-fail-fast --test fork --test stress")
        .with(BUSY)
        .under_load(3),
    run("cargo test --workspace --no-fail-fast --test soak --test interop")
        .with(BUSY)
        .under_load(3),
    tests("cargo test -p rdma-group --test behaviour ranks_in_processes")
        .with(&[("RDMA_TEST_RANKS", "64")])
        .under_load(1),
    tests("cargo test --workspace --no-fail-fast --test conformance -- soft0-local::")
        .with(BUSY)
        .under_load(3),
    tests("cargo test --workspace --no-fail-fast --test conformance -- soft0-mapped::")
        .with(BUSY)
        .under_load(3),
    tests("cargo test --workspace --no-fail-fast --test conformance -- soft0-udp::")
        .with(BUSY)
        .under_load(3),
];
