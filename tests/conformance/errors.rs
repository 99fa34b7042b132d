//! Names, texts, the latest message, and what comes of a fault.

use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::calls::*;
use crate::cases::Cases;
use crate::expect;
use crate::world::{ANY, Need};

/// Of the driver: code, name, text.
const CUDA: [(i32, &CStr, &CStr); 27] = [
    (0, c"CUDA_SUCCESS", c"no error"),
    (1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
    (4, c"CUDA_ERROR_DEINITIALIZED", c"driver shutting down"),
    (
        34,
        c"CUDA_ERROR_STUB_LIBRARY",
        c"CUDA driver is a stub library",
    ),
    (
        100,
        c"CUDA_ERROR_NO_DEVICE",
        c"no CUDA-capable device is detected",
    ),
    (101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
    (
        201,
        c"CUDA_ERROR_INVALID_CONTEXT",
        c"invalid device context",
    ),
    (
        400,
        c"CUDA_ERROR_INVALID_HANDLE",
        c"invalid resource handle",
    ),
    (
        401,
        c"CUDA_ERROR_ILLEGAL_STATE",
        c"the operation cannot be performed in the present state",
    ),
    (500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
    (600, c"CUDA_ERROR_NOT_READY", c"device not ready"),
    (
        700,
        c"CUDA_ERROR_ILLEGAL_ADDRESS",
        c"an illegal memory access was encountered",
    ),
    (
        709,
        c"CUDA_ERROR_CONTEXT_IS_DESTROYED",
        c"context is destroyed",
    ),
    (
        719,
        c"CUDA_ERROR_LAUNCH_FAILED",
        c"unspecified launch failure",
    ),
    (800, c"CUDA_ERROR_NOT_PERMITTED", c"operation not permitted"),
    (801, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
    (
        802,
        c"CUDA_ERROR_SYSTEM_NOT_READY",
        c"system not yet initialized",
    ),
    (
        803,
        c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        c"system has unsupported display driver / cuda driver combination",
    ),
    (
        804,
        c"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        c"forward compatibility was attempted on non supported HW",
    ),
    (
        900,
        c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        c"operation not permitted when stream is capturing",
    ),
    (
        901,
        c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        c"operation failed due to a previous error during capture",
    ),
    (
        905,
        c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
        c"dependency created on uncaptured work in another stream",
    ),
    (
        906,
        c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
        c"operation would make the legacy stream depend on a capturing blocking stream",
    ),
    (
        907,
        c"CUDA_ERROR_CAPTURED_EVENT",
        c"operation not permitted on an event last recorded in a capturing stream",
    ),
    (999, c"CUDA_ERROR_UNKNOWN", c"unknown error"),
];

/// Of NCCL: code and text.
const NCCL: [(i32, &CStr); 13] = [
    (0, c"no error"),
    (
        1,
        c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
    ),
    (
        2,
        c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
    ),
    (
        3,
        c"internal error - please report this issue to the NCCL developers",
    ),
    (
        4,
        c"invalid argument (run with NCCL_DEBUG=WARN for details)",
    ),
    (5, c"invalid usage (run with NCCL_DEBUG=WARN for details)"),
    (6, c"remote process exited or there was a network error"),
    (7, c"NCCL operation in progress"),
    (8, c"timeout"),
    (9, c"unknown result code"),
    (99, c"unknown result code"),
    (-1, c"unknown result code"),
    (i32::MIN, c"unknown result code"),
];

/// A failing call and the message that it leaves.
type Message = (&'static str, Need, fn() -> NcclResult, &'static str);

const MESSAGES: [Message; 30] = [
    (
        "all_reduce",
        ANY,
        || ncclAllReduce(null(), null_mut(), 0, I8, SUM, null_mut(), 0),
        "AllReduce : comm argument is NULL",
    ),
    (
        "bcast",
        ANY,
        || ncclBcast(null_mut(), 0, I8, 0, null_mut(), 0),
        "Broadcast : comm argument is NULL",
    ),
    (
        "broadcast",
        ANY,
        || ncclBroadcast(null(), null_mut(), 0, I8, 0, null_mut(), 0),
        "Broadcast : comm argument is NULL",
    ),
    (
        "reduce",
        ANY,
        || ncclReduce(null(), null_mut(), 0, I8, SUM, 0, null_mut(), 0),
        "Reduce : comm argument is NULL",
    ),
    (
        "all_gather",
        ANY,
        || ncclAllGather(null(), null_mut(), 0, I8, null_mut(), 0),
        "AllGather : comm argument is NULL",
    ),
    (
        "reduce_scatter",
        ANY,
        || ncclReduceScatter(null(), null_mut(), 0, I8, SUM, null_mut(), 0),
        "ReduceScatter : comm argument is NULL",
    ),
    (
        "all_to_all",
        ANY.calls("ncclAlltoAll"),
        || ncclAlltoAll(null(), null_mut(), 0, I8, null_mut(), 0),
        "AlltoAll : comm argument is NULL",
    ),
    (
        "gather",
        ANY.calls("ncclGather"),
        || ncclGather(null(), null_mut(), 0, I8, 0, null_mut(), 0),
        "Gather : comm argument is NULL",
    ),
    (
        "scatter",
        ANY.calls("ncclScatter"),
        || ncclScatter(null(), null_mut(), 0, I8, 0, null_mut(), 0),
        "Scatter : comm argument is NULL",
    ),
    (
        "send",
        ANY,
        || ncclSend(null(), 0, I8, 0, null_mut(), 0),
        "Send : comm argument is NULL",
    ),
    (
        "recv",
        ANY,
        || ncclRecv(null_mut(), 0, I8, 0, null_mut(), 0),
        "Recv : comm argument is NULL",
    ),
    (
        "put_signal",
        ANY.calls("ncclPutSignal"),
        || ncclPutSignal(null(), 0, I8, 0, null_mut(), 0, 0, 0, 0, null_mut(), 0),
        "PutSignal : comm argument is NULL",
    ),
    (
        "signal",
        ANY.calls("ncclSignal"),
        || ncclSignal(0, 0, 0, 0, null_mut(), 0),
        "Signal : comm argument is NULL",
    ),
    (
        "wait_signal",
        ANY.calls("ncclWaitSignal"),
        || ncclWaitSignal(1, null_mut(), null_mut(), 0),
        "WaitSignal : comm argument is NULL",
    ),
    (
        "count",
        ANY,
        || ncclCommCount(null_mut(), null_mut()),
        "CommCount : comm argument is NULL",
    ),
    (
        "cu_device",
        ANY,
        || ncclCommCuDevice(null_mut(), null_mut()),
        "CommCuDevice : comm argument is NULL",
    ),
    (
        "user_rank",
        ANY,
        || ncclCommUserRank(null_mut(), null_mut()),
        "CommUserRank : comm argument is NULL",
    ),
    (
        "get_async_error",
        ANY,
        || ncclCommGetAsyncError(null_mut(), null_mut()),
        "ncclGetAsyncError : comm argument is NULL",
    ),
    (
        "suspend",
        ANY.calls("ncclCommSuspend"),
        || ncclCommSuspend(null_mut(), 0),
        "ncclCommSuspend : comm argument is NULL",
    ),
    (
        "resume",
        ANY.calls("ncclCommResume"),
        || ncclCommResume(null_mut()),
        "ncclCommResume : comm argument is NULL",
    ),
    (
        "mem_stats",
        ANY.calls("ncclCommMemStats"),
        || ncclCommMemStats(null_mut(), NcclCommMemStat(0), null_mut()),
        "ncclCommMemStats : comm argument is NULL",
    ),
    (
        "group_end",
        ANY,
        || ncclGroupEnd(),
        "ncclGroupEnd: not in a group call.",
    ),
    (
        "red_op_destroy_sum",
        ANY,
        || ncclRedOpDestroy(NcclRedOp(0), null_mut()),
        "ncclRedOpDestroy : operator is a NCCL builtin.",
    ),
    (
        "red_op_destroy_garbage",
        ANY,
        || ncclRedOpDestroy(NcclRedOp(-1), null_mut()),
        "ncclRedOpDestroy :  operator is garbage.",
    ),
    (
        "red_op_destroy_of_nobody",
        ANY,
        || ncclRedOpDestroy(NcclRedOp(5), null_mut()),
        "ncclRedOpDestroy : invalid communicator passed.",
    ),
    (
        "grow_to_nothing",
        ANY.calls("ncclCommGrow"),
        || ncclCommGrow(null_mut(), 0, null(), 0, &mut null_mut(), null()),
        "ncclCommGrow: total ranks must be positive, got 0",
    ),
    (
        "grow_without_an_id",
        ANY.calls("ncclCommGrow"),
        || ncclCommGrow(null_mut(), 2, null(), 0, &mut null_mut(), null()),
        "ncclCommGrow: new ranks must pass non-NULL uniqueId",
    ),
    (
        "set_encryption",
        ANY.calls("ncclSetEncryption"),
        || {
            ncclSetEncryption(&NcclEncryptionConfig {
                mode: 2,
                ..NcclEncryptionConfig::new()
            })
        },
        "ncclSetEncryption: config->mode=2 is not a supported encryption mode",
    ),
    (
        "config_of_a_collective",
        ANY.calls("ncclAllReduceConfig"),
        || {
            let config = NcclCollConfig {
                magic: 1,
                ..NcclCollConfig::new()
            };
            ncclAllReduceConfig(null(), null_mut(), 0, I8, SUM, null_mut(), 0, &config)
        },
        "ncclCollConfig_t magic mismatch (got 0x1, expected 0xcafebeef)",
    ),
    (
        "simulate",
        ANY.calls("ncclGroupSimulateEnd"),
        || {
            let mut info = NcclSimInfo {
                magic: 1,
                ..NcclSimInfo::new()
            };
            let _ = ncclGroupStart();
            ncclGroupSimulateEnd(&mut info)
        },
        "ncclSimInfo_t argument not initialized via NCCL_SIM_INFO_INITIALIZER",
    ),
];

const I8: NcclDataType = NcclDataType::Int8;
const SUM: NcclRedOp = NcclRedOp::Sum;

fn last() -> String {
    let text = ncclGetLastError(null_mut());
    c_text(text).to_string_lossy().into_owned()
}

pub fn add(cases: &mut Cases) {
    cases.subject("errors");
    for (code, name, text) in &CUDA {
        cases.bare(&format!("cuda::{code}"), ANY, move || {
            let (mut got_name, mut got_text) = (null(), null());
            expect!(
                cuGetErrorName(CuResult(*code), &mut got_name),
                CuResult::Success
            );
            expect!(
                cuGetErrorString(CuResult(*code), &mut got_text),
                CuResult::Success
            );
            let (got_name, got_text) = (c_text(got_name), c_text(got_text));
            expect!(got_name, *name);
            expect!(got_text, *text);
            expect!(CuResult(*code).c_name(), name.to_str().ok());
            Ok(())
        });
    }
    for code in [35, 12345, -1] {
        cases.bare(&format!("cuda::{code}_is_unknown"), ANY, move || {
            for ask in [cuGetErrorName, cuGetErrorString] {
                let mut text = c"before".as_ptr();
                expect!(ask(CuResult(code), &mut text), CuResult::InvalidValue);
                ensure!(text.is_null());
            }
            Ok(())
        });
    }
    for (code, text) in NCCL {
        cases.bare(
            &format!("nccl::{code}"),
            if code == 8 { ANY.nccl(30) } else { ANY },
            move || {
                expect!(c_text(ncclGetErrorString(NcclResult(code))), text);
                Ok(())
            },
        );
    }
    messages(cases);
    faults(cases);
}

fn messages(cases: &mut Cases) {
    cases.child("message::nothing_at_first", ANY, &[], || {
        expect!(last(), "");
        Ok(())
    });
    for (name, need, call, message) in MESSAGES {
        cases.bare(&format!("message::{name}"), need.nccl(32), move || {
            let code = call();
            ensure!(
                code == NcclResult::InvalidArgument || code == NcclResult::InvalidUsage,
                "{code:?}"
            );
            expect!(last(), message);
            Ok(())
        });
    }
    cases.team(1, "message::is_the_process_s_own", ANY, |rank| {
        expect!(
            ncclCommCount(null_mut(), null_mut()),
            NcclResult::InvalidArgument
        );
        let message = last();
        ensure!(message.contains("CommCount"), "{message}");
        // The argument is not looked at, nor is the thread.
        let asked = c_text(ncclGetLastError(rank.comm));
        expect!(asked.to_str()?, message);
        expect!(std::thread::spawn(last).join().expect("no panic"), message);
        // Neither a success takes it away nor an error that has no words.
        expect!(rank.sum_over(rank.comm, 1)?, 1);
        expect!(ncclGetVersion(null_mut()), NcclResult::InvalidArgument);
        expect!(last(), message);
        Ok(())
    });
    cases.team(1, "message::of_bad_arguments", ANY, |rank| {
        let p = rank.blank(64)?.ptr();
        let bad = NcclResult::InvalidArgument;
        expect!(
            ncclAllReduce(p, p, 4, NcclDataType(99), SUM, rank.comm, rank.stream),
            bad
        );
        ensure!(last().starts_with("AllReduce"), "{}", last());
        expect!(ncclBroadcast(p, p, 4, I8, 9, rank.comm, rank.stream), bad);
        ensure!(last().starts_with("Broadcast"), "{}", last());
        expect!(
            ncclReduce(p, p, 4, I8, NcclRedOp(-1), 0, rank.comm, rank.stream),
            bad
        );
        ensure!(last().starts_with("Reduce"), "{}", last());
        Ok(())
    });
    cases.child(
        "message::two_ranks_of_one_gpu",
        ANY.nccl(30),
        &[("NCCL_MULTI_RANK_GPU_ENABLE", None), ("METRALE_TEST_RANKS_PER_GPU", None)],
        || {
            init()?;
            let id = unique_id()?;
            let ranks = [0, 1].map(|rank| {
                std::thread::spawn(move || -> Result<()> {
                    use_device(0)?;
                    expect!(ncclCommInitRank(&mut null_mut(), 2, id, rank), NcclResult::InvalidUsage);
                    Ok(())
                })
            });
            for rank in ranks {
                rank.join().expect("no panic")?;
            }
            expect!(
                last(),
                "Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this \
                 configuration."
            );
            Ok(())
        },
    );
}

/// Nobody checks the buffers: the device does, and its context is lost.
fn faults(cases: &mut Cases) {
    let buffers: [(&str, *mut c_void); 2] =
        [("null", null_mut()), ("garbage", 0x123_4560 as *mut c_void)];
    for (name, buffer) in buffers {
        let buffer = buffer as usize;
        cases.child(
            &format!("fault::of_a_{name}_buffer"),
            ANY.ranks(2),
            &[],
            move || {
                let outcome = crate::team::run(2, move |rank| {
                    let p = buffer as *mut c_void;
                    let code =
                        ncclAllReduce(p, p, 4, NcclDataType::Int32, SUM, rank.comm, rank.stream);
                    // The peer's fault may come first, where they share the device.
                    ensure!(
                        code == NcclResult::Success || code == NcclResult::UnhandledCudaError,
                        "{code:?}"
                    );
                    let start = Instant::now();
                    let mut code = cuStreamQuery(rank.stream);
                    while code == CuResult::NotReady && start.elapsed() < Duration::from_secs(5) {
                        std::thread::yield_now();
                        code = cuStreamQuery(rank.stream);
                    }
                    expect!(code, CuResult::IllegalAddress);
                    // And so it stays.
                    let mut address = 0;
                    expect!(cuStreamSynchronize(rank.stream), CuResult::IllegalAddress);
                    expect!(cuMemAlloc_v2(&mut address, 64), CuResult::IllegalAddress);
                    expect!(cuCtxSynchronize(), CuResult::IllegalAddress);
                    // What is left cannot be used for another case, nor be ended in peace.
                    anyhow::bail!("as expected")
                });
                let text = format!("{:#}", outcome.unwrap_err());
                ensure!(text.contains("as expected"), "{text}");
                Ok(())
            },
        );
    }
}
