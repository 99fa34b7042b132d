//! What each operation moves, what it must leave behind, and how its bus bandwidth is reckoned.

use std::ffi::c_void;

use metrale_gpu_sys::cuda::{CuDevicePtr, CuStream};
use metrale_gpu_sys::nccl::*;

use super::values::Reduction;

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    Reduce,
    AllToAll,
    SendRecv,
}

use Operation::*;

/// Every operation, by its name on the command line.
pub const OPERATIONS: [(&str, Operation); 7] = [
    ("all-reduce", AllReduce),
    ("all-gather", AllGather),
    ("reduce-scatter", ReduceScatter),
    ("broadcast", Broadcast),
    ("reduce", Reduce),
    ("all-to-all", AllToAll),
    ("send-recv", SendRecv),
];

/// Elements of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// What NCCL's function is given.
    pub count: usize,
    pub send: usize,
    pub recv: usize,
}

impl Counts {
    /// The larger side: the size that the table names, and of which the bandwidths are.
    pub fn larger(self) -> usize {
        self.send.max(self.recv)
    }
}

/// One rank's part in an operation.
#[derive(Clone, Copy)]
pub struct Part {
    pub operation: Operation,
    pub reduction: Reduction,
    pub root: i32,
    pub rank: i32,
}

impl Operation {
    pub fn reduces(self) -> bool {
        matches!(self, AllReduce | ReduceScatter | Reduce)
    }

    pub fn has_root(self) -> bool {
        matches!(self, Broadcast | Reduce)
    }

    /// Whether a rank's result in place is defined. What is sent and received at once is overwritten
    /// while it is read.
    pub fn is_right_in_place(self) -> bool {
        !matches!(self, AllToAll | SendRecv)
    }

    /// The elements of an operation of at most `bytes`. Where each rank has a part of its own, parts are
    /// of whole 16 bytes, which keeps them aligned.
    pub fn counts(self, bytes: usize, element: usize, nranks: usize) -> Counts {
        let whole = bytes / element;
        let part = (whole / nranks) & !(16 / element - 1);
        let (count, send, recv) = match self {
            AllReduce | Broadcast | Reduce | SendRecv => (whole, whole, whole),
            AllGather => (part, part, part * nranks),
            ReduceScatter => (part, part * nranks, part),
            AllToAll => (part, part * nranks, part * nranks),
        };
        Counts { count, send, recv }
    }

    /// Bus bandwidth over algorithm bandwidth: the share of the data that must cross the slowest link.
    pub fn busbw_factor(self, nranks: i32) -> f64 {
        let n = f64::from(nranks);
        match self {
            AllReduce => 2.0 * (n - 1.0) / n,
            AllGather | ReduceScatter | AllToAll => (n - 1.0) / n,
            Broadcast | Reduce | SendRecv => 1.0,
        }
    }
}

impl Part {
    /// In place, where in the receive buffer the rank's input and its result begin, in elements.
    pub fn offsets_in_place(self, counts: Counts) -> (usize, usize) {
        let own = self.rank as usize * counts.count;
        match self.operation {
            AllGather => (own, 0),
            ReduceScatter => (0, own),
            _ => (0, 0),
        }
    }

    /// The element that must stand at `index` of the result, and how far off it may be.
    pub fn expected(self, counts: Counts, index: usize) -> (f64, f64) {
        let nranks = self.reduction.nranks;
        let count = counts.count;
        let sent_by = |rank, index| (self.reduction.input(rank, index), 0.0);
        match self.operation {
            AllReduce | Reduce => self.reduction.expected(index),
            ReduceScatter => (self.reduction).expected(self.rank as usize * count + index),
            AllGather => sent_by((index / count) as i32, index % count),
            Broadcast => sent_by(self.root, index),
            AllToAll => sent_by(
                (index / count) as i32,
                self.rank as usize * count + index % count,
            ),
            SendRecv => sent_by((self.rank + nranks - 1) % nranks, index),
        }
    }

    /// Whether this rank has a result.
    pub fn has_result(self) -> bool {
        self.operation != Reduce || self.rank == self.root
    }

    /// How many elements of a result are wrong.
    pub fn wrong(self, counts: Counts, result: &[u8]) -> u64 {
        let size = self.reduction.datatype.size();
        let elements = result.chunks_exact(size.expect("every type on offer has a size"));
        let mut wrong = 0;
        for (index, element) in elements.enumerate() {
            let (expected, tolerance) = self.expected(counts, index);
            let right = (self.reduction.decode(element) - expected).abs() <= tolerance;
            wrong += u64::from(!right);
        }
        wrong
    }

    /// Enqueues the operation once.
    ///
    /// # Safety
    ///
    /// `comm` is live and this thread's, and `stream` is of its device, on which `send` and `recv` have room for
    /// as many elements as `counts` says.
    pub unsafe fn enqueue(
        self,
        counts: Counts,
        send: CuDevicePtr,
        recv: CuDevicePtr,
        comm: NcclComm,
        stream: CuStream,
    ) -> anyhow::Result<()> {
        let (from, to) = (send as *const c_void, recv as *mut c_void);
        let (count, root) = (counts.count, self.root);
        let Reduction { datatype, op, .. } = self.reduction;
        // SAFETY: the caller vouches for all of them.
        let (result, name) = unsafe {
            match self.operation {
                AllReduce => (
                    ncclAllReduce(from, to, count, datatype, op, comm, stream),
                    "ncclAllReduce",
                ),
                AllGather => (
                    ncclAllGather(from, to, count, datatype, comm, stream),
                    "ncclAllGather",
                ),
                ReduceScatter => (
                    ncclReduceScatter(from, to, count, datatype, op, comm, stream),
                    "ncclReduceScatter",
                ),
                Broadcast => (
                    ncclBroadcast(from, to, count, datatype, root, comm, stream),
                    "ncclBroadcast",
                ),
                Reduce => (
                    ncclReduce(from, to, count, datatype, op, root, comm, stream),
                    "ncclReduce",
                ),
                AllToAll | SendRecv => return self.exchange(counts, send, recv, comm, stream),
            }
        };
        check_nccl(result, name)
    }

    /// Sends and receives in one group, which is ended whatever happens in it.
    ///
    /// # Safety
    ///
    /// As for [`enqueue`](Self::enqueue).
    unsafe fn exchange(
        self,
        counts: Counts,
        send: CuDevicePtr,
        recv: CuDevicePtr,
        comm: NcclComm,
        stream: CuStream,
    ) -> anyhow::Result<()> {
        let Reduction {
            datatype, nranks, ..
        } = self.reduction;
        let count = counts.count;
        let bytes = count * datatype.size().expect("every type on offer has a size");
        let one = |to: i32, from: i32, offset: usize| {
            let source = (send as usize + offset) as *const c_void;
            let target = (recv as usize + offset) as *mut c_void;
            // SAFETY: the caller vouches for all of them, and the part at `offset` is within the buffers.
            unsafe {
                check_nccl(
                    ncclSend(source, count, datatype, to, comm, stream),
                    "ncclSend",
                )?;
                check_nccl(
                    ncclRecv(target, count, datatype, from, comm, stream),
                    "ncclRecv",
                )
            }
        };
        // SAFETY: takes nothing.
        check_nccl(unsafe { ncclGroupStart() }, "ncclGroupStart")?;
        let sent = if self.operation == AllToAll {
            (0..nranks).try_for_each(|peer| one(peer, peer, peer as usize * bytes))
        } else {
            let (next, previous) = (self.rank + 1, self.rank + nranks - 1);
            one(next % nranks, previous % nranks, 0)
        };
        // SAFETY: this thread has started the group.
        let ended = check_nccl(unsafe { ncclGroupEnd() }, "ncclGroupEnd");
        sent.and(ended)
    }
}
