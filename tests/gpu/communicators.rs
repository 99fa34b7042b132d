//! Communicators: split, many of them, and those that do not wait.

use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::calls::*;
use crate::cases::{Cases, say};
use crate::expect;
use crate::kernels::Kernels;
use crate::numbers::{adds_up, check, number, numbers, sum};
use crate::team::{Rank, state};
use crate::world::ANY;

const OK: NcclResult = NcclResult::Success;

pub fn add(cases: &mut Cases) {
    cases.subject("communicators");
    cases.team("split_by_color_and_key", ANY.ranks(2), split);
    cases.team("split_without_some_ranks", ANY.ranks(2), split_without);
    cases.team("polled_while_a_collective_runs", ANY, polled);
    cases
        .team("fifty_leave_no_memory_behind", ANY, many)
        .limit(60);
}

/// Rank and number of ranks.
fn place(comm: NcclComm) -> Result<(i32, i32)> {
    let (mut rank, mut count) = (-1, -1);
    expect!(ncclCommUserRank(comm, &mut rank), OK);
    expect!(ncclCommCount(comm, &mut count), OK);
    Ok((rank, count))
}

/// Even and odd ranks part, each in turned order.
fn split(rank: &Rank) -> Result<()> {
    let members: Vec<i32> = (0..rank.nranks)
        .filter(|other| other % 2 == rank.rank % 2)
        .collect();
    let mut child = null_mut();
    rank.step("ncclCommSplit");
    rank.meet()?;
    expect!(
        ncclCommSplit(rank.comm, rank.rank % 2, -rank.rank, &mut child, null()),
        OK
    );
    // Only now may a collective of either half begin: making a communicator waits for the device.
    rank.meet()?;
    let from_behind = members.iter().rev().position(|&other| other == rank.rank);
    let expected = (
        from_behind.expect("it is there") as i32,
        members.len() as i32,
    );
    expect!(place(child)?, expected);
    rank.step("a collective of the half");
    adds_up(rank, child, &members)?;
    rank.step("the halves' collectives have ended");
    rank.meet()?;
    rank.step("a collective of all");
    ensure!(rank.sum_over(rank.comm, 1)? == rank.nranks);
    rank.step("the half is destroyed");
    rank.leave(child)
}

/// The last rank takes part in the call, and not in what it makes.
fn split_without(rank: &Rank) -> Result<()> {
    let last = rank.nranks - 1;
    let color = if rank.rank == last {
        NCCL_SPLIT_NOCOLOR
    } else {
        7
    };
    let mut child = 7 as NcclComm;
    rank.step("ncclCommSplit");
    rank.meet()?;
    expect!(
        ncclCommSplit(rank.comm, color, rank.rank, &mut child, null()),
        OK
    );
    rank.meet()?;
    if rank.rank == last {
        ensure!(child.is_null(), "who has no color gets no communicator");
    } else {
        expect!(place(child)?, (rank.rank, last));
        rank.step("a collective without the last rank");
        adds_up(rank, child, &(0..last).collect::<Vec<_>>())?;
    }
    // Null on the last rank, and that is fine.
    rank.leave(child)
}

/// What a user of a non-blocking communicator does: asks for the state, and for the stream.
fn polled(rank: &Rank) -> Result<()> {
    const ROUNDS: usize = 20;
    const WORDS: usize = 1 << 12;
    let kernels = Kernels::load(rank)?;
    rank.step("a non-blocking communicator is made");
    let comm = rank.join(NcclConfig::non_blocking())?;
    let data = rank.upload(&numbers(rank.rank, WORDS))?;
    let sums = rank.blank(4 * WORDS)?;
    rank.meet()?;
    let (mut starting, mut running) = (0u64, 0u64);
    for round in 0..ROUNDS {
        rank.step(format!("round {round} is enqueued"));
        // Two or three milliseconds, so that there is something to ask about.
        kernels.spin(4_000_000, rank.stream)?;
        let code = sum(comm, data.address, sums.address, WORDS, rank.stream);
        check_started(code, "ncclAllReduce")?;
        loop {
            match state(comm)? {
                NcclResult::InProgress => starting += 1,
                OK => break,
                other => ensure!(false, "round {round}: the state is {other:?}"),
            }
            rank.breathe()?;
        }
        rank.step(format!("round {round} runs"));
        while !stream_ready(rank.stream)? {
            expect!(state(comm)?, OK);
            running += 1;
            rank.breathe()?;
        }
        kernels.add(data.address, WORDS, 1, rank.stream)?;
    }
    let nranks = rank.nranks;
    let rounds = ROUNDS as u32 - 1;
    check("the sums of the last round", &rank.read(sums)?, |index| {
        (0..nranks).fold(0, |sum, rank| sum + number(rank, index) + rounds)
    })?;
    ensure!(
        running > 0,
        "no collective was seen running ({starting} times starting)"
    );
    if rank.rank == 0 {
        say(&format!(
            "asked {starting} times while {ROUNDS} collectives started, {running} times while they ran"
        ));
    }
    kernels.unload(rank)?;
    rank.step("ncclCommDestroy");
    rank.leave(comm)
}

/// Made, used once and destroyed, fifty times or as often as the time allows; the device's free memory before
/// and after.
fn many(rank: &Rank) -> Result<()> {
    const MOST: usize = 50;
    const LEAST: usize = 10;
    const TIME: Duration = Duration::from_secs(25);
    /// What other parts of the process and the driver may take meanwhile. One communicator's buffers are more, so
    /// nothing that each of them leaves behind stays below.
    const SLACK: usize = 8 << 20;
    let one = |n: usize| -> Result<()> {
        rank.step(format!("communicator {n}"));
        let comm = rank.join(NcclConfig::new())?;
        adds_up(rank, comm, &(0..rank.nranks).collect::<Vec<_>>())?;
        rank.leave(comm)
    };
    let free = || -> Result<usize> {
        rank.meet()?;
        let free = mem_info()?.0;
        rank.meet()?;
        Ok(free)
    };
    // What the first ones need, some of it is kept.
    for n in 0..3 {
        one(n)?;
    }
    let before = free()?;
    let (start, mut count) = (Instant::now(), 0);
    // As rank 0 says, so that all ranks make as many.
    while count < MOST && (count < LEAST || rank.tell(start.elapsed())?[0] < TIME) {
        one(count)?;
        count += 1;
    }
    let after = free()?;
    let measured = format!(
        "{count} communicators of {} ranks in {:.1?}: {before} bytes free before, {after} after",
        rank.nranks,
        start.elapsed()
    );
    if rank.rank == 0 {
        say(&measured);
    }
    ensure!(after + SLACK >= before, "device memory is lost: {measured}");
    Ok(())
}
