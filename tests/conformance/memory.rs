//! Memory: its bounds, and what is copied and set.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use anyhow::{Result, ensure};

use crate::calls::*;
use crate::cases::Cases;
use crate::expect;
use crate::latch::Latch;
use crate::streams::moment;
use crate::team::alone;
use crate::world::{ANY, EMULATOR};

const OK: CuResult = CuResult::Success;
const BAD: CuResult = CuResult::InvalidValue;
const GARBAGE: CuDevicePtr = 0x123_4560;

pub fn add(cases: &mut Cases) {
    cases.subject("memory");
    allocate(cases);
    bounds(cases);
    copies(cases);
    pinned(cases);
    of_nccl(cases);
    registration(cases);
}

fn down<T: Copy + Default, const N: usize>(address: CuDevicePtr) -> Result<[T; N]> {
    let mut values = [T::default(); N];
    expect!(
        cuMemcpyDtoH_v2(values.as_mut_ptr().cast(), address, size_of_val(&values)),
        OK
    );
    Ok(values)
}

fn allocate(cases: &mut Cases) {
    cases.solo("allocate_nothing", ANY, || {
        let mut address = 7;
        expect!(cuMemAlloc_v2(&mut address, 0), BAD);
        expect!(address, 0);
        expect!(cuMemAlloc_v2(null_mut(), 4), BAD);
        Ok(())
    });
    cases.solo("allocate_too_much", ANY, || {
        let mut address = 0;
        expect!(cuMemAlloc_v2(&mut address, 1 << 50), CuResult::OutOfMemory);
        Ok(())
    });
    cases.solo("free", ANY, || {
        expect!(cuMemFree_v2(0), OK);
        expect!(cuMemFree_v2(GARBAGE), BAD);
        let memory = mem_alloc(1024)?;
        expect!(cuMemFree_v2(memory + 256), BAD);
        expect!(cuMemFree_v2(memory), OK);
        expect!(cuMemFree_v2(memory), BAD);
        Ok(())
    });
    cases.solo("free_waits_for_the_work", ANY, || {
        let (memory, stream, event) = (mem_alloc(64)?, create_stream()?, create_event()?);
        let latch = Latch::hold(stream)?;
        expect!(cuMemsetD8Async(memory, 1, 64, stream), OK);
        expect!(cuEventRecord(event, stream), OK);
        let opener = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            latch.open();
        });
        expect!(cuMemFree_v2(memory), OK);
        expect!(cuEventQuery(event), OK);
        opener.join().expect("no panic");
        destroy_stream(stream);
        Ok(())
    });
    cases.solo("allocations_do_not_overlap", ANY, || {
        let sizes = [1, 3, 64, 100, 4096, 1 << 20, 5, 1 << 21];
        let mut ranges = Vec::new();
        for size in sizes {
            let memory = mem_alloc(size)?;
            ensure!(memory % 256 == 0, "{memory:#x} is not aligned");
            ranges.push((memory, size as u64));
        }
        let mut sorted = ranges.clone();
        sorted.sort();
        ensure!(
            sorted
                .windows(2)
                .all(|pair| pair[0].0 + pair[0].1 <= pair[1].0),
            "{sorted:x?}"
        );
        for (memory, _) in ranges {
            expect!(cuMemFree_v2(memory), OK);
        }
        Ok(())
    });
    cases.solo("address_range", ANY, || {
        let memory = mem_alloc(4096)?;
        for inside in [0, 1, 100, 4095] {
            let (mut base, mut size) = (0, 0);
            expect!(
                cuMemGetAddressRange_v2(&mut base, &mut size, memory + inside),
                OK
            );
            expect!(base, memory);
            expect!(size, 4096);
        }
        expect!(cuMemFree_v2(memory), OK);
        Ok(())
    });
    cases.solo("info", ANY, || {
        let (mut free, mut total, mut whole) = (0, 0, 0);
        expect!(cuMemGetInfo_v2(&mut free, &mut total), OK);
        expect!(cuDeviceTotalMem_v2(&mut whole, 0), OK);
        ensure!(
            0 < free && free <= total && total <= whole,
            "{free} of {total} of {whole}"
        );
        Ok(())
    });
    cases.solo("in_the_order_of_a_stream", ANY, || {
        let (stream, mut memory) = (create_stream()?, 0);
        let mut back = [0u8; 64];
        expect!(cuMemAllocAsync(&mut memory, 64, stream), OK);
        expect!(cuMemsetD8Async(memory, 5, 64, stream), OK);
        expect!(
            cuMemcpyDtoHAsync_v2(back.as_mut_ptr().cast(), memory, 64, stream),
            OK
        );
        expect!(cuMemFreeAsync(memory, stream), OK);
        sync_stream(stream)?;
        expect!(back, [5; 64]);
        destroy_stream(stream);
        Ok(())
    });
    cases.solo("pointer_attributes", ANY, || {
        let memory = mem_alloc(64)?;
        let (mut kind, mut ordinal) = (CuMemoryType(0), -1);
        let ask =
            |data: *mut c_void, attribute, pointer| cuPointerGetAttribute(data, attribute, pointer);
        expect!(
            ask(
                (&raw mut kind).cast(),
                CuPointerAttribute::MemoryType,
                memory + 5
            ),
            OK
        );
        expect!(kind, CuMemoryType::Device);
        expect!(
            ask(
                (&raw mut ordinal).cast(),
                CuPointerAttribute::DeviceOrdinal,
                memory
            ),
            OK
        );
        expect!(ordinal, 0);
        expect!(
            ask(
                (&raw mut kind).cast(),
                CuPointerAttribute::MemoryType,
                GARBAGE
            ),
            BAD
        );
        expect!(cuMemFree_v2(memory), OK);
        Ok(())
    });
}

fn bounds(cases: &mut Cases) {
    cases.solo("copies_over_the_end", ANY, || {
        let memory = mem_alloc(1024)?;
        let mut host = vec![0u8; 8 << 20];
        let p: *mut c_void = host.as_mut_ptr().cast();
        expect!(cuMemcpyHtoD_v2(memory, p, 4096), BAD);
        expect!(cuMemcpyHtoDAsync_v2(memory, p, 4096, 0), BAD);
        expect!(cuMemcpyHtoD_v2(memory, p, 8 << 20), BAD);
        expect!(cuMemcpyDtoH_v2(p, memory, 4096), BAD);
        expect!(cuMemcpyDtoHAsync_v2(p, memory, 4096, 0), BAD);
        expect!(cuCtxSynchronize(), OK);
        expect!(cuMemcpyHtoD_v2(memory, p, 1024), OK);
        expect!(cuMemFree_v2(memory), OK);
        Ok(())
    });
    cases.solo("copies_between_over_the_end", ANY, || {
        let (small, large) = (mem_alloc(1024)?, mem_alloc(8 << 20)?);
        expect!(cuMemcpyDtoD_v2(small, large, 8 << 20), BAD);
        expect!(cuMemcpyDtoD_v2(large, small, 8 << 20), BAD);
        expect!(cuMemcpyDtoDAsync_v2(small, large, 8 << 20, 0), BAD);
        expect!(cuMemFree_v2(small), OK);
        expect!(cuMemFree_v2(large), OK);
        Ok(())
    });
    cases.solo("copies_of_nothing_and_of_null", ANY, || {
        let (memory, mut host) = (mem_alloc(1024)?, [0u8; 64]);
        let p: *mut c_void = host.as_mut_ptr().cast();
        expect!(cuMemcpyHtoD_v2(memory, p, 0), OK);
        expect!(cuMemcpyDtoH_v2(p, memory, 0), OK);
        expect!(cuMemcpyHtoD_v2(0, p, 4), BAD);
        expect!(cuMemcpyHtoD_v2(memory, null(), 4), BAD);
        expect!(cuMemcpyDtoH_v2(p, GARBAGE, 4), BAD);
        expect!(cuMemcpyHtoD_v2(GARBAGE, p, 4), BAD);
        expect!(cuMemFree_v2(memory), OK);
        Ok(())
    });
    cases.solo("copies_of_freed_memory", ANY, || {
        let (memory, mut host) = (mem_alloc(1 << 22)?, [0u8; 64]);
        expect!(cuMemFree_v2(memory), OK);
        expect!(cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), memory, 64), BAD);
        expect!(cuMemcpyHtoD_v2(memory, host.as_ptr().cast(), 64), BAD);
        Ok(())
    });
    cases.solo("sets_over_the_end", ANY, || {
        let memory = mem_alloc(1024)?;
        expect!(cuMemsetD8_v2(memory, 1, 1024), OK);
        expect!(cuMemsetD8_v2(memory, 1, 8 << 20), BAD);
        expect!(cuMemsetD32_v2(memory, 1, 2 << 20), BAD);
        expect!(cuMemsetD8_v2(GARBAGE, 1, 4), BAD);
        expect!(cuMemFree_v2(memory), OK);
        Ok(())
    });
    cases.solo("sets_of_unaligned_memory", ANY, || {
        let memory = mem_alloc(1024)?;
        expect!(cuMemsetD32_v2(memory + 1, 1, 1), BAD);
        expect!(cuMemsetD16_v2(memory + 1, 1, 1), BAD);
        expect!(cuMemsetD8_v2(memory + 1, 1, 1), OK);
        expect!(cuMemFree_v2(memory), OK);
        Ok(())
    });
}

fn copies(cases: &mut Cases) {
    cases.solo("there_and_back", ANY, || {
        let values: [u32; 1000] = std::array::from_fn(|i| (i * i) as u32);
        let (a, b) = (mem_alloc(4000)?, mem_alloc(4000)?);
        expect!(cuMemcpyHtoD_v2(a, values.as_ptr().cast(), 4000), OK);
        expect!(cuMemcpyDtoD_v2(b, a, 4000), OK);
        expect!(down::<u32, 1000>(b)?, values);
        expect!(cuMemcpy(a + 400, b, 400), OK);
        let got = down::<u32, 1000>(a)?;
        ensure!(got[100..200] == values[..100] && got[200..] == values[200..]);
        let mut odd = [0u8; 7];
        expect!(cuMemcpyDtoH_v2(odd.as_mut_ptr().cast(), b + 5, 7), OK);
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        ensure!(odd == bytes[5..12]);
        expect!(cuMemFree_v2(a), OK);
        expect!(cuMemFree_v2(b), OK);
        Ok(())
    });
    cases.solo("sets_of_each_width", ANY, || {
        let memory = mem_alloc(64)?;
        expect!(cuMemsetD8_v2(memory, 0xab, 64), OK);
        expect!(cuMemsetD16_v2(memory + 2, 0x1234, 3), OK);
        expect!(cuMemsetD32_v2(memory + 16, 0xdead_beef, 2), OK);
        let got = down::<u8, 64>(memory)?;
        expect!(
            got[..9],
            [0xab, 0xab, 0x34, 0x12, 0x34, 0x12, 0x34, 0x12, 0xab]
        );
        expect!(
            got[15..25],
            [0xab, 0xef, 0xbe, 0xad, 0xde, 0xef, 0xbe, 0xad, 0xde, 0xab]
        );
        ensure!(got[25..].iter().all(|&byte| byte == 0xab));
        expect!(cuMemFree_v2(memory), OK);
        Ok(())
    });
    cases.solo("on_a_stream", ANY, || {
        let (a, b, stream) = (mem_alloc(64)?, mem_alloc(64)?, create_stream()?);
        let mut host = [0u16; 32];
        expect!(cuMemsetD16Async(a, 0x0102, 32, stream), OK);
        expect!(cuMemsetD8Async(a, 0xff, 2, stream), OK);
        expect!(cuMemcpyDtoDAsync_v2(b, a, 64, stream), OK);
        expect!(cuMemsetD32Async(b + 4, 7, 1, stream), OK);
        expect!(cuMemcpyAsync(a, b, 64, stream), OK);
        expect!(
            cuMemcpyDtoHAsync_v2(host.as_mut_ptr().cast(), a, 64, stream),
            OK
        );
        sync_stream(stream)?;
        expect!(host[..5], [0xffff, 0x0102, 7, 0, 0x0102]);
        expect!(cuMemFree_v2(a), OK);
        expect!(cuMemFree_v2(b), OK);
        destroy_stream(stream);
        Ok(())
    });
    // What is pageable is read before the call returns.
    cases.solo("the_source_may_change_after_the_call", ANY, || {
        let (memory, stream) = (mem_alloc(64)?, create_stream()?);
        let mut host = [1u8; 64];
        expect!(
            cuMemcpyHtoDAsync_v2(memory, host.as_ptr().cast(), 64, stream),
            OK
        );
        host.fill(2);
        sync_stream(stream)?;
        expect!(down::<u8, 64>(memory)?, [1; 64]);
        ensure!(host == [2; 64]);
        expect!(cuMemFree_v2(memory), OK);
        destroy_stream(stream);
        Ok(())
    });
    cases.solo("between_devices", ANY.devices(2), || {
        let first = current_context()?;
        let a = mem_alloc(64)?;
        expect!(cuMemsetD8_v2(a, 9, 64), OK);
        expect!(cuCtxSynchronize(), OK);
        let second = use_device(1)?;
        let (b, stream) = (mem_alloc(64)?, create_stream()?);
        expect!(cuMemcpyPeer(b, second, a, first, 64), OK);
        expect!(down::<u8, 64>(b)?, [9; 64]);
        expect!(cuMemsetD8_v2(b, 4, 64), OK);
        expect!(cuCtxSynchronize(), OK);
        expect!(cuMemcpyPeerAsync(a, first, b, second, 64, stream), OK);
        sync_stream(stream)?;
        expect!(down::<u8, 64>(a)?, [4; 64]);
        expect!(cuMemcpyDtoD_v2(b, a, 64), OK);
        expect!(cuMemFree_v2(b), OK);
        expect!(cuMemFree_v2(a), OK);
        Ok(())
    });
}

fn pinned(cases: &mut Cases) {
    cases.solo("pinned", ANY, || {
        let mut memory = null_mut();
        expect!(cuMemAllocHost_v2(&mut memory, 4096), OK);
        let (mut kind, mut device) = (CuMemoryType(0), 0);
        let address = memory as CuDevicePtr;
        let code = cuPointerGetAttribute(
            (&raw mut kind).cast(),
            CuPointerAttribute::MemoryType,
            address,
        );
        expect!(code, OK);
        expect!(kind, CuMemoryType::Host);
        expect!(cuMemHostGetDevicePointer_v2(&mut device, memory, 0), OK);
        expect!(device, address);
        expect!(cuMemFreeHost(memory), OK);
        Ok(())
    });
    cases.solo("pinned_by_flags", ANY, || {
        for flags in [0, CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_DEVICEMAP, 3] {
            let mut memory = null_mut();
            expect!(cuMemHostAlloc(&mut memory, 100, flags), OK);
            ensure!(!memory.is_null());
            expect!(cuMemFreeHost(memory), OK);
        }
        let mut memory = null_mut();
        expect!(cuMemHostAlloc(&mut memory, 100, 0x100), BAD);
        expect!(cuMemHostAlloc(null_mut(), 100, 0), BAD);
        Ok(())
    });
    // Copies of pinned memory are as asynchronous as any work.
    cases.solo("pinned_is_read_when_the_stream_comes_to_it", ANY, || {
        let (memory, stream, mut host) = (mem_alloc(64)?, create_stream()?, null_mut());
        expect!(cuMemAllocHost_v2(&mut host, 64), OK);
        // SAFETY: 64 bytes of the host's, which nothing else uses.
        let fill = |byte| unsafe { std::ptr::write_bytes(host.cast::<u8>(), byte, 64) };
        fill(1);
        let latch = Latch::hold(stream)?;
        expect!(cuMemcpyHtoDAsync_v2(memory, host, 64, stream), OK);
        moment();
        fill(2);
        latch.open();
        sync_stream(stream)?;
        expect!(down::<u8, 64>(memory)?, [2; 64]);
        expect!(cuMemFree_v2(memory), OK);
        expect!(cuMemFreeHost(host), OK);
        destroy_stream(stream);
        Ok(())
    });
    cases.solo("pinned_is_written_when_the_stream_comes_to_it", ANY, || {
        let (memory, stream, mut host) = (mem_alloc(64)?, create_stream()?, null_mut());
        expect!(cuMemAllocHost_v2(&mut host, 64), OK);
        let bytes = host.cast::<u8>();
        // SAFETY: as above.
        unsafe { std::ptr::write_bytes(bytes, 1, 64) };
        expect!(cuMemsetD8Async(memory, 2, 64, stream), OK);
        sync_stream(stream)?;
        let latch = Latch::hold(stream)?;
        expect!(cuMemcpyDtoHAsync_v2(host, memory, 64, stream), OK);
        moment();
        // SAFETY: the stream is held, so that nothing writes.
        expect!(unsafe { bytes.read_volatile() }, 1);
        latch.open();
        sync_stream(stream)?;
        // SAFETY: the copy is done.
        expect!(unsafe { bytes.read_volatile() }, 2);
        expect!(cuMemFree_v2(memory), OK);
        expect!(cuMemFreeHost(host), OK);
        destroy_stream(stream);
        Ok(())
    });
    cases.solo("host_memory_is_pinned_and_let_go", ANY, || {
        let mut host = vec![3u8; 3 * 4096];
        let p: *mut c_void = host.as_mut_ptr().cast();
        expect!(cuMemHostRegister_v2(p, host.len(), 0), OK);
        let memory = mem_alloc(64)?;
        expect!(cuMemcpyHtoD_v2(memory, p, 64), OK);
        expect!(down::<u8, 64>(memory)?, [3; 64]);
        expect!(cuMemHostUnregister(p), OK);
        expect!(cuMemFree_v2(memory), OK);
        Ok(())
    });
}

/// What NCCL itself allocates.
fn of_nccl(cases: &mut Cases) {
    let need = ANY.calls("ncclMemAlloc");
    cases.solo("nccl::allocate_nothing", need, || {
        let mut memory = 7 as *mut c_void;
        expect!(ncclMemAlloc(&mut memory, 0), NcclResult::Success);
        expect!(memory, null_mut());
        Ok(())
    });
    cases.solo("nccl::rounded_up", need, || {
        for (asked, size) in [(1, 2 << 20), (2 << 20, 2 << 20), ((2 << 20) + 1, 4 << 20)] {
            let (mut memory, mut base, mut range) = (null_mut(), 0, 0usize);
            expect!(ncclMemAlloc(&mut memory, asked), NcclResult::Success);
            expect!(
                cuMemGetAddressRange_v2(&mut base, &mut range, memory as u64),
                OK
            );
            expect!((base, range), (memory as u64, size));
            expect!(cuMemsetD8_v2(memory as u64, 1, size), OK);
            expect!(cuCtxSynchronize(), OK);
            expect!(ncclMemFree(memory), NcclResult::Success);
        }
        Ok(())
    });
    cases.solo("nccl::free", need, || {
        expect!(ncclMemFree(null_mut()), NcclResult::Success);
        expect!(
            ncclMemFree(GARBAGE as *mut c_void),
            NcclResult::UnhandledCudaError
        );
        Ok(())
    });
    cases.solo("nccl::refuses", need, || {
        let mut memory = null_mut();
        expect!(ncclMemAlloc(null_mut(), 64), NcclResult::UnhandledCudaError);
        expect!(
            ncclMemAlloc(&mut memory, 1 << 50),
            NcclResult::UnhandledCudaError
        );
        Ok(())
    });
    cases.bare("nccl::twice_freed", EMULATOR, || {
        use_device(0)?;
        let mut memory = null_mut();
        expect!(ncclMemAlloc(&mut memory, 64), NcclResult::Success);
        expect!(ncclMemFree(memory), NcclResult::Success);
        expect!(ncclMemFree(memory), NcclResult::UnhandledCudaError);
        Ok(())
    });
}

fn registration(cases: &mut Cases) {
    let need = ANY.calls("ncclCommRegister");
    cases.subject("registration");
    cases.team(1, "null_comm", need, |_| {
        let mut handle = 7 as *mut c_void;
        expect!(
            ncclCommRegister(null_mut(), null_mut(), 64, &mut handle),
            NcclResult::InvalidArgument
        );
        expect!(
            ncclCommDeregister(null_mut(), null_mut()),
            NcclResult::InvalidArgument
        );
        expect!(
            ncclCommDeregister(null_mut(), handle),
            NcclResult::InvalidArgument
        );
        Ok(())
    });
    cases.solo("counted", need, || {
        let (comm, memory) = (alone(&NcclConfig::new())?, mem_alloc(1 << 21)?);
        let p = memory as *mut c_void;
        let (mut first, mut second) = (7 as *mut c_void, null_mut());
        expect!(
            ncclCommRegister(comm, p, 1 << 21, &mut first),
            NcclResult::Success
        );
        ensure!(!first.is_null() && first as usize != 7);
        // A part of it is the same.
        expect!(
            ncclCommRegister(comm, p, 1 << 20, &mut second),
            NcclResult::Success
        );
        expect!(second, first);
        expect!(ncclCommDeregister(comm, first), NcclResult::Success);
        expect!(ncclCommDeregister(comm, first), NcclResult::Success);
        expect!(ncclCommDeregister(comm, first), NcclResult::InvalidUsage);
        expect!(ncclCommDeregister(comm, null_mut()), NcclResult::Success);
        expect!(ncclCommDestroy(comm), NcclResult::Success);
        expect!(cuMemFree_v2(memory), OK);
        Ok(())
    });
    // 2.28 takes it, and gives a handle.
    cases.solo("of_host_memory", need.nccl(32), || {
        let comm = alone(&NcclConfig::new())?;
        let mut host = vec![0u8; 4096];
        let mut handle = 7 as *mut c_void;
        let code = ncclCommRegister(comm, host.as_mut_ptr().cast(), 4096, &mut handle);
        expect!(code, NcclResult::UnhandledCudaError);
        expect!(handle as usize, 7);
        expect!(ncclCommDestroy(comm), NcclResult::Success);
        Ok(())
    });
    cases.solo("of_nothing", need, || {
        let (comm, memory) = (alone(&NcclConfig::new())?, mem_alloc(1 << 21)?);
        let mut handle = null_mut();
        expect!(
            ncclCommRegister(comm, memory as *mut c_void, 0, &mut handle),
            NcclResult::Success
        );
        expect!(ncclCommDestroy(comm), NcclResult::Success);
        expect!(cuMemFree_v2(memory), OK);
        Ok(())
    });
    cases.solo("ends_with_the_communicator", need, || {
        let (comm, memory) = (alone(&NcclConfig::new())?, mem_alloc(1 << 21)?);
        let mut handle = null_mut();
        expect!(
            ncclCommRegister(comm, memory as *mut c_void, 1 << 21, &mut handle),
            NcclResult::Success
        );
        expect!(ncclCommDestroy(comm), NcclResult::Success);
        expect!(cuMemFree_v2(memory), OK);
        Ok(())
    });
    cases.team(2, "registered_memory_in_a_collective", need, |rank| {
        let (buffer, mut handle) = (rank.upload(&[rank.rank + 1; 1024])?, null_mut());
        let p = buffer.ptr();
        expect!(
            ncclCommRegister(rank.comm, p, 4096, &mut handle),
            NcclResult::Success
        );
        rank.meet()?;
        let code = ncclAllReduce(
            p,
            p,
            1024,
            NcclDataType::Int32,
            NcclRedOp::Sum,
            rank.comm,
            rank.stream,
        );
        expect!(code, NcclResult::Success);
        expect!(rank.read::<i32>(buffer)?, [3; 1024]);
        rank.meet()?;
        expect!(ncclCommDeregister(rank.comm, handle), NcclResult::Success);
        rank.meet()
    });
}
