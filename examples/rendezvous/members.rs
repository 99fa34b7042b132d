//! The connections after the exchange: a rank that dies is named to the others, whatever the network they
//! compute over says, and also where it says nothing.
//!
//! The kernel closes a dead process's connections, so rank 0 learns of it at once and tells all; a machine that
//! is cut off is not noticed. All ranks watch, or none: who drops its [`Members`] counts as dead to the others.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::wire::{Frame, Kind, Link, PAYLOAD};

/// How often the connections are looked at.
const PERIOD: Duration = Duration::from_millis(50);
/// How long a rank's word that it has failed waits for a death, which is likelier the cause.
const CAUSE_LIMIT: Duration = Duration::from_secs(1);

/// The connections that an exchange leaves: on rank 0 one to each rank, elsewhere one to rank 0.
pub struct Members {
    rank: u32,
    world: u32,
    peers: Vec<Peer>,
}

struct Peer {
    rank: u32,
    link: Link,
    /// Has said that it failed, so its going is no surprise.
    failed: bool,
}

/// A thread that watches the other ranks.
pub struct Watch {
    words: Sender<Word>,
    thread: JoinHandle<Option<String>>,
}

/// What this rank does next.
enum Word {
    Leave,
    Fail(String),
}

impl Members {
    pub(super) fn new(rank: u32, world: u32, links: Vec<(u32, Link)>) -> Self {
        let peers = links.into_iter().map(|(rank, link)| Peer {
            rank,
            link,
            failed: false,
        });
        Self {
            rank,
            world,
            peers: peers.collect(),
        }
    }

    /// Calls `on_loss`, once and on another thread, with a sentence about the first rank that died or failed.
    pub fn watch(self, on_loss: impl FnOnce(&str) + Send + 'static) -> std::io::Result<Watch> {
        let (words, heard) = mpsc::channel();
        let thread = thread::Builder::new().spawn(move || {
            let mut members = self;
            let (cause, leaving) = members.until_loss(&heard)?;
            // As far as they are still there.
            if members.rank == 0 {
                members.tell(Kind::FAILED, &cause);
            }
            on_loss(&cause);
            if !leaving {
                // The connections stay until this rank leaves: its going is not to be taken for the cause.
                let _ = heard.recv();
            }
            Some(cause)
        })?;
        Ok(Watch { words, thread })
    }

    /// Until a rank is lost: a sentence about it, and whether this rank is leaving as well. `None` once it leaves in
    /// peace.
    fn until_loss(&mut self, heard: &mpsc::Receiver<Word>) -> Option<(String, bool)> {
        let (rank, world) = (self.rank, self.world);
        // The first word of a failure, and since when.
        let mut told: Option<(String, Instant)> = None;
        let mut leaving = false;
        loop {
            match heard.recv_timeout(PERIOD) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Word::Fail(reason)) => {
                    leaving = true;
                    if rank != 0 {
                        self.tell(Kind::FAILED, &reason);
                    }
                    let reason = format!("rank {rank} of {world} failed: {reason}");
                    told.get_or_insert((reason, Instant::now()));
                }
                Ok(Word::Leave) => {
                    self.tell(Kind::BYE, "");
                    return None;
                }
                // Dropped, perhaps by a panic: without a word.
                Err(RecvTimeoutError::Disconnected) => return None,
            }
            let mut death = None;
            self.peers.retain_mut(|peer| match peer.link.poll() {
                Ok(None) => true,
                Ok(Some(frame)) if frame.kind == Kind::FAILED => {
                    let words = frame.words();
                    if peer.rank == 0 {
                        // Which has looked for the cause already.
                        death.get_or_insert(words);
                    } else {
                        let reason = format!("rank {} of {world} failed: {words}", peer.rank);
                        told.get_or_insert((reason, Instant::now()));
                    }
                    peer.failed = true;
                    true
                }
                // In peace.
                Ok(Some(_)) => false,
                Err(_) if peer.failed => false,
                Err(_) => {
                    death.get_or_insert(format!(
                        "rank {} of {world} has died, or left without a word",
                        peer.rank
                    ));
                    false
                }
            });
            let waited = |(_, since): &mut (String, Instant)| since.elapsed() >= CAUSE_LIMIT;
            let cause = death.or_else(|| Some(told.take_if(waited)?.0));
            if let Some(cause) = cause {
                return Some((cause, leaving));
            }
        }
    }

    fn tell(&mut self, kind: Kind, text: &str) {
        let frame = match kind {
            Kind::BYE => Frame::new(kind, self.rank, self.world, [0; PAYLOAD]),
            _ => Frame::text(kind, self.rank, self.world, text),
        };
        for peer in &mut self.peers {
            // Who does not get it has gone.
            let _ = peer.link.send(&frame);
        }
    }
}

impl Watch {
    /// Leaves in peace: for when all that the ranks do together is done.
    pub fn leave(self) {
        self.end(Word::Leave);
    }

    /// Tells the others that this rank has failed, and returns what is known of the cause after a second at most.
    pub fn fail(self, reason: &str) -> Option<String> {
        self.end(Word::Fail(reason.to_owned()))
    }

    fn end(self, word: Word) -> Option<String> {
        // Where the thread has ended, it has nothing to hear any more.
        let _ = self.words.send(word);
        self.thread.join().ok().flatten()
    }
}
