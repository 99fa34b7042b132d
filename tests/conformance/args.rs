//! What each call refuses, and with which code.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use anyhow::ensure;

use crate::calls::*;
use crate::cases::{Cases, Variables};
use crate::expect;
use crate::operations::{Arguments, Kind, OPERATIONS};
use crate::team::{Rank, alone, state};
use crate::world::{ANY, EMULATOR};

const BAD_TYPES: [i32; 5] = [12, 99, -1, i32::MAX, i32::MIN];
const BAD_OPERATORS: [i32; 5] = [5, 1000, -1, i32::MAX, i32::MIN];
const IA: NcclResult = NcclResult::InvalidArgument;
const OK: NcclResult = NcclResult::Success;

/// Good arguments for 16 elements in place.
fn good(rank: &Rank) -> anyhow::Result<Arguments> {
    let buffer = rank.blank(4 * 16 * rank.nranks as usize)?;
    Ok(Arguments {
        send: buffer.ptr(),
        recv: buffer.ptr(),
        count: 16,
        ..Arguments::new(rank.comm, rank.stream)
    })
}

pub fn add(cases: &mut Cases) {
    cases.subject("args");
    operations(cases);
    queries(cases);
    init(cases);
    management(cases);
    check_mode(cases);
}

fn operations(cases: &mut Cases) {
    for operation in &OPERATIONS {
        let (name, need, call) = (operation.name, operation.need, operation.call);
        cases.team(1, &format!("{name}::null_comm"), need, move |rank| {
            let good = good(rank)?;
            for count in [16, 0] {
                expect!(
                    call(&Arguments {
                        comm: null_mut(),
                        count,
                        ..good
                    }),
                    IA
                );
            }
            Ok(())
        });
        cases.team(1, &format!("{name}::unknown_datatype"), need, move |rank| {
            let good = good(rank)?;
            for bad in BAD_TYPES {
                expect!(
                    call(&Arguments {
                        datatype: NcclDataType(bad),
                        ..good
                    }),
                    IA
                );
            }
            expect!(state(rank.comm)?, OK);
            Ok(())
        });
        if operation.reduces {
            cases.team(1, &format!("{name}::unknown_operator"), need, move |rank| {
                let good = good(rank)?;
                for bad in BAD_OPERATORS {
                    expect!(
                        call(&Arguments {
                            op: NcclRedOp(bad),
                            ..good
                        }),
                        IA
                    );
                }
                expect!(state(rank.comm)?, OK);
                Ok(())
            });
        }
        if operation.rooted {
            for nranks in [1, 2] {
                cases.team(
                    nranks,
                    &format!("{name}::no_such_rank_of_{nranks}"),
                    need,
                    move |rank| {
                        let good = good(rank)?;
                        for root in [rank.nranks, -1, 99, i32::MAX, i32::MIN] {
                            expect!(call(&Arguments { root, ..good }), IA);
                        }
                        expect!(state(rank.comm)?, OK);
                        Ok(())
                    },
                );
            }
        }
        if operation.is_collective() {
            cases.team(
                1,
                &format!("{name}::nothing_to_do_takes_null_buffers"),
                need,
                move |rank| {
                    expect!(call(&Arguments::new(rank.comm, rank.stream)), OK);
                    Ok(())
                },
            );
            let (reduces, rooted) = (operation.reduces, operation.rooted);
            cases.team(
                1,
                &format!("{name}::nothing_to_do_is_still_checked"),
                need,
                move |rank| {
                    let good = Arguments::new(rank.comm, rank.stream);
                    expect!(
                        call(&Arguments {
                            datatype: NcclDataType(12),
                            ..good
                        }),
                        IA
                    );
                    if reduces {
                        expect!(
                            call(&Arguments {
                                op: NcclRedOp(5),
                                ..good
                            }),
                            IA
                        );
                    }
                    if rooted {
                        expect!(call(&Arguments { root: 1, ..good }), IA);
                    }
                    Ok(())
                },
            );
        } else {
            cases.team(1, &format!("{name}::to_oneself_alone"), need, move |rank| {
                let comm = rank.join(NcclConfig::new())?;
                let alone = Arguments {
                    comm,
                    ..good(rank)?
                };
                expect!(call(&alone), NcclResult::InvalidUsage);
                expect!(state(comm)?, OK);
                rank.abort(comm)
            });
        }
        // A refused call leaves a blocking communicator as it was.
        if operation.kind == Kind::AllReduce {
            cases.team(2, "all_reduce::refused_then_accepted", need, move |rank| {
                let good = good(rank)?;
                expect!(
                    call(&Arguments {
                        datatype: NcclDataType(12),
                        ..good
                    }),
                    IA
                );
                expect!(state(rank.comm)?, OK);
                expect!(rank.sum_over(rank.comm, 5)?, 10);
                Ok(())
            });
            // In a process of its own, which alone would lose its context.
            cases.child(
                "all_reduce::null_buffers_of_one_rank",
                need,
                &[],
                move || {
                    use_device(0)?;
                    let comm = alone(&NcclConfig::new())?;
                    let buffer = mem_alloc(64)? as *mut c_void;
                    let good = Arguments {
                        send: buffer,
                        recv: buffer,
                        count: 16,
                        ..Arguments::new(comm, create_stream()?)
                    };
                    // Both null is in place, so that there is nothing to copy.
                    let (send, recv) = (null(), null_mut());
                    expect!(call(&Arguments { send, recv, ..good }), OK);
                    expect!(
                        call(&Arguments { send, ..good }),
                        NcclResult::UnhandledCudaError
                    );
                    expect!(call(&good), OK);
                    expect!(state(comm)?, OK);
                    sync_stream(good.stream)
                },
            );
        }
    }
}

fn queries(cases: &mut Cases) {
    type Query = fn(NcclComm, *mut i32) -> NcclResult;
    let queries: [(&str, Query); 3] = [
        ("count", ncclCommCount),
        ("cu_device", ncclCommCuDevice),
        ("user_rank", ncclCommUserRank),
    ];
    for (name, query) in queries {
        cases.team(1, &format!("comm_{name}"), ANY, move |rank| {
            let mut number = -7;
            expect!(query(null_mut(), &mut number), IA);
            expect!(query(rank.comm, null_mut()), IA);
            expect!(query(null_mut(), null_mut()), IA);
            expect!(number, -7);
            expect!(query(rank.comm, &mut number), OK);
            ensure!(number == [1, 0][usize::from(name != "count")], "{number}");
            Ok(())
        });
    }
    cases.team(1, "comm_get_async_error", ANY, |rank| {
        let mut state = NcclResult(-1);
        expect!(ncclCommGetAsyncError(null_mut(), &mut state), IA);
        expect!(ncclCommGetAsyncError(rank.comm, null_mut()), IA);
        expect!(ncclCommGetAsyncError(rank.comm, &mut state), OK);
        expect!(state, OK);
        Ok(())
    });
    cases.bare("get_version", ANY, || {
        let mut version = 0;
        expect!(ncclGetVersion(null_mut()), IA);
        expect!(ncclGetVersion(&mut version), OK);
        ensure!(version > 21800, "{version}");
        Ok(())
    });
    cases.bare("get_unique_id", ANY, || {
        expect!(ncclGetUniqueId(null_mut()), IA);
        let mut ids = [NcclUniqueId { internal: [0; 128] }; 2];
        for id in &mut ids {
            expect!(ncclGetUniqueId(id), OK);
        }
        ensure!(ids[0] != ids[1] && ids[0].internal != [0; 128]);
        Ok(())
    });
    cases.team(1, "red_op_create", ANY, |rank| {
        let mut op = NcclRedOp(-7);
        let mut scalar = 2f32;
        let scalar = (&raw mut scalar).cast();
        let host = NcclScalarResidence::HostImmediate;
        expect!(
            ncclRedOpCreatePreMulSum(&mut op, scalar, NcclDataType::Float32, host, null_mut()),
            IA
        );
        for bad in [12, 99, -1] {
            let code =
                ncclRedOpCreatePreMulSum(&mut op, scalar, NcclDataType(bad), host, rank.comm);
            expect!(code, NcclResult::InternalError);
        }
        Ok(())
    });
    cases.team(1, "red_op_destroy", ANY, |rank| {
        for built_in in 0..5 {
            expect!(ncclRedOpDestroy(NcclRedOp(built_in), rank.comm), IA);
            expect!(ncclRedOpDestroy(NcclRedOp(built_in), null_mut()), IA);
        }
        for unknown in [-1, 5, 1000, i32::MAX, i32::MIN] {
            expect!(ncclRedOpDestroy(NcclRedOp(unknown), rank.comm), IA);
            expect!(ncclRedOpDestroy(NcclRedOp(unknown), null_mut()), IA);
        }
        Ok(())
    });
    cases.bare("set_encryption", ANY.calls("ncclSetEncryption"), || {
        let config = NcclEncryptionConfig::new();
        expect!(ncclSetEncryption(null()), OK);
        expect!(ncclSetEncryption(&config), OK);
        expect!(
            ncclSetEncryption(&NcclEncryptionConfig { magic: 1, ..config }),
            IA
        );
        expect!(
            ncclSetEncryption(&NcclEncryptionConfig { mode: 2, ..config }),
            IA
        );
        expect!(
            ncclSetEncryption(&NcclEncryptionConfig { mode: -1, ..config }),
            IA
        );
        // A key is asked for and none is given.
        expect!(
            ncclSetEncryption(&NcclEncryptionConfig { mode: 1, ..config }),
            IA
        );
        expect!(
            ncclSetEncryption(&NcclEncryptionConfig { size: 0, ..config }),
            OK
        );
        expect!(
            ncclSetEncryption(&NcclEncryptionConfig { size: 16, ..config }),
            OK
        );
        Ok(())
    });
}

/// What stands in an out pointer that a call leaves alone.
const UNTOUCHED: NcclComm = 7 as NcclComm;

/// Without leave for several ranks on one GPU.
const ALONE: Variables = &[
    ("NCCL_MULTI_RANK_GPU_ENABLE", None),
    ("METRALE_TEST_RANKS_PER_GPU", None),
];

fn init(cases: &mut Cases) {
    for (name, nranks, rank, untouched) in [
        ("no_ranks", 0, 0, true),
        ("negative_ranks", -1, 0, true),
        ("rank_too_high", 1, 1, false),
        ("negative_rank", 1, -1, false),
        ("rank_far_too_high", 4, 99, false),
    ] {
        cases.solo(&format!("init_rank::{name}"), ANY, move || {
            let mut comm = UNTOUCHED;
            expect!(ncclCommInitRank(&mut comm, nranks, unique_id()?, rank), IA);
            expect!(comm, if untouched { UNTOUCHED } else { null_mut() });
            expect!(ncclGroupEnd(), NcclResult::InvalidUsage);
            Ok(())
        });
        // In a process of its own: it looks at the state of what it left alone, which must be nothing then.
        cases.child(&format!("init_rank_config::{name}"), ANY, &[], move || {
            use_device(0)?;
            let mut comm = if untouched { null_mut() } else { UNTOUCHED };
            expect!(
                ncclCommInitRankConfig(&mut comm, nranks, unique_id()?, rank, null()),
                IA
            );
            expect!(comm, null_mut());
            expect!(ncclGroupEnd(), NcclResult::InvalidUsage);
            Ok(())
        });
    }
    cases.solo("init_rank::null_comm", ANY, || {
        expect!(ncclCommInitRank(null_mut(), 1, unique_id()?, 0), IA);
        Ok(())
    });
    // 2.28 leaves null behind, so that there is nothing to abort.
    cases.solo("init_rank::id_of_zeros", ANY.nccl(32), || {
        let mut comm = UNTOUCHED;
        let zeros = NcclUniqueId { internal: [0; 128] };
        expect!(
            ncclCommInitRank(&mut comm, 1, zeros, 0),
            NcclResult::InternalError
        );
        ensure!(
            comm != UNTOUCHED && !comm.is_null(),
            "what failed is to be aborted"
        );
        expect!(ncclCommAbort(comm), OK);
        Ok(())
    });
    cases.solo("init_rank_config::null_comm", ANY, || {
        expect!(
            ncclCommInitRankConfig(null_mut(), 1, unique_id()?, 0, null()),
            IA
        );
        Ok(())
    });
    cases.solo("init_rank_config::null_config_means_defaults", ANY, || {
        let mut comm = null_mut();
        expect!(
            ncclCommInitRankConfig(&mut comm, 1, unique_id()?, 0, null()),
            OK
        );
        expect!(ncclCommDestroy(comm), OK);
        Ok(())
    });
    cases.child(
        "init_rank_scalable",
        ANY.calls("ncclCommInitRankScalable"),
        &[],
        || {
            use_device(0)?;
            let mut comm = null_mut();
            let mut ids = [unique_id()?, unique_id()?];
            for count in [0, -1, 2] {
                expect!(
                    ncclCommInitRankScalable(&mut comm, 1, 0, count, ids.as_mut_ptr(), null()),
                    IA
                );
            }
            expect!(
                ncclCommInitRankScalable(&mut comm, 0, 0, 1, ids.as_mut_ptr(), null()),
                IA
            );
            expect!(
                ncclCommInitRankScalable(&mut comm, 1, 1, 1, ids.as_mut_ptr(), null()),
                IA
            );
            expect!(
                ncclCommInitRankScalable(null_mut(), 1, 0, 1, ids.as_mut_ptr(), null()),
                IA
            );
            let bad = NcclConfig {
                blocking: 2,
                ..NcclConfig::new()
            };
            expect!(
                ncclCommInitRankScalable(&mut comm, 1, 0, 1, ids.as_mut_ptr(), &bad),
                IA
            );
            expect!(
                ncclCommInitRankScalable(&mut comm, 1, 0, 1, ids.as_mut_ptr(), null()),
                OK
            );
            expect!(ncclCommDestroy(comm), OK);
            Ok(())
        },
    );
    cases.solo("init_all", ANY, || {
        let mut comms = [UNTOUCHED; 2];
        for device in [99, -1] {
            expect!(ncclCommInitAll(comms.as_mut_ptr(), 1, &device), IA);
        }
        expect!(ncclCommInitAll(comms.as_mut_ptr(), -1, null()), IA);
        expect!(ncclCommInitAll(null_mut(), 1, null()), IA);
        Ok(())
    });
    cases.solo("init_all::more_than_there_are", ANY, || {
        let devices = device_count()?;
        let mut comms = vec![null_mut(); devices as usize + 1];
        let code = ncclCommInitAll(comms.as_mut_ptr(), devices + 1, null());
        expect!(code, NcclResult::UnhandledCudaError);
        Ok(())
    });
    cases.solo("init_all::no_devices", EMULATOR, || {
        let mut comms = [UNTOUCHED; 1];
        expect!(ncclCommInitAll(comms.as_mut_ptr(), 0, null()), IA);
        Ok(())
    });
    cases.child("init_all::a_device_twice", ANY, ALONE, || {
        use_device(0)?;
        let mut comms = [null_mut(); 2];
        expect!(
            ncclCommInitAll(comms.as_mut_ptr(), 2, [0, 0].as_ptr()),
            NcclResult::InvalidUsage
        );
        Ok(())
    });
}

fn management(cases: &mut Cases) {
    cases.bare("null_comm_is_ended_in_peace", ANY, || {
        expect!(ncclCommFinalize(null_mut()), OK);
        expect!(ncclCommDestroy(null_mut()), OK);
        expect!(ncclCommAbort(null_mut()), OK);
        expect!(ncclGroupEnd(), NcclResult::InvalidUsage);
        Ok(())
    });
    cases.team(1, "comm_revoke", ANY.calls("ncclCommRevoke"), |rank| {
        expect!(ncclCommRevoke(null_mut(), 0), OK);
        expect!(ncclCommRevoke(null_mut(), 5), OK);
        for flags in [1, -1] {
            expect!(ncclCommRevoke(rank.comm, flags), IA);
        }
        expect!(rank.sum_over(rank.comm, 3)?, 3);
        Ok(())
    });
    cases.solo("comm_split", ANY, || {
        let comm = alone(&NcclConfig::new())?;
        let mut child = UNTOUCHED;
        expect!(ncclCommSplit(null_mut(), 0, 0, &mut child, null()), IA);
        expect!(child, UNTOUCHED);
        expect!(ncclCommSplit(comm, 0, 0, null_mut(), null()), IA);
        let bad = NcclConfig {
            split_share: 2,
            ..NcclConfig::new()
        };
        expect!(ncclCommSplit(comm, 0, 0, &mut child, &bad), IA);
        expect!(child, null_mut());
        expect!(state(comm)?, OK);
        expect!(ncclCommDestroy(comm), OK);
        Ok(())
    });
    cases.solo("comm_shrink", ANY.calls("ncclCommShrink"), || {
        let comm = alone(&NcclConfig::new())?;
        let mut child = null_mut();
        let mut list = [0];
        let list = list.as_mut_ptr();
        // Nobody would be left.
        expect!(
            ncclCommShrink(comm, list, 1, &mut child, null(), NCCL_SHRINK_DEFAULT),
            IA
        );
        expect!(
            ncclCommShrink(comm, list, 0, &mut child, null(), NCCL_SHRINK_DEFAULT),
            IA
        );
        expect!(
            ncclCommShrink(comm, list, -1, &mut child, null(), NCCL_SHRINK_DEFAULT),
            IA
        );
        expect!(
            ncclCommShrink(comm, null_mut(), 1, &mut child, null(), NCCL_SHRINK_DEFAULT),
            IA
        );
        expect!(
            ncclCommShrink(comm, list, 1, null_mut(), null(), NCCL_SHRINK_DEFAULT),
            IA
        );
        expect!(state(comm)?, OK);
        expect!(ncclCommDestroy(comm), OK);
        Ok(())
    });
    cases.solo("comm_shrink::null_comm", EMULATOR, || {
        let mut child = null_mut();
        let mut list = [0];
        expect!(
            ncclCommShrink(null_mut(), list.as_mut_ptr(), 1, &mut child, null(), 0),
            IA
        );
        Ok(())
    });
    cases.solo(
        "comm_get_unique_id",
        ANY.calls("ncclCommGetUniqueId"),
        || {
            let comm = alone(&NcclConfig::new())?;
            let mut id = NcclUniqueId { internal: [0; 128] };
            expect!(ncclCommGetUniqueId(null_mut(), &mut id), IA);
            expect!(ncclCommGetUniqueId(comm, null_mut()), IA);
            expect!(ncclCommDestroy(comm), OK);
            Ok(())
        },
    );
    cases.solo("comm_grow", ANY.calls("ncclCommGrow"), || {
        let id = unique_id()?;
        let mut grown = UNTOUCHED;
        // As a new rank.
        expect!(ncclCommGrow(null_mut(), 2, &id, 1, null_mut(), null()), IA);
        expect!(ncclCommGrow(null_mut(), 0, &id, 1, &mut grown, null()), IA);
        expect!(ncclCommGrow(null_mut(), 2, &id, -1, &mut grown, null()), IA);
        expect!(
            ncclCommGrow(null_mut(), 2, null(), 1, &mut grown, null()),
            IA
        );
        expect!(grown, null_mut());
        expect!(ncclCommGrow(null_mut(), 2, &id, 2, &mut grown, null()), IA);
        // As an old one.
        let comm = alone(&NcclConfig::new())?;
        expect!(ncclCommGrow(comm, 1, null(), -1, &mut grown, null()), IA);
        expect!(ncclCommGrow(comm, 0, null(), -1, &mut grown, null()), IA);
        expect!(ncclCommGrow(comm, 2, null(), -1, null_mut(), null()), IA);
        expect!(ncclCommGrow(comm, 2, &id, 0, &mut grown, null()), IA);
        expect!(state(comm)?, OK);
        expect!(ncclCommDestroy(comm), OK);
        Ok(())
    });
    cases.team(
        1,
        "comm_suspend_and_resume",
        ANY.calls("ncclCommSuspend"),
        |_| {
            expect!(ncclCommSuspend(null_mut(), NCCL_SUSPEND_MEM), IA);
            expect!(ncclCommResume(null_mut()), IA);
            Ok(())
        },
    );
    cases.team(1, "comm_mem_stats", ANY.calls("ncclCommMemStats"), |rank| {
        let mut value = 7;
        expect!(
            ncclCommMemStats(null_mut(), NcclCommMemStat::GpuMemTotal, &mut value),
            IA
        );
        expect!(
            ncclCommMemStats(rank.comm, NcclCommMemStat::GpuMemTotal, null_mut()),
            IA
        );
        for bad in [4, 9, -1] {
            expect!(
                ncclCommMemStats(rank.comm, NcclCommMemStat(bad), &mut value),
                IA
            );
        }
        for good in 0..4 {
            expect!(
                ncclCommMemStats(rank.comm, NcclCommMemStat(good), &mut value),
                OK
            );
        }
        Ok(())
    });
}

/// `NCCL_CHECK_MODE` and its elder make NCCL look at the buffers.
fn check_mode(cases: &mut Cases) {
    let modes: [(&str, Variables); 2] = [
        (
            "checked_locally",
            &[("NCCL_CHECK_MODE", Some("DEBUG_LOCAL"))],
        ),
        (
            "checked_by_the_elder_variable",
            &[
                ("NCCL_CHECK_POINTERS", Some("1")),
                ("NCCL_CHECK_MODE", None),
            ],
        ),
    ];
    for (name, variables) in modes {
        cases.child(&format!("buffers::{name}"), ANY.nccl(30), variables, || {
            use_device(0)?;
            let comm = alone(&NcclConfig::new())?;
            let mut device = 0;
            expect!(cuMemAlloc_v2(&mut device, 4096), CuResult::Success);
            let device = device as *mut c_void;
            let mut host = [0u8; 64];
            let host: *mut c_void = host.as_mut_ptr().cast();
            let mut pinned = null_mut();
            expect!(cuMemAllocHost_v2(&mut pinned, 4096), CuResult::Success);
            for operation in OPERATIONS
                .iter()
                .filter(|operation| operation.is_collective())
            {
                // The first has nothing for Bcast, which has one buffer only.
                let bad = [
                    (host, device),
                    (null_mut(), device),
                    (device, host),
                    (device, null_mut()),
                ];
                let bad = if operation.kind == Kind::Bcast {
                    &bad[2..]
                } else {
                    &bad[..]
                };
                for &(send, recv) in bad {
                    for count in [16, 0] {
                        let arguments = Arguments {
                            send,
                            recv,
                            count,
                            ..Arguments::new(comm, 0)
                        };
                        let code = (operation.call)(&arguments);
                        ensure!(
                            code == IA,
                            "{}({send:?}, {recv:?}, {count}) is {code:?}",
                            operation.name
                        );
                    }
                }
                for buffer in [device, pinned] {
                    let arguments = Arguments {
                        send: buffer,
                        recv: buffer,
                        count: 4,
                        ..Arguments::new(comm, 0)
                    };
                    let code = (operation.call)(&arguments);
                    ensure!(
                        code == OK || operation.kind == Kind::AlltoAll,
                        "{} is {code:?}",
                        operation.name
                    );
                }
            }
            // Send and receive are looked at only where there is something to move.
            expect!(ncclGroupStart(), OK);
            expect!(ncclSend(null(), 0, NcclDataType::Int8, 0, comm, 0), OK);
            expect!(ncclRecv(null_mut(), 0, NcclDataType::Int8, 0, comm, 0), OK);
            expect!(ncclGroupEnd(), OK);
            expect!(ncclSend(null(), 4, NcclDataType::Int8, 0, comm, 0), IA);
            expect!(ncclRecv(host, 4, NcclDataType::Int8, 0, comm, 0), IA);
            Ok(())
        });
    }
}
