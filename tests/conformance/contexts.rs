//! Devices and contexts.

use std::collections::HashSet;
use std::ffi::CString;
use std::ptr::{null, null_mut};

use anyhow::{Result, ensure};

use crate::calls::*;
use crate::cases::Cases;
use crate::expect;
use crate::world::ANY;

const OK: CuResult = CuResult::Success;

pub fn add(cases: &mut Cases) {
    cases.subject("contexts");
    cases.child("before_cu_init", ANY, &[], || {
        let not_yet = CuResult::NotInitialized;
        let (mut number, mut stream, mut event, mut address, mut name) = (0, 0, 0, 0, null());
        expect!(cuDeviceGetCount(&mut number), not_yet);
        expect!(cuStreamCreate(&mut stream, 0), not_yet);
        expect!(cuEventCreate(&mut event, 0), not_yet);
        expect!(cuMemAlloc_v2(&mut address, 4), not_yet);
        expect!(cuStreamQuery(0), not_yet);
        expect!(cuDriverGetVersion(&mut number), OK);
        ensure!(number >= 12000, "{number}");
        expect!(cuGetErrorName(CuResult::IllegalAddress, &mut name), OK);
        expect!(c_text(name), c"CUDA_ERROR_ILLEGAL_ADDRESS");
        expect!(cuInit(0), OK);
        expect!(cuDeviceGetCount(&mut number), OK);
        Ok(())
    });
    cases.bare("without_one", ANY, || {
        let none = CuResult::InvalidContext;
        let (mut stream, mut event, mut address, mut context, mut device) = (0, 0, 0, 1, 0);
        expect!(cuStreamCreate(&mut stream, 0), none);
        expect!(cuStreamCreateWithPriority(&mut stream, 0, 0), none);
        expect!(cuEventCreate(&mut event, 0), none);
        expect!(cuMemAlloc_v2(&mut address, 4), none);
        expect!(cuStreamQuery(0), none);
        expect!(cuStreamSynchronize(0), none);
        expect!(cuCtxGetCurrent(&mut context), OK);
        expect!(context, 0);
        expect!(cuCtxGetDevice(&mut device), none);
        expect!(cuCtxSynchronize(), none);
        expect!(cuMemFree_v2(0), OK);
        Ok(())
    });
    cases.bare("no_such_device", ANY, || {
        let (mut device, mut context) = (7, 7);
        for ordinal in [99, -1, i32::MAX] {
            expect!(cuDeviceGet(&mut device, ordinal), CuResult::InvalidDevice);
        }
        expect!(cuDeviceGet(null_mut(), 0), CuResult::InvalidValue);
        expect!(
            cuDevicePrimaryCtxRetain(&mut context, 99),
            CuResult::InvalidDevice
        );
        expect!(cuInit(1), CuResult::InvalidValue);
        expect!(cuInit(0), OK);
        Ok(())
    });
    cases.bare("devices_describe_themselves", ANY, || {
        let count = device_count()?;
        let mut uuids = HashSet::new();
        for device in 0..count {
            let mut got = -1;
            expect!(cuDeviceGet(&mut got, device), OK);
            expect!(got, device);
            ensure!(!device_name(device)?.is_empty());
            ensure!(device_total_memory(device)? >= 1 << 30);
            ensure!(device_attribute(device, CuDeviceAttribute::ComputeCapabilityMajor)? >= 5);
            ensure!(device_attribute(device, CuDeviceAttribute::WarpSize)? == 32);
            ensure!(device_attribute(device, CuDeviceAttribute::UnifiedAddressing)? == 1);
            ensure!(
                uuids.insert(device_uuid(device)?.bytes),
                "two devices have one UUID"
            );
            let pci = CString::new(device_pci_bus_id(device)?)?;
            let mut found = -1;
            expect!(cuDeviceGetByPCIBusId(&mut found, pci.as_ptr()), OK);
            expect!(found, device);
            ensure!(!can_access_peer(device, device)?);
        }
        for code in [device_name(count), device_name(-1)] {
            let error = code.unwrap_err();
            let code = error.downcast_ref::<CudaError>().map(|error| error.code);
            expect!(code, Some(CuResult::InvalidDevice));
        }
        Ok(())
    });
    // The primary context is counted, and its streams go with it.
    cases.child("released_for_the_last_time", ANY, &[], || {
        init()?;
        let (mut first, mut second) = (0, 0);
        expect!(cuDevicePrimaryCtxRetain(&mut first, 0), OK);
        expect!(cuCtxSetCurrent(first), OK);
        expect!(cuDevicePrimaryCtxRetain(&mut second, 0), OK);
        expect!(second, first);
        expect!(cuDevicePrimaryCtxRelease_v2(0), OK);
        expect!(cuStreamQuery(0), OK);
        expect!(cuDevicePrimaryCtxRelease_v2(0), OK);
        expect!(cuDevicePrimaryCtxRelease_v2(0), CuResult::InvalidContext);
        expect!(cuStreamQuery(0), CuResult::ContextIsDestroyed);
        Ok(())
    });
    cases.child("active_while_it_is_retained", ANY, &[], || {
        init()?;
        let (mut flags, mut active, mut context) = (0, 7, 0);
        expect!(cuDevicePrimaryCtxGetState(0, &mut flags, &mut active), OK);
        expect!(active, 0);
        expect!(cuDevicePrimaryCtxRetain(&mut context, 0), OK);
        expect!(cuDevicePrimaryCtxGetState(0, &mut flags, &mut active), OK);
        expect!(active, 1);
        expect!(cuDevicePrimaryCtxRelease_v2(0), OK);
        expect!(cuDevicePrimaryCtxGetState(0, &mut flags, &mut active), OK);
        expect!(active, 0);
        Ok(())
    });
    cases.solo("as_a_stack", ANY, || {
        let (mine, mut context, mut stream) = (current_context()?, 0, 0);
        expect!(cuCtxPopCurrent_v2(&mut context), OK);
        expect!(context, mine);
        expect!(cuCtxPopCurrent_v2(&mut context), CuResult::InvalidContext);
        expect!(cuCtxPushCurrent_v2(mine), OK);
        expect!(current_context()?, mine);
        expect!(cuCtxSetCurrent(0), OK);
        expect!(cuStreamCreate(&mut stream, 0), CuResult::InvalidContext);
        expect!(cuCtxSetCurrent(mine), OK);
        let mut device = -1;
        expect!(cuCtxGetDevice(&mut device), OK);
        expect!(device, 0);
        Ok(())
    });
    cases.solo("two_deep", ANY.devices(2), || {
        let (first, mut context, mut device) = (current_context()?, 0, -1);
        let second = retain_primary_context(1)?;
        ensure!(second != first);
        expect!(cuCtxPushCurrent_v2(second), OK);
        expect!(cuCtxGetDevice(&mut device), OK);
        expect!(device, 1);
        expect!(cuCtxPopCurrent_v2(&mut context), OK);
        expect!(context, second);
        expect!(current_context()?, first);
        release_primary_context(1)
    });
    cases.solo("each_thread_has_its_own", ANY, || {
        std::thread::spawn(|| -> Result<()> {
            expect!(current_context()?, 0);
            Ok(())
        })
        .join()
        .expect("no panic")
    });
    // What needs no context on the thread that calls, and what does.
    cases.solo("a_stream_on_a_thread_without_one", ANY, || {
        let stream = create_stream()?;
        std::thread::spawn(move || -> Result<()> {
            let (mut event, mut address) = (0, 0);
            expect!(cuStreamQuery(stream), OK);
            expect!(cuEventCreate(&mut event, 2), CuResult::InvalidContext);
            expect!(cuStreamSynchronize(stream), OK);
            expect!(cuMemAlloc_v2(&mut address, 4), CuResult::InvalidContext);
            expect!(cuStreamDestroy_v2(stream), OK);
            Ok(())
        })
        .join()
        .expect("no panic")
    });
    cases.solo("a_stream_knows_its_own", ANY, || {
        let (stream, mut context) = (create_stream()?, 0);
        expect!(cuStreamGetCtx(stream, &mut context), OK);
        expect!(context, current_context()?);
        destroy_stream(stream);
        Ok(())
    });
}
