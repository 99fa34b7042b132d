//! Stream capture: streams that fill a graph instead of running.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::context::{self, Context};
use super::graph::{self, Graph};
use super::lock;
use super::stream::{Kind, Stream, Work};
use crate::cuda::{
    CU_STREAM_ADD_CAPTURE_DEPENDENCIES, CU_STREAM_SET_CAPTURE_DEPENDENCIES, CuGraph,
    CuGraphEdgeData, CuGraphNode, CuResult, CuStreamCaptureMode, CuStreamCaptureStatus,
};

/// What a node does, in so far as another node may take its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Label {
    Kernel,
    Copy,
    Set,
    Host,
    Record,
    Wait,
    Word,
    Allocation,
    Release,
}

/// One capture, from its begin to its end, in all streams that took part.
pub(super) struct Capture {
    /// Never used again in this process.
    pub id: u64,
    pub graph: Arc<Graph>,
    mode: CuStreamCaptureMode,
    /// The thread that began it.
    thread: u64,
    /// The stream that it began on.
    origin: u64,
    /// Whether the graph was the program's before.
    lent: bool,
    state: Mutex<State>,
}

struct State {
    /// None once it has ended.
    status: CuStreamCaptureStatus,
    members: Vec<Arc<Stream>>,
    /// By the stream's id: the nodes that its next one will depend on.
    frontier: BTreeMap<u64, Vec<usize>>,
}

/// The captures that have not ended, spoiled ones too.
static ONGOING: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());
/// How many there are, so that calls outside of captures need no lock.
static ONGOING_COUNT: AtomicUsize = AtomicUsize::new(0);

fn ongoing() -> Vec<Arc<Capture>> {
    match ONGOING_COUNT.load(Ordering::Acquire) {
        0 => Vec::new(),
        _ => lock(&ONGOING).clone(),
    }
}

/// Begins a capture on `stream`, into the program's graph if it gives one.
pub(super) fn begin(
    stream: &Arc<Stream>,
    mode: CuStreamCaptureMode,
    into: Option<(Arc<Graph>, Vec<usize>)>,
) -> Result<(), CuResult> {
    static NEXT_ID: AtomicU64 = AtomicU64::new(1);
    if stream.kind == Kind::Legacy {
        return Err(CuResult::StreamCaptureUnsupported);
    }
    if mode.c_name().is_none() {
        return Err(CuResult::InvalidValue);
    }
    let mut own = lock(&stream.capture);
    if own.is_some() {
        return Err(CuResult::IllegalState);
    }
    let lent = into.is_some();
    let (graph, dependencies) = into.unwrap_or_else(|| (graph::create(), Vec::new()));
    let capture = Arc::new(Capture {
        id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        graph,
        mode,
        thread: context::thread_number(),
        origin: stream.id,
        lent,
        state: Mutex::new(State {
            status: CuStreamCaptureStatus::Active,
            members: vec![stream.clone()],
            frontier: BTreeMap::from([(stream.id, dependencies)]),
        }),
    });
    *own = Some(capture.clone());
    drop(own);
    let mut ongoing = lock(&ONGOING);
    ongoing.push(capture);
    ONGOING_COUNT.store(ongoing.len(), Ordering::Release);
    Ok(())
}

/// Ends the capture that began on `stream`.
pub(super) fn end(stream: &Arc<Stream>) -> Result<Arc<Graph>, CuResult> {
    let capture = stream.captured().ok_or(CuResult::IllegalState)?;
    if capture.origin != stream.id {
        capture.invalidate();
        return Err(CuResult::StreamCaptureUnmatched);
    }
    let elsewhere =
        capture.mode != CuStreamCaptureMode::Relaxed && capture.thread != context::thread_number();
    let result = if elsewhere {
        Err(CuResult::StreamCaptureWrongThread)
    } else {
        capture.check().and_then(|()| match capture.is_joined() {
            true => Ok(capture.graph.clone()),
            false => Err(CuResult::StreamCaptureUnjoined),
        })
    };
    capture.close();
    if result.is_err() && !capture.lent {
        graph::forget(&capture.graph);
    }
    result
}

/// Takes a stream that is being destroyed out of its capture, which ends with the stream that it
/// began on.
pub(super) fn leave(stream: &Arc<Stream>) {
    let Some(capture) = stream.captured() else {
        return;
    };
    if capture.origin == stream.id {
        capture.close();
        if !capture.lent {
            graph::forget(&capture.graph);
        }
        return;
    }
    *lock(&stream.capture) = None;
    lock(&capture.state)
        .members
        .retain(|member| member.id != stream.id);
}

/// Adds to what the next node of `stream` depends on: `nodes` of `capture`, which it joins if it is
/// in none.
pub(super) fn depend(
    stream: &Arc<Stream>,
    own: Option<&Arc<Capture>>,
    capture: &Arc<Capture>,
    nodes: &[usize],
) -> Result<(), CuResult> {
    match own {
        Some(own) if own.id == capture.id => capture.extend(stream, nodes),
        Some(own) => {
            own.invalidate();
            capture.invalidate();
            Err(CuResult::StreamCaptureMerge)
        }
        None if stream.kind == Kind::Legacy => {
            capture.invalidate();
            Err(CuResult::StreamCaptureImplicit)
        }
        None => {
            *lock(&stream.capture) = Some(capture.clone());
            lock(&capture.state).members.push(stream.clone());
            capture.extend(stream, nodes)
        }
    }
}

impl Capture {
    pub(super) fn is_active(&self) -> bool {
        lock(&self.state).status == CuStreamCaptureStatus::Active
    }

    pub(super) fn check(&self) -> Result<(), CuResult> {
        match self.is_active() {
            true => Ok(()),
            false => Err(CuResult::StreamCaptureInvalidated),
        }
    }

    /// Spoils it: its end will fail.
    pub(super) fn invalidate(&self) {
        let mut state = lock(&self.state);
        if state.status == CuStreamCaptureStatus::Active {
            state.status = CuStreamCaptureStatus::Invalidated;
        }
    }

    /// Frees all its streams.
    fn close(&self) {
        let members = {
            let mut state = lock(&self.state);
            state.status = CuStreamCaptureStatus::None;
            std::mem::take(&mut state.members)
        };
        for member in members {
            *lock(&member.capture) = None;
        }
        let mut ongoing = lock(&ONGOING);
        ongoing.retain(|other| other.id != self.id);
        ONGOING_COUNT.store(ongoing.len(), Ordering::Release);
    }

    /// Adds a node that comes after what `stream` has added, and returns its place.
    pub(super) fn add(
        &self,
        stream: &Stream,
        work: Arc<dyn Work>,
        label: Label,
    ) -> Result<usize, CuResult> {
        self.check()?;
        let mut state = lock(&self.state);
        let frontier = state.frontier.entry(stream.id).or_default();
        let node = self.graph.add(work, label, std::mem::take(frontier));
        frontier.push(node);
        Ok(node)
    }

    /// The nodes that the next one of `stream` will depend on.
    pub(super) fn frontier(&self, stream: &Stream) -> Result<Vec<usize>, CuResult> {
        self.check()?;
        let state = lock(&self.state);
        Ok(state.frontier.get(&stream.id).cloned().unwrap_or_default())
    }

    fn extend(&self, stream: &Stream, nodes: &[usize]) -> Result<(), CuResult> {
        self.check()?;
        let mut state = lock(&self.state);
        merge(state.frontier.entry(stream.id).or_default(), nodes);
        Ok(())
    }

    /// Makes all these streams, which take part, wait for each other.
    pub(super) fn join(&self, streams: &[Arc<Stream>]) -> Result<(), CuResult> {
        self.check()?;
        let mut all = Vec::new();
        for stream in streams {
            merge(&mut all, &self.frontier(stream)?);
        }
        let mut state = lock(&self.state);
        for stream in streams {
            state.frontier.insert(stream.id, all.clone());
        }
        Ok(())
    }

    /// Whether all that the other streams did comes before what the first one will do next.
    fn is_joined(&self) -> bool {
        let state = lock(&self.state);
        let last = state.frontier.get(&self.origin);
        let joined = self.graph.ancestors(last.map_or(&[], Vec::as_slice));
        state.frontier.values().flatten().all(|node| joined[*node])
    }

    /// Whether one of its streams would have to wait for the context's legacy stream.
    fn blocks_legacy(&self, context: &Context) -> bool {
        let state = lock(&self.state);
        let mut members = state.members.iter();
        members
            .any(|stream| stream.kind == Kind::Blocking && std::ptr::eq(&*stream.context, context))
    }

    fn is_in(&self, context: &Context) -> bool {
        let state = lock(&self.state);
        let mut members = state.members.iter();
        members.any(|stream| std::ptr::eq(&*stream.context, context))
    }
}

/// Adds what is not there yet.
fn merge(nodes: &mut Vec<usize>, more: &[usize]) {
    for node in more {
        if !nodes.contains(node) {
            nodes.push(*node);
        }
    }
}

/// Refuses a call that could get in the way of a capture, and spoils the captures that say so:
/// those of other threads in global mode, and those of this thread that are not relaxed, as this
/// thread's own mode leaves them.
pub(super) fn check_unsafe() -> Result<(), CuResult> {
    let ongoing = ongoing();
    if ongoing.is_empty() {
        return Ok(());
    }
    let own_mode = CuStreamCaptureMode(context::capture_mode());
    let thread = context::thread_number();
    let minds = |capture: &&Arc<Capture>| match own_mode {
        CuStreamCaptureMode::Global if capture.thread != thread => {
            capture.mode == CuStreamCaptureMode::Global
        }
        CuStreamCaptureMode::Global | CuStreamCaptureMode::ThreadLocal => {
            capture.thread == thread && capture.mode != CuStreamCaptureMode::Relaxed
        }
        _ => false,
    };
    spoil(
        ongoing.iter().filter(minds),
        CuResult::StreamCaptureUnsupported,
    )
}

/// Refuses to wait for all of a context while any stream of it is being captured.
pub(super) fn check_whole(context: &Context) -> Result<(), CuResult> {
    let ongoing = ongoing();
    spoil(
        ongoing.iter().filter(|capture| capture.is_in(context)),
        CuResult::StreamCaptureUnsupported,
    )
}

/// Refuses the legacy stream while a blocking stream is being captured, and spoils the capture.
pub(super) fn check_implicit(stream: &Stream) -> Result<(), CuResult> {
    if stream.kind != Kind::Legacy {
        return Ok(());
    }
    let ongoing = ongoing();
    spoil(
        ongoing
            .iter()
            .filter(|capture| capture.blocks_legacy(&stream.context)),
        CuResult::StreamCaptureImplicit,
    )
}

/// As `check_implicit`, without harm.
pub(super) fn refuse_implicit(stream: &Stream) -> Result<(), CuResult> {
    let blocked = stream.kind == Kind::Legacy
        && ongoing()
            .iter()
            .any(|capture| capture.blocks_legacy(&stream.context));
    match blocked {
        true => Err(CuResult::StreamCaptureImplicit),
        false => Ok(()),
    }
}

/// Refuses a stream whose capture is spoiled.
pub(super) fn check_spoiled(stream: &Stream) -> Result<(), CuResult> {
    stream.captured().map_or(Ok(()), |capture| capture.check())
}

/// Refuses what cannot be asked of a stream that is being captured, and spoils its capture.
pub(super) fn check_captured(stream: &Stream) -> Result<(), CuResult> {
    spoil(stream.captured().iter(), CuResult::StreamCaptureUnsupported)
}

fn spoil<'a>(
    captures: impl Iterator<Item = &'a Arc<Capture>>,
    code: CuResult,
) -> Result<(), CuResult> {
    let mut result = Ok(());
    for capture in captures {
        capture.invalidate();
        result = Err(code);
    }
    result
}

pub(super) fn status(stream: &Stream) -> CuStreamCaptureStatus {
    match stream.captured() {
        None => CuStreamCaptureStatus::None,
        Some(capture) => lock(&capture.state).status,
    }
}

/// What there is to know about an active capture.
pub(super) struct Info {
    pub id: u64,
    pub graph: CuGraph,
    /// What the next node depends on.
    pub nodes: Vec<CuGraphNode>,
}

/// Arrays that a caller reads until it asks for them again.
#[derive(Default)]
pub(super) struct Answer {
    pub nodes: Vec<CuGraphNode>,
    pub edges: Vec<CuGraphEdgeData>,
}

/// The capture that `stream` is in, if it is active.
pub(super) fn info(stream: &Stream) -> Option<Info> {
    let capture = stream.captured().filter(|capture| capture.is_active())?;
    let frontier = capture.frontier(stream).ok()?;
    Some(Info {
        id: capture.id,
        graph: capture.graph.handle,
        nodes: capture.graph.handles(&frontier),
    })
}

/// Adds to or replaces what the next node of `stream` depends on.
pub(super) fn update(stream: &Stream, nodes: &[CuGraphNode], flags: u32) -> Result<(), CuResult> {
    let capture = stream.captured().ok_or(CuResult::IllegalState)?;
    capture.check()?;
    let nodes = capture.graph.places(nodes)?;
    match flags {
        CU_STREAM_ADD_CAPTURE_DEPENDENCIES => capture.extend(stream, &nodes),
        CU_STREAM_SET_CAPTURE_DEPENDENCIES => {
            lock(&capture.state).frontier.insert(stream.id, nodes);
            Ok(())
        }
        _ => Err(CuResult::InvalidValue),
    }
}
