//! Graphs: work with an order, run as often as it is launched.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use super::capture::Label;
use super::context::Context;
use super::memory::{self, Block, GraphMemory, Range};
use super::progress::Point;
use super::stream::{Done, Execution, Item, Step, Stream, Target, Work, dispatch, take};
use super::{Table, lock, new_handle};
use crate::cuda::{
    CuGraph, CuGraphExec, CuGraphExecUpdateResult, CuGraphExecUpdateResultInfo, CuGraphNode,
    CuResult,
};

pub(super) struct Graph {
    pub handle: CuGraph,
    nodes: Mutex<Vec<Node>>,
    /// What its nodes allocate.
    memory: Mutex<Vec<Arc<GraphMemory>>>,
}

#[derive(Clone)]
struct Node {
    handle: CuGraphNode,
    work: Arc<dyn Work>,
    label: Label,
    /// Places of earlier nodes.
    dependencies: Vec<usize>,
}

static GRAPHS: Table<Graph> = Table::new();

pub(super) fn create() -> Arc<Graph> {
    let graph = Arc::new(Graph {
        handle: new_handle(),
        nodes: Mutex::default(),
        memory: Mutex::default(),
    });
    GRAPHS.insert(graph.handle, graph.clone());
    graph
}

/// `InvalidValue` for a handle that is none.
pub(super) fn find(handle: CuGraph) -> Result<Arc<Graph>, CuResult> {
    GRAPHS.get(handle).ok_or(CuResult::InvalidValue)
}

pub(super) fn destroy(handle: CuGraph) -> Result<(), CuResult> {
    GRAPHS
        .remove(handle)
        .map(drop)
        .ok_or(CuResult::InvalidValue)
}

pub(super) fn forget(graph: &Graph) {
    drop(GRAPHS.remove(graph.handle));
}

impl Graph {
    /// Adds a node, and returns its place.
    pub(super) fn add(&self, work: Arc<dyn Work>, label: Label, dependencies: Vec<usize>) -> usize {
        let mut nodes = lock(&self.nodes);
        nodes.push(Node {
            handle: new_handle(),
            work,
            label,
            dependencies,
        });
        nodes.len() - 1
    }

    pub(super) fn allocated(&self, memory: Arc<GraphMemory>) {
        lock(&self.memory).push(memory);
    }

    /// Notes that a node frees the allocation at `address`, once.
    pub(super) fn released(&self, address: u64) -> Option<Arc<GraphMemory>> {
        let memory = lock(&self.memory);
        let mut left = memory.iter().filter(|memory| !is_released(memory));
        let found = left.find(|memory| memory.block.address() == address)?;
        found.released.store(true, Ordering::Relaxed);
        Some(found.clone())
    }

    /// The allocation that `address` lies in and that is not freed yet.
    pub(super) fn allocation_at(&self, address: u64) -> Option<Range> {
        let memory = lock(&self.memory);
        let left = memory.iter().filter(|memory| !is_released(memory));
        let mut ranges = left.map(|memory| memory.range());
        ranges.find(|range| (range.base..range.base + range.size as u64).contains(&address))
    }

    /// The handles of all nodes, in order.
    pub(super) fn all_handles(&self) -> Vec<CuGraphNode> {
        lock(&self.nodes).iter().map(|node| node.handle).collect()
    }

    pub(super) fn handles(&self, places: &[usize]) -> Vec<CuGraphNode> {
        let nodes = lock(&self.nodes);
        places.iter().map(|place| nodes[*place].handle).collect()
    }

    pub(super) fn places(&self, handles: &[CuGraphNode]) -> Result<Vec<usize>, CuResult> {
        let nodes = lock(&self.nodes);
        let place = |handle| nodes.iter().position(|node| node.handle == handle);
        handles
            .iter()
            .map(|handle| place(*handle).ok_or(CuResult::InvalidValue))
            .collect()
    }

    /// By place: whether a node is one of `last` or comes before one of them.
    pub(super) fn ancestors(&self, last: &[usize]) -> Vec<bool> {
        let nodes = lock(&self.nodes);
        let mut before = vec![false; nodes.len()];
        for place in last {
            before[*place] = true;
        }
        // Dependencies are earlier nodes, so that one pass from the end reaches all.
        for place in (0..nodes.len()).rev() {
            if before[place] {
                for earlier in &nodes[place].dependencies {
                    before[*earlier] = true;
                }
            }
        }
        before
    }
}

fn is_released(memory: &GraphMemory) -> bool {
    memory.released.load(Ordering::Relaxed)
}

/// A graph made executable.
pub(super) struct Exec {
    context: Arc<Context>,
    /// Whether a launch frees what the one before left.
    frees: bool,
    plan: Mutex<Arc<Plan>>,
    /// The end of the latest launch, which the next one comes after.
    last: Mutex<Option<Point>>,
}

struct Plan {
    nodes: Vec<Node>,
    /// By place: the nodes that wait for this one.
    dependents: Vec<Vec<usize>>,
    /// What it allocates and does not free.
    outstanding: Vec<Arc<Block>>,
}

static EXECS: Table<Exec> = Table::new();

pub(super) fn instantiate(graph: &Graph, context: &Arc<Context>, frees: bool) -> CuGraphExec {
    let handle = new_handle();
    let exec = Exec {
        context: context.clone(),
        frees,
        plan: Mutex::new(Arc::new(Plan::new(graph))),
        last: Mutex::new(None),
    };
    EXECS.insert(handle, Arc::new(exec));
    handle
}

/// `InvalidValue` for a handle that is none.
pub(super) fn find_exec(handle: CuGraphExec) -> Result<Arc<Exec>, CuResult> {
    EXECS.get(handle).ok_or(CuResult::InvalidValue)
}

pub(super) fn destroy_exec(handle: CuGraphExec) -> Result<(), CuResult> {
    EXECS.remove(handle).map(drop).ok_or(CuResult::InvalidValue)
}

impl Plan {
    fn new(graph: &Graph) -> Self {
        let nodes = lock(&graph.nodes).clone();
        let mut dependents = vec![Vec::new(); nodes.len()];
        for (place, node) in nodes.iter().enumerate() {
            for earlier in &node.dependencies {
                dependents[*earlier].push(place);
            }
        }
        let memory = lock(&graph.memory);
        let left = memory.iter().filter(|memory| !is_released(memory));
        let outstanding = left.map(|memory| memory.block.clone()).collect();
        Self {
            nodes,
            dependents,
            outstanding,
        }
    }

    /// Takes every node's place in its own order, in the order of the capture.
    fn issue(&self) -> Vec<Option<Box<dyn Execution>>> {
        self.nodes
            .iter()
            .map(|node| Some(node.work.issue()))
            .collect()
    }
}

impl Exec {
    /// Enqueues a launch on `stream`, which is not being captured.
    pub(super) fn launch(&self, stream: &Arc<Stream>) -> Result<(), CuResult> {
        self.context.check()?;
        stream.context.check()?;
        let plan = lock(&self.plan).clone();
        for block in &plan.outstanding {
            if memory::find(block.address()).is_some() {
                match self.frees {
                    true => memory::withdraw(block),
                    false => return Err(CuResult::InvalidValue),
                }
            }
        }
        let execution = Issued {
            executions: plan.issue(),
            plan,
        };
        let mut last = lock(&self.last);
        *last = Some(stream.put(last.take(), Item::Run(Box::new(execution))));
        drop(last);
        take(Step::Advance(stream.clone()));
        Ok(())
    }

    /// Takes over the parameters of `graph`, or says why it cannot.
    pub(super) fn update(&self, graph: &Graph) -> CuGraphExecUpdateResultInfo {
        let new = Plan::new(graph);
        let mut plan = lock(&self.plan);
        let answer = |result, error_node| CuGraphExecUpdateResultInfo {
            result,
            error_node,
            error_from_node: 0,
        };
        if new.nodes.len() != plan.nodes.len() {
            return answer(CuGraphExecUpdateResult::ErrorTopologyChanged, 0);
        }
        for (old, new) in plan.nodes.iter().zip(&new.nodes) {
            if old.label != new.label {
                return answer(CuGraphExecUpdateResult::ErrorNodeTypeChanged, new.handle);
            }
            if old.dependencies != new.dependencies {
                return answer(CuGraphExecUpdateResult::ErrorTopologyChanged, new.handle);
            }
        }
        *plan = Arc::new(new);
        answer(CuGraphExecUpdateResult::Success, 0)
    }
}

/// A launch before it starts.
struct Issued {
    plan: Arc<Plan>,
    executions: Vec<Option<Box<dyn Execution>>>,
}

impl Execution for Issued {
    fn start(self: Box<Self>, done: Done) {
        let Some(stream) = done.stream().cloned() else {
            return;
        };
        if self.executions.is_empty() {
            return done.finish(CuResult::Success);
        }
        let waits: Vec<usize> = self
            .plan
            .nodes
            .iter()
            .map(|node| node.dependencies.len())
            .collect();
        let first: Vec<usize> = (0..waits.len())
            .filter(|place| waits[*place] == 0)
            .collect();
        let launch = Arc::new(Launch {
            stream,
            state: Mutex::new(Running {
                left: waits.len(),
                waits,
                executions: self.executions,
                done: Some(done),
            }),
            plan: self.plan,
        });
        for place in first {
            launch.start(place);
        }
    }

    /// It only starts others.
    fn is_short(&self) -> bool {
        true
    }
}

/// A launch that runs.
pub(super) struct Launch {
    pub stream: Arc<Stream>,
    plan: Arc<Plan>,
    state: Mutex<Running>,
}

struct Running {
    /// Nodes that are not complete.
    left: usize,
    /// By place: dependencies that are not complete.
    waits: Vec<usize>,
    executions: Vec<Option<Box<dyn Execution>>>,
    done: Option<Done>,
}

impl Launch {
    fn start(self: &Arc<Self>, place: usize) {
        let Some(execution) = lock(&self.state).executions[place].take() else {
            return;
        };
        let done = Done::new(Target::Node(self.clone(), place));
        if self.stream.context.failure() != CuResult::Success {
            drop(execution);
            return done.finish(CuResult::Success);
        }
        dispatch(execution, done);
    }

    /// The node at `place` is complete.
    pub(super) fn complete(self: &Arc<Self>, place: usize) {
        let mut ready = Vec::new();
        let last = {
            let mut running = lock(&self.state);
            for dependent in &self.plan.dependents[place] {
                running.waits[*dependent] -= 1;
                if running.waits[*dependent] == 0 {
                    ready.push(*dependent);
                }
            }
            running.left -= 1;
            match running.left {
                0 => running.done.take(),
                _ => None,
            }
        };
        for place in ready {
            self.start(place);
        }
        if let Some(done) = last {
            done.finish(CuResult::Success);
        }
    }
}
