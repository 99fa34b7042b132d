//! What a GPU box must show: the wrappers, streams and collectives beside each other, graphs, failures that end,
//! memory that comes back. One list for real GPUs, linked or opened at run time, and for the emulator.
//!
//!     cargo test --features emulator --test gpu
//!
//! runs it on any machine. Without the feature it runs on the GPUs that there are, with one rank each, or with
//! as many as `METRALE_TEST_RANKS_PER_GPU` says (NCCL 2.30 or newer); ranks are threads. What a test needs
//! and is not there is said beside its name, which counts as ignored; `METRALE_EXPECT_GPU=1` makes a machine
//! without a GPU fail.
//!
//! Each test has its own deadline and is run by a second process (`cases.rs`): one that hangs or crashes
//! fails by its name, with what each rank was at, and the others still run. They run one after the other.
//!
//! Ranks that share a GPU share its context: whatever waits for all of that (allocate, free, load a
//! module, make a communicator) may run on no rank while a collective of another waits for its peer. So
//! tests prepare, meet, communicate, wait for their streams, meet, and free.

#[path = "../support/apart.rs"]
mod apart;
mod arithmetic;
#[path = "../support/calls.rs"]
mod calls;
mod cases;
mod communicators;
mod failures;
#[path = "../support/gated.rs"]
mod gated;
mod graphs;
mod kernels;
mod large;
mod memory;
mod numbers;
mod streams;
#[path = "../support/team.rs"]
mod team;
#[path = "../../examples/all_reduce/values.rs"]
mod values;
#[path = "../support/world.rs"]
mod world;
mod wrappers;

use cases::{Cases, SERVE};
use libtest_mimic::Arguments;

fn main() {
    // Of the conformance suite.
    // SAFETY: no other thread exists yet.
    unsafe { std::env::remove_var("METRALE_TEST_PROCESSES") };
    if world::ranks_per_gpu() > 1 {
        // SAFETY: no other thread exists yet.
        unsafe {
            std::env::set_var("NCCL_MULTI_RANK_GPU_ENABLE", "1");
            // The streams of all ranks share the context's hardware queues. In one of the default 8, work
            // of a rank would wait behind that of another which waits for it.
            std::env::set_var("CUDA_DEVICE_MAX_CONNECTIONS", "32");
        }
    }
    let mut cases = Cases::default();
    for add in [
        wrappers::add,
        streams::add,
        graphs::add,
        communicators::add,
        memory::add,
        arithmetic::add,
        large::add,
        failures::add,
        ranks_end,
        failures::add_apart,
    ] {
        add(&mut cases);
    }
    if std::env::args().nth(1).as_deref() == Some(SERVE) {
        cases.serve();
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let conclusion = libtest_mimic::run(&arguments, cases.into_trials());
    cases::end_process();
    conclusion.exit();
}

/// The ranks that served all tests so far, or at least one.
fn ranks_end(cases: &mut Cases) {
    cases.subject("ranks");
    cases.solo("end_in_peace", world::ANY, || {
        team::run(world::World::get().ranks.clamp(1, 8), |_| Ok(()))?;
        team::close()
    });
}
