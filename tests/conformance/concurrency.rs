//! Several threads, streams and communicators at once.

use std::ptr::null_mut;

use anyhow::{Result, ensure};

use crate::calls::*;
use crate::cases::Cases;
use crate::expect;
use crate::team::{Buffer, Rank};
use crate::world::ANY;

const OK: NcclResult = NcclResult::Success;
const INT: NcclDataType = NcclDataType::Int32;

/// Numbers that all ranks draw alike.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

pub fn add(cases: &mut Cases) {
    cases.subject("concurrency");
    for nranks in [2, 4, 8] {
        cases.team(
            nranks,
            &format!("hundreds_without_waiting::{nranks}"),
            ANY,
            |rank| {
                let buffer = rank.upload(&[1i32; 64])?;
                let p = buffer.ptr();
                for _ in 0..300 {
                    expect!(
                        ncclAllReduce(p, p, 64, INT, NcclRedOp::Sum, rank.comm, rank.stream),
                        OK
                    );
                }
                let expected = (0..300).fold(1i32, |value, _| value.wrapping_mul(rank.nranks));
                expect!(rank.read::<i32>(buffer)?, [expected; 64]);
                Ok(())
            },
        );
        cases.team(
            nranks,
            &format!("random_kinds_and_sizes::{nranks}"),
            ANY,
            |rank| random(rank, 60),
        );
    }
    // Two streams, ordered by an event where they share a buffer.
    cases.team(2, "handed_from_stream_to_stream", ANY, |rank| {
        let (second, event) = (create_stream()?, create_event()?);
        let buffer = rank.upload(&[1])?;
        let p = buffer.ptr();
        let mut streams = [rank.stream, second];
        for _ in 0..20 {
            expect!(
                ncclAllReduce(p, p, 1, INT, NcclRedOp::Sum, rank.comm, streams[0]),
                OK
            );
            record_event(event, streams[0])?;
            stream_wait_event(streams[1], event)?;
            streams.reverse();
        }
        rank.wait_for(second)?;
        expect!(rank.read::<i32>(buffer)?, [1 << 20]);
        destroy_event(event);
        destroy_stream(second);
        Ok(())
    });
    // Each communicator on a stream of its own: none waits for the other in vain.
    cases.team(2, "two_communicators_on_two_streams", ANY, |rank| {
        let (other, second) = (rank.join(NcclConfig::new())?, create_stream()?);
        let (a, b) = (rank.upload(&[1])?, rank.upload(&[1])?);
        let call = |buffer: Buffer, comm, stream| {
            ncclAllReduce(
                buffer.ptr(),
                buffer.ptr(),
                1,
                INT,
                NcclRedOp::Sum,
                comm,
                stream,
            )
        };
        // Both connect first.
        expect!(call(a, rank.comm, rank.stream), OK);
        rank.wait()?;
        expect!(call(b, other, second), OK);
        rank.wait_for(second)?;
        rank.meet()?;
        for _ in 0..20 {
            expect!(call(a, rank.comm, rank.stream), OK);
            expect!(call(b, other, second), OK);
        }
        rank.wait_for(second)?;
        expect!(rank.read::<i32>(a)?, [1 << 21]);
        expect!(rank.read::<i32>(b)?, [1 << 21]);
        destroy_stream(second);
        rank.leave(other)
    });
    // One communicator a thread, all at once.
    cases.solo("a_communicator_for_each_thread", ANY, || {
        let threads: Vec<_> = (0..4)
            .map(|number: i32| {
                std::thread::spawn(move || -> Result<()> {
                    use_device(0)?;
                    let mut comm = null_mut();
                    expect!(ncclCommInitRank(&mut comm, 1, unique_id()?, 0), OK);
                    let (stream, memory) = (create_stream()?, mem_alloc(64)?);
                    expect!(
                        cuMemsetD32Async(memory, number as u32, 16, stream),
                        CuResult::Success
                    );
                    let p = memory as *mut std::ffi::c_void;
                    for _ in 0..50 {
                        expect!(
                            ncclAllReduce(p, p, 16, INT, NcclRedOp::Sum, comm, stream),
                            OK
                        );
                    }
                    sync_stream(stream)?;
                    let mut words = [-1i32; 16];
                    let code = cuMemcpyDtoHAsync_v2(words.as_mut_ptr().cast(), memory, 64, stream);
                    expect!(code, CuResult::Success);
                    sync_stream(stream)?;
                    expect!(words, [number; 16]);
                    destroy_stream(stream);
                    expect!(ncclCommDestroy(comm), OK);
                    expect!(cuMemFree_v2(memory), CuResult::Success);
                    Ok(())
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("no panic"))
    });
}

/// Collectives and messages in an order that all ranks know, each checked when all are enqueued.
fn random(rank: &Rank, rounds: usize) -> Result<()> {
    let mut dice = Dice(rank.nranks as u64);
    let nranks = rank.nranks as usize;
    let mut checks: Vec<(Buffer, Vec<i32>)> = Vec::new();
    for round in 0..rounds {
        let (kind, count, root) = (dice.below(5), 1 + dice.below(3000), dice.below(nranks));
        let value = |rank: usize| (rank as i32 + 1) * (round as i32 + 1);
        let mine = value(rank.rank as usize);
        let send = rank.upload(&vec![mine; count * if kind == 2 { nranks } else { 1 }])?;
        let total: i32 = (0..nranks).map(value).sum();
        let (recv, expected) = match kind {
            0 => (send, vec![total; count]),
            1 => (send, vec![value(root); count]),
            2 => (rank.blank(4 * count)?, vec![total; count]),
            3 => (
                rank.blank(4 * count * nranks)?,
                (0..nranks)
                    .flat_map(|rank| vec![value(rank); count])
                    .collect(),
            ),
            _ => (
                rank.blank(4 * count)?,
                vec![value((rank.rank as usize + nranks - 1) % nranks); count],
            ),
        };
        let (s, r) = (send.ptr(), recv.ptr());
        let code = match kind {
            0 => ncclAllReduce(s, r, count, INT, NcclRedOp::Sum, rank.comm, rank.stream),
            1 => ncclBroadcast(s, r, count, INT, root as i32, rank.comm, rank.stream),
            2 => ncclReduceScatter(s, r, count, INT, NcclRedOp::Sum, rank.comm, rank.stream),
            3 => ncclAllGather(s, r, count, INT, rank.comm, rank.stream),
            _ => {
                expect!(ncclGroupStart(), OK);
                expect!(
                    ncclSend(
                        s,
                        count,
                        INT,
                        (rank.rank + 1) % rank.nranks,
                        rank.comm,
                        rank.stream
                    ),
                    OK
                );
                expect!(
                    ncclRecv(
                        r,
                        count,
                        INT,
                        (rank.rank + rank.nranks - 1) % rank.nranks,
                        rank.comm,
                        rank.stream
                    ),
                    OK
                );
                ncclGroupEnd()
            }
        };
        expect!(code, OK);
        checks.push((recv, expected));
    }
    for (round, (buffer, expected)) in checks.into_iter().enumerate() {
        ensure!(rank.read::<i32>(buffer)? == expected, "round {round}");
    }
    Ok(())
}
