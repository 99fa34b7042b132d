//! The C functions, in the order in which `src/nccl/ffi.rs` declares them: what each checks, and
//! who does the work.

use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use super::call::{Call, OneSided};
use super::comm::{self, Out};
use super::config::{self, CollConfig};
use super::error::{
    self, INVALID_ARGUMENT, INVALID_USAGE, Outcome, cuda_failure, lock, not_null, refuse,
    refuse_fork,
};
use super::exchange::{Kind, Scalar, Signal};
use super::group::{self, Simulation};
use super::life::{self, Choice, Init};
use super::{ids, param, window};
use crate::cuda::{CuResult, CuStream};
use crate::nccl::*;

/// The functions of a list, each checked at compile time to be what its declaration says.
macro_rules! api {
    ($(fn $name:ident($($parameter:ident: $kind:ty),* $(,)?) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($parameter: $kind),*) -> NcclResult {
                // SAFETY: the caller keeps to the function's contract, which says what each pointer
                // holds and for how long; the body does nothing with them that the contract does
                // not say.
                #[allow(unused_unsafe)]
                answer(|| unsafe { $body })
            }

            const _: unsafe extern "C" fn($($kind),*) -> NcclResult = crate::nccl::$name;
        )*

        #[cfg(test)]
        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

/// Runs the body of a call. A panic must not cross into C.
fn answer(body: impl FnOnce() -> Outcome) -> NcclResult {
    crate::emulator::announce();
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => NcclResult::Success,
        Ok(Err(code)) => code,
        Err(_) => NcclResult::InternalError,
    }
}

/// Writes an answer, without a message where there is no place for it.
///
/// # Safety
///
/// `out` is null, which is refused, or has room for it.
unsafe fn put<T>(out: *mut T, value: T) -> Outcome {
    given(out)?;
    // SAFETY: not null, and as the caller promises.
    unsafe { out.write(value) };
    Ok(())
}

/// Not null, else `InvalidArgument` without a message.
fn given<T>(pointer: *const T) -> Outcome {
    match pointer.is_null() {
        true => Err(INVALID_ARGUMENT),
        false => Ok(()),
    }
}

/// A name that a program gives.
///
/// # Safety
///
/// `name` is null, which is refused, or a C string that lives as long as the answer is used.
unsafe fn name<'a>(name: *const c_char) -> Outcome<&'a CStr> {
    given(name)?;
    // SAFETY: not null, and as the caller promises.
    Ok(unsafe { CStr::from_ptr(name) })
}

/// A query of a communicator: where it is, and whether it can answer.
fn query<T>(
    handle: NcclComm,
    call: &str,
    out: *const T,
    what: &str,
) -> Outcome<std::sync::Arc<comm::Comm>> {
    let comm = comm::find(handle, call)?;
    not_null(out, call, what)?;
    comm.ready()?;
    Ok(comm)
}

/// A collective that moves `count` elements from `send` to `recv`.
fn collective(
    name: &'static str,
    kind: Kind,
    (send, recv): (*const c_void, *mut c_void),
    (count, datatype): (usize, NcclDataType),
    (comm, stream): (NcclComm, CuStream),
) -> Call {
    Call {
        send: send as u64,
        recv: recv as u64,
        count,
        datatype,
        ..Call::new(name, kind, comm, stream)
    }
}

const NO_SIGNAL: Signal = Signal {
    context: 0,
    index: 0,
};

api! {
    fn ncclMemAlloc(ptr: *mut *mut c_void, size: usize) {
        if ptr.is_null() {
            return Err(cuda_failure(CuResult::InvalidValue));
        }
        put(ptr, window::allocate(size)?)
    }

    fn ncclMemFree(ptr: *mut c_void) {
        window::free(ptr)
    }

    fn ncclGetVersion(version: *mut i32) {
        put(version, NCCL_VERSION_CODE)
    }

    fn ncclGetUniqueId(unique_id: *mut NcclUniqueId) {
        // Where the ranks are to meet, if it is set. Nothing comes of it: ranks meet where their id was made.
        if let Some(address) = param::text("NCCL_COMM_ID") {
            let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
            if port.is_none() {
                return Err(refuse(
                    INVALID_ARGUMENT,
                    format_args!("Invalid NCCL_COMM_ID: not an address and a port"),
                ));
            }
        }
        not_null(unique_id, "GetUniqueId", "out")?;
        refuse_fork("GetUniqueId")?;
        put(unique_id, ids::create())
    }

    fn ncclCommInitRankConfig(
        comm: *mut NcclComm,
        nranks: i32,
        comm_id: NcclUniqueId,
        rank: i32,
        config: *const NcclConfig,
    ) {
        let made = Init { newcomm: comm, nranks, rank, ids: &[comm_id], config }.run(true)?;
        made.map_or(Ok(()), |comm| comm.answer())
    }

    fn ncclCommInitRank(comm: *mut NcclComm, nranks: i32, comm_id: NcclUniqueId, rank: i32) {
        let init = Init { newcomm: comm, nranks, rank, ids: &[comm_id], config: ptr::null() };
        // With NCCL_COMM_BLOCKING=0 it is in progress, and the answer is success all the same.
        match init.run(false) {
            Err(code) if code != NcclResult::InProgress => Err(code),
            _ => Ok(()),
        }
    }

    fn ncclCommInitAll(comm: *mut NcclComm, ndev: i32, devlist: *const i32) {
        life::init_all(comm, ndev, devlist)
    }

    fn ncclCommFinalize(comm: NcclComm) {
        match comm.is_null() {
            true => group::within(|| Ok(())),
            false => life::finalize(comm),
        }
    }

    fn ncclCommDestroy(comm: NcclComm) {
        match comm.is_null() {
            true => Ok(()),
            false => life::destroy(comm),
        }
    }

    fn ncclCommAbort(comm: NcclComm) {
        match comm.is_null() {
            true => Ok(()),
            false => life::abort(comm),
        }
    }

    fn ncclCommRevoke(comm: NcclComm, revoke_flags: i32) {
        match comm.is_null() {
            true => Ok(()),
            false => life::revoke(comm, revoke_flags),
        }
    }

    fn ncclCommSplit(
        comm: NcclComm,
        color: i32,
        key: i32,
        newcomm: *mut NcclComm,
        config: *const NcclConfig,
    ) {
        group::within(|| life::descend(comm, Choice::Split { color, key }, newcomm, config))
    }

    fn ncclCommShrink(
        comm: NcclComm,
        exclude_ranks_list: *mut i32,
        exclude_ranks_count: i32,
        newcomm: *mut NcclComm,
        config: *const NcclConfig,
        shrink_flags: i32,
    ) {
        let count = match exclude_ranks_list.is_null() {
            true => 0,
            false => usize::try_from(exclude_ranks_count).unwrap_or(0),
        };
        let excluded = match count {
            0 => &mut [],
            _ => std::slice::from_raw_parts_mut(exclude_ranks_list, count),
        };
        let choice = Choice::Shrink { excluded, flags: shrink_flags };
        group::within(|| life::descend(comm, choice, newcomm, config))
    }

    fn ncclCommGetUniqueId(comm: NcclComm, unique_id: *mut NcclUniqueId) {
        let comm = comm::find(comm, "ncclCommGetUniqueId")?;
        comm.ready()?;
        not_null(unique_id, "CommGetUniqueId", "uniqueId")?;
        if param::text("NCCL_COMM_ID").is_some() {
            return Err(refuse(
                INVALID_USAGE,
                format_args!("ncclCommGetUniqueId : not to be used with NCCL_COMM_ID"),
            ));
        }
        put(unique_id, life::growth_id(&comm))
    }

    fn ncclCommGrow(
        comm: NcclComm,
        n_ranks: i32,
        unique_id: *const NcclUniqueId,
        rank: i32,
        newcomm: *mut NcclComm,
        config: *const NcclConfig,
    ) {
        given(newcomm)?;
        if n_ranks <= 0 {
            return Err(refuse(
                INVALID_ARGUMENT,
                format_args!("ncclCommGrow: total ranks must be positive, got {n_ranks}"),
            ));
        }
        if !comm.is_null() {
            let (size, _) = comm::find(comm, "ncclCommGrow").map_err(group::record)?.shape();
            if n_ranks <= size {
                return Err(refuse(
                    INVALID_ARGUMENT,
                    format_args!("ncclCommGrow: there are {size} ranks, not less than {n_ranks}"),
                ));
            }
        }
        Out::new(newcomm).set_comm(None);
        group::within(|| life::grow(comm, n_ranks, unique_id, rank, newcomm, config))
    }

    fn ncclCommInitRankScalable(
        newcomm: *mut NcclComm,
        nranks: i32,
        myrank: i32,
        n_id: i32,
        comm_ids: *mut NcclUniqueId,
        config: *const NcclConfig,
    ) {
        let count = usize::try_from(n_id).unwrap_or(0);
        // NCCL does not check the pointer.
        let ids = match comm_ids.is_null() || count == 0 {
            true => &[],
            false => std::slice::from_raw_parts(comm_ids, count),
        };
        let made = Init { newcomm, nranks, rank: myrank, ids, config }.run(true)?;
        made.map_or(Ok(()), |comm| comm.answer())
    }

    fn ncclCommGetAsyncError(comm: NcclComm, async_error: *mut NcclResult) {
        let comm = comm::find(comm, "ncclGetAsyncError")?;
        not_null(async_error, "ncclGetAsyncError", "asyncError")?;
        put(async_error, comm.result())
    }

    fn ncclCommCount(comm: NcclComm, count: *mut i32) {
        let comm = query(comm, "CommCount", count, "count")?;
        put(count, comm.shape().0)
    }

    fn ncclCommCuDevice(comm: NcclComm, device: *mut i32) {
        let comm = query(comm, "CommCuDevice", device, "devid")?;
        put(device, comm.device)
    }

    fn ncclCommUserRank(comm: NcclComm, rank: *mut i32) {
        let comm = query(comm, "CommUserRank", rank, "rank")?;
        put(rank, comm.shape().1)
    }

    fn ncclCommRegister(
        comm: NcclComm,
        buff: *mut c_void,
        size: usize,
        handle: *mut *mut c_void,
    ) {
        given(handle)?;
        if param::number("NCCL_LOCAL_REGISTER", 1) == 0 {
            return put(handle, ptr::null_mut());
        }
        if comm.is_null() {
            put(handle, ptr::null_mut())?;
        }
        let comm = comm::find(comm, "ncclCommRegister")?;
        if comm.config.checks_buffers {
            window::check_buffer(buff as u64, comm.device, "ncclCommRegister", "buff")?;
        }
        put(handle, comm.memory.register(buff as u64, size)?)
    }

    fn ncclCommDeregister(comm: NcclComm, handle: *mut c_void) {
        let comm = comm::find(comm, "ncclCommRegister")?;
        match handle.is_null() {
            true => Ok(()),
            false => comm.memory.deregister(handle),
        }
    }

    fn ncclCommSuspend(comm: NcclComm, flags: i32) {
        let comm = comm::find(comm, "ncclCommSuspend")?;
        comm.ready()?;
        if !window::check_suspend(&comm, flags)? {
            return Ok(());
        }
        group::within_or_started(|| {
            group::add_task(&comm, Box::new(|comm| window::set_suspended(comm, true)));
            Ok(())
        })?;
        comm.answer()
    }

    fn ncclCommResume(comm: NcclComm) {
        let comm = comm::find(comm, "ncclCommResume")?;
        comm.ready()?;
        window::check_resume()?;
        group::within_or_started(|| {
            group::add_task(&comm, Box::new(|comm| window::set_suspended(comm, false)));
            Ok(())
        })?;
        comm.answer()
    }

    fn ncclCommMemStats(comm: NcclComm, stat: NcclCommMemStat, value: *mut u64) {
        let comm = comm::find(comm, "ncclCommMemStats")?;
        comm.ready()?;
        let answer = window::statistic(&comm, stat, value)?;
        put(value, answer)
    }

    fn ncclCommWindowRegister(
        comm: NcclComm,
        buff: *mut c_void,
        size: usize,
        win: *mut NcclWindow,
        win_flags: i32,
    ) {
        let call = "ncclCommWindowRegister";
        let comm = comm::find(comm, call)?;
        not_null(win, call, "win")?;
        let out = Out::new(win);
        out.set(ptr::null_mut());
        if buff.is_null() || size == 0 {
            return Err(refuse(
                INVALID_ARGUMENT,
                format_args!("invalid pointer {buff:?} / size {size}"),
            ));
        }
        if param::number("NCCL_WIN_ENABLE", 1) == 0 {
            return Ok(());
        }
        group::within(|| {
            comm.ready()?;
            comm.link()?;
            let base = buff as u64;
            group::add_task(&comm, Box::new(move |comm| {
                let window = window::register_window(comm, base, size, win_flags)?;
                // SAFETY: the caller keeps the place until the window is there.
                unsafe { out.set(window) };
                Ok(())
            }));
            Ok(())
        })
    }

    fn ncclCommWindowDeregister(comm: NcclComm, win: NcclWindow) {
        let comm = comm::find(comm, "ncclCommWindowDeregister")?;
        match win.is_null() {
            true => Ok(()),
            false => comm.memory.remove_window(win),
        }
    }

    fn ncclWinGetUserPtr(comm: NcclComm, win: NcclWindow, out_user_ptr: *mut *mut c_void) {
        let call = "ncclWinGetUserPtr";
        let comm = comm::find(comm, call)?;
        not_null(out_user_ptr, call, "outUserPtr")?;
        if param::number("NCCL_WIN_ENABLE", 1) == 0 {
            return put(out_user_ptr, ptr::null_mut());
        }
        not_null(win, call, "win")?;
        put(out_user_ptr, comm.memory.window_base(win)?)
    }

    fn ncclRedOpCreatePreMulSum(
        op: *mut NcclRedOp,
        scalar: *mut c_void,
        datatype: NcclDataType,
        residence: NcclScalarResidence,
        comm: NcclComm,
    ) {
        let comm = comm::find(comm, "ncclRedOpCreatePreMulSum")?;
        comm.ready()?;
        // NCCL checks neither pointer.
        given(op)?;
        given(scalar)?;
        let scalar = match residence {
            NcclScalarResidence::HostImmediate => {
                let size = datatype.size().ok_or(NcclResult::InternalError)?;
                let mut bytes = [0; 8];
                bytes.as_mut_ptr().copy_from_nonoverlapping(scalar.cast(), size);
                Scalar::Immediate(bytes)
            }
            _ => Scalar::Device(scalar as u64),
        };
        put(op, lock(&comm.operators).create(datatype, scalar))
    }

    fn ncclRedOpDestroy(op: NcclRedOp, comm: NcclComm) {
        let refused = |reason| Err(refuse(INVALID_ARGUMENT, reason));
        if op.0 < 0 {
            return refused(format_args!("ncclRedOpDestroy :  operator is garbage."));
        }
        if op.0 < NcclRedOp::NumOps.0 {
            return refused(format_args!("ncclRedOpDestroy : operator is a NCCL builtin."));
        }
        if comm.is_null() {
            return refused(format_args!("ncclRedOpDestroy : invalid communicator passed."));
        }
        let comm = comm::find(comm, "ncclRedOpDestroy")?;
        lock(&comm.operators).destroy(op)
    }

    fn ncclReduce(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: NcclDataType,
        op: NcclRedOp,
        root: i32,
        comm: NcclComm,
        stream: CuStream,
    ) {
        let (buffers, elements) = ((sendbuff, recvbuff), (count, datatype));
        let call = collective("Reduce", Kind::Reduce, buffers, elements, (comm, stream));
        Call { op, root, ..call }.enqueue()
    }

    fn ncclBcast(
        buff: *mut c_void,
        count: usize,
        datatype: NcclDataType,
        root: i32,
        comm: NcclComm,
        stream: CuStream,
    ) {
        let (buffers, elements) = ((buff.cast_const(), buff), (count, datatype));
        let call = collective("Broadcast", Kind::Broadcast, buffers, elements, (comm, stream));
        Call { root, ..call }.enqueue()
    }

    fn ncclBroadcast(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: NcclDataType,
        root: i32,
        comm: NcclComm,
        stream: CuStream,
    ) {
        let (buffers, elements) = ((sendbuff, recvbuff), (count, datatype));
        let call = collective("Broadcast", Kind::Broadcast, buffers, elements, (comm, stream));
        Call { root, ..call }.enqueue()
    }

    fn ncclAllReduce(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: NcclDataType,
        op: NcclRedOp,
        comm: NcclComm,
        stream: CuStream,
    ) {
        let (buffers, elements) = ((sendbuff, recvbuff), (count, datatype));
        let call = collective("AllReduce", Kind::AllReduce, buffers, elements, (comm, stream));
        Call { op, ..call }.enqueue()
    }

    fn ncclReduceScatter(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        recvcount: usize,
        datatype: NcclDataType,
        op: NcclRedOp,
        comm: NcclComm,
        stream: CuStream,
    ) {
        let (buffers, elements) = ((sendbuff, recvbuff), (recvcount, datatype));
        let at = (comm, stream);
        let call = collective("ReduceScatter", Kind::ReduceScatter, buffers, elements, at);
        Call { op, ..call }.enqueue()
    }

    fn ncclAllGather(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        sendcount: usize,
        datatype: NcclDataType,
        comm: NcclComm,
        stream: CuStream,
    ) {
        let (buffers, elements) = ((sendbuff, recvbuff), (sendcount, datatype));
        collective("AllGather", Kind::AllGather, buffers, elements, (comm, stream)).enqueue()
    }

    fn ncclAlltoAll(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: NcclDataType,
        comm: NcclComm,
        stream: CuStream,
    ) {
        let (buffers, elements) = ((sendbuff, recvbuff), (count, datatype));
        collective("AlltoAll", Kind::AlltoAll, buffers, elements, (comm, stream)).enqueue()
    }

    fn ncclGather(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: NcclDataType,
        root: i32,
        comm: NcclComm,
        stream: CuStream,
    ) {
        let (buffers, elements) = ((sendbuff, recvbuff), (count, datatype));
        let call = collective("Gather", Kind::Gather, buffers, elements, (comm, stream));
        Call { root, ..call }.enqueue()
    }

    fn ncclScatter(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: NcclDataType,
        root: i32,
        comm: NcclComm,
        stream: CuStream,
    ) {
        let (buffers, elements) = ((sendbuff, recvbuff), (count, datatype));
        let call = collective("Scatter", Kind::Scatter, buffers, elements, (comm, stream));
        Call { root, ..call }.enqueue()
    }

    fn ncclAllReduceConfig(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: NcclDataType,
        op: NcclRedOp,
        comm: NcclComm,
        stream: CuStream,
        config: *const NcclCollConfig,
    ) {
        let config = CollConfig::parse(config)?;
        let (buffers, elements) = ((sendbuff, recvbuff), (count, datatype));
        let call = collective("AllReduce", Kind::AllReduce, buffers, elements, (comm, stream));
        Call { op, config, ..call }.enqueue()
    }

    fn ncclBroadcastConfig(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: NcclDataType,
        root: i32,
        comm: NcclComm,
        stream: CuStream,
        config: *const NcclCollConfig,
    ) {
        let config = CollConfig::parse(config)?;
        let (buffers, elements) = ((sendbuff, recvbuff), (count, datatype));
        let call = collective("Broadcast", Kind::Broadcast, buffers, elements, (comm, stream));
        Call { root, config, ..call }.enqueue()
    }

    fn ncclReduceConfig(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: NcclDataType,
        op: NcclRedOp,
        root: i32,
        comm: NcclComm,
        stream: CuStream,
        config: *const NcclCollConfig,
    ) {
        let config = CollConfig::parse(config)?;
        let (buffers, elements) = ((sendbuff, recvbuff), (count, datatype));
        let call = collective("Reduce", Kind::Reduce, buffers, elements, (comm, stream));
        Call { op, root, config, ..call }.enqueue()
    }

    fn ncclAllGatherConfig(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        sendcount: usize,
        datatype: NcclDataType,
        comm: NcclComm,
        stream: CuStream,
        config: *const NcclCollConfig,
    ) {
        let config = CollConfig::parse(config)?;
        let (buffers, elements) = ((sendbuff, recvbuff), (sendcount, datatype));
        let call = collective("AllGather", Kind::AllGather, buffers, elements, (comm, stream));
        Call { config, ..call }.enqueue()
    }

    fn ncclReduceScatterConfig(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        recvcount: usize,
        datatype: NcclDataType,
        op: NcclRedOp,
        comm: NcclComm,
        stream: CuStream,
        config: *const NcclCollConfig,
    ) {
        let config = CollConfig::parse(config)?;
        let (buffers, elements) = ((sendbuff, recvbuff), (recvcount, datatype));
        let at = (comm, stream);
        let call = collective("ReduceScatter", Kind::ReduceScatter, buffers, elements, at);
        Call { op, config, ..call }.enqueue()
    }

    fn ncclAlltoAllConfig(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: NcclDataType,
        comm: NcclComm,
        stream: CuStream,
        config: *const NcclCollConfig,
    ) {
        let config = CollConfig::parse(config)?;
        let (buffers, elements) = ((sendbuff, recvbuff), (count, datatype));
        let call = collective("AlltoAll", Kind::AlltoAll, buffers, elements, (comm, stream));
        Call { config, ..call }.enqueue()
    }

    fn ncclGatherConfig(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: NcclDataType,
        root: i32,
        comm: NcclComm,
        stream: CuStream,
        config: *const NcclCollConfig,
    ) {
        let config = CollConfig::parse(config)?;
        let (buffers, elements) = ((sendbuff, recvbuff), (count, datatype));
        let call = collective("Gather", Kind::Gather, buffers, elements, (comm, stream));
        Call { root, config, ..call }.enqueue()
    }

    fn ncclScatterConfig(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: NcclDataType,
        root: i32,
        comm: NcclComm,
        stream: CuStream,
        config: *const NcclCollConfig,
    ) {
        let config = CollConfig::parse(config)?;
        let (buffers, elements) = ((sendbuff, recvbuff), (count, datatype));
        let call = collective("Scatter", Kind::Scatter, buffers, elements, (comm, stream));
        Call { root, config, ..call }.enqueue()
    }

    fn ncclSend(
        sendbuff: *const c_void,
        count: usize,
        datatype: NcclDataType,
        peer: i32,
        comm: NcclComm,
        stream: CuStream,
    ) {
        let (buffers, elements) = ((sendbuff, ptr::null_mut()), (count, datatype));
        let call = collective("Send", Kind::Send, buffers, elements, (comm, stream));
        Call { root: peer, ..call }.enqueue()
    }

    fn ncclRecv(
        recvbuff: *mut c_void,
        count: usize,
        datatype: NcclDataType,
        peer: i32,
        comm: NcclComm,
        stream: CuStream,
    ) {
        let (buffers, elements) = ((ptr::null(), recvbuff), (count, datatype));
        let call = collective("Recv", Kind::Recv, buffers, elements, (comm, stream));
        Call { root: peer, ..call }.enqueue()
    }

    fn ncclPutSignal(
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
    ) {
        let (buffers, elements) = ((localbuff, ptr::null_mut()), (count, datatype));
        let call = collective("PutSignal", Kind::Put(NO_SIGNAL), buffers, elements, (comm, stream));
        let one_sided = OneSided {
            window: peer_win as u64,
            offset: peer_win_offset,
            index: sig_idx,
            context: ctx,
            flags,
            descriptors: None,
        };
        Call { root: peer, one_sided, ..call }.enqueue()
    }

    fn ncclSignal(
        peer: i32,
        sig_idx: i32,
        ctx: i32,
        flags: u32,
        comm: NcclComm,
        stream: CuStream,
    ) {
        let call = Call::new("Signal", Kind::Signal(NO_SIGNAL), comm, stream);
        let one_sided = OneSided { index: sig_idx, context: ctx, flags, ..OneSided::default() };
        Call { root: peer, one_sided, ..call }.enqueue()
    }

    fn ncclWaitSignal(
        n_desc: i32,
        signal_descs: *mut NcclWaitSignalDesc,
        comm: NcclComm,
        stream: CuStream,
    ) {
        // A negative number is not refused by NCCL, and nothing to wait for.
        let count = usize::try_from(n_desc).unwrap_or(0);
        let descriptors = match signal_descs.is_null() || n_desc == 0 {
            true => None,
            false => Some(std::slice::from_raw_parts(signal_descs, count).to_vec()),
        };
        let call = Call::new("WaitSignal", Kind::Wait(Vec::new()), comm, stream);
        let one_sided = OneSided { descriptors, ..OneSided::default() };
        Call { one_sided, ..call }.enqueue()
    }

    fn ncclGroupStart() {
        group::start();
        Ok(())
    }

    fn ncclGroupEnd() {
        group::end(None)
    }

    fn ncclGroupSimulateEnd(sim_info: *mut NcclSimInfo) {
        if sim_info.is_null() {
            return group::end(None);
        }
        let check = || config::check_sim_info(sim_info);
        let mut simulation = Simulation {
            check: &|| check().map(drop),
            estimate: None,
        };
        group::end(Some(&mut simulation))?;
        if let Some(estimate) = simulation.estimate {
            if check()? {
                (*sim_info).estimated_time = estimate;
            }
        }
        Ok(())
    }

    fn ncclSetEncryption(config: *const NcclEncryptionConfig) {
        config::set_encryption(config)
    }

    fn ncclParamBind(out: *mut NcclParamHandle, key: *const c_char) {
        given(out)?;
        put(out, param::bind(name(key)?)?)
    }

    fn ncclParamGetI8(h: NcclParamHandle, out: *mut i8) {
        given(out)?;
        param::as_other(h)
    }

    fn ncclParamGetI16(h: NcclParamHandle, out: *mut i16) {
        given(out)?;
        param::as_other(h)
    }

    fn ncclParamGetI32(h: NcclParamHandle, out: *mut i32) {
        given(out)?;
        param::as_other(h)
    }

    fn ncclParamGetI64(h: NcclParamHandle, out: *mut i64) {
        given(out)?;
        param::as_other(h)
    }

    fn ncclParamGetU8(h: NcclParamHandle, out: *mut u8) {
        given(out)?;
        param::as_other(h)
    }

    fn ncclParamGetU16(h: NcclParamHandle, out: *mut u16) {
        given(out)?;
        param::as_other(h)
    }

    fn ncclParamGetU32(h: NcclParamHandle, out: *mut u32) {
        given(out)?;
        put(out, param::as_u32(h)?)
    }

    fn ncclParamGetU64(h: NcclParamHandle, out: *mut u64) {
        given(out)?;
        put(out, param::as_u64(h)?)
    }

    fn ncclParamGetStr(h: NcclParamHandle, out: *mut *const c_char) {
        given(out)?;
        put(out, param::as_text(h)?)
    }

    fn ncclParamGet(h: NcclParamHandle, out: *mut c_void, max_len: i32, len: *mut i32) {
        given(out)?;
        given(len)?;
        if h.is_null() || max_len <= 0 {
            return Err(INVALID_ARGUMENT);
        }
        let bytes = param::as_bytes(h)?;
        let copied = param::copy_out(&bytes, out, max_len);
        put(len, copied.unwrap_or(0))?;
        copied.map(drop)
    }

    fn ncclParamGetParameter(
        key: *const c_char,
        value: *mut *const c_char,
        value_len: *mut i32,
    ) {
        given(value)?;
        given(value_len)?;
        let described = param::described(name(key)?);
        let (text, length) = described.unwrap_or((ptr::null(), 0));
        put(value, text)?;
        put(value_len, length)?;
        described.map(drop)
    }

    fn ncclParamGetAllParameterKeys(table: *mut *mut *const c_char, table_len: *mut i32) {
        given(table)?;
        given(table_len)?;
        let (keys, length) = param::keys();
        put(table, keys)?;
        put(table_len, length)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetErrorString(result: NcclResult) -> *const c_char {
    error::text(result).as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetLastError(_comm: NcclComm) -> *const c_char {
    error::latest()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclResetDebugInit() {
    param::reset_debug();
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclParamDumpAll() {
    // A panic must not cross into C; there is nobody to tell.
    let _ = catch_unwind(param::dump);
}

const _: unsafe extern "C" fn(NcclResult) -> *const c_char = crate::nccl::ncclGetErrorString;
const _: unsafe extern "C" fn(NcclComm) -> *const c_char = crate::nccl::ncclGetLastError;
#[allow(deprecated)]
const _: unsafe extern "C" fn() = crate::nccl::ncclResetDebugInit;
const _: unsafe extern "C" fn() = crate::nccl::ncclParamDumpAll;

#[cfg(test)]
mod tests {
    use super::NAMES;

    #[test]
    fn every_declared_function_is_here() {
        let others = [
            "ncclGetErrorString",
            "ncclGetLastError",
            "ncclResetDebugInit",
            "ncclParamDumpAll",
        ];
        let declared = crate::nccl::FUNCTIONS
            .iter()
            .filter(|name| !others.contains(name));
        assert!(declared.eq(NAMES));
    }
}
