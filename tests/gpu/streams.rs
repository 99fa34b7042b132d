//! Collectives beside other work: ordered by events, and at the same time.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::calls::*;
use crate::cases::{Cases, say};
use crate::expect;
use crate::kernels::Kernels;
use crate::numbers::{check, number, numbers, sum};
use crate::team::Rank;
use crate::world::{ANY, World};

const OK: NcclResult = NcclResult::Success;

pub fn add(cases: &mut Cases) {
    cases.subject("streams");
    // More ranks on a device have more streams than it has queues, and what waits in a queue for an event can keep
    // back the very collective of another rank on which the event depends.
    let ranks = World::get().ranks.min(2 * World::get().devices);
    cases.team_of(ranks, "ordered_by_events", ANY, ordered_by_events);
    cases.team_of(ranks, "two_communicators_in_turn", ANY, in_turn);
    // One rank alone has nothing to communicate: its collectives are copies.
    cases.team("a_kernel_and_collectives_overlap", ANY.ranks(2), overlap);
}

/// Clock cycles that a kernel is held back by, so that what does not wait for it comes too early.
const LATE: u64 = 60_000;

/// The sum over all ranks, at `index`, of what each has after `rounds` rounds that add its rank + 1.
fn sum_after(nranks: i32, index: usize, rounds: usize) -> u32 {
    (0..nranks).fold(0, |sum: u32, rank| {
        let added = rounds as u32 * (rank as u32 + 1);
        sum.wrapping_add(number(rank, index)).wrapping_add(added)
    })
}

/// And the total of those sums over all rounds.
fn total_after(nranks: i32, index: usize, rounds: usize) -> u32 {
    (1..=rounds).fold(0, |total: u32, round| {
        total.wrapping_add(sum_after(nranks, index, round))
    })
}

/// One stream computes, another communicates. Only events keep a round's kernel before its collective, the
/// collective before the kernel that takes its result, and all of it before the next round.
fn ordered_by_events(rank: &Rank) -> Result<()> {
    const ROUNDS: usize = 200;
    const WORDS: usize = if cfg!(feature = "emulator") {
        1 << 10
    } else {
        1 << 16
    };
    let kernels = Kernels::load(rank)?;
    let (compute, communicate) = (create_stream()?, create_stream()?);
    let (produced, reduced) = (create_event()?, create_event()?);
    let data = rank.upload(&numbers(rank.rank, WORDS))?;
    let (out, total) = (rank.blank(4 * WORDS)?, rank.upload(&vec![0u32; WORDS])?);
    rank.meet()?;
    for round in 0..ROUNDS {
        kernels.spin(LATE, compute)?;
        kernels.add(data.address, WORDS, rank.rank as u32 + 1, compute)?;
        record_event(produced, compute)?;
        stream_wait_event(communicate, produced)?;
        rank.step(format!("all-reduce of round {round}"));
        let (from, to) = (data.address, out.address);
        expect!(sum(rank.comm, from, to, WORDS, communicate), OK);
        record_event(reduced, communicate)?;
        stream_wait_event(compute, reduced)?;
        kernels.accumulate(total.address, out.address, WORDS, compute)?;
        // No queue runs full: a launch that waits for room keeps other ranks' launches waiting.
        if round % 25 == 24 {
            rank.step(format!("the end of round {round}"));
            rank.wait_for(compute)?;
        }
    }
    rank.wait_for(compute)?;
    rank.wait_for(communicate)?;
    let nranks = rank.nranks;
    check("the last sum", &rank.read(out)?, |index| {
        sum_after(nranks, index, ROUNDS)
    })?;
    check("the total of all sums", &rank.read(total)?, |index| {
        total_after(nranks, index, ROUNDS)
    })?;
    kernels.unload(rank)?;
    destroy_event(produced);
    destroy_event(reduced);
    destroy_stream(compute);
    destroy_stream(communicate);
    rank.meet()
}

/// Two communicators of the same ranks, each on a stream of its own. In no order they could wait for each other
/// on two devices; events order them alike everywhere.
fn in_turn(rank: &Rank) -> Result<()> {
    const ROUNDS: usize = 100;
    const WORDS: usize = 1 << 10;
    let kernels = Kernels::load(rank)?;
    let second = rank.join(NcclConfig::new())?;
    let streams = [create_stream()?, create_stream()?];
    let events = [create_event()?, create_event()?];
    rank.step("the second communicator connects");
    ensure!(rank.sum_over(second, 1)? == rank.nranks);
    let data = rank.upload(&numbers(rank.rank, WORDS))?;
    let (sums, most) = (rank.blank(4 * WORDS)?, rank.blank(4 * WORDS)?);
    let total = rank.upload(&vec![0u32; WORDS])?;
    rank.meet()?;
    for round in 0..ROUNDS {
        rank.step(format!("the two all-reduces of round {round}"));
        kernels.add(data.address, WORDS, rank.rank as u32 + 1, streams[0])?;
        let (from, to) = (data.address, sums.address);
        expect!(sum(rank.comm, from, to, WORDS, streams[0]), OK);
        record_event(events[0], streams[0])?;
        stream_wait_event(streams[1], events[0])?;
        // All have the same sums, so the largest of them is any.
        let (uint32, max) = (NcclDataType::Uint32, NcclRedOp::Max);
        let (from, to) = (sums.ptr(), most.ptr());
        expect!(
            ncclAllReduce(from, to, WORDS, uint32, max, second, streams[1]),
            OK
        );
        kernels.accumulate(total.address, most.address, WORDS, streams[1])?;
        record_event(events[1], streams[1])?;
        stream_wait_event(streams[0], events[1])?;
        if round % 25 == 24 {
            rank.wait_for(streams[1])?;
        }
    }
    rank.wait_for(streams[0])?;
    rank.wait_for(streams[1])?;
    let nranks = rank.nranks;
    check("the total", &rank.read(total)?, |index| {
        total_after(nranks, index, ROUNDS)
    })?;
    kernels.unload(rank)?;
    for n in [0, 1] {
        destroy_event(events[n]);
        destroy_stream(streams[n]);
    }
    rank.step("the second communicator is destroyed");
    rank.leave(second)
}

/// A kernel of one block, so that room is left on the device, on one stream; collectives that take about as
/// long on another. Measured is host time, from the first call until both streams are done, on the slowest
/// rank: each alone, then both at once, the best of some rounds. In turn they take the sum; side by side, the
/// longer of the two, which is about half of it.
fn overlap(rank: &Rank) -> Result<()> {
    const COUNT: usize = if cfg!(feature = "emulator") {
        1 << 12
    } else {
        1 << 20
    };
    /// What each of the two should take, at least.
    const TIME: Duration = Duration::from_millis(20);
    /// Of the sum: more is no overlap.
    const SHARE: f64 = 0.8;
    /// Rounds at least and, where other programs disturb, at most.
    const ROUNDS: std::ops::RangeInclusive<usize> = 5..=40;

    let kernels = Kernels::load(rank)?;
    let (compute, communicate) = (create_stream()?, create_stream()?);
    let buffer = rank.blank(4 * COUNT)?.address;
    // What all ranks do alike takes as long as on the slowest.
    let time = |cycles: u64, times: usize| -> Result<Duration> {
        rank.meet()?;
        let start = Instant::now();
        if cycles > 0 {
            kernels.spin(cycles, compute)?;
        }
        for _ in 0..times {
            expect!(sum(rank.comm, buffer, buffer, COUNT, communicate), OK);
        }
        rank.wait_for(compute)?;
        rank.wait_for(communicate)?;
        let all = rank.tell(start.elapsed())?;
        Ok(all.into_iter().max().expect("there are ranks"))
    };
    rank.step("what is done is made about equally long");
    let best = |cycles, times| -> Result<Duration> {
        let times = (0..3).map(|_| time(cycles, times));
        times.reduce(|a, b| Ok(a?.min(b?))).expect("three times")
    };
    let mut times = 16;
    while times < 512 && best(0, times)? < TIME {
        times *= 2;
    }
    let mut per_second = 20e6 / best(20_000_000, 0)?.as_secs_f64();

    let [mut collectives, mut kernel, mut both] = [Duration::MAX; 3];
    let mut round = 0;
    let overlaps = loop {
        round += 1;
        rank.step(format!("round {round}: collectives alone"));
        collectives = collectives.min(time(0, times)?);
        let cycles = (per_second * collectives.as_secs_f64()) as u64;
        rank.step(format!("round {round}: the kernel alone"));
        let alone = time(cycles, 0)?;
        per_second = per_second.max(cycles as f64 / alone.as_secs_f64());
        kernel = kernel.min(alone);
        rank.step(format!("round {round}: both at once"));
        both = both.min(time(cycles, times)?);
        let overlaps = both < (collectives + kernel).mul_f64(SHARE);
        if round >= *ROUNDS.end() || overlaps && round >= *ROUNDS.start() {
            break overlaps;
        }
    };
    let measured = format!(
        "{times} all-reduces of {COUNT} words alone {collectives:.2?}, a kernel alone {kernel:.2?}, both at once \
         {both:.2?}, best of {round} rounds"
    );
    if rank.rank == 0 {
        say(&measured);
    }
    ensure!(overlaps, "no overlap: {measured}");
    kernels.unload(rank)?;
    destroy_stream(compute);
    destroy_stream(communicate);
    rank.meet()
}
