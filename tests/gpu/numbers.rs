//! Words that every rank can compute, and collectives on them.

use anyhow::{Result, bail, ensure};

use crate::calls::*;
use crate::team::Rank;

/// What `rank` has at `index`: as good as random, so that ranks and places differ.
pub fn number(rank: i32, index: usize) -> u32 {
    let place = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    (place as u32 & 0xffff) + 0x1_0001 * (rank as u32 + 1)
}

/// The first `count` numbers of a rank.
pub fn numbers(rank: i32, count: usize) -> Vec<u32> {
    (0..count).map(|index| number(rank, index)).collect()
}

/// The sum of all ranks' numbers at `index`.
pub fn sum_at(nranks: i32, index: usize) -> u32 {
    (0..nranks).fold(0, |sum: u32, rank| sum.wrapping_add(number(rank, index)))
}

/// An error that names the first wrong word, and how many there are.
pub fn check(what: &str, got: &[u32], expected: impl Fn(usize) -> u32) -> Result<()> {
    let mut wrong = got
        .iter()
        .enumerate()
        .filter(|(index, word)| **word != expected(*index));
    let Some((index, word)) = wrong.next() else {
        return Ok(());
    };
    bail!(
        "{what}: {} of {} words are wrong, the first is word {index}: {word}, expected {}",
        1 + wrong.count(),
        got.len(),
        expected(index)
    );
}

/// Sums `count` words of every rank.
pub fn sum(
    comm: NcclComm,
    from: CuDevicePtr,
    to: CuDevicePtr,
    count: usize,
    stream: CuStream,
) -> NcclResult {
    let (from, to) = (from as *const _, to as *mut _);
    ncclAllReduce(
        from,
        to,
        count,
        NcclDataType::Uint32,
        NcclRedOp::Sum,
        comm,
        stream,
    )
}

/// Sums one word of each rank of a communicator that does not belong to all of them, and checks it.
pub fn adds_up(rank: &Rank, comm: NcclComm, members: &[i32]) -> Result<()> {
    let expected: i32 = members.iter().map(|member| 1 << member).sum();
    let got = rank.sum_over(comm, 1 << rank.rank)?;
    ensure!(
        got == expected,
        "the sum over ranks {members:?} is {got}, expected {expected}"
    );
    Ok(())
}
