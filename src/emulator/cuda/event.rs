//! Events: marks in streams.

use std::sync::{Arc, Mutex, Weak};

use super::capture::{self, Capture, Label};
use super::context::Context;
use super::progress::{Point, Progress};
use super::stream::{Done, Execution, Item, Kind, Mark, Step, Stream, Work, take};
use super::{Table, lock, new_handle};
use crate::cuda::{
    CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING, CU_EVENT_INTERPROCESS, CuEvent, CuResult,
};

pub(super) struct Event {
    context: Arc<Context>,
    takes_time: bool,
    record: Mutex<Record>,
}

/// The end of the work before, and its time if the event takes any.
type Recorded = (Point, Option<Arc<Mark>>);

/// What an event stands for.
#[derive(Clone)]
enum Record {
    Nothing,
    Work(Point, Option<Arc<Mark>>),
    /// Nodes of a graph that is being captured.
    Captured(Weak<Capture>, Vec<usize>),
}

static EVENTS: Table<Event> = Table::new();

pub(super) fn create(context: &Arc<Context>, flags: u32) -> Result<CuEvent, CuResult> {
    const ALL: u32 = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    let takes_time = flags & CU_EVENT_DISABLE_TIMING == 0;
    if flags & !ALL != 0 || (takes_time && flags & CU_EVENT_INTERPROCESS != 0) {
        return Err(CuResult::InvalidValue);
    }
    let handle = new_handle();
    let event = Event {
        context: context.clone(),
        takes_time,
        record: Mutex::new(Record::Nothing),
    };
    EVENTS.insert(handle, Arc::new(event));
    Ok(handle)
}

/// The event of a handle, in a context that has not failed.
pub(super) fn find(handle: CuEvent) -> Result<Arc<Event>, CuResult> {
    let event = EVENTS.get(handle).ok_or(CuResult::InvalidHandle)?;
    event.context.check()?;
    Ok(event)
}

pub(super) fn destroy(handle: CuEvent) -> Result<(), CuResult> {
    find(handle)?;
    EVENTS.remove(handle);
    Ok(())
}

pub(super) fn drop_all(context: &Context) {
    drop(EVENTS.remove_all(|event| std::ptr::eq(&*event.context, context)));
}

impl Event {
    fn record(&self) -> Record {
        lock(&self.record).clone()
    }

    pub(super) fn is_captured(&self) -> bool {
        matches!(&*lock(&self.record), Record::Captured(..))
    }

    fn mark(&self) -> Option<Arc<Mark>> {
        self.takes_time.then(Arc::default)
    }

    /// What is recorded, if anything. In a capture it is an error, which `spoils` the capture or
    /// not.
    fn recorded(&self, spoils: bool) -> Result<Option<Recorded>, CuResult> {
        match self.record() {
            Record::Nothing => Ok(None),
            Record::Work(point, mark) => Ok(Some((point, mark))),
            Record::Captured(capture, _) => Err(match active(&capture) {
                Some(capture) => {
                    if spoils {
                        capture.invalidate();
                    }
                    CuResult::CapturedEvent
                }
                None => CuResult::InvalidValue,
            }),
        }
    }
}

fn active(capture: &Weak<Capture>) -> Option<Arc<Capture>> {
    capture.upgrade().filter(|capture| capture.is_active())
}

/// Records `event` in `stream`; with `external`, a capture records it at each launch.
pub(super) fn record(
    event: &Arc<Event>,
    stream: &Arc<Stream>,
    external: bool,
) -> Result<(), CuResult> {
    if !Arc::ptr_eq(&event.context, &stream.context) {
        return Err(CuResult::InvalidHandle);
    }
    let record = match stream.captured() {
        Some(capture) if external => {
            let work = Arc::new(ExternalRecord(event.clone()));
            capture.add(stream, work, Label::Record)?;
            return Ok(());
        }
        Some(capture) => Record::Captured(Arc::downgrade(&capture), capture.frontier(stream)?),
        None if external => return Err(CuResult::IllegalState),
        None => {
            let mark = event.mark();
            // Where nothing but the place is needed, it is there already.
            let point = match (&mark, stream.kind) {
                (None, Kind::NonBlocking) => stream.tail(),
                _ => stream.push(Item::Mark(mark.clone())),
            };
            Record::Work(point, mark)
        }
    };
    *lock(&event.record) = record;
    Ok(())
}

/// Makes `stream` wait for `event`; with `external`, a captured stream waits at each launch.
pub(super) fn wait(
    stream: &Arc<Stream>,
    event: &Arc<Event>,
    external: bool,
) -> Result<(), CuResult> {
    let captured = stream.captured();
    if external {
        let capture = captured.ok_or(CuResult::IllegalState)?;
        let work = Arc::new(ExternalWait(event.clone()));
        capture.add(stream, work, Label::Wait)?;
        return Ok(());
    }
    match (event.record(), captured) {
        (Record::Captured(weak, nodes), captured) => {
            let capture = active(&weak).ok_or(CuResult::InvalidValue)?;
            capture::depend(stream, captured.as_ref(), &capture, &nodes)
        }
        (Record::Nothing, Some(capture)) => capture.check(),
        (Record::Work(..), Some(capture)) => {
            capture.check()?;
            capture.invalidate();
            Err(CuResult::StreamCaptureIsolation)
        }
        (Record::Nothing, None) => Ok(()),
        (Record::Work(point, _), None) => {
            if !point.is_done() {
                stream.push(Item::Wait(point));
            }
            Ok(())
        }
    }
}

pub(super) fn query(event: &Event) -> Result<(), CuResult> {
    match event.recorded(true)? {
        Some((point, _)) if !point.is_done() => Err(CuResult::NotReady),
        _ => event.context.check(),
    }
}

pub(super) fn synchronize(event: &Event) -> Result<(), CuResult> {
    if let Some((point, _)) = event.recorded(true)? {
        point.wait();
    }
    event.context.check()
}

/// Milliseconds from one event to the other.
pub(super) fn elapsed(start: &Event, end: &Event) -> Result<f32, CuResult> {
    let place = |event: &Event| match event.recorded(false)? {
        Some((point, Some(mark))) => Ok((point, mark)),
        _ => Err(CuResult::InvalidHandle),
    };
    let (start, end) = (place(start)?, place(end)?);
    if !start.0.is_done() || !end.0.is_done() {
        return Err(CuResult::NotReady);
    }
    let (Some(start), Some(end)) = (start.1.0.get(), end.1.0.get()) else {
        // Passed without a time: its context failed.
        return Err(CuResult::InvalidHandle);
    };
    let forward = end.saturating_duration_since(*start).as_secs_f64();
    let backward = start.saturating_duration_since(*end).as_secs_f64();
    Ok(((forward - backward) * 1e3) as f32)
}

struct ExternalRecord(Arc<Event>);

impl Work for ExternalRecord {
    fn issue(&self) -> Box<dyn Execution> {
        let progress = Progress::new();
        let mark = self.0.mark();
        let point = Point {
            progress: progress.clone(),
            position: 1,
        };
        *lock(&self.0.record) = Record::Work(point, mark.clone());
        Box::new(Recording { progress, mark })
    }
}

struct Recording {
    progress: Arc<Progress>,
    mark: Option<Arc<Mark>>,
}

impl Execution for Recording {
    fn start(self: Box<Self>, done: Done) {
        if let Some(mark) = &self.mark {
            // Set once, since each launch has its own.
            let _ = mark.0.set(std::time::Instant::now());
        }
        drop(self);
        done.finish(CuResult::Success);
    }

    fn is_short(&self) -> bool {
        true
    }
}

/// Started or not, what waits for the record goes on.
impl Drop for Recording {
    fn drop(&mut self) {
        self.progress.pass().into_iter().for_each(take);
    }
}

struct ExternalWait(Arc<Event>);

impl Work for ExternalWait {
    fn issue(&self) -> Box<dyn Execution> {
        let point = match self.0.record() {
            Record::Work(point, _) => Some(point),
            Record::Nothing | Record::Captured(..) => None,
        };
        Box::new(Waiting(point))
    }
}

struct Waiting(Option<Point>);

impl Execution for Waiting {
    fn start(self: Box<Self>, done: Done) {
        let finish = Step::Call(Box::new(move || done.finish(CuResult::Success)));
        let left = match &self.0 {
            Some(point) => point.when_done(finish),
            None => Some(finish),
        };
        left.into_iter().for_each(take);
    }

    fn is_short(&self) -> bool {
        true
    }
}
