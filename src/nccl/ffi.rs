//! The functions of `nccl.h`, in its order.

use std::ffi::{c_char, c_void};

use super::config::*;
use super::types::*;
use crate::bind::bind;
use crate::cuda::CuStream;

bind! {
    library nccl;

    /// Allocates device memory that NCCL can register: at least `size` bytes on the current device.
    ///
    /// `ptr` receives the address. The true size is rounded up to the device's granularity (2 MiB on
    /// current GPUs), and every peer device can reach the memory; a `size` of 0 leaves null there. Like
    /// [`ncclMemFree`], it may wait for the device's work. `UnhandledCudaError` for a null `ptr`,
    /// without device or driver, and when memory runs out.
    ///
    /// Since NCCL 2.19.
    pub fn ncclMemAlloc(ptr: *mut *mut c_void, size: usize) -> NcclResult;

    /// Frees memory of [`ncclMemAlloc`].
    ///
    /// Null is fine; any other pointer is `UnhandledCudaError`. Not checked: whether enqueued work
    /// still uses the memory, or a communicator has it registered. It may wait for all work of the
    /// device, so where ranks share a device it can deadlock while one rank's collective waits for another's.
    ///
    /// Since NCCL 2.19.
    pub fn ncclMemFree(ptr: *mut c_void) -> NcclResult;

    /// Tells the release of the loaded library, encoded as [`version_code`] does.
    ///
    /// `version` receives one number: 23203 is 2.32.3, 2708 is 2.7.8. Needs no device and no driver.
    /// `InvalidArgument` for null.
    pub fn ncclGetVersion(version: *mut i32) -> NcclResult;

    /// Makes the id of one new communicator.
    ///
    /// One rank calls it, and the program carries the bytes of `unique_id` to the others. A thread of
    /// this process then listens until as many ranks have joined as the communicator has, so the
    /// process has to live that long, and a second use of the id fails with `RemoteError` after about
    /// a minute. Needs no device. `InvalidArgument` for null or a malformed `NCCL_COMM_ID`;
    /// `InvalidUsage` or `SystemError` where no network interface is usable.
    pub fn ncclGetUniqueId(unique_id: *mut NcclUniqueId) -> NcclResult;

    /// [`ncclCommInitRank`] with a configuration.
    ///
    /// `config` is read during the call; null is [`NcclConfig::new`]. With `blocking` 0 the answer is
    /// `InProgress`: `*comm` is set at once, and ready when [`ncclCommGetAsyncError`] says so.
    /// `InvalidArgument` for a value that NCCL refuses, with `*comm` null. After any later failure
    /// `*comm` stays set and belongs to [`ncclCommAbort`].
    ///
    /// With an `nranks` below 1, 2.32.3 follows what `*comm` held before: set it to null. Where the driver does
    /// not even tell the current device, NCCL 2.32 answers `UnhandledCudaError` and leaves this thread in an
    /// open group that defers all it does later: one [`ncclGroupEnd`] closes it.
    ///
    /// Since NCCL 2.14.
    pub fn ncclCommInitRankConfig(
        comm: *mut NcclComm,
        nranks: i32,
        comm_id: NcclUniqueId,
        rank: i32,
        config: *const NcclConfig,
    ) -> NcclResult;

    /// Joins a new communicator of `nranks` ranks as rank `rank`, on the current device.
    ///
    /// All ranks call it with the same `comm_id` and `nranks`, each with its own `rank` from 0 up; it
    /// returns when all have come, and waits for a missing one without limit. One thread that makes
    /// several ranks does so within a group. `comm` receives the communicator; within a group it is set at
    /// once. If the call, or [`ncclGroupEnd`], fails and `*comm` is not null, it belongs to
    /// [`ncclCommAbort`]. Without a current context it takes device 0 and makes that current.
    ///
    /// `InvalidArgument` for `nranks` below 1 or `rank` out of range, `UnhandledCudaError` without device
    /// or driver, `InvalidUsage` for ranks of different NCCL releases or two ranks on one device
    /// (2.30 and later allow that with `NCCL_MULTI_RANK_GPU_ENABLE=1`), `RemoteError` for a used id.
    pub fn ncclCommInitRank(
        comm: *mut NcclComm,
        nranks: i32,
        comm_id: NcclUniqueId,
        rank: i32,
    ) -> NcclResult;

    /// Makes a communicator of `ndev` ranks that all belong to this process.
    ///
    /// `comm` receives `ndev` communicators, in the order of their ranks. `devlist` holds `ndev` device
    /// numbers, one a rank; null takes the devices from 0 up. The current device stays as it was.
    /// `InvalidArgument` for a null `comm`, a negative `ndev` or a device that does not exist,
    /// `InvalidUsage` for one named twice (see [`ncclCommInitRank`]), `UnhandledCudaError` for null with
    /// more ranks than devices. An `ndev` of 0 is not caught: NCCL then reads past the array.
    pub fn ncclCommInitAll(comm: *mut NcclComm, ndev: i32, devlist: *const i32) -> NcclResult;

    /// Completes a communicator's work and closes its connections; [`ncclCommDestroy`] then frees it.
    ///
    /// All ranks call it, within a group where one thread has several. A blocking communicator returns
    /// when that is done, a non-blocking one answers `InProgress`. `Success` for null. `InvalidArgument`
    /// the second time, after [`ncclCommRevoke`], and while in progress. A collective afterwards is not
    /// refused, but undefined.
    ///
    /// Since NCCL 2.14.
    pub fn ncclCommFinalize(comm: NcclComm) -> NcclResult;

    /// Frees a communicator, after [`ncclCommFinalize`] if that was not called.
    ///
    /// All ranks call it. It returns when its work is done, also on a non-blocking communicator, and
    /// waits for captured graphs that hold such work to be destroyed. `Success` for null. A communicator
    /// that is in progress or failed is refused and not freed, and leaves this thread in an open group
    /// that defers all it does later: [`ncclCommAbort`] is for those. Not to be used afterwards.
    pub fn ncclCommDestroy(comm: NcclComm) -> NcclResult;

    /// Ends whatever a communicator is doing and frees it, in any state.
    ///
    /// Another thread may call it while a call on `comm` waits for a peer: that call then fails, and
    /// kernels that wait end. It acts on this rank alone: peers that wait for this one go on
    /// waiting until they are aborted themselves. `Success` for null. Not to be used afterwards.
    ///
    /// Since NCCL 2.4.
    pub fn ncclCommAbort(comm: NcclComm) -> NcclResult;

    /// Stops all work of a communicator and leaves it good for nothing but split, shrink, grow, queries,
    /// destroy and abort.
    ///
    /// `revoke_flags` is [`NCCL_REVOKE_DEFAULT`]. A blocking communicator returns when all has stopped, a
    /// non-blocking one answers `InProgress`. Collectives are `InvalidUsage` from then on. `Success` for
    /// null. `InvalidArgument` for other flags, the second time, and after finalize or destroy.
    ///
    /// Since NCCL 2.28.7.
    pub fn ncclCommRevoke(comm: NcclComm, revoke_flags: i32) -> NcclResult;

    /// Makes new communicators out of `comm`: ranks that give the same `color` share one.
    ///
    /// All ranks call it, with no work under way. They are ordered by `key`, then by their rank in
    /// `comm`, which stays usable. `newcomm` receives the communicator, null for
    /// [`NCCL_SPLIT_NOCOLOR`]; other negative colors are ordinary ones. A null `config` takes over the
    /// one of `comm`. `InvalidArgument` for a null `newcomm` or a value that NCCL refuses.
    ///
    /// On a non-blocking `comm` the answer is `Success` at once, `comm` is in progress, and `*newcomm`
    /// stays null until [`ncclCommGetAsyncError`] says that `comm` is ready again; within a group, until
    /// its end. Another thread writes it then, so `newcomm` has to stay valid that long.
    ///
    /// Since NCCL 2.18.
    pub fn ncclCommSplit(
        comm: NcclComm,
        color: i32,
        key: i32,
        newcomm: *mut NcclComm,
        config: *const NcclConfig,
    ) -> NcclResult;

    /// Makes a new communicator of the ranks of `comm` that are not listed.
    ///
    /// Only those call it; they keep their order. `exclude_ranks_list` holds `exclude_ranks_count`
    /// ranks, the same on all callers, and NCCL sorts it in place. `newcomm` and `config` are as
    /// in [`ncclCommSplit`], also within a group and on a non-blocking `comm`. With
    /// [`NCCL_SHRINK_DEFAULT`] no work may be under way; [`NCCL_SHRINK_ABORT`] ends it first. `comm` lives
    /// on and is to be destroyed.
    ///
    /// A null `comm` crashes. `InvalidArgument` for another null pointer, a count below 1, or a list that
    /// names the caller; a rank out of range or named twice is not caught and can hang the others.
    ///
    /// Since NCCL 2.27.
    pub fn ncclCommShrink(
        comm: NcclComm,
        exclude_ranks_list: *mut i32,
        exclude_ranks_count: i32,
        newcomm: *mut NcclComm,
        config: *const NcclConfig,
        shrink_flags: i32,
    ) -> NcclResult;

    /// Makes the id with which new ranks join `comm` in one [`ncclCommGrow`].
    ///
    /// One rank of `comm` calls it, with no work under way, and the program carries the bytes of
    /// `unique_id` to the new ranks. The next id may be made when that growth is complete.
    /// `InvalidArgument` for null or a communicator that is not ready, `InvalidUsage` where
    /// `NCCL_COMM_ID` is set.
    ///
    /// Since NCCL 2.29.
    pub fn ncclCommGetUniqueId(comm: NcclComm, unique_id: *mut NcclUniqueId) -> NcclResult;

    /// Makes a new communicator of `n_ranks` ranks: those of `comm`, which keep their numbers, and new
    /// ones after them.
    ///
    /// A rank of `comm` gives `comm` and a `rank` of -1; the one that made the id gives it as
    /// `unique_id`, the others null. A new rank gives a null `comm`, the id and its `rank`, at
    /// least the count of `comm`: a lower one is not caught and hangs. `newcomm` receives the
    /// communicator; a null `config` takes over the one of `comm`, or the default on a new rank. No
    /// work may be under way; `comm` lives on and is to be destroyed.
    ///
    /// Non-blocking, the answer is `Success` at once and `*newcomm` is set and in progress. The first and
    /// the last rank of `comm` wait for the id within the call even so. `InvalidArgument` for a null
    /// `newcomm`, an `n_ranks` not above the count of `comm`, a wrong `rank`, or a new rank without id.
    ///
    /// Since NCCL 2.29.
    pub fn ncclCommGrow(
        comm: NcclComm,
        n_ranks: i32,
        unique_id: *const NcclUniqueId,
        rank: i32,
        newcomm: *mut NcclComm,
        config: *const NcclConfig,
    ) -> NcclResult;

    /// [`ncclCommInitRankConfig`] with several ids, which makes large communicators sooner.
    ///
    /// `comm_ids` holds `n_id` ids, each from its own [`ncclGetUniqueId`], the same and in the same order
    /// on all ranks; null is not caught. Note that the rank stands after `nranks`. `InvalidArgument` for
    /// `n_id` below 1 or above `nranks`; the rest as there.
    ///
    /// Without a driver it leaves an open group behind, as [`ncclCommInitRankConfig`] does.
    ///
    /// Since NCCL 2.23.
    pub fn ncclCommInitRankScalable(
        newcomm: *mut NcclComm,
        nranks: i32,
        myrank: i32,
        n_id: i32,
        comm_ids: *mut NcclUniqueId,
        config: *const NcclConfig,
    ) -> NcclResult;

    /// Says what a code means, in a few English words.
    ///
    /// The answer is a C string that lives as long as the library, also for a code it does not know.
    pub fn ncclGetErrorString(result: NcclResult) -> *const c_char;

    /// Gives the text of this process's latest warning, as a rule the cause of the latest failure.
    ///
    /// `comm` is ignored and may be null. There is one text a process, up to 1023 bytes: any thread
    /// overwrites it, nothing clears it, and some failures leave it as it was, so it can be older than
    /// the call that failed. The answer is a C string, empty at first, that lives as long as the
    /// library; copy it at once.
    ///
    /// Since NCCL 2.13.
    pub fn ncclGetLastError(comm: NcclComm) -> *const c_char;

    /// Reads the variables that steer the log, such as `NCCL_DEBUG`, anew.
    ///
    /// Since NCCL 2.24.
    #[deprecated = "NCCL does not support it and will remove it"]
    pub fn ncclResetDebugInit();

    /// Tells whether a communicator is ready, busy or failed, without waiting.
    ///
    /// `async_error` receives `Success` when the next call may come, `InProgress` while a non-blocking
    /// call goes on, and else what failed: then only [`ncclCommAbort`] is left. The answer itself is
    /// `Success` in each case; `InvalidArgument` for null. On a non-blocking communicator that is not
    /// ready other calls are `InvalidArgument`, which may then stick as its state;
    /// [`wait_ready`](super::wait_ready) polls until it is.
    ///
    /// A lost peer shows only where a network connection to it breaks: between devices of one host nothing
    /// is reported and work hangs, so keep a deadline.
    ///
    /// Since NCCL 2.4.
    pub fn ncclCommGetAsyncError(comm: NcclComm, async_error: *mut NcclResult) -> NcclResult;

    /// Tells how many ranks a communicator has.
    ///
    /// `count` receives one number. `InvalidArgument` for null or while in progress; after a failure, its
    /// code.
    pub fn ncclCommCount(comm: NcclComm, count: *mut i32) -> NcclResult;

    /// Tells which device a communicator uses.
    ///
    /// `device` receives its number as CUDA counts in this process. `InvalidArgument` for null or while in
    /// progress; after a failure, its code.
    pub fn ncclCommCuDevice(comm: NcclComm, device: *mut i32) -> NcclResult;

    /// Tells which rank of its communicator the caller is.
    ///
    /// `rank` receives one number. `InvalidArgument` for null or while in progress; after a failure, its
    /// code.
    pub fn ncclCommUserRank(comm: NcclComm, rank: *mut i32) -> NcclResult;

    /// Registers `size` bytes at `buff`, so that transfers of `comm` need no copy through NCCL's buffers.
    ///
    /// Each rank registers its own, but all should do alike. `buff` is memory of the communicator's
    /// device, best from [`ncclMemAlloc`]. `handle` receives what [`ncclCommDeregister`] takes; the same
    /// range again gives the same handle, to be deregistered as often. Set `*handle` to null first: where
    /// NCCL does not register it answers `Success`, and leaves it so or writes null. What is registered
    /// when the communicator is destroyed is released then. `UnhandledCudaError` for memory that is not
    /// CUDA's.
    ///
    /// Since NCCL 2.19.
    pub fn ncclCommRegister(
        comm: NcclComm,
        buff: *mut c_void,
        size: usize,
        handle: *mut *mut c_void,
    ) -> NcclResult;

    /// Undoes one [`ncclCommRegister`].
    ///
    /// Not before the work that uses the buffer is done, and before the memory is freed. `Success` for a
    /// null `handle`, `InvalidUsage` for one that is not registered any more.
    ///
    /// Since NCCL 2.19.
    pub fn ncclCommDeregister(comm: NcclComm, handle: *mut c_void) -> NcclResult;

    /// Gives back device memory of a communicator until [`ncclCommResume`].
    ///
    /// All ranks call it, with no work under way. `flags` is [`NCCL_SUSPEND_MEM`]; without that bit nothing
    /// happens. A non-blocking communicator answers `InProgress`. Work is not refused meanwhile, but
    /// faults. `InvalidUsage` when suspended already, when memory is shared with a split communicator, and
    /// under `NCCL_DISABLE_MEM_MANAGER=1`.
    ///
    /// Since NCCL 2.29.7.
    pub fn ncclCommSuspend(comm: NcclComm, flags: i32) -> NcclResult;

    /// Takes back what [`ncclCommSuspend`] gave away, and makes the communicator usable again.
    ///
    /// All ranks call it. A non-blocking communicator answers `InProgress`. `InvalidUsage` when not
    /// suspended.
    ///
    /// Since NCCL 2.29.7.
    pub fn ncclCommResume(comm: NcclComm) -> NcclResult;

    /// Tells how much device memory a communicator holds, or whether it is suspended.
    ///
    /// `value` receives one number, of what `stat` names. `InvalidArgument` for null or an unknown
    /// `stat`, `InvalidUsage` under `NCCL_DISABLE_MEM_MANAGER=1`.
    ///
    /// Since NCCL 2.29.7.
    pub fn ncclCommMemStats(comm: NcclComm, stat: NcclCommMemStat, value: *mut u64) -> NcclResult;

    /// Registers `size` bytes at `buff` as a window: memory that the other ranks reach directly.
    ///
    /// All ranks call it, each with its own buffer; sizes may differ, and a missing rank is waited for.
    /// `buff` lies in memory of [`ncclMemAlloc`], a multiple of [`NCCL_WIN_REQUIRED_ALIGNMENT`] from its
    /// start. `win_flags` joins `NCCL_WIN_` bits; [`NCCL_WIN_COLL_SYMMETRIC`] is the usual one. `win`
    /// receives the window. Within a group it is null until the end; on a non-blocking communicator the
    /// answer is `Success` at once, and it is null until `comm` is ready. `win` has to stay valid that long.
    ///
    /// `Success` with a null window says that windows do not work here: test for it. `InvalidArgument`
    /// for a null `win` or `buff`, a `size` of 0, or a place not aligned so; `UnhandledCudaError` for
    /// memory of another kind, such as `cuMemAlloc` gives.
    ///
    /// Since NCCL 2.27.
    pub fn ncclCommWindowRegister(
        comm: NcclComm,
        buff: *mut c_void,
        size: usize,
        win: *mut NcclWindow,
        win_flags: i32,
    ) -> NcclResult;

    /// Undoes [`ncclCommWindowRegister`].
    ///
    /// Each rank by itself, not before the work that uses the window is done on all ranks, and before
    /// the memory is freed. `Success` for a null `win`, `InternalError` for one that `comm` does not know.
    ///
    /// Since NCCL 2.27.
    pub fn ncclCommWindowDeregister(comm: NcclComm, win: NcclWindow) -> NcclResult;

    /// Tells which address this rank registered as `win`.
    ///
    /// `out_user_ptr` receives it, or null with `Success` where windows do not work. `InvalidArgument` for
    /// null, `InternalError` for a window that `comm` does not know.
    ///
    /// Since NCCL 2.29.
    pub fn ncclWinGetUserPtr(
        comm: NcclComm,
        win: NcclWindow,
        out_user_ptr: *mut *mut c_void,
    ) -> NcclResult;

    /// Makes an operator that multiplies this rank's elements by `*scalar`, then sums over the ranks.
    ///
    /// `op` receives it, for collectives of `comm` with elements of `datatype`; elsewhere it is
    /// `InvalidArgument`. `scalar` points to one element, in memory and read at the time that `residence`
    /// says; each rank may have its own. Neither pointer is checked. `InvalidArgument` for a communicator
    /// that is null or not ready, `InternalError` for a host scalar of unknown type.
    ///
    /// Since NCCL 2.11.
    pub fn ncclRedOpCreatePreMulSum(
        op: *mut NcclRedOp,
        scalar: *mut c_void,
        datatype: NcclDataType,
        residence: NcclScalarResidence,
        comm: NcclComm,
    ) -> NcclResult;

    /// Frees an operator of [`ncclRedOpCreatePreMulSum`].
    ///
    /// Allowed as soon as the last call that names it has returned, even if its work is still to come.
    /// Later operators may get the same number. `InvalidArgument` for a built-in one, one freed already,
    /// and one of another communicator.
    ///
    /// Since NCCL 2.11.
    pub fn ncclRedOpDestroy(op: NcclRedOp, comm: NcclComm) -> NcclResult;

    /// Reduces `count` elements of each rank's `sendbuff` by `op` into the `recvbuff` of rank `root`.
    ///
    /// Both hold `count` elements; `recvbuff` is used on `root` alone and may be null elsewhere. The
    /// same pointer twice reduces in place. All ranks give the same `count`, `datatype`, `op` and
    /// `root`, which NCCL does not compare. Returns once enqueued on `stream`. `InvalidArgument` for a
    /// `root` out of range, or a type or operator that NCCL does not know.
    pub fn ncclReduce(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: NcclDataType,
        op: NcclRedOp,
        root: i32,
        comm: NcclComm,
        stream: CuStream,
    ) -> NcclResult;

    /// [`ncclBroadcast`] in place: an older form of it.
    ///
    /// `buff` holds `count` elements, the source on `root` and the destination elsewhere. Returns once
    /// enqueued on `stream`. `InvalidArgument` for a `root` out of range or a type that NCCL does not know.
    pub fn ncclBcast(
        buff: *mut c_void,
        count: usize,
        datatype: NcclDataType,
        root: i32,
        comm: NcclComm,
        stream: CuStream,
    ) -> NcclResult;

    /// Copies `count` elements from the `sendbuff` of rank `root` to every rank's `recvbuff`.
    ///
    /// Both hold `count` elements; `sendbuff` is used on `root` alone and may be null elsewhere. The
    /// same pointer twice works in place. All ranks give the same `count`, `datatype` and
    /// `root`, which NCCL does not compare. Returns once enqueued on `stream`. `InvalidArgument` for a
    /// `root` out of range or a type that NCCL does not know.
    pub fn ncclBroadcast(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: NcclDataType,
        root: i32,
        comm: NcclComm,
        stream: CuStream,
    ) -> NcclResult;

    /// Reduces `count` elements of each rank's `sendbuff` by `op` and leaves the result in every rank's `recvbuff`.
    ///
    /// Both hold `count` elements in memory of the communicator's device; the same pointer twice reduces in
    /// place. All ranks give the same `count`, `datatype` and `op`, which NCCL does not compare. Returns
    /// once enqueued on `stream`: read the result after the stream has passed this point. The first
    /// collective connects the ranks, so on a blocking communicator it waits within the call until the
    /// peers come to theirs. `InvalidArgument` for a type or operator that NCCL does not know; on a
    /// non-blocking communicator that sticks until it is aborted.
    pub fn ncclAllReduce(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: NcclDataType,
        op: NcclRedOp,
        comm: NcclComm,
        stream: CuStream,
    ) -> NcclResult;

    /// Reduces all ranks' `sendbuff` by `op` and leaves block `i` of the result in the `recvbuff` of rank `i`.
    ///
    /// `sendbuff` holds the rank count times `recvcount` elements, `recvbuff` holds `recvcount`. In place,
    /// `recvbuff` is this rank's block within `sendbuff`: `rank * recvcount` elements from its start. All
    /// ranks give the same `recvcount`, `datatype` and `op`, which NCCL does not compare. Returns once
    /// enqueued on `stream`. `InvalidArgument` for a type or operator that NCCL does not know.
    pub fn ncclReduceScatter(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        recvcount: usize,
        datatype: NcclDataType,
        op: NcclRedOp,
        comm: NcclComm,
        stream: CuStream,
    ) -> NcclResult;

    /// Puts the `sendbuff` of all ranks, one after the other by rank, into every rank's `recvbuff`.
    ///
    /// `sendbuff` holds `sendcount` elements, `recvbuff` the rank count times as many. In place,
    /// `sendbuff` is this rank's block within `recvbuff`: `rank * sendcount` elements from its start. All
    /// ranks give the same `sendcount` and `datatype`, which NCCL does not compare. Returns once enqueued on
    /// `stream`. `InvalidArgument` for a type that NCCL does not know.
    pub fn ncclAllGather(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        sendcount: usize,
        datatype: NcclDataType,
        comm: NcclComm,
        stream: CuStream,
    ) -> NcclResult;

    /// Sends block `j` of `sendbuff` to rank `j`, and receives block `i` of `recvbuff` from rank `i`.
    ///
    /// Both hold the rank count times `count` elements, and must not overlap: there is no in-place form.
    /// All ranks give the same `count` and `datatype`, which NCCL does not compare. Returns once enqueued on
    /// `stream`. `InvalidArgument` for a type that NCCL does not know.
    ///
    /// Since NCCL 2.28.
    pub fn ncclAlltoAll(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: NcclDataType,
        comm: NcclComm,
        stream: CuStream,
    ) -> NcclResult;

    /// Puts the `sendbuff` of all ranks, one after the other by rank, into the `recvbuff` of rank `root`.
    ///
    /// `sendbuff` holds `count` elements, `recvbuff` the rank count times as many; it is used on `root`
    /// alone and may be null elsewhere, save where `NCCL_CHECK_MODE` has NCCL check buffers. In place,
    /// `sendbuff` on `root` is its block within `recvbuff`: `root * count` elements from the start. All
    /// ranks give the same `count`, `datatype` and `root`, which NCCL does not compare. Returns once
    /// enqueued on `stream`. `InvalidArgument` for a `root` out of range or a type that NCCL does not know.
    ///
    /// Since NCCL 2.28.
    pub fn ncclGather(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: NcclDataType,
        root: i32,
        comm: NcclComm,
        stream: CuStream,
    ) -> NcclResult;

    /// Sends block `i` of the `sendbuff` of rank `root` to the `recvbuff` of rank `i`.
    ///
    /// `recvbuff` holds `count` elements, `sendbuff` the rank count times as many; it is used on `root`
    /// alone and may be null elsewhere, save where `NCCL_CHECK_MODE` has NCCL check buffers. In place,
    /// `recvbuff` on `root` is its block within `sendbuff`: `root * count` elements from the start. All
    /// ranks give the same `count`, `datatype` and `root`, which NCCL does not compare. Returns once
    /// enqueued on `stream`. `InvalidArgument` for a `root` out of range or a type that NCCL does not know.
    ///
    /// Since NCCL 2.28.
    pub fn ncclScatter(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: NcclDataType,
        root: i32,
        comm: NcclComm,
        stream: CuStream,
    ) -> NcclResult;

    /// [`ncclAllReduce`] with settings for this call.
    ///
    /// `config` is read during the call and is the same on all ranks; null is the plain call.
    /// `InvalidArgument` also for one not made by [`NcclCollConfig::new`], and for an algorithm that cannot
    /// be had.
    ///
    /// Since NCCL 2.31.
    pub fn ncclAllReduceConfig(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: NcclDataType,
        op: NcclRedOp,
        comm: NcclComm,
        stream: CuStream,
        config: *const NcclCollConfig,
    ) -> NcclResult;

    /// [`ncclBroadcast`] with settings for this call.
    ///
    /// `config` is as in [`ncclAllReduceConfig`].
    ///
    /// Since NCCL 2.31.
    pub fn ncclBroadcastConfig(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: NcclDataType,
        root: i32,
        comm: NcclComm,
        stream: CuStream,
        config: *const NcclCollConfig,
    ) -> NcclResult;

    /// [`ncclReduce`] with settings for this call.
    ///
    /// `config` is as in [`ncclAllReduceConfig`].
    ///
    /// Since NCCL 2.31.
    pub fn ncclReduceConfig(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: NcclDataType,
        op: NcclRedOp,
        root: i32,
        comm: NcclComm,
        stream: CuStream,
        config: *const NcclCollConfig,
    ) -> NcclResult;

    /// [`ncclAllGather`] with settings for this call.
    ///
    /// `config` is as in [`ncclAllReduceConfig`].
    ///
    /// Since NCCL 2.31.
    pub fn ncclAllGatherConfig(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        sendcount: usize,
        datatype: NcclDataType,
        comm: NcclComm,
        stream: CuStream,
        config: *const NcclCollConfig,
    ) -> NcclResult;

    /// [`ncclReduceScatter`] with settings for this call.
    ///
    /// `config` is as in [`ncclAllReduceConfig`].
    ///
    /// Since NCCL 2.31.
    pub fn ncclReduceScatterConfig(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        recvcount: usize,
        datatype: NcclDataType,
        op: NcclRedOp,
        comm: NcclComm,
        stream: CuStream,
        config: *const NcclCollConfig,
    ) -> NcclResult;

    /// [`ncclAlltoAll`] with settings for this call.
    ///
    /// `config` is as in [`ncclAllReduceConfig`]; there is no algorithm to select.
    ///
    /// Since NCCL 2.31.
    pub fn ncclAlltoAllConfig(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: NcclDataType,
        comm: NcclComm,
        stream: CuStream,
        config: *const NcclCollConfig,
    ) -> NcclResult;

    /// [`ncclGather`] with settings for this call.
    ///
    /// `config` is as in [`ncclAllReduceConfig`]; there is no algorithm to select.
    ///
    /// Since NCCL 2.31.
    pub fn ncclGatherConfig(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: NcclDataType,
        root: i32,
        comm: NcclComm,
        stream: CuStream,
        config: *const NcclCollConfig,
    ) -> NcclResult;

    /// [`ncclScatter`] with settings for this call.
    ///
    /// `config` is as in [`ncclAllReduceConfig`]; there is no algorithm to select.
    ///
    /// Since NCCL 2.31.
    pub fn ncclScatterConfig(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: NcclDataType,
        root: i32,
        comm: NcclComm,
        stream: CuStream,
        config: *const NcclCollConfig,
    ) -> NcclResult;

    /// Sends `count` elements at `sendbuff` to rank `peer`, which receives them with [`ncclRecv`].
    ///
    /// A rank's sends to one peer meet that peer's receives in order. Sizes must agree, which NCCL does not
    /// check; a `count` of 0 needs its receive too. The stream waits until the receive has come: ranks
    /// that send to each other do both within one group, or they may deadlock. A rank that sends to itself
    /// does so within one group, else it is `InvalidUsage`, and then the size of the send counts.
    ///
    /// Returns once enqueued on `stream`. `InvalidArgument` for a `peer` out of range or a type that NCCL
    /// does not know.
    ///
    /// Since NCCL 2.7.
    pub fn ncclSend(
        sendbuff: *const c_void,
        count: usize,
        datatype: NcclDataType,
        peer: i32,
        comm: NcclComm,
        stream: CuStream,
    ) -> NcclResult;

    /// Receives `count` elements at `recvbuff` that rank `peer` sends with [`ncclSend`], whose rules hold
    /// here as well.
    ///
    /// Returns once enqueued on `stream`; read the elements after the stream has passed this point.
    /// `InvalidArgument` for a `peer` out of range or a type that NCCL does not know.
    ///
    /// Since NCCL 2.7.
    pub fn ncclRecv(
        recvbuff: *mut c_void,
        count: usize,
        datatype: NcclDataType,
        peer: i32,
        comm: NcclComm,
        stream: CuStream,
    ) -> NcclResult;

    /// Writes `count` elements at `localbuff` into a window of rank `peer`, then raises a signal there.
    ///
    /// `localbuff` lies in a window of this rank with [`NCCL_WIN_COLL_SYMMETRIC`]. `peer_win` is this rank's
    /// own handle of the window that was registered together, `peer_win_offset` counts bytes from its
    /// start at `peer`; whether the elements fit there is not checked. `sig_idx` is below the config's
    /// `num_rma_sig` and `ctx` below its `num_rma_ctx` (both 0 before 2.31); `flags` is 0.
    ///
    /// Returns once enqueued on `stream`; when that has passed, `localbuff` may change. The elements have
    /// arrived when `peer` gets the signal. `InvalidArgument` for a value out of range, a null or
    /// unsuitable window, and where the ranks' devices cannot do it; `InternalError` for an unknown
    /// window; `InvalidUsage` for a driver older than CUDA 12.5.
    ///
    /// Since NCCL 2.29.
    pub fn ncclPutSignal(
        localbuff: *const c_void,
        count: usize,
        datatype: NcclDataType,
        peer: i32,
        peer_win: NcclWindow,
        peer_win_offset: usize,
        sig_idx: i32,
        ctx: i32,
        flags: u32,
        comm: NcclComm,
        stream: CuStream,
    ) -> NcclResult;

    /// Raises a signal at rank `peer`, after all earlier puts and signals to it in the same context.
    ///
    /// `sig_idx`, `ctx`, `flags` and the codes are as in [`ncclPutSignal`]; `InvalidUsage` also before the
    /// first window, unless `rma_eager_init` is 1. Returns once enqueued on `stream`.
    ///
    /// Since NCCL 2.29.
    pub fn ncclSignal(
        peer: i32,
        sig_idx: i32,
        ctx: i32,
        flags: u32,
        comm: NcclComm,
        stream: CuStream,
    ) -> NcclResult;

    /// Has the stream wait for signals of other ranks.
    ///
    /// `signal_descs` holds `n_desc` descriptors, and all of them are waited for. Returns once enqueued on
    /// `stream`; what follows on it sees the elements of the puts that raised the signals. `InvalidArgument`
    /// for null, an `n_desc` of 0, or a descriptor with a number out of range, save its rank: one that
    /// never signals is waited for forever. `InvalidUsage` as in [`ncclSignal`].
    ///
    /// Since NCCL 2.29.
    pub fn ncclWaitSignal(
        n_desc: i32,
        signal_descs: *mut NcclWaitSignalDesc,
        comm: NcclComm,
        stream: CuStream,
    ) -> NcclResult;

    /// Opens a group: this thread's calls are collected until the matching [`ncclGroupEnd`].
    ///
    /// Needed where one thread serves several ranks and where sends and receives have to go on together;
    /// it also fuses small operations. Calls in a group check their arguments and return at once. The
    /// operations have no order among themselves, so none may use another's result. Groups nest, and
    /// each thread has its own. Making communicators and using them do not go into one group, nor do
    /// blocking and non-blocking ones. Always `Success`.
    ///
    /// A `?` between start and end leaves the group open, and all that the thread does later waits in
    /// it: keep the results, end the group, then check.
    pub fn ncclGroupStart() -> NcclResult;

    /// Closes a group, and if it is the outermost one starts what was collected.
    ///
    /// Returns once all of it is enqueued, or the new communicators are made; `InProgress` for non-blocking
    /// ones, each of which is then polled. If a collected call was refused nothing starts, not even the good
    /// ones, and the answer is the last error; the group is closed even so. An inner group answers `Success`
    /// always. `InvalidUsage` without an open group.
    pub fn ncclGroupEnd() -> NcclResult;

    /// Closes a group and, instead of starting it, estimates how long it would take.
    ///
    /// `sim_info` receives the estimate. With null, and with non-blocking communicators, it is a plain
    /// [`ncclGroupEnd`]; communicators are made and buffers registered in any case. An inner group is only
    /// closed. `InvalidUsage` without an open group, `InvalidArgument` for one not made by
    /// [`NcclSimInfo::new`].
    ///
    /// Since NCCL 2.22.
    pub fn ncclGroupSimulateEnd(sim_info: *mut NcclSimInfo) -> NcclResult;

    /// Sets whether NCCL's own TCP connections in this process are encrypted.
    ///
    /// Called once, before the first [`ncclGetUniqueId`] or communicator, with the same key in all
    /// processes. NVLink, shared memory, InfiniBand and plugins' networks are not covered. A library built
    /// without TLS, as the 2.32.3 wheel is, takes the key as well, and fails when it connects. Null is
    /// `Success` and changes nothing. `InvalidArgument` for one not made by [`NcclEncryptionConfig::new`],
    /// an unknown mode, or a key that is null or shorter than 32 bytes.
    ///
    /// Since NCCL 2.32.
    pub fn ncclSetEncryption(config: *const NcclEncryptionConfig) -> NcclResult;

    /// Finds the parameter named `key`, a C string such as `NCCL_DEBUG_FILE`, for the reads below.
    ///
    /// `out` receives a handle that belongs to NCCL. Only few parameters can be found, most of them about
    /// the log; [`ncclParamGetAllParameterKeys`] names them. C code for releases before 2.30.7 passes
    /// handles by pointer to a struct of that name; the calls are the same. `InvalidArgument` for null or
    /// an unknown name.
    ///
    /// Since NCCL 2.30.4.
    pub fn ncclParamBind(out: *mut NcclParamHandle, key: *const c_char) -> NcclResult;

    /// Reads a parameter that NCCL keeps as `i8`.
    ///
    /// `out` receives one number. `InvalidArgument` for null or a parameter of another type: nothing is
    /// converted.
    ///
    /// Since NCCL 2.30.4.
    pub fn ncclParamGetI8(h: NcclParamHandle, out: *mut i8) -> NcclResult;

    /// Reads a parameter that NCCL keeps as `i16`; the rest as [`ncclParamGetI8`].
    ///
    /// Since NCCL 2.30.4.
    pub fn ncclParamGetI16(h: NcclParamHandle, out: *mut i16) -> NcclResult;

    /// Reads a parameter that NCCL keeps as `i32`; the rest as [`ncclParamGetI8`].
    ///
    /// Since NCCL 2.30.4.
    pub fn ncclParamGetI32(h: NcclParamHandle, out: *mut i32) -> NcclResult;

    /// Reads a parameter that NCCL keeps as `i64`; the rest as [`ncclParamGetI8`].
    ///
    /// Since NCCL 2.30.4.
    pub fn ncclParamGetI64(h: NcclParamHandle, out: *mut i64) -> NcclResult;

    /// Reads a parameter that NCCL keeps as `u8`; the rest as [`ncclParamGetI8`].
    ///
    /// Since NCCL 2.30.4.
    pub fn ncclParamGetU8(h: NcclParamHandle, out: *mut u8) -> NcclResult;

    /// Reads a parameter that NCCL keeps as `u16`; the rest as [`ncclParamGetI8`].
    ///
    /// Since NCCL 2.30.4.
    pub fn ncclParamGetU16(h: NcclParamHandle, out: *mut u16) -> NcclResult;

    /// Reads a parameter that NCCL keeps as `u32`; the rest as [`ncclParamGetI8`].
    ///
    /// Since NCCL 2.30.4.
    pub fn ncclParamGetU32(h: NcclParamHandle, out: *mut u32) -> NcclResult;

    /// Reads a parameter that NCCL keeps as `u64`; the rest as [`ncclParamGetI8`].
    ///
    /// Since NCCL 2.30.4.
    pub fn ncclParamGetU64(h: NcclParamHandle, out: *mut u64) -> NcclResult;

    /// Reads a parameter that NCCL keeps as a string.
    ///
    /// `out` receives a C string that belongs to NCCL and is valid until this thread's next call of this
    /// function. `InvalidArgument` for null or a parameter of another type, which `NCCL_DEBUG` is.
    ///
    /// Since NCCL 2.30.4.
    pub fn ncclParamGetStr(h: NcclParamHandle, out: *mut *const c_char) -> NcclResult;

    /// Copies a parameter's value, as NCCL keeps it, to `out`.
    ///
    /// `out` takes up to `max_len` bytes, `len` receives their number. `InvalidArgument` for null or a
    /// `max_len` below 1; also, with 0 in `len`, for one that is too small.
    ///
    /// Since NCCL 2.30.4.
    pub fn ncclParamGet(
        h: NcclParamHandle,
        out: *mut c_void,
        max_len: i32,
        len: *mut i32,
    ) -> NcclResult;

    /// Gives the value of the parameter named `key` as text.
    ///
    /// `value` receives a C string that belongs to NCCL and is valid until this thread's next call of this
    /// function, `value_len` its length. `InvalidArgument` for null; also, with null in `value` and 0 in
    /// `value_len`, for an unknown name.
    ///
    /// Since NCCL 2.30.4.
    pub fn ncclParamGetParameter(
        key: *const c_char,
        value: *mut *const c_char,
        value_len: *mut i32,
    ) -> NcclResult;

    /// Lists the names of the parameters that can be read.
    ///
    /// `table` receives an array of C strings that belongs to NCCL and is valid until this thread's next
    /// call of this function, `table_len` their number. Those that NCCL does not document are left out,
    /// unless `NCCL_PARAM_DUMP_ALL` is set to `true`. `InvalidArgument` for null.
    ///
    /// Since NCCL 2.30.4.
    pub fn ncclParamGetAllParameterKeys(
        table: *mut *mut *const c_char,
        table_len: *mut i32,
    ) -> NcclResult;

    /// Writes the parameters that [`ncclParamGetAllParameterKeys`] lists, with their values, to the log.
    ///
    /// Since NCCL 2.30.4.
    pub fn ncclParamDumpAll();
}
