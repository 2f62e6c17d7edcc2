//! The jobs, as data. A new one is a row here, in the workflow and in CONTRIBUTING.md; `tidy`
//! notices if one of the three is forgotten.

use super::needs::Need;
use super::step::{Step, run, tests};

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) tier: Tier,
    pub(crate) needs: &'static [Need],
    pub(crate) steps: &'static [Step],
}

/// Which runs a job belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    /// The gate alone: a short form of a job of the full run.
    Gate,
    /// The gate and the full run.
    Both,
    /// The full run alone: too long for the gate, or in need of what few machines have.
    Full,
}

impl Tier {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Gate => "gate",
            Self::Both => "both",
            Self::Full => "full",
        }
    }
}

const RUSTFMT: Need = Need::Works("cargo fmt --version", "rustup component add rustfmt");

/// A compiler of the stable channel obeys `-Z` with it, so the sanitizers need no nightly.
const UNSTABLE: (&str, &str) = ("RUSTC_BOOTSTRAP", "1");

/// Runs every test binary under valgrind; a leak or an invalid access fails it.
const MEMCHECK: (&str, &str) = (
    "CARGO_TARGET_{HOST}_RUNNER",
    "valgrind --quiet --fair-sched=yes --error-exitcode=99 --leak-check=full --show-leak-kinds=definite \
        --errors-for-leak-kinds=definite",
);

pub(crate) const JOBS: &[Job] = &[
    Job {
        name: "fmt",
        about: "rustfmt changes nothing",
        tier: Tier::Both,
        needs: &[RUSTFMT],
        steps: &[
            run("cargo fmt --all --check"),
            run("cargo fmt --manifest-path crates/fuzz/Cargo.toml --check"),
        ],
    },
    Job {
        name: "tidy",
        about: "layers, lengths, unsafe files, exported symbols, links, repeated facts",
        tier: Tier::Both,
        needs: &[],
        steps: &[run("cargo xtask tidy")],
    },
    Job {
        name: "clippy",
        about: "rustc and clippy warn of nothing, in tests, examples and benches too",
        tier: Tier::Both,
        needs: &[Need::Works("cargo clippy --version", "rustup component add clippy")],
        steps: &[run("cargo clippy --workspace --all-targets -- -D warnings")],
    },
    Job {
        name: "doc",
        about: "rustdoc warns of nothing",
        tier: Tier::Both,
        needs: &[],
        steps: &[run("cargo doc --workspace --no-deps").with(&[("RUSTDOCFLAGS", "-D warnings")])],
    },
    Job {
        name: "bindgen-check",
        about: "the checked-in bindings are what the pinned headers give",
        tier: Tier::Both,
        needs: &[
            RUSTFMT,
            Need::Libclang,
            Need::Path("/usr/aarch64-linux-gnu/include", "apt-get install libc6-dev-arm64-cross"),
        ],
        steps: &[run("cargo xtask bindgen --check")],
    },
    Job {
        name: "test",
        about: "all tests, those in the documentation too",
        tier: Tier::Both,
        needs: &[],
        steps: &[tests("cargo test --workspace")],
    },
    Job {
        name: "sim",
        about: "a million simulated packets of fresh workloads do what the model says",
        tier: Tier::Both,
        needs: &[],
        steps: &[tests("cargo test --release -p sim")],
    },
    Job {
        name: "wire-deferred",
        about: "the suite on devices whose packets leave later, as a seed decides",
        tier: Tier::Full,
        needs: &[],
        steps: &[tests("cargo test -p conformance --test conformance -- wire-deferred::").with(&[
            ("RDMA_TEST_DEVICES", "soft0-wire-deferred:all,softib0-wire-deferred:all"),
            WITHOUT_RXE,
        ])],
    },
    Job {
        name: "profiles",
        about: "the suite on devices that look like hardware, and channels on one like an E810",
        tier: Tier::Full,
        needs: &[],
        steps: PROFILES,
    },
    Job {
        name: "stalls",
        about: "the suite on each software device, whose threads are held up at random",
        tier: Tier::Full,
        needs: &[],
        steps: STALLS,
    },
    Job {
        name: "sim-planted",
        about: "the simulator finds each of the faults that are planted",
        tier: Tier::Full,
        needs: &[],
        steps: &[run("cargo xtask sim --planted")],
    },
    Job {
        name: "features",
        about: "each crate builds alone, with each of its features alone",
        tier: Tier::Both,
        needs: &[Need::Tool("cargo-hack", "cargo install --locked cargo-hack")],
        // `linked` has a job of its own: it needs libibverbs and builds rdma-core.
        steps: &[run("cargo hack check --workspace --exclude xtask --each-feature \
            --exclude-all-features --exclude-features linked")],
    },
    Job {
        name: "deny",
        about: "licences, sources and duplicates of the dependencies",
        tier: Tier::Both,
        needs: &[Need::Tool("cargo-deny", "cargo install --locked cargo-deny")],
        steps: &[run("cargo deny --workspace check bans licenses sources")],
    },
    Job {
        name: "aarch64",
        about: "on an emulated aarch64: the crates' own tests, the device's, and the suite on one device",
        tier: Tier::Gate,
        needs: AARCH64_NEEDS,
        steps: AARCH64,
    },
    Job {
        name: "aarch64-full",
        about: "on an emulated aarch64: the layers' tests too, and the suite on each software device",
        tier: Tier::Full,
        needs: AARCH64_NEEDS,
        steps: AARCH64_FULL,
    },
    Job {
        name: "msrv",
        about: "it compiles with the oldest compiler that it promises",
        tier: Tier::Both,
        needs: &[Need::Works("cargo +{msrv} --version", "rustup toolchain install {msrv}")],
        steps: &[run("cargo +{msrv} check --workspace --target-dir {target}/msrv")],
    },
    Job {
        name: "bench-build",
        about: "the benches link",
        tier: Tier::Full,
        needs: &[],
        steps: &[run(
            "cargo bench -p rdma-proto -p rdma-soft -p rdma-qp -p rdma-channel -p rdma-async --no-run",
        )],
    },
    Job {
        name: "instructions",
        about: "posting, polling and channels cost what they do beside C, many objects what one alone does",
        tier: Tier::Both,
        needs: &[
            Need::Tool("valgrind", "apt-get install valgrind libc6-dbg"),
            Need::Tool("gcc", "apt-get install gcc libc6-dev"),
        ],
        steps: &[run(
            "cargo bench -p rdma-proto -p rdma-qp -p rdma-channel -p rdma-async -p rdma-soft \
                --bench instructions",
        )],
    },
    Job {
        name: "copy-file",
        about: "the main job copies a file on both kinds of software device",
        tier: Tier::Both,
        needs: &[],
        steps: COPY_FILE,
    },
    Job {
        name: "asan",
        about: "AddressSanitizer and LeakSanitizer see the device's copies; the crates' tests, the suite on three devices",
        tier: Tier::Gate,
        needs: &[],
        steps: ASAN,
    },
    Job {
        name: "asan-full",
        about: "the same, the programs of the examples too, and the suite on each software device",
        tier: Tier::Full,
        needs: &[],
        steps: ASAN_FULL,
    },
    Job {
        name: "lsan",
        about: "LeakSanitizer alone, on the real copies",
        tier: Tier::Full,
        needs: &[],
        steps: LSAN,
    },
    Job {
        name: "valgrind",
        about: "memcheck sees the device's real copies, and finds nothing in the tests of its parts",
        tier: Tier::Gate,
        needs: &[Need::Tool("valgrind", "apt-get install valgrind libc6-dbg")],
        steps: VALGRIND,
    },
    Job {
        name: "valgrind-full",
        about: "memcheck on the real copies, the tests of the layers and the suite too",
        tier: Tier::Full,
        needs: &[Need::Tool("valgrind", "apt-get install valgrind libc6-dbg")],
        steps: VALGRIND_FULL,
    },
    Job {
        name: "loom",
        about: "what threads share in the device and in rdma-async, in every order of threads",
        tier: Tier::Both,
        needs: &[],
        steps: LOOM,
    },
    Job {
        name: "fuzz",
        about: "the fuzz targets find nothing in 30 seconds each, from another seed each time",
        tier: Tier::Both,
        needs: FUZZ_NEEDS,
        steps: FUZZ,
    },
    Job {
        name: "fuzz-address",
        about: "work requests are fuzzed for 30 seconds where AddressSanitizer sees the device's copies",
        tier: Tier::Full,
        needs: FUZZ_NEEDS,
        steps: FUZZ_ADDRESS,
    },
    Job {
        name: "stress",
        about: "the device's stress test for two minutes, instead of five seconds as in `test`; a process that is stopped for half a minute; 64 tasks that lend to another process",
        tier: Tier::Full,
        needs: &[],
        steps: STRESS,
    },
    Job {
        name: "rxe",
        about: "SoftRoCE can be had by one command; programs of ours and the suite run on it, and over a wire",
        tier: Tier::Full,
        needs: &[Need::Tool("apt-get", "it gets the packages of the virtual machine")],
        steps: RXE,
    },
    Job {
        name: "advisories",
        about: "no dependency has a known vulnerability",
        tier: Tier::Full,
        needs: &[
            Need::Tool("cargo-deny", "cargo install --locked cargo-deny"),
            Need::Reach("github.com:443"),
        ],
        steps: &[run("cargo deny --workspace check advisories")],
    },
    Job {
        name: "linked",
        about: "the table of a libibverbs that is linked is the one that would be loaded",
        tier: Tier::Full,
        needs: &[
            Need::Path("/usr/include/infiniband/verbs.h", "apt-get install libibverbs-dev"),
            Need::Works(
                "pkg-config --exists libnl-3.0 libnl-route-3.0",
                "apt-get install pkg-config libnl-3-dev libnl-route-3-dev",
            ),
            Need::Tool("cmake", "apt-get install cmake"),
            Need::Tool("make", "apt-get install make"),
            Need::Tool("python3", "apt-get install python3-minimal"),
            Need::Libclang,
        ],
        steps: LINKED,
    },
    Job {
        name: "miri",
        about: "no undefined behaviour in the unsafe code that calls no C: the crates' own tests, the copy, rdma-async on a mock device",
        tier: Tier::Full,
        needs: &[Need::Works(
            "cargo +nightly miri --version",
            "rustup toolchain install nightly --component miri,rust-src",
        )],
        steps: MIRI,
    },
];

const AARCH64_NEEDS: &[Need] = &[
    Need::Std("aarch64-unknown-linux-gnu"),
    Need::Tool(
        "aarch64-linux-gnu-gcc",
        "apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    ),
    Need::Tool("qemu-aarch64", "apt-get install qemu-user"),
];

/// Debian's cross compiler links, qemu runs what comes out, and what a test starts of its own kind too.
const EMULATED: &[(&str, &str)] = &[
    ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc"),
    ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", "qemu-aarch64 -L /usr/aarch64-linux-gnu"),
    ("RDMA_TEST_EMULATOR", "qemu-aarch64 -L /usr/aarch64-linux-gnu"),
    ("CC", "aarch64-linux-gnu-gcc"),
    WITHOUT_RXE,
];

/// Everything compiles, the programs too.
const AARCH64_CHECK: Step = run(
    "cargo check --target aarch64-unknown-linux-gnu --workspace --exclude xtask --exclude softroce",
)
.with(EMULATED);

/// A child that a process of several threads forks may hang in qemu, which holds locks of its own: so no test
/// that forks runs beside others here. The cases of the suite have a process each.
const AARCH64: &[Step] = &[
    tests(
        "cargo test --target aarch64-unknown-linux-gnu --lib -p rdma-types -p rdma-sys -p rdma-proto \
            -p rdma-mem -p rdma-qp -p rdma-channel -p test-support -- --skip fork",
    )
    .with(EMULATED),
    tests(
        "cargo test --target aarch64-unknown-linux-gnu --lib --tests -p rdma-soft -- --skip fork",
    )
    .with(EMULATED),
    tests(
        "cargo test --target aarch64-unknown-linux-gnu -p conformance --test conformance -- soft0::",
    )
    .with(EMULATED),
];

/// Of the tests of channels some that need neither atomics nor a server, which needs shared receive queues.
const PROFILES: &[Step] = &[
    tests("cargo test -p conformance --test conformance -- like-")
        .with(&[("RDMA_TEST_DEVICES", "like-broadcom-thor,like-hip08,like-mana,like-connect-ib")]),
    tests("cargo test -p rdma-channel --test behaviour -- exchange:: sleeping:: watch::")
        .with(&[("RDMA_SOFT_LIKE", "intel-e810")]),
];

const STALLED: &[(&str, &str)] = &[("RUSTFLAGS", "--cfg rdma_stalls"), WITHOUT_RXE];

const STALLS: &[Step] = &[
    tests("cargo test --target-dir {target}/stalls -p conformance --test conformance")
        .with(STALLED),
    tests("cargo test --target-dir {target}/stalls --lib --tests -p rdma-soft").with(STALLED),
    tests(
        "cargo test --target-dir {target}/stalls -p rdma-channel --test behaviour -- exchange:: \
            endings:: random_peers:: random_programs:: --skip multi_channel:: --skip watch::",
    )
    .with(STALLED),
];

/// What must not compile is the same for every processor.
const AARCH64_FULL: &[Step] = &[
    AARCH64_CHECK,
    tests(
        "cargo test --target aarch64-unknown-linux-gnu --lib --tests -p rdma-types -p rdma-sys \
            -p rdma-proto -p rdma-soft -p rdma-mem -p rdma-qp -p rdma-channel -p test-support \
            -- --skip and_their_twins --skip fork",
    )
    .with(EMULATED),
    tests("cargo test --target aarch64-unknown-linux-gnu -p conformance --test conformance")
        .with(EMULATED),
];

const COPY_FILE: &[Step] = &[
    run("mkdir -p {target}/copy-file"),
    run("dd if=/dev/urandom of={target}/copy-file/src bs=10000019 count=1 iflag=fullblock"),
    run("cargo run --release --example copy_file -- \
        {target}/copy-file/src {target}/copy-file/soft0 --device soft0"),
    run("cmp {target}/copy-file/src {target}/copy-file/soft0"),
    run("cargo run --release --example copy_file -- \
        {target}/copy-file/src {target}/copy-file/softib0 --device softib0"),
    run("cmp {target}/copy-file/src {target}/copy-file/softib0"),
];

const RXE: &[Step] = &[
    run("cargo build -p rdma-examples --examples"),
    run("cargo xtask rxe-setup"),
    // Not `cargo xtask`: that would be run by the runner, too.
    tests("cargo test -p rdma-examples --test behaviour -- --ignored --test-threads=1")
        .with(&[("CARGO_TARGET_{HOST}_RUNNER", "{target}/debug/xtask rxe-run --timeout 300 --")]),
    // Its programs open `soft0`.
    tests("cargo test -p rdma --doc Tutorial").with(&[(
        "CARGO_TARGET_{HOST}_RUNNER",
        "{target}/debug/xtask rxe-run --machine --timeout 300 -- \
            /bin/sh ../../xtask/src/ci/rxe_as.sh soft0",
    )]),
    tests("cargo test -p conformance").with(&[("RDMA_TEST_RXE", "required")]),
    run("cargo xtask interop --run 4,1024,0,65536,- --run 6,4096,1,16384,send --run 4,rc,0"),
];

/// Runs a target for half a minute, from a seed that it prints. Without a sanitizer, which would look for what only
/// unsafe code can do, the stable compiler is enough.
macro_rules! fuzz {
    ($name:literal) => {
        fuzz!($name, "fuzz --sanitizer none")
    };
    ($name:literal, $how:literal) => {
        run(concat!(
            "cargo fuzz run --fuzz-dir crates/fuzz --target-dir {target}/",
            $how,
            " ",
            $name,
            " {target}/tmp/fuzz/",
            $name,
            " -- -max_total_time=30 -max_len=4096 -rss_limit_mb=1024 -timeout=60",
        ))
    };
}

const FUZZ_NEEDS: &[Need] = &[
    Need::Tool("cargo-fuzz", "cargo install --locked cargo-fuzz"),
    Need::Tool("c++", "apt-get install g++"),
];

const FUZZ: &[Step] = &[
    // They write the inputs that the fuzzers begin with.
    tests(
        "cargo test -p rdma-proto -p rdma-soft -p rdma-channel -p sim --features rdma-channel/serde --test fuzz",
    ),
    fuzz!("packet"),
    fuzz!("responder"),
    fuzz!("requester"),
    fuzz!("endpoint"),
    fuzz!("work_request"),
    fuzz!("local_link"),
    fuzz!("udp_link"),
    fuzz!("simulator"),
];

/// Where unsafe code is.
const FUZZ_ADDRESS: &[Step] = &[
    tests("cargo test -p rdma-soft --test fuzz"),
    fuzz!("work_request", "fuzz-address --sanitizer address").with(VISIBLE_COPIES),
];

/// AddressSanitizer is to see the device's copies.
const VISIBLE_COPIES: &[(&str, &str)] = &[UNSTABLE, ("RUSTFLAGS", "--cfg rdma_visible_copies")];

/// The sanitizers and memcheck are for our own code.
const WITHOUT_RXE: (&str, &str) = ("RDMA_TEST_RXE", "off");

/// The suite on one device.
macro_rules! asan_suite {
    ($device:literal) => {
        tests(concat!(
            "cargo test --target {host} --target-dir {target}/asan -p conformance --test conformance -- ",
            $device,
        ))
        .with(ADDRESS)
    };
}

const ADDRESS: &[(&str, &str)] =
    &[UNSTABLE, ("RUSTFLAGS", "-Zsanitizer=address --cfg rdma_visible_copies"), WITHOUT_RXE];

/// First that the sanitizer sees the device at all: these tests expect its abort.
const ASAN_SEES: Step = tests(
    "cargo test --target {host} --target-dir {target}/asan -p rdma-soft --test behaviour \
        visible_copies::",
)
.with(ADDRESS);

/// The suite by the direct path, by packets and through sockets: the other devices differ in the schedule and the kind of link.
const ASAN: &[Step] = &[
    ASAN_SEES,
    tests(
        "cargo test --target {host} --target-dir {target}/asan --lib --tests \
            -p rdma-soft -p rdma-mem -p rdma-qp -p rdma-channel -p rdma-async",
    )
    .with(ADDRESS),
    asan_suite!("soft0::"),
    asan_suite!("soft0-wire::"),
    asan_suite!("soft0-local::"),
];

const ASAN_FULL: &[Step] = &[
    ASAN_SEES,
    // The programs of the examples, which a test starts.
    run("cargo build --target {host} --target-dir {target}/asan -p rdma-examples --examples")
        .with(ADDRESS),
    tests(
        "cargo test --target {host} --target-dir {target}/asan --lib --bins --tests --examples \
            -p rdma-soft -p rdma-mem -p rdma-qp -p rdma-channel -p rdma-async -p rdma-examples \
            -p conformance",
    )
    .with(ADDRESS),
];

const LEAKS: &[(&str, &str)] = &[UNSTABLE, ("RUSTFLAGS", "-Zsanitizer=leak"), WITHOUT_RXE];

const LSAN: &[Step] = &[
    run("cargo build --target {host} --target-dir {target}/lsan -p rdma-examples --examples")
        .with(LEAKS),
    tests(
        "cargo test --target {host} --target-dir {target}/lsan --lib --bins --tests --examples \
            -p rdma-soft -p rdma-mem -p rdma-qp -p rdma-channel -p rdma-async -p rdma-examples \
            -p conformance",
    )
    .with(LEAKS),
];

/// First that memcheck sees the device at all: these tests expect its report.
const MEMCHECK_SEES: Step = tests(
    "cargo test -p rdma-soft --test behaviour visible_copies:: -- --ignored \
        --test-threads=1",
);

const VALGRIND: &[Step] = &[
    MEMCHECK_SEES,
    // Copies of memory that is not there are not made by the kernel under valgrind, and it loses registers
    // where an instruction faults and is resumed.
    tests(
        "cargo test -p rdma-soft --lib -- --test-threads=1 --skip copy::tests::gone:: \
            --skip copy::tests::order::",
    )
    .with(&[MEMCHECK]),
];

/// Each case is a process; of the devices one is enough. Of forks see below; what lives on is a leak.
const MEMCHECK_SUITE: Step = tests(
    "cargo test -p conformance --test conformance -- soft0:: --skip ::forks:: --skip _lives_on",
)
.with(&[MEMCHECK, ("VALGRIND_OPTS", "--trace-children=yes"), WITHOUT_RXE]);

/// A forked child releases nothing, on purpose, and valgrind would call that leaks.
const VALGRIND_FULL: &[Step] = &[
    MEMCHECK_SEES,
    run("cargo build -p rdma-examples --examples"),
    tests(
        "cargo test --lib --bins --tests --examples -p rdma-soft -p rdma-mem -p rdma-qp \
            -p rdma-channel -p rdma-examples -- --test-threads=1 --skip forked_child \
            --skip copy::tests::gone:: --skip copy::tests::order:: --skip unmapped:: --skip polls_end",
    )
    .with(&[MEMCHECK]),
    MEMCHECK_SUITE,
];

const LINKED: &[Step] = &[
    run("cargo clippy -p rdma-sys --features linked --all-targets --target-dir {target}/linked \
        -- -D warnings"),
    tests("cargo test -p rdma-sys --features linked --target-dir {target}/linked"),
];

/// All orders of threads, which takes minutes; what has too many of them bounds its preemptions itself, in its model.
const LOOM: &[Step] = &[
    tests("cargo test -p rdma-soft --release --lib --target-dir {target}/loom loom")
        .with(UNDER_LOOM),
    tests("cargo test -p rdma-async --release --lib --target-dir {target}/loom loom")
        .with(UNDER_LOOM),
];

const UNDER_LOOM: &[(&str, &str)] = &[("RUSTFLAGS", "--cfg loom")];

const STRESS: &[Step] = &[
    tests("cargo test -p rdma-soft --release --test stress")
        .with(&[("RDMA_STRESS_SECONDS", "120")]),
    tests("cargo test -p rdma-soft --test behaviour local_link -- --ignored"),
    tests("cargo test -p rdma-async --test behaviour crowd -- --ignored"),
];

/// proptest looks for its files of failures, and miri is a hundred times slower than the machine. The copy
/// has no assembly then. rdma-qp is not among them: its own tests of the table of
/// transitions take miri minutes, and its unsafe code calls C.
const MIRI: &[Step] = &[
    tests("cargo +nightly miri test -p rdma-types --target-dir {target}/miri").with(UNDER_MIRI),
    tests("cargo +nightly miri test --lib -p rdma-mem -p rdma-channel --target-dir {target}/miri")
        .with(UNDER_MIRI),
    // The device is a mock, so that there is no C.
    tests("cargo +nightly miri test --lib -p rdma-async --target-dir {target}/miri ledger::")
        .with(UNDER_MIRI),
    tests("cargo +nightly miri test --lib -p rdma-soft --target-dir {target}/miri engine::memory::copy::")
        .with(UNDER_MIRI),
];

/// The device turns addresses into pointers, which is what exposed provenance is for.
const UNDER_MIRI: &[(&str, &str)] = &[
    ("MIRIFLAGS", "-Zmiri-disable-isolation -Zmiri-permissive-provenance"),
    ("PROPTEST_CASES", "8"),
];
