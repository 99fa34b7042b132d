//! What goes over a connection: frames of one fixed size, read as far as they have come.

use std::fmt;
use std::hint::black_box;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::ensure;

/// The bytes that rank 0 hands to all.
pub const PAYLOAD: usize = 128;

/// Magic, version, kind, rank, world, each of the four numbers as a little-endian `u32`, and the payload.
pub const FRAME: usize = 8 + 4 * 4 + PAYLOAD;
const MAGIC: [u8; 8] = *b"RANKS\r\n\0";
pub const VERSION: u32 = 1;

/// How often something that comes over a connection is looked for.
pub const TICK: Duration = Duration::from_millis(1);

/// What a frame is for, in the order of a good exchange.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Kind(u32);

impl Kind {
    /// A rank says who it is, and shows the token.
    pub const JOIN: Self = Self(1);
    /// Rank 0 has let it in; the others are yet to come.
    pub const WELCOME: Self = Self(2);
    /// All have come, and this is the id.
    pub const ID: Self = Self(3);
    /// A rank has got the id.
    pub const GOT: Self = Self(4);
    /// All have got it.
    pub const GO: Self = Self(5);
    /// A rank leaves in peace.
    pub const BYE: Self = Self(6);
    /// The rank is not let in, and the payload says why.
    pub const REFUSED: Self = Self(7);
    /// A rank has failed, and the payload says why.
    pub const FAILED: Self = Self(8);
}

// No Debug: the payload can be a token or an id.
pub struct Frame {
    pub version: u32,
    pub kind: Kind,
    pub rank: u32,
    pub world: u32,
    pub payload: [u8; PAYLOAD],
}

impl Frame {
    pub fn new(kind: Kind, rank: u32, world: u32, payload: [u8; PAYLOAD]) -> Self {
        Self {
            version: VERSION,
            kind,
            rank,
            world,
            payload,
        }
    }

    /// A frame that says something, as far as there is room.
    pub fn text(kind: Kind, rank: u32, world: u32, text: &str) -> Self {
        let mut payload = [0; PAYLOAD];
        for (byte, from) in payload.iter_mut().zip(text.bytes()) {
            *byte = from;
        }
        Self::new(kind, rank, world, payload)
    }

    /// What the other side says, fit to be printed whoever it is.
    pub fn words(&self) -> String {
        let text = self.payload.split(|byte| *byte == 0).next();
        String::from_utf8_lossy(text.unwrap_or_default())
            .chars()
            .map(|letter| if letter.is_control() { '?' } else { letter })
            .collect()
    }

    fn to_bytes(&self) -> [u8; FRAME] {
        let numbers = [self.version, self.kind.0, self.rank, self.world];
        let mut bytes = [0; FRAME];
        bytes[..8].copy_from_slice(&MAGIC);
        for (place, number) in bytes[8..24].chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes[24..].copy_from_slice(&self.payload);
        bytes
    }

    fn from_bytes(bytes: &[u8; FRAME]) -> Self {
        let number = |at: usize| {
            let number = bytes[at..at + 4].try_into();
            u32::from_le_bytes(number.expect("four bytes"))
        };
        Self {
            version: number(8),
            kind: Kind(number(12)),
            rank: number(16),
            world: number(20),
            payload: bytes[24..].try_into().expect("the rest of a frame"),
        }
    }
}

/// What the ranks of one job share, and no other job has: up to 128 bytes.
#[derive(Clone, Copy)]
pub struct Token([u8; PAYLOAD]);

impl Token {
    /// A token of 1 to 128 bytes.
    pub fn new(word: &str) -> anyhow::Result<Self> {
        let length = word.len();
        ensure!(
            (1..=PAYLOAD).contains(&length),
            "a job token has 1 to {PAYLOAD} bytes, and this one {length}"
        );
        let mut token = [0; PAYLOAD];
        token[..length].copy_from_slice(word.as_bytes());
        Ok(Self(token))
    }

    pub fn bytes(&self) -> [u8; PAYLOAD] {
        self.0
    }

    /// Takes the same time wherever the first difference is.
    pub fn is(&self, other: &[u8; PAYLOAD]) -> bool {
        let pairs = self.0.iter().zip(other);
        pairs.fold(0, |difference, (a, b)| black_box(difference | (a ^ b))) == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// A connection that never keeps its owner waiting.
pub struct Link {
    stream: TcpStream,
    pub peer: SocketAddr,
    since: Instant,
    /// The next frame, as far as it has come.
    bytes: [u8; FRAME],
    filled: usize,
}

impl Link {
    pub fn new(stream: TcpStream, peer: SocketAddr) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            peer,
            since: Instant::now(),
            bytes: [0; FRAME],
            filled: 0,
        })
    }

    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// The next frame if all of it has come; an error, in words, if there will be none.
    pub fn poll(&mut self) -> Result<Option<Frame>, String> {
        while self.filled < FRAME {
            match self.stream.read(&mut self.bytes[self.filled..]) {
                Ok(0) => return Err("closed the connection".into()),
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("is lost: {error}")),
            }
            let sign = self.filled.min(MAGIC.len());
            if self.bytes[..sign] != MAGIC[..sign] {
                return Err("sent something else than a rank does".into());
            }
        }
        if self.filled < FRAME {
            return Ok(None);
        }
        self.filled = 0;
        Ok(Some(Frame::from_bytes(&self.bytes)))
    }

    /// As [`Link::poll`], for one that has until `end`.
    pub fn wait(&mut self, end: Instant) -> Result<Option<Frame>, String> {
        loop {
            let frame = self.poll()?;
            if frame.is_some() || Instant::now() >= end {
                return Ok(frame);
            }
            std::thread::sleep(TICK);
        }
    }

    /// A side sends a few frames in all, so there is room for each at once, or the peer is not well.
    pub fn send(&mut self, frame: &Frame) -> Result<(), String> {
        let bytes = frame.to_bytes();
        match self.stream.write(&bytes) {
            Ok(FRAME) => Ok(()),
            Ok(_) => Err("takes no more".into()),
            Err(error) => Err(format!("is lost: {error}")),
        }
    }
}
