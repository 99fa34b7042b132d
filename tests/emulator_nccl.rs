//! Communicators that are ended at any moment: what a program that does all in order never shows.

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use metrale_gpu_sys::cuda::*;
use metrale_gpu_sys::nccl::*;

const RANKS: i32 = 4;
const IA: NcclResult = NcclResult::InvalidArgument;
const OK: NcclResult = NcclResult::Success;

/// Pauses of a few hundred microseconds, the same in each run (splitmix64).
struct Pauses(u64);

impl Pauses {
    fn next(&mut self) -> Duration {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        Duration::from_micros((mixed >> 33) % 800)
    }
}

/// What one rank does until its communicator is gone.
struct Rank {
    rank: i32,
    comm: NcclComm,
    stream: CuStream,
    buffer: *mut c_void,
}

impl Rank {
    fn sum(&self) -> NcclResult {
        let (int32, sum) = (NcclDataType::Int32, NcclRedOp::Sum);
        // SAFETY: the buffer holds 256 integers on the rank's device. The communicator may be gone, which the emulator sees.
        unsafe {
            ncclAllReduce(
                self.buffer,
                self.buffer,
                256,
                int32,
                sum,
                self.comm,
                self.stream,
            )
        }
    }

    fn ring(&self) -> NcclResult {
        let (next, last) = ((self.rank + 1) % RANKS, (self.rank + RANKS - 1) % RANKS);
        // SAFETY: as in `sum`; half of the buffer is sent, the other half received.
        unsafe {
            let half = self.buffer.byte_add(512);
            let _ = ncclGroupStart();
            let _ = ncclSend(
                self.buffer,
                128,
                NcclDataType::Int32,
                next,
                self.comm,
                self.stream,
            );
            let _ = ncclRecv(half, 128, NcclDataType::Int32, last, self.comm, self.stream);
            ncclGroupEnd()
        }
    }

    fn split(&self) -> NcclResult {
        let mut child = null_mut();
        // SAFETY: `child` takes one communicator, which is this rank's own.
        unsafe {
            match ncclCommSplit(self.comm, self.rank % 2, 0, &mut child, null()) {
                OK => ncclCommAbort(child),
                code => code,
            }
        }
    }
}

/// Makes the ranks, has each of them run `body` on a thread of its own, and aborts all after a pause.
fn abort_amid(pause: Duration, body: impl Fn(&Rank) + Sync) {
    // SAFETY: every pointer takes one value; the id is fresh.
    unsafe {
        assert_eq!(cuInit(0), CuResult::Success);
        let mut id = NcclUniqueId { internal: [0; 128] };
        assert_eq!(ncclGetUniqueId(&mut id), OK);
        let comms = Mutex::new([0usize; RANKS as usize]);
        let ready = std::sync::Barrier::new(RANKS as usize + 1);
        std::thread::scope(|scope| {
            for rank in 0..RANKS {
                let (comms, ready, body) = (&comms, &ready, &body);
                scope.spawn(move || {
                    use_device(rank).unwrap();
                    let (stream, buffer) = (create_stream().unwrap(), mem_alloc(1024).unwrap());
                    let mut comm = null_mut();
                    assert_eq!(ncclCommInitRank(&mut comm, RANKS, id, rank), OK);
                    comms.lock().unwrap()[rank as usize] = comm as usize;
                    ready.wait();
                    let rank = Rank {
                        rank,
                        comm,
                        stream,
                        buffer: buffer as *mut c_void,
                    };
                    body(&rank);
                    // Nothing of the group state is left over, and the stream comes to its end.
                    assert_eq!(ncclGroupEnd(), NcclResult::InvalidUsage);
                    sync_stream(stream).unwrap();
                    destroy_stream(stream);
                    mem_free(buffer).unwrap();
                });
            }
            ready.wait();
            std::thread::sleep(pause);
            for comm in *comms.lock().unwrap() {
                assert_eq!(ncclCommAbort(comm as NcclComm), OK);
                assert_eq!(ncclCommCount(comm as NcclComm, &mut 0), IA);
            }
        });
    }
}

#[test]
fn every_call_comes_back_from_an_abort() {
    let mut pauses = Pauses(1);
    type Step = fn(&Rank) -> NcclResult;
    let steps: [&[Step]; 4] = [
        &[Rank::sum],
        &[Rank::ring],
        &[Rank::split],
        &[Rank::sum, Rank::split, Rank::ring],
    ];
    for round in 0..120 {
        abort_amid(pauses.next(), |rank| {
            for step in steps[round % steps.len()].iter().cycle() {
                match step(rank) {
                    OK => {}
                    // Aborted within the call, or gone before it.
                    NcclResult::InternalError | IA => return,
                    code => panic!("{code:?}"),
                }
            }
        });
    }
}

/// One rank stays away from the first collective, so that the others wait within their calls.
#[test]
fn an_abort_ends_a_call_that_waits_for_a_peer() {
    let ended = AtomicUsize::new(0);
    for round in 0..20 {
        abort_amid(Duration::from_millis(5), |rank| {
            if rank.rank != round % RANKS {
                match rank.sum() {
                    NcclResult::InternalError => drop(ended.fetch_add(1, SeqCst)),
                    // On a machine that is slow enough the abort comes before the call.
                    code => assert_eq!(code, IA),
                }
            }
        });
    }
    assert_ne!(ended.into_inner(), 0);
}

/// Non-blocking ranks that never all come, aborted while they wait, from the thread that made them.
#[test]
fn an_abort_ends_what_goes_on_in_the_background() {
    let mut pauses = Pauses(7);
    for _ in 0..100 {
        // SAFETY: every pointer takes one value, and nothing uses the communicators after their abort.
        unsafe {
            use_device(0).unwrap();
            let mut id = NcclUniqueId { internal: [0; 128] };
            assert_eq!(ncclGetUniqueId(&mut id), OK);
            let config = NcclConfig::non_blocking();
            let mut comms = [null_mut(); RANKS as usize - 1];
            // All in one group, and so in one job: to end one is to end all.
            assert_eq!(ncclGroupStart(), OK);
            for (rank, comm) in comms.iter_mut().enumerate() {
                use_device(rank as i32).unwrap();
                assert_eq!(
                    ncclCommInitRankConfig(comm, RANKS, id, rank as i32, &config),
                    OK
                );
            }
            assert_eq!(ncclGroupEnd(), NcclResult::InProgress);
            std::thread::sleep(pauses.next());
            for comm in comms {
                assert_eq!(ncclCommAbort(comm), OK);
            }
        }
    }
}

/// Ranks that come with one id and do not fit together all learn it, whoever comes first.
#[test]
fn ranks_that_do_not_fit_fail_together() {
    // SAFETY: every pointer takes one value.
    unsafe {
        let mut id = NcclUniqueId { internal: [0; 128] };
        assert_eq!(ncclGetUniqueId(&mut id), OK);
        let waiting = AtomicBool::new(false);
        let join = |device, nranks, rank| {
            use_device(device).unwrap();
            let mut comm = null_mut();
            let code = ncclCommInitRank(&mut comm, nranks, id, rank);
            if !comm.is_null() {
                assert_eq!(ncclCommAbort(comm), OK);
            }
            code
        };
        std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                waiting.store(true, SeqCst);
                join(0, 3, 0)
            });
            while !waiting.load(SeqCst) {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(5));
            assert_eq!(join(1, 2, 1), NcclResult::RemoteError);
            assert_eq!(first.join().unwrap(), NcclResult::RemoteError);
            assert_eq!(join(1, 3, 1), NcclResult::RemoteError);
        });
    }
}

/// The latest message is one for the process, and never torn or lost however many write it.
#[test]
fn messages_of_many_threads_are_whole() {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    // SAFETY: null is refused.
                    unsafe { assert_eq!(ncclCommCount(null_mut(), &mut 0), IA) };
                }
            });
        }
    });
    // SAFETY: a C string that lives as long as the program.
    let text = unsafe { std::ffi::CStr::from_ptr(ncclGetLastError(null_mut())) };
    assert!(!text.is_empty() && text.to_bytes().len() < 1024);
}

/// The event of a collective's config stands for what came before it in the stream.
#[test]
fn a_launch_completion_event_is_recorded() {
    // SAFETY: every pointer takes what the call writes; the buffers hold 4 bytes on their devices.
    unsafe {
        use_device(0).unwrap();
        let mut comms = [null_mut(); 2];
        assert_eq!(ncclCommInitAll(comms.as_mut_ptr(), 2, null()), OK);
        let ranks = [0, 1].map(|rank| {
            use_device(rank).unwrap();
            (
                create_stream().unwrap(),
                mem_alloc(4).unwrap() as *mut c_void,
            )
        });
        let sum = |rank: usize, config: &NcclCollConfig| {
            let ((stream, p), comm) = (ranks[rank], comms[rank]);
            ncclAllReduceConfig(
                p,
                p,
                1,
                NcclDataType::Int32,
                NcclRedOp::Sum,
                comm,
                stream,
                config,
            )
        };
        let plain = NcclCollConfig::new();
        assert_eq!(ncclGroupStart(), OK);
        assert_eq!((sum(0, &plain), sum(1, &plain)), (OK, OK));
        assert_eq!(ncclGroupEnd(), OK);

        use_device(0).unwrap();
        let event = create_event().unwrap();
        let config = NcclCollConfig {
            launch_completion_event: event,
            ..plain
        };
        assert_eq!((sum(0, &plain), sum(0, &config)), (OK, OK));
        assert_eq!(cuEventQuery(event), CuResult::NotReady);
        assert_eq!(sum(1, &plain), OK);
        assert_eq!(cuEventSynchronize(event), CuResult::Success);
        assert!(!stream_ready(ranks[0].0).unwrap());
        assert_eq!(sum(1, &plain), OK);
        for (comm, (stream, p)) in comms.into_iter().zip(ranks) {
            sync_stream(stream).unwrap();
            assert_eq!(ncclCommDestroy(comm), OK);
            destroy_stream(stream);
            mem_free(p as CuDevicePtr).unwrap();
        }
        destroy_event(event);
    }
}
