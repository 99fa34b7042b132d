//! NCCL and the CUDA driver on host memory: the same C functions, defined here, for tests and
//! examples on machines without a GPU.
//!
//! With the feature `emulator` nothing links libnccl or libcuda; every function of
//! [`nccl`](crate::nccl) and [`cuda`](crate::cuda) is answered by this module, and the rest of a
//! program need not know. It says so once on standard error when it is first used. It computes:
//! device memory is host memory, streams are queues that run beside the threads that fill them,
//! events order them, and collectives move and reduce what is there, in every type, with as many
//! ranks as threads, groups or processes bring. Where it answers otherwise than real NCCL or the real driver,
//! other than listed here, it is wrong.
//!
//! # Devices
//!
//! There are 8, or as many as `METRALE_EMULATOR_DEVICES` says, from 1 to 64 (anything else is
//! reported and leaves 8). Each is called "metrale emulator", has compute capability 9.0, 16 GiB of
//! memory that count what is allocated, its own UUID and PCI address, and reaches all others
//! directly. `cuDriverGetVersion` answers [`CUDA_VERSION`](crate::cuda::CUDA_VERSION).
//!
//! # What differs in the driver
//!
//! | | the driver | here |
//! |---|---|---|
//! | a handle that was destroyed, or is none | crashes, mostly | `InvalidHandle`; `InvalidValue` for graphs |
//! | a null pointer where an answer goes | crashes in some functions | `InvalidValue` in all |
//! | device pointers | the GPU's addresses | addresses of host memory, which programs could follow and should not |
//! | device code | runs | does not: `cuModuleLoadData` takes any image and looks at none, and `cuModuleGetFunction` finds the Rust functions of [`register_kernel`]; variables of modules are never found |
//! | a synchronous copy from the host | may return before the last bytes have arrived | returns when it is done |
//! | loading and unloading a module | waits for the context's work | waits for nothing |
//! | a fault of a kernel | `IllegalAddress` and others | a kernel that panics: `LaunchFailed`. It stays until the context is reset or released |
//! | `cuMemFree` right after `cuMemFreeAsync` of the same memory | may be accepted | `InvalidValue` |
//! | priorities, cache windows, synchronization domains | hints for kernels | kept and given back, without effect |
//! | `cuStreamBeginRecaptureToGraph`, the resources of `cuStreamGetDevResource`, flushing waits, pointer attributes for RDMA tokens and localities | served | `NotSupported` |
//! | `cuStreamAttachMemAsync`, captures into command lists of graphics programs | need managed memory or a context made for that | neither exists: `InvalidValue`, `InvalidContext` |
//!
//! Everything else that [`cuda`](crate::cuda) declares is served: primary contexts and the stack of
//! each thread, memory with known bounds, stream-ordered and pinned memory, legacy, per-thread,
//! blocking and non-blocking streams, events, words that streams wait for and write, host functions
//! and callbacks, captures in all three modes, and graphs with their own memory.
//!
//! # What differs in NCCL
//!
//! The release is 2.32.3. All functions of [`nccl`](crate::nccl) are served, windows, put, signal and
//! wait included.
//!
//! | | NCCL | here |
//! |---|---|---|
//! | a communicator that was destroyed, or is none; `ncclCommShrink` of null; null where an answer goes | crashes, mostly | `InvalidArgument` |
//! | where ranks are | anywhere | in processes of one user on one machine, in one network namespace, as threads of each: an id from elsewhere is a `RemoteError` |
//! | a process that is gone, killed or by itself, without its ranks having been destroyed | `RemoteError` by [`ncclCommGetAsyncError`](crate::nccl::ncclCommGetAsyncError), and from calls that wait for it | the same, in every process of the communicator; [`ncclGetLastError`](crate::nccl::ncclGetLastError) names one of its ranks. Work that needs it stays in its stream until the communicator is aborted, or shrunk with `NCCL_SHRINK_ABORT`, as with NCCL |
//! | a process that is forked from one that used the driver | crashes or hangs | `UnhandledCudaError`, `NotInitialized`; while it lives, the end of the one that forked it is not noticed |
//! | a process that is stopped (SIGSTOP) | its peers wait, and an abort ends that | the same, but where it does the work of the communicator their abort waits for it too |
//! | a unique id that was used up, or that nobody made | `RemoteError` after a minute | `RemoteError` at once |
//! | ranks that come with one id and do not fit together: their counts differ, or a rank comes twice | those that have come hang, later ones `RemoteError` | `RemoteError` for all, at once |
//! | `ncclCommShrink` with a rank that is named twice or does not exist; `ncclCommGrow` where nobody made an id; `ncclCommInitAll` of no devices | hangs; hangs; reads past the array | `InvalidArgument`; `InvalidUsage`; `InvalidArgument` |
//! | `ncclCommGrow` on the first and the last rank | waits in the call for the id | waits beside it, where the communicator is non-blocking or a group is open |
//! | a collective that the ranks ask for differently | hangs, or spoils memory | hangs, until it is aborted |
//! | a buffer that is too small or gone | whatever lies behind it is overwritten, or one rank faults | `IllegalAddress` for all ranks of a collective. Of messages, and all-to-all, gather and scatter, which are made of them, each is looked at by itself: one that ends in other memory is not noticed, and one without its buffer fails its own rank alone |
//! | a call of a group that moves data | has no order among the others | one-sided calls run first, then collectives, then sends and receives; ranks have to make the collectives of a group in the same order |
//! | a send of no elements | passes on its own where the ranks are connected | waits for its receive |
//! | algorithms, thread blocks, channels, traffic classes, SHARP, encryption | choose how the work is done | are checked and have no effect; every algorithm that a collective has can be had |
//! | network modules | those that work on the machine | `Socket` and `IB` are known, and nothing is sent through them |
//! | windows | flags promise how a window is used, and NCCL relies on it | flags have no effect, but that puts start in a symmetric one; no rank has another address than its own |
//! | memory of a communicator | some, which suspending gives back | none: [`ncclCommMemStats`](crate::nccl::ncclCommMemStats) tells 0 bytes |
//! | the time that `ncclGroupSimulateEnd` tells | a model of the machine | 10 microseconds and 100 GB/s |
//! | the log | levels, parts, a file | warnings on standard output, where `NCCL_DEBUG` is `WARN` or more |
//!
//! Ranks of several processes meet at the one that made the unique id, which must be there until all
//! ranks have come. It does their work, or, if it has no rank, the process of rank 0 does; of a child
//! communicator, that of its first rank. It reads and writes the others' device memory in place.
//! Nothing of this is in a folder: whatever ends a process, its sockets and memory go with it. Device
//! memory counts for each process by itself, but the devices are the same: two ranks on one are
//! refused, as two threads' are, without `NCCL_MULTI_RANK_GPU_ENABLE`. Events and streams are a
//! process's own, and there is no CUDA IPC.
//!
//! Of NCCL's variables these are minded: `NCCL_COMM_BLOCKING`, `NCCL_MULTI_RANK_GPU_ENABLE`,
//! `NCCL_CHECK_POINTERS` and `NCCL_CHECK_MODE` (`DEBUG_GLOBAL` is `DEBUG_LOCAL` here), `NCCL_NET`,
//! `NCCL_COMM_ID` (its form alone), `NCCL_COMM_SPLIT_SHARE_RESOURCES`,
//! `NCCL_COMM_SHRINK_SHARE_RESOURCES`, `NCCL_NUM_RMA_CTX`, `NCCL_RMA_EAGER_INIT`, `NCCL_WIN_ENABLE`,
//! `NCCL_LOCAL_REGISTER`, `NCCL_DISABLE_MEM_MANAGER`, `NCCL_NO_CACHE`, and `NCCL_DEBUG` with the others
//! that `ncclParamGetAllParameterKeys` lists. Configuration files are not read.
//!
//! What NCCL does, however odd, is done here as well: a failed `ncclCommDestroy` leaves the thread in
//! an open group, a blocking `ncclCommFinalize` waits for that of every rank, the first collective waits
//! in the call for all ranks, and a communicator whose work lies in a captured graph cannot be ended
//! before the graph.

mod cuda;
mod nccl;
mod system;

pub use cuda::{Launch, register_kernel};

/// Says once, on standard error, that no GPU is at work here. Every entry point that can be a
/// program's first calls it.
fn announce() {
    use std::sync::Once;
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        system::mark_process();
        eprintln!("metrale-gpu-sys: emulating NCCL and CUDA on host memory; no GPU is used");
    });
}
