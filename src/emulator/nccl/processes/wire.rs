//! A connection between two processes, and how things are written on it: frames of a length and as many
//! bytes, numbers as this machine has them.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::{Arc, Mutex};

use super::Token;
use crate::emulator::cuda;
use crate::emulator::nccl::error::lock;
use crate::emulator::nccl::exchange::{Expected, Kind, Operator, Request, Scalar, Signal, Topic};
use crate::emulator::nccl::job::background;
use crate::emulator::system;
use crate::nccl::{NCCL_UNIQUE_ID_BYTES, NcclDataType};

/// What a connection begins with: who speaks, and which form of all this.
const MAGIC: [u8; 8] = *b"metrale1";
/// The longest frame that is read: some hundred thousand calls of one group.
const LONGEST: usize = 64 << 20;

pub(super) type Id = [u8; NCCL_UNIQUE_ID_BYTES];

/// One end of a connection. Frames go out whole and in order, and who sends never waits: a peer that
/// is busy gets the rest by another thread. So two processes that send to each other get on.
pub(in crate::emulator::nccl) struct Wire {
    stream: UnixStream,
    out: Mutex<Out>,
}

#[derive(Default)]
struct Out {
    /// What could not be sent at once.
    rest: VecDeque<u8>,
    /// A thread sends the rest.
    flushing: bool,
}

impl Wire {
    pub(super) fn new(stream: UnixStream) -> Arc<Self> {
        Arc::new(Self {
            stream,
            out: Mutex::default(),
        })
    }

    /// Connects with the process of this name, and shows it this one's memory.
    pub(super) fn dial(token: Token) -> io::Result<Arc<Self>> {
        let address = address(token)?;
        let stream = UnixStream::connect_addr(&address)?;
        if !system::is_same_user(&stream) {
            return Err(ErrorKind::PermissionDenied.into());
        }
        let file = cuda::shared_file().ok_or(ErrorKind::Unsupported)?;
        system::send_file(&stream, &MAGIC, file)?;
        Ok(Self::new(stream))
    }

    pub(super) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Sends a frame. If the other end is gone, whoever reads will notice.
    pub(in crate::emulator::nccl) fn send(self: &Arc<Self>, frame: Writer) {
        let bytes = frame.finish();
        let mut out = lock(&self.out);
        let sent = match out.flushing {
            true => 0,
            false => match system::send_now(&self.stream, &bytes, false) {
                Ok(sent) => sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                Err(error) if error.kind() == ErrorKind::Interrupted => 0,
                Err(_) => return,
            },
        };
        if sent == bytes.len() {
            return;
        }
        out.rest.extend(&bytes[sent..]);
        if !out.flushing {
            out.flushing = true;
            drop(out);
            let wire = self.clone();
            background(move || wire.flush());
        }
    }

    fn flush(&self) {
        loop {
            let part: Vec<u8> = {
                let mut out = lock(&self.out);
                if out.rest.is_empty() {
                    out.flushing = false;
                    return;
                }
                let length = out.rest.len().min(64 << 10);
                out.rest.drain(..length).collect()
            };
            let mut left = &part[..];
            while !left.is_empty() {
                match system::send_now(&self.stream, left, true) {
                    Ok(sent) => left = &left[sent..],
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => {
                        let mut out = lock(&self.out);
                        out.rest.clear();
                        out.flushing = false;
                        return;
                    }
                }
            }
        }
    }

    /// Ends the connection, once what was sent has gone out.
    pub(in crate::emulator::nccl) fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Where the process of this name listens: a name that is in no folder, and gone with the process.
pub(super) fn address(token: Token) -> io::Result<SocketAddr> {
    let hex: String = token.iter().map(|byte| format!("{byte:02x}")).collect();
    SocketAddr::from_abstract_name(format!("metrale-emulator-{hex}"))
}

/// Reads what every connection begins with: the file of the other process's memory.
pub(super) fn greet(stream: &UnixStream) -> io::Result<std::fs::File> {
    let mut magic = [0; MAGIC.len()];
    let (mut count, file) = system::receive_file(stream, &mut magic)?;
    while (1..magic.len()).contains(&count) {
        match (&mut &*stream).read(&mut magic[count..])? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            more => count += more,
        }
    }
    match file {
        Some(file) if magic == MAGIC && system::never_shrinks(&file) => Ok(file),
        _ => Err(ErrorKind::InvalidData.into()),
    }
}

/// The next frame; an error at the end of the connection.
pub(super) fn receive(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_ne_bytes(length) as usize;
    if length > LONGEST {
        return Err(ErrorKind::InvalidData.into());
    }
    // Room is taken as the bytes come, whatever the length promises.
    let mut bytes = Vec::with_capacity(length.min(64 << 10));
    stream
        .by_ref()
        .take(length as u64)
        .read_to_end(&mut bytes)?;
    match bytes.len() == length {
        true => Ok(bytes),
        false => Err(ErrorKind::UnexpectedEof.into()),
    }
}

/// A frame that is being written.
pub(in crate::emulator::nccl) struct Writer(Vec<u8>);

impl Writer {
    /// Begins a frame with a byte that says what it is.
    pub(super) fn new(kind: u8) -> Self {
        Self(vec![0, 0, 0, 0, kind])
    }

    fn finish(mut self) -> Vec<u8> {
        let length = (self.0.len() - 4) as u32;
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0
    }

    pub(super) fn byte(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    pub(super) fn number(mut self, value: u64) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub(super) fn int(mut self, value: i32) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub(super) fn fixed(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    pub(super) fn bytes(self, bytes: &[u8]) -> Self {
        self.number(bytes.len() as u64).fixed(bytes)
    }

    pub(super) fn list<T>(self, items: &[T], write: impl FnMut(Self, &T) -> Self) -> Self {
        let start = self.number(items.len() as u64);
        items.iter().fold(start, write)
    }

    fn signal(self, signal: Signal) -> Self {
        self.int(signal.context).int(signal.index)
    }

    pub(super) fn request(self, asked: &Request) -> Self {
        let frame = match &asked.kind {
            Kind::AllReduce => self.byte(0),
            Kind::Broadcast => self.byte(1),
            Kind::Reduce => self.byte(2),
            Kind::AllGather => self.byte(3),
            Kind::ReduceScatter => self.byte(4),
            Kind::AlltoAll => self.byte(5),
            Kind::Gather => self.byte(6),
            Kind::Scatter => self.byte(7),
            Kind::Send => self.byte(8),
            Kind::Recv => self.byte(9),
            Kind::Put(signal) => self.byte(10).signal(*signal),
            Kind::Signal(signal) => self.byte(11).signal(*signal),
            Kind::Wait(expected) => self.byte(12).list(expected, |frame, one| {
                frame.int(one.peer).signal(one.signal).number(one.times)
            }),
        };
        let frame = match asked.operator {
            Operator::Sum => frame.byte(0),
            Operator::Prod => frame.byte(1),
            Operator::Max => frame.byte(2),
            Operator::Min => frame.byte(3),
            Operator::Avg => frame.byte(4),
            Operator::PreMulSum(Scalar::Immediate(bytes)) => frame.byte(5).fixed(&bytes),
            Operator::PreMulSum(Scalar::Device(address)) => frame.byte(6).number(address),
        };
        frame
            .number(asked.send)
            .number(asked.recv)
            .number(asked.count as u64)
            .int(asked.datatype.0)
            .number(asked.peer as u64)
            .number(asked.stream)
    }
}

/// A frame that is being read. Whatever is not as it should be is `None`.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(frame: &'a [u8]) -> Self {
        Self(frame)
    }

    pub(super) fn fixed<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.fixed().map(|[byte]| byte)
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        self.fixed().map(u64::from_ne_bytes)
    }

    pub(super) fn size(&mut self) -> Option<usize> {
        usize::try_from(self.number()?).ok()
    }

    pub(super) fn int(&mut self) -> Option<i32> {
        self.fixed().map(i32::from_ne_bytes)
    }

    pub(super) fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.size()?;
        let (first, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(first)
    }

    pub(super) fn list<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let length = self.size()?;
        // Each item takes a byte at least.
        (length <= self.0.len()).then_some(())?;
        (0..length).map(|_| read(self)).collect()
    }

    pub(super) fn text(&mut self) -> Option<String> {
        self.bytes()
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    pub(super) fn topic(&mut self) -> Option<Topic> {
        let topics = [
            Topic::Init,
            Topic::Connect,
            Topic::Split,
            Topic::Grow,
            Topic::Window,
            Topic::Memory,
            Topic::Finalize,
        ];
        let number = self.byte()?;
        topics.into_iter().find(|topic| *topic as u8 == number)
    }

    fn signal(&mut self) -> Option<Signal> {
        Some(Signal {
            context: self.int()?,
            index: self.int()?,
        })
    }

    pub(super) fn request(&mut self) -> Option<Request> {
        let kind = match self.byte()? {
            0 => Kind::AllReduce,
            1 => Kind::Broadcast,
            2 => Kind::Reduce,
            3 => Kind::AllGather,
            4 => Kind::ReduceScatter,
            5 => Kind::AlltoAll,
            6 => Kind::Gather,
            7 => Kind::Scatter,
            8 => Kind::Send,
            9 => Kind::Recv,
            10 => Kind::Put(self.signal()?),
            11 => Kind::Signal(self.signal()?),
            12 => Kind::Wait(self.list(|frame| {
                Some(Expected {
                    peer: frame.int()?,
                    signal: frame.signal()?,
                    times: frame.number()?,
                })
            })?),
            _ => return None,
        };
        let operator = match self.byte()? {
            0 => Operator::Sum,
            1 => Operator::Prod,
            2 => Operator::Max,
            3 => Operator::Min,
            4 => Operator::Avg,
            5 => Operator::PreMulSum(Scalar::Immediate(self.fixed()?)),
            6 => Operator::PreMulSum(Scalar::Device(self.number()?)),
            _ => return None,
        };
        Some(Request {
            kind,
            operator,
            send: self.number()?,
            recv: self.number()?,
            count: self.size()?,
            datatype: NcclDataType(self.int()?),
            peer: self.size()?,
            stream: self.number()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn requests_come_back_as_they_went() {
        let signal = Signal {
            context: 3,
            index: -1,
        };
        let expected = Expected {
            peer: 7,
            signal,
            times: 5,
        };
        let kinds = [
            Kind::AllReduce,
            Kind::Broadcast,
            Kind::Reduce,
            Kind::AllGather,
            Kind::ReduceScatter,
            Kind::AlltoAll,
            Kind::Gather,
            Kind::Scatter,
            Kind::Send,
            Kind::Recv,
            Kind::Put(signal),
            Kind::Signal(signal),
            Kind::Wait(vec![expected, expected]),
        ];
        let operators = [
            Operator::Sum,
            Operator::Prod,
            Operator::Max,
            Operator::Min,
            Operator::Avg,
            Operator::PreMulSum(Scalar::Immediate([1, 2, 3, 4, 5, 6, 7, 8])),
            Operator::PreMulSum(Scalar::Device(99)),
        ];
        for kind in kinds {
            for operator in operators {
                let asked = Request {
                    kind: kind.clone(),
                    send: 1,
                    recv: u64::MAX,
                    count: 12,
                    datatype: NcclDataType::Float16,
                    operator,
                    peer: 5,
                    stream: 77,
                };
                let frame = Writer::new(9).request(&asked).finish();
                let mut reader = Reader::new(&frame[4..]);
                assert_eq!(reader.byte(), Some(9));
                let read = reader.request().unwrap();
                assert_eq!(format!("{read:?}"), format!("{asked:?}"));
                assert!(reader.byte().is_none());
                for short in 5..frame.len() {
                    assert!(Reader::new(&frame[5..short]).request().is_none());
                }
            }
        }
    }

    #[test]
    fn who_sends_never_waits() {
        let (here, there) = UnixStream::pair().unwrap();
        let wire = Wire::new(here);
        for i in 0..2000u64 {
            wire.send(Writer::new(1).number(i).fixed(&[0; 1000]));
        }
        std::thread::sleep(Duration::from_millis(5));
        let mut stream = &there;
        for i in 0..2000 {
            let frame = receive(&mut stream).unwrap();
            let mut reader = Reader::new(&frame);
            assert_eq!((reader.byte(), reader.number()), (Some(1), Some(i)));
        }
        wire.close();
        assert!(receive(&mut stream).is_err());
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        for bytes in [&[255; 4][..], &[10, 0, 0, 0, 1], &[1, 0], &[]] {
            assert!(receive(&mut &bytes[..]).is_err());
        }
        let mut frame = Writer::new(0).number(u64::MAX).finish();
        frame.push(1);
        assert!(Reader::new(&frame[5..]).bytes().is_none());
        assert!(Reader::new(&frame[5..]).list(Reader::byte).is_none());
    }
}
