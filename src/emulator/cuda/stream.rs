//! Streams: in-order queues that run beside the threads that fill them.
//!
//! No thread waits in the middle of a queue. Whoever completes an item goes on with the stream as
//! far as that is short work; the rest goes to the stream's own thread, which exists from its first
//! such item to the stream's end.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Instant;

use super::capture::{self, Capture, Label};
use super::context::{self, Context, Registry};
use super::event;
use super::graph::Launch;
use super::progress::{Point, Progress};
use super::{Table, lock, new_handle, wait};
use crate::cuda::{
    CU_STREAM_LEGACY, CU_STREAM_NON_BLOCKING, CU_STREAM_PER_THREAD, CuDevice, CuEvent, CuResult,
    CuStream,
};

/// Work that a stream runs once an enqueue, and a captured graph once a launch.
pub(in crate::emulator) trait Work: Send + Sync {
    /// Called in host order at the moment of issue (the enqueue itself, or each graph launch) on
    /// the thread that issues: takes a place in whatever order the work needs. No lock of the
    /// engine is held meanwhile.
    fn issue(&self) -> Box<dyn Execution>;
}

/// One run of a [`Work`]. Dropped without a start if its context fails or is destroyed before.
pub(in crate::emulator) trait Execution: Send {
    /// Called when all that came before it in the stream is complete. Never waits for another
    /// stream or a peer: it keeps `done` and finishes it later, from any thread.
    fn start(self: Box<Self>, done: Done);

    /// Whether `start` is so short that any thread may call it: the one that enqueues, if the
    /// stream is idle, or the one that finished what came before. Otherwise the stream's own thread
    /// does.
    ///
    /// So `enqueue` and `Done::finish` are called with no lock held that `start` takes.
    fn is_short(&self) -> bool {
        false
    }
}

/// To be finished when the work is complete.
///
/// Finishing goes on with the stream: it may start further short executions, of this stream or of
/// any that waited for it, on the calling thread. So call it with no lock held that an execution
/// takes. (Inside of an execution's `start` these follow after its return, so that nothing
/// recurses.) Dropped unfinished, it fails the context.
pub(in crate::emulator) struct Done(Option<Target>);

pub(super) enum Target {
    Stream(Arc<Stream>),
    /// A node of a graph that runs.
    Node(Arc<Launch>, usize),
    /// What stands in the place of a stream: of another process, or of a test.
    Call(Box<dyn FnOnce(CuResult) + Send>),
}

impl Target {
    /// The stream that the work runs in.
    fn stream(&self) -> Option<&Arc<Stream>> {
        match self {
            Self::Stream(stream) => Some(stream),
            Self::Node(launch, _) => Some(&launch.stream),
            Self::Call(_) => None,
        }
    }

    fn complete(self, result: CuResult) {
        if result != CuResult::Success {
            if let Some(stream) = self.stream() {
                stream.context.fail(result);
            }
        }
        match self {
            Self::Stream(stream) => stream.pass(),
            Self::Node(launch, node) => launch.complete(node),
            Self::Call(function) => function(result),
        }
    }
}

impl Done {
    pub(super) fn new(target: Target) -> Self {
        Self(Some(target))
    }

    /// Completes the work. Not `Success`: the context of the stream's device fails from now on with
    /// this code, as after a fault of a kernel.
    pub fn finish(mut self, result: CuResult) {
        if let Some(target) = self.0.take() {
            target.complete(result);
        }
    }

    /// The stream that the work runs in.
    pub(super) fn stream(&self) -> Option<&Arc<Stream>> {
        self.0.as_ref().and_then(Target::stream)
    }

    /// One that hands its result to `function`, and fails nothing if it is dropped.
    pub fn calling(function: impl FnOnce(CuResult) + Send + 'static) -> Self {
        Self(Some(Target::Call(Box::new(function))))
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        match self.0.take() {
            Some(Target::Call(_)) => {}
            Some(target) => target.complete(CuResult::LaunchFailed),
            None => {}
        }
    }
}

/// Starts `execution`: on this thread if it is short, else on the stream's own.
pub(super) fn dispatch(execution: Box<dyn Execution>, done: Done) {
    if execution.is_short() {
        take(Step::Start(execution, done));
        return;
    }
    let Some(stream) = done.stream().cloned() else {
        return;
    };
    stream.hand_over(execution, done);
}

/// A piece of the engine's own work, done at once or after the one that this thread is at.
pub(super) enum Step {
    /// Go on with the stream.
    Advance(Arc<Stream>),
    /// The wait that the stream is at is over.
    Pass(Arc<Stream>),
    Start(Box<dyn Execution>, Done),
    Call(Box<dyn FnOnce() + Send>),
}

impl Step {
    fn run(self) {
        // Of a panic the message is out by now; the `Done` in its way was dropped, which fails the
        // context.
        let _ = catch_unwind(AssertUnwindSafe(|| match self {
            Self::Advance(stream) => stream.advance(),
            Self::Pass(stream) => stream.pass(),
            Self::Start(execution, done) => execution.start(done),
            Self::Call(function) => function(),
        }));
    }
}

thread_local! {
    /// The steps to take after the one that this thread is at; none if it is at none.
    static STEPS: RefCell<Option<VecDeque<Step>>> = const { RefCell::new(None) };
}

/// Takes a step and all that follow from it, or leaves it to the step that this thread is at
/// already, so that chains of streams need no deep stack. The caller holds no lock.
pub(super) fn take(step: Step) {
    let mut step = Some(step);
    let outermost = STEPS.try_with(|steps| {
        let mut steps = steps.borrow_mut();
        match &mut *steps {
            Some(steps) => {
                steps.extend(step.take());
                false
            }
            None => {
                *steps = Some(VecDeque::new());
                true
            }
        }
    });
    let Some(step) = step else {
        return;
    };
    step.run();
    // A thread that is at its end has no list: its steps recurse.
    if outermost.is_ok() {
        while let Some(step) = next_step() {
            step.run();
        }
    }
}

/// Runs user code, whose own calls must not be left until it is over: it may wait for them.
pub(super) fn apart<T>(function: impl FnOnce() -> T) -> T {
    struct Back(Option<VecDeque<Step>>);
    impl Drop for Back {
        fn drop(&mut self) {
            let steps = self.0.take();
            let _ = STEPS.try_with(|own| own.replace(steps));
        }
    }
    let _back = Back(STEPS.try_with(RefCell::take).ok().flatten());
    function()
}

fn next_step() -> Option<Step> {
    STEPS.with(|steps| {
        let mut steps = steps.borrow_mut();
        let step = steps.as_mut().and_then(VecDeque::pop_front);
        if step.is_none() {
            *steps = None;
        }
        step
    })
}

/// How a stream and the legacy stream of its context wait for each other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Legacy,
    Blocking,
    NonBlocking,
}

pub(super) struct Stream {
    /// What the program calls it.
    pub handle: CuStream,
    /// Never used again in this process.
    pub id: u64,
    pub context: Arc<Context>,
    pub kind: Kind,
    pub attributes: Mutex<Attributes>,
    progress: Arc<Progress>,
    queue: Mutex<Queue>,
    destroyed: AtomicBool,
    jobs: Mutex<Jobs>,
    more_jobs: Condvar,
    /// The capture that it is in. Locked before the capture's own state.
    pub capture: Mutex<Option<Arc<Capture>>>,
    /// What the last question about its capture was answered with, which the driver keeps.
    pub answered: Mutex<capture::Answer>,
}

#[derive(Clone, Copy)]
pub(super) struct Attributes {
    pub priority: i32,
    pub synchronization_policy: i32,
    pub domain: i32,
    pub domain_map: [u8; 2],
}

struct Queue {
    items: VecDeque<Item>,
    /// Items ever put in.
    issued: u64,
    /// The item before the first one runs.
    busy: bool,
}

pub(super) enum Item {
    Run(Box<dyn Execution>),
    Wait(Point),
    /// A place to stand for what came before, with the time at which it was reached.
    Mark(Option<Arc<Mark>>),
}

/// When a stream got to a place.
#[derive(Default)]
pub(super) struct Mark(pub OnceLock<Instant>);

/// What the stream's own thread has to start.
struct Jobs {
    waiting: VecDeque<(Box<dyn Execution>, Done)>,
    running: bool,
}

static STREAMS: Table<Stream> = Table::new();
static NEXT_ID: AtomicU64 = AtomicU64::new(7);

/// The priorities that streams can have, from the least to the greatest.
pub(super) const PRIORITIES: (i32, i32) = (0, -5);

impl Stream {
    pub(super) fn new(
        handle: CuStream,
        context: Arc<Context>,
        kind: Kind,
        priority: i32,
    ) -> Arc<Self> {
        Arc::new(Self {
            handle,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            context,
            kind,
            attributes: Mutex::new(Attributes {
                priority: priority.clamp(PRIORITIES.1, PRIORITIES.0),
                // What the driver answers where none was set.
                synchronization_policy: -1,
                domain: 0,
                domain_map: [0, 1],
            }),
            progress: Progress::new(),
            queue: Mutex::new(Queue {
                items: VecDeque::new(),
                issued: 0,
                busy: false,
            }),
            destroyed: AtomicBool::new(false),
            jobs: Mutex::new(Jobs {
                waiting: VecDeque::new(),
                running: false,
            }),
            more_jobs: Condvar::new(),
            capture: Mutex::new(None),
            answered: Mutex::new(capture::Answer::default()),
        })
    }

    pub(super) fn flags(&self) -> u32 {
        match self.kind {
            Kind::NonBlocking => CU_STREAM_NON_BLOCKING,
            Kind::Legacy | Kind::Blocking => 0,
        }
    }

    /// Enqueues `work`, or adds it to the graph that the stream is captured into.
    pub(super) fn submit(
        self: &Arc<Self>,
        work: Arc<dyn Work>,
        label: Label,
    ) -> Result<(), CuResult> {
        self.context.check()?;
        if let Some(capture) = self.captured() {
            capture.add(self, work, label)?;
            return Ok(());
        }
        self.push(Item::Run(work.issue()));
        Ok(())
    }

    pub(super) fn captured(&self) -> Option<Arc<Capture>> {
        lock(&self.capture).clone()
    }

    /// Puts an item at the end, behind the waits that the legacy stream's order asks for, and goes
    /// on with the stream.
    pub(super) fn push(self: &Arc<Self>, item: Item) -> Point {
        let point = self.put(None, item);
        take(Step::Advance(self.clone()));
        point
    }

    /// As `push`, with something to wait for first, and without going on.
    pub(super) fn put(&self, before: Option<Point>, item: Item) -> Point {
        match self.kind {
            Kind::NonBlocking => self.append(before.into_iter(), item),
            Kind::Blocking => {
                // Held so that two streams cannot each miss the other's latest item.
                let registry = lock(&self.context.registry);
                let legacy = registry.legacy.as_ref().map(|legacy| legacy.tail());
                self.append(before.into_iter().chain(legacy), item)
            }
            Kind::Legacy => {
                let registry = lock(&self.context.registry);
                let all = registry.blocking().map(|stream| stream.tail());
                self.append(before.into_iter().chain(all), item)
            }
        }
    }

    fn append(&self, before: impl Iterator<Item = Point>, item: Item) -> Point {
        let mut queue = lock(&self.queue);
        for point in before {
            if !point.is_done() {
                queue.items.push_back(Item::Wait(point));
                queue.issued += 1;
            }
        }
        queue.items.push_back(item);
        queue.issued += 1;
        Point {
            progress: self.progress.clone(),
            position: queue.issued,
        }
    }

    /// The place behind the last item. Of the legacy stream, without what it owes to the blocking
    /// ones.
    pub(super) fn tail(&self) -> Point {
        Point {
            progress: self.progress.clone(),
            position: lock(&self.queue).issued,
        }
    }

    /// The place behind all work that this stream stands for now.
    pub(super) fn point(self: &Arc<Self>) -> Point {
        match self.kind {
            Kind::NonBlocking => self.tail(),
            Kind::Blocking | Kind::Legacy => self.push(Item::Mark(None)),
        }
    }

    /// Whether all its work is done, that of the blocking streams included if it is the legacy
    /// stream.
    pub(super) fn is_idle(&self) -> bool {
        let others_idle = || {
            let registry = lock(&self.context.registry);
            registry.blocking().all(|stream| stream.tail().is_done())
        };
        self.tail().is_done() && (self.kind != Kind::Legacy || others_idle())
    }

    /// Waits for all its work, that of the blocking streams included if it is the legacy stream.
    pub(super) fn synchronize(&self) {
        let mut points = vec![self.tail()];
        if self.kind == Kind::Legacy {
            let registry = lock(&self.context.registry);
            points.extend(registry.blocking().map(|stream| stream.tail()));
        }
        points.iter().for_each(Point::wait);
    }

    /// Goes on with the queue as far as nothing has to be waited for.
    fn advance(self: Arc<Self>) {
        loop {
            let item = {
                let mut queue = lock(&self.queue);
                if queue.busy {
                    return;
                }
                let Some(item) = queue.items.pop_front() else {
                    return;
                };
                queue.busy = true;
                item
            };
            match item {
                Item::Wait(point) => {
                    if point.when_done(Step::Pass(self.clone())).is_none() {
                        return;
                    }
                    self.count();
                }
                Item::Mark(mark) => {
                    if let Some(mark) = mark {
                        // Set once: a mark is in one queue.
                        let _ = mark.0.set(Instant::now());
                    }
                    self.count();
                }
                Item::Run(execution) => {
                    if self.context.failure() != CuResult::Success {
                        drop(execution);
                        self.count();
                        continue;
                    }
                    dispatch(execution, Done::new(Target::Stream(self)));
                    return;
                }
            }
        }
    }

    /// The item that runs is complete.
    fn pass(self: Arc<Self>) {
        self.count();
        take(Step::Advance(self));
    }

    fn count(&self) {
        let (due, over) = {
            let mut queue = lock(&self.queue);
            queue.busy = false;
            (self.progress.pass(), queue.items.is_empty())
        };
        due.into_iter().for_each(take);
        if over && self.destroyed.load(Ordering::Acquire) {
            self.wake();
        }
    }

    /// Leaves the start of `execution` to the stream's own thread.
    fn hand_over(self: &Arc<Self>, execution: Box<dyn Execution>, done: Done) {
        let mut jobs = lock(&self.jobs);
        jobs.waiting.push_back((execution, done));
        if jobs.running {
            drop(jobs);
            self.more_jobs.notify_one();
            return;
        }
        let stream = self.clone();
        let thread = std::thread::Builder::new().name("metrale stream".to_owned());
        jobs.running = thread.spawn(move || stream.work()).is_ok();
        if !jobs.running {
            // No thread to be had: better late on this one than never.
            let all = std::mem::take(&mut jobs.waiting);
            drop(jobs);
            for (execution, done) in all {
                take(Step::Start(execution, done));
            }
        }
    }

    /// The stream's own thread.
    fn work(self: Arc<Self>) {
        loop {
            let mut jobs = lock(&self.jobs);
            let (execution, done) = loop {
                if let Some(job) = jobs.waiting.pop_front() {
                    break job;
                }
                if self.is_over() {
                    jobs.running = false;
                    return;
                }
                jobs = wait(&self.more_jobs, jobs);
            };
            drop(jobs);
            take(Step::Start(execution, done));
        }
    }

    /// Whether nothing will ever come again.
    fn is_over(&self) -> bool {
        let idle = || {
            let queue = lock(&self.queue);
            !queue.busy && queue.items.is_empty()
        };
        self.destroyed.load(Ordering::Acquire) && idle()
    }

    fn wake(&self) {
        // The lock orders this after a look of the thread that found nothing and before its sleep.
        drop(lock(&self.jobs));
        self.more_jobs.notify_all();
    }

    /// Ends the stream once its work is done; the handle is gone at once.
    pub(super) fn destroy(self: &Arc<Self>) {
        STREAMS.remove(self.handle);
        capture::leave(self);
        self.destroyed.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether its place in the context's list can be given up.
    pub(super) fn is_gone(&self) -> bool {
        self.is_over()
    }
}

/// Creates a stream in `context`.
pub(super) fn create(
    context: &Arc<Context>,
    flags: u32,
    priority: i32,
) -> Result<CuStream, CuResult> {
    let kind = if flags == CU_STREAM_NON_BLOCKING {
        Kind::NonBlocking
    } else {
        Kind::Blocking
    };
    let stream = Stream::new(new_handle(), context.clone(), kind, priority);
    let mut registry = lock(&context.registry);
    context.check()?;
    registry.streams.retain(|stream| !stream.is_gone());
    registry.streams.push(stream.clone());
    drop(registry);
    let handle = stream.handle;
    STREAMS.insert(handle, stream);
    Ok(handle)
}

/// The stream of a handle that the program made; none for 0, 1 and 2.
pub(super) fn find(handle: CuStream) -> Option<Arc<Stream>> {
    STREAMS.get(handle)
}

/// The stream of a handle, the special ones in the current context.
///
/// The legacy stream is refused, and the captures spoiled, while a blocking stream is being
/// captured: it would depend on work that does not run. So is a stream whose own capture is
/// spoiled.
pub(super) fn resolve(handle: CuStream) -> Result<Arc<Stream>, CuResult> {
    let stream = resolve_quietly(handle)?;
    capture::check_implicit(&stream)?;
    capture::check_spoiled(&stream)?;
    Ok(stream)
}

/// The stream of a handle to wait for: `resolve`, but one that is being captured is refused, and
/// its capture spoiled.
pub(super) fn resolve_uncaptured(handle: CuStream) -> Result<Arc<Stream>, CuResult> {
    let stream = resolve_quietly(handle)?;
    capture::check_implicit(&stream)?;
    capture::check_unsafe()?;
    capture::check_captured(&stream)?;
    Ok(stream)
}

/// `resolve` without a look at captures.
pub(super) fn resolve_quietly(handle: CuStream) -> Result<Arc<Stream>, CuResult> {
    match handle {
        0 | CU_STREAM_LEGACY | CU_STREAM_PER_THREAD => {
            // They are the current context's, which host functions and kernels do not have.
            if context::in_callback() {
                return Err(CuResult::NotPermitted);
            }
            special(handle, &context::current()?)
        }
        _ => {
            let stream = find(handle).ok_or(CuResult::InvalidHandle)?;
            stream.context.check()?;
            Ok(stream)
        }
    }
}

fn special(handle: CuStream, context: &Arc<Context>) -> Result<Arc<Stream>, CuResult> {
    context.check()?;
    let mut registry = lock(&context.registry);
    if registry.closed {
        return Err(context.failure());
    }
    let Registry {
        legacy, per_thread, ..
    } = &mut *registry;
    Ok(if handle == CU_STREAM_PER_THREAD {
        let new = || Stream::new(handle, context.clone(), Kind::Blocking, 0);
        per_thread
            .entry(context::thread_number())
            .or_insert_with(new)
            .clone()
    } else {
        let new = || Stream::new(CU_STREAM_LEGACY, context.clone(), Kind::Legacy, 0);
        legacy.get_or_insert_with(new).clone()
    })
}

/// The stream of a handle, which must be of `device`.
fn resolve_on(handle: CuStream, device: CuDevice) -> Result<Arc<Stream>, CuResult> {
    let stream = match handle {
        0 | CU_STREAM_LEGACY | CU_STREAM_PER_THREAD => special(handle, &context::primary(device)?)?,
        _ => resolve_quietly(handle)?,
    };
    if stream.context.device != device {
        return Err(CuResult::InvalidHandle);
    }
    capture::check_implicit(&stream)?;
    Ok(stream)
}

/// Enqueues `work` on `stream`; a stream that is being captured takes it into the graph instead.
///
/// Streams 0, 1 and 2 are those of `device`'s primary context. `InvalidHandle` for an unknown
/// stream and one of another device, else the failure of the stream's context.
pub(in crate::emulator) fn enqueue(
    stream: CuStream,
    device: CuDevice,
    work: Arc<dyn Work>,
) -> Result<(), CuResult> {
    resolve_on(stream, device)?.submit(work, Label::Kernel)
}

/// Records `event` in `stream`, as `cuEventRecord` does; streams 0, 1 and 2 are those of `device`.
pub(in crate::emulator) fn record_event(
    event: CuEvent,
    stream: CuStream,
    device: CuDevice,
) -> Result<(), CuResult> {
    event::record(&event::find(event)?, &resolve_on(stream, device)?, false)
}

/// The number of the capture that `stream` is in, unique in this process; none if it is in none.
///
/// `StreamCaptureInvalidated` for a spoiled one, `StreamCaptureImplicit` for the legacy stream
/// while a blocking stream is being captured. The special streams are those of the current context;
/// without one they are in no capture.
pub(in crate::emulator) fn capture_id(stream: CuStream) -> Result<Option<u64>, CuResult> {
    let found = match stream {
        0 | CU_STREAM_LEGACY | CU_STREAM_PER_THREAD => match context::current() {
            Ok(context) => special(stream, &context)?,
            Err(CuResult::InvalidContext) => return Ok(None),
            Err(error) => return Err(error),
        },
        _ => resolve_quietly(stream)?,
    };
    capture::refuse_implicit(&found)?;
    match found.captured() {
        None => Ok(None),
        Some(capture) if capture.is_active() => Ok(Some(capture.id)),
        Some(_) => Err(CuResult::StreamCaptureInvalidated),
    }
}

/// Makes the streams of one device wait for each other: what is enqueued on any of them after this
/// runs after all that was enqueued on any before. Captured streams are joined in the graph;
/// captured and uncaptured ones are not mixed (`StreamCaptureIsolation`).
pub(in crate::emulator) fn join(streams: &[CuStream], device: CuDevice) -> Result<(), CuResult> {
    let mut found: Vec<Arc<Stream>> = Vec::with_capacity(streams.len());
    for &handle in streams {
        let stream = resolve_on(handle, device)?;
        if !found.iter().any(|other| Arc::ptr_eq(other, &stream)) {
            found.push(stream);
        }
    }
    if found.len() < 2 {
        return Ok(());
    }
    let captures: Vec<_> = found
        .iter()
        .filter_map(|stream| stream.captured())
        .collect();
    if let Some(capture) = captures.first() {
        if captures.len() < found.len() || captures.iter().any(|other| other.id != capture.id) {
            return Err(CuResult::StreamCaptureIsolation);
        }
        return capture.join(&found);
    }
    let points: Vec<Point> = found.iter().map(Stream::point).collect();
    for (i, stream) in found.iter().enumerate() {
        for (j, point) in points.iter().enumerate() {
            if i != j && !point.is_done() {
                stream.push(Item::Wait(point.clone()));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    /// A stream of a device that no other test uses.
    fn stream_of(device: CuDevice) -> Arc<Stream> {
        context::initialize();
        context::retain(device).expect("the device exists");
        context::set_current(Some(device));
        let context = context::current().expect("the context is alive");
        let handle = create(&context, CU_STREAM_NON_BLOCKING, 0).expect("flags are good");
        find(handle).expect("just made")
    }

    /// Work that does what a closure says at each start.
    struct Called<F> {
        start: Arc<F>,
        short: bool,
    }

    fn called<F: Fn(Done) + Send + Sync + 'static>(short: bool, start: F) -> Arc<dyn Work> {
        Arc::new(Called {
            start: Arc::new(start),
            short,
        })
    }

    impl<F: Fn(Done) + Send + Sync + 'static> Work for Called<F> {
        fn issue(&self) -> Box<dyn Execution> {
            Box::new(Called {
                start: self.start.clone(),
                short: self.short,
            })
        }
    }

    impl<F: Fn(Done) + Send + Sync + 'static> Execution for Called<F> {
        fn start(self: Box<Self>, done: Done) {
            (self.start)(done);
        }

        fn is_short(&self) -> bool {
            self.short
        }
    }

    /// Where a number of executions meet: the last to come finishes all.
    fn meeting(size: usize) -> impl Fn(Done) + Send + Sync + Clone {
        let waiting: Arc<Mutex<Vec<Done>>> = Arc::default();
        move |done| {
            let all = {
                let mut waiting = lock(&waiting);
                waiting.push(done);
                match waiting.len() == size {
                    true => std::mem::take(&mut *waiting),
                    false => Vec::new(),
                }
            };
            for done in all {
                done.finish(CuResult::Success);
            }
        }
    }

    #[test]
    fn work_runs_in_order_whoever_finishes_it() {
        let stream = stream_of(0);
        let (sender, receiver) = mpsc::channel::<Done>();
        let finisher = thread::spawn(move || {
            for done in receiver {
                thread::sleep(Duration::from_micros(200));
                done.finish(CuResult::Success);
            }
        });
        let log: Arc<Mutex<Vec<usize>>> = Arc::default();
        for i in 0..60 {
            let (log, sender) = (log.clone(), sender.clone());
            let start = move |done: Done| {
                lock(&log).push(i);
                match i % 3 {
                    0 => sender.send(done).expect("the finisher listens"),
                    _ => done.finish(CuResult::Success),
                }
            };
            enqueue(stream.handle, 0, called(i % 2 == 0, start)).expect("the stream is live");
        }
        assert!(!stream.is_idle());
        stream.synchronize();
        assert!(stream.is_idle());
        assert_eq!(*lock(&log), (0..60).collect::<Vec<_>>());
        stream.destroy();
        drop(sender);
        drop(log);
        finisher.join().expect("no panic");
    }

    #[test]
    fn short_work_of_an_idle_stream_runs_at_once() {
        let stream = stream_of(0);
        let ran_on: Arc<Mutex<Option<thread::ThreadId>>> = Arc::default();
        for (short, here) in [(true, true), (false, false)] {
            let place = ran_on.clone();
            let start = move |done: Done| {
                *lock(&place) = Some(thread::current().id());
                done.finish(CuResult::Success);
            };
            enqueue(stream.handle, 0, called(short, start)).expect("the stream is live");
            assert_eq!(here, stream.is_idle() && short);
            stream.synchronize();
            assert_eq!(*lock(&ran_on) == Some(thread::current().id()), here);
        }
        stream.destroy();
    }

    #[test]
    fn long_chains_of_short_work_need_no_deep_stack() {
        let (a, b) = (stream_of(0), stream_of(0));
        let (gate, opened) = mpsc::channel::<Done>();
        let hold = move |done| gate.send(done).expect("somebody listens");
        enqueue(a.handle, 0, called(true, hold)).expect("the stream is live");
        for _ in 0..20_000 {
            for (from, to) in [(&a, &b), (&b, &a)] {
                to.push(Item::Wait(from.tail()));
                enqueue(
                    to.handle,
                    0,
                    called(true, |done| done.finish(CuResult::Success)),
                )
                .expect("the stream is live");
            }
        }
        assert!(!b.is_idle());
        let done = opened.recv().expect("it started at once");
        done.finish(CuResult::Success);
        assert!(a.is_idle() && b.is_idle());
        a.destroy();
        b.destroy();
    }

    #[test]
    fn work_that_is_dropped_or_panics_fails_its_context_and_no_other() {
        struct Counted(Arc<AtomicUsize>);
        impl Work for Counted {
            fn issue(&self) -> Box<dyn Execution> {
                Box::new(Counted(self.0.clone()))
            }
        }
        impl Execution for Counted {
            fn start(self: Box<Self>, _done: Done) {
                unreachable!("the context has failed");
            }
        }
        impl Drop for Counted {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let endings: [(fn(Done), CuResult); 3] = [
            (drop, CuResult::LaunchFailed),
            (|_done| panic!("as a fault would"), CuResult::LaunchFailed),
            (
                |done| done.finish(CuResult::IllegalAddress),
                CuResult::IllegalAddress,
            ),
        ];
        for (end, code) in endings {
            let stream = stream_of(1);
            let (gate, opened) = mpsc::channel::<()>();
            let opened = Mutex::new(opened);
            let start = move |done| {
                lock(&opened).recv().expect("the gate opens");
                end(done);
            };
            enqueue(stream.handle, 1, called(false, start)).expect("the stream is live");
            let drops = Arc::new(AtomicUsize::new(0));
            let work = Arc::new(Counted(drops.clone()));
            enqueue(stream.handle, 1, work.clone()).expect("nothing has failed yet");
            gate.send(()).expect("the work waits");
            stream.synchronize();
            assert_eq!(stream.context.failure(), code);
            assert_eq!(drops.load(Ordering::SeqCst), 1, "dropped, not started");
            assert_eq!(enqueue(stream.handle, 1, work), Err(code));
            assert_eq!(context::current().err(), Some(code));
            context::reset(1).expect("the device exists");
            assert_eq!(context::current().err(), Some(CuResult::ContextIsDestroyed));
        }
        let other = stream_of(0);
        assert_eq!(other.context.check(), Ok(()));
        other.destroy();
    }

    #[test]
    fn enqueue_knows_the_device_of_a_stream() {
        let stream = stream_of(2);
        let finish = |done: Done| done.finish(CuResult::Success);
        let work = called(true, finish);
        let wrong = enqueue(stream.handle, 0, work.clone());
        assert_eq!(wrong, Err(CuResult::InvalidHandle));
        assert_eq!(enqueue(7, 2, work.clone()), Err(CuResult::InvalidHandle));
        for special in [0, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD] {
            assert_eq!(enqueue(special, 2, work.clone()), Ok(()));
        }
        stream.destroy();
        let gone = enqueue(stream.handle, 2, work);
        assert_eq!(gone, Err(CuResult::InvalidHandle));
    }

    #[test]
    fn joined_streams_wait_for_each_other() {
        let streams = [stream_of(0), stream_of(0), stream_of(0)];
        let handles = streams.each_ref().map(|stream| stream.handle);
        let before = Arc::new(AtomicUsize::new(0));
        for round in 1..=20 {
            for (i, stream) in streams.iter().enumerate() {
                let before = before.clone();
                let start = move |done: Done| {
                    let slowest = i == round % 3;
                    thread::sleep(Duration::from_micros(if slowest { 400 } else { 0 }));
                    before.fetch_add(1, Ordering::SeqCst);
                    done.finish(CuResult::Success);
                };
                enqueue(stream.handle, 0, called(false, start)).expect("the stream is live");
            }
            join(&handles, 0).expect("all are live");
            for stream in &streams {
                let before = before.clone();
                let start = move |done: Done| {
                    assert!(before.load(Ordering::SeqCst) >= 3 * round);
                    done.finish(CuResult::Success);
                };
                enqueue(stream.handle, 0, called(true, start)).expect("the stream is live");
            }
            join(&handles, 0).expect("all are live");
        }
        for stream in &streams {
            stream.synchronize();
            stream.destroy();
        }
        assert_eq!(streams[0].context.check(), Ok(()));
    }

    #[test]
    fn branches_of_a_graph_run_beside_each_other() {
        let (a, b) = (stream_of(0), stream_of(0));
        let meet = meeting(2);
        let order: Arc<Mutex<Vec<u32>>> = Arc::default();
        let note = |number: u32, short| {
            let order = order.clone();
            called(short, move |done: Done| {
                if number == 2 {
                    thread::sleep(Duration::from_micros(300));
                }
                lock(&order).push(number);
                done.finish(CuResult::Success);
            })
        };
        capture::begin(&a, crate::cuda::CuStreamCaptureMode::ThreadLocal, None).expect("captures");
        assert_eq!(capture_id(b.handle), Ok(None));
        enqueue(a.handle, 0, note(1, false)).expect("captured");
        let own = a.captured().expect("it is being captured");
        let first = own.frontier(&a).expect("active");
        capture::depend(&b, None, &own, &first).expect("joins");
        assert_eq!(capture_id(a.handle), capture_id(b.handle));
        for stream in [&a, &b] {
            // Each is short for one of the two, and neither may keep the other from starting.
            enqueue(stream.handle, 0, called(stream.id == a.id, meet.clone())).expect("captured");
        }
        enqueue(b.handle, 0, note(2, false)).expect("captured");
        join(&[a.handle, b.handle], 0).expect("both are in one capture");
        enqueue(a.handle, 0, note(3, false)).expect("captured");
        let graph = capture::end(&a).expect("all is joined");
        assert!(lock(&order).is_empty());
        let exec = super::super::graph::instantiate(&graph, &a.context, false);
        for launch in 1..=50 {
            let exec = super::super::graph::find_exec(exec).expect("live");
            exec.launch(if launch % 2 == 0 { &a } else { &b })
                .expect("launches");
        }
        a.synchronize();
        b.synchronize();
        assert_eq!(*lock(&order), [1, 2, 3].repeat(50));
        super::super::graph::destroy_exec(exec).expect("once");
        super::super::graph::destroy(graph.handle).expect("once");
        a.destroy();
        b.destroy();
    }

    #[test]
    fn a_capture_mixes_with_nothing_else() {
        let (a, b) = (stream_of(0), stream_of(0));
        capture::begin(&a, crate::cuda::CuStreamCaptureMode::Relaxed, None).expect("captures");
        let mixed = join(&[a.handle, b.handle], 0);
        assert_eq!(mixed, Err(CuResult::StreamCaptureIsolation));
        a.captured().expect("still").invalidate();
        assert_eq!(
            capture_id(a.handle),
            Err(CuResult::StreamCaptureInvalidated)
        );
        let work = called(true, |done| done.finish(CuResult::Success));
        let spoiled = enqueue(a.handle, 0, work);
        assert_eq!(spoiled, Err(CuResult::StreamCaptureInvalidated));
        let ended = capture::end(&a).err();
        assert_eq!(ended, Some(CuResult::StreamCaptureInvalidated));
        assert_eq!(capture_id(a.handle), Ok(None));
        a.destroy();
        b.destroy();
    }
}
