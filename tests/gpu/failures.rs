//! Ranks that do not come, do not call, or are lost: the others see it by a deadline, and abort ends it.

use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::calls::*;
use crate::cases::{Cases, elsewhere};
use crate::expect;
use crate::numbers::{adds_up, sum};
use crate::team::{Rank, state};
use crate::world::ANY;

const OK: NcclResult = NcclResult::Success;
/// After so long a rank takes it that what it waits for will not come.
const PATIENCE: Duration = Duration::from_millis(300);
/// An abort that takes longer hangs.
const ABORT: Duration = Duration::from_secs(8);

pub fn add(cases: &mut Cases) {
    cases.subject("failures");
    cases.team("a_peer_that_never_joins", ANY, never_joins);
    cases.team("a_rank_that_never_calls", ANY.ranks(2), |rank| {
        never_calls(rank, false)
    });
    cases.team(
        "aborted_from_another_thread_while_it_runs",
        ANY.ranks(2),
        |rank| never_calls(rank, true),
    );
    cases.team("a_rank_that_never_connects", ANY.ranks(2), never_connects);
}

/// Those whose ranks serve no other test.
pub fn add_apart(cases: &mut Cases) {
    cases.subject("failures");
    cases
        .team(
            "aborted_from_another_thread_while_it_connects",
            ANY.ranks(2),
            aborted_while_it_connects,
        )
        .apart();
    cases
        .team(
            "shrink_after_a_lost_rank",
            ANY.ranks(2).calls("ncclCommShrink"),
            shrink,
        )
        .apart();
}

/// Aborts, and fails where that takes too long.
fn abort(comm: NcclComm) -> Result<()> {
    let start = Instant::now();
    expect!(ncclCommAbort(comm), OK);
    ensure!(
        start.elapsed() < ABORT,
        "ncclCommAbort took {:?}",
        start.elapsed()
    );
    Ok(())
}

/// Waits as long as a patient user would for a stream that will not end.
fn stays_busy(rank: &Rank, stream: CuStream) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        ensure!(
            !stream_ready(stream)?,
            "rank {}'s collective ended without its peer",
            rank.rank
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// All ranks join a communicator that has one rank more.
fn never_joins(rank: &Rank) -> Result<()> {
    let (id, mut comm) = (rank.id()?, null_mut());
    let config = NcclConfig::non_blocking();
    rank.step("ncclCommInitRankConfig");
    let code = ncclCommInitRankConfig(&mut comm, rank.nranks + 1, id, rank.rank, &config);
    expect!(code, NcclResult::InProgress);
    rank.step("waits for a peer that never joins");
    let start = Instant::now();
    // SAFETY: the communicator is live, and only this thread uses it.
    let waited = unsafe { wait_ready(comm, PATIENCE) };
    let error = waited.expect_err("there is no such peer");
    let error = error.downcast_ref::<NcclError>().expect("it is NCCL's");
    ensure!(error.code == NcclResult::InProgress, "{error}");
    ensure!(
        (PATIENCE..ABORT).contains(&start.elapsed()),
        "the deadline came after {:?}",
        start.elapsed()
    );
    rank.step("ncclCommAbort");
    abort(comm)?;
    rank.meet()?;
    still_works(rank)
}

/// What became of one communicator does not matter to another.
fn still_works(rank: &Rank) -> Result<()> {
    rank.step("a collective of another communicator");
    adds_up(rank, rank.comm, &(0..rank.nranks).collect::<Vec<_>>())?;
    rank.meet()
}

/// The last rank leaves out a collective, once all are connected. The device waits, and the host sees it by a
/// deadline, from the stream alone: NCCL reports nothing. Then this or another thread aborts.
fn never_calls(rank: &Rank, other_thread: bool) -> Result<()> {
    rank.step("a communicator is made, and connects");
    let comm = rank.join(NcclConfig::new())?;
    ensure!(rank.sum_over(comm, 1)? == rank.nranks);
    let (p, stream) = (rank.blank(1 << 12)?.address, create_stream()?);
    rank.meet()?;
    let last = rank.rank == rank.nranks - 1;
    if !last {
        rank.step("a collective that the last rank leaves out");
        expect!(sum(comm, p, p, 1024, stream), OK);
        stays_busy(rank, stream)?;
        expect!(state(comm)?, OK);
        rank.step("ncclCommAbort");
        if other_thread {
            let handle = comm as usize;
            let aborted = elsewhere(move || abort(handle as NcclComm))?;
            rank.step("the stream ends while another thread aborts");
            rank.wait_for(stream)?;
            aborted.join().expect("no panic")??;
        } else {
            abort(comm)?;
        }
        rank.step("the stream ends after the abort");
        rank.wait_for(stream)?;
    }
    rank.meet()?;
    if last {
        rank.step("ncclCommAbort of the last rank");
        abort(comm)?;
    }
    rank.meet()?;
    destroy_stream(stream);
    still_works(rank)
}

/// The last rank leaves out the first collective, which connects. A non-blocking communicator stays in progress.
fn never_connects(rank: &Rank) -> Result<()> {
    rank.step("a non-blocking communicator is made");
    let comm = rank.join(NcclConfig::non_blocking())?;
    let (p, stream) = (rank.blank(1 << 12)?.address, create_stream()?);
    rank.meet()?;
    let last = rank.rank == rank.nranks - 1;
    if !last {
        rank.step("a first collective that the last rank leaves out");
        check_started(sum(comm, p, p, 1024, stream), "ncclAllReduce")?;
        // SAFETY: the communicator is live, and only this thread uses it.
        let waited = unsafe { wait_ready(comm, PATIENCE) };
        let error = waited.expect_err("it cannot connect");
        let error = error.downcast_ref::<NcclError>().expect("it is NCCL's");
        ensure!(error.code == NcclResult::InProgress, "{error}");
        rank.step("ncclCommAbort");
        abort(comm)?;
        rank.step("the stream ends after the abort");
        rank.wait_for(stream)?;
    }
    rank.meet()?;
    if last {
        rank.step("ncclCommAbort of the last rank");
        abort(comm)?;
    }
    rank.meet()?;
    destroy_stream(stream);
    still_works(rank)
}

/// As above on a blocking communicator, where the call itself does not return: only another thread can abort.
fn aborted_while_it_connects(rank: &Rank) -> Result<()> {
    rank.step("a communicator is made");
    let comm = rank.join(NcclConfig::new())?;
    let (p, stream) = (rank.blank(1 << 12)?.address, rank.stream);
    rank.meet()?;
    if rank.rank != rank.nranks - 1 {
        rank.step("a first collective that the last rank leaves out");
        let handle = comm as usize;
        let blocked = elsewhere(move || sum(handle as NcclComm, p, p, 1024, stream))?;
        std::thread::sleep(PATIENCE);
        ensure!(
            !blocked.is_finished(),
            "the call came back without its peer: {:?}",
            blocked.join()
        );
        rank.step("ncclCommAbort");
        abort(comm)?;
        rank.step("the call comes back after the abort");
        while !blocked.is_finished() {
            rank.breathe()?;
        }
        // Which code it comes back with is not promised.
        blocked.join().expect("no panic")?;
    }
    // The last rank's half is left as it is: its process ends after this test.
    rank.meet()
}

/// The last rank aborts and is gone while the others' collective waits for it. They give that up, go on without
/// the lost rank, and leave the old communicator behind.
fn shrink(rank: &Rank) -> Result<()> {
    rank.step("a communicator is made, and connects");
    let parent = rank.join(NcclConfig::new())?;
    ensure!(rank.sum_over(parent, 1)? == rank.nranks);
    let (p, stream) = (rank.blank(1 << 12)?.address, create_stream()?);
    rank.meet()?;
    let lost = rank.nranks - 1;
    let left: Vec<i32> = (0..lost).collect();
    let mut child = null_mut();
    if rank.rank == lost {
        rank.step("ncclCommAbort of the rank that is lost");
        abort(parent)?;
    } else {
        rank.step("a collective that the lost rank leaves out");
        expect!(sum(parent, p, p, 1024, stream), OK);
        stays_busy(rank, stream)?;
        rank.step("ncclCommShrink");
        let mut list = [lost];
        let flags = NCCL_SHRINK_ABORT;
        let code = ncclCommShrink(parent, list.as_mut_ptr(), 1, &mut child, null(), flags);
        expect!(code, OK);
        rank.step("the stream ends after the shrink");
        rank.wait_for(stream)?;
    }
    // The lost rank comes here, too, as a thread: none communicates while another still makes something.
    rank.meet()?;
    if rank.rank != lost {
        let (mut me, mut count) = (-1, -1);
        expect!(ncclCommUserRank(child, &mut me), OK);
        expect!(ncclCommCount(child, &mut count), OK);
        expect!((me, count), (rank.rank, lost));
        for round in 0..20 {
            rank.step(format!("collective {round} of those that are left"));
            adds_up(rank, child, &left)?;
        }
    }
    rank.step("the new communicator is destroyed");
    rank.meet()?;
    // Null on the lost rank, and that is fine.
    expect!(ncclCommDestroy(child), OK);
    rank.meet()?;
    if rank.rank != lost {
        rank.step("the old communicator is aborted");
        abort(parent)?;
    }
    rank.meet()?;
    destroy_stream(stream);
    still_works(rank)
}
