//! What each collective moves: counts, roots, buffers in place and apart, and what it leaves alone.

use std::ptr::null_mut;

use anyhow::{Context, Result, bail, ensure};

use crate::calls::*;
use crate::cases::Cases;
use crate::elements::KINDS;
use crate::expect;
use crate::operations::{Arguments, Kind, Operation, collectives};
use crate::team::{BLANK, Rank};
use crate::world::ANY;

const OK: NcclResult = NcclResult::Success;

/// Odd ones, so that they divide among nothing, and one that is large enough to be cut up.
const COUNTS: [usize; 5] = [1, 2, 7, 1021, 70_001];

/// What rank `rank` sends at `index`.
fn input(rank: usize, index: usize) -> i32 {
    (rank as i32 + 1).wrapping_mul(1_000_003) ^ (index as i32).wrapping_mul(40_503)
}

/// What a blank buffer holds.
const EMPTY: i32 = i32::from_ne_bytes([BLANK; 4]);

pub fn add(cases: &mut Cases) {
    cases.subject("collectives");
    for operation in collectives() {
        let (name, need) = (operation.name, operation.need);
        for nranks in [1, 2, 3, 4, 8] {
            if operation.kind != Kind::Bcast {
                cases.team(
                    nranks,
                    &format!("{name}::apart::{nranks}"),
                    need,
                    move |rank| {
                        each_root(operation, rank, |count, root| {
                            apart(operation, rank, operation.call, count, root)
                        })
                    },
                );
            }
            if operation.kind != Kind::AlltoAll {
                cases.team(
                    nranks,
                    &format!("{name}::in_place::{nranks}"),
                    need,
                    move |rank| {
                        each_root(operation, rank, |count, root| {
                            in_place(operation, rank, count, root)
                        })
                    },
                );
            }
        }
        // Whoever has nothing to do does not wait for the others.
        cases.team(
            2,
            &format!("{name}::nothing_to_do_on_one_side"),
            need,
            move |rank| {
                if rank.rank == 0 {
                    expect!(
                        (operation.call)(&Arguments::new(rank.comm, rank.stream)),
                        OK
                    );
                    rank.wait()?;
                }
                rank.meet()?;
                expect!(rank.sum_over(rank.comm, 1)?, 2);
                Ok(())
            },
        );
        if let Some((function, call)) = operation.with_config {
            cases.team(
                2,
                &format!("{name}::with_a_config"),
                ANY.calls(function),
                move |rank| {
                    let limited = NcclCollConfig {
                        max_ctas: 1,
                        ..NcclCollConfig::new()
                    };
                    for config in [NcclCollConfig::new(), limited] {
                        apart(operation, rank, |a| call(a, &config), 1021, 1)?;
                    }
                    apart(operation, rank, |a| call(a, std::ptr::null()), 1021, 0)
                },
            );
        }
        cases.team(2, &format!("{name}::every_type"), need, move |rank| {
            every_type(operation, rank)
        });
    }
    unused_sides(cases);
    more(cases);
}

fn each_root(
    operation: &Operation,
    rank: &Rank,
    case: impl Fn(usize, usize) -> Result<()>,
) -> Result<()> {
    for count in COUNTS {
        let roots = if operation.rooted {
            rank.nranks as usize
        } else {
            1
        };
        for root in 0..roots {
            // The large one from the last rank alone.
            if count < 10_000 || root + 1 == roots {
                case(count, root)?;
            }
        }
    }
    Ok(())
}

fn inputs(rank: usize, elements: usize) -> Vec<i32> {
    (0..elements).map(|index| input(rank, index)).collect()
}

/// With two buffers; the one that is read is unchanged afterwards.
fn apart(
    operation: &Operation,
    rank: &Rank,
    call: impl Fn(&Arguments) -> NcclResult,
    count: usize,
    root: usize,
) -> Result<()> {
    let (nranks, me) = (rank.nranks as usize, rank.rank as usize);
    let (send_size, recv_size) = operation.sizes(nranks, count);
    rank.reuse()?;
    let send = rank.upload(&inputs(me, send_size))?;
    let recv = rank.blank(4 * recv_size)?;
    let arguments = Arguments {
        send: send.ptr(),
        recv: recv.ptr(),
        count,
        root: root as i32,
        ..Arguments::new(rank.comm, rank.stream)
    };
    expect!(call(&arguments), OK);
    let expected: Vec<i32> = (0..recv_size)
        .map(|index| {
            let written = operation.expected(nranks, me, root, count, index, input);
            written.unwrap_or(EMPTY)
        })
        .collect();
    same(&rank.read(recv)?, &expected).with_context(|| format!("{count} elements from {root}"))?;
    ensure!(
        rank.read::<i32>(send)? == inputs(me, send_size),
        "the buffer that is read was written"
    );
    Ok(())
}

/// With one region for both; what is outside of the receive buffer is unchanged afterwards.
fn in_place(operation: &Operation, rank: &Rank, count: usize, root: usize) -> Result<()> {
    let (nranks, me) = (rank.nranks as usize, rank.rank as usize);
    let Some((send_at, recv_at)) = operation.in_place(me, root, count) else {
        return apart(operation, rank, operation.call, count, root);
    };
    let (send_size, recv_size) = operation.sizes(nranks, count);
    rank.reuse()?;
    let mut before = vec![EMPTY; send_size.max(recv_size)];
    before[send_at..][..send_size].copy_from_slice(&inputs(me, send_size));
    // Off its root a broadcast reads nothing.
    if operation.kind == Kind::Bcast && me != root {
        before.fill(EMPTY);
    }
    let region = rank.upload(&before)?;
    let arguments = Arguments {
        send: region.at(4 * send_at),
        recv: region.at(4 * recv_at),
        count,
        root: root as i32,
        ..Arguments::new(rank.comm, rank.stream)
    };
    expect!((operation.call)(&arguments), OK);
    let expected: Vec<i32> = (0..before.len())
        .map(|index| {
            let inside = index
                .checked_sub(recv_at)
                .filter(|&index| index < recv_size);
            let written =
                inside.and_then(|index| operation.expected(nranks, me, root, count, index, input));
            written.unwrap_or(before[index])
        })
        .collect();
    same(&rank.read(region)?, &expected).with_context(|| format!("{count} elements from {root}"))
}

/// Names the first difference.
fn same(got: &[i32], expected: &[i32]) -> Result<()> {
    ensure!(got.len() == expected.len());
    if let Some(index) = got
        .iter()
        .zip(expected)
        .position(|(got, expected)| got != expected)
    {
        bail!(
            "[{index}] is {:#x}, expected {:#x}",
            got[index],
            expected[index]
        );
    }
    Ok(())
}

/// Bytes arrive as they are, in elements of each size; 0 and 1 mean the same to every reduction.
fn every_type(operation: &Operation, rank: &Rank) -> Result<()> {
    let (nranks, me) = (rank.nranks as usize, rank.rank as usize);
    for kind in KINDS {
        if kind.is_fp8()
            && (operation.reduces && ANY.fp8().met(crate::world::World::get()).is_err())
        {
            continue;
        }
        let count = 37;
        let (send_size, recv_size) = operation.sizes(nranks, count);
        let value = |rank: usize, index: usize| (3 * rank + index) as i32 % 2;
        let encode = |value: i32| kind.encode(value.into());
        let elements: Vec<u64> = (0..send_size)
            .map(|index| encode(value(me, index)))
            .collect();
        let send = rank.upload(&kind.pack(&elements))?;
        let recv = match operation.kind {
            Kind::Bcast => send,
            _ => rank.blank(kind.size * recv_size)?,
        };
        let before = kind.unpack(&rank.read(recv)?);
        let arguments = Arguments {
            send: send.ptr(),
            recv: recv.ptr(),
            count,
            datatype: kind.datatype,
            root: 1,
            ..Arguments::new(rank.comm, rank.stream)
        };
        expect!((operation.call)(&arguments), OK);
        let got = kind.unpack(&rank.read(recv)?);
        for (index, &got) in got.iter().enumerate() {
            let written = operation
                .expected(nranks, me, 1, count, index, value)
                .map(encode);
            let expected = written.unwrap_or(before[index]);
            ensure!(
                got == expected,
                "{}[{index}] is {got:#x}, expected {expected:#x}",
                kind.name
            );
        }
    }
    Ok(())
}

/// The buffer that a rank's part does not use may be null.
fn unused_sides(cases: &mut Cases) {
    for operation in
        collectives().filter(|operation| operation.rooted && operation.kind != Kind::Bcast)
    {
        let (name, need) = (operation.name, operation.need);
        cases.team(
            2,
            &format!("{name}::null_where_it_is_not_used"),
            need,
            move |rank| {
                let (nranks, me) = (rank.nranks as usize, rank.rank as usize);
                for root in 0..nranks {
                    let (send_size, recv_size) = operation.sizes(nranks, 5);
                    let send = rank.upload(&inputs(me, send_size))?;
                    let recv = rank.blank(4 * recv_size)?;
                    let gathers = matches!(operation.kind, Kind::Reduce | Kind::Gather);
                    let arguments = Arguments {
                        send: if gathers || me == root {
                            send.ptr()
                        } else {
                            null_mut()
                        },
                        recv: if !gathers || me == root {
                            recv.ptr()
                        } else {
                            null_mut()
                        },
                        count: 5,
                        root: root as i32,
                        ..Arguments::new(rank.comm, rank.stream)
                    };
                    expect!((operation.call)(&arguments), OK);
                    for (index, got) in rank.read::<i32>(recv)?.into_iter().enumerate() {
                        let expected = operation
                            .expected(nranks, me, root, 5, index, input)
                            .unwrap_or(EMPTY);
                        expect!(got, expected);
                    }
                }
                Ok(())
            },
        );
    }
}

fn more(cases: &mut Cases) {
    for nranks in [2, 4, 8] {
        cases.team(
            nranks,
            &format!("all_reduce::of_millions::{nranks}"),
            ANY,
            |rank| {
                let count = (1 << 20) + 3;
                let mine: Vec<i32> = (0..count)
                    .map(|index| input(rank.rank as usize, index))
                    .collect();
                let buffer = rank.upload(&mine)?;
                let (p, int32) = (buffer.ptr(), NcclDataType::Int32);
                expect!(
                    ncclAllReduce(p, p, count, int32, NcclRedOp::Sum, rank.comm, rank.stream),
                    OK
                );
                // Samples, and the end whole.
                let sample = (0..count).filter(|index| index % 61 == 0 || index + 1000 > count);
                let got: Vec<i32> = rank.read(buffer)?;
                let sums = |index| {
                    let ranks = 0..rank.nranks as usize;
                    ranks.fold(0i32, |sum, rank| sum.wrapping_add(input(rank, index)))
                };
                let (got, expected): (Vec<i32>, Vec<i32>) =
                    sample.map(|index| (got[index], sums(index))).unzip();
                same(&got, &expected)?;
                Ok(())
            },
        );
    }
    // Aligned to the element and to nothing more.
    cases.team(2, "all_reduce::unaligned", ANY, |rank| {
        let bytes: Vec<u8> = (0..=255).collect();
        for offset in [1, 2, 3, 5, 13] {
            let buffer = rank.upload(&bytes)?;
            let p = buffer.at(offset);
            expect!(
                ncclAllReduce(
                    p,
                    p,
                    200,
                    NcclDataType::Uint8,
                    NcclRedOp::Sum,
                    rank.comm,
                    rank.stream
                ),
                OK
            );
            let got: Vec<u8> = rank.read(buffer)?;
            for (index, (&got, &before)) in got.iter().zip(&bytes).enumerate() {
                let inside = (offset..offset + 200).contains(&index);
                expect!(
                    got,
                    if inside {
                        before.wrapping_mul(2)
                    } else {
                        before
                    }
                );
            }
        }
        Ok(())
    });
    // In a row on one stream each works on what the last has left.
    cases.team(2, "in_a_row", ANY, |rank| {
        let buffer = rank.upload(&[1i32; 16])?;
        let (p, int32, stream) = (buffer.ptr(), NcclDataType::Int32, rank.stream);
        for _ in 0..10 {
            expect!(
                ncclAllReduce(p, p, 16, int32, NcclRedOp::Sum, rank.comm, stream),
                OK
            );
            expect!(
                ncclReduce(p, p, 16, int32, NcclRedOp::Sum, 1, rank.comm, stream),
                OK
            );
            expect!(ncclBroadcast(p, p, 16, int32, 1, rank.comm, stream), OK);
        }
        expect!(rank.read::<i32>(buffer)?, [1 << 20; 16]);
        Ok(())
    });
    cases.team(2, "memory_of_nccl", ANY.calls("ncclMemAlloc"), |rank| {
        let mut memory = null_mut();
        expect!(ncclMemAlloc(&mut memory, 4096), OK);
        expect!(
            cuMemsetD32Async(memory as u64, 21, 1024, rank.stream),
            CuResult::Success
        );
        rank.wait()?;
        rank.meet()?;
        let int32 = NcclDataType::Int32;
        expect!(
            ncclAllReduce(
                memory,
                memory,
                1024,
                int32,
                NcclRedOp::Sum,
                rank.comm,
                rank.stream
            ),
            OK
        );
        rank.wait()?;
        expect!(rank.peek::<i32>(memory as u64, 4096)?, [42; 1024]);
        rank.meet()?;
        expect!(ncclMemFree(memory), OK);
        rank.meet()
    });
    // The host's pinned memory is the device's as well.
    cases.team(2, "pinned_memory", ANY, |rank| {
        let mut memory = null_mut();
        expect!(cuMemAllocHost_v2(&mut memory, 4096), CuResult::Success);
        let words = memory.cast::<i32>();
        // SAFETY: the memory holds 1024 words, and nothing else uses it yet.
        unsafe { std::slice::from_raw_parts_mut(words, 1024) }.fill(rank.rank + 4);
        rank.meet()?;
        let int32 = NcclDataType::Int32;
        expect!(
            ncclAllReduce(
                memory,
                memory,
                1024,
                int32,
                NcclRedOp::Sum,
                rank.comm,
                rank.stream
            ),
            OK
        );
        rank.wait()?;
        // SAFETY: the work that used the memory is done.
        let words = unsafe { std::slice::from_raw_parts(words, 1024) };
        expect!(words, [9; 1024]);
        rank.meet()?;
        expect!(cuMemFreeHost(memory), CuResult::Success);
        rank.meet()
    });
    // Which context is current matters to nobody.
    cases.team(2, "whatever_context_is_current", ANY.devices(2), |rank| {
        use_device(1 - rank.device)?;
        let summed = rank.sum_over(rank.comm, 6);
        use_device(rank.device)?;
        expect!(summed?, 12);
        Ok(())
    });
    // What one device has, another's collective cannot be enqueued on.
    let need = ANY.devices(2).shares("streams");
    cases.team(2, "a_stream_of_another_device", need, |rank| {
        let comm = rank.join(NcclConfig::new())?;
        expect!(rank.sum_over(comm, 1)?, 2);
        let streams = rank.tell(rank.stream)?;
        let p = rank.upload(&[1])?.ptr();
        let theirs = streams[1 - rank.rank as usize];
        let code = ncclAllReduce(p, p, 1, NcclDataType::Int32, NcclRedOp::Sum, comm, theirs);
        expect!(code, NcclResult::UnhandledCudaError);
        rank.abort(comm)
    });
}
