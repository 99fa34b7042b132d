//! Streams: queues that run beside their caller.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::calls::*;
use crate::cases::Cases;
use crate::expect;
use crate::latch::Latch;
use crate::team::alone;
use crate::world::{ANY, EMULATOR};

const OK: CuResult = CuResult::Success;
const NOT_READY: CuResult = CuResult::NotReady;

/// Two streams of one kind.
fn two(flags: u32) -> Result<(CuStream, CuStream)> {
    let (mut a, mut b) = (0, 0);
    expect!(cuStreamCreate(&mut a, flags), OK);
    expect!(cuStreamCreate(&mut b, flags), OK);
    Ok((a, b))
}

/// A moment in which what nothing holds would have happened.
pub fn moment() {
    std::thread::sleep(Duration::from_millis(5));
}

pub fn add(cases: &mut Cases) {
    cases.subject("streams");
    create(cases);
    order(cases);
    legacy(cases);
    per_thread(cases);
    callbacks(cases);
    gone(cases);
}

fn create(cases: &mut Cases) {
    cases.solo("flags", ANY, || {
        let mut stream = 0;
        for bad in [2, 3, 4, 0x100, u32::MAX] {
            expect!(cuStreamCreate(&mut stream, bad), CuResult::InvalidValue);
        }
        for good in [CU_STREAM_DEFAULT, CU_STREAM_NON_BLOCKING] {
            let mut flags = 7;
            expect!(cuStreamCreate(&mut stream, good), OK);
            expect!(cuStreamGetFlags(stream, &mut flags), OK);
            expect!(flags, good);
            expect!(cuStreamDestroy_v2(stream), OK);
        }
        expect!(cuStreamCreate(null_mut(), 0), CuResult::InvalidValue);
        Ok(())
    });
    cases.solo("priorities", ANY, || {
        let (mut least, mut greatest) = (7, 7);
        expect!(cuCtxGetStreamPriorityRange(&mut least, &mut greatest), OK);
        expect!(least, 0);
        ensure!(greatest <= 0, "{greatest}");
        for (asked, got) in [(-100, greatest), (100, least), (0, 0), (greatest, greatest)] {
            let (mut stream, mut priority, mut flags) = (0, 7, 7);
            expect!(
                cuStreamCreateWithPriority(&mut stream, CU_STREAM_NON_BLOCKING, asked),
                OK
            );
            expect!(cuStreamGetPriority(stream, &mut priority), OK);
            expect!(priority, got);
            expect!(cuStreamGetFlags(stream, &mut flags), OK);
            expect!(flags, CU_STREAM_NON_BLOCKING);
            expect!(cuStreamDestroy_v2(stream), OK);
        }
        let mut flags = 7;
        expect!(cuStreamGetFlags(0, &mut flags), OK);
        expect!(flags, 0);
        Ok(())
    });
    cases.solo("range_of_priorities", EMULATOR, || {
        let (mut least, mut greatest) = (7, 7);
        expect!(cuCtxGetStreamPriorityRange(&mut least, &mut greatest), OK);
        expect!((least, greatest), (0, -5));
        Ok(())
    });
    cases.solo("null_and_special_handles", ANY, || {
        for stream in [0, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD] {
            expect!(cuStreamQuery(stream), OK);
            expect!(cuStreamSynchronize(stream), OK);
            expect!(cuStreamDestroy_v2(stream), CuResult::InvalidHandle);
        }
        Ok(())
    });
    cases.solo("destroyed_while_pending_it_still_runs", ANY, || {
        let (stream, event) = (create_stream()?, create_event()?);
        let latch = Latch::hold(stream)?;
        expect!(cuEventRecord(event, stream), OK);
        expect!(cuStreamQuery(stream), NOT_READY);
        expect!(cuEventQuery(event), NOT_READY);
        expect!(cuStreamQuery(0), OK);
        expect!(cuStreamDestroy_v2(stream), OK);
        expect!(cuEventQuery(event), NOT_READY);
        latch.open();
        expect!(cuEventSynchronize(event), OK);
        expect!(cuEventQuery(event), OK);
        destroy_event(event);
        Ok(())
    });
    cases.solo("a_thousand", ANY, || {
        let streams: Result<Vec<CuStream>> = (0..1000).map(|_| create_stream()).collect();
        let streams = streams?;
        let mut sorted = streams.clone();
        sorted.sort();
        sorted.dedup();
        expect!(sorted.len(), 1000);
        for stream in streams {
            expect!(cuStreamQuery(stream), OK);
            expect!(cuStreamDestroy_v2(stream), OK);
        }
        Ok(())
    });
}

fn order(cases: &mut Cases) {
    cases.solo("the_caller_does_not_wait", ANY, || {
        let (stream, memory) = (create_stream()?, mem_alloc(64)?);
        expect!(cuMemsetD8Async(memory, 1, 64, stream), OK);
        sync_stream(stream)?;
        let latch = Latch::hold(stream)?;
        expect!(cuMemsetD8Async(memory, 2, 64, stream), OK);
        expect!(cuStreamQuery(stream), NOT_READY);
        moment();
        let (side, mut byte) = (create_stream()?, [0u8; 64]);
        expect!(
            cuMemcpyDtoHAsync_v2(byte.as_mut_ptr().cast(), memory, 64, side),
            OK
        );
        sync_stream(side)?;
        expect!(byte, [1; 64]);
        latch.open();
        expect!(cuStreamSynchronize(stream), OK);
        expect!(cuStreamQuery(stream), OK);
        expect!(
            cuMemcpyDtoHAsync_v2(byte.as_mut_ptr().cast(), memory, 64, side),
            OK
        );
        sync_stream(side)?;
        expect!(byte, [2; 64]);
        expect!(cuMemFree_v2(memory), OK);
        destroy_stream(side);
        destroy_stream(stream);
        Ok(())
    });
    cases.solo("one_after_the_other", ANY, || {
        static SEEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());
        unsafe extern "C" fn note(number: *mut c_void) {
            SEEN.lock().expect("no panic").push(number as usize);
        }
        let stream = create_stream()?;
        let latch = Latch::hold(stream)?;
        for number in 0..200 {
            expect!(
                cuLaunchHostFunc(stream, Some(note), number as *mut c_void),
                OK
            );
        }
        expect!(SEEN.lock().expect("no panic").len(), 0);
        latch.open();
        sync_stream(stream)?;
        ensure!(*SEEN.lock().expect("no panic") == (0..200).collect::<Vec<_>>());
        destroy_stream(stream);
        Ok(())
    });
    for (name, flags) in [
        ("blocking", CU_STREAM_DEFAULT),
        ("non_blocking", CU_STREAM_NON_BLOCKING),
    ] {
        cases.solo(
            &format!("{name}_ones_do_not_wait_for_each_other"),
            ANY,
            move || {
                let (a, b) = two(flags)?;
                let latch = Latch::hold(a)?;
                expect!(cuStreamQuery(b), OK);
                expect!(cuStreamSynchronize(b), OK);
                expect!(cuStreamQuery(a), NOT_READY);
                latch.open();
                sync_stream(a)?;
                destroy_stream(a);
                destroy_stream(b);
                Ok(())
            },
        );
    }
    cases.solo("context_synchronize_waits_for_all", ANY, || {
        static DONE: AtomicUsize = AtomicUsize::new(0);
        unsafe extern "C" fn slow(_: *mut c_void) {
            std::thread::sleep(Duration::from_millis(5));
            DONE.fetch_add(1, Ordering::SeqCst);
        }
        let (a, b) = two(CU_STREAM_NON_BLOCKING)?;
        for stream in [a, b, 0] {
            expect!(cuLaunchHostFunc(stream, Some(slow), null_mut()), OK);
        }
        expect!(cuCtxSynchronize(), OK);
        expect!(DONE.load(Ordering::SeqCst), 3);
        destroy_stream(a);
        destroy_stream(b);
        Ok(())
    });
    // Communicators of several ranks work in the order of their calls, whatever the streams.
    cases.team(
        2,
        "collectives_of_a_communicator_keep_their_order",
        ANY,
        |rank| {
            let (first, second) = (create_stream()?, create_stream()?);
            let buffer = rank.upload(&[1])?;
            let p = buffer.ptr();
            let call = |stream| {
                ncclAllReduce(
                    p,
                    p,
                    1,
                    NcclDataType::Int32,
                    NcclRedOp::Sum,
                    rank.comm,
                    stream,
                )
            };
            rank.meet()?;
            let latch = Latch::hold(first)?;
            expect!(call(first), NcclResult::Success);
            expect!(call(second), NcclResult::Success);
            moment();
            expect!(cuStreamQuery(second), NOT_READY);
            rank.meet()?;
            latch.open();
            rank.wait_for(first)?;
            rank.wait_for(second)?;
            expect!(rank.read::<i32>(buffer)?, [4]);
            destroy_stream(first);
            destroy_stream(second);
            Ok(())
        },
    );
    cases.team(2, "a_collective_waits_for_its_stream", ANY, |rank| {
        let buffer = rank.upload(&[0])?;
        let p = buffer.ptr();
        let latch = Latch::hold(rank.stream)?;
        expect!(
            cuMemsetD32Async(buffer.address, rank.rank as u32 + 1, 1, rank.stream),
            OK
        );
        expect!(
            ncclAllReduce(
                p,
                p,
                1,
                NcclDataType::Int32,
                NcclRedOp::Sum,
                rank.comm,
                rank.stream
            ),
            NcclResult::Success
        );
        moment();
        expect!(rank.peek::<i32>(buffer.address, 4)?, [0]);
        rank.meet()?;
        latch.open();
        expect!(rank.read::<i32>(buffer)?, [3]);
        Ok(())
    });
    cases.team(2, "later_work_waits_for_a_collective", ANY, |rank| {
        let (buffer, copy) = (rank.upload(&[rank.rank + 1])?, rank.blank(4)?);
        let p = buffer.ptr();
        for round in 0..20 {
            expect!(
                ncclAllReduce(
                    p,
                    p,
                    1,
                    NcclDataType::Int32,
                    NcclRedOp::Max,
                    rank.comm,
                    rank.stream
                ),
                NcclResult::Success
            );
            expect!(
                cuMemcpyDtoDAsync_v2(copy.address, buffer.address, 4, rank.stream),
                OK
            );
            expect!(
                cuMemsetD32Async(
                    buffer.address,
                    (rank.rank + round + 2) as u32,
                    1,
                    rank.stream
                ),
                OK
            );
            expect!(rank.read::<i32>(copy)?, [round + 2]);
        }
        Ok(())
    });
}

/// The legacy stream and the blocking ones wait for each other.
fn legacy(cases: &mut Cases) {
    for handle in [0, CU_STREAM_LEGACY] {
        cases.solo(
            &format!("legacy_{handle}_waits_for_blocking_ones"),
            ANY,
            move || {
                let (blocking, _) = two(CU_STREAM_DEFAULT)?;
                let (free, _) = two(CU_STREAM_NON_BLOCKING)?;
                let event = create_event()?;
                let latch = Latch::hold(blocking)?;
                expect!(cuStreamQuery(blocking), NOT_READY);
                expect!(cuStreamQuery(handle), NOT_READY);
                expect!(cuStreamQuery(free), OK);
                expect!(cuEventRecord(event, handle), OK);
                expect!(cuEventQuery(event), NOT_READY);
                latch.open();
                expect!(cuCtxSynchronize(), OK);
                expect!(cuEventQuery(event), OK);
                Ok(())
            },
        );
        cases.solo(
            &format!("blocking_ones_wait_for_legacy_{handle}"),
            ANY,
            move || {
                let (blocking, free) = (two(CU_STREAM_DEFAULT)?.0, two(CU_STREAM_NON_BLOCKING)?.0);
                let (behind, beside) = (create_event()?, create_event()?);
                let latch = Latch::hold(handle)?;
                expect!(cuEventRecord(behind, blocking), OK);
                expect!(cuEventRecord(beside, free), OK);
                moment();
                expect!(cuEventQuery(behind), NOT_READY);
                expect!(cuEventQuery(beside), OK);
                latch.open();
                expect!(cuCtxSynchronize(), OK);
                expect!(cuEventQuery(behind), OK);
                Ok(())
            },
        );
    }
    cases.solo("legacy_between_two_blocking_ones", ANY, || {
        let ((a, b), memory) = (two(CU_STREAM_DEFAULT)?, mem_alloc(4)?);
        let latch = Latch::hold(a)?;
        expect!(cuMemsetD32Async(memory, 1, 1, a), OK);
        expect!(cuMemsetD32Async(memory, 2, 1, 0), OK);
        expect!(cuMemsetD32Async(memory, 3, 1, b), OK);
        expect!(cuStreamQuery(b), NOT_READY);
        latch.open();
        sync_stream(b)?;
        let mut word = 0u32;
        expect!(cuMemcpyDtoH_v2((&raw mut word).cast(), memory, 4), OK);
        expect!(word, 3);
        expect!(cuMemFree_v2(memory), OK);
        Ok(())
    });
    cases.team(1, "legacy_takes_collectives", ANY, |rank| {
        let buffer = rank.upload(&[5])?;
        for stream in [0, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD] {
            let p = buffer.ptr();
            let code = ncclAllReduce(
                p,
                p,
                1,
                NcclDataType::Int32,
                NcclRedOp::Sum,
                rank.comm,
                stream,
            );
            expect!(code, NcclResult::Success);
            sync_stream(stream)?;
        }
        expect!(rank.read::<i32>(buffer)?, [5]);
        Ok(())
    });
}

/// Each thread's own default stream: a blocking one.
fn per_thread(cases: &mut Cases) {
    cases.solo("per_thread_is_each_threads_own", ANY, || {
        let latch = Latch::hold(CU_STREAM_PER_THREAD)?;
        expect!(cuStreamQuery(CU_STREAM_PER_THREAD), NOT_READY);
        let other = std::thread::spawn(|| -> Result<()> {
            use_device(0)?;
            expect!(cuStreamQuery(CU_STREAM_PER_THREAD), OK);
            expect!(cuStreamSynchronize(CU_STREAM_PER_THREAD), OK);
            Ok(())
        });
        other.join().expect("no panic")?;
        expect!(cuStreamQuery(CU_STREAM_PER_THREAD), NOT_READY);
        latch.open();
        expect!(cuStreamSynchronize(CU_STREAM_PER_THREAD), OK);
        Ok(())
    });
    cases.solo("per_thread_and_legacy_wait_for_each_other", ANY, || {
        let event = create_event()?;
        let latch = Latch::hold(CU_STREAM_PER_THREAD)?;
        expect!(cuStreamQuery(0), NOT_READY);
        latch.open();
        sync_stream(0)?;
        let latch = Latch::hold(0)?;
        expect!(cuEventRecord(event, CU_STREAM_PER_THREAD), OK);
        moment();
        expect!(cuEventQuery(event), NOT_READY);
        latch.open();
        expect!(cuEventSynchronize(event), OK);
        destroy_event(event);
        Ok(())
    });
}

fn callbacks(cases: &mut Cases) {
    cases.solo("a_host_function_may_not_call", ANY, || {
        static ANSWER: AtomicI32 = AtomicI32::new(-1);
        unsafe extern "C" fn allocate(_: *mut c_void) {
            let mut address = 0;
            ANSWER.store(cuMemAlloc_v2(&mut address, 64).0, Ordering::SeqCst);
        }
        let stream = create_stream()?;
        expect!(cuLaunchHostFunc(stream, Some(allocate), null_mut()), OK);
        sync_stream(stream)?;
        expect!(
            CuResult(ANSWER.load(Ordering::SeqCst)),
            CuResult::NotPermitted
        );
        destroy_stream(stream);
        Ok(())
    });
    cases.solo("a_callback_is_told_its_stream", ANY, || {
        static ANSWER: Mutex<Option<(CuStream, CuResult, usize)>> = Mutex::new(None);
        unsafe extern "C" fn note(stream: CuStream, status: CuResult, data: *mut c_void) {
            *ANSWER.lock().expect("no panic") = Some((stream, status, data as usize));
        }
        let stream = create_stream()?;
        expect!(
            cuStreamAddCallback(stream, Some(note), 77 as *mut c_void, 0),
            OK
        );
        sync_stream(stream)?;
        expect!(*ANSWER.lock().expect("no panic"), Some((stream, OK, 77)));
        expect!(
            cuStreamAddCallback(stream, Some(note), null_mut(), 1),
            CuResult::InvalidValue
        );
        destroy_stream(stream);
        Ok(())
    });
}

/// Handles that were destroyed, or never were any: the driver crashes, the emulator says so.
fn gone(cases: &mut Cases) {
    type Call = fn(CuStream) -> CuResult;
    let calls: [(&str, Call); 14] = [
        ("query", cuStreamQuery),
        ("synchronize", cuStreamSynchronize),
        ("destroy", cuStreamDestroy_v2),
        ("get_flags", |stream| cuStreamGetFlags(stream, &mut 0)),
        ("get_priority", |stream| cuStreamGetPriority(stream, &mut 0)),
        ("get_ctx", |stream| cuStreamGetCtx(stream, &mut 0)),
        ("is_capturing", |stream| {
            cuStreamIsCapturing(stream, &mut CuStreamCaptureStatus(0))
        }),
        ("begin_capture", |stream| {
            cuStreamBeginCapture_v2(stream, CuStreamCaptureMode::Relaxed)
        }),
        ("end_capture", |stream| cuStreamEndCapture(stream, &mut 0)),
        ("host_function", |stream| {
            unsafe extern "C" fn nothing(_: *mut c_void) {}
            cuLaunchHostFunc(stream, Some(nothing), null_mut())
        }),
        ("wait_event", |stream| {
            let event = create_event().expect("a context is current");
            cuStreamWaitEvent(stream, event, 0)
        }),
        ("record", |stream| {
            cuEventRecord(create_event().expect("a context is current"), stream)
        }),
        ("memset", |stream| {
            let memory = mem_alloc(64).expect("a context is current");
            cuMemsetD8Async(memory, 1, 64, stream)
        }),
        ("memcpy", |stream| {
            let memory = mem_alloc(64).expect("a context is current");
            cuMemcpyHtoDAsync_v2(memory, [0u8; 64].as_ptr().cast(), 64, stream)
        }),
    ];
    for (name, call) in calls {
        cases.solo(&format!("destroyed::{name}"), EMULATOR, move || {
            let stream = create_stream()?;
            expect!(cuStreamDestroy_v2(stream), OK);
            for handle in [stream, 0xdead0, u64::MAX] {
                expect!(call(handle), CuResult::InvalidHandle);
            }
            Ok(())
        });
    }
    cases.solo("destroyed::all_reduce", EMULATOR, || {
        let (comm, stream, memory) = (alone(&NcclConfig::new())?, create_stream()?, mem_alloc(64)?);
        expect!(cuStreamDestroy_v2(stream), OK);
        let (from, to) = (memory as *const c_void, (memory + 32) as *mut c_void);
        let code = ncclAllReduce(
            from,
            to,
            4,
            NcclDataType::Int32,
            NcclRedOp::Sum,
            comm,
            stream,
        );
        expect!(code, NcclResult::UnhandledCudaError);
        expect!(ncclCommDestroy(comm), NcclResult::Success);
        Ok(())
    });
}
