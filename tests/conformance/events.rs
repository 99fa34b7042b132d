//! Events.

use std::ptr::null_mut;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::calls::*;
use crate::cases::Cases;
use crate::expect;
use crate::latch::Latch;
use crate::streams::moment;
use crate::world::{ANY, EMULATOR};

const OK: CuResult = CuResult::Success;
const NOT_READY: CuResult = CuResult::NotReady;
const BAD_HANDLE: CuResult = CuResult::InvalidHandle;

pub fn add(cases: &mut Cases) {
    cases.subject("events");
    cases.solo("flags", ANY, || {
        let mut event = 0;
        // One for other processes cannot take the time.
        for bad in [0x100, 8, CU_EVENT_INTERPROCESS] {
            expect!(cuEventCreate(&mut event, bad), CuResult::InvalidValue);
        }
        for good in [0, CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING, 3] {
            expect!(cuEventCreate(&mut event, good), OK);
            expect!(cuEventDestroy_v2(event), OK);
        }
        expect!(cuEventCreate(null_mut(), 0), CuResult::InvalidValue);
        Ok(())
    });
    cases.solo("null", ANY, || {
        let stream = create_stream()?;
        expect!(cuEventRecord(0, 0), BAD_HANDLE);
        expect!(cuEventRecord(0, stream), BAD_HANDLE);
        expect!(cuEventQuery(0), BAD_HANDLE);
        expect!(cuEventSynchronize(0), BAD_HANDLE);
        expect!(cuEventDestroy_v2(0), BAD_HANDLE);
        expect!(cuStreamWaitEvent(0, 0, 0), BAD_HANDLE);
        expect!(cuStreamWaitEvent(stream, 0, 0), BAD_HANDLE);
        destroy_stream(stream);
        Ok(())
    });
    cases.solo("never_recorded", ANY, || {
        let (a, b, stream) = (
            create_timing_event()?,
            create_timing_event()?,
            create_stream()?,
        );
        let mut ms = 7.0;
        expect!(cuEventQuery(a), OK);
        expect!(cuEventSynchronize(a), OK);
        expect!(cuStreamWaitEvent(stream, a, 0), OK);
        expect!(cuStreamQuery(stream), OK);
        expect!(cuEventElapsedTime(&mut ms, a, b), BAD_HANDLE);
        expect!(cuEventRecord(a, stream), OK);
        expect!(cuEventSynchronize(a), OK);
        expect!(cuEventElapsedTime(&mut ms, a, b), BAD_HANDLE);
        expect!(cuEventElapsedTime(&mut ms, b, a), BAD_HANDLE);
        Ok(())
    });
    cases.solo("flags_of_a_wait", ANY, || {
        let (event, stream) = (create_event()?, create_stream()?);
        for bad in [5, 2, 0x100] {
            expect!(
                cuStreamWaitEvent(stream, event, bad),
                CuResult::InvalidValue
            );
        }
        Ok(())
    });
    cases.solo("elapsed_time", ANY, || {
        let (a, b, plain) = (
            create_timing_event()?,
            create_timing_event()?,
            create_event()?,
        );
        let stream = create_stream()?;
        let mut ms = 7.0;
        expect!(cuEventRecord(a, stream), OK);
        let latch = Latch::hold(stream)?;
        expect!(cuEventRecord(b, stream), OK);
        expect!(cuEventRecord(plain, stream), OK);
        expect!(cuEventElapsedTime(&mut ms, a, b), NOT_READY);
        std::thread::sleep(Duration::from_millis(30));
        latch.open();
        sync_stream(stream)?;
        expect!(cuEventElapsedTime(&mut ms, a, b), OK);
        ensure!((25.0..5000.0).contains(&ms), "{ms}");
        let forth = ms;
        expect!(cuEventElapsedTime(&mut ms, b, a), OK);
        expect!(ms, -forth);
        expect!(cuEventElapsedTime(&mut ms, a, a), OK);
        expect!(ms, 0.0);
        expect!(cuEventElapsedTime(&mut ms, a, plain), BAD_HANDLE);
        expect!(cuEventElapsedTime(&mut ms, plain, a), BAD_HANDLE);
        Ok(())
    });
    cases.solo("pending_then_done", ANY, || {
        let (event, stream) = (create_event()?, create_stream()?);
        let latch = Latch::hold(stream)?;
        expect!(cuEventRecord(event, stream), OK);
        expect!(cuEventQuery(event), NOT_READY);
        latch.open();
        expect!(cuEventSynchronize(event), OK);
        expect!(cuEventQuery(event), OK);
        Ok(())
    });
    cases.solo("stands_for_what_came_before_it", ANY, || {
        let (event, stream) = (create_event()?, create_stream()?);
        expect!(cuEventRecord(event, stream), OK);
        let latch = Latch::hold(stream)?;
        expect!(cuEventSynchronize(event), OK);
        expect!(cuStreamQuery(stream), NOT_READY);
        latch.open();
        sync_stream(stream)
    });
    // A wait keeps to the record that stood when it was enqueued.
    cases.solo("recorded_again", ANY, || {
        let (a, b) = (create_stream()?, create_stream()?);
        let (event, behind) = (create_event()?, create_event()?);
        expect!(cuEventRecord(event, a), OK);
        let latch = Latch::hold(a)?;
        expect!(cuStreamWaitEvent(b, event, 0), OK);
        expect!(cuEventRecord(event, a), OK);
        expect!(cuEventRecord(behind, b), OK);
        expect!(cuEventSynchronize(behind), OK);
        expect!(cuEventQuery(event), NOT_READY);
        latch.open();
        expect!(cuEventSynchronize(event), OK);
        Ok(())
    });
    cases.solo("a_wait_holds_the_stream_and_not_the_host", ANY, || {
        let (a, b, event) = (create_stream()?, create_stream()?, create_event()?);
        let memory = mem_alloc(4)?;
        expect!(cuMemsetD32Async(memory, 1, 1, b), OK);
        let latch = Latch::hold(a)?;
        expect!(cuMemsetD32Async(memory, 2, 1, a), OK);
        expect!(cuEventRecord(event, a), OK);
        expect!(cuStreamWaitEvent(b, event, 0), OK);
        expect!(cuMemsetD32Async(memory, 3, 1, b), OK);
        moment();
        expect!(cuStreamQuery(b), NOT_READY);
        latch.open();
        sync_stream(b)?;
        let mut word = 0u32;
        expect!(cuMemcpyDtoH_v2((&raw mut word).cast(), memory, 4), OK);
        expect!(word, 3);
        expect!(cuMemFree_v2(memory), OK);
        Ok(())
    });
    cases.solo("destroyed_while_it_is_waited_for", ANY, || {
        let (a, b, event) = (create_stream()?, create_stream()?, create_event()?);
        let latch = Latch::hold(a)?;
        expect!(cuEventRecord(event, a), OK);
        expect!(cuStreamWaitEvent(b, event, 0), OK);
        expect!(cuEventDestroy_v2(event), OK);
        moment();
        expect!(cuStreamQuery(b), NOT_READY);
        latch.open();
        sync_stream(b)
    });
    cases.solo("a_chain_over_many_streams", ANY, || {
        let memory = mem_alloc(4)?;
        let streams: Result<Vec<CuStream>> = (0..20).map(|_| create_stream()).collect();
        let streams = streams?;
        let latch = Latch::hold(streams[0])?;
        for (i, pair) in streams.windows(2).enumerate() {
            let event = create_event()?;
            expect!(cuMemsetD32Async(memory, i as u32, 1, pair[0]), OK);
            expect!(cuEventRecord(event, pair[0]), OK);
            expect!(cuStreamWaitEvent(pair[1], event, 0), OK);
            expect!(cuEventDestroy_v2(event), OK);
        }
        expect!(cuStreamQuery(streams[19]), NOT_READY);
        latch.open();
        sync_stream(streams[19])?;
        let mut word = 0u32;
        expect!(cuMemcpyDtoH_v2((&raw mut word).cast(), memory, 4), OK);
        expect!(word, 18);
        for stream in streams {
            destroy_stream(stream);
        }
        expect!(cuMemFree_v2(memory), OK);
        Ok(())
    });
    cases.solo("across_devices", ANY.devices(2), || {
        let (first, event) = (create_stream()?, create_event()?);
        use_device(1)?;
        let second = create_stream()?;
        expect!(cuEventRecord(event, second), BAD_HANDLE);
        let latch = Latch::hold(first)?;
        expect!(cuEventRecord(event, first), OK);
        expect!(cuStreamWaitEvent(second, event, 0), OK);
        moment();
        expect!(cuStreamQuery(second), NOT_READY);
        latch.open();
        sync_stream(second)?;
        expect!(cuEventQuery(event), OK);
        Ok(())
    });
    cases.solo("of_the_legacy_stream", ANY, || {
        let (event, blocking) = (create_event()?, {
            let mut stream = 0;
            expect!(cuStreamCreate(&mut stream, CU_STREAM_DEFAULT), OK);
            stream
        });
        let latch = Latch::hold(blocking)?;
        expect!(cuEventRecord(event, 0), OK);
        expect!(cuEventQuery(event), NOT_READY);
        latch.open();
        expect!(cuEventSynchronize(event), OK);
        destroy_stream(blocking);
        Ok(())
    });
    type Call = fn(CuEvent) -> CuResult;
    let calls: [(&str, Call); 6] = [
        ("query", cuEventQuery),
        ("synchronize", cuEventSynchronize),
        ("destroy", cuEventDestroy_v2),
        ("record", |event| cuEventRecord(event, 0)),
        ("wait", |event| cuStreamWaitEvent(0, event, 0)),
        ("elapsed_time", |event| {
            cuEventElapsedTime(&mut 0.0, event, event)
        }),
    ];
    for (name, call) in calls {
        cases.solo(&format!("destroyed::{name}"), EMULATOR, move || {
            let event = create_timing_event()?;
            expect!(cuEventRecord(event, 0), OK);
            expect!(cuEventDestroy_v2(event), OK);
            for handle in [event, 0xdead0, u64::MAX] {
                expect!(call(handle), BAD_HANDLE);
            }
            Ok(())
        });
    }
}
