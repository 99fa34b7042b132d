//! Calls that move data: their checks, in NCCL's order.

use std::sync::Arc;

use super::arithmetic;
use super::comm::{self, Comm};
use super::config::CollConfig;
use super::error::{INVALID_ARGUMENT, INVALID_USAGE, Outcome, cuda_failure, lock, refuse};
use super::exchange::{Expected, Kind, Operator, Request, Signal};
use super::group;
use super::transfer;
use super::window;
use crate::cuda::{CuResult, CuStream};
use crate::emulator::cuda;
use crate::nccl::{NcclComm, NcclDataType, NcclRedOp, NcclWaitSignalDesc, NcclWindow};

/// A call, as the program makes it.
pub(super) struct Call {
    /// The name under which NCCL speaks of it.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) send: u64,
    pub(super) recv: u64,
    pub(super) count: usize,
    pub(super) datatype: NcclDataType,
    pub(super) op: NcclRedOp,
    /// The root or the peer; 0 where there is none.
    pub(super) root: i32,
    pub(super) comm: NcclComm,
    pub(super) stream: CuStream,
    pub(super) config: CollConfig,
    pub(super) one_sided: OneSided,
}

/// What a one-sided call says beside the rest.
#[derive(Default)]
pub(super) struct OneSided {
    pub(super) window: u64,
    pub(super) offset: usize,
    pub(super) index: i32,
    pub(super) context: i32,
    pub(super) flags: u32,
    /// What to wait for; none if the call gave nothing.
    pub(super) descriptors: Option<Vec<NcclWaitSignalDesc>>,
}

impl Call {
    /// A call that moves nothing, yet.
    pub(super) fn new(name: &'static str, kind: Kind, comm: NcclComm, stream: CuStream) -> Self {
        Self {
            name,
            kind,
            send: 0,
            recv: 0,
            count: 0,
            datatype: NcclDataType::Int8,
            op: NcclRedOp::Sum,
            root: 0,
            comm,
            stream,
            config: CollConfig::default(),
            one_sided: OneSided::default(),
        }
    }

    /// Checks the call and carries it out, or puts it off to the end of the group that is open.
    pub(super) fn enqueue(self) -> Outcome {
        let comm = comm::find(self.comm, self.name).map_err(group::record)?;
        if comm.is_revoked() {
            let code = refuse(
                INVALID_USAGE,
                format_args!("{}: communicator was revoked", self.name),
            );
            return Err(group::record(code));
        }
        group::within_or_started(|| self.add(&comm).map_err(|code| comm.spoil(code)))?;
        comm.answer()
    }

    fn add(self, comm: &Arc<Comm>) -> Outcome {
        comm.ready()?;
        let (size, rank) = comm.shape();
        let call = self.name;
        let refused = |reason| Err(refuse(INVALID_ARGUMENT, reason));
        if self.root < 0 || self.root >= size {
            return refused(format_args!(
                "{call} : invalid root {} (root should be in the 0..{size} range)",
                self.root
            ));
        }
        let Some(element) = self.datatype.size() else {
            return refused(format_args!("{call} : invalid type {}", self.datatype.0));
        };
        let (operator, only_type) = lock(&comm.operators).find(self.op, call)?;
        comm.link()?;
        if comm.config.checks_buffers {
            self.check_buffers(comm, rank)?;
        }
        let rooted = self.root == rank;
        let (sends, receives) = match self.kind {
            Kind::Broadcast | Kind::Scatter => (rooted, true),
            Kind::Reduce | Kind::Gather => (true, rooted),
            _ => (true, true),
        };
        let request = Request {
            kind: self.kind.clone(),
            send: if sends { self.send } else { 0 },
            recv: if receives { self.recv } else { 0 },
            count: self.count,
            datatype: self.datatype,
            operator,
            peer: self.root as usize,
            stream: self.stream,
        };
        match self.kind {
            Kind::Send | Kind::Recv => return group::add_call(comm, request, 0),
            Kind::Put(_) | Kind::Signal(_) | Kind::Wait(_) => {
                let request = self.one_sided.complete(comm, request)?;
                return group::add_call(comm, request, 0);
            }
            _ => {}
        }
        if self.count == 0 {
            return Ok(());
        }
        self.config.check(&self.kind, call)?;
        if only_type.is_some_and(|only| only != self.datatype) {
            return refused(format_args!(
                "{call} : data type {} does not match the type with which the operator was made",
                self.datatype.0
            ));
        }
        if size > 1 {
            return group::add_call(comm, request, self.config.event);
        }
        let multiplies = match operator {
            Operator::PreMulSum(_) => true,
            Operator::Avg => arithmetic::is_float(self.datatype),
            _ => false,
        };
        if multiplies && element == 1 && arithmetic::is_float(self.datatype) {
            return refused(format_args!(
                "{call} : this operator has no 8-bit floating-point form for one rank"
            ));
        }
        launch_alone(comm, request, multiplies)
    }

    /// The buffers that this rank uses are memory of the device, or of the host and known to it.
    fn check_buffers(&self, comm: &Comm, rank: i32) -> Outcome {
        let check = |address, name| window::check_buffer(address, comm.device, self.name, name);
        let rooted = self.root == rank;
        match self.kind {
            Kind::Put(_) | Kind::Signal(_) | Kind::Wait(_) => return Ok(()),
            Kind::Send | Kind::Recv if self.count == 0 => return Ok(()),
            Kind::Send => return check(self.send, "buff"),
            Kind::Recv => return check(self.recv, "buff"),
            _ => {}
        }
        if self.kind != Kind::Broadcast || rooted {
            check(self.send, "sendbuff")?;
        }
        if self.kind != Kind::Reduce || rooted {
            check(self.recv, "recvbuff")?;
        }
        Ok(())
    }
}

/// Runs a collective of a communicator's only rank: a copy, done at once whatever groups are open.
fn launch_alone(comm: &Arc<Comm>, request: Request, multiplies: bool) -> Outcome {
    if !multiplies {
        if request.send == request.recv {
            return Ok(());
        }
        if transfer::one_rank_fault(&request) {
            return Err(cuda_failure(CuResult::InvalidValue));
        }
    }
    let link = comm.link()?;
    let stream = request.stream;
    let exchange = link.exchange.clone();
    let work = transfer::work(exchange, link.rank, comm.device, vec![request]);
    cuda::enqueue(stream, comm.device, work).map_err(cuda_failure)
}

impl OneSided {
    /// Checks a one-sided call, and fills in what it is.
    fn complete(self, comm: &Comm, mut request: Request) -> Outcome<Request> {
        let (contexts, signals) = (comm.config.contexts, comm.config.signals);
        fn refused<T>(reason: std::fmt::Arguments<'_>) -> Outcome<T> {
            Err(refuse(INVALID_ARGUMENT, reason))
        }
        if contexts == 0 {
            return refused(format_args!(
                "One sided RMA: host RMA is not supported in this communicator."
            ));
        }
        let check = |context, index| {
            if !(0..contexts).contains(&context) {
                return refused(format_args!(
                    "Context {context} is invalid (must be in [0, {contexts}))"
                ));
            }
            if !(0..signals).contains(&index) {
                return refused(format_args!(
                    "Signal index {index} is invalid (must be in [0, {signals}))"
                ));
            }
            Ok(())
        };
        check(self.context, self.index)?;
        if self.flags != 0 {
            return refused(format_args!("Flags {} is invalid (must be 0)", self.flags));
        }
        let signal = Signal {
            context: self.context,
            index: self.index,
        };
        match &mut request.kind {
            Kind::Put(raised) => {
                if self.window == 0 {
                    return refused(format_args!("ncclPutSignal: peerWin is NULL"));
                }
                let base = comm
                    .memory
                    .window_at(self.window as NcclWindow, request.peer)?;
                if request.send == 0 {
                    return refused(format_args!("ncclPutSignal: srcBuff is NULL"));
                }
                if !comm.memory.is_symmetric(request.send) {
                    return refused(format_args!(
                        "ncclPutSignal: srcBuff is not in a valid symmetric window"
                    ));
                }
                request.recv = base.wrapping_add(self.offset as u64);
                *raised = signal;
                return Ok(request);
            }
            Kind::Signal(raised) => *raised = signal,
            Kind::Wait(expected) => {
                let Some(descriptors) = self.descriptors else {
                    return refused(format_args!("ncclWaitSignal: invalid arguments"));
                };
                for one in descriptors {
                    if one.op_cnt <= 0 {
                        return refused(format_args!(
                            "ncclWaitSignal: invalid opCnt {}",
                            one.op_cnt
                        ));
                    }
                    check(one.ctx, one.sig_idx)?;
                    expected.push(Expected {
                        peer: one.peer,
                        signal: Signal {
                            context: one.ctx,
                            index: one.sig_idx,
                        },
                        times: one.op_cnt as u64,
                    });
                }
            }
            _ => {}
        }
        if !comm.config.eager && !comm.memory.knows_signals() {
            return Err(refuse(
                INVALID_USAGE,
                format_args!(
                    "no signals yet: register a window first, or set NCCL_RMA_EAGER_INIT=1"
                ),
            ));
        }
        Ok(request)
    }
}
