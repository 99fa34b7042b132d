//! Windows, and what one rank does alone: put, signal, wait.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use anyhow::{Result, ensure};

use crate::calls::*;
use crate::cases::Cases;
use crate::expect;
use crate::team::{Rank, alone};
use crate::world::ANY;

const IA: NcclResult = NcclResult::InvalidArgument;
const OK: NcclResult = NcclResult::Success;
const SIZE: usize = 1 << 21;

pub fn add(cases: &mut Cases) {
    cases.subject("windows");
    let need = ANY.calls("ncclCommWindowRegister");
    // NCCL 2.28 registers and lets go without looking at the communicator.
    cases.bare("null_comm", need.nccl(29), || {
        let mut window = 7 as NcclWindow;
        expect!(
            ncclCommWindowRegister(null_mut(), null_mut(), 64, &mut window, 0),
            IA
        );
        expect!(window as usize, 7);
        expect!(ncclCommWindowDeregister(null_mut(), null_mut()), IA);
        Ok(())
    });
    cases.solo(
        "registered_and_let_go",
        ANY.calls("ncclWinGetUserPtr"),
        || {
            let (comm, mut memory, mut window) =
                (alone(&NcclConfig::new())?, null_mut(), 7 as NcclWindow);
            expect!(ncclMemAlloc(&mut memory, SIZE), OK);
            expect!(
                ncclCommWindowRegister(comm, memory, SIZE, &mut window, NCCL_WIN_COLL_SYMMETRIC),
                OK
            );
            ensure!(window as usize != 7 && !window.is_null());
            let mut user = null_mut();
            expect!(ncclWinGetUserPtr(comm, window, &mut user), OK);
            expect!(user, memory);
            expect!(ncclWinGetUserPtr(null_mut(), window, &mut user), IA);
            expect!(ncclWinGetUserPtr(comm, window, null_mut()), IA);
            expect!(ncclWinGetUserPtr(comm, null_mut(), &mut user), IA);
            expect!(ncclCommWindowDeregister(comm, null_mut()), OK);
            expect!(ncclCommWindowDeregister(comm, window), OK);
            expect!(ncclCommDestroy(comm), OK);
            expect!(ncclMemFree(memory), OK);
            Ok(())
        },
    );
    cases.solo("flags", need, || {
        let (comm, mut memory) = (alone(&NcclConfig::new())?, null_mut());
        expect!(ncclMemAlloc(&mut memory, SIZE), OK);
        for flags in [NCCL_WIN_DEFAULT, NCCL_WIN_COLL_SYMMETRIC] {
            let mut window = null_mut();
            expect!(
                ncclCommWindowRegister(comm, memory, SIZE, &mut window, flags),
                OK
            );
            ensure!(!window.is_null());
            expect!(ncclCommWindowDeregister(comm, window), OK);
        }
        expect!(ncclCommDestroy(comm), OK);
        expect!(ncclMemFree(memory), OK);
        Ok(())
    });
    // An older release was seen to crash.
    cases.solo("refused", need.nccl(32), || {
        let (comm, mut memory, mut window) =
            (alone(&NcclConfig::new())?, null_mut(), 7 as NcclWindow);
        expect!(ncclMemAlloc(&mut memory, SIZE), OK);
        expect!(
            ncclCommWindowRegister(comm, memory, SIZE, null_mut(), 0),
            IA
        );
        for (buffer, size) in [
            (null_mut(), 64),
            (memory, 0),
            ((memory as usize + 64) as *mut c_void, 4096),
        ] {
            expect!(
                ncclCommWindowRegister(comm, buffer, size, &mut window, NCCL_WIN_COLL_SYMMETRIC),
                IA
            );
            expect!(window, null_mut());
        }
        // It must be memory of NCCL's kind.
        let plain = mem_alloc(SIZE)?;
        let code = ncclCommWindowRegister(
            comm,
            plain as *mut c_void,
            SIZE,
            &mut window,
            NCCL_WIN_COLL_SYMMETRIC,
        );
        expect!(code, NcclResult::UnhandledCudaError);
        expect!(window, null_mut());
        expect!(ncclCommDestroy(comm), OK);
        expect!(ncclMemFree(memory), OK);
        expect!(cuMemFree_v2(plain), CuResult::Success);
        Ok(())
    });
    cases.solo("unknown", need.nccl(32), || {
        let comm = alone(&NcclConfig::new())?;
        let (mut memory, mut window) = (null_mut(), null_mut());
        expect!(ncclMemAlloc(&mut memory, SIZE), OK);
        expect!(
            ncclCommWindowRegister(comm, memory, SIZE, &mut window, NCCL_WIN_COLL_SYMMETRIC),
            OK
        );
        expect!(ncclCommWindowDeregister(comm, window), OK);
        expect!(
            ncclCommWindowDeregister(comm, window),
            NcclResult::InternalError
        );
        expect!(ncclCommDestroy(comm), OK);
        expect!(ncclMemFree(memory), OK);
        Ok(())
    });
    cases.team(2, "collectives_in_windows", need, |rank| {
        with_window(rank, |rank, memory, _| {
            expect!(
                cuMemsetD32Async(memory as u64, rank.rank as u32 + 1, 1024, rank.stream),
                CuResult::Success
            );
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
            expect!(rank.peek::<i32>(memory as u64, 4096)?, [3; 1024]);
            Ok(())
        })
    });
    one_sided(cases);
}

/// Runs a case with a window of every rank.
fn with_window(
    rank: &Rank,
    case: impl FnOnce(&Rank, *mut c_void, NcclWindow) -> Result<()>,
) -> Result<()> {
    let (mut memory, mut window) = (null_mut(), null_mut());
    expect!(ncclMemAlloc(&mut memory, SIZE), OK);
    expect!(
        cuMemsetD8Async(memory as u64, 0, SIZE, rank.stream),
        CuResult::Success
    );
    rank.wait()?;
    rank.meet()?;
    expect!(
        ncclCommWindowRegister(
            rank.comm,
            memory,
            SIZE,
            &mut window,
            NCCL_WIN_COLL_SYMMETRIC
        ),
        OK
    );
    ensure!(!window.is_null(), "this system has no windows");
    rank.meet()?;
    case(rank, memory, window)?;
    rank.meet()?;
    expect!(ncclCommWindowDeregister(rank.comm, window), OK);
    rank.meet()?;
    expect!(ncclMemFree(memory), OK);
    rank.meet()
}

fn one_sided(cases: &mut Cases) {
    let need = ANY.calls("ncclPutSignal");
    cases.subject("one_sided");
    // NCCL 2.28 registers and lets go without looking at the communicator.
    cases.bare("null_comm", need.nccl(29), || {
        let mut wait = NcclWaitSignalDesc {
            op_cnt: 1,
            peer: 0,
            sig_idx: 0,
            ctx: 0,
        };
        expect!(
            ncclPutSignal(
                null(),
                0,
                NcclDataType::Int8,
                0,
                null_mut(),
                0,
                0,
                0,
                0,
                null_mut(),
                0
            ),
            IA
        );
        expect!(ncclSignal(0, 0, 0, 0, null_mut(), 0), IA);
        expect!(ncclWaitSignal(1, &mut wait, null_mut(), 0), IA);
        Ok(())
    });
    // Before there is any window.
    cases.team(1, "refused", need, |rank| {
        let comm = rank.join(NcclConfig::new())?;
        let p = rank.blank(64)?.ptr();
        let put = |peer, datatype, window, sig_idx, ctx, flags| {
            ncclPutSignal(
                p,
                16,
                datatype,
                peer,
                window,
                0,
                sig_idx,
                ctx,
                flags,
                comm,
                rank.stream,
            )
        };
        let int8 = NcclDataType::Int8;
        expect!(put(0, int8, null_mut(), 0, 0, 0), IA);
        expect!(put(9, int8, null_mut(), 0, 0, 0), IA);
        expect!(put(0, NcclDataType(99), null_mut(), 0, 0, 0), IA);
        expect!(ncclSignal(9, 0, 0, 0, comm, rank.stream), IA);
        expect!(ncclSignal(-1, 0, 0, 0, comm, rank.stream), IA);
        rank.abort(comm)
    });
    cases.team(2, "refused_with_a_window", need, |rank| {
        with_window(rank, |rank, memory, window| {
            let (peer, comm, stream) = (1 - rank.rank, rank.comm, rank.stream);
            let put = |local, window, sig_idx, ctx, flags| {
                let int8 = NcclDataType::Int8;
                ncclPutSignal(
                    local, 16, int8, peer, window, 0, sig_idx, ctx, flags, comm, stream,
                )
            };
            expect!(put(memory, null_mut(), 0, 0, 0), IA);
            expect!(put(null_mut(), window, 0, 0, 0), IA);
            for (sig_idx, ctx, flags) in [(1, 0, 0), (0, 1, 0), (0, 0, 1)] {
                expect!(put(memory, window, sig_idx, ctx, flags), IA);
                expect!(ncclSignal(peer, sig_idx, ctx, flags, comm, stream), IA);
            }
            let good = NcclWaitSignalDesc {
                op_cnt: 1,
                peer,
                sig_idx: 0,
                ctx: 0,
            };
            expect!(ncclWaitSignal(0, &mut { good }, comm, stream), IA);
            expect!(ncclWaitSignal(1, null_mut(), comm, stream), IA);
            for bad in [
                NcclWaitSignalDesc { op_cnt: 0, ..good },
                NcclWaitSignalDesc { op_cnt: -1, ..good },
                NcclWaitSignalDesc { sig_idx: 1, ..good },
                NcclWaitSignalDesc { ctx: 1, ..good },
            ] {
                expect!(ncclWaitSignal(1, &mut { bad }, comm, stream), IA);
            }
            Ok(())
        })
    });
    cases.team(2, "put_and_wait", need, |rank| {
        with_window(rank, |rank, memory, window| {
            let peer = 1 - rank.rank;
            expect!(
                cuMemsetD8Async(memory as u64, rank.rank as u8 + 1, 64, rank.stream),
                CuResult::Success
            );
            let code = ncclPutSignal(
                memory,
                16,
                NcclDataType::Int8,
                peer,
                window,
                4096,
                0,
                0,
                0,
                rank.comm,
                rank.stream,
            );
            expect!(code, OK);
            let mut wait = NcclWaitSignalDesc {
                op_cnt: 1,
                peer,
                sig_idx: 0,
                ctx: 0,
            };
            expect!(ncclWaitSignal(1, &mut wait, rank.comm, rank.stream), OK);
            rank.wait()?;
            expect!(
                rank.peek::<u8>(memory as u64 + 4096, 16)?,
                [peer as u8 + 1; 16]
            );
            expect!(rank.peek::<u8>(memory as u64 + 4096 + 16, 16)?, [0; 16]);
            Ok(())
        })
    });
    cases.team(2, "several_puts_are_counted", need, |rank| {
        with_window(rank, |rank, memory, window| {
            let peer = 1 - rank.rank;
            let values: Vec<i32> = (0..100).map(|i| 1000 * rank.rank + i).collect();
            let from = memory as u64 + (1 << 20);
            let copied = cuMemcpyHtoDAsync_v2(from, values.as_ptr().cast(), 400, rank.stream);
            expect!(copied, CuResult::Success);
            rank.wait()?;
            for i in 0..100 {
                let one = (from + 4 * i) as *const c_void;
                let offset = 4 * i as usize;
                let code = ncclPutSignal(
                    one,
                    1,
                    NcclDataType::Int32,
                    peer,
                    window,
                    offset,
                    0,
                    0,
                    0,
                    rank.comm,
                    rank.stream,
                );
                expect!(code, OK);
            }
            let mut wait = NcclWaitSignalDesc {
                op_cnt: 100,
                peer,
                sig_idx: 0,
                ctx: 0,
            };
            expect!(ncclWaitSignal(1, &mut wait, rank.comm, rank.stream), OK);
            rank.wait()?;
            expect!(
                rank.peek::<i32>(memory as u64, 400)?,
                (0..100).map(|i| 1000 * peer + i).collect::<Vec<_>>()
            );
            Ok(())
        })
    });
    // A signal without data, which only tells that it comes.
    cases.team(2, "a_wait_holds_the_stream", need, |rank| {
        with_window(rank, |rank, _, _| {
            // The first exchange sets up what the two need.
            let peer = 1 - rank.rank;
            let mut wait = NcclWaitSignalDesc {
                op_cnt: 1,
                peer,
                sig_idx: 0,
                ctx: 0,
            };
            expect!(ncclSignal(peer, 0, 0, 0, rank.comm, rank.stream), OK);
            expect!(ncclWaitSignal(1, &mut wait, rank.comm, rank.stream), OK);
            rank.wait()?;
            rank.meet()?;
            if rank.rank == 0 {
                expect!(ncclWaitSignal(1, &mut wait, rank.comm, rank.stream), OK);
                crate::streams::moment();
                expect!(cuStreamQuery(rank.stream), CuResult::NotReady);
            }
            rank.meet()?;
            if rank.rank == 1 {
                expect!(ncclSignal(0, 0, 0, 0, rank.comm, rank.stream), OK);
            }
            rank.wait()
        })
    });
}
