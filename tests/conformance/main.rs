//! One list of cases for the emulator and for real GPUs, each with the code or the data that NCCL and the
//! driver were seen to give.
//!
//!     cargo test --features emulator --test conformance
//!
//! runs it on any machine. Linked, it runs on the GPUs that there are, with one rank each, or with as many
//! as `METRALE_TEST_RANKS_PER_GPU` says (NCCL 2.30 or newer). What a case needs and is not there is
//! said beside its name, which counts as ignored; `METRALE_EXPECT_GPU=1` makes a machine without a GPU fail.
//!
//! With `METRALE_TEST_PROCESSES=1` each rank of a team has a process of its own, as under a launcher. Cases
//! of one thread run as they do otherwise, and those whose ranks share memory are said to be ignored.
//!
//! Cases run one after the other, since NCCL's latest message belongs to the process and since several
//! communicators on one GPU can wait for each other in vain.

#[path = "../support/apart.rs"]
mod apart;
mod args;
mod arithmetic;
#[path = "../support/calls.rs"]
mod calls;
mod capture;
mod cases;
mod collectives;
mod concurrency;
mod config;
mod contexts;
mod elements;
mod emulator;
mod errors;
mod events;
#[path = "../support/gated.rs"]
mod gated;
mod groups;
mod latch;
mod lifecycle;
mod memory;
mod nonblocking;
mod operations;
mod p2p;
mod params;
mod streams;
#[path = "../support/team.rs"]
mod team;
mod windows;
#[path = "../support/world.rs"]
mod world;

use cases::{CHILD, Cases};
use libtest_mimic::Arguments;

fn main() {
    if world::ranks_per_gpu() > 1 {
        // SAFETY: no other thread exists yet.
        unsafe { std::env::set_var("NCCL_MULTI_RANK_GPU_ENABLE", "1") };
    }
    let mut words = std::env::args().skip(1);
    match words.next().as_deref() {
        Some(apart::RANK) => apart::serve(&mut words, |name| all().run_here(name)),
        Some(CHILD) => {
            let name = words.next().expect("a case's name");
            cases::exit_now(all().run_child(&name));
        }
        _ => {}
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(1);
    let conclusion = libtest_mimic::run(&arguments, all().into_trials());
    if let Err(error) = team::close() {
        eprintln!("conformance: {error:?}");
        cases::exit_now(101);
    }
    conclusion.exit();
}

/// All cases.
fn all() -> Cases {
    let mut cases = Cases::default();
    for add in [
        contexts::add,
        streams::add,
        events::add,
        memory::add,
        capture::add,
        errors::add,
        params::add,
        args::add,
        config::add,
        lifecycle::add,
        nonblocking::add,
        groups::add,
        collectives::add,
        arithmetic::add,
        p2p::add,
        windows::add,
        concurrency::add,
        emulator::add,
    ] {
        add(&mut cases);
    }
    cases
}
