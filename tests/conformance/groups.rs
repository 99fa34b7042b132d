//! Groups: what is put off, what is dropped, and which error comes out.

use std::ptr::{null, null_mut};

use anyhow::{Result, ensure};

use crate::calls::*;
use crate::cases::Cases;
use crate::expect;
use crate::latch::Latch;
use crate::team::{BLANK, Buffer, Rank, alone, state};
use crate::world::{ANY, Need};

const IA: NcclResult = NcclResult::InvalidArgument;
const IU: NcclResult = NcclResult::InvalidUsage;
const OK: NcclResult = NcclResult::Success;

/// A call that is refused for its null communicator, and spoils the group that is open.
fn refused() -> NcclResult {
    ncclAllReduce(
        null(),
        null_mut(),
        0,
        NcclDataType::Int8,
        NcclRedOp::Sum,
        null_mut(),
        0,
    )
}

pub fn add(cases: &mut Cases) {
    cases.subject("groups");
    depth(cases);
    errors(cases);
    poison(cases);
    deferral(cases);
    simulation(cases);
    cases.team(2, "many_collectives_at_once", ANY, |rank| {
        let buffers: Result<Vec<Buffer>> = (0..40)
            .map(|i| rank.upload(&vec![rank.rank + i; 100 * i as usize]))
            .collect();
        let buffers = buffers?;
        expect!(ncclGroupStart(), OK);
        for buffer in &buffers {
            expect!(sum(rank, rank.comm, *buffer), OK);
        }
        expect!(ncclGroupEnd(), OK);
        for (i, buffer) in buffers.into_iter().enumerate() {
            let values: Vec<i32> = rank.read(buffer)?;
            ensure!(
                values.iter().all(|&value| value == 2 * i as i32 + 1),
                "the {i}th"
            );
        }
        Ok(())
    });
    cases.team(4, "broadcasts_from_every_rank_at_once", ANY, |rank| {
        let buffers: Result<Vec<Buffer>> = (0..4)
            .map(|root| rank.upload(&vec![10 * rank.rank + root; 1000]))
            .collect();
        let buffers = buffers?;
        expect!(ncclGroupStart(), OK);
        for (root, buffer) in buffers.iter().enumerate() {
            expect!(
                ncclBcast(
                    buffer.ptr(),
                    1000,
                    NcclDataType::Int32,
                    root as i32,
                    rank.comm,
                    rank.stream
                ),
                OK
            );
        }
        expect!(ncclGroupEnd(), OK);
        for (root, buffer) in buffers.into_iter().enumerate() {
            let values: Vec<i32> = rank.read(buffer)?;
            ensure!(
                values.iter().all(|&value| value == 11 * root as i32),
                "from {root}: {}",
                values[0]
            );
        }
        Ok(())
    });
    cases.team(2, "two_communicators_at_once", ANY, |rank| {
        let other = rank.join(NcclConfig::new())?;
        // In another order on each rank: what is in a group has none.
        let buffers = [rank.upload(&[1])?, rank.upload(&[10])?];
        let mut pairs = [(rank.comm, buffers[0]), (other, buffers[1])];
        if rank.rank == 1 {
            pairs.reverse();
        }
        expect!(ncclGroupStart(), OK);
        for (comm, buffer) in pairs {
            expect!(sum(rank, comm, buffer), OK);
        }
        expect!(ncclGroupEnd(), OK);
        expect!(rank.read::<i32>(buffers[0])?, [2]);
        expect!(rank.read::<i32>(buffers[1])?, [20]);
        rank.leave(other)
    });
    cases.solo("init_used_in_its_own_group", ANY, || {
        let mut comm = null_mut();
        expect!(ncclGroupStart(), OK);
        expect!(ncclCommInitRank(&mut comm, 1, unique_id()?, 0), OK);
        ensure!(!comm.is_null());
        expect!(
            ncclAllReduce(
                null(),
                null_mut(),
                0,
                NcclDataType::Int8,
                NcclRedOp::Sum,
                comm,
                0
            ),
            IA
        );
        expect!(ncclGroupEnd(), IA);
        expect!(ncclCommAbort(comm), OK);
        Ok(())
    });
    cases.solo("init_in_a_group", ANY, || {
        let mut comms = [null_mut(); 2];
        expect!(ncclGroupStart(), OK);
        for comm in &mut comms {
            expect!(ncclCommInitRank(comm, 1, unique_id()?, 0), OK);
            ensure!(!comm.is_null(), "the handle is there at once");
        }
        expect!(ncclGroupEnd(), OK);
        for comm in comms {
            let mut count = 0;
            expect!(ncclCommCount(comm, &mut count), OK);
            expect!(count, 1);
            expect!(ncclCommDestroy(comm), OK);
        }
        Ok(())
    });
    cases.team(2, "split_in_a_group", ANY, |rank| {
        let mut child = null_mut();
        rank.meet()?;
        expect!(ncclGroupStart(), OK);
        expect!(
            ncclCommSplit(rank.comm, 0, -rank.rank, &mut child, null()),
            OK
        );
        expect!(ncclGroupEnd(), OK);
        ensure!(!child.is_null());
        expect!(rank.sum_over(child, 2)?, 4);
        rank.leave(child)
    });
}

/// Sums a buffer of integers in place.
fn sum(rank: &Rank, comm: NcclComm, buffer: Buffer) -> NcclResult {
    let (p, int32) = (buffer.ptr(), NcclDataType::Int32);
    ncclAllReduce(
        p,
        p,
        buffer.bytes / 4,
        int32,
        NcclRedOp::Sum,
        comm,
        rank.stream,
    )
}

fn depth(cases: &mut Cases) {
    cases.bare("end_without_start", ANY, || {
        for _ in 0..3 {
            expect!(ncclGroupEnd(), IU);
        }
        Ok(())
    });
    cases.bare("empty", ANY, || {
        expect!(ncclGroupStart(), OK);
        expect!(ncclGroupEnd(), OK);
        expect!(ncclGroupEnd(), IU);
        Ok(())
    });
    cases.bare("nested_a_hundred_deep", ANY, || {
        for _ in 0..100 {
            expect!(ncclGroupStart(), OK);
        }
        for _ in 0..100 {
            expect!(ncclGroupEnd(), OK);
        }
        expect!(ncclGroupEnd(), IU);
        Ok(())
    });
    cases.bare("a_thread_has_its_own", ANY, || {
        expect!(ncclGroupStart(), OK);
        expect!(
            std::thread::spawn(ncclGroupEnd).join().expect("no panic"),
            IU
        );
        expect!(ncclGroupEnd(), OK);
        Ok(())
    });
    // A group that is open on one thread puts nothing off on another.
    cases.solo("a_thread_does_not_put_off_another", ANY, || {
        expect!(ncclGroupStart(), OK);
        let other = std::thread::spawn(|| -> Result<()> {
            use_device(0)?;
            let comm = alone(&NcclConfig::new())?;
            expect!(ncclCommDestroy(comm), OK);
            Ok(())
        });
        other.join().expect("no panic")?;
        expect!(ncclGroupEnd(), OK);
        Ok(())
    });
    cases.team(1, "nothing_to_do_in_a_group", ANY, |rank| {
        expect!(ncclGroupStart(), OK);
        expect!(
            ncclAllReduce(
                null(),
                null_mut(),
                0,
                NcclDataType::Int8,
                NcclRedOp::Sum,
                rank.comm,
                rank.stream
            ),
            OK
        );
        expect!(ncclGroupEnd(), OK);
        Ok(())
    });
}

fn errors(cases: &mut Cases) {
    // One rank's collectives are copies that are made at once, group or not.
    cases.team(1, "one_bad_among_good_of_one_rank", ANY, |rank| {
        let (from, to) = (rank.upload(&[1, 2, 3])?, rank.blank(12)?);
        let call = |datatype| {
            ncclAllReduce(
                from.ptr(),
                to.ptr(),
                3,
                datatype,
                NcclRedOp::Sum,
                rank.comm,
                rank.stream,
            )
        };
        expect!(ncclGroupStart(), OK);
        expect!(call(NcclDataType(99)), IA);
        expect!(call(NcclDataType::Int32), OK);
        expect!(ncclGroupEnd(), IA);
        expect!(ncclGroupEnd(), IU);
        expect!(state(rank.comm)?, OK);
        expect!(rank.read::<i32>(to)?, [1, 2, 3]);
        Ok(())
    });
    for (name, before) in [("before", true), ("after", false)] {
        cases.team(
            2,
            &format!("a_bad_call_{name}_drops_the_good_one"),
            ANY,
            move |rank| {
                let buffer = rank.upload(&[rank.rank, 5])?;
                let bad = || {
                    ncclBroadcast(
                        null(),
                        null_mut(),
                        4,
                        NcclDataType::Int8,
                        99,
                        rank.comm,
                        rank.stream,
                    )
                };
                expect!(ncclGroupStart(), OK);
                if before {
                    expect!(bad(), IA);
                }
                expect!(sum(rank, rank.comm, buffer), OK);
                if !before {
                    expect!(bad(), IA);
                }
                expect!(ncclGroupEnd(), IA);
                expect!(state(rank.comm)?, OK);
                expect!(rank.read::<i32>(buffer)?, [rank.rank, 5]);
                // And the group is clean again.
                rank.meet()?;
                expect!(rank.sum_over(rank.comm, 4)?, 8);
                Ok(())
            },
        );
    }
    cases.bare("null_comm", ANY, || {
        expect!(ncclGroupStart(), OK);
        expect!(refused(), IA);
        expect!(ncclGroupEnd(), IA);
        expect!(ncclGroupEnd(), IU);
        Ok(())
    });
    cases.bare("an_inner_group_keeps_the_error_for_the_outer", ANY, || {
        expect!(ncclGroupStart(), OK);
        expect!(ncclGroupStart(), OK);
        expect!(refused(), IA);
        expect!(ncclGroupEnd(), OK);
        expect!(ncclGroupEnd(), IA);
        expect!(ncclGroupEnd(), IU);
        Ok(())
    });
    cases.bare("after_an_error_the_next_group_is_clean", ANY, || {
        for _ in 0..3 {
            expect!(ncclGroupStart(), OK);
            expect!(
                ncclSend(null(), 0, NcclDataType::Int8, 0, null_mut(), 0),
                IA
            );
            expect!(ncclGroupEnd(), IA);
            expect!(ncclGroupStart(), OK);
            expect!(ncclGroupEnd(), OK);
        }
        Ok(())
    });
    for (name, revoked_first, end) in [("argument", true, IA), ("usage", false, IU)] {
        cases.solo(
            &format!("the_last_error_counts::{name}"),
            ANY.calls("ncclCommRevoke"),
            move || {
                let comm = alone(&NcclConfig::new())?;
                expect!(ncclCommRevoke(comm, 0), OK);
                let bad = |comm| {
                    ncclAllReduce(
                        null(),
                        null_mut(),
                        0,
                        NcclDataType::Int8,
                        NcclRedOp::Sum,
                        comm,
                        0,
                    )
                };
                expect!(ncclGroupStart(), OK);
                let order = if revoked_first {
                    [comm, null_mut()]
                } else {
                    [null_mut(), comm]
                };
                for comm in order {
                    expect!(bad(comm), if comm.is_null() { IA } else { IU });
                }
                expect!(ncclGroupEnd(), end);
                expect!(ncclCommDestroy(comm), OK);
                Ok(())
            },
        );
    }
    cases.team(1, "send_to_oneself_alone", ANY, |rank| {
        let buffer = rank.blank(64)?;
        for receive in [false, true] {
            let comm = rank.join(NcclConfig::new())?;
            expect!(ncclGroupStart(), OK);
            let code = match receive {
                true => ncclRecv(buffer.ptr(), 4, NcclDataType::Int8, 0, comm, rank.stream),
                false => ncclSend(buffer.ptr(), 4, NcclDataType::Int8, 0, comm, rank.stream),
            };
            expect!(code, OK);
            expect!(ncclGroupEnd(), IU);
            rank.abort(comm)?;
        }
        Ok(())
    });
}

/// Which failing calls make the group fail.
fn poison(cases: &mut Cases) {
    type Call = fn() -> NcclResult;
    const ID: NcclUniqueId = NcclUniqueId { internal: [0; 128] };
    let none: NcclResult = OK;
    let calls: [(&str, Need, Call, NcclResult); 22] = [
        ("count", ANY, || ncclCommCount(null_mut(), &mut 0), none),
        (
            "get_async_error",
            ANY,
            || ncclCommGetAsyncError(null_mut(), &mut NcclResult(0)),
            none,
        ),
        (
            "red_op_destroy",
            ANY,
            || ncclRedOpDestroy(NcclRedOp::Sum, null_mut()),
            none,
        ),
        (
            "red_op_create",
            ANY,
            || {
                ncclRedOpCreatePreMulSum(
                    &mut NcclRedOp(0),
                    null_mut(),
                    NcclDataType::Int8,
                    NcclScalarResidence::HostImmediate,
                    null_mut(),
                )
            },
            none,
        ),
        ("get_version", ANY, || ncclGetVersion(null_mut()), none),
        ("get_unique_id", ANY, || ncclGetUniqueId(null_mut()), none),
        (
            "register",
            ANY.calls("ncclCommRegister"),
            || ncclCommRegister(null_mut(), null_mut(), 1, &mut null_mut()),
            none,
        ),
        (
            "deregister",
            ANY.calls("ncclCommDeregister"),
            || ncclCommDeregister(null_mut(), null_mut()),
            none,
        ),
        (
            "window_register",
            ANY.nccl(29),
            || ncclCommWindowRegister(null_mut(), null_mut(), 1, &mut null_mut(), 0),
            none,
        ),
        (
            "window_deregister",
            ANY.nccl(29),
            || ncclCommWindowDeregister(null_mut(), null_mut()),
            none,
        ),
        (
            "win_get_user_ptr",
            ANY.calls("ncclWinGetUserPtr"),
            || ncclWinGetUserPtr(null_mut(), null_mut(), &mut null_mut()),
            none,
        ),
        (
            "suspend",
            ANY.calls("ncclCommSuspend"),
            || ncclCommSuspend(null_mut(), 1),
            none,
        ),
        (
            "resume",
            ANY.calls("ncclCommResume"),
            || ncclCommResume(null_mut()),
            none,
        ),
        (
            "mem_stats",
            ANY.calls("ncclCommMemStats"),
            || ncclCommMemStats(null_mut(), NcclCommMemStat(0), null_mut()),
            none,
        ),
        (
            "comm_get_unique_id",
            ANY.calls("ncclCommGetUniqueId"),
            || ncclCommGetUniqueId(null_mut(), null_mut()),
            none,
        ),
        (
            "grow_to_nothing",
            ANY.calls("ncclCommGrow"),
            || ncclCommGrow(null_mut(), 0, null(), 0, &mut null_mut(), null()),
            none,
        ),
        (
            "grow_without_an_id",
            ANY.calls("ncclCommGrow"),
            || ncclCommGrow(null_mut(), 2, null(), 0, &mut null_mut(), null()),
            IA,
        ),
        (
            "split",
            ANY,
            || ncclCommSplit(null_mut(), 0, 0, &mut null_mut(), null()),
            IA,
        ),
        (
            "init_rank_of_none",
            ANY.nccl(31),
            || ncclCommInitRank(&mut null_mut(), 0, ID, 0),
            IA,
        ),
        (
            "init_rank_of_another",
            ANY,
            || ncclCommInitRank(&mut null_mut(), 1, ID, 1),
            IA,
        ),
        (
            "init_rank_config_of_none",
            ANY,
            || ncclCommInitRankConfig(&mut null_mut(), 0, ID, 0, null()),
            IA,
        ),
        (
            "signal",
            ANY.calls("ncclSignal"),
            || ncclSignal(0, 0, 0, 0, null_mut(), 0),
            IA,
        ),
    ];
    for (name, need, call, end) in calls {
        let word = if end == OK {
            "leaves_the_group_alone"
        } else {
            "spoils_the_group"
        };
        cases.bare(&format!("{name}::{word}"), need, move || {
            expect!(ncclGroupStart(), OK);
            expect!(call(), IA);
            expect!(ncclGroupEnd(), end);
            expect!(ncclGroupEnd(), IU);
            Ok(())
        });
    }
}

fn deferral(cases: &mut Cases) {
    cases.team(2, "nothing_starts_before_the_end", ANY, |rank| {
        let buffer = rank.upload(&[rank.rank + 1; 8])?;
        expect!(ncclGroupStart(), OK);
        expect!(sum(rank, rank.comm, buffer), OK);
        rank.meet()?;
        std::thread::sleep(std::time::Duration::from_millis(5));
        expect!(cuStreamQuery(rank.stream), CuResult::Success);
        expect!(rank.peek::<i32>(buffer.address, 32)?, [rank.rank + 1; 8]);
        rank.meet()?;
        expect!(ncclGroupEnd(), OK);
        expect!(rank.read::<i32>(buffer)?, [3; 8]);
        Ok(())
    });
    cases.team(2, "an_inner_end_starts_nothing", ANY, |rank| {
        let buffer = rank.upload(&[1])?;
        expect!(ncclGroupStart(), OK);
        expect!(ncclGroupStart(), OK);
        expect!(sum(rank, rank.comm, buffer), OK);
        expect!(ncclGroupEnd(), OK);
        rank.meet()?;
        expect!(rank.peek::<i32>(buffer.address, 4)?, [1]);
        rank.meet()?;
        expect!(ncclGroupEnd(), OK);
        expect!(rank.read::<i32>(buffer)?, [2]);
        Ok(())
    });
    cases.team(1, "one_rank_does_not_put_off", ANY, |rank| {
        let (from, to) = (rank.upload(&[7])?, rank.blank(4)?);
        expect!(ncclGroupStart(), OK);
        expect!(
            ncclAllReduce(
                from.ptr(),
                to.ptr(),
                1,
                NcclDataType::Int32,
                NcclRedOp::Sum,
                rank.comm,
                rank.stream
            ),
            OK
        );
        expect!(rank.read::<i32>(to)?, [7]);
        expect!(ncclGroupEnd(), OK);
        Ok(())
    });
    // The kernel waits for all streams of the group, and all of them for it.
    cases.team(2, "streams_of_a_group_wait_for_each_other", ANY, |rank| {
        let (a, b) = (rank.upload(&[1])?, rank.upload(&[1])?);
        let other = create_stream()?;
        let latch = Latch::hold(other)?;
        expect!(ncclGroupStart(), OK);
        let call = |buffer: Buffer, stream| {
            let (p, int32) = (buffer.ptr(), NcclDataType::Int32);
            ncclAllReduce(p, p, 1, int32, NcclRedOp::Sum, rank.comm, stream)
        };
        expect!(call(a, rank.stream), OK);
        expect!(call(b, other), OK);
        expect!(ncclGroupEnd(), OK);
        std::thread::sleep(std::time::Duration::from_millis(10));
        expect!(cuStreamQuery(rank.stream), CuResult::NotReady);
        rank.meet()?;
        latch.open();
        rank.wait()?;
        rank.wait_for(other)?;
        expect!(rank.read::<i32>(a)?, [2]);
        expect!(rank.read::<i32>(b)?, [2]);
        destroy_stream(other);
        Ok(())
    });
}

fn simulation(cases: &mut Cases) {
    let need = ANY.calls("ncclGroupSimulateEnd");
    let new = NcclSimInfo::new();
    cases.bare("simulate::without_start", need, move || {
        expect!(ncclGroupSimulateEnd(&mut { new }), IU);
        expect!(ncclGroupSimulateEnd(null_mut()), IU);
        Ok(())
    });
    cases.bare("simulate::empty", need, move || {
        let mut info = new;
        expect!(ncclGroupStart(), OK);
        expect!(ncclGroupSimulateEnd(&mut info), OK);
        expect!(info.estimated_time, -1.0);
        expect!(ncclGroupEnd(), IU);
        Ok(())
    });
    for (name, info, code) in [
        ("wrong_magic", NcclSimInfo { magic: 1, ..new }, IA),
        ("size_4", NcclSimInfo { size: 4, ..new }, IA),
        (
            "size_16_version_0",
            NcclSimInfo {
                size: 16,
                version: 0,
                ..new
            },
            OK,
        ),
    ] {
        cases.bare(&format!("simulate::{name}"), need, move || {
            expect!(ncclGroupStart(), OK);
            expect!(ncclGroupSimulateEnd(&mut { info }), code);
            expect!(ncclGroupEnd(), IU);
            Ok(())
        });
    }
    cases.bare("simulate::nested_only_counts", need, move || {
        expect!(ncclGroupStart(), OK);
        expect!(ncclGroupStart(), OK);
        expect!(
            ncclGroupSimulateEnd(&mut NcclSimInfo { magic: 1, ..new }),
            OK
        );
        expect!(ncclGroupEnd(), OK);
        expect!(ncclGroupEnd(), IU);
        Ok(())
    });
    cases.team(2, "simulate::null_launches", need, |rank| {
        let buffer = rank.upload(&[3])?;
        expect!(ncclGroupStart(), OK);
        expect!(sum(rank, rank.comm, buffer), OK);
        expect!(ncclGroupSimulateEnd(null_mut()), OK);
        expect!(rank.read::<i32>(buffer)?, [6]);
        Ok(())
    });
    cases.team(2, "simulate::moves_nothing", need, move |rank| {
        let comm = rank.join(NcclConfig::new())?;
        let (from, to) = (rank.upload(&[3; 4096])?, rank.blank(4 * 4096)?);
        let mut info = new;
        expect!(ncclGroupStart(), OK);
        expect!(
            ncclAllReduce(
                from.ptr(),
                to.ptr(),
                4096,
                NcclDataType::Int32,
                NcclRedOp::Sum,
                comm,
                rank.stream
            ),
            OK
        );
        expect!(ncclGroupSimulateEnd(&mut info), OK);
        ensure!(
            info.estimated_time > 0.0,
            "an estimate in microseconds: {}",
            info.estimated_time
        );
        expect!(rank.read::<u8>(to)?, [BLANK; 4 * 4096]);
        rank.meet()?;
        expect!(rank.sum_over(comm, 1)?, 2);
        rank.leave(comm)
    });
}
