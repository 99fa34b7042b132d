//! Communicators that do not wait: what comes at once, what the state says, and what spoils them.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use anyhow::{Result, ensure};

use crate::calls::*;
use crate::cases::Cases;
use crate::expect;
use crate::team::{Rank, alone_non_blocking, state};
use crate::world::ANY;

const IA: NcclResult = NcclResult::InvalidArgument;
const IP: NcclResult = NcclResult::InProgress;
const OK: NcclResult = NcclResult::Success;

/// The state that a call found: still busy, or done already.
macro_rules! expect_started {
    ($call:expr) => {{
        let code = $call;
        ensure!(
            code == IP || code == OK,
            "{} is {code:?}",
            stringify!($call)
        );
    }};
}

fn sum(rank: &Rank, comm: NcclComm, p: *mut c_void) -> NcclResult {
    ncclAllReduce(
        p,
        p,
        1,
        NcclDataType::Int32,
        NcclRedOp::Sum,
        comm,
        rank.stream,
    )
}

pub fn add(cases: &mut Cases) {
    cases.subject("nonblocking");
    one_rank(cases);
    two_ranks(cases);
    children(cases);
    groups(cases);
}

fn one_rank(cases: &mut Cases) {
    cases.solo("init_returns_at_once", ANY, || {
        let mut comm = null_mut();
        let code =
            ncclCommInitRankConfig(&mut comm, 1, unique_id()?, 0, &NcclConfig::non_blocking());
        expect!(code, IP);
        ensure!(!comm.is_null(), "the handle is there at once");
        expect!(crate::team::settled(comm)?, OK);
        expect!(ncclCommDestroy(comm), OK);
        Ok(())
    });
    cases.solo(
        "scalable_init_returns_at_once",
        ANY.calls("ncclCommInitRankScalable"),
        || {
            let (mut comm, mut id) = (null_mut(), unique_id()?);
            let code =
                ncclCommInitRankScalable(&mut comm, 1, 0, 1, &mut id, &NcclConfig::non_blocking());
            expect!(code, IP);
            expect!(crate::team::settled(comm)?, OK);
            expect!(ncclCommDestroy(comm), OK);
            Ok(())
        },
    );
    // It is refused before there is anything to do in the background.
    cases.solo("a_bad_init_is_refused_at_once", ANY, || {
        let mut comm = 7 as NcclComm;
        let config = NcclConfig {
            split_share: 2,
            ..NcclConfig::non_blocking()
        };
        expect!(
            ncclCommInitRankConfig(&mut comm, 1, unique_id()?, 0, &config),
            IA
        );
        expect!(comm, null_mut());
        Ok(())
    });
    cases.team(1, "a_collective_of_one_rank_is_done_at_once", ANY, |rank| {
        let comm = rank.join(NcclConfig::non_blocking())?;
        let buffer = rank.upload(&[4])?;
        expect!(sum(rank, comm, buffer.ptr()), OK);
        expect!(state(comm)?, OK);
        expect!(rank.read::<i32>(buffer)?, [4]);
        rank.leave(comm)
    });
    for nranks in [1, 2] {
        cases.team(
            nranks,
            &format!("nothing_to_do_is_done_at_once::{nranks}"),
            ANY,
            |rank| {
                let comm = rank.join(NcclConfig::non_blocking())?;
                let code = ncclAllReduce(
                    null(),
                    null_mut(),
                    0,
                    NcclDataType::Int8,
                    NcclRedOp::Sum,
                    comm,
                    rank.stream,
                );
                expect!(code, OK);
                expect!(state(comm)?, OK);
                rank.leave(comm)
            },
        );
    }
    cases.solo(
        "operators_and_registration_are_done_at_once",
        ANY.calls("ncclCommRegister"),
        || {
            let comm = alone_non_blocking()?;
            let (mut op, mut scalar, mut handle) = (NcclRedOp(0), 2f32, null_mut());
            let residence = NcclScalarResidence::HostImmediate;
            let p: *mut c_void = (&raw mut scalar).cast();
            expect!(
                ncclRedOpCreatePreMulSum(&mut op, p, NcclDataType::Float32, residence, comm),
                OK
            );
            expect!(ncclRedOpDestroy(op, comm), OK);
            let memory = mem_alloc(1 << 21)?;
            expect!(
                ncclCommRegister(comm, memory as *mut c_void, 1 << 21, &mut handle),
                OK
            );
            expect!(ncclCommDeregister(comm, handle), OK);
            expect!(state(comm)?, OK);
            expect!(ncclCommDestroy(comm), OK);
            expect!(cuMemFree_v2(memory), CuResult::Success);
            Ok(())
        },
    );
    // One refused argument, and everything is refused.
    cases.solo("a_bad_argument_sticks", ANY, || {
        let comm = alone_non_blocking()?;
        let call =
            |datatype| ncclAllReduce(null(), null_mut(), 0, datatype, NcclRedOp::Sum, comm, 0);
        expect!(call(NcclDataType::Int8), OK);
        expect!(call(NcclDataType(99)), IA);
        for _ in 0..3 {
            expect!(state(comm)?, IA);
            expect!(call(NcclDataType::Int8), IA);
            expect!(ncclCommCount(comm, &mut 0), IA);
        }
        expect!(ncclCommAbort(comm), OK);
        Ok(())
    });
    cases.solo("a_refused_query_does_not_stick", ANY, || {
        let comm = alone_non_blocking()?;
        expect!(ncclCommCount(comm, null_mut()), IA);
        expect!(ncclRedOpDestroy(NcclRedOp(77), comm), IA);
        expect!(state(comm)?, OK);
        expect!(ncclCommCount(comm, &mut 0), OK);
        expect!(ncclCommDestroy(comm), OK);
        Ok(())
    });
    cases.solo("finalize_twice_sticks", ANY, || {
        let comm = alone_non_blocking()?;
        expect_started!(ncclCommFinalize(comm));
        expect!(crate::team::settled(comm)?, OK);
        expect!(ncclCommFinalize(comm), IA);
        expect!(state(comm)?, IA);
        expect!(ncclCommAbort(comm), OK);
        Ok(())
    });
}

fn two_ranks(cases: &mut Cases) {
    cases.team(
        2,
        "init_waits_for_its_peer_in_the_background",
        ANY,
        |rank| {
            let (id, mut comm) = (rank.id()?, null_mut());
            let config = NcclConfig {
                max_ctas: 2,
                ..NcclConfig::non_blocking()
            };
            if rank.rank == 0 {
                expect!(ncclCommInitRankConfig(&mut comm, 2, id, 0, &config), IP);
                expect!(state(comm)?, IP);
                expect!(ncclCommCount(comm, &mut 0), IA);
                expect!(state(comm)?, IP);
            }
            rank.meet()?;
            if rank.rank == 1 {
                expect!(ncclCommInitRankConfig(&mut comm, 2, id, 1, &config), IP);
            }
            expect!(rank.settle(comm)?, OK);
            let mut count = 0;
            expect!(ncclCommCount(comm, &mut count), OK);
            expect!(count, 2);
            rank.leave(comm)
        },
    );
    // The first collective connects.
    cases.team(
        2,
        "the_first_collective_connects_in_the_background",
        ANY,
        |rank| {
            let comm = rank.join(NcclConfig::non_blocking())?;
            let buffer = rank.upload(&[rank.rank + 1])?;
            rank.meet()?;
            if rank.rank == 0 {
                expect!(sum(rank, comm, buffer.ptr()), IP);
                expect!(state(comm)?, IP);
            }
            rank.meet()?;
            if rank.rank == 1 {
                expect!(sum(rank, comm, buffer.ptr()), IP);
            }
            expect!(rank.settle(comm)?, OK);
            expect!(rank.read::<i32>(buffer)?, [3]);
            // From then on there is nothing to wait for but the launch.
            for round in 0..20 {
                expect_started!(sum(rank, comm, buffer.ptr()));
                expect!(rank.settle(comm)?, OK);
                expect!(rank.read::<i32>(buffer)?, [3 << (round + 1)]);
            }
            rank.leave(comm)
        },
    );
    // While the first is on its way the next is refused, and so is all that follows; when it has
    // arrived, its result takes the place of the refusal.
    cases.team(2, "a_call_too_early_is_refused", ANY, |rank| {
        let comm = rank.join(NcclConfig::non_blocking())?;
        let (a, b) = (rank.upload(&[1])?, rank.upload(&[1])?);
        rank.meet()?;
        if rank.rank == 0 {
            expect!(sum(rank, comm, a.ptr()), IP);
            expect!(state(comm)?, IP);
            expect!(ncclGroupStart(), OK);
            expect!(sum(rank, comm, b.ptr()), IA);
            expect!(ncclGroupEnd(), IA);
            let mut child = null_mut();
            expect!(ncclCommSplit(comm, 0, 0, &mut child, null()), IA);
            expect!(child, null_mut());
            expect!(state(comm)?, IA);
        }
        rank.meet()?;
        if rank.rank == 1 {
            expect!(sum(rank, comm, a.ptr()), IP);
        }
        while state(comm)? != OK {
            rank.breathe()?;
        }
        expect!(rank.read::<i32>(a)?, [2]);
        expect!(rank.read::<i32>(b)?, [1]);
        rank.meet()?;
        expect_started!(sum(rank, comm, a.ptr()));
        expect!(rank.settle(comm)?, OK);
        expect!(rank.read::<i32>(a)?, [4]);
        rank.leave(comm)
    });
    cases.team(2, "aborted_while_it_connects", ANY, |rank| {
        let comm = rank.join(NcclConfig::non_blocking())?;
        let buffer = rank.upload(&[1])?;
        rank.meet()?;
        if rank.rank == 0 {
            expect!(sum(rank, comm, buffer.ptr()), IP);
            expect!(ncclCommAbort(comm), OK);
            rank.wait()?;
        }
        rank.meet()?;
        if rank.rank == 1 {
            expect!(ncclCommAbort(comm), OK);
        }
        rank.meet()
    });
    cases.team(2, "finalize_goes_on_in_the_background", ANY, |rank| {
        let comm = rank.join(NcclConfig::non_blocking())?;
        rank.meet()?;
        expect_started!(ncclCommFinalize(comm));
        expect!(rank.settle(comm)?, OK);
        rank.leave(comm)
    });
    cases.team(2, "destroy_without_finalize", ANY, |rank| {
        let comm = rank.join(NcclConfig::non_blocking())?;
        rank.leave(comm)
    });
    cases.team(
        2,
        "revoke_goes_on_in_the_background",
        ANY.calls("ncclCommRevoke"),
        |rank| {
            let comm = rank.join(NcclConfig::non_blocking())?;
            rank.meet()?;
            expect_started!(ncclCommRevoke(comm, 0));
            expect!(rank.settle(comm)?, OK);
            let code = ncclAllReduce(
                null(),
                null_mut(),
                0,
                NcclDataType::Int8,
                NcclRedOp::Sum,
                comm,
                rank.stream,
            );
            expect!(code, NcclResult::InvalidUsage);
            rank.abort(comm)
        },
    );
    cases.team(
        2,
        "suspend_and_resume_go_on_in_the_background",
        ANY.calls("ncclCommSuspend"),
        |rank| {
            let comm = rank.join(NcclConfig::non_blocking())?;
            rank.meet()?;
            expect_started!(ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
            expect!(rank.settle(comm)?, OK);
            rank.meet()?;
            expect_started!(ncclCommResume(comm));
            expect!(rank.settle(comm)?, OK);
            rank.leave(comm)
        },
    );
}

/// Makes two communicators of the parent's, one rank after the other.
fn children(cases: &mut Cases) {
    cases.team(2, "split_keeps_the_parent_busy", ANY, |rank| {
        let parent = rank.join(NcclConfig::non_blocking())?;
        let mut child = 7 as NcclComm;
        rank.meet()?;
        if rank.rank == 0 {
            expect!(ncclCommSplit(parent, 0, 0, &mut child, null()), OK);
            expect!(state(parent)?, IP);
            expect!(child, null_mut());
            expect!(ncclCommCount(parent, &mut 0), IA);
        }
        rank.meet()?;
        if rank.rank == 1 {
            expect!(ncclCommSplit(parent, 0, 0, &mut child, null()), OK);
        }
        expect!(rank.settle(parent)?, OK);
        ensure!(
            !child.is_null(),
            "the child is there when the parent is ready"
        );
        expect!(rank.settle(child)?, OK);
        expect!(ncclCommCount(child, &mut 0), OK);
        rank.leave(child)?;
        rank.leave(parent)
    });
    cases.team(
        2,
        "shrink_keeps_the_parent_busy",
        ANY.calls("ncclCommShrink"),
        |rank| {
            let parent = rank.join(NcclConfig::non_blocking())?;
            rank.meet()?;
            if rank.rank == 0 {
                let (mut child, mut list) = (null_mut(), [1]);
                expect!(
                    ncclCommShrink(
                        parent,
                        list.as_mut_ptr(),
                        1,
                        &mut child,
                        null(),
                        NCCL_SHRINK_DEFAULT
                    ),
                    OK
                );
                expect!(rank.settle(parent)?, OK);
                ensure!(!child.is_null());
                let mut count = 0;
                expect!(ncclCommCount(child, &mut count), OK);
                expect!(count, 1);
                expect!(ncclCommDestroy(child), OK);
            }
            rank.leave(parent)
        },
    );
    cases.team(
        2,
        "grow_leaves_the_parent_alone",
        ANY.calls("ncclCommGrow"),
        |rank| {
            let mut parent = null_mut();
            let mut mine = NcclUniqueId { internal: [0; 128] };
            let config = NcclConfig::non_blocking();
            if rank.rank == 0 {
                parent = alone_non_blocking()?;
                expect!(ncclCommGetUniqueId(parent, &mut mine), OK);
            }
            let id = rank.tell(mine)?[0];
            let mut grown = null_mut();
            if rank.rank == 0 {
                expect!(ncclCommGrow(parent, 2, &id, -1, &mut grown, &config), OK);
                ensure!(!grown.is_null(), "the handle is there at once");
                expect!(state(grown)?, IP);
                expect!(state(parent)?, OK);
            }
            rank.meet()?;
            if rank.rank == 1 {
                expect!(ncclCommGrow(null_mut(), 2, &id, 1, &mut grown, &config), OK);
            }
            expect!(rank.settle(grown)?, OK);
            let mut count = 0;
            expect!(ncclCommCount(grown, &mut count), OK);
            expect!(count, 2);
            rank.leave(grown)?;
            expect!(ncclCommDestroy(parent), OK);
            rank.meet()
        },
    );
    cases.team(
        2,
        "window_register_goes_on_in_the_background",
        ANY.calls("ncclCommWindowRegister"),
        |rank| {
            let comm = rank.join(NcclConfig::non_blocking())?;
            let (mut memory, mut window) = (null_mut(), 7 as NcclWindow);
            expect!(ncclMemAlloc(&mut memory, 1 << 21), OK);
            rank.meet()?;
            if rank.rank == 0 {
                expect!(
                    ncclCommWindowRegister(
                        comm,
                        memory,
                        1 << 21,
                        &mut window,
                        NCCL_WIN_COLL_SYMMETRIC
                    ),
                    OK
                );
                expect!(state(comm)?, IP);
                expect!(window, null_mut());
            }
            rank.meet()?;
            if rank.rank == 1 {
                expect!(
                    ncclCommWindowRegister(
                        comm,
                        memory,
                        1 << 21,
                        &mut window,
                        NCCL_WIN_COLL_SYMMETRIC
                    ),
                    OK
                );
            }
            expect!(rank.settle(comm)?, OK);
            ensure!(!window.is_null());
            rank.meet()?;
            expect!(ncclCommWindowDeregister(comm, window), OK);
            rank.leave(comm)?;
            expect!(ncclMemFree(memory), OK);
            rank.meet()
        },
    );
}

fn groups(cases: &mut Cases) {
    cases.team(2, "the_end_of_a_group_is_in_progress", ANY, |rank| {
        let comm = rank.join(NcclConfig::non_blocking())?;
        let buffers = [rank.upload(&[1])?, rank.upload(&[10])?];
        for factor in [2, 4, 8] {
            expect!(ncclGroupStart(), OK);
            for buffer in buffers {
                expect!(sum(rank, comm, buffer.ptr()), OK);
            }
            expect!(ncclGroupEnd(), IP);
            expect!(rank.settle(comm)?, OK);
            expect!(rank.read::<i32>(buffers[0])?, [factor]);
            expect!(rank.read::<i32>(buffers[1])?, [10 * factor]);
        }
        rank.leave(comm)
    });
    cases.team(2, "an_error_in_a_group_sticks", ANY, |rank| {
        let comm = rank.join(NcclConfig::non_blocking())?;
        let buffer = rank.upload(&[rank.rank])?;
        expect!(ncclGroupStart(), OK);
        expect!(sum(rank, comm, buffer.ptr()), OK);
        expect!(
            ncclBroadcast(
                null(),
                null_mut(),
                4,
                NcclDataType::Int8,
                9,
                comm,
                rank.stream
            ),
            IA
        );
        expect!(ncclGroupEnd(), IA);
        expect!(state(comm)?, IA);
        expect!(rank.read::<i32>(buffer)?, [rank.rank]);
        rank.abort(comm)
    });
    cases.solo("init_in_a_group", ANY, || {
        let mut comm = null_mut();
        let result: Result<()> = (|| {
            expect!(ncclGroupStart(), OK);
            let code =
                ncclCommInitRankConfig(&mut comm, 1, unique_id()?, 0, &NcclConfig::non_blocking());
            expect_started!(code);
            expect!(ncclGroupEnd(), IP);
            expect!(crate::team::settled(comm)?, OK);
            Ok(())
        })();
        result?;
        expect!(ncclCommDestroy(comm), OK);
        Ok(())
    });
}
