//! What is the emulator's own on the driver's side: kernels in Rust, handles that are looked up,
//! threads that end, and orders that hold under load.

use std::ffi::{CStr, c_void};
use std::process::Command;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use metrale_gpu_sys::cuda::*;
use metrale_gpu_sys::emulator::register_kernel;

/// A code inside an error of this crate.
fn code<T: std::fmt::Debug>(result: anyhow::Result<T>) -> CuResult {
    let error = result.unwrap_err();
    error
        .downcast_ref::<CudaError>()
        .expect("a driver's code")
        .code
}

fn ok(result: CuResult) {
    assert_eq!(result, CuResult::Success);
}

fn function(name: &CStr) -> CuFunction {
    let (mut module, mut function) = (0, 0);
    // SAFETY: each out pointer takes what its call writes, and the image is not looked at.
    unsafe {
        ok(cuModuleLoadData(&mut module, c"".as_ptr().cast()));
        ok(cuModuleGetFunction(&mut function, module, name.as_ptr()));
    }
    function
}

/// # Safety
///
/// As `cuLaunchKernel`.
unsafe fn launch(
    function: CuFunction,
    stream: CuStream,
    parameters: &mut [*mut c_void],
) -> CuResult {
    let list = parameters.as_mut_ptr();
    // SAFETY: as the caller promises.
    unsafe { cuLaunchKernel(function, 2, 1, 1, 4, 1, 1, 16, stream, list, null_mut()) }
}

fn host_function(stream: CuStream, function: impl FnOnce() + Send + 'static) {
    unsafe extern "C" fn call(data: *mut c_void) {
        // SAFETY: made from such a box below, and called once.
        let function = unsafe { Box::from_raw(data.cast::<Box<dyn FnOnce() + Send>>()) };
        function();
    }
    let function: Box<Box<dyn FnOnce() + Send>> = Box::new(Box::new(function));
    let data = Box::into_raw(function).cast();
    // SAFETY: the box is taken by the one call.
    ok(unsafe { cuLaunchHostFunc(stream, Some(call), data) });
}

/// Keeps a stream busy until the answer is dropped.
fn hold(stream: CuStream) -> std::sync::mpsc::Sender<()> {
    let (gate, opened) = std::sync::mpsc::channel();
    host_function(stream, move || {
        let _ = opened.recv();
    });
    gate
}

#[test]
fn kernels_get_their_parameters_as_they_were_at_the_launch() {
    type Parameters = (u64, u32, u8, [f32; 3]);
    type Seen = (Parameters, [u32; 3], u32, u64);
    static SEEN: Mutex<Vec<Seen>> = Mutex::new(Vec::new());
    register_kernel("takes_four", &[8, 4, 1, 12], |launch| {
        // SAFETY: any bytes are valid numbers.
        let seen = unsafe {
            (
                launch.parameter::<u64>(0),
                launch.parameter::<u32>(1),
                launch.parameter::<u8>(2),
                launch.parameter::<[f32; 3]>(3),
            )
        };
        let shape = (launch.grid, launch.shared_bytes, launch.threads());
        SEEN.lock().unwrap().push((seen, shape.0, shape.1, shape.2));
    });
    use_device(0).unwrap();
    let stream = create_stream().unwrap();
    let function = function(c"takes_four");
    let (mut a, mut b, mut c, mut d) = (1u64 << 40, 7u32, 9u8, [1.0f32, 2.0, 3.0]);
    let mut list: [*mut c_void; 4] = [
        (&raw mut a).cast(),
        (&raw mut b).cast(),
        (&raw mut c).cast(),
        (&raw mut d).cast(),
    ];
    let gate = hold(stream);
    // SAFETY: the list holds a pointer to each parameter.
    ok(unsafe { launch(function, stream, &mut list) });
    (a, b) = (0, 0);
    // The same from one buffer: 8, 4 and 1 bytes, and the last at the next multiple of 4.
    let mut buffer = [0u8; 28];
    buffer[0] = 5;
    buffer[8] = 6;
    buffer[12] = 8;
    buffer[16..20].copy_from_slice(&4.0f32.to_ne_bytes());
    for (mut size, expected) in [
        (28usize, CuResult::Success),
        (27, CuResult::LaunchOutOfResources),
    ] {
        let mut extra: [*mut c_void; 5] = [
            CU_LAUNCH_PARAM_BUFFER_POINTER,
            buffer.as_mut_ptr().cast(),
            CU_LAUNCH_PARAM_BUFFER_SIZE,
            (&raw mut size).cast(),
            CU_LAUNCH_PARAM_END,
        ];
        let extra = extra.as_mut_ptr();
        // SAFETY: the list ends as it must, and the buffer holds as many bytes as it says.
        let result =
            unsafe { cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, null_mut(), extra) };
        assert_eq!(result, expected);
    }
    drop(gate);
    sync_stream(stream).unwrap();
    let seen = SEEN.lock().unwrap();
    let first = ((1 << 40, 7, 9, [1.0, 2.0, 3.0]), [2, 1, 1], 16, 8);
    let second = ((5, 6, 8, [4.0, 0.0, 0.0]), [1, 1, 1], 0, 1);
    assert_eq!(*seen, [first, second]);
    assert_eq!((a, b), (0, 0));
    destroy_stream(stream);
}

#[test]
fn launches_are_checked_as_the_driver_does() {
    register_kernel("checked", &[8], |_| {});
    use_device(0).unwrap();
    let stream = create_stream().unwrap();
    let checked = function(c"checked");
    let mut parameter = 0u64;
    let mut list: [*mut c_void; 1] = [(&raw mut parameter).cast()];
    let list = list.as_mut_ptr();
    let try_launch = |function, grid: [u32; 3], block: [u32; 3], shared, list| {
        let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
        // SAFETY: the list is null or holds a pointer to the one parameter.
        unsafe {
            cuLaunchKernel(
                function,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                shared,
                stream,
                list,
                null_mut(),
            )
        }
    };
    const ONE: [u32; 3] = [1; 3];
    let bad = [
        ([0, 1, 1], ONE, 0),
        (ONE, [1, 0, 1], 0),
        (ONE, [1025, 1, 1], 0),
        (ONE, [32, 32, 2], 0),
        (ONE, [1, 1, 65], 0),
        ([1, 65536, 1], ONE, 0),
        (ONE, ONE, (48 << 10) + 1),
    ];
    for (grid, block, shared) in bad {
        let result = try_launch(checked, grid, block, shared, list);
        assert_eq!(
            result,
            CuResult::InvalidValue,
            "{grid:?} {block:?} {shared}"
        );
    }
    ok(try_launch(
        checked,
        [i32::MAX as u32, 65535, 65535],
        [32, 32, 1],
        48 << 10,
        list,
    ));
    assert_eq!(
        try_launch(checked, ONE, ONE, 0, null_mut()),
        CuResult::InvalidValue
    );
    assert_eq!(try_launch(0, ONE, ONE, 0, list), CuResult::InvalidHandle);
    assert_eq!(
        try_launch(stream, ONE, ONE, 0, list),
        CuResult::InvalidHandle
    );
    let (mut module, mut found) = (0, 7);
    // SAFETY: each out pointer takes what its call writes; names end with a zero byte.
    unsafe {
        ok(cuModuleLoadData(&mut module, c"".as_ptr().cast()));
        let missing = cuModuleGetFunction(&mut found, module, c"nobody knows it".as_ptr());
        assert_eq!((missing, found), (CuResult::NotFound, 0));
        let mut again = 0;
        ok(cuModuleGetFunction(&mut found, module, c"checked".as_ptr()));
        ok(cuModuleGetFunction(&mut again, module, c"checked".as_ptr()));
        assert_eq!(found, again);
        ok(cuModuleUnload(module));
        assert_eq!(cuModuleUnload(module), CuResult::InvalidHandle);
    }
    assert_eq!(
        try_launch(found, ONE, ONE, 0, list),
        CuResult::InvalidHandle
    );
    sync_stream(stream).unwrap();
    destroy_stream(stream);
}

#[test]
fn a_kernel_that_panics_is_a_fault_that_stays() {
    register_kernel("panics", &[], |_| panic!("meant to"));
    // A device of its own, since its context is lost.
    use_device(7).unwrap();
    let (stream, other) = (create_stream().unwrap(), create_stream().unwrap());
    let event = create_event().unwrap();
    let memory = mem_alloc(64).unwrap();
    let function = function(c"panics");
    static CALLED: AtomicU32 = AtomicU32::new(0);
    static STATUS: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C" fn host(_: *mut c_void) {
        CALLED.fetch_add(1, Ordering::SeqCst);
    }
    unsafe extern "C" fn told(_: CuStream, status: CuResult, _: *mut c_void) {
        STATUS.store(status.0 as u32, Ordering::SeqCst);
    }
    let gate = hold(stream);
    // SAFETY: the kernel has no parameters, and the functions use none.
    unsafe {
        ok(launch(function, stream, &mut []));
        ok(cuLaunchHostFunc(stream, Some(host), null_mut()));
        ok(cuStreamAddCallback(stream, Some(told), null_mut(), 0));
    }
    drop(gate);
    const FAILED: CuResult = CuResult::LaunchFailed;
    assert_eq!(code(sync_stream(stream)), FAILED);
    assert_eq!(
        CALLED.load(Ordering::SeqCst),
        0,
        "host functions do not follow a fault"
    );
    assert_eq!(
        STATUS.load(Ordering::SeqCst),
        FAILED.0 as u32,
        "callbacks do"
    );
    assert_eq!(code(stream_ready(other)), FAILED);
    assert_eq!(code(event_ready(event)), FAILED);
    assert_eq!(code(create_stream()), FAILED);
    assert_eq!(code(create_event()), FAILED);
    assert_eq!(code(mem_alloc(64)), FAILED);
    assert_eq!(code(sync_context()), FAILED);
    assert_eq!(code(record_event(event, other)), FAILED);
    // SAFETY: nothing uses the memory.
    unsafe {
        assert_eq!(code(mem_free(memory)), FAILED);
        assert_eq!(code(memset_d8_async(memory, 0, 64, other)), FAILED);
        assert_eq!(cuStreamDestroy_v2(other), FAILED);
    }
    assert_ne!(current_context().unwrap(), 0);
    // The other devices work, and after a reset this one does too.
    use_device(6).unwrap();
    destroy_stream(create_stream().unwrap());
    // SAFETY: nothing of the context is used after this.
    ok(unsafe { cuDevicePrimaryCtxReset_v2(7) });
    use_device(7).unwrap();
    assert_eq!(code(stream_ready(stream)), CuResult::InvalidHandle);
    let stream = create_stream().unwrap();
    sync_stream(stream).unwrap();
    destroy_stream(stream);
}

#[test]
fn handles_that_are_gone_are_refused() {
    use_device(0).unwrap();
    let (stream, event) = (create_stream().unwrap(), create_event().unwrap());
    assert_eq!(code(record_event(stream, stream)), CuResult::InvalidHandle);
    assert_eq!(code(sync_stream(event)), CuResult::InvalidHandle);
    destroy_stream(stream);
    destroy_event(event);
    let live = create_stream().unwrap();
    for gone in [stream, 0xdead0, u64::MAX] {
        assert_eq!(code(stream_ready(gone)), CuResult::InvalidHandle);
        // SAFETY: nothing is behind the handle.
        assert_eq!(unsafe { cuStreamDestroy_v2(gone) }, CuResult::InvalidHandle);
    }
    for gone in [event, 0xdead0, u64::MAX] {
        assert_eq!(code(event_ready(gone)), CuResult::InvalidHandle);
        assert_eq!(code(stream_wait_event(live, gone)), CuResult::InvalidHandle);
        // SAFETY: nothing is behind the handle.
        assert_eq!(unsafe { cuEventDestroy_v2(gone) }, CuResult::InvalidHandle);
    }
    for gone in [0xdead0, u64::MAX, live] {
        // SAFETY: nothing is behind the handle.
        unsafe {
            assert_eq!(cuGraphDestroy(gone), CuResult::InvalidValue);
            assert_eq!(cuGraphExecDestroy(gone), CuResult::InvalidValue);
            assert_eq!(cuGraphLaunch(gone, live), CuResult::InvalidValue);
            assert_eq!(cuModuleUnload(gone), CuResult::InvalidHandle);
            assert_eq!(cuCtxSetCurrent(gone), CuResult::InvalidContext);
        }
    }
    destroy_stream(live);
}

/// How many threads of this process have the name.
fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|found| found.trim() == name).count()
}

#[test]
fn streams_take_their_threads_with_them() {
    // In a process of its own, where no other test makes streams.
    let counted = run_alone("child_counts_threads", &[]);
    assert!(counted.contains("32 then 0"), "{counted}");
}

#[test]
#[ignore = "part of streams_take_their_threads_with_them"]
fn child_counts_threads() {
    const NAME: &str = "metrale stream";
    use_device(0).unwrap();
    let streams: Vec<CuStream> = (0..32).map(|_| create_stream().unwrap()).collect();
    let (gate, opened) = std::sync::mpsc::channel::<()>();
    let opened = Arc::new(Mutex::new(opened));
    for &stream in &streams {
        let opened = opened.clone();
        host_function(stream, move || {
            let _ = opened.lock().unwrap().recv();
        });
    }
    let start = Instant::now();
    let wait_for = |count| {
        // A thread takes its name, and its leave, a moment later.
        while threads(NAME) != count && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(1));
        }
        threads(NAME)
    };
    let busy = wait_for(streams.len());
    // Destroyed while they work: the work is done all the same.
    let event = create_event().unwrap();
    record_event(event, streams[31]).unwrap();
    streams.iter().copied().for_each(destroy_stream);
    assert!(!event_ready(event).unwrap());
    drop(gate);
    sync_event(event).unwrap();
    sync_context().unwrap();
    assert_eq!(wait_for(0), 0);
    // A thread's own stream goes with the thread.
    std::thread::spawn(|| {
        use_device(0).unwrap();
        host_function(CU_STREAM_PER_THREAD, || {});
    })
    .join()
    .unwrap();
    sync_context().unwrap();
    println!("{busy} then {}", wait_for(0));
}

/// Runs one ignored test of this file in a process of its own, and returns what it wrote.
fn run_alone(test: &str, variables: &[(&str, &str)]) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn the_environment_says_how_many_devices_there_are() {
    let said = |count| {
        run_alone(
            "child_counts_devices",
            &[("METRALE_EMULATOR_DEVICES", count)],
        )
    };
    for (asked, given) in [("1", 1), ("64", 64), ("3", 3)] {
        let text = said(asked);
        assert!(text.contains(&format!("devices: {given}\n")), "{text}");
        assert!(!text.contains("is not a number"), "{text}");
        assert_eq!(text.matches("no GPU is used").count(), 1, "{text}");
    }
    for bad in ["0", "65", "-1", "many", ""] {
        let text = said(bad);
        assert!(text.contains("devices: 8\n"), "{text}");
        let sentence = format!("METRALE_EMULATOR_DEVICES={bad} is not a number from 1 to 64");
        assert_eq!(text.matches(&sentence).count(), 1, "{text}");
    }
}

#[test]
#[ignore = "part of the_environment_says_how_many_devices_there_are"]
fn child_counts_devices() {
    init().unwrap();
    let count = device_count().unwrap();
    let mut uuids = Vec::new();
    for device in 0..count {
        use_device(device).unwrap();
        uuids.push(device_uuid(device).unwrap());
        let address = std::ffi::CString::new(device_pci_bus_id(device).unwrap()).unwrap();
        let mut found = -1;
        // SAFETY: the address ends with a zero byte.
        ok(unsafe { cuDeviceGetByPCIBusId(&mut found, address.as_ptr()) });
        assert_eq!(found, device);
    }
    uuids.sort_by_key(|uuid| uuid.bytes);
    uuids.dedup();
    assert_eq!(uuids.len(), count as usize);
    assert_eq!(device_name(0).unwrap(), "metrale emulator");
    println!("devices: {count}");
}

#[test]
fn a_device_has_so_much_memory_and_no_more() {
    use_device(5).unwrap();
    let total = device_total_memory(5).unwrap();
    assert_eq!((total, mem_info().unwrap()), (16 << 30, (total, total)));
    let memory = mem_alloc(1 << 20).unwrap();
    assert_eq!(mem_info().unwrap().0, total - (1 << 20));
    assert_eq!(memory % 512, 0);
    assert_eq!(code(mem_alloc(total)), CuResult::OutOfMemory);
    assert_eq!(mem_info().unwrap().0, total - (1 << 20));
    // SAFETY: nothing uses the memory.
    unsafe { mem_free(memory).unwrap() };
    assert_eq!(mem_info().unwrap().0, total);
}

#[test]
fn memory_is_freed_after_the_work_of_its_device() {
    // A device of its own: the work of others would be waited for too.
    use_device(3).unwrap();
    let memory = [mem_alloc(64).unwrap(), mem_alloc(64).unwrap()];
    let (other, mut pinned) = (create_stream().unwrap(), null_mut());
    // SAFETY: the out pointer takes what the call writes.
    ok(unsafe { cuMemAllocHost_v2(&mut pinned, 64) });
    let pending = |stream| {
        let (sender, done) = std::sync::mpsc::channel();
        host_function(stream, move || {
            std::thread::sleep(Duration::from_millis(20));
            sender.send(()).unwrap();
        });
        done
    };
    // SAFETY: nothing uses the memory.
    unsafe {
        let done = pending(other);
        mem_free(memory[0]).unwrap();
        assert!(done.try_recv().is_ok());
        let done = pending(CU_STREAM_LEGACY);
        ok(cuMemFreeHost(pinned));
        assert!(done.try_recv().is_ok());
        let done = std::thread::spawn(move || {
            use_device(3).unwrap();
            pending(CU_STREAM_PER_THREAD)
        });
        // The stream is gone with its thread, but not its work.
        let done = done.join().unwrap();
        mem_free(memory[1]).unwrap();
        assert!(done.try_recv().is_ok());
        let mut pooled = 0;
        ok(cuMemAllocAsync(&mut pooled, 64, other));
        let gate = hold(other);
        mem_free(pooled).unwrap();
        assert!(!stream_ready(other).unwrap());
        drop(gate);
        sync_stream(other).unwrap();
    }
    destroy_stream(other);
}

#[test]
fn memory_outlives_its_context_while_work_uses_it() {
    use_device(4).unwrap();
    let stream = create_stream().unwrap();
    let memory = mem_alloc(4096).unwrap() as usize;
    let (done, is_done) = std::sync::mpsc::channel();
    host_function(stream, move || {
        std::thread::sleep(Duration::from_millis(50));
        // SAFETY: the allocation holds as many bytes, and belongs to this work.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(memory).write_bytes(1, 4096) };
        done.send(()).unwrap();
    });
    release_primary_context(4).unwrap();
    assert_eq!(code(mem_alloc(1)), CuResult::ContextIsDestroyed);
    assert_eq!(code(sync_stream(stream)), CuResult::InvalidHandle);
    is_done.recv().unwrap();
    use_device(4).unwrap();
    let start = Instant::now();
    while mem_info().unwrap().0 < device_total_memory(4).unwrap() {
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "the memory comes back"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn streams_wait_for_words_in_memory() {
    use_device(0).unwrap();
    let (a, b) = (create_stream().unwrap(), create_stream().unwrap());
    let word = mem_alloc(8).unwrap();
    // SAFETY: the word is aligned, and lives past all work.
    unsafe {
        memset_d8(word, 0, 8).unwrap();
        sync_stream(0).unwrap();
        ok(cuStreamWaitValue32_v2(a, word, 5, CU_STREAM_WAIT_VALUE_GEQ));
        ok(cuStreamWriteValue64_v2(
            a,
            word,
            1 << 40,
            CU_STREAM_WRITE_VALUE_DEFAULT,
        ));
        std::thread::sleep(Duration::from_millis(5));
        assert!(!stream_ready(a).unwrap());
        ok(cuStreamWriteValue32_v2(
            b,
            word,
            4,
            CU_STREAM_WRITE_VALUE_DEFAULT,
        ));
        sync_stream(b).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        assert!(!stream_ready(a).unwrap());
        ok(cuStreamWriteValue32_v2(
            b,
            word,
            5,
            CU_STREAM_WRITE_VALUE_DEFAULT,
        ));
        sync_stream(a).unwrap();
        ok(cuStreamWaitValue64_v2(
            b,
            word,
            1 << 40,
            CU_STREAM_WAIT_VALUE_AND,
        ));
        sync_stream(b).unwrap();
        // Signed, so that counters may wrap.
        ok(cuStreamWaitValue32_v2(
            b,
            word,
            u32::MAX - 5,
            CU_STREAM_WAIT_VALUE_GEQ,
        ));
        ok(cuStreamWaitValue64_v2(
            b,
            word,
            1 << 40,
            CU_STREAM_WAIT_VALUE_NOR,
        ));
        sync_stream(b).unwrap();
        mem_free(word).unwrap();
    }
    destroy_stream(a);
    destroy_stream(b);
}

#[test]
fn host_functions_may_wait_for_other_streams() {
    use_device(0).unwrap();
    let (a, b) = (create_stream().unwrap(), create_stream().unwrap());
    let memory = mem_alloc(1 << 20).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    host_function(a, move || {
        // SAFETY: the memory lives past the work.
        let set = unsafe { memset_d8_async(memory, 3, 1 << 20, b) };
        sender.send((set.is_ok(), sync_stream(b).is_ok())).unwrap();
        sender
            .send((mem_alloc(1).is_ok(), stream_ready(0).is_ok()))
            .unwrap();
    });
    sync_stream(a).unwrap();
    assert_eq!(receiver.recv().unwrap(), (true, true));
    assert_eq!(receiver.recv().unwrap(), (false, false));
    let mut last = [0u8; 1];
    // SAFETY: nothing else uses the memory.
    unsafe {
        memcpy_dtoh(&mut last, memory + (1 << 20) - 1).unwrap();
        mem_free(memory).unwrap();
    }
    assert_eq!(last, [3]);
    destroy_stream(a);
    destroy_stream(b);
}

#[test]
fn graphs_own_what_they_allocate() {
    use_device(0).unwrap();
    let stream = create_stream().unwrap();
    let (mut memory, mut scratch, mut graph, mut exec) = (0, 0, 0, 0);
    let mut back = [0u8; 64];
    // SAFETY: each out pointer takes what its call writes, and memory is used where the graph
    // allows it.
    unsafe {
        ok(cuStreamBeginCapture_v2(
            stream,
            CuStreamCaptureMode::ThreadLocal,
        ));
        ok(cuMemAllocAsync(&mut scratch, 64, stream));
        ok(cuMemAllocAsync(&mut memory, 64, stream));
        memset_d8_async(scratch, 9, 64, stream).unwrap();
        memcpy_dtod_async(memory, scratch, 64, stream).unwrap();
        ok(cuMemFreeAsync(scratch, stream));
        assert_eq!(
            code(memset_d8_async(scratch, 9, 64, stream)),
            CuResult::InvalidValue
        );
        ok(cuStreamEndCapture(stream, &mut graph));
        assert_eq!(code(memcpy_dtoh(&mut back, memory)), CuResult::InvalidValue);
        ok(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
        for _ in 0..3 {
            ok(cuGraphLaunch(exec, stream));
            // What it left has to be freed first.
            assert_eq!(cuGraphLaunch(exec, stream), CuResult::InvalidValue);
            memcpy_dtoh_async(&mut back, memory, stream).unwrap();
            sync_stream(stream).unwrap();
            assert_eq!(back, [9; 64]);
            assert_eq!(code(mem_free(scratch)), CuResult::InvalidValue);
            ok(cuMemFreeAsync(memory, stream));
        }
        // Freed before the launch has begun.
        let gate = hold(stream);
        ok(cuGraphLaunch(exec, stream));
        ok(cuMemFreeAsync(memory, stream));
        ok(cuGraphLaunch(exec, stream));
        ok(cuMemFreeAsync(memory, stream));
        drop(gate);
        sync_stream(stream).unwrap();
        assert_eq!(code(mem_free(memory)), CuResult::InvalidValue);
        ok(cuGraphExecDestroy(exec));
        let flags = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        ok(cuGraphInstantiateWithFlags(&mut exec, graph, flags));
        ok(cuGraphLaunch(exec, stream));
        ok(cuGraphLaunch(exec, stream));
        ok(cuGraphExecDestroy(exec));
        ok(cuGraphDestroy(graph));
        sync_stream(stream).unwrap();
        memcpy_dtoh(&mut back, memory).unwrap();
        mem_free(memory).unwrap();
    }
    destroy_stream(stream);
}

/// A small generator of numbers, so that a failure can be had again.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}

/// Streams, events and graphs at random, from several threads at once. Each piece of work knows
/// which ones it comes after: the last of its stream, those that its stream has waited for, and in
/// blocking streams what the legacy stream did.
#[test]
fn every_order_that_is_asked_for_holds() {
    std::thread::scope(|scope| {
        for seed in 0..3 {
            scope.spawn(move || random_order(seed));
        }
    });
}

fn random_order(seed: u64) {
    // A device each, so that the legacy streams are apart.
    use_device(seed as i32).unwrap();
    let mut numbers = Numbers(seed + 1);
    const WORKS: usize = 1500;
    let finished: Arc<Vec<AtomicUsize>> =
        Arc::new((0..WORKS).map(|_| AtomicUsize::new(0)).collect());
    let broken: Arc<Mutex<Vec<(usize, usize)>>> = Arc::default();
    let (mut blocking, mut priority) = (0, 0);
    // SAFETY: each out pointer takes what its call writes.
    unsafe {
        ok(cuStreamCreate(&mut blocking, CU_STREAM_DEFAULT));
        ok(cuStreamCreateWithPriority(
            &mut priority,
            CU_STREAM_DEFAULT,
            -2,
        ));
    }
    let streams = [
        create_stream().unwrap(),
        create_stream().unwrap(),
        blocking,
        priority,
        CU_STREAM_PER_THREAD,
        CU_STREAM_LEGACY,
    ];
    let is_blocking = [false, false, true, true, true, false];
    const LEGACY: usize = 5;
    let events: Vec<CuEvent> = (0..6)
        .map(|i| match i % 2 {
            0 => create_event().unwrap(),
            _ => create_timing_event().unwrap(),
        })
        .collect();
    // What comes before the next piece of work of each stream, and what each event stands for.
    let mut before: Vec<Vec<usize>> = vec![Vec::new(); streams.len()];
    let mut recorded: Vec<Vec<usize>> = vec![Vec::new(); events.len()];
    for work in 0..WORKS {
        let s = numbers.below(streams.len());
        // What the legacy stream's order adds to anything that is put into this stream.
        let entangle = |before: &mut Vec<Vec<usize>>| {
            if s == LEGACY {
                for other in (0..streams.len()).filter(|other| is_blocking[*other]) {
                    let more = before[other].clone();
                    before[LEGACY].extend(more);
                }
            } else if is_blocking[s] {
                let more = before[LEGACY].clone();
                before[s].extend(more);
            }
            before[s].sort_unstable();
            before[s].dedup();
        };
        match numbers.below(8) {
            0 => {
                let e = numbers.below(events.len());
                entangle(&mut before);
                record_event(events[e], streams[s]).unwrap();
                recorded[e] = before[s].clone();
            }
            1 => {
                let e = numbers.below(events.len());
                stream_wait_event(streams[s], events[e]).unwrap();
                before[s].extend(&recorded[e]);
            }
            2 if work % 50 == 0 => {
                let e = numbers.below(events.len());
                sync_event(events[e]).unwrap();
                assert!(
                    recorded[e]
                        .iter()
                        .all(|one| finished[*one].load(Ordering::SeqCst) == 1)
                );
            }
            _ => {}
        }
        entangle(&mut before);
        let (finished, broken) = (finished.clone(), broken.clone());
        let asked = std::mem::replace(&mut before[s], vec![work]);
        let pause = numbers.below(20) == 0;
        host_function(streams[s], move || {
            if pause {
                std::thread::sleep(Duration::from_micros(300));
            }
            let early = asked
                .iter()
                .filter(|one| finished[**one].load(Ordering::SeqCst) == 0);
            broken.lock().unwrap().extend(early.map(|one| (*one, work)));
            finished[work].fetch_add(1, Ordering::SeqCst);
        });
    }
    sync_context().unwrap();
    assert!(
        finished
            .iter()
            .all(|count| count.load(Ordering::SeqCst) == 1)
    );
    let broken = broken.lock().unwrap();
    assert!(broken.is_empty(), "seed {seed}: {broken:?}");
    events.into_iter().for_each(destroy_event);
    streams[..4].iter().copied().for_each(destroy_stream);
}
