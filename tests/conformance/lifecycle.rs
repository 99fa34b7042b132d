//! From init to destroy: the table of states, and communicators made from others.

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::calls::*;
use crate::cases::Cases;
use crate::expect;
use crate::operations::{Arguments, OPERATIONS};
use crate::team::{Rank, alone, alone_non_blocking, state, waiting_for_its_peer};
use crate::world::{ANY, EMULATOR, Need};

const IA: NcclResult = NcclResult::InvalidArgument;
const IU: NcclResult = NcclResult::InvalidUsage;
const OK: NcclResult = NcclResult::Success;

pub fn add(cases: &mut Cases) {
    cases.subject("lifecycle");
    life(cases);
    states(cases);
    gone(cases);
    revoke(cases);
    suspend(cases);
    abort(cases);
    split(cases);
    shrink(cases);
    grow(cases);
    init_all(cases);
}

fn count(comm: NcclComm) -> Result<(i32, i32)> {
    let (mut rank, mut count) = (-1, -1);
    expect!(ncclCommCount(comm, &mut count), OK);
    expect!(ncclCommUserRank(comm, &mut rank), OK);
    Ok((rank, count))
}

fn life(cases: &mut Cases) {
    for nranks in [1, 2, 3, 4, 8] {
        cases.team(
            nranks,
            &format!("ranks_know_themselves::{nranks}"),
            ANY,
            |rank| {
                let comm = rank.join(NcclConfig::new())?;
                expect!(count(comm)?, (rank.rank, rank.nranks));
                let mut device = -1;
                expect!(ncclCommCuDevice(comm, &mut device), OK);
                expect!(device, rank.device);
                expect!(state(comm)?, OK);
                rank.leave(comm)
            },
        );
    }
    cases.team(2, "two_communicators_of_the_same_ranks", ANY, |rank| {
        let other = rank.join(NcclConfig::new())?;
        ensure!(other != rank.comm);
        for comm in [rank.comm, other, rank.comm, other] {
            expect!(rank.sum_over(comm, rank.rank + 1)?, 3);
        }
        rank.leave(other)?;
        expect!(rank.sum_over(rank.comm, 1)?, 2);
        Ok(())
    });
    cases.solo("made_and_destroyed_again_and_again", ANY, || {
        for _ in 0..5 {
            expect!(ncclCommDestroy(alone(&NcclConfig::new())?), OK);
        }
        Ok(())
    });
    // Whoever has no context gets the first device's.
    cases.bare("init_without_a_context", ANY, || {
        let (mut comm, mut context) = (null_mut(), 0);
        expect!(ncclCommInitRank(&mut comm, 1, unique_id()?, 0), OK);
        expect!(cuCtxGetCurrent(&mut context), CuResult::Success);
        ensure!(context != 0, "a context is current afterwards");
        let mut device = -1;
        expect!(ncclCommCuDevice(comm, &mut device), OK);
        expect!(device, 0);
        expect!(ncclCommDestroy(comm), OK);
        Ok(())
    });
    cases.solo("finalized_then_destroyed", ANY, || {
        let comm = alone(&NcclConfig::new())?;
        expect!(ncclCommFinalize(comm), OK);
        expect!(state(comm)?, OK);
        expect!(count(comm)?, (0, 1));
        expect!(ncclCommDestroy(comm), OK);
        Ok(())
    });
    cases.solo("finalized_twice", ANY, || {
        let comm = alone(&NcclConfig::new())?;
        expect!(ncclCommFinalize(comm), OK);
        expect!(ncclCommFinalize(comm), IA);
        expect!(state(comm)?, OK);
        expect!(ncclCommDestroy(comm), OK);
        Ok(())
    });
    // Nothing forbids it to one rank, whose collectives are copies.
    cases.solo("finalized_then_used_by_one_rank", ANY, || {
        let comm = alone(&NcclConfig::new())?;
        let stream = create_stream()?;
        let p = mem_alloc(64)? as *mut c_void;
        expect!(ncclCommFinalize(comm), OK);
        expect!(
            ncclAllReduce(p, p, 4, NcclDataType::Float32, NcclRedOp::Sum, comm, stream),
            OK
        );
        expect!(ncclCommDestroy(comm), OK);
        destroy_stream(stream);
        expect!(cuMemFree_v2(p as u64), CuResult::Success);
        Ok(())
    });
    cases.team(2, "finalized_with_a_peer", ANY, |rank| {
        let comm = rank.join(NcclConfig::new())?;
        expect!(rank.sum_over(comm, 1)?, 2);
        rank.meet()?;
        expect!(ncclCommFinalize(comm), OK);
        expect!(ncclCommFinalize(comm), IA);
        expect!(count(comm)?, (rank.rank, 2));
        rank.leave(comm)
    });
    cases.team(
        2,
        "scalable_with_one_id",
        ANY.calls("ncclCommInitRankScalable"),
        |rank| {
            let (mut id, mut comm) = (rank.id()?, null_mut());
            expect!(
                ncclCommInitRankScalable(&mut comm, 2, rank.rank, 1, &mut id, null()),
                OK
            );
            expect!(rank.sum_over(comm, 2)?, 4);
            rank.leave(comm)
        },
    );
    cases.team(
        4,
        "scalable_with_an_id_for_two",
        ANY.calls("ncclCommInitRankScalable"),
        |rank| {
            let (mut ids, mut comm) = ([rank.id()?, rank.id()?], null_mut());
            expect!(
                ncclCommInitRankScalable(&mut comm, 4, rank.rank, 2, ids.as_mut_ptr(), null()),
                OK
            );
            expect!(count(comm)?, (rank.rank, 4));
            expect!(rank.sum_over(comm, rank.rank)?, 6);
            rank.leave(comm)
        },
    );
    cases.child(
        "two_ranks_of_one_gpu_are_refused",
        ANY,
        &[
            ("NCCL_MULTI_RANK_GPU_ENABLE", None),
            ("METRALE_TEST_RANKS_PER_GPU", None),
        ],
        || {
            init()?;
            let id = unique_id()?;
            std::thread::scope(|scope| {
                let ranks = [0, 1].map(|rank| {
                    scope.spawn(move || -> Result<()> {
                        use_device(0)?;
                        let mut comm = null_mut();
                        expect!(ncclCommInitRank(&mut comm, 2, id, rank), IU);
                        // Older releases were seen to leave null.
                        if version()?.minor >= 32 {
                            ensure!(!comm.is_null(), "what failed is to be aborted");
                        }
                        Ok(())
                    })
                });
                ranks
                    .into_iter()
                    .try_for_each(|rank| rank.join().expect("no panic"))
            })
        },
    );
}

type Touch = fn(NcclComm) -> NcclResult;

/// Calls that look at the state of a communicator first.
const TOUCHES: [(&str, Touch); 8] = [
    ("all_reduce", |comm| {
        ncclAllReduce(
            null(),
            null_mut(),
            0,
            NcclDataType::Int8,
            NcclRedOp::Sum,
            comm,
            0,
        )
    }),
    ("broadcast", |comm| {
        ncclBroadcast(null(), null_mut(), 0, NcclDataType::Int8, 0, comm, 0)
    }),
    ("send", |comm| {
        ncclSend(null(), 0, NcclDataType::Int8, 0, comm, 0)
    }),
    ("count", |comm| ncclCommCount(comm, &mut 0)),
    ("user_rank", |comm| ncclCommUserRank(comm, &mut 0)),
    ("cu_device", |comm| ncclCommCuDevice(comm, &mut 0)),
    ("finalize", |comm| ncclCommFinalize(comm)),
    ("split", |comm| {
        ncclCommSplit(comm, 0, 0, &mut null_mut(), null())
    }),
];

/// Those of the younger releases.
const YOUNGER_TOUCHES: [(&str, &str, Touch); 5] = [
    ("shrink", "ncclCommShrink", |comm| {
        ncclCommShrink(comm, [1].as_mut_ptr(), 1, &mut null_mut(), null(), 0)
    }),
    ("get_unique_id", "ncclCommGetUniqueId", |comm| {
        ncclCommGetUniqueId(comm, &mut NcclUniqueId { internal: [0; 128] })
    }),
    ("mem_stats", "ncclCommMemStats", |comm| {
        ncclCommMemStats(comm, NcclCommMemStat::GpuMemTotal, &mut 0)
    }),
    ("suspend", "ncclCommSuspend", |comm| {
        ncclCommSuspend(comm, NCCL_SUSPEND_MEM)
    }),
    ("resume", "ncclCommResume", |comm| ncclCommResume(comm)),
];

fn touches() -> impl Iterator<Item = (&'static str, Need, Touch)> {
    let old = TOUCHES.into_iter().map(|(name, touch)| (name, ANY, touch));
    old.chain(
        YOUNGER_TOUCHES
            .into_iter()
            .map(|(name, function, touch)| (name, ANY.calls(function), touch)),
    )
}

/// In progress, and with an error stored: nearly everything is refused.
fn states(cases: &mut Cases) {
    for (name, need, touch) in touches() {
        cases.solo(&format!("in_progress::{name}"), need, move || {
            let comm = waiting_for_its_peer()?;
            expect!(touch(comm), IA);
            expect!(ncclCommAbort(comm), OK);
            Ok(())
        });
        cases.solo(&format!("after_an_error::{name}"), need, move || {
            let comm = spoilt()?;
            expect!(touch(comm), IA);
            expect!(state(comm)?, IA);
            expect!(ncclCommAbort(comm), OK);
            Ok(())
        });
    }
    cases.solo("in_progress::get_async_error", ANY, || {
        let comm = waiting_for_its_peer()?;
        for _ in 0..10 {
            expect!(state(comm)?, NcclResult::InProgress);
            std::thread::sleep(Duration::from_millis(2));
        }
        expect!(ncclCommAbort(comm), OK);
        Ok(())
    });
    // The call leaves a group open behind it.
    for (name, make) in [
        (
            "in_progress",
            waiting_for_its_peer as fn() -> Result<NcclComm>,
        ),
        ("after_an_error", spoilt),
    ] {
        cases.solo(&format!("{name}::destroy"), ANY, move || {
            let comm = make()?;
            expect!(ncclCommDestroy(comm), IA);
            expect!(ncclGroupEnd(), OK);
            expect!(ncclGroupEnd(), IU);
            expect!(ncclCommAbort(comm), OK);
            Ok(())
        });
    }
}

/// A ready non-blocking communicator that got one bad argument.
fn spoilt() -> Result<NcclComm> {
    let comm = alone_non_blocking()?;
    expect!(
        ncclBroadcast(null(), null_mut(), 4, NcclDataType::Int8, 9, comm, 0),
        IA
    );
    expect!(state(comm)?, IA);
    Ok(comm)
}

/// What is left of a destroyed handle in the real library is memory that was freed.
fn gone(cases: &mut Cases) {
    for (word, end) in [
        ("destroyed", ncclCommDestroy as Touch),
        ("aborted", ncclCommAbort),
    ] {
        for (name, _, touch) in touches() {
            cases.solo(&format!("{word}::{name}"), EMULATOR, move || {
                let comm = alone(&NcclConfig::new())?;
                expect!(end(comm), OK);
                expect!(touch(comm), IA);
                Ok(())
            });
        }
        cases.solo(&format!("{word}::every_operation"), EMULATOR, move || {
            let comm = alone(&NcclConfig::new())?;
            expect!(end(comm), OK);
            for operation in &OPERATIONS {
                let code = (operation.call)(&Arguments::new(comm, 0));
                ensure!(code == IA, "{} is {code:?}", operation.name);
            }
            expect!(ncclCommGetAsyncError(comm, &mut NcclResult(0)), IA);
            expect!(ncclRedOpDestroy(NcclRedOp(77), comm), IA);
            expect!(ncclCommDeregister(comm, null_mut()), IA);
            Ok(())
        });
        cases.solo(&format!("{word}::destroy"), EMULATOR, move || {
            let comm = alone(&NcclConfig::new())?;
            expect!(end(comm), OK);
            expect!(ncclCommDestroy(comm), IA);
            Ok(())
        });
    }
    cases.solo("never_a_communicator", EMULATOR, || {
        for garbage in [1usize, 0xdead_0000, usize::MAX] {
            for (name, _, touch) in touches() {
                let code = touch(garbage as NcclComm);
                ensure!(code == IA, "{name} of {garbage:#x} is {code:?}");
            }
        }
        Ok(())
    });
}

fn revoke(cases: &mut Cases) {
    let need = ANY.calls("ncclCommRevoke");
    let revoked = || -> Result<NcclComm> {
        let comm = alone(&NcclConfig::new())?;
        expect!(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT), OK);
        Ok(comm)
    };
    cases.solo(
        "revoked::every_operation_is_invalid_usage",
        need,
        move || {
            let comm = revoked()?;
            for operation in &OPERATIONS {
                if operation.need.met(crate::world::World::get()).is_ok() {
                    // Before any other argument is looked at.
                    for datatype in [NcclDataType::Int8, NcclDataType(99)] {
                        let code = (operation.call)(&Arguments {
                            datatype,
                            ..Arguments::new(comm, 0)
                        });
                        ensure!(code == IU, "{} is {code:?}", operation.name);
                    }
                }
            }
            expect!(ncclCommDestroy(comm), OK);
            Ok(())
        },
    );
    cases.solo("revoked::twice", need, move || {
        let comm = revoked()?;
        expect!(ncclCommRevoke(comm, 0), IA);
        expect!(ncclCommDestroy(comm), OK);
        Ok(())
    });
    cases.solo("revoked::finalize", need, move || {
        let comm = revoked()?;
        expect!(ncclCommFinalize(comm), IA);
        expect!(ncclCommDestroy(comm), OK);
        Ok(())
    });
    cases.solo("revoked::queries", need, move || {
        let comm = revoked()?;
        expect!(count(comm)?, (0, 1));
        expect!(state(comm)?, OK);
        expect!(ncclCommAbort(comm), OK);
        Ok(())
    });
    cases.solo("revoked::after_finalize", need, || {
        let comm = alone(&NcclConfig::new())?;
        expect!(ncclCommFinalize(comm), OK);
        expect!(ncclCommRevoke(comm, 0), IA);
        expect!(ncclCommDestroy(comm), OK);
        Ok(())
    });
    cases.team(2, "revoked::then_split", need, |rank| {
        let comm = rank.join(NcclConfig::new())?;
        expect!(rank.sum_over(comm, 1)?, 2);
        rank.meet()?;
        expect!(ncclCommRevoke(comm, 0), OK);
        let mut child = null_mut();
        expect!(ncclCommSplit(comm, 0, -rank.rank, &mut child, null()), OK);
        expect!(count(child)?, (1 - rank.rank, 2));
        expect!(rank.sum_over(child, 4)?, 8);
        rank.leave(child)?;
        rank.leave(comm)
    });
}

fn suspend(cases: &mut Cases) {
    let need = ANY.calls("ncclCommSuspend");
    cases.solo("suspended::twice_and_resumed_twice", need, || {
        let comm = alone(&NcclConfig::new())?;
        expect!(ncclCommResume(comm), IU);
        for _ in 0..2 {
            expect!(ncclCommSuspend(comm, NCCL_SUSPEND_MEM), OK);
            expect!(ncclCommSuspend(comm, NCCL_SUSPEND_MEM), IU);
            expect!(state(comm)?, OK);
            expect!(count(comm)?, (0, 1));
            expect!(ncclCommResume(comm), OK);
            expect!(ncclCommResume(comm), IU);
        }
        expect!(ncclCommDestroy(comm), OK);
        Ok(())
    });
    cases.solo("suspended::without_the_bit_nothing_happens", need, || {
        let comm = alone(&NcclConfig::new())?;
        expect!(ncclCommSuspend(comm, 0), OK);
        expect!(ncclCommSuspend(comm, 0), OK);
        expect!(ncclCommResume(comm), IU);
        expect!(ncclCommDestroy(comm), OK);
        Ok(())
    });
    cases.team(2, "suspended::and_used_again", need, |rank| {
        let comm = rank.join(NcclConfig::new())?;
        expect!(rank.sum_over(comm, 1)?, 2);
        rank.meet()?;
        expect!(ncclCommSuspend(comm, NCCL_SUSPEND_MEM), OK);
        rank.meet()?;
        expect!(ncclCommResume(comm), OK);
        rank.meet()?;
        expect!(rank.sum_over(comm, 5)?, 10);
        rank.leave(comm)
    });
}

fn abort(cases: &mut Cases) {
    cases.solo("aborted::while_ready", ANY, || {
        expect!(ncclCommAbort(alone(&NcclConfig::new())?), OK);
        Ok(())
    });
    cases.solo("aborted::after_finalize", ANY, || {
        let comm = alone(&NcclConfig::new())?;
        expect!(ncclCommFinalize(comm), OK);
        expect!(ncclCommAbort(comm), OK);
        Ok(())
    });
    cases.solo("aborted::while_its_peer_does_not_come", ANY, || {
        let comm = waiting_for_its_peer()?;
        std::thread::sleep(Duration::from_millis(20));
        expect!(state(comm)?, NcclResult::InProgress);
        expect!(ncclCommAbort(comm), OK);
        Ok(())
    });
    // A collective that waits for its peer on the device ends, and so does its stream.
    cases.team(2, "aborted::with_a_collective_that_waits", ANY, |rank| {
        let comm = rank.join(NcclConfig::new())?;
        expect!(rank.sum_over(comm, 1)?, 2);
        rank.meet()?;
        let p = rank.blank(1 << 12)?.ptr();
        let stream = create_stream()?;
        if rank.rank == 0 {
            expect!(
                ncclAllReduce(
                    p,
                    p,
                    1024,
                    NcclDataType::Int32,
                    NcclRedOp::Sum,
                    comm,
                    stream
                ),
                OK
            );
            std::thread::sleep(Duration::from_millis(20));
            expect!(cuStreamQuery(stream), CuResult::NotReady);
            expect!(ncclCommAbort(comm), OK);
            expect!(cuStreamSynchronize(stream), CuResult::Success);
        }
        rank.meet()?;
        if rank.rank == 1 {
            expect!(ncclCommAbort(comm), OK);
        }
        rank.meet()?;
        destroy_stream(stream);
        expect!(rank.sum_over(rank.comm, 1)?, 2);
        Ok(())
    });
    // The first collective connects, and holds its caller until the peer comes: another thread aborts.
    cases.child(
        "aborted::by_another_thread_while_it_connects",
        ANY.ranks(2),
        &[],
        || {
            crate::team::run(2, |rank| {
                let comm = rank.join(NcclConfig::new())?;
                if rank.rank == 1 {
                    rank.meet()?;
                    return Ok(());
                }
                let (address, stream) = (rank.blank(1 << 12)?.address, rank.stream);
                let handle = comm as usize;
                let blocked = std::thread::spawn(move || -> Result<NcclResult> {
                    use_device(0)?;
                    let (p, comm) = (address as *mut c_void, handle as NcclComm);
                    Ok(ncclAllReduce(
                        p,
                        p,
                        1024,
                        NcclDataType::Int32,
                        NcclRedOp::Sum,
                        comm,
                        stream,
                    ))
                });
                std::thread::sleep(Duration::from_millis(100));
                ensure!(!blocked.is_finished(), "the call waits for its peer");
                expect!(ncclCommAbort(comm), OK);
                // Which code it comes back with is not known; that it comes back is.
                blocked.join().expect("no panic")?;
                rank.meet()
            })?;
            // The peer's half is left as it is: this process ends here.
            Ok(())
        },
    );
}

fn split(cases: &mut Cases) {
    cases.team(1, "split::one_rank", ANY, |rank| {
        let mut child = 7 as NcclComm;
        expect!(
            ncclCommSplit(rank.comm, NCCL_SPLIT_NOCOLOR, 0, &mut child, null()),
            OK
        );
        expect!(child, null_mut());
        // Other negative colors are colors.
        for color in [-2, 0, i32::MAX, i32::MIN] {
            child = 7 as NcclComm;
            expect!(ncclCommSplit(rank.comm, color, 0, &mut child, null()), OK);
            ensure!(child as usize != 7 && !child.is_null());
            expect!(count(child)?, (0, 1));
            expect!(ncclCommDestroy(child), OK);
        }
        Ok(())
    });
    for nranks in [2, 4, 8] {
        cases.team(
            nranks,
            &format!("split::key_turns_the_order_round::{nranks}"),
            ANY,
            |rank| {
                let child = split_into(rank, rank.comm, 0, -rank.rank)?;
                expect!(count(child)?, (rank.nranks - 1 - rank.rank, rank.nranks));
                expect!(
                    rank.sum_over(child, 1 << rank.rank)?,
                    (1 << rank.nranks) - 1
                );
                rank.leave(child)
            },
        );
        cases.team(
            nranks,
            &format!("split::ties_keep_the_order::{nranks}"),
            ANY,
            |rank| {
                let child = split_into(rank, rank.comm, 3, 7)?;
                expect!(count(child)?, (rank.rank, rank.nranks));
                rank.leave(child)
            },
        );
    }
    cases.team(2, "split::no_color_for_one", ANY, |rank| {
        let mut child = 7 as NcclComm;
        let color = if rank.rank == 1 {
            NCCL_SPLIT_NOCOLOR
        } else {
            3
        };
        rank.meet()?;
        expect!(ncclCommSplit(rank.comm, color, 0, &mut child, null()), OK);
        expect!(child.is_null(), rank.rank == 1);
        rank.meet()?;
        if rank.rank == 0 {
            expect!(count(child)?, (0, 1));
            expect!(ncclCommDestroy(child), OK);
        }
        rank.meet()
    });
    for nranks in [4, 8] {
        cases.team(
            nranks,
            &format!("split::by_parity::{nranks}"),
            ANY,
            |rank| {
                let child = split_into(rank, rank.comm, rank.rank % 2, rank.rank)?;
                expect!(count(child)?, (rank.rank / 2, rank.nranks / 2));
                let mine = (0..rank.nranks)
                    .filter(|other| other % 2 == rank.rank % 2)
                    .map(|other| 1 << other)
                    .sum();
                expect!(rank.sum_over(child, 1 << rank.rank)?, mine);
                // The parent goes on.
                expect!(rank.sum_over(rank.comm, 1)?, rank.nranks);
                rank.leave(child)
            },
        );
    }
    cases.team(4, "split::of_a_split", ANY, |rank| {
        let half = split_into(rank, rank.comm, rank.rank / 2, 0)?;
        let quarter = split_into(rank, half, rank.rank % 2, 0)?;
        expect!(count(half)?, (rank.rank % 2, 2));
        expect!(count(quarter)?, (0, 1));
        expect!(
            rank.sum_over(half, rank.rank)?,
            [1, 5][rank.rank as usize / 2]
        );
        expect!(rank.sum_over(quarter, 9)?, 9);
        rank.leave(quarter)?;
        rank.leave(half)
    });
    cases.team(2, "split::outlives_its_parent", ANY, |rank| {
        let parent = rank.join(NcclConfig::new())?;
        let child = split_into(rank, parent, 0, 0)?;
        rank.leave(parent)?;
        expect!(rank.sum_over(child, 3)?, 6);
        rank.leave(child)
    });
    cases.team(2, "split::with_shared_resources", ANY, |rank| {
        let parent = rank.join(NcclConfig {
            split_share: 1,
            ..NcclConfig::new()
        })?;
        let child = split_into(rank, parent, 0, 0)?;
        for comm in [parent, child, parent] {
            expect!(rank.sum_over(comm, 3)?, 6);
        }
        rank.leave(child)?;
        rank.leave(parent)
    });
    // Without a config of its own the child is non-blocking as its parent is.
    cases.team(2, "split::inherits_the_config", ANY, |rank| {
        let parent = rank.join(NcclConfig::non_blocking())?;
        let mut child = null_mut();
        expect!(ncclCommSplit(parent, 0, 0, &mut child, null()), OK);
        expect!(rank.settle(parent)?, OK);
        expect!(
            ncclBroadcast(null(), null_mut(), 4, NcclDataType::Int8, 9, child, 0),
            IA
        );
        expect!(state(child)?, IA);
        rank.abort(child)?;
        rank.abort(parent)
    });
    cases.team(2, "split::with_a_config_of_its_own", ANY, |rank| {
        let mut child = null_mut();
        let config = NcclConfig {
            max_ctas: 1,
            ..NcclConfig::new()
        };
        rank.meet()?;
        expect!(ncclCommSplit(rank.comm, 0, 0, &mut child, &config), OK);
        expect!(rank.sum_over(child, 3)?, 6);
        rank.leave(child)
    });
}

/// Splits, with all ranks at once.
fn split_into(rank: &Rank, comm: NcclComm, color: i32, key: i32) -> Result<NcclComm> {
    let mut child = null_mut();
    rank.meet()?;
    expect!(ncclCommSplit(comm, color, key, &mut child, null()), OK);
    rank.meet()?;
    Ok(child)
}

fn shrink(cases: &mut Cases) {
    let need = ANY.calls("ncclCommShrink");
    for (nranks, excluded) in [
        (2, &[1][..]),
        (2, &[0]),
        (4, &[1]),
        (4, &[2, 0]),
        (8, &[7, 3, 0, 5]),
    ] {
        let list = excluded
            .iter()
            .map(|rank| format!("_{rank}"))
            .collect::<String>();
        cases.team(
            nranks,
            &format!("shrink::{nranks}_without{list}"),
            need,
            move |rank| {
                // Of a communicator that the case has for itself, since its members take no part alike.
                let parent = rank.join(NcclConfig::new())?;
                let left: Vec<i32> = (0..rank.nranks)
                    .filter(|other| !excluded.contains(other))
                    .collect();
                let mut child = null_mut();
                if left.contains(&rank.rank) {
                    let mut list = excluded.to_vec();
                    let count_excluded = list.len() as i32;
                    expect!(
                        ncclCommShrink(
                            parent,
                            list.as_mut_ptr(),
                            count_excluded,
                            &mut child,
                            null(),
                            NCCL_SHRINK_DEFAULT
                        ),
                        OK
                    );
                    ensure!(list.is_sorted(), "the list comes back sorted");
                    let place = left
                        .iter()
                        .position(|&other| other == rank.rank)
                        .expect("it is there") as i32;
                    expect!(count(child)?, (place, left.len() as i32));
                    expect!(
                        rank.sum_over(child, 1 << rank.rank)?,
                        left.iter().map(|other| 1 << other).sum()
                    );
                }
                rank.meet()?;
                expect!(rank.sum_over(parent, 1)?, rank.nranks);
                rank.meet()?;
                if !child.is_null() {
                    expect!(ncclCommDestroy(child), OK);
                }
                rank.leave(parent)
            },
        );
    }
    // A collective that will never end is given up first.
    cases.team(2, "shrink::aborts_what_hangs", need, |rank| {
        let parent = rank.join(NcclConfig::new())?;
        expect!(rank.sum_over(parent, 1)?, 2);
        rank.meet()?;
        if rank.rank == 0 {
            let (p, stream) = (rank.blank(64)?.ptr(), create_stream()?);
            expect!(
                ncclAllReduce(p, p, 4, NcclDataType::Int32, NcclRedOp::Sum, parent, stream),
                OK
            );
            let (mut child, mut list) = (null_mut(), [1]);
            expect!(
                ncclCommShrink(
                    parent,
                    list.as_mut_ptr(),
                    1,
                    &mut child,
                    null(),
                    NCCL_SHRINK_ABORT
                ),
                OK
            );
            rank.wait_for(stream)?;
            expect!(count(child)?, (0, 1));
            expect!(rank.sum_over(child, 8)?, 8);
            destroy_stream(stream);
            expect!(ncclCommDestroy(child), OK);
        }
        rank.abort(parent)
    });
}

fn grow(cases: &mut Cases) {
    let need = ANY.calls("ncclCommGrow");
    for (nranks, old) in [(2, 1), (3, 2), (4, 2), (8, 4)] {
        cases.team(
            nranks,
            &format!("grow::from_{old}_to_{nranks}"),
            need,
            move |rank| {
                let id = rank.id()?;
                let is_old = rank.rank < old;
                let mut parent = null_mut();
                if is_old {
                    expect!(ncclCommInitRank(&mut parent, old, id, rank.rank), OK);
                }
                rank.meet()?;
                let mut mine = NcclUniqueId { internal: [0; 128] };
                if rank.rank == 0 {
                    expect!(ncclCommGetUniqueId(parent, &mut mine), OK);
                }
                let id = rank.tell(mine)?[0];
                let mut grown = null_mut();
                let code = match rank.rank {
                    0 => ncclCommGrow(parent, rank.nranks, &id, -1, &mut grown, null()),
                    _ if is_old => {
                        ncclCommGrow(parent, rank.nranks, null(), -1, &mut grown, null())
                    }
                    new => ncclCommGrow(null_mut(), rank.nranks, &id, new, &mut grown, null()),
                };
                expect!(code, OK);
                expect!(count(grown)?, (rank.rank, rank.nranks));
                expect!(
                    rank.sum_over(grown, 1 << rank.rank)?,
                    (1 << rank.nranks) - 1
                );
                rank.meet()?;
                if is_old {
                    expect!(count(parent)?, (rank.rank, old));
                    expect!(rank.sum_over(parent, 1)?, old);
                }
                rank.leave(grown)?;
                expect!(ncclCommDestroy(parent), OK);
                rank.meet()
            },
        );
    }
}

fn init_all(cases: &mut Cases) {
    cases.solo("init_all::one_device", ANY, || {
        for list in [null(), &0] {
            let mut comm = null_mut();
            expect!(ncclCommInitAll(&mut comm, 1, list), OK);
            expect!(count(comm)?, (0, 1));
            expect!(ncclCommDestroy(comm), OK);
        }
        Ok(())
    });
    for (name, devices) in [
        ("in_order", &[0, 1][..]),
        ("turned_round", &[1, 0]),
        ("four", &[2, 0, 3, 1]),
    ] {
        cases.solo(
            &format!("init_all::{name}"),
            ANY.devices(devices.len() as i32),
            move || {
                let context = current_context()?;
                let ndev = devices.len();
                let mut comms = vec![null_mut(); ndev];
                expect!(
                    ncclCommInitAll(comms.as_mut_ptr(), ndev as i32, devices.as_ptr()),
                    OK
                );
                expect!(current_context()?, context);
                for (index, (&comm, &expected)) in comms.iter().zip(devices).enumerate() {
                    expect!(count(comm)?, (index as i32, ndev as i32));
                    let mut device = -1;
                    expect!(ncclCommCuDevice(comm, &mut device), OK);
                    expect!(device, expected);
                }
                for comm in comms {
                    expect!(ncclCommDestroy(comm), OK);
                }
                Ok(())
            },
        );
    }
    // One thread has all the ranks; without groups it would wait for itself.
    cases.solo(
        "init_all::all_ranks_from_one_thread",
        ANY.devices(2),
        || {
            let ndev = device_count()?;
            let mut comms = vec![null_mut(); ndev as usize];
            expect!(ncclCommInitAll(comms.as_mut_ptr(), ndev, null()), OK);
            let mut ranks = Vec::new();
            for (rank, &comm) in comms.iter().enumerate() {
                use_device(rank as i32)?;
                let (stream, buffer) = (create_stream()?, mem_alloc(4)?);
                expect!(
                    cuMemsetD32Async(buffer, 1 << rank, 1, stream),
                    CuResult::Success
                );
                ranks.push((comm, stream, buffer));
            }
            use_device(0)?;
            expect!(ncclGroupStart(), OK);
            for &(comm, stream, buffer) in &ranks {
                let p = buffer as *mut c_void;
                expect!(
                    ncclAllReduce(p, p, 1, NcclDataType::Int32, NcclRedOp::Sum, comm, stream),
                    OK
                );
            }
            expect!(ncclGroupEnd(), OK);
            for &(_, stream, buffer) in &ranks {
                sync_stream(stream)?;
                let mut sum = 0i32;
                expect!(
                    cuMemcpyDtoH_v2((&raw mut sum).cast(), buffer, 4),
                    CuResult::Success
                );
                expect!(sum, (1 << ndev) - 1);
            }
            for (comm, stream, buffer) in ranks {
                expect!(ncclCommDestroy(comm), OK);
                destroy_stream(stream);
                expect!(cuMemFree_v2(buffer), CuResult::Success);
            }
            Ok(())
        },
    );
    cases.solo(
        "init_rank::in_a_group_of_one_thread",
        ANY.devices(2),
        || {
            let (id, mut comms) = (unique_id()?, [null_mut(); 2]);
            expect!(ncclGroupStart(), OK);
            for (rank, comm) in comms.iter_mut().enumerate() {
                use_device(rank as i32)?;
                expect!(ncclCommInitRank(comm, 2, id, rank as i32), OK);
                ensure!(!comm.is_null(), "the handle is there at once");
            }
            expect!(ncclGroupEnd(), OK);
            for (rank, &comm) in comms.iter().enumerate() {
                expect!(count(comm)?, (rank as i32, 2));
                expect!(ncclCommDestroy(comm), OK);
            }
            Ok(())
        },
    );
}
