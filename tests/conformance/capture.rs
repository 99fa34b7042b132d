//! Streams captured into graphs, and graphs launched again, with collectives inside.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, ensure};

use crate::calls::*;
use crate::cases::Cases;
use crate::expect;
use crate::latch::Latch;
use crate::team::{Buffer, Rank};
use crate::world::ANY;

const OK: CuResult = CuResult::Success;
const DONE: NcclResult = NcclResult::Success;
const THREAD_LOCAL: CuStreamCaptureMode = CuStreamCaptureMode::ThreadLocal;

/// What `work` enqueues on `stream`, as a graph that can be launched.
fn graph(stream: CuStream, work: impl FnOnce() -> Result<()>) -> Result<CuGraphExec> {
    let (mut graph, mut exec) = (0, 0);
    expect!(cuStreamBeginCapture_v2(stream, THREAD_LOCAL), OK);
    work()?;
    expect!(cuStreamEndCapture(stream, &mut graph), OK);
    ensure!(graph != 0);
    expect!(cuGraphInstantiateWithFlags(&mut exec, graph, 0), OK);
    expect!(cuGraphDestroy(graph), OK);
    Ok(exec)
}

/// As [`graph`], of every rank: none launches while another still makes its own, for which the device
/// may have to be idle.
fn graph_of_all(rank: &Rank, work: impl FnOnce() -> Result<()>) -> Result<CuGraphExec> {
    rank.meet()?;
    let exec = graph(rank.stream, work)?;
    expect!(cuGraphUpload(exec, rank.stream), OK);
    rank.wait()?;
    rank.meet()?;
    Ok(exec)
}

fn sum(rank: &Rank, comm: NcclComm, from: Buffer, to: Buffer, stream: CuStream) -> NcclResult {
    let (count, int32) = (from.bytes / 4, NcclDataType::Int32);
    ncclAllReduce(
        from.ptr(),
        to.ptr(),
        count,
        int32,
        NcclRedOp::Sum,
        if comm.is_null() { rank.comm } else { comm },
        stream,
    )
}

fn status(stream: CuStream) -> Result<CuStreamCaptureStatus> {
    let mut status = CuStreamCaptureStatus(7);
    expect!(cuStreamIsCapturing(stream, &mut status), OK);
    Ok(status)
}

pub fn add(cases: &mut Cases) {
    cases.subject("capture");
    streams(cases);
    replay(cases);
    collectives(cases);
}

fn streams(cases: &mut Cases) {
    let not_while = CuResult::StreamCaptureUnsupported;
    let spoilt = CuResult::StreamCaptureInvalidated;
    cases.solo("a_query_spoils_it", ANY, move || {
        let (stream, mut graph) = (create_stream()?, 7);
        expect!(
            cuStreamBeginCapture_v2(stream, CuStreamCaptureMode::Relaxed),
            OK
        );
        expect!(cuStreamQuery(stream), not_while);
        expect!(status(stream)?, CuStreamCaptureStatus::Invalidated);
        expect!(cuStreamEndCapture(stream, &mut graph), spoilt);
        expect!(graph, 0);
        expect!(cuStreamQuery(stream), OK);
        destroy_stream(stream);
        Ok(())
    });
    cases.solo("a_synchronize_spoils_it", ANY, move || {
        let (stream, mut graph) = (create_stream()?, 7);
        expect!(
            cuStreamBeginCapture_v2(stream, CuStreamCaptureMode::Relaxed),
            OK
        );
        expect!(cuStreamSynchronize(stream), not_while);
        expect!(cuStreamEndCapture(stream, &mut graph), spoilt);
        expect!(graph, 0);
        destroy_stream(stream);
        Ok(())
    });
    cases.child(
        "nothing_is_allocated_in_the_global_mode",
        ANY,
        &[],
        move || {
            use_device(0)?;
            let (stream, mut graph, mut memory) = (create_stream()?, 7, 0);
            expect!(
                cuStreamBeginCapture_v2(stream, CuStreamCaptureMode::Global),
                OK
            );
            expect!(cuMemAlloc_v2(&mut memory, 64), not_while);
            expect!(cuStreamEndCapture(stream, &mut graph), spoilt);
            expect!(graph, 0);
            Ok(())
        },
    );
    cases.solo("begun_twice_and_ended_twice", ANY, || {
        let (stream, mut graph) = (create_stream()?, 0);
        expect!(status(stream)?, CuStreamCaptureStatus::None);
        expect!(
            cuStreamEndCapture(stream, &mut graph),
            CuResult::IllegalState
        );
        expect!(cuStreamBeginCapture_v2(stream, THREAD_LOCAL), OK);
        expect!(
            cuStreamBeginCapture_v2(stream, THREAD_LOCAL),
            CuResult::IllegalState
        );
        expect!(status(stream)?, CuStreamCaptureStatus::Active);
        expect!(cuStreamEndCapture(stream, &mut graph), OK);
        expect!(status(stream)?, CuStreamCaptureStatus::None);
        expect!(cuStreamEndCapture(stream, &mut 0), CuResult::IllegalState);
        expect!(cuGraphDestroy(graph), OK);
        destroy_stream(stream);
        Ok(())
    });
    cases.solo("not_the_legacy_stream", ANY, move || {
        for stream in [0, CU_STREAM_LEGACY] {
            for mode in [
                CuStreamCaptureMode::Global,
                THREAD_LOCAL,
                CuStreamCaptureMode::Relaxed,
            ] {
                expect!(cuStreamBeginCapture_v2(stream, mode), not_while);
            }
        }
        Ok(())
    });
    cases.solo("an_event_of_a_capture", ANY, || {
        let (stream, event) = (create_stream()?, create_event()?);
        expect!(
            cuStreamBeginCapture_v2(stream, CuStreamCaptureMode::Relaxed),
            OK
        );
        expect!(cuEventRecord(event, stream), OK);
        expect!(cuEventQuery(event), CuResult::CapturedEvent);
        // Of the end nothing is known but that it ends.
        let _ = cuStreamEndCapture(stream, &mut 0);
        expect!(status(stream)?, CuStreamCaptureStatus::None);
        destroy_stream(stream);
        Ok(())
    });
    cases.solo("synchronizing_an_event_of_a_capture", ANY, move || {
        let (stream, event) = (create_stream()?, create_event()?);
        expect!(
            cuStreamBeginCapture_v2(stream, CuStreamCaptureMode::Relaxed),
            OK
        );
        expect!(cuEventRecord(event, stream), OK);
        expect!(cuEventQuery(event), CuResult::CapturedEvent);
        expect!(cuEventSynchronize(event), CuResult::InvalidValue);
        expect!(cuStreamSynchronize(stream), not_while);
        let _ = cuStreamEndCapture(stream, &mut 0);
        expect!(cuStreamQuery(stream), OK);
        destroy_stream(stream);
        Ok(())
    });
    cases.solo("an_empty_one", ANY, || {
        let stream = create_stream()?;
        let exec = graph(stream, || Ok(()))?;
        expect!(cuGraphLaunch(exec, stream), OK);
        sync_stream(stream)?;
        expect!(cuGraphExecDestroy(exec), OK);
        destroy_stream(stream);
        Ok(())
    });
}

fn replay(cases: &mut Cases) {
    cases.solo("runs_when_it_is_launched", ANY, || {
        let (stream, memory) = (create_stream()?, mem_alloc(64)?);
        let look = || -> Result<u8> {
            let (mut bytes, side) = ([0u8; 64], create_stream()?);
            expect!(
                cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), memory, 64, side),
                OK
            );
            sync_stream(side)?;
            destroy_stream(side);
            ensure!(bytes == [bytes[0]; 64]);
            Ok(bytes[0])
        };
        expect!(cuMemsetD8_v2(memory, 1, 64), OK);
        expect!(cuCtxSynchronize(), OK);
        let exec = graph(stream, || {
            expect!(cuMemsetD8Async(memory, 3, 64, stream), OK);
            Ok(())
        })?;
        expect!(look()?, 1);
        expect!(cuGraphLaunch(exec, stream), OK);
        sync_stream(stream)?;
        expect!(look()?, 3);
        expect!(cuMemsetD8Async(memory, 4, 64, stream), OK);
        expect!(cuGraphUpload(exec, stream), OK);
        expect!(cuGraphLaunch(exec, stream), OK);
        sync_stream(stream)?;
        expect!(look()?, 3);
        expect!(cuGraphExecDestroy(exec), OK);
        expect!(cuMemFree_v2(memory), OK);
        destroy_stream(stream);
        Ok(())
    });
    cases.solo("in_order_and_as_often_as_launched", ANY, || {
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        unsafe extern "C" fn count(step: *mut c_void) {
            // Steps 1, 2, 3 of each launch, in that order.
            let before = CALLS.fetch_add(1, Ordering::SeqCst);
            if before % 3 + 1 != step as usize {
                CALLS.store(1_000_000, Ordering::SeqCst);
            }
        }
        let stream = create_stream()?;
        let exec = graph(stream, || {
            for step in 1..=3 {
                expect!(
                    cuLaunchHostFunc(stream, Some(count), step as *mut c_void),
                    OK
                );
            }
            Ok(())
        })?;
        expect!(CALLS.load(Ordering::SeqCst), 0);
        for _ in 0..10 {
            expect!(cuGraphLaunch(exec, stream), OK);
        }
        sync_stream(stream)?;
        expect!(CALLS.load(Ordering::SeqCst), 30);
        expect!(cuGraphExecDestroy(exec), OK);
        destroy_stream(stream);
        Ok(())
    });
    cases.solo("launched_on_another_stream", ANY, || {
        let (stream, other, memory) = (create_stream()?, create_stream()?, mem_alloc(4)?);
        let exec = graph(stream, || {
            expect!(cuMemsetD32Async(memory, 6, 1, stream), OK);
            Ok(())
        })?;
        let latch = Latch::hold(other)?;
        expect!(cuGraphLaunch(exec, other), OK);
        expect!(cuStreamQuery(other), CuResult::NotReady);
        expect!(cuStreamQuery(stream), OK);
        latch.open();
        sync_stream(other)?;
        let mut word = 0u32;
        expect!(cuMemcpyDtoH_v2((&raw mut word).cast(), memory, 4), OK);
        expect!(word, 6);
        expect!(cuGraphExecDestroy(exec), OK);
        expect!(cuMemFree_v2(memory), OK);
        Ok(())
    });
    // Two streams become one graph by events, and come together again.
    cases.solo("forked_and_joined", ANY, || {
        let (main, side) = (create_stream()?, create_stream()?);
        let (a, b) = (mem_alloc(4)?, mem_alloc(4)?);
        let (fork, join) = (create_event()?, create_event()?);
        let exec = graph(main, || {
            expect!(cuMemsetD32Async(a, 1, 1, main), OK);
            expect!(cuEventRecord(fork, main), OK);
            expect!(cuStreamWaitEvent(side, fork, 0), OK);
            expect!(status(side)?, CuStreamCaptureStatus::Active);
            expect!(cuMemcpyDtoDAsync_v2(b, a, 4, side), OK);
            expect!(cuEventRecord(join, side), OK);
            expect!(cuStreamWaitEvent(main, join, 0), OK);
            expect!(cuMemsetD32Async(a, 2, 1, main), OK);
            Ok(())
        })?;
        expect!(status(side)?, CuStreamCaptureStatus::None);
        expect!(cuGraphLaunch(exec, main), OK);
        sync_stream(main)?;
        let mut words = [0u32; 2];
        expect!(cuMemcpyDtoH_v2(words.as_mut_ptr().cast(), a, 4), OK);
        expect!(cuMemcpyDtoH_v2(words[1..].as_mut_ptr().cast(), b, 4), OK);
        expect!(words, [2, 1]);
        expect!(cuGraphExecDestroy(exec), OK);
        expect!(cuMemFree_v2(a), OK);
        expect!(cuMemFree_v2(b), OK);
        Ok(())
    });
    cases.solo("counts_its_nodes", ANY, || {
        let (stream, memory, mut graph, mut nodes) = (create_stream()?, mem_alloc(64)?, 0, 0);
        expect!(cuStreamBeginCapture_v2(stream, THREAD_LOCAL), OK);
        for value in 0..3 {
            expect!(cuMemsetD8Async(memory, value, 64, stream), OK);
        }
        expect!(cuStreamEndCapture(stream, &mut graph), OK);
        expect!(cuGraphGetNodes(graph, null_mut(), &mut nodes), OK);
        expect!(nodes, 3);
        expect!(cuGraphDestroy(graph), OK);
        expect!(cuMemFree_v2(memory), OK);
        Ok(())
    });
}

fn collectives(cases: &mut Cases) {
    cases.team(1, "a_collective_of_one_rank", ANY, |rank| {
        let (from, to) = (rank.upload(&[1, 2])?, rank.blank(8)?);
        let exec = graph_of_all(rank, || {
            expect!(sum(rank, null_mut(), from, to, rank.stream), DONE);
            Ok(())
        })?;
        expect!(cuGraphLaunch(exec, rank.stream), OK);
        expect!(rank.read::<i32>(to)?, [1, 2]);
        expect!(cuGraphExecDestroy(exec), OK);
        Ok(())
    });
    for nranks in [2, 4, 8] {
        cases.team(
            nranks,
            &format!("a_collective_again_and_again::{nranks}"),
            ANY,
            |rank| {
                let buffer = rank.upload(&[1, 2])?;
                let exec = graph_of_all(rank, || {
                    expect!(sum(rank, null_mut(), buffer, buffer, rank.stream), DONE);
                    Ok(())
                })?;
                expect!(rank.read::<i32>(buffer)?, [1, 2]);
                for _ in 0..5 {
                    expect!(cuGraphLaunch(exec, rank.stream), OK);
                }
                let factor = rank.nranks.pow(5);
                expect!(rank.read::<i32>(buffer)?, [factor, 2 * factor]);
                rank.meet()?;
                expect!(cuGraphExecDestroy(exec), OK);
                rank.meet()
            },
        );
    }
    // What is in the buffers when it is launched counts.
    cases.team(2, "with_other_values", ANY, |rank| {
        let (from, to) = (rank.upload(&[0])?, rank.blank(4)?);
        let exec = graph_of_all(rank, || {
            expect!(sum(rank, null_mut(), from, to, rank.stream), DONE);
            Ok(())
        })?;
        for value in [3, 8, 20] {
            rank.fill(from, &[value])?;
            expect!(cuGraphLaunch(exec, rank.stream), OK);
            expect!(rank.read::<i32>(to)?, [2 * value]);
        }
        rank.meet()?;
        expect!(cuGraphExecDestroy(exec), OK);
        rank.meet()
    });
    cases.team(2, "between_other_work", ANY, |rank| {
        let (from, to) = (rank.blank(4)?, rank.blank(4)?);
        let exec = graph_of_all(rank, || {
            expect!(
                cuMemsetD32Async(from.address, rank.rank as u32 + 3, 1, rank.stream),
                OK
            );
            expect!(sum(rank, null_mut(), from, from, rank.stream), DONE);
            expect!(
                cuMemcpyDtoDAsync_v2(to.address, from.address, 4, rank.stream),
                OK
            );
            Ok(())
        })?;
        for _ in 0..3 {
            expect!(cuGraphLaunch(exec, rank.stream), OK);
            // And beside the graph, on the same stream.
            expect!(sum(rank, null_mut(), to, to, rank.stream), DONE);
            expect!(rank.read::<i32>(to)?, [14]);
        }
        rank.meet()?;
        expect!(cuGraphExecDestroy(exec), OK);
        rank.meet()
    });
    cases.team(2, "a_group", ANY, |rank| {
        let (all, mine, theirs) = (
            rank.upload(&[1])?,
            rank.upload(&[rank.rank])?,
            rank.blank(4)?,
        );
        let exec = graph_of_all(rank, || {
            expect!(ncclGroupStart(), DONE);
            expect!(sum(rank, null_mut(), all, all, rank.stream), DONE);
            let (peer, int32) = (1 - rank.rank, NcclDataType::Int32);
            expect!(
                ncclSend(mine.ptr(), 1, int32, peer, rank.comm, rank.stream),
                DONE
            );
            expect!(
                ncclRecv(theirs.ptr(), 1, int32, peer, rank.comm, rank.stream),
                DONE
            );
            expect!(ncclGroupEnd(), DONE);
            Ok(())
        })?;
        expect!(rank.read::<i32>(all)?, [1]);
        for factor in [2, 4] {
            expect!(cuGraphLaunch(exec, rank.stream), OK);
            expect!(rank.read::<i32>(all)?, [factor]);
            expect!(rank.read::<i32>(theirs)?, [1 - rank.rank]);
        }
        rank.meet()?;
        expect!(cuGraphExecDestroy(exec), OK);
        rank.meet()
    });
    cases.team(2, "on_a_forked_stream", ANY, |rank| {
        let (side, fork, join) = (create_stream()?, create_event()?, create_event()?);
        let (a, b) = (rank.upload(&[1])?, rank.upload(&[1])?);
        let exec = graph_of_all(rank, || {
            expect!(cuEventRecord(fork, rank.stream), OK);
            expect!(cuStreamWaitEvent(side, fork, 0), OK);
            expect!(sum(rank, null_mut(), a, a, side), DONE);
            expect!(sum(rank, null_mut(), b, b, rank.stream), DONE);
            expect!(cuEventRecord(join, side), OK);
            expect!(cuStreamWaitEvent(rank.stream, join, 0), OK);
            Ok(())
        })?;
        for factor in [2, 4, 8] {
            expect!(cuGraphLaunch(exec, rank.stream), OK);
            expect!(rank.read::<i32>(a)?, [factor]);
            expect!(rank.read::<i32>(b)?, [factor]);
        }
        rank.meet()?;
        expect!(cuGraphExecDestroy(exec), OK);
        destroy_stream(side);
        rank.meet()
    });
    cases.team(2, "of_two_communicators", ANY, |rank| {
        let other = rank.join(NcclConfig::new())?;
        let (a, b) = (rank.upload(&[1])?, rank.upload(&[10])?);
        let exec = graph_of_all(rank, || {
            expect!(sum(rank, null_mut(), a, a, rank.stream), DONE);
            expect!(sum(rank, other, b, b, rank.stream), DONE);
            Ok(())
        })?;
        expect!(cuGraphLaunch(exec, rank.stream), OK);
        expect!(rank.read::<i32>(a)?, [2]);
        expect!(rank.read::<i32>(b)?, [20]);
        rank.meet()?;
        // The graph holds the communicator, and goes first.
        expect!(cuGraphExecDestroy(exec), OK);
        rank.leave(other)
    });
    // Captured and not in one group: refused at the call that mixes them.
    cases.team(2, "not_mixed_in_a_group", ANY, |rank| {
        let comm = rank.join(NcclConfig::new())?;
        let (a, b, other) = (rank.upload(&[1])?, rank.upload(&[1])?, create_stream()?);
        expect!(cuStreamBeginCapture_v2(other, THREAD_LOCAL), OK);
        expect!(ncclGroupStart(), DONE);
        expect!(sum(rank, comm, a, a, rank.stream), DONE);
        expect!(sum(rank, comm, b, b, other), NcclResult::InvalidUsage);
        expect!(ncclGroupEnd(), NcclResult::InvalidUsage);
        let mut graph = 0;
        let _ = cuStreamEndCapture(other, &mut graph);
        expect!(rank.read::<i32>(a)?, [1]);
        destroy_stream(other);
        rank.abort(comm)
    });
}
