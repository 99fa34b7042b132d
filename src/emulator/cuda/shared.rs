//! Memory that other processes can be shown: one file without a name a process, of which each large
//! allocation is a part.

use std::fs::File;
use std::sync::{Mutex, OnceLock};

use super::lock;
use crate::emulator::system::{Mapping, anonymous_file, grow, punch};

/// What parts begin at and end on: the largest page that there is.
const PAGE: usize = 64 << 10;
/// Bytes of freed parts that are kept for the next allocation of their size.
const KEPT: usize = 64 << 20;

/// A part of the file, mapped.
struct Part {
    mapping: Mapping,
    offset: u64,
}

/// Memory in such a part, given back at its end.
pub(in crate::emulator) struct Piece(Option<Part>);

/// Where a piece is: in this process, and in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::emulator) struct Shared {
    pub base: u64,
    pub length: usize,
    pub offset: u64,
}

impl Piece {
    /// At least so many bytes, if there can be such a piece.
    pub fn new(size: usize) -> Option<Self> {
        take(size).map(|part| Self(Some(part)))
    }

    pub(super) fn address(&self) -> *mut u8 {
        let part = self.0.as_ref();
        part.map_or(std::ptr::null_mut(), |part| part.mapping.address())
    }

    pub fn place(&self) -> Shared {
        let part = self.0.as_ref();
        Shared {
            base: self.address().expose_provenance() as u64,
            length: part.map_or(0, |part| part.mapping.length()),
            offset: part.map_or(0, |part| part.offset),
        }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(give_back);
    }
}

struct Memory {
    file: File,
    /// Where the next new piece begins. No part is used for two, so that what another process has
    /// mapped never becomes something else.
    end: Mutex<u64>,
    spare: Mutex<Spare>,
}

#[derive(Default)]
struct Spare {
    parts: Vec<Part>,
    bytes: usize,
}

fn memory() -> Option<&'static Memory> {
    static MEMORY: OnceLock<Option<Memory>> = OnceLock::new();
    let make = || {
        Some(Memory {
            file: anonymous_file(c"metrale-emulator").ok()?,
            end: Mutex::new(0),
            spare: Mutex::default(),
        })
    };
    MEMORY.get_or_init(make).as_ref()
}

/// The file, where the system has such files.
pub(in crate::emulator) fn file() -> Option<&'static File> {
    memory().map(|memory| &memory.file)
}

fn take(size: usize) -> Option<Part> {
    let memory = memory()?;
    let length = size.checked_next_multiple_of(PAGE)?;
    {
        let mut spare = lock(&memory.spare);
        let fits = |part: &Part| part.mapping.length() == length;
        if let Some(place) = spare.parts.iter().rposition(fits) {
            spare.bytes -= length;
            return Some(spare.parts.remove(place));
        }
    }
    let offset = {
        let mut end = lock(&memory.end);
        let offset = *end;
        let after = offset.checked_add(length as u64)?;
        grow(&memory.file, after).ok()?;
        *end = after;
        offset
    };
    let mapping = Mapping::new(&memory.file, offset, length).ok()?;
    Some(Part { mapping, offset })
}

/// Takes a part back that nobody uses any more.
fn give_back(part: Part) {
    let Some(memory) = memory() else { return };
    let mut spare = lock(&memory.spare);
    spare.bytes += part.mapping.length();
    spare.parts.push(part);
    let mut over = 0;
    while spare.bytes > KEPT {
        spare.bytes -= spare.parts[over].mapping.length();
        over += 1;
    }
    let gone: Vec<Part> = spare.parts.drain(..over).collect();
    drop(spare);
    for part in gone {
        punch(&memory.file, part.offset, part.mapping.length());
    }
}
