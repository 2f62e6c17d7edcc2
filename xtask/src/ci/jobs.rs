//! The jobs, as data. A new job needs a row here, one in the workflow and one in CONTRIBUTING.md.
//! `cargo xtask tidy` fails if one of the three is missing or differs from the others.

use super::needs::Need;
use super::recipes::{
    AARCH64, AARCH64_FULL, AARCH64_NEEDS, ASAN, ASAN_FULL, COPY_FILE, FEATURES, FUZZ, FUZZ_ADDRESS,
    FUZZ_NEEDS, HOSTILE_NEIGHBOUR, IMAGE, INSTRUCTIONS, LINKED, LOADED, LOOM, MIRI, MORE_DEVICES,
    MSRV, MSRV_NEEDS, NICS, PROFILES, RXE, STALLS, STRESS, VALGRIND,
};
use super::step::{Step, run, tests};

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) name: &'static str,
    /// The errors that the job finds.
    pub(crate) about: &'static str,
    pub(crate) tier: Tier,
    /// The maximum duration on an idle machine with two processors. It assumes that the outputs of
    /// the jobs that precede this one in the gate are already built.
    pub(crate) minutes: f64,
    pub(crate) needs: &'static [Need],
    pub(crate) steps: &'static [Step],
}

/// The runs to which a job belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    /// Only the gate, as a short form of the named job, which belongs to the full run.
    Short(&'static str),
    /// The gate and the full run.
    Both,
    /// Only the full run, because it takes too long for the gate or needs rare equipment.
    Full,
}

impl Tier {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Short(_) => "gate",
            Self::Both => "both",
            Self::Full => "full",
        }
    }
}

impl Job {
    /// Returns the name of the short form of this job, which the gate runs instead, if there is
    /// one.
    pub(crate) fn replaces(&self) -> Option<&'static str> {
        JOBS.iter().find(|job| job.tier == Tier::Short(self.name)).map(|job| job.name)
    }

    /// Returns the row of this job in the table of CONTRIBUTING.md.
    pub(crate) fn row(&self) -> String {
        let replaces = self.replaces().map(|name| format!("`{name}`")).unwrap_or_default();
        let (name, tier) = (self.name, self.tier.as_str());
        format!("| `{name}` | {tier} | {} | {} | {replaces} |", self.minutes, self.about)
    }
}

const FOREIGN_NEEDS: &[Need] = &[
    Need::Tool("apt-get", "it gets the packages with the programs"),
    Need::Tool("cc", "apt-get install gcc libc6-dev"),
    Need::Tool("ip", "apt-get install iproute2"),
    Need::Path("/usr/bin/python3", "apt-get install python3-minimal"),
    // The last need, because it downloads the packages.
    Need::Works(
        "cargo xtask foreign --obtain",
        "it downloads the packages with the programs; check the network and apt's sources",
    ),
];

const RUSTFMT: Need = Need::Works("cargo fmt --version", "rustup component add rustfmt");

pub(crate) const JOBS: &[Job] = &[
    Job {
        name: "fmt",
        about: "files that rustfmt would change, and a lock file of the fuzz targets that is not up to date",
        tier: Tier::Both,
        minutes: 0.1,
        needs: &[RUSTFMT],
        steps: &[
            run("cargo fmt --all --check"),
            run("cargo fmt --manifest-path crates/fuzz/Cargo.toml --check"),
            // No other job of the gate reads the lock file of the fuzz targets.
            run("cargo tree --locked --depth 0 --manifest-path crates/fuzz/Cargo.toml"),
        ],
    },
    Job {
        name: "tidy",
        about: "violations of the rules below: layers, lengths, unsafe files, links, repeated facts",
        tier: Tier::Both,
        minutes: 0.4,
        needs: &[],
        steps: &[run("cargo xtask tidy")],
    },
    Job {
        name: "clippy",
        about: "warnings of rustc and clippy, also in tests, examples and benches",
        tier: Tier::Both,
        minutes: 2.1,
        needs: &[Need::Works("cargo clippy --version", "rustup component add clippy")],
        steps: &[run("cargo clippy --workspace --all-targets -- -D warnings")],
    },
    Job {
        name: "doc",
        about: "warnings of rustdoc",
        tier: Tier::Both,
        minutes: 0.7,
        needs: &[],
        steps: &[run("cargo doc --workspace --no-deps").with(&[("RUSTDOCFLAGS", "-D warnings")])],
    },
    Job {
        name: "bindgen-check",
        about: "bindings that differ from those generated from the pinned headers",
        tier: Tier::Both,
        minutes: 0.1,
        needs: &[
            RUSTFMT,
            Need::Libclang,
            Need::Path("/usr/aarch64-linux-gnu/include", "apt-get install libc6-dev-arm64-cross"),
        ],
        steps: &[run("cargo xtask bindgen --check")],
    },
    Job {
        name: "test",
        about: "failures of any test, including those in the documentation",
        tier: Tier::Both,
        minutes: 9.5,
        needs: &[],
        steps: &[tests("cargo test --workspace")],
    },
    Job {
        name: "sim",
        about: "differences from the model in a million simulated packets of fresh workloads (docs/testing.md, Simulator)",
        tier: Tier::Both,
        minutes: 0.7,
        needs: &[],
        steps: &[tests("cargo test --release -p sim")],
    },
    Job {
        name: "more-devices",
        about: "failures of the suite on the software devices that `test` leaves out: on InfiniBand, and with packets that are sent later, in an order chosen by a seed",
        tier: Tier::Full,
        minutes: 6.0,
        needs: &[],
        steps: MORE_DEVICES,
    },
    Job {
        name: "profiles",
        about: "failures of the suite, channels, examples and rdmatool on devices that look like hardware, except the two that `nics` covers",
        tier: Tier::Full,
        minutes: 14.0,
        needs: &[],
        steps: PROFILES,
    },
    Job {
        name: "stalls",
        about: "failures of the suite and the layers' tests on software devices with randomly delayed threads",
        tier: Tier::Full,
        minutes: 14.0,
        needs: &[],
        steps: STALLS,
    },
    Job {
        name: "sim-planted",
        about: "planted faults that the simulator or the tests of the link miss, each in a separate copy of the tree",
        tier: Tier::Full,
        minutes: 14.0,
        needs: &[],
        steps: &[run("cargo xtask sim --planted")],
    },
    Job {
        name: "msrv",
        about: "published crates that the oldest supported compiler cannot compile",
        tier: Tier::Short("features"),
        minutes: 0.4,
        needs: MSRV_NEEDS,
        steps: MSRV,
    },
    Job {
        name: "features",
        about: "the same, each crate alone, and with only one of its features (except `linked`)",
        tier: Tier::Full,
        minutes: 1.2,
        needs: MSRV_NEEDS,
        steps: FEATURES,
    },
    Job {
        name: "package",
        about: "published crates that do not build, or cannot be documented, from their packages alone",
        tier: Tier::Full,
        minutes: 3.0,
        needs: &[],
        steps: &[run("cargo xtask package")],
    },
    Job {
        name: "image",
        about: "an image for containers that is too large, has wrong digests, or does not show the software devices; a Debian package whose programs do not find them",
        tier: Tier::Full,
        minutes: 3.0,
        needs: &[
            Need::Tool("mmdebstrap", "apt-get install mmdebstrap"),
            Need::Tool("gcc", "apt-get install gcc libc6-dev"),
            Need::Tool("ibv_devinfo", "apt-get install ibverbs-utils"),
        ],
        steps: IMAGE,
    },
    Job {
        name: "book",
        about: "dead links and undefined references in the site of the pages",
        tier: Tier::Full,
        minutes: 0.2,
        needs: &[Need::Tool("mdbook", "cargo install --locked mdbook")],
        steps: &[run("cargo xtask book")],
    },
    Job {
        name: "deny",
        about: "forbidden licences and sources of dependencies, and wildcard versions",
        tier: Tier::Full,
        minutes: 0.2,
        needs: &[Need::Tool("cargo-deny", "cargo install --locked cargo-deny")],
        steps: &[run("cargo deny --workspace check bans licenses sources")],
    },
    Job {
        name: "aarch64",
        about: "errors on another processor: all published crates are compiled; the device's units, atomics and C layouts are tested in qemu",
        tier: Tier::Short("aarch64-full"),
        minutes: 1.5,
        needs: AARCH64_NEEDS,
        steps: AARCH64,
    },
    Job {
        name: "aarch64-full",
        about: "failures in qemu: the tests of the layers and the device, and the suite on each software device",
        tier: Tier::Full,
        minutes: 25.0,
        needs: AARCH64_NEEDS,
        steps: AARCH64_FULL,
    },
    Job {
        name: "bench-build",
        about: "benches that do not link (`clippy` compiles them)",
        tier: Tier::Full,
        minutes: 4.0,
        needs: &[],
        steps: &[run("cargo bench -p benches --no-run")],
    },
    Job {
        name: "instructions",
        about: "posts, polls and channels that cost too many instructions compared with C, or more with many objects than with one (callgrind)",
        tier: Tier::Both,
        minutes: 2.0,
        needs: &[
            Need::Tool("valgrind", "apt-get install valgrind libc6-dbg"),
            Need::Tool("gcc", "apt-get install gcc libc6-dev"),
        ],
        steps: INSTRUCTIONS,
    },
    Job {
        name: "nics",
        about: "failures of channels, examples and rdmatool on devices that look like two NICs",
        tier: Tier::Both,
        minutes: 4.2,
        needs: &[],
        steps: NICS,
    },
    Job {
        name: "copy-file",
        about: "failures of the program `copy_file` on both kinds of software device",
        tier: Tier::Both,
        minutes: 0.1,
        needs: &[],
        steps: COPY_FILE,
    },
    Job {
        name: "asan",
        about: "invalid memory accesses (also by the device's memory copies) and leaks, in the tests of the device, and in the suite on one device",
        tier: Tier::Short("asan-full"),
        minutes: 3.4,
        needs: &[],
        steps: ASAN,
    },
    Job {
        name: "asan-full",
        about: "the same in the tests of all crates with a device, in the programs of the examples, and in the suite on each software device",
        tier: Tier::Full,
        minutes: 25.0,
        needs: &[],
        steps: ASAN_FULL,
    },
    Job {
        name: "valgrind",
        about: "invalid memory accesses, with the memory copies of ordinary builds, in all tests of the device and the layers, and in the suite (memcheck)",
        tier: Tier::Full,
        minutes: 60.0,
        needs: &[Need::Tool("valgrind", "apt-get install valgrind libc6-dbg")],
        steps: VALGRIND,
    },
    Job {
        name: "loom",
        about: "thread interleavings in which the device or rdma-async fails",
        tier: Tier::Both,
        minutes: 1.8,
        needs: &[],
        steps: LOOM,
    },
    Job {
        name: "fuzz",
        about: "inputs that break a rule, in a minute for each target, with a new seed each time (`test` runs the same checks on initial inputs and random bytes)",
        tier: Tier::Full,
        minutes: 7.0,
        needs: FUZZ_NEEDS,
        steps: FUZZ,
    },
    Job {
        name: "fuzz-address",
        about: "invalid memory accesses caused by a work request, in 30 seconds (AddressSanitizer)",
        tier: Tier::Full,
        minutes: 3.0,
        needs: FUZZ_NEEDS,
        steps: FUZZ_ADDRESS,
    },
    Job {
        name: "stress",
        about: "failures in long tests: stress for two minutes, a process stopped for half a minute, processes that end, killed peers of rdma_cm on other hosts, 64 tasks that lend to another process, a million messages between two processes, 10,000 idle streams, deaths of ranks at each step of each collective, 1,000 ranks that join, 5,000 simulated workloads of connections by address, and 100,000 simulated messages",
        tier: Tier::Full,
        minutes: 21.0,
        needs: &[],
        steps: STRESS,
    },
    Job {
        name: "hostile-neighbour",
        about: "slow calls, and growth of a process's memory and open files, while hostile processes attack it (`test` runs the same tests, without figures)",
        tier: Tier::Full,
        minutes: 1.0,
        needs: &[],
        steps: HOSTILE_NEIGHBOUR,
    },
    Job {
        name: "loaded",
        about: "tests that fail on a busy machine: every test once, those with a deadline or a second process three times more",
        tier: Tier::Full,
        minutes: 50.0,
        needs: &[],
        steps: LOADED,
    },
    Job {
        name: "rxe",
        about: "failures of programs and cases on SoftRoCE and an iWARP device (in a virtual machine) or over a wire, and of `cargo xtask rxe-setup`",
        tier: Tier::Full,
        minutes: 33.0,
        needs: &[Need::Tool("apt-get", "it gets the packages of the virtual machine")],
        steps: RXE,
    },
    Job {
        name: "foreign",
        about: "failures of other projects' programs and tests (pyverbs, perftest, UCX, libfabric, fio) with the drop-in library",
        tier: Tier::Both,
        minutes: 2.9,
        needs: FOREIGN_NEEDS,
        // This job runs where namespaces are usually allowed, so it also runs the tests of two hosts.
        steps: &[
            run("cargo xtask foreign"),
            tests(
                "cargo test -p rdma-group -p rdma-dropin --test behaviour -- namespaces:: pods::",
            ),
        ],
    },
    Job {
        name: "foreign-full",
        about: "failures of other projects' programs that connect by address, with all option sets, also over UDP and between two network namespaces (librdmacm, perftest, libfabric, fio, sideway)",
        tier: Tier::Full,
        minutes: 4.0,
        needs: FOREIGN_NEEDS,
        steps: &[run("cargo xtask foreign --full rdmacm applications sideway")],
    },
    Job {
        name: "advisories",
        about: "known vulnerabilities of dependencies (asks github.com)",
        tier: Tier::Full,
        minutes: 0.2,
        needs: &[
            Need::Tool("cargo-deny", "cargo install --locked cargo-deny"),
            Need::Reach("github.com:443"),
        ],
        steps: &[run("cargo deny --workspace check advisories")],
    },
    Job {
        name: "linked",
        about: "differences between a linked libibverbs and the one that would be loaded; needs the build tools of rdma-core",
        tier: Tier::Full,
        minutes: 5.0,
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
        about: "undefined behaviour of unsafe code without C: the crates' own tests, the memory copy, rdma-async on a mock device (nightly)",
        tier: Tier::Full,
        minutes: 15.0,
        needs: &[Need::Works(
            "cargo +nightly miri --version",
            "rustup toolchain install nightly --component miri,rust-src",
        )],
        steps: MIRI,
    },
];
