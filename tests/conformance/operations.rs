//! The collectives, send and receive as one table, and what each leaves in memory.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use crate::calls::*;
use crate::world::{ANY, Need};

/// The arguments of any of them; each takes those that it has.
#[derive(Clone, Copy)]
pub struct Arguments {
    pub send: *const c_void,
    pub recv: *mut c_void,
    pub count: usize,
    pub datatype: NcclDataType,
    pub op: NcclRedOp,
    /// Root or peer.
    pub root: i32,
    pub comm: NcclComm,
    pub stream: CuStream,
}

impl Arguments {
    /// Good ones but for the buffers and the count, which are nothing.
    pub fn new(comm: NcclComm, stream: CuStream) -> Self {
        Self {
            send: null(),
            recv: null_mut(),
            count: 0,
            datatype: NcclDataType::Int32,
            op: NcclRedOp::Sum,
            root: 0,
            comm,
            stream,
        }
    }
}

type WithConfig = fn(&Arguments, *const NcclCollConfig) -> NcclResult;

pub struct Operation {
    pub name: &'static str,
    pub call: fn(&Arguments) -> NcclResult,
    /// The form with a config of its own, and its name.
    pub with_config: Option<(&'static str, WithConfig)>,
    pub reduces: bool,
    pub rooted: bool,
    pub kind: Kind,
    pub need: Need,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    AllReduce,
    Broadcast,
    Bcast,
    Reduce,
    AllGather,
    ReduceScatter,
    AlltoAll,
    Gather,
    Scatter,
    Send,
    Recv,
}

const PLAIN: Operation = Operation {
    name: "",
    call: |_| NcclResult::Success,
    with_config: None,
    reduces: false,
    rooted: false,
    kind: Kind::AllReduce,
    need: ANY,
};

pub const OPERATIONS: [Operation; 11] = [
    Operation {
        name: "all_reduce",
        call: |a| ncclAllReduce(a.send, a.recv, a.count, a.datatype, a.op, a.comm, a.stream),
        with_config: Some(("ncclAllReduceConfig", |a, config| {
            ncclAllReduceConfig(
                a.send, a.recv, a.count, a.datatype, a.op, a.comm, a.stream, config,
            )
        })),
        reduces: true,
        ..PLAIN
    },
    Operation {
        name: "broadcast",
        call: |a| {
            ncclBroadcast(
                a.send, a.recv, a.count, a.datatype, a.root, a.comm, a.stream,
            )
        },
        with_config: Some(("ncclBroadcastConfig", |a, config| {
            ncclBroadcastConfig(
                a.send, a.recv, a.count, a.datatype, a.root, a.comm, a.stream, config,
            )
        })),
        rooted: true,
        kind: Kind::Broadcast,
        ..PLAIN
    },
    Operation {
        name: "bcast",
        call: |a| ncclBcast(a.recv, a.count, a.datatype, a.root, a.comm, a.stream),
        rooted: true,
        kind: Kind::Bcast,
        ..PLAIN
    },
    Operation {
        name: "reduce",
        call: |a| {
            ncclReduce(
                a.send, a.recv, a.count, a.datatype, a.op, a.root, a.comm, a.stream,
            )
        },
        with_config: Some(("ncclReduceConfig", |a, config| {
            ncclReduceConfig(
                a.send, a.recv, a.count, a.datatype, a.op, a.root, a.comm, a.stream, config,
            )
        })),
        reduces: true,
        rooted: true,
        kind: Kind::Reduce,
        ..PLAIN
    },
    Operation {
        name: "all_gather",
        call: |a| ncclAllGather(a.send, a.recv, a.count, a.datatype, a.comm, a.stream),
        with_config: Some(("ncclAllGatherConfig", |a, config| {
            ncclAllGatherConfig(
                a.send, a.recv, a.count, a.datatype, a.comm, a.stream, config,
            )
        })),
        kind: Kind::AllGather,
        ..PLAIN
    },
    Operation {
        name: "reduce_scatter",
        call: |a| ncclReduceScatter(a.send, a.recv, a.count, a.datatype, a.op, a.comm, a.stream),
        with_config: Some(("ncclReduceScatterConfig", |a, config| {
            ncclReduceScatterConfig(
                a.send, a.recv, a.count, a.datatype, a.op, a.comm, a.stream, config,
            )
        })),
        reduces: true,
        kind: Kind::ReduceScatter,
        ..PLAIN
    },
    Operation {
        name: "all_to_all",
        call: |a| ncclAlltoAll(a.send, a.recv, a.count, a.datatype, a.comm, a.stream),
        with_config: Some(("ncclAlltoAllConfig", |a, config| {
            ncclAlltoAllConfig(
                a.send, a.recv, a.count, a.datatype, a.comm, a.stream, config,
            )
        })),
        kind: Kind::AlltoAll,
        need: ANY.calls("ncclAlltoAll"),
        ..PLAIN
    },
    Operation {
        name: "gather",
        call: |a| {
            ncclGather(
                a.send, a.recv, a.count, a.datatype, a.root, a.comm, a.stream,
            )
        },
        with_config: Some(("ncclGatherConfig", |a, config| {
            ncclGatherConfig(
                a.send, a.recv, a.count, a.datatype, a.root, a.comm, a.stream, config,
            )
        })),
        rooted: true,
        kind: Kind::Gather,
        need: ANY.calls("ncclGather"),
        ..PLAIN
    },
    Operation {
        name: "scatter",
        call: |a| {
            ncclScatter(
                a.send, a.recv, a.count, a.datatype, a.root, a.comm, a.stream,
            )
        },
        with_config: Some(("ncclScatterConfig", |a, config| {
            ncclScatterConfig(
                a.send, a.recv, a.count, a.datatype, a.root, a.comm, a.stream, config,
            )
        })),
        rooted: true,
        kind: Kind::Scatter,
        need: ANY.calls("ncclScatter"),
        ..PLAIN
    },
    Operation {
        name: "send",
        call: |a| ncclSend(a.send, a.count, a.datatype, a.root, a.comm, a.stream),
        rooted: true,
        kind: Kind::Send,
        ..PLAIN
    },
    Operation {
        name: "recv",
        call: |a| ncclRecv(a.recv, a.count, a.datatype, a.root, a.comm, a.stream),
        rooted: true,
        kind: Kind::Recv,
        ..PLAIN
    },
];

/// Those in which every rank takes part.
pub fn collectives() -> impl Iterator<Item = &'static Operation> {
    OPERATIONS
        .iter()
        .filter(|operation| operation.is_collective())
}

impl Operation {
    pub fn is_collective(&self) -> bool {
        !matches!(self.kind, Kind::Send | Kind::Recv)
    }

    /// Elements of a rank's two buffers, for `count` elements asked for.
    pub fn sizes(&self, nranks: usize, count: usize) -> (usize, usize) {
        match self.kind {
            Kind::AllGather | Kind::Gather => (count, nranks * count),
            Kind::ReduceScatter | Kind::Scatter => (nranks * count, count),
            Kind::AlltoAll => (nranks * count, nranks * count),
            _ => (count, count),
        }
    }

    /// What `rank` finds at `index` of its receive buffer; `None` where nothing is written.
    ///
    /// `input` tells what a rank's send buffer holds at an index.
    pub fn expected(
        &self,
        nranks: usize,
        rank: usize,
        root: usize,
        count: usize,
        index: usize,
        input: impl Fn(usize, usize) -> i32,
    ) -> Option<i32> {
        let sum = |index| (0..nranks).fold(0i32, |sum, rank| sum.wrapping_add(input(rank, index)));
        match self.kind {
            Kind::AllReduce => Some(sum(index)),
            Kind::Broadcast | Kind::Bcast => Some(input(root, index)),
            Kind::Reduce => (rank == root).then(|| sum(index)),
            Kind::AllGather => Some(input(index / count, index % count)),
            Kind::ReduceScatter => Some(sum(rank * count + index)),
            Kind::AlltoAll => Some(input(index / count, rank * count + index % count)),
            Kind::Gather => (rank == root).then(|| input(index / count, index % count)),
            Kind::Scatter => Some(input(root, rank * count + index)),
            Kind::Send | Kind::Recv => None,
        }
    }

    /// Where the two buffers begin in one region of memory for the call to be in place on this rank, in
    /// elements; `None` where there is no such form.
    pub fn in_place(&self, rank: usize, root: usize, count: usize) -> Option<(usize, usize)> {
        match self.kind {
            Kind::AllReduce | Kind::Broadcast | Kind::Bcast | Kind::Reduce => Some((0, 0)),
            Kind::AllGather => Some((rank * count, 0)),
            Kind::ReduceScatter => Some((0, rank * count)),
            Kind::Gather if rank == root => Some((root * count, 0)),
            Kind::Scatter if rank == root => Some((0, root * count)),
            _ => None,
        }
    }
}
